#include "base/sha256.h"

#include <string.h>

/* Fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t sha256_rotate(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline __attribute__((always_inline)) void turn(uint32_t v[8], unsigned k, uint32_t add)
{
    uint32_t a = v[(8 - k) & 7], b = v[(9 - k) & 7], c = v[(10 - k) & 7];
    uint32_t e = v[(12 - k) & 7], f = v[(13 - k) & 7], g = v[(14 - k) & 7];
    uint32_t t1 = v[(15 - k) & 7] + (sha256_rotate(e, 6) ^ sha256_rotate(e, 11) ^ sha256_rotate(e, 25)) +
                  ((e & f) ^ (~e & g)) + add;
    v[(11 - k) & 7] += t1;
    v[(15 - k) & 7] =
        t1 + (sha256_rotate(a, 2) ^ sha256_rotate(a, 13) ^ sha256_rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
}

static void sha256_compress(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], v[8];
    for (unsigned i = 0; i < 16; i++)
        w[i] = word_at(block + i * 4);
    for (unsigned i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (sha256_rotate(a, 7) ^ sha256_rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (sha256_rotate(b, 17) ^ sha256_rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    /* The eight words change places in every round; after eight rounds each is where it was. */
    for (unsigned i = 0; i < 64; i += 8)
#pragma GCC unroll 8
        for (unsigned k = 0; k < 8; k++)
            turn(v, k, round_constants[i + k] + w[i + k]);
    for (unsigned i = 0; i < 8; i++)
        state[i] += v[i];
}

static void compress_blocks(uint32_t state[8], const uint8_t *p, size_t blocks)
{
    for (; blocks > 0; blocks--, p += 64)
        sha256_compress(state, p);
}

#ifdef __x86_64__
/* The processor's own instructions, some five times as fast. Generic vectors and builtins: the program is compiled
 * without the compiler's own headers. */
typedef int v4i __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));
typedef char v16c __attribute__((vector_size(16)));

static __attribute__((target("sha,sse4.1,ssse3"))) void compress_sha(uint32_t state[8], const uint8_t *p, size_t blocks)
{
    v4u abcd, efgh, abef, cdgh, k;
    memcpy(&abcd, state, 16);
    memcpy(&efgh, state + 4, 16);
    abef = __builtin_shufflevector(efgh, abcd, 1, 0, 5, 4);
    cdgh = __builtin_shufflevector(efgh, abcd, 3, 2, 7, 6);
    for (; blocks > 0; blocks--, p += 64) {
        v4u m[4], old_abef = abef, old_cdgh = cdgh;
        for (unsigned i = 0; i < 4; i++) {
            v16c raw;
            memcpy(&raw, p + i * 16, 16);
            m[i] = (v4u)__builtin_shufflevector(raw, raw, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
        }
#pragma GCC unroll 16
        for (unsigned i = 0; i < 16; i++) { /* four rounds each */
            memcpy(&k, round_constants + i * 4, 16);
            v4u w = m[i % 4] + k, w2 = __builtin_shufflevector(w, w, 2, 3, 0, 0), last = m[(i + 3) % 4];
            cdgh = (v4u)__builtin_ia32_sha256rnds2((v4i)cdgh, (v4i)abef, (v4i)w);
            abef = (v4u)__builtin_ia32_sha256rnds2((v4i)abef, (v4i)cdgh, (v4i)w2);
            if (i < 12) {
                v4u part = (v4u)__builtin_ia32_sha256msg1((v4i)m[i % 4], (v4i)m[(i + 1) % 4]) +
                           __builtin_shufflevector(m[(i + 2) % 4], last, 1, 2, 3, 4);
                m[i % 4] = (v4u)__builtin_ia32_sha256msg2((v4i)part, (v4i)last);
            }
        }
        abef += old_abef;
        cdgh += old_cdgh;
    }
    abcd = __builtin_shufflevector(abef, cdgh, 3, 2, 7, 6);
    efgh = __builtin_shufflevector(abef, cdgh, 1, 0, 5, 4);
    memcpy(state, &abcd, 16);
    memcpy(state + 4, &efgh, 16);
}

static void sha256_cpuid(unsigned leaf, unsigned r[4])
{
    __asm__ volatile("cpuid" : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3]) : "a"(leaf), "c"(0));
}

