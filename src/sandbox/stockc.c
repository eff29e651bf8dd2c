#include "sandbox/stockc.h"

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
    OWNER_CALLS_MAX = CALLS_MAX / 16, /* of a tenant, once half of them are taken: the rest is for the others */
    /* More than it takes are not sent. Those that take long leave room for the others. */
    SENT_MAX = STOCK_JOBS_MAX - 8,
    HEAVY_SENT_MAX = 16,
    OWNER_SENT_MAX = 4, /* of a tenant, but transfers */
    DOWN_MS = 30000,    /* without stock for so long: what waits for it fails */
    SWEEP_MS = 1000,
    AT_ONCE = 64,
    FDS_MAX = 4,
    LISTED_MAX = 1 << 18,
    OWNER_MAX = 64,
};

struct call {
    struct stock_request m;
    bool sent;
    const char *broken; /* static: it fails with this, as soon as the loop is back */
    enum stock_error why;
    int fds[FDS_MAX];  /* ours until the answer, to be sent again */
    off_t at[FDS_MAX]; /* where they stood; -1: what was read or written there cannot be taken back */
    size_t nfds;
    stockc_progress *progress;
    stockc_done *done; /* NULL with `listed`, and for a cancel */
    stockc_listed *listed;
    void *arg;
    char owner[OWNER_MAX]; /* "": the node itself */
    struct stock_item *items;
    size_t nitems;
    struct call *next;
};

