/* conn.c - the half of an HTTP/1 connection that reads, and its states. */
#include "http/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"

static void settle(struct conn *c);
static void shake_hands(struct conn *c);
static void on_timer(void *arg);

static void set_timer(struct conn *c, uint64_t ms)
{
    loop_timer_del(c->loop, c->timer);
    c->timer = loop_timer(c->loop, ms, on_timer, c);
}

static void stop_timer(struct conn *c)
{
    loop_timer_del(c->loop, c->timer);
    c->timer = 0;
}

static void req_free(struct conn_req *q)
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

/* Lets go of everything but the connection's own memory, which callers up the stack still hold. The transport is left. */
static void die(struct conn *c)
{
    c->state = CONN_DEAD;
    stop_timer(c);
    loop_fd_del(c->loop, c->watch);
    http_server_detach(&c->link);
    outq_done(&c->out);
    buf_done(&c->in);
    loop_defer(c->loop, free, c);
}

/* Closes. A handler that has not let go of its request is told. */
static void lose(struct conn *c)
{
    if (c->state == CONN_DEAD)
        return;
    struct conn_req *q = c->req;
    bool owed = q && !(q->ended && (q->out != HTTP1_TUNNEL || q->end_told));
    c->req = NULL;
    die(c);
    c->t->ops->free(c->t);
    if (owed && q->pub.on_closed)
        q->pub.on_closed(&q->pub);
    req_free(q);
    http_server_gone(&c->link);
}

/* No more requests: what is queued goes out, what comes in is dropped, then the connection is closed. */
static void linger(struct conn *c)
{
    req_free(c->req);
    c->req = NULL;
    c->state = CONN_LINGER;
    c->dropped = 0;
    c->stuck = c->out.n;
    set_timer(c, http_server_limits(c->link.server)->idle_ms);
}

static void refuse(struct conn *c, unsigned status, const char *why)
{
    conn_refuse(c, status, why);
    linger(c);
}

/* The body broke off. The handler learns that its client is gone; the client learns why, if nothing was answered yet. */
static void refuse_body(struct conn *c)
{
    struct conn_req *q = c->req;
    if (q->ended || q->head_sent) {
        c->broken = true;
        return;
    }
    c->req = NULL;
    conn_refuse(c, 400, "the chunks of the body are not well-formed");
    c->state = CONN_LINGER;
    q->head_sent = q->ended = true; /* nothing that on_closed calls may answer a second time */
    if (q->pub.on_closed)
        q->pub.on_closed(&q->pub);
    req_free(q);
    linger(c);
}

static void begin_request(struct conn *c, const char *p, size_t n)
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
        refuse(c, bad.status, bad.why);
        return;
    }
    if (strcmp(h.method, "CONNECT") == 0) {
        free(q);
        refuse(c, 501, "CONNECT is not served here");
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
    stop_timer(c);
    http_server_dispatch(c->link.server, r);
}

/* Answered, and its body is read. */
static void finish_request(struct conn *c)
{
    const struct http_limits *limits = http_server_limits(c->link.server);
    req_free(c->req);
    c->req = NULL;
    c->served++;
    if (!c->keep || c->eof || http_server_draining(c->link.server)) {
        linger(c);
        return;
    }
    c->state = CONN_HEAD;
    c->head_begun = false;
    set_timer(c, limits->idle_ms);
}

static size_t take_head(struct conn *c, const char *p, size_t n, bool *again)
{
    struct http1_bad bad;
    if (n == 0 || c->out.n > HTTP_HIGH_WATER) /* who does not read answers gets no further ones */
        return 0;
    ssize_t len = http1_head_end(p, n, &c->scan, &bad);
    if (len < 0) {
        refuse(c, bad.status, bad.why);
        return n;
    }
    if (len == 0 && !c->head_begun) {
        c->head_begun = true;
        set_timer(c, http_server_limits(c->link.server)->head_ms);
    }
    if (len > 0) {
        begin_request(c, p, (size_t)len);
        *again = true;
    }
    return (size_t)len;
}

static size_t take_body(struct conn *c, const char *p, size_t n, bool *again)
{
    struct conn_req *q = c->req;
    const char *data;
    size_t len;
    ssize_t used = http1_body_next(&q->body, p, n, &data, &len);
    if (used < 0) {
        refuse_body(c);
        return n;
    }
    *again = true;
    if (len == 0)
        return (size_t)used;
    if (q->ended) {
        c->dropped += len;
        if (c->dropped > CONN_LINGER_BYTES)
            linger(c);
    } else if (q->pub.on_data) {
        q->pub.on_data(&q->pub, data, len);
    }
    return (size_t)used;
}

