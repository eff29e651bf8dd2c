/* diff.h - finds the differences between two merged trees and writes them as lay streams or records. It reads both
 * trees and changes neither. */
#ifndef HUTCH_TREES_DIFF_H
#define HUTCH_TREES_DIFF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/strv.h"
#include "trees/lay.h"

enum diff_kind { DIFF_ADDED = 1, DIFF_REMOVED, DIFF_CHANGED };
enum { /* what of a DIFF_CHANGED */
       DIFF_TYPE = 1,
       DIFF_CONTENT = 2,
       DIFF_MODE = 4,
       DIFF_OWNER = 8,
       DIFF_TIME = 16, /* alone it is reported only with DIFF_WITH_TIMES */
       DIFF_XATTRS = 32,
};
enum { DIFF_WITH_TIMES = 1 };

struct diff_entry {
    const char *path; /* relative; borrowed. "" is the root itself, whose name is then "." */
    enum diff_kind kind;
    unsigned what;
    const struct stat *a, *b; /* NULL: not there */
    int dir_a, dir_b;         /* directories that hold it, -1; `name` is its name there */
    const char *name;
};
struct diff_counts {
    uint64_t added, changed, removed; /* without those of which only the time is different */
};
struct diff {
    int a, b;               /* roots. Mounts below them are not entered */
    uid_t shift_a, shift_b; /* of the owners in each */
    unsigned flags;
    bool (*wanted)(void *arg, const char *path); /* false: skip the path with everything in it. NULL: all are wanted */
    void *wanted_arg;
    const char *const *skip; /* paths to skip; NULL-terminated, or NULL */
    uint64_t max_entries;    /* differences; 0: 1 million. More is ERR_LIMIT */
    /* In order of the names, a directory before what is in it. A removed or added directory is followed by
     * everything in it, and so is a change of type from or to a directory. Mounts in either tree are skipped.
     * Returning -1 ends the walk. */
    int (*each)(void *arg, const struct diff_entry *e, struct err *err);
    void *arg;
    struct diff_counts *counts; /* NULL, or filled by diff_to_lay() */
    /* NULL, or true for an entry that diff_to_lay() shall leave out; called for each entry, below left-out ones too. */
    bool (*leave)(void *arg, const struct diff_entry *e);
    void *leave_arg;
};
int diff_trees(const struct diff *d, struct err *err);

/* Writes the difference, times included, as a lay stream up to and with LAY_END that turns a into b when it is laid
 * over a (a flattened layer, an export): removed entries as whiteouts, every directory on the way as it is in b.
 * Sockets of b are left out. each and arg are not used. */
int diff_to_lay(const struct diff *d, struct lay_out *o, struct err *err);

/* Writes the undo of a stream that leads from any tree to d->a: what d->b holds at `paths`, all paths that
 * diff_trees() reported for that stream (with times), in its order. Applied to d->b after that stream or a part of
 * it, it restores d->b as it is now. It removes what the stream added first, so that there is room for the rest. */
int diff_back_to_lay(const struct diff *d, const struct strv *paths, struct lay_out *o, struct err *err);

/* One difference as front reads it: fixed layout, written to a file or pipe one after another, each followed by its
 * path. */
#define DIFF_MAGIC UINT32_C(0x31666448)
struct diff_record {
    uint32_t magic, kind, what, path_len; /* kind 0: the end, size_b the number of records */
    uint32_t mode_a, mode_b, uid_a, uid_b, gid_a, gid_b;
    uint64_t size_a, size_b;
    int64_t mtime_a, mtime_b;
};
/* Up to and with the end record; each and arg are not used. */
int diff_to_records(const struct diff *d, int fd, struct err *err);

#endif
