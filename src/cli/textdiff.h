/* textdiff.h - a unified diff of two texts in memory. Opens no files. */
#ifndef HUTCH_CLI_TEXTDIFF_H
#define HUTCH_CLI_TEXTDIFF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

enum { TEXTDIFF_LINES_MAX = 20000, TEXTDIFF_EDITS_MAX = 2000, TEXTDIFF_CONTEXT = 3 };

/* Adds the diff to `out`, beginning with "--- a/NAME"; control characters are escaped. False, with a single line in `out`, if
 * one of them is not text or they differ in more than TEXTDIFF_EDITS_MAX lines. */
bool textdiff_add(const char *name, const char *a, size_t na, const char *b, size_t nb, struct buf *out);
/* Whether it has no NUL byte. */
bool textdiff_is_text(const char *p, size_t n);

#endif
