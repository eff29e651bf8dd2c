/* proxy.c - explicit proxies: HTTP CONNECT and SOCKS name the destination of the stream that follows. The destination
 * is judged at once, and the stream is then sniffed like any other connection to it.
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
#include "http/http1.h"
#include "os/netns.h"

#define ESTABLISHED "HTTP/1.1 200 Connection Established\r\n\r\n"

/* Answers are short and the client waits for them: one that does not fit into the socket buffer ends the connection. */
static int proxy_say(struct flow *f, const void *p, size_t n)
{
    return send(f->fd, p, n, MSG_NOSIGNAL) == (ssize_t)n ? 0 : -1;
}

static void proxy_drop_head(struct flow *f, size_t n)
{
    memmove(f->head.p, f->head.p + n, f->head.n - n);
    f->head.n -= n;
    f->head.p[f->head.n] = '\0';
}

/* --- where to ----------------------------------------------------------------------------------------------------- */

/* Sets the flow's destination to the one the client named. */
static void proxy_aim(struct flow *f, const char *host, const struct in6_addr *literal, uint16_t port)
{
    struct in6_addr gate;
    bool internal = host ? strcmp(host, FLOW_INTERNAL) == 0 : flow_is_gate(literal);
    if (internal && port == 80) {
        (void)netpol_literal(NETNS_GATE4, strlen(NETNS_GATE4), &gate);
        flow_aim(f, &gate, port); /* as if it had come there without a proxy */
        return;
    }
    f->explicit_proxy = true;
    f->gate = false;
    if (literal) {
        flow_aim(f, literal, port);
        return;
    }
    (void)snprintf(f->host, sizeof f->host, "%s", host);
    f->port = port;
    f->stale = false;
}

/* Whether the policy allows anything to this destination, with or without TLS: the bytes are not known yet. */
static bool proxy_is_allowed(const struct flow *f, struct netpol_decision *ret)
{
    struct netpol_flow t = flow_target(f);
    if (f->stale) {
        *ret = (struct netpol_decision){.verdict = NETPOL_DENY, .reason = NETPOL_R_STALE_DNS};
        return false;
    }
    if (f->gate)
        return true;
    t.tls = true;
    netpol_connect(f->sb->policy, &t, egress_now(), ret);
    if (ret->verdict != NETPOL_DENY)
        return true;
    struct netpol_decision plain;
    t.tls = false;
    netpol_connect(f->sb->policy, &t, egress_now(), &plain);
    return plain.verdict != NETPOL_DENY;
}

static void proxy_record_refusal(struct flow *f, enum netpol_reason reason, const char *layer, const char *method,
                                 const char *text, const struct netpol_rule *rule, struct deny *ret,
                                 char host[NETPOL_NAME_MAX])
{
    flow_host_text(f, host);
    *ret = (struct deny){.flow = f,
                         .reason = reason,
                         .layer = layer,
                         .host = host,
                         .port = f->port,
                         .method = method,
                         .rule = rule ? rule->id : NULL,
                         .text = text};
    deny_record(f->sb, ret);
}

/* --- CONNECT ------------------------------------------------------------------------------------------------------ */

static int proxy_refuse_connect(struct flow *f, enum netpol_reason reason, const char *text,
                                const struct netpol_rule *rule, struct buf *words)
{
    char host[NETPOL_NAME_MAX];
    struct deny d;
    proxy_record_refusal(f, reason, "http", "CONNECT", text, rule, &d, host);
    deny_raw(f->sb, &d, words);
    return -1;
}

int proxy_connect(struct flow *f, size_t *scan, struct buf *words)
{
    struct http1_bad bad = {0};
    struct http1_head head;
    char host[NETPOL_NAME_MAX];
    struct in6_addr literal;
    bool is_literal;
    uint16_t port = 0;
    struct netpol_decision d = {0};
    ssize_t n = http1_head_end(f->head.p, f->head.n, scan, &bad);
    if (n < 0)
        return proxy_refuse_connect(f, NETPOL_R_MALFORMED, bad.why, NULL, words);
    if (n == 0)
        return f->head.n < FLOW_HEAD_MAX
                   ? 0
                   : proxy_refuse_connect(f, NETPOL_R_MALFORMED, "the head is longer than 32 KiB", NULL, words);
    /* Parse a copy: the parser writes into its input. */
    _cleanup_free_ char *copy = xstrndup(f->head.p, (size_t)n);
    _cleanup_free_ struct http_field *fields = xcalloc(http1_count_fields(copy, (size_t)n) + 1, sizeof *fields);
    if (http1_parse_request(copy, (size_t)n, fields, &head, &bad) < 0)
        return proxy_refuse_connect(f, NETPOL_R_MALFORMED, bad.why, NULL, words);
    if (!head.authority || !netpol_authority(head.authority, host, &literal, &is_literal, &port) || !port)
        return proxy_refuse_connect(f, NETPOL_R_MALFORMED, "the target of CONNECT is not HOST:PORT", NULL, words);
    proxy_aim(f, is_literal ? NULL : host, is_literal ? &literal : NULL, port);
    if (!proxy_is_allowed(f, &d))
        return proxy_refuse_connect(f, d.reason, NULL, d.rule, words);
    proxy_drop_head(f, (size_t)n);
    return proxy_say(f, ESTABLISHED, strlen(ESTABLISHED)) < 0 ? -1 : 1;
}

/* --- SOCKS -------------------------------------------------------------------------------------------------------- */

static int proxy_refuse_socks(struct flow *f, const struct socks *s, enum netpol_reason reason,
                              const struct netpol_rule *rule, const char *text, struct buf *words)
{
    char host[NETPOL_NAME_MAX];
    struct deny d;
    proxy_record_refusal(f, reason, "tcp", NULL, text, rule, &d, host);
    socks_answer(s, SOCKS_NOT_ALLOWED, words);
    return -1;
}

static int proxy_socks_go(struct flow *f, const struct socks *s, struct buf *words)
{
    _cleanup_buf_ struct buf answer = {0};
    char host[NETPOL_NAME_MAX];
    struct in6_addr literal = s->addr;
    struct netpol_decision d = {0};
    bool is_literal = s->literal || netpol_literal(s->host, strlen(s->host), &literal);
    if (!s->port || (!is_literal && !netpol_name(s->host, strlen(s->host), host)))
        return proxy_refuse_socks(f, s, NETPOL_R_MALFORMED, NULL,
                                  "the destination of the SOCKS request is not a host and a port", words);
    proxy_aim(f, is_literal ? NULL : host, is_literal ? &literal : NULL, s->port);
    if (!proxy_is_allowed(f, &d))
        return proxy_refuse_socks(f, s, d.reason, d.rule, NULL, words);
    socks_answer(s, SOCKS_OK, &answer);
    return proxy_say(f, answer.p, answer.n) < 0 ? -1 : 1;
}

int proxy_socks(struct flow *f, struct socks *s, struct buf *words)
{
    for (;;) {
        _cleanup_buf_ struct buf reply = {0};
        ssize_t n = socks_next(s, f->head.p, f->head.n, &reply);
        if (n < 0) {
            *words = reply;
            reply = (struct buf){0};
            return -1;
        }
        if (n == 0)
            return 0;
        proxy_drop_head(f, (size_t)n);
        if (reply.n && proxy_say(f, reply.p, reply.n) < 0)
            return -1;
        if (s->step == SOCKS_DONE)
            return proxy_socks_go(f, s, words);
    }
}
