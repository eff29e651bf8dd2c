/* worker.c - helper processes, seen from init: a short-lived one per file request or dial, a long-lived one per watch
 * or upload. They may block, die or lie about their own request only; init forwards their answers and answers for dead
 * ones. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "init/init-int.h"
#include "init/work.h"

enum { TABLE = WORKERS_TABLE };

/* Each kind of helper has its own limit, so that long-lived ones do not keep others out. */
static const struct group {
    unsigned max;
    const char *name;
} group_work = {INIT_WORKERS_MAX, "file requests"}, group_watch = {INIT_WATCHES_MAX, "watches"},
  group_receive = {INIT_RECEIVERS_MAX, "uploads"};

static const struct group *group_of(uint32_t type)
{
    return type == INIT_WATCH ? &group_watch : type == INIT_CREATE ? &group_receive : &group_work;
}

static uint64_t worker_time_limit(const struct init_request *r)
{
    if (r->root.path)
        return 10 * 60 * 1000; /* the whole tree of a volume may go */
    switch (r->type) {
    case INIT_DIAL:
        return 5000;
    case INIT_LIST_DIR:
    case INIT_REMOVE:
    case INIT_MOVE:
    case INIT_COMPOSE:
    case INIT_OPEN: /* may go on to feed a pipe */
        return 60000;
    default:
        return 10000;
    }
}

static struct worker *worker_new(struct init *g, const struct group *group)
{
    unsigned n = 0;
    struct worker *spare = NULL;
    for (uint32_t i = 0; i < TABLE; i++) {
        struct worker *w = &g->worker[i];
        if (w->pid == 0)
            spare = w;
        else if (group_of(w->type) == group)
            n++;
    }
    return n < group->max ? spare : NULL;
}

static bool worker_listen(struct init *g, struct worker *w, bool on)
{
    if (w->watched == on)
        return true;
    if (!on)
        init_unwatch(g, w->sock);
    else if (init_watch(g, w->sock, EPOLLIN, KIND_WORKER, (uint32_t)(w - g->worker), w->gen) < 0)
        return false;
    w->watched = on;
    return true;
}

void worker_start(struct init *g, const struct asker *who, const struct init_request *r)
{
    char text[INIT_TEXT_MAX];
    int pair[2];
    const struct group *group = group_of(r->type);
    struct worker *w = worker_new(g, group);
    if (!w) {
        (void)snprintf(text, sizeof text, "more than %u %s at once in this sandbox", group->max, group->name);
        (void)conn_reply(g, who, INIT_LIMIT, text);
        return;
    }
    int eno = 0;
    pid_t pid = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        eno = errno;
    } else {
        /* A receiver may fill the memory, so it is the first to be killed for it. */
        pid = r->type == INIT_CREATE ? init_fork(g, RECEIVER_SCORE) : _Fork();
        if (pid == 0)
            work_main(g, r, pair[1]);
        eno = pid < 0 ? errno : 0;
        (void)close(pair[1]);
        if (pid < 0)
            (void)close(pair[0]);
    }
    if (pid < 0) {
        (void)snprintf(text, sizeof text, "cannot start a helper: %s%s", strerror(eno),
                       eno == EAGAIN ? " (the sandbox's limit on processes is reached)" : "");
        (void)conn_reply(g, who, eno == EAGAIN || eno == EMFILE ? INIT_LIMIT : INIT_IO, text);
        return;
    }
    uint32_t gen = w->gen + 1;
    *w = (struct worker){.pid = pid, .gen = gen, .type = r->type, .sock = pair[0], .who = *who};
    w->deadline_ms = init_clock_ms() + worker_time_limit(r);
    (void)fcntl(w->sock, F_SETFL, O_NONBLOCK);
    if (!worker_listen(g, w, true))
        (void)kill(pid, SIGKILL);
}

static void worker_free(struct init *g, struct worker *w)
{
    (void)worker_listen(g, w, false);
    (void)close(TAKE_FD(w->sock));
    w->pid = 0;
}

/* Whether this helper may send this message. */
static bool message_ok(const struct worker *w, const struct init_head *h, size_t n, size_t nfds)
{
    if (n < sizeof *h || h->version != INIT_VERSION || h->request != w->who.request)
        return false;
    if (h->flags & INIT_F_MEMFD ? nfds != 1 || n != sizeof *h : h->length != n - sizeof *h)
        return false;
    if (h->type == INIT_REPLY)
        return !w->replied;
    if (h->type == INIT_WATCH_SETTLED)
        return w->type == INIT_WATCH && n == sizeof *h + sizeof w->told_turn && nfds == 0;
    return w->type == INIT_WATCH && w->replied && (h->type == INIT_WATCH_EVENT || h->type == INIT_WATCH_FAILED);
}

