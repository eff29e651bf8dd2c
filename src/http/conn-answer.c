/* conn-answer.c - the half of an HTTP/1 connection that writes answers. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "http/conn.h"

enum { VECTORS = 16, SMALL = 2048 };

static size_t conn_vector_bytes(const struct iovec *v, int n)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += v[i].iov_len;
    return sum;
}

/* One writev; returns the bytes taken. Sets c->blocked or c->broken on failure. */
static size_t conn_writev(struct conn *c, const struct iovec *v, int n)
{
    ssize_t r;
    do
        r = c->t->ops->writev(c->t, v, n);
    while (r < 0 && errno == EINTR);
    if (r >= 0)
        return (size_t)r;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        c->blocked = true;
    else
        c->broken = true;
    return 0;
}

static void conn_queue_rest(struct conn *c, const struct iovec *v, int n, size_t skip)
{
    for (int i = 0; i < n; i++) {
        size_t some = skip < v[i].iov_len ? skip : v[i].iov_len;
        skip -= some;
        if (some < v[i].iov_len)
            outq_add(&c->out, (const char *)v[i].iov_base + some, v[i].iov_len - some);
    }
}

void conn_send_vector(struct conn *c, const struct iovec *v, int n)
{
    struct iovec all[VECTORS];
    size_t queued = c->out.n, sent = 0;
    int front = outq_vectors(&c->out, all, VECTORS - n);
    if (c->broken)
        return;
    /* Small writes wait for the end of the loop's round, so that events that come together leave together. */
    if (!c->blocked && conn_vector_bytes(all, front) == queued && queued + conn_vector_bytes(v, n) > SMALL) {
        memcpy(all + front, v, (size_t)n * sizeof *v);
        sent = conn_writev(c, all, front + n);
    }
    if (sent > 0)
        c->blocked = sent < queued + conn_vector_bytes(v, n);
    outq_drop(&c->out, sent < queued ? sent : queued);
    conn_queue_rest(c, v, n, sent < queued ? 0 : sent - queued);
    if (c->out.n > 0 || c->broken)
        conn_wake(c);
}

void conn_flush(struct conn *c)
{
    while (c->out.n > 0 && !c->blocked && !c->broken) {
        struct iovec v[VECTORS];
        int n = outq_vectors(&c->out, v, VECTORS);
        size_t want = conn_vector_bytes(v, n), sent = conn_writev(c, v, n);
        outq_drop(&c->out, sent);
        if (sent < want)
            c->blocked = true;
    }
}

/* Ignores fields that decide how this connection frames and ends a message: only the carrier sets them. */
static void conn_op_set(struct http_req *r, const char *name, const char *value)
{
    struct conn_req *q = (struct conn_req *)r;
    bool ours = (http1_is_hop(name) && strcmp(name, "upgrade") != 0) || strcmp(name, "content-length") == 0 ||
                (!r->bare && strcmp(name, "x-request-id") == 0);
    if (ours || q->head_sent)
        return;
    q->has_date |= strcmp(name, "date") == 0;
    http1_add_field(&q->set, name, value);
}

/* Whether another request may follow; decided once, because the head of the answer announces it. */
static bool conn_may_keep(const struct conn *c, const struct conn_req *q)
{
    const struct http_limits *limits = http_server_limits(c->link.server);
    if (!q->keep_alive || c->eof || http_server_draining(c->link.server) ||
        (limits->requests && c->served + 1 >= limits->requests))
        return false;
    if (q->body.done)
        return true;
    return !q->expects && (q->body.framing == HTTP1_CHUNKED || q->body.left <= CONN_LINGER_BYTES);
}

static void conn_add_common(struct buf *b, struct conn *c, const struct conn_req *q)
{
    if (!q->has_date && !q->pub.bare)
        http1_add_field(b, "date", http_server_date(c->link.server));
    if (!q->pub.bare)
        http1_add_field(b, "x-request-id", q->pub.id);
    buf_add(b, q->set.p, q->set.n);
}

static void conn_begin_answer(struct conn *c, struct conn_req *q, const struct buf *head)
{
    outq_add(&c->out, head->p, head->n);
    buf_done(&q->set);
    q->head_sent = true;
    q->expects = false;
    conn_wake(c);
}

static void conn_op_head(struct http_req *r, unsigned status, uint64_t length)
{
    struct conn_req *q = (struct conn_req *)r;
    struct conn *c = q->c;
    if (q->head_sent || c->state == CONN_DEAD)
        return;
    bool never = status == 204 || status == 304 || status / 100 == 1;
    enum http1_framing framing = length != HTTP_UNKNOWN ? HTTP1_LENGTH : r->version == 11 ? HTTP1_CHUNKED : HTTP1_CLOSE;
    if (never || (q->head_request && framing != HTTP1_LENGTH))
        framing = HTTP1_NONE;
    q->out = never || q->head_request ? HTTP1_NONE : framing;
    q->left = q->out == HTTP1_LENGTH ? length : 0;
    c->keep = conn_may_keep(c, q) && q->out != HTTP1_CLOSE;
    struct buf *b = http_server_scratch(c->link.server);
    http1_add_status(b, status);
    conn_add_common(b, c, q);
    http1_add_framing(b, framing, length);
    if (!c->keep)
        http1_add_field(b, "connection", "close");
    else if (r->version == 10)
        http1_add_field(b, "connection", "keep-alive");
    http1_add_end(b);
    conn_begin_answer(c, q, b);
}

