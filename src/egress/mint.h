/* mint.h - makes certificates for the names that sandboxes connect to, signed by the installation's root. All leaves of
 * a process share one key pair, so that a new name costs one signature. The root's key never leaves this module.
 */
#ifndef HUTCH_EGRESS_MINT_H
#define HUTCH_EGRESS_MINT_H

#include <openssl/ssl.h>

#include "base/err.h"

enum { MINT_CACHE = 4096, MINT_HOURS = 72 };
struct mint;
/* Makes a root: 10 years, P-256, CA:TRUE pathlen 0, PEM each. For supervisor. */
int mint_root(const char *common_name, char **ret_cert, char **ret_key, struct err *err);
int mint_new(const char *ca_pem, size_t ca_n, const char *key_pem, size_t key_n, struct mint **ret, struct err *err);
void mint_free(struct mint *m);
/* Gives `ssl` the certificate of a name (dNSName) or address text (iPAddress). */
int mint_use(struct mint *m, SSL *ssl, const char *host, struct err *err);

#endif
