#include "base/cleanup.h"
#include "base/mem.h"
#include "front/api.h"
#include "front/e2b/e2b.h"
#include "front/native.h"
#include "http/router.h"

#define READ     0
#define WRITE    API_CHANGES
#define CONTENTS API_CONTENTS

/* docs/openapi.json describes each of these; a unit test compares the two. */
static const struct api_route routes[] = {
    {"GET", "/health", e2b_health, 0, API_OPEN},
    {"POST", "/sandboxes", e2b_create_v1, SCOPE_SANDBOXES, WRITE},
    {"POST", "/v2/sandboxes", e2b_create_v2, SCOPE_SANDBOXES, WRITE},
    {"GET", "/sandboxes", e2b_list_v1, SCOPE_SANDBOXES, READ},
    {"GET", "/v2/sandboxes", e2b_list_v2, SCOPE_SANDBOXES, READ},
    {"GET", "/sandboxes/metrics", e2b_metrics_many, SCOPE_SANDBOXES, READ},
    {"GET", "/sandboxes/{id}", e2b_get, SCOPE_SANDBOXES, READ},
    {"DELETE", "/sandboxes/{id}", e2b_kill, SCOPE_SANDBOXES, WRITE},
    {"POST", "/sandboxes/{id}/timeout", e2b_timeout, SCOPE_SANDBOXES, WRITE},
    {"POST", "/sandboxes/{id}/refreshes", e2b_refresh, SCOPE_SANDBOXES, WRITE},
    {"POST", "/sandboxes/{id}/connect", e2b_connect_v1, SCOPE_SANDBOXES, WRITE},
    {"POST", "/v2/sandboxes/{id}/connect", e2b_connect_v2, SCOPE_SANDBOXES, WRITE},
    {"PUT", "/sandboxes/{id}/network", e2b_network_put, SCOPE_SANDBOXES, WRITE},
    {"GET", "/sandboxes/{id}/metrics", e2b_metrics, SCOPE_SANDBOXES, READ},
    {"GET", "/sandboxes/{id}/logs", e2b_logs, SCOPE_SANDBOXES, CONTENTS},
    {"GET", "/v2/sandboxes/{id}/logs", e2b_logs_v2, SCOPE_SANDBOXES, CONTENTS},
    {"GET", "/templates", e2b_templates, SCOPE_TEMPLATES | SCOPE_SANDBOXES, READ},
    {"GET", "/v2/templates", e2b_templates, SCOPE_TEMPLATES | SCOPE_SANDBOXES, READ},
    {"GET", "/templates/aliases/{alias}", e2b_template_alias, SCOPE_TEMPLATES | SCOPE_SANDBOXES, READ},
    {"GET", "/templates/{id}", e2b_template, SCOPE_TEMPLATES | SCOPE_SANDBOXES, READ},
    {"GET", "/templates/{id}/tags", e2b_template_tags, SCOPE_TEMPLATES | SCOPE_SANDBOXES, READ},
    {"GET", "/teams", e2b_teams, 0, READ},
    {"GET", "/secrets", e2b_secrets, SCOPE_SANDBOXES, READ},
    {"POST", "/secrets", e2b_secret_create, SCOPE_SANDBOXES, WRITE},
    {"GET", "/secrets/{id}", e2b_secret, SCOPE_SANDBOXES, READ},
    {"POST", "/secrets/{id}", e2b_secret_version, SCOPE_SANDBOXES, WRITE},
    {"DELETE", "/secrets/{id}", e2b_secret_remove, SCOPE_SANDBOXES, WRITE},
    /* Known to E2B's clients, and not here yet. */
    {"POST", "/sandboxes/{id}/pause", e2b_pause, SCOPE_SANDBOXES, WRITE},
    {"POST", "/sandboxes/{id}/resume", e2b_resume, SCOPE_SANDBOXES, WRITE},
    {"POST", "/sandboxes/{id}/snapshots", e2b_snapshot, SCOPE_SANDBOXES, WRITE},
    {"POST", "/sandboxes/{id}/fork", e2b_fork, SCOPE_SANDBOXES, WRITE},
    {"GET", "/snapshots", e2b_snapshots, SCOPE_SANDBOXES, READ},
    {"POST", "/templates", e2b_build_old, SCOPE_TEMPLATES, WRITE},
    {"POST", "/v2/templates", e2b_build_make, SCOPE_TEMPLATES, WRITE},
    {"POST", "/v3/templates", e2b_build_make, SCOPE_TEMPLATES, WRITE},
    {"POST", "/templates/tags", e2b_tags_add, SCOPE_TEMPLATES, WRITE},
    {"DELETE", "/templates/tags", e2b_tags_remove, SCOPE_TEMPLATES, WRITE},
    {"POST", "/templates/{id}", e2b_build_old, SCOPE_TEMPLATES, WRITE},
    {"PATCH", "/templates/{id}", e2b_template_patch, SCOPE_TEMPLATES, WRITE},
    {"DELETE", "/templates/{id}", e2b_template_remove, SCOPE_TEMPLATES | SCOPE_SANDBOXES, WRITE},
    {"PATCH", "/v2/templates/{id}", e2b_template_patch, SCOPE_TEMPLATES, WRITE},
    {"GET", "/templates/{id}/files/{hash}", e2b_build_files, SCOPE_TEMPLATES, READ},
    {"POST", "/templates/{id}/builds/{build}", e2b_build_old, SCOPE_TEMPLATES, WRITE},
    {"POST", "/v2/templates/{id}/builds/{build}", e2b_build_start, SCOPE_TEMPLATES, WRITE},
    {"GET", "/templates/{id}/builds/{build}/status", e2b_build_status, SCOPE_TEMPLATES, READ},
    {"GET", "/templates/{id}/builds/{build}/logs", e2b_build_logs, SCOPE_TEMPLATES, CONTENTS},
    {"GET", "/volumes", e2b_volumes, SCOPE_SANDBOXES, READ},
    {"POST", "/volumes", e2b_volume_create, SCOPE_SANDBOXES, WRITE},
    {"GET", "/volumes/{id}", e2b_volume, SCOPE_SANDBOXES, READ},
    {"DELETE", "/volumes/{id}", e2b_volume_remove, SCOPE_SANDBOXES, WRITE},
    /* With the token of a volume, or a key of its owner: volume-content.c looks. */
    {"GET", "/volumecontent/{id}/path", e2b_content_stat, SCOPE_SANDBOXES, API_OPEN | CONTENTS},
    {"PATCH", "/volumecontent/{id}/path", e2b_content_set, SCOPE_SANDBOXES, API_OPEN | WRITE},
    {"DELETE", "/volumecontent/{id}/path", e2b_content_remove, SCOPE_SANDBOXES, API_OPEN | WRITE},
    {"GET", "/volumecontent/{id}/dir", e2b_content_list, SCOPE_SANDBOXES, API_OPEN | CONTENTS},
    {"POST", "/volumecontent/{id}/dir", e2b_content_mkdir, SCOPE_SANDBOXES, API_OPEN | WRITE},
    {"GET", "/volumecontent/{id}/file", e2b_content_read, SCOPE_SANDBOXES, API_OPEN | CONTENTS},
    {"PUT", "/volumecontent/{id}/file", e2b_content_write, SCOPE_SANDBOXES, API_OPEN | WRITE},
    /* Our own. */
    {"PUT", "/v1/uploads/{name}", e2b_build_upload, 0, API_OPEN},
    {"GET", "/v1/templates", native_templates, SCOPE_TEMPLATES | SCOPE_SANDBOXES, READ},
    {"POST", "/v1/templates/import", native_template_import, SCOPE_TEMPLATES, WRITE},
    {"POST", "/v1/templates/restore", native_template_restore, SCOPE_TEMPLATES, WRITE},
    {"GET", "/v1/templates/{id}", native_template, SCOPE_TEMPLATES | SCOPE_SANDBOXES, READ},
    {"DELETE", "/v1/templates/{id}", native_template_remove, SCOPE_TEMPLATES, WRITE},
    {"PATCH", "/v1/templates/{id}", native_template_set, SCOPE_TEMPLATES, WRITE},
    {"DELETE", "/v1/templates/{id}/builds/{build}", native_build_cancel, SCOPE_TEMPLATES, WRITE},
    {"GET", "/v1/templates/{id}/export", native_template_export, SCOPE_TEMPLATES, CONTENTS},
    {"GET", "/v1/openapi.json", native_openapi, 0, API_OPEN},
    {"GET", "/v1/capabilities", native_capabilities, 0, READ},
    {"GET", "/v1/node", native_node, SCOPE_ADMIN, READ},
    {"POST", "/v1/sandboxes", native_create, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/lifecycle", native_life, SCOPE_SANDBOXES, READ},
    {"PATCH", "/v1/sandboxes/{id}/lifecycle", native_life_patch, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/network", native_network, SCOPE_SANDBOXES, READ},
    {"PUT", "/v1/sandboxes/{id}/network", native_network_put, SCOPE_SANDBOXES, WRITE},
    {"PATCH", "/v1/sandboxes/{id}/network", native_network_patch, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/network/denials", native_network_denials, SCOPE_SANDBOXES, READ},
    {"GET", "/v1/network/usage", native_network_usage, SCOPE_SANDBOXES, READ},
    {"GET", "/v1/sandboxes/{id}/network/stats", native_network_stats, SCOPE_SANDBOXES, READ},
    {"GET", "/v1/sandboxes/{id}/network/learned", native_network_learned, SCOPE_SANDBOXES, READ},
    {"POST", "/v1/sandboxes/{id}/network/check", native_network_check, SCOPE_SANDBOXES, READ},
    {"GET", "/v1/approvals", native_approvals, SCOPE_SANDBOXES, READ},
    {"POST", "/v1/approvals/{id}", native_approval_decide, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/secrets", native_secrets, SCOPE_SANDBOXES, READ},
    {"POST", "/v1/secrets", native_secret_post, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/secrets/{name}", native_secret, SCOPE_SANDBOXES, READ},
    {"PUT", "/v1/secrets/{name}", native_secret_put, SCOPE_SANDBOXES, WRITE},
    {"DELETE", "/v1/secrets/{name}", native_secret_remove, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/ports", native_ports, SCOPE_SANDBOXES, READ},
    {"PUT", "/v1/sandboxes/{id}/ports", native_ports_put, SCOPE_SANDBOXES, WRITE},
    {"POST", "/v1/sandboxes/{id}/ports/{port}/link", native_link, SCOPE_SANDBOXES, WRITE},
    {"DELETE", "/v1/sandboxes/{id}/links", native_links_revoke, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/history", native_history, SCOPE_SANDBOXES, READ},
    {"POST", "/v1/sandboxes/{id}/history", native_history_make, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/history/diff", native_history_diff, SCOPE_SANDBOXES, CONTENTS},
    {"GET", "/v1/sandboxes/{id}/history/{number}/file", native_history_file, SCOPE_SANDBOXES, CONTENTS},
    {"POST", "/v1/sandboxes/{id}/history/undo", native_history_undo, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/tx", native_txs, SCOPE_SANDBOXES, READ},
    {"POST", "/v1/sandboxes/{id}/tx", native_tx_start, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/tx/{tx}", native_tx, SCOPE_SANDBOXES, CONTENTS},
    {"DELETE", "/v1/sandboxes/{id}/tx/{tx}", native_tx_discard, SCOPE_SANDBOXES, WRITE},
    {"POST", "/v1/sandboxes/{id}/tx/{tx}/commit", native_tx_commit, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/sandboxes/{id}/events", native_events, SCOPE_SANDBOXES, READ},
    {"GET", "/v1/volumes", native_volumes, SCOPE_SANDBOXES, READ},
    {"POST", "/v1/volumes", native_volume_create, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/volumes/{id}", native_volume, SCOPE_SANDBOXES, READ},
    {"PATCH", "/v1/volumes/{id}", native_volume_resize, SCOPE_SANDBOXES, WRITE},
    {"DELETE", "/v1/volumes/{id}", e2b_volume_remove, SCOPE_SANDBOXES, WRITE},
    {"GET", "/v1/tenants", native_tenants, SCOPE_ADMIN, READ},
    {"POST", "/v1/tenants", native_tenant_put, SCOPE_ADMIN, WRITE},
    {"GET", "/v1/tenants/{id}", native_tenant, SCOPE_ADMIN, READ},
    {"PATCH", "/v1/tenants/{id}", native_tenant_change, SCOPE_ADMIN, WRITE},
    {"DELETE", "/v1/tenants/{id}", native_tenant_remove, SCOPE_ADMIN, WRITE},
    {"GET", "/v1/keys", native_keys, SCOPE_ADMIN, READ},
    {"POST", "/v1/keys", native_key_create, SCOPE_ADMIN, WRITE},
    {"DELETE", "/v1/keys/{id}", native_key_remove, SCOPE_ADMIN, WRITE},
    {"POST", "/v1/stop-all", native_stop_all, SCOPE_ADMIN, WRITE},
    {"GET", "/v1/store", native_store, SCOPE_ADMIN, READ},
    {"POST", "/v1/store/verify", native_store_verify, SCOPE_ADMIN, READ},
    {"POST", "/v1/store/gc", native_store_gc, SCOPE_ADMIN, WRITE},
};

const struct api_route *api_routes(size_t *n)
{
    *n = ARRAY_LEN(routes);
    return routes;
}

enum api_match api_match(const char *method, const char *path, const struct api_route **ret,
                         char *param[API_PARAMS_MAX], struct buf *allow)
{
    static struct route table[ARRAY_LEN(routes)]; /* the same routes as the router wants them */
    static struct route_params params;            /* large; front has one loop */
    struct route_match m;
    if (!table[0].method)
        for (size_t i = 0; i < ARRAY_LEN(routes); i++)
            table[i] = (struct route){.method = routes[i].method, .pattern = routes[i].pattern};
    route_find(table, ARRAY_LEN(table), method, path, &m, &params);
    switch (m.result) {
    case ROUTE_NOT_FOUND:
        return API_NO_PATH;
    case ROUTE_METHOD:
        buf_adds(allow, m.allow);
        return API_NO_METHOD;
    case ROUTE_BAD:
        return API_BAD_PATH;
    case ROUTE_FOUND:
        break;
    }
    *ret = &routes[m.route - table];
    for (size_t i = 0; i < params.n && i < API_PARAMS_MAX; i++)
        param[i] = xstrdup(params.value[i]);
    return API_MATCHED;
}
