/* internal-events.c - calls of sandbox.internal that stay open: those that wait for a decision, and listeners
 * (server-sent events) that get refusals and decisions as they come. A listener that falls behind is cut off; it can
 * continue with Last-Event-ID.
 */
#include "egress/deny.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "egress/deny-int.h"

/* --- open calls
 * ----------------------------------------------------------------------------------------------------- */

static void internal_call_free(struct internal_call *c)
{
    struct denials *k = c->s ? c->s->denials : NULL;
    if (k) {
        if (c->next)
            c->next->prev = c->prev;
        *c->prev = c->next;
        k->nopen--;
        k->nevents -= c->events;
        if (c->waiter)
            ask_cancel(c->s, c->waiter);
    }
    loop_timer_del(c->r->loop, c->ping);
    c->r->user = c->user;
    c->r->on_closed = c->on_closed;
    free(c);
}

static void internal_on_client_left(struct http_req *r)
{
    internal_call_free(r->user);
    if (r->on_closed)
        r->on_closed(r);
}

struct internal_call *internal_call_new(struct esb *s, struct http_req *r)
{
    struct denials *k = denials_of(s);
    if (k->nopen >= INTERNAL_OPEN_MAX)
        return NULL;
    struct internal_call *c = xcalloc(1, sizeof *c);
    *c = (struct internal_call){
        .s = s, .r = r, .user = r->user, .on_closed = r->on_closed, .next = k->open, .prev = &k->open};
    if (c->next)
        c->next->prev = &c->next;
    k->open = c;
    k->nopen++;
    r->user = c;
    r->on_closed = internal_on_client_left;
    return c;
}

struct http_req *internal_call_end(struct internal_call *c)
{
    struct http_req *r = c->r;
    internal_call_free(c);
    return r;
}

void internal_calls_abort(struct denials *k)
{
    while (k->open) {
        struct internal_call *c = k->open;
        k->open = c->next;
        c->s = NULL;
        http_abort(c->r); /* internal_on_client_left() follows from the loop */
    }
}

/* --- listeners
 * ------------------------------------------------------------------------------------------------------ */

static void internal_on_ping(void *arg)
{
    struct internal_call *c = arg;
    (void)http_write(c->r, ": \n\n", 4);
    c->ping = loop_timer(c->r->loop, INTERNAL_PING_MS, internal_on_ping, c);
}

static void internal_add_denial(const struct denial *d, struct buf *out)
{
    struct json j;
    buf_addf(out, "id: %" PRIu64 "\nevent: denied\ndata: ", d->seq);
    json_start(&j, out);
    json_obj(&j, NULL);
    denial_fields(&j, d);
    json_end_obj(&j);
    buf_adds(out, "\n\n");
}

static void internal_send_event(struct denials *k, const struct buf *event)
{
    for (struct internal_call *c = k->open, *next; c; c = next) {
        next = c->next;
        if (!c->events)
            continue;
        (void)http_write(c->r, event->p, event->n);
        if (http_queued(c->r) > INTERNAL_SLOW)
            http_abort(internal_call_end(c));
    }
}

void internal_events_tell(struct esb *s, const struct denial *d)
{
    _cleanup_buf_ struct buf out = {0};
    struct denials *k = s->denials;
    if (k->nevents == 0)
        return;
    internal_add_denial(d, &out);
    internal_send_event(k, &out);
}

void internal_events_say(struct esb *s, const char *type, const struct buf *json)
{
    _cleanup_buf_ struct buf out = {0};
    struct denials *k = s->denials;
    if (!k || k->nevents == 0)
        return;
    buf_addf(&out, "event: %s\ndata: %s\n\n", type, buf_str(json));
    internal_send_event(k, &out);
}

void internal_events_start(struct esb *s, struct http_req *r)
{
    _cleanup_buf_ struct buf out = {0};
    struct denials *k = denials_of(s);
    const char *last = http_field(&r->fields, "last-event-id");
    uint64_t since = k->last_seq, first = k->last_seq > DENIALS_KEPT ? k->last_seq - DENIALS_KEPT : 0;
    struct internal_call *c = k->nevents < INTERNAL_EVENTS_MAX ? internal_call_new(s, r) : NULL;
    if (!c) {
        static const char text[] =
            "{\"error\":{\"code\":\"too_many\",\"message\":\"too many listeners; close one\"}}\n";
        http_reply(r, 429, "application/json", text, sizeof text - 1);
        return;
    }
    c->events = true;
    k->nevents++;
    http_set(r, "content-type", "text/event-stream");
    http_set(r, "cache-control", "no-store");
    http_head(r, 200, HTTP_UNKNOWN);
    buf_adds(&out, ": \n\n");
    if (last && (!num_u64(last, &since) || since > k->last_seq))
        since = k->last_seq;
    for (uint64_t seq = (since < first ? first : since) + 1; seq <= k->last_seq; seq++)
        internal_add_denial(k->ring[seq % DENIALS_KEPT], &out);
    (void)http_write(r, out.p, out.n);
    c->ping = loop_timer(r->loop, INTERNAL_PING_MS, internal_on_ping, c);
}
