/* changes.h - the differences that stock tells (stock/diff.h), as JSON. Used by history and transactions. */
#ifndef HUTCH_FRONT_CHANGES_H
#define HUTCH_FRONT_CHANGES_H

#include "base/err.h"
#include "base/json.h"

enum { CHANGES_SHOWN_MAX = 10000, CHANGES_BYTES_MAX = 8 << 20 }; /* bytes: of JSON, which may be six times the names */

/* Reads the records in fd (a file; the caller's) and adds "changes": [...], "total": N and, if there were more than are
 * shown, "truncated": true. Only paths at or below `below` (relative, "" all). -1: they make no sense; the JSON is
 * whole all the same. */
int changes_add(struct json *j, int fd, const char *below, struct err *err);

#endif
