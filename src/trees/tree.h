/* tree.h - copies, digests, writes out and removes whole trees by descriptor.
 *
 * All functions walk with openat(O_NOFOLLOW) in bytewise order of names and never leave the mount. They run in jobs of
 * the layer store, on trees of frozen sandboxes or on trees that only the job can reach.
 */
#ifndef HUTCH_TREES_TREE_H
#define HUTCH_TREES_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/err.h"
#include "base/sha256.h"
#include "trees/lay.h"

struct tree_size {
    uint64_t bytes, entries; /* bytes: as allocated (st_blocks) */
};

enum {
    TREE_USERXATTR = 1, /* overlay's marks are user.overlay.*, else trusted.overlay.* */
    TREE_NO_CHOWN = 2,  /* owners are not looked at; copies are the caller's */
    TREE_TAKE = 4, /* tree_copy: link files instead of copying; `from` is on the same file system and removed later */
    TREE_BARE = 8, /* tree_copy: copy no attributes but the mark of an opaque directory */
};

/* Copies everything in `from` into the empty directory `to`, the root's own owner, mode and times too: owners minus
 * `shift`, times, modes, all extended attributes but overlay's bookkeeping (origin, impure, nlink, uuid ...; opaque,
 * redirect, whiteout stay), hard links, whiteouts. By reflink where the file system can, else copy_file_range. An
 * owner outside shift..shift+65535 is an error naming the path, unless TREE_NO_CHOWN. With `prev`, an earlier copy
 * of the same upper: files whose content and attributes are the same are linked to it instead (by content, never by
 * time alone: writes through mappings do not change a time in tmpfs). ERR_LIMIT if it gets larger than `max` (0: no
 * limit). */
struct tree_copy {
    int from, to, prev; /* prev: -1 */
    uid_t shift;
    unsigned flags;
    unsigned depth; /* 0: LAY_DEPTH_MAX. Two descriptors are open at each level */
    struct tree_size max;
    struct tree_size done; /* out */
    uint64_t linked;       /* out: bytes that were shared with prev */
    uint64_t skipped;      /* out: sockets, which no layer holds; one that may hide a lower entry becomes a whiteout */
};
int tree_copy(struct tree_copy *c, struct err *err);
/* Whether tree_copy(), with this prev, made a copy of nothing but what prev holds. 1, 0, or -1. prev_at: when prev was taken,
 * if both are snapshots of one subvolume: equal numbers and times are then equal files; what was changed so shortly before
 * that a later write can have the same time is compared. NULL: they are copies. */
int tree_same(int copy, int prev, unsigned flags, const struct timespec *prev_at, struct err *err);

/* SHA-256 over the lay stream that describes the tree canonically: sorted, hard links as LAY_HARDLINK to the first
 * name, overlay's marks as records; blocks of 64 KiB of zeros are counted instead of hashed, so that it takes as
 * long as the tree has data. Sockets count too; attributes that no record can hold are an
 * error. */
int tree_digest(int root, unsigned flags, uint8_t ret[SHA256_BYTES], struct tree_size *size, struct err *err);
/* The same stream, written out in full up to and with LAY_END. A redirected directory keeps overlay's attribute in
 * it, which lay_read drops: layers with such are written from the merged tree, with diff_to_lay. Devices are left out
 * and counted in *ret_devices; NULL: they are an error. */
int tree_write(int root, unsigned flags, struct lay_out *o, uint64_t *ret_devices, struct err *err);

/* Removes name below dir with everything in it, whatever its modes; btrfs subvolumes too. Not there is success. */
int tree_remove(int dir, const char *name, struct err *err);
/* syncfs of the file system that holds it. */
int tree_sync(int fd, struct err *err);

#endif
