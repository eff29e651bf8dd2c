/* upper.c - which driver, and the way to it. */
#include "os/upper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/random.h"
#include "os/btrfs.h"
#include "os/mount.h"
#include "os/upper-int.h"
#include "os/wipe.h"

#define GONE       ".gone-"
#define TMPFS_MODE 0755

static const struct {
    enum upper_kind kind;
    const char *name;
} kinds[] = {{UPPER_BTRFS, "btrfs"}, {UPPER_LAYERS, "layers"}, {UPPER_IMAGE, "image"}, {UPPER_TMPFS, "tmpfs"}};

const char *upper_kind_name(enum upper_kind k)
{
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (kinds[i].kind == k)
            return kinds[i].name;
    return "?";
}

const char *upper_quota_name(enum upper_quota q)
{
    static const char *const names[] = {"none", "tmpfs", "btrfs qgroup", "project quota", "image"};
    return (size_t)q < ARRAY_LEN(names) ? names[q] : "?";
}

const char *upper_quota_text(const struct upper_info *i)
{
    return i->simple ? "btrfs simple quota" : upper_quota_name(i->quota);
}

static void upper_note_why(struct upper_info *i, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void upper_note_why(struct upper_info *i, const char *fmt, ...)
{
    size_t n = strlen(i->why);
    if (n > 0 && n + 2 < sizeof i->why)
        n += (size_t)snprintf(i->why + n, sizeof i->why - n, "; ");
    va_list ap;
    va_start(ap, fmt);
    if (n < sizeof i->why)
        (void)vsnprintf(i->why + n, sizeof i->why - n, fmt, ap);
    va_end(ap);
}

static int open_readable(int dir, struct err *err)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "open the directory of the places") : fd;
}

