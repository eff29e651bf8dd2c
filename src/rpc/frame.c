#include "rpc/frame.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { CHUNK = 64 * 1024 };

void frame_put_head(unsigned char ret[FRAME_HEAD], size_t n)
{
    for (size_t i = 0; i < FRAME_HEAD; i++)
        ret[i] = (unsigned char)(n >> (8 * i));
}

static size_t frame_get_head(const unsigned char *p)
{
    return (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
}

void frame_reader_init(struct frame_reader *r, size_t most, void *room)
{
    *r = (struct frame_reader){.p = room, .cap = room ? most + FRAME_HEAD : 0, .most = most, .fixed = room != NULL};
}

void frame_reader_done(struct frame_reader *r)
{
    if (r->p &&
        r->n > 0) /* frame_reader_room() has wiped what lies behind: memory that was never used stays untouched */
        explicit_bzero(r->p, r->n);
    if (!r->fixed)
        free(r->p);
    frame_reader_init(r, r->most, r->fixed ? r->p : NULL);
}

/* Looks at the message that begins at r->at, of *ret_n bytes without its head. */
static enum frame_state frame_reader_look(const struct frame_reader *r, size_t *ret_n)
{
    if (r->bad)
        return FRAME_BAD;
    if (r->n - r->at < FRAME_HEAD)
        return FRAME_PART;
    *ret_n = frame_get_head(r->p + r->at);
    if (*ret_n == 0 || *ret_n > r->most)
        return FRAME_BAD;
    return r->n - r->at - FRAME_HEAD < *ret_n ? FRAME_PART : FRAME_WHOLE;
}

bool frame_reader_is_ready(const struct frame_reader *r)
{
    size_t n;
    return frame_reader_look(r, &n) != FRAME_PART;
}

enum frame_state frame_reader_next(struct frame_reader *r, const unsigned char **ret, size_t *ret_n)
{
    enum frame_state s = frame_reader_look(r, ret_n);
    if (s == FRAME_WHOLE) {
        *ret = r->p + r->at + FRAME_HEAD;
        r->at += FRAME_HEAD + *ret_n;
    }
    r->bad = s == FRAME_BAD;
    return s;
}

static void frame_reader_grow(struct frame_reader *r)
{
    size_t cap = r->cap * 2 > r->n + CHUNK ? r->cap * 2 : r->n + CHUNK;
    cap = cap < r->most + FRAME_HEAD ? cap : r->most + FRAME_HEAD;
    unsigned char *p = xmalloc(cap);
    if (r->p) {
        memcpy(p, r->p, r->n);
        explicit_bzero(r->p, r->cap);
        free(r->p);
    }
    r->p = p;
    r->cap = cap;
}

unsigned char *frame_reader_room(struct frame_reader *r, size_t *ret_n)
{
    if (r->at > 0) {
        memmove(r->p, r->p + r->at, r->n - r->at);
        explicit_bzero(r->p + r->n - r->at, r->at);
        r->n -= r->at;
        r->at = 0;
    }
    /* As bytes come, not as the length promises: a sender that only promises costs no memory. */
    if (r->n == r->cap && !r->fixed)
        frame_reader_grow(r);
    *ret_n = r->cap - r->n;
    return r->p + r->n;
}

void frame_reader_add(struct frame_reader *r, size_t n) { r->n += n; }
