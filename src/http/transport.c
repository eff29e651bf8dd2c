#include "http/transport.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "loop/loop.h"

struct plain {
    struct transport t; /* first */
    struct buf before;  /* bytes that were read before, to be given first */
    size_t given;       /* of them */
};

static ssize_t plain_read(struct transport *t, void *p, size_t n)
{
    struct plain *q = (struct plain *)t;
    if (q->before.n == 0)
        return recv(t->fd, p, n, MSG_DONTWAIT);
    size_t left = q->before.n - q->given, some = n < left ? n : left;
    memcpy(p, q->before.p + q->given, some);
    q->given += some;
    if (q->given == q->before.n)
        buf_done(&q->before);
    return (ssize_t)some;
}

static ssize_t plain_writev(struct transport *t, const struct iovec *v, int n)
{
    struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)v, .msg_iovlen = (size_t)n};
    return sendmsg(t->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
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
static bool plain_pending(const struct transport *t) { return ((const struct plain *)t)->before.n > 0; }
static void plain_shutdown(struct transport *t) { (void)shutdown(t->fd, SHUT_WR); }

static void plain_free(struct transport *t)
{
    fd_close_foreign(t->fd);
    buf_done(&((struct plain *)t)->before);
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
    struct plain *q = xcalloc(1, sizeof *q);
    q->t.ops = &plain_ops;
    q->t.fd = fd;
    return &q->t;
}

struct transport *transport_plain_after(int fd, const void *p, size_t n)
{
    struct transport *t = transport_plain(fd);
    if (n > 0)
        buf_add(&((struct plain *)t)->before, p, n);
    return t;
}

bool transport_is_plain(const struct transport *t) { return t->ops == &plain_ops; }
