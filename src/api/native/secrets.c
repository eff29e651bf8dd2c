/* native-secrets.c - secrets and the hosts they are bound to. No route returns a value. See docs/secrets.md. */
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
#include "network/secrets.h"

static void native_secret_add(void *arg, const struct sealed_secret *s)
{
    struct json *j = arg;
    char t[REPLY_TIME_MAX];
    json_obj(j, NULL);
    json_str(j, "name", s->name);
    json_str(j, "id", s->id);
    json_u64(j, "revision", s->revision);
    reply_add_text(j, "spec", *s->spec ? s->spec : "{}");
    reply_add_text(j, "metadata", s->metadata);
    reply_time(s->created_unix_ms, t);
    json_str(j, "createdAt", t);
    reply_time(s->updated_unix_ms, t);
    json_str(j, "updatedAt", t);
    json_end_obj(j);
}

void native_secrets(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "secrets");
    c->api->domain->secrets.each(c->api->network, c->who.tenant->id, native_secret_add, &j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

static void native_secret_reply(struct http_req *r, const struct sealed_secret *s)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    native_secret_add(&j, s);
    reply_json(r, 200, &out);
}

void native_secret(struct api_call *c)
{
    const struct sealed_secret *s = c->api->domain->secrets.find(c->api->network, c->who.tenant->id, c->param[0]);
    if (s)
        native_secret_reply(c->req, s);
    else
        reply_error(c->req, 404, "there is no secret '%.64s'", c->param[0]);
}

struct changing {
    struct api_wait wait;
    char *name; /* NULL: a removal */
};

static void native_secret_on_changed(void *arg, const struct err *err)
{
    _cleanup_free_ char *name = ((struct changing *)arg)->name;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    const struct sealed_secret *s =
        name ? c->api->domain->secrets.find(c->api->network, c->who.tenant->id, name) : NULL;
    if (err)
        reply_err(r, err);
    else if (s)
        native_secret_reply(r, s);
    else
        reply_empty(r, 204);
}

static struct changing *native_secret_change_new(struct api_call *c, const char *name)
{
    struct changing *w = api_wait_for(c->req, sizeof *w);
    w->name = name ? xstrdup(name) : NULL;
    return w;
}

static bool native_secret_is_too_large(const json_t *v, size_t max)
{
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    bool large = text && strlen(text) > max;
    free(text);
    return large;
}

static int native_secret_read_change(json_t *root, struct sealed_change *ret, struct err *err)
{
    static const char *const known[] = {"name", "value", "spec", "metadata", NULL};
    json_t *spec = NULL, *metadata = NULL;
    if (fields_check_known(root, "this route", known, err) < 0 || field_str(root, "value", &ret->value, err) < 0 ||
        field_obj(root, "spec", &spec, err) < 0 || field_obj(root, "metadata", &metadata, err) < 0)
        return -1;
    if (native_secret_is_too_large(spec, VAULT_SPEC_MAX) || native_secret_is_too_large(metadata, VAULT_METADATA_MAX))
        return err_set(err, ERR_USAGE, 0, "spec has at most %d bytes, metadata %d", VAULT_SPEC_MAX, VAULT_METADATA_MAX);
    const char *type = json_string_value(json_object_get(json_object_get(spec, "inject"), "type"));
    if (!ret->value && type && strcmp(type, "headers") == 0)
        ret->value = ""; /* it refers to other secrets and has no value of its own */
    ret->nvalue = ret->value ? strlen(ret->value) : 0;
    ret->spec = spec;
    ret->metadata = metadata;
    return 0;
}

static void native_secret_on_put_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct sealed_change change = {.tenant = c->who.tenant->id, .name = c->param[0], .how = VAULT_EITHER};
    struct err err;
    if (status || !json_is_object(root))
        reply_error(r, status ? status : 400, "%s",
                    status ? error : "the body must be an object with 'value' or 'spec'");
    else if (json_object_get(root, "name"))
        reply_error(r, 400, "field 'name' is not allowed here: the path names the secret");
    else if (native_secret_read_change(root, &change, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        c->api->domain->secrets.put(c->api->network, &change, native_secret_on_changed,
                                    native_secret_change_new(c, c->param[0]));
}
void native_secret_put(struct api_call *c) { body_json(c->req, 0, native_secret_on_put_body); }

static void native_secret_on_post_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    struct sealed_change change = {.tenant = c->who.tenant->id, .how = VAULT_EITHER};
    struct err err;
    if (status || !json_is_object(root))
        reply_error(r, status ? status : 400, "%s",
                    status ? error : "the body must be an object with 'name' and 'value'");
    else if (field_str(root, "name", &change.name, &err) < 0 || native_secret_read_change(root, &change, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else if (!change.name)
        reply_error(r, 400, "field 'name' is required");
    else
        c->api->domain->secrets.put(c->api->network, &change, native_secret_on_changed,
                                    native_secret_change_new(c, change.name));
}
void native_secret_post(struct api_call *c) { body_json(c->req, 0, native_secret_on_post_body); }

void native_secret_remove(struct api_call *c)
{
    c->api->domain->secrets.remove(c->api->network, c->who.tenant->id, c->param[0], native_secret_on_changed,
                                   native_secret_change_new(c, NULL));
}