static void tell_end(struct conn_req *q)
{
    const char *p = buf_str(&q->came), *end = p + q->came.n;
    q->end_told = true;
    while (p < end && q->pub.on_trailer) { /* who answers now has let go of the rest */
        const char *name = p, *value = name + strlen(name) + 1;
        p = value + strlen(value) + 1;
        q->pub.on_trailer(&q->pub, name, value);
    }
    if (q->pub.on_end)
        q->pub.on_end(&q->pub);
}

static void send_continue(struct conn *c)
{
    static char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct iovec v = {text, sizeof text - 1};
    c->req->expects = false;
    conn_send(c, &v, 1);
}

static size_t step_request(struct conn *c, const char *p, size_t n, bool *again)
{
    struct conn_req *q = c->req;
    if (q->ended && (q->body.done || !c->keep)) {
        if (q->body.done)
            finish_request(c);
        else
            linger(c);
        *again = true;
        return 0;
    }
    if (q->ended && !c->dropping) {
        c->dropping = true;
        set_timer(c, CONN_LINGER_MS);
    }
    if (q->paused && !q->ended)
        return 0;
    if (q->body.done) {
        if (!q->end_told) {
            tell_end(q);
            *again = true;
        }
        return 0;
    }
    if (n == 0) {
        if (q->expects)
            send_continue(c);
        return 0;
    }
    q->expects = false; /* it did not wait */
    return take_body(c, p, n, again);
}

static size_t step_tunnel(struct conn *c, const char *p, size_t n)
{
    struct conn_req *q = c->req;
    if (q->paused)
        return 0;
    if (n > 0 && q->pub.on_data)
        q->pub.on_data(&q->pub, p, n);
    if (n == 0 && c->eof && !q->end_told)
        tell_end(q);
    return n;
}

