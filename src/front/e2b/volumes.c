/* Volumes in E2B's words: names, ids and the tokens of the content API. */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "front/e2b/e2b.h"
#include "front/reply.h"
#include "front/volumes.h"
#include "http/body.h"

static void no_volume(struct api_call *c)
{
    /* The same words whether it never was, is gone or is somebody else's. */
    reply_error(c->req, 404, "volume '%.64s' not found", c->param[0]);
}

static void add_volume(struct json *j, const struct api_call *c, const struct volume *v, bool token)
{
    json_obj(j, NULL);
    json_str(j, "volumeID", v->id);
    json_str(j, "name", v->name);
    if (token) {
        json_str(j, "token", v->token);
        if (c->front->config->domain)
            json_str(j, "domain", c->front->config->domain);
    }
    json_end_obj(j);
}

static void answer(struct http_req *r, unsigned status, const struct volume *v)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    add_volume(&j, api_call_of(r), v, true);
    reply_json(r, status, &out);
}

struct listing {
    struct json j;
    const struct api_call *call;
};

static void add_listed(void *arg, const struct volume *v)
{
    struct listing *l = arg;
    add_volume(&l->j, l->call, v, false);
}

void e2b_volumes(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct listing l = {.call = c};
    json_start(&l.j, &out);
    json_arr(&l.j, NULL);
    volumes_each(c->front, c->who.tenant, add_listed, &l);
    json_end_arr(&l.j);
    reply_json(c->req, 200, &out);
}

/* A key that may only read gets no token: it opens every file for writing. */
void e2b_volume(struct api_call *c)
{
    const struct volume *v = volume_find(c->front, c->who.tenant, c->param[0]);
    if (!v)
        no_volume(c);
    else if (c->who.scopes & SCOPE_READ)
        reply_error(c->req, 403, "this API key may only read, and the token of a volume is for writing too");
    else
        answer(c->req, 200, v);
}

/* --- changes ------------------------------------------------------------------------------------------------------- */

static void created(void *arg, const struct volume *v, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (v)
        answer(r, 201, v);
    else
        e2b_refuse_state(r, failure);
}

static void create_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    const struct config *cfg = c->front->config;
    struct volume_quota q = {
        .given = config_given(cfg, "volumes.quota"), .admin = c->who.scopes & SCOPE_ADMIN, .bytes = cfg->volume_bytes};
    const char *name = NULL;
    struct err err;
    if (status)
        reply_error(r, status, "%s", error);
    else if (!json_is_object(root))
        reply_error(r, 400, "the body must be an object with 'name'");
    else if (e2b_field_str(root, "name", &name, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else if (!name || !volume_name_valid(name))
        reply_error(r, 400, "field 'name' must be 1 to %d letters, digits, '_' and '-'", BOX_MOUNT_NAME_MAX - 1);
    else
        volume_create(c->front, c->who.tenant, name, &q, created, api_wait_for(r, sizeof(struct api_wait)));
}

void e2b_volume_create(struct api_call *c) { body_json(c->req, 0, create_body); }

static void removed(void *arg, const struct volume *v, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    (void)v;
    if (!r)
        return;
    if (failure)
        e2b_refuse_state(r, failure);
    else
        reply_empty(r, 204);
}

void e2b_volume_remove(struct api_call *c)
{
    struct volume *v = volume_find(c->front, c->who.tenant, c->param[0]);
    if (v)
        volume_delete(c->front, v, removed, api_wait_for(c->req, sizeof(struct api_wait)));
    else
        no_volume(c);
}
