/* upper-btrfs.c - a place is a subvolume, its limit that of its qgroup. btrfs can limit bytes only, and counts them
 * when a transaction ends, so reported usage is some seconds old; the limit itself holds at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/btrfs.h"
#include "os/upper-int.h"

#define NO_LIMIT UINT64_MAX

bool upper_btrfs_is_subvolume(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) && st.st_ino == BTRFS_FIRST_FREE_OBJECTID && btrfs_is(fd);
}

int upper_btrfs_quota(int dir, bool enable, bool *ret_simple)
{
    enum btrfs_quota mode = btrfs_quota_mode(dir);
    *ret_simple = mode == BTRFS_QUOTA_SIMPLE;
    if (mode != BTRFS_QUOTA_OFF)
        return 0;
    if (!enable) {
        errno = ENOENT;
        return -1;
    }
    /* Not simple ones: with these, older kernels and programs refuse the operator's file system. */
    return btrfs_quota_enable(dir, false);
}

int upper_btrfs_limit(int root, uint64_t disk, struct err *err)
{
    struct btrfs_ioctl_qgroup_limit_args a = {0}; /* qgroup 0: that of the subvolume */
    a.lim.flags = BTRFS_QGROUP_LIMIT_MAX_RFER;
    a.lim.max_rfer = disk ? disk : NO_LIMIT;
    if (ioctl(root, BTRFS_IOC_QGROUP_LIMIT, &a) < 0)
        return err_set(err, ERR_SETUP, errno, "btrfs: limit of a subvolume");
    return 0;
}

/* 0: made, 1: it was there, -1: not made, with err. */
static int btrfs_make_place(int dir, const char *name, int from, struct err *err)
{
    struct btrfs_ioctl_vol_args_v2 a;
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return 1;
    int r = from >= 0 ? upper_snapshot(from, dir, name, false, err) : 1;
    if (r <= 0)
        return r;
    memset(&a, 0, sizeof a);
    (void)snprintf(a.name, sizeof a.name, "%s", name);
    mode_t mask = umask(022);
    int made = ioctl(dir, BTRFS_IOC_SUBVOL_CREATE_V2, &a), eno = errno;
    (void)umask(mask);
    if (made < 0 && eno != EEXIST)
        return err_set(err, ERR_SETUP, eno, "btrfs: make subvolume %s", name);
    return made < 0;
}

int upper_btrfs_open(int dir, const char *name, int from, bool quota, uint64_t disk, struct upper *ret, struct err *err)
{
    int there = btrfs_make_place(dir, name, from, err);
    if (there < 0)
        return -1;
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "open subvolume %s", name);
    if (!upper_btrfs_is_subvolume(fd))
        return err_set(err, ERR_SETUP, EEXIST, "%s exists and is not a subvolume", name);
    int r = there && from < 0 ? 0 : upper_from_tidy(fd); /* it may have been interrupted */
    if (r < 0)
        (void)err_set(err, ERR_SETUP, errno, "btrfs: prepare subvolume %s", name);
    else if (quota)
        r = upper_btrfs_limit(fd, disk, err);
    if (r < 0) {
        if (!there)
            (void)upper_btrfs_destroy(dir, name);
        return -1;
    }
    *ret = (struct upper){UPPER_BTRFS, TAKE_FD(fd)};
    return 0;
}

static uint64_t btrfs_subvolume_id(int fd)
{
    struct btrfs_ioctl_ino_lookup_args a;
    memset(&a, 0, sizeof a);
    a.objectid = BTRFS_FIRST_FREE_OBJECTID;
    return ioctl(fd, BTRFS_IOC_INO_LOOKUP, &a) == 0 ? a.treeid : 0;
}

/* Bytes that are promised but not yet counted. */
static uint64_t btrfs_reserved_bytes(int fd, uint64_t id)
{
    char fs[80], path[160];
    if (!btrfs_sysfs(fd, fs, sizeof fs))
        return 0;
    (void)snprintf(path, sizeof path, "%s/qgroups/0_%llu/rsv_data", fs, (unsigned long long)id);
    uint64_t bytes;
    return fd_read_u64(AT_FDCWD, path, &bytes) == 0 ? bytes : 0;
}

int upper_btrfs_stat(int root, struct upper_usage *ret, struct err *err)
{
    uint64_t id = btrfs_subvolume_id(root);
    struct btrfs_qgroup_info_item info;
    struct btrfs_qgroup_limit_item lim;
    int r = id ? btrfs_quota_item(root, BTRFS_QGROUP_INFO_KEY, id, &info, sizeof info) : -1;
    if (r != 0)
        return err_set(err, ERR_SETUP, r < 0 ? errno : ENOENT, "btrfs: usage of subvolume %llu",
                       (unsigned long long)id);
    *ret = (struct upper_usage){.used = info.rfer + btrfs_reserved_bytes(root, id)};
    if (btrfs_quota_item(root, BTRFS_QGROUP_LIMIT_KEY, id, &lim, sizeof lim) == 0 &&
        (lim.flags & BTRFS_QGROUP_LIMIT_MAX_RFER) && lim.max_rfer != NO_LIMIT)
        ret->limit = lim.max_rfer;
    return 0;
}

/* Removes its qgroup too, which the kernel leaves behind. */
int upper_btrfs_destroy(int dir, const char *name)
{
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (!upper_btrfs_is_subvolume(fd)) {
        errno = ENOTTY;
        return -1;
    }
    struct btrfs_ioctl_qgroup_create_args q = {.create = 0, .qgroupid = btrfs_subvolume_id(fd)};
    struct btrfs_ioctl_vol_args_v2 a;
    memset(&a, 0, sizeof a);
    (void)snprintf(a.name, sizeof a.name, "%s", name);
    if (ioctl(dir, BTRFS_IOC_SNAP_DESTROY_V2, &a) < 0)
        return -1;
    if (q.qgroupid)
        (void)ioctl(dir, BTRFS_IOC_QGROUP_CREATE, &q);
    return 0;
}

bool upper_can_snapshot(int from, int to) { return upper_btrfs_is_subvolume(from) && btrfs_is(to); }

int upper_snapshot(int from, int to, const char *name, bool frozen, struct err *err)
{
    if (!upper_can_snapshot(from, to))
        return 1;
    _cleanup_close_ int src = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int dst = openat(to, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct btrfs_ioctl_vol_args_v2 a;
    memset(&a, 0, sizeof a);
    a.fd = src;
    a.flags = frozen ? BTRFS_SUBVOL_RDONLY : 0;
    (void)snprintf(a.name, sizeof a.name, "%s", name);
    if (src < 0 || dst < 0 || ioctl(dst, BTRFS_IOC_SNAP_CREATE_V2, &a) < 0) {
        if (errno == EXDEV || errno == EPERM || errno == EACCES)
            return 1;
        return err_set(err, ERR_SETUP, errno, "btrfs: snapshot %s", name);
    }
    return 0;
}
