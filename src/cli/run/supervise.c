#include "cli/run/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "cli/run/term.h"
#include "os/procs.h"
#include "os/seccomp.h"

enum {
    TICK_MS = 20,      /* watcher of limits that the kernel does not enforce for us */
    GRACE_MS = 1000,   /* between SIGTERM and the end */
    KILL_MS = 5000,    /* deadline of the kill itself */
    DRAIN_MS = 2000,   /* for what is left in a terminal */
    NOTIFY_BURST = 64, /* notifications handled per turn of the loop */
    RELAY_CHUNK = 16384,
};

enum {
    FD_SIGNAL,
    FD_PID,
    FD_SOCK,
    FD_LISTENER,
    FD_TIMER,
    FD_OUT,
    FD_ERR,
    FD_COVERS,
    FD_EGRESS,
    FD_TERM,
    FD_MAX = FD_TERM + TERM_POLLFDS
};

/* One stream on its way from the command's pipe to our own stdout or stderr. */
struct relay {
    int from, to;
    size_t at, n; /* chunk[at..n) is still to be written */
    char *chunk;
};

struct loop {
    struct supervise *s;
    struct outcome *out;
    struct pollfd fds[FD_MAX];
    int listener, timer, signals;
    int input; /* shares its offset with the command's stdin */
    struct term term;
    struct relay relay[2];
    bool has_term, ending, done, frozen, was_frozen;
    uint64_t start_ns, deadline_ns, end_by_ns;
    enum end_cause cause; /* END_EXIT unless we ended it */
    int sent_signal;      /* passed on from outside */
};

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static const struct limit *limit_of(const struct loop *l, enum limit_id id) { return &l->s->policy->limits[id]; }

static void kill_all(struct loop *l)
{
    struct err ignored = {0};
    wall_kill(l->s->wall);
    if (l->s->cgroup && l->s->cgroup->nleaf > 0)
        (void)cgroup_kill(l->s->cgroup, KILL_MS, &ignored);
}

/* Ends the command because of a limit: politely first, for good after the grace time. */
static void end_command(struct loop *l, enum end_cause cause)
{
    if (l->ending)
        return;
    l->ending = true;
    l->cause = cause;
    l->end_by_ns = now_ns() + (uint64_t)GRACE_MS * 1000000U;
    if (wall_signal(l->s->wall, SIGTERM, true) < 0 || cause == END_OUTPUT || cause == END_OOM || cause == END_DENIALS)
        l->end_by_ns = 0;
    (void)wall_signal(l->s->wall, SIGCONT, true);
}

static void thaw(struct loop *l);

static void on_signal(struct loop *l)
{
    struct signalfd_siginfo si;
    while (read(l->signals, &si, sizeof si) == sizeof si) {
        int sig = (int)si.ssi_signo;
        bool from_terminal = si.ssi_code == SI_KERNEL;
        switch (sig) {
        case SIGCHLD:
            break;
        case SIGWINCH:
            if (l->has_term)
                term_resize(&l->term);
            else
                (void)wall_signal(l->s->wall, sig, true);
            break;
        case SIGCONT:
            if (l->has_term)
                term_resume(&l->term);
            thaw(l);
            (void)wall_signal(l->s->wall, SIGCONT, true);
            break;
        case SIGTSTP:
            (void)wall_signal(l->s->wall, SIGTSTP, true);
            (void)raise(SIGSTOP);
            break;
        default:
            if (l->has_term && sig == SIGHUP)
                term_hangup(&l->term);
            if (l->frozen) {
                thaw(l);
                end_command(l, END_DENIALS);
            }
            l->sent_signal = sig;
            (void)snprintf(l->out->sender, sizeof l->out->sender,
                           from_terminal ? "the terminal" : "pid %u (uid %u) outside, passed on", si.ssi_pid,
                           si.ssi_uid);
            (void)wall_signal(l->s->wall, sig, from_terminal);
        }
    }
}

