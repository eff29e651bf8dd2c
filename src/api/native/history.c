/* native-history.c - generations of a sandbox's files: list, make and compare them, read a file, go back to one. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "api/send-file.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/body.h"
#include "http/url.h"
#include "peers/layersc.h"
#include "snapshots/changes.h"
#include "snapshots/generations.h"

/* A request that waits; r is NULL once the client left. */
struct waiting {
    struct http_req *r;
    struct api *api;
    char sandbox[SANDBOX_ID_MAX];
    char held[2][STACK_ID_MAX];
    char *below; /* comparison: only paths below this one */
    uint64_t from, to;
    layersc_call call; /* cancelled when the client leaves */
};

static void native_history_on_client_left(struct http_req *r);

static struct waiting *native_history_wait_new(struct api_call *c, const struct sandbox *b)
{
    struct waiting *w = xcalloc(1, sizeof *w);
    *w = (struct waiting){.r = c->req, .api = c->api};
    memcpy(w->sandbox, b->id, sizeof w->sandbox);
    c->req->user = w;
    api_on_closed(c->req, native_history_on_client_left);
    return w;
}

/* Frees w and returns the request to answer; NULL if its client left. */
static struct http_req *native_history_wait_over(struct waiting *w)
{
    struct http_req *r = w->r;
    for (size_t i = 0; i < ARRAY_LEN(w->held); i++)
        if (w->held[i][0])
            state_release(w->api->stacks, w->held[i]);
    free(w->below);
    free(w);
    if (r)
        api_on_closed(r, NULL);
    return r;
}

static void native_history_on_client_left(struct http_req *r)
{
    struct waiting *w = r->user;
    w->r = NULL;
    if (!w->call)
        return;
    layersc_cancel(w->api->peers->layers, w->call);
    (void)native_history_wait_over(w);
}

static void native_history_hold(struct waiting *w, size_t i, const char *stack)
{
    (void)memccpy(w->held[i], stack, 0, sizeof w->held[i] - 1);
    state_hold(w->api->stacks, stack);
}

/* --- the list ------------------------------------------------------------------------------------------------------- */

static void native_history_add_generation(struct json *j, const struct generation *g)
{
    char at[REPLY_TIME_MAX];
    reply_time(g->at_unix_ms, at);
    json_u64(j, "number", g->number);
    json_str(j, "at", at);
    json_str(j, "command", g->command);
    json_u64(j, "bytes", g->bytes);
}

static void native_history_add_listed(void *arg, const struct generation *g)
{
    json_obj(arg, NULL);
    native_history_add_generation(arg, g);
    json_end_obj(arg);
}

