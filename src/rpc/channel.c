#include "rpc/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"

enum { RING_MIN = 4096, RING_IDLE_MAX = 64 * 1024 };

struct packet_head {
    uint32_t n, nfds;
};
_Static_assert(sizeof(struct packet_head) == CHANNEL_QUEUE_EXTRA, "as the header says");

/* --- the queue ---------------------------------------------------------------------------------------------------- */

/* The bytes from `skip` on as at most two pieces. */
static int ring_pieces(const struct channel_ring *r, size_t skip, size_t n, struct iovec ret[2])
{
    size_t at = (r->head + skip) % r->cap, first = r->cap - at < n ? r->cap - at : n;
    ret[0] = (struct iovec){.iov_base = r->p + at, .iov_len = first};
    ret[1] = (struct iovec){.iov_base = r->p, .iov_len = n - first};
    return first < n ? 2 : 1;
}

static void ring_get(const struct channel_ring *r, size_t skip, void *p, size_t n)
{
    struct iovec v[2];
    (void)ring_pieces(r, skip, n, v);
    memcpy(p, v[0].iov_base, v[0].iov_len);
    memcpy((char *)p + v[0].iov_len, v[1].iov_base, v[1].iov_len);
}

static void ring_put(struct channel_ring *r, const void *p, size_t n)
{
    struct iovec v[2];
    if (n == 0)
        return;
    (void)ring_pieces(r, r->used, n, v);
    memcpy(v[0].iov_base, p, v[0].iov_len);
    memcpy(v[1].iov_base, (const char *)p + v[0].iov_len, v[1].iov_len);
    r->used += n;
}

static void ring_drop(struct channel_ring *r, size_t n)
{
    r->head = (r->head + n) % r->cap;
    r->used -= n;
    if (r->used > 0)
        return;
    r->head = 0;
    if (!r->fixed && r->cap > RING_IDLE_MAX) {
        free(r->p);
        *r = (struct channel_ring){0};
    }
}

/* Makes room for n bytes. -1: that is more than `most`. */
static int ring_reserve(struct channel_ring *r, size_t n, size_t most)
{
    if (n > most || r->used > most - n) {
        errno = ENOBUFS;
        return -1;
    }
    if (r->used + n <= r->cap)
        return 0;
    size_t cap = r->cap ? r->cap : RING_MIN;
    while (cap < r->used + n)
        cap *= 2;
    unsigned char *p = xmalloc(cap);
    if (r->used > 0)
        ring_get(r, 0, p, r->used);
    free(r->p);
    *r = (struct channel_ring){.p = p, .cap = cap, .used = r->used};
    return 0;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

void channel_init(struct channel *c, const struct channel_limits *limits, void *out_room, void *in_room)
{
    *c = (struct channel){
        .fd = -1,
        .limits = limits,
        .out = {.p = out_room, .cap = out_room ? limits->queue_max : 0, .fixed = out_room != NULL},
    };
    frame_reader_init(&c->in, limits->message_max, in_room);
}

void channel_open(struct channel *c, int fd) { c->fd = fd; }

void channel_message_done(struct channel_message *m)
{
    for (size_t i = 0; i < m->nfds; i++)
        if (m->fds[i] >= 0)
            fd_close_foreign(m->fds[i]);
    m->nfds = 0;
}

/* Takes the first packet out of the queue. */
static void channel_drop_packet(struct channel *c)
{
    struct packet_head h;
    int fds[FD_MSG_MAX];
    ring_get(&c->out, 0, &h, sizeof h);
    if (h.nfds > 0)
        ring_get(&c->out, sizeof h, fds, h.nfds * sizeof *fds);
    for (size_t i = 0; i < h.nfds; i++)
        (void)close(fds[i]);
    ring_drop(&c->out, sizeof h + h.nfds * sizeof *fds + h.n);
    c->npackets--;
}

void channel_close(struct channel *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
    while (c->npackets > 0)
        channel_drop_packet(c);
    if (!c->out.fixed)
        free(c->out.p);
    c->out = (struct channel_ring){
        .p = c->out.fixed ? c->out.p : NULL, .cap = c->out.fixed ? c->out.cap : 0, .fixed = c->out.fixed};
    frame_reader_done(&c->in);
}

int channel_dial(int dir, const char *name, enum channel_kind kind)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int n = snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof addr.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int type = kind == CHANNEL_STREAM ? SOCK_STREAM : SOCK_SEQPACKET;
    _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof addr) < 0)
        return -1;
    return TAKE_FD(fd);
}

