#include "peers/layersc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"

enum {
    RETRY_MIN_MS = 20,
    RETRY_MAX_MS = 1000,
    CALLS_MAX = 1024,
    OWNER_CALLS_MAX = CALLS_MAX / 16, /* of one tenant, once half of CALLS_MAX is taken */
    /* Sent at once: never more than the layer store accepts; long ones leave room for the others. */
    SENT_MAX = LAYERS_JOBS_MAX - 8,
    HEAVY_SENT_MAX = 16,
    OWNER_SENT_MAX = 4, /* of one tenant, without transfers */
    DOWN_MS = 30000,    /* without a connection for so long: pending calls fail */
    SWEEP_MS = 1000,
    AT_ONCE = 64,
    FDS_MAX = 4,
    LISTED_MAX = 1 << 18,
    OWNER_MAX = 64,
};

struct call {
    struct layers_request m;
    bool sent;
    const char *broken; /* static text: the loop fails the call with it */
    enum layers_error why;
    int fds[FDS_MAX];  /* ours until the answer, to be sent again */
    off_t at[FDS_MAX]; /* their file positions; -1: a pipe, which cannot be read twice */
    size_t nfds;
    layersc_progress *progress;
    layersc_done *done; /* NULL with `listed`, and for a cancel */
    layersc_listed *listed;
    void *arg;
    char owner[OWNER_MAX]; /* "": the node itself */
    struct layers_item *items;
    size_t nitems;
    struct call *next;
};

struct layersc {
    struct loop *loop;
    int run_dir, fd; /* fd -1: not connected */
    loop_id watch, retry, sweep, breaker;
    unsigned events;
    uint64_t retry_ms, next_request, down_since;
    void (*up)(void *arg);
    void *arg;
    struct call *first, **last;     /* in the order asked */
    size_t ncalls, nsent, nlong[2]; /* sent: transfers, upkeep */
};

