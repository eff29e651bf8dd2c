#include "os/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"

#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#define PROPAGATION_PRIVATE (1UL << 18) /* MS_PRIVATE; sys/mount.h clashes with linux/mount.h */

static uint64_t mount_attr_bits(unsigned flags)
{
    return (flags & MOUNT_RO ? MOUNT_ATTR_RDONLY : 0U) | (flags & MOUNT_NOSUID ? MOUNT_ATTR_NOSUID : 0U) |
           (flags & MOUNT_NODEV ? MOUNT_ATTR_NODEV : 0U) | (flags & MOUNT_NOEXEC ? MOUNT_ATTR_NOEXEC : 0U);
}

int mount_clone(int dirfd, const char *path, unsigned flags)
{
    unsigned f = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (flags & MOUNT_RECURSIVE ? AT_RECURSIVE : 0U) |
                 (flags & MOUNT_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0U) | (*path ? 0U : AT_EMPTY_PATH);
    return (int)syscall(SYS_open_tree, dirfd, path, f);
}

int mount_set(int fd, const char *path, unsigned flags)
{
    struct mount_attr a = {.attr_set = mount_attr_bits(flags),
                           .propagation = flags & MOUNT_PRIVATE ? PROPAGATION_PRIVATE : 0};
    unsigned f = (flags & MOUNT_RECURSIVE ? AT_RECURSIVE : 0U) | (*path ? 0U : AT_EMPTY_PATH);
    return (int)syscall(SYS_mount_setattr, fd, path, f, &a, sizeof a);
}

int mount_idmap(int fd, int userns, unsigned flags)
{
    struct mount_attr a = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
    return (int)syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | (flags & MOUNT_RECURSIVE ? AT_RECURSIVE : 0U), &a,
                        sizeof a);
}

