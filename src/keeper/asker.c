/* asker.c - keeper's clients: reads requests and sends answers without ever blocking. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "keeper/keeper-int.h"

/* Room for what one client may wait for: the whole list, and the answers to its other requests. */
enum { LISTS = 2 * KEEPER_SANDBOXES_MAX / KEEPER_LIST_MAX + 1, REPLIES = 64 };
_Static_assert((sizeof(struct keeper_items) + CHANNEL_QUEUE_EXTRA) * LISTS +
                       (sizeof(struct keeper_reply) + CHANNEL_QUEUE_EXTRA) * REPLIES <=
                   KEEPER_OUT,
               "a client that does nothing wrong is not dropped");

/* A request that is too long is refused by its reader, which says so. */
static const struct channel_limits asker_limits = {.message_max = CHANNEL_PACKET_MAX, .queue_max = KEEPER_OUT};

void asker_begin(struct keeper *k)
{
    for (unsigned i = 0; i < KEEPER_CONNS; i++)
        channel_init(&k->conns[i].channel, &asker_limits, k->conns[i].out, NULL);
}

static void asker_close(struct keeper *k, struct conn *c)
{
    channel_close(&c->channel);
    c->gen++;
    if (c->holds)
        keeper_wake_at(k, keeper_now_ms()); /* freeze_tick() ends its holds */
    c->holds = false;
}

static void set_events(struct keeper *k, struct conn *c)
{
    struct epoll_event ev = {.events = ((k->paused && !c->holds) || c->telling ? 0U : EPOLLIN) |
                                       (c->blocked ? EPOLLOUT : 0U)};
    uint32_t index = (uint32_t)(c - k->conns);
    ev.data.u64 = (uint64_t)EVENT_CONN << 56 | (uint64_t)(c->gen & 0xffffff) << 32 | index;
    (void)epoll_ctl(k->epoll, EPOLL_CTL_MOD, c->channel.fd, &ev);
}

static void asker_set_blocked(struct keeper *k, struct conn *c, bool on)
{
    c->blocked = on;
    set_events(k, c);
}

void asker_pause(struct keeper *k, bool on)
{
    k->paused = on;
    for (unsigned i = 0; i < KEEPER_CONNS; i++)
        if (k->conns[i].channel.fd >= 0)
            set_events(k, &k->conns[i]);
}

static void send_to(struct keeper *k, struct conn *c, const void *p, size_t n)
{
    if (c->channel.fd < 0)
        return;
    if (channel_send(&c->channel, p, n, NULL, 0) < 0)
        asker_close(k, c); /* if it lives, it comes back and asks for the list */
    else if (channel_waits(&c->channel) && !c->blocked)
        asker_set_blocked(k, c, true);
}

static void death_of(const struct entry *e, struct keeper_death *d)
{
    *d = (struct keeper_death){
        .head = {.version = KEEPER_VERSION, .type = KEEPER_DIED},
        .cause = e->cause,
        .status = e->status,
        .at_unix_ms = e->at_unix_ms,
        .usage = e->usage,
    };
    memcpy(d->id, e->id, sizeof d->id);
}

/* A new client is told all deaths first. They may not all fit in its queue, so they are queued as room comes free, and
 * no request is read until they are sent: the answers then have the whole queue. */
static void tell_some(struct keeper *k, struct conn *c)
{
    for (; c->channel.fd >= 0 && c->telling && c->untold < k->nentries && channel_queued(&c->channel) < KEEPER_OUT / 2;
         c->untold++) {
        struct keeper_death d;
        if (k->entries[c->untold].life != LIFE_DEAD)
            continue;
        death_of(&k->entries[c->untold], &d);
        send_to(k, c, &d, sizeof d);
    }
}

static void asker_flush(struct keeper *k, struct conn *c)
{
    do {
        if (channel_flush(&c->channel) < 0)
            asker_close(k, c);
        if (c->channel.fd < 0 || channel_waits(&c->channel))
            return;
        tell_some(k, c);
    } while (channel_waits(&c->channel));
    if (c->channel.fd < 0)
        return;
    c->telling = false;
    asker_set_blocked(k, c, false);
}

bool asker_is_connected(const struct keeper *k, const struct waiter *w)
{
    return w->conn != 0 && k->conns[w->conn - 1].gen == w->conn_gen && k->conns[w->conn - 1].channel.fd >= 0;
}

