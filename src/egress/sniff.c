/* sniff.c - finds a connection's protocol from its first bytes.
 *
 *   begin ── a tcp rule allows the destination ──────────────────────────────► relay (the server may speak first)
 *     │
 *   read ─┬ 0x16 0x03, a whole ClientHello ─┬ intercepted, or denied ────────► http (answers in words, also refusals)
 *         │                                 ├ denied, refusals: closed ──────► refused, TLS alert
 *         │                                 └ passthrough ───────────────────► relay
 *         ├ METHOD SP ─┬ CONNECT to a proxy port ─► proxy.c, begin again
 *         │            └ else ───────────────────────────────────────────────► http
 *         ├ 0x04, 0x05 on the platform's address ─► socks, begin again
 *         └ anything else, nothing for 10 s, end ─┬ a tcp rule ──────────────► relay
 *                                                 └ else ────────────────────► refused, RST
 *
 * The bytes read stay in flow.head for the next driver of the flow.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/deny.h"
#include "egress/flow-int.h"
#include "egress/hello.h"
#include "http/http1.h"

enum sniff_mode { SNIFF_FIRST, SNIFF_HELLO, SNIFF_CONNECT, SNIFF_SOCKS, SNIFF_ASKING };

struct sniff {
    struct flow *f;
    enum sniff_mode mode;
    loop_id watch, timer;
    size_t scan, need; /* of the CONNECT head; bytes before a ClientHello is looked at again */
    struct socks socks;
    uint64_t waiter;
    bool ended; /* the client has shut down its side */
};

static void sniff_look(struct sniff *n);

/* --- life --------------------------------------------------------------------------------------------------------- */

static struct flow *sniff_free(struct sniff *n)
{
    struct flow *f = n->f;
    struct loop *l = f->sb->g->loop;
    loop_fd_del(l, n->watch);
    loop_timer_del(l, n->timer);
    if (n->mode == SNIFF_ASKING)
        ask_cancel(f->sb, n->waiter);
    free(n);
    f->driver = NULL;
    return f;
}

static void sniff_refuse(struct sniff *n, const struct flow_refusal *r) { flow_refuse(sniff_free(n), r); }

static void sniff_cut(struct flow *f)
{
    flow_reset(sniff_free(f->driver));
    flow_end(f);
}

/* Always true: nothing was allowed yet, and the decision will be made under the policy in force then. */
static bool sniff_still(struct flow *f)
{
    (void)f;
    return true;
}

static const struct flow_ops sniff_ops = {.still = sniff_still, .cut = sniff_cut};

/* --- opaque streams ----------------------------------------------------------------------------------------------- */

static void sniff_on_decision(void *arg, enum netpol_reason reason, const char *id)
{
    struct sniff *n = arg;
    struct flow *f = n->f;
    struct netpol_flow t = flow_target(f);
    struct netpol_decision d;
    n->mode = SNIFF_FIRST; /* not SNIFF_ASKING: there is no waiter to cancel */
    netpol_relay(f->sb->policy, &t, egress_now(), &d);
    if (reason == NETPOL_R_NONE && d.verdict == NETPOL_ALLOW)
        relay_flow(sniff_free(n), d.rule);
    else
        sniff_refuse(n, &(struct flow_refusal){.reason = reason != NETPOL_R_NONE ? reason : NETPOL_R_APPROVAL_DENIED,
                                               .layer = "tcp",
                                               .approval = id,
                                               .form = FLOW_RST});
}

static void sniff_ask(struct sniff *n, const struct netpol_flow *t, const struct netpol_rule *rule)
{
    struct esb *s = n->f->sb;
    loop_fd_set(s->g->loop, n->watch, 0);
    loop_timer_del(s->g->loop, n->timer);
    n->timer = 0;
    n->mode = SNIFF_ASKING;
    if (!ask_start(s, t, NULL, rule ? rule->id : NULL, sniff_on_decision, n, &n->waiter)) {
        n->mode = SNIFF_FIRST;
        sniff_refuse(n, &(struct flow_refusal){.reason = NETPOL_R_APPROVAL_PENDING,
                                               .layer = "tcp",
                                               .text = "too many requests wait for an approval",
                                               .form = FLOW_RST});
    }
}