static void on_message(struct loop *l)
{
    struct wall_msg m;
    int fds[WALL_MSG_FDS];
    struct err err = {0};
    int r = wall_receive(l->s->wall, &m, fds);
    if (r <= 0) {
        l->fds[FD_SOCK].fd = -1;
        return;
    }
    int fd = fds[0];
    if (m.type == WALL_MSG_COVERS && l->s->covers) {
        covers_take(l->s->covers, fds[0], fds[1]);
        return;
    }
    if (m.type == WALL_MSG_NETWORK && l->s->egress) {
        run_egress_attach(l->s->egress, fds);
        return;
    }
    if (m.type == WALL_MSG_LISTENER)
        denials_set_network(l->s->denials, TAKE_FD(fds[1]));
    if (fds[1] >= 0)
        (void)close(fds[1]);
    switch ((enum wall_msg_type)m.type) {
    case WALL_MSG_LISTENER:
        l->listener = fd;
        (void)seccomp_sync_wake(fd);
        break;
    case WALL_MSG_TTY:
        l->has_term = fd >= 0 && term_start(&l->term, 0, 1, fd, &err) == 0;
        (void)wall_release(l->s->wall);
        break;
    case WALL_MSG_INPUT:
        l->input = fd;
        break;
    case WALL_MSG_STOPPED:
        if (l->has_term) {
            term_suspend(&l->term);
            (void)wall_signal(l->s->wall, SIGCONT, true);
        }
        break;
    case WALL_MSG_VAULT:
        l->s->vault = fd;
        break;
    case WALL_MSG_COVERS:
    case WALL_MSG_NETWORK:
        if (fd >= 0)
            (void)close(fd);
        break;
    }
}

/* Contains the command and keeps the evidence: all processes stop where they are until the user decides. */
static void freeze(struct loop *l)
{
    struct err ignored = {0};
    l->was_frozen = l->frozen = true;
    if (!l->s->cgroup || cgroup_freeze(l->s->cgroup, true, CGROUP_FREEZE_MS, &ignored) < 0)
        (void)wall_signal(l->s->wall, SIGSTOP, true);
    fprintf(stderr, "hutch: frozen after %llu refusals (on_denial); kill -CONT %d lets it go on, kill %d ends it\n",
            (unsigned long long)denials_total(l->s->denials), (int)getpid(), (int)getpid());
}

static void thaw(struct loop *l)
{
    struct err ignored = {0};
    if (l->frozen && l->s->cgroup)
        (void)cgroup_freeze(l->s->cgroup, false, CGROUP_FREEZE_MS, &ignored);
    l->frozen = false;
}

static void on_notifications(struct loop *l)
{
    struct pollfd p = {.fd = l->listener, .events = POLLIN};
    for (int i = 0; i < NOTIFY_BURST && poll(&p, 1, 0) > 0 && (p.revents & POLLIN); i++)
        denials_notified(l->s->denials, l->listener, l->s->wall->pid);
    if (p.revents & (POLLHUP | POLLERR)) {
        (void)close(l->listener);
        l->listener = -1;
    }
    const struct policy *p0 = l->s->policy;
    if (p0->on_denial.after == 0 || denials_total(l->s->denials) < p0->on_denial.after || l->ending)
        return;
    if (p0->on_denial.action == DENIAL_KILL)
        end_command(l, END_DENIALS);
    else if (p0->on_denial.action == DENIAL_FREEZE && !l->was_frozen)
        freeze(l);
}

/* A cover that cannot be restored ends the command, unless enforcement is best-effort. */
static void on_covers(struct loop *l)
{
    bool lost = false;
    l->fds[FD_COVERS].fd = covers_turn(l->s->covers, &lost);
    if (!lost || l->ending || l->s->policy->enforcement == ENFORCE_BEST_EFFORT)
        return;
    l->ending = true;
    l->cause = END_COVER;
    kill_all(l); /* at once: it may be reading */
    covers_settle(l->s->covers);
}

/* Output is counted only when it is limited; then it comes through our pipe. At most one chunk per stream is in flight:
 * until it is written, nothing more is read, so a slow reader blocks only the command. */
static void on_output(struct loop *l, int i)
{
    struct relay *r = &l->relay[i];
    ssize_t n = read(r->from, r->chunk, RELAY_CHUNK);
    if (n <= 0) {
        (void)close(TAKE_FD(r->from));
        return;
    }
    uint64_t left = limit_of(l, LIMIT_OUTPUT)->value - l->out->output_bytes;
    bool over = (uint64_t)n > left;
    r->at = 0;
    r->n = over ? (size_t)left : (size_t)n;
    l->out->output_bytes += r->n;
    if (over)
        end_command(l, END_OUTPUT);
}

