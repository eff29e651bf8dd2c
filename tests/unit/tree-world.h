/* tree-world.h - trees to try the database's tree engine on: a temporary directory in a private mount namespace, small
 * helpers to fill it, overlays over it, and a random tree that changes at random. */
#ifndef HUTCH_TESTS_UNIT_TREE_WORLD_H
#define HUTCH_TESTS_UNIT_TREE_WORLD_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tests/lib/unit.h"

#include "base/fd.h"
#include "base/mem.h"
#include "trees/lay.h"
#include "trees/tree.h"

static char world_dir[64];
static int world = -1;

/* For a group: everything below a directory that goes away, with mounts that nobody else sees. */
static inline int world_setup(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        fprintf(stderr, "these tests need root\n");
        return -1;
    }
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -1;
    (void)umask(022);
    (void)snprintf(world_dir, sizeof world_dir, "/tmp/hutch-tree.XXXXXX");
    if (!mkdtemp(world_dir))
        return -1;
    world = open(world_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return world < 0 ? -1 : 0;
}

/* What a test that failed left mounted. */
static inline void world_unmount(void)
{
    static const char *const places[] = {"m", "again", "before", "now", "t/m", "b/m"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        char place[128];
        (void)snprintf(place, sizeof place, "%s/%s", world_dir, places[i]);
        while (umount2(place, MNT_DETACH) == 0)
            ;
    }
}

