/* probe-names.c - group F, second half: protected names in the writable directory, and set-id inodes.
 *
 * run.py lays the workspace out: a repository at ".", one at a/b/repo, one without hooks at nohooks, a symlink .zshrc.
 */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat 463
#endif

/* Creates the file at arg, its directory too. Takes it away again. */
static void f_plant(const struct attempt *a, struct seen *s)
{
    char path[2 * PATH_MAX], dir[2 * PATH_MAX], cwd[PATH_MAX];
    bool made_dir = false;
    if (a->arg[0] == '@') /* "@" stands for the absolute workspace */
        (void)snprintf(path, sizeof path, "%s%s%s", a->num ? "/proc/self/root" : "", getcwd(cwd, sizeof cwd) ? cwd : "",
                       a->arg + 1);
    else
        (void)snprintf(path, sizeof path, "%s", a->arg);
    (void)snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) {
        *slash = '\0';
        made_dir = mkdir(dir, 0755) == 0;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    ssize_t n = fd < 0 ? -1 : write(fd, "# planted\n", 10);
    seen_rc(s, n);
    if (fd >= 0) {
        if (n >= 0 && ftruncate(fd, 0) == 0 && probe_var("keep") == NULL)
            (void)unlink(path);
        close(fd);
    }
    if (made_dir)
        (void)rmdir(dir);
}

/* Appends to a file that is there, then cuts it to its old length. */
static void f_append(const struct attempt *a, struct seen *s)
{
    struct stat st;
    int fd = open(a->arg, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        seen_rc(s, -1);
        return;
    }
    seen_rc(s, write(fd, "# planted\n", 10));
    (void)!ftruncate(fd, st.st_size);
}

static void f_rename_away(const struct attempt *a, struct seen *s)
{
    char to[PATH_MAX];
    (void)snprintf(to, sizeof to, "%s-moved", a->arg);
    long rc = rename(a->arg, to);
    seen_rc(s, rc);
    if (rc == 0)
        (void)rename(to, a->arg);
}

static void f_exchange_away(const struct attempt *a, struct seen *s)
{
    (void)probe_put("rt-gitfile", "gitdir: /elsewhere\n");
    long rc = syscall(SYS_renameat2, AT_FDCWD, "rt-gitfile", AT_FDCWD, a->arg, 2 /* RENAME_EXCHANGE */);
    seen_rc(s, rc);
    if (rc == 0)
        (void)syscall(SYS_renameat2, AT_FDCWD, "rt-gitfile", AT_FDCWD, a->arg, 2);
    (void)unlink("rt-gitfile");
}

static void f_replace(const struct attempt *a, struct seen *s)
{
    char keep[PATH_MAX];
    ssize_t n = readlink(a->arg, keep, sizeof keep - 1);
    long rc;
    if (a->num == 0) {
        rc = unlink(a->arg);
    } else {
        (void)probe_put("rt-other", "# planted\n");
        rc = rename("rt-other", a->arg);
        (void)unlink("rt-other");
    }
    seen_rc(s, rc);
    if (rc == 0 && n > 0) {
        keep[n] = '\0';
        (void)unlink(a->arg);
        (void)symlink(keep, a->arg);
    }
}

static void f_whiteout_rename(const struct attempt *a, struct seen *s)
{
    (void)a;
    (void)probe_put("rt-w", "x");
    seen_rc(s, syscall(SYS_renameat2, AT_FDCWD, "rt-w", AT_FDCWD, "rt-w2", 4 /* RENAME_WHITEOUT */));
    (void)unlink("rt-w");
    (void)unlink("rt-w2");
}

/* --- F-41: no set-id bit and no file capability may reach the host's disk ------------------------------------------------- */

enum setid_way {
    BY_CHMOD,
    BY_FCHMOD,
    BY_FCHMODAT,
    BY_FCHMODAT2,
    BY_OPEN,
    BY_OPENAT,
    BY_CREAT,
    BY_MKDIR,
    BY_MKDIRAT,
    BY_MKNOD,
    BY_MKNODAT,
    BY_TMPFILE,
    BY_OPENAT2,
    BY_HIGH_BITS,
    BY_SETGID,
    BY_OPENAT2_TMP
};

