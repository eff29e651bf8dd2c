/* The history of a sandbox's files: list it, look into it, compare, go back. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "front/changes.h"
#include "front/e2b/envd.h"
#include "front/generations.h"
#include "front/native.h"
#include "front/reply.h"
#include "http/body.h"
#include "http/url.h"
#include "sandbox/stockc.h"

/* A request that waits; r is NULL once the client left. */
struct waiting {
    struct http_req *r;
    struct front *f;
    char box[SANDBOX_ID_MAX];
    char held[2][STACK_ID_MAX];
    char *below; /* of a comparison */
    uint64_t from, to;
    stockc_call call; /* one that ends when nobody waits for it */
};

static void client_left(struct http_req *r);

static struct waiting *wait_for(struct api_call *c, const struct box *b)
{
    struct waiting *w = xcalloc(1, sizeof *w);
    *w = (struct waiting){.r = c->req, .f = c->front};
    memcpy(w->box, b->id, sizeof w->box);
    c->req->user = w;
    api_on_closed(c->req, client_left);
    return w;
}

/* The request to be answered, NULL if nobody waits for it any more. */
static struct http_req *waited(struct waiting *w)
{
    struct http_req *r = w->r;
    for (size_t i = 0; i < ARRAY_LEN(w->held); i++)
        if (w->held[i][0])
            state_release(w->f, w->held[i]);
    free(w->below);
    free(w);
    if (r)
        api_on_closed(r, NULL);
    return r;
}

static void client_left(struct http_req *r)
{
    struct waiting *w = r->user;
    w->r = NULL;
    if (!w->call)
        return;
    stockc_cancel(w->f->stock, w->call);
    (void)waited(w);
}

static void hold(struct waiting *w, size_t i, const char *stack)
{
    (void)memccpy(w->held[i], stack, 0, sizeof w->held[i] - 1);
    state_hold(w->f, stack);
}

/* --- the list ------------------------------------------------------------------------------------------------------- */

static void add_generation(struct json *j, const struct generation *g)
{
    char at[REPLY_TIME_MAX];
    reply_time(g->at_unix_ms, at);
    json_u64(j, "number", g->number);
    json_str(j, "at", at);
    json_str(j, "command", g->command);
    json_u64(j, "bytes", g->bytes);
}

static void list_one(void *arg, const struct generation *g)
{
    json_obj(arg, NULL);
    add_generation(arg, g);
    json_end_obj(arg);
}

void native_history(struct api_call *c)
{
    const struct box *b = api_box(c);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!b)
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "sandboxID", b->id);
    json_bool(&j, "everyCommand", b->history);
    json_u64(&j, "most", GENERATIONS_MAX);
    json_arr(&j, "generations");
    generations_each(c->front, b->id, list_one, &j);
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

/* --- one more ------------------------------------------------------------------------------------------------------- */

static void made(void *arg, const struct generation *g, const struct state_failure *failure)
{
    struct http_req *r = waited(arg);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!r)
        return;
    if (failure) {
        e2b_refuse_state(r, failure);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    add_generation(&j, g);
    json_u64(&j, "frozenUs", g->frozen_us);
    json_end_obj(&j);
    reply_json(r, 201, &out);
}

static void make_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    const char *label = "";
    struct err err;
    struct box *b = status ? NULL : api_box(c);
    if (status)
        reply_error(r, status, "%s", error);
    if (!b)
        return;
    if (root && e2b_field_str(root, "command", &label, &err) < 0)
        reply_error(r, 400, "%s", err.msg);
    else if (!native_crowded(c))
        generation_make(c->front, b, label, made, wait_for(c, b));
}

void native_history_make(struct api_call *c) { body_json(c->req, 0, make_body); }

/* --- comparing ------------------------------------------------------------------------------------------------------ */