static inline int world_teardown(void **state)
{
    struct err err = {0};
    (void)state;
    (void)close(world);
    world_unmount();
    if (tree_remove(AT_FDCWD, world_dir, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    return 0;
}

#define WORKS(call)                    \
    do {                               \
        if ((call) < 0)                \
            fail_msg("%s: %m", #call); \
    } while (0)

/* Empties the world before a test; nothing of an earlier one matters then. */
static inline int world_clean(void **state)
{
    struct err err = {0};
    (void)state;
    (void)close(world);
    world_unmount();
    if (tree_remove(AT_FDCWD, world_dir, &err) < 0 || mkdir(world_dir, 0755) < 0)
        return -1;
    world = open(world_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return world < 0 ? -1 : 0;
}

static inline int dir_at(const char *path)
{
    if (mkdirat(world, path, 0755) < 0)
        assert_int_equal(errno, EEXIST);
    int fd = openat(world, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static inline void file_at(int dir, const char *path, const char *text)
{
    int fd = openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    (void)close(fd);
}

static inline void holds(int dir, const char *path, const char *text)
{
    _cleanup_buf_ struct buf b = {0};
    WORKS(fd_read_file(dir, path, 1 << 20, &b));
    assert_string_equal(buf_str(&b), text);
}

static inline struct stat stat_of(int dir, const char *path)
{
    struct stat st;
    if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        fail_msg("%s: %m", path);
    return st;
}

static inline bool is_whiteout(int dir, const char *path)
{
    struct stat st = stat_of(dir, path);
    return S_ISCHR(st.st_mode) && st.st_rdev == makedev(0, 0);
}

/* Mounts an overlay at world/at. upper NULL: read-only over two lowers at least. */
static inline int overlay_at(const char *at, const char *lowers, const char *upper, const char *more)
{
    char options[1024];
    _cleanup_free_ char *place = xasprintf("%s/%s", world_dir, at);
    assert_true(mkdirat(world, at, 0755) == 0 || errno == EEXIST);
    _cleanup_free_ char *work = xasprintf("%s.work", upper ? upper : at);
    if (upper)
        assert_true(mkdirat(world, work, 0755) == 0 || errno == EEXIST);
    /* Layers are named relative to the world: the kernel resolves them from the current directory. */
    assert_int_equal(fchdir(world), 0);
    (void)snprintf(options, sizeof options, "lowerdir=%s%s%s%s%s%s%s", lowers, upper ? ",upperdir=" : "",
                   upper ? upper : "", upper ? ",workdir=" : "", upper ? work : "", more[0] ? "," : "", more);
    if (mount("overlay", place, "overlay", 0, options) < 0)
        fail_msg("overlay %s: %m", options);
    assert_int_equal(chdir("/"), 0);
    int fd = openat(world, at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static inline void unmount_at(const char *at, int fd)
{
    _cleanup_free_ char *place = xasprintf("%s/%s", world_dir, at);
    (void)close(fd);
    WORKS(umount2(place, 0));
}

/* A memfd to write a stream to and to read it from. */
static inline int stream_new(void)
{
    int fd = memfd_create("stream", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static inline int read_back(int stream, int root, unsigned flags, struct lay_done *done, struct err *err)
{
    assert_int_equal(lseek(stream, 0, SEEK_SET), 0);
    return lay_read(stream, root, flags, NULL, NULL, NULL, done, err);
}

/* --- random trees --- */

static uint64_t dice_state = 1;
static inline unsigned dice(unsigned sides)
{
    dice_state ^= dice_state << 13, dice_state ^= dice_state >> 7, dice_state ^= dice_state << 17;
    return (unsigned)((dice_state >> 11) % sides);
}

/* A path of one to three parts out of few names, so that they meet. */
static inline void random_path(char *ret, size_t room)
{
    static const char *const names[] = {"a", "b", "cc", "d d", "\xc3\xa9", "f\n"};
    size_t n = 0;
    for (unsigned parts = 1 + dice(3), i = 0; i < parts; i++)
        n += (size_t)snprintf(ret + n, room - n, "%s%s", i ? "/" : "", names[dice(ARRAY_LEN(names))]);
}

static inline void random_attributes(int root, const char *path)
{
    char value[16];
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {(time_t)dice(2000000000), dice(1000000000)}};
    struct stat st;
    if (fstatat(root, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    if (dice(2))
        WORKS(fchownat(root, path, dice(3) * 1000, dice(3) * 100, AT_SYMLINK_NOFOLLOW));
    if (!S_ISLNK(st.st_mode) && dice(2))
        WORKS(fchmodat(root, path, dice(07777 + 1), 0));
    if ((S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) && dice(4) == 0) {
        _cleanup_close_ int fd = openat(root, path, O_RDONLY | O_CLOEXEC);
        (void)snprintf(value, sizeof value, "%u", dice(1000));
        WORKS(fsetxattr(fd, dice(2) ? "user.one" : "user.two", value, strlen(value), 0));
    }
    if (dice(2))
        WORKS(utimensat(root, path, times, AT_SYMLINK_NOFOLLOW));
}

static inline void random_file(int root, const char *path)
{
    static char block[70000];
    int fd = openat(root, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    size_t n = dice(8) == 0 ? dice(sizeof block) : dice(100);
    for (size_t i = 0; i < n; i++)
        block[i] = (char)dice(256);
    WORKS(fd_write_all(fd, block, n));
    if (dice(6) == 0)
        WORKS(ftruncate(fd, (off_t)dice(400000)));
    (void)close(fd);
}

/* One change that may or may not be possible. */
static inline void random_change(int root)
{
    char path[64], other[64];
    struct err err = {0};
    random_path(path, sizeof path);
    random_path(other, sizeof other);
    switch (dice(12)) {
    case 0:
    case 1:
    case 2:
        (void)mkdirat(root, path, 0755);
        break;
    case 3:
    case 4:
    case 5:
        random_file(root, path);
        break;
    case 6:
        (void)symlinkat(other, root, path);
        break;
    case 7:
        (void)mkfifoat(root, path, 0600);
        break;
    case 8:
        (void)linkat(root, path, root, other, 0);
        break;
    case 9:
        (void)renameat(root, path, root, other);
        break;
    case 10:
        if (faccessat(root, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            assert_int_equal(tree_remove(root, path, &err), 0);
        break;
    default:
        random_attributes(root, path);
        break;
    }
    random_attributes(root, path);
}

#endif
