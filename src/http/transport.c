#include "http/transport.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "loop/loop.h"

static ssize_t plain_read(struct transport *t, void *p, size_t n) { return recv(t->fd, p, n, 0); }

static ssize_t plain_writev(struct transport *t, const struct iovec *v, int n)
{
    struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)v, .msg_iovlen = (size_t)n};
    return sendmsg(t->fd, &m, MSG_NOSIGNAL);
}

static unsigned wants_in(const struct transport *t)
{
    (void)t;
    return LOOP_IN;
}
static unsigned wants_out(const struct transport *t)
{
    (void)t;
    return LOOP_OUT;
}
static bool plain_pending(const struct transport *t)
{
    (void)t;
    return false;
}
static void plain_shutdown(struct transport *t) { (void)shutdown(t->fd, SHUT_WR); }

static void plain_free(struct transport *t)
{
    (void)close(t->fd);
    free(t);
}

static const char *plain_protocol(const struct transport *t)
{
    (void)t;
    return NULL;
}
static int plain_handshake(struct transport *t)
{
    (void)t;
    return 1;
}

static const struct transport_ops plain_ops = {
    .read = plain_read,
    .writev = plain_writev,
    .wants_read = wants_in,
    .wants_write = wants_out,
    .pending = plain_pending,
    .shutdown = plain_shutdown,
    .free = plain_free,
    .protocol = plain_protocol,
    .handshake = plain_handshake,
};

struct transport *transport_plain(int fd)
{
    struct transport *t = xcalloc(1, sizeof *t);
    t->ops = &plain_ops;
    t->fd = fd;
    return t;
}

bool transport_is_plain(const struct transport *t) { return t->ops == &plain_ops; }
