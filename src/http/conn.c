/* conn.c - the half of an HTTP/1 connection that reads requests, and its states. */
#include "http/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"

static void conn_settle(struct conn *c);
static void conn_handshake(struct conn *c);
static void conn_on_timer(void *arg);

static void conn_set_timer(struct conn *c, uint64_t ms)
{
    loop_timer_del(c->loop, c->timer);
    c->timer = loop_timer(c->loop, ms, conn_on_timer, c);
}

static void conn_stop_timer(struct conn *c)
{
    loop_timer_del(c->loop, c->timer);
    c->timer = 0;
}

static void conn_req_free(struct conn_req *q)
{
    if (!q)
        return;
    if (q->pub.on_freed)
        q->pub.on_freed(&q->pub);
    buf_done(&q->set);
    buf_done(&q->trailers);
    buf_done(&q->came);
    free(q);
}

/* Releases everything but the transport and the connection's own memory, which callers up the stack still use. */
static void conn_die(struct conn *c)
{
    c->state = CONN_DEAD;
    conn_stop_timer(c);
    loop_fd_del(c->loop, c->watch);
    http_server_detach(&c->link);
    outq_done(&c->out);
    buf_done(&c->in);
    loop_defer(c->loop, free, c);
}

/* Closes the connection; calls on_closed if a handler still holds the request. */
static void conn_lose(struct conn *c)
{
    if (c->state == CONN_DEAD)
        return;
    struct conn_req *q = c->req;
    bool owed = q && !(q->ended && (q->out != HTTP1_TUNNEL || q->end_told));
    c->req = NULL;
    conn_die(c);
    c->t->ops->free(c->t);
    if (owed && q->pub.on_closed)
        q->pub.on_closed(&q->pub);
    conn_req_free(q);
    http_server_gone(&c->link);
}

/* Takes no more requests: sends what is queued, drops what comes in, then closes the connection. */
static void conn_linger(struct conn *c)
{
    conn_req_free(c->req);
    c->req = NULL;
    c->state = CONN_LINGER;
    c->dropped = 0;
    c->stuck = c->out.n;
    conn_set_timer(c, http_server_limits(c->link.server)->idle_ms);
}

static void conn_refuse_request(struct conn *c, unsigned status, const char *why)
{
    conn_refuse(c, status, why);
    conn_linger(c);
}

/* The body's framing is broken: calls on_closed, and answers 400 if the handler has not answered yet. */
static void conn_refuse_body(struct conn *c)
{
    struct conn_req *q = c->req;
    if (q->ended || q->head_sent) {
        c->broken = true;
        return;
    }
    c->req = NULL;
    conn_refuse(c, 400, "the chunks of the body are not well-formed");
    c->state = CONN_LINGER;
    q->head_sent = q->ended = true; /* on_closed must not answer a second time */
    if (q->pub.on_closed)
        q->pub.on_closed(&q->pub);
    conn_req_free(q);
    conn_linger(c);
}

static void conn_begin_request(struct conn *c, const char *p, size_t n)
{
    size_t nfields = http1_count_fields(p, n), fixed = sizeof(struct conn_req) + nfields * sizeof(struct http_field);
    struct conn_req *q = xmalloc(fixed + 2 * n);
    struct http1_head h;
    struct http1_bad bad;
    *q = (struct conn_req){.c = c};
    char *bytes = memcpy((char *)q + fixed, p, n), *raw = memcpy(bytes + n, p, n);
    c->scan = 0;
    if (http1_parse_request(bytes, n, q->fields, &h, &bad) < 0) {
        free(q);
        conn_refuse_request(c, bad.status, bad.why);
        return;
    }
    if (strcmp(h.method, "CONNECT") == 0) {
        free(q);
        conn_refuse_request(c, 501, "CONNECT is not served here");
        return;
    }
    struct http_req *r = &q->pub;
    r->method = h.method;
    r->path = h.path;
    r->query = h.query;
    r->authority = h.authority;
    r->scheme = h.scheme;
    r->owner = c->link.owner;
    r->fields = h.fields;
    r->raw_head = raw;
    r->read_head = bytes;
    r->head_n = n;
    r->length = h.length;
    r->version = h.version;
    r->tls = !transport_is_plain(c->t);
    memcpy(r->peer, c->link.peer, sizeof r->peer);
    r->ops = &conn_ops;
    q->head_request = strcmp(h.method, "HEAD") == 0;
    q->can_upgrade = h.upgrade;
    q->keep_alive = h.keep_alive;
    q->expects = h.expect_continue;
    http1_body_start(&q->body, &h);
    q->body.trailers = &q->came;
    c->req = q;
    c->state = CONN_REQUEST;
    c->keep = c->dropping = c->over = false;
    c->dropped = 0;
    conn_stop_timer(c);
    http_server_dispatch(c->link.server, r);
}

