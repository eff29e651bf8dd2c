/* sandbox-jks.c - a Java trust store with one more certificate.
 *
 * The old format (JKS): a header with the number of entries, the entries, and a digest over a known password, a fixed phrase
 * and everything before. An entry is added by counting up, appending it and making the digest anew; nothing else of an
 * existing store is looked at.
 */
#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "wall/sandbox-trust.h"

enum { HEADER = 12, DIGEST = 20, SHA1_BLOCK = 64, TRUSTED_CERT = 2, DB_VERSION = 2, CERT_MAX = 64 << 10 };
static const uint32_t magic = 0xFEEDFEED;

/* --- SHA-1 (FIPS 180-4): the format asks for it; nothing relies on it ------------------------------------------------ */

static uint32_t sha1_rotate(uint32_t v, unsigned n) { return v << n | v >> (32 - n); }

static void sha1_block(uint32_t state[5], const unsigned char *p)
{
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        w[i] = sha1_rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (unsigned i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? (b & c) | (~b & d)
                     : i < 40 ? b ^ c ^ d
                     : i < 60 ? (b & c) | (b & d) | (c & d)
                              : b ^ c ^ d;
        uint32_t k = i < 20 ? 0x5A827999 : i < 40 ? 0x6ED9EBA1 : i < 60 ? 0x8F1BBCDC : 0xCA62C1D6;
        uint32_t next = sha1_rotate(a, 5) + f + e + k + w[i];
        e = d;
        d = c;
        c = sha1_rotate(b, 30);
        b = a;
        a = next;
    }
    const uint32_t add[5] = {a, b, c, d, e};
    for (unsigned i = 0; i < 5; i++)
        state[i] += add[i];
}

static void sha1_digest(const unsigned char *p, size_t n, unsigned char ret[DIGEST])
{
    uint32_t state[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    unsigned char last[2 * SHA1_BLOCK] = {0};
    size_t whole = n - n % SHA1_BLOCK, rest = n - whole, end = rest < SHA1_BLOCK - 8 ? SHA1_BLOCK : 2 * SHA1_BLOCK;
    for (size_t i = 0; i < whole; i += SHA1_BLOCK)
        sha1_block(state, p + i);
    memcpy(last, p + whole, rest);
    last[rest] = 0x80;
    const uint64_t bits = htobe64((uint64_t)n * 8);
    memcpy(last + end - 8, &bits, 8);
    for (size_t i = 0; i < end; i += SHA1_BLOCK)
        sha1_block(state, last + i);
    for (unsigned i = 0; i < 5; i++) {
        uint32_t v = htobe32(state[i]);
        memcpy(ret + 4 * i, &v, 4);
    }
}

/* --- the database ------------------------------------------------------------------------------------------------------ */

static void add_u32(struct buf *b, uint32_t v)
{
    v = htobe32(v);
    buf_add(b, &v, sizeof v);
}

static void jks_add_text(struct buf *b, const char *s)
{
    uint16_t n = htobe16((uint16_t)strlen(s));
    buf_add(b, &n, sizeof n);
    buf_adds(b, s);
}

static void jks_add_entry(struct buf *b, const char *alias, const struct buf *der)
{
    static const uint64_t when = 0; /* the same store from the same certificates */
    add_u32(b, TRUSTED_CERT);
    jks_add_text(b, alias);
    buf_add(b, &when, sizeof when);
    jks_add_text(b, "X.509");
    add_u32(b, (uint32_t)der->n);
    buf_add(b, buf_str(der), der->n);
}

/* The next certificate of a PEM text; where to go on, or NULL. One that cannot be read is left out. */
static const char *next_pem(const char *p, const char *end, struct buf *der)
{
    static const char begin[] = "-----BEGIN CERTIFICATE-----", stop[] = "-----END CERTIFICATE-----";
    for (;;) {
        const char *from = memmem(p, (size_t)(end - p), begin, sizeof begin - 1);
        const char *to = from ? memmem(from, (size_t)(end - from), stop, sizeof stop - 1) : NULL;
        _cleanup_buf_ struct buf text = {0};
        if (!to)
            return NULL;
        for (from += sizeof begin - 1; from < to; from++)
            if (!strchr(" \t\r\n", *from) && text.n < CERT_MAX)
                buf_addc(&text, *from);
        p = to + sizeof stop - 1;
        buf_done(der);
        if (base64_decode(der, buf_str(&text), text.n) && der->n > 0)
            return p;
    }
}

static bool is_store(const unsigned char *p, size_t n, uint32_t *ret_count)
{
    uint32_t head[3];
    if (n < HEADER + DIGEST)
        return false;
    memcpy(head, p, sizeof head);
    *ret_count = be32toh(head[2]);
    return be32toh(head[0]) == magic && be32toh(head[1]) == DB_VERSION && *ret_count < UINT32_MAX;
}

static void jks_add_digest(struct buf *out, size_t from)
{
    static const char password[] = "changeit", phrase[] = "Mighty Aphrodite";
    unsigned char digest[DIGEST];
    _cleanup_buf_ struct buf all = {0};
    for (size_t i = 0; i < sizeof password - 1; i++) {
        buf_addc(&all, '\0');
        buf_addc(&all, password[i]);
    }
    buf_adds(&all, phrase);
    buf_add(&all, out->p + from, out->n - from);
    sha1_digest((const unsigned char *)all.p, all.n, digest);
    buf_add(out, digest, sizeof digest);
}

int jks_make(const void *old, size_t nold, const void *bundle, size_t nbundle, const void *ca, size_t nca,
             struct buf *out)
{
    _cleanup_buf_ struct buf der = {0}, entries = {0};
    const char *p = bundle, *end = bundle ? p + nbundle : NULL;
    uint32_t count = 0;
    size_t from = out->n;
    if (is_store(old, nold, &count)) {
        buf_add(&entries, (const char *)old + HEADER, nold - HEADER - DIGEST);
    } else {
        for (count = 0; p && count < TRUST_CERTS_MAX && (p = next_pem(p, end, &der)) != NULL; count++) {
            _cleanup_buf_ struct buf alias = {0};
            buf_addf(&alias, "root-%u", count);
            jks_add_entry(&entries, buf_str(&alias), &der);
        }
    }
    if (!next_pem(ca, (const char *)ca + nca, &der))
        return -1;
    add_u32(out, magic);
    add_u32(out, DB_VERSION);
    add_u32(out, count + 1);
    buf_add(out, buf_str(&entries), entries.n);
    jks_add_entry(out, "hutch", &der);
    jks_add_digest(out, from);
    return 0;
}
