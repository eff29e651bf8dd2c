#include "http/client.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/http1.h"
#include "http/outq.h"

enum {
    READ_BUFFER = 64 * 1024,
    READ_BUDGET = 4,        /* buffers per wake-up */
    SHORT_READ = 16 * 1024, /* a read below one TLS record: there is no more for now */
    INTERIM_MAX = 32,       /* 1xx answers before the final one */
    VECTORS = 16,
    CLOSE_MS = 30000, /* to send what is queued at client_close() */
};

enum state {
    IDLE,   /* between exchanges */
    HEAD,   /* the head of the answer is awaited */
    BODY,   /* its body */
    TUNNEL, /* no longer HTTP */
    OVER,   /* failed or not reusable: only freeing is left */
};

struct client {
    struct loop *loop;
    struct transport *t;
    loop_id watch;
    unsigned watched;
    enum state state;
    const struct client_events *events;
    void *arg;

    /* The request. */
    char method[16];
    enum http1_framing framing;
    uint64_t left; /* of its body, if HTTP1_LENGTH */
    struct outq out;
    struct buf trailers; /* as they will be sent */
    void (*on_trailer)(void *arg, const char *name, const char *value);
    struct buf came; /* trailers of the answer */
    bool upgrade;
    bool ended;      /* all of it was handed to us */
    bool blocked;    /* the kernel takes no more for now */
    bool over;       /* above high water: on_writable is owed */
    bool deaf;       /* writing failed; the peer may have answered before it closed */
    bool shut;       /* our direction of a tunnel is closed */
    bool sent;       /* the kernel has taken something */
    bool short_body; /* it ended before its announced length */

    /* The answer. */
    struct buf in; /* an incomplete head, or what came while paused */
    size_t scan;   /* of the search for the end of the head */
    unsigned interim;
    struct http1_body body;
    bool any; /* a byte of it has come */
    bool keep_alive;
    bool paused;
    bool eof;
    bool eof_told;

    bool shaken;   /* the handshake is done */
    bool settling; /* client_settle() will run before the loop waits again */
    bool closing;  /* to be freed once the queue is empty */
    bool freed;
    loop_id closer;
    int write_errno, read_errno;
};

static void client_settle(void *arg);

static void client_wake(struct client *c)
{
    if (c->settling || c->freed)
        return;
    c->settling = true;
    loop_defer(c->loop, client_settle, c);
}

/* ---- the end ---- */

static void client_release(void *arg)
{
    struct client *c = arg;
    outq_done(&c->out);
    buf_done(&c->trailers);
    buf_done(&c->came);
    buf_done(&c->in);
    free(c);
}