/* The request is answered and its body was read. */
static void conn_finish_request(struct conn *c)
{
    const struct http_limits *limits = http_server_limits(c->link.server);
    conn_req_free(c->req);
    c->req = NULL;
    c->served++;
    if (!c->keep || c->eof || http_server_draining(c->link.server)) {
        conn_linger(c);
        return;
    }
    c->state = CONN_HEAD;
    c->head_begun = false;
    conn_set_timer(c, limits->idle_ms);
}

static size_t conn_take_head(struct conn *c, const char *p, size_t n, bool *again)
{
    struct http1_bad bad;
    if (n == 0 || c->out.n > HTTP_HIGH_WATER) /* no next request while the client does not read its answers */
        return 0;
    ssize_t len = http1_head_end(p, n, &c->scan, &bad);
    if (len < 0) {
        conn_refuse_request(c, bad.status, bad.why);
        return n;
    }
    if (len == 0 && !c->head_begun) {
        c->head_begun = true;
        conn_set_timer(c, http_server_limits(c->link.server)->head_ms);
    }
    if (len > 0) {
        conn_begin_request(c, p, (size_t)len);
        *again = true;
    }
    return (size_t)len;
}

static size_t conn_take_body(struct conn *c, const char *p, size_t n, bool *again)
{
    struct conn_req *q = c->req;
    const char *data;
    size_t len;
    ssize_t used = http1_body_next(&q->body, p, n, &data, &len);
    if (used < 0) {
        conn_refuse_body(c);
        return n;
    }
    *again = true;
    if (len == 0)
        return (size_t)used;
    if (q->ended) {
        c->dropped += len;
        if (c->dropped > CONN_LINGER_BYTES)
            conn_linger(c);
    } else if (q->pub.on_data) {
        q->pub.on_data(&q->pub, data, len);
    }
    return (size_t)used;
}

static void conn_tell_end(struct conn_req *q)
{
    const char *p = buf_str(&q->came), *end = p + q->came.n;
    q->end_told = true;
    while (p < end && q->pub.on_trailer) { /* a handler that ends the request in it clears on_trailer */
        const char *name = p, *value = name + strlen(name) + 1;
        p = value + strlen(value) + 1;
        q->pub.on_trailer(&q->pub, name, value);
    }
    if (q->pub.on_end)
        q->pub.on_end(&q->pub);
}

static void conn_send_continue(struct conn *c)
{
    static char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct iovec v = {text, sizeof text - 1};
    c->req->expects = false;
    conn_send_vector(c, &v, 1);
}

static size_t conn_step_request(struct conn *c, const char *p, size_t n, bool *again)
{
    struct conn_req *q = c->req;
    if (q->ended && (q->body.done || !c->keep)) {
        if (q->body.done)
            conn_finish_request(c);
        else
            conn_linger(c);
        *again = true;
        return 0;
    }
    if (q->ended && !c->dropping) {
        c->dropping = true;
        conn_set_timer(c, CONN_LINGER_MS);
    }
    if (q->paused && !q->ended)
        return 0;
    if (q->body.done) {
        if (!q->end_told) {
            conn_tell_end(q);
            *again = true;
        }
        return 0;
    }
    if (n == 0) {
        if (q->expects)
            conn_send_continue(c);
        return 0;
    }
    q->expects = false; /* the client did not wait for "100 Continue" */
    return conn_take_body(c, p, n, again);
}

static size_t conn_step_tunnel(struct conn *c, const char *p, size_t n)
{
    struct conn_req *q = c->req;
    if (q->paused)
        return 0;
    if (n > 0 && q->pub.on_data)
        q->pub.on_data(&q->pub, p, n);
    if (n == 0 && c->eof && !q->end_told)
        conn_tell_end(q);
    return n;
}

/* Processes p[0..n) as far as possible now; returns how much was used. */
static size_t conn_consume(struct conn *c, const char *p, size_t n)
{
    size_t used = 0;
    for (bool again = true; again && !c->broken;) {
        again = false;
        switch (c->state) {
        case CONN_HEAD:
            used += conn_take_head(c, p + used, n - used, &again);
            break;
        case CONN_REQUEST:
            used += conn_step_request(c, p + used, n - used, &again);
            break;
        case CONN_TUNNEL:
            used += conn_step_tunnel(c, p + used, n - used);
            break;
        case CONN_LINGER:
            c->dropped += n - used;
            return n;
        default:
            return n;
        }
    }
    return used;
}

/* The same with the bytes that were kept before. */
static void conn_consume_kept(struct conn *c)
{
    struct buf kept = c->in;
    c->in = (struct buf){0};
    size_t used = conn_consume(c, kept.p ? kept.p : "", kept.n);
    if (used >= kept.n || c->state == CONN_DEAD) {
        buf_done(&kept);
        return;
    }
    kept.n -= used;
    if (used > 0)
        memmove(kept.p, kept.p + used, kept.n);
    c->in = kept;
}

