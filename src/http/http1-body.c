/* http1-body.c - bodies: by length, in chunks, or until the end of the stream. */
#include <string.h>

#include "http/http1.h"

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

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool value_byte(char c) { return c == '\t' || ((unsigned char)c >= 0x20 && c != 0x7f); }

static bool token_byte(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c | 32) : c; }

static bool size_byte(struct http1_body *b, char c)
{
    int digit = hex(c);
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

static void keep(struct http1_body *b, char c)
{
    if (b->trailers)
        buf_addc(b->trailers, c);
}

/* Spaces around a value are no part of it. */
static void keep_value(struct http1_body *b, char c)
{
    struct buf *t = b->trailers;
    bool space = c == ' ' || c == '\t';
    if (t && !(space && t->p[t->n - 1] == '\0'))
        buf_addc(t, c);
}

static void end_value(struct http1_body *b)
{
    struct buf *t = b->trailers;
    while (t && (t->p[t->n - 1] == ' ' || t->p[t->n - 1] == '\t'))
        t->n--;
    keep(b, '\0');
}

/* Trailers are checked, counted, and kept if somebody wants them. */
static bool trailer_byte(struct http1_body *b, char c)
{
    if (++b->extra > HTTP1_TRAILERS_MAX)
        return false;
    switch (b->state) {
    case TRAILER:
        b->state = c == '\r' ? LAST_LF : TRAILER_NAME;
        if (c != '\r')
            keep(b, lower(c));
        return c == '\r' || token_byte(c);
    case TRAILER_NAME:
        if (c == ':')
            b->state = TRAILER_VALUE;
        keep(b, c == ':' ? '\0' : lower(c));
        return c == ':' || token_byte(c);
    case TRAILER_VALUE:
        if (c == '\r') {
            b->state = TRAILER_LF;
            end_value(b);
        } else {
            keep_value(b, c);
        }
        return c == '\r' || value_byte(c);
    case TRAILER_LF:
        b->state = TRAILER;
        return c == '\n';
    default: /* LAST_LF */
        b->done = true;
        return c == '\n';
    }
}

/* One byte of the framing. */
static bool frame_byte(struct http1_body *b, char c)
{
    switch (b->state) {
    case SIZE:
        return size_byte(b, c);
    case EXTENSION:
        if (c == '\r')
            b->state = SIZE_LF;
        else if (++b->extra > HTTP1_CHUNK_EXT_MAX)
            return false;
        return c == '\r' || value_byte(c);
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
static size_t take(struct http1_body *b, const char *p, size_t n, const char **ret, size_t *ret_n)
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
        size_t used = take(b, p, n, ret, ret_n);
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
            i += take(b, p + i, n - i, ret, ret_n);
            if (b->left == 0)
                b->state = DATA_CR;
            break;
        }
        if (!frame_byte(b, p[i++]))
            return -1;
    }
    return (ssize_t)i;
}