/* The end of a connection may still be unread in our epoll set, so ask the kernel. */
bool asker_waits(const struct keeper *k, const struct waiter *w)
{
    struct pollfd p = {.fd = asker_is_connected(k, w) ? k->conns[w->conn - 1].channel.fd : -1, .events = POLLRDHUP};
    return p.fd >= 0 && poll(&p, 1, 0) == 0;
}

pid_t asker_pid(const struct keeper *k, const struct waiter *w)
{
    struct ucred peer = {0};
    socklen_t n = sizeof peer;
    if (!asker_is_connected(k, w) ||
        getsockopt(k->conns[w->conn - 1].channel.fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
        return 0;
    return peer.pid;
}

void asker_answer(struct keeper *k, const struct waiter *w, struct keeper_reply *r)
{
    if (!asker_is_connected(k, w))
        return;
    r->head = (struct keeper_head){.version = KEEPER_VERSION, .type = KEEPER_REPLY, .request = w->request};
    send_to(k, &k->conns[w->conn - 1], r, sizeof *r);
}

void asker_refuse(struct keeper *k, const struct waiter *w, enum keeper_error error, const char *text)
{
    struct keeper_reply r = {.error = error};
    (void)snprintf(r.text, sizeof r.text, "%.*s", (int)sizeof r.text - 1, text);
    asker_answer(k, w, &r);
}

void asker_tell_death(struct keeper *k, const struct entry *e)
{
    struct keeper_death d;
    death_of(e, &d);
    for (unsigned i = 0; i < KEEPER_CONNS; i++)
        if (!k->conns[i].holds &&
            (!k->conns[i].telling || entry_index(k, e) < k->conns[i].untold)) /* else its turn comes */
            send_to(k, &k->conns[i], &d, sizeof d);
}

void asker_accept(struct keeper *k)
{
    for (;;) {
        int fd = accept4(KEEPER_FD_SOCKET, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        uint32_t i = 0;
        while (i < KEEPER_CONNS && k->conns[i].channel.fd >= 0)
            i++;
        if (i == KEEPER_CONNS) {
            (void)close(fd);
            continue;
        }
        struct conn *c = &k->conns[i];
        channel_open(&c->channel, fd);
        c->gen++;
        c->blocked = c->holds = false;
        c->telling = true;
        c->untold = 0;
        if (keeper_watch(k, fd, 0, EVENT_CONN, c->gen & 0xffffff, i) < 0)
            asker_close(k, c);
        else
            asker_flush(k, c);
    }
}

/* Hides sandboxes that are being removed on request or whose create was never acknowledged. */
static bool entry_is_listed(const struct entry *e)
{
    return e->life == LIFE_LIVE || e->life == LIFE_DEAD || (e->life == LIFE_ENDING && !e->asked && !e->failure[0]);
}

static void asker_send_list(struct keeper *k, struct conn *c, uint64_t request)
{
    static struct keeper_items m;
    memset(&m, 0, sizeof m);
    m.head = (struct keeper_head){.version = KEEPER_VERSION, .type = KEEPER_ITEMS, .request = request};
    for (uint32_t i = 0; i < k->nentries; i++) {
        const struct entry *e = &k->entries[i];
        if (!entry_is_listed(e))
            continue;
        if (m.n == KEEPER_LIST_MAX) {
            m.more = 1;
            send_to(k, c, &m, sizeof m);
            memset(m.item, 0, sizeof m.item);
            m.n = m.more = 0;
        }
        struct keeper_item *item = &m.item[m.n++];
        *item = (struct keeper_item){.alive = e->life == LIFE_LIVE,
                                     .cause = e->cause,
                                     .frozen = e->life == LIFE_LIVE && e->paused && e->still,
                                     .deadline_ms = e->deadline_ms};
        memcpy(item->id, e->id, sizeof item->id);
    }
    send_to(k, c, &m, sizeof m);
}

static void change_deadline(struct keeper *k, struct entry *e, uint64_t deadline_ms, const struct waiter *w)
{
    struct keeper_reply r = {.error = KEEPER_OK};
    struct journal_record rec;
    struct err err = {0};
    if (journal_read(k->journal, e->id, &rec) < 0) {
        asker_refuse(k, w, KEEPER_FAILED, "the journal record of this sandbox cannot be read");
        return;
    }
    rec.deadline_ms = deadline_ms;
    /* Tell init first: otherwise it would end itself at the old deadline. */
    if (keepsake_put(k, e, &rec, &err) < 0 || journal_update(k->journal, &rec, &err) < 0) {
        asker_refuse(k, w, KEEPER_FAILED, err.msg);
        return;
    }
    e->deadline_ms = deadline_ms;
    keeper_wake_at(k, deadline_ms);
    asker_answer(k, w, &r);
}

static void handle_one(struct keeper *k, const union keeper_request *q, const struct waiter *w)
{
    struct entry *e = entry_find(k, q->simple.id);
    switch (q->head.type) {
    case KEEPER_KILL:
        if (!e)
            asker_refuse(k, w, KEEPER_NO_SANDBOX, "no such sandbox");
        else
            end_wait(k, e, w);
        break;
    case KEEPER_USAGE:
        if (!e || e->life == LIFE_STARTING)
            asker_refuse(k, w, KEEPER_NO_SANDBOX, "no such sandbox");
        else
            usage_answer(k, e, w);
        break;
    case KEEPER_DEADLINE:
        if (!e || e->life != LIFE_LIVE)
            asker_refuse(k, w, KEEPER_NO_SANDBOX, "no such sandbox");
        else
            change_deadline(k, e, q->deadline.deadline_ms, w);
        break;
    case KEEPER_PAUSE:
    case KEEPER_RESUME:
        if (!e || e->life != LIFE_LIVE)
            asker_refuse(k, w, KEEPER_NO_SANDBOX, "no such sandbox");
        else if (q->head.type == KEEPER_PAUSE)
            freeze_pause(k, e, w);
        else
            freeze_resume(k, e, w);
        break;
    case KEEPER_HOLD:
    case KEEPER_RELEASE:
        if (!e || e->life != LIFE_LIVE)
            asker_refuse(k, w, KEEPER_NO_SANDBOX, "no such sandbox");
        else if (q->head.type == KEEPER_HOLD)
            freeze_hold(k, e, w);
        else
            freeze_release(k, e, w);
        break;
    case KEEPER_LIMIT:
        if (!e || e->life != LIFE_LIVE)
            asker_refuse(k, w, KEEPER_NO_SANDBOX, "no such sandbox");
        else
            limit_command(k, e, &q->limit, w);
        break;
    case KEEPER_FORGET:
        if (e && e->life == LIFE_DEAD)
            end_forget(k, e);
        break;
    default:
        break;
    }
}

void asker_handle(struct keeper *k, uint32_t index, const void *p, size_t n)
{
    union keeper_request q;
    struct err err = {0};
    struct conn *c = &k->conns[index];
    bool ok = keeper_request_parse(p, n, &q, &err) == 0;
    struct waiter w = {.conn = index + 1, .conn_gen = c->gen, .request = q.head.request};
    bool hold = ok && (q.head.type == KEEPER_HOLD || q.head.type == KEEPER_RELEASE);
    c->holds |= hold && q.head.type == KEEPER_HOLD;
    if (!ok)
        asker_refuse(k, &w, KEEPER_BAD_REQUEST, err.msg);
    else if (c->holds && !hold)
        asker_refuse(k, &w, KEEPER_BAD_REQUEST, "type: a connection that holds a sandbox has no other requests");
    else if (q.head.type == KEEPER_CREATE)
        create_begin(k, &q.create, &w);
    else if (q.head.type == KEEPER_LIST)
        asker_send_list(k, c, q.head.request);
    else
        handle_one(k, &q, &w);
}

void asker_event(struct keeper *k, uint32_t index, uint32_t events)
{
    enum { AT_ONCE = 8 /* then the others get their turn */ };
    struct conn *c = &k->conns[index];
    struct channel_message m;
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        asker_flush(k, c);
    for (int i = 0; i < AT_ONCE && c->channel.fd >= 0 && (!k->paused || c->holds) && !c->telling; i++) {
        if (!c->holds && k->nstarting - k->nchecking >= KEEPER_STARTING_MAX) {
            asker_pause(k, true);
            return;
        }
        enum channel_got got = channel_recv(&c->channel, &m);
        if (got == CHANNEL_NONE)
            return;
        if (got != CHANNEL_MESSAGE) {
            asker_close(k, c);
            return;
        }
        asker_handle(k, index, m.p, m.n);
    }
}
