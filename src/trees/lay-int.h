/* lay-int.h - between lay-read.c, which checks the records of a lay stream, and lay-make.c, which creates the entries.
 * lay-make.c gets checked records only. */
#ifndef HUTCH_TREES_LAY_INT_H
#define HUTCH_TREES_LAY_INT_H

#include "trees/lay.h"
#include "trees/walk.h"

enum { LAY_LATER_BYTES_MAX = 512 << 20 }; /* of directories whose modes and times are still to be set */

/* One checked record. */
struct lay_entry {
    struct lay_record r;
    char path[LAY_PATH_MAX], target[LAY_PATH_MAX];
    unsigned char xattrs[LAY_XATTRS_MAX];
};

/* Mode and time of a directory, set at the end: its mode could forbid new entries, and each new entry changes its
 * time. */
struct lay_later {
    char *path; /* owned */
    int64_t sec;
    uint32_t nsec, mode;
};

struct lay_maker {
    int root;
    unsigned flags;
    bool fresh;     /* nothing was there: a new layer */
    bool root_said; /* a LAY_META of the root came */
    int parent;     /* the directory that was used last, or -1 */
    bool parent_acl;
    char parent_path[LAY_PATH_MAX];
    struct walk_inos made;  /* what this stream made; with LAY_PLAIN also the directories that it describes */
    struct walk_inos swept; /* LAY_PLAIN: directories whose former content is removed already */
    struct lay_later *later;
    size_t nlater, later_cap, later_bytes;
    struct lay_done *done;
};

int lay_make_start(struct lay_maker *m, int root, unsigned flags, struct lay_done *done, struct err *err);
/* Everything but LAY_FILE and LAY_END. */
int lay_make_entry(struct lay_maker *m, const struct lay_entry *e, struct err *err);
/* An empty file to write into; then lay_make_file_done with all its attributes. */
int lay_make_file(struct lay_maker *m, const struct lay_entry *e, int *ret_fd, struct err *err);
int lay_make_file_done(struct lay_maker *m, const struct lay_entry *e, int fd, struct err *err);
/* Modes and times of the directories. */
int lay_make_end(struct lay_maker *m, struct err *err);
void lay_make_done(struct lay_maker *m);

#endif
