/* tls.h - TLS transports (OpenSSL 3). For hutch-node only.
 *
 * A tls_server is one set of parameters and one certificate for any number of connections. A tls_client connects to
 * upstreams inside a sandbox and does not verify their certificates: the connection never leaves the machine.
 * TLS 1.2 or newer, no renegotiation, no tickets and no session cache. OpenSSL frees its buffers while a connection is
 * silent, because thousands of idle connections are the normal case.
 */
#ifndef HUTCH_HTTP_TLS_H
#define HUTCH_HTTP_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>

#include "base/err.h"
#include "http/transport.h"

struct tls_server;
struct tls_client;

/* Both files are PEM: the certificate with its chain, and its key. `h2` lets ALPN choose HTTP/2. */
int tls_server_new(const char *cert_path, const char *key_path, bool h2, struct tls_server **ret, struct err *err);
/* An http_accept_fn: `server` is the struct tls_server. Takes fd over, also on failure (NULL). */
struct transport *tls_server_accept(void *server, int fd);
/* Connections that are open keep working. NULL is fine. */
void tls_server_free(struct tls_server *s);

int tls_client_new(struct tls_client **ret, struct err *err);
/* Speaks TLS with HTTP/1.1 on a connected descriptor, taken over also on failure (NULL). `name` is sent as SNI; NULL
 * or an address: none. A stream that ends without close_notify is reported as ECONNRESET, because a body that lasts
 * until the end of the connection might have been cut. */
struct transport *tls_client_connect(struct tls_client *c, int fd, const char *name);
void tls_client_free(struct tls_client *c); /* for tests: a process keeps its own until it ends */

/* For callers with their own parameters: sets the options that all connections here share on a context; */
void tls_common_options(SSL_CTX *ctx);
/* and makes a transport of an SSL that is ready for its handshake, on a descriptor from which the `n` bytes at p
 * were read before. Takes both over, also on failure (NULL). */
struct transport *tls_wrap(SSL *ssl, int fd, const void *p, size_t n);
SSL *tls_ssl(const struct transport *t); /* borrowed */

/* A pem_password_cb that refuses keys with a passphrase; without it OpenSSL asks for one on the terminal. */
int tls_no_passphrase(char *p, int n, int writing, void *arg);
/* -1 with "<what> <which>: <why OpenSSL's last call failed>"; clears OpenSSL's error queue. which: NULL or e.g. a
 * path. */
int tls_error(struct err *err, const char *what, const char *which);
/* Why the handshake failed, for logs; "" if it did not. `t` must be a TLS transport. Borrowed until t is freed. */
const char *tls_failure(const struct transport *t);

#endif
