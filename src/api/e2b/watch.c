/* watch.c - RPC methods that watch directories: a stream of events, or watchers that clients poll. */
#include <string.h>

#include "api/e2b/envd.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/random.h"

enum {
    WATCHERS_MAX = 32,                  /* polled watchers of one sandbox */
    WATCHER_BYTES_MAX = 1024 * 1024,    /* of events that were not fetched yet */
    STREAM_BYTES_MAX = 4 * 1024 * 1024, /* of events queued for a slow client */
};

struct options {
    const char *path;
    bool recursive, entry, network;
};

static bool watch_read_options(struct envd *e, json_t *msg, struct options *ret)
{
    struct err err;
    memset(ret, 0, sizeof *ret);
    ret->path = fs_path(e, msg, "path", true);
    if (!ret->path)
        return false;
    if (field_bool(msg, "recursive", &ret->recursive, &err) < 0 ||
        field_bool(msg, "includeEntry", &ret->entry, &err) < 0 ||
        field_bool(msg, "allowNetworkMounts", &ret->network, &err) < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return false;
    }
    return true;
}

static void watch_add_event(struct json *j, const char *key, enum file_event type, const char *name,
                            const struct file_info *info)
{
    static const char *const names[] = {
        [FILE_CREATED] = "EVENT_TYPE_CREATE", [FILE_WRITTEN] = "EVENT_TYPE_WRITE", [FILE_REMOVED] = "EVENT_TYPE_REMOVE",
        [FILE_RENAMED] = "EVENT_TYPE_RENAME", [FILE_CHMOD] = "EVENT_TYPE_CHMOD",
    };
    json_obj(j, key);
    json_str(j, "name", name);
    json_str(j, "type", names[type]);
    if (info)
        fs_add_entry(j, "entry", info);
    json_end_obj(j);
}

/* WatchDir: events as they come. */
struct stream {
    struct envd *e;
    struct file_watch *w;
    bool started;
    loop_id deadline, ping;
    uint64_t ping_ms, sent;
};

static void watch_stream_on_drop(struct envd *e)
{
    struct stream *s = e->data;
    if (s->w)
        files_unwatch(s->w);
    loop_timer_del(e->r->loop, s->deadline);
    loop_timer_del(e->r->loop, s->ping);
    free(s);
}

static void watch_stream_send(struct stream *s, const char *text)
{
    s->sent = loop_now(s->e->r->loop);
    (void)rpc_stream_send(s->e->r, text, strlen(text));
}

static void watch_stream_ping(void *arg)
{
    struct stream *s = arg;
    struct loop *l = s->e->r->loop;
    if (loop_now(l) - s->sent >= s->ping_ms)
        watch_stream_send(s, "{\"keepalive\":{}}");
    s->ping = loop_timer(l, s->ping_ms - (loop_now(l) - s->sent), watch_stream_ping, s);
}

static void watch_stream_on_started(void *arg)
{
    struct stream *s = arg;
    s->started = true;
    rpc_stream_start(s->e->r);
    watch_stream_send(s, "{\"start\":{}}");
    s->ping = loop_timer(s->e->r->loop, s->ping_ms, watch_stream_ping, s);
}

static void watch_stream_end(struct stream *s, enum rpc_code code, const char *text)
{
    struct http_req *r = s->e->r;
    if (!s->started) {
        envd_fail(s->e, code, "%s", text);
        return;
    }
    envd_free(s->e);
    rpc_stream_error(r, code, text);
}

static void watch_stream_on_event(void *arg, enum file_event type, const char *name, const struct file_info *info)
{
    struct stream *s = arg;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    watch_add_event(&j, "filesystem", type, name, info);
    json_end_obj(&j);
    watch_stream_send(s, buf_str(&out));
    if (http_queued(s->e->r) > STREAM_BYTES_MAX)
        watch_stream_end(s, RPC_RESOURCE_EXHAUSTED, "the client does not take the events as fast as they come");
}

static void watch_stream_on_failed(void *arg, const struct link_status *st)
{
    struct stream *s = arg;
    struct http_req *r = s->e->r;
    s->w = NULL;
    if (st->code != LINK_GONE) {
        watch_stream_end(s, envd_code(st), st->text);
    } else if (!s->started) {
        envd_fail_status(s->e, st);
    } else {
        envd_free(s->e);
        http_abort(r);
    }
}