static long setid_try(enum setid_way way, const char *f, mode_t bits)
{
    struct open_how how = {.flags = O_CREAT | O_WRONLY | O_CLOEXEC, .mode = 0755 | bits};
    int fd;
    switch (way) {
    case BY_CHMOD:
        return syscall(SYS_chmod, f, 0755 | bits);
    case BY_SETGID:
        return syscall(SYS_chmod, f, 02755);
    case BY_FCHMOD:
        fd = open(f, O_RDONLY | O_CLOEXEC);
        return syscall(SYS_fchmod, fd, 0755 | bits);
    case BY_FCHMODAT:
        return syscall(SYS_fchmodat, AT_FDCWD, f, 0755 | bits);
    case BY_FCHMODAT2:
        return syscall(SYS_fchmodat2, AT_FDCWD, f, 0755 | bits, 0);
    case BY_HIGH_BITS:
        return syscall(SYS_chmod, f, 0x100000000L | 0755 | bits);
    case BY_OPEN:
        (void)unlink(f);
        return syscall(SYS_open, f, O_CREAT | O_WRONLY | O_CLOEXEC, 0755 | bits);
    case BY_OPENAT:
        (void)unlink(f);
        return syscall(SYS_openat, AT_FDCWD, f, O_CREAT | O_WRONLY | O_CLOEXEC, 0755 | bits);
    case BY_CREAT:
        (void)unlink(f);
        return syscall(SYS_creat, f, 0755 | bits);
    case BY_MKDIR:
        (void)unlink(f);
        return syscall(SYS_mkdir, f, 02755);
    case BY_MKDIRAT:
        (void)unlink(f);
        return syscall(SYS_mkdirat, AT_FDCWD, f, 02755);
    case BY_MKNOD:
        (void)unlink(f);
        return syscall(SYS_mknod, f, S_IFREG | 0755 | bits, 0);
    case BY_MKNODAT:
        (void)unlink(f);
        return syscall(SYS_mknodat, AT_FDCWD, f, S_IFREG | 0755 | bits, 0);
    case BY_OPENAT2:
        (void)unlink(f);
        return syscall(SYS_openat2, AT_FDCWD, f, &how, sizeof how);
    case BY_OPENAT2_TMP:
        how.flags = O_TMPFILE | O_RDWR | O_CLOEXEC;
        return syscall(SYS_openat2, AT_FDCWD, ".", &how, sizeof how);
    default:
        return syscall(SYS_openat, AT_FDCWD, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0755 | bits);
    }
}

static void f_setid(const struct attempt *a, struct seen *s)
{
    static const char file[] = "rt-setid";
    struct stat st;
    (void)umask(0);
    (void)probe_put(file, "x");
    long rc = setid_try((enum setid_way)a->num, file, S_ISUID);
    if (rc < 0)
        seen_rc(s, -1);
    else if ((rc > 2 ? fstat((int)rc, &st) : lstat(file, &st)) == 0 && st.st_mode & (S_ISUID | S_ISGID))
        seen_text(s, "success: mode %o", st.st_mode & 07777);
    else
        seen_text(s, "stripped");
    /* A directory made by mkdir keeps a set-gid bit from its parent at most; either way nothing stays. */
    (void)rmdir(file);
    (void)unlink(file);
}

static void f_setid_i386(const struct attempt *a, struct seen *s)
{
    /* The path must lie below 4 GiB for a 32-bit call, so descriptor 1-based fchmod (94) is used instead. */
    (void)a;
    (void)probe_put("rt-setid", "x");
    int fd = open("rt-setid", O_RDONLY | O_CLOEXEC);
    long rc = probe_i386(94, fd, 04755, 0);
    (void)unlink("rt-setid");
    errno = rc < 0 ? (int)-rc : 0;
    seen_rc(s, rc < 0 ? -1 : 0);
}

static void f_fcap(const struct attempt *a, struct seen *s)
{
    static const unsigned char vcap[20] = {1, 0, 0, 2, 0, 0x20};
    struct {
        uint64_t value;
        uint32_t size, flags;
    } args = {(uintptr_t)vcap, sizeof vcap, 0};
    (void)probe_put("rt-fcap", "x");
    int fd = open("rt-fcap", O_RDONLY | O_CLOEXEC);
    long rc = a->num == 0 ? fsetxattr(fd, "security.capability", vcap, sizeof vcap, 0)
              : a->num == 1
                  ? lsetxattr("rt-fcap", "security.capability", vcap, sizeof vcap, 0)
                  : syscall(SYS_setxattrat, AT_FDCWD, "rt-fcap", 0, "security.capability", &args, sizeof args);
    seen_rc(s, rc);
    close(fd);
    (void)unlink("rt-fcap");
}

