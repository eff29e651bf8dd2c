/* h2up.c - see h2up.h: reads and writes the bytes of a connection from the loop. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "egress/h2up-int.h"

enum { READ_BUFFER = 64 * 1024, READ_BUDGET = 4, BATCH = 64 * 1024, VECTORS = 16 };

static void h2up_settle(void *arg);

void h2up_wake(struct h2up *u)
{
    if (u->busy || u->dead)
        return;
    u->busy = true;
    loop_defer(u->loop, h2up_settle, u);
}

/* ---- bytes ---- */

static void h2up_write_out(struct h2up *u)
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

/* Makes frames only as fast as the kernel takes them; other bytes wait in the streams' own queues. */
static void h2up_pump(struct h2up *u)
{
    h2up_write_out(u);
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
        h2up_write_out(u);
    }
}

static void h2up_read_some(struct h2up *u)
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
        explicit_bzero(buffer, (size_t)n); /* all sandboxes share it, and a server may have echoed a secret */
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

static void h2up_release(void *arg)
{
    struct h2up *u = arg;
    while (u->streams)
        h2up_stream_free(u->streams);
    nghttp2_session_del(u->session);
    free(u);
}

/* Ends the connection and tells its requests; memory stays until h2up_free(). */
static void h2up_lose(struct h2up *u)
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

/* Frees streams that are dropped and that nghttp2 has forgotten. */
static void h2up_sweep(struct h2up *u)
{
    for (struct h2up_stream *s = u->streams, *next; s; s = next) {
        next = s->next;
        if (s->dropped && s->closed)
            h2up_stream_free(s);
    }
}

static void h2up_watch(struct h2up *u)
{
    unsigned events = u->t->ops->wants_read(u->t) | (u->out.n > 0 ? u->t->ops->wants_write(u->t) : 0);
    if (events != u->watched)
        loop_fd_set(u->loop, u->watch, events);
    u->watched = events;
}

static void h2up_settle(void *arg)
{
    struct h2up *u = arg;
    u->busy = true; /* callbacks need not wake us: their effects are handled below */
    if (!u->dead && u->t->ops->pending(u->t))
        h2up_read_some(u);
    for (struct h2up_stream *s = u->streams; s && !u->dead; s = s->next)
        h2up_stream_settle(s);
    if (!u->dead)
        h2up_pump(u);
    u->busy = false;
    for (struct h2up_stream *s = u->streams; s && !u->dead; s = s->next)
        h2up_stream_writable(s);
    if (u->dead)
        return;
    h2up_sweep(u);
    /* The peer closed while requests are paused: deliver what it sent before closing. */
    bool held = false;
    for (const struct h2up_stream *s = u->streams; s && u->broken; s = s->next)
        held |= !s->dropped && s->paused && s->eof;
    /* nghttp2 stops reading when the peer broke the protocol. */
    bool over = u->out.n == 0 && ((u->leaving && u->nstreams == 0) || !nghttp2_session_want_read(u->session));
    if ((u->broken && !held) || over) {
        h2up_lose(u);
        return;
    }
    if (u->broken) {
        loop_fd_set(u->loop, u->watch, 0);
        u->watched = 0;
        return;
    }
    if (u->t->ops->pending(u->t))
        h2up_wake(u);
    h2up_watch(u);
}

static void h2up_on_event(void *arg, int fd, unsigned events)
{
    struct h2up *u = arg;
    bool later = u->busy; /* a settle is due anyway */
    (void)fd;
    u->busy = true;
    u->blocked = false;
    if (events & (LOOP_IN | LOOP_RDHUP | LOOP_HUP))
        h2up_read_some(u);
    if (!later && !u->dead)
        h2up_settle(u);
}

struct h2up *h2up_new(struct loop *l, struct transport *t, void (*gone)(void *arg), void *arg)
{
    struct h2up *u = xcalloc(1, sizeof *u);
    *u = (struct h2up){.loop = l, .t = t, .gone = gone, .arg = arg, .watched = LOOP_IN};
    u->watch = h2up_make_session(u) == 0 ? loop_fd_add(l, t->fd, LOOP_IN, h2up_on_event, u) : 0;
    if (u->watch == 0) {
        nghttp2_session_del(u->session);
        t->ops->free(t);
        free(u);
        return NULL;
    }
    h2up_wake(u); /* sends our settings, and reads what TLS has buffered */
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
    loop_defer(u->loop, h2up_release, u); /* after a scheduled h2up_settle() and after our callers on the stack */
}

size_t h2up_streams(const struct h2up *u) { return u->nstreams; }

bool h2up_usable(const struct h2up *u)
{
    if (u->dead || u->broken || u->leaving || u->nstreams >= H2UP_STREAMS ||
        !nghttp2_session_check_request_allowed(u->session))
        return false;
    return u->nstreams < nghttp2_session_get_remote_settings(u->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
}