/* poll() said that PIPE_BUF bytes can be written without blocking. */
static void pass_output(struct loop *l, int i)
{
    struct relay *r = &l->relay[i];
    size_t want = r->n - r->at < PIPE_BUF ? r->n - r->at : PIPE_BUF;
    ssize_t n = write(r->to, r->chunk + r->at, want);
    if (n > 0) {
        r->at += (size_t)n;
    } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
        (void)close(TAKE_FD(r->from)); /* the reader is gone: the command gets EPIPE */
        r->at = r->n;
    }
}

static void on_tick(struct loop *l)
{
    uint64_t expired, now = now_ns();
    (void)!read(l->timer, &expired, sizeof expired);
    if (l->deadline_ns && now >= l->deadline_ns)
        end_command(l, END_DEADLINE);
    if (l->ending && now >= l->end_by_ns)
        kill_all(l);
    const struct limit *cpu = limit_of(l, LIMIT_CPU_TIME);
    if (cpu->set && l->s->cgroup) {
        struct cgroup_stat st = {0};
        cgroup_stat(l->s->cgroup, &st);
        if ((st.have & CGROUP_HAVE_CPU_TIME) && (st.user_us + st.system_us) / 1000 >= cpu->value)
            end_command(l, END_CPU_TIME);
    }
    if (l->s->watch_memory) {
        struct procs_usage u = {0};
        if (procs_usage(l->s->wall->pid, &u) == 0 && u.anon_bytes + u.shmem_bytes > limit_of(l, LIMIT_MEMORY)->value) {
            l->out->oom_seen = true;
            l->out->oom.count = 1;
            l->out->oom.last.kind = OOM_KILLED;
            l->out->oom.last.pid = u.biggest.pid;
            l->out->oom.last.anon_rss_kb = u.biggest.anon_bytes / 1024;
            (void)snprintf(l->out->oom.last.comm, sizeof l->out->oom.last.comm, "%s", u.biggest.comm);
            end_command(l, END_OOM);
        }
    }
}

