#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void buf_reserve(struct buf *b, size_t more)
{
    size_t need = b->n + more + 1;
    if (need <= b->cap)
        return;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    b->p = xreallocarray(b->p, cap, 1);
    b->cap = cap;
}

void buf_add(struct buf *b, const void *bytes, size_t n)
{
    buf_reserve(b, n);
    if (n != 0)
        memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = '\0';
}

void buf_adds(struct buf *b, const char *s) { buf_add(b, s, strlen(s)); }

void buf_addc(struct buf *b, char c)
{
    buf_reserve(b, 1);
    b->p[b->n++] = c;
    b->p[b->n] = '\0';
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    buf_reserve(b, 0);
    size_t room = b->cap - b->n;
    int n = vsnprintf(b->p + b->n, room, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n >= room) {
        buf_reserve(b, (size_t)n);
        (void)vsnprintf(b->p + b->n, (size_t)n + 1, fmt, ap2);
    }
    if (n > 0)
        b->n += (size_t)n;
    b->p[b->n] = '\0';
    va_end(ap2);
}

const char *buf_str(const struct buf *b) { return b->p ? b->p : ""; }

void buf_done(struct buf *b)
{
    free(b->p);
    *b = (struct buf){0};
}
