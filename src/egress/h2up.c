/* h2up.c - see h2up.h: the bytes of a connection, and its place in the loop. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "egress/h2up-int.h"

enum { READ_BUFFER = 64 * 1024, READ_BUDGET = 4, BATCH = 64 * 1024, VECTORS = 16 };

static void settle(void *arg);

void h2up_wake(struct h2up *u)
{
    if (u->busy || u->dead)
        return;
    u->busy = true;
    loop_defer(u->loop, settle, u);
}

/* ---- bytes ---- */

static void write_out(struct h2up *u)
{
    while (u->out.n > 0 && !u->blocked && !u->broken) {
        struct iovec v[VECTORS];
        int n = outq_vectors(&u->out, v, VECTORS);
        ssize_t sent = u->t->ops->writev(u->t, v, n);
        if (sent >= 0) {
            outq_drop(&u->out, (size_t)sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            u->blocked = true;
        } else if (errno != EINTR) {
            u->eno = errno;
            u->broken = true;
        }
    }
}

/* Frames are made only as fast as the kernel takes them; what waits, waits in the streams' own queues. */
static void pump(struct h2up *u)
{
    write_out(u);
    while (u->out.n == 0 && !u->broken) {
        const uint8_t *p;
        ssize_t n = 1;
        while (n > 0 && u->out.n < BATCH) {
            n = nghttp2_session_mem_send(u->session, &p);
            if (n > 0)
                outq_add(&u->out, p, (size_t)n);
        }
        if (n < 0)
            u->broken = true;
        if (u->out.n == 0)
            return;
        write_out(u);
    }
}

static void read_some(struct h2up *u)
{
    static _Thread_local uint8_t buffer[READ_BUFFER];
    for (int i = 0; i < READ_BUDGET && !u->broken && !u->dead; i++) {
        ssize_t n = u->t->ops->read(u->t, buffer, sizeof buffer);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return;
        if (n <= 0) {
            u->eno = n < 0 ? errno : 0;
            u->broken = true;
            return;
        }
        ssize_t used = nghttp2_session_mem_recv(u->session, buffer, (size_t)n);
        explicit_bzero(buffer, (size_t)n); /* it is everybody's, and a server may have echoed a secret */
        if (u->dead)
            return;
        if (used < 0) {
            u->broken = true;
            return;
        }
        if ((size_t)n < sizeof buffer && !u->t->ops->pending(u->t))
            return;
    }
}

/* ---- the loop ---- */

static void release(void *arg)
{
    struct h2up *u = arg;
    while (u->streams)
        h2up_stream_free(u->streams);
    nghttp2_session_del(u->session);
    free(u);
}

/* Ends the connection; memory stays until h2up_free(). */
static void lose(struct h2up *u)
{
    char text[160];
    if (u->dead)
        return;
    u->dead = true;
    loop_fd_del(u->loop, u->watch);
    u->t->ops->shutdown(u->t);
    u->t->ops->free(u->t);
    u->t = NULL;
    outq_done(&u->out);
    (void)snprintf(text, sizeof text, "the connection ended before the answer did%s%s", u->eno ? ": " : "",
                   u->eno ? strerror(u->eno) : "");
    for (struct h2up_stream *s = u->streams; s && !u->freed; s = s->next) {
        if (s->dropped)
            continue;
        if (s->closed && !s->eof)
            h2up_stream_fail(s, NULL);
        else if (s->eof && !s->paused && s->held.n == 0)
            h2up_stream_finish(s);
        else
            h2up_stream_fail(s, text);
    }
    if (!u->freed)
        u->gone(u->arg);
}

/* Streams that are dropped and unknown to nghttp2. */
static void sweep(struct h2up *u)
{
    for (struct h2up_stream *s = u->streams, *next; s; s = next) {
        next = s->next;
        if (s->dropped && s->closed)
            h2up_stream_free(s);
    }
}

static void watch(struct h2up *u)
{
    unsigned events = u->t->ops->wants_read(u->t) | (u->out.n > 0 ? u->t->ops->wants_write(u->t) : 0);
    if (events != u->watched)
        loop_fd_set(u->loop, u->watch, events);
    u->watched = events;
}

static void settle(void *arg)
{
    struct h2up *u = arg;
    u->busy = true; /* what callbacks do is seen below */
    if (!u->dead && u->t->ops->pending(u->t))
        read_some(u);
    for (struct h2up_stream *s = u->streams; s && !u->dead; s = s->next)
        h2up_stream_settle(s);
    if (!u->dead)
        pump(u);
    u->busy = false;
    for (struct h2up_stream *s = u->streams; s && !u->dead; s = s->next)
        h2up_stream_writable(s);
    if (u->dead)
        return;
    sweep(u);
    /* A peer that closes while streams are held back by a pause: what it sent is handed on first. */
    bool held = false;
    for (const struct h2up_stream *s = u->streams; s && u->broken; s = s->next)
        held |= !s->dropped && s->paused && s->eof;
    /* nghttp2 wants nothing any more once it has said that the peer broke the protocol. */
    bool over = u->out.n == 0 && ((u->leaving && u->nstreams == 0) || !nghttp2_session_want_read(u->session));
    if ((u->broken && !held) || over) {
        lose(u);
        return;
    }
    if (u->broken) {
        loop_fd_set(u->loop, u->watch, 0);
        u->watched = 0;
        return;
    }
    if (u->t->ops->pending(u->t))
        h2up_wake(u);
    watch(u);
}

static void on_event(void *arg, int fd, unsigned events)
{
    struct h2up *u = arg;
    bool later = u->busy; /* a settle is due anyway */
    (void)fd;
    u->busy = true;
    u->blocked = false;
    if (events & (LOOP_IN | LOOP_RDHUP | LOOP_HUP))
        read_some(u);
    if (!later && !u->dead)
        settle(u);
}

struct h2up *h2up_new(struct loop *l, struct transport *t, void (*gone)(void *arg), void *arg)
{
    struct h2up *u = xcalloc(1, sizeof *u);
    *u = (struct h2up){.loop = l, .t = t, .gone = gone, .arg = arg, .watched = LOOP_IN};
    u->watch = h2up_make_session(u) == 0 ? loop_fd_add(l, t->fd, LOOP_IN, on_event, u) : 0;
    if (u->watch == 0) {
        nghttp2_session_del(u->session);
        t->ops->free(t);
        free(u);
        return NULL;
    }
    h2up_wake(u); /* our settings, and what TLS has read already */
    return u;
}

void h2up_free(struct h2up *u)
{
    if (!u || u->freed)
        return;
    u->freed = true;
    if (!u->dead) {
        u->dead = true;
        loop_fd_del(u->loop, u->watch);
        u->t->ops->shutdown(u->t);
        u->t->ops->free(u->t);
        outq_done(&u->out);
    }
    loop_defer(u->loop, release, u); /* behind a settle() that may be due, and whatever is on the stack */
}

size_t h2up_streams(const struct h2up *u) { return u->nstreams; }

bool h2up_usable(const struct h2up *u)
{
    if (u->dead || u->broken || u->leaving || u->nstreams >= H2UP_STREAMS ||
        !nghttp2_session_check_request_allowed(u->session))
        return false;
    return u->nstreams < nghttp2_session_get_remote_settings(u->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
}
