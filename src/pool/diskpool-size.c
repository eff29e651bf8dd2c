/* diskpool-size.c - how much the pool may hold: growing, shrinking, checking, and the ballast. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "keeper/outer.h"
#include "keeper/place.h"
#include "os/btrfs.h"
#include "os/caps.h"
#include "os/statx.h"
#include "pool/diskpool-int.h"

#define MIB           (UINT64_C(1) << 20)
#define GIB           (UINT64_C(1) << 30)
#define BALLAST_PIECE GIB        /* btrfs finds room for smaller pieces more easily */
#define BALLAST_LEAST (16 * MIB) /* nothing smaller is added or taken away */
#define RESERVE_LEAST (256 * MIB)
#define RESERVE_MOST  (8 * GIB)

/* --- the ballast -------------------------------------------------------------------------------------------------- */

/* What stays free on the host's disk, for the pool's metadata, our database and logs, and for as much as other programs write
 * between two looks of the watcher. */
static uint64_t diskpool_reserve(uint64_t host)
{
    uint64_t part = host / 20;
    return part < RESERVE_LEAST ? RESERVE_LEAST : part > RESERVE_MOST ? RESERVE_MOST : part;
}

/* Everything that has no blocks on the host yet, but for what the host can give, must be ballast. When the pool itself is
 * written, both sides shrink alike: only other users of the disk change the result. */
static uint64_t ballast_target(int state, int img)
{
    struct stat st;
    struct statvfs v;
    if (fstat(img, &st) < 0 || fstatvfs(state, &v) < 0)
        return 0;
    uint64_t size = (uint64_t)st.st_size, backed = (uint64_t)st.st_blocks * 512;
    uint64_t unbacked = size > backed ? size - backed : 0, free = (uint64_t)v.f_bavail * v.f_frsize;
    uint64_t reserve = diskpool_reserve((uint64_t)v.f_blocks * v.f_frsize);
    uint64_t gives = free > reserve ? free - reserve : 0;
    return unbacked > gives ? (unbacked - gives + BALLAST_LEAST - 1) / BALLAST_LEAST * BALLAST_LEAST : 0;
}

static void ballast_add(int fd, uint64_t at, uint64_t target)
{
    uint64_t piece = BALLAST_PIECE;
    while (at < target && piece >= BALLAST_LEAST) {
        uint64_t n = target - at < piece ? target - at : piece;
        if (fallocate(fd, 0, (off_t)at, (off_t)n) == 0)
            at += n;
        else if (errno != EINTR)
            piece /= 2;
    }
}

static int diskpool_open_mounted(int state)
{
    struct statx x;
    int fd = openat(state, LAYERS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) == 0 &&
        (x.stx_attributes & STATX_ATTR_MOUNT_ROOT) && btrfs_is(fd))
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

