/* flow.c - connections of sandboxes from accept to close: their destination, and how they are refused.
 *
 * The listener that accepted a connection tells which sandbox it belongs to. The local address of the connection is the
 * destination that the client meant.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/deny.h"
#include "egress/dns.h"
#include "egress/flow-int.h"
#include "egress/guard.h"
#include "os/netns.h"

enum { ACCEPT_BATCH = 64, DNS_PORT = 53, HTTP_PORT = 80, ACCEPT_RETRY_MS = 200, DISCARD_MAX = 1 << 20 };

/* --- where to ----------------------------------------------------------------------------------------------------- */

struct in6_addr flow_literal(const char *text)
{
    struct in6_addr a = IN6ADDR_ANY_INIT;
    (void)netpol_literal(text, strlen(text), &a);
    return a;
}

bool flow_is_gate(const struct in6_addr *a)
{
    struct in6_addr gate4 = flow_literal(NETNS_GATE4), gate6 = flow_literal(NETNS_GATE6);
    return IN6_ARE_ADDR_EQUAL(a, &gate4) || IN6_ARE_ADDR_EQUAL(a, &gate6);
}

/* An address of the sandbox itself: a process inside connected to the listener directly. */
static bool flow_is_inside(const struct in6_addr *a)
{
    struct in6_addr own4 = flow_literal(NETNS_OWN4), own6 = flow_literal(NETNS_OWN6);
    return (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127) || IN6_IS_ADDR_LOOPBACK(a) ||
           IN6_ARE_ADDR_EQUAL(a, &own4) || IN6_ARE_ADDR_EQUAL(a, &own6);
}

void flow_aim(struct flow *f, const struct in6_addr *dst, uint16_t port)
{
    const char *name = names_name(f->sb->names, dst);
    f->dst = f->literal = *dst;
    f->port = port;
    f->stale = !name && names_synthetic(dst);
    (void)snprintf(f->host, sizeof f->host, "%s", name ? name : "");
}

struct netpol_flow flow_target(const struct flow *f)
{
    return (struct netpol_flow){
        .host = f->host[0] ? f->host : NULL, .addr = f->literal, .port = f->port, .tls = f->tls};
}

void flow_host_text(const struct flow *f, char ret[NETPOL_NAME_MAX])
{
    if (f->host[0])
        (void)snprintf(ret, NETPOL_NAME_MAX, "%s", f->host);
    else if (IN6_IS_ADDR_V4MAPPED(&f->literal))
        (void)inet_ntop(AF_INET, f->literal.s6_addr + 12, ret, NETPOL_NAME_MAX);
    else
        (void)inet_ntop(AF_INET6, &f->literal, ret, NETPOL_NAME_MAX);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static bool fresh_still(struct flow *f)
{
    (void)f;
    return true;
}

static void fresh_cut(struct flow *f)
{
    flow_reset(f);
    flow_end(f);
}

static const struct flow_ops fresh_ops = {.still = fresh_still, .cut = fresh_cut};

struct flow *flow_new(struct esb *s, int fd, const struct in6_addr *dst, uint16_t port)
{
    struct flow *f = xcalloc(1, sizeof *f);
    int on = 1;
    f->sb = s;
    f->fd = fd;
    f->ops = &fresh_ops;
    f->id = ++s->g->flow_ids;
    f->started_ms = loop_now(s->g->loop);
    f->next = s->flows;
    f->prev = &s->flows;
    if (f->next)
        f->next->prev = &f->next;
    s->flows = f;
    s->nflows++;
    s->g->nflows++;
    s->counts.connections++;
    const struct linger none = {0};
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none); /* inherited from a socket that init holds too */
    flow_aim(f, dst, port);
    f->gate = flow_is_gate(dst) || flow_is_inside(dst);
    return f;
}

void flow_end(struct flow *f)
{
    *f->prev = f->next;
    if (f->next)
        f->next->prev = f->prev;
    f->sb->nflows--;
    f->sb->g->nflows--;
    if (f->fd >= 0)
        (void)close(f->fd);
    buf_done(&f->head);
    free(f);
}

int flow_take_fd(struct flow *f) { return TAKE_FD(f->fd); }

