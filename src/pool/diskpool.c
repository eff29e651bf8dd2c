/* diskpool.c - finds, mounts and unmounts the pool, and decides whether there shall be one. */
#include "pool/diskpool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/num.h"
#include "keeper/place.h"
#include "os/btrfs.h"
#include "os/lock.h"
#include "os/mount.h"
#include "os/statx.h"
#include "os/upper.h"
#include "pool/diskpool-int.h"

enum { LOCK_MS = 30000 };

void diskpool_close(struct diskpool *p)
{
    loopdev_close(&p->dev);
    int *fds[] = {&p->root, &p->mount, &p->img, &p->lock};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (*fds[i] >= 0) {
            (void)close(*fds[i]);
            *fds[i] = -1;
        }
}

const char *diskpool_path(int state)
{
    static char path[4096];
    char link[32];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", state);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return n > 0 ? path : "the state directory";
}

void diskpool_size_text(uint64_t bytes, char ret[32])
{
    _cleanup_buf_ struct buf text = {0};
    num_add_size(&text, bytes);
    (void)snprintf(ret, 32, "%s", buf_str(&text));
}

int diskpool_lock(int state, struct diskpool *p, struct err *err)
{
    p->lock = lock_open(state, "pool.lock");
    if (p->lock < 0)
        return err_set(err, ERR_SETUP, errno, "open %s/pool.lock", diskpool_path(state));
    return lock_take(p->lock, LOCK_EX, LOCK_MS, "the pool", err);
}

/* --- the image ---------------------------------------------------------------------------------------------------- */

static int diskpool_fail_damaged(int state, const char *what, struct err *err)
{
    return err_set(err, ERR_SETUP, 0,
                   "%s/" POOL_FILE
                   " is damaged: %.500s. Nothing was changed. Put a copy of the file back; or repair it "
                   "(first copy it, then `btrfs check --repair`); or move it away: the node then begins with an empty "
                   "store, without its snapshots, paused sandboxes, volumes and built templates",
                   diskpool_path(state), what);
}

