/* attach.c - tells egress which sockets belong to which sandbox.
 *
 * keeper keeps no socket of a sandbox: it fetches copies from init for each message, and repeats all messages on each
 * new connection. Messages that cannot be sent now are marked and sent later; nothing here waits.
 */
#include "keeper/attach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"

_Static_assert((int)EGRESS_ID_MAX == (int)KEEPER_ID_MAX, "ids are the same everywhere");

enum { RETRY_MS = 1000 };
enum said { SAID, LATER, BROKEN };

static void attach_watch(struct keeper *k)
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

/* The next connection may reach a new egress, which needs all messages again. */
static void attach_disconnect(struct keeper *k)
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

static bool attach_ensure_connected(struct keeper *k)
{
    struct link *l = &k->egress;
    if (l->fd >= 0)
        return true;
    l->fd = channel_dial(KEEPER_FD_RUN, EGRESS_KEEPER_SOCKET, CHANNEL_PACKET);
    if (l->fd < 0) {
        if (errno == ENOENT || errno == ECONNREFUSED)
            l->ngone = 0; /* no egress runs, so none holds a sandbox's sockets */
        return false;
    }
    l->since_ms = keeper_now_ms();
    attach_watch(k);
    return true;
}

static enum said attach_send(struct keeper *k, const struct egress_attach *m, const int *fds, size_t nfds)
{
    struct link *l = &k->egress;
    if (fd_send(l->fd, m, sizeof *m, fds, nfds) == 0)
        return SAID;
    if (errno == EAGAIN) {
        l->blocked = true;
        attach_watch(k);
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
    return attach_send(k, &m, NULL, 0);
}

static enum said say_live(struct keeper *k, struct entry *e)
{
    struct journal_record r;
    struct egress_attach m = {.version = EGRESS_VERSION, .type = EGRESS_ATTACH};
    if (!e->tier->network || journal_read(k->journal, e->id, &r) < 0)
        return SAID;
    int fds[2];
    if (e->tier->network(e, &r, fds) < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOMEM)
            return SAID; /* dying, or its sockets were replaced: it gets no network */
        again_later(k);
        return LATER;
    }
    memcpy(m.id, e->id, sizeof m.id);
    m.ns_cookie = r.ns_cookie;
    m.tcp_cookie = r.tcp_cookie;
    m.udp_cookie = r.udp_cookie;
    enum said s = attach_send(k, &m, fds, ARRAY_LEN(fds));
    int saved = errno;
    (void)close(fds[0]), (void)close(fds[1]);
    errno = saved;
    return s;
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

static void attach_flush_link(struct keeper *k)
{
    struct link *l = &k->egress;
    if ((!l->unsaid && l->ngone == 0) || l->blocked)
        return;
    if (!attach_ensure_connected(k)) {
        if (l->unsaid || l->ngone > 0)
            again_later(k);
        return;
    }
    if (say_all(k) == BROKEN) {
        attach_disconnect(k);
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
    /* While egress is down, new sandboxes wait for the next retry instead of connecting each time. */
    bool waiting = l->fd < 0 && keeper_now_ms() < l->retry_ms;
    if (l->unsaid || l->ngone > 0 || l->fd < 0 || l->blocked) {
        l->unsaid = true;
        if (!waiting)
            attach_flush_link(k);
        return;
    }
    enum said s = say_live(k, e);
    e->attached = s == SAID;
    l->unsaid = s != SAID;
    if (s == BROKEN) {
        attach_disconnect(k);
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
        attach_disconnect(k);
        l->ngone = 0;
    }
    memcpy(l->gone[l->ngone++], e->id, sizeof e->id);
    attach_flush_link(k);
}

void attach_event(struct keeper *k, uint32_t events)
{
    struct link *l = &k->egress;
    if (l->fd < 0)
        return;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) { /* it never says anything but its end */
        attach_disconnect(k);
        if (keeper_now_ms() < l->since_ms + RETRY_MS)
            again_later(k); /* the listener refused us */
        else
            attach_flush_link(k);
        return;
    }
    if ((events & EPOLLOUT) && l->blocked) {
        l->blocked = false;
        attach_watch(k);
        attach_flush_link(k);
    }
}

uint64_t attach_tick(struct keeper *k)
{
    struct link *l = &k->egress;
    if (l->retry_ms && keeper_now_ms() >= l->retry_ms) {
        l->retry_ms = 0;
        attach_flush_link(k);
    }
    return l->retry_ms && (l->unsaid || l->ngone > 0) ? l->retry_ms : UINT64_MAX;
}
