/* textdiff.h - a unified diff of two texts. */
#ifndef HUTCH_CLI_TEXTDIFF_H
#define HUTCH_CLI_TEXTDIFF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

enum { TEXTDIFF_LINES_MAX = 20000, TEXTDIFF_EDITS_MAX = 2000, TEXTDIFF_CONTEXT = 3 };

/* Without NUL and valid enough to be shown: what follows "--- a/NAME". Control characters are made harmless. False, and
 * a single line in `out`, if one of them is not text or they differ too much to be compared. */
bool textdiff(const char *name, const char *a, size_t na, const char *b, size_t nb, struct buf *out);
/* No NUL: what follows one in a line would not be shown. */
bool textdiff_is_text(const char *p, size_t n);

#endif