bool channel_kind_of(int fd, enum channel_kind *ret)
{
    int type = 0;
    socklen_t n = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || (type != SOCK_STREAM && type != SOCK_SEQPACKET))
        return false;
    *ret = type == SOCK_STREAM ? CHANNEL_STREAM : CHANNEL_PACKET;
    return true;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static bool channel_is_later(int eno) { return eno == EAGAIN || eno == ENOBUFS || eno == ETOOMANYREFS; }

static int channel_check(const struct channel *c, size_t n, size_t nfds)
{
    bool stream = c->limits->kind == CHANNEL_STREAM;
    if (n > 0 && n <= c->limits->message_max && nfds <= (stream ? 0 : FD_MSG_MAX))
        return 0;
    errno = n > c->limits->message_max ? EMSGSIZE : EINVAL;
    return -1;
}

static int channel_queue_packet(struct channel *c, const void *p, size_t n, const int *fds, size_t nfds)
{
    struct packet_head h = {.n = (uint32_t)n, .nfds = (uint32_t)nfds};
    int copies[FD_MSG_MAX];
    if (ring_reserve(&c->out, sizeof h + nfds * sizeof *fds + n, c->limits->queue_max) < 0)
        return -1;
    for (size_t i = 0; i < nfds; i++) {
        copies[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, c->limits->fd_min);
        if (copies[i] >= 0)
            continue;
        int saved = errno;
        while (i-- > 0)
            (void)close(copies[i]);
        errno = saved;
        return -1;
    }
    ring_put(&c->out, &h, sizeof h);
    ring_put(&c->out, copies, nfds * sizeof *fds);
    ring_put(&c->out, p, n);
    c->npackets++;
    return 0;
}

/* Puts a frame into the queue, without its first `skip` bytes, which are sent. */
static int channel_queue_frame(struct channel *c, const void *p, size_t n, size_t skip)
{
    unsigned char head[FRAME_HEAD];
    if (ring_reserve(&c->out, FRAME_HEAD + n - skip, c->limits->queue_max) < 0)
        return -1;
    frame_put_head(head, n);
    if (skip < FRAME_HEAD)
        ring_put(&c->out, head + skip, FRAME_HEAD - skip);
    size_t of_body = skip < FRAME_HEAD ? 0 : skip - FRAME_HEAD;
    ring_put(&c->out, (const unsigned char *)p + of_body, n - of_body);
    return 0;
}

int channel_queue(struct channel *c, const void *p, size_t n, const int *fds, size_t nfds)
{
    if (channel_check(c, n, nfds) < 0)
        return -1;
    return c->limits->kind == CHANNEL_STREAM ? channel_queue_frame(c, p, n, 0)
                                             : channel_queue_packet(c, p, n, fds, nfds);
}

int channel_send(struct channel *c, const void *p, size_t n, const int *fds, size_t nfds)
{
    if (c->fd < 0 || channel_waits(c) || channel_check(c, n, nfds) < 0)
        return channel_queue(c, p, n, fds, nfds);
    unsigned char head[FRAME_HEAD];
    const struct iovec v[2] = {{.iov_base = head, .iov_len = FRAME_HEAD},
                               {.iov_base = (void *)(uintptr_t)p, .iov_len = n}};
    bool stream = c->limits->kind == CHANNEL_STREAM;
    frame_put_head(head, n);
    ssize_t sent = stream ? fd_sendv(c->fd, v, 2, NULL, 0) : fd_sendv(c->fd, v + 1, 1, fds, nfds);
    if (sent < 0 && !channel_is_later(errno))
        return -1;
    if (sent < 0)
        return channel_queue(c, p, n, fds, nfds);
    if (!stream || (size_t)sent == FRAME_HEAD + n)
        return 0;
    return channel_queue_frame(c, p, n, (size_t)sent);
}

