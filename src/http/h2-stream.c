/* h2-stream.c - one request on an HTTP/2 connection, from its fields to the last byte of its answer. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/h2-int.h"
#include "http/http1.h"

enum { FIELD_COST = 32 /* what RFC 9113 counts per field besides its bytes */ };

static const struct http_stream_ops ops;

struct h2_stream *h2_stream_new(struct h2_conn *c, int32_t id)
{
    struct h2_stream *q = xcalloc(1, sizeof *q);
    q->c = c;
    q->id = id;
    q->next = c->streams;
    if (q->next)
        q->next->prev = q;
    c->streams = q;
    return q;
}

void h2_stream_lost(struct h2_stream *q)
{
    if (!q->dispatched || q->ended)
        return;
    q->c->owned--;
    q->ended = true;
    if (q->pub.on_closed)
        q->pub.on_closed(&q->pub);
}

void h2_stream_free(struct h2_stream *q)
{
    struct h2_conn *c = q->c;
    if (q->pub.on_freed)
        q->pub.on_freed(&q->pub);
    if (q->prev)
        q->prev->next = q->next;
    else
        c->streams = q->next;
    if (q->next)
        q->next->prev = q->prev;
    buf_done(&q->head);
    buf_done(&q->held);
    buf_done(&q->came);
    buf_done(&q->set);
    buf_done(&q->trailers);
    outq_done(&q->out);
    free(q->fields);
    free(q->text);
    free(q);
}

/* ---- the request's head ---- */

void h2_stream_field(struct h2_stream *q, const uint8_t *name, size_t name_n, const uint8_t *value, size_t value_n)
{
    if (q->too_large)
        return;
    if (q->nfields == HTTP_FIELDS_MAX + 4 || /* the pseudo-fields come on top */
        q->head.n + name_n + value_n + (q->nfields + 1) * FIELD_COST > HTTP_HEAD_MAX) {
        q->too_large = true;
        buf_done(&q->head);
        return;
    }
    buf_add(&q->head, name, name_n);
    buf_addc(&q->head, '\0');
    buf_add(&q->head, value, value_n);
    buf_addc(&q->head, '\0');
    q->nfields++;
}

void h2_stream_trailer(struct h2_stream *q, const uint8_t *name, size_t name_n, const uint8_t *value, size_t value_n)
{
    if (q->came.n + name_n + value_n + 2 > HTTP1_TRAILERS_MAX) {
        (void)nghttp2_submit_rst_stream(q->c->session, NGHTTP2_FLAG_NONE, q->id, NGHTTP2_ENHANCE_YOUR_CALM);
        return;
    }
    buf_add(&q->came, name, name_n);
    buf_addc(&q->came, '\0');
    buf_add(&q->came, value, value_n);
    buf_addc(&q->came, '\0');
}

struct pseudo {
    const char *method, *path, *authority, *host, *scheme;
    struct buf cookie;
};

/* Sorts the collected pairs into pseudo-fields and fields. Cookies, which HTTP/2 may split, become one again. */
static void h2_sort_fields(struct h2_stream *q, struct pseudo *ps)
{
    const char *p = buf_str(&q->head), *end = p + q->head.n;
    size_t n = 0;
    q->fields = xcalloc(q->nfields + 1, sizeof *q->fields);
    while (p < end) {
        const char *name = p, *value = name + strlen(name) + 1;
        p = value + strlen(value) + 1;
        if (strcmp(name, ":method") == 0) {
            ps->method = value;
        } else if (strcmp(name, ":path") == 0) {
            ps->path = value;
        } else if (strcmp(name, ":authority") == 0) {
            ps->authority = value;
        } else if (strcmp(name, ":scheme") == 0) {
            ps->scheme = value;
        } else if (strcmp(name, "cookie") == 0) {
            if (ps->cookie.n > 0)
                buf_adds(&ps->cookie, "; ");
            buf_adds(&ps->cookie, value);
        } else if (name[0] != ':') {
            if (strcmp(name, "host") == 0)
                ps->host = value;
            q->fields[n++] = (struct http_field){name, value};
        }
    }
    q->nfields = n;
}

static bool h2_text_is_visible(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f || *s == '#')
            return false;
    return true;
}

