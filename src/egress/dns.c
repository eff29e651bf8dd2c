/* dns.c - the resolver of a sandbox. In synthetic mode no other resolver is asked: a name that may be allowed gets a
 * synthetic address, and so does a denied name, because egress can tell a client that connects there why. In real mode
 * the node's resolver is asked, but only for names that may be allowed.
 */
#include "egress/dns.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/deny.h"
#include "egress/flow-int.h"
#include "egress/resolve.h"
#include "os/netns.h"

enum { BATCH = 32, PENDING_MAX = 256, REAL_TTL_MAX = 60 };

static struct in6_addr dns_map_v4(uint32_t v4)
{
    struct in6_addr a = {0};
    const unsigned char b[] = {(unsigned char)(v4 >> 24), (unsigned char)(v4 >> 16), (unsigned char)(v4 >> 8),
                               (unsigned char)v4};
    a.s6_addr[10] = a.s6_addr[11] = 0xff;
    memcpy(a.s6_addr + 12, b, 4);
    return a;
}

/* --- what is answered --------------------------------------------------------------------------------------------- */

/* "4.3.2.1.in-addr.arpa" */
static bool reverse_v4(const char *name, struct in6_addr *ret)
{
    unsigned a[4] = {0};
    const char *p = name;
    for (int i = 3; i >= 0; i--) {
        unsigned digits = 0;
        for (; *p >= '0' && *p <= '9' && digits < 3; p++, digits++)
            a[i] = a[i] * 10 + (unsigned)(*p - '0');
        if (!digits || a[i] > 255 || *p++ != '.')
            return false;
    }
    if (strcmp(p, "in-addr.arpa") != 0)
        return false;
    *ret = dns_map_v4(a[0] << 24 | a[1] << 16 | a[2] << 8 | a[3]);
    return true;
}

static int dns_hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* 32 nibbles, the last first, and "ip6.arpa" */
static bool reverse_v6(const char *name, struct in6_addr *ret)
{
    if (strlen(name) != 64 + 8 || strcmp(name + 64, "ip6.arpa") != 0)
        return false;
    for (size_t i = 0; i < 32; i++) {
        int digit = dns_hex_digit(name[2 * i]);
        if (digit < 0 || name[2 * i + 1] != '.')
            return false;
        unsigned char *byte = &ret->s6_addr[15 - i / 2];
        *byte = (unsigned char)(i % 2 ? *byte | digit << 4 : digit);
    }
    return true;
}

static void dns_answer_ptr(struct esb *s, const struct dns_query *q, struct dns_answer *ret)
{
    struct in6_addr a;
    if (!reverse_v4(q->name, &a) && !reverse_v6(q->name, &a)) {
        ret->rcode = DNS_NXDOMAIN;
        return;
    }
    ret->ptr = flow_is_gate(&a) ? FLOW_INTERNAL : names_name(s->names, &a);
    if (!ret->ptr)
        ret->rcode = DNS_NXDOMAIN;
}

static void add_v4_v6(const struct dns_query *q, struct dns_answer *ret, const struct in6_addr *v4,
                      const struct in6_addr *v6)
{
    const struct in6_addr *a = q->type == DNS_A ? v4 : q->type == DNS_AAAA ? v6 : NULL;
    if (a)
        ret->addrs[ret->naddrs++] = *a;
}

static bool ends_with_label(const char *name, const char *label)
{
    size_t n = strlen(name), l = strlen(label);
    return n >= l && strcmp(name + n - l, label) == 0 && (n == l || name[n - l - 1] == '.');
}

static void dns_answer_synthetic(struct esb *s, const struct dns_query *q, bool possible, struct dns_answer *ret)
{
    if (q->type != DNS_A && !(q->type == DNS_AAAA && netpol_settings(s->policy)->dns_aaaa))
        return;
    uint32_t v4 = names_address(s->names, q->name, possible);
    struct in6_addr a4 = dns_map_v4(v4), a6 = names_v6(v4);
    add_v4_v6(q, ret, &a4, &a6);
}

/* Records each denied name once a minute. Above the limit of names the query fails: no denied name goes unrecorded. */
static void dns_answer_denied(struct esb *s, const struct dns_query *q, struct dns_answer *ret)
{
    const struct netpol_settings *set = netpol_settings(s->policy);
    if (names_tell(s->names, q->name, loop_now(s->g->loop) / 60000)) {
        if (!limit_dns(s, true)) {
            ret->rcode = DNS_SERVFAIL;
            return;
        }
        struct deny d = {.reason = NETPOL_R_HOST, .layer = "dns", .host = q->name};
        deny_record(s, &d);
    }
    if (set->dns_denied == NETPOL_DNS_SYNTHETIC)
        dns_answer_synthetic(s, q, false, ret);
    else
        ret->rcode = set->dns_denied == NETPOL_DNS_NXDOMAIN ? DNS_NXDOMAIN : DNS_REFUSED;
}

