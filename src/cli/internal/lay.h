/* lay.h - the files that COPY --from names in a sandbox, as a lay stream. */
#ifndef HUTCH_CLI_INTERNAL_LAY_H
#define HUTCH_CLI_INTERNAL_LAY_H

#include "base/err.h"

enum { LAY_PACK_MATCHES_MAX = 100000 }; /* of a pattern */

/* Writes to fd the files that `source` (an absolute path or a pattern) matches, each with the directories above it, so that
 * `hutch lay --src SOURCE` finds them again. A link that `source` names is followed, links below are kept. Mounts (/proc,
 * /dev ...) are left out. ERR_USAGE: no file matches. */
int lay_pack(const char *source, int fd, struct err *err);

#endif