/* Neither HTTP nor TLS that can be intercepted: relays, asks for approval, or refuses. */
static void sniff_opaque(struct sniff *n, enum flow_form form, enum tls_alert alert)
{
    struct flow *f = n->f;
    struct netpol_flow t = flow_target(f);
    struct netpol_decision d;
    struct flow_refusal r = {
        .reason = NETPOL_R_PROTOCOL, .layer = f->tls ? "tls" : "tcp", .form = form, .alert = alert};
    if (f->stale) {
        r.reason = NETPOL_R_STALE_DNS;
        sniff_refuse(n, &r);
        return;
    }
    if (f->gate && !f->explicit_proxy) {
        r.text = "this address speaks HTTP, HTTP CONNECT and SOCKS only";
        sniff_refuse(n, &r);
        return;
    }
    netpol_relay(f->sb->policy, &t, egress_now(), &d);
    if (d.verdict == NETPOL_ALLOW) {
        relay_flow(sniff_free(n), d.rule);
    } else if (d.verdict == NETPOL_ASK) {
        sniff_ask(n, &t, d.rule);
    } else {
        r.reason = d.reason != NETPOL_R_NONE ? d.reason : NETPOL_R_PROTOCOL;
        r.rule = d.rule ? d.rule->id : NULL;
        sniff_refuse(n, &r);
    }
}

/* --- TLS ---------------------------------------------------------------------------------------------------------- */

static void sniff_refuse_tls(struct sniff *n, enum netpol_reason reason, const char *text, enum tls_alert alert)
{
    sniff_refuse(
        n, &(struct flow_refusal){.reason = reason, .layer = "tls", .text = text, .form = FLOW_ALERT, .alert = alert});
}

/* Takes the name from the ClientHello. false: the name is missing, stale, or not that of the destination, so the stream
 * may not be passed through; http.c checks again and answers in words. */
static bool sniff_take_name(struct flow *f, const struct hello *h)
{
    /* A client that connects to an address literal sends no name. */
    if (!f->sni[0])
        return !f->stale && !h->has_sni && (!f->host[0] || !netpol_settings(f->sb->policy)->require_sni);
    /* Several names may share a real address; a synthetic one and CONNECT stand for one name. */
    if (f->host[0] && (f->explicit_proxy || names_synthetic(&f->dst)))
        return strcmp(f->host, f->sni) == 0;
    (void)snprintf(f->host, sizeof f->host, "%s", f->sni);
    f->stale = false;
    return true;
}

static enum netpol_reason sniff_name_reason(const struct flow *f)
{
    return f->stale ? NETPOL_R_STALE_DNS : f->sni[0] ? NETPOL_R_SNI_MISMATCH : NETPOL_R_NO_SNI;
}