void client_free(struct client *c)
{
    static const struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (!c || c->freed)
        return;
    c->freed = true;
    /* In the middle of an exchange: reset the connection, so that the peer stops sending at once. */
    if (c->state == HEAD || c->state == BODY || (c->state == TUNNEL && !(c->eof && c->shut)))
        (void)setsockopt(c->t->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    loop_fd_del(c->loop, c->watch);
    loop_timer_del(c->loop, c->closer);
    c->t->ops->free(c->t);
    c->t = NULL;
    loop_defer(c->loop, client_release, c); /* after a client_settle() that may be due; callers still use c */
}

static void client_on_close_late(void *arg)
{
    struct client *c = arg;
    c->closer = 0;
    client_free(c);
}

void client_close(struct client *c)
{
    if (!c || c->freed || c->closing)
        return;
    if (c->out.n == 0 && (c->state != TUNNEL || c->shut)) {
        client_free(c);
        return;
    }
    c->closing = true;
    c->ended = true;
    c->paused = true;
    c->closer = loop_timer(c->loop, CLOSE_MS, client_on_close_late, c);
    client_wake(c);
}

static void client_fail(struct client *c, enum client_failure failure, const char *text)
{
    if (c->state == OVER || c->freed)
        return;
    bool told = c->state != IDLE && !c->closing;
    c->state = OVER;
    outq_done(&c->out);
    if (told)
        c->events->on_error(c->arg, failure, text);
}

static void client_fail_cut(struct client *c)
{
    _cleanup_buf_ struct buf text = {0};
    int eno = c->read_errno ? c->read_errno : c->write_errno;
    buf_adds(&text, c->any    ? "the answer was cut short"
                    : c->sent ? "the connection ended before an answer came"
                              : "the connection could not be made");
    if (eno)
        buf_addf(&text, ": %s", strerror(eno));
    client_fail(c, c->any ? CLIENT_BROKEN : c->sent ? CLIENT_UNANSWERED : CLIENT_UNREACHED, buf_str(&text));
}

/* The answer is complete. */
static void client_finish(struct client *c)
{
    bool whole = c->ended && c->out.n == 0 && !c->deaf;
    c->state = c->keep_alive && whole && !c->eof ? IDLE : OVER;
    outq_done(&c->out);
    c->over = false;
    c->events->on_end(c->arg);
}

/* ---- writing ---- */

static size_t client_writev(struct client *c, const struct iovec *v, int n)
{
    ssize_t sent;
    do
        sent = c->t->ops->writev(c->t, v, n);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        c->sent |= sent > 0;
        return (size_t)sent;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        c->blocked = true;
        return 0;
    }
    c->write_errno = errno;
    c->deaf = true;
    outq_done(&c->out);
    return 0;
}

static void client_flush(struct client *c)
{
    while (c->out.n > 0 && c->shaken && !c->blocked && !c->deaf) {
        struct iovec v[VECTORS];
        int n = outq_vectors(&c->out, v, VECTORS);
        size_t sent = client_writev(c, v, n);
        if (!c->deaf)
            outq_drop(&c->out, sent);
    }
    if (c->state == TUNNEL && c->ended && c->out.n == 0 && !c->shut) {
        c->shut = true;
        c->t->ops->shutdown(c->t);
    }
}

static void client_send_vector(struct client *c, const struct iovec *v, int n)
{
    size_t skip = 0;
    if (c->out.n == 0 && c->shaken && !c->blocked)
        skip = client_writev(c, v, n);
    for (int i = 0; i < n && !c->deaf; i++) {
        size_t some = skip < v[i].iov_len ? skip : v[i].iov_len;
        skip -= some;
        if (some < v[i].iov_len)
            outq_add(&c->out, (const char *)v[i].iov_base + some, v[i].iov_len - some);
    }
    if (c->out.n > 0 || c->deaf)
        client_wake(c);
}

bool client_write(struct client *c, const void *p, size_t n)
{
    if (c->freed || c->ended || c->state == IDLE || c->state == OVER)
        return true;
    if (c->state != TUNNEL && c->framing == HTTP1_LENGTH) {
        assert(n <= c->left);
        c->left -= n;
    }
    if (c->deaf)
        return true;
    char line[HTTP1_CHUNK_LINE];
    struct iovec v[3] = {{line, 0}, {(void *)(uintptr_t)p, n}, {(void *)(uintptr_t) "\r\n", 2}};
    if (c->state != TUNNEL && c->framing == HTTP1_CHUNKED && n > 0) {
        v[0].iov_len = http1_chunk_line(line, n);
        client_send_vector(c, v, 3);
    } else if (n > 0 && (c->state == TUNNEL || c->framing == HTTP1_LENGTH)) {
        client_send_vector(c, v + 1, 1);
    }
    c->over |= c->out.n > HTTP_HIGH_WATER;
    return !c->over;
}

void client_trailer(struct client *c, const char *name, const char *value)
{
    if (!c->freed && !c->ended && c->framing == HTTP1_CHUNKED)
        http1_add_field(&c->trailers, name, value);
}

void client_want_trailers(struct client *c, void (*fn)(void *arg, const char *name, const char *value))
{
    c->on_trailer = fn;
}

