/* hello.h - parses a TLS ClientHello from plain bytes, strictly and across records. Takes no part in the handshake and
 * keeps no state: the caller calls again when more bytes have come. */
#ifndef HUTCH_EGRESS_HELLO_H
#define HUTCH_EGRESS_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HELLO_MAX = 16 * 1024, HELLO_RECORDS_MAX = 64, HELLO_ALPN_MAX = 16, HELLO_SNI_MAX = 255 };

struct hello {
    size_t need;     /* more is needed: call again with so many bytes */
    const char *why; /* refused: static */
    bool has_sni;
    char sni[HELLO_SNI_MAX + 1]; /* as it came, NUL-terminated; "" if it held a NUL or was too long to be a name */
    bool has_alpn, alpn_http;    /* alpn_http: h2, http/1.1 or http/1.0 among them */
    size_t nalpn;
    struct {
        const unsigned char *p; /* into the caller's scratch */
        unsigned char n;
    } alpn[HELLO_ALPN_MAX];
    bool tls12, tls13; /* offered */
    bool ech;          /* encrypted_client_hello is there, perhaps only as GREASE */
};

/* p[0..n): everything received. `scratch` has room for HELLO_MAX and holds what `ret` points to. 1: whole; 0: more is needed;
 * -1: not a ClientHello, ret->why says what is wrong. */
int hello_parse(const void *p, size_t n, unsigned char *scratch, struct hello *ret);

#endif