/* Sends the first packet, or a piece of a stream. -1 with errno. */
static int channel_flush_some(struct channel *c)
{
    struct packet_head h = {0};
    struct iovec v[2];
    int fds[FD_MSG_MAX];
    if (c->limits->kind == CHANNEL_STREAM) {
        ssize_t n = fd_sendv(c->fd, v, (size_t)ring_pieces(&c->out, 0, c->out.used, v), NULL, 0);
        if (n > 0)
            ring_drop(&c->out, (size_t)n);
        return n < 0 ? -1 : 0;
    }
    ring_get(&c->out, 0, &h, sizeof h);
    if (h.nfds > 0)
        ring_get(&c->out, sizeof h, fds, h.nfds * sizeof *fds);
    int pieces = ring_pieces(&c->out, sizeof h + h.nfds * sizeof *fds, h.n, v);
    if (fd_sendv(c->fd, v, (size_t)pieces, fds, h.nfds) < 0)
        return -1;
    channel_drop_packet(c);
    return 0;
}

int channel_flush(struct channel *c)
{
    while (c->fd >= 0 && channel_waits(c))
        if (channel_flush_some(c) < 0)
            return channel_is_later(errno) ? 0 : -1;
    return 0;
}

bool channel_waits(const struct channel *c) { return c->out.used > 0; }
size_t channel_queued(const struct channel *c) { return c->out.used; }

/* --- receiving ---------------------------------------------------------------------------------------------------- */

static enum channel_got channel_recv_packet(struct channel *c, struct channel_message *ret)
{
    static unsigned char packet[CHANNEL_PACKET_MAX];
    ret->nfds = c->limits->fds_max;
    errno = 0;
    ssize_t n = fd_recv(c->fd, packet, sizeof packet, ret->fds, &ret->nfds);
    if (n <= 0)
        ret->nfds = 0; /* an empty packet is the end, and has none */
    if (n < 0 && errno == EAGAIN)
        return CHANNEL_NONE;
    if (n <= 0)
        return n < 0 && errno == EBADMSG ? CHANNEL_BROKEN : CHANNEL_ENDED;
    ret->p = packet;
    ret->n = (size_t)n;
    if (ret->n <= c->limits->message_max)
        return CHANNEL_MESSAGE;
    channel_message_done(ret);
    errno = EMSGSIZE;
    return CHANNEL_BROKEN;
}

static enum channel_got channel_recv_frame(struct channel *c, struct channel_message *ret)
{
    for (bool read = false;; read = true) {
        enum frame_state s = frame_reader_next(&c->in, &ret->p, &ret->n);
        if (s == FRAME_WHOLE)
            return CHANNEL_MESSAGE;
        if (s == FRAME_BAD) {
            errno = ret->n > c->limits->message_max ? EMSGSIZE : EBADMSG;
            return CHANNEL_BROKEN;
        }
        if (read) /* once: other channels have their turn before the rest */
            return CHANNEL_NONE;
        size_t room;
        unsigned char *p = frame_reader_room(&c->in, &room);
        errno = 0;
        ssize_t n = fd_recv(c->fd, p, room, NULL, NULL);
        if (n < 0 && errno == EAGAIN)
            return CHANNEL_NONE;
        if (n <= 0)
            return n < 0 && errno == EBADMSG ? CHANNEL_BROKEN : CHANNEL_ENDED;
        frame_reader_add(&c->in, (size_t)n);
    }
}

enum channel_got channel_recv(struct channel *c, struct channel_message *ret)
{
    ret->p = NULL;
    ret->n = ret->nfds = 0;
    if (c->fd < 0)
        return CHANNEL_NONE;
    return c->limits->kind == CHANNEL_STREAM ? channel_recv_frame(c, ret) : channel_recv_packet(c, ret);
}

bool channel_is_ready(const struct channel *c) { return c->fd >= 0 && frame_reader_is_ready(&c->in); }