static void watch_stream_on_deadline(void *arg)
{
    struct stream *s = arg;
    s->deadline = 0;
    watch_stream_end(s, RPC_DEADLINE_EXCEEDED, "the deadline of the request has passed");
}

static const struct file_watch_ops stream_ops = {
    .started = watch_stream_on_started, .event = watch_stream_on_event, .failed = watch_stream_on_failed};

void watch_dir(struct envd *e, json_t *msg)
{
    struct options o;
    struct err err;
    uint64_t ms = 0;
    if (!watch_read_options(e, msg, &o))
        return;
    int have = rpc_timeout(&e->r->fields, &ms, &err);
    if (have < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return;
    }
    struct stream *s = xcalloc(1, sizeof *s);
    s->e = e;
    s->ping_ms = rpc_keepalive_ms(&e->r->fields);
    s->sent = loop_now(e->r->loop);
    if (have)
        s->deadline = loop_timer(e->r->loop, ms, watch_stream_on_deadline, s);
    e->data = s;
    e->drop = watch_stream_on_drop;
    s->w = files_watch(e->api->peers->links, e->id, e->user, o.path, o.recursive, o.entry, o.network, &stream_ops, s);
}

/* Polled watchers live as long as their sandbox, in this process: after a restart of front a client gets not_found and
 * makes a new one. */
struct watcher {
    struct watcher *next;
    struct e2b_sandbox *all;
    char id[24];
    struct file_watch *w; /* NULL: ended, `st` says why */
    struct envd *maker;   /* the request that waits for its start; NULL afterwards */
    struct link_status st;
    struct buf events; /* JSON objects, joined by commas */
    bool overflow;
};

static void watcher_free(struct watcher *w)
{
    struct watcher **at = &w->all->watchers;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->all->nwatchers--;
    if (w->w)
        files_unwatch(w->w);
    buf_done(&w->events);
    free(w);
}

static void watcher_on_maker_left(struct envd *e)
{
    struct watcher *w = e->data;
    if (!w)
        return;
    w->maker = NULL;
    watcher_free(w); /* no client knows its id */
}

static void watcher_on_started(void *arg)
{
    struct watcher *w = arg;
    struct envd *e = w->maker;
    _cleanup_buf_ struct buf out = {0};
    if (!e)
        return;
    w->maker = NULL;
    e->data = NULL;
    buf_addf(&out, "{\"watcherId\":\"%s\"}", w->id);
    envd_ok(e, &out);
}

static void watcher_on_event(void *arg, enum file_event type, const char *name, const struct file_info *info)
{
    struct watcher *w = arg;
    struct json j;
    if (w->overflow || w->events.n > WATCHER_BYTES_MAX) {
        w->overflow = true;
        return;
    }
    if (w->events.n)
        buf_addc(&w->events, ',');
    json_start(&j, &w->events);
    watch_add_event(&j, NULL, type, name, info);
}

static void watcher_on_failed(void *arg, const struct link_status *st)
{
    struct watcher *w = arg;
    struct envd *e = w->maker;
    w->w = NULL;
    w->st = *st;
    if (!e)
        return; /* the next GetWatcherEvents reports it */
    e->data = NULL;
    watcher_free(w);
    envd_fail_status(e, st);
}

static const struct file_watch_ops watcher_ops = {
    .started = watcher_on_started, .event = watcher_on_event, .failed = watcher_on_failed};

void watch_create(struct envd *e, json_t *msg)
{
    struct options o;
    struct sandbox *b = sandbox_find(e->api->sandboxes, e->id);
    if (!watch_read_options(e, msg, &o))
        return;
    if (!b) {
        envd_fail_status(e, &(struct link_status){.code = LINK_GONE});
        return;
    }
    struct e2b_sandbox *all = e2b_sandbox_of(b);
    if (all->nwatchers >= WATCHERS_MAX) {
        envd_fail(e, RPC_RESOURCE_EXHAUSTED, "this sandbox has %d watchers already; remove one first", WATCHERS_MAX);
        return;
    }
    struct watcher *w = xcalloc(1, sizeof *w);
    random_hex(w->id, 8);
    w->all = all;
    w->next = all->watchers;
    all->watchers = w;
    all->nwatchers++;
    w->maker = e;
    e->data = w;
    e->drop = watcher_on_maker_left;
    w->w = files_watch(e->api->peers->links, e->id, e->user, o.path, o.recursive, o.entry, o.network, &watcher_ops, w);
}

