#include "os/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux 4.13; the C library's headers of Debian 12 have it, older ones may not. */
#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

static int fail_closing(int fd, int eno)
{
    (void)close(fd);
    errno = eno;
    return -1;
}

int pty_open_at(int devfd, int *ret_master, int *ret_slave)
{
    int unlock = 0;
    unsigned number;
    int master = openat(devfd, "ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0)
        return -1;
    if (pty_number(master, &number) < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return fail_closing(master, errno);
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return fail_closing(master, errno);
    *ret_master = master;
    *ret_slave = slave;
    return 0;
}

int pty_give(int slave, uid_t uid, gid_t gid)
{
    if (fchown(slave, uid, gid) < 0)
        return -1;
    return fchmod(slave, 0620);
}

int pty_number(int master, unsigned *ret)
{
    if (ioctl(master, TIOCGPTN, ret) == 0)
        return 0;
    /* Which errno a foreign descriptor gives depends on its driver; callers get one. */
    if (errno == EINVAL)
        errno = ENOTTY;
    return -1;
}

int pty_get_size(int tty, struct winsize *ret) { return ioctl(tty, TIOCGWINSZ, ret); }

int pty_set_size(int tty, const struct winsize *size) { return ioctl(tty, TIOCSWINSZ, size); }

int pty_make_controlling(int slave) { return ioctl(slave, TIOCSCTTY, 0); }

int pty_take_foreground(int slave)
{
    sigset_t ttou, old;
    pid_t self = getpid();
    if (setpgid(0, 0) < 0)
        return -1;
    /* A group that is not yet in the foreground is stopped by this very request, unless the signal is blocked. */
    (void)sigemptyset(&ttou);
    (void)sigaddset(&ttou, SIGTTOU);
    if (sigprocmask(SIG_BLOCK, &ttou, &old) < 0)
        return -1;
    int r = ioctl(slave, TIOCSPGRP, &self);
    int eno = errno;
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    errno = eno;
    return r;
}