#define REFUSED "EROFS EACCES EPERM EBUSY"
#define NAME(id, what, path)                                                                               \
    {                                                                                                      \
        id, what, f_plant, path, 0, REFUSED " EEXIST EISDIR ENOTDIR", "success " REFUSED, "stubs,protect", \
            CTL_OUTSIDE, 0, NULL                                                                           \
    }
#define SETID(id, what, way)                                                                             \
    {                                                                                                    \
        id, what, f_setid, NULL, way, "EPERM", "success stripped EPERM", "seccomp", CTL_OUTSIDE, 0, NULL \
    }

static const struct attempt rows[] = {
    {"F-30a", "create .git/hooks/pre-commit", f_plant, ".git/hooks/pre-commit", 0, REFUSED, "success " REFUSED,
     "protect", CTL_OUTSIDE, 0, NULL},
    {"F-30b", "append to .git/config", f_append, ".git/config", 0, REFUSED, "success " REFUSED, "protect", CTL_OUTSIDE,
     0, NULL},
    {"F-30c", "create a hook in a nested repository", f_plant, "a/b/repo/.git/hooks/post-checkout", 0, REFUSED,
     "success " REFUSED, "protect", CTL_OUTSIDE, 0, NULL},
    {"F-30d", "commit-like writes in .git still work", f_plant, ".git/index.lock", 0, "success", NULL, "", CTL_ALLOWED,
     0, NULL},
    {"F-31", "create hooks in a repository without a hooks directory", f_plant, "nohooks/.git/hooks/pre-commit", 0,
     REFUSED " EEXIST ENOTDIR", "success " REFUSED, "stubs,protect", CTL_OUTSIDE, 0, NULL},
    {"F-32", "rename .git", f_rename_away, ".git", 0, "EBUSY EACCES EPERM", "success EBUSY", "pins", CTL_OUTSIDE, 0,
     NULL},
    {"F-33a", "rename the grandparent of a nested repository", f_rename_away, "a", 0, "EBUSY EACCES EPERM",
     "success EBUSY", "pins", CTL_OUTSIDE, 0, NULL},
    {"F-33b", "rename its parent", f_rename_away, "a/b", 0, "EBUSY EACCES EPERM", "success EBUSY", "pins", CTL_OUTSIDE,
     0, NULL},
    {"F-33c", "rename the nested repository", f_rename_away, "a/b/repo", 0, "EBUSY EACCES EPERM", "success EBUSY",
     "pins", CTL_OUTSIDE, 0, NULL},
    {"F-33d", "rename the nested .git", f_rename_away, "a/b/repo/.git", 0, "EBUSY EACCES EPERM", "success EBUSY",
     "pins", CTL_OUTSIDE, 0, NULL},
    {"F-33e", "rename .git/hooks", f_rename_away, ".git/hooks", 0, "EBUSY EACCES EPERM EROFS", "success EBUSY",
     "pins,protect", CTL_OUTSIDE, 0, NULL},
    {"F-34a", "exchange .git with a file that points elsewhere", f_exchange_away, ".git", 0, "EBUSY EACCES EPERM",
     "success EBUSY", "pins", CTL_OUTSIDE, 0, NULL},
    {"F-35a", "create a hook of a submodule in .git/modules", f_plant, ".git/modules/sub/hooks/post-checkout", 0,
     REFUSED, "success " REFUSED, "protect", CTL_OUTSIDE, 0, NULL},
    {"F-35b", "append to a submodule's config", f_append, ".git/modules/sub/config", 0, REFUSED, "success " REFUSED,
     "protect", CTL_OUTSIDE, 0, NULL},
    {"F-36a", "create a hook by an odd spelling", f_plant, "./.git//hooks/./pre-push", 0, REFUSED, "success " REFUSED,
     "protect", CTL_OUTSIDE, 0, NULL},
    {"F-36b", "create a hook through /proc/self/cwd", f_plant, "/proc/self/cwd/.git/hooks/pre-push", 0, REFUSED,
     "success " REFUSED, "protect", CTL_OUTSIDE, 0, NULL},
    {"F-36c", "create a hook through /proc/self/root", f_plant, "@/.git/hooks/pre-push", 1, REFUSED, "success " REFUSED,
     "protect", CTL_OUTSIDE, 0, NULL},
    {"F-36d", "create a hook through ..", f_plant, "a/../.git/hooks/pre-push", 0, REFUSED, "success " REFUSED,
     "protect", CTL_OUTSIDE, 0, NULL},
    {"F-37a", "delete a protected name that is a symlink", f_replace, ".zshrc", 0, REFUSED, "success " REFUSED,
     "protect,stubs,pins", CTL_OUTSIDE, 0, NULL},
    {"F-37b", "rename a file over it", f_replace, ".zshrc", 1, REFUSED, "success " REFUSED, "protect,stubs,pins",
     CTL_OUTSIDE, 0, NULL},
    {"F-37c", "write through it", f_append, ".zshrc", 0, REFUSED, "success " REFUSED, "protect,stubs,pins", CTL_OUTSIDE,
     0, NULL},
    NAME("F-38a", "create .vimrc", ".vimrc"),
    NAME("F-38b", "create .Rprofile", ".Rprofile"),
    NAME("F-38c", "create .envrc", ".envrc"),
    NAME("F-38d", "create .vscode/tasks.json", ".vscode/tasks.json"),
    NAME("F-38e", "create .idea/workspace.xml", ".idea/workspace.xml"),
    NAME("F-38f", "create .mcp.json", ".mcp.json"),
    NAME("F-38g", "create .claude/settings.json", ".claude/settings.json"),
    NAME("F-38h", "create .zed/tasks.json", ".zed/tasks.json"),
    NAME("F-38i", "create .gitmodules", ".gitmodules"),
    NAME("F-38j", "create .nvimrc", ".nvimrc"),
    NAME("F-38k", "create .hutch.yaml", ".hutch.yaml"),
    {"F-40", "rename leaving a whiteout", f_whiteout_rename, NULL, 0, "EPERM EACCES EINVAL success", NULL, "",
     CTL_ALLOWED, 0, "harmless without an overlay: a 0:0 device that nobody can open"},
    SETID("F-41a", "chmod 4755", BY_CHMOD),
    SETID("F-41b", "fchmod 4755", BY_FCHMOD),
    SETID("F-41c", "fchmodat 4755", BY_FCHMODAT),
    SETID("F-41d", "fchmodat2 4755", BY_FCHMODAT2),
    SETID("F-41e", "open O_CREAT 4755", BY_OPEN),
    SETID("F-41f", "openat O_CREAT 4755", BY_OPENAT),
    SETID("F-41g", "creat 4755", BY_CREAT),
    {"F-41h", "mkdir 2755", f_setid, NULL, BY_MKDIR, "EPERM stripped", "stripped EPERM", "seccomp", CTL_KERNEL, 0,
     "the kernel drops the bit from the mode of a new directory"},
    {"F-41i", "mkdirat 2755", f_setid, NULL, BY_MKDIRAT, "EPERM stripped", "stripped EPERM", "seccomp", CTL_KERNEL, 0,
     "the kernel drops the bit from the mode of a new directory"},
    SETID("F-41j", "mknod S_IFREG 4755", BY_MKNOD),
    SETID("F-41k", "mknodat S_IFREG 4755", BY_MKNODAT),
    SETID("F-41l", "open O_TMPFILE 4755", BY_TMPFILE),
    SETID("F-41m", "chmod 4755 with the upper register half set", BY_HIGH_BITS),
    SETID("F-41n", "chmod 2755", BY_SETGID),
    {"F-41o", "openat2 O_CREAT 4755", f_setid, NULL, BY_OPENAT2, "ENOSYS EPERM", "success stripped ENOSYS", "seccomp",
     CTL_OUTSIDE, 0, NULL},
    {"F-41p", "openat2 O_TMPFILE 4755", f_setid, NULL, BY_OPENAT2_TMP, "ENOSYS EPERM", "success stripped ENOSYS",
     "seccomp", CTL_OUTSIDE, 0, NULL},
    {"F-41q", "fchmod 4755 through int 0x80", f_setid_i386, NULL, 0, "signal", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"F-41r", "file capability by fsetxattr", f_fcap, NULL, 0, "EPERM", "EPERM success", "seccomp,caps", CTL_ROOT, 0,
     "a one-uid map without a mapped 0 gives the kernel no root id to store"},
    {"F-41s", "file capability by lsetxattr", f_fcap, NULL, 1, "EPERM", "EPERM success", "seccomp,caps", CTL_ROOT, 0,
     "a one-uid map without a mapped 0 gives the kernel no root id to store"},
    {"F-41t", "file capability by setxattrat", f_fcap, NULL, 2, "EPERM ENOSYS", "EPERM ENOSYS success", "seccomp,caps",
     CTL_ROOT, 0, "a one-uid map without a mapped 0 gives the kernel no root id to store"},
};

const struct attempt_table probe_names = {"protected names", rows, ROWS(rows)};
