/* verify.c - SHA-256 over long streams, with OpenSSL: several times faster than base/sha256.h on processors with SHA
 * extensions. */
#include <string.h>

#include "base/mem.h"
#include "image/image-int.h"

static void hash_check(int ok)
{
    if (ok != 1)
        abort(); /* SHA-256 over memory fails only if memory runs out */
}

void hash_start(struct hash *h)
{
    if (!h->ctx)
        h->ctx = EVP_MD_CTX_new();
    hash_check(h->ctx && EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL));
}
void hash_add(struct hash *h, const void *p, size_t n) { hash_check(EVP_DigestUpdate(h->ctx, p, n)); }
void hash_end(struct hash *h, uint8_t ret[SHA256_BYTES]) { hash_check(EVP_DigestFinal_ex(h->ctx, ret, NULL)); }
void hash_done(struct hash *h)
{
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
}

void hash_hex(const uint8_t digest[SHA256_BYTES], char ret[SHA256_HEX])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        ret[2 * i] = digits[digest[i] >> 4];
        ret[2 * i + 1] = digits[digest[i] & 15];
    }
    ret[SHA256_HEX - 1] = '\0';
}

static int hash_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

bool hash_from_hex(const char *text, size_t n, uint8_t ret[SHA256_BYTES])
{
    if (n != 2 * SHA256_BYTES)
        return false;
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        int high = hash_digit(text[2 * i]), low = hash_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        ret[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

bool hash_from_digest(const char *text, uint8_t ret[SHA256_BYTES])
{
    return text && strncmp(text, "sha256:", 7) == 0 && hash_from_hex(text + 7, strlen(text + 7), ret);
}
