#include "peers/keeperc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"

enum {
    RETRY_MIN_MS = 20,
    RETRY_MAX_MS = 1000,
    CALLS_MAX = 8192,
    CALL_MS = 60000, /* keeper itself limits a create to 10 s and a kill to 20 s */
    SWEEP_MS = 1000,
    AT_ONCE = 64,
};

struct call {
    uint64_t request, due_ms;
    bool sent;
    size_t size;
    union {
        struct keeper_head head;
        struct keeper_create create;
        struct keeper_simple simple;
        struct keeper_deadline deadline;
    } m;
    keeperc_done *done;
    keeperc_listed *listed;
    void *arg;
    struct keeper_item *items; /* LIST: what came so far */
    size_t nitems;
    struct call *next;
};

struct keeperc {
    struct loop *loop;
    int run_dir, fd; /* fd -1: not connected */
    loop_id watch, retry, sweep;
    unsigned events;
    uint64_t retry_ms, next_request;
    const struct keeperc_ops *ops;
    void *arg;
    struct call *first, **last; /* in the order asked */
    size_t ncalls;
};

static void keeperc_try_connect(void *arg);

static void keeperc_watch(struct keeperc *k, unsigned events)
{
    if (events != k->events)
        loop_fd_set(k->loop, k->watch, events);
    k->events = events;
}

static void keeperc_disconnect(struct keeperc *k)
{
    if (k->fd < 0)
        return;
    loop_fd_del(k->loop, k->watch);
    (void)close(k->fd);
    k->fd = -1;
    k->watch = 0;
    for (struct call *c = k->first; c; c = c->next) {
        c->sent = false;
        c->nitems = 0;
    }
    k->retry_ms = RETRY_MIN_MS;
    k->retry = loop_timer(k->loop, k->retry_ms, keeperc_try_connect, k);
    k->ops->down(k->arg);
}

/* Sends what has not been sent. False if the connection is gone. */
static bool keeperc_send_pending(struct keeperc *k)
{
    unsigned events = LOOP_IN;
    for (struct call *c = k->first; c; c = c->next) {
        if (c->sent)
            continue;
        if (send(k->fd, &c->m, c->size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                keeperc_disconnect(k);
                return false;
            }
            events |= LOOP_OUT;
            break;
        }
        c->sent = true;
    }
    keeperc_watch(k, events);
    return true;
}

static struct call *keeperc_take_call(struct keeperc *k, uint64_t request)
{
    for (struct call **p = &k->first; *p; p = &(*p)->next) {
        struct call *c = *p;
        if (c->request != request)
            continue;
        *p = c->next;
        if (k->last == &c->next)
            k->last = p;
        k->ncalls--;
        return c;
    }
    return NULL;
}

static void keeperc_free_call(struct call *c)
{
    free(c->items);
    free(c);
}

static void keeperc_fail_call(struct call *c, const char *text)
{
    struct keeper_reply r = {.error = KEEPER_FAILED};
    (void)snprintf(r.text, sizeof r.text, "%s", text);
    if (c->done)
        c->done(c->arg, &r);
    else if (c->listed)
        c->listed(c->arg, NULL, 0);
    keeperc_free_call(c);
}

static void keeperc_on_sweep(void *arg)
{
    struct keeperc *k = arg;
    uint64_t now = loop_now(k->loop);
    k->sweep = 0;
    while (k->first && k->first->due_ms <= now) /* all have the same limit, so the oldest is due first */
        keeperc_fail_call(keeperc_take_call(k, k->first->request), "keeper does not answer");
    if (k->first && !k->sweep)
        k->sweep = loop_timer(k->loop, SWEEP_MS, keeperc_on_sweep, k);
}

