/* tls-peer.h - TLS (OpenSSL 3) from a process in a loop to a server whose certificate and name are verified. For hutch-node
 * only. */
#ifndef HUTCH_HTTP_TLS_PEER_H
#define HUTCH_HTTP_TLS_PEER_H

#include "base/err.h"
#include "http/transport.h"

struct tls_peer;
/* authorities: PEM, the only ones that are trusted; NULL: the system's. cert and key: paths of PEM files for servers that want
 * to know who calls; NULL: none. */
int tls_peer_new(const char *authorities, const char *cert, const char *key, struct tls_peer **ret, struct err *err);
/* On a connected descriptor, which is taken over, also on failure (NULL). host: a name, or an address without brackets. */
struct transport *tls_peer_connect(struct tls_peer *p, int fd, const char *host);
/* Why the handshake of such a transport failed, if the server's certificate was refused; else NULL. Static. */
const char *tls_peer_trouble(const struct transport *t);
/* Connections that are open go on. NULL is fine. */
void tls_peer_free(struct tls_peer *p);

#endif