/* The kinds of long jobs, as the layer store separates them (job_class). */
enum kind { TRANSFER, UPKEEP, SHORT };
static enum kind layersc_kind_of(uint32_t type)
{
    switch (type) {
    case LAYERS_IMPORT:
    case LAYERS_CONVERT:
    case LAYERS_EXPORT:
    case LAYERS_RESTORE:
        return TRANSFER;
    case LAYERS_FLATTEN:
    case LAYERS_VERIFY:
        return UPKEEP;
    default:
        return SHORT;
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void layersc_set_sent(struct layersc *s, struct call *c, bool sent)
{
    if (c->sent == sent)
        return;
    c->sent = sent;
    s->nsent += sent ? 1 : (size_t)-1;
    if (layersc_kind_of(c->m.type) != SHORT)
        s->nlong[layersc_kind_of(c->m.type)] += sent ? 1 : (size_t)-1;
}

static struct call *layersc_find_call(struct layersc *s, uint64_t request)
{
    struct call *c = s->first;
    while (c && c->m.request != request)
        c = c->next;
    return c;
}

static struct call *layersc_take_call(struct layersc *s, uint64_t request)
{
    for (struct call **p = &s->first; *p; p = &(*p)->next) {
        struct call *c = *p;
        if (c->m.request != request)
            continue;
        *p = c->next;
        if (s->last == &c->next)
            s->last = p;
        s->ncalls--;
        layersc_set_sent(s, c, false);
        return c;
    }
    return NULL;
}

static void layersc_free_call(struct call *c)
{
    for (size_t i = 0; i < c->nfds; i++)
        (void)close(c->fds[i]);
    free(c->items);
    free(c);
}

static void layersc_fail_call(struct call *c, enum layers_error error, const char *text)
{
    struct layers_reply r = {
        .version = LAYERS_VERSION, .type = LAYERS_REPLY, .request = c->m.request, .error = (uint32_t)error};
    (void)snprintf(r.text, sizeof r.text, "%s", text);
    if (c->done)
        c->done(c->arg, &r, -1);
    else if (c->listed)
        c->listed(c->arg, NULL, 0, &r);
    layersc_free_call(c);
}

static void layersc_on_breaker(void *arg)
{
    struct layersc *s = arg;
    s->breaker = 0;
    for (struct call *c = s->first; c;) {
        if (!c->broken) {
            c = c->next;
            continue;
        }
        const char *text = c->broken;
        layersc_fail_call(layersc_take_call(s, c->m.request), c->why, text);
        c = s->first; /* the callback may have changed the list */
    }
}

/* Fails the call from the loop: a callback must not run inside a call of its user. */
static void layersc_break_call(struct layersc *s, struct call *c, enum layers_error why, const char *text)
{
    c->broken = text;
    c->why = why;
    if (!s->breaker)
        s->breaker = loop_timer(s->loop, 0, layersc_on_breaker, s);
}

/* Must not be sent again: a cancelled job died with the layer store, and a pipe's bytes are gone. */
static bool layersc_is_spent(const struct call *c)
{
    bool used = c->m.type == LAYERS_CANCEL;
    for (size_t i = 0; i < c->nfds; i++)
        used |= c->at[i] < 0;
    return c->sent && used;
}

/* --- connection --------------------------------------------------------------------------------------------------- */

static void layersc_try_connect(void *arg);

static void layersc_watch(struct layersc *s, unsigned events)
{
    if (events != s->events)
        loop_fd_set(s->loop, s->watch, events);
    s->events = events;
}

static void layersc_disconnect(struct layersc *s)
{
    if (s->fd < 0)
        return;
    loop_fd_del(s->loop, s->watch);
    (void)close(s->fd);
    s->fd = -1;
    s->watch = 0;
    s->down_since = loop_now(s->loop);
    s->retry_ms = RETRY_MIN_MS;
    s->retry = loop_timer(s->loop, s->retry_ms, layersc_try_connect, s);
    for (struct call *c = s->first; c; c = c->next) {
        if (layersc_is_spent(c))
            layersc_break_call(s, c, LAYERS_FAILED, "the store restarted while it worked on this request");
        layersc_set_sent(s, c, false);
        c->nitems = 0;
    }
}

static int layersc_send_call(const struct layersc *s, const struct call *c)
{
    /* An earlier job may have moved the file position, which it shares with us: restore it. */
    for (size_t i = 0; i < c->nfds; i++)
        if (c->at[i] >= 0)
            (void)lseek(c->fds[i], c->at[i], SEEK_SET);
    return fd_send(s->fd, &c->m, sizeof c->m, c->fds, c->nfds);
}

/* Limits what is under way in all and per tenant, so that a tenant with many requests does not delay the others. */
static bool layersc_must_wait(const struct layersc *s, const struct call *c)
{
    enum kind kind = layersc_kind_of(c->m.type);
    if (s->nsent >= SENT_MAX && c->m.type != LAYERS_CANCEL)
        return true;
    if (kind != SHORT && s->nlong[kind] >= HEAVY_SENT_MAX)
        return true;
    if (!c->owner[0])
        return false;
    size_t n = 0, most = kind == TRANSFER ? 1 : OWNER_SENT_MAX;
    for (const struct call *o = s->first; o && n < most; o = o->next)
        n += o->sent && (layersc_kind_of(o->m.type) == TRANSFER) == (kind == TRANSFER) &&
             strcmp(o->owner, c->owner) == 0;
    return n >= most;
}

/* Sends what has not been sent. False if the connection is gone. */
static bool layersc_send_pending(struct layersc *s)
{
    unsigned events = LOOP_IN;
    for (struct call *c = s->first; c; c = c->next) {
        if (c->sent || c->broken || layersc_must_wait(s, c))
            continue;
        if (layersc_send_call(s, c) < 0) {
            if (errno != EAGAIN && errno != ENOBUFS) {
                layersc_disconnect(s);
                return false;
            }
            events |= LOOP_OUT;
            break;
        }
        layersc_set_sent(s, c, true);
    }
    layersc_watch(s, events);
    return true;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void layersc_on_reply(struct layersc *s, struct layers_reply *r, int fd)
{
    r->text[sizeof r->text - 1] = r->layer[sizeof r->layer - 1] = '\0';
    if (r->type == LAYERS_PROGRESS) {
        struct call *c = layersc_find_call(s, r->request);
        if (c && c->progress)
            c->progress(c->arg, r);
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    struct call *c = layersc_take_call(s, r->request);
    if (c && c->done) {
        c->done(c->arg, r, fd);
        layersc_free_call(c);
        return;
    }
    if (fd >= 0) /* the call was cancelled, or takes no descriptor */
        (void)close(fd);
    if (c && c->listed)
        c->listed(c->arg, NULL, 0, r);
    if (c)
        layersc_free_call(c);
}

static bool layersc_on_items(struct layersc *s, const struct layers_items *m)
{
    struct call *c = layersc_find_call(s, m->request);
    if (m->n > LAYERS_LIST_MAX)
        return false;
    if (!c || !c->listed)
        return true;
    if (c->nitems + m->n > LISTED_MAX)
        return false;
    c->items = xreallocarray(c->items, c->nitems + m->n + 1, sizeof *c->items);
    memcpy(c->items + c->nitems, m->item, m->n * sizeof *m->item);
    for (size_t i = c->nitems; i < c->nitems + m->n; i++)
        c->items[i].id[STACK_ID_MAX - 1] = '\0';
    c->nitems += m->n;
    if (m->more)
        return true;
    c = layersc_take_call(s, c->m.request);
    c->listed(c->arg, c->items, c->nitems, NULL);
    layersc_free_call(c);
    return true;
}

union incoming {
    struct layers_reply reply;
    struct layers_items items;
};

/* Takes fd. False: malformed. */
static bool layersc_on_message(struct layersc *s, union incoming *m, size_t n, int fd)
{
    bool reply = n == sizeof m->reply && (m->reply.type == LAYERS_REPLY || m->reply.type == LAYERS_PROGRESS);
    bool items = n == sizeof m->items && m->items.type == LAYERS_ITEMS;
    if ((!reply && !items) || m->reply.version != LAYERS_VERSION || items) {
        if (fd >= 0)
            (void)close(fd);
        return items && m->items.version == LAYERS_VERSION && layersc_on_items(s, &m->items);
    }
    layersc_on_reply(s, &m->reply, fd);
    return true;
}

static void layersc_on_event(void *arg, int fd, unsigned events)
{
    static union incoming m;
    struct layersc *s = arg;
    if ((events & LOOP_OUT) && !layersc_send_pending(s))
        return;
    for (int i = 0; i < AT_ONCE && s->fd == fd; i++) {
        int came = -1;
        size_t ncame = 1;
        ssize_t n = fd_recv(fd, &m, sizeof m, &came, &ncame);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0 || !layersc_on_message(s, &m, (size_t)n, ncame ? came : -1)) {
            layersc_disconnect(s);
            return;
        }
    }
    if (s->fd == fd) /* answers make room for waiting calls */
        (void)layersc_send_pending(s);
}

static void layersc_try_connect(void *arg)
{
    struct layersc *s = arg;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    s->retry = 0;
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/" LAYERS_SOCKET, s->run_dir);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof addr) < 0 ||
        (s->watch = loop_fd_add(s->loop, fd, LOOP_IN, layersc_on_event, s)) == 0) {
        s->retry_ms = s->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : s->retry_ms * 2;
        s->retry = loop_timer(s->loop, s->retry_ms, layersc_try_connect, s);
        return;
    }
    s->fd = TAKE_FD(fd);
    s->events = LOOP_IN;
    s->retry_ms = RETRY_MIN_MS;
    if (layersc_send_pending(s) && s->up)
        s->up(s->arg);
}

static void layersc_on_sweep(void *arg)
{
    struct layersc *s = arg;
    s->sweep = 0;
    bool late = s->fd < 0 && loop_now(s->loop) - s->down_since >= DOWN_MS;
    for (size_t n = late ? s->ncalls : 0; n > 0 && s->first; n--)
        layersc_fail_call(layersc_take_call(s, s->first->m.request), LAYERS_BUSY, "the store does not answer");
    if (s->first && !s->sweep)
        s->sweep = loop_timer(s->loop, SWEEP_MS, layersc_on_sweep, s);
}

/* --- for callers -------------------------------------------------------------------------------------------------- */

int layersc_new(struct loop *l, int run_dir, void (*up)(void *arg), void *arg, struct layersc **ret, struct err *err)
{
    (void)err;
    struct layersc *s = xcalloc(1, sizeof *s);
    *s = (struct layersc){.loop = l,
                          .run_dir = run_dir,
                          .fd = -1,
                          .retry_ms = RETRY_MIN_MS,
                          .next_request = 1,
                          .down_since = loop_now(l),
                          .up = up,
                          .arg = arg};
    s->last = &s->first;
    s->retry = loop_timer(l, 0, layersc_try_connect, s);
    *ret = s;
    return 0;
}

void layersc_free(struct layersc *s)
{
    if (!s)
        return;
    if (s->fd >= 0) {
        loop_fd_del(s->loop, s->watch);
        (void)close(s->fd);
    }
    loop_timer_del(s->loop, s->retry);
    loop_timer_del(s->loop, s->sweep);
    loop_timer_del(s->loop, s->breaker);
    while (s->first)
        layersc_free_call(layersc_take_call(s, s->first->m.request));
    free(s);
}

bool layersc_is_up(const struct layersc *s) { return s->fd >= 0; }

struct layers_request layersc_request(enum layers_type type)
{
    return (struct layers_request){.version = LAYERS_VERSION, .type = (uint32_t)type};
}

static struct call *layersc_new_call(struct layersc *s, const struct layers_request *r, void *arg)
{
    struct call *c = xcalloc(1, sizeof *c);
    c->m = *r;
    c->m.version = LAYERS_VERSION;
    c->m.request = s->next_request++;
    c->arg = arg;
    return c;
}

static bool layersc_is_full(const struct layersc *s, const struct call *c)
{
    size_t own = 0;
    for (const struct call *o = s->ncalls < CALLS_MAX / 2 || !c->owner[0] ? NULL : s->first; o; o = o->next)
        own += strcmp(o->owner, c->owner) == 0;
    return s->ncalls >= CALLS_MAX || own >= OWNER_CALLS_MAX;
}

static layersc_call layersc_add_call(struct layersc *s, struct call *c)
{
    if (layersc_is_full(s, c))
        layersc_break_call(s, c, LAYERS_BUSY, "too many requests wait for the store");
    *s->last = c;
    s->last = &c->next;
    s->ncalls++;
    if (!s->sweep)
        s->sweep = loop_timer(s->loop, SWEEP_MS, layersc_on_sweep, s);
    uint64_t request = c->m.request;
    if (s->fd >= 0)
        (void)layersc_send_pending(s);
    return request;
}

layersc_call layersc_ask_for(struct layersc *s, const char *owner, const struct layers_request *r, const int *fds,
                             size_t nfds, layersc_progress *progress, layersc_done *done, void *arg)
{
    struct call *c = layersc_new_call(s, r, arg);
    (void)snprintf(c->owner, sizeof c->owner, "%s", owner);
    c->progress = progress;
    c->done = done;
    for (size_t i = 0; i < nfds && i < FDS_MAX; i++) {
        c->fds[i] = fds[i];
        c->at[i] = lseek(fds[i], 0, SEEK_CUR);
    }
    c->nfds = nfds < FDS_MAX ? nfds : FDS_MAX;
    for (size_t i = FDS_MAX; i < nfds; i++)
        (void)close(fds[i]);
    return layersc_add_call(s, c);
}

layersc_call layersc_ask(struct layersc *s, const struct layers_request *r, const int *fds, size_t nfds,
                         layersc_progress *progress, layersc_done *done, void *arg)
{
    return layersc_ask_for(s, "", r, fds, nfds, progress, done, arg);
}

size_t layersc_waiting(const struct layersc *s, const char *owner)
{
    size_t n = 0;
    for (const struct call *c = s->first; c; c = c->next)
        n += !c->sent && layersc_kind_of(c->m.type) != TRANSFER && strcmp(c->owner, owner) == 0;
    return n;
}

void layersc_cancel(struct layersc *s, layersc_call request)
{
    struct call *c = request ? layersc_find_call(s, request) : NULL;
    if (!c)
        return;
    bool sent = c->sent;
    layersc_free_call(layersc_take_call(s, request));
    if (!sent)
        return;
    struct layers_request q = layersc_request(LAYERS_CANCEL);
    q.cancel = request;
    (void)layersc_add_call(s, layersc_new_call(s, &q, NULL));
}

void layersc_list(struct layersc *s, layersc_listed *done, void *arg)
{
    struct layers_request q = layersc_request(LAYERS_LIST);
    struct call *c = layersc_new_call(s, &q, arg);
    c->listed = done;
    (void)layersc_add_call(s, c);
}
