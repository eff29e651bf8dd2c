/* native-admin.c - tenants, their quotas, and API keys. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "http/body.h"
#include "snapshots/snapshots.h"

static const struct {
    const char *name;
    unsigned bit;
} scopes[] = {{"sandboxes", SCOPE_SANDBOXES},
              {"templates", SCOPE_TEMPLATES},
              {"admin", SCOPE_ADMIN},
              {"read", SCOPE_READ},
              {"files", SCOPE_FILES}};

/* A change under way. */
struct change {
    struct api_wait wait;
    unsigned status; /* HTTP status of success */
    struct buf body;
};

static struct change *native_admin_change_new(struct http_req *r, unsigned status)
{
    struct change *c = api_wait_for(r, sizeof *c);
    c->status = status;
    return c;
}

static void native_admin_on_changed(void *arg, const struct err *err)
{
    struct change c = *(struct change *)arg;
    struct http_req *r = api_wait_over(arg);
    if (r && err)
        reply_err(r, err);
    else if (r && c.body.n)
        reply_json(r, c.status, &c.body);
    else if (r)
        reply_empty(r, c.status);
    buf_done(&c.body);
}

struct listing {
    struct api *api;
    struct json j;
    bool kept; /* also show what the tenant stores; slow, so only for one tenant */
};

static void native_admin_add_tenant(void *arg, const struct tenant *t)
{
    struct listing *l = arg;
    struct json *j = &l->j;
    struct state_size limit = state_limit(l->api->stacks, t);
    json_obj(j, NULL);
    json_str(j, "id", t->id);
    json_str(j, "name", t->name);
    json_obj(j, "quota");
    json_u64(j, "sandboxes", t->quota.sandboxes);
    json_u64(j, "cpuMilli", t->quota.cpu_milli);
    json_u64(j, "memoryBytes", t->quota.memory);
    json_u64(j, "diskBytes", t->quota.disk);
    json_u64(j, "requestsPerSecond", t->quota.requests_per_second);
    json_u64(j, "burst", t->quota.burst);
    json_u64(j, "maxTimeoutSeconds", t->quota.max_timeout_s);
    json_u64(j, "snapshots", t->quota.snapshots);
    json_u64(j, "storageBytes", t->quota.state_bytes);
    json_u64(j, "storageEntries", t->quota.state_entries);
    json_end_obj(j);
    json_obj(j, "limits"); /* of storage: the tenant's quota, or else the node's limit */
    json_u64(j, "storageBytes", limit.bytes);
    json_u64(j, "storageEntries", limit.entries);
    json_end_obj(j);
    json_obj(j, "used");
    json_u64(j, "sandboxes", t->sandboxes);
    json_u64(j, "cpuMilli", t->cpu_milli);
    json_u64(j, "memoryBytes", t->memory);
    json_u64(j, "diskBytes", t->disk);
    if (l->kept) {
        struct state_kept kept = state_kept(l->api->stacks, t);
        json_u64(j, "snapshots", kept.count);
        json_u64(j, "storageBytes", kept.size.bytes);
        json_u64(j, "storageEntries", kept.size.entries);
    }
    json_end_obj(j);
    json_end_obj(j);
}

void native_tenants(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct listing l = {.api = c->api};
    json_start(&l.j, &out);
    json_obj(&l.j, NULL);
    json_arr(&l.j, "tenants");
    c->api->domain->tenants.each(c->api->tenants, native_admin_add_tenant, &l);
    json_end_arr(&l.j);
    json_end_obj(&l.j);
    reply_json(c->req, 200, &out);
}

void native_tenant(struct api_call *c)
{
    const struct tenant *t = c->api->domain->tenants.find(c->api->tenants, c->param[0]);
    _cleanup_buf_ struct buf out = {0};
    struct listing l = {.api = c->api, .kept = true};
    if (!t) {
        reply_error(c->req, 404, "there is no tenant '%.40s'", c->param[0]);
        return;
    }
    json_start(&l.j, &out);
    native_admin_add_tenant(&l, t);
    reply_json(c->req, 200, &out);
}

