/* http-pool.c - keeps connections to upstreams between requests. A pool belongs to one sandbox: credentials may be
 * bound to a connection, so sandboxes never share one. A connection serves only the host, port, scheme and policy it
 * was made for, and only under rules that allow the address at its other end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "egress/http-int.h"

struct pool {
    struct esb *s;
    struct upconn *conns;
    size_t n;
    size_t exchanges;
    struct flight *flights;
};

static struct pool *pool_of(struct esb *s)
{
    if (!s->upstreams) {
        struct pool *p = xcalloc(1, sizeof *p);
        p->s = s;
        s->upstreams = p;
    }
    return s->upstreams;
}

size_t pool_size(const struct esb *s) { return s->upstreams ? ((const struct pool *)s->upstreams)->n : 0; }

struct flight **pool_flights(struct esb *s) { return &pool_of(s)->flights; }

static void conn_unlink(struct upconn *c)
{
    struct pool *p = c->pool;
    if (c->prev)
        c->prev->next = c->next;
    else
        p->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

static void conn_first(struct upconn *c)
{
    struct pool *p = c->pool;
    c->prev = NULL;
    c->next = p->conns;
    if (c->next)
        c->next->prev = c;
    p->conns = c;
}

static void conn_free(struct upconn *c)
{
    struct pool *p = c->pool;
    conn_unlink(c);
    p->n--;
    loop_timer_del(p->s->g->loop, c->idle);
    client_free(c->h1);
    h2up_free(c->h2);
    free(c);
}

bool pool_same_host(const struct upkey *a, const struct upkey *b)
{
    if (a->tls != b->tls || a->port != b->port || strcmp(a->host, b->host) != 0)
        return false;
    return a->host[0] != '\0' || memcmp(&a->literal, &b->literal, sizeof a->literal) == 0;
}

/* The connection is idle: neither bytes nor its end have arrived. With TLS, bytes are fine: the server may have sent
 * session tickets. */
static bool conn_is_alive(const struct upconn *c)
{
    char byte;
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n > 0 ? c->key.tls : n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

static bool conn_fits(const struct upconn *c, const struct upkey *k, const struct netpol_rule *rule)
{
    const struct esb *s = c->pool->s;
    if ((c->h1 && c->users > 0) || c->stale || c->epoch != s->epoch || !pool_same_host(&c->key, k))
        return false;
    if (c->h2 ? k->need == ETLS_HTTP1 || !h2up_usable(c->h2) : k->need == ETLS_H2)
        return false;
    if (c->h1 && !client_reusable(c->h1))
        return false;
    return dial_check(s->g, &c->addr, rule) == DIAL_OK;
}

/* The list begins with the connection used last: it is the likeliest to be alive, and the rest may time out. */
struct upconn *pool_take_conn(struct esb *s, const struct upkey *k, const struct netpol_rule *rule)
{
    for (struct upconn *c = pool_of(s)->conns, *next; c; c = next) {
        next = c->next;
        if (!conn_fits(c, k, rule))
            continue;
        if (c->h1 && !conn_is_alive(c)) {
            conn_free(c);
            continue;
        }
        c->users++;
        c->reused = true;
        loop_timer_del(s->g->loop, c->idle);
        c->idle = 0;
        return c;
    }
    return NULL;
}

bool pool_speaks_http1(struct esb *s, const struct upkey *k)
{
    for (const struct upconn *c = pool_of(s)->conns; c; c = c->next)
        if (c->h1 && pool_same_host(&c->key, k))
            return true;
    return false;
}

bool pool_room(struct esb *s)
{
    struct pool *p = pool_of(s);
    struct upconn *oldest = NULL;
    if (p->n < POOL_CONNECTIONS)
        return true;
    for (struct upconn *c = p->conns; c; c = c->next)
        if (c->users == 0 && (!oldest || c->idle_since < oldest->idle_since))
            oldest = c;
    if (oldest)
        conn_free(oldest);
    return oldest != NULL;
}

/* The peer has closed an HTTP/2 connection; h2up.c has notified its requests. */
static void conn_on_h2_gone(void *arg)
{
    struct upconn *c = arg;
    c->stale = true;
    if (c->users == 0)
        conn_free(c);
}

struct upconn *pool_add(struct esb *s, const struct upkey *k, uint64_t epoch, struct transport *t,
                        const struct in6_addr *addr)
{
    struct pool *p = pool_of(s);
    const char *protocol = t->ops->protocol(t);
    struct upconn *c = xcalloc(1, sizeof *c);
    *c = (struct upconn){.pool = p, .key = *k, .epoch = epoch, .addr = *addr, .fd = t->fd, .users = 1};
    if (protocol && strcmp(protocol, "h2") == 0) {
        c->h2 = h2up_new(s->g->loop, t, conn_on_h2_gone, c);
        if (!c->h2) {
            free(c);
            return NULL;
        }
    } else {
        c->h1 = client_new(s->g->loop, t);
    }
    conn_first(c);
    p->n++;
    return c;
}

static void conn_on_idle(void *arg)
{
    struct upconn *c = arg;
    c->idle = 0;
    conn_free(c);
}

static bool too_many_idle(const struct pool *p, const struct upkey *k)
{
    size_t n = 0;
    if (p->n <= POOL_IDLE_PER_HOST)
        return false;
    for (const struct upconn *c = p->conns; c; c = c->next)
        n += c->users == 0 && pool_same_host(&c->key, k);
    return n > POOL_IDLE_PER_HOST;
}

void pool_release(struct upconn *c, bool keep)
{
    struct pool *p = c->pool;
    c->users--;
    if (c->users > 0)
        return;
    if (c->h2)
        keep = h2up_usable(c->h2); /* a cut stream does not harm the others */
    else
        keep &= c->h1 && client_reusable(c->h1); /* h1 is NULL after a tunnel */
    if (!keep || c->stale || c->epoch != p->s->epoch || too_many_idle(p, &c->key)) {
        conn_free(c);
        return;
    }
    conn_unlink(c);
    conn_first(c);
    c->idle_since = loop_now(p->s->g->loop);
    c->idle = loop_timer(p->s->g->loop, POOL_IDLE_MS, conn_on_idle, c);
}

bool pool_enter(struct esb *s)
{
    struct pool *p = pool_of(s);
    if (p->exchanges >= POOL_EXCHANGES)
        return false;
    p->exchanges++;
    return true;
}

void pool_leave(struct esb *s) { ((struct pool *)s->upstreams)->exchanges--; }

void pool_policy_changed(struct esb *s)
{
    struct pool *p = s->upstreams;
    for (struct upconn *c = p ? p->conns : NULL, *next; c; c = next) {
        next = c->next;
        c->stale = true;
        if (c->users == 0)
            conn_free(c);
    }
}

void pool_free(struct esb *s)
{
    struct pool *p = s->upstreams;
    if (!p)
        return;
    while (p->conns)
        conn_free(p->conns);
    free(p);
    s->upstreams = NULL;
}
