/* covers-writers.c - whether the command can, or could, write to a file that was put at a protected name from outside.
 *
 * A cover keeps the command from opening the name. It does nothing about a descriptor that the command got before: of
 * the file under its earlier name ("config.lock", before git renames it to "config"), or in the moment before the name
 * was covered. The kernel says whether a file is open for writing: it gives no read lease on it then. A process outside
 * that is still writing explains that; without such a process it is the command.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/random.h"
#include "wall/covers-int.h"

enum { STATUS_MAX = 16384, FDINFO_MAX = 4096, ASK_TRIES = 3 };

bool covers_is_file(const struct plan_op *op)
{
    if (!op->src || op->type == TYPE_DIR || op->hidden)
        return false;
    return op->kind == OP_PROTECT || op->kind == OP_STUB || op->kind == OP_BIND_RO;
}

/* --- processes that write ------------------------------------------------------------------------------------------ */

/* Whether any process has the file open for writing. A file system without leases says nothing: then no. */
static bool file_has_writer(int fd)
{
    (void)signal(SIGIO, SIG_IGN); /* what the kernel sends to the holder of a lease when a writer comes */
    if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
        return errno == EAGAIN;
    (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    return false;
}

static bool fd_is_writable(int proc, const char *pid, const char *fd)
{
    char path[64];
    unsigned flags;
    _cleanup_buf_ struct buf text = {0};
    (void)snprintf(path, sizeof path, "%.16s/fdinfo/%.16s", pid, fd);
    if (fd_read_file(proc, path, FDINFO_MAX, &text) < 0)
        return false;
    const char *at = strstr(buf_str(&text), "flags:");
    return at && sscanf(at, "flags: %o", &flags) == 1 && (flags & O_ACCMODE) != O_RDONLY;
}

/* "NSpid:" lists the numbers of a process from our pid namespace inwards: all processes of a sandbox have two or more. */
static bool process_is_outside(int proc, const char *pid)
{
    char path[64];
    _cleanup_buf_ struct buf text = {0};
    (void)snprintf(path, sizeof path, "%.16s/status", pid);
    if (fd_read_file(proc, path, STATUS_MAX, &text) < 0)
        return false;
    const char *at = strstr(buf_str(&text), "\nNSpid:\t");
    if (!at)
        return false;
    at += strlen("\nNSpid:\t");
    return at[strspn(at, "0123456789")] == '\n';
}

static bool process_writes(int proc, const char *pid, const struct stat *file)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%.16s/fd", pid);
    int dir = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = dir < 0 ? NULL : fdopendir(dir);
    if (!d && dir >= 0)
        (void)close(dir);
    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        struct stat st;
        if (e->d_name[0] != '.' && fstatat(dirfd(d), e->d_name, &st, 0) == 0 && st.st_dev == file->st_dev &&
            st.st_ino == file->st_ino && fd_is_writable(proc, pid, e->d_name))
            return true;
    }
    return false;
}

static bool is_written_outside(const struct stat *file)
{
    int dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC), pid;
    _cleanup_closedir_ DIR *d = dir < 0 ? NULL : fdopendir(dir);
    if (!d && dir >= 0)
        (void)close(dir);
    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (num_int(e->d_name, 1, INT32_MAX, &pid) && process_writes(dirfd(d), e->d_name, file) &&
            process_is_outside(dirfd(d), e->d_name))
            return true;
    return false;
}

/* A writer outside may close the file between the two questions: only one that is there after the search counts. */
enum covers_held covers_ask(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return COVERS_FREE;
    for (int i = 0; i < ASK_TRIES; i++) {
        if (!file_has_writer(fd))
            return st.st_nlink > 1 ? COVERS_LINKED : COVERS_FREE;
        if (is_written_outside(&st))
            return COVERS_BUSY;
    }
    return COVERS_HELD;
}

/* --- what was there before ----------------------------------------------------------------------------------------- */

int covers_open_file(const char *path)
{
    struct stat st;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ? -1 : TAKE_FD(fd);
}

void covers_remember(struct covers_file *f, int fd)
{
    struct stat st;
    char block[8192];
    f->known = false;
    buf_done(&f->content);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_nlink > 1 || st.st_size > COVERS_FILE_MAX)
        return;
    for (off_t at = 0;;) {
        ssize_t n = pread(fd, block, sizeof block, at);
        if (n < 0 || at + n > COVERS_FILE_MAX)
            return;
        if (n == 0)
            break;
        buf_add(&f->content, block, (size_t)n);
        at += n;
    }
    f->mode = st.st_mode & 07777;
    f->uid = st.st_uid;
    f->gid = st.st_gid;
    f->known = true;
}

static int write_former(const struct covers_file *f, const char *temp)
{
    _cleanup_close_ int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    if (fchown(fd, f->uid, f->gid) < 0 && geteuid() == 0)
        return -1;
    return fd_write_all(fd, f->content.p, f->content.n) < 0 || fchmod(fd, f->mode) < 0 || fsync(fd) < 0 ? -1 : 0;
}

int covers_put_back(const struct covers_file *f, const char *path, char **ret_suspect)
{
    char hex[17];
    struct stat st;
    *ret_suspect = NULL;
    if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) || !(f->known || f->absent) || strlen(path) > PATH_MAX - 64) {
        errno = EINVAL;
        return -1;
    }
    random_hex(hex, 4);
    _cleanup_free_ char *suspect = xasprintf("%s.hutch-suspect-%s", path, hex);
    if (f->absent) {
        if (rename(path, suspect) < 0)
            return -1;
    } else {
        _cleanup_free_ char *temp = xasprintf("%s.hutch-former-%s", path, hex);
        if (write_former(f, temp) < 0 || link(path, suspect) < 0 || rename(temp, path) < 0) {
            int eno = errno;
            (void)unlink(temp);
            (void)unlink(suspect);
            errno = eno;
            return -1;
        }
    }
    (void)chmod(suspect, 0600); /* nothing runs it by its mode */
    *ret_suspect = TAKE_PTR(suspect);
    return 0;
}
