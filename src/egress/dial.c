/* dial.c - the way out: resolves a name, checks each address, and connects to an address that was checked.
 *
 * There is no second lookup between the check and connect(). Addresses are tried in turn, the next 250 ms after the one
 * before or as soon as all before it have failed; the first that connects wins. With a SOCKS 5 proxy the addresses of
 * the proxy and of the target are both checked, and the proxy is told an address, never a name.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/dial-int.h"
#include "egress/resolve.h"
#include "egress/secrets/secrets-int.h"
#include "egress/socks.h"
#include "os/own.h"

enum { STAGGER_MS = 250, CONNECT_MS = 10000, ATTEMPTS_MAX = 8, PROXY_ANSWER_MAX = 1024 };

struct attempt {
    struct dial *d;
    int fd; /* -1: over */
    loop_id watch;
    struct in6_addr addr;
};

struct dial {
    struct egress *g;
    struct netpol *policy; /* keeps the rule */
    const struct netpol_rule *rule;
    dial_done *done;
    void *arg;
    char host[NETPOL_NAME_MAX]; /* "": a literal */
    uint16_t port;
    struct resolve *resolve;
    struct in6_addr addrs[RESOLVE_ADDRS_MAX];
    size_t naddrs, next;
    struct attempt attempts[ATTEMPTS_MAX];
    size_t nattempts;
    loop_id stagger, deadline;
    uint64_t started_us;
    struct dial_result result;
    /* Through a proxy: the first of the target's addresses, and the conversation. */
    char proxy_host[280];
    bool proxy_step;         /* it is the proxy that is resolved and dialled */
    struct in6_addr refused; /* an address that may not be dialled, of the kind that decides */
    struct socks_client socks;
    char password[SOCKS_USER_MAX + 1];
    bool no_password; /* the policy has one, but it cannot be unsealed */
    struct buf in, out;
    int proxy_fd;
    loop_id proxy_watch;
    bool finished, reporting;
};

static void address_text(const struct in6_addr *a, char ret[INET6_ADDRSTRLEN])
{
    if (IN6_IS_ADDR_V4MAPPED(a))
        (void)inet_ntop(AF_INET, a->s6_addr + 12, ret, INET6_ADDRSTRLEN);
    else
        (void)inet_ntop(AF_INET6, a, ret, INET6_ADDRSTRLEN);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

static void attempt_close(struct attempt *a)
{
    if (a->fd < 0)
        return;
    loop_fd_del(a->d->g->loop, a->watch);
    (void)close(a->fd);
    a->fd = -1;
}

/* Releases everything but the result. */
static void dial_let_go(struct dial *d)
{
    struct loop *l = d->g->loop;
    resolve_cancel(d->resolve);
    d->resolve = NULL;
    for (size_t i = 0; i < d->nattempts; i++)
        attempt_close(&d->attempts[i]);
    loop_timer_del(l, d->stagger);
    loop_timer_del(l, d->deadline);
    loop_fd_del(l, d->proxy_watch);
    if (d->proxy_fd >= 0)
        (void)close(d->proxy_fd);
    d->proxy_fd = -1;
    buf_done(&d->in);
    explicit_bzero(d->password, sizeof d->password);
    buf_wipe(&d->out);
}

static void dial_free(struct dial *d)
{
    dial_let_go(d);
    if (d->result.fd >= 0)
        (void)close(d->result.fd);
    netpol_unref(d->policy);
    free(d);
}

/* Called from the loop, so that the caller is never called back from inside its own call. */
static void dial_report(void *arg)
{
    struct dial *d = arg;
    d->reporting = false;
    if (d->done) {
        struct dial_result r = d->result;
        d->result.fd = -1;
        d->done(d->arg, &r);
    }
    dial_free(d);
}

__attribute__((format(printf, 3, 4))) static void dial_finish(struct dial *d, enum dial_failure why, const char *fmt,
                                                              ...)
{
    va_list ap;
    if (d->finished)
        return;
    d->finished = true;
    va_start(ap, fmt);
    (void)vsnprintf(d->result.text, sizeof d->result.text, fmt, ap);
    va_end(ap);
    d->result.failure = why;
    d->result.took_us = egress_clock_us() - d->started_us;
    dial_let_go(d);
    d->reporting = true;
    loop_defer(d->g->loop, dial_report, d);
}

void dial_cancel(struct dial *d)
{
    if (!d)
        return;
    d->done = NULL;
    if (!d->reporting)
        dial_free(d);
}

/* --- connecting --------------------------------------------------------------------------------------------------- */

static void dial_try_next(struct dial *d);
static void dial_proxy_start(struct dial *d, int fd);

static void attempt_connected(struct dial *d, struct attempt *a)
{
    struct sockaddr_storage ss = {0};
    socklen_t n = sizeof ss;
    struct in6_addr peer;
    int fd = a->fd, on = 1;
    if (getpeername(fd, (struct sockaddr *)&ss, &n) < 0 || !own_address_of((struct sockaddr *)&ss, &peer) ||
        !IN6_ARE_ADDR_EQUAL(&peer, &a->addr) || dial_check(d->g, &a->addr, d->rule) != DIAL_OK) {
        dial_finish(d, DIAL_NEVER, "the connection does not lead to the address that was checked");
        return;
    }
    loop_fd_del(d->g->loop, a->watch);
    a->fd = -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    if (d->proxy_step) {
        dial_proxy_start(d, fd);
        return;
    }
    d->result.fd = fd;
    d->result.addr = a->addr;
    dial_finish(d, DIAL_OK, "%s", "");
}

static void attempt_failed(struct dial *d, struct attempt *a, int eno)
{
    char text[INET6_ADDRSTRLEN];
    address_text(&a->addr, text);
    (void)snprintf(d->result.text, sizeof d->result.text, "%s port %u: %s", text, (unsigned)d->port, strerror(eno));
    attempt_close(a);
    for (size_t i = 0; i < d->nattempts; i++)
        if (d->attempts[i].fd >= 0)
            return; /* another attempt is under way; the stagger timer starts the next */
    dial_try_next(d);
}

static void attempt_on_connect(void *arg, int fd, unsigned events)
{
    struct attempt *a = arg;
    int eno = 0;
    socklen_t n = sizeof eno;
    (void)events;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &eno, &n) < 0)
        eno = errno;
    if (eno)
        attempt_failed(a->d, a, eno);
    else
        attempt_connected(a->d, a);
}

