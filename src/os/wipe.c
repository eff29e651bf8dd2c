/* wipe.c - see wipe.h. Deep trees: at most twice WIPE_DEEP descriptors are open; what lies deeper is renamed into the
 * top of the tree and has its turn there. btrfs takes nothing but subvolumes from one subvolume into another, so each has
 * a top of its own, and subvolumes go to the outermost one.
 */
#include "os/wipe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "os/statx.h"

enum {
    WIPE_DEEP = 64,
    WIPE_AT_ONCE = 4096,      /* names of one directory that are read before any of them goes */
    WIPE_PATH_MAX = 2000,     /* for messages */
    SUBVOLUME_ROOT_INO = 256, /* of every btrfs subvolume */
};

struct wipe {
    int outer, top;         /* the directory that goes, and the root of the subvolume we are in; -1: not in it yet */
    unsigned depth, levels; /* below top, below outer */
    unsigned long moved;    /* for names */
};

static int wipe_dir(struct wipe *w, int dir, const char *path, struct err *err);

static int wipe_fail(struct err *err, int eno, const char *path, const char *what)
{
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, path, 400);
    return err_set(err, ERR_SETUP, eno, "'%s': %s", buf_str(&safe), what);
}

static int wipe_open_dir(int parent, const char *name)
{
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_subvolume(int parent, uint64_t ino)
{
    struct statfs fs;
    return ino == SUBVOLUME_ROOT_INO && fstatfs(parent, &fs) == 0 && (unsigned long)fs.f_type == BTRFS_SUPER_MAGIC;
}

/* The subvolume whose qgroup some kernels leave behind. 0: unknown. */
static uint64_t wipe_subvolume_id(int dir)
{
    struct btrfs_ioctl_ino_lookup_args a = {.objectid = SUBVOLUME_ROOT_INO};
    return ioctl(dir, BTRFS_IOC_INO_LOOKUP, &a) == 0 ? a.treeid : 0;
}

/* At once, unless another subvolume is in it or we may not; then it is emptied like a directory, for which it must not
 * be read-only. */
static bool drop_subvolume(int parent, const char *name, int dir)
{
    struct btrfs_ioctl_vol_args args = {0};
    struct btrfs_ioctl_qgroup_create_args group = {.create = 0, .qgroupid = wipe_subvolume_id(dir)};
    uint64_t flags = 0;
    if (strlen(name) < sizeof args.name) {
        memcpy(args.name, name, strlen(name) + 1);
        if (ioctl(parent, BTRFS_IOC_SNAP_DESTROY, &args) == 0) {
            if (group.qgroupid)
                (void)ioctl(parent, BTRFS_IOC_QGROUP_CREATE, &group);
            return true;
        }
    }
    if (ioctl(dir, BTRFS_IOC_SUBVOL_GETFLAGS, &flags) == 0 && (flags & BTRFS_SUBVOL_RDONLY)) {
        flags &= ~(uint64_t)BTRFS_SUBVOL_RDONLY;
        (void)ioctl(dir, BTRFS_IOC_SUBVOL_SETFLAGS, &flags);
    }
    return false;
}

static int move_up(struct wipe *w, int to_dir, int parent, const char *name, const char *path, struct err *err)
{
    char to[64];
    for (;;) {
        (void)snprintf(to, sizeof to, ".deep-%lu", w->moved++);
        /* An empty directory at the target is replaced; one with entries gives ENOTEMPTY. */
        if (renameat(parent, name, to_dir, to) == 0 || errno == ENOENT)
            return 0;
        if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR && errno != EISDIR)
            return wipe_fail(err, errno, path, "cannot be removed: moving it up failed");
    }
}

static int wipe_enter_dir(struct wipe *w, int parent, const char *name, const char *path, bool subvolume,
                          struct err *err)
{
    _cleanup_close_ int dir = wipe_open_dir(parent, name);
    if (dir < 0 && errno == EACCES && fchmodat(parent, name, 0700, AT_SYMLINK_NOFOLLOW) == 0) /* matters without root */
        dir = wipe_open_dir(parent, name);
    if (dir < 0)
        return errno == ENOENT ? 0 : wipe_fail(err, errno, path, "cannot be opened to remove it");
    if (geteuid() != 0)
        (void)fchmod(dir, 0700);
    if (subvolume && drop_subvolume(parent, name, dir))
        return 0;
    struct wipe before = *w;
    w->outer = w->outer < 0 ? dir : w->outer;
    w->top = w->top < 0 || subvolume ? dir : w->top;
    w->depth = w->top == dir ? 0 : w->depth + 1;
    w->levels++;
    int r = wipe_dir(w, dir, path, err);
    before.moved = w->moved;
    *w = before;
    if (r < 0)
        return -1;
    if (unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return wipe_fail(err, errno, path, "cannot be removed");
    return 0;
}

static int wipe_one(struct wipe *w, int parent, const char *name, const char *path, struct err *err)
{
    struct statx x;
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    int eno = errno;
    if (statx(parent, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &x) < 0)
        return errno == ENOENT ? 0 : wipe_fail(err, errno, path, "cannot be looked at");
    if (x.stx_attributes & STATX_ATTR_MOUNT_ROOT)
        return wipe_fail(err, EBUSY, path, "something is mounted there");
    if (!S_ISDIR(x.stx_mode))
        return wipe_fail(err, eno, path, "cannot be removed");
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0)
        return 0;
    bool subvolume = is_subvolume(parent, x.stx_ino);
    if (subvolume && w->levels >= WIPE_DEEP)
        return move_up(w, w->outer, parent, name, path, err);
    if (!subvolume && w->depth >= WIPE_DEEP)
        return move_up(w, w->top, parent, name, path, err);
    return wipe_enter_dir(w, parent, name, path, subvolume, err);
}

/* Some of the names in dir, each with its NUL. Read first: a directory that changes is not a good one to read. */
static int some_names(int dir, struct buf *ret, size_t *n, const char *path, struct err *err)
{
    int copy = wipe_open_dir(dir, ".");
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *e;
    if (!d) {
        int eno = errno;
        if (copy >= 0)
            (void)close(copy);
        return wipe_fail(err, eno, path, "cannot be listed");
    }
    errno = 0;
    for (*n = 0; *n < WIPE_AT_ONCE && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            buf_add(ret, e->d_name, strlen(e->d_name) + 1);
            ++*n;
        }
    return errno ? wipe_fail(err, errno, path, "cannot be listed") : 0;
}

/* A top is filled once more by what is moved up, and any directory may have more names than are read at once: until it
 * is empty. */
static int wipe_dir(struct wipe *w, int dir, const char *path, struct err *err)
{
    for (size_t n = 1; n > 0;) {
        _cleanup_buf_ struct buf names = {0};
        if (some_names(dir, &names, &n, path, err) < 0)
            return -1;
        const char *name = buf_str(&names);
        for (size_t i = 0; i < n; i++, name += strlen(name) + 1) {
            _cleanup_buf_ struct buf below = {0};
            buf_addf(&below, "%.*s/%s", WIPE_PATH_MAX, path, name);
            if (wipe_one(w, dir, name, buf_str(&below), err) < 0)
                return -1;
        }
    }
    return 0;
}

int wipe_tree(int dir, const char *name, struct err *err)
{
    struct wipe w = {.outer = -1, .top = -1};
    return wipe_one(&w, dir, name, name, err);
}
