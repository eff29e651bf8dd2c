/* sha256.h - SHA-256 (FIPS 180-4) of bytes in memory. Allocates nothing and never fails. */
#ifndef HUTCH_BASE_SHA256_H
#define HUTCH_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_HEX = 65 /* lower-case digits and NUL */ };

struct sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    uint8_t block[64];
};

void sha256_start(struct sha256 *h);
void sha256_add(struct sha256 *h, const void *bytes, size_t n);
/* Pieces of SHA256_BULK bytes or more are left to the processor if it has instructions for it. */
enum { SHA256_BULK = 4096 };
bool sha256_by_processor(void);
/* Writes the digest; h must be started again before it is used once more. */
void sha256_end(struct sha256 *h, uint8_t ret[SHA256_BYTES]);

/* A digest as lower-case hexadecimal text; and that of one buffer. */
void sha256_text(const uint8_t digest[SHA256_BYTES], char ret[SHA256_HEX]);
void sha256_hex(const void *bytes, size_t n, char ret[SHA256_HEX]);

/* Whether two secrets are the same, in a time that does not depend on where they differ. */
bool sha256_equal_text(const char *a, const char *b);

#endif