static void sniff_decide_tls(struct sniff *n, const struct hello *h)
{
    struct flow *f = n->f;
    struct netpol_decision d, relay;
    bool other_alpn = h->has_alpn && !h->alpn_http, can_look = !f->sb->g->config.no_interception && !other_alpn;
    if (!sniff_take_name(f, h)) {
        if (can_look && !flow_closes(f))
            http_flow(sniff_free(n));
        else
            sniff_refuse_tls(n, sniff_name_reason(f),
                             "the server name in the ClientHello does not stand for this connection",
                             ALERT_ACCESS_DENIED);
        return;
    }
    struct netpol_flow t = flow_target(f);
    netpol_connect(f->sb->policy, &t, egress_now(), &d);
    netpol_relay(f->sb->policy, &t, egress_now(), &relay);
    bool pass = relay.verdict == NETPOL_ALLOW && d.verdict == NETPOL_ALLOW && !d.intercept;
    if (d.verdict == NETPOL_DENY && flow_closes(f))
        sniff_refuse(n, &(struct flow_refusal){.reason = d.reason,
                                               .layer = "tls",
                                               .rule = d.rule ? d.rule->id : NULL,
                                               .form = FLOW_ALERT,
                                               .alert = ALERT_ACCESS_DENIED});
    else if (pass && f->ech && ((relay.rule && relay.rule->tls == NETPOL_TLS_PASSTHROUGH) || !can_look))
        sniff_refuse_tls(
            n, NETPOL_R_ECH,
            "the name inside an encrypted ClientHello cannot be checked in a stream that is passed through",
            ALERT_ACCESS_DENIED);
    else if (pass && !f->ech)
        relay_flow(sniff_free(n), relay.rule);
    else if (can_look)
        http_flow(sniff_free(n)); /* it does not accept ECH, so clients fall back to the outer name, which we see */
    else
        sniff_opaque(n, FLOW_ALERT, other_alpn ? ALERT_NO_PROTOCOL : ALERT_ACCESS_DENIED);
}

static void sniff_on_hello(struct sniff *n, const struct hello *h)
{
    struct flow *f = n->f;
    f->tls = true;
    f->ech = h->ech;
    if (h->has_sni && !netpol_name(h->sni, strlen(h->sni), f->sni)) {
        f->sni[0] = '\0';
        sniff_refuse_tls(n, NETPOL_R_NO_SNI, "the server name in the ClientHello is not a host name",
                         ALERT_ACCESS_DENIED);
    } else if (f->gate && !f->explicit_proxy) {
        sniff_opaque(n, FLOW_ALERT, ALERT_ACCESS_DENIED);
    } else if (netpol_settings(f->sb->policy)->tls13_only && !h->tls13) {
        sniff_refuse_tls(n, NETPOL_R_TLS_VERSION, "the client does not offer TLS 1.3", ALERT_PROTOCOL_VERSION);
    } else {
        sniff_decide_tls(n, h);
    }
}

static void sniff_look_hello(struct sniff *n)
{
    struct flow *f = n->f;
    struct hello h;
    unsigned char scratch[HELLO_MAX];
    if (f->head.n < n->need && !n->ended)
        return;
    int rc = hello_parse(f->head.p, f->head.n, scratch, &h);
    n->need = h.need;
    if (rc > 0) {
        sniff_on_hello(n, &h);
    } else if (rc < 0) {
        f->tls = true;
        sniff_refuse_tls(n, NETPOL_R_MALFORMED, h.why, ALERT_DECODE_ERROR);
    } else if (n->ended) {
        flow_end(sniff_free(n));
    }
}

/* --- HTTP and proxies --------------------------------------------------------------------------------------------- */

/* 1: a request line begins here; 0: more bytes are needed; -1: no. */
static int sniff_is_request(const char *p, size_t n)
{
    for (size_t i = 0; i < n && i <= HTTP1_METHOD_MAX; i++) {
        if (p[i] == ' ')
            return i > 0 ? 1 : -1;
        if (!(p[i] >= 'A' && p[i] <= 'Z') && !(i > 0 && (p[i] == '-' || p[i] == '_')))
            return -1;
    }
    return n <= HTTP1_METHOD_MAX ? 0 : -1;
}

static void sniff_on_request(struct sniff *n)
{
    struct flow *f = n->f;
    if (f->stale) {
        sniff_refuse(n, &(struct flow_refusal){.reason = NETPOL_R_STALE_DNS, .layer = "http", .form = FLOW_HTTP});
        return;
    }
    if (f->gate && !f->explicit_proxy && f->head.n >= 8 && memcmp(f->head.p, "CONNECT ", 8) == 0) {
        n->mode = SNIFF_CONNECT;
        sniff_look(n);
        return;
    }
    http_flow(sniff_free(n));
}