void client_end(struct client *c)
{
    if (c->freed || c->ended || c->state == IDLE || c->state == OVER)
        return;
    c->ended = true;
    if (c->state != TUNNEL && c->framing == HTTP1_CHUNKED && !c->deaf) {
        outq_add(&c->out, "0\r\n", 3);
        outq_add(&c->out, buf_str(&c->trailers), c->trailers.n);
        outq_add(&c->out, "\r\n", 2);
    }
    c->short_body = c->state != TUNNEL && c->framing == HTTP1_LENGTH && c->left > 0;
    client_wake(c);
}

/* ---- reading ---- */

/* A complete head stands in c->in. */
static void client_take_head(struct client *c)
{
    _cleanup_buf_ struct buf head = c->in;
    c->in = (struct buf){0};
    c->scan = 0;
    struct http1_head h;
    struct http1_bad bad;
    _cleanup_free_ struct http_field *fields = xcalloc(http1_count_fields(head.p, head.n) + 1, sizeof *fields);
    if (http1_parse_response(head.p, head.n, c->method, fields, &h, &bad) < 0) {
        client_fail(c, CLIENT_BROKEN, bad.why);
        return;
    }
    if (h.status / 100 == 1 && h.status != 101) {
        if (++c->interim > INTERIM_MAX)
            client_fail(c, CLIENT_BROKEN, "too many interim answers");
        return;
    }
    if (h.framing == HTTP1_TUNNEL && !c->upgrade) {
        client_fail(c, CLIENT_BROKEN, "switched protocols without being asked to");
        return;
    }
    c->keep_alive = h.keep_alive;
    http1_body_start(&c->body, &h);
    c->body.trailers = c->on_trailer ? &c->came : NULL;
    c->state = BODY;
    if (h.framing == HTTP1_TUNNEL) {
        c->state = TUNNEL;
        c->ended = false; /* our direction of the tunnel has an end of its own */
    }
    bool empty = c->body.done || (h.framing == HTTP1_LENGTH && h.length == 0);
    uint64_t length = strcmp(c->method, "HEAD") == 0 ? h.declared : h.framing == HTTP1_NONE ? 0 : h.length;
    c->events->on_head(c->arg, h.status, &h.fields, length);
    if (!c->freed && c->state == BODY && empty)
        client_finish(c);
}

/* Adds bytes to an incomplete head; returns how many belong to it. */
static size_t client_feed_head(struct client *c, const char *p, size_t n)
{
    size_t before = c->in.n;
    struct http1_bad bad;
    c->any = true;
    buf_add(&c->in, p, n);
    ssize_t end = http1_head_end(c->in.p, c->in.n, &c->scan, &bad);
    if (end < 0) {
        client_fail(c, CLIENT_BROKEN, bad.why);
        return n;
    }
    if (end == 0)
        return n;
    c->in.n = (size_t)end;
    client_take_head(c);
    return (size_t)end - before;
}

static void client_tell_trailers(struct client *c)
{
    struct buf came = c->came;
    const char *p = came.p, *end = p + came.n;
    c->came = (struct buf){0};
    while (p < end && !c->freed && c->state == BODY) {
        const char *name = p, *value = p + strlen(p) + 1;
        p = value + strlen(value) + 1;
        c->on_trailer(c->arg, name, value);
    }
    if (came.n > 0)
        explicit_bzero(came.p, came.n); /* a server may have echoed a secret */
    buf_done(&came);
}

static size_t client_feed_body(struct client *c, const char *p, size_t n)
{
    const char *run;
    size_t run_n;
    ssize_t used = http1_body_next(&c->body, p, n, &run, &run_n);
    if (used < 0) {
        client_fail(c, CLIENT_BROKEN, "the framing of the answer's body is broken");
        return n;
    }
    if (run_n > 0)
        c->events->on_data(c->arg, run, run_n);
    if (!c->freed && c->state == BODY && c->body.done) {
        client_tell_trailers(c);
        if (!c->freed && c->state == BODY)
            client_finish(c);
    }
    return (size_t)used;
}