static bool can_reflink(int dir)
{
    char name[2][40];
    int fd[2];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(name[i], sizeof name[i], "%s", GONE "probe-");
        random_hex(name[i] + strlen(name[i]), 8);
        fd[i] = openat(dir, name[i], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    bool ok = fd[0] >= 0 && fd[1] >= 0 && pwrite(fd[0], "x", 1, 4095) == 1 && ioctl(fd[1], FICLONE, fd[0]) == 0;
    for (int i = 0; i < 2; i++)
        if (fd[i] >= 0) {
            (void)close(fd[i]);
            (void)unlinkat(dir, name[i], 0);
        }
    return ok;
}

static void look_for_project(int dir, struct upper_info *ret)
{
    if (upper_project_probe(dir) == 0)
        ret->quota = UPPER_QUOTA_PROJECT;
    else
        upper_note_why(ret, "no project quota: %s",
                       errno == ESRCH || errno == ENOSYS || errno == EINVAL || errno == ENOTSUP
                           ? "the file system is not mounted with prjquota"
                           : strerror(errno));
}

/* False: it is not to be had here; why says so. */
static bool try_kind(int dir, enum upper_kind kind, bool need_quota, struct upper_info *ret)
{
    ret->kind = kind;
    ret->quota = UPPER_QUOTA_NONE;
    ret->snapshots = ret->simple = ret->reflinks = false;
    switch (kind) {
    case UPPER_TMPFS:
        ret->quota = UPPER_QUOTA_TMPFS;
        break;
    case UPPER_BTRFS:
        if (!btrfs_is(dir)) {
            upper_note_why(ret, "no btrfs");
            return false;
        }
        ret->snapshots = true;
        if (upper_btrfs_quota(dir, need_quota, &ret->simple) == 0) {
            ret->quota = UPPER_QUOTA_QGROUP;
            upper_note_why(ret, "btrfs limits bytes, not the number of files");
        } else {
            upper_note_why(ret, "btrfs without quotas: %s", errno == ENOENT ? "they are off" : strerror(errno));
        }
        break;
    case UPPER_LAYERS:
        ret->reflinks = can_reflink(dir);
        look_for_project(dir, ret);
        break;
    case UPPER_IMAGE: {
        const char *missing = upper_image_missing();
        if (missing) {
            upper_note_why(ret, "%s", missing);
            return false;
        }
        ret->quota = UPPER_QUOTA_IMAGE;
    }
    }
    return !need_quota || ret->quota != UPPER_QUOTA_NONE;
}

int upper_probe(int dir, const char *want, bool need_quota, struct upper_info *ret, struct err *err)
{
    bool any = want && strcmp(want, "auto") == 0;
    enum upper_kind kind = 0;
    if (!want || !*want)
        want = "tmpfs";
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        kind = strcmp(kinds[i].name, want) == 0 ? kinds[i].kind : kind;
    if (strcmp(want, "reflink") == 0) /* an older name: also in records of sandboxes that live from before */
        kind = UPPER_LAYERS;
    if (!any && kind == 0)
        return err_set(err, ERR_USAGE, 0, "\"%s\" is not a driver (auto, btrfs, layers, image, tmpfs)", want);
    *ret = (struct upper_info){0};
    if (kind == UPPER_TMPFS)
        return (void)try_kind(-1, kind, need_quota, ret), 0;
    _cleanup_close_ int fd = open_readable(dir, err);
    if (fd < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        bool wanted = any ? kinds[i].kind == UPPER_BTRFS || kinds[i].kind == UPPER_LAYERS : kinds[i].kind == kind;
        if (wanted && try_kind(fd, kinds[i].kind, need_quota, ret))
            return 0;
    }
    return err_set(err, ERR_HOST, 0, "no %s%s here: %s", any ? "driver for files on disk" : want,
                   need_quota ? " with a quota" : "", ret->why);
}

static int upper_check_name(const char *name, struct err *err)
{
    size_t n = name ? strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") : 0;
    if (n == 0 || name[n] || n > UPPER_NAME_MAX)
        return err_set(err, ERR_USAGE, 0, "the name of a place is 1 to %d of A-Z a-z 0-9 _ -", (int)UPPER_NAME_MAX);
    return 0;
}

int upper_open(const struct upper_info *info, int dir, const char *name, uint64_t disk, uint64_t inodes,
               struct upper *ret, struct err *err)
{
    return upper_open_from(info, dir, name, -1, disk, inodes, ret, err);
}

int upper_open_from(const struct upper_info *info, int dir, const char *name, int from, uint64_t disk, uint64_t inodes,
                    struct upper *ret, struct err *err)
{
    *ret = (struct upper)UPPER_INIT;
    if (info->kind == UPPER_TMPFS) {
        int fd = mount_new_tmpfs(disk, inodes, TMPFS_MODE, MOUNT_NOSUID | MOUNT_NODEV);
        if (fd < 0)
            return err_set(err, ERR_SETUP, errno, "mount a tmpfs");
        *ret = (struct upper){UPPER_TMPFS, fd};
        return 0;
    }
    if (upper_check_name(name, err) < 0)
        return -1;
    _cleanup_close_ int fd = open_readable(dir, err);
    if (fd < 0)
        return -1;
    if (info->kind == UPPER_BTRFS)
        return upper_btrfs_open(fd, name, from, info->quota == UPPER_QUOTA_QGROUP, disk, ret, err);
    if (info->kind == UPPER_IMAGE)
        return upper_image_open(fd, name, disk, inodes, info->quick, ret, err);
    if (upper_project_open(fd, name, info->quota == UPPER_QUOTA_PROJECT, disk, inodes, ret, err) < 0)
        return -1;
    ret->kind = info->kind;
    return 0;
}

void upper_close(struct upper *u)
{
    if (u->root >= 0)
        (void)close(u->root);
    *u = (struct upper)UPPER_INIT;
}

/* The directory of an existing place. */
static int open_place(const struct upper_info *info, int dir, const char *name, struct upper *ret, struct err *err)
{
    if (info->kind == UPPER_TMPFS)
        return err_set(err, ERR_USAGE, 0, "a tmpfs has no name");
    if (upper_check_name(name, err) < 0)
        return -1;
    if (info->kind == UPPER_IMAGE) {
        _cleanup_close_ int fd = open_readable(dir, err);
        char file[UPPER_NAME_MAX + 8];
        (void)snprintf(file, sizeof file, "%s.img", name);
        if (fd < 0)
            return -1;
        if (faccessat(fd, file, F_OK, 0) < 0)
            return err_set(err, ERR_SETUP, errno, "open %s", file);
        return upper_image_open(fd, name, 0, 0, info->quick, ret, err);
    }
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "open %s", name);
    *ret = (struct upper){info->kind, fd};
    return 0;
}

