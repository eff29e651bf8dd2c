#include "keeper/outer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { LOCK_WAIT_MS = 5000, LOCK_LOOK_MS = 20 };

static pid_t outer_lock_holder(int fd)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_GETLK, &fl) < 0 || fl.l_type == F_UNLCK ? 0 : fl.l_pid;
}

int outer_of_lock(int dir, const char *name)
{
    char path[64];
    _cleanup_close_ int lock = openat(dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0)
        return -1;
    pid_t pid = outer_lock_holder(lock);
    (void)snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    _cleanup_close_ int fd = pid <= 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && pid > 0)
        return -1;
    /* The holder is unchanged, so the pid was not reused meanwhile. */
    if (fd < 0 || outer_lock_holder(lock) != pid) {
        errno = ESRCH;
        return -1;
    }
    return TAKE_FD(fd);
}

/* A POSIX lock belongs to this process alone: no child inherits it, and the kernel drops it when we die. */
int outer_take_lock(int dir, const char *name, const char *who, struct err *err)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "open %s in the state directory", name);
    for (int waited = 0; fcntl(fd, F_SETLK, &fl) < 0; waited += LOCK_LOOK_MS) {
        if ((errno != EAGAIN && errno != EACCES) || waited >= LOCK_WAIT_MS)
            return err_set(err, ERR_SETUP, errno, "another %s runs on this state directory", who);
        (void)nanosleep(&(struct timespec){.tv_nsec = LOCK_LOOK_MS * 1000000L}, NULL);
    }
    return 0; /* the descriptor stays open for life */
}
