/* http-upstream.c - a new connection to an upstream: dialled, and its certificate verified before the first byte of a request
 * leaves. Requests that ask for the same while it is under way wait for it too: if it turns out to carry many, they share it;
 * if not, each makes its own; if it fails, it fails for all. */
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/http-int.h"
#include "http/tls.h"

/* One attempt, of one or more who wait for it. */
struct flight {
    struct flight *prev, *next; /* of the sandbox */
    struct http_engine *e;
    struct esb *s;
    struct upkey key;
    uint64_t epoch;
    struct netpol *policy; /* that `rule` belongs to */
    const struct netpol_rule *rule;
    bool alone; /* nobody may join */
    bool told;  /* over: those who wait are being told */
    struct connecting *waiting, **last;
    struct dial *dial;
    struct transport *t;
    loop_id watch, timer;
    unsigned watched;
    struct in6_addr addr;
    uint64_t dial_us;
};

struct connecting {
    struct connecting *next;
    struct flight *flight;
    connected_fn *done;
    void *arg;
};

static void dialled(void *arg, struct dial_result *r);

/* ---- who waits ---- */

static void flight_free(struct flight *f)
{
    struct loop *l = f->e->g->loop;
    if (f->prev)
        f->prev->next = f->next;
    else
        *pool_flights(f->s) = f->next;
    if (f->next)
        f->next->prev = f->prev;
    loop_fd_del(l, f->watch);
    loop_timer_del(l, f->timer);
    if (f->dial)
        dial_cancel(f->dial);
    if (f->t)
        f->t->ops->free(f->t);
    netpol_unref(f->policy);
    free(f);
}

static void join(struct flight *f, struct connecting *c)
{
    c->next = NULL;
    c->flight = f;
    *f->last = c;
    f->last = &c->next;
}

static struct connecting *leave_first(struct flight *f)
{
    struct connecting *c = f->waiting;
    if (c) {
        f->waiting = c->next;
        if (!f->waiting)
            f->last = &f->waiting;
    }
    return c;
}

static struct flight *flight_start(struct http_engine *e, struct esb *s, const struct upkey *k, struct netpol *policy,
                                   const struct netpol_rule *rule, bool alone)
{
    struct flight *f = xcalloc(1, sizeof *f);
    *f = (struct flight){.e = e, .s = s, .key = *k, .epoch = s->epoch, .rule = rule, .alone = alone};
    f->policy = policy ? netpol_ref(policy) : NULL;
    f->last = &f->waiting;
    f->next = *pool_flights(s);
    if (f->next)
        f->next->prev = f;
    *pool_flights(s) = f;
    f->dial = dial_start(s, k->host[0] ? k->host : NULL, &k->literal, k->port, rule, dialled, f);
    return f;
}

/* Takes the waiter: it may not cancel any more. */
static void tell(struct connecting *c, const struct connected *got)
{
    c->done(c->arg, got);
    free(c);
}

static void fail(struct flight *f, enum netpol_reason reason, const char *text)
{
    struct connected got = {.reason = reason, .text = text, .addr = f->addr, .dial_us = f->dial_us};
    f->told = true;
    for (struct connecting *c; (c = leave_first(f));)
        tell(c, &got);
    flight_free(f);
}

/* It has waited for a connection that is not for two: its own is made now. */
static void go_alone(struct flight *f, struct connecting *c)
{
    static const struct connected full = {.reason = NETPOL_R_CONNECTIONS,
                                          .text = "too many connections to upstreams are open"};
    if (pool_room(f->s))
        join(flight_start(f->e, f->s, &f->key, f->policy, f->rule, true), c);
    else
        tell(c, &full);
}

/* The first gets the connection; the others share it if it can be shared. */
static void deliver(struct flight *f, struct upconn *conn)
{
    struct connected got = {.conn = conn, .addr = f->addr, .dial_us = f->dial_us};
    struct connecting *c = leave_first(f);
    f->told = true;
    tell(c, &got);
    while ((c = leave_first(f))) {
        got.conn = pool_take(f->s, &f->key, f->rule);
        got.shared = true;
        if (got.conn)
            tell(c, &got);
        else
            go_alone(f, c);
    }
    flight_free(f);
}

/* ---- dial, then shake hands ---- */

static const char *host_text(const struct flight *f, char address[INET6_ADDRSTRLEN])
{
    if (f->key.host[0])
        return f->key.host;
    etls_address(&f->key.literal, address);
    return address;
}

