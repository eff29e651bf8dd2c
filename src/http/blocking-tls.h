/* blocking-tls.h - TLS (OpenSSL 3) for the blocking client: TLS 1.2 or newer, the peer's certificate and name are
 * verified. For programs that are linked with OpenSSL: hutch-node and hutch-client. */
#ifndef HUTCH_HTTP_BLOCKING_TLS_H
#define HUTCH_HTTP_BLOCKING_TLS_H

#include <openssl/ssl.h>

#include "base/err.h"
#include "http/blocking.h"

/* When the system's authorities are read. All of them take OpenSSL tens of milliseconds; a process that will have no
 * files needs them at once. */
enum blocking_tls_when { BLOCKING_TLS_NOW, BLOCKING_TLS_ON_DEMAND };
/* What a connection trusts. `authorities`: the PEM text of the only authorities (ERR_USAGE if it has no certificate),
 * or NULL: those of SSL_CERT_FILE, else the system's; without any of these each handshake fails. Freed with
 * SSL_CTX_free(). */
int blocking_tls_new(const char *authorities, enum blocking_tls_when when, SSL_CTX **ret, struct err *err);

/* The name or address that the certificate must have; SNI for names only. False: it cannot be one. */
bool blocking_tls_expect(SSL *ssl, const char *host);
/* Shows this certificate (PEM, followed by those between it and its authority) to servers that ask for one. ERR_USAGE if one of
 * the texts is not what it should be, if the key has a passphrase, or if it is not the certificate's. */
int blocking_tls_identify(SSL_CTX *ctx, const char *cert, const char *key, struct err *err);
/* What ended a connection that had begun, from the failed call before: OpenSSL's reason, static; NULL: not TLS. */
const char *blocking_tls_reason(void);

/* Why a handshake failed. */
struct blocking_tls_trouble {
    long verify; /* X509_V_..., if the certificate was refused */
    /* With it: the names it is for, the day of its end or beginning, or its issuer; from the peer, not escaped. */
    char about[400];
    char why[160]; /* otherwise: OpenSSL's reason, or "it was closed" */
};
/* Speaks TLS on a connection that has begun, as its layer. `host` is a name or an address without brackets. -1:
 * b->failure says that waiting failed, or it is 0 and *ret is set. */
int blocking_tls_start(struct blocking *b, SSL_CTX *ctx, const char *host, struct blocking_tls_trouble *ret);

#endif
