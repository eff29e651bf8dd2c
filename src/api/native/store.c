/* native-store.c - for operators: usage of the layer store, verification, and garbage collection. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "http/url.h"
#include "peers/layersc.h"

enum { LINES_MAX = 8 << 20 };

struct asking {
    struct http_req *r;
    struct layersc *layers;
    layersc_call call;
    bool head; /* the answer has begun */
    void (*answer)(struct asking *a, const struct layers_reply *r, int fd);
};

/* Cancels the call, because the answer has no reader. The layer store completes work
 * that it must not leave half done. */
static void native_store_on_client_left(struct http_req *r)
{
    struct asking *a = r->user;
    layersc_cancel(a->layers, a->call);
    free(a);
}

static unsigned native_store_status(const struct layers_reply *r)
{
    switch ((enum layers_error)r->error) {
    case LAYERS_OK:
        return 200;
    case LAYERS_NOT_FOUND:
        return 404;
    case LAYERS_BAD_REQUEST:
        return 400;
    case LAYERS_BUSY:
        return 503;
    case LAYERS_NO_SPACE:
        return 507;
    default:
        return 500;
    }
}

static void native_store_put_line(struct asking *a, const struct buf *line)
{
    if (!a->head) {
        http_set(a->r, "content-type", "application/x-ndjson");
        http_head(a->r, 200, HTTP_UNKNOWN);
        a->head = true;
    }
    (void)http_write(a->r, line->p, line->n);
    (void)http_write(a->r, "\n", 1);
}

static void native_store_on_progress(void *arg, const struct layers_reply *r)
{
    struct asking *a = arg;
    _cleanup_buf_ struct buf line = {0};
    struct json j;
    if (http_queued(a->r) > HTTP_LOW_WATER)
        return; /* a client that does not read gets no more progress */
    json_start(&j, &line);
    json_obj(&j, NULL);
    json_obj(&j, "progress");
    json_u64(&j, "done", r->bytes);
    json_u64(&j, "total", r->bytes2);
    json_end_obj(&j);
    json_end_obj(&j);
    native_store_put_line(a, &line);
}

static void native_store_on_answer(void *arg, const struct layers_reply *r, int fd)
{
    struct asking *a = arg;
    _cleanup_close_ int own = fd;
    struct http_req *req = a->r;
    api_on_closed(req, NULL);
    if (r->error == LAYERS_OK) {
        a->answer(a, r, own);
    } else if (!a->head) {
        reply_error(req, native_store_status(r), "%s", r->text);
    } else {
        _cleanup_buf_ struct buf line = {0};
        struct json j;
        json_start(&j, &line);
        json_obj(&j, NULL);
        json_obj(&j, "error");
        json_u64(&j, "code", native_store_status(r));
        json_str(&j, "message", r->text);
        json_end_obj(&j);
        json_end_obj(&j);
        native_store_put_line(a, &line);
        http_end(req);
    }
    free(a);
}

/* NULL: refused. */
static struct asking *native_store_ask(struct api_call *c,
                                       void (*answer)(struct asking *a, const struct layers_reply *r, int fd))
{
    if (!c->api->peers->layers) {
        reply_error(c->req, 503, "the process that keeps files is not there; try again");
        return NULL;
    }
    struct asking *a = xcalloc(1, sizeof *a);
    *a = (struct asking){.r = c->req, .layers = c->api->peers->layers, .answer = answer};
    c->req->user = a;
    api_on_closed(c->req, native_store_on_client_left);
    return a;
}

/* --- usage -------------------------------------------------------------------------------------------------------- */

static void native_store_add_usage(struct json *j, const char *key, const struct layers_usage *u)
{
    json_obj(j, key);
    if (!key)
        json_str(j, "id", u->id);
    json_u64(j, "ownBytes", u->own_bytes);
    json_u64(j, "ownEntries", u->own_entries);
    json_u64(j, "sharedBytes", u->shared_bytes);
    json_u64(j, "sharedEntries", u->shared_entries);
    json_end_obj(j);
}

static void native_store_add_space(struct json *j, const char *key, uint64_t bytes, uint64_t entries)
{
    json_obj(j, key);
    json_u64(j, "bytes", bytes);
    json_u64(j, "entries", entries);
    json_end_obj(j);
}

static bool native_store_read_usage(int fd, struct layers_usage *ret)
{
    ssize_t n;
    do
        n = read(fd, ret, sizeof *ret);
    while (n < 0 && errno == EINTR);
    ret->id[sizeof ret->id - 1] = '\0';
    return n == (ssize_t)sizeof *ret;
}

/* With `auto` and no pool, keeper chooses the driver. */
static void native_store_add_files(struct json *j, const struct api *api)
{
    if (!api->files_driver)
        return;
    const struct state_ability a = state_ability(api->sandboxes);
    bool chosen = strcmp(api->files_driver, "auto") == 0 && a.driver[0];
    json_obj(j, "files");
    json_str(j, "driver", chosen ? a.driver : api->files_driver);
    json_str(j, "why", api->files_why ? api->files_why : "");
    json_end_obj(j);
}