static bool keeperc_on_reply(struct keeperc *k, const struct keeper_reply *from)
{
    struct keeper_reply r = *from;
    r.text[sizeof r.text - 1] = r.tier[sizeof r.tier - 1] = r.degraded[sizeof r.degraded - 1] = '\0';
    r.driver[sizeof r.driver - 1] = r.quota[sizeof r.quota - 1] = '\0';
    struct call *c = keeperc_take_call(k, r.head.request);
    if (!c)
        return true; /* it timed out before */
    if (!c->done)
        keeperc_fail_call(c, ""); /* a refused list */
    else {
        c->done(c->arg, &r);
        keeperc_free_call(c);
    }
    return true;
}

static bool keeperc_on_items(struct keeperc *k, const struct keeper_items *m)
{
    struct call *c = k->first;
    while (c && c->request != m->head.request)
        c = c->next;
    if (m->n > KEEPER_LIST_MAX)
        return false;
    if (!c || !c->listed)
        return true;
    c->items = xreallocarray(c->items, c->nitems + m->n + 1, sizeof *c->items);
    memcpy(c->items + c->nitems, m->item, m->n * sizeof *m->item);
    for (size_t i = c->nitems; i < c->nitems + m->n; i++)
        c->items[i].id[KEEPER_ID_MAX - 1] = '\0';
    c->nitems += m->n;
    if (m->more)
        return true;
    c = keeperc_take_call(k, c->request);
    c->listed(c->arg, c->items, c->nitems);
    keeperc_free_call(c);
    return true;
}

static bool keeperc_on_message(struct keeperc *k, const void *p, size_t n)
{
    struct keeper_head head;
    if (n < sizeof head)
        return false;
    memcpy(&head, p, sizeof head);
    if (head.version != KEEPER_VERSION)
        return false;
    if (head.type == KEEPER_REPLY && n == sizeof(struct keeper_reply))
        return keeperc_on_reply(k, p);
    if (head.type == KEEPER_ITEMS && n == sizeof(struct keeper_items))
        return keeperc_on_items(k, p);
    if (head.type == KEEPER_DIED && n == sizeof(struct keeper_death)) {
        struct keeper_death d;
        memcpy(&d, p, sizeof d);
        d.id[sizeof d.id - 1] = '\0';
        k->ops->died(k->arg, &d);
        return true;
    }
    return false;
}

static void keeperc_on_event(void *arg, int fd, unsigned events)
{
    static union {
        struct keeper_items items;
        struct keeper_reply reply;
        struct keeper_death death;
    } m;
    struct keeperc *k = arg;
    if ((events & LOOP_OUT) && !keeperc_send_pending(k))
        return;
    for (int i = 0; i < AT_ONCE && k->fd == fd; i++) {
        ssize_t n = recv(fd, &m, sizeof m, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0 || (size_t)n > sizeof m || !keeperc_on_message(k, &m, (size_t)n)) {
            keeperc_disconnect(k);
            return;
        }
    }
}

static void keeperc_try_connect(void *arg)
{
    struct keeperc *k = arg;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    k->retry = 0;
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/" KEEPER_SOCKET, k->run_dir);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0)
        k->watch = loop_fd_add(k->loop, fd, LOOP_IN, keeperc_on_event, k);
    if (!k->watch) {
        k->retry_ms = k->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : k->retry_ms * 2;
        k->retry = loop_timer(k->loop, k->retry_ms, keeperc_try_connect, k);
        return;
    }
    k->fd = TAKE_FD(fd);
    k->events = LOOP_IN;
    k->retry_ms = RETRY_MIN_MS;
    if (keeperc_send_pending(k))
        k->ops->up(k->arg);
}

int keeperc_new(struct loop *l, int run_dir, const struct keeperc_ops *ops, void *arg, struct keeperc **ret,
                struct err *err)
{
    (void)err;
    struct keeperc *k = xcalloc(1, sizeof *k);
    *k = (struct keeperc){
        .loop = l, .run_dir = run_dir, .fd = -1, .retry_ms = RETRY_MIN_MS, .next_request = 1, .ops = ops, .arg = arg};
    k->last = &k->first;
    k->retry = loop_timer(l, 0, keeperc_try_connect, k);
    *ret = k;
    return 0;
}

