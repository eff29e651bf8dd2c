/* seal.c - see seal.h. A sealed value is
 *
 *     version 1 | public key of this message (32) | nonce (12) | ciphertext | tag (16)
 *
 * The key is HKDF-SHA256 over the X25519 secret, salted with both public keys, so that a message is tied to its
 * recipient. Version, public key and context are authenticated together with the ciphertext. The nonce is random
 * although the key is new each time: even a repeated key pair would not repeat a nonce. OpenSSL refuses an all-zero
 * X25519 result (a public key of small order).
 */
#include "egress/secrets/seal.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/random.h"

enum { VERSION = 1, NONCE = 12, TAG = 16, AES_KEY = 32 };
_Static_assert(SEAL_OVERHEAD == 1 + SEAL_KEY + NONCE + TAG, "layout");

/* Far above any value, and small enough for EVP, which counts in int. */
enum { SEALED_MAX = 1 << 24 };

static void pkey_free_p(EVP_PKEY **p) { EVP_PKEY_free(*p); }
static void pkey_ctx_free_p(EVP_PKEY_CTX **p) { EVP_PKEY_CTX_free(*p); }
static void cipher_ctx_free_p(EVP_CIPHER_CTX **p) { EVP_CIPHER_CTX_free(*p); }
static void kdf_ctx_free_p(EVP_KDF_CTX **p) { EVP_KDF_CTX_free(*p); }

static int seal_failed(struct err *err, const char *what)
{
    return err_set(err, ERR_INTERNAL, 0, "sealing: OpenSSL cannot %s", what);
}

int seal_new_key(unsigned char private_key[SEAL_KEY], struct err *err)
{
    unsigned char public_key[SEAL_KEY];
    random_bytes(private_key, SEAL_KEY);
    return seal_public(private_key, public_key, err); /* fails if OpenSSL cannot use it */
}

int seal_public(const unsigned char private_key[SEAL_KEY], unsigned char ret[SEAL_KEY], struct err *err)
{
    size_t n = SEAL_KEY;
    _cleanup_(pkey_free_p) EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, private_key, SEAL_KEY);
    if (!key || EVP_PKEY_get_raw_public_key(key, ret, &n) != 1 || n != SEAL_KEY)
        return seal_failed(err, "make an X25519 key");
    return 0;
}

static int shared_secret(const unsigned char private_key[SEAL_KEY], const unsigned char peer[SEAL_KEY],
                         unsigned char ret[SEAL_KEY])
{
    size_t n = SEAL_KEY;
    _cleanup_(pkey_free_p) EVP_PKEY *mine = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, private_key, SEAL_KEY);
    _cleanup_(pkey_free_p) EVP_PKEY *other = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, peer, SEAL_KEY);
    if (!mine || !other)
        return -1;
    _cleanup_(pkey_ctx_free_p) EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new(mine, NULL);
    if (!ctx || EVP_PKEY_derive_init(ctx) != 1 || EVP_PKEY_derive_set_peer(ctx, other) != 1 ||
        EVP_PKEY_derive(ctx, ret, &n) != 1 || n != SEAL_KEY)
        return -1;
    return 0;
}

static int derive_key(unsigned char shared[SEAL_KEY], const unsigned char message_key[SEAL_KEY],
                      const unsigned char owner_key[SEAL_KEY], unsigned char ret[AES_KEY])
{
    unsigned char salt[2 * SEAL_KEY];
    char digest[] = "SHA256", info[] = "hutch secret 1";
    memcpy(salt, message_key, SEAL_KEY);
    memcpy(salt + SEAL_KEY, owner_key, SEAL_KEY);
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    _cleanup_(kdf_ctx_free_p) EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    EVP_KDF_free(kdf);
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, shared, SEAL_KEY),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof salt),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof info - 1),
        OSSL_PARAM_construct_end(),
    };
    return ctx && EVP_KDF_derive(ctx, ret, AES_KEY, params) == 1 ? 0 : -1;
}

/* The key of the message. Sealing gives the message's private key and the owner's public key, opening the reverse. */
static int message_key(const unsigned char private_key[SEAL_KEY], const unsigned char peer[SEAL_KEY],
                       const unsigned char message[SEAL_KEY], const unsigned char owner[SEAL_KEY],
                       unsigned char ret[AES_KEY])
{
    unsigned char shared[SEAL_KEY];
    int r = shared_secret(private_key, peer, shared);
    if (r == 0)
        r = derive_key(shared, message, owner, ret);
    explicit_bzero(shared, sizeof shared);
    return r;
}

