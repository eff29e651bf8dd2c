/* walk.h - helpers of all walks over trees: sorted names, bounded paths, sets of inodes, and the extended attributes
 * that a layer can hold. They follow no link. Private to lay, tree and diff.
 */
#ifndef HUTCH_TREES_WALK_H
#define HUTCH_TREES_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"
#include "trees/lay.h"

enum {
    WALK_NAMES_MAX = 4 << 20,        /* in one directory */
    WALK_NAME_BYTES_MAX = 256 << 20, /* of them together */
    WALK_INOS_MAX = 8 << 20,         /* inodes to remember in one walk */
    WALK_INO_BYTES_MAX = 256 << 20,  /* of the names remembered with them */
    WALK_COMPARE = 256 << 10,        /* bytes at a time */
    WALK_BLOCK = 64 << 10,           /* of content, at a multiple of it; zeros are skipped by whole blocks */
};

/* The names in a directory without "." and "..", in bytewise order. */
struct walk_names {
    char **v; /* into bytes */
    size_t n;
    struct buf bytes;
    bool more; /* than were asked for */
};
/* dir is open for reading; path is for messages. walk_names_some() stops at `max` names. */
int walk_names_some(int dir, size_t max, const char *path, struct walk_names *ret, struct err *err);
int walk_names_read(int dir, const char *path, struct walk_names *ret, struct err *err);
void walk_names_done(struct walk_names *n);
/* For qsort() of char *. */
int walk_by_bytes(const void *a, const void *b);
#define _cleanup_names_ __attribute__((cleanup(walk_names_done)))

/* The current path of a walk; "" is the root. */
struct walk_path {
    char text[LAY_PATH_MAX];
    size_t n;
    unsigned depth, max; /* max 0: LAY_DEPTH_MAX */
};
/* Adds a part and puts the former length in *old, for walk_pop. ERR_LIMIT if the path gets too long or too deep. */
int walk_push(struct walk_path *p, const char *name, size_t *old, struct err *err);
void walk_pop(struct walk_path *p, size_t old);

/* err_set with the path before the message, made safe to print. */
int walk_fail(struct err *err, enum err_code code, int eno, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* fstatat that follows nothing. *mounted: something is mounted there. -1 with errno. */
int walk_stat(int dir, const char *name, struct stat *ret, bool *mounted);
/* Open for reading; follow no link and never block. */
int walk_open_file(int dir, const char *name);
int walk_open_dir(int dir, const char *name);
bool walk_is_whiteout(const struct stat *st);
/* One block of a file from `at`, `want` bytes of it. -1 with errno; ESTALE if the file has become shorter. */
int walk_read(int fd, void *p, size_t want, uint64_t at);
/* Where data begins at or after `at`; `size` if there is none. */
uint64_t walk_data(int fd, uint64_t at, uint64_t size);
/* Two files of one size, holes skipped: 1 the same, 0 not, -1 with errno. */
int walk_same_content(int a, int b, uint64_t size, unsigned char buf[2 * WALK_COMPARE]);
/* Whether both are the same blocks of the disk, which is quicker to find than that they hold the same. False: unknown. */
bool walk_same_extents(int a, int b);
bool walk_all_zero(const unsigned char *p, size_t n);

/* Inodes seen before, each with a text (owned) or NULL. A zeroed struct is empty. */
struct walk_ino {
    uint64_t dev, ino;
    char *text;
    bool used;
};
struct walk_inos {
    struct walk_ino *slots;
    size_t n, cap, bytes;
};
const struct walk_ino *walk_inos_get(const struct walk_inos *m, uint64_t dev, uint64_t ino);
/* Adds an inode that is not in the set. false: the set is full. */
bool walk_inos_put(struct walk_inos *m, uint64_t dev, uint64_t ino, const char *text);
void walk_inos_done(struct walk_inos *m);

/* Which attributes are kept: user.*, security.capability and the ACLs; of overlay's own, in the namespace of the
 * view, those that decide what is visible (opaque, redirect, metacopy, whiteout, and those that an overlay inside
 * has escaped). Links, pipes and devices cannot have any of them. */
enum xattr_view { XATTR_MERGED, XATTR_TRUSTED, XATTR_USER };
bool xattr_kept(const char *name, enum xattr_view view);
/* The kept ones of an open file, sorted by name, as they stand in a stream; ids in them minus `shift`. An opaque mark
 * "y" is told by *opaque and not among them. */
int xattr_collect(int fd, enum xattr_view view, uid_t shift, const char *path, struct buf *ret, bool *opaque,
                  struct err *err);
/* Fails if there is an attribute that is neither kept, nor overlay's bookkeeping, nor the label of a security module: a
 * layer would lose it, and we do not know what it means. */
int xattr_check(int fd, enum xattr_view view, const char *path, struct err *err);
/* File capabilities of revision 3 name the user who is root in the namespace they were set in. If that is `shift`, they
 * become the same of revision 2; false: they belong to another namespace. */
bool xattr_capability(unsigned char *v, size_t *n, uid_t shift);
/* Sets all of a block that xattr_collect made. */
int xattr_set(int fd, const struct buf *packed, const char *path, struct err *err);
/* Marks a directory opaque. -1 with errno. */
int xattr_mark_opaque(int fd, enum xattr_view view);
/* Removes the kept ones but overlay's. -1 with errno. */
int xattr_clear(int fd);

struct xattr_item {
    char name[256];
    const unsigned char *value;
    size_t n;
};
/* The next of a packed block at *at: 1, 0 at the end, -1 if the block is not right. */
int xattr_next(const unsigned char *block, size_t n, size_t *at, struct xattr_item *ret);

#endif
