#include "egress/ws.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/random.h"
#include "egress/secrets-int.h"

enum { HEAD_MAX = 14, CONTROL_MAX = 125, OP_MORE = 0, OP_TEXT = 1, OP_BINARY = 2, OP_CLOSE = 8, OP_PONG = 10 };

/* ---- frames ---- */

struct frame {
    uint8_t head[HEAD_MAX];
    size_t have;   /* bytes of the head */
    bool complete; /* the head: what follows is known, and `left` bytes of payload are to come */
    bool fin, rsv, masked;
    uint8_t opcode;
    uint8_t mask[4];
    uint64_t left, done; /* of the payload */
};

static size_t head_size(const struct frame *f)
{
    if (f->have < 2)
        return 2;
    size_t length = f->head[1] & 0x7f;
    return 2 + (length == 126 ? 2u : length == 127 ? 8u : 0u) + (f->head[1] & 0x80 ? 4u : 0u);
}

static void read_head(struct frame *f)
{
    size_t at = 2, length = f->head[1] & 0x7f;
    f->complete = true;
    f->fin = f->head[0] & 0x80;
    f->rsv = f->head[0] & 0x70;
    f->opcode = f->head[0] & 0x0f;
    f->masked = f->head[1] & 0x80;
    f->left = length;
    f->done = 0;
    if (length == 126) {
        f->left = (uint64_t)f->head[2] << 8 | f->head[3];
        at += 2;
    } else if (length == 127) {
        memcpy(&f->left, f->head + 2, 8);
        f->left = be64toh(f->left);
        at += 8;
    }
    if (f->masked)
        memcpy(f->mask, f->head + at, 4);
}

/* Takes bytes of the head; true once it is complete. */
static bool take_head(struct frame *f, const uint8_t **p, size_t *n)
{
    while (!f->complete && *n > 0) {
        f->head[f->have++] = *(*p)++;
        (*n)--;
        if (f->have == head_size(f))
            read_head(f);
    }
    return f->complete;
}

static void next_frame(struct frame *f)
{
    f->have = 0;
    f->complete = false;
}

static bool is_control(const struct frame *f) { return f->opcode >= OP_CLOSE; }

static void xor_mask(uint8_t *p, size_t n, const uint8_t mask[4], uint64_t from)
{
    for (size_t i = 0; i < n; i++)
        p[i] ^= mask[(from + i) & 3];
}

/* mask NULL: none. */
static void add_frame(struct buf *out, uint8_t opcode, bool fin, const uint8_t *mask, const void *p, size_t n)
{
    uint8_t head[HEAD_MAX] = {(uint8_t)(opcode | (fin ? 0x80 : 0))};
    size_t size = 2;
    uint64_t wide = htobe64(n);
    if (n < 126) {
        head[1] = (uint8_t)n;
    } else if (n <= UINT16_MAX) {
        head[1] = 126;
        head[2] = (uint8_t)(n >> 8);
        head[3] = (uint8_t)n;
        size = 4;
    } else {
        head[1] = 127;
        memcpy(head + 2, &wide, 8);
        size = 10;
    }
    if (mask) {
        head[1] |= 0x80;
        memcpy(head + size, mask, 4);
        size += 4;
    }
    buf_add(out, head, size);
    size_t at = out->n;
    if (n > 0)
        buf_add(out, p, n);
    if (mask && n > 0)
        xor_mask((uint8_t *)out->p + at, n, mask, 0);
}

/* ---- a client's ---- */

struct ws_client {
    ws_message_fn *message;
    void *arg;
    struct frame f;
    enum { NO_MESSAGE, HELD, PASSED } kind; /* of the message that is open */
    bool hold;                              /* this frame's payload goes to `text` */
    bool raw;                               /* nothing is looked at any more */
    struct buf text;                        /* of the message so far */
};

struct ws_client *ws_client_new(ws_message_fn *message, void *arg)
{
    struct ws_client *w = xcalloc(1, sizeof *w);
    w->message = message;
    w->arg = arg;
    return w;
}

void ws_client_free(struct ws_client *w)
{
    if (w)
        buf_done(&w->text);
    free(w);
}

static void add_masked(struct buf *out, uint8_t opcode, bool fin, const void *p, size_t n)
{
    uint8_t mask[4];
    random_bytes(mask, sizeof mask);
    add_frame(out, opcode, fin, mask, p, n);
}

/* What was held leaves as it is, as the beginning of a message that goes on. */
static void give_up_message(struct ws_client *w, struct buf *out)
{
    if (w->kind == HELD)
        add_masked(out, OP_TEXT, false, buf_str(&w->text), w->text.n);
    buf_done(&w->text);
    w->kind = PASSED;
}