void keeperc_free(struct keeperc *k)
{
    if (!k)
        return;
    if (k->fd >= 0) {
        loop_fd_del(k->loop, k->watch);
        (void)close(k->fd);
    }
    loop_timer_del(k->loop, k->retry);
    loop_timer_del(k->loop, k->sweep);
    while (k->first)
        keeperc_free_call(keeperc_take_call(k, k->first->request));
    free(k);
}

static struct call *keeperc_new_call(struct keeperc *k, uint32_t type, size_t size, void *arg)
{
    struct call *c = xcalloc(1, sizeof *c);
    c->request = k->next_request++;
    c->due_ms = loop_now(k->loop) + CALL_MS;
    c->size = size;
    c->arg = arg;
    c->m.head = (struct keeper_head){.version = KEEPER_VERSION, .type = type, .request = c->request};
    return c;
}

static void keeperc_fail_too_many(void *arg) { keeperc_fail_call(arg, "too many requests wait for keeper"); }

static void keeperc_add_call(struct keeperc *k, struct call *c)
{
    if (k->ncalls >= CALLS_MAX) {
        loop_defer(k->loop, keeperc_fail_too_many, c);
        return;
    }
    *k->last = c;
    k->last = &c->next;
    k->ncalls++;
    if (!k->sweep)
        k->sweep = loop_timer(k->loop, SWEEP_MS, keeperc_on_sweep, k);
    if (k->fd >= 0)
        (void)keeperc_send_pending(k);
}

static void keeperc_put_id(char to[KEEPER_ID_MAX], const char *id)
{
    (void)snprintf(to, KEEPER_ID_MAX, "%s", id); /* one that is too long is refused by keeper as unknown */
}

void keeperc_create(struct keeperc *k, const struct keeper_create *create, keeperc_done *done, void *arg)
{
    struct call *c = keeperc_new_call(k, KEEPER_CREATE, sizeof c->m.create, arg);
    struct keeper_head head = c->m.head;
    c->m.create = *create;
    c->m.create.head = head;
    c->done = done;
    keeperc_add_call(k, c);
}

static void keeperc_ask(struct keeperc *k, uint32_t type, const char *id, keeperc_done *done, void *arg)
{
    struct call *c = keeperc_new_call(k, type, sizeof c->m.simple, arg);
    keeperc_put_id(c->m.simple.id, id);
    c->done = done;
    keeperc_add_call(k, c);
}

void keeperc_kill(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    keeperc_ask(k, KEEPER_KILL, id, done, arg);
}

void keeperc_pause(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    keeperc_ask(k, KEEPER_PAUSE, id, done, arg);
}

void keeperc_resume(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    keeperc_ask(k, KEEPER_RESUME, id, done, arg);
}

void keeperc_usage(struct keeperc *k, const char *id, keeperc_done *done, void *arg)
{
    keeperc_ask(k, KEEPER_USAGE, id, done, arg);
}

void keeperc_deadline(struct keeperc *k, const char *id, uint64_t boottime_ms, keeperc_done *done, void *arg)
{
    struct call *c = keeperc_new_call(k, KEEPER_DEADLINE, sizeof c->m.deadline, arg);
    keeperc_put_id(c->m.deadline.id, id);
    c->m.deadline.deadline_ms = boottime_ms;
    c->done = done;
    keeperc_add_call(k, c);
}

void keeperc_list(struct keeperc *k, keeperc_listed *done, void *arg)
{
    struct call *c = keeperc_new_call(k, KEEPER_LIST, sizeof c->m.simple, arg);
    c->listed = done;
    keeperc_add_call(k, c);
}

void keeperc_forget(struct keeperc *k, const char *id)
{
    struct keeper_simple m = {.head = {.version = KEEPER_VERSION, .type = KEEPER_FORGET, .request = k->next_request++}};
    keeperc_put_id(m.id, id);
    if (k->fd >= 0) /* if the message is lost, keeper reports the death again */
        (void)send(k->fd, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT);
}
