/* attach.c - tells egress which sockets are whose.
 *
 * keeper keeps no socket of a sandbox: it fetches copies from init when it has to say something, and says everything again
 * on each new connection. What cannot be said now is marked and said later; nothing here waits.
 */
#include "keeper/attach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"

_Static_assert((int)EGRESS_ID_MAX == (int)KEEPER_ID_MAX, "ids are the same everywhere");

enum { RETRY_MS = 1000 };
enum said { SAID, LATER, BROKEN };

static void watch(struct keeper *k)
{
    struct link *l = &k->egress;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | (l->blocked ? EPOLLOUT : 0U),
                             .data.u64 = (uint64_t)EVENT_EGRESS << 56};
    if (epoll_ctl(k->epoll, EPOLL_CTL_MOD, l->fd, &ev) < 0)
        (void)epoll_ctl(k->epoll, EPOLL_CTL_ADD, l->fd, &ev);
}

static void again_later(struct keeper *k)
{
    k->egress.retry_ms = keeper_now_ms() + RETRY_MS;
    keeper_wake_at(k, k->egress.retry_ms);
}

/* The next connection may be to another egress, which knows nothing. */
static void disconnect(struct keeper *k)
{
    struct link *l = &k->egress;
    if (l->fd >= 0) {
        (void)epoll_ctl(k->epoll, EPOLL_CTL_DEL, l->fd, NULL); /* a child that is being made may have a copy */
        (void)close(l->fd);
    }
    l->fd = -1;
    l->blocked = false;
    for (uint32_t i = 0; i < k->nentries; i++) {
        struct entry *e = &k->entries[i];
        l->unsaid |= e->life == LIFE_LIVE && e->net;
        if (e->life == LIFE_LIVE)
            e->attached = false;
    }
}

static bool connected(struct keeper *k)
{
    struct link *l = &k->egress;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (l->fd >= 0)
        return true;
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/%s", KEEPER_FD_RUN, EGRESS_KEEPER_SOCKET);
    if (fd < 0)
        return false;
    if (connect(fd, (const struct sockaddr *)&addr, sizeof addr) < 0) {
        if (errno == ENOENT || errno == ECONNREFUSED)
            l->ngone = 0; /* there is nobody who holds anything */
        return false;
    }
    l->fd = TAKE_FD(fd);
    l->since_ms = keeper_now_ms();
    watch(k);
    return true;
}

static enum said say(struct keeper *k, const struct egress_attach *m, const int *fds, size_t nfds)
{
    struct link *l = &k->egress;
    if (fd_send(l->fd, m, sizeof *m, fds, nfds) == 0)
        return SAID;
    if (errno == EAGAIN) {
        l->blocked = true;
        watch(k);
        return LATER;
    }
    if (errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS) {
        again_later(k);
        return LATER;
    }
    return BROKEN;
}

static enum said say_gone(struct keeper *k, const char *id)
{
    struct egress_attach m = {.version = EGRESS_VERSION, .type = EGRESS_DETACH};
    memcpy(m.id, id, strnlen(id, sizeof m.id - 1));
    return say(k, &m, NULL, 0);
}

/* Nothing that init does is believed: the two descriptors must be those that keeper wrote down before init existed. */
static enum said say_live(struct keeper *k, struct entry *e)
{
    struct journal_record r;
    struct egress_attach m = {.version = EGRESS_VERSION, .type = EGRESS_ATTACH};
    if (journal_read(k->journal, e->id, &r) < 0)
        return SAID;
    _cleanup_close_ int tcp = (int)syscall(SYS_pidfd_getfd, e->pidfd, INIT_FD_TCP, 0);
    _cleanup_close_ int udp = tcp < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, e->pidfd, INIT_FD_UDP, 0);
    if (udp < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        again_later(k);
        return LATER;
    }
    if (udp < 0 || !netns_is_tcp(tcp, r.ns_cookie, r.tcp_cookie) || !netns_is_udp(udp, r.ns_cookie, r.udp_cookie))
        return SAID; /* it is dying, or not what it was: it gets no network */
    memcpy(m.id, e->id, sizeof m.id);
    m.ns_cookie = r.ns_cookie;
    m.tcp_cookie = r.tcp_cookie;
    m.udp_cookie = r.udp_cookie;
    const int fds[] = {tcp, udp};
    return say(k, &m, fds, ARRAY_LEN(fds));
}

static enum said say_all(struct keeper *k)
{
    struct link *l = &k->egress;
    enum said s = SAID;
    for (; l->ngone > 0 && s == SAID; l->ngone -= s == SAID)
        s = say_gone(k, l->gone[l->ngone - 1]);
    for (uint32_t i = 0; i < k->nentries && l->unsaid && s == SAID; i++) {
        struct entry *e = &k->entries[i];
        if (e->life != LIFE_LIVE || !e->net || e->attached)
            continue;
        s = say_live(k, e);
        e->attached = s == SAID;
    }
    if (s == SAID)
        l->unsaid = false;
    return s;
}

static void flush(struct keeper *k)
{
    struct link *l = &k->egress;
    if ((!l->unsaid && l->ngone == 0) || l->blocked)
        return;
    if (!connected(k)) {
        if (l->unsaid || l->ngone > 0)
            again_later(k);
        return;
    }
    if (say_all(k) == BROKEN) {
        disconnect(k);
        again_later(k);
    }
}

void attach_begin(struct keeper *k)
{
    k->egress.fd = -1;
    k->egress.retry_ms = 1; /* at the first tick */
}

void attach_live(struct keeper *k, struct entry *e)
{
    struct link *l = &k->egress;
    if (!e->net)
        return;
    /* While nobody listens, each new sandbox need not find out again. */
    bool waiting = l->fd < 0 && keeper_now_ms() < l->retry_ms;
    if (l->unsaid || l->ngone > 0 || l->fd < 0 || l->blocked) {
        l->unsaid = true;
        if (!waiting)
            flush(k);
        return;
    }
    enum said s = say_live(k, e);
    e->attached = s == SAID;
    l->unsaid = s != SAID;
    if (s == BROKEN) {
        disconnect(k);
        again_later(k);
    }
}

void attach_gone(struct keeper *k, struct entry *e)
{
    struct link *l = &k->egress;
    if (!e->net || (!e->attached && !e->adopted))
        return;
    e->attached = false;
    if (l->ngone == EGRESS_GONE_MAX) { /* egress has read nothing for ages */
        disconnect(k);
        l->ngone = 0;
    }
    memcpy(l->gone[l->ngone++], e->id, sizeof e->id);
    flush(k);
}

void attach_event(struct keeper *k, uint32_t events)
{
    struct link *l = &k->egress;
    if (l->fd < 0)
        return;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) { /* it never says anything but its end */
        disconnect(k);
        if (keeper_now_ms() < l->since_ms + RETRY_MS)
            again_later(k); /* whoever listens there does not want us */
        else
            flush(k);
        return;
    }
    if ((events & EPOLLOUT) && l->blocked) {
        l->blocked = false;
        watch(k);
        flush(k);
    }
}

uint64_t attach_tick(struct keeper *k)
{
    struct link *l = &k->egress;
    if (l->retry_ms && keeper_now_ms() >= l->retry_ms) {
        l->retry_ms = 0;
        flush(k);
    }
    return l->retry_ms && (l->unsaid || l->ngone > 0) ? l->retry_ms : UINT64_MAX;
}