/* NULL: it answered with an error and freed e. */
static struct watcher *watch_find_id(struct envd *e, const char *id)
{
    struct sandbox *b = sandbox_find(e->api->sandboxes, e->id);
    for (struct watcher *w = b ? e2b_sandbox_of(b)->watchers : NULL; w; w = w->next)
        if (strcmp(w->id, id) == 0 && !w->maker)
            return w;
    envd_fail(e, RPC_NOT_FOUND, "watcher with id %.64s not found", id);
    return NULL;
}

static struct watcher *watch_find_named(struct envd *e, json_t *msg)
{
    const char *id = NULL;
    struct err err;
    if (field_str(msg, "watcherId", &id, &err) < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return NULL;
    }
    return watch_find_id(e, id ? id : "");
}

static void watch_answer_events(struct envd *e, struct watcher *w)
{
    _cleanup_buf_ struct buf out = {0};
    if (!w->w && w->events.n == 0) {
        struct link_status st = w->st;
        watcher_free(w);
        envd_fail_status(e, &st);
        return;
    }
    if (w->overflow) {
        buf_done(&w->events);
        w->overflow = false;
        envd_fail(e, RPC_RESOURCE_EXHAUSTED, "more than %d bytes of events were not fetched in time; they were dropped",
                  WATCHER_BYTES_MAX);
        return;
    }
    buf_adds(&out, "{\"events\":[");
    buf_add(&out, buf_str(&w->events), w->events.n);
    buf_adds(&out, "]}");
    buf_done(&w->events);
    envd_ok(e, &out);
}

struct fetch {
    char id[24];
};

static void watch_on_settled(void *arg, const struct link_status *st)
{
    struct envd *e = arg;
    struct fetch *f = e->data;
    (void)st; /* answer with the events so far even if this failed */
    e->call = 0;
    struct watcher *w = watch_find_id(e, f->id); /* the watcher may have been removed meanwhile */
    if (w)
        watch_answer_events(e, w);
}

static void watch_fetch_on_drop(struct envd *e) { free(e->data); }

/* The answer holds every event that happened before this request: files_settle() waits for them. */
void watch_events(struct envd *e, json_t *msg)
{
    struct watcher *w = watch_find_named(e, msg);
    if (!w)
        return;
    if (!w->w || w->overflow) {
        watch_answer_events(e, w);
        return;
    }
    struct fetch *f = xcalloc(1, sizeof *f);
    (void)snprintf(f->id, sizeof f->id, "%s", w->id);
    e->data = f;
    e->drop = watch_fetch_on_drop;
    e->call = files_settle(e->api->peers->links, e->id, watch_on_settled, e);
}

void watch_remove(struct envd *e, json_t *msg)
{
    struct watcher *w = watch_find_named(e, msg);
    _cleanup_buf_ struct buf out = {0};
    if (!w)
        return;
    watcher_free(w);
    buf_adds(&out, "{}");
    envd_ok(e, &out);
}

struct e2b_sandbox *e2b_sandbox_of(struct sandbox *b)
{
    if (!b->procs)
        b->procs = xcalloc(1, sizeof(struct e2b_sandbox));
    return b->procs;
}

void e2b_on_sandbox_ended(struct api *api, struct sandbox *b)
{
    struct e2b_sandbox *all = b->procs;
    (void)api;
    if (!all)
        return;
    for (struct watcher *w = all->watchers, *next; w; w = next) {
        struct envd *e = w->maker;
        next = w->next;
        if (e)
            e->data = NULL;
        watcher_free(w);
        if (e)
            envd_fail_status(e, &(struct link_status){.code = LINK_GONE});
    }
    free(all);
    b->procs = NULL;
}