static void compared(void *arg, const struct stock_reply *reply, int fd)
{
    struct waiting *w = arg;
    uint64_t from = w->from, to = w->to;
    _cleanup_free_ char *below = TAKE_PTR(w->below);
    _cleanup_close_ int records = fd;
    _cleanup_buf_ struct buf out = {0};
    struct state_failure failure = {0};
    struct err err = {0};
    struct json j;
    struct http_req *r = waited(w);
    if (!r)
        return;
    if (reply->error != STOCK_OK || records < 0) {
        state_stock_failure(reply, "the comparison", &failure);
        e2b_refuse_state(r, &failure);
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

/* A number of the query: 1 there, 0 not, -1 answered. */
static int query_number(struct api_call *c, const char *name, uint64_t *ret)
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

static const struct generation *generation_of(struct api_call *c, const struct box *b, uint64_t number)
{
    const struct generation *g = generation_find(c->front, b->id, number);
    if (!g)
        reply_error(c->req, 404, "the sandbox has no generation %llu; GET /v1/sandboxes/%s/history lists them",
                    (unsigned long long)number, b->id);
    return g;
}

void native_history_diff(struct api_call *c)
{
    struct box *b = api_box(c);
    uint64_t from = 0, to = 0;
    _cleanup_buf_ struct buf path = {0};
    struct err err;
    if (!b)
        return;
    int has_from = query_number(c, "from", &from), has_to = has_from < 0 ? -1 : query_number(c, "to", &to);
    if (has_to < 0)
        return;
    const struct generation *newest = generation_newest(c->front, b->id, UINT64_MAX);
    if (!has_from && newest)
        from = newest->number;
    const struct generation *a = generation_of(c, b, from);
    const struct generation *z = a && has_to ? generation_of(c, b, to) : NULL;
    if (!a || (has_to && !z))
        return;
    if (!z && b->state != BOX_RUNNING && b->state != BOX_FROZEN) {
        reply_error(c->req, 409, "the sandbox is not running: name two generations");
        return;
    }
    if (url_query_get(c->req->query, "path", URL_PLUS_SPACE, &path, &err) < 0) {
        reply_error(c->req, 400, "%s", err.msg);
        return;
    }
    if (native_crowded(c))
        return;
    struct stock_request q = stockc_request(STOCK_DIFF);
    (void)memccpy(q.stack, a->stack, 0, sizeof q.stack - 1);
    if (z)
        (void)memccpy(q.other, z->stack, 0, sizeof q.other - 1);
    else
        (void)memccpy(q.box, b->id, 0, sizeof q.box - 1);
    struct waiting *w = wait_for(c, b);
    hold(w, 0, a->stack);
    if (z)
        hold(w, 1, z->stack);
    w->from = from;
    w->to = to;
    const char *below = buf_str(&path);
    w->below = xstrdup(below + strspn(below, "/"));
    w->call = stockc_ask_for(c->front->stock, c->who.tenant->id, &q, NULL, 0, NULL, compared, w);
}

/* --- a file as it was ----------------------------------------------------------------------------------------------- */

struct fetching {
    struct envd *e;
    struct stockc *stock;
    stockc_call call;
    char name[256];
};

static void fetch_dropped(struct envd *e)
{
    struct fetching *w = e->data;
    stockc_cancel(w->stock, w->call);
    free(w);
}

static void fetched(void *arg, const struct stock_reply *reply, int fd)
{
    struct fetching *w = arg;
    struct envd *e = w->e;
    struct state_failure failure = {0};
    char name[sizeof w->name];
    memcpy(name, w->name, sizeof name);
    free(w);
    e->data = NULL;
    e->drop = NULL;
    if (reply->error == STOCK_OK && fd >= 0) {
        files_send(e, fd, name);
        return;
    }
    struct http_req *r = e->r;
    envd_free(e);
    state_stock_failure(reply, "the file", &failure);
    if (reply->error == STOCK_NOT_FOUND)
        reply_error(r, 404, "%s", reply->text);
    else
        e2b_refuse_state(r, &failure);
}

void native_history_file(struct api_call *c)
{
    struct box *b = api_box(c);
    _cleanup_buf_ struct buf path = {0};
    struct err err;
    uint64_t number;
    if (!b)
        return;
    if (!num_u64(c->param[1], &number)) {
        reply_error(c->req, 400, "'%.40s' is no number of a generation", c->param[1]);
        return;
    }
    const struct generation *g = generation_of(c, b, number);
    if (!g || native_crowded(c))
        return;
    struct stock_request q = stockc_request(STOCK_OPEN);
    if (url_query_get(c->req->query, "path", URL_PLUS_SPACE, &path, &err) <= 0 || path.n == 0 ||
        path.n >= sizeof q.path || strlen(buf_str(&path)) != path.n) {
        reply_error(c->req, 400, "query parameter 'path' must name a file, in less than %zu bytes", sizeof q.path);
        return;
    }
    (void)memccpy(q.stack, g->stack, 0, sizeof q.stack - 1);
    memcpy(q.path, buf_str(&path), path.n + 1);
    const char *slash = strrchr(buf_str(&path), '/');
    struct fetching *w = xcalloc(1, sizeof *w);
    (void)memccpy(w->name, slash ? slash + 1 : buf_str(&path), 0, sizeof w->name - 1);
    w->e = envd_new(c, b, NULL);
    w->e->data = w;
    w->e->drop = fetch_dropped;
    w->stock = c->front->stock;
    w->call = stockc_ask_for(w->stock, c->who.tenant->id, &q, NULL, 0, NULL, fetched, w);
}

/* --- going back ----------------------------------------------------------------------------------------------------- */

static void undone(void *arg, const struct stock_reply *reply, const struct state_failure *failure)
{
    struct waiting *w = arg;
    uint64_t to = w->to;
    struct http_req *r = waited(w);
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (!r)
        return;
    if (failure) {
        e2b_refuse_state(r, failure);
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

static void undo_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    int64_t to = 0;
    struct err err;
    struct box *b = status ? NULL : api_box(c);
    if (status)
        reply_error(r, status, "%s", error);
    if (!b)
        return;
    if (root && e2b_field_int(root, "to", 1, INT64_MAX, &to, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        return;
    }
    const struct generation *newest = generation_newest(c->front, b->id, UINT64_MAX);
    /* The newest is what the last command left: going back means to the one before it. */
    const struct generation *before = newest ? generation_newest(c->front, b->id, newest->number - 1) : NULL;
    if (to == 0 && !before) {
        reply_error(r, 404, "there is no earlier generation to go back to");
        return;
    }
    const struct generation *g = generation_of(c, b, to ? (uint64_t)to : before->number);
    if (!g || native_crowded(c))
        return;
    struct waiting *w = wait_for(c, b);
    w->to = g->number;
    generation_undo(c->front, b, g->number, undone, w);
}

void native_history_undo(struct api_call *c) { body_json(c->req, 0, undo_body); }