static void sniff_look_proxy(struct sniff *n)
{
    struct flow *f = n->f;
    struct buf words = {0};
    int rc = n->mode == SNIFF_CONNECT ? proxy_connect(f, &n->scan, &words) : proxy_socks(f, &n->socks, &words);
    if (rc < 0)
        flow_farewell(sniff_free(n), &words);
    else if (rc > 0)
        sniff_start(sniff_free(n));
    else if (n->ended)
        flow_end(sniff_free(n));
}

static void sniff_look_first(struct sniff *n)
{
    struct flow *f = n->f;
    const unsigned char *p = (const unsigned char *)f->head.p;
    if (!f->head.n) {
        if (n->ended)
            flow_end(sniff_free(n));
        return;
    }
    if (p[0] == 0x16 && (f->head.n < 2 || p[1] == 3)) {
        n->mode = f->head.n < 2 ? SNIFF_FIRST : SNIFF_HELLO;
        if (n->mode == SNIFF_HELLO)
            sniff_look(n);
        return;
    }
    if (f->gate && !f->explicit_proxy && (p[0] == 4 || p[0] == 5)) {
        n->mode = SNIFF_SOCKS;
        sniff_look(n);
        return;
    }
    int rc = sniff_is_request(f->head.p, f->head.n);
    if (rc > 0)
        sniff_on_request(n);
    else if (rc < 0 || n->ended)
        sniff_opaque(n, FLOW_RST, 0);
}

static void sniff_look(struct sniff *n)
{
    switch (n->mode) {
    case SNIFF_FIRST:
        sniff_look_first(n);
        break;
    case SNIFF_HELLO:
        sniff_look_hello(n);
        break;
    case SNIFF_CONNECT:
    case SNIFF_SOCKS:
        sniff_look_proxy(n);
        break;
    case SNIFF_ASKING:
        break;
    }
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static void sniff_on_readable(void *arg, int fd, unsigned events)
{
    struct sniff *n = arg;
    struct flow *f = n->f;
    char bytes[8192];
    (void)events;
    size_t room = FLOW_HEAD_MAX - f->head.n;
    if (!room) {
        sniff_refuse(n, &(struct flow_refusal){.reason = NETPOL_R_MALFORMED,
                                               .layer = "tcp",
                                               .text = "the first message is longer than 32 KiB",
                                               .form = FLOW_RST});
        return;
    }
    ssize_t got = recv(fd, bytes, room < sizeof bytes ? room : sizeof bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0) {
        flow_end(sniff_free(n));
        return;
    }
    n->ended = got == 0;
    buf_add(&f->head, bytes, (size_t)got);
    sniff_look(n);
}

static void sniff_on_timeout(void *arg)
{
    struct sniff *n = arg;
    n->timer = 0;
    if (n->mode == SNIFF_FIRST)
        sniff_opaque(n, FLOW_RST, 0);
    else
        sniff_cut(n->f);
}

void sniff_start(struct flow *f)
{
    struct loop *l = f->sb->g->loop;
    struct netpol_flow t = flow_target(f);
    struct netpol_decision d = {0};
    if (!f->stale && (!f->gate || f->explicit_proxy)) {
        netpol_connect(f->sb->policy, &t, egress_now(), &d);
        if (d.verdict == NETPOL_ALLOW && d.tcp) {
            relay_flow(f, d.rule);
            return;
        }
    }
    struct sniff *n = xcalloc(1, sizeof *n);
    n->f = f;
    f->ops = &sniff_ops;
    f->driver = n;
    n->timer = loop_timer(l, SNIFF_MS, sniff_on_timeout, n);
    n->watch = loop_fd_add(l, f->fd, LOOP_IN, sniff_on_readable, n);
    if (!n->watch) {
        sniff_cut(f);
        return;
    }
    if (f->head.n)
        sniff_look(n);
}