static bool conn_is_reading(const struct conn *c)
{
    if (c->eof || c->broken)
        return false;
    switch (c->state) {
    case CONN_HEAD:
        return c->out.n <= HTTP_HIGH_WATER;
    case CONN_REQUEST:
        return !c->req->body.done && (!c->req->paused || c->req->ended) && c->in.n == 0;
    case CONN_TUNNEL:
        return !c->req->paused && c->in.n == 0;
    case CONN_LINGER:
        return c->dropped < CONN_LINGER_BYTES;
    default:
        return false;
    }
}

static void conn_on_eof(struct conn *c)
{
    c->eof = true;
    if (c->state == CONN_HEAD)
        conn_linger(c);
    else if (c->state == CONN_REQUEST && (!c->req->body.done || c->gone))
        c->broken = true;
}

static void conn_read(struct conn *c)
{
    char *buffer = http_server_buffer(c->link.server);
    for (size_t budget = (size_t)HTTP_READ_BUFFER * HTTP_READ_BUDGET; conn_is_reading(c);) {
        ssize_t n = c->t->ops->read(c->t, buffer, HTTP_READ_BUFFER);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            c->broken |= errno != EAGAIN && errno != EWOULDBLOCK;
            return;
        }
        if (n == 0) {
            conn_on_eof(c);
            return;
        }
        if (c->in.n > 0) {
            buf_add(&c->in, buffer, (size_t)n);
            conn_consume_kept(c);
        } else {
            size_t used = conn_consume(c, buffer, (size_t)n);
            if (used < (size_t)n && c->state != CONN_DEAD)
                buf_add(&c->in, buffer + used, (size_t)n - used);
        }
        explicit_bzero(buffer, (size_t)n); /* all connections share it, and it may hold a secret */
        bool more = n == HTTP_READ_BUFFER || c->t->ops->pending(c->t);
        if (!more || budget <= (size_t)n)
            return;
        budget -= (size_t)n;
    }
}

