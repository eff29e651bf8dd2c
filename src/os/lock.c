#include "os/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"

enum { LOCK_LOOK_MS = 20, LOCKS_MAX = 4 << 20, COMM_MAX = 64 };

int lock_open(int dir, const char *name)
{
    struct stat st;
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0200);
    if (fd >= 0 && geteuid() == 0 && fstat(dir, &st) == 0 && st.st_uid != 0)
        (void)fchown(fd, st.st_uid, st.st_gid);
    return fd;
}

bool lock_interrupted(void)
{
    sigset_t pending;
    (void)sigemptyset(&pending);
    (void)sigpending(&pending);
    return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
           sigismember(&pending, SIGHUP) == 1 || sigismember(&pending, SIGQUIT) == 1;
}

/* The holder's pid from /proc/locks, "1: FLOCK  ADVISORY  WRITE 123 08:01:456 0 EOF". 0 if it is not listed. */
static int lock_holder(int fd)
{
    struct stat st;
    char where[64];
    _cleanup_buf_ struct buf text = {0};
    if (fstat(fd, &st) < 0 || fd_read_file(AT_FDCWD, "/proc/locks", LOCKS_MAX, &text) < 0)
        return 0;
    (void)snprintf(where, sizeof where, "%02x:%02x:%llu", major(st.st_dev), minor(st.st_dev),
                   (unsigned long long)st.st_ino);
    for (const char *line = buf_str(&text); line && *line; line = strchr(line, '\n'), line += line != NULL) {
        char kind[16], id[64];
        int pid;
        if (sscanf(line, "%*u: %15s %*s %*s %d %63s", kind, &pid, id) == 3 && strcmp(kind, "FLOCK") == 0 &&
            strcmp(id, where) == 0)
            return pid;
    }
    return 0;
}

static int lock_fail_held(int fd, const char *what, struct err *err)
{
    int pid = lock_holder(fd);
    char path[64];
    _cleanup_buf_ struct buf comm = {0}, shown = {0};
    (void)snprintf(path, sizeof path, "/proc/%d/comm", pid);
    if (pid <= 0 || fd_read_file(AT_FDCWD, path, COMM_MAX, &comm) < 0)
        return err_set(err, ERR_POLICY, 0, "%s is locked by another process; wait for it, or end it", what);
    text_add_safe(&shown, buf_str(&comm), COMM_MAX);
    size_t n = strcspn(buf_str(&shown), "\n\\");
    return err_set(err, ERR_POLICY, 0, "%s is locked by process %d (%.*s); wait for it, or end it", what, pid, (int)n,
                   buf_str(&shown));
}

int lock_take(int fd, int how, int ms, const char *what, struct err *err)
{
    for (int waited = 0;; waited += LOCK_LOOK_MS) {
        if (flock(fd, how | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_set(err, ERR_SETUP, errno, "lock %s", what);
        if (waited >= ms)
            return lock_fail_held(fd, what, err);
        if (lock_interrupted())
            return err_set(err, ERR_SETUP, 0, "interrupted while %s was locked", what);
        (void)poll(NULL, 0, LOCK_LOOK_MS);
    }
}
