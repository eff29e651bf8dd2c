/* loop.c - the daemon's main loop: accepts connections of front, reads requests, sends answers. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "layers/layers-int.h"
#include "os/term.h"

enum { POLLS = 1 + LAYERS_CONNS + 2 * LAYERS_TASKS, AT_ONCE = 16 };

/* --- messages ----------------------------------------------------------------------------------------------------- */

static const struct channel_limits loop_limits = {
    .message_max = CHANNEL_PACKET_MAX, .queue_max = 1 << 20, .fds_max = LAYERS_FDS_MAX};

static void loop_close_conn(struct layers *s, int index)
{
    channel_close(&s->conns[index]);
    task_conn_gone(s, index);
}

void layers_send(struct layers *s, int conn, const void *p, size_t n, int fd)
{
    struct channel *c = conn < 0 ? NULL : &s->conns[conn];
    /* poll() reports the end, and loop_close_conn() then ends its tasks. */
    if (c && c->fd >= 0 && channel_send(c, p, n, &fd, fd >= 0) < 0)
        (void)shutdown(c->fd, SHUT_RDWR);
}

static void loop_reply(struct layers *s, int conn, struct layers_reply *r, const char *text)
{
    r->type = LAYERS_REPLY;
    (void)snprintf(r->text, sizeof r->text, "%.*s", (int)sizeof r->text - 1, text);
    layers_send(s, conn, r, sizeof *r, -1);
}

void layers_answer(struct layers *s, int conn, uint64_t request, enum layers_error error, const char *text)
{
    loop_reply(s, conn, &(struct layers_reply){.version = LAYERS_VERSION, .request = request, .error = error}, text);
}

bool layers_waits(const struct layers *s, int conn) { return conn >= 0 && channel_waits(&s->conns[conn]); }

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* Takes the descriptors that it needs. */
static void loop_handle_request(struct layers *s, int conn, struct channel_message *m)
{
    struct layers_request q;
    struct err err = {0};
    if (layers_request_parse(m->p, m->n, m->nfds, &q, &err) < 0) {
        /* In the version of the request, so that a front of another installation understands it. */
        loop_reply(s, conn,
                   &(struct layers_reply){.version = q.version ? q.version : LAYERS_VERSION,
                                          .request = q.request,
                                          .error = LAYERS_BAD_REQUEST},
                   err.msg);
        return;
    }
    if (q.type == LAYERS_CANCEL) {
        bool found = task_cancel(s, conn, q.cancel);
        layers_answer(s, conn, q.request, found ? LAYERS_OK : LAYERS_NOT_FOUND,
                      found ? "" : "no such request is under way");
        return;
    }
    if (q.type == LAYERS_DROP || q.type == LAYERS_FLATTEN)
        periodic_soon(s);
    if (task_new(s, conn, &q, m->fds, m->nfds))
        m->nfds = 0;
    else
        layers_answer(s, conn, q.request, LAYERS_BUSY,
                      "as many jobs as the store does at once are under way or waiting");
}

static void loop_read_conn(struct layers *s, int conn)
{
    struct channel *c = &s->conns[conn];
    struct channel_message m;
    for (int i = 0; i < AT_ONCE && c->fd >= 0 && !channel_waits(c); i++) {
        enum channel_got got = channel_recv(c, &m);
        if (got == CHANNEL_NONE)
            return;
        if (got != CHANNEL_MESSAGE) {
            loop_close_conn(s, conn);
            return;
        }
        loop_handle_request(s, conn, &m);
        channel_message_done(&m);
    }
}

static void loop_on_conn_event(struct layers *s, int conn, short events)
{
    if (channel_flush(&s->conns[conn]) < 0)
        loop_close_conn(s, conn);
    else if (events & POLLIN)
        loop_read_conn(s, conn);
    else if (events & (POLLHUP | POLLERR))
        loop_close_conn(s, conn);
}

static void loop_accept_conn(struct layers *s)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    for (int i = 0; i < LAYERS_CONNS; i++)
        if (s->conns[i].fd < 0) {
            channel_open(&s->conns[i], fd);
            return;
        }
    (void)close(fd);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

struct polled {
    struct pollfd fds[POLLS];
    int what[POLLS]; /* -1 listener; below LAYERS_CONNS a connection; else a task: twice its index, plus one for its
                        process */
    nfds_t n;
};

static void loop_poll_add(struct polled *p, int fd, short events, int what)
{
    p->fds[p->n] = (struct pollfd){.fd = fd, .events = events};
    p->what[p->n++] = what;
}

static void loop_poll_collect(const struct layers *s, struct polled *p)
{
    p->n = 0;
    loop_poll_add(p, s->listener, POLLIN, -1);
    for (int i = 0; i < LAYERS_CONNS; i++) {
        const struct channel *c = &s->conns[i];
        if (c->fd >= 0)
            loop_poll_add(p, c->fd, channel_waits(c) ? POLLOUT : POLLIN, i);
    }
    for (int i = 0; i < LAYERS_TASKS; i++) {
        const struct task *t = &s->tasks[i];
        if (t->state != TASK_RUNNING && t->state != TASK_CLEANING)
            continue;
        if (!t->ended)
            loop_poll_add(p, t->pidfd, POLLIN, LAYERS_CONNS + 2 * i + 1);
        if (t->sock >= 0 && !t->drained && !layers_waits(s, t->conn))
            loop_poll_add(p, t->sock, POLLIN, LAYERS_CONNS + 2 * i);
    }
}

static void loop_dispatch(struct layers *s, const struct polled *p)
{
    for (nfds_t i = 0; i < p->n; i++) {
        int what = p->what[i], task = (what - LAYERS_CONNS) / 2;
        if (p->fds[i].revents == 0)
            continue;
        if (what < 0)
            loop_accept_conn(s);
        else if (what < LAYERS_CONNS) {
            if (s->conns[what].fd == p->fds[i].fd)
                loop_on_conn_event(s, what, p->fds[i].revents);
        } else if ((what - LAYERS_CONNS) & 1)
            task_reap(s, &s->tasks[task]);
        else
            task_read(s, &s->tasks[task]);
    }
}

int layers_run(const struct layers_config *c, struct err *err)
{
    static struct layers s;
    static struct polled p;
    sigset_t waiting;
    if (layers_setup(c, &s, err) < 0)
        return -1;
    for (int i = 0; i < LAYERS_CONNS; i++)
        channel_init(&s.conns[i], &loop_limits, NULL, NULL);
    term_hold(&waiting);
    task_sweep(&s);
    periodic_step(&s);
    for (;;) {
        loop_poll_collect(&s, &p);
        int wait = periodic_wait_ms(&s);
        const struct timespec due = {.tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1000000L};
        int n = ppoll(p.fds, p.n, &due, &waiting);
        if (term_came()) {
            tasks_stop(&s);
            return 0; /* keeper thaws what they held */
        }
        if (n < 0 && errno != EINTR)
            return err_set(err, ERR_INTERNAL, errno, "wait for requests");
        if (n > 0)
            loop_dispatch(&s, &p);
        periodic_step(&s);
        tasks_step(&s);
    }
}