int diskpool_open_image(int state, const char *name, struct diskpool *p, struct err *err)
{
    struct stat st;
    struct btrfs_head head;
    p->img = openat(state, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (p->img < 0 && errno == ENOENT)
        return 1;
    if (p->img < 0 || fstat(p->img, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open %s/%s", diskpool_path(state), name);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return err_set(err, ERR_SETUP, 0, "%s/%s is not a file of ours", diskpool_path(state), name);
    if (!btrfs_head_read(p->img, &head))
        return diskpool_fail_damaged(state, "there is no superblock of a btrfs in it", err);
    if ((uint64_t)st.st_size < head.size) {
        char what[120], has[32], should[32];
        diskpool_size_text((uint64_t)st.st_size, has);
        diskpool_size_text(head.size, should);
        (void)snprintf(what, sizeof what, "it was cut off: it has %s of %s", has, should);
        return diskpool_fail_damaged(state, what, err);
    }
    return 0;
}

/* What `btrfs check` says of it, in one line. */
static int diskpool_fail_mount(int state, const struct diskpool *p, int eno, struct err *err)
{
    struct btrfs_head head;
    _cleanup_buf_ struct buf words = {0};
    struct err ignored = {0};
    char what[500];
    if (eno == ENODEV || eno == EPERM)
        return err_set(err, ERR_HOST, eno, "mount the pool %s/" POOL_FILE "%s", diskpool_path(state),
                       eno == ENODEV ? ": the kernel has no btrfs" : "");
    if (eno == EINVAL && btrfs_head_read(p->img, &head) && head.simple_quota && !btrfs_knows_simple_quota())
        return err_set(err, ERR_HOST, eno,
                       "mount the pool %s/" POOL_FILE ", which has simple quotas: that needs Linux 6.7 or newer",
                       diskpool_path(state));
    int r = btrfs_check(p->img, &words, &ignored);
    for (size_t i = 0; i < words.n; i++)
        if ((unsigned char)words.p[i] < ' ')
            words.p[i] = i + 1 < words.n ? ';' : ' ';
    (void)snprintf(what, sizeof what, "it cannot be mounted (%s); btrfs check %s: %.300s", strerror(eno),
                   r == 0 ? "finds nothing" : "says", r < 0 ? ignored.msg : buf_str(&words));
    return diskpool_fail_damaged(state, what, err);
}

static int diskpool_set_quota(const struct diskpool *p, struct err *err)
{
    if (btrfs_quota_mode(p->root) != BTRFS_QUOTA_OFF || btrfs_quota_enable(p->root, true) == 0 ||
        btrfs_quota_enable(p->root, false) == 0)
        return 0;
    return err_set(err, ERR_HOST, errno, "switch quotas of the pool on");
}

int diskpool_open_root(int state, struct diskpool *p, struct err *err)
{
    struct btrfs_head head;
    struct stat st;
    if (loopdev_attach(p->img, LOOPDEV_DIRECT, &p->dev, err) < 0 || loopdev_resized(&p->dev, err) < 0)
        return err_wrap(err,
                        "the pool %s/" POOL_FILE " needs a loop device (`modprobe loop`; in a container: give it "
                        "/dev/loop-control and /dev/loop*)",
                        diskpool_path(state));
    p->mount = btrfs_mount(p->dev.path);
    if (p->mount < 0)
        return diskpool_fail_mount(state, p, errno, err);
    p->root = openat(p->mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->root < 0)
        return err_set(err, ERR_SETUP, errno, "open the root of the pool");
    if (fstat(p->img, &st) == 0 && btrfs_head_read(p->img, &head) && head.size < (uint64_t)st.st_size &&
        btrfs_resize(p->root, UINT64_MAX) < 0)
        return err_set(err, ERR_SETUP, errno, "make the file system of the pool as large as its file");
    return 0;
}

/* --- the mount ---------------------------------------------------------------------------------------------------- */

int diskpool_is_mounted(int state, const struct diskpool *p, struct err *err)
{
    struct statx x;
    char device[LOOPDEV_NAME_MAX] = "";
    _cleanup_close_ int fd = openat(state, LAYERS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) < 0)
        return err_set(err, ERR_SETUP, errno, "open %s/" LAYERS_DIR, diskpool_path(state));
    if (!(x.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        return 0;
    if (btrfs_is(fd) && btrfs_device(fd, device, sizeof device) && strcmp(device, p->dev.path) == 0)
        return 1;
    return err_set(err, ERR_SETUP, 0,
                   "something else is mounted at %s/" LAYERS_DIR ", where the pool " POOL_FILE
                   " belongs; unmount it, or move the pool's file away",
                   diskpool_path(state));
}

/* A store from before the pool was made is still in the way after a crash: its contents are in the pool. */
static int diskpool_make_place(int state, struct err *err)
{
    if (diskpool_store_used(state) && renameat(state, LAYERS_DIR, state, POOL_BEFORE) < 0)
        return err_set(err, ERR_SETUP, errno, "move %s/" LAYERS_DIR ", which is in the pool now, to " POOL_BEFORE,
                       diskpool_path(state));
    if (mkdirat(state, LAYERS_DIR, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make %s/" LAYERS_DIR, diskpool_path(state));
    return 0;
}

static int diskpool_mount_at(int state, const struct diskpool *p, struct err *err)
{
    int mounted = diskpool_is_mounted(state, p, err);
    if (mounted != 0)
        return mounted < 0 ? -1 : 0;
    if (diskpool_make_place(state, err) < 0)
        return -1;
    if (mount_attach_at(p->mount, state, LAYERS_DIR) < 0)
        return err_set(err, ERR_HOST, errno, "mount the pool at %s/" LAYERS_DIR, diskpool_path(state));
    return 0;
}

/* Restores the size that the configuration names; a smaller one is for `hutch store shrink`. */
static int diskpool_grow_to(const struct diskpool *p, uint64_t size, struct err *err)
{
    struct stat st;
    if (fstat(p->img, &st) < 0 || (size > (uint64_t)st.st_size && ftruncate(p->img, (off_t)size) < 0))
        return err_set(err, ERR_SETUP, errno, "make the file of the pool larger");
    return 0;
}

static int diskpool_up(int state, const struct diskpool_want *w, struct diskpool *p, struct diskpool_found *ret,
                       struct err *err)
{
    struct stat st;
    char size[32];
    if (diskpool_grow_to(p, w->size, err) < 0 || (p->root < 0 && diskpool_open_root(state, p, err) < 0) ||
        diskpool_set_quota(p, err) < 0 || diskpool_mount_at(state, p, err) < 0)
        return -1;
    (void)fchmodat(state, LAYERS_DIR, 0700, 0);
    btrfs_reclaim(p->root);
    if (fstat(p->img, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "look at the file of the pool");
    diskpool_size_text((uint64_t)st.st_size, size);
    bool ours = strcmp(w->files, "auto") == 0 || strcmp(w->files, "pool") == 0;
    ret->on = true;
    (void)snprintf(ret->driver, sizeof ret->driver, "%s", ours ? "btrfs" : w->files);
    (void)snprintf(ret->why, sizeof ret->why, "%sthe pool is %.200s/" POOL_FILE ", at most %s, %s, %s quotas",
                   ours ? "" : "as the configuration says; layers are in a pool: ", diskpool_path(state), size,
                   loopdev_is_direct(&p->dev) ? "direct I/O"
                                              : "without direct I/O, which its file system does not have",
                   btrfs_quota_mode(p->root) == BTRFS_QUOTA_SIMPLE ? "simple" : "full");
    diskpool_balance(state);
    return 0;
}

/* --- the decision ------------------------------------------------------------------------------------------------- */

/* Whether the store lies where snapshots or shared content are to be had already, with limits. */
static bool diskpool_not_needed(int state, struct diskpool_found *ret)
{
    static const char *const drivers[] = {"btrfs", "layers"};
    _cleanup_close_ int stock = openat(state, LAYERS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (size_t i = 0; i < ARRAY_LEN(drivers); i++) {
        struct upper_info info;
        struct err ignored = {0};
        if (upper_probe(stock >= 0 ? stock : state, drivers[i], true, &info, &ignored) < 0 ||
            !(info.snapshots || info.reflinks))
            continue;
        (void)snprintf(ret->driver, sizeof ret->driver, "%s", drivers[i]);
        (void)snprintf(ret->why, sizeof ret->why, "the file system of the state directory has %s and %s",
                       info.snapshots ? "snapshots" : "reflinks", upper_quota_text(&info));
        return true;
    }
    return false;
}

/* Memory, unless the operator asked for a disk and the one there is holds a limit. */
static int diskpool_fall_back(int state, const struct diskpool_want *w, struct diskpool_found *ret, const char *why)
{
    struct upper_info info;
    struct err ignored = {0};
    _cleanup_close_ int stock = openat(state, LAYERS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool disk = w->given && upper_probe(stock >= 0 ? stock : state, "auto", true, &info, &ignored) == 0;
    (void)snprintf(ret->driver, sizeof ret->driver, "%s", disk ? upper_kind_name(info.kind) : "tmpfs");
    (void)snprintf(ret->why, sizeof ret->why, "%sno pool: %.500s", disk ? "" : "in memory; ", why);
    return 0;
}

/* Makes a new pool, with what STATE/stock holds if the operator asked for the pool. */
static int diskpool_begin(int state, const struct diskpool_want *w, struct diskpool *p, struct err *err)
{
    uint64_t size = w->size ? w->size : diskpool_default_size(state);
    const char *missing = btrfs_file_missing();
    bool used = diskpool_store_used(state);
    if (missing)
        return err_set(err, ERR_HOST, 0, "%s", missing);
    if (used && strcmp(w->files, "auto") == 0)
        return err_set(
            err, ERR_HOST, 0,
            "the store was made without one, and stays as it is; `files: pool` in the configuration takes it "
            "along at the next start");
    if (size < POOL_MIN)
        return err_set(err, ERR_HOST, 0, "less than 2 GiB are free at %s", diskpool_path(state));
    if (diskpool_lock(state, p, err) < 0)
        return -1;
    (void)unlinkat(state, POOL_NEW, 0); /* of a process that was killed */
    if (diskpool_make(state, size, p, err) < 0 || (used && diskpool_move_in(state, w->run, p, err) < 0))
        return -1;
    if (renameat(state, POOL_NEW, state, POOL_FILE) < 0 || fsync(state) < 0)
        return err_set(err, ERR_SETUP, errno, "name %s/" POOL_FILE, diskpool_path(state));
    return 0;
}

static int diskpool_decide(int state, const struct diskpool_want *w, struct diskpool *p, struct diskpool_found *ret,
                           struct err *err)
{
    bool any = strcmp(w->files, "auto") == 0;
    if (!any && strcmp(w->files, "pool") != 0) {
        (void)snprintf(ret->driver, sizeof ret->driver, "%s", w->files);
        (void)snprintf(ret->why, sizeof ret->why, "as the configuration says");
        return 0;
    }
    if (any && diskpool_not_needed(state, ret))
        return 0;
    if (diskpool_begin(state, w, p, err) == 0)
        return diskpool_up(state, w, p, ret, err);
    diskpool_close(p);
    (void)unlinkat(state, POOL_NEW, 0);
    return any ? diskpool_fall_back(state, w, ret, err->msg) : err_wrap(err, "files: pool");
}

/* Whether the default holds for this node. A store from before it was the default was used with files in memory, and without
 * a word of the operator that stays so: a mark in STATE tells a node that began with the default. */
static bool diskpool_default_holds(int state)
{
    if (faccessat(state, POOL_DEFAULT, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return true;
    if (diskpool_store_used(state))
        return false;
    _cleanup_close_ int mark = openat(state, POOL_DEFAULT, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return mark >= 0;
}

/* What nodes have without a word in the configuration where the pool is not for them. True: that is so. */
static bool diskpool_in_memory(int state, const struct diskpool_want *w, struct diskpool_found *ret)
{
    if (w->given || strcmp(w->files, "auto") != 0)
        return false;
    bool root = geteuid() == 0;
    if (root && diskpool_default_holds(state))
        return false;
    (void)snprintf(ret->driver, sizeof ret->driver, "tmpfs");
    (void)snprintf(ret->why, sizeof ret->why, "in memory; %s",
                   root ? "the store was made when that was the default, and stays as it is; `files: pool` in the "
                          "configuration takes it along at the next start"
                        : "no pool: only root can make one");
    return true;
}

int diskpool_attach(int state, const struct diskpool_want *w, struct diskpool_found *ret, struct err *err)
{
    _cleanup_(diskpool_close) struct diskpool p = DISKPOOL_INIT;
    *ret = (struct diskpool_found){0};
    bool there = faccessat(state, POOL_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (there && diskpool_lock(state, &p, err) < 0)
        return -1;
    int r = there ? diskpool_open_image(state, POOL_FILE, &p, err) : 1;
    if (r <= 0)
        return r < 0 ? -1 : diskpool_up(state, w, &p, ret, err);
    return diskpool_in_memory(state, w, ret) ? 0 : diskpool_decide(state, w, &p, ret, err);
}

int diskpool_detach(int state, struct err *err)
{
    char path[64];
    _cleanup_(diskpool_close) struct diskpool p = DISKPOOL_INIT;
    if (diskpool_lock(state, &p, err) < 0)
        return -1;
    p.img = openat(state, POOL_FILE, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    int found = p.img < 0 ? 1 : loopdev_find(p.img, &p.dev, err);
    if (found != 0)
        return found < 0 ? -1 : 0;
    int mounted = diskpool_is_mounted(state, &p, err);
    if (mounted <= 0)
        return mounted;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d/" LAYERS_DIR, state);
    if (umount2(path, UMOUNT_NOFOLLOW) == 0)
        return 0;
    return errno == EBUSY ? 1 : err_set(err, ERR_SETUP, errno, "unmount %s/" LAYERS_DIR, diskpool_path(state));
}
