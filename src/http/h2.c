#include "http/h2.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/h2-int.h"

enum { BATCH = 64 * 1024 /* frames gathered before they are written */, VECTORS = 16 };

static void h2_settle(struct h2_conn *c);
static void h2_on_timer(void *arg);

/* The timer closes a connection on which no handler works: an idle one, or one whose client does not read its
 * answers. */
static void h2_set_timer(struct h2_conn *c)
{
    const struct http_limits *limits = http_server_limits(c->link.server);
    loop_timer_del(c->loop, c->timer);
    c->moved = false;
    c->timer = loop_timer(c->loop, c->requests > 0 ? limits->idle_ms : limits->head_ms, h2_on_timer, c);
}

static void h2_release(void *arg)
{
    struct h2_conn *c = arg;
    while (c->streams)
        h2_stream_free(c->streams);
    nghttp2_session_del(c->session);
    free(c);
}

/* Closes the connection and calls on_closed of requests that handlers hold. Frees memory later: callers up the stack,
 * nghttp2 among them, still use it. */
static void h2_lose(struct h2_conn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    loop_timer_del(c->loop, c->timer);
    loop_timer_del(c->loop, c->lingerer);
    loop_fd_del(c->loop, c->watch);
    http_server_detach(&c->link);
    c->t->ops->shutdown(c->t);
    c->t->ops->free(c->t);
    for (struct h2_stream *q = c->streams; q; q = q->next)
        h2_stream_lost(q);
    outq_done(&c->out);
    loop_defer(c->loop, h2_release, c);
    http_server_gone(&c->link);
}

static void h2_leave(struct h2_conn *c, uint32_t code)
{
    if (c->leaving)
        return;
    c->leaving = true;
    (void)nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->session),
                                code, NULL, 0);
    h2_wake(c);
}

static void h2_on_timer(void *arg)
{
    struct h2_conn *c = arg;
    c->timer = 0;
    if (c->owned > 0 || c->moved) {
        h2_set_timer(c);
    } else if (c->streams || c->leaving) {
        h2_lose(c); /* the client does not take its answers */
    } else {
        h2_leave(c, NGHTTP2_NO_ERROR);
        h2_set_timer(c);
    }
}

/* ---- nghttp2's callbacks ---- */

static void h2_count_reset(struct h2_conn *c)
{
    uint64_t now = loop_now(c->loop);
    if (now - c->resets_from > H2_RESETS_MS) {
        c->resets_from = now;
        c->resets = 0;
    }
    if (++c->resets > H2_RESETS && !c->leaving) {
        c->leaving = true;
        (void)nghttp2_session_terminate_session(c->session, NGHTTP2_ENHANCE_YOUR_CALM);
        h2_wake(c);
    }
}

static int h2_on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct h2_conn *c = arg;
    if (c->dead)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    struct h2_stream *q = h2_stream_new(c, frame->hd.stream_id);
    (void)nghttp2_session_set_stream_user_data(session, q->id, q);
    return 0;
}

static int h2_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_n,
                        const uint8_t *value, size_t value_n, uint8_t flags, void *arg)
{
    struct h2_stream *q = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    (void)flags;
    (void)arg;
    if (q && !q->dispatched)
        h2_stream_field(q, name, name_n, value, value_n);
    else if (q)
        h2_stream_trailer(q, name, name_n, value, value_n);
    return 0;
}

static void h2_on_request(struct h2_conn *c, struct h2_stream *q)
{
    const struct http_limits *limits = http_server_limits(c->link.server);
    c->requests++;
    h2_stream_dispatch(q);
    if (limits->requests && c->requests >= limits->requests)
        h2_leave(c, NGHTTP2_NO_ERROR);
}

static int h2_on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct h2_conn *c = arg;
    if (h2_flooded(&c->flood, &frame->hd, loop_now(c->loop)) && !c->leaving) {
        c->leaving = true;
        (void)nghttp2_session_terminate_session(c->session, NGHTTP2_ENHANCE_YOUR_CALM);
        h2_wake(c);
        return 0;
    }
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    struct h2_stream *q = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!q)
        return 0;
    q->eof |= (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (frame->hd.type == NGHTTP2_HEADERS && !q->dispatched)
        h2_on_request(c, q);
    h2_wake(c);
    return 0;
}