/* The timer runs only while something is to be watched. */
static void arm(struct loop *l)
{
    bool watching = (limit_of(l, LIMIT_CPU_TIME)->set && l->s->cgroup) || l->s->watch_memory;
    uint64_t now = now_ns(), next = 0;
    if (watching)
        next = now + (uint64_t)TICK_MS * 1000000U;
    if (l->deadline_ns && !l->ending && (!next || l->deadline_ns < next))
        next = l->deadline_ns;
    if (l->ending)
        next = l->end_by_ns > now ? l->end_by_ns : now + 1000000U;
    struct itimerspec t = {.it_value = {.tv_sec = (time_t)(next / 1000000000U), .tv_nsec = (long)(next % 1000000000U)}};
    if (l->timer >= 0)
        (void)timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static void fill(struct loop *l)
{
    l->fds[FD_LISTENER] = (struct pollfd){.fd = l->listener, .events = POLLIN};
    for (int i = 0; i < TERM_POLLFDS; i++)
        l->fds[FD_TERM + i].fd = -1;
    if (l->has_term)
        term_pollfds(&l->term, &l->fds[FD_TERM]);
}

/* Nothing of the sandbox can act any more, but init itself is not quite gone: the kernel takes a while to undo its mounts.
 * A cgroup must be empty to be measured and removed, and a terminal is drained until init has let go of it. */
static bool over(const struct loop *l)
{
    const struct wall_shared *sh = l->s->wall->shared;
    return sh->finished && sh->alone && !l->s->cgroup && !l->s->spec->tty;
}

/* How long nothing needs to happen; -1 is for ever. */
static int wait_ms(const struct loop *l)
{
    int covers = l->s->covers ? covers_wait_ms(l->s->covers) : -1;
    return l->s->idle && (covers < 0 || covers > SUPERVISE_IDLE_MS) ? SUPERVISE_IDLE_MS : covers;
}

static void turn(struct loop *l)
{
    fill(l);
    for (int i = 0; i < 2; i++) {
        struct relay *r = &l->relay[i];
        bool full = r->at < r->n;
        l->fds[FD_OUT + i] = (struct pollfd){.fd = full ? r->to : r->from, .events = full ? POLLOUT : POLLIN};
    }
    if (poll(l->fds, FD_MAX, wait_ms(l)) < 0)
        return;
    if (l->s->idle && now_ns() - l->start_ns >= (uint64_t)SUPERVISE_IDLE_MS * 1000000U) {
        l->s->idle(l->s->idle_arg);
        l->s->idle = NULL;
    }
    if (l->fds[FD_SIGNAL].revents)
        on_signal(l);
    if (l->fds[FD_SOCK].fd >= 0 && l->fds[FD_SOCK].revents)
        on_message(l);
    if (l->listener >= 0 && l->fds[FD_LISTENER].revents)
        on_notifications(l);
    for (int i = 0; i < 2; i++)
        if (l->fds[FD_OUT + i].fd >= 0 && l->fds[FD_OUT + i].revents)
            (l->relay[i].at < l->relay[i].n ? pass_output : on_output)(l, i);
    if (l->has_term)
        term_handle(&l->term, &l->fds[FD_TERM]);
    if (l->has_term && l->term.hung_up && !l->ending) {
        (void)snprintf(l->out->sender, sizeof l->out->sender, "the terminal, which was closed");
        l->sent_signal = SIGHUP;
        end_command(l, END_SIGNAL);
    }
    if (l->fds[FD_EGRESS].fd >= 0 && l->fds[FD_EGRESS].revents && !run_egress_event(l->s->egress))
        l->fds[FD_EGRESS].fd = -1;
    if (l->s->covers && (l->fds[FD_COVERS].revents || covers_wait_ms(l->s->covers) == 0))
        on_covers(l);
    if (l->timer >= 0) {
        if (l->fds[FD_TIMER].revents)
            on_tick(l);
        arm(l);
    }
    l->done = l->fds[FD_PID].revents != 0 || over(l);
}

/* Passes on what the command wrote before it ended; gives up on a reader that does not read. */
static void drain_output(struct loop *l, int i)
{
    struct relay *r = &l->relay[i];
    uint64_t end = now_ns() + (uint64_t)DRAIN_MS * 1000000U;
    while (now_ns() < end) {
        bool full = r->at < r->n;
        struct pollfd p = {.fd = full ? r->to : r->from, .events = full ? POLLOUT : POLLIN};
        if (p.fd < 0 || (poll(&p, 1, full ? 100 : 0) <= 0 && !full))
            return;
        if (p.revents)
            (full ? pass_output : on_output)(l, i);
    }
}

/* Messages and output that were under way when init ended. */
static void drain(struct loop *l)
{
    struct pollfd p = {.fd = l->s->wall->sock, .events = POLLIN};
    while (l->fds[FD_SOCK].fd >= 0 && poll(&p, 1, 0) > 0 && (p.revents & POLLIN))
        on_message(l);
    for (int i = 0; i < 2; i++)
        drain_output(l, i);
    if (l->has_term) {
        term_drain(&l->term, DRAIN_MS);
        term_stop(&l->term);
    }
}

static void judge(struct loop *l, const struct wall_shared *sh)
{
    struct outcome *o = l->out;
    o->status = sh->status;
    o->exec_errno = sh->exec_errno;
    o->signal = sh->finished && WIFSIGNALED(sh->status) ? WTERMSIG(sh->status) : 0;
    o->cause = o->signal ? END_SIGNAL : END_EXIT;
    if (o->signal != l->sent_signal)
        o->sender[0] = '\0';
    if (!sh->finished)
        o->cause = END_UNKNOWN;
    if (l->ending)
        o->cause = l->cause;
    else if (sh->exec_errno)
        o->cause = END_NOT_RUN;
    else if (o->signal == SIGKILL && o->oom_seen)
        o->cause = END_OOM;
    switch (o->cause) {
    case END_EXIT:
        o->exit_code = WEXITSTATUS(sh->status);
        break;
    case END_SIGNAL:
        o->exit_code = 128 + (o->signal ? o->signal : SIGHUP);
        break;
    case END_NOT_RUN:
        o->exit_code = sh->exec_errno == ENOENT || sh->exec_errno == ENOTDIR ? 127 : 126;
        break;
    case END_UNKNOWN:
        o->exit_code = 128 + SIGKILL;
        break;
    default:
        o->exit_code = ERR_LIMIT;
    }
}

static void measure(struct loop *l, const struct wall_shared *sh)
{
    struct outcome *o = l->out;
    const struct rusage *u = &sh->usage;
    o->wall_us = (now_ns() - l->start_ns) / 1000;
    o->user_us = (uint64_t)u->ru_utime.tv_sec * 1000000U + (uint64_t)u->ru_utime.tv_usec;
    o->system_us = (uint64_t)u->ru_stime.tv_sec * 1000000U + (uint64_t)u->ru_stime.tv_usec;
    o->max_rss = (uint64_t)u->ru_maxrss * 1024;
    o->disk_full = sh->disk_full;
    o->inodes_full = sh->inodes_full;
    o->landlock_abi = sh->landlock_abi;
    for (int i = 0; i < STAGE_MAX; i++)
        o->stage_ns[i] = sh->at_ns[i];
    if (!l->s->cgroup)
        return;
    cgroup_stat(l->s->cgroup, &o->cg);
    if ((o->cg.have & CGROUP_HAVE_OOM_KILLS) && o->cg.oom_kills > 0) {
        o->oom_seen = true;
        if (l->s->oom_log >= 0)
            (void)oom_read(l->s->oom_log, l->s->cgroup->name, &o->oom);
    }
    if ((o->cg.have & CGROUP_HAVE_PIDS_HITS) && o->cg.pids_max_hits > 0)
        denials_limit(l->s->denials, LIMIT_PIDS, o->cg.pids_max_hits);
}

static void start(struct loop *l)
{
    for (int i = 0; i < FD_MAX; i++)
        l->fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    l->fds[FD_SIGNAL].fd = l->signals = signalfd(-1, l->s->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    l->fds[FD_PID].fd = l->s->wall->pidfd;
    l->fds[FD_SOCK].fd = l->s->wall->sock;
    l->fds[FD_EGRESS].fd = l->s->egress ? l->s->egress->control : -1;
    l->relay[0] = (struct relay){.from = l->s->out_pipe, .to = 1};
    l->relay[1] = (struct relay){.from = l->s->err_pipe, .to = 2};
    for (int i = 0; i < 2; i++)
        l->relay[i].chunk = l->relay[i].from >= 0 ? xmalloc(RELAY_CHUNK) : NULL;
    const struct limit *wall = limit_of(l, LIMIT_WALL_TIME);
    if (wall->set)
        l->deadline_ns = l->start_ns + wall->value * 1000000U;
    if (l->s->spec->tty || wall->set || limit_of(l, LIMIT_CPU_TIME)->set || l->s->watch_memory ||
        limit_of(l, LIMIT_OUTPUT)->set || l->s->policy->on_denial.after)
        l->fds[FD_TIMER].fd = l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    arm(l);
}

int supervise(struct supervise *s, struct outcome *ret, struct err *err)
{
    struct loop l = {.s = s, .out = ret, .listener = -1, .timer = -1, .signals = -1, .input = -1, .start_ns = now_ns()};
    if (s->wall->shared->given_ns)
        l.start_ns = s->wall->shared->given_ns;
    s->vault = -1;
    start(&l);
    while (!l.done)
        turn(&l);
    drain(&l);
    struct wall_shared last = *s->wall->shared;
    s->dying = over(&l);
    int r = s->dying ? 0 : wall_finish(s->wall, err);
    /* pid 1 is gone, and with it the namespace; the cgroup's last members may take a moment to be accounted. */
    if (s->cgroup && s->cgroup->nleaf > 0) {
        struct err ignored = {0};
        (void)cgroup_kill(s->cgroup, KILL_MS, &ignored);
    }
    measure(&l, &last);
    judge(&l, &last);
    for (int i = 0; i < 2; i++) {
        if (l.relay[i].from >= 0)
            (void)close(l.relay[i].from);
        free(l.relay[i].chunk);
    }
    if (l.input >= 0) {
        if (s->input >= 0)
            (void)lseek(s->input, lseek(l.input, 0, SEEK_CUR), SEEK_SET);
        (void)close(l.input);
    }
    if (l.listener >= 0)
        (void)close(l.listener);
    if (l.timer >= 0)
        (void)close(l.timer);
    if (l.signals >= 0)
        (void)close(l.signals);
    return r;
}