int upper_resize(const struct upper_info *info, int dir, const char *name, uint64_t disk, uint64_t inodes,
                 struct err *err)
{
    if (info->kind == UPPER_IMAGE) {
        _cleanup_close_ int fd = upper_check_name(name, err) < 0 ? -1 : open_readable(dir, err);
        return fd < 0 ? -1 : upper_image_resize(fd, name, disk, err);
    }
    _cleanup_(upper_close) struct upper u = UPPER_INIT;
    if (open_place(info, dir, name, &u, err) < 0)
        return -1;
    if (info->quota == UPPER_QUOTA_QGROUP)
        return upper_btrfs_limit(u.root, disk, err);
    if (info->quota == UPPER_QUOTA_PROJECT)
        return upper_project_limit(u.root, disk, inodes, err);
    return disk || inodes ? err_set(err, ERR_HOST, 0, "no quota is in force: %s", info->why) : 0;
}

static int stat_fs(int root, struct upper_usage *ret, struct err *err)
{
    struct statvfs v;
    if (fstatvfs(root, &v) < 0)
        return err_set(err, ERR_SETUP, errno, "usage of a file system");
    *ret = (struct upper_usage){(uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize, (uint64_t)v.f_blocks * v.f_frsize,
                                v.f_files - v.f_ffree, v.f_files};
    return 0;
}

int upper_stat(const struct upper_info *info, int dir, const char *name, const struct upper *u, struct upper_usage *ret,
               struct err *err)
{
    _cleanup_(upper_close) struct upper own = UPPER_INIT;
    if (!u || u->root < 0) {
        if (open_place(info, dir, name, &own, err) < 0)
            return -1;
        u = &own;
    }
    switch (info->quota) {
    case UPPER_QUOTA_TMPFS:
    case UPPER_QUOTA_IMAGE:
        return stat_fs(u->root, ret, err);
    case UPPER_QUOTA_QGROUP:
        return upper_btrfs_stat(u->root, ret, err);
    case UPPER_QUOTA_PROJECT:
        return upper_project_stat(u->root, info->count_max, ret, err);
    case UPPER_QUOTA_NONE:
        break;
    }
    return upper_count(u->root, info->count_max, ret, err);
}

int upper_remove(int dir, const char *name, struct err *err)
{
    char from[UPPER_NAME_MAX + 8], to[40];
    if (upper_check_name(name, err) < 0)
        return -1;
    for (int image = 0; image < 2; image++) {
        (void)snprintf(from, sizeof from, "%s%s", name, image ? ".img" : "");
        (void)snprintf(to, sizeof to, "%s", GONE);
        random_hex(to + strlen(to), 8);
        if (renameat(dir, from, dir, to) < 0 && errno != ENOENT)
            return err_set(err, ERR_SETUP, errno, "remove %s", from);
    }
    return 0;
}

static bool to_be_swept(int dir, const char *name)
{
    struct stat st;
    if (strncmp(name, UPPER_NEW, strlen(UPPER_NEW)) == 0)
        return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && time(NULL) - st.st_mtime > UPPER_NEW_SECONDS;
    return strncmp(name, GONE, strlen(GONE)) == 0;
}

int upper_sweep(int dir, struct err *err)
{
    int fd = open_readable(dir, err);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            (void)close(fd);
        return -1;
    }
    const struct dirent *e;
    int r = 0;
    while ((e = readdir(d))) {
        if (!to_be_swept(dirfd(d), e->d_name))
            continue;
        uint32_t project = upper_project_of(dirfd(d), e->d_name);
        if (wipe_tree(dirfd(d), e->d_name, err) < 0)
            r = -1; /* removes the others in any case */
        else
            upper_project_forget(dirfd(d), project);
    }
    return r;
}
