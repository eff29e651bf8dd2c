/* upper.h - places for files with a quota that the kernel enforces: the writable layer of a sandbox, or a volume.
 *
 * Drivers, probed in the order in which they are preferred: btrfs (a subvolume, qgroup limits), layers (a directory on
 * any file system, project quota if the mount has it), tmpfs (in memory); and for volumes only, if they are asked for,
 * image (a sparse ext4 file on a loop device: a quota anywhere). Everything is by descriptor. One directory `dir` holds
 * all uppers of the node.
 */
#ifndef HUTCH_OS_UPPER_H
#define HUTCH_OS_UPPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/err.h"

enum upper_kind { UPPER_TMPFS = 1, UPPER_BTRFS, UPPER_LAYERS, UPPER_IMAGE };
enum upper_quota { UPPER_QUOTA_NONE, UPPER_QUOTA_TMPFS, UPPER_QUOTA_QGROUP, UPPER_QUOTA_PROJECT, UPPER_QUOTA_IMAGE };

struct upper_info {
    enum upper_kind kind;
    enum upper_quota quota;
    bool simple;    /* with UPPER_QUOTA_QGROUP: a simple quota (os/btrfs.h) */
    bool snapshots; /* upper_snapshot() works in no time */
    bool reflinks;  /* UPPER_LAYERS: copies of files share their content */
    bool quick; /* for the caller to set: upper_open() never makes, checks or waits for an image; it is EAGAIN then */
    uint64_t count_max; /* the same: where the kernel does not count, upper_stat() counts no more files; 0: all */
    char why[200];      /* what was tried and is not there; for doctor */
};
const char *upper_kind_name(enum upper_kind k);   /* "tmpfs" ... */
const char *upper_quota_name(enum upper_quota q); /* "none", "tmpfs", "btrfs qgroup", "project quota", "image" */
/* The same, with the kind of qgroup: what users are told. */
const char *upper_quota_text(const struct upper_info *i);
/* want: a driver's name ("reflink" is an older one of layers); "auto": the first of btrfs and layers that can be had (with
 * need_quota: that has a quota in force); "": tmpfs, what uppers are unless the operator said otherwise. ERR_HOST with the
 * reason if it is not to be had. btrfs: with need_quota, quotas of the file system are switched on if they are off. */
int upper_probe(int dir, const char *want, bool need_quota, struct upper_info *ret, struct err *err);

/* `name` is one to 200 of [A-Za-z0-9_-]. A place is made as root:root 0755. */
struct upper {
    enum upper_kind kind;
    /* Descriptor of the directory; the caller's. tmpfs, image: of a detached mount, which lives as long as it is open
     * or in use. */
    int root;
};
#define UPPER_INIT            \
    {                         \
        .kind = 0, .root = -1 \
    }
/* Opens the place `name`, or makes it. disk and inodes 0: no limit. tmpfs has no name: a new one each time. */
int upper_open(const struct upper_info *info, int dir, const char *name, uint64_t disk, uint64_t inodes,
               struct upper *ret, struct err *err);
/* The same; with the btrfs driver a place that is not there starts as a snapshot of the subvolume `from` (-1: none):
 * a layer, or what upper_make_seed() made. If that cannot be snapshot, the place is made as if there were none. */
int upper_open_from(const struct upper_info *info, int dir, const char *name, int from, uint64_t disk, uint64_t inodes,
                    struct upper *ret, struct err *err);
void upper_close(struct upper *u);
/* Whether `name` is an image that must be checked or that another process has locked. Does not wait. */
bool upper_image_unready(int dir, const char *name);
/* Whether another process checks, resizes or opens the image at the moment. */
bool upper_image_locked(int dir, const char *name);
/* Checks an image if it must be, which may take long; makes none, and does not wait for others. 1: another process has
 * it locked. */
int upper_image_check(int dir, const char *name, struct err *err);
/* The process in whose root mkfs.ext4 and the like are searched if ours has none; by default our parent. */
void upper_image_outside(pid_t pid);
/* An image that is in use: it grows if we have CAP_SYS_RESOURCE (else EPERM) and does not shrink (EBUSY). An image
 * with more in it than fits is ERR_LIMIT; whether other places hold more than their new limit is for the caller to
 * see. An image has as many inodes as its size gives it. */
int upper_resize(const struct upper_info *info, int dir, const char *name, uint64_t disk, uint64_t inodes,
                 struct err *err);
struct upper_usage {
    uint64_t used, limit, inodes, inodes_limit;
};
int upper_stat(const struct upper_info *info, int dir, const char *name, const struct upper *u, struct upper_usage *ret,
               struct err *err);
/* Counts what is allocated below root, on its file system, while other processes may change it; no limits. ERR_LIMIT
 * if it is deeper than UPPER_DEPTH_MAX, or after `max` entries (0: never): a process that keeps moving directories
 * ahead of the walk could make it run for ever. */
int upper_count(int root, uint64_t max, struct upper_usage *ret, struct err *err);
/* In no time: renames it out of the way (".gone-..."); upper_sweep() takes such away, and needs long. */
int upper_remove(int dir, const char *name, struct err *err);
int upper_sweep(int dir, struct err *err);
/* The limit of a subvolume of btrfs with quotas, 0: none. What is in it already may be more. */
int upper_btrfs_limit(int root, uint64_t disk, struct err *err);
/* Whether upper_snapshot() is worth trying. */
bool upper_can_snapshot(int from, int to);

/* upper-from.c: inode numbers of subvolumes, and layers that are snapshots. */
#define UPPER_LAYER_ROOT "root"  /* in a layer: its tree */
#define UPPER_BELOW      "below" /* in a subvolume that started as a layer: what that held; only its numbers matter */
bool upper_is_subvolume(int fd); /* the root of a subvolume of btrfs */
/* Whether a snapshot of the place may stay as a layer: simple quotas charge what it holds, and upper_subvolume_at()
 * works. */
bool upper_keeps_snapshots(int place);
/* The subvolume that holds the file, also through an overlay; 0: none, or a kernel before 6.10. */
uint64_t upper_subvolume_at(int dir, const char *name);
struct upper_origin {
    uint8_t uuid[16], parent[16]; /* parent: what it is a snapshot of; zeros: of nothing */
    struct timespec made_at;
};
int upper_origin(int place, struct upper_origin *ret); /* 0, or -1 with errno */
/* Numbers only rise. 0, or -1 with errno. upper_raise_numbers(): the next one is above `to`, which costs some
 * microseconds for each; upper_mark_number(): a snapshot that is made from now on starts above all that were given so
 * far. */
int upper_next_number(int dir, uint64_t *ret);
int upper_raise_numbers(int dir, uint64_t to);
int upper_mark_number(int dir);
uint64_t upper_marked_number(int dir);          /* that of the last mark, 0: none. It outlives the machine */
int upper_make_seed(int dir, const char *name); /* an empty subvolume for numbers; there already is success */
/* Waits until what was done is on the disk, without writing the data of others. 0, or -1 with errno. */
int upper_commit(int fd);
/* Makes a snapshot of a subvolume at to/name; with `frozen` a read-only one, which wipe_tree() can still remove. 1:
 * not a subvolume, or not permitted; the caller copies. Blocks until recent writes are on the disk. */
int upper_snapshot(int from, int to, const char *name, bool frozen, struct err *err);

#endif
