/* seal.h - seals values to a public key: X25519 with a fresh key each time, HKDF-SHA256, AES-256-GCM. Front, which has
 * only the public key, can seal and never open. `context` (tenant, name) is authenticated: a sealed value moved to
 * another name does not open.
 */
#ifndef HUTCH_EGRESS_SECRETS_SEAL_H
#define HUTCH_EGRESS_SECRETS_SEAL_H

#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

enum { SEAL_KEY = 32, SEAL_OVERHEAD = 1 + 32 + 12 + 16 };
int seal_new_key(unsigned char private_key[SEAL_KEY], struct err *err);
int seal_public(const unsigned char private_key[SEAL_KEY], unsigned char ret[SEAL_KEY], struct err *err);
int seal_bytes(const unsigned char public_key[SEAL_KEY], const char *context, const void *p, size_t n, struct buf *out,
               struct err *err);
/* -1: sealed to another key, changed, or for another context. */
int seal_open(const unsigned char private_key[SEAL_KEY], const char *context, const void *p, size_t n, struct buf *out,
              struct err *err);

#endif
