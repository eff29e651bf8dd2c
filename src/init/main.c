/* main.c - the event loop of pid 1: connections, commands, helpers, dead children. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "init/init-int.h"

uint64_t init_clock_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* kind 8 bits, index 24, generation 32: recognises an event whose object was freed after epoll_wait() returned. */
int init_watch(struct init *g, int fd, uint32_t events, enum kind kind, uint32_t index, uint32_t gen)
{
    struct epoll_event e = {.events = events,
                            .data.u64 = (uint64_t)kind << 56 | (uint64_t)(index & 0xffffff) << 32 | gen};
    if (epoll_ctl(g->epoll, EPOLL_CTL_MOD, fd, &e) == 0)
        return 0;
    return epoll_ctl(g->epoll, EPOLL_CTL_ADD, fd, &e);
}

void init_unwatch(struct init *g, int fd) { (void)epoll_ctl(g->epoll, EPOLL_CTL_DEL, fd, NULL); }

/* A child inherits the score that init has while it forks; a process may always go back to the score it was given. */
pid_t init_fork(struct init *g, const char *score)
{
    if (g->args->score >= 0)
        (void)!pwrite(INIT_FD_SCORE, score, strlen(score), 0);
    pid_t pid = _Fork();
    int eno = errno;
    if (pid != 0 && g->nscore > 0)
        (void)!pwrite(INIT_FD_SCORE, g->score, g->nscore, 0);
    errno = eno;
    return pid;
}

void init_reap(struct init *g)
{
    int status;
    struct rusage usage;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &usage)) > 0;) {
        command_reaped(g, pid, status, &usage);
        worker_reaped(g, pid);
        relay_reaped(g, pid);
    }
}

static void init_dispatch(struct init *g, const struct epoll_event *e)
{
    uint32_t index = (uint32_t)(e->data.u64 >> 32) & 0xffffff, gen = (uint32_t)e->data.u64;
    struct signalfd_siginfo info;
    switch ((enum kind)(e->data.u64 >> 56)) {
    case KIND_LISTENER:
        conn_accept(g);
        break;
    case KIND_SYNC:
        life_sync_event(g);
        break;
    case KIND_SIGNAL:
        (void)!read(g->signals, &info, sizeof info);
        init_reap(g);
        break;
    case KIND_CONN:
        conn_event(g, index, gen, e->events);
        break;
    case KIND_STREAM:
        command_stream_event(g, index, gen);
        break;
    case KIND_REPORT:
        command_report_event(g, index, gen);
        break;
    case KIND_INPUT:
        input_event(g, index, gen);
        break;
    case KIND_NOTIFY:
        denied_event(g);
        break;
    case KIND_WORKER:
        worker_event(g, index, gen);
        break;
    }
}

static int next_timeout(const struct init *g)
{
    const uint64_t due[] = {command_deadline(g), worker_deadline(g), conn_deadline(g), relay_deadline(g)};
    uint64_t at = UINT64_MAX, now = init_clock_ms();
    for (size_t i = 0; i < sizeof due / sizeof due[0]; i++)
        at = due[i] < at ? due[i] : at;
    uint64_t life = life_wait_ms(g), wait = at == UINT64_MAX ? UINT64_MAX : at <= now ? 0 : at - now + 1;
    if (wait != UINT64_MAX && wait > 60000)
        wait = 60000;
    wait = life < wait ? life : wait;
    return wait == UINT64_MAX ? -1 : (int)wait;
}

static void init_loop(struct init *g) __attribute__((noreturn));
static void init_loop(struct init *g)
{
    struct epoll_event events[64];
    for (;;) {
        int n = epoll_wait(g->epoll, events, 64, next_timeout(g));
        g->now_ms = init_clock_ms();
        for (int i = 0; i < n; i++)
            init_dispatch(g, &events[i]);
        conn_tick(g);
        command_tick(g);
        worker_tick(g);
        relay_tick(g);
        life_tick(g);
        attach_flush(g);
        input_flush(g);
        worker_flush(g);
        settle_flush(g);
        if (g->stop)
            _exit(0); /* the kernel kills what is left inside */
    }
}

/* Closes all but the fixed descriptors. These are first moved away, because one may have the number of another. */
static int settle_fds(const struct init_args *a)
{
    enum { FIXED = INIT_FD_NEXT - INIT_FD_LISTENER };
    const int from[FIXED] = {a->listener,
                             a->sync,
                             a->oom,
                             a->score,
                             a->network ? a->network[0] : -1,
                             a->network ? a->network[1] : -1,
                             a->upper ? *a->upper : -1,
                             -1,
                             -1};
    int high[FIXED];
    for (int i = 0; i < FIXED; i++) {
        high[i] = from[i] < 0 ? -1 : fcntl(from[i], F_DUPFD_CLOEXEC, 64);
        if (from[i] >= 0 && high[i] < 0)
            return -1;
    }
    for (int i = 0; i < FIXED; i++)
        if (high[i] >= 0 ? dup3(high[i], INIT_FD_LISTENER + i, O_CLOEXEC) < 0 : (close(INIT_FD_LISTENER + i), false))
            return -1;
    (void)fd_close_range(INIT_FD_NEXT, ~0U, 0);
    (void)fd_close_range(0, 2, 0);
    for (int fd = 0; fd < 3; fd++) {
        int got = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (got < 0)
            got = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (got != fd)
            return -1;
    }
    /* Reserve the numbers for the descriptors that come with the commit. */
    return dup3(0, INIT_FD_LIFE, O_CLOEXEC) < 0 || dup3(0, INIT_FD_KEEPER, O_CLOEXEC) < 0 ? -1 : 0;
}

static int init_prepare(struct init *g)
{
    sigset_t child;
    uint32_t size = g->args->ring_size ? g->args->ring_size : INIT_RING_DEFAULT;
    if (size < INIT_RING_MIN || size > INIT_RING_MAX || (size & (size - 1)))
        return -1;
    g->ring_size = size;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    g->epoll = epoll_create1(EPOLL_CLOEXEC);
    g->notify = -1;
    g->signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (g->epoll < 0 || g->signals < 0 || fcntl(INIT_FD_LISTENER, F_SETFL, O_NONBLOCK) < 0)
        return -1;
    conn_begin(g);
    ssize_t n = g->args->score >= 0 ? pread(INIT_FD_SCORE, g->score, sizeof g->score, 0) : 0;
    g->nscore = n > 0 ? (size_t)n : 0;
    life_begin(g);
    if (init_watch(g, g->signals, EPOLLIN, KIND_SIGNAL, 0, 0) < 0 ||
        init_watch(g, INIT_FD_LISTENER, EPOLLIN, KIND_LISTENER, 0, 0) < 0)
        return -1;
    if (g->args->sync < 0) {
        g->committed = true;
        return 0;
    }
    const unsigned char ready = INIT_SYNC_READY;
    g->listens = true;
    if (fcntl(INIT_FD_SYNC, F_SETFL, O_NONBLOCK) < 0 || init_watch(g, INIT_FD_SYNC, EPOLLIN, KIND_SYNC, 0, 0) < 0)
        return -1;
    return send(INIT_FD_SYNC, &ready, 1, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

void init_main(const struct init_args *args)
{
    lock_begin();
    struct init *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g == MAP_FAILED || settle_fds(args) < 0)
        _exit(1);
    g->args = args;
    if (init_prepare(g) < 0)
        _exit(1);
    init_loop(g);
}
