/* statx.h - statx(2) where the C library has none of its own (musl before 1.2.5). The layout is the kernel's. */
#ifndef HUTCH_OS_STATX_H
#define HUTCH_OS_STATX_H

#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef STATX_BASIC_STATS
#define STATX_BASIC_STATS     0x7ffU
#define STATX_BTIME           0x800U
#define STATX_ATTR_MOUNT_ROOT 0x2000U

struct statx_timestamp {
    int64_t tv_sec;
    uint32_t tv_nsec;
    int32_t reserved;
};
struct statx {
    uint32_t stx_mask, stx_blksize;
    uint64_t stx_attributes;
    uint32_t stx_nlink, stx_uid, stx_gid;
    uint16_t stx_mode, pad1;
    uint64_t stx_ino, stx_size, stx_blocks, stx_attributes_mask;
    struct statx_timestamp stx_atime, stx_btime, stx_ctime, stx_mtime;
    uint32_t stx_rdev_major, stx_rdev_minor, stx_dev_major, stx_dev_minor;
    uint64_t spare[14];
};
_Static_assert(sizeof(struct statx) == 256, "the kernel's struct statx");

static inline int statx(int dir, const char *path, int flags, unsigned mask, struct statx *ret)
{
    return (int)syscall(SYS_statx, dir, path, flags, mask, ret);
}
#endif

#endif
