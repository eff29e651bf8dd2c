/* flow-int.h - shared by flow.c, sniff.c and proxy.c, which handle a connection until its protocol and destination are
 * known. They never connect to the outside: relay.c and http.c do, once the policy has allowed it. */
#ifndef HUTCH_EGRESS_FLOW_INT_H
#define HUTCH_EGRESS_FLOW_INT_H

#include "egress/core/egress.h"
#include "egress/socks.h"

enum { FLOW_HEAD_MAX = 32 * 1024, SNIFF_MS = 10000, FAREWELL_MS = 2000 };
#define FLOW_INTERNAL "sandbox.internal"

/* Makes the flow of an accepted connection; takes fd over. Tests give any destination. */
struct flow *flow_new(struct esb *s, int fd, const struct in6_addr *dst, uint16_t port);
/* Hands a new flow to dns-tcp.c, http.c or sniff.c, by its destination; f may be freed afterwards. */
void flow_begin(struct flow *f);
/* Sets the flow's destination: host, literal, stale. */
void flow_aim(struct flow *f, const struct in6_addr *dst, uint16_t port);
bool flow_is_gate(const struct in6_addr *a);
struct in6_addr flow_literal(const char *text); /* of an address literal; :: if it is none */
/* "10.1.2.3" or the name. */
void flow_host_text(const struct flow *f, char ret[NETPOL_NAME_MAX]);

/* Sends the bytes (which it takes), then closes once the client has had time to read them. */
void flow_farewell(struct flow *f, struct buf *words);

/* How the client learns of a refusal. */
enum flow_form { FLOW_RST, FLOW_HTTP, FLOW_ALERT };
enum tls_alert {
    ALERT_PROTOCOL_VERSION = 70,
    ALERT_ACCESS_DENIED = 49,
    ALERT_DECODE_ERROR = 50,
    ALERT_NO_PROTOCOL = 120
};
struct flow_refusal {
    enum netpol_reason reason;
    const char *layer, *text, *rule, *approval, *method;
    enum flow_form form;
    enum tls_alert alert;
};
/* Records the refusal, tells the client, ends the flow. */
void flow_refuse(struct flow *f, const struct flow_refusal *r);

/* sniff.c: finds the protocol from the first bytes. Called again when an explicit proxy knows the destination. */
void sniff_start(struct flow *f);

/* proxy.c. 1: the flow has its destination, sniffing begins anew; 0: more bytes are needed; -1: refused (and recorded),
 * `words` are the last bytes for the client. */
int proxy_connect(struct flow *f, size_t *scan, struct buf *words);
int proxy_socks(struct flow *f, struct socks *s, struct buf *words);

#endif
