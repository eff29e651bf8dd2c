/* loop.c - the daemon's main loop: accepts connections of front, reads requests, sends answers. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "layers/layers-int.h"
#include "layers/request.h"
#include "os/term.h"

enum { POLLS = 1 + LAYERS_CONNS + 2 * LAYERS_TASKS, AT_ONCE = 16 };

/* --- messages ----------------------------------------------------------------------------------------------------- */

struct message *layers_message(const struct layers_request *ask, enum layers_error error, const char *text)
{
    struct message *m = xcalloc(1, sizeof *m);
    m->n = sizeof m->m.reply;
    m->fd = -1;
    m->m.reply.version = LAYERS_VERSION;
    m->m.reply.type = LAYERS_REPLY;
    m->m.reply.request = ask->request;
    m->m.reply.error = (uint32_t)error;
    (void)snprintf(m->m.reply.text, sizeof m->m.reply.text, "%s", text);
    return m;
}

void layers_message_free(struct message *m)
{
    if (m && m->fd >= 0)
        (void)close(m->fd);
    free(m);
}

static void loop_close_conn(struct layers *s, int index)
{
    struct layers_conn *c = &s->conns[index];
    if (c->fd < 0)
        return;
    (void)close(c->fd);
    layers_message_free(c->out);
    *c = (struct layers_conn){.fd = -1};
    task_conn_gone(s, index);
}

bool layers_send(struct layers *s, int conn, struct message *m)
{
    struct layers_conn *c = conn < 0 ? NULL : &s->conns[conn];
    if (!c || c->fd < 0) {
        layers_message_free(m);
        return true;
    }
    if (fd_send(c->fd, &m->m, m->n, &m->fd, m->fd >= 0 ? 1 : 0) < 0) {
        if (errno == EAGAIN || errno == ENOBUFS) {
            c->full = true;
            return false;
        }
        /* poll() reports the end, and loop_close_conn() then ends its tasks. */
        (void)shutdown(c->fd, SHUT_RDWR);
    }
    layers_message_free(m);
    return true;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void loop_answer(struct layers *s, int conn, const struct layers_request *q, enum layers_error error,
                        const char *text)
{
    struct message *m = layers_message(q, error, text);
    if (!layers_send(s, conn, m))
        s->conns[conn].out = m;
}

static void loop_close_fds(const int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)close(fds[i]);
}

static void loop_handle_request(struct layers *s, int conn, const void *p, size_t n, const int *fds, size_t nfds)
{
    struct layers_request q;
    struct err err = {0};
    if (layers_request_parse(p, n, nfds, &q, &err) < 0) {
        loop_close_fds(fds, nfds);
        loop_answer(s, conn, &q, LAYERS_BAD_REQUEST, err.msg);
        return;
    }
    if (q.type == LAYERS_CANCEL) {
        bool found = task_cancel(s, conn, q.cancel);
        loop_answer(s, conn, &q, found ? LAYERS_OK : LAYERS_NOT_FOUND, found ? "" : "no such request is under way");
        return;
    }
    if (q.type == LAYERS_DROP || q.type == LAYERS_FLATTEN)
        periodic_soon(s);
    if (!task_new(s, conn, &q, fds, nfds)) {
        loop_close_fds(fds, nfds);
        loop_answer(s, conn, &q, LAYERS_BUSY, "as many jobs as the store does at once are under way or waiting");
    }
}

static void loop_read_conn(struct layers *s, int conn)
{
    static union {
        struct layers_request request;
        char room[sizeof(struct layers_request) + 1];
    } m;
    struct layers_conn *c = &s->conns[conn];
    for (int i = 0; i < AT_ONCE && c->fd >= 0 && !c->out; i++) {
        int fds[LAYERS_FDS_MAX];
        size_t nfds = LAYERS_FDS_MAX;
        ssize_t n = fd_recv(c->fd, &m, sizeof m, fds, &nfds);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            loop_close_conn(s, conn);
            return;
        }
        loop_handle_request(s, conn, &m, (size_t)n, fds, nfds);
    }
}

static void loop_on_conn_event(struct layers *s, int conn, short events)
{
    struct layers_conn *c = &s->conns[conn];
    if (events & (POLLOUT | POLLERR | POLLHUP))
        c->full = false;
    if (c->out && !c->full) {
        struct message *m = TAKE_PTR(c->out);
        if (!layers_send(s, conn, m))
            c->out = m;
    }
    if (events & POLLIN)
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
            s->conns[i] = (struct layers_conn){.fd = fd};
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
        const struct layers_conn *c = &s->conns[i];
        if (c->fd >= 0)
            loop_poll_add(p, c->fd, (short)((c->out ? 0 : POLLIN) | (c->full ? POLLOUT : 0)), i);
    }
    for (int i = 0; i < LAYERS_TASKS; i++) {
        const struct task *t = &s->tasks[i];
        if (t->state != TASK_RUNNING && t->state != TASK_CLEANING)
            continue;
        if (!t->ended)
            loop_poll_add(p, t->pidfd, POLLIN, LAYERS_CONNS + 2 * i + 1);
        if (t->sock >= 0 && !t->drained && !t->out)
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
        s.conns[i].fd = -1;
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
