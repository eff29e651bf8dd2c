#include "http/ws-serve.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "http/http1.h"
#include "http/ws-int.h"

enum {
    GOODBYE_MS = 5000, /* a client has to answer our close, and to close its direction */
    KEY_BYTES = 16,
    REASON_MAX = WS_CONTROL_MAX - 2,
};

struct ws {
    struct http_req *r;
    struct loop *loop;
    const struct ws_events *events; /* NULL: the caller hung up */
    void *arg;
    size_t max; /* bytes of a message */
    struct ws_frame f;
    uint8_t control[WS_CONTROL_MAX];
    struct buf message;
    uint8_t opcode; /* of the open message; WS_MORE: none */
    bool closing;   /* our close frame was sent */
    bool ended;     /* our direction is closed */
    bool full;      /* ws_send() returned false */
    unsigned busy;  /* calls under way: it is not freed below them */
    bool dead;      /* to be freed once they are over */
    loop_id timer;
};

/* ---- the end ---- */

static void ws_free(struct ws *w)
{
    loop_timer_del(w->loop, w->timer);
    buf_done(&w->message);
    free(w);
}

/* The request is gone, or both its directions are closed: nothing comes any more. */
static void ws_gone(struct ws *w)
{
    const struct ws_events *events = w->events;
    w->events = NULL;
    w->dead = true;
    if (events)
        events->on_closed(w->arg);
    if (w->busy == 0)
        ws_free(w);
}

static void ws_on_closed(struct http_req *r) { ws_gone(r->user); }

static void ws_on_goodbye_late(void *arg)
{
    struct ws *w = arg;
    w->timer = 0;
    http_abort(w->r); /* ws_on_closed() follows */
}

/* Closes our direction. The client's may be open: what it sends is dropped, and it has a moment to close it. */
static void ws_end(struct ws *w)
{
    if (w->ended)
        return;
    w->ended = true;
    http_end(w->r);
    w->r->on_closed = ws_on_closed;
}

static void ws_send_close(struct ws *w, uint16_t code, const char *reason)
{
    _cleanup_buf_ struct buf out = {0};
    uint8_t text[WS_CONTROL_MAX] = {(uint8_t)(code >> 8), (uint8_t)code};
    size_t n = reason ? strnlen(reason, REASON_MAX) : 0;
    if (w->closing)
        return;
    if (n > 0)
        memcpy(text + 2, reason, n);
    ws_frame_add(&out, WS_CLOSE, true, NULL, text, code ? n + 2 : 0);
    (void)http_write(w->r, out.p, out.n);
    w->closing = true;
    w->timer = loop_timer(w->loop, GOODBYE_MS, ws_on_goodbye_late, w);
    http_resume(w->r);
}

void ws_hang_up(struct ws *w, uint16_t code, const char *reason)
{
    w->events = NULL;
    ws_send_close(w, code, reason);
}

/* The client did what it must not: it is told, and the caller hears that the socket is gone. */
static void ws_refuse(struct ws *w, uint16_t code, const char *reason)
{
    const struct ws_events *events = w->events;
    w->events = NULL;
    ws_send_close(w, code, reason);
    if (events)
        events->on_closed(w->arg);
}

/* ---- reading ---- */

/* There is room for its payload, which holds also after our close. */
static bool ws_control_fits(const struct ws_frame *f) { return !ws_frame_is_control(f) || f->left <= WS_CONTROL_MAX; }

static bool ws_frame_is_right(struct ws *w)
{
    const struct ws_frame *f = &w->f;
    if (f->rsv || !f->masked)
        ws_refuse(w, WS_PROTOCOL, f->rsv ? "no extension was negotiated" : "a client must mask its frames");
    else if (ws_frame_is_control(f) && (!f->fin || !ws_control_fits(f) || f->opcode > WS_PONG))
        ws_refuse(w, WS_PROTOCOL, "wrong control frame");
    else if (!ws_frame_is_control(f) && (f->opcode > WS_BINARY || (f->opcode == WS_MORE) != (w->opcode != WS_MORE)))
        ws_refuse(w, WS_PROTOCOL, "wrong order of frames");
    else if (!ws_frame_is_control(f) && f->left > w->max - w->message.n)
        ws_refuse(w, WS_TOO_LONG, "the message is too long");
    else
        return true;
    return false;
}