/* The peer closed both directions, or reset the connection, while we did not read. */
static void conn_on_hang_up(struct conn *c)
{
    char byte;
    bool wanted = c->state == CONN_TUNNEL || (c->state == CONN_REQUEST && !c->req->body.done);
    if (wanted && !c->eof && recv(c->t->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        c->gone = true; /* the handler still wants what the peer sent before */
    else
        c->broken = true;
}

/* Acts on an empty or a stuck out-queue: shuts down, or closes. */
static void conn_settle_out(struct conn *c)
{
    bool done = c->state == CONN_LINGER || (c->state == CONN_TUNNEL && c->req->ended);
    if (c->gone && c->blocked)
        c->broken = true;
    if (!done || c->out.n > 0)
        return;
    if (!c->shut) {
        c->shut = true;
        c->t->ops->shutdown(c->t);
        if (c->state == CONN_LINGER)
            conn_set_timer(c, CONN_LINGER_MS);
    }
    if (c->state == CONN_LINGER ? c->eof || c->dropped >= CONN_LINGER_BYTES : c->req->end_told)
        c->broken = true;
}

static void conn_tell_writable(struct conn *c)
{
    if (!c->over || c->out.n > HTTP_LOW_WATER || !c->req || c->req->ended)
        return;
    c->over = false;
    if (c->req->pub.on_writable) {
        c->req->pub.on_writable(&c->req->pub);
        c->busy = false;
        conn_wake(c); /* for what the handler did; from the loop, so that an endless answer does not starve others */
        c->busy = true;
    }
}

static bool conn_fin_leaves(const struct conn *c)
{
    return c->state == CONN_REQUEST && c->req->body.done && !c->req->ended && c->req->pub.fin_leaves;
}

/* While no handler reads, keep watching for input until it wakes us in vain: most answers come before that, which
 * saves a system call. */
static void conn_set_watch(struct conn *c)
{
    bool rd = conn_is_reading(c);
    unsigned events = (rd ? c->t->ops->wants_read(c->t) : 0) | (c->out.n > 0 ? c->t->ops->wants_write(c->t) : 0);
    if (!c->gone)
        events |= LOOP_HUP | (c->woken ? 0 : c->events & LOOP_IN);
    if (conn_fin_leaves(c))
        events |= LOOP_RDHUP;
    if (rd || c->gone)
        c->woken = false;
    if (events != c->events)
        loop_fd_set(c->loop, c->watch, events);
    c->events = events;
}

/* Acts on all flags after an event or a call of the handler. */
static void conn_settle(struct conn *c)
{
    c->busy = true;
    if (c->state == CONN_HANDSHAKE && c->t->ops->pending(c->t))
        conn_handshake(c); /* with bytes that were read before the transport was made */
    if (c->state > CONN_HANDSHAKE && c->state != CONN_DEAD) {
        conn_flush(c);
        conn_consume_kept(c);
        if (c->state != CONN_DEAD && conn_is_reading(c) && c->t->ops->pending(c->t)) {
            conn_read(c);
            c->busy = false;
            if (conn_is_reading(c) && c->t->ops->pending(c->t))
                conn_wake(c);
            c->busy = true;
        }
        conn_flush(c);
        conn_tell_writable(c);
    }
    if (c->state != CONN_DEAD && c->state != CONN_HANDSHAKE) {
        conn_settle_out(c);
        if (c->broken)
            conn_lose(c);
        else
            conn_set_watch(c);
    }
    c->busy = false;
}

static void conn_on_settle(void *arg)
{
    struct conn *c = arg;
    c->settling = false;
    conn_settle(c);
}

void conn_wake(struct conn *c)
{
    if (c->busy || c->settling || c->state == CONN_DEAD)
        return;
    c->settling = true;
    loop_defer(c->loop, conn_on_settle, c);
}

static void conn_hand_to_h2(struct conn *c)
{
    http_h2_fn *h2 = http_server_h2(c->link.server);
    struct http_server *s = c->link.server;
    struct transport *t = c->t;
    struct http_owner *owner = c->link.owner;
    char peer[sizeof c->link.peer];
    memcpy(peer, c->link.peer, sizeof peer);
    if (!h2) {
        conn_lose(c);
        return;
    }
    c->link.owner = NULL;
    conn_die(c);
    http_server_hand_over(s, h2, t, peer, owner);
}

static void conn_handshake(struct conn *c)
{
    int r = c->t->ops->handshake(c->t);
    if (r < 0) {
        conn_lose(c);
        return;
    }
    if (r == 0) {
        unsigned events = c->t->ops->wants_read(c->t) | c->t->ops->wants_write(c->t);
        if (events != c->events)
            loop_fd_set(c->loop, c->watch, events);
        c->events = events;
        return;
    }
    const char *protocol = c->t->ops->protocol(c->t);
    if (protocol && strcmp(protocol, "h2") == 0) {
        conn_hand_to_h2(c);
        return;
    }
    c->state = CONN_HEAD;
}

static void conn_on_event(void *arg, int fd, unsigned events)
{
    struct conn *c = arg;
    (void)fd;
    c->busy = true;
    if (c->state == CONN_HANDSHAKE)
        conn_handshake(c);
    if (c->state == CONN_DEAD || c->state == CONN_HANDSHAKE) {
        c->busy = false;
        return;
    }
    if (events & c->t->ops->wants_write(c->t))
        c->blocked = false;
    if (conn_is_reading(c))
        conn_read(c);
    else if (events & LOOP_HUP)
        conn_on_hang_up(c);
    else if (events & LOOP_IN)
        c->woken = true;
    if (events & LOOP_RDHUP && conn_fin_leaves(c))
        c->broken = true;
    conn_settle(c);
}

static void conn_on_timer(void *arg)
{
    struct conn *c = arg;
    c->timer = 0;
    c->busy = true;
    if (c->state == CONN_HEAD && c->in.n > 0) {
        conn_refuse_request(c, 408, "the head of the request did not come in time");
        buf_done(&c->in);
    } else if (c->state == CONN_REQUEST) {
        conn_linger(c);
    } else if (c->state == CONN_LINGER && !c->shut && c->out.n < c->stuck) {
        c->stuck = c->out.n;
        conn_set_timer(c, http_server_limits(c->link.server)->idle_ms);
    } else {
        conn_lose(c);
    }
    conn_settle(c);
}

static void conn_on_drain(struct http_link *link)
{
    struct conn *c = (struct conn *)link;
    if (c->state == CONN_HANDSHAKE)
        conn_lose(c);
    else if (c->state == CONN_HEAD && c->in.n == 0)
        conn_linger(c);
    conn_wake(c);
}

static void conn_on_kill(struct http_link *link) { conn_lose((struct conn *)link); }

void conn_serve(struct http_server *s, struct transport *t, const char *peer)
{
    struct conn *c = xcalloc(1, sizeof *c);
    c->link.drain = conn_on_drain;
    c->link.kill = conn_on_kill;
    c->loop = http_server_loop(s);
    c->t = t;
    c->events = LOOP_IN;
    c->watch = loop_fd_add(c->loop, t->fd, c->events, conn_on_event, c);
    if (c->watch == 0) {
        t->ops->free(t);
        free(c);
        return;
    }
    http_server_attach(s, &c->link, peer);
    c->head_begun = true;
    conn_set_timer(c, http_server_limits(s)->head_ms);
    if (t->ops->pending(t))
        conn_wake(c);
}