struct stockc {
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

/* The long ones, as stock keeps them apart. */
enum kind { TRANSFER, UPKEEP, SHORT };
static enum kind kind_of(uint32_t type)
{
    switch (type) {
    case STOCK_IMPORT:
    case STOCK_CONVERT:
    case STOCK_EXPORT:
    case STOCK_RESTORE:
        return TRANSFER;
    case STOCK_FLATTEN:
    case STOCK_VERIFY:
        return UPKEEP;
    default:
        return SHORT;
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void set_sent(struct stockc *s, struct call *c, bool sent)
{
    if (c->sent == sent)
        return;
    c->sent = sent;
    s->nsent += sent ? 1 : (size_t)-1;
    if (kind_of(c->m.type) != SHORT)
        s->nlong[kind_of(c->m.type)] += sent ? 1 : (size_t)-1;
}

static struct call *find_call(struct stockc *s, uint64_t request)
{
    struct call *c = s->first;
    while (c && c->m.request != request)
        c = c->next;
    return c;
}

static struct call *take_call(struct stockc *s, uint64_t request)
{
    for (struct call **p = &s->first; *p; p = &(*p)->next) {
        struct call *c = *p;
        if (c->m.request != request)
            continue;
        *p = c->next;
        if (s->last == &c->next)
            s->last = p;
        s->ncalls--;
        set_sent(s, c, false);
        return c;
    }
    return NULL;
}

static void free_call(struct call *c)
{
    for (size_t i = 0; i < c->nfds; i++)
        (void)close(c->fds[i]);
    free(c->items);
    free(c);
}

static void fail_call(struct call *c, enum stock_error error, const char *text)
{
    struct stock_reply r = {
        .version = STOCK_VERSION, .type = STOCK_REPLY, .request = c->m.request, .error = (uint32_t)error};
    (void)snprintf(r.text, sizeof r.text, "%s", text);
    if (c->done)
        c->done(c->arg, &r, -1);
    else if (c->listed)
        c->listed(c->arg, NULL, 0, &r);
    free_call(c);
}

static void fail_broken(void *arg)
{
    struct stockc *s = arg;
    s->breaker = 0;
    for (struct call *c = s->first; c;) {
        if (!c->broken) {
            c = c->next;
            continue;
        }
        const char *text = c->broken;
        fail_call(take_call(s, c->m.request), c->why, text);
        c = s->first; /* whoever was told may have changed the list */
    }
}

/* Nobody is told from inside a call of his own. */
static void break_call(struct stockc *s, struct call *c, enum stock_error why, const char *text)
{
    c->broken = text;
    c->why = why;
    if (!s->breaker)
        s->breaker = loop_timer(s->loop, 0, fail_broken, s);
}

/* Not to be sent once more: a cancelled job is gone with stock, and what went through a pipe cannot be taken back. */
static bool is_spent(const struct call *c)
{
    bool used = c->m.type == STOCK_CANCEL;
    for (size_t i = 0; i < c->nfds; i++)
        used |= c->at[i] < 0;
    return c->sent && used;
}

/* --- connection --------------------------------------------------------------------------------------------------- */

static void try_connect(void *arg);

static void watch_for(struct stockc *s, unsigned events)
{
    if (events != s->events)
        loop_fd_set(s->loop, s->watch, events);
    s->events = events;
}

static void disconnect(struct stockc *s)
{
    if (s->fd < 0)
        return;
    loop_fd_del(s->loop, s->watch);
    (void)close(s->fd);
    s->fd = -1;
    s->watch = 0;
    s->down_since = loop_now(s->loop);
    s->retry_ms = RETRY_MIN_MS;
    s->retry = loop_timer(s->loop, s->retry_ms, try_connect, s);
    for (struct call *c = s->first; c; c = c->next) {
        if (is_spent(c))
            break_call(s, c, STOCK_FAILED, "the store was started again while it worked on this");
        set_sent(s, c, false);
        c->nitems = 0;
    }
}

static int send_call(const struct stockc *s, const struct call *c)
{
    /* The job shares our position in the file. */
    for (size_t i = 0; i < c->nfds; i++)
        if (c->at[i] >= 0)
            (void)lseek(c->fds[i], c->at[i], SEEK_SET);
    return fd_send(s->fd, &c->m, sizeof c->m, c->fds, c->nfds);
}

/* A tenant's transfers go one after the other, and of everything else a few at once: whoever asks for many takes no turn of
 * the others. */
static bool must_wait(const struct stockc *s, const struct call *c)
{
    enum kind kind = kind_of(c->m.type);
    if (s->nsent >= SENT_MAX && c->m.type != STOCK_CANCEL)
        return true;
    if (kind != SHORT && s->nlong[kind] >= HEAVY_SENT_MAX)
        return true;
    if (!c->owner[0])
        return false;
    size_t n = 0, most = kind == TRANSFER ? 1 : OWNER_SENT_MAX;
    for (const struct call *o = s->first; o && n < most; o = o->next)
        n += o->sent && (kind_of(o->m.type) == TRANSFER) == (kind == TRANSFER) && strcmp(o->owner, c->owner) == 0;
    return n >= most;
}

/* Sends what has not been sent. False if the connection is gone. */
static bool push(struct stockc *s)
{
    unsigned events = LOOP_IN;
    for (struct call *c = s->first; c; c = c->next) {
        if (c->sent || c->broken || must_wait(s, c))
            continue;
        if (send_call(s, c) < 0) {
            if (errno != EAGAIN && errno != ENOBUFS) {
                disconnect(s);
                return false;
            }
            events |= LOOP_OUT;
            break;
        }
        set_sent(s, c, true);
    }
    watch_for(s, events);
    return true;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void got_reply(struct stockc *s, struct stock_reply *r, int fd)
{
    r->text[sizeof r->text - 1] = r->layer[sizeof r->layer - 1] = '\0';
    if (r->type == STOCK_PROGRESS) {
        struct call *c = find_call(s, r->request);
        if (c && c->progress)
            c->progress(c->arg, r);
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    struct call *c = take_call(s, r->request);
    if (c && c->done) {
        c->done(c->arg, r, fd);
        free_call(c);
        return;
    }
    if (fd >= 0) /* of one that was given up */
        (void)close(fd);
    if (c && c->listed)
        c->listed(c->arg, NULL, 0, r);
    if (c)
        free_call(c);
}

static bool got_items(struct stockc *s, const struct stock_items *m)
{
    struct call *c = find_call(s, m->request);
    if (m->n > STOCK_LIST_MAX)
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
    c = take_call(s, c->m.request);
    c->listed(c->arg, c->items, c->nitems, NULL);
    free_call(c);
    return true;
}

union incoming {
    struct stock_reply reply;
    struct stock_items items;
};

/* Takes fd. False: that is not stock. */
static bool got(struct stockc *s, union incoming *m, size_t n, int fd)
{
    bool reply = n == sizeof m->reply && (m->reply.type == STOCK_REPLY || m->reply.type == STOCK_PROGRESS);
    bool items = n == sizeof m->items && m->items.type == STOCK_ITEMS;
    if ((!reply && !items) || m->reply.version != STOCK_VERSION || items) {
        if (fd >= 0)
            (void)close(fd);
        return items && m->items.version == STOCK_VERSION && got_items(s, &m->items);
    }
    got_reply(s, &m->reply, fd);
    return true;
}

static void ready(void *arg, int fd, unsigned events)
{
    static union incoming m;
    struct stockc *s = arg;
    if ((events & LOOP_OUT) && !push(s))
        return;
    for (int i = 0; i < AT_ONCE && s->fd == fd; i++) {
        int came = -1;
        size_t ncame = 1;
        ssize_t n = fd_recv(fd, &m, sizeof m, &came, &ncame);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0 || !got(s, &m, (size_t)n, ncame ? came : -1)) {
            disconnect(s);
            return;
        }
    }
    if (s->fd == fd) /* there is room now for what had to wait */
        (void)push(s);
}

static void try_connect(void *arg)
{
    struct stockc *s = arg;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    s->retry = 0;
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/" STOCK_SOCKET, s->run_dir);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof addr) < 0 ||
        (s->watch = loop_fd_add(s->loop, fd, LOOP_IN, ready, s)) == 0) {
        s->retry_ms = s->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : s->retry_ms * 2;
        s->retry = loop_timer(s->loop, s->retry_ms, try_connect, s);
        return;
    }
    s->fd = TAKE_FD(fd);
    s->events = LOOP_IN;
    s->retry_ms = RETRY_MIN_MS;
    if (push(s) && s->up)
        s->up(s->arg);
}

static void sweep(void *arg)
{
    struct stockc *s = arg;
    s->sweep = 0;
    bool late = s->fd < 0 && loop_now(s->loop) - s->down_since >= DOWN_MS;
    for (size_t n = late ? s->ncalls : 0; n > 0 && s->first; n--)
        fail_call(take_call(s, s->first->m.request), STOCK_BUSY, "the store does not answer");
    if (s->first && !s->sweep)
        s->sweep = loop_timer(s->loop, SWEEP_MS, sweep, s);
}

/* --- for callers -------------------------------------------------------------------------------------------------- */

int stockc_new(struct loop *l, int run_dir, void (*up)(void *arg), void *arg, struct stockc **ret, struct err *err)
{
    (void)err;
    struct stockc *s = xcalloc(1, sizeof *s);
    *s = (struct stockc){.loop = l,
                         .run_dir = run_dir,
                         .fd = -1,
                         .retry_ms = RETRY_MIN_MS,
                         .next_request = 1,
                         .down_since = loop_now(l),
                         .up = up,
                         .arg = arg};
    s->last = &s->first;
    s->retry = loop_timer(l, 0, try_connect, s);
    *ret = s;
    return 0;
}

void stockc_free(struct stockc *s)
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
        free_call(take_call(s, s->first->m.request));
    free(s);
}

bool stockc_is_up(const struct stockc *s) { return s->fd >= 0; }

struct stock_request stockc_request(enum stock_type type)
{
    return (struct stock_request){.version = STOCK_VERSION, .type = (uint32_t)type};
}

static struct call *new_call(struct stockc *s, const struct stock_request *r, void *arg)
{
    struct call *c = xcalloc(1, sizeof *c);
    c->m = *r;
    c->m.version = STOCK_VERSION;
    c->m.request = s->next_request++;
    c->arg = arg;
    return c;
}

static bool is_full(const struct stockc *s, const struct call *c)
{
    size_t own = 0;
    for (const struct call *o = s->ncalls < CALLS_MAX / 2 || !c->owner[0] ? NULL : s->first; o; o = o->next)
        own += strcmp(o->owner, c->owner) == 0;
    return s->ncalls >= CALLS_MAX || own >= OWNER_CALLS_MAX;
}

static stockc_call add(struct stockc *s, struct call *c)
{
    if (is_full(s, c))
        break_call(s, c, STOCK_BUSY, "too many requests wait for the store");
    *s->last = c;
    s->last = &c->next;
    s->ncalls++;
    if (!s->sweep)
        s->sweep = loop_timer(s->loop, SWEEP_MS, sweep, s);
    uint64_t request = c->m.request;
    if (s->fd >= 0)
        (void)push(s);
    return request;
}

stockc_call stockc_ask_for(struct stockc *s, const char *owner, const struct stock_request *r, const int *fds,
                           size_t nfds, stockc_progress *progress, stockc_done *done, void *arg)
{
    struct call *c = new_call(s, r, arg);
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
    return add(s, c);
}

stockc_call stockc_ask(struct stockc *s, const struct stock_request *r, const int *fds, size_t nfds,
                       stockc_progress *progress, stockc_done *done, void *arg)
{
    return stockc_ask_for(s, "", r, fds, nfds, progress, done, arg);
}

size_t stockc_waiting(const struct stockc *s, const char *owner)
{
    size_t n = 0;
    for (const struct call *c = s->first; c; c = c->next)
        n += !c->sent && kind_of(c->m.type) != TRANSFER && strcmp(c->owner, owner) == 0;
    return n;
}

void stockc_cancel(struct stockc *s, stockc_call request)
{
    struct call *c = request ? find_call(s, request) : NULL;
    if (!c)
        return;
    bool sent = c->sent;
    free_call(take_call(s, request));
    if (!sent)
        return;
    struct stock_request q = stockc_request(STOCK_CANCEL);
    q.cancel = request;
    (void)add(s, new_call(s, &q, NULL));
}

void stockc_list(struct stockc *s, stockc_listed *done, void *arg)
{
    struct stock_request q = stockc_request(STOCK_LIST);
    struct call *c = new_call(s, &q, arg);
    c->listed = done;
    (void)add(s, c);
}
