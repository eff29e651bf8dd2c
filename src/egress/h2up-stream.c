/* h2up-stream.c - requests of one connection: nghttp2's callbacks, and the calls of their owners. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "egress/h2up-int.h"
#include "http/http1.h"

enum { FIELD_COST = 32 /* of a field, besides its bytes */ };

/* ---- streams ---- */

static void h2up_stream_drop(struct h2up_stream *s)
{
    if (s->dropped)
        return;
    s->dropped = true;
    s->u->nstreams--;
    s->ended = false; /* the queue is thrown away below: the stream must not end as if it were complete */
    outq_done(&s->out);
    buf_done(&s->held);
    if (!s->closed && !s->u->dead)
        (void)nghttp2_submit_rst_stream(s->u->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_CANCEL);
    h2up_wake(s->u);
}

void h2up_stream_free(struct h2up_stream *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        s->u->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    outq_done(&s->out);
    buf_done(&s->head);
    buf_done(&s->held);
    buf_done(&s->after);
    free(s);
}

void h2up_stream_fail(struct h2up_stream *s, const char *text)
{
    char reset[160];
    bool untouched = !s->head_done && (s->code == NGHTTP2_REFUSED_STREAM || s->u->broken || s->u->dead);
    if (s->dropped)
        return;
    (void)snprintf(reset, sizeof reset, "%s: %s",
                   s->head_done ? "the answer was cut short" : "the request was reset before an answer came",
                   nghttp2_http2_strerror(s->code));
    h2up_stream_drop(s);
    s->events->answer.on_error(s->arg, untouched ? CLIENT_UNANSWERED : CLIENT_BROKEN, text ? text : reset);
}

/* The next pair of "name NUL value NUL"; NULL at the end. */
static const char *h2up_next_field(const struct buf *b, const char *p, const char **value)
{
    const char *end = buf_str(b) + b->n;
    p = p ? *value + strlen(*value) + 1 : buf_str(b);
    if (p >= end)
        return NULL;
    *value = p + strlen(p) + 1;
    return p;
}

void h2up_stream_finish(struct h2up_stream *s)
{
    _cleanup_buf_ struct buf trailers = s->head;
    s->head = (struct buf){0};
    const char *value = NULL;
    for (const char *name = NULL; s->trailers && (name = h2up_next_field(&trailers, name, &value)) && !s->dropped;)
        if (name[0] != ':')
            s->events->on_trailer(s->arg, name, value);
    if (s->dropped)
        return;
    h2up_stream_drop(s); /* resets the stream if the request has not ended: the answer is complete without it */
    s->events->answer.on_end(s->arg);
}

/* Gives the owner the complete head of an answer: fields and length. */
static void h2up_tell_head(struct h2up_stream *s, unsigned status)
{
    _cleanup_buf_ struct buf head = s->head;
    _cleanup_free_ struct http_field *v = xcalloc(s->nfields + 1, sizeof *v);
    struct http_fields f = {v, 0};
    uint64_t length = s->eof && !s->head_request ? 0 : HTTP_UNKNOWN;
    const char *value = NULL;
    s->head = (struct buf){0};
    s->nfields = 0;
    s->head_done = true;
    for (const char *name = NULL; (name = h2up_next_field(&head, name, &value));)
        if (name[0] != ':')
            v[f.n++] = (struct http_field){name, value};
    const char *declared = http_field(&f, "content-length");
    if (declared)
        (void)num_u64(declared, &length);
    else if (http_field(&f, "grpc-status"))
        length = HTTP_UNKNOWN; /* a trailers-only answer: gRPC clients do not expect a content-length in it */
    s->events->answer.on_head(s->arg, status, &f, length);
}

static void h2up_head_complete(struct h2up_stream *s)
{
    unsigned status = 0;
    const char *value = NULL;
    for (const char *name = NULL; (name = h2up_next_field(&s->head, name, &value));) {
        int number;
        if (strcmp(name, ":status") == 0 && strlen(value) == 3 && num_int(value, 100, 599, &number))
            status = (unsigned)number;
    }
    if (s->too_large) {
        h2up_stream_fail(s, "the head of the answer is too long");
    } else if (status == 0 || status == 101) {
        h2up_stream_fail(s, "the answer has no valid status");
    } else if (status >= 200) {
        h2up_tell_head(s, status);
    } else {
        buf_done(&s->head);
        s->nfields = 0;
        if (++s->interim > H2UP_INTERIM_MAX)
            h2up_stream_fail(s, "too many interim answers");
    }
}

/* ---- nghttp2's callbacks ---- */