/* Two records: of the pool, and of its file. */
static void native_store_add_pool(struct json *j, const struct layers_usage *pool, int fd)
{
    struct layers_usage file = {0};
    (void)native_store_read_usage(fd, &file);
    json_obj(j, "pool");
    json_u64(j, "usedBytes", pool->own_bytes);
    json_u64(j, "freeBytes", pool->shared_bytes);
    json_u64(j, "heldBytes", pool->own_entries);
    json_u64(j, "maxBytes", file.shared_bytes);
    json_u64(j, "diskBytes", file.own_bytes);
    json_bool(j, "readOnly", pool->shared_entries != 0);
    json_end_obj(j);
}

static void native_store_answer_usage(struct asking *a, const struct layers_reply *r, int fd)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    struct layers_usage u;
    (void)r;
    json_start(&j, &out);
    json_obj(&j, NULL);
    native_store_add_files(&j, api_call_of(a->r)->api);
    bool in_list = false;
    while (native_store_read_usage(fd, &u)) {
        if (!u.id[0]) {
            json_obj(&j, "layers");
            json_u64(&j, "bytes", u.own_bytes);
            json_u64(&j, "entries", u.own_entries);
            json_u64(&j, "sharedBytes", u.shared_bytes);
            json_end_obj(&j);
        } else if (strcmp(u.id, LAYERS_DF_UNUSED) == 0) {
            native_store_add_space(&j, "unused", u.own_bytes, u.own_entries);
        } else if (strcmp(u.id, LAYERS_DF_BLOBS) == 0) {
            native_store_add_space(&j, "uploads", u.own_bytes, u.own_entries);
        } else if (strcmp(u.id, LAYERS_DF_POOL) == 0) {
            native_store_add_pool(&j, &u, fd);
        } else {
            if (!in_list)
                json_arr(&j, "stacks");
            in_list = true;
            native_store_add_usage(&j, NULL, &u);
        }
    }
    if (!in_list)
        json_arr(&j, "stacks");
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(a->r, 200, &out);
}

void native_store(struct api_call *c)
{
    struct asking *a = native_store_ask(c, native_store_answer_usage);
    if (a)
        a->call = layersc_df(a->layers, &(struct layersc_to){.done = native_store_on_answer, .arg = a});
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

/* Adds the lines of a text as elements of the array `key`. */
static void native_store_add_lines(struct json *j, const char *key, int fd)
{
    _cleanup_buf_ struct buf text = {0};
    char part[16 << 10];
    ssize_t n;
    while (text.n < LINES_MAX && ((n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0)
            buf_add(&text, part, (size_t)n);
    json_arr(j, key);
    for (char *at = text.p, *end; at && *at; at = end + 1) {
        end = strchr(at, '\n');
        if (end)
            *end = '\0';
        json_str(j, NULL, at);
        if (!end)
            break;
    }
    json_end_arr(j);
}

static void native_store_end_with(struct asking *a, struct buf *line)
{
    native_store_put_line(a, line);
    http_end(a->r);
}

static void native_store_answer_verify(struct asking *a, const struct layers_reply *r, int fd)
{
    _cleanup_buf_ struct buf line = {0};
    struct json j;
    json_start(&j, &line);
    json_obj(&j, NULL);
    json_u64(&j, "problemCount", r->entries);
    json_u64(&j, "checkedBytes", r->bytes);
    json_u64(&j, "digestedLayers", r->entries2);
    native_store_add_lines(&j, "problems", fd);
    json_end_obj(&j);
    native_store_end_with(a, &line);
}

void native_store_verify(struct api_call *c)
{
    _cleanup_buf_ struct buf stack = {0};
    struct err err;
    int have = url_query_get(c->req->query, "stack", URL_PLUS_LITERAL, &stack, &err);
    if (have < 0 || (have > 0 && !stack_id_valid(buf_str(&stack)))) {
        reply_error(c->req, 400, "query parameter 'stack' must be the id of a stack: st- and 8 to 32 of a-z and 0-9");
        return;
    }
    struct asking *a = native_store_ask(c, native_store_answer_verify);
    const struct layersc_to to = {.progress = native_store_on_progress, .done = native_store_on_answer, .arg = a};
    if (a)
        a->call = layersc_verify(a->layers, &to, buf_str(&stack));
}

static void native_store_answer_gc(struct asking *a, const struct layers_reply *r, int fd)
{
    _cleanup_buf_ struct buf line = {0};
    struct json j;
    json_start(&j, &line);
    json_obj(&j, NULL);
    native_store_add_space(&j, "removed", r->bytes, r->entries);
    native_store_add_space(&j, "later", r->bytes2, r->entries2);
    native_store_add_lines(&j, "lines", fd);
    json_end_obj(&j);
    native_store_end_with(a, &line);
}

void native_store_gc(struct api_call *c)
{
    _cleanup_buf_ struct buf dry = {0};
    struct err err;
    int have = url_query_get(c->req->query, "dryRun", URL_PLUS_LITERAL, &dry, &err);
    bool yes = have > 0 && strcmp(buf_str(&dry), "true") == 0;
    if (have < 0 || (have > 0 && !yes && strcmp(buf_str(&dry), "false") != 0)) {
        reply_error(c->req, 400, "query parameter 'dryRun' must be true or false");
        return;
    }
    struct asking *a = native_store_ask(c, native_store_answer_gc);
    const struct layersc_to to = {.progress = native_store_on_progress, .done = native_store_on_answer, .arg = a};
    if (a)
        a->call = layersc_gc(a->layers, &to, yes);
}