static bool conn_note_level(struct conn *c)
{
    c->over |= c->out.n > HTTP_HIGH_WATER;
    return !c->over;
}

static bool conn_op_write(struct http_req *r, const void *p, size_t n)
{
    struct conn_req *q = (struct conn_req *)r;
    struct conn *c = q->c;
    if (!q->head_sent || q->ended || c->broken || c->state == CONN_DEAD)
        return true;
    if (q->out == HTTP1_LENGTH) {
        n = n < q->left ? n : (size_t)q->left;
        q->left -= n;
    }
    if (q->out == HTTP1_NONE || n == 0)
        return conn_note_level(c);
    char line[HTTP1_CHUNK_LINE];
    size_t line_n = q->out == HTTP1_CHUNKED ? http1_chunk_line(line, n) : 0;
    struct iovec v[3] = {{line, line_n}, {(void *)(uintptr_t)p, n}, {(void *)(uintptr_t) "\r\n", 2}};
    if (line_n)
        conn_send_vector(c, v, 3);
    else
        conn_send_vector(c, v + 1, 1);
    return conn_note_level(c);
}

static void conn_op_abort(struct http_req *r)
{
    struct conn *c = ((struct conn_req *)r)->c;
    static const struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (c->state == CONN_DEAD)
        return;
    conn_flush(c); /* send what the kernel takes of the bytes written before */
    if (!r->hang_up)
        (void)setsockopt(c->t->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    outq_done(&c->out);
    c->broken = true;
    conn_wake(c);
}

static void conn_op_trailer(struct http_req *r, const char *name, const char *value)
{
    struct conn_req *q = (struct conn_req *)r;
    if (!q->ended && !http1_is_hop(name) && strcmp(name, "content-length") != 0)
        http1_add_field(&q->trailers, name, value);
}

static void conn_add_last_chunk(struct conn *c, const struct conn_req *q)
{
    outq_add(&c->out, "0\r\n", 3);
    outq_add(&c->out, buf_str(&q->trailers), q->trailers.n);
    outq_add(&c->out, "\r\n", 2);
}

static void conn_op_end(struct http_req *r)
{
    struct conn_req *q = (struct conn_req *)r;
    struct conn *c = q->c;
    if (q->ended || c->state == CONN_DEAD)
        return;
    if (!q->head_sent)
        conn_op_head(r, 500, 0);
    if (q->left > 0)
        conn_op_abort(r); /* shorter than announced: only a cut connection shows that to the client */
    else if (q->out == HTTP1_CHUNKED)
        conn_add_last_chunk(c, q);
    q->ended = true;
    conn_wake(c);
}

static void conn_op_pause(struct http_req *r, bool on)
{
    struct conn_req *q = (struct conn_req *)r;
    if (q->paused == on)
        return;
    q->paused = on;
    conn_wake(q->c);
}

static bool conn_op_upgrade(struct http_req *r)
{
    struct conn_req *q = (struct conn_req *)r;
    struct conn *c = q->c;
    if (!q->can_upgrade || !q->body.done || q->head_sent || c->state != CONN_REQUEST)
        return false;
    bool named = q->set.n >= 9 && (strncmp(q->set.p, "upgrade: ", 9) == 0 || strstr(q->set.p, "\r\nupgrade: "));
    struct buf *b = http_server_scratch(c->link.server);
    http1_add_status(b, 101);
    http1_add_field(b, "connection", "upgrade");
    if (!named)
        http1_add_field(b, "upgrade", http_field(&r->fields, "upgrade"));
    conn_add_common(b, c, q);
    http1_add_end(b);
    q->out = HTTP1_TUNNEL;
    q->end_told = false;
    c->keep = false;
    c->state = CONN_TUNNEL;
    conn_begin_answer(c, q, b);
    return true;
}

static size_t conn_op_queued(const struct http_req *r) { return ((const struct conn_req *)r)->c->out.n; }

const struct http_stream_ops conn_ops = {
    .set = conn_op_set,
    .head = conn_op_head,
    .write = conn_op_write,
    .end = conn_op_end,
    .abort = conn_op_abort,
    .pause = conn_op_pause,
    .upgrade = conn_op_upgrade,
    .queued = conn_op_queued,
    .trailer = conn_op_trailer,
};

void conn_refuse(struct conn *c, unsigned status, const char *why)
{
    struct http_owner *o = c->link.owner;
    _cleanup_buf_ struct buf body = {0};
    if (o && o->refused)
        o->refused(o, status, why, &body);
    bool json = body.n > 0;
    if (!json)
        buf_addf(&body, "%s\n", why);
    struct buf *b = http_server_scratch(c->link.server);
    http1_add_status(b, status);
    http1_add_field(b, "date", http_server_date(c->link.server));
    http1_add_field(b, "content-type", json ? "application/json" : "text/plain");
    http1_add_framing(b, HTTP1_LENGTH, body.n);
    http1_add_field(b, "connection", "close");
    http1_add_end(b);
    buf_add(b, body.p, body.n);
    outq_add(&c->out, b->p, b->n);
}
