/* watch.c - RPC methods that watch directories: a stream of events, or watchers that clients poll. */
#include <string.h>

#include "api/e2b/envd.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "sandboxes/watchers.h"

enum { STREAM_BYTES_MAX = 4 * 1024 * 1024 /* of events queued for a slow client */ };

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

/* --- polled watchers ---------------------------------------------------------------------------------------------- */

static void watch_write_event(struct buf *out, enum file_event type, const char *name, const struct file_info *info)
{
    struct json j;
    json_start(&j, out);
    watch_add_event(&j, NULL, type, name, info);
}

static void watch_on_maker_left(struct envd *e)
{
    if (e->data)
        watcher_remove(e->data); /* no client knows its id */
}

static void watch_on_made(void *arg, const char *id, const struct link_status *st)
{
    struct envd *e = arg;
    _cleanup_buf_ struct buf out = {0};
    e->data = NULL;
    if (!id) {
        envd_fail_status(e, st);
        return;
    }
    buf_addf(&out, "{\"watcherId\":\"%s\"}", id);
    envd_ok(e, &out);
}

void watch_create(struct envd *e, json_t *msg)
{
    struct options o;
    struct link_status why;
    if (!watch_read_options(e, msg, &o))
        return;
    struct watcher_spec spec = {.user = e->user,
                                .path = o.path,
                                .recursive = o.recursive,
                                .with_info = o.entry,
                                .network_mounts = o.network,
                                .write = watch_write_event};
    e->drop = watch_on_maker_left;
    e->data = watcher_make(e->api->sandboxes, e->id, &spec, watch_on_made, e, &why);
    if (!e->data)
        envd_fail_status(e, &why);
}

/* NULL: it answered with an error and freed e. */
static struct watcher *watch_find_id(struct envd *e, const char *id)
{
    struct watcher *w = watcher_find(e->api->sandboxes, e->id, id);
    if (!w)
        envd_fail(e, RPC_NOT_FOUND, "watcher with id %.64s not found", id);
    return w;
}

static struct watcher *watch_find_named(struct envd *e, json_t *msg, const char **id)
{
    struct err err;
    *id = "";
    if (field_str(msg, "watcherId", id, &err) < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return NULL;
    }
    return watch_find_id(e, *id);
}

static void watch_answer_events(struct envd *e, struct watcher *w)
{
    _cleanup_buf_ struct buf out = {0}, events = {0};
    struct link_status why;
    if (!watcher_take(w, &events, &why)) {
        envd_fail_status(e, &why);
        return;
    }
    buf_adds(&out, "{\"events\":[");
    buf_add(&out, buf_str(&events), events.n);
    buf_adds(&out, "]}");
    envd_ok(e, &out);
}

static void watch_on_settled(void *arg, const struct link_status *st)
{
    struct envd *e = arg;
    (void)st; /* answer with the events so far even if this failed */
    e->call = 0;
    struct watcher *w = watch_find_id(e, e->data); /* the watcher may have been removed meanwhile */
    if (w)
        watch_answer_events(e, w);
}

static void watch_fetch_on_drop(struct envd *e) { free(e->data); }

/* The answer holds every event that happened before this request: files_settle() waits for them. */
void watch_events(struct envd *e, json_t *msg)
{
    const char *id;
    struct watcher *w = watch_find_named(e, msg, &id);
    if (!w)
        return;
    if (!watcher_is_live(w)) {
        watch_answer_events(e, w);
        return;
    }
    e->data = xstrdup(id);
    e->drop = watch_fetch_on_drop;
    e->call = files_settle(e->api->peers->links, e->id, watch_on_settled, e);
}

void watch_remove(struct envd *e, json_t *msg)
{
    const char *id;
    struct watcher *w = watch_find_named(e, msg, &id);
    _cleanup_buf_ struct buf out = {0};
    if (!w)
        return;
    watcher_remove(w);
    buf_adds(&out, "{}");
    envd_ok(e, &out);
}
