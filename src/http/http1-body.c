/* http1-body.c - reads bodies: by length, in chunks, or until the end of the stream. */
#include <string.h>

#include "http/http1.h"
#include "http/url.h"

enum {
    SIZE,      /* hexadecimal digits */
    EXTENSION, /* from ';' to CR, skipped */
    SIZE_LF,   /* LF of the size line */
    DATA,      /* left bytes */
    DATA_CR,   /* CR LF behind them */
    DATA_LF,
    TRAILER, /* first byte of a trailer line, or CR of the last line */
    TRAILER_NAME,
    TRAILER_VALUE,
    TRAILER_LF,
    LAST_LF,
};

void http1_body_start(struct http1_body *b, const struct http1_head *h)
{
    *b = (struct http1_body){.framing = h->framing, .done = h->framing == HTTP1_NONE};
    b->left = h->framing == HTTP1_LENGTH ? h->length : 0;
    b->state = SIZE;
}

static bool chunk_is_value_byte(char c) { return c == '\t' || ((unsigned char)c >= 0x20 && c != 0x7f); }

static bool chunk_is_token_byte(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

static char chunk_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c | 32) : c; }

static bool chunk_size_byte(struct http1_body *b, char c)
{
    int digit = url_hex_digit(c);
    if (digit >= 0) {
        if (++b->digits > 15) /* 2^60 bytes are enough, and nothing wraps around */
            return false;
        b->left = b->left << 4 | (uint64_t)digit;
        return true;
    }
    if (b->digits == 0 || (c != ';' && c != '\r'))
        return false;
    b->state = c == ';' ? EXTENSION : SIZE_LF;
    b->extra = 0;
    return true;
}

static void trailer_keep(struct http1_body *b, char c)
{
    if (b->trailers)
        buf_addc(b->trailers, c);
}

/* Skips spaces before a value; trailer_end_value() cuts those behind it. */
static void trailer_keep_value(struct http1_body *b, char c)
{
    struct buf *t = b->trailers;
    bool space = c == ' ' || c == '\t';
    if (t && !(space && t->p[t->n - 1] == '\0'))
        buf_addc(t, c);
}

static void trailer_end_value(struct http1_body *b)
{
    struct buf *t = b->trailers;
    while (t && (t->p[t->n - 1] == ' ' || t->p[t->n - 1] == '\t'))
        t->n--;
    trailer_keep(b, '\0');
}

/* Checks and counts trailers; keeps them if b->trailers is set. */
static bool trailer_byte(struct http1_body *b, char c)
{
    if (++b->extra > HTTP1_TRAILERS_MAX)
        return false;
    switch (b->state) {
    case TRAILER:
        b->state = c == '\r' ? LAST_LF : TRAILER_NAME;
        if (c != '\r')
            trailer_keep(b, chunk_lower(c));
        return c == '\r' || chunk_is_token_byte(c);
    case TRAILER_NAME:
        if (c == ':')
            b->state = TRAILER_VALUE;
        trailer_keep(b, c == ':' ? '\0' : chunk_lower(c));
        return c == ':' || chunk_is_token_byte(c);
    case TRAILER_VALUE:
        if (c == '\r') {
            b->state = TRAILER_LF;
            trailer_end_value(b);
        } else {
            trailer_keep_value(b, c);
        }
        return c == '\r' || chunk_is_value_byte(c);
    case TRAILER_LF:
        b->state = TRAILER;
        return c == '\n';
    default: /* LAST_LF */
        b->done = true;
        return c == '\n';
    }
}

/* One byte of the framing. */
static bool chunk_frame_byte(struct http1_body *b, char c)
{
    switch (b->state) {
    case SIZE:
        return chunk_size_byte(b, c);
    case EXTENSION:
        if (c == '\r')
            b->state = SIZE_LF;
        else if (++b->extra > HTTP1_CHUNK_EXT_MAX)
            return false;
        return c == '\r' || chunk_is_value_byte(c);
    case SIZE_LF:
        b->state = b->left ? DATA : TRAILER;
        b->extra = b->digits = 0;
        return c == '\n';
    case DATA_CR:
        b->state = DATA_LF;
        return c == '\r';
    case DATA_LF:
        b->state = SIZE;
        return c == '\n';
    default:
        return trailer_byte(b, c);
    }
}

/* Up to `left` bytes of p[0..n). */
static size_t body_take_run(struct http1_body *b, const char *p, size_t n, const char **ret, size_t *ret_n)
{
    if (n > b->left)
        n = (size_t)b->left;
    b->left -= n;
    *ret = p;
    *ret_n = n;
    return n;
}

ssize_t http1_body_next(struct http1_body *b, const char *p, size_t n, const char **ret, size_t *ret_n)
{
    *ret = p;
    *ret_n = 0;
    if (b->done || n == 0)
        return 0;
    if (b->framing == HTTP1_LENGTH) {
        size_t used = body_take_run(b, p, n, ret, ret_n);
        b->done = b->left == 0;
        return (ssize_t)used;
    }
    if (b->framing != HTTP1_CHUNKED) {
        *ret_n = n;
        return (ssize_t)n;
    }
    size_t i = 0;
    while (i < n && !b->done) {
        if (b->state == DATA) {
            i += body_take_run(b, p + i, n - i, ret, ret_n);
            if (b->left == 0)
                b->state = DATA_CR;
            break;
        }
        if (!chunk_frame_byte(b, p[i++]))
            return -1;
    }
    return (ssize_t)i;
}
