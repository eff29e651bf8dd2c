/* lay.h - what COPY --from means in a sandbox, as a lay stream. */
#ifndef HUTCH_CLI_LAY_H
#define HUTCH_CLI_LAY_H

#include "base/err.h"

enum { LAY_PACK_MATCHES_MAX = 100000 }; /* of a pattern */

/* Writes to fd what `source`, a path from the root or a pattern, means: each with the directories that lead to it, so that
 * `hutch lay --src SOURCE` finds it again. A link that is named itself is followed, those below are kept. What is mounted
 * (/proc, /dev ...) is not of the files and left out. ERR_USAGE: nothing is there. */
int lay_pack(const char *source, int fd, struct err *err);

#endif
