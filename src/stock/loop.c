/* loop.c - the daemon: connections of front, requests in, answers out. */
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
#include "os/term.h"
#include "stock/request.h"
#include "stock/stock-int.h"

enum { POLLS = 1 + STOCK_CONNS + 2 * STOCK_TASKS, AT_ONCE = 16 };

/* --- messages ----------------------------------------------------------------------------------------------------- */

struct message *stock_message(const struct stock_request *ask, enum stock_error error, const char *text)
{
    struct message *m = xcalloc(1, sizeof *m);
    m->n = sizeof m->m.reply;
    m->fd = -1;
    m->m.reply.version = STOCK_VERSION;
    m->m.reply.type = STOCK_REPLY;
    m->m.reply.request = ask->request;
    m->m.reply.error = (uint32_t)error;
    (void)snprintf(m->m.reply.text, sizeof m->m.reply.text, "%s", text);
    return m;
}

void stock_message_free(struct message *m)
{
    if (m && m->fd >= 0)
        (void)close(m->fd);
    free(m);
}

static void conn_close(struct stock *s, int index)
{
    struct stock_conn *c = &s->conns[index];
    if (c->fd < 0)
        return;
    (void)close(c->fd);
    stock_message_free(c->out);
    *c = (struct stock_conn){.fd = -1};
    task_conn_gone(s, index);
}

bool stock_send(struct stock *s, int conn, struct message *m)
{
    struct stock_conn *c = conn < 0 ? NULL : &s->conns[conn];
    if (!c || c->fd < 0) {
        stock_message_free(m);
        return true;
    }
    if (fd_send(c->fd, &m->m, m->n, &m->fd, m->fd >= 0 ? 1 : 0) < 0) {
        if (errno == EAGAIN || errno == ENOBUFS) {
            c->full = true;
            return false;
        }
        /* Its end comes by poll(), where its tasks are told. */
        (void)shutdown(c->fd, SHUT_RDWR);
    }
    stock_message_free(m);
    return true;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void answer(struct stock *s, int conn, const struct stock_request *q, enum stock_error error, const char *text)
{
    struct message *m = stock_message(q, error, text);
    if (!stock_send(s, conn, m))
        s->conns[conn].out = m;
}

static void close_all(const int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)close(fds[i]);
}

static void handle(struct stock *s, int conn, const void *p, size_t n, const int *fds, size_t nfds)
{
    struct stock_request q;
    struct err err = {0};
    if (stock_request_parse(p, n, nfds, &q, &err) < 0) {
        close_all(fds, nfds);
        answer(s, conn, &q, STOCK_BAD_REQUEST, err.msg);
        return;
    }
    if (q.type == STOCK_CANCEL) {
        bool found = task_cancel(s, conn, q.cancel);
        answer(s, conn, &q, found ? STOCK_OK : STOCK_NOT_FOUND, found ? "" : "no such request is under way");
        return;
    }
    if (q.type == STOCK_DROP || q.type == STOCK_FLATTEN)
        periodic_soon(s);
    if (!task_new(s, conn, &q, fds, nfds)) {
        close_all(fds, nfds);
        answer(s, conn, &q, STOCK_BUSY, "as many jobs as the store does at once are under way or waiting");
    }
}

static void conn_read(struct stock *s, int conn)
{
    static union {
        struct stock_request request;
        char room[sizeof(struct stock_request) + 1];
    } m;
    struct stock_conn *c = &s->conns[conn];
    for (int i = 0; i < AT_ONCE && c->fd >= 0 && !c->out; i++) {
        int fds[STOCK_FDS_MAX];
        size_t nfds = STOCK_FDS_MAX;
        ssize_t n = fd_recv(c->fd, &m, sizeof m, fds, &nfds);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            conn_close(s, conn);
            return;
        }
        handle(s, conn, &m, (size_t)n, fds, nfds);
    }
}

static void conn_event(struct stock *s, int conn, short events)
{
    struct stock_conn *c = &s->conns[conn];
    if (events & (POLLOUT | POLLERR | POLLHUP))
        c->full = false;
    if (c->out && !c->full) {
        struct message *m = TAKE_PTR(c->out);
        if (!stock_send(s, conn, m))
            c->out = m;
    }
    if (events & POLLIN)
        conn_read(s, conn);
    else if (events & (POLLHUP | POLLERR))
        conn_close(s, conn);
}

static void accept_conn(struct stock *s)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    for (int i = 0; i < STOCK_CONNS; i++)
        if (s->conns[i].fd < 0) {
            s->conns[i] = (struct stock_conn){.fd = fd};
            return;
        }
    (void)close(fd);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

struct polled {
    struct pollfd fds[POLLS];
    int what[POLLS]; /* -1 listener; below STOCK_CONNS a connection; else a task: twice its index, plus one for its
                        process */
    nfds_t n;
};

static void add(struct polled *p, int fd, short events, int what)
{
    p->fds[p->n] = (struct pollfd){.fd = fd, .events = events};
    p->what[p->n++] = what;
}

static void collect(const struct stock *s, struct polled *p)
{
    p->n = 0;
    add(p, s->listener, POLLIN, -1);
    for (int i = 0; i < STOCK_CONNS; i++) {
        const struct stock_conn *c = &s->conns[i];
        if (c->fd >= 0)
            add(p, c->fd, (short)((c->out ? 0 : POLLIN) | (c->full ? POLLOUT : 0)), i);
    }
    for (int i = 0; i < STOCK_TASKS; i++) {
        const struct task *t = &s->tasks[i];
        if (t->state != TASK_RUNNING && t->state != TASK_CLEANING)
            continue;
        if (!t->ended)
            add(p, t->pidfd, POLLIN, STOCK_CONNS + 2 * i + 1);
        if (t->sock >= 0 && !t->drained && !t->out)
            add(p, t->sock, POLLIN, STOCK_CONNS + 2 * i);
    }
}

static void dispatch(struct stock *s, const struct polled *p)
{
    for (nfds_t i = 0; i < p->n; i++) {
        int what = p->what[i], task = (what - STOCK_CONNS) / 2;
        if (p->fds[i].revents == 0)
            continue;
        if (what < 0)
            accept_conn(s);
        else if (what < STOCK_CONNS) {
            if (s->conns[what].fd == p->fds[i].fd)
                conn_event(s, what, p->fds[i].revents);
        } else if ((what - STOCK_CONNS) & 1)
            task_reap(s, &s->tasks[task]);
        else
            task_read(s, &s->tasks[task]);
    }
}

int stock_run(const struct stock_config *c, struct err *err)
{
    static struct stock s;
    static struct polled p;
    sigset_t waiting;
    if (stock_setup(c, &s, err) < 0)
        return -1;
    for (int i = 0; i < STOCK_CONNS; i++)
        s.conns[i].fd = -1;
    term_hold(&waiting);
    task_sweep(&s);
    periodic_step(&s);
    for (;;) {
        collect(&s, &p);
        int wait = periodic_wait_ms(&s);
        const struct timespec due = {.tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1000000L};
        int n = ppoll(p.fds, p.n, &due, &waiting);
        if (term_came()) {
            tasks_stop(&s);
            return job_box_thaw_left(s.run, NULL, err);
        }
        if (n < 0 && errno != EINTR)
            return err_set(err, ERR_INTERNAL, errno, "wait for requests");
        if (n > 0)
            dispatch(&s, &p);
        periodic_step(&s);
        tasks_step(&s);
    }
}