static void finish(struct flight *f)
{
    struct loop *l = f->e->g->loop;
    const char *protocol = f->t->ops->protocol(f->t);
    if (f->key.need == ETLS_H2 && (!protocol || strcmp(protocol, "h2") != 0)) {
        fail(f, NETPOL_R_UNREACHABLE, "gRPC needs HTTP/2, which this server does not speak");
        return;
    }
    loop_fd_del(l, f->watch);
    f->watch = 0;
    struct upconn *conn = pool_add(f->s, &f->key, f->epoch, TAKE_PTR(f->t), &f->addr);
    if (conn)
        deliver(f, conn);
    else
        fail(f, NETPOL_R_UNREACHABLE, "the connection cannot be watched");
}

static void handshake_failed(struct flight *f)
{
    char address[INET6_ADDRSTRLEN];
    _cleanup_buf_ struct buf text = {0};
    if (etls_refused(f->t, host_text(f, address), &text)) {
        fail(f, NETPOL_R_UPSTREAM_CERT, buf_str(&text));
        return;
    }
    buf_addf(&text, "the TLS handshake with %s failed: %s", host_text(f, address), tls_failure(f->t));
    fail(f, NETPOL_R_UNREACHABLE, buf_str(&text));
}

static void shake(struct flight *f)
{
    int done = f->t->ops->handshake(f->t);
    if (done < 0) {
        handshake_failed(f);
    } else if (done > 0) {
        finish(f);
    } else {
        unsigned events = f->t->ops->wants_read(f->t) | f->t->ops->wants_write(f->t);
        if (events != f->watched)
            loop_fd_set(f->e->g->loop, f->watch, events);
        f->watched = events;
    }
}

static void on_event(void *arg, int fd, unsigned events)
{
    (void)fd;
    (void)events;
    shake(arg);
}

static void too_late(void *arg)
{
    struct flight *f = arg;
    f->timer = 0;
    fail(f, NETPOL_R_TIMEOUT, "the TLS handshake took too long");
}

static enum netpol_reason dial_reason(const struct flight *f, enum dial_failure failure)
{
    switch (failure) {
    case DIAL_OK:
        return NETPOL_R_NONE;
    case DIAL_PRIVATE:
    case DIAL_NEVER:
        return f->key.host[0] ? NETPOL_R_RESOLVED_PRIVATE : NETPOL_R_PRIVATE;
    case DIAL_TIMEOUT:
        return NETPOL_R_TIMEOUT;
    default:
        return NETPOL_R_UNREACHABLE;
    }
}

static void dialled(void *arg, struct dial_result *r)
{
    struct flight *f = arg;
    static const int one = 1;
    const struct netpol_settings *set = f->s->policy ? netpol_settings(f->s->policy) : NULL;
    f->dial = NULL;
    f->dial_us = r->took_us;
    f->addr = r->addr;
    if (r->failure != DIAL_OK) {
        fail(f, dial_reason(f, r->failure), r->text);
        return;
    }
    int fd = r->fd;
    r->fd = -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    f->t = !f->key.tls ? transport_plain(fd)
                       : etls_connect(f->e->tls, fd, f->key.host[0] ? f->key.host : NULL, &f->key.literal, f->key.need,
                                      set && set->tls13_only);
    f->watched = LOOP_OUT;
    f->watch = f->t ? loop_fd_add(f->e->g->loop, f->t->fd, f->watched, on_event, f) : 0;
    if (f->watch == 0) {
        fail(f, NETPOL_R_UNREACHABLE, "the connection cannot be watched");
        return;
    }
    f->timer = loop_timer(f->e->g->loop, HTTP_HANDSHAKE_MS, too_late, f);
    shake(f);
}

/* ---- who asks ---- */

/* An attempt for just this, of which it is not known yet that it will serve one request only. */
static struct flight *flight_find(struct esb *s, const struct upkey *k, const struct netpol_rule *rule)
{
    if (!k->tls || k->need == ETLS_HTTP1 || pool_speaks_http1(s, k))
        return NULL;
    for (struct flight *f = *pool_flights(s); f; f = f->next)
        if (!f->alone && !f->told && f->epoch == s->epoch && f->rule == rule && f->key.need == k->need &&
            pool_same_host(&f->key, k))
            return f;
    return NULL;
}

struct connecting *upstream_connect(struct http_engine *e, struct esb *s, const struct upkey *k, struct netpol *policy,
                                    const struct netpol_rule *rule, connected_fn *done, void *arg)
{
    struct connecting *c = xcalloc(1, sizeof *c);
    struct flight *f = flight_find(s, k, rule);
    *c = (struct connecting){.done = done, .arg = arg};
    join(f ? f : flight_start(e, s, k, policy, rule, false), c);
    return c;
}

void upstream_cancel(struct connecting *c)
{
    if (!c)
        return;
    struct flight *f = c->flight;
    struct connecting **at = &f->waiting;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    if (f->last == &c->next)
        f->last = at;
    free(c);
    if (!f->waiting && !f->told)
        flight_free(f);
}
