/* http-upstream.c - makes a connection to an upstream: dials it, and verifies its certificate before the first byte of
 * a request leaves. Requests to the same host join an attempt that is under way: if it becomes HTTP/2 they share it; if
 * not, each makes its own connection; if it fails, it fails for all. */
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/http-int.h"
#include "http/tls.h"

/* One attempt, with one or more waiting requests. */
struct flight {
    struct flight *prev, *next; /* of the sandbox */
    struct http_engine *e;
    struct esb *s;
    struct upkey key;
    uint64_t epoch;
    struct netpol *policy; /* that `rule` belongs to */
    const struct netpol_rule *rule;
    bool alone; /* no other request may join */
    bool told;  /* over: the waiting requests are being notified */
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

static void flight_on_dialled(void *arg, struct dial_result *r);

/* ---- waiting requests ---- */

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

static void flight_join(struct flight *f, struct connecting *c)
{
    c->next = NULL;
    c->flight = f;
    *f->last = c;
    f->last = &c->next;
}

static struct connecting *flight_pop(struct flight *f)
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
    f->dial = dial_start(s, k->host[0] ? k->host : NULL, &k->literal, k->port, rule, flight_on_dialled, f);
    return f;
}

/* Tells and frees the waiter: it may not cancel any more. */
static void connecting_tell(struct connecting *c, const struct connected *got)
{
    c->done(c->arg, got);
    free(c);
}

static void flight_fail(struct flight *f, enum netpol_reason reason, const char *text)
{
    struct connected got = {.reason = reason, .text = text, .addr = f->addr, .dial_us = f->dial_us};
    f->told = true;
    for (struct connecting *c; (c = flight_pop(f));)
        connecting_tell(c, &got);
    flight_free(f);
}

/* The request waited for a connection that cannot be shared; starts one of its own. */
static void flight_go_alone(struct flight *f, struct connecting *c)
{
    static const struct connected full = {.reason = NETPOL_R_CONNECTIONS,
                                          .text = "too many connections to upstreams are open"};
    if (pool_room(f->s))
        flight_join(flight_start(f->e, f->s, &f->key, f->policy, f->rule, true), c);
    else
        connecting_tell(c, &full);
}

/* The first gets the connection; the others share it if it can be shared. */
static void flight_deliver(struct flight *f, struct upconn *conn)
{
    struct connected got = {.conn = conn, .addr = f->addr, .dial_us = f->dial_us};
    struct connecting *c = flight_pop(f);
    f->told = true;
    connecting_tell(c, &got);
    while ((c = flight_pop(f))) {
        got.conn = pool_take_conn(f->s, &f->key, f->rule);
        got.shared = true;
        if (got.conn)
            connecting_tell(c, &got);
        else
            flight_go_alone(f, c);
    }
    flight_free(f);
}

/* ---- dial, then shake hands ---- */

static const char *flight_host_text(const struct flight *f, char address[INET6_ADDRSTRLEN])
{
    if (f->key.host[0])
        return f->key.host;
    etls_address(&f->key.literal, address);
    return address;
}

static void flight_finish(struct flight *f)
{
    struct loop *l = f->e->g->loop;
    const char *protocol = f->t->ops->protocol(f->t);
    if (f->key.need == ETLS_H2 && (!protocol || strcmp(protocol, "h2") != 0)) {
        flight_fail(f, NETPOL_R_UNREACHABLE, "gRPC needs HTTP/2, which this server does not speak");
        return;
    }
    loop_fd_del(l, f->watch);
    f->watch = 0;
    struct upconn *conn = pool_add(f->s, &f->key, f->epoch, TAKE_PTR(f->t), &f->addr);
    if (conn)
        flight_deliver(f, conn);
    else
        flight_fail(f, NETPOL_R_UNREACHABLE, "the connection cannot be watched");
}

static void flight_handshake_failed(struct flight *f)
{
    char address[INET6_ADDRSTRLEN];
    _cleanup_buf_ struct buf text = {0};
    if (etls_refused(f->t, flight_host_text(f, address), &text)) {
        flight_fail(f, NETPOL_R_UPSTREAM_CERT, buf_str(&text));
        return;
    }
    buf_addf(&text, "the TLS handshake with %s failed: %s", flight_host_text(f, address), tls_failure(f->t));
    flight_fail(f, NETPOL_R_UNREACHABLE, buf_str(&text));
}

static void flight_shake_hands(struct flight *f)
{
    int done = f->t->ops->handshake(f->t);
    if (done < 0) {
        flight_handshake_failed(f);
    } else if (done > 0) {
        flight_finish(f);
    } else {
        unsigned events = f->t->ops->wants_read(f->t) | f->t->ops->wants_write(f->t);
        if (events != f->watched)
            loop_fd_set(f->e->g->loop, f->watch, events);
        f->watched = events;
    }
}

static void flight_on_event(void *arg, int fd, unsigned events)
{
    (void)fd;
    (void)events;
    flight_shake_hands(arg);
}

static void flight_on_timeout(void *arg)
{
    struct flight *f = arg;
    f->timer = 0;
    flight_fail(f, NETPOL_R_TIMEOUT, "the TLS handshake took too long");
}

static enum netpol_reason flight_dial_reason(const struct flight *f, enum dial_failure failure)
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

static void flight_on_dialled(void *arg, struct dial_result *r)
{
    struct flight *f = arg;
    static const int one = 1;
    const struct netpol_settings *set = f->s->policy ? netpol_settings(f->s->policy) : NULL;
    f->dial = NULL;
    f->dial_us = r->took_us;
    f->addr = r->addr;
    if (r->failure != DIAL_OK) {
        flight_fail(f, flight_dial_reason(f, r->failure), r->text);
        return;
    }
    int fd = r->fd;
    r->fd = -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    f->t = !f->key.tls ? transport_plain(fd)
                       : etls_connect(f->e->tls, fd, f->key.host[0] ? f->key.host : NULL, &f->key.literal, f->key.need,
                                      set && set->tls13_only);
    f->watched = LOOP_OUT;
    f->watch = f->t ? loop_fd_add(f->e->g->loop, f->t->fd, f->watched, flight_on_event, f) : 0;
    if (f->watch == 0) {
        flight_fail(f, NETPOL_R_UNREACHABLE, "the connection cannot be watched");
        return;
    }
    f->timer = loop_timer(f->e->g->loop, HTTP_HANDSHAKE_MS, flight_on_timeout, f);
    flight_shake_hands(f);
}

/* ---- who asks ---- */

/* An attempt under way for the same key and rule that may become HTTP/2, and so be shared. */
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
    flight_join(f ? f : flight_start(e, s, k, policy, rule, false), c);
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
