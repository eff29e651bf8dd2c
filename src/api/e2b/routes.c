/* routes.c - E2B's dialect: its routes of the control plane, and its agent on port 49983. */
#include "api/e2b/e2b.h"
#include "api/volumes.h"
#include "base/cleanup.h"

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
    {"DELETE", "/volumes/{id}", api_volume_remove, SCOPE_SANDBOXES, WRITE},
    /* volume-content.c checks the volume's token or a key of its owner. */
    {"GET", "/volumecontent/{id}/path", e2b_content_stat, SCOPE_SANDBOXES, API_OPEN | CONTENTS},
    {"PATCH", "/volumecontent/{id}/path", e2b_content_set, SCOPE_SANDBOXES, API_OPEN | WRITE},
    {"DELETE", "/volumecontent/{id}/path", e2b_content_remove, SCOPE_SANDBOXES, API_OPEN | WRITE},
    {"GET", "/volumecontent/{id}/dir", e2b_content_list, SCOPE_SANDBOXES, API_OPEN | CONTENTS},
    {"POST", "/volumecontent/{id}/dir", e2b_content_mkdir, SCOPE_SANDBOXES, API_OPEN | WRITE},
    {"GET", "/volumecontent/{id}/file", e2b_content_read, SCOPE_SANDBOXES, API_OPEN | CONTENTS},
    {"PUT", "/volumecontent/{id}/file", e2b_content_write, SCOPE_SANDBOXES, API_OPEN | WRITE},
    /* builds-upload.c checks the signature in the URL that e2b_build_files answered with. */
    {"PUT", "/v1/uploads/{name}", e2b_build_upload, 0, API_OPEN},
};

const struct api_dialect e2b_dialect = {
    .routes = routes,
    .nroutes = ARRAY_LEN(routes),
    .plane = {.port = API_ENVD_PORT,
              .handle = envd_handle,
              .may_wake = envd_may_wake,
              .handle_signed = envd_handle_signed},
};