static int h2_on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n, void *arg)
{
    struct h2_stream *q = nghttp2_session_get_stream_user_data(session, id);
    (void)flags;
    (void)arg;
    /* All streams share the connection's window: a paused request must not stop the others. */
    (void)nghttp2_session_consume_connection(session, n);
    if (q)
        h2_stream_data(q, p, n);
    else
        (void)nghttp2_session_consume_stream(session, id, n);
    return 0;
}

/* The answer ended before its request: reset the stream, as the rest of the request is not wanted. But clients that are
 * still sending take an immediate reset for a failure and drop the answer; so wait a moment, with their window shut. */
static void h2_on_linger_over(void *arg)
{
    struct h2_conn *c = arg;
    uint64_t now = loop_now(c->loop);
    bool more = false;
    c->lingerer = 0;
    for (struct h2_stream *q = c->streams; q; q = q->next) {
        if (q->lingers && q->linger_from + H2_LINGER_MS <= now)
            (void)nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, q->id, NGHTTP2_NO_ERROR);
        else
            more |= q->lingers;
    }
    if (more)
        c->lingerer = loop_timer(c->loop, H2_LINGER_MS, h2_on_linger_over, c);
    h2_wake(c);
}

static int h2_on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct h2_conn *c = arg;
    if ((frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) ||
        !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    struct h2_stream *q = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (q && !q->eof) {
        q->lingers = true;
        q->linger_from = loop_now(c->loop);
        if (!c->lingerer)
            c->lingerer = loop_timer(c->loop, H2_LINGER_MS, h2_on_linger_over, c);
    }
    return 0;
}

static int h2_on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
    struct h2_conn *c = arg;
    struct h2_stream *q = nghttp2_session_get_stream_user_data(session, id);
    if (!q)
        return 0;
    if (code != NGHTTP2_NO_ERROR && !q->aborted && !q->lingers)
        h2_count_reset(c);
    (void)nghttp2_session_set_stream_user_data(session, id, NULL);
    h2_stream_lost(q);
    h2_stream_free(q);
    h2_wake(c);
    return 0;
}

static int h2_make_session(struct h2_conn *c)
{
    nghttp2_session_callbacks *cb = NULL;
    nghttp2_option *option = NULL;
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, H2_STREAMS},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_HEAD_MAX},
    };
    int status = -1;
    if (nghttp2_session_callbacks_new(&cb) == 0 && nghttp2_option_new(&option) == 0) {
        nghttp2_session_callbacks_set_on_begin_headers_callback(cb, h2_on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(cb, h2_on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(cb, h2_on_frame_recv);
        nghttp2_session_callbacks_set_on_frame_send_callback(cb, h2_on_frame_send);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, h2_on_data_chunk);
        nghttp2_session_callbacks_set_on_stream_close_callback(cb, h2_on_stream_close);
        nghttp2_option_set_no_auto_window_update(option, 1);
        nghttp2_option_set_no_closed_streams(option, 1);
        status = nghttp2_session_server_new2(&c->session, cb, c, option);
        if (status == 0)
            status = nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings, ARRAY_LEN(settings));
        if (status == 0)
            status = nghttp2_session_set_local_window_size(c->session, NGHTTP2_FLAG_NONE, 0, H2_CONNECTION_WINDOW);
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(cb);
    return status == 0 ? 0 : -1;
}

/* ---- bytes ---- */

static void h2_write_out(struct h2_conn *c)
{
    while (c->out.n > 0 && !c->blocked && !c->broken) {
        struct iovec v[VECTORS];
        int n = outq_vectors(&c->out, v, VECTORS);
        ssize_t sent = c->t->ops->writev(c->t, v, n);
        if (sent >= 0) {
            outq_drop(&c->out, (size_t)sent);
            c->moved |= sent > 0;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            c->blocked = true;
        } else if (errno != EINTR) {
            c->broken = true;
        }
    }
}

/* Makes frames only as fast as the kernel takes them; other bytes wait in the queues of their streams. */
static void h2_pump(struct h2_conn *c)
{
    h2_write_out(c);
    while (c->out.n == 0 && !c->broken) {
        const uint8_t *p;
        ssize_t n = 1;
        while (n > 0 && c->out.n < BATCH) {
            n = nghttp2_session_mem_send(c->session, &p);
            if (n > 0)
                outq_add(&c->out, p, (size_t)n);
        }
        if (n < 0)
            c->broken = true;
        if (c->out.n == 0)
            return;
        h2_write_out(c);
    }
}

