/* etls.h - TLS on both sides: towards the sandbox with minted certificates, towards upstreams with verification,
 * always. The process has one context for each side; what differs between connections is set on the connection.
 */
#ifndef HUTCH_EGRESS_ETLS_H
#define HUTCH_EGRESS_ETLS_H

#include "egress/core/egress.h"
#include "http/transport.h"

struct etls;

int etls_new(struct etls **ret, struct err *err);
void etls_free(struct etls *e); /* NULL is fine; open connections keep working */
/* Replaces the roots that upstreams must chain to. Without roots every verification fails, so no upstream is
 * reached. */
int etls_trust(struct etls *e, const char *pem, size_t n, struct err *err);

/* The certificate for the sandbox's side of one connection; must live as long as the transport. */
struct etls_front {
    struct mint *mint;
    char host[NETPOL_NAME_MAX]; /* name or address that the certificate is for */
    char sni[NETPOL_NAME_MAX];  /* canonical, as it was judged; "" if there was none */
    int alert;                  /* fatal alert that the client sent; 0: none */
};
/* The name of the client's alert if it means that the client does not trust our certificate; else NULL. */
const char *etls_distrust(const struct etls_front *front);
/* A server's transport that first reads f->head. Sessions are resumed within one sandbox and host only. `fd` is taken over,
 * also on failure (NULL). `front` is filled in. */
struct transport *etls_accept(struct etls *e, const struct flow *f, int fd, struct etls_front *front);

enum etls_alpn { ETLS_ANY, ETLS_HTTP1, ETLS_H2 };
/* A client's transport: `name` is sent as SNI and must be in the certificate; with NULL, `literal` must be. `fd` is taken
 * over, also on failure (NULL). */
struct transport *etls_connect(struct etls *e, int fd, const char *name, const struct in6_addr *literal,
                               enum etls_alpn alpn, bool tls13_only);
/* Appends why the peer's certificate was refused; false: the handshake failed for another reason. */
bool etls_refused(const struct transport *t, const char *host, struct buf *out);

/* "192.0.2.1", "2001:db8::1". */
void etls_address(const struct in6_addr *a, char ret[INET6_ADDRSTRLEN]);

#endif
