/* native-events.c - the events of a sandbox as server-sent events. */
#include <stdlib.h>
#include <string.h>

#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/url.h"
#include "sandboxes/events.h"

enum { PING_MS = 15000, SLOW_BYTES = 1024 * 1024 };

/* A stream of server-sent events: first those after Last-Event-ID, then new ones as they happen. */
struct follow {
    struct http_req *r;
    struct event_sub *sub;
    loop_id ping;
    bool begun; /* the head was sent */
};

static void native_events_send_head(struct http_req *r)
{
    http_set(r, "content-type", "text/event-stream");
    http_set(r, "cache-control", "no-store");
    http_head(r, 200, HTTP_UNKNOWN);
}

static void follow_free(struct follow *s)
{
    if (s->sub)
        events_unsubscribe(s->sub);
    loop_timer_del(s->r->loop, s->ping);
    free(s);
}

static void follow_on_client_left(struct http_req *r) { follow_free(r->user); }

static void follow_finish(struct follow *s, bool whole)
{
    struct http_req *r = s->r;
    api_on_closed(r, NULL);
    follow_free(s);
    if (whole)
        http_end(r);
    else
        http_abort(r);
}

static void native_events_send(struct http_req *r, const struct event *e)
{
    _cleanup_buf_ struct buf out = {0};
    char when[REPLY_TIME_MAX];
    reply_time(e->at_unix_ms, when);
    /* Type and data have no line breaks: front writes both, and JSON escapes them. */
    buf_addf(&out, "id: %llu\nevent: %s\ndata: {\"time\":\"%s\",\"type\":\"%s\",\"data\":%s}\n\n",
             (unsigned long long)e->seq, e->type, when, e->type, e->json);
    (void)http_write(r, out.p, out.n);
}

static void follow_on_event(void *arg, const struct event *e)
{
    struct follow *s = arg;
    if (!s->begun)
        native_events_send_head(s->r); /* the first event shows that the subscription succeeded */
    s->begun = true;
    if (!e) {
        s->sub = NULL;
        follow_finish(s, true);
        return;
    }
    native_events_send(s->r, e);
    if (s->sub && http_queued(s->r) > SLOW_BYTES)
        follow_finish(s, false); /* the client can reconnect with Last-Event-ID */
}

static void native_events_on_replayed(void *arg, const struct event *e)
{
    if (e)
        native_events_send(arg, e);
}

static void follow_ping(void *arg)
{
    struct follow *s = arg;
    (void)http_write(s->r, ": \n\n", 4);
    s->ping = loop_timer(s->r->loop, PING_MS, follow_ping, s);
}

static bool native_events_read_after(const struct http_req *r, uint64_t *ret)
{
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    const char *field = http_field(&r->fields, "last-event-id");
    if (!field && url_query_get(r->query, "after", URL_PLUS_SPACE, &text, &err) > 0)
        field = buf_str(&text);
    return !field || num_u64(field, ret);
}

/* False for ?follow=false: send the events so far and end. */
static bool native_events_wants_follow(const struct http_req *r)
{
    _cleanup_buf_ struct buf text = {0};
    struct err err;
    return url_query_get(r->query, "follow", URL_PLUS_SPACE, &text, &err) <= 0 || strcmp(buf_str(&text), "false") != 0;
}

void native_events(struct api_call *c)
{
    struct http_req *r = c->req;
    char id[SANDBOX_ID_MAX];
    uint64_t after = 0;
    if (!native_events_read_after(r, &after)) {
        reply_error(r, 400, "Last-Event-ID must be the number of an event");
        return;
    }
    struct event_log *log = api_sandbox_id(c->param[0], strlen(c->param[0]), id)
                                ? events_find(c->api->events, c->who.tenant->id, id)
                                : NULL;
    if (!log) {
        api_no_sandbox(c);
        return;
    }
    api_note_sandbox(r, id);
    if (events_ended(log) || !native_events_wants_follow(r)) {
        native_events_send_head(r);
        events_replay(log, after, native_events_on_replayed, r);
        http_end(r);
        return;
    }
    struct follow *s = xcalloc(1, sizeof *s);
    s->r = r;
    r->user = s;
    api_on_closed(r, follow_on_client_left);
    s->sub = events_subscribe(log, after, follow_on_event, s);
    if (!s->sub) {
        api_on_closed(r, NULL);
        follow_free(s);
        reply_refuse(r, 429, NULL, 5, "too many followers of this sandbox's events");
        return;
    }
    if (!s->begun)
        native_events_send_head(r);
    s->begun = true;
    s->ping = loop_timer(r->loop, PING_MS, follow_ping, s);
}