void diskpool_balance(int state)
{
    _cleanup_close_ int img = openat(state, POOL_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_close_ int stock = img < 0 ? -1 : diskpool_open_mounted(state);
    struct stat st = {0};
    if (stock < 0)
        return;
    uint64_t target = ballast_target(state, img);
    bool there = fstatat(stock, POOL_BALLAST, &st, AT_SYMLINK_NOFOLLOW) == 0;
    uint64_t now = there ? (uint64_t)st.st_size : 0;
    if (now == target || (target < now && target > 0 && now - target < 4 * BALLAST_LEAST))
        return;
    _cleanup_close_ int fd = openat(stock, POOL_BALLAST, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    if (target > now)
        ballast_add(fd, now, target);
    else
        (void)ftruncate(fd, (off_t)target);
    (void)syncfs(fd); /* what is free is counted when a transaction ends */
}

int diskpool_watch(int state, struct err *err)
{
    setup_tie();
    _cleanup_close_ int lock = openat(state, "pool.lock", O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0)
        return err_set(err, ERR_SETUP, errno, "open %s/pool.lock", diskpool_path(state));
    if (caps_bound(0) < 0 || caps_set(0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "give up capabilities");
    setup_tie(); /* a changed set of capabilities takes the death signal away */
    for (bool said = false;; (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL)) {
        struct diskpool_stat s;
        if (flock(lock, LOCK_EX | LOCK_NB) < 0)
            continue; /* it is being resized */
        diskpool_balance(state);
        (void)flock(lock, LOCK_UN);
        bool bad = diskpool_stat(state, &s) && s.read_only;
        if (bad && !said)
            log_text(LOG_LEVEL_ERROR, "the kernel has made the pool read-only after an error; see its log, stop the "
                                      "node and its sandboxes, and run `hutch store check`");
        said = bad;
    }
}

bool diskpool_stat(int state, struct diskpool_stat *ret)
{
    struct stat img, ballast = {0};
    struct statvfs v;
    _cleanup_close_ int stock = diskpool_open_mounted(state);
    if (stock < 0 || fstatat(state, POOL_FILE, &img, AT_SYMLINK_NOFOLLOW) < 0 || fstatvfs(stock, &v) < 0)
        return false;
    (void)fstatat(stock, POOL_BALLAST, &ballast, AT_SYMLINK_NOFOLLOW);
    uint64_t taken = (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize, held = (uint64_t)ballast.st_blocks * 512;
    *ret = (struct diskpool_stat){.size = (uint64_t)img.st_size,
                                  .used = taken > held ? taken - held : 0,
                                  .avail = (uint64_t)v.f_bavail * v.f_frsize,
                                  .held = held,
                                  .on_host = (uint64_t)img.st_blocks * 512,
                                  .read_only = v.f_flag & ST_RDONLY};
    return true;
}

/* --- the operator's commands -------------------------------------------------------------------------------------- */

static int diskpool_find(int state, struct diskpool *p, struct err *err)
{
    if (diskpool_lock(state, p, err) < 0)
        return -1;
    int r = diskpool_open_image(state, POOL_FILE, p, err);
    return r <= 0 ? r : err_set(err, ERR_USAGE, 0, "there is no pool in %s", diskpool_path(state));
}

static int diskpool_check_size(const struct diskpool *p, uint64_t size, bool grow, struct err *err)
{
    struct stat st;
    struct btrfs_head head;
    char now[32];
    if (fstat(p->img, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "look at the file of the pool");
    diskpool_size_text((uint64_t)st.st_size, now);
    bool half = grow && size == (uint64_t)st.st_size && btrfs_head_read(p->img, &head) && head.size < size;
    if (!half && (grow ? size <= (uint64_t)st.st_size : size >= (uint64_t)st.st_size))
        return err_set(err, ERR_USAGE, 0, "the pool has %s: give a %s size", now, grow ? "larger" : "smaller");
    if (size < POOL_MIN || size % 4096)
        return err_set(err, ERR_USAGE, 0, "the size of a pool is at least 1GiB, in multiples of 4096 bytes");
    return 0;
}

/* Killed in between, the same command does the rest, and so does every diskpool_open_root(). */
int diskpool_grow(int state, uint64_t size, struct err *err)
{
    _cleanup_(diskpool_close) struct diskpool p = DISKPOOL_INIT;
    if (diskpool_find(state, &p, err) < 0 || diskpool_check_size(&p, size, true, err) < 0)
        return -1;
    if (ftruncate(p.img, (off_t)size) < 0)
        return err_set(err, ERR_SETUP, errno, "make %s/" POOL_FILE " larger", diskpool_path(state));
    return diskpool_open_root(state, &p, err);
}

/* The file becomes smaller only after the file system did; killed in between, the next start makes both as large as the file
 * is. */
int diskpool_shrink(int state, uint64_t size, struct err *err)
{
    _cleanup_(diskpool_close) struct diskpool p = DISKPOOL_INIT;
    if (diskpool_find(state, &p, err) < 0 || diskpool_check_size(&p, size, false, err) < 0 ||
        diskpool_open_root(state, &p, err) < 0)
        return -1;
    (void)unlinkat(p.root, POOL_BALLAST, 0); /* the watcher makes it again */
    (void)syncfs(p.root);
    if (btrfs_resize(p.root, size) < 0)
        return errno == ENOSPC
                   ? err_set(err, ERR_LIMIT, 0,
                             "the pool holds more than that, or needs more room to move it: remove something "
                             "(`hutch store gc`), or give a larger size")
                   : err_set(err, ERR_SETUP, errno, "shrink the file system of the pool");
    (void)syncfs(p.root);
    if (ftruncate(p.img, (off_t)size) < 0)
        return err_set(err, ERR_SETUP, errno, "shrink %s/" POOL_FILE, diskpool_path(state));
    return loopdev_resized(&p.dev, err);
}

int diskpool_check(int state, struct buf *out, struct err *err)
{
    _cleanup_(diskpool_close) struct diskpool p = DISKPOOL_INIT;
    struct btrfs_scrubbed s;
    char bytes[32];
    if (diskpool_find(state, &p, err) < 0)
        return -1;
    int found = loopdev_find(p.img, &p.dev, err);
    if (found < 0)
        return -1;
    if (found > 0)
        return btrfs_check(p.img, out, err);
    p.mount = btrfs_mount(p.dev.path);
    p.root = p.mount < 0 ? -1 : openat(p.mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p.root < 0 || btrfs_scrub(p.root, &s) < 0)
        return err_set(err, ERR_SETUP, errno, "read the mounted pool");
    diskpool_size_text(s.bytes, bytes);
    buf_addf(out, "%s read, %llu error%s\n", bytes, (unsigned long long)s.errors, s.errors == 1 ? "" : "s");
    return s.errors ? 1 : 0;
}