/* In real mode the question itself carries the name out. false: the name must not be asked for; ret says so. */
static bool dns_may_ask(struct esb *s, const char *name, struct dns_answer *ret)
{
    unsigned retry;
    if (!netpol_name_wildcard(s->policy, name) || limit_new_name(s, name, &retry))
        return true;
    ret->rcode = DNS_SERVFAIL;
    if (names_tell(s->names, name, loop_now(s->g->loop) / 60000) && limit_dns(s, true)) {
        struct deny d = {.reason = NETPOL_R_NAMES, .layer = "dns", .host = name};
        deny_record(s, &d);
    }
    return false;
}

/* Names that mean the same in every sandbox. */
static bool dns_answer_fixed(const struct dns_query *q, bool aaaa, struct dns_answer *ret)
{
    if (strcmp(q->name, FLOW_INTERNAL) == 0) {
        struct in6_addr v4 = flow_literal(NETNS_GATE4), v6 = flow_literal(NETNS_GATE6);
        add_v4_v6(q, ret, &v4, aaaa ? &v6 : NULL);
        return true;
    }
    if (ends_with_label(q->name, "localhost")) {
        struct in6_addr v4 = dns_map_v4(0x7f000001), v6 = IN6ADDR_LOOPBACK_INIT;
        add_v4_v6(q, ret, &v4, &v6);
        return true;
    }
    return false;
}

bool dns_decide(struct esb *s, const struct dns_query *q, struct dns_answer *ret)
{
    const struct netpol_settings *set = netpol_settings(s->policy);
    char name[NETPOL_NAME_MAX];
    *ret = (struct dns_answer){.ttl = DNS_TTL};
    s->counts.dns++;
    if (!limit_dns(s, false)) {
        ret->rcode = DNS_SERVFAIL;
        return true;
    }
    if (q->type >= DNS_AXFR_FIRST && q->type <= DNS_ANY) {
        ret->rcode = DNS_REFUSED;
        return true;
    }
    if (q->type == DNS_PTR) {
        dns_answer_ptr(s, q, ret);
        return true;
    }
    if (dns_answer_fixed(q, set->dns_aaaa, ret))
        return true;
    /* Anything that is not a name to the policy (an address, the root) does not exist. */
    if (!netpol_name(q->name, strlen(q->name), name)) {
        ret->rcode = DNS_NXDOMAIN;
        return true;
    }
    bool possible =
        set->mode != NETPOL_ENFORCE || set->ask_on_miss || netpol_name_possible(s->policy, name, egress_now());
    if (!possible)
        dns_answer_denied(s, q, ret);
    else if (!set->dns_real)
        dns_answer_synthetic(s, q, true, ret);
    else
        return (q->type != DNS_A && !(q->type == DNS_AAAA && set->dns_aaaa)) || !dns_may_ask(s, name, ret);
    return true;
}

void dns_resolved(struct esb *s, const struct dns_query *q, const struct resolve_answer *r, struct dns_answer *ret)
{
    *ret = (struct dns_answer){.ttl = r->ttl > REAL_TTL_MAX ? REAL_TTL_MAX : r->ttl};
    if (r->status != RESOLVE_OK) {
        ret->rcode = r->status == RESOLVE_NO_NAME ? DNS_NXDOMAIN : DNS_SERVFAIL;
        return;
    }
    for (size_t i = 0; i < r->n && ret->naddrs < DNS_ADDRS_MAX; i++) {
        bool v4 = IN6_IS_ADDR_V4MAPPED(&r->addrs[i]);
        if (v4 != (q->type == DNS_A) || dial_check(s->g, &r->addrs[i], NULL) == DIAL_NEVER)
            continue;
        names_learn(s->names, &r->addrs[i], q->name);
        ret->addrs[ret->naddrs++] = r->addrs[i];
    }
}

/* --- datagrams ---------------------------------------------------------------------------------------------------- */

/* A question that came as a datagram and waits for the node's resolver. */
struct pending {
    struct pending *next, **prev;
    struct esb *s;
    struct resolve *resolve;
    struct dns_query q;
    struct sockaddr_in from;
    struct in_addr asked; /* the address it was sent to: the answer comes from there */
};
struct waiting {
    struct pending *first;
    size_t n;
};