static void dial_on_stagger(void *arg)
{
    struct dial *d = arg;
    d->stagger = 0;
    dial_try_next(d);
}

static int attempt_connect(int fd, const struct in6_addr *a, uint16_t port)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = *a};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&v4.sin_addr, a->s6_addr + 12, 4);
    return IN6_IS_ADDR_V4MAPPED(a) ? connect(fd, (struct sockaddr *)&v4, sizeof v4)
                                   : connect(fd, (struct sockaddr *)&v6, sizeof v6);
}

/* 0: under way; else errno. */
static int attempt_start(struct dial *d, struct attempt *a)
{
    int eno = 0;
    a->fd = socket(IN6_IS_ADDR_V4MAPPED(&a->addr) ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (a->fd < 0)
        return errno;
    if (attempt_connect(a->fd, &a->addr, d->port) < 0 && errno != EINPROGRESS)
        eno = errno;
    if (!eno && !(a->watch = loop_fd_add(d->g->loop, a->fd, LOOP_OUT, attempt_on_connect, a)))
        eno = errno;
    if (eno) {
        (void)close(a->fd);
        a->fd = -1;
    }
    return eno;
}

static void dial_try_next(struct dial *d)
{
    loop_timer_del(d->g->loop, d->stagger);
    d->stagger = 0;
    while (d->next < d->naddrs && d->nattempts < ATTEMPTS_MAX) {
        struct attempt *a = &d->attempts[d->nattempts++];
        *a = (struct attempt){.d = d, .fd = -1, .addr = d->addrs[d->next++]};
        int eno = attempt_start(d, a);
        if (!eno) {
            if (d->next < d->naddrs)
                d->stagger = loop_timer(d->g->loop, STAGGER_MS, dial_on_stagger, d);
            return;
        }
        char text[INET6_ADDRSTRLEN];
        address_text(&a->addr, text);
        (void)snprintf(d->result.text, sizeof d->result.text, "%s port %u: %s", text, (unsigned)d->port, strerror(eno));
    }
    for (size_t i = 0; i < d->nattempts; i++)
        if (d->attempts[i].fd >= 0)
            return;
    char last[sizeof d->result.text];
    memcpy(last, d->result.text, sizeof last);
    dial_finish(d, DIAL_UNREACHABLE, "%s", last[0] ? last : "no address to connect to");
}

static void dial_on_deadline(void *arg)
{
    struct dial *d = arg;
    d->deadline = 0;
    dial_finish(d, DIAL_TIMEOUT, "no connection within %d s", CONNECT_MS / 1000);
}

/* --- resolving ---------------------------------------------------------------------------------------------------- */

static void dial_proxy_resolve(struct dial *d);

/* A deny rule for addresses also applies to names that resolve to them. */
static bool dial_is_denied(const struct dial *d, const struct in6_addr *a)
{
    const struct netpol_flow t = {.host = d->host[0] ? d->host : NULL, .addr = *a, .port = d->port};
    return d->policy && !netpol_resolved(d->policy, &t, a, egress_now());
}

/* Keeps the addresses that may be dialled, alternating families so that a broken family costs one step. */
static enum dial_failure dial_choose_addresses(struct dial *d, const struct resolve_answer *r)
{
    struct in6_addr by_family[2][RESOLVE_ADDRS_MAX];
    size_t n[2] = {0, 0};
    enum dial_failure worst = DIAL_NO_NAME;
    for (size_t i = 0; i < r->n; i++) {
        enum dial_failure f = dial_check(d->g, &r->addrs[i], d->rule);
        if (f == DIAL_OK && !d->proxy_step && dial_is_denied(d, &r->addrs[i]))
            f = DIAL_NEVER;
        unsigned v4 = IN6_IS_ADDR_V4MAPPED(&r->addrs[i]) ? 1 : 0;
        if (f == DIAL_OK)
            by_family[v4][n[v4]++] = r->addrs[i];
        else if (worst != DIAL_NEVER) {
            worst = f;
            d->refused = r->addrs[i];
        }
    }
    d->naddrs = d->next = 0;
    for (size_t i = 0; i < RESOLVE_ADDRS_MAX; i++)
        for (unsigned family = 0; family < 2; family++)
            if (i < n[family])
                d->addrs[d->naddrs++] = by_family[family][i];
    return d->naddrs ? DIAL_OK : worst;
}

static void dial_go_on(struct dial *d, enum dial_failure f, const char *what, const char *said)
{
    char text[INET6_ADDRSTRLEN];
    address_text(&d->refused, text);
    if (f == DIAL_NO_NAME)
        dial_finish(d, DIAL_NO_NAME, "%s cannot be resolved: %s", what, said ? said : "it has no address");
    else if (f != DIAL_OK)
        dial_finish(d, f, "%s is %s, %s", what, text,
                    f == DIAL_PRIVATE ? EGRESS_PRIVATE : "which is never reached from here");
    else if (d->proxy_host[0] && !d->proxy_step)
        dial_proxy_resolve(d);
    else
        dial_try_next(d);
}

static void dial_on_resolved(void *arg, const struct resolve_answer *r)
{
    struct dial *d = arg;
    d->resolve = NULL;
    dial_go_on(d, r->status == RESOLVE_OK ? dial_choose_addresses(d, r) : DIAL_NO_NAME,
               d->proxy_step ? "the upstream proxy" : "the name", r->text);
}

static void dial_start_literal(void *arg)
{
    struct dial *d = arg;
    struct resolve_answer one = {.n = 1, .addrs = {d->addrs[0]}};
    if (d->finished) /* the deadline came first: dial_report() is scheduled and frees d */
        return;
    d->reporting = false;
    if (!d->done) {
        dial_free(d);
        return;
    }
    dial_go_on(d, dial_choose_addresses(d, &one), d->proxy_step ? "the upstream proxy" : "the destination", NULL);
}

static void dial_resolve(struct dial *d, const char *host, const struct in6_addr *literal)
{
    if (host) {
        d->resolve = resolve_start(d->g, host, dial_on_resolved, d);
        return;
    }
    d->addrs[0] = *literal;
    d->reporting = true; /* keeps d alive until the deferred call */
    loop_defer(d->g->loop, dial_start_literal, d);
}

/* Takes the password that came with the policy, else the tenant's secret DIAL_PROXY_SECRET, else an empty one. */
static void dial_proxy_password(struct dial *d, const struct esb *s, const struct netpol_settings *set)
{
    struct err err;
    d->socks.password = d->password;
    if (!set->proxy_user[0])
        return;
    if (s->proxy_password) {
        d->no_password =
            secrets_proxy_password(s->g->vault, s->proxy_password, set->proxy, set->proxy_user, d->password, &err) < 0;
        return;
    }
    const struct secret *secret = s->g->vault ? secrets_find(s->g->vault, s->tenant, DIAL_PROXY_SECRET) : NULL;
    if (secret && secret->value && secret->n < sizeof d->password)
        memcpy(d->password, secret->value, secret->n);
}

struct dial *dial_start(struct esb *s, const char *host, const struct in6_addr *literal, uint16_t port,
                        const struct netpol_rule *rule, dial_done *done, void *arg)
{
    struct dial *d = xcalloc(1, sizeof *d);
    const struct netpol_settings *set = s->policy ? netpol_settings(s->policy) : NULL;
    d->g = s->g;
    d->policy = s->policy ? netpol_ref(s->policy) : NULL;
    d->rule = rule;
    d->done = done;
    d->arg = arg;
    d->port = port;
    (void)snprintf(d->host, sizeof d->host, "%s", host ? host : "");
    d->proxy_fd = d->result.fd = -1;
    d->started_us = egress_clock_us();
    d->deadline = loop_timer(s->g->loop, CONNECT_MS, dial_on_deadline, d);
    if (set && set->proxy[0]) {
        (void)snprintf(d->proxy_host, sizeof d->proxy_host, "%s", set->proxy);
        d->socks.user = set->proxy_user; /* d->policy keeps it alive */
        dial_proxy_password(d, s, set);
    }
    dial_resolve(d, host, literal);
    return d;
}

/* --- through a proxy ---------------------------------------------------------------------------------------------- */

/* The target is resolved and checked; resolves the proxy itself next. */
static void dial_proxy_resolve(struct dial *d)
{
    char host[NETPOL_NAME_MAX];
    struct in6_addr addr;
    bool literal;
    uint16_t port = 1080;
    d->socks.addr = d->addrs[0];
    d->socks.port = d->port;
    d->proxy_step = true;
    if (!netpol_authority(d->proxy_host, host, &addr, &literal, &port)) {
        dial_finish(d, DIAL_UNREACHABLE, "the upstream proxy of the policy is not HOST:PORT");
        return;
    }
    d->port = port;
    dial_resolve(d, literal ? NULL : host, &addr);
}

static int dial_proxy_flush(struct dial *d)
{
    while (d->out.n) {
        ssize_t n = send(d->proxy_fd, d->out.p, d->out.n, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        memmove(d->out.p, d->out.p + n, d->out.n - (size_t)n);
        d->out.n -= (size_t)n;
    }
    return 0;
}

static void dial_proxy_done(struct dial *d)
{
    loop_fd_del(d->g->loop, d->proxy_watch);
    d->result.fd = TAKE_FD(d->proxy_fd);
    d->result.addr = d->socks.addr;
    dial_finish(d, DIAL_OK, "%s", "");
}

/* Reads byte by byte, exactly what the SOCKS exchange needs: later bytes belong to the stream. */
static int dial_proxy_read(struct dial *d, const char **why)
{
    for (;;) {
        unsigned char c;
        ssize_t got = recv(d->proxy_fd, &c, 1, 0);
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0 || d->in.n == PROXY_ANSWER_MAX) {
            *why = "the proxy closed the connection";
            return -1;
        }
        buf_add(&d->in, &c, 1);
        ssize_t taken = socks_client_next(&d->socks, d->in.p, d->in.n, &d->out, why);
        if (taken < 0)
            return -1;
        if (taken > 0)
            d->in.n = 0; /* reading byte by byte, it took all of them */
        if (socks_client_done(&d->socks))
            return 1;
    }
}

static void dial_on_proxy(void *arg, int fd, unsigned events)
{
    struct dial *d = arg;
    const char *why = "the proxy does not take what is sent";
    (void)fd;
    int rc = events & (LOOP_IN | LOOP_HUP) ? dial_proxy_read(d, &why) : 0;
    if (rc == 1) {
        dial_proxy_done(d);
        return;
    }
    if (rc < 0 || dial_proxy_flush(d) < 0) {
        dial_finish(d, DIAL_UNREACHABLE, "%s", why);
        return;
    }
    loop_fd_set(d->g->loop, d->proxy_watch, LOOP_IN | (d->out.n ? LOOP_OUT : 0));
}

static void dial_proxy_start(struct dial *d, int fd)
{
    d->proxy_fd = fd;
    for (size_t i = 0; i < d->nattempts; i++)
        attempt_close(&d->attempts[i]);
    loop_timer_del(d->g->loop, d->stagger);
    d->stagger = 0;
    if (d->no_password) {
        dial_finish(d, DIAL_UNREACHABLE, "the password of the upstream proxy cannot be opened; set the network again");
        return;
    }
    socks_client_hello(&d->socks, &d->out);
    d->proxy_watch = loop_fd_add(d->g->loop, fd, LOOP_IN | LOOP_OUT, dial_on_proxy, d);
    if (!d->proxy_watch)
        dial_finish(d, DIAL_UNREACHABLE, "cannot watch the connection to the proxy");
}

/* --- life --------------------------------------------------------------------------------------------------------- */

int dial_setup(struct egress *g, struct err *err)
{
    if (resolve_setup(g, err) < 0)
        return -1;
    if (dial_check_setup(g, err) < 0) {
        resolve_teardown(g);
        return -1;
    }
    return 0;
}

void dial_teardown(struct egress *g)
{
    resolve_teardown(g);
    dial_check_teardown(g);
}