static int h2up_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_n,
                          const uint8_t *value, size_t value_n, uint8_t flags, void *arg)
{
    struct h2up_stream *s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    (void)flags;
    (void)arg;
    if (!s || s->dropped || s->too_large)
        return 0;
    if (s->nfields == H2UP_FIELDS_MAX || s->head.n + name_n + value_n + (s->nfields + 1) * FIELD_COST > HTTP_HEAD_MAX) {
        s->too_large = true;
        return 0;
    }
    buf_add(&s->head, name, name_n);
    buf_addc(&s->head, '\0');
    buf_add(&s->head, value, value_n);
    buf_addc(&s->head, '\0');
    s->nfields++;
    return 0;
}

static int h2up_on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct h2up *u = arg;
    if (h2_flooded(&u->flood, &frame->hd, loop_now(u->loop))) {
        u->broken = true; /* h2up_lose() tells its requests */
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    if (frame->hd.type == NGHTTP2_GOAWAY)
        u->leaving = true;
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    struct h2up_stream *s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!s || s->dropped)
        return 0;
    s->eof |= (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (frame->hd.type == NGHTTP2_HEADERS && !s->head_done)
        h2up_head_complete(s);
    else if (frame->hd.type == NGHTTP2_HEADERS)
        s->trailers = !s->too_large;
    return u->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int h2up_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n, void *arg)
{
    struct h2up *u = arg;
    struct h2up_stream *s = nghttp2_session_get_stream_user_data(session, id);
    (void)flags;
    /* The connection's window is shared: a paused request must not stop the others. */
    (void)nghttp2_session_consume_connection(session, n);
    if (!s || s->dropped) {
        (void)nghttp2_session_consume_stream(session, id, n);
    } else if (s->paused || s->held.n > 0) {
        buf_add(&s->held, p, n);
    } else {
        s->events->answer.on_data(s->arg, p, n);
        if (!u->dead)
            (void)nghttp2_session_consume_stream(session, id, n);
    }
    return u->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int h2up_on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
    struct h2up_stream *s = nghttp2_session_get_stream_user_data(session, id);
    (void)arg;
    if (s) {
        s->closed = true;
        s->code = code;
        (void)nghttp2_session_set_stream_user_data(session, id, NULL);
    }
    return 0;
}

int h2up_make_session(struct h2up *u)
{
    nghttp2_session_callbacks *cb = NULL;
    nghttp2_option *option = NULL;
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2UP_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_HEAD_MAX},
    };
    int status = -1;
    if (nghttp2_session_callbacks_new(&cb) == 0 && nghttp2_option_new(&option) == 0) {
        nghttp2_session_callbacks_set_on_header_callback(cb, h2up_on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(cb, h2up_on_frame);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, h2up_on_data);
        nghttp2_session_callbacks_set_on_stream_close_callback(cb, h2up_on_stream_close);
        nghttp2_option_set_no_auto_window_update(option, 1);
        nghttp2_option_set_no_closed_streams(option, 1);
        status = nghttp2_session_client_new2(&u->session, cb, u, option);
        if (status == 0)
            status = nghttp2_submit_settings(u->session, NGHTTP2_FLAG_NONE, settings, ARRAY_LEN(settings));
        if (status == 0)
            status = nghttp2_session_set_local_window_size(u->session, NGHTTP2_FLAG_NONE, 0, H2UP_CONNECTION_WINDOW);
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(cb);
    return status == 0 ? 0 : -1;
}

/* ---- the turn of a request ---- */

void h2up_stream_settle(struct h2up_stream *s)
{
    if (!s->dropped && !s->paused && s->held.n > 0) {
        _cleanup_buf_ struct buf held = s->held;
        s->held = (struct buf){0};
        s->events->answer.on_data(s->arg, held.p, held.n);
        if (!s->closed && !s->u->dead)
            (void)nghttp2_session_consume_stream(s->u->session, s->id, held.n);
    }
    if (s->dropped || s->u->dead)
        return;
    if (s->eof && s->head_done && !s->paused && s->held.n == 0)
        h2up_stream_finish(s);
    else if (s->closed && !(s->eof && s->head_done))
        h2up_stream_fail(s, NULL);
    else if (s->deferred && !s->closed && (s->out.n > 0 || s->ended)) {
        s->deferred = false;
        (void)nghttp2_session_resume_data(s->u->session, s->id);
    }
}

void h2up_stream_writable(struct h2up_stream *s)
{
    if (s->dropped || !s->over || s->out.n > HTTP_LOW_WATER || s->ended)
        return;
    s->over = false;
    s->events->answer.on_writable(s->arg);
}

/* ---- what owners ask for ---- */

static nghttp2_nv h2up_field(const char *name, const char *value, uint8_t flags)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name), strlen(value), flags};
}