/* Takes bytes of the answer; while paused, keeps them. */
static void client_feed(struct client *c, const char *p, size_t n)
{
    while (n > 0 && !c->freed) {
        size_t used = n;
        if (c->paused && (c->state == BODY || c->state == TUNNEL)) {
            buf_add(&c->in, p, n);
            return;
        }
        if (c->state == HEAD)
            used = client_feed_head(c, p, n);
        else if (c->state == BODY)
            used = client_feed_body(c, p, n);
        else if (c->state == TUNNEL)
            c->events->on_data(c->arg, p, n);
        else if (c->state == IDLE)
            c->state = OVER; /* bytes outside of an exchange */
        p += used;
        n -= used;
    }
}

/* The peer has closed its direction, and all bytes before that were taken. */
static void client_on_eof(struct client *c)
{
    c->eof_told = true;
    if (c->state == IDLE)
        c->state = OVER;
    else if (c->state == TUNNEL && c->read_errno == 0)
        c->events->on_end(c->arg);
    else if (c->state == BODY && c->body.framing == HTTP1_CLOSE && c->read_errno == 0)
        client_finish(c);
    else
        client_fail_cut(c);
}

static bool client_wants_input(const struct client *c)
{
    return !c->freed && c->shaken && !c->eof && c->state != OVER &&
           (!c->paused || c->state == HEAD || c->state == IDLE);
}

static void client_read(struct client *c)
{
    static _Thread_local char buffer[READ_BUFFER];
    for (int i = 0; i < READ_BUDGET && client_wants_input(c); i++) {
        ssize_t n;
        do
            n = c->t->ops->read(c->t, buffer, sizeof buffer);
        while (n < 0 && errno == EINTR);
        if (n > 0) {
            client_feed(c, buffer, (size_t)n);
            explicit_bzero(buffer, (size_t)n); /* all clients share it, and a server may have echoed a secret */
            if (n < SHORT_READ && c->state != IDLE && client_wants_input(c) && !c->t->ops->pending(c->t))
                return; /* the loop reports more; but after the last byte read on, to see an end */
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        c->read_errno = n < 0 ? errno : 0;
        c->eof = true;
        if (c->state == HEAD)
            buf_done(&c->in);
        if (c->in.n == 0)
            client_on_eof(c);
        return;
    }
    if (client_wants_input(c) && c->t->ops->pending(c->t))
        client_wake(c);
}

/* ---- the loop ---- */

static void client_set_watch(struct client *c)
{
    unsigned events = 0;
    if (c->freed)
        return;
    if (!c->shaken && c->state != OVER)
        events = c->t->ops->wants_read(c->t) | c->t->ops->wants_write(c->t);
    if (client_wants_input(c))
        events |= c->t->ops->wants_read(c->t);
    if (c->shaken && c->out.n > 0 && !c->deaf && c->state != OVER)
        events |= c->t->ops->wants_write(c->t);
    if (events != c->watched) {
        loop_fd_set(c->loop, c->watch, events);
        c->watched = events;
    }
}

static void client_handshake(struct client *c)
{
    int done = c->t->ops->handshake(c->t);
    if (done < 0)
        client_fail(c, CLIENT_UNREACHED, "the TLS handshake failed");
    c->shaken = done > 0;
}

/* Does what earlier calls (write, pause, resume, close) left to the loop. */
static void client_go_on(struct client *c)
{
    if (c->watch == 0)
        client_fail(c, CLIENT_UNREACHED, "the connection cannot be watched");
    else if (c->short_body)
        client_fail(c, CLIENT_BROKEN, "the request's body ended before its announced length");
    else if (!c->shaken && c->state != OVER)
        client_handshake(c);
    if (c->freed || c->state == OVER)
        return;
    client_flush(c);
    if (c->closing) {
        if (c->out.n == 0)
            client_free(c);
        return;
    }
    if (c->over && c->out.n <= HTTP_LOW_WATER && c->state != OVER) {
        c->over = false;
        c->events->on_writable(c->arg);
    }
    if (!c->freed && !c->paused && c->in.n > 0 && (c->state == BODY || c->state == TUNNEL)) {
        _cleanup_buf_ struct buf held = c->in;
        c->in = (struct buf){0};
        client_feed(c, held.p, held.n);
    }
    if (!c->freed && c->eof && !c->eof_told && c->in.n == 0 && !c->paused)
        client_on_eof(c);
}

static void client_settle(void *arg)
{
    struct client *c = arg;
    if (c->freed)
        return;
    c->settling = false;
    client_go_on(c);
    if (client_wants_input(c) && c->t->ops->pending(c->t))
        client_read(c);
    client_set_watch(c);
}

static void client_on_event(void *arg, int fd, unsigned events)
{
    struct client *c = arg;
    (void)fd;
    (void)events;
    c->blocked = false;
    client_go_on(c);
    if (client_wants_input(c))
        client_read(c);
    client_set_watch(c);
}

struct client *client_new(struct loop *l, struct transport *t)
{
    struct client *c = xcalloc(1, sizeof *c);
    *c = (struct client){.loop = l, .t = t, .state = IDLE};
    c->watch = loop_fd_add(l, t->fd, 0, client_on_event, c); /* a failure shows in the first exchange */
    return c;
}

static void client_add_fields(struct buf *b, const struct http_fields *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->v[i].name;
        if (strcasecmp(name, "host") != 0 && strcasecmp(name, "content-length") != 0 &&
            strcasecmp(name, "transfer-encoding") != 0)
            http1_add_field(b, name, f->v[i].value);
    }
}

