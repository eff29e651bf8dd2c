#include "http/ws.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/ws-int.h"

/* ---- a client's ---- */

struct ws_client {
    size_t max; /* bytes of a message that is held */
    ws_text_fn *on_text;
    void *arg;
    struct ws_frame f;
    enum { NO_MESSAGE, HELD, PASSED } kind; /* of the message that is open */
    bool hold;                              /* this frame's payload goes to `text` */
    bool raw;                               /* all further bytes pass unchanged */
    struct buf text;                        /* of the message so far */
};

struct ws_client *ws_client_new(size_t max, ws_text_fn *on_text, void *arg)
{
    struct ws_client *w = xcalloc(1, sizeof *w);
    w->max = max;
    w->on_text = on_text;
    w->arg = arg;
    return w;
}

void ws_client_free(struct ws_client *w)
{
    if (w)
        buf_done(&w->text);
    free(w);
}

/* Sends the held text unchanged, as the first frame of a message that continues. */
static void ws_client_give_up_message(struct ws_client *w, struct buf *out)
{
    if (w->kind == HELD)
        ws_frame_add_masked(out, WS_TEXT, false, buf_str(&w->text), w->text.n);
    buf_done(&w->text);
    w->kind = PASSED;
}

/* The head of a frame is complete: decides whether its payload is held. */
static void ws_client_frame(struct ws_client *w, struct buf *out)
{
    const struct ws_frame *f = &w->f;
    bool first = f->opcode == WS_TEXT || f->opcode == WS_BINARY, open = w->kind != NO_MESSAGE;
    bool wrong = f->rsv || !f->masked || (!ws_frame_is_control(f) && (f->opcode > WS_BINARY || first == open));
    w->hold = false;
    if (wrong) {
        if (open)
            ws_client_give_up_message(w, out);
        w->raw = true;
    } else if (!ws_frame_is_control(f)) {
        if (first)
            w->kind = f->opcode == WS_TEXT ? HELD : PASSED;
        bool fits = f->left <= w->max - w->text.n;
        if (w->kind == HELD && !fits && first)
            w->kind = PASSED;
        else if (w->kind == HELD && !fits)
            ws_client_give_up_message(w, out);
        w->hold = w->kind == HELD;
    }
    if (!w->hold)
        buf_add(out, f->head, f->have);
}

bool ws_client_feed(struct ws_client *w, const void *bytes, size_t n, struct buf *out)
{
    const uint8_t *p = bytes;
    struct ws_frame *f = &w->f;
    while (n > 0 && !w->raw) {
        bool begun = f->complete;
        if (!ws_frame_take_head(f, &p, &n))
            return true;
        if (!begun)
            ws_client_frame(w, out);
        size_t some = f->left < n ? (size_t)f->left : n;
        if (some > 0)
            buf_add(w->hold ? &w->text : out, p, some);
        if (some > 0 && w->hold)
            ws_xor_mask((uint8_t *)w->text.p + w->text.n - some, some, f->mask, f->done);
        p += some;
        n -= some;
        f->left -= some;
        f->done += some;
        if (f->left > 0 || w->raw)
            continue;
        if (!ws_frame_is_control(f) && f->fin) {
            bool ok = !w->hold || w->on_text(w->arg, buf_str(&w->text), w->text.n, out);
            buf_done(&w->text);
            if (!ok)
                return false;
            w->kind = NO_MESSAGE;
        }
        ws_frame_next(f);
    }
    if (n > 0)
        buf_add(out, p, n);
    return true;
}

/* ---- a server's ---- */

struct ws_server {
    const struct ws_server_events *events;
    void *arg;
    struct ws_frame f;
    bool open;      /* a message has begun */
    uint8_t opcode; /* of its next frame */
    uint8_t control[WS_CONTROL_MAX];
};

struct ws_server *ws_server_new(const struct ws_server_events *events, void *arg)
{
    struct ws_server *w = xcalloc(1, sizeof *w);
    w->events = events;
    w->arg = arg;
    return w;
}

void ws_server_free(struct ws_server *w) { free(w); }

static bool ws_server_frame(struct ws_server *w)
{
    const struct ws_frame *f = &w->f;
    if (f->rsv || f->masked)
        return false;
    if (ws_frame_is_control(f))
        return f->fin && f->left <= WS_CONTROL_MAX && f->opcode <= WS_PONG;
    if (f->opcode > WS_BINARY || (f->opcode == WS_MORE) != w->open)
        return false;
    if (!w->open)
        w->opcode = f->opcode;
    w->open = true;
    return true;
}

static void ws_server_data(struct ws_server *w, const uint8_t *p, size_t n, struct buf *out)
{
    _cleanup_buf_ struct buf text = {0};
    bool last = w->f.fin && w->f.left == n;
    w->events->on_data(w->arg, p, n, last, &text);
    if (!last && text.n == 0)
        return;
    ws_frame_add(out, w->opcode, last, NULL, buf_str(&text), text.n);
    w->opcode = WS_MORE;
    w->open = !last;
}

bool ws_server_feed(struct ws_server *w, const void *bytes, size_t n, struct buf *out)
{
    const uint8_t *p = bytes;
    struct ws_frame *f = &w->f;
    while (n > 0) {
        bool begun = f->complete;
        if (!ws_frame_take_head(f, &p, &n))
            return true;
        if (!begun && !ws_server_frame(w))
            return false;
        size_t some = f->left < n ? (size_t)f->left : n;
        if (ws_frame_is_control(f) && some > 0)
            memcpy(w->control + f->done, p, some);
        else if (!ws_frame_is_control(f) && (some > 0 || f->left == 0))
            ws_server_data(w, p, some, out);
        p += some;
        n -= some;
        f->left -= some;
        f->done += some;
        if (f->left > 0)
            continue;
        if (ws_frame_is_control(f))
            ws_frame_add(out, f->opcode, true, NULL, w->control,
                         w->events->on_control(w->arg, f->opcode, w->control, (size_t)f->done));
        ws_frame_next(f);
    }
    return true;
}