int mount_attach(int fd, int at)
{
    return (int)syscall(SYS_move_mount, fd, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

int mount_attach_at(int fd, int dir, const char *name)
{
    return (int)syscall(SYS_move_mount, fd, "", dir, name, MOVE_MOUNT_F_EMPTY_PATH);
}

int mount_place(int dirfd, const char *path, bool in_root)
{
    struct open_how how = {
        .flags = O_PATH | O_CLOEXEC | O_NOFOLLOW,
        .resolve = RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS,
    };
    if (in_root)
        return fd_open_in_root(dirfd, path, O_PATH, 0);
    int fd = (int)syscall(SYS_openat2, dirfd, path, &how, sizeof how);
    if (fd >= 0 || errno != ELOOP)
        return fd;
    /* The last component may be a link, which is then covered itself; its parents must not be. */
    const char *slash = strrchr(path, '/');
    char parent[4096];
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (!slash || n == 0 || n >= sizeof parent) {
        how.resolve = RESOLVE_NO_MAGICLINKS;
        return (int)syscall(SYS_openat2, dirfd, path, &how, sizeof how);
    }
    memcpy(parent, path, n);
    parent[n] = '\0';
    struct open_how dir_how = how;
    dir_how.flags = O_PATH | O_CLOEXEC | O_DIRECTORY;
    int dir = (int)syscall(SYS_openat2, dirfd, parent, &dir_how, sizeof dir_how);
    if (dir < 0)
        return -1;
    fd = openat(dir, slash + 1, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    int saved = errno;
    (void)close(dir);
    errno = saved;
    return fd;
}

static int fs_finish(int fs, unsigned flags)
{
    int mnt = -1;
    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mnt = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, (unsigned)mount_attr_bits(flags));
    int saved = errno;
    (void)close(fs);
    errno = saved;
    return mnt;
}

static int fs_open(const char *type) { return (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC); }

static int fs_set(int fs, const char *key, const char *value)
{
    return (int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, key, value, 0);
}

static int fs_fail(int fs)
{
    int saved = errno;
    (void)close(fs);
    errno = saved;
    return -1;
}

static int fs_set_u64(int fs, const char *key, uint64_t value, const char *fmt)
{
    char text[32];
    (void)snprintf(text, sizeof text, fmt, (unsigned long long)value);
    return fs_set(fs, key, text);
}

int mount_new_tmpfs(uint64_t size, uint64_t inodes, mode_t mode, unsigned flags)
{
    int fs = fs_open("tmpfs");
    if (fs < 0)
        return -1;
    if ((size && fs_set_u64(fs, "size", size, "%llu") < 0) ||
        (inodes && fs_set_u64(fs, "nr_inodes", inodes, "%llu") < 0) || fs_set_u64(fs, "mode", mode, "%llo") < 0)
        return fs_fail(fs);
    return fs_finish(fs, flags);
}

int mount_limit_tmpfs(int fd, uint64_t size, uint64_t inodes)
{
    if (!size && !inodes)
        return 0;
    int fs = (int)syscall(SYS_fspick, fd, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
    if (fs < 0)
        return -1;
    if ((size && fs_set_u64(fs, "size", size, "%llu") < 0) ||
        (inodes && fs_set_u64(fs, "nr_inodes", inodes, "%llu") < 0) ||
        syscall(SYS_fsconfig, fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
        return fs_fail(fs);
    return close(fs);
}

int mount_new_proc(unsigned flags)
{
    int fs = fs_open("proc");
    return fs < 0 ? -1 : fs_finish(fs, flags);
}

int mount_new_devpts(unsigned flags)
{
    int fs = fs_open("devpts");
    if (fs < 0)
        return -1;
    if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "newinstance", NULL, 0) < 0 ||
        fs_set(fs, "ptmxmode", "0666") < 0 || fs_set(fs, "mode", "0620") < 0 ||
        fs_set_u64(fs, "max", MOUNT_TERMINALS_MAX, "%llu") < 0)
        return fs_fail(fs);
    return fs_finish(fs, flags);
}

static int set_lowers(int fs, const char *const *lower, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fs_set(fs, "lowerdir+", lower[i]) < 0)
            return -1;
    return 0;
}

/* As one option, with colons between the layers. */
static int set_joined_lowers(int fs, const char *const *lower, size_t n)
{
    char joined[4096];
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            joined[at++] = ':';
        for (const char *s = lower[i]; *s; s++) {
            if (at + 4 >= sizeof joined) {
                errno = ENAMETOOLONG;
                return -1;
            }
            if (*s == ':' || *s == '\\')
                joined[at++] = '\\';
            joined[at++] = *s;
        }
    }
    joined[at] = '\0';
    return fs_set(fs, "lowerdir", joined);
}

static int new_overlay(const char *const *lower, size_t nlower, const char *upper, const char *work, bool userxattr,
                       bool joined, unsigned flags)
{
    int fs = fs_open("overlay");
    if (fs < 0)
        return -1;
    if (joined ? set_joined_lowers(fs, lower, nlower) < 0 : set_lowers(fs, lower, nlower) < 0)
        return fs_fail(fs);
    if (upper && (fs_set(fs, "upperdir", upper) < 0 || fs_set(fs, "workdir", work) < 0))
        return fs_fail(fs);
    if (userxattr && syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "userxattr", NULL, 0) < 0)
        return fs_fail(fs);
    if (!upper)
        return fs_finish(fs, flags | MOUNT_RO);
    if (!userxattr && fs_set(fs, "redirect_dir", "on") < 0)
        return fs_fail(fs);
    /* Fixed, whatever this kernel's defaults: a copied upper layer must work over the same lower ones elsewhere. */
    static const char *const off[] = {"index", "metacopy", "nfs_export"};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (fs_set(fs, off[i], "off") < 0)
            return fs_fail(fs);
    (void)syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "volatile", NULL, 0);
    return fs_finish(fs, flags);
}

/* Kernels before 6.5 know no lowerdir+; they say so when the options are used, not when they are given. */
int mount_new_overlay(const char *const *lower, size_t nlower, const char *upper, const char *work, bool userxattr,
                      unsigned flags)
{
    int fd = new_overlay(lower, nlower, upper, work, userxattr, false, flags);
    return fd < 0 && errno == EINVAL ? new_overlay(lower, nlower, upper, work, userxattr, true, flags) : fd;
}

void mount_unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        bool octal =
            s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7';
        *out++ = octal ? (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0')) : *s;
        s += octal ? 3 : 0;
    }
    *out = '\0';
}
