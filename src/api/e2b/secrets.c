/* secrets.c - E2B's secrets: create, replace, list and remove them. No route returns a value: the only use of a secret
 * is ${e2b.secrets.NAME} in the headers of network rules.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/e2b.h"
#include "api/reply.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/body.h"
#include "http/url.h"
#include "network/secrets.h"

enum { PAGE_STANDARD = 100, PAGE_MAX = 100 };

static void e2b_secret_add(struct json *j, const struct sealed_secret *s)
{
    char t[REPLY_TIME_MAX];
    json_obj(j, NULL);
    json_str(j, "secretID", s->id);
    json_str(j, "name", s->name);
    json_u64(j, "currentVersion", s->revision);
    reply_add_text(j, "metadata", s->metadata);
    reply_time(s->created_unix_ms, t);
    json_str(j, "createdAt", t);
    reply_time(s->updated_unix_ms, t);
    json_str(j, "updatedAt", t);
    json_end_obj(j);
}

static void e2b_secret_reply_missing(struct api_call *c)
{
    reply_error(c->req, 404, "secret \"%.80s\" doesn't exist or you don't have access to it", c->param[0]);
}

/* E2B keeps names in lower case. */
static char *e2b_secret_lower_name(const char *text)
{
    char *name = xstrdup(text);
    for (char *p = name; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return name;
}

static const struct sealed_secret *e2b_secret_find(struct api_call *c, const char *text)
{
    _cleanup_free_ char *lower = e2b_secret_lower_name(text);
    const struct sealed_secret *s = c->api->domain->secrets.find(c->api->network, c->who.tenant->id, text);
    return s ? s : c->api->domain->secrets.find(c->api->network, c->who.tenant->id, lower);
}

/* --- lists -------------------------------------------------------------------------------------------------------- */

struct page {
    const struct sealed_secret **v;
    size_t n, cap;
};

static void e2b_secret_collect(void *arg, const struct sealed_secret *s)
{
    struct page *p = arg;
    MEM_GROW(p->v, p->n, p->cap);
    p->v[p->n++] = s;
}

static int e2b_secret_by_name(const void *a, const void *b)
{
    const struct sealed_secret *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static bool e2b_secret_read_query(const struct http_req *r, uint64_t *limit, struct buf *after)
{
    _cleanup_buf_ struct buf text = {0}, token = {0};
    struct err err;
    if (url_query_get(r->query, "limit", URL_PLUS_SPACE, &text, &err) > 0 &&
        (!num_u64(buf_str(&text), limit) || *limit < 1 || *limit > PAGE_MAX))
        return false;
    if (url_query_get(r->query, "nextToken", URL_PLUS_SPACE, &token, &err) > 0)
        return base64_decode(after, buf_str(&token), token.n);
    return true;
}

void e2b_secrets(struct api_call *c)
{
    struct page p = {0};
    uint64_t limit = PAGE_STANDARD;
    _cleanup_buf_ struct buf out = {0}, after = {0}, token = {0};
    struct json j;
    if (!e2b_secret_read_query(c->req, &limit, &after)) {
        reply_error(c->req, 400, "limit must be from 1 to %d, nextToken what the header X-Next-Token said", PAGE_MAX);
        return;
    }
    c->api->domain->secrets.each(c->api->network, c->who.tenant->id, e2b_secret_collect, &p);
    if (p.n)
        qsort(p.v, p.n, sizeof *p.v, e2b_secret_by_name);
    size_t at = 0;
    while (at < p.n && after.n && strcmp(p.v[at]->name, buf_str(&after)) <= 0)
        at++;
    json_start(&j, &out);
    json_arr(&j, NULL);
    size_t end = p.n - at > limit ? at + limit : p.n;
    for (size_t i = at; i < end; i++)
        e2b_secret_add(&j, p.v[i]);
    json_end_arr(&j);
    if (end < p.n && end > at) {
        base64_encode(&token, p.v[end - 1]->name, strlen(p.v[end - 1]->name));
        http_set(c->req, "x-next-token", buf_str(&token));
    }
    free(p.v);
    reply_json(c->req, 200, &out);
}

void e2b_secret(struct api_call *c)
{
    const struct sealed_secret *s = e2b_secret_find(c, c->param[0]);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!s) {
        e2b_secret_reply_missing(c);
        return;
    }
    json_start(&j, &out);
    e2b_secret_add(&j, s);
    reply_json(c->req, 200, &out);
}

/* --- changes ------------------------------------------------------------------------------------------------------ */

struct changing {
    struct api_wait wait;
    char *name; /* NULL: a removal */
    unsigned status;
};

static void e2b_secret_on_changed(void *arg, const struct err *err)
{
    struct changing w = *(struct changing *)arg;
    struct http_req *r = api_wait_over(arg);
    _cleanup_free_ char *name = w.name;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    const struct sealed_secret *s =
        name ? c->api->domain->secrets.find(c->api->network, c->who.tenant->id, name) : NULL;
    if (err)
        reply_err(r, err);
    else if (!s)
        reply_empty(r, 204);
    else {
        json_start(&j, &out);
        e2b_secret_add(&j, s);
        reply_json(r, w.status, &out);
    }
}

static struct changing *e2b_secret_change_new(struct api_call *c, const char *name, unsigned status)
{
    struct changing *w = api_wait_for(c->req, sizeof *w);
    w->status = status;
    w->name = name ? xstrdup(name) : NULL;
    return w;
}

/* Reads value and metadata of a body. 0, or -1 with a text for a 400. */
static int e2b_secret_read_body(json_t *root, struct sealed_change *ret, struct err *err)
{
    json_t *metadata = NULL, *v;
    const char *key;
    int have = field_str(root, "value", &ret->value, err);
    if (have < 0 || field_obj(root, "metadata", &metadata, err) < 0)
        return -1;
    if (have == 0 || !*ret->value)
        return err_set(err, ERR_USAGE, 0, "field 'value' is required");
    json_object_foreach(metadata, key, v) if (!json_is_string(v)) return err_set(
        err, ERR_USAGE, 0, "field 'metadata': every value must be a string");
    char *text = metadata ? json_dumps(metadata, JSON_COMPACT) : NULL;
    bool large = text && strlen(text) > VAULT_METADATA_MAX;
    free(text);
    if (large)
        return err_set(err, ERR_USAGE, 0, "field 'metadata' is larger than %d bytes", VAULT_METADATA_MAX);
    ret->nvalue = strlen(ret->value);
    ret->metadata = metadata;
    return 0;
}

static void e2b_secret_put(struct http_req *r, json_t *root, const char *name, enum sealed_how how, unsigned status)
{
    struct api_call *c = api_call_of(r);
    struct sealed_change change = {.tenant = c->who.tenant->id, .name = name, .how = how};
    struct err err;
    if (!json_is_object(root)) {
        reply_error(r, 400, "the body must be an object with 'value'");
        return;
    }
    if (e2b_secret_read_body(root, &change, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else
        c->api->domain->secrets.put(c->api->network, &change, e2b_secret_on_changed,
                                    e2b_secret_change_new(c, name, status));
}

static void e2b_secret_on_create_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    const char *name = NULL;
    struct err err;
    if (status)
        reply_error(r, status, "%s", error);
    else if (!json_is_object(root) || field_str(root, "name", &name, &err) < 0 || !name)
        reply_error(r, 400, "field 'name' is required: a string");
    else {
        _cleanup_free_ char *lower = e2b_secret_lower_name(name);
        e2b_secret_put(r, root, lower, VAULT_NEW, 201);
    }
}
void e2b_secret_create(struct api_call *c) { body_json(c->req, 0, e2b_secret_on_create_body); }

static void e2b_secret_on_version_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    const struct sealed_secret *s = e2b_secret_find(c, c->param[0]);
    if (status)
        reply_error(r, status, "%s", error);
    else if (!s)
        e2b_secret_reply_missing(c);
    else
        e2b_secret_put(r, root, s->name, VAULT_VERSION, 200);
}
void e2b_secret_version(struct api_call *c) { body_json(c->req, 0, e2b_secret_on_version_body); }

void e2b_secret_remove(struct api_call *c)
{
    const struct sealed_secret *s = e2b_secret_find(c, c->param[0]);
    if (!s) {
        e2b_secret_reply_missing(c);
        return;
    }
    c->api->domain->secrets.remove(c->api->network, c->who.tenant->id, s->name, e2b_secret_on_changed,
                                   e2b_secret_change_new(c, NULL, 204));
}
