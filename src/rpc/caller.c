#include "rpc/caller.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    RETRY_MIN_MS = 20,
    RETRY_MAX_MS = 1000,
    SWEEP_MS = 1000,
    AT_ONCE = 64, /* messages before other connections have their turn */
};

struct caller {
    struct loop *loop;
    const struct caller_spec *spec;
    int run_dir;
    void *arg;
    struct channel channel;
    loop_id watch, retry, sweep, breaker;
    unsigned events;
    uint64_t retry_ms, next_request, down_since;
    struct caller_call *first, **last; /* in the order asked */
    size_t ncalls;
};

static void caller_on_retry(void *arg);

bool caller_is_up(const struct caller *c) { return c->channel.fd >= 0; }
uint64_t caller_number(struct caller *c) { return c->next_request++; }
struct caller_call *caller_first(const struct caller *c) { return c->first; }
size_t caller_count(const struct caller *c) { return c->ncalls; }
size_t caller_queued(const struct caller *c) { return channel_queued(&c->channel); }

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void caller_mark(struct caller *c, struct caller_call *call, bool sent)
{
    bool changed = call->sent != sent;
    call->sent = sent;
    if (changed && c->spec->ops.marked)
        c->spec->ops.marked(c->arg, call);
}

struct caller_call *caller_find(const struct caller *c, uint64_t request)
{
    struct caller_call *call = c->first;
    while (call && call->request != request)
        call = call->next;
    return call;
}

struct caller_call *caller_take(struct caller *c, uint64_t request)
{
    for (struct caller_call **p = &c->first; *p; p = &(*p)->next) {
        struct caller_call *call = *p;
        if (call->request != request)
            continue;
        *p = call->next;
        if (c->last == &call->next)
            c->last = p;
        c->ncalls--;
        caller_mark(c, call, false);
        return call;
    }
    return NULL;
}

static void caller_fail(struct caller *c, struct caller_call *call, enum caller_why why)
{
    call->why = why;
    c->spec->ops.failed(c->arg, caller_take(c, call->request));
}

/* Fails the calls that were refused. */
static void caller_on_breaker(void *arg)
{
    struct caller *c = arg;
    c->breaker = 0;
    for (struct caller_call *call = c->first; call;) {
        if (!call->why) {
            call = call->next;
            continue;
        }
        caller_fail(c, call, call->why);
        call = c->first; /* the callback may have changed the list */
    }
}

void caller_refuse(struct caller *c, struct caller_call *call, enum caller_why why)
{
    call->why = why;
    if (!c->breaker)
        c->breaker = loop_timer(c->loop, 0, caller_on_breaker, c);
}

static void caller_on_sweep(void *arg)
{
    struct caller *c = arg;
    uint64_t now = loop_now(c->loop), away_ms = c->spec->away_ms;
    bool away = away_ms && !caller_is_up(c) && now - c->down_since >= away_ms;
    c->sweep = 0;
    for (struct caller_call *call = c->first; call; call = call->next)
        if (!call->why && (away || (call->due_ms && call->due_ms <= now)))
            call->why = away ? CALLER_AWAY : CALLER_LATE;
    caller_on_breaker(c);
    if (c->first && !c->sweep)
        c->sweep = loop_timer(c->loop, SWEEP_MS, caller_on_sweep, c);
}

/* --- connection --------------------------------------------------------------------------------------------------- */

static void caller_watch(struct caller *c)
{
    unsigned events = LOOP_IN | (channel_waits(&c->channel) ? LOOP_OUT : 0U);
    if (events != c->events)
        loop_fd_set(c->loop, c->watch, events);
    c->events = events;
}

void caller_drop(struct caller *c, const char *why)
{
    if (!caller_is_up(c))
        return;
    loop_fd_del(c->loop, c->watch);
    channel_close(&c->channel);
    c->watch = 0;
    c->down_since = loop_now(c->loop);
    c->retry_ms = RETRY_MIN_MS;
    c->retry = loop_timer(c->loop, c->retry_ms, caller_on_retry, c);
    for (struct caller_call *call = c->first; call; call = call->next) {
        if (call->sent && c->spec->ops.may_repeat && !c->spec->ops.may_repeat(c->arg, call))
            caller_refuse(c, call, CALLER_SPENT);
        caller_mark(c, call, false);
    }
    if (c->spec->ops.down)
        c->spec->ops.down(c->arg, why);
}

