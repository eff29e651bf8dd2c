/* keep.c - what outlives sandboxes: volumes, and templates, which Daytona calls snapshots; facts about the service. */
#include <string.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "volumes/volumes.h"

/* --- volumes -------------------------------------------------------------------------------------------------------- */

static void daytona_volume_add(struct json *j, const struct api_call *c, const struct volume *v)
{
    char t[REPLY_TIME_MAX];
    reply_time(v->created_unix_ms, t);
    json_obj(j, NULL);
    json_str(j, "id", v->id);
    json_str(j, "name", v->name);
    json_str(j, "organizationId", c->who.tenant->id);
    json_str(j, "state", "ready");
    json_str(j, "createdAt", t);
    json_str(j, "updatedAt", t);
    json_end_obj(j);
}

struct listing {
    struct json j;
    const struct api_call *call;
    const char *name; /* searched */
    const struct volume *found;
};

static void daytona_volume_add_listed(void *arg, const struct volume *v)
{
    struct listing *l = arg;
    daytona_volume_add(&l->j, l->call, v);
}

void daytona_volumes(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct listing l = {.call = c};
    json_start(&l.j, &out);
    json_arr(&l.j, NULL);
    c->api->domain->volumes.each(c->api->volumes, c->who.tenant, daytona_volume_add_listed, &l);
    json_end_arr(&l.j);
    reply_json(c->req, 200, &out);
}

static void daytona_volume_answer(struct api_call *c, const struct volume *v, const char *named)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!v) {
        daytona_error(c->req, 404, NULL, "volume '%.80s' not found", named);
        return;
    }
    json_start(&j, &out);
    daytona_volume_add(&j, c, v);
    reply_json(c->req, 200, &out);
}

void daytona_volume(struct api_call *c)
{
    daytona_volume_answer(c, c->api->domain->volumes.find(c->api->volumes, c->who.tenant, c->param[0]), c->param[0]);
}

static void daytona_volume_compare(void *arg, const struct volume *v)
{
    struct listing *l = arg;
    if (strcmp(v->name, l->name) == 0)
        l->found = v;
}

void daytona_volume_by_name(struct api_call *c)
{
    struct listing l = {.name = c->param[0]};
    c->api->domain->volumes.each(c->api->volumes, c->who.tenant, daytona_volume_compare, &l);
    daytona_volume_answer(c, l.found, c->param[0]);
}

static void daytona_volume_on_created(void *arg, const struct volume *v, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    if (r && v)
        daytona_volume_answer(api_call_of(r), v, "");
    else if (r)
        daytona_state_error(r, failure);
}

static void daytona_volume_on_body(struct api_call *c, json_t *body)
{
    const struct config *cfg = c->api->config;
    const struct volume_quota q = {
        .given = config_given(cfg, "volumes.quota"), .admin = c->who.scopes & SCOPE_ADMIN, .bytes = cfg->volume_bytes};
    const char *name = daytona_text(body, "name");
    if (!name || !volume_name_valid(name))
        daytona_error(c->req, 400, NULL, "field 'name' must be 1 to %d letters, digits, '_' and '-'",
                      SANDBOX_MOUNT_NAME_MAX - 1);
    else
        c->api->domain->volumes.create(c->api->volumes, c->who.tenant, name, &q, daytona_volume_on_created,
                                       api_wait_for(c->req, sizeof(struct api_wait)));
}
void daytona_volume_create(struct api_call *c) { daytona_body(c, daytona_volume_on_body); }

static void daytona_volume_on_removed(void *arg, const struct volume *v, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    (void)v;
    if (r && failure)
        daytona_state_error(r, failure);
    else if (r)
        reply_empty(r, 204);
}

void daytona_volume_remove(struct api_call *c)
{
    struct volume *v = c->api->domain->volumes.find(c->api->volumes, c->who.tenant, c->param[0]);
    if (v)
        c->api->domain->volumes.remove(c->api->volumes, v, daytona_volume_on_removed,
                                       api_wait_for(c->req, sizeof(struct api_wait)));
    else
        daytona_error(c->req, 404, NULL, "volume '%.80s' not found", c->param[0]);
}

/* --- snapshots ------------------------------------------------------------------------------------------------------ */

struct naming {
    struct json j;
    size_t n;
    const char *name; /* only this one; NULL: all */
};

static void daytona_snapshot_add(struct naming *l, const char *id, const char *name, const char *state, bool general,
                                 uint64_t ms)
{
    char t[REPLY_TIME_MAX];
    if (l->name && (l->n > 0 || (strcmp(l->name, name) != 0 && strcmp(l->name, id) != 0)))
        return;
    reply_time(ms, t);
    l->n++;
    json_obj(&l->j, NULL);
    json_str(&l->j, "id", id);
    json_str(&l->j, "name", name);
    json_bool(&l->j, "general", general);
    json_str(&l->j, "state", state);
    json_u64(&l->j, "cpu", 1);
    json_u64(&l->j, "gpu", 0);
    json_u64(&l->j, "mem", 1);
    json_u64(&l->j, "disk", 1);
    json_str(&l->j, "createdAt", t);
    json_str(&l->j, "updatedAt", t);
    json_end_obj(&l->j);
}

static void daytona_snapshot_add_directory(void *arg, const struct template_info *t)
{
    daytona_snapshot_add(arg, t->name, t->name, strcmp(t->state, "ready") == 0 ? "active" : "pending", true, 0);
}

static void daytona_snapshot_add_template(void *arg, const struct template *t)
{
    daytona_snapshot_add(arg, t->id, t->name[0] ? t->name : t->id, "active", false, t->created_unix_ms);
}

static void daytona_snapshots_collect(struct api_call *c, struct naming *l, struct buf *out)
{
    json_start(&l->j, out);
    json_arr(&l->j, NULL);
    c->api->domain->templates.each_directory(c->api->templates, daytona_snapshot_add_directory, l);
    c->api->domain->templates.each(c->api->templates, c->who.tenant, daytona_snapshot_add_template, l);
    json_end_arr(&l->j);
}

void daytona_snapshots(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0}, items = {0};
    struct naming l = {0};
    daytona_snapshots_collect(c, &l, &items);
    buf_addf(&out, "{\"items\":%s,\"total\":%zu,\"page\":1,\"totalPages\":1}", buf_str(&items), l.n);
    reply_json(c->req, 200, &out);
}

void daytona_snapshot(struct api_call *c)
{
    _cleanup_buf_ struct buf items = {0}, one = {0};
    struct naming l = {.name = c->param[0]};
    daytona_snapshots_collect(c, &l, &items);
    if (l.n == 0) {
        daytona_error(c->req, 404, NULL, "snapshot '%.80s' not found", c->param[0]);
        return;
    }
    buf_add(&one, items.p + 1, items.n - 2);
    reply_json(c->req, 200, &one);
}

/* --- the service ---------------------------------------------------------------------------------------------------- */

void daytona_health(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    buf_adds(&out, "{\"status\":\"ok\"}");
    reply_json(c->req, 200, &out);
}

void daytona_config(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0}, url = {0};
    struct json j;
    daytona_base_url(c, &url);
    buf_adds(&url, "/daytona/toolbox");
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "version", "hutch " HUTCH_VERSION);
    json_str(&j, "proxyToolboxUrl", buf_str(&url));
    json_str(&j, "proxyTemplateUrl", buf_str(&url));
    json_str(&j, "defaultSnapshot", "base");
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}