static void dns_send_answer(struct esb *s, const struct sockaddr_in *to, struct in_addr asked,
                            const struct dns_query *q, const struct dns_answer *a)
{
    _cleanup_buf_ struct buf out = {0};
    union {
        char bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
        struct cmsghdr align;
    } control = {0};
    struct sockaddr_in dst = *to;
    dns_write(q, a, q->udp_max, &out);
    struct iovec iov = {.iov_base = out.p, .iov_len = out.n};
    struct msghdr m = {.msg_name = &dst, .msg_namelen = sizeof dst, .msg_iov = &iov, .msg_iovlen = 1};
    if (asked.s_addr) {
        struct in_pktinfo info = {.ipi_spec_dst = asked};
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = IPPROTO_IP;
        c->cmsg_type = IP_PKTINFO;
        c->cmsg_len = CMSG_LEN(sizeof info);
        memcpy(CMSG_DATA(c), &info, sizeof info);
    }
    (void)sendmsg(s->udp, &m, MSG_NOSIGNAL | MSG_DONTWAIT); /* if it is lost, the client asks again */
}

static void pending_free(struct pending *p)
{
    struct waiting *w = p->s->dns;
    *p->prev = p->next;
    if (p->next)
        p->next->prev = p->prev;
    w->n--;
    resolve_cancel(p->resolve);
    free(p);
}

static void dns_on_resolved(void *arg, const struct resolve_answer *r)
{
    struct pending *p = arg;
    struct dns_answer a;
    p->resolve = NULL;
    dns_resolved(p->s, &p->q, r, &a);
    dns_send_answer(p->s, &p->from, p->asked, &p->q, &a);
    pending_free(p);
}

static void dns_ask_node(struct esb *s, const struct dns_query *q, const struct sockaddr_in *from, struct in_addr asked)
{
    if (!s->dns)
        s->dns = xcalloc(1, sizeof(struct waiting));
    struct waiting *w = s->dns;
    if (w->n == PENDING_MAX) {
        dns_send_answer(s, from, asked, q, &(struct dns_answer){.rcode = DNS_SERVFAIL});
        return;
    }
    struct pending *p = xcalloc(1, sizeof *p);
    *p = (struct pending){.next = w->first, .prev = &w->first, .s = s, .q = *q, .from = *from, .asked = asked};
    if (p->next)
        p->next->prev = &p->next;
    w->first = p;
    w->n++;
    p->resolve = resolve_start(s->g, q->name, dns_on_resolved, p);
}

void dns_forget(struct esb *s)
{
    struct waiting *w = s->dns;
    if (!w)
        return;
    while (w->first)
        pending_free(w->first);
    free(w);
    s->dns = NULL;
}

static struct in_addr dns_asked_address(struct msghdr *m)
{
    struct in_pktinfo info = {0};
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO && c->cmsg_len >= CMSG_LEN(sizeof info))
            memcpy(&info, CMSG_DATA(c), sizeof info);
    return info.ipi_addr;
}

static void dns_answer_datagram(struct esb *s, const void *p, size_t n, const struct sockaddr_in *from,
                                struct in_addr asked)
{
    struct dns_query q;
    struct dns_answer a;
    enum dns_rcode rcode;
    if (!dns_parse(p, n, &q, &rcode))
        return;
    if (rcode != DNS_OK)
        dns_send_answer(s, from, asked, &q, &(struct dns_answer){.rcode = rcode});
    else if (dns_decide(s, &q, &a))
        dns_send_answer(s, from, asked, &q, &a);
    else
        dns_ask_node(s, &q, from, asked);
}

void dns_readable(struct esb *s)
{
    for (int i = 0; i < BATCH && s->policy && s->udp >= 0; i++) {
        unsigned char bytes[DNS_MESSAGE_MAX + 1];
        struct sockaddr_in from = {0};
        union {
            char bytes[256];
            struct cmsghdr align;
        } control;
        struct iovec iov = {.iov_base = bytes, .iov_len = sizeof bytes};
        struct msghdr m = {.msg_name = &from,
                           .msg_namelen = sizeof from,
                           .msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof control.bytes};
        ssize_t n = recvmsg(s->udp, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
            return; /* also a pending error of an earlier answer: reading cleared it */
        if (from.sin_family == AF_INET)
            dns_answer_datagram(s, bytes, (size_t)n, &from, dns_asked_address(&m));
    }
}