/* Absent fields keep their value in *q. */
static int native_admin_read_quota(json_t *root, struct quota *q, struct err *err)
{
    static const char *const known[] = {"sandboxes",         "cpuMilli",   "memoryBytes",       "diskBytes",
                                        "requestsPerSecond", "burst",      "maxTimeoutSeconds", "snapshots",
                                        "storageBytes",      "stateBytes", "storageEntries",    NULL};
    json_t *o = NULL;
    int64_t v[] = {q->sandboxes,
                   q->cpu_milli,
                   (int64_t)q->memory,
                   (int64_t)q->disk,
                   q->requests_per_second,
                   q->burst,
                   q->max_timeout_s,
                   q->snapshots,
                   (int64_t)q->state_bytes,
                   -1, /* stateBytes: the former name of storageBytes */
                   (int64_t)q->state_entries};
    int have = field_obj(root, "quota", &o, err);
    if (have <= 0)
        return have;
    if (fields_check_known(o, "quota", known, err) < 0)
        return -1;
    for (size_t i = 0; known[i]; i++)
        if (field_int(o, known[i], 0, i == 2 || i == 3 || i >= 8 ? INT64_MAX : UINT32_MAX, &v[i], err) < 0)
            return err_wrap(err, "quota");
    *q = (struct quota){.sandboxes = (uint32_t)v[0],
                        .cpu_milli = (uint32_t)v[1],
                        .memory = (uint64_t)v[2],
                        .disk = (uint64_t)v[3],
                        .requests_per_second = (uint32_t)v[4],
                        .burst = (uint32_t)v[5],
                        .max_timeout_s = (uint32_t)v[6],
                        .snapshots = (uint32_t)v[7],
                        .state_bytes = (uint64_t)(v[9] >= 0 ? v[9] : v[8]),
                        .state_entries = (uint64_t)v[10]};
    return 0;
}

