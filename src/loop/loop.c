#include "loop/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "loop/loop-int.h"

enum { EVENTS_PER_WAIT = 256, SETTLE_ROUNDS = 100 };

static uint64_t loop_monotonic_ms(void *arg)
{
    (void)arg;
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

loop_id loop_slot_new(struct loop *l, enum slot_kind kind, void *arg, struct slot **ret)
{
    uint32_t i = l->first_free;
    if (i != UINT32_MAX) {
        l->first_free = l->slots[i].u.next_free;
    } else {
        MEM_GROW(l->slots, l->nslots, l->cap_slots);
        i = l->nslots++;
        l->slots[i].gen = 1;
    }
    struct slot *s = &l->slots[i];
    s->kind = kind;
    s->arg = arg;
    *ret = s;
    return (uint64_t)s->gen << 32 | i;
}

struct slot *loop_slot_get(struct loop *l, loop_id id, enum slot_kind kind)
{
    uint32_t i = (uint32_t)id;
    if (i >= l->nslots || l->slots[i].gen != (uint32_t)(id >> 32) || l->slots[i].kind != kind)
        return NULL;
    return &l->slots[i];
}

void loop_slot_free(struct loop *l, struct slot *s)
{
    s->kind = SLOT_FREE;
    if (++s->gen == 0)
        s->gen = 1;
    s->u.next_free = l->first_free;
    l->first_free = (uint32_t)(s - l->slots);
}

void calls_add(struct calls *c, loop_fn *fn, void *arg)
{
    MEM_GROW(c->v, c->n, c->cap);
    c->v[c->n++] = (struct call){fn, arg};
}

int loop_new(struct loop **ret, struct err *err)
{
    struct loop *l = xcalloc(1, sizeof *l);
    l->clock = loop_monotonic_ms;
    l->now = loop_monotonic_ms(NULL);
    l->first_free = UINT32_MAX;
    l->signal_fd = l->wake_fd = -1;
    (void)sigemptyset(&l->signals);
    (void)pthread_mutex_init(&l->lock, NULL);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll < 0)
        (void)err_set(err, ERR_INTERNAL, errno, "epoll_create1");
    if (l->epoll < 0 || posts_open(l, err) < 0) {
        loop_free(l);
        return -1;
    }
    *ret = l;
    return 0;
}

/* Calls that are deferred meanwhile wait for the next round, so that calls that defer themselves do not starve
 * events. */
static void loop_run_deferred(struct loop *l)
{
    struct calls batch = l->deferred;
    l->deferred = l->running;
    l->deferred.n = 0;
    l->running = (struct calls){0};
    for (size_t i = 0; i < batch.n; i++)
        batch.v[i].fn(batch.v[i].arg);
    l->running = batch;
}

void loop_settle(struct loop *l)
{
    for (int i = 0; i < SETTLE_ROUNDS && l->deferred.n > 0; i++)
        loop_run_deferred(l);
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    workers_stop(l);
    while (l->deferred.n > 0) /* most of them free something */
        loop_run_deferred(l);
    posts_close(l);
    if (l->signal_fd >= 0)
        (void)close(l->signal_fd);
    if (l->epoll >= 0)
        (void)close(l->epoll);
    (void)pthread_mutex_destroy(&l->lock);
    free(l->slots);
    free(l->heap);
    free(l->deferred.v);
    free(l->running.v);
    free(l);
}

uint64_t loop_now(const struct loop *l) { return l->now; }
void loop_stop(struct loop *l) { l->stop = true; }

void loop_set_clock(struct loop *l, loop_clock_fn *fn, void *arg)
{
    l->clock = fn ? fn : loop_monotonic_ms;
    l->clock_arg = arg;
    l->now = l->clock(arg);
}

static uint32_t to_epoll(unsigned events)
{
    return (events & LOOP_IN ? EPOLLIN : 0U) | (events & LOOP_OUT ? EPOLLOUT : 0U) |
           (events & LOOP_RDHUP ? EPOLLRDHUP : 0U);
}

static unsigned from_epoll(uint32_t events)
{
    return (events & EPOLLIN ? LOOP_IN : 0U) | (events & EPOLLOUT ? LOOP_OUT : 0U) |
           (events & (EPOLLHUP | EPOLLERR) ? LOOP_HUP : 0U) | (events & EPOLLRDHUP ? LOOP_RDHUP : 0U);
}

static int loop_epoll_ctl(struct loop *l, int op, loop_id id, int fd, unsigned events)
{
    struct epoll_event e = {.events = to_epoll(events), .data.u64 = id};
    return epoll_ctl(l->epoll, op, fd, &e);
}

loop_id loop_fd_add(struct loop *l, int fd, unsigned events, loop_fd_fn *fn, void *arg)
{
    struct slot *s;
    loop_id id = loop_slot_new(l, SLOT_FD, arg, &s);
    s->u.fd.fn = fn;
    s->u.fd.fd = fd;
    s->u.fd.events = events;
    if (events != 0 && loop_epoll_ctl(l, EPOLL_CTL_ADD, id, fd, events) < 0) {
        int eno = errno;
        loop_slot_free(l, s);
        errno = eno;
        return 0;
    }
    return id;
}

void loop_fd_set(struct loop *l, loop_id id, unsigned events)
{
    struct slot *s = loop_slot_get(l, id, SLOT_FD);
    if (!s || s->u.fd.events == events)
        return;
    int op = s->u.fd.events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    s->u.fd.events = events;
    (void)loop_epoll_ctl(l, op, id, s->u.fd.fd, events);
}

void loop_fd_del(struct loop *l, loop_id id)
{
    struct slot *s = loop_slot_get(l, id, SLOT_FD);
    if (!s)
        return;
    if (s->u.fd.events != 0)
        (void)loop_epoll_ctl(l, EPOLL_CTL_DEL, id, s->u.fd.fd, 0);
    loop_slot_free(l, s);
}

void loop_defer(struct loop *l, loop_fn *fn, void *arg) { calls_add(&l->deferred, fn, arg); }

static void loop_dispatch(struct loop *l, const struct epoll_event *e)
{
    struct slot *s = loop_slot_get(l, e->data.u64, SLOT_FD);
    if (!s)
        return;
    /* An earlier callback of this batch may have changed the wanted events. */
    unsigned wanted = s->u.fd.events;
    unsigned events = from_epoll(e->events) & (wanted == 0 ? 0U : wanted | LOOP_HUP);
    if (events != 0)
        s->u.fd.fn(s->arg, s->u.fd.fd, events);
}

int loop_step(struct loop *l, int max_wait_ms, struct err *err)
{
    struct epoll_event events[EVENTS_PER_WAIT];
    int wait = l->deferred.n != 0 ? 0 : timers_wait(l, max_wait_ms);
    int n = epoll_wait(l->epoll, events, EVENTS_PER_WAIT, wait);
    if (n < 0 && errno != EINTR)
        return err_set(err, ERR_INTERNAL, errno, "epoll_wait");
    l->now = l->clock(l->clock_arg);
    for (int i = 0; i < n; i++)
        loop_dispatch(l, &events[i]);
    timers_run(l);
    loop_run_deferred(l);
    return 0;
}

int loop_run(struct loop *l, struct err *err)
{
    l->stop = false;
    while (!l->stop)
        if (loop_step(l, -1, err) < 0)
            return -1;
    return 0;
}
