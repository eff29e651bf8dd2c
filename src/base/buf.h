/* buf.h - a growing byte buffer, always NUL-terminated behind its length so that it can be printed. Out of memory ends
 * the process (mem.h); no function fails. */
#ifndef HUTCH_BASE_BUF_H
#define HUTCH_BASE_BUF_H

#include <stddef.h>

struct buf {
    char *p; /* owned; NULL while empty */
    size_t n, cap;
};

/* Makes room for `more` bytes: until they are used up, nothing moves and no copy stays behind. */
void buf_reserve(struct buf *b, size_t more);
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_adds(struct buf *b, const char *s);
void buf_addc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The text so far; never NULL. Borrowed. */
const char *buf_str(const struct buf *b);
/* Frees the bytes and leaves an empty buffer. */
void buf_done(struct buf *b);

#define _cleanup_buf_ __attribute__((cleanup(buf_done)))

#endif