/* Fills in the request for the handler. NULL, or why it is refused. */
static const char *h2_fill_request(struct h2_stream *q, struct pseudo *ps)
{
    struct http_req *r = &q->pub;
    const char *authority = ps->authority ? ps->authority : ps->host;
    if (!ps->method || !ps->path || strlen(ps->method) > HTTP1_METHOD_MAX)
        return "the method or the path is missing or too long";
    if ((ps->path[0] != '/' && strcmp(ps->path, "*") != 0) || strlen(ps->path) > HTTP1_TARGET_MAX ||
        !h2_text_is_visible(ps->path))
        return "the path must begin with '/' and hold no spaces or control characters";
    if (ps->scheme && strcmp(ps->scheme, "http") != 0 && strcmp(ps->scheme, "https") != 0)
        return ":scheme must be http or https";
    if (!authority || !authority[0] || !h2_text_is_visible(authority))
        return ":authority or host is missing or malformed";
    if (ps->authority && ps->host && strcmp(ps->authority, ps->host) != 0)
        return ":authority and host differ";
    q->text = xstrdup(ps->path);
    char *query = strchr(q->text, '?');
    if (query)
        *query++ = '\0';
    r->method = ps->method;
    r->path = q->text;
    r->query = query;
    r->authority = authority;
    r->scheme = ps->scheme;
    r->owner = q->c->link.owner;
    r->version = 20;
    r->tls = !transport_is_plain(q->c->t);
    r->length = q->eof ? 0 : HTTP_UNKNOWN;
    const struct http_fields f = {q->fields, q->nfields};
    const char *length = http_field(&f, "content-length");
    if (!q->eof && length && !num_u64(length, &r->length))
        return "content-length is not a number";
    return NULL;
}

static void h2_refuse(struct h2_stream *q, unsigned status, const char *why)
{
    q->dispatched = true;
    q->c->owned++;
    q->pub.ops = &ops;
    q->pub.loop = q->c->loop;
    q->pub.method = "GET";
    (void)snprintf(q->pub.id, sizeof q->pub.id, "-");
    struct http_owner *o = q->c->link.owner;
    _cleanup_buf_ struct buf body = {0};
    if (o && o->refused)
        o->refused(o, status, why, &body);
    if (body.n > 0)
        http_reply(&q->pub, status, "application/json", body.p, body.n);
    else
        http_reply(&q->pub, status, "text/plain", why, strlen(why));
}

static void h2_send_continue(struct h2_stream *q)
{
    const nghttp2_nv nv = {(uint8_t *)(uintptr_t) ":status", (uint8_t *)(uintptr_t) "100", 7, 3, NGHTTP2_NV_FLAG_NONE};
    (void)nghttp2_submit_headers(q->c->session, NGHTTP2_FLAG_NONE, q->id, NULL, &nv, 1, NULL);
}

void h2_stream_dispatch(struct h2_stream *q)
{
    struct http_req *r = &q->pub;
    struct pseudo ps = {0};
    if (q->too_large) {
        h2_refuse(q, 431, "the fields are too many or too long\n");
        return;
    }
    h2_sort_fields(q, &ps);
    const char *why = h2_fill_request(q, &ps);
    if (!why && strcmp(r->method, "CONNECT") == 0) {
        buf_done(&ps.cookie);
        h2_refuse(q, 501, "CONNECT is not served here\n");
        return;
    }
    if (why) {
        buf_done(&ps.cookie);
        h2_refuse(q, 400, why);
        return;
    }
    if (ps.cookie.n > 0) {
        size_t n = strlen(q->text) + 1, query_n = r->query ? strlen(r->query) + 1 : 0;
        char *text = xmalloc(n + query_n + ps.cookie.n + 1);
        memcpy(text, q->text, n + query_n);
        memcpy(text + n + query_n, ps.cookie.p, ps.cookie.n + 1);
        free(q->text);
        q->text = text;
        r->path = text;
        r->query = query_n ? text + n : NULL;
        q->fields[q->nfields++] = (struct http_field){"cookie", text + n + query_n};
    }
    buf_done(&ps.cookie);
    r->fields = (struct http_fields){q->fields, q->nfields};
    memcpy(r->peer, q->c->link.peer, sizeof r->peer);
    r->ops = &ops;
    q->dispatched = true;
    q->c->owned++;
    q->bodyless = strcmp(r->method, "HEAD") == 0;
    const char *expect = http_field(&r->fields, "expect");
    if (expect && !q->eof && strcmp(expect, "100-continue") == 0)
        h2_send_continue(q);
    http_server_dispatch(q->c->link.server, r);
}

/* ---- its body ---- */

static void h2_consume(struct h2_stream *q, size_t n) { (void)nghttp2_session_consume_stream(q->c->session, q->id, n); }

