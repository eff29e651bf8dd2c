/* native-volumes.c - volumes with their quotas, their usage and the sandboxes that mount them. */
#include <string.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "api/volumes.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "http/body.h"
#include "volumes/volumes.h"

static void native_volume_add_quota(struct json *j, const char *key, uint64_t bytes, uint64_t entries)
{
    json_obj(j, key);
    if (bytes)
        json_u64(j, "bytes", bytes);
    else
        json_none(j, "bytes");
    if (entries)
        json_u64(j, "entries", entries);
    else
        json_none(j, "entries");
    json_end_obj(j);
}

/* The members of an object that the caller begins and ends. */
static void native_volume_add_members(struct json *j, struct api *api, const struct volume *v)
{
    char users[VOLUME_USERS_SHOWN][SANDBOX_ID_MAX], t[REPLY_TIME_MAX];
    size_t n = volume_users(api->volumes, v, users, VOLUME_USERS_SHOWN);
    json_str(j, "id", v->id);
    json_str(j, "name", v->name);
    reply_time(v->created_unix_ms, t);
    json_str(j, "createdAt", t);
    native_volume_add_quota(j, "quota", v->bytes, v->entries);
    json_arr(j, "mountedBy");
    for (size_t i = 0; i < n && i < VOLUME_USERS_SHOWN; i++)
        json_str(j, NULL, users[i]);
    json_end_arr(j);
    json_u64(j, "mounts", n);
}

struct listing {
    struct json j;
    struct api *api;
};

static void native_volume_add_listed(void *arg, const struct volume *v)
{
    struct listing *l = arg;
    json_obj(&l->j, NULL);
    native_volume_add_members(&l->j, l->api, v);
    json_end_obj(&l->j);
}

void native_volumes(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct listing l = {.api = c->api};
    json_start(&l.j, &out);
    json_obj(&l.j, NULL);
    json_arr(&l.j, "volumes");
    c->api->domain->volumes.each(c->api->volumes, c->who.tenant, native_volume_add_listed, &l);
    json_end_arr(&l.j);
    json_end_obj(&l.j);
    reply_json(c->req, 200, &out);
}

/* --- one ----------------------------------------------------------------------------------------------------------- */

/* A request under way. */
struct asking {
    struct api_wait wait;
    char id[LAYERS_SANDBOX_MAX];
    unsigned status;
};

static struct asking *native_volume_wait_new(struct http_req *r, unsigned status)
{
    struct asking *a = api_wait_for(r, sizeof *a);
    a->status = status;
    return a;
}

static void native_volume_add_used(struct json *j, const struct layers_reply *r)
{
    if (r->error != LAYERS_OK) {
        json_none(j, "used");
        json_str(j, "problem", r->text);
        return;
    }
    json_obj(j, "used");
    json_u64(j, "bytes", r->bytes);
    json_u64(j, "entries", r->entries);
    json_end_obj(j);
    json_str(j, "enforcedBy", r->text);
    if (strcmp(r->text, "none") != 0)
        native_volume_add_quota(j, "enforced", r->bytes2, r->entries2);
}

static void native_volume_on_measured(void *arg, const struct layers_reply *r)
{
    struct asking a = *(struct asking *)arg;
    struct http_req *req = api_wait_over(arg);
    if (!req)
        return;
    struct api_call *c = api_call_of(req);
    const struct volume *v = c->api->domain->volumes.find(c->api->volumes, c->who.tenant, a.id);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!v) {
        reply_error(req, 404, "the volume was removed");
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    native_volume_add_members(&j, c->api, v);
    native_volume_add_used(&j, r);
    json_end_obj(&j);
    reply_json(req, a.status, &out);
}

static void native_volume_answer(struct asking *a, const struct volume *v)
{
    memcpy(a->id, v->id, sizeof a->id);
    volume_measure(api_call_of(a->wait.r)->api->volumes, v, native_volume_on_measured, a);
}

void native_volume(struct api_call *c)
{
    const struct volume *v = c->api->domain->volumes.find(c->api->volumes, c->who.tenant, c->param[0]);
    if (v)
        native_volume_answer(native_volume_wait_new(c->req, 200), v);
    else
        api_no_volume(c);
}

/* --- making -------------------------------------------------------------------------------------------------------- */

static void native_volume_on_created(void *arg, const struct volume *v, const struct state_failure *failure)
{
    struct asking *a = arg;
    if (v && a->wait.r) {
        native_volume_answer(a, v);
        return;
    }
    struct http_req *r = api_wait_over(a);
    if (r)
        reply_state_failure(r, failure);
}