/* The body as an object with known fields only. NULL: it has answered. */
static json_t *native_admin_read_object(struct http_req *r, json_t *root, unsigned status, const char *error,
                                        const char *const *known)
{
    struct err err;
    if (status)
        reply_error(r, status, "%s", error);
    else if (!json_is_object(root))
        reply_error(r, 400, "the body must be an object");
    else if (fields_check_known(root, "this route", known, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        return root;
    return NULL;
}

static void native_admin_on_tenant_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"id", "name", "quota", NULL};
    const char *id = NULL, *name = NULL;
    struct quota q = {0};
    struct err err;
    json_t *o = native_admin_read_object(r, root, status, error, known);
    if (!o)
        return;
    if (field_str(o, "id", &id, &err) < 0 || field_str(o, "name", &name, &err) < 0 ||
        native_admin_read_quota(o, &q, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    if (!id) {
        reply_error(r, 400, "field 'id' is required");
        return;
    }
    struct change *c = native_admin_change_new(r, 201);
    struct json j;
    json_start(&j, &c->body);
    json_obj(&j, NULL);
    json_str(&j, "id", id);
    json_end_obj(&j);
    api_call_of(r)->api->domain->tenants.put(api_call_of(r)->api->tenants, id, name, &q, native_admin_on_changed, c);
}
void native_tenant_put(struct api_call *c) { body_json(c->req, 0, native_admin_on_tenant_body); }

static void native_admin_on_tenant_patch_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"name", "quota", NULL};
    struct api_call *c = api_call_of(r);
    const struct tenant *t = c->api->domain->tenants.find(c->api->tenants, c->param[0]);
    json_t *o = native_admin_read_object(r, root, status, error, known);
    struct err err;
    if (!o)
        return;
    if (!t) {
        reply_error(r, 404, "there is no tenant '%.40s'", c->param[0]);
        return;
    }
    struct quota q = t->quota;
    const char *name = t->name;
    if (field_str(o, "name", &name, &err) < 0 || native_admin_read_quota(o, &q, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        c->api->domain->tenants.put(c->api->tenants, t->id, name, &q, native_admin_on_changed,
                                    native_admin_change_new(r, 204));
}
void native_tenant_change(struct api_call *c) { body_json(c->req, 0, native_admin_on_tenant_patch_body); }

void native_tenant_remove(struct api_call *c)
{
    c->api->domain->tenants.remove(c->api->tenants, c->param[0], native_admin_on_changed,
                                   native_admin_change_new(c->req, 204));
}

static void native_admin_add_scopes(struct json *j, unsigned bits)
{
    json_arr(j, "scopes");
    for (size_t i = 0; i < ARRAY_LEN(scopes); i++)
        if (bits & scopes[i].bit)
            json_str(j, NULL, scopes[i].name);
    json_end_arr(j);
}

static void native_admin_add_time(struct json *j, const char *key, uint64_t unix_s)
{
    char when[REPLY_TIME_MAX];
    reply_time(unix_s * 1000, when);
    if (unix_s)
        json_str(j, key, when);
    else
        json_none(j, key);
}

static void native_admin_add_key(void *arg, const struct key_info *k)
{
    struct json *j = arg;
    json_obj(j, NULL);
    json_str(j, "id", k->id);
    json_str(j, "tenant", k->tenant);
    json_str(j, "name", k->name);
    json_str(j, "hint", k->hint);
    native_admin_add_scopes(j, k->scopes);
    native_admin_add_time(j, "createdAt", k->created_unix);
    native_admin_add_time(j, "expiresAt", k->expires_unix);
    native_admin_add_time(j, "usedAt", k->used_unix);
    json_end_obj(j);
}

void native_keys(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "keys");
    c->api->domain->tenants.each_key(c->api->tenants, native_admin_add_key, &j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

static int native_admin_read_scopes(json_t *root, unsigned *ret, struct err *err)
{
    json_t *list;
    int have = field_arr(root, "scopes", &list, err);
    *ret = SCOPE_SANDBOXES | SCOPE_TEMPLATES;
    if (have <= 0)
        return have;
    *ret = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        size_t k = 0;
        while (name && k < ARRAY_LEN(scopes) && strcmp(scopes[k].name, name) != 0)
            k++;
        if (!name || k == ARRAY_LEN(scopes))
            return err_set(err, ERR_USAGE, 0, "field 'scopes[%zu]' must be sandboxes, templates, files, read or admin",
                           i);
        *ret |= scopes[k].bit;
    }
    return 0;
}

static int native_admin_read_expiry(json_t *root, uint64_t *ret, struct err *err)
{
    const char *text = NULL;
    uint64_t ms;
    *ret = 0;
    int have = field_str(root, "expiresAt", &text, err);
    if (have <= 0)
        return have;
    if (!reply_time_parse(text, &ms))
        return err_set(err, ERR_USAGE, 0, "field 'expiresAt' must be a time such as 2026-01-02T03:04:05Z");
    *ret = ms / 1000;
    return 0;
}

static void native_admin_on_key_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"tenant", "name", "scopes", "expiresAt", NULL};
    const char *tenant = NULL, *name = "";
    unsigned bits = 0;
    uint64_t expires = 0;
    char secret[64], id[24];
    struct err err;
    json_t *o = native_admin_read_object(r, root, status, error, known);
    if (!o)
        return;
    if (field_str(o, "tenant", &tenant, &err) < 0 || field_str(o, "name", &name, &err) < 0 ||
        native_admin_read_scopes(o, &bits, &err) < 0 || native_admin_read_expiry(o, &expires, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    if (!tenant) {
        reply_error(r, 400, "field 'tenant' is required: the id of a tenant");
        return;
    }
    struct change *c = native_admin_change_new(r, 201);
    struct json j;
    api_call_of(r)->api->domain->tenants.create_key(api_call_of(r)->api->tenants, tenant, name, bits, expires, secret,
                                                    id, native_admin_on_changed, c);
    /* The callback comes from the loop, later than this. */
    json_start(&j, &c->body);
    json_obj(&j, NULL);
    json_str(&j, "id", id);
    json_str(&j, "tenant", tenant);
    json_str(&j, "key", secret);
    native_admin_add_scopes(&j, bits);
    json_end_obj(&j);
    explicit_bzero(secret, sizeof secret);
}
void native_key_create(struct api_call *c) { body_json(c->req, 0, native_admin_on_key_body); }

void native_key_remove(struct api_call *c)
{
    c->api->domain->tenants.remove_key(c->api->tenants, c->param[0], native_admin_on_changed,
                                       native_admin_change_new(c->req, 204));
}