void native_history(struct api_call *c)
{
    const struct sandbox *b = api_sandbox_of(c);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!b)
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "sandboxID", b->id);
    json_bool(&j, "everyCommand", b->desc.history);
    json_u64(&j, "most", GENERATIONS_MAX);
    json_arr(&j, "generations");
    generations_each(c->api->snapshots, b->id, native_history_add_listed, &j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

/* --- one more ------------------------------------------------------------------------------------------------------- */

static void native_history_on_made(void *arg, const struct generation *g, const struct state_failure *failure)
{
    struct http_req *r = native_history_wait_over(arg);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!r)
        return;
    if (failure) {
        reply_state_failure(r, failure);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    native_history_add_generation(&j, g);
    json_u64(&j, "frozenUs", g->frozen_us);
    json_end_obj(&j);
    reply_json(r, 201, &out);
}

static void native_history_on_make_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    const char *label = "";
    struct err err;
    struct sandbox *b = status ? NULL : api_sandbox_of(c);
    if (status)
        reply_error(r, status, "%s", error);
    if (!b)
        return;
    if (root && field_str(root, "command", &label, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else if (!native_crowded(c))
        generation_make(c->api->snapshots, b, label, native_history_on_made, native_history_wait_new(c, b));
}

void native_history_make(struct api_call *c) { body_json(c->req, 0, native_history_on_make_body); }

/* --- comparing ------------------------------------------------------------------------------------------------------ */

static void native_history_on_compared(void *arg, const struct layers_reply *reply, int fd)
{
    struct waiting *w = arg;
    uint64_t from = w->from, to = w->to;
    _cleanup_free_ char *below = TAKE_PTR(w->below);
    _cleanup_close_ int records = fd;
    _cleanup_buf_ struct buf out = {0};
    struct state_failure failure = {0};
    struct err err = {0};
    struct json j;
    struct http_req *r = native_history_wait_over(w);
    if (!r)
        return;
    if (reply->error != LAYERS_OK || records < 0) {
        state_layers_failure(reply, "the comparison", &failure);
        reply_state_failure(r, &failure);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_u64(&j, "from", from);
    if (to)
        json_u64(&j, "to", to);
    int rc = changes_add(&j, records, below ? below : "", &err);
    json_end_obj(&j);
    if (rc < 0)
        reply_error(r, 500, "%s", err.msg);
    else
        reply_json(r, 200, &out);
}

/* Reads a number of the query. 1: there, 0: absent, -1: it answered with 400. */
static int native_history_query_number(struct api_call *c, const char *name, uint64_t *ret)
{
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    int have = url_query_get(c->req->query, name, URL_PLUS_SPACE, &text, &err);
    if (have == 0)
        return 0;
    if (have < 0 || !num_u64(buf_str(&text), ret) || *ret == 0) {
        reply_error(c->req, 400, "query parameter '%s' must be the number of a generation", name);
        return -1;
    }
    return 1;
}

static const struct generation *native_history_find(struct api_call *c, const struct sandbox *b, uint64_t number)
{
    const struct generation *g = generation_find(c->api->snapshots, b->id, number);
    if (!g)
        reply_error(c->req, 404, "the sandbox has no generation %llu; GET /v1/sandboxes/%s/history lists them",
                    (unsigned long long)number, b->id);
    return g;
}

void native_history_diff(struct api_call *c)
{
    struct sandbox *b = api_sandbox_of(c);
    uint64_t from = 0, to = 0;
    _cleanup_buf_ struct buf path = {0};
    struct err err;
    if (!b)
        return;
    int has_from = native_history_query_number(c, "from", &from),
        has_to = has_from < 0 ? -1 : native_history_query_number(c, "to", &to);
    if (has_to < 0)
        return;
    const struct generation *newest = generation_newest(c->api->snapshots, b->id, UINT64_MAX);
    if (!has_from && newest)
        from = newest->number;
    const struct generation *a = native_history_find(c, b, from);
    const struct generation *z = a && has_to ? native_history_find(c, b, to) : NULL;
    if (!a || (has_to && !z))
        return;
    if (!z && b->state != SANDBOX_RUNNING && b->state != SANDBOX_FROZEN) {
        reply_error(c->req, 409, "the sandbox is not running; name both generations (from and to)");
        return;
    }
    if (url_query_get(c->req->query, "path", URL_PLUS_SPACE, &path, &err) < 0) {
        reply_error(c->req, 400, "%s", err.msg);
        return;
    }
    if (native_crowded(c))
        return;
    struct waiting *w = native_history_wait_new(c, b);
    native_history_hold(w, 0, a->stack);
    if (z)
        native_history_hold(w, 1, z->stack);
    w->from = from;
    w->to = to;
    const char *below = buf_str(&path);
    w->below = xstrdup(below + strspn(below, "/"));
    const struct layersc_to call = {.owner = c->who.tenant->id, .done = native_history_on_compared, .arg = w};
    w->call = layersc_diff(c->api->peers->layers, &call, a->stack, z ? z->stack : NULL, b->id);
}

/* --- a file as it was ----------------------------------------------------------------------------------------------- */

struct fetching {
    struct http_req *r;
    struct layersc *layers;
    layersc_call call;
    char name[256];
};

static void native_history_fetch_on_client_left(struct http_req *r)
{
    struct fetching *w = r->user;
    layersc_cancel(w->layers, w->call);
    free(w);
}

static void native_history_on_fetched(void *arg, const struct layers_reply *reply, int fd)
{
    struct fetching *w = arg;
    struct http_req *r = w->r;
    struct state_failure failure = {0};
    char name[sizeof w->name];
    memcpy(name, w->name, sizeof name);
    free(w);
    api_on_closed(r, NULL);
    r->user = NULL;
    if (reply->error == LAYERS_OK && fd >= 0) {
        api_send_file(r, fd, name, NULL);
        return;
    }
    state_layers_failure(reply, "the file", &failure);
    if (reply->error == LAYERS_NOT_FOUND)
        reply_error(r, 404, "%s", reply->text);
    else
        reply_state_failure(r, &failure);
}

void native_history_file(struct api_call *c)
{
    struct sandbox *b = api_sandbox_of(c);
    _cleanup_buf_ struct buf path = {0};
    struct err err;
    uint64_t number;
    if (!b)
        return;
    if (!num_u64(c->param[1], &number)) {
        reply_error(c->req, 400, "'%.40s' is not the number of a generation", c->param[1]);
        return;
    }
    const struct generation *g = native_history_find(c, b, number);
    if (!g || native_crowded(c))
        return;
    if (url_query_get(c->req->query, "path", URL_PLUS_SPACE, &path, &err) <= 0 || path.n == 0 ||
        path.n >= LAYERS_PATH_MAX || strlen(buf_str(&path)) != path.n) {
        reply_error(c->req, 400, "query parameter 'path' must name a file, in less than %d bytes", LAYERS_PATH_MAX);
        return;
    }
    const char *slash = strrchr(buf_str(&path), '/');
    struct fetching *w = xcalloc(1, sizeof *w);
    (void)memccpy(w->name, slash ? slash + 1 : buf_str(&path), 0, sizeof w->name - 1);
    w->r = c->req;
    c->req->user = w;
    api_on_closed(c->req, native_history_fetch_on_client_left);
    w->layers = c->api->peers->layers;
    const struct layersc_to to = {.owner = c->who.tenant->id, .done = native_history_on_fetched, .arg = w};
    w->call = layersc_open(w->layers, &to, g->stack, buf_str(&path));
}

/* --- going back ----------------------------------------------------------------------------------------------------- */

static void native_history_on_undone(void *arg, const struct layers_reply *reply, const struct state_failure *failure)
{
    struct waiting *w = arg;
    uint64_t to = w->to;
    struct http_req *r = native_history_wait_over(w);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!r)
        return;
    if (failure) {
        reply_state_failure(r, failure);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_u64(&j, "to", to);
    json_u64(&j, "added", reply->entries);
    json_u64(&j, "changed", reply->entries2);
    json_u64(&j, "removed", reply->bytes2);
    json_u64(&j, "frozenUs", reply->frozen_us);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static void native_history_on_undo_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    int64_t to = 0;
    struct err err;
    struct sandbox *b = status ? NULL : api_sandbox_of(c);
    if (status)
        reply_error(r, status, "%s", error);
    if (!b)
        return;
    if (root && field_int(root, "to", 1, INT64_MAX, &to, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    const struct generation *newest = generation_newest(c->api->snapshots, b->id, UINT64_MAX);
    /* The newest is what the last command left: going back means to the one before it. */
    const struct generation *before = newest ? generation_newest(c->api->snapshots, b->id, newest->number - 1) : NULL;
    if (to == 0 && !before) {
        reply_error(r, 404, "there is no earlier generation to go back to");
        return;
    }
    const struct generation *g = native_history_find(c, b, to ? (uint64_t)to : before->number);
    if (!g || native_crowded(c))
        return;
    struct waiting *w = native_history_wait_new(c, b);
    w->to = g->number;
    generation_undo(c->api->snapshots, b, g->number, native_history_on_undone, w);
}

void native_history_undo(struct api_call *c) { body_json(c->req, 0, native_history_on_undo_body); }
