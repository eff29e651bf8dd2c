/* trust.h - which project documents may widen the policy.
 *
 * One line per document: its SHA-256, a space, its absolute path. A document is trusted if both match: the same text
 * elsewhere has other relative paths, and a changed text is another document. The file is 0600 in a directory 0700 and
 * is replaced by rename; writers take a lock on the directory. All functions may block on the file system.
 */
#ifndef HUTCH_POLICY_RUN_TRUST_H
#define HUTCH_POLICY_RUN_TRUST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/strv.h"
#include "policy/run/policy.h"

enum { TRUST_FILE_MAX = 1 << 20, TRUST_ENTRIES_MAX = 4096 };

/* where->trust_file or its default; NULL if there is no home directory. New string. */
char *trust_file_of(const struct policy_where *where);

/* *ret: the document at `path` with this text is listed. A trust file that others can write is an error. */
int trust_check(const char *file, const char *path, const void *text, size_t n, bool *ret, struct err *err);
/* Lists the document, replacing an entry of the same path. */
int trust_add(const char *file, const char *path, const void *text, size_t n, struct err *err);
/* *ret: it was listed and no longer is. */
int trust_revoke(const char *file, const char *path, bool *ret, struct err *err);
/* Appends the lines of the file; a missing file is an empty one. */
int trust_list(const char *file, struct strv *ret, struct err *err);

#endif
