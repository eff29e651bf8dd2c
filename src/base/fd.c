#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/num.h"

int fd_write_all(int fd, const void *p, size_t n)
{
    const char *c = p;
    while (n > 0) {
        ssize_t w = write(fd, c, n);
        if (w < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        c += w;
        n -= (size_t)w;
    }
    return 0;
}

int fd_put(int dirfd, const char *path, const char *value)
{
    _cleanup_close_ int fd = openat(dirfd, path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -1;
    size_t n = strlen(value);
    ssize_t w = write(fd, value, n);
    if (w < 0)
        return -1;
    if ((size_t)w != n) {
        errno = EIO;
        return -1;
    }
    return 0;
}

static int fd_read_chunks(int fd, char *chunk, size_t n, size_t max, struct buf *b)
{
    for (size_t total = 0;;) {
        ssize_t r = read(fd, chunk, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && errno == EAGAIN) { /* a pipe whose writer is slow: opening must not block, reading may */
            struct pollfd p = {.fd = fd, .events = POLLIN};
            if (poll(&p, 1, -1) < 0 && errno != EINTR)
                return -1;
            continue;
        }
        if (r < 0)
            return -1;
        if (r == 0)
            return 0;
        total += (size_t)r;
        if (total > max) {
            errno = EFBIG;
            return -1;
        }
        buf_add(b, chunk, (size_t)r);
    }
}

int fd_read_file(int dirfd, const char *path, size_t max, struct buf *b)
{
    _cleanup_close_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char chunk[4096];
    if (fd < 0)
        return -1;
    int r = fd_read_chunks(fd, chunk, sizeof chunk, max, b);
    explicit_bzero(chunk, sizeof chunk); /* some files hold secrets */
    return r;
}

int fd_read_u64(int dirfd, const char *path, uint64_t *ret)
{
    char text[32];
    _cleanup_close_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n < 0)
        return -1;
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (strcmp(text, "max") == 0) {
        *ret = UINT64_MAX;
        return 0;
    }
    if (!num_u64(text, ret)) {
        errno = EINVAL;
        return -1;
    }
    return 0;
}

ssize_t fd_sendv(int sock, const struct iovec *v, size_t nv, const int *fds, size_t nfds)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * FD_MSG_MAX)];
        struct cmsghdr align;
    } ctl;
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)v, .msg_iovlen = (int)nv};
    if (nfds > FD_MSG_MAX) {
        errno = EINVAL;
        return -1;
    }
    if (nfds > 0) {
        memset(&ctl, 0, sizeof ctl);
        msg.msg_control = ctl.bytes;
        msg.msg_controllen = (socklen_t)CMSG_SPACE(sizeof(int) * nfds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = (socklen_t)CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
    }
    ssize_t r;
    do
        r = sendmsg(sock, &msg, MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    return r;
}

int fd_send(int sock, const void *p, size_t n, const int *fds, size_t nfds)
{
    const struct iovec v = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
    return fd_sendv(sock, &v, 1, fds, nfds) < 0 ? -1 : 0;
}

static size_t take_fds(struct msghdr *msg, int *fds, size_t room)
{
    size_t got = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (got < room)
                fds[got] = fd;
            else
                (void)close(fd);
            got++;
        }
    }
    return got;
}

ssize_t fd_recv(int sock, void *p, size_t n, int *fds, size_t *nfds)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * FD_MSG_MAX)];
        struct cmsghdr align;
    } ctl;
    struct iovec iov = {.iov_base = p, .iov_len = n};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl.bytes, .msg_controllen = sizeof ctl.bytes};
    size_t room = nfds ? *nfds : 0;
    ssize_t r;
    do
        r = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return -1;
    size_t got = take_fds(&msg, fds, room);
    if (got > room || (msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC))) {
        for (size_t i = 0; i < got && i < room; i++)
            (void)close(fds[i]);
        errno = EBADMSG;
        return -1;
    }
    if (nfds)
        *nfds = got;
    return r;
}

/* RWF_NOWAIT would say it more plainly, but older kernels refuse it for pipes and all of them for FIFOs. */
ssize_t fd_read_pipe(int fd, void *p, size_t n)
{
    struct iovec v = {.iov_base = p, .iov_len = n};
    return vmsplice(fd, &v, 1, SPLICE_F_NONBLOCK);
}

void fd_close_foreign(int fd)
{
    static const struct linger none = {0};
    struct linger is = {0};
    socklen_t n = sizeof is;
    if (getsockopt(fd, SOL_SOCKET, SO_LINGER, &is, &n) == 0 && is.l_onoff && is.l_linger)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    (void)close(fd);
}

int fd_open_in_root(int root, const char *path, uint64_t flags, uint64_t resolve)
{
    enum { TRIES = 1000 };
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve};
    int fd = -1;
    /* Any rename or mount on the machine while ".." is followed is EAGAIN, so a few more tries are enough. */
    for (int i = 0; i < TRIES && fd < 0; i++) {
        fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
        if (fd < 0 && errno != EAGAIN)
            break;
    }
    return fd;
}

int fd_close_range(unsigned first, unsigned last, unsigned flags)
{
    return (int)syscall(SYS_close_range, first, last, flags);
}