static int native_volume_read_limit(json_t *o, const char *name, uint64_t min, uint64_t max, uint64_t *ret,
                                    struct err *err)
{
    int64_t n = 0;
    int have = field_int(o, name, 0, (int64_t)max, &n, err);
    if (have < 0)
        return err_wrap(err, "quota");
    if (have && n != 0 && (uint64_t)n < min)
        return err_set(err, ERR_USAGE, 0, "field 'quota.%s' must be 0 (none) or at least %llu", name,
                       (unsigned long long)min);
    if (have)
        *ret = (uint64_t)n;
    return 0;
}

static int native_volume_check_quota_names(json_t *o, struct err *err)
{
    json_t *v;
    const char *name;
    json_object_foreach(o, name, v)
    {
        if (strcmp(name, "bytes") != 0 && strcmp(name, "entries") != 0)
            return err_set(err, ERR_USAGE, 0, "field 'quota' knows 'bytes' and 'entries', not '%.64s'", name);
    }
    return 0;
}

static int native_volume_read_quota(const struct config *cfg, json_t *root, bool admin, struct volume_quota *ret,
                                    struct err *err)
{
    json_t *o = NULL;
    *ret =
        (struct volume_quota){.given = config_given(cfg, "volumes.quota"), .admin = admin, .bytes = cfg->volume_bytes};
    int have = field_obj(root, "quota", &o, err);
    if (have <= 0)
        return have;
    if (native_volume_check_quota_names(o, err) < 0)
        return -1;
    ret->given = true;
    return native_volume_read_limit(o, "bytes", VOLUME_BYTES_MIN, VOLUME_BYTES_MAX, &ret->bytes, err) < 0
               ? -1
               : native_volume_read_limit(o, "entries", VOLUME_ENTRIES_MIN, VOLUME_ENTRIES_MAX, &ret->entries, err);
}

static void native_volume_on_create_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    static const char *const known[] = {"name", "quota", NULL};
    struct api_call *c = api_call_of(r);
    struct volume_quota q;
    const char *name = NULL;
    struct err err;
    if (status)
        reply_error(r, status, "%s", error);
    else if (!json_is_object(root))
        reply_error(r, 400, "the body must be an object with 'name'");
    else if (fields_check_known(root, "this route", known, &err) < 0 || field_str(root, "name", &name, &err) < 0 ||
             native_volume_read_quota(c->api->config, root, c->who.scopes & SCOPE_ADMIN, &q, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else if (!name || !volume_name_valid(name))
        reply_error(r, 400, "field 'name' must be 1 to %d letters, digits, '_' and '-'", SANDBOX_MOUNT_NAME_MAX - 1);
    else
        c->api->domain->volumes.create(c->api->volumes, c->who.tenant, name, &q, native_volume_on_created,
                                       native_volume_wait_new(r, 201));
}

void native_volume_create(struct api_call *c) { body_json(c->req, 0, native_volume_on_create_body); }

/* --- another quota ------------------------------------------------------------------------------------------------- */

static int native_volume_read_size(json_t *root, struct volume_size *ret, struct err *err)
{
    static const char *const known[] = {"quota", NULL};
    json_t *o = NULL;
    if (fields_check_known(root, "this route", known, err) < 0 || field_obj(root, "quota", &o, err) < 0)
        return -1;
    ret->has_bytes = json_is_integer(json_object_get(o, "bytes"));
    ret->has_entries = json_is_integer(json_object_get(o, "entries"));
    if (!ret->has_bytes && !ret->has_entries)
        return err_set(err, ERR_USAGE, 0, "field 'quota' must have a number 'bytes', 'entries' or both");
    if (native_volume_check_quota_names(o, err) < 0 ||
        native_volume_read_limit(o, "bytes", VOLUME_BYTES_MIN, VOLUME_BYTES_MAX, &ret->bytes, err) < 0)
        return -1;
    return native_volume_read_limit(o, "entries", VOLUME_ENTRIES_MIN, VOLUME_ENTRIES_MAX, &ret->entries, err);
}

static void native_volume_on_resize_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct volume_size size = {.admin = c->who.scopes & SCOPE_ADMIN};
    struct volume *v = c->api->domain->volumes.find(c->api->volumes, c->who.tenant, c->param[0]);
    struct err err;
    if (status)
        reply_error(r, status, "%s", error);
    else if (!v)
        api_no_volume(c);
    else if (!json_is_object(root))
        reply_error(r, 400, "the body must be an object with 'quota'");
    else if (native_volume_read_size(root, &size, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        volume_resize(c->api->volumes, v, &size, native_volume_on_created, native_volume_wait_new(r, 200));
}

void native_volume_resize(struct api_call *c) { body_json(c->req, 0, native_volume_on_resize_body); }
