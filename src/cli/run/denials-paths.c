/* denials-paths.c - finds out what a path call is about to do, from its arguments and its caller's memory.
 *
 * The caller may change all of this right after we read it: use it for reports, never for decisions.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/run/denials-int.h"
#include "policy/run/syscalls.h"

/* Argument numbers; CWD stands where a call has no directory argument, NO where it has no flags. */
enum { CWD = -1, NO = -1 };

struct path_call {
    unsigned char intent; /* enum path_intent */
    signed char dir, path, dir2, path2;
    signed char flags; /* of open(2), or AT_* */
    bool nofollow;
};

/* link and symlink write only the new name. */
static const struct path_call calls[SYSCALL_MAX + 1] = {
    [NR_open] = {INTENT_OPEN, CWD, 0, NO, NO, 1, false},
    [NR_openat] = {INTENT_OPEN, 0, 1, NO, NO, 2, false},
    [NR_openat2] = {INTENT_OPEN, 0, 1, NO, NO, NO, false},
    [NR_creat] = {INTENT_OPEN, CWD, 0, NO, NO, NO, false},
    [NR_mkdir] = {INTENT_CREATE, CWD, 0, NO, NO, NO, true},
    [NR_mkdirat] = {INTENT_CREATE, 0, 1, NO, NO, NO, true},
    [NR_mknod] = {INTENT_CREATE, CWD, 0, NO, NO, NO, true},
    [NR_mknodat] = {INTENT_CREATE, 0, 1, NO, NO, NO, true},
    [NR_link] = {INTENT_CREATE, CWD, 1, NO, NO, NO, true},
    [NR_linkat] = {INTENT_CREATE, 2, 3, NO, NO, NO, true},
    [NR_symlink] = {INTENT_CREATE, CWD, 1, NO, NO, NO, true},
    [NR_symlinkat] = {INTENT_CREATE, 1, 2, NO, NO, NO, true},
    [NR_rename] = {INTENT_RENAME, CWD, 0, CWD, 1, NO, true},
    [NR_renameat] = {INTENT_RENAME, 0, 1, 2, 3, NO, true},
    [NR_renameat2] = {INTENT_RENAME, 0, 1, 2, 3, NO, true},
    [NR_unlink] = {INTENT_REMOVE, CWD, 0, NO, NO, NO, true},
    [NR_unlinkat] = {INTENT_REMOVE, 0, 1, NO, NO, NO, true},
    [NR_rmdir] = {INTENT_REMOVE, CWD, 0, NO, NO, NO, true},
    [NR_truncate] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, false},
    [NR_chmod] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, false},
    [NR_fchmodat] = {INTENT_CHANGE, 0, 1, NO, NO, NO, false},
    [NR_fchmodat2] = {INTENT_CHANGE, 0, 1, NO, NO, 3, false},
    [NR_chown] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, false},
    [NR_lchown] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, true},
    [NR_fchownat] = {INTENT_CHANGE, 0, 1, NO, NO, 4, false},
    [NR_utime] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, false},
    [NR_utimes] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, false},
    [NR_futimesat] = {INTENT_CHANGE, 0, 1, NO, NO, NO, false},
    [NR_utimensat] = {INTENT_CHANGE, 0, 1, NO, NO, 3, false},
    [NR_setxattr] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, false},
    [NR_lsetxattr] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, true},
    [NR_setxattrat] = {INTENT_CHANGE, 0, 1, NO, NO, 2, false},
    [NR_removexattr] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, false},
    [NR_lremovexattr] = {INTENT_CHANGE, CWD, 0, NO, NO, NO, true},
    [NR_removexattrat] = {INTENT_CHANGE, 0, 1, NO, NO, 2, false},
    [NR_execve] = {INTENT_EXEC, CWD, 0, NO, NO, NO, false},
    [NR_execveat] = {INTENT_EXEC, 0, 1, NO, NO, 4, false},
};

/* The directory that a relative path starts from, as the caller's mount namespace names it. */
static bool read_base(pid_t pid, int dirfd, char *ret, size_t max)
{
    char link[64];
    if (dirfd == AT_FDCWD)
        (void)snprintf(link, sizeof link, "/proc/%d/cwd", (int)pid);
    else
        (void)snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)pid, dirfd);
    ssize_t n = readlink(link, ret, max - 1);
    if (n <= 0 || ret[0] != '/') /* not a directory, such as "pipe:[1]" */
        return false;
    ret[n] = '\0';
    return true;
}

/* Writes the absolute path that one pair of arguments names to ret (2 * PATH_MAX bytes). */
static bool read_path(const struct seccomp_data *call, pid_t pid, int dir, int path, bool may_be_empty, char *ret)
{
    char name[PATH_MAX + 1];
    int dirfd = dir == CWD ? AT_FDCWD : (int)(uint32_t)call->args[dir];
    if (!denials_read_string(pid, call->args[path], name, sizeof name) || strnlen(name, PATH_MAX) >= PATH_MAX)
        return false; /* too long: the kernel refuses it as well */
    if (name[0] == '/') {
        memcpy(ret, name, strlen(name) + 1);
        return true;
    }
    if ((name[0] == '\0' && !may_be_empty) || !read_base(pid, dirfd, ret, PATH_MAX))
        return false;
    size_t n = strlen(ret);
    if (name[0] != '\0')
        (void)snprintf(ret + n, 2 * PATH_MAX - n, "/%s", name);
    return true;
}