static int h2up_submit_trailers(struct h2up_stream *s)
{
    _cleanup_free_ nghttp2_nv *nv = xcalloc(s->nafter, sizeof *nv);
    const char *value = NULL;
    size_t n = 0;
    for (const char *name = NULL; n < s->nafter && (name = h2up_next_field(&s->after, name, &value));)
        nv[n++] = h2up_field(name, value, 0);
    return nghttp2_submit_trailer(s->u->session, s->id, nv, n);
}

static ssize_t h2up_read_body(nghttp2_session *session, int32_t id, uint8_t *p, size_t n, uint32_t *flags,
                              nghttp2_data_source *source, void *arg)
{
    struct h2up_stream *s = source->ptr;
    struct iovec v[8];
    size_t used = 0;
    (void)session;
    (void)id;
    (void)arg;
    int count = outq_vectors(&s->out, v, 8);
    for (int i = 0; i < count && used < n; i++) {
        size_t take = v[i].iov_len < n - used ? v[i].iov_len : n - used;
        memcpy(p + used, v[i].iov_base, take);
        used += take;
    }
    outq_drop(&s->out, used);
    if (s->ended && s->out.n == 0) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (s->nafter > 0 && h2up_submit_trailers(s) == 0)
            *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        return (ssize_t)used;
    }
    if (used == 0) {
        s->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    return (ssize_t)used;
}

static bool h2up_sets_field(const struct http_field *f)
{
    bool te = strcmp(f->name, "te") == 0 && strcmp(f->value, "trailers") == 0;
    return (http1_is_hop(f->name) && !te) || strcmp(f->name, "host") == 0 || strcmp(f->name, "content-length") == 0;
}

static int h2up_submit(struct h2up_stream *s, const struct client_request *q, const char *scheme)
{
    char length[24];
    _cleanup_free_ nghttp2_nv *nv = xcalloc(q->fields.n + 5, sizeof *nv);
    size_t n = 0;
    nghttp2_data_provider provider = {.source.ptr = s, .read_callback = h2up_read_body};
    const uint8_t kept = q->secret ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE;
    nv[n++] = h2up_field(":method", q->method, 0);
    nv[n++] = h2up_field(":scheme", scheme, 0);
    nv[n++] = h2up_field(":authority", q->host, 0);
    nv[n++] = h2up_field(":path", q->target, kept);
    for (size_t i = 0; i < q->fields.n; i++)
        if (!h2up_sets_field(&q->fields.v[i]))
            nv[n++] = h2up_field(q->fields.v[i].name, q->fields.v[i].value, kept);
    (void)snprintf(length, sizeof length, "%llu", (unsigned long long)q->length);
    if (q->length != HTTP_UNKNOWN && q->length > 0)
        nv[n++] = h2up_field("content-length", length, 0);
    return nghttp2_submit_request(s->u->session, NULL, nv, n, q->length == 0 ? NULL : &provider, s);
}

struct h2up_stream *h2up_start(struct h2up *u, const struct client_request *q, const char *scheme,
                               const struct h2up_events *events, void *arg)
{
    struct h2up_stream *s = xcalloc(1, sizeof *s);
    *s = (struct h2up_stream){.u = u, .events = events, .arg = arg, .next = u->streams};
    s->head_request = strcmp(q->method, "HEAD") == 0;
    s->ended = q->length == 0;
    if (s->next)
        s->next->prev = s;
    u->streams = s;
    u->nstreams++;
    s->id = u->dead ? -1 : h2up_submit(s, q, scheme);
    if (s->id < 0) { /* told by h2up_settle() */
        s->closed = true;
        s->code = NGHTTP2_REFUSED_STREAM;
    }
    h2up_wake(u);
    return s;
}

bool h2up_write(struct h2up_stream *s, const void *p, size_t n)
{
    if (s->dropped || s->ended || s->closed)
        return true;
    outq_add(&s->out, p, n);
    h2up_wake(s->u);
    s->over |= s->out.n > HTTP_HIGH_WATER;
    return !s->over;
}

void h2up_trailer(struct h2up_stream *s, const char *name, const char *value)
{
    if (s->dropped || s->ended || s->closed)
        return;
    buf_add(&s->after, name, strlen(name) + 1);
    buf_add(&s->after, value, strlen(value) + 1);
    s->nafter++;
}

void h2up_end(struct h2up_stream *s)
{
    s->ended = true;
    h2up_wake(s->u);
}

void h2up_pause(struct h2up_stream *s) { s->paused = true; }

void h2up_resume(struct h2up_stream *s)
{
    s->paused = false;
    h2up_wake(s->u);
}

void h2up_cancel(struct h2up_stream *s) { h2up_stream_drop(s); }