/* Does with p[0..n) what can be done now; how much of it was used. */
static size_t consume(struct conn *c, const char *p, size_t n)
{
    size_t used = 0;
    for (bool again = true; again && !c->broken;) {
        again = false;
        switch (c->state) {
        case CONN_HEAD:
            used += take_head(c, p + used, n - used, &again);
            break;
        case CONN_REQUEST:
            used += step_request(c, p + used, n - used, &again);
            break;
        case CONN_TUNNEL:
            used += step_tunnel(c, p + used, n - used);
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

/* The same with the bytes kept from before. */
static void consume_kept(struct conn *c)
{
    struct buf kept = c->in;
    c->in = (struct buf){0};
    size_t used = consume(c, kept.p ? kept.p : "", kept.n);
    if (used >= kept.n || c->state == CONN_DEAD) {
        buf_done(&kept);
        return;
    }
    kept.n -= used;
    if (used > 0)
        memmove(kept.p, kept.p + used, kept.n);
    c->in = kept;
}

static bool reading(const struct conn *c)
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

static void at_eof(struct conn *c)
{
    c->eof = true;
    if (c->state == CONN_HEAD)
        linger(c);
    else if (c->state == CONN_REQUEST && (!c->req->body.done || c->gone))
        c->broken = true;
}

static void read_some(struct conn *c)
{
    char *buffer = http_server_buffer(c->link.server);
    for (size_t budget = (size_t)HTTP_READ_BUFFER * HTTP_READ_BUDGET; reading(c);) {
        ssize_t n = c->t->ops->read(c->t, buffer, HTTP_READ_BUFFER);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            c->broken |= errno != EAGAIN && errno != EWOULDBLOCK;
            return;
        }
        if (n == 0) {
            at_eof(c);
            return;
        }
        if (c->in.n > 0) {
            buf_add(&c->in, buffer, (size_t)n);
            consume_kept(c);
        } else {
            size_t used = consume(c, buffer, (size_t)n);
            if (used < (size_t)n && c->state != CONN_DEAD)
                buf_add(&c->in, buffer + used, (size_t)n - used);
        }
        explicit_bzero(buffer, (size_t)n); /* of all connections, for ever: there may have been a secret in it */
        bool more = n == HTTP_READ_BUFFER || c->t->ops->pending(c->t);
        if (!more || budget <= (size_t)n)
            return;
        budget -= (size_t)n;
    }
}

/* The peer closed both directions, or reset, while nothing was being read from it. */
static void hung_up(struct conn *c)
{
    char byte;
    bool wanted = c->state == CONN_TUNNEL || (c->state == CONN_REQUEST && !c->req->body.done);
    if (wanted && !c->eof && recv(c->t->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        c->gone = true; /* what it sent before is wanted once the handler reads again */
    else
        c->broken = true;
}

/* What follows from an empty or a stuck out-queue. */
static void settle_out(struct conn *c)
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
            set_timer(c, CONN_LINGER_MS);
    }
    if (c->state == CONN_LINGER ? c->eof || c->dropped >= CONN_LINGER_BYTES : c->req->end_told)
        c->broken = true;
}

static void tell_writable(struct conn *c)
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

/* Readability is left watched while nobody reads until it wakes us for nothing: most answers come before that. */
static void set_watch(struct conn *c)
{
    bool rd = reading(c);
    unsigned events = (rd ? c->t->ops->wants_read(c->t) : 0) | (c->out.n > 0 ? c->t->ops->wants_write(c->t) : 0);
    if (!c->gone)
        events |= LOOP_HUP | (c->woken ? 0 : c->events & LOOP_IN);
    if (rd || c->gone)
        c->woken = false;
    if (events != c->events)
        loop_fd_set(c->loop, c->watch, events);
    c->events = events;
}

/* Brings everything in line after an event or a call of the handler's. */
static void settle(struct conn *c)
{
    c->busy = true;
    if (c->state == CONN_HANDSHAKE && c->t->ops->pending(c->t))
        shake_hands(c); /* with bytes that somebody read before us */
    if (c->state > CONN_HANDSHAKE && c->state != CONN_DEAD) {
        conn_flush(c);
        consume_kept(c);
        if (c->state != CONN_DEAD && reading(c) && c->t->ops->pending(c->t)) {
            read_some(c);
            c->busy = false;
            if (reading(c) && c->t->ops->pending(c->t))
                conn_wake(c);
            c->busy = true;
        }
        conn_flush(c);
        tell_writable(c);
    }
    if (c->state != CONN_DEAD && c->state != CONN_HANDSHAKE) {
        settle_out(c);
        if (c->broken)
            lose(c);
        else
            set_watch(c);
    }
    c->busy = false;
}

static void settle_later(void *arg)
{
    struct conn *c = arg;
    c->settling = false;
    settle(c);
}

void conn_wake(struct conn *c)
{
    if (c->busy || c->settling || c->state == CONN_DEAD)
        return;
    c->settling = true;
    loop_defer(c->loop, settle_later, c);
}

static void hand_to_h2(struct conn *c)
{
    http_h2_fn *h2 = http_server_h2(c->link.server);
    struct http_server *s = c->link.server;
    struct transport *t = c->t;
    struct http_owner *owner = c->link.owner;
    char peer[sizeof c->link.peer];
    memcpy(peer, c->link.peer, sizeof peer);
    if (!h2) {
        lose(c);
        return;
    }
    c->link.owner = NULL;
    die(c);
    http_server_hand_over(s, h2, t, peer, owner);
}

static void shake_hands(struct conn *c)
{
    int r = c->t->ops->handshake(c->t);
    if (r < 0) {
        lose(c);
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
        hand_to_h2(c);
        return;
    }
    c->state = CONN_HEAD;
}

static void on_event(void *arg, int fd, unsigned events)
{
    struct conn *c = arg;
    (void)fd;
    c->busy = true;
    if (c->state == CONN_HANDSHAKE)
        shake_hands(c);
    if (c->state == CONN_DEAD || c->state == CONN_HANDSHAKE) {
        c->busy = false;
        return;
    }
    if (events & c->t->ops->wants_write(c->t))
        c->blocked = false;
    if (reading(c))
        read_some(c);
    else if (events & LOOP_HUP)
        hung_up(c);
    else if (events & LOOP_IN)
        c->woken = true;
    settle(c);
}

static void on_timer(void *arg)
{
    struct conn *c = arg;
    c->timer = 0;
    c->busy = true;
    if (c->state == CONN_HEAD && c->in.n > 0) {
        refuse(c, 408, "the head of the request did not come in time");
        buf_done(&c->in);
    } else if (c->state == CONN_REQUEST) {
        linger(c);
    } else if (c->state == CONN_LINGER && !c->shut && c->out.n < c->stuck) {
        c->stuck = c->out.n;
        set_timer(c, http_server_limits(c->link.server)->idle_ms);
    } else {
        lose(c);
    }
    settle(c);
}

static void on_drain(struct http_link *link)
{
    struct conn *c = (struct conn *)link;
    if (c->state == CONN_HANDSHAKE)
        lose(c);
    else if (c->state == CONN_HEAD && c->in.n == 0)
        linger(c);
    conn_wake(c);
}

static void on_kill(struct http_link *link) { lose((struct conn *)link); }

void conn_serve(struct http_server *s, struct transport *t, const char *peer)
{
    struct conn *c = xcalloc(1, sizeof *c);
    c->link.drain = on_drain;
    c->link.kill = on_kill;
    c->loop = http_server_loop(s);
    c->t = t;
    c->events = LOOP_IN;
    c->watch = loop_fd_add(c->loop, t->fd, c->events, on_event, c);
    if (c->watch == 0) {
        t->ops->free(t);
        free(c);
        return;
    }
    http_server_attach(s, &c->link, peer);
    c->head_begun = true;
    set_timer(c, http_server_limits(s)->head_ms);
    if (t->ops->pending(t))
        conn_wake(c);
}