static void client_add_head(struct buf *b, const struct client_request *q, enum http1_framing framing)
{
    buf_addf(b, "%s %s HTTP/1.1\r\n", q->method, q->target);
    http1_add_field(b, q->host_as ? q->host_as : "host", q->host);
    client_add_fields(b, &q->fields);
    if (framing == HTTP1_LENGTH && q->length_as)
        buf_addf(b, "%s: %llu\r\n", q->length_as, (unsigned long long)q->length);
    else
        http1_add_framing(b, framing, q->length);
    http1_add_end(b);
}

void client_start(struct client *c, const struct client_request *q, const struct client_events *events, void *arg)
{
    static const char *const with_body[] = {"POST", "PUT", "PATCH"};
    _cleanup_buf_ struct buf head = {0};
    assert(!c->freed && c->state == IDLE);
    c->events = events;
    c->arg = arg;
    (void)snprintf(c->method, sizeof c->method, "%s", q->method);
    c->framing = q->length == HTTP_UNKNOWN ? HTTP1_CHUNKED : q->length > 0 ? HTTP1_LENGTH : HTTP1_NONE;
    for (size_t i = 0; i < ARRAY_LEN(with_body) && c->framing == HTTP1_NONE; i++)
        if (strcmp(q->method, with_body[i]) == 0)
            c->framing = HTTP1_LENGTH;
    c->left = c->framing == HTTP1_LENGTH ? q->length : 0;
    c->upgrade = q->upgrade;
    c->ended = q->length == 0;
    c->any = c->keep_alive = c->paused = c->sent = c->short_body = false;
    c->interim = 0;
    c->trailers.n = c->came.n = 0;
    c->on_trailer = NULL;
    c->state = HEAD;
    client_add_head(&head, q, c->framing);
    outq_add(&c->out, head.p, head.n);
    client_wake(c);
}

void client_pause(struct client *c)
{
    c->paused = true;
    client_wake(c);
}

void client_resume(struct client *c)
{
    c->paused = false;
    client_wake(c);
}

bool client_reusable(const struct client *c) { return !c->freed && c->state == IDLE && !c->eof; }
size_t client_queued(const struct client *c) { return c->out.n; }