/* Sends calls that were not sent. False if the connection is gone. */
static bool caller_send_pending(struct caller *c)
{
    if (!caller_is_up(c))
        return false;
    for (struct caller_call *call = c->first; call && !channel_waits(&c->channel); call = call->next) {
        if (call->sent || call->why || (c->spec->ops.may_send && !c->spec->ops.may_send(c->arg, call)))
            continue;
        if (channel_send(&c->channel, call->message, call->size, call->fds, call->nfds) < 0) {
            caller_drop(c, strerror(errno));
            return false;
        }
        caller_mark(c, call, true);
    }
    caller_watch(c);
    return true;
}

/* Sends what waits, and what the user has for a queue that has room again. False if the connection is gone. */
static bool caller_flush(struct caller *c)
{
    bool more = true;
    while (more && caller_is_up(c)) {
        if (c->spec->ops.drained && channel_queued(&c->channel) < c->spec->queue_low)
            c->spec->ops.drained(c->arg);
        size_t before = channel_queued(&c->channel);
        if (channel_flush(&c->channel) < 0)
            caller_drop(c, strerror(errno));
        more = c->spec->ops.drained && before > 0 && !channel_waits(&c->channel);
    }
    return caller_send_pending(c);
}

static void caller_on_event(void *arg, int fd, unsigned events)
{
    struct caller *c = arg;
    struct channel_message m;
    (void)fd;
    if ((events & LOOP_OUT) && !caller_flush(c))
        return;
    for (int i = 0; caller_is_up(c) && (i < AT_ONCE || channel_is_ready(&c->channel)); i++) {
        enum channel_got got = channel_recv(&c->channel, &m);
        if (got == CHANNEL_NONE)
            break;
        if (got == CHANNEL_ENDED) {
            caller_drop(c, errno ? strerror(errno) : "it closed");
            return;
        }
        bool good = got == CHANNEL_MESSAGE && c->spec->ops.message(c->arg, &m);
        channel_message_done(&m);
        if (!good) {
            caller_drop(c, "it said something we do not understand");
            return;
        }
    }
    (void)caller_flush(c); /* answers make room for waiting calls */
}

static void caller_on_retry(void *arg)
{
    struct caller *c = arg;
    c->retry = 0;
    int fd = channel_dial(c->run_dir, c->spec->socket, c->spec->limits.kind);
    if (fd >= 0) {
        c->watch = loop_fd_add(c->loop, fd, LOOP_IN, caller_on_event, c);
        channel_open(&c->channel, fd);
    }
    if (!c->watch) {
        channel_close(&c->channel);
        c->retry_ms = c->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : c->retry_ms * 2;
        c->retry = loop_timer(c->loop, c->retry_ms, caller_on_retry, c);
        return;
    }
    c->events = LOOP_IN;
    c->retry_ms = RETRY_MIN_MS;
    if (caller_send_pending(c) && c->spec->ops.up)
        c->spec->ops.up(c->arg);
}

/* --- for users ---------------------------------------------------------------------------------------------------- */

struct caller *caller_new(struct loop *l, const struct caller_spec *spec, int run_dir, void *arg)
{
    struct caller *c = xcalloc(1, sizeof *c);
    *c = (struct caller){.loop = l,
                         .spec = spec,
                         .run_dir = run_dir,
                         .arg = arg,
                         .retry_ms = RETRY_MIN_MS,
                         .next_request = 1,
                         .down_since = loop_now(l)};
    c->last = &c->first;
    channel_init(&c->channel, &spec->limits, NULL, NULL);
    c->retry = loop_timer(l, 0, caller_on_retry, c);
    return c;
}

void caller_free(struct caller *c)
{
    if (!c)
        return;
    if (c->watch)
        loop_fd_del(c->loop, c->watch);
    channel_close(&c->channel);
    loop_timer_del(c->loop, c->retry);
    loop_timer_del(c->loop, c->sweep);
    loop_timer_del(c->loop, c->breaker);
    free(c);
}

void caller_add(struct caller *c, struct caller_call *call)
{
    call->next = NULL;
    call->sent = false;
    if (c->ncalls >= c->spec->calls_max)
        caller_refuse(c, call, CALLER_FULL);
    *c->last = call;
    c->last = &call->next;
    c->ncalls++;
    if (!c->sweep)
        c->sweep = loop_timer(c->loop, SWEEP_MS, caller_on_sweep, c);
    (void)caller_send_pending(c);
}

void caller_post(struct caller *c, const void *p, size_t n)
{
    if (!caller_is_up(c))
        return;
    /* Packets do not get cheaper by waiting for others. */
    int r = c->spec->limits.kind == CHANNEL_PACKET ? channel_send(&c->channel, p, n, NULL, 0)
                                                   : channel_queue(&c->channel, p, n, NULL, 0);
    if (r == 0)
        caller_watch(c);
    else if (errno == ENOBUFS) /* other errors are those of the socket, which the loop reports */
        caller_drop(c, "it reads too slowly");
}
