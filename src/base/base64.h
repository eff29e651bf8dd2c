/* base64.h - base64 of RFC 4648, standard alphabet. Never skips a character: invalid text is refused and adds
 * nothing. */
#ifndef HUTCH_BASE_BASE64_H
#define HUTCH_BASE_BASE64_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* Appends the text, padded with '='. */
void base64_encode(struct buf *out, const void *p, size_t n);
/* Appends the bytes. Padding may be missing, and '-' and '_' stand for '+' and '/', as JSON mappings of binary formats
 * allow; anything else outside the alphabet, a lone last character or left-over bits are refused: false, and `out` is as
 * it was. */
bool base64_decode(struct buf *out, const char *s, size_t n);

#endif