/* Reads even if the client does not: the streams, resets and acknowledgements that it can cause are all limited. */
static bool h2_is_reading(const struct h2_conn *c)
{
    return !c->broken && !c->dead && nghttp2_session_want_read(c->session);
}

static void h2_read(struct h2_conn *c)
{
    for (int i = 0; i < HTTP_READ_BUDGET && h2_is_reading(c); i++) {
        uint8_t *buffer = http_server_buffer(c->link.server);
        ssize_t n = c->t->ops->read(c->t, buffer, HTTP_READ_BUFFER);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return;
        if (n <= 0) {
            c->broken = true;
            return;
        }
        c->moved = true;
        ssize_t used = nghttp2_session_mem_recv(c->session, buffer, (size_t)n);
        explicit_bzero(buffer, (size_t)n); /* all connections share it, and it may hold a secret */
        if (c->dead)
            return;
        if (used < 0) {
            c->broken =
                true; /* not HTTP/2, or a flood that nghttp2 gave up on; it has queued a GOAWAY where it could */
            return;
        }
        if (n < HTTP_READ_BUFFER && !c->t->ops->pending(c->t))
            return;
    }
}

/* ---- the loop ---- */

static void h2_set_watch(struct h2_conn *c)
{
    unsigned events = LOOP_HUP | (h2_is_reading(c) ? c->t->ops->wants_read(c->t) : 0) |
                      (c->out.n > 0 ? c->t->ops->wants_write(c->t) : 0);
    if (events != c->events)
        loop_fd_set(c->loop, c->watch, events);
    c->events = events;
}

static void h2_settle(struct h2_conn *c)
{
    struct h2_stream *next;
    c->busy = true;
    if (!c->broken && h2_is_reading(c) && c->t->ops->pending(c->t))
        h2_read(c);
    for (struct h2_stream *q = c->dead ? NULL : c->streams; q; q = next) {
        next = q->next;
        h2_stream_settle(q);
    }
    if (!c->dead)
        h2_pump(c); /* may free streams */
    c->busy = false;
    for (struct h2_stream *q = c->dead ? NULL : c->streams; q; q = next) {
        next = q->next;
        h2_stream_writable(q);
    }
    if (c->dead)
        return;
    bool finished = c->out.n == 0 && c->leaving && !c->streams;
    if (c->broken || finished || (c->out.n == 0 && !nghttp2_session_want_read(c->session))) {
        h2_lose(c);
        return;
    }
    if (h2_is_reading(c) && c->t->ops->pending(c->t))
        h2_wake(c);
    h2_set_watch(c);
}

static void h2_on_settle(void *arg)
{
    struct h2_conn *c = arg;
    if (!c->dead)
        h2_settle(c);
}

void h2_wake(struct h2_conn *c)
{
    if (c->busy || c->dead)
        return;
    c->busy = true;
    loop_defer(c->loop, h2_on_settle, c);
}

static void h2_on_event(void *arg, int fd, unsigned events)
{
    struct h2_conn *c = arg;
    (void)fd;
    bool later = c->busy; /* a settle is due anyway */
    c->busy = true;
    c->blocked = false;
    if (events & (LOOP_IN | LOOP_RDHUP))
        h2_read(c);
    else if (events & LOOP_HUP)
        c->broken = true;
    if (c->dead)
        return;
    if (!later)
        h2_settle(c);
}

static void h2_on_drain(struct http_link *link) { h2_leave((struct h2_conn *)link, NGHTTP2_NO_ERROR); }
static void h2_on_kill(struct http_link *link) { h2_lose((struct h2_conn *)link); }

int h2_serve(struct http_server *s, struct transport *t, const char *peer)
{
    struct h2_conn *c = xcalloc(1, sizeof *c);
    c->link.drain = h2_on_drain;
    c->link.kill = h2_on_kill;
    c->loop = http_server_loop(s);
    c->t = t;
    c->resets_from = loop_now(c->loop);
    c->watch = h2_make_session(c) == 0 ? loop_fd_add(c->loop, t->fd, LOOP_IN, h2_on_event, c) : 0;
    if (c->watch == 0) {
        nghttp2_session_del(c->session);
        t->ops->free(t);
        free(c);
        return -1;
    }
    c->events = LOOP_IN;
    http_server_attach(s, &c->link, peer);
    h2_set_timer(c);
    h2_wake(c); /* our settings, and what TLS has read already */
    return 0;
}