/* The head of a frame has come: is its payload held? */
static void client_frame(struct ws_client *w, struct buf *out)
{
    const struct frame *f = &w->f;
    bool first = f->opcode == OP_TEXT || f->opcode == OP_BINARY, open = w->kind != NO_MESSAGE;
    bool wrong = f->rsv || !f->masked || (!is_control(f) && (f->opcode > OP_BINARY || first == open));
    w->hold = false;
    if (wrong) {
        if (open)
            give_up_message(w, out);
        w->raw = true;
    } else if (!is_control(f)) {
        if (first)
            w->kind = f->opcode == OP_TEXT ? HELD : PASSED;
        bool fits = f->left <= SECRET_BODY_MAX - w->text.n;
        if (w->kind == HELD && !fits && first)
            w->kind = PASSED;
        else if (w->kind == HELD && !fits)
            give_up_message(w, out);
        w->hold = w->kind == HELD;
    }
    if (!w->hold)
        buf_add(out, f->head, f->have);
}

static bool client_message(struct ws_client *w, struct buf *out)
{
    _cleanup_buf_wipe_ struct buf new = {0};
    bool ok = w->message(w->arg, buf_str(&w->text), w->text.n, &new);
    if (ok)
        add_masked(out, OP_TEXT, true, buf_str(&new), new.n);
    buf_done(&w->text);
    return ok;
}

bool ws_client_feed(struct ws_client *w, const void *bytes, size_t n, struct buf *out)
{
    const uint8_t *p = bytes;
    struct frame *f = &w->f;
    while (n > 0 && !w->raw) {
        bool begun = f->complete;
        if (!take_head(f, &p, &n))
            return true;
        if (!begun)
            client_frame(w, out);
        size_t some = f->left < n ? (size_t)f->left : n;
        if (some > 0)
            buf_add(w->hold ? &w->text : out, p, some);
        if (some > 0 && w->hold)
            xor_mask((uint8_t *)w->text.p + w->text.n - some, some, f->mask, f->done);
        p += some;
        n -= some;
        f->left -= some;
        f->done += some;
        if (f->left > 0 || w->raw)
            continue;
        if (!is_control(f) && f->fin) {
            if (w->hold && !client_message(w, out))
                return false;
            w->kind = NO_MESSAGE;
        }
        next_frame(f);
    }
    if (n > 0)
        buf_add(out, p, n);
    return true;
}

/* ---- a server's ---- */

struct ws_server {
    struct redactor *redact;
    struct frame f;
    bool open;      /* a message has begun */
    uint8_t opcode; /* of its next frame */
    uint8_t control[CONTROL_MAX];
};

struct ws_server *ws_server_new(struct redactor *r)
{
    struct ws_server *w = xcalloc(1, sizeof *w);
    w->redact = r;
    return w;
}

void ws_server_free(struct ws_server *w) { free(w); }

static bool server_frame(struct ws_server *w)
{
    const struct frame *f = &w->f;
    if (f->rsv || f->masked)
        return false;
    if (is_control(f))
        return f->fin && f->left <= CONTROL_MAX && f->opcode <= OP_PONG;
    if (f->opcode > OP_BINARY || (f->opcode == OP_MORE) != w->open)
        return false;
    if (!w->open)
        w->opcode = f->opcode;
    w->open = true;
    return true;
}

/* A control frame has no room for anything else: what may not be seen is left out, with all around it. */
static void server_control(struct ws_server *w, struct buf *out)
{
    size_t n = (size_t)w->f.done;
    if (redact_finds(w->redact, w->control, n))
        n = w->f.opcode == OP_CLOSE ? 2 : 0;
    add_frame(out, w->f.opcode, true, NULL, w->control, n);
}

static void server_data(struct ws_server *w, const uint8_t *p, size_t n, struct buf *out)
{
    _cleanup_buf_ struct buf text = {0};
    bool last = w->f.fin && w->f.left == n;
    if (n > 0)
        redact(w->redact, p, n, &text);
    if (last)
        redact_end(w->redact, &text);
    if (!last && text.n == 0)
        return;
    add_frame(out, w->opcode, last, NULL, buf_str(&text), text.n);
    w->opcode = OP_MORE;
    w->open = !last;
}

bool ws_server_feed(struct ws_server *w, const void *bytes, size_t n, struct buf *out)
{
    const uint8_t *p = bytes;
    struct frame *f = &w->f;
    while (n > 0) {
        bool begun = f->complete;
        if (!take_head(f, &p, &n))
            return true;
        if (!begun && !server_frame(w))
            return false;
        size_t some = f->left < n ? (size_t)f->left : n;
        if (is_control(f) && some > 0)
            memcpy(w->control + f->done, p, some);
        else if (!is_control(f) && (some > 0 || f->left == 0))
            server_data(w, p, some, out);
        p += some;
        n -= some;
        f->left -= some;
        f->done += some;
        if (f->left > 0)
            continue;
        if (is_control(f))
            server_control(w, out);
        next_frame(f);
    }
    return true;
}