static void worker_stop(struct worker *w)
{
    if (!w->dead)
        (void)kill(w->pid, SIGKILL);
}

static void worker_pass_on(struct init *g, struct worker *w, struct conn *c)
{
    int fd = -1;
    size_t nfds = 1;
    struct init_head h = {0};
    ssize_t n = fd_recv(w->sock, g->out, sizeof g->out, &fd, &nfds);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) { /* the end, or more than it may send */
        (void)worker_listen(g, w, false);
        worker_stop(w);
        if (w->dead && (w->replied || conn_reply(g, &w->who, INIT_IO, "the helper inside the sandbox was killed")))
            worker_free(g, w);
        return;
    }
    memcpy(&h, g->out, (size_t)n < sizeof h ? (size_t)n : sizeof h);
    if (!message_ok(w, &h, (size_t)n, nfds)) {
        worker_stop(w);
    } else if (h.type == INIT_WATCH_SETTLED) {
        memcpy(&w->told_turn, g->out + sizeof h, sizeof w->told_turn);
    } else {
        if (h.type == INIT_REPLY)
            w->replied = true;
        if (h.type == INIT_REPLY && (w->type == INIT_WATCH || w->type == INIT_CREATE))
            w->deadline_ms = 0;
        if (c && !w->closed && nfds)
            (void)conn_send_answer(g, c, &w->who, (size_t)n, fd);
        else if (c && !w->closed)
            (void)conn_send_message(g, c, g->out, (size_t)n, NULL, 0);
    }
    if (nfds)
        (void)close(fd);
}

void worker_event(struct init *g, uint32_t index, uint32_t gen)
{
    struct worker *w = &g->worker[index];
    if (w->pid == 0 || w->gen != gen)
        return;
    struct conn *c = conn_of(g, &w->who);
    if (c && conn_is_blocked(c))
        (void)worker_listen(g, w, false); /* worker_flush() comes back */
    else
        worker_pass_on(g, w, c);
}

void worker_reaped(struct init *g, pid_t pid)
{
    for (uint32_t i = 0; i < TABLE; i++)
        if (g->worker[i].pid == pid)
            g->worker[i].dead = true;
}

static void worker_flush_one(struct init *g, struct worker *w)
{
    struct conn *c = conn_of(g, &w->who);
    if (c && conn_is_blocked(c))
        return;
    if (w->timed_out && !w->replied)
        w->replied = conn_reply(g, &w->who, INIT_TIMEOUT, "the request took too long inside the sandbox");
    else if (w->dead)
        worker_pass_on(g, w, c); /* what it left, then its end */
    else
        (void)worker_listen(g, w, true);
}

void worker_flush(struct init *g)
{
    for (uint32_t i = 0; i < TABLE; i++)
        if (g->worker[i].pid != 0 && (g->worker[i].dead || g->worker[i].timed_out || !g->worker[i].watched))
            worker_flush_one(g, &g->worker[i]);
}

void worker_drop_conn(struct init *g, uint32_t conn, uint32_t gen)
{
    for (uint32_t i = 0; i < TABLE; i++) {
        struct worker *w = &g->worker[i];
        if (w->pid != 0 && w->type == INIT_WATCH && w->who.conn == conn && w->who.gen == gen)
            worker_stop(w);
    }
}

void worker_unwatch(struct init *g, const struct asker *who)
{
    conn_closed(g, who);
    for (uint32_t i = 0; i < TABLE; i++) {
        struct worker *w = &g->worker[i];
        if (w->pid != 0 && w->type == INIT_WATCH && w->who.conn == who->conn && w->who.gen == who->gen &&
            w->who.request == who->request) {
            w->replied = w->closed = true;
            worker_stop(w);
        }
    }
}

void worker_tick(struct init *g)
{
    for (uint32_t i = 0; i < TABLE; i++) {
        struct worker *w = &g->worker[i];
        if (w->pid == 0 || w->deadline_ms == 0 || g->now_ms < w->deadline_ms)
            continue;
        w->deadline_ms = 0;
        w->timed_out = true;
        worker_stop(w);
    }
}

uint64_t worker_deadline(const struct init *g)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < TABLE; i++) {
        const struct worker *w = &g->worker[i];
        if (w->pid != 0 && w->deadline_ms != 0 && w->deadline_ms < at)
            at = w->deadline_ms;
        /* A dead helper with unsent messages, on a connection that has room. */
        if (w->pid != 0 && w->dead && !conn_is_blocked(&g->conn[w->who.conn]))
            return 0;
    }
    return at;
}