/* A client that floods us with pings and does not read gets no answers beyond the mark. */
static void ws_take_control(struct ws *w)
{
    _cleanup_buf_ struct buf out = {0};
    size_t n = (size_t)w->f.done;
    if (w->f.opcode == WS_PING && http_queued(w->r) < HTTP_HIGH_WATER) {
        ws_frame_add(&out, WS_PONG, true, NULL, w->control, n);
        (void)http_write(w->r, out.p, out.n);
    } else if (w->f.opcode == WS_CLOSE) {
        const struct ws_events *events = w->events;
        unsigned code = n >= 2 ? (unsigned)w->control[0] << 8 | w->control[1] : 0;
        w->events = NULL;
        ws_send_close(w, code >= WS_NORMAL && code < 5000 ? (uint16_t)code : 0, NULL);
        if (events)
            events->on_closed(w->arg);
        ws_end(w);
    }
}

static bool ws_is_text(const struct buf *b)
{
    for (const char *p = buf_str(b), *end = p + b->n; p < end; p += strlen(p) + 1) /* NUL is a character, too */
        if (!json_may_hold(p))
            return false;
    return true;
}

static void ws_take_message(struct ws *w)
{
    bool text = w->opcode == WS_TEXT;
    w->opcode = WS_MORE;
    struct buf message = w->message;
    w->message = (struct buf){0};
    if (text && !ws_is_text(&message))
        ws_refuse(w, WS_NO_TEXT, "the text is not UTF-8");
    else if (w->events)
        w->events->on_message(w->arg, text, buf_str(&message), message.n);
    buf_done(&message);
}

static void ws_take_payload(struct ws *w, const uint8_t *p, size_t n)
{
    struct ws_frame *f = &w->f;
    if (ws_frame_is_control(f)) {
        memcpy(w->control + f->done, p, n);
        ws_xor_mask(w->control + f->done, n, f->mask, f->done);
    } else {
        buf_add(&w->message, p, n);
        ws_xor_mask((uint8_t *)w->message.p + w->message.n - n, n, f->mask, f->done);
    }
    f->left -= n;
    f->done += n;
}

static void ws_take_frame(struct ws *w)
{
    if (ws_frame_is_control(&w->f))
        ws_take_control(w);
    else if (w->f.fin)
        ws_take_message(w);
    ws_frame_next(&w->f);
}

/* What follows our close is dropped, but for the client's close. */
static bool ws_is_open(const struct ws *w) { return !w->dead && !w->ended; }

static void ws_on_data(struct http_req *r, const void *bytes, size_t n)
{
    struct ws *w = r->user;
    struct ws_frame *f = &w->f;
    const uint8_t *p = bytes;
    w->busy++;
    while (n > 0 && ws_is_open(w)) {
        bool begun = f->complete;
        if (!ws_frame_take_head(f, &p, &n))
            break;
        if (!begun && (w->closing ? !f->masked || !ws_control_fits(f) : !ws_frame_is_right(w))) {
            ws_end(w);
            break;
        }
        if (!begun && !ws_frame_is_control(f) && f->opcode != WS_MORE)
            w->opcode = f->opcode;
        size_t some = f->left < n ? (size_t)f->left : n;
        if (w->closing && !ws_frame_is_control(f))
            f->left -= some;
        else if (some > 0)
            ws_take_payload(w, p, some);
        p += some;
        n -= some;
        if (f->left > 0)
            continue;
        if (w->closing && f->opcode != WS_CLOSE)
            ws_frame_next(f);
        else
            ws_take_frame(w);
    }
    w->busy--;
    if (w->dead && w->busy == 0)
        ws_free(w);
}

