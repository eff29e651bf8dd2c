#include "os/btrfs.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"

/* Newer than the headers of Debian 12. */
#define QUOTA_ENABLE_SIMPLE 4
#define STATUS_SIMPLE_MODE  (UINT64_C(1) << 3)
#define INCOMPAT_SIMPLE     (UINT64_C(1) << 16)

enum { SEARCH_BUF = 4096, DEVICE = 1, SUPER_AT = 64 << 10, SUPER_BYTES = 256 };
enum { SUPER_MAGIC_AT = 64, SUPER_SIZE_AT = 112, SUPER_INCOMPAT_AT = 188 };

bool btrfs_is(int fd)
{
    struct statfs s;
    return fstatfs(fd, &s) == 0 && (uint32_t)s.f_type == BTRFS_SUPER_MAGIC;
}

int btrfs_quota_item(int fd, uint32_t type, uint64_t offset, void *ret, size_t n)
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

enum btrfs_quota btrfs_quota_mode(int fd)
{
    struct btrfs_qgroup_status_item s;
    if (btrfs_quota_item(fd, BTRFS_QGROUP_STATUS_KEY, 0, &s, sizeof s) != 0 || !(s.flags & BTRFS_QGROUP_STATUS_FLAG_ON))
        return BTRFS_QUOTA_OFF;
    return s.flags & STATUS_SIMPLE_MODE ? BTRFS_QUOTA_SIMPLE : BTRFS_QUOTA_FULL;
}

bool btrfs_knows_simple_quota(void) { return access("/sys/fs/btrfs/features/simple_quota", F_OK) == 0; }

int btrfs_quota_enable(int fd, bool simple)
{
    struct btrfs_ioctl_quota_ctl_args q = {.cmd = simple ? QUOTA_ENABLE_SIMPLE : BTRFS_QUOTA_CTL_ENABLE};
    return ioctl(fd, BTRFS_IOC_QUOTA_CTL, &q);
}

int btrfs_resize(int fd, uint64_t bytes)
{
    struct btrfs_ioctl_vol_args a;
    memset(&a, 0, sizeof a);
    if (bytes == UINT64_MAX)
        (void)snprintf(a.name, sizeof a.name, "%d:max", DEVICE);
    else
        (void)snprintf(a.name, sizeof a.name, "%d:%llu", DEVICE, (unsigned long long)bytes);
    int r = ioctl(fd, BTRFS_IOC_RESIZE, &a);
    if (r > 0) { /* another exclusive operation is under way */
        errno = EBUSY;
        return -1;
    }
    return r;
}

bool btrfs_device(int fd, char *ret, size_t n)
{
    static struct btrfs_ioctl_dev_info_args a; /* a page: not for the stack */
    memset(&a, 0, sizeof a);
    a.devid = DEVICE;
    if (ioctl(fd, BTRFS_IOC_DEV_INFO, &a) < 0)
        return false;
    (void)snprintf(ret, n, "%.*s", (int)sizeof a.path - 1, (const char *)a.path);
    return true;
}

bool btrfs_sysfs(int fd, char *ret, size_t n)
{
    struct btrfs_ioctl_fs_info_args a;
    char uuid[2 * BTRFS_FSID_SIZE + 5];
    size_t len = 0;
    memset(&a, 0, sizeof a);
    if (ioctl(fd, BTRFS_IOC_FS_INFO, &a) < 0)
        return false;
    for (int i = 0; i < BTRFS_FSID_SIZE; i++)
        len += (size_t)snprintf(uuid + len, sizeof uuid - len, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                                a.fsid[i]);
    (void)snprintf(ret, n, "/sys/fs/btrfs/%s", uuid);
    return true;
}

static bool btrfs_set(const char *fs, const char *name, const char *value)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/allocation/data/%s", fs, name);
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, value, strlen(value)) > 0;
}

void btrfs_reclaim(int fd)
{
    char fs[80];
    if (!btrfs_sysfs(fd, fs, sizeof fs))
        return;
    bool dynamic = btrfs_set(fs, "dynamic_reclaim", "1");
    if (!btrfs_set(fs, "periodic_reclaim", "1") || !dynamic)
        (void)btrfs_set(fs, "bg_reclaim_threshold", "30");
}

int btrfs_scrub(int fd, struct btrfs_scrubbed *ret)
{
    struct btrfs_ioctl_scrub_args a;
    memset(&a, 0, sizeof a);
    a.devid = DEVICE;
    a.end = UINT64_MAX;
    a.flags = BTRFS_SCRUB_READONLY;
    if (ioctl(fd, BTRFS_IOC_SCRUB, &a) < 0)
        return -1;
    const struct btrfs_scrub_progress *p = &a.progress;
    ret->bytes = p->data_bytes_scrubbed + p->tree_bytes_scrubbed;
    ret->errors = p->read_errors + p->csum_errors + p->verify_errors + p->super_errors + p->uncorrectable_errors;
    return 0;
}

static uint64_t btrfs_head_u64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

bool btrfs_head_read(int img, struct btrfs_head *ret)
{
    unsigned char b[SUPER_BYTES];
    if (pread(img, b, sizeof b, SUPER_AT) != (ssize_t)sizeof b || memcmp(b + SUPER_MAGIC_AT, "_BHRfS_M", 8) != 0)
        return false;
    ret->size = btrfs_head_u64(b + SUPER_SIZE_AT);
    ret->simple_quota = btrfs_head_u64(b + SUPER_INCOMPAT_AT) & INCOMPAT_SIMPLE;
    return true;
}

int btrfs_mount(const char *device)
{
    _cleanup_close_ int fs = (int)syscall(SYS_fsopen, "btrfs", FSOPEN_CLOEXEC);
    if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", device, 0) < 0 ||
        syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "discard", "async", 0) < 0 ||
        syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    return (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME);
}