bool sha256_by_processor(void)
{
    enum { UNKNOWN, NO, YES };
    static int known;
    int k = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (k == UNKNOWN) {
        unsigned r[4], wanted = 1u << 9 | 1u << 19; /* ssse3, sse4.1 */
        sha256_cpuid(0, r);
        bool leaf7 = r[0] >= 7;
        sha256_cpuid(1, r);
        bool sse = (r[2] & wanted) == wanted;
        if (leaf7)
            sha256_cpuid(7, r);
        k = leaf7 && sse && (r[1] & 1u << 29) ? YES : NO;
        __atomic_store_n(&known, k, __ATOMIC_RELAXED);
    }
    return k == YES;
}
#else
static void compress_sha(uint32_t state[8], const uint8_t *p, size_t blocks) { compress_blocks(state, p, blocks); }
bool sha256_by_processor(void) { return false; }
#endif

void sha256_start(struct sha256 *h)
{
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    *h = (struct sha256){0};
    memcpy(h->state, initial, sizeof initial);
}

void sha256_add(struct sha256 *h, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        size_t used = h->length % 64, take = 64 - used < n ? 64 - used : n;
        if (used == 0 && n >= 64) {
            /* In a virtual machine cpuid exits to the hypervisor: ask only before longer work. */
            take = n - n % 64;
            if (n >= SHA256_BULK && sha256_by_processor())
                compress_sha(h->state, p, take / 64);
            else
                compress_blocks(h->state, p, take / 64);
            h->length += take;
        } else {
            memcpy(h->block + used, p, take);
            h->length += take;
            if (h->length % 64 == 0)
                sha256_compress(h->state, h->block);
        }
        p += take;
        n -= take;
    }
}

void sha256_end(struct sha256 *h, uint8_t ret[SHA256_BYTES])
{
    uint8_t size[8], pad = 0x80;
    for (unsigned i = 0; i < 8; i++)
        size[i] = (uint8_t)(h->length * 8 >> (56 - i * 8));
    sha256_add(h, &pad, 1);
    pad = 0;
    while (h->length % 64 != 56)
        sha256_add(h, &pad, 1);
    sha256_add(h, size, sizeof size);
    for (unsigned i = 0; i < SHA256_BYTES; i++)
        ret[i] = (uint8_t)(h->state[i / 4] >> (24 - i % 4 * 8));
}

void sha256_text(const uint8_t digest[SHA256_BYTES], char ret[SHA256_HEX])
{
    static const char digits[] = "0123456789abcdef";
    for (unsigned i = 0; i < SHA256_BYTES; i++) {
        ret[i * 2] = digits[digest[i] >> 4];
        ret[i * 2 + 1] = digits[digest[i] & 15];
    }
    ret[SHA256_HEX - 1] = '\0';
}

void sha256_hex(const void *bytes, size_t n, char ret[SHA256_HEX])
{
    struct sha256 h;
    uint8_t raw[SHA256_BYTES];
    sha256_start(&h);
    sha256_add(&h, bytes, n);
    sha256_end(&h, raw);
    sha256_text(raw, ret);
}

bool sha256_equal_text(const char *a, const char *b)
{
    /* Compares digests: they have the same length, and the place where they differ reveals nothing about the secret. */
    struct sha256 h;
    uint8_t x[SHA256_BYTES], y[SHA256_BYTES], diff = 0;
    sha256_start(&h);
    sha256_add(&h, a, strlen(a));
    sha256_end(&h, x);
    sha256_start(&h);
    sha256_add(&h, b, strlen(b));
    sha256_end(&h, y);
    for (size_t i = 0; i < sizeof x; i++)
        diff |= (uint8_t)(x[i] ^ y[i]);
    return diff == 0;
}