/* The client's direction is closed; without a close frame it just left. */
static void ws_on_end(struct http_req *r)
{
    struct ws *w = r->user;
    w->busy++;
    ws_end(w); /* the last call: nothing comes after it, not even on_closed */
    w->busy--;
    ws_gone(w);
}

static void ws_on_writable(struct http_req *r)
{
    struct ws *w = r->user;
    if (!w->full)
        return;
    w->full = false;
    if (w->events && w->events->on_writable)
        w->events->on_writable(w->arg);
}

/* ---- what callers use ---- */

bool ws_send(struct ws *w, bool text, const void *p, size_t n)
{
    _cleanup_buf_ struct buf out = {0};
    if (w->closing)
        return true;
    ws_frame_add(&out, text ? WS_TEXT : WS_BINARY, true, NULL, p, n);
    w->full |= !http_write(w->r, out.p, out.n);
    return !w->full;
}

void ws_pause(struct ws *w, bool on)
{
    if (on && !w->closing)
        http_pause(w->r);
    else
        http_resume(w->r);
}

size_t ws_queued(const struct ws *w) { return http_queued(w->r); }

bool ws_is_wanted(const struct http_req *r)
{
    const char *upgrade = http_field(&r->fields, "upgrade");
    return upgrade && strcasecmp(upgrade, "websocket") == 0;
}

bool ws_offer(const struct http_req *r, const char *prefix, struct buf *ret)
{
    size_t want = strlen(prefix);
    for (size_t i = 0; i < r->fields.n; i++) {
        if (strcmp(r->fields.v[i].name, "sec-websocket-protocol") != 0)
            continue;
        for (const char *p = r->fields.v[i].value + strspn(r->fields.v[i].value, ", \t"); *p; p += strspn(p, ", \t")) {
            size_t n = strcspn(p, ", \t");
            if (n >= want && strncmp(p, prefix, want) == 0) {
                buf_add(ret, p + want, n - want);
                return true;
            }
            p += n;
        }
    }
    return false;
}

const char *ws_fault(const struct http_req *r)
{
    const char *key = http_field(&r->fields, "sec-websocket-key"),
               *version = http_field(&r->fields, "sec-websocket-version");
    _cleanup_buf_ struct buf bytes = {0};
    if (!ws_is_wanted(r) || r->version != 11 || strcmp(r->method, "GET") != 0 ||
        !http1_has_token(&r->fields, "connection", "upgrade"))
        return "this address is a WebSocket: GET it over HTTP/1.1 with 'connection: upgrade' and 'upgrade: websocket'";
    if (!version || strcmp(version, "13") != 0)
        return "sec-websocket-version must be 13";
    if (!key || !base64_decode(&bytes, key, strlen(key)) || bytes.n != KEY_BYTES)
        return "sec-websocket-key must be 16 bytes in base64";
    return NULL;
}

struct ws *ws_serve(struct http_req *r, const char *protocol, size_t max, const struct ws_events *events, void *arg,
                    const char **why)
{
    _cleanup_buf_ struct buf accept = {0};
    if ((*why = ws_fault(r)))
        return NULL;
    if (!ws_accept_key(http_field(&r->fields, "sec-websocket-key"), &accept)) {
        *why = "the handshake could not be answered";
        return NULL;
    }
    http_set(r, "upgrade", "websocket");
    http_set(r, "sec-websocket-accept", buf_str(&accept));
    if (protocol)
        http_set(r, "sec-websocket-protocol", protocol);
    if (!http_upgrade(r)) {
        *why = "a request with a body cannot become a WebSocket";
        return NULL;
    }
    struct ws *w = xcalloc(1, sizeof *w);
    *w = (struct ws){.r = r, .loop = r->loop, .events = events, .arg = arg, .max = max};
    r->user = w;
    r->on_data = ws_on_data;
    r->on_end = ws_on_end;
    r->on_writable = ws_on_writable;
    r->on_closed = ws_on_closed;
    return w;
}