/* Authenticates version, public key and context besides the ciphertext. */
static bool add_context(EVP_CIPHER_CTX *ctx, const unsigned char *head, const char *context)
{
    int n;
    return EVP_CipherUpdate(ctx, NULL, &n, head, 1 + SEAL_KEY) == 1 &&
           EVP_CipherUpdate(ctx, NULL, &n, (const unsigned char *)context, (int)strlen(context)) == 1;
}

static int seal_encrypt(const unsigned char key[AES_KEY], const char *context, const unsigned char *p, size_t n,
                        unsigned char *out)
{
    unsigned char *nonce = out + 1 + SEAL_KEY, *text = nonce + NONCE;
    int got = 0, last = 0;
    _cleanup_(cipher_ctx_free_p) EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    if (!ctx || EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, key, nonce, 1) != 1 ||
        !add_context(ctx, out, context) || (n > 0 && EVP_CipherUpdate(ctx, text, &got, p, (int)n) != 1) ||
        EVP_CipherFinal_ex(ctx, text + got, &last) != 1 || (size_t)got + (size_t)last != n ||
        EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, TAG, text + n) != 1)
        return -1;
    return 0;
}

int seal_bytes(const unsigned char public_key[SEAL_KEY], const char *context, const void *p, size_t n, struct buf *out,
               struct err *err)
{
    unsigned char mine[SEAL_KEY], key[AES_KEY];
    if (n > SEALED_MAX)
        return err_set(err, ERR_USAGE, 0, "sealing: %zu bytes are too many; at most %d", n, SEALED_MAX);
    _cleanup_free_ unsigned char *sealed = xmalloc(SEAL_OVERHEAD + n);
    sealed[0] = VERSION;
    random_bytes(sealed + 1 + SEAL_KEY, NONCE);
    random_bytes(mine, SEAL_KEY);
    int r = seal_public(mine, sealed + 1, err);
    if (r == 0 && message_key(mine, public_key, sealed + 1, public_key, key) < 0)
        r = err_set(err, ERR_USAGE, 0, "sealing: this is no X25519 public key one can seal to");
    if (r == 0 && seal_encrypt(key, context, p, n, sealed) < 0)
        r = seal_failed(err, "encrypt");
    explicit_bzero(mine, sizeof mine);
    explicit_bzero(key, sizeof key);
    if (r == 0)
        buf_add(out, sealed, SEAL_OVERHEAD + n);
    return r;
}

static bool seal_decrypt(const unsigned char key[AES_KEY], const char *context, const unsigned char *p, size_t n,
                         unsigned char *out)
{
    const unsigned char *nonce = p + 1 + SEAL_KEY, *text = nonce + NONCE;
    unsigned char tag[TAG];
    int got = 0, last = 0;
    memcpy(tag, text + n, TAG);
    _cleanup_(cipher_ctx_free_p) EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    return ctx && EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, key, nonce, 0) == 1 && add_context(ctx, p, context) &&
           (n == 0 || EVP_CipherUpdate(ctx, out, &got, text, (int)n) == 1) &&
           EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG, tag) == 1 &&
           EVP_CipherFinal_ex(ctx, out + got, &last) == 1 && (size_t)got + (size_t)last == n;
}

int seal_open(const unsigned char private_key[SEAL_KEY], const char *context, const void *p, size_t n, struct buf *out,
              struct err *err)
{
    const unsigned char *sealed = p;
    unsigned char mine[SEAL_KEY], key[AES_KEY];
    if (n < SEAL_OVERHEAD || n > SEAL_OVERHEAD + (size_t)SEALED_MAX)
        return err_set(err, ERR_POLICY, 0, "a sealed value of %zu bytes is cut off or none; at least %d", n,
                       SEAL_OVERHEAD);
    if (sealed[0] != VERSION)
        return err_set(err, ERR_POLICY, 0, "a sealed value of version %u; only %d is known", sealed[0], VERSION);
    size_t room = n - SEAL_OVERHEAD;
    unsigned char *plain = xmalloc(room + 1);
    int r = seal_public(private_key, mine, err);
    if (r == 0 && (message_key(private_key, sealed + 1, sealed + 1, mine, key) < 0 ||
                   !seal_decrypt(key, context, sealed, room, plain)))
        r = err_set(err, ERR_POLICY, 0,
                    "a sealed value does not open: changed, sealed to another key, or for another name");
    if (r == 0)
        buf_add(out, plain, room);
    explicit_bzero(plain, room + 1);
    free(plain);
    explicit_bzero(key, sizeof key);
    return r;
}