void h2_stream_data(struct h2_stream *q, const uint8_t *p, size_t n)
{
    if ((q->paused || q->held.n > 0) && !q->ended) { /* held bytes come first, also right after a resume */
        buf_add(&q->held, p, n);
        return;
    }
    if (q->ended) /* dropped, and its window stays shut */
        return;
    if (q->pub.on_data)
        q->pub.on_data(&q->pub, p, n);
    h2_consume(q, n);
}

static void h2_tell_trailers(struct h2_stream *q)
{
    const char *p = buf_str(&q->came), *end = p + q->came.n;
    while (p < end && q->pub.on_trailer) { /* a handler that ends the request in it clears on_trailer */
        const char *name = p, *value = name + strlen(name) + 1;
        p = value + strlen(value) + 1;
        q->pub.on_trailer(&q->pub, name, value);
    }
}

static void h2_hand_on(struct h2_stream *q)
{
    if (q->held.n > 0 && (!q->paused || q->ended)) {
        _cleanup_buf_ struct buf held = q->held;
        q->held = (struct buf){0};
        if (!q->ended && q->pub.on_data) {
            q->pub.on_data(&q->pub, held.p, held.n);
            h2_consume(q, held.n);
        }
    }
    if (q->eof && !q->end_told && !q->ended && !q->paused && q->held.n == 0) {
        q->end_told = true;
        h2_tell_trailers(q);
        if (q->pub.on_end)
            q->pub.on_end(&q->pub);
    }
}

/* ---- the answer ---- */

static nghttp2_nv h2_pair(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name), strlen(value),
                        NGHTTP2_NV_FLAG_NONE};
}

/* Adds "name NUL value NUL" pairs; returns their number. */
static size_t h2_add_pairs(const struct buf *b, nghttp2_nv *nv)
{
    size_t n = 0;
    for (const char *p = buf_str(b), *end = p + b->n; p < end;) {
        const char *value = p + strlen(p) + 1;
        nv[n++] = h2_pair(p, value);
        p = value + strlen(value) + 1;
    }
    return n;
}

static int h2_submit_trailers(struct h2_stream *q)
{
    _cleanup_free_ nghttp2_nv *nv = xcalloc(q->ntrailers, sizeof *nv);
    return nghttp2_submit_trailer(q->c->session, q->id, nv, h2_add_pairs(&q->trailers, nv));
}

static ssize_t h2_read_answer(nghttp2_session *session, int32_t id, uint8_t *p, size_t n, uint32_t *flags,
                              nghttp2_data_source *source, void *arg)
{
    struct h2_stream *q = source->ptr;
    struct iovec v[8];
    size_t used = 0;
    (void)session;
    (void)id;
    (void)arg;
    int count = outq_vectors(&q->out, v, 8);
    for (int i = 0; i < count && used < n; i++) {
        size_t take = v[i].iov_len < n - used ? v[i].iov_len : n - used;
        memcpy(p + used, v[i].iov_base, take);
        used += take;
    }
    outq_drop(&q->out, used);
    if (q->ended && q->out.n == 0) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (q->ntrailers > 0 && h2_submit_trailers(q) == 0)
            *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        return (ssize_t)used;
    }
    if (used == 0) {
        q->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    return (ssize_t)used;
}

static void h2_submit_answer(struct h2_stream *q)
{
    char status[8], length[24];
    _cleanup_free_ nghttp2_nv *nv = xcalloc(q->nset + 4, sizeof *nv);
    size_t n = 0;
    nghttp2_data_provider provider = {.source.ptr = q, .read_callback = h2_read_answer};
    bool empty = q->bodyless || (q->ended && q->out.n == 0 && q->ntrailers == 0);
    (void)snprintf(status, sizeof status, "%u", q->status);
    (void)snprintf(length, sizeof length, "%llu", (unsigned long long)q->length);
    nv[n++] = h2_pair(":status", status);
    if (!q->has_date && !q->pub.bare)
        nv[n++] = h2_pair("date", http_server_date(q->c->link.server));
    if (!q->pub.bare)
        nv[n++] = h2_pair("x-request-id", q->pub.id);
    n += h2_add_pairs(&q->set, nv + n);
    if (q->length != HTTP_UNKNOWN && q->status != 204 && q->status != 304)
        nv[n++] = h2_pair("content-length", length);
    q->submitted = true;
    if (nghttp2_submit_response(q->c->session, q->id, nv, n, empty ? NULL : &provider) != 0)
        q->c->broken = true; /* out of memory, or the stream is gone; not expected for a live stream */
    buf_done(&q->set);
}

