/* work-fs.c - opening, walking and copying, always from a descriptor and never through a magic link. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "init/work.h"

enum { DEPTH_MAX = 512 };

/* Not in the headers of Debian 12, or under other names. */
#define MAGIC_NFS    0x6969
#define MAGIC_SMB2   0xfe534d42
#define MAGIC_CIFS   0xff534d42
#define MAGIC_FUSE   0x65735546
#define MAGIC_MQUEUE 0x19800202

int work_open(int dir, const char *path, int flags, mode_t mode)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = RESOLVE_NO_MAGICLINKS};
    if (!(flags & O_PATH))
        how.flags |= O_NONBLOCK | O_NOCTTY;
    if (flags & O_CREAT)
        how.mode = mode;
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

int work_open_path(const struct work *w, const char *path, int flags)
{
    if (w->root < 0)
        return work_open(AT_FDCWD, path, flags, 0);
    return fd_open_in_root(w->root, path, (uint64_t)(flags & O_PATH ? flags : flags | O_NONBLOCK | O_NOCTTY), 0);
}

void work_give(const struct work *w, int fd)
{
    if (!w->strict && w->root < 0)
        (void)fchown(fd, w->user.uid, w->user.gid);
}

/* Opens a directory; makes it, as `name` in dir, and gives it to the user if it is missing. */
static int work_step_into(const struct work *w, const char *path, int dir, const char *name, bool make)
{
    int fd = work_open_path(w, path, O_PATH | O_DIRECTORY);
    if (fd >= 0 || errno != ENOENT || !make)
        return fd;
    if ((mkdirat(dir, name, 0755) < 0 && errno != EEXIST) || (w->root >= 0 && work_sync_dir(dir) < 0))
        return -1;
    fd = work_open(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd >= 0)
        work_give(w, fd);
    return fd;
}

int work_parent(struct work *w, const char *path, bool make, const char **name)
{
    static char part[INIT_PATH_MAX];
    const char *slash = strrchr(path, '/');
    *name = slash[1] ? slash + 1 : ".";
    if (strlen(*name) > 255) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int dir = work_open_path(w, "/", O_PATH | O_DIRECTORY);
    for (const char *p = path + 1; dir >= 0 && p <= slash;) { /* from the top down */
        size_t n = strcspn(p, "/"), end = (size_t)(p - path) + n;
        memcpy(part, path, end);
        part[end] = '\0';
        int next = work_step_into(w, part, dir, part + end - n, make);
        int eno = errno;
        (void)close(dir);
        errno = eno;
        dir = next;
        p += n + 1;
    }
    return dir;
}

static bool magic_in(int fd, const uint32_t *v, size_t n)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0)
        return true; /* better refused than guessed */
    for (size_t i = 0; i < n; i++)
        if ((uint32_t)fs.f_type == v[i])
            return true;
    return false;
}

bool work_is_kernel_fs(int fd)
{
    static const uint32_t v[] = {PROC_SUPER_MAGIC, SYSFS_MAGIC,   CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
                                 DEBUGFS_MAGIC,    TRACEFS_MAGIC, SECURITYFS_MAGIC,   DEVPTS_SUPER_MAGIC,
                                 NSFS_MAGIC,       MAGIC_MQUEUE};
    return magic_in(fd, v, ARRAY_LEN(v));
}

bool work_is_network_fs(int fd)
{
    static const uint32_t v[] = {MAGIC_NFS, MAGIC_SMB2, MAGIC_CIFS, SMB_SUPER_MAGIC, MAGIC_FUSE};
    return magic_in(fd, v, ARRAY_LEN(v));
}

bool work_is_dot(const char *n) { return n[0] == '.' && (n[1] == '\0' || (n[1] == '.' && n[2] == '\0')); }

/* Calls fn for every entry. Entries may be removed meanwhile. */
static int work_each_entry(int fd, int (*fn)(int dir, const char *name, unsigned char type, void *arg), void *arg)
{
    _Alignas(struct dirent64) char buf[8192];
    for (;;) {
        ssize_t n = syscall(SYS_getdents64, fd, buf, sizeof buf);
        if (n <= 0)
            return (int)n;
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(buf + at);
            at += e->d_reclen;
            if (!work_is_dot(e->d_name) && fn(fd, e->d_name, e->d_type, arg) < 0)
                return -1;
        }
    }
}

int work_copy_bytes(int from, int to)
{
    for (;;) {
        ssize_t n = copy_file_range(from, NULL, to, NULL, 1 << 30, 0);
        if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS))
            n = sendfile(to, from, NULL, 1 << 20);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return (int)n;
    }
}

void work_copy_xattrs(int from, int to)
{
    char names[4096], value[INIT_META_BYTES];
    ssize_t n = flistxattr(from, names, sizeof names);
    for (ssize_t at = 0; at < n; at += (ssize_t)strnlen(names + at, (size_t)(n - at)) + 1) {
        ssize_t v = strncmp(names + at, "user.", 5) == 0 ? fgetxattr(from, names + at, value, sizeof value) : -1;
        if (v >= 0)
            (void)fsetxattr(to, names + at, value, (size_t)v, 0);
    }
}

static void copy_facts(int from, int fd, const struct stat *st)
{
    work_copy_xattrs(from, fd);
    struct timespec t[2] = {st->st_atim, st->st_mtim};
    (void)fchown(fd, st->st_uid, st->st_gid);
    (void)fchmod(fd, st->st_mode & 0777);
    (void)futimens(fd, t);
}

static int copy_link(int dir, const char *name, int to_dir, const char *to_name, const struct stat *st)
{
    char target[INIT_PATH_MAX];
    ssize_t n = readlinkat(dir, name, target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';
    if (symlinkat(target, to_dir, to_name) < 0)
        return -1;
    (void)fchownat(to_dir, to_name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW);
    return 0;
}

struct copy_to {
    int dir;
    unsigned depth;
};

static int work_copy_entry(int dir, const char *name, unsigned char type, void *arg)
{
    const struct copy_to *to = arg;
    (void)type;
    return work_copy(dir, name, to->dir, name, to->depth + 1);
}

int work_copy(int dir, const char *name, int to_dir, const char *to_name, unsigned depth)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    if (S_ISLNK(st.st_mode))
        return copy_link(dir, name, to_dir, to_name, &st);
    if (depth >= DEPTH_MAX || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))) {
        errno = depth >= DEPTH_MAX ? E2BIG : EXDEV;
        return -1;
    }
    _cleanup_close_ int from = work_open(dir, name, O_RDONLY | O_NOFOLLOW, 0);
    if (from < 0)
        return -1;
    if (S_ISDIR(st.st_mode) && mkdirat(to_dir, to_name, 0700) < 0)
        return -1;
    int flags = S_ISDIR(st.st_mode) ? O_RDONLY | O_DIRECTORY | O_NOFOLLOW : O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
    _cleanup_close_ int to = work_open(to_dir, to_name, flags, 0600);
    if (to < 0)
        return -1;
    struct copy_to arg = {.dir = to, .depth = depth};
    if ((S_ISDIR(st.st_mode) ? work_each_entry(from, work_copy_entry, &arg) : work_copy_bytes(from, to)) < 0)
        return -1;
    copy_facts(from, to, &st);
    return 0;
}
