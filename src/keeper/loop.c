/* loop.c - keeper's own small loop: one epoll set, one timer. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "keeper/keeper-int.h"
#include "os/term.h"

enum { EVENTS = 64 };

uint64_t keeper_now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int keeper_watch(struct keeper *k, int fd, uint32_t events, enum event_kind kind, uint32_t gen, uint32_t index)
{
    struct epoll_event ev = {.events = events};
    ev.data.u64 = (uint64_t)kind << 56 | (uint64_t)(gen & 0xffffff) << 32 | index;
    return epoll_ctl(k->epoll, EPOLL_CTL_ADD, fd, &ev);
}

/* A child that is being made holds copies of our descriptors for a moment. Without EPOLL_CTL_DEL the closed one would
 * stay in the set and report its end again and again. */
void keeper_settle(struct keeper *k, struct entry *e)
{
    if (e->sandbox.sync >= 0)
        (void)epoll_ctl(k->epoll, EPOLL_CTL_DEL, e->sandbox.sync, NULL);
    wall_sandbox_settle(&e->sandbox);
}

/* The one timer stands at the earliest moment anything is due. */
void keeper_wake_at(struct keeper *k, uint64_t at_ms)
{
    if (k->timer_at && k->timer_at <= at_ms)
        return;
    struct itimerspec t = {.it_value = {.tv_sec = (time_t)(at_ms / 1000), .tv_nsec = (long)(at_ms % 1000) * 1000000}};
    if (t.it_value.tv_sec == 0 && t.it_value.tv_nsec == 0)
        t.it_value.tv_nsec = 1;
    k->timer_at = at_ms;
    (void)timerfd_settime(k->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

void keeper_wake_in_us(struct keeper *k, uint32_t us)
{
    struct itimerspec t = {.it_value = {.tv_nsec = (long)us * 1000}};
    uint64_t now = keeper_now_ms();
    if (k->timer_at && k->timer_at <= now)
        return; /* about to expire: putting it off again and again would never let it expire */
    k->timer_at = now;
    (void)timerfd_settime(k->timer, 0, &t, NULL);
}

static void loop_run_due(struct keeper *k)
{
    uint64_t now = keeper_now_ms(), next = UINT64_MAX;
    k->timer_at = 0;
    for (uint32_t i = 0; i < k->nentries; i++) {
        struct entry *e = &k->entries[i];
        if (e->life == LIFE_LIVE && e->deadline_ms <= now)
            end_begin(k, e, KEEPER_DIED_TTL);
        if (e->life == LIFE_STARTING && entry_start_end(e) <= now)
            create_sync(k, e);
        uint64_t at = e->life == LIFE_LIVE       ? e->deadline_ms
                      : e->life == LIFE_STARTING ? entry_start_end(e)
                                                 : UINT64_MAX;
        if (at < next)
            next = at;
    }
    const uint64_t again[] = {end_tick(k), pool_tick(k), attach_tick(k), freeze_tick(k), checks_tick(k), limit_tick(k)};
    for (size_t i = 0; i < ARRAY_LEN(again); i++)
        next = again[i] < next ? again[i] : next;
    if (next != UINT64_MAX)
        keeper_wake_at(k, next);
}

static void entry_event(struct keeper *k, enum event_kind kind, uint32_t gen, uint32_t index)
{
    struct entry *e = &k->entries[index];
    if (e->gen != gen || e->life == LIFE_NONE)
        return;
    if (kind == EVENT_SYNC && e->life == LIFE_STARTING)
        create_sync(k, e);
    else if (kind == EVENT_PIDFD)
        end_pidfd(k, e);
    else if (kind == EVENT_HOLDER)
        (void)freeze_tick(k);
}

static void keeper_dispatch_event(struct keeper *k, const struct epoll_event *ev)
{
    enum event_kind kind = (enum event_kind)(ev->data.u64 >> 56);
    uint32_t gen = (uint32_t)(ev->data.u64 >> 32) & 0xffffff, index = (uint32_t)ev->data.u64;
    uint64_t ticks;
    switch (kind) {
    case EVENT_LISTENER:
        asker_accept(k);
        break;
    case EVENT_TIMER:
        (void)read(k->timer, &ticks, sizeof ticks);
        loop_run_due(k);
        break;
    case EVENT_CONN:
        if (k->conns[index].channel.fd >= 0 && (k->conns[index].gen & 0xffffff) == gen)
            asker_event(k, index, ev->events);
        break;
    case EVENT_POOL:
        pool_event(k, ev->events);
        break;
    case EVENT_CHECK:
        checks_event(k, index);
        break;
    case EVENT_EGRESS:
        attach_event(k, ev->events);
        break;
    default:
        entry_event(k, kind, gen, index);
        break;
    }
}

static int loop_begin(struct keeper *k, struct err *err)
{
    k->epoll = epoll_create1(EPOLL_CLOEXEC);
    k->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (k->epoll < 0 || k->timer < 0 || keeper_watch(k, KEEPER_FD_SOCKET, EPOLLIN, EVENT_LISTENER, 0, 0) < 0 ||
        keeper_watch(k, k->timer, EPOLLIN, EVENT_TIMER, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "watch keeper's socket");
    asker_begin(k);
    k->journal = journal_open(KEEPER_FD_RUN, err);
    if (k->journal < 0)
        return -1;
    k->ranges = -1;
    if (!k->common->world.rootless && (k->ranges = claims_open(err)) < 0)
        return -1;
    attach_begin(k);
    if (pool_start(k, err) < 0 || adopt_all(k, err) < 0)
        return -1;
    if (k->nlive + k->nending == 0) {
        trust_sweep();
        root_sweep_tools();
    }
    keeper_wake_at(k, keeper_now_ms()); /* egress is told of those that live */
    return 0;
}

int keeper_run(const struct keeper_config *c, struct err *err)
{
    static struct keeper_common common;
    if (setup_process(c, err) < 0 || setup_common(c, &common, err) < 0)
        return -1;
    struct keeper *k =
        mmap(NULL, sizeof *k, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (k == MAP_FAILED || madvise(k, sizeof *k, MADV_DONTFORK) < 0)
        return err_set(err, ERR_INTERNAL, errno, "map keeper's tables");
    k->config = c;
    k->common = &common;
    log_open("keeper", LOG_LEVEL_INFO, STDERR_FILENO);
    if (loop_begin(k, err) < 0)
        return -1;
    sigset_t waiting;
    term_hold(&waiting);
    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_pwait(k->epoll, events, EVENTS, -1, &waiting);
        if (term_came()) { /* sandboxes live on */
            freeze_leave(k);
            cgroup_group_leave(&common.cgroups);
            return 0;
        }
        if (n < 0 && errno != EINTR)
            return err_set(err, ERR_INTERNAL, errno, "wait for requests");
        for (int i = 0; i < n; i++)
            keeper_dispatch_event(k, &events[i]);
        if (k->paused && k->nstarting - k->nchecking <= KEEPER_STARTING_RESUME)
            asker_pause(k, false);
    }
}
