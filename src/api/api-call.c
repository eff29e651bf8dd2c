/* api-call.c - the life of a call: it wraps the carrier's operations, logs the end and guards against use after it. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/api.h"
#include "base/log.h"
#include "base/mem.h"

enum { AGENT_MAX = 160 /* bytes of User-Agent in the log */ };

#if defined(__SANITIZE_ADDRESS__)
#define POISONING 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONING 1
#endif
#endif
#ifdef POISONING
#include <sanitizer/asan_interface.h>
#else
#define POISONING                         0
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

static const struct http_stream_ops wrapped;

static struct api_call *api_call_raw(const struct http_req *r)
{
    /* ops is the call's first member, so the pointer to it is the pointer to the call. */
    assert(r->ops->end == wrapped.end);
    return (struct api_call *)r->ops;
}

/* True if the call was answered before: a bug of its handler. A sanitizer build aborts; a node logs it and goes on. */
static bool api_call_is_over(const struct api_call *c, const struct http_req *r)
{
    if (!c->answered)
        return false;
    log_text(LOG_LEVEL_ERROR, "request %s %.200s: used after its answer", r->method, r->path);
    if (POISONING)
        abort();
    return true;
}

struct api_call *api_call_of(const struct http_req *r)
{
    struct api_call *c = api_call_raw(r);
    (void)api_call_is_over(c, r);
    return c;
}

/* Writes one log record per request, without the query, which may carry signatures and tokens. */
static void api_call_log(const struct api_call *c, const char *how)
{
    struct log_line l;
    char path[256];
    if (!log_start(&l, c->status == 500 ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "request"))
        return;
    (void)snprintf(path, sizeof path, "%s", c->req->path);
    log_request(&l, c->req->id);
    log_str(&l, "method", c->req->method);
    log_str(&l, "path", path);
    log_u64(&l, "status", c->status);
    log_u64(&l, "ms", loop_now(c->req->loop) - c->started);
    log_u64(&l, "bytes", c->bytes);
    log_str(&l, "peer", c->req->peer);
    log_str(&l, "tenant", c->tenant[0] ? c->tenant : NULL);
    log_str(&l, "sandbox", c->sandbox[0] ? c->sandbox : NULL);
    if (c->port) {
        const char *agent = http_field(&c->req->fields, "user-agent");
        char text[AGENT_MAX];
        log_u64(&l, "port", c->port);
        (void)snprintf(text, sizeof text, "%s", agent ? agent : "");
        log_str(&l, "agent", agent ? text : NULL);
    }
    log_str(&l, "end", how);
    log_end(&l);
}

/* The members that handlers use; they are poisoned after the answer. */
enum { CALL_KEPT = offsetof(struct api_call, req), CALL_USED = sizeof(struct api_call) - CALL_KEPT };

/* Ends a call that was answered or whose client left. Its memory stays until the request is freed. */
static void api_call_finish(struct api_call *c, const char *how)
{
    api_call_log(c, how);
    if (c->in_use)
        sandbox_unused(c->api->sandboxes, c->sandbox);
    c->answered = true;
    ASAN_POISON_MEMORY_REGION((char *)c + CALL_KEPT, CALL_USED);
}

static void api_call_on_freed(struct http_req *r)
{
    struct api_call *c = api_call_raw(r);
    r->ops = c->carrier;
    ASAN_UNPOISON_MEMORY_REGION((char *)c + CALL_KEPT, CALL_USED);
    for (size_t i = 0; i < API_PARAMS_MAX; i++)
        free(c->param[i]);
    free(c);
}

static void api_call_set(struct http_req *r, const char *name, const char *value)
{
    const struct api_call *c = api_call_raw(r);
    if (!api_call_is_over(c, r))
        c->carrier->set(r, name, value);
}
static void api_call_head(struct http_req *r, unsigned status, uint64_t length)
{
    struct api_call *c = api_call_raw(r);
    if (api_call_is_over(c, r))
        return;
    c->status = status;
    c->carrier->head(r, status, length);
}
static bool api_call_write(struct http_req *r, const void *p, size_t n)
{
    struct api_call *c = api_call_raw(r);
    if (api_call_is_over(c, r))
        return true;
    c->bytes += n;
    return c->carrier->write(r, p, n);
}
static void api_call_trailer(struct http_req *r, const char *name, const char *value)
{
    const struct api_call *c = api_call_raw(r);
    if (!api_call_is_over(c, r) && c->carrier->trailer)
        c->carrier->trailer(r, name, value);
}
static void api_call_end(struct http_req *r)
{
    struct api_call *c = api_call_raw(r);
    if (api_call_is_over(c, r))
        return;
    api_call_finish(c, NULL);
    r->on_closed = NULL;
    c->carrier->end(r);
}
static void api_call_abort(struct http_req *r)
{
    struct api_call *c = api_call_raw(r);
    if (!c->answered)
        api_rewrap(r); /* the carrier calls on_closed, which ends the call */
    c->carrier->abort(r);
}
static void api_call_pause(struct http_req *r, bool on) { api_call_raw(r)->carrier->pause(r, on); }
static bool api_call_upgrade(struct http_req *r)
{
    struct api_call *c = api_call_raw(r);
    if (api_call_is_over(c, r) || !c->carrier->upgrade(r))
        return false;
    c->status = 101;
    return true;
}
static size_t api_call_queued(const struct http_req *r) { return api_call_raw(r)->carrier->queued(r); }

static const struct http_stream_ops wrapped = {
    .set = api_call_set,
    .head = api_call_head,
    .write = api_call_write,
    .trailer = api_call_trailer,
    .end = api_call_end,
    .abort = api_call_abort,
    .pause = api_call_pause,
    .upgrade = api_call_upgrade,
    .queued = api_call_queued,
};

static void api_call_on_closed(struct http_req *r)
{
    struct api_call *c = api_call_raw(r);
    if (c->closed)
        c->closed(r);
    api_call_finish(c, "closed");
}

struct api_call *api_begin(struct api *api, struct http_req *r)
{
    struct api_call *c = xcalloc(1, sizeof *c);
    c->ops = wrapped;
    c->carrier = r->ops;
    c->req = r;
    c->api = api;
    c->started = loop_now(r->loop);
    r->ops = &c->ops;
    r->on_closed = api_call_on_closed;
    r->on_freed = api_call_on_freed;
    return c;
}

void api_on_closed(struct http_req *r, void (*fn)(struct http_req *r))
{
    struct api_call *c = api_call_raw(r);
    if (api_call_is_over(c, r))
        return;
    c->closed = fn;
    r->on_closed = api_call_on_closed;
}

static void api_wait_on_client_left(struct http_req *r) { ((struct api_wait *)r->user)->r = NULL; }

void *api_wait_for(struct http_req *r, size_t size)
{
    struct api_wait *w = xcalloc(1, size);
    w->r = r;
    r->user = w;
    api_on_closed(r, api_wait_on_client_left);
    return w;
}

struct http_req *api_wait_over(void *w)
{
    struct http_req *r = ((struct api_wait *)w)->r;
    free(w);
    if (r)
        api_on_closed(r, NULL);
    return r;
}

void api_rewrap(struct http_req *r)
{
    if (r->on_closed != api_call_on_closed)
        api_on_closed(r, r->on_closed);
}

void api_note_sandbox(struct http_req *r, const char *id)
{
    struct api_call *c = api_call_of(r);
    (void)snprintf(c->sandbox, sizeof c->sandbox, "%s", id);
}
