/* btrfs.h - a whole btrfs: its quotas, its size, its programs. Subvolumes are in upper-btrfs.c.
 *
 * Quotas come in two kinds. Full qgroups know what each subvolume refers to, and make every snapshot and every removal slower.
 * Simple quotas (Linux 6.7) charge an extent to the subvolume that wrote it for as long as the extent exists, also if only
 * snapshots of the subvolume still refer to it, and cost next to nothing. The kernel cannot change one into the other.
 */
#ifndef HUTCH_OS_BTRFS_H
#define HUTCH_OS_BTRFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

bool btrfs_is(int fd);

enum btrfs_quota { BTRFS_QUOTA_OFF, BTRFS_QUOTA_FULL, BTRFS_QUOTA_SIMPLE };
enum btrfs_quota btrfs_quota_mode(int fd);
/* Whether the kernel has simple ones, as far as it says so: not before its first use of btrfs. */
bool btrfs_knows_simple_quota(void);
/* Switches quotas on. 0, or -1 with errno: EINVAL if the kernel does not know simple ones. */
int btrfs_quota_enable(int fd, bool simple);
/* The first item of the quota tree with this type and offset, its first n bytes. 1: there is none; -1 with errno
 * (ENOENT: quotas are off). */
int btrfs_quota_item(int fd, uint32_t type, uint64_t offset, void *ret, size_t n);

/* Simple quotas: removes the qgroups of subvolumes that are gone and whose data is. They cost room in every transaction, and
 * the kernel leaves them behind. Waits for a transaction. */
void btrfs_qgroups_sweep(int fd);

/* Size of its one device; `fd` is readable. Shrinking moves what lies beyond, which may take long; ENOSPC if it does not
 * fit. UINT64_MAX: as large as the device. 0, or -1 with errno. */
int btrfs_resize(int fd, uint64_t bytes);
/* Path of its first device ("/dev/loop0"). False: it cannot be told. */
bool btrfs_device(int fd, char *ret, size_t n);
/* Its directory in /sys. False: it cannot be told. */
bool btrfs_sysfs(int fd, char *ret, size_t n);

struct btrfs_scrubbed {
    uint64_t bytes;  /* read */
    uint64_t errors; /* checksums that were wrong, blocks that could not be read */
};
/* Reads everything of a mounted one, compares it with its checksums and changes nothing. Takes long. 0, or -1 with errno. */
int btrfs_scrub(int fd, struct btrfs_scrubbed *ret);

struct btrfs_head { /* of a superblock */
    uint64_t size;
    bool simple_quota; /* a kernel before 6.7 and btrfs-progs before 6.7 refuse it */
};
/* The superblock of an image. False: there is none. */
bool btrfs_head_read(int img, struct btrfs_head *ret);

/* What a file with a btrfs on a loop device needs and this host does not have; NULL: nothing. */
const char *btrfs_file_missing(void);
/* mkfs.btrfs on an image, as large as the file. */
int btrfs_format(int img, struct err *err);
/* `btrfs check --readonly` on an image that is not mounted. Its words are added to `out`. 0: in order, 1: it has found
 * something, or does not understand the image. */
int btrfs_check(int img, struct buf *out, struct err *err);
/* Asks the kernel to merge data that lies thinly, so that room for data becomes room for metadata (Linux 6.11; older ones do
 * less). */
void btrfs_reclaim(int fd);
/* A detached mount of the device, nosuid,nodev,noatime, which discards what is freed. -1 with errno. */
int btrfs_mount(const char *device);

#endif
