/* volumes.c - E2B's routes for volumes: names, ids and the tokens of the content API. */
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "api/volumes.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "http/body.h"
#include "volumes/volumes.h"

static void e2b_volume_add(struct json *j, const struct api_call *c, const struct volume *v, bool token)
{
    json_obj(j, NULL);
    json_str(j, "volumeID", v->id);
    json_str(j, "name", v->name);
    if (token) {
        json_str(j, "token", v->token);
        if (c->api->config->domain)
            json_str(j, "domain", c->api->config->domain);
    }
    json_end_obj(j);
}

static void e2b_volume_answer(struct http_req *r, unsigned status, const struct volume *v)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    e2b_volume_add(&j, api_call_of(r), v, true);
    reply_json(r, status, &out);
}

struct listing {
    struct json j;
    const struct api_call *call;
};

static void e2b_volume_add_listed(void *arg, const struct volume *v)
{
    struct listing *l = arg;
    e2b_volume_add(&l->j, l->call, v, false);
}

void e2b_volumes(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct listing l = {.call = c};
    json_start(&l.j, &out);
    json_arr(&l.j, NULL);
    c->api->domain->volumes.each(c->api->volumes, c->who.tenant, e2b_volume_add_listed, &l);
    json_end_arr(&l.j);
    reply_json(c->req, 200, &out);
}

/* Keys that may only read get no token, because it allows to write every file. */
void e2b_volume(struct api_call *c)
{
    const struct volume *v = c->api->domain->volumes.find(c->api->volumes, c->who.tenant, c->param[0]);
    if (!v)
        api_no_volume(c);
    else if (c->who.scopes & SCOPE_READ)
        reply_error(c->req, 403, "this API key may only read, and the token of a volume is for writing too");
    else
        e2b_volume_answer(c->req, 200, v);
}

/* --- changes ------------------------------------------------------------------------------------------------------- */

static void e2b_volume_on_created(void *arg, const struct volume *v, const struct state_failure *failure)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    if (v)
        e2b_volume_answer(r, 201, v);
    else
        reply_state_failure(r, failure);
}

static void e2b_volume_on_create_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    const struct config *cfg = c->api->config;
    struct volume_quota q = {
        .given = config_given(cfg, "volumes.quota"), .admin = c->who.scopes & SCOPE_ADMIN, .bytes = cfg->volume_bytes};
    const char *name = NULL;
    struct err err;
    if (status)
        reply_error(r, status, "%s", error);
    else if (!json_is_object(root))
        reply_error(r, 400, "the body must be an object with 'name'");
    else if (field_str(root, "name", &name, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else if (!name || !volume_name_valid(name))
        reply_error(r, 400, "field 'name' must be 1 to %d letters, digits, '_' and '-'", SANDBOX_MOUNT_NAME_MAX - 1);
    else
        c->api->domain->volumes.create(c->api->volumes, c->who.tenant, name, &q, e2b_volume_on_created,
                                       api_wait_for(r, sizeof(struct api_wait)));
}

void e2b_volume_create(struct api_call *c) { body_json(c->req, 0, e2b_volume_on_create_body); }
