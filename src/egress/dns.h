/* dns.h - DNS queries and answers as bytes (dns-wire.c), how a question is answered (dns.c), and DNS over TCP
 * (dns-tcp.c). Never asks the node's resolver for a name that the policy denies. */
#ifndef HUTCH_EGRESS_DNS_H
#define HUTCH_EGRESS_DNS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "egress/core/egress.h"

enum {
    DNS_MESSAGE_MAX = 4096, /* of a query */
    DNS_UDP_MAX = 512,      /* of an answer, without EDNS */
    DNS_EDNS_MAX = 1232,
    DNS_ADDRS_MAX = 16,
    DNS_TTL = 60,
};
enum dns_rcode {
    DNS_OK = 0,
    DNS_FORMERR = 1,
    DNS_SERVFAIL = 2,
    DNS_NXDOMAIN = 3,
    DNS_NOTIMP = 4,
    DNS_REFUSED = 5,
    DNS_BADVERS = 16
};
enum dns_type {
    DNS_A = 1,
    DNS_PTR = 12,
    DNS_AAAA = 28,
    DNS_OPT = 41,
    DNS_SVCB = 64,
    DNS_HTTPS = 65,
    DNS_AXFR_FIRST = 251,
    DNS_ANY = 255
};

struct dns_query {
    uint16_t id, flags;
    bool question;            /* what follows was read */
    unsigned char qname[256]; /* as it came; the answer repeats it with the client's upper and lower case */
    size_t qname_n;
    char name[NETPOL_NAME_MAX]; /* lower case, without the last dot; "" is the root */
    uint16_t type;
    bool edns;
    uint16_t udp_max; /* of the answer */
};
struct dns_answer {
    enum dns_rcode rcode;
    uint32_t ttl;
    size_t naddrs;
    struct in6_addr addrs[DNS_ADDRS_MAX]; /* of the family that was asked for */
    const char *ptr;                      /* NULL: none */
};

/* False: do not answer (too short, or an answer itself). Else *ret holds what could be read, and *rcode is DNS_OK or
 * the error to answer with. */
bool dns_parse(const void *p, size_t n, struct dns_query *ret, enum dns_rcode *rcode);
/* Appends the answer; records that do not fit into `max` bytes are left out and the answer is marked as truncated. */
void dns_write(const struct dns_query *q, const struct dns_answer *a, size_t max, struct buf *out);

/* Makes the answer. False: the caller has to ask the node's resolver for q->name first (mode real). */
bool dns_decide(struct esb *s, const struct dns_query *q, struct dns_answer *ret);
struct resolve_answer;
/* Makes the answer from that of the node's resolver. */
void dns_resolved(struct esb *s, const struct dns_query *q, const struct resolve_answer *r, struct dns_answer *ret);
/* dns-tcp.c: takes the flow over. */
void dns_flow(struct flow *f);

#endif
