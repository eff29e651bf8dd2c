/* upper-btrfs.c - a place is a subvolume, its limit that of its qgroup. btrfs can limit bytes only, and counts them
 * when a transaction ends, so reported usage is some seconds old; the limit itself holds at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/upper-int.h"

#define SEARCH_BUF 4096
#define NO_LIMIT   UINT64_MAX

bool upper_btrfs_is(int fd)
{
    struct statfs s;
    return fstatfs(fd, &s) == 0 && (uint32_t)s.f_type == BTRFS_SUPER_MAGIC;
}

bool upper_btrfs_is_subvolume(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) && st.st_ino == BTRFS_FIRST_FREE_OBJECTID && upper_btrfs_is(fd);
}

/* The first item of the quota tree between the keys. 1: there is none; -1 with errno (ENOENT: quotas are off). */
static int quota_item(int fd, uint32_t type, uint64_t offset, void *ret, size_t n)
{
    union {
        struct btrfs_ioctl_search_args_v2 a;
        unsigned char room[sizeof(struct btrfs_ioctl_search_args_v2) + SEARCH_BUF];
    } u;
    memset(&u, 0, sizeof u);
    u.a.key = (struct btrfs_ioctl_search_key){
        .tree_id = BTRFS_QUOTA_TREE_OBJECTID,
        .min_type = type,
        .max_type = type,
        .min_offset = offset,
        .max_offset = offset,
        .max_transid = UINT64_MAX,
        .nr_items = 1,
    };
    u.a.buf_size = SEARCH_BUF;
    if (ioctl(fd, BTRFS_IOC_TREE_SEARCH_V2, &u.a) < 0)
        return -1;
    struct btrfs_ioctl_search_header h;
    if (u.a.key.nr_items == 0)
        return 1;
    const unsigned char *buf = u.room + sizeof(struct btrfs_ioctl_search_args_v2);
    memcpy(&h, buf, sizeof h);
    if (h.type != type || h.offset != offset || h.len < n)
        return 1;
    memcpy(ret, buf + sizeof h, n);
    return 0;
}

int upper_btrfs_quota(int dir, bool enable)
{
    struct btrfs_qgroup_status_item s;
    if (quota_item(dir, BTRFS_QGROUP_STATUS_KEY, 0, &s, sizeof s) == 0 && (s.flags & BTRFS_QGROUP_STATUS_FLAG_ON))
        return 0;
    if (!enable) {
        errno = ENOENT;
        return -1;
    }
    struct btrfs_ioctl_quota_ctl_args q = {.cmd = BTRFS_QUOTA_CTL_ENABLE};
    return ioctl(dir, BTRFS_IOC_QUOTA_CTL, &q);
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

int upper_btrfs_open(int dir, const char *name, bool quota, uint64_t disk, struct upper *ret, struct err *err)
{
    struct btrfs_ioctl_vol_args_v2 a;
    memset(&a, 0, sizeof a);
    (void)snprintf(a.name, sizeof a.name, "%s", name);
    mode_t mask = umask(022);
    int made = ioctl(dir, BTRFS_IOC_SUBVOL_CREATE_V2, &a), eno = errno;
    (void)umask(mask);
    if (made < 0 && eno != EEXIST)
        return err_set(err, ERR_SETUP, eno, "btrfs: make subvolume %s", name);
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "open subvolume %s", name);
    if (!upper_btrfs_is_subvolume(fd))
        return err_set(err, ERR_SETUP, EEXIST, "%s exists and is not a subvolume", name);
    if (quota && upper_btrfs_limit(fd, disk, err) < 0) {
        if (made == 0)
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
    struct btrfs_ioctl_fs_info_args a;
    memset(&a, 0, sizeof a);
    if (ioctl(fd, BTRFS_IOC_FS_INFO, &a) < 0)
        return 0;
    char path[160], uuid[2 * BTRFS_FSID_SIZE + 5];
    size_t n = 0;
    for (int i = 0; i < BTRFS_FSID_SIZE; i++)
        n += (size_t)snprintf(uuid + n, sizeof uuid - n, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                              a.fsid[i]);
    (void)snprintf(path, sizeof path, "/sys/fs/btrfs/%s/qgroups/0_%llu/rsv_data", uuid, (unsigned long long)id);
    uint64_t bytes;
    return fd_read_u64(AT_FDCWD, path, &bytes) == 0 ? bytes : 0;
}

int upper_btrfs_stat(int root, struct upper_usage *ret, struct err *err)
{
    uint64_t id = btrfs_subvolume_id(root);
    struct btrfs_qgroup_info_item info;
    struct btrfs_qgroup_limit_item lim;
    int r = id ? quota_item(root, BTRFS_QGROUP_INFO_KEY, id, &info, sizeof info) : -1;
    if (r != 0)
        return err_set(err, ERR_SETUP, r < 0 ? errno : ENOENT, "btrfs: usage of subvolume %llu",
                       (unsigned long long)id);
    *ret = (struct upper_usage){.used = info.rfer + btrfs_reserved_bytes(root, id)};
    if (quota_item(root, BTRFS_QGROUP_LIMIT_KEY, id, &lim, sizeof lim) == 0 &&
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

bool upper_can_snapshot(int from, int to) { return upper_btrfs_is_subvolume(from) && upper_btrfs_is(to); }

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