void h2_stream_settle(struct h2_stream *q)
{
    if (!q->dispatched)
        return;
    h2_hand_on(q);
    if (q->aborted || q->c->dead)
        return;
    if (q->head_set && !q->submitted && (!q->bodyless || q->ended))
        h2_submit_answer(q);
    if (q->deferred && (q->out.n > 0 || q->ended)) {
        q->deferred = false;
        (void)nghttp2_session_resume_data(q->c->session, q->id);
    }
}

void h2_stream_writable(struct h2_stream *q)
{
    if (!q->over || q->out.n > HTTP_LOW_WATER || q->ended)
        return;
    q->over = false;
    if (q->pub.on_writable)
        q->pub.on_writable(&q->pub);
    h2_wake(q->c);
}

/* ---- what handlers call ---- */

static void h2_op_set(struct http_req *r, const char *name, const char *value)
{
    struct h2_stream *q = (struct h2_stream *)r;
    if (http1_is_hop(name) || strcmp(name, "content-length") == 0 || q->head_set ||
        (!r->bare && strcmp(name, "x-request-id") == 0))
        return;
    q->has_date |= strcmp(name, "date") == 0;
    buf_add(&q->set, name, strlen(name) + 1);
    buf_add(&q->set, value, strlen(value) + 1);
    q->nset++;
}

static void h2_op_head(struct http_req *r, unsigned status, uint64_t length)
{
    struct h2_stream *q = (struct h2_stream *)r;
    if (q->head_set || q->c->dead)
        return;
    q->head_set = true;
    q->status = status;
    q->length = length;
    q->bodyless |= status == 204 || status == 304;
    q->left = q->bodyless ? 0 : length;
    h2_wake(q->c);
}

static bool h2_op_write(struct http_req *r, const void *p, size_t n)
{
    struct h2_stream *q = (struct h2_stream *)r;
    if (!q->head_set || q->ended || q->aborted || q->c->dead)
        return true;
    if (q->left != HTTP_UNKNOWN) {
        n = n < q->left ? n : (size_t)q->left;
        q->left -= n;
    }
    if (n > 0) {
        outq_add(&q->out, p, n);
        h2_wake(q->c);
    }
    q->over |= q->out.n > HTTP_HIGH_WATER;
    return !q->over;
}

static void h2_op_abort(struct http_req *r)
{
    struct h2_stream *q = (struct h2_stream *)r;
    if (q->aborted || q->c->dead)
        return;
    q->aborted = true;
    outq_done(&q->out);
    (void)nghttp2_submit_rst_stream(q->c->session, NGHTTP2_FLAG_NONE, q->id, NGHTTP2_INTERNAL_ERROR);
    h2_wake(q->c);
}

static void h2_op_trailer(struct http_req *r, const char *name, const char *value)
{
    struct h2_stream *q = (struct h2_stream *)r;
    if (http1_is_hop(name) || strcmp(name, "content-length") == 0 || q->ended)
        return;
    buf_add(&q->trailers, name, strlen(name) + 1);
    buf_add(&q->trailers, value, strlen(value) + 1);
    q->ntrailers++;
}

static void h2_op_end(struct http_req *r)
{
    struct h2_stream *q = (struct h2_stream *)r;
    if (q->ended || q->c->dead)
        return;
    if (!q->head_set)
        h2_op_head(r, 500, 0);
    if (q->left != HTTP_UNKNOWN && q->left > 0)
        h2_op_abort(r); /* shorter than announced */
    q->ended = true;
    q->c->owned--;
    h2_wake(q->c);
}

static void h2_op_pause(struct http_req *r, bool on)
{
    struct h2_stream *q = (struct h2_stream *)r;
    q->paused = on;
    h2_wake(q->c);
}

static bool h2_op_upgrade(struct http_req *r)
{
    (void)r;
    return false;
}

static size_t h2_op_queued(const struct http_req *r) { return ((const struct h2_stream *)r)->out.n; }

static const struct http_stream_ops ops = {
    .set = h2_op_set,
    .head = h2_op_head,
    .write = h2_op_write,
    .end = h2_op_end,
    .abort = h2_op_abort,
    .pause = h2_op_pause,
    .upgrade = h2_op_upgrade,
    .queued = h2_op_queued,
    .trailer = h2_op_trailer,
};
