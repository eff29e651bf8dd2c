/* changes.h - turns the differences that the layer store reports (trees/diff.h) into JSON, for history and
 * transactions. It only reads the records; it never looks at the files themselves.
 */
#ifndef HUTCH_SNAPSHOTS_CHANGES_H
#define HUTCH_SNAPSHOTS_CHANGES_H

#include "base/err.h"
#include "base/json.h"

enum { CHANGES_SHOWN_MAX = 10000, CHANGES_BYTES_MAX = 8 << 20 }; /* bytes: of JSON, which may be six times the names */

/* Reads the records in fd (a file; stays the caller's) and adds "changes": [...], "total": N and, if not all are
 * shown, "truncated": true. Only paths at or below `below` (relative; "": all). -1: the records are damaged; the
 * JSON is complete nevertheless. */
int changes_add(struct json *j, int fd, const char *below, struct err *err);

#endif