void flow_reset(struct flow *f)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (f->fd >= 0)
        (void)setsockopt(f->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

/* --- accept ------------------------------------------------------------------------------------------------------- */

void flow_begin(struct flow *f)
{
    if (f->port == DNS_PORT)
        dns_flow(f); /* egress answers for every resolver */
    else if (flow_is_gate(&f->dst) && f->port == HTTP_PORT)
        http_flow(f);
    else
        sniff_start(f);
}

static void flow_on_accept_timer(void *arg)
{
    struct esb *s = arg;
    s->accept_timer = 0;
    loop_fd_set(s->g->loop, s->tcp_watch, LOOP_IN);
}

/* Pauses accepting; connections wait in the backlog. */
static void flow_accept_later(struct esb *s, unsigned ms)
{
    loop_fd_set(s->g->loop, s->tcp_watch, 0);
    loop_timer_del(s->g->loop, s->accept_timer);
    s->accept_timer = loop_timer(s->g->loop, ms, flow_on_accept_timer, s);
}

static int flow_accept_one(struct esb *s, struct in6_addr *dst, uint16_t *port)
{
    struct sockaddr_storage ss = {0};
    socklen_t n = sizeof ss;
    int fd = guard_accept(s->tcp);
    if (fd < 0)
        return -1;
    if (getsockname(fd, (struct sockaddr *)&ss, &n) == 0 && ss.ss_family == AF_INET6) {
        struct sockaddr_in6 a;
        memcpy(&a, &ss, sizeof a);
        *dst = a.sin6_addr;
        *port = ntohs(a.sin6_port);
        return fd;
    }
    if (ss.ss_family == AF_INET) {
        struct sockaddr_in a;
        memcpy(&a, &ss, sizeof a);
        memset(dst, 0, sizeof *dst);
        dst->s6_addr[10] = dst->s6_addr[11] = 0xff;
        memcpy(dst->s6_addr + 12, &a.sin_addr, 4);
        *port = ntohs(a.sin_port);
        return fd;
    }
    (void)close(fd);
    errno = ECONNABORTED;
    return -1;
}

static void flow_refuse_too_many(struct flow *f)
{
    flow_refuse(f, &(struct flow_refusal){.reason = NETPOL_R_CONNECTIONS, .layer = "limit", .form = FLOW_RST});
}

void flow_accept(struct esb *s)
{
    for (int i = 0; i < ACCEPT_BATCH && s->policy && s->tcp >= 0; i++) {
        struct in6_addr dst;
        uint16_t port;
        bool room = limit_connection(s);
        unsigned wait = limit_accept(s);
        if (wait) {
            flow_accept_later(s, wait);
            return;
        }
        int fd = flow_accept_one(s, &dst, &port);
        if (fd < 0 && errno == ECONNABORTED)
            continue;
        if (fd < 0 && errno == EINTR) {
            log_text(LOG_LEVEL_WARN, "the listener of sandbox %s was made blocking from inside: its network ends",
                     s->id);
            esb_detach(s);
            return;
        }
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                log_text(LOG_LEVEL_ERROR, "cannot accept a connection of sandbox %s: %m", s->id);
                flow_accept_later(s, ACCEPT_RETRY_MS);
            } else if (errno == EINVAL) {
                log_text(LOG_LEVEL_WARN, "the listener of sandbox %s was shut from inside; it is not served any more",
                         s->id);
                loop_fd_set(s->g->loop, s->tcp_watch, 0);
            }
            return;
        }
        struct flow *f = flow_new(s, fd, &dst, port);
        if (room)
            flow_begin(f);
        else
            flow_refuse_too_many(f);
    }
}

/* --- last words --------------------------------------------------------------------------------------------------- */

struct farewell {
    struct flow *f;
    struct buf words;
    size_t sent, discarded;
    loop_id watch, timer;
    bool said;
};

static void farewell_end(struct farewell *w)
{
    struct flow *f = w->f;
    loop_fd_del(f->sb->g->loop, w->watch);
    loop_timer_del(f->sb->g->loop, w->timer);
    buf_done(&w->words);
    free(w);
    flow_end(f);
}

static void farewell_cut(struct flow *f)
{
    flow_reset(f);
    farewell_end(f->driver);
}

static const struct flow_ops farewell_ops = {.still = fresh_still, .cut = farewell_cut};

/* 0: go on; -1: the connection has to end. */
static int farewell_say(struct farewell *w)
{
    while (w->sent < w->words.n) {
        ssize_t n = send(w->f->fd, w->words.p + w->sent, w->words.n - w->sent, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        w->sent += (size_t)n;
    }
    if (!w->said && shutdown(w->f->fd, SHUT_WR) < 0)
        return -1;
    w->said = true;
    return 0;
}

/* Reads and discards what the client still sends: closing with unread bytes would reset the connection before it has
 * read our last words. */
static int farewell_listen(struct farewell *w)
{
    char bytes[4096];
    for (;;) {
        ssize_t n = recv(w->f->fd, bytes, sizeof bytes, 0);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        w->discarded += (size_t)n;
        if (n == 0 || w->discarded > DISCARD_MAX)
            return -1;
    }
}

static void farewell_on_event(void *arg, int fd, unsigned events)
{
    struct farewell *w = arg;
    (void)fd;
    (void)events;
    if (farewell_say(w) < 0 || farewell_listen(w) < 0)
        farewell_end(w);
    else
        loop_fd_set(w->f->sb->g->loop, w->watch, LOOP_IN | (w->said ? 0 : LOOP_OUT));
}

static void farewell_on_timeout(void *arg)
{
    struct farewell *w = arg;
    w->timer = 0;
    farewell_end(w);
}

void flow_farewell(struct flow *f, struct buf *words)
{
    struct farewell *w = xcalloc(1, sizeof *w);
    struct loop *l = f->sb->g->loop;
    w->f = f;
    w->words = *words;
    *words = (struct buf){0};
    f->ops = &farewell_ops;
    f->driver = w;
    w->watch = loop_fd_add(l, f->fd, LOOP_IN | LOOP_OUT, farewell_on_event, w);
    w->timer = loop_timer(l, FAREWELL_MS, farewell_on_timeout, w);
    if (!w->watch)
        farewell_end(w);
}

bool flow_closes(const struct flow *f) { return f->sb->policy && netpol_settings(f->sb->policy)->refusals_closed; }

void flow_refuse(struct flow *f, const struct flow_refusal *r)
{
    char host[NETPOL_NAME_MAX];
    struct buf words = {0};
    flow_host_text(f, host);
    struct deny d = {.flow = f,
                     .reason = r->reason,
                     .layer = r->layer,
                     .host = host,
                     .port = f->port,
                     .method = r->method,
                     .rule = r->rule,
                     .text = r->text,
                     .approval = r->approval};
    deny_record(f->sb, &d);
    if (r->form == FLOW_RST) {
        flow_reset(f);
        flow_end(f);
        return;
    }
    if (r->form == FLOW_HTTP) {
        if (!flow_closes(f)) /* else it ends without an answer */
            deny_raw(f->sb, &d, &words);
    } else {
        const unsigned char alert[] = {0x15, 3, 3, 0, 2, 2, (unsigned char)r->alert};
        buf_add(&words, alert, sizeof alert);
    }
    flow_farewell(f, &words);
}