static bool read_open_flags(const struct seccomp_data *call, pid_t pid, int arg, int *ret)
{
    uint64_t flags = O_CREAT | O_WRONLY | O_TRUNC;
    if (arg != NO)
        flags = (uint32_t)call->args[arg];
    else if (call->nr == NR_openat2 && !denials_read_bytes(pid, call->args[2], &flags, sizeof flags))
        return false;
    *ret = (int)flags;
    return true;
}

bool denials_read_attempt(const struct seccomp_data *call, pid_t pid, struct path_attempt *ret)
{
    if (call->nr < 0 || call->nr > SYSCALL_MAX || calls[call->nr].intent == INTENT_NONE)
        return false;
    const struct path_call *c = &calls[call->nr];
    bool may_be_empty = false;
    ret->intent = (enum path_intent)c->intent;
    ret->nofollow = c->nofollow;
    ret->directory = call->nr == NR_mkdir || call->nr == NR_mkdirat;
    ret->flags = 0;
    if (c->intent == INTENT_OPEN) {
        if (!read_open_flags(call, pid, c->flags, &ret->flags))
            return false;
        ret->nofollow = (ret->flags & O_NOFOLLOW) || (ret->flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);
    } else if (c->flags != NO) {
        ret->nofollow = call->args[c->flags] & AT_SYMLINK_NOFOLLOW;
        may_be_empty = call->args[c->flags] & AT_EMPTY_PATH;
    }
    return read_path(call, pid, c->dir, c->path, may_be_empty, ret->path) &&
           (c->intent != INTENT_RENAME || read_path(call, pid, c->dir2, c->path2, false, ret->path2));
}

/* --- the sandbox's file system, from outside ---------------------------------------------------------------------- */

/* Only root may open /proc/PID/root of init, which is not dumpable. The command has executed a program, so the user who made
 * its user namespace may, too. */
void denials_open_root(struct denials *d, pid_t init, pid_t pid)
{
    const pid_t through[] = {init, pid};
    char path[64];
    for (size_t i = 0; d->root < 0 && i < ARRAY_LEN(through); i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/root", (int)through[i]);
        d->root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
}

static int open_inside(const struct denials *d, const char *path, bool nofollow, uint64_t resolve)
{
    if (d->root < 0) {
        errno = EBADF;
        return -1;
    }
    return fd_open_in_root(d->root, path, O_PATH | (nofollow ? O_NOFOLLOW : 0U), resolve);
}

static bool path_of_fd(int fd, char *ret, size_t max)
{
    char link[40];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, ret, max - 1);
    if (n <= 0 || ret[0] != '/')
        return false;
    ret[n] = '\0';
    return true;
}

/* The real name of a directory; NULL if it does not exist. Cached, because programs create many files in few directories. */
static const char *real_parent(struct denials *d, const char *named)
{
    char real[PATH_MAX];
    uint64_t hash = denials_hash(1, named) | 1;
    struct parent_dir *slot = &d->parents[(hash >> 32) % PARENT_CACHE];
    if (slot->hash == hash && strcmp(slot->named, named) == 0)
        return slot->real;
    _cleanup_close_ int fd = open_inside(d, named, false, 0);
    if (fd < 0 || !path_of_fd(fd, real, sizeof real))
        return NULL;
    free(slot->named);
    free(slot->real);
    *slot = (struct parent_dir){hash, xstrdup(named), xstrdup(real)};
    return slot->real;
}

static void resolve_absent(struct denials *d, const char *path, struct place *ret)
{
    _cleanup_free_ char *named = xstrdup(path);
    size_t n = strlen(named);
    while (n > 1 && named[n - 1] == '/')
        named[--n] = '\0';
    char *slash = strrchr(named, '/');
    if (!slash || strcmp(slash, "/..") == 0 || strcmp(slash, "/.") == 0)
        return;
    *slash = '\0';
    const char *parent = real_parent(d, slash == named ? "/" : named);
    if (!parent)
        return;
    ret->parent_exists = true;
    (void)snprintf(ret->real, sizeof ret->real, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, slash + 1);
}

void denials_resolve(struct denials *d, const char *path, bool nofollow, struct place *ret)
{
    _cleanup_free_ char *clean = path_clean("/", path);
    struct stat st;
    ret->exists = ret->parent_exists = false;
    ret->mode = 0;
    /* Most paths contain no symbolic link: their name is their real name. */
    bool plain = true;
    _cleanup_close_ int fd = open_inside(d, path, nofollow, RESOLVE_NO_SYMLINKS);
    if (fd < 0 && errno == ELOOP) {
        plain = false;
        fd = open_inside(d, path, nofollow, 0);
    }
    if (fd < 0 && errno == ENOENT)
        resolve_absent(d, path, ret);
    if (fd >= 0 && fstat(fd, &st) == 0 && (plain || path_of_fd(fd, ret->real, sizeof ret->real))) {
        ret->exists = ret->parent_exists = true;
        ret->mode = st.st_mode;
    }
    /* No permission, or a loop of links: report the path as named. */
    if ((ret->exists && plain) || !ret->parent_exists)
        (void)snprintf(ret->real, sizeof ret->real, "%s", clean);
}
