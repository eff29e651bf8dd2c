/* jwks.c - reads a set of public keys (RFC 7517). */
#include <jansson.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "oauth/oauth.h"

enum { KID_MAX = 200, RSA_MIN = 2048 / 8, RSA_MAX = 8192 / 8, EXPONENT_MAX = 4, P256 = 32, ED25519 = 32 };

struct jwk {
    enum jwt_alg alg;
    char *kid; /* NULL: none */
    EVP_PKEY *key;
};
struct jwks {
    struct jwk v[OAUTH_KEYS_MAX];
    size_t n;
};

enum jwt_alg jwt_alg_of(const char *name)
{
    static const char *const names[] = {"RS256", "ES256", "EdDSA"};
    for (size_t i = 0; name && i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            return (enum jwt_alg)i;
    return JWT_NO_ALG;
}

/* The bytes of a member, without zeros in front of a number; false: it is not one of min to max bytes. */
static bool jwk_bytes(json_t *jwk, const char *name, bool number, size_t min, size_t max, struct buf *ret)
{
    const char *text = json_string_value(json_object_get(jwk, name));
    _cleanup_buf_ struct buf raw = {0};
    if (!text || strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != strlen(text) ||
        !base64_decode(&raw, text, strlen(text)))
        return false;
    size_t zeros = 0;
    while (number && zeros < raw.n && raw.p[zeros] == 0)
        zeros++;
    if (raw.n - zeros < min || raw.n - zeros > max)
        return false;
    buf_add(ret, raw.p + zeros, raw.n - zeros);
    return true;
}

static EVP_PKEY *jwk_from_params(const char *type, OSSL_PARAM_BLD *b)
{
    EVP_PKEY *key = NULL;
    OSSL_PARAM *params = OSSL_PARAM_BLD_to_param(b);
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_name(NULL, type, NULL);
    if (!params || !ctx || EVP_PKEY_fromdata_init(ctx) <= 0 ||
        EVP_PKEY_fromdata(ctx, &key, EVP_PKEY_PUBLIC_KEY, params) <= 0)
        key = NULL;
    EVP_PKEY_CTX_free(ctx);
    OSSL_PARAM_free(params);
    return key;
}

static EVP_PKEY *jwk_read_rsa(json_t *jwk)
{
    _cleanup_buf_ struct buf n = {0}, e = {0};
    if (!jwk_bytes(jwk, "n", true, RSA_MIN, RSA_MAX, &n) || !jwk_bytes(jwk, "e", true, 1, EXPONENT_MAX, &e))
        return NULL;
    BIGNUM *bn = BN_bin2bn((unsigned char *)n.p, (int)n.n, NULL), *be = BN_bin2bn((unsigned char *)e.p, (int)e.n, NULL);
    OSSL_PARAM_BLD *b = OSSL_PARAM_BLD_new();
    EVP_PKEY *key = NULL;
    if (b && bn && be && BN_num_bits(bn) >= RSA_MIN * 8 && BN_is_odd(bn) && BN_is_odd(be) && !BN_is_one(be) &&
        OSSL_PARAM_BLD_push_BN(b, OSSL_PKEY_PARAM_RSA_N, bn) && OSSL_PARAM_BLD_push_BN(b, OSSL_PKEY_PARAM_RSA_E, be))
        key = jwk_from_params("RSA", b);
    OSSL_PARAM_BLD_free(b);
    BN_free(bn);
    BN_free(be);
    return key;
}

static EVP_PKEY *jwk_read_p256(json_t *jwk)
{
    const char *curve = json_string_value(json_object_get(jwk, "crv"));
    _cleanup_buf_ struct buf point = {0};
    buf_addc(&point, 4); /* not compressed: both coordinates follow */
    if (!curve || strcmp(curve, "P-256") != 0 || !jwk_bytes(jwk, "x", false, P256, P256, &point) ||
        !jwk_bytes(jwk, "y", false, P256, P256, &point))
        return NULL;
    OSSL_PARAM_BLD *b = OSSL_PARAM_BLD_new();
    EVP_PKEY *key = NULL;
    if (b && OSSL_PARAM_BLD_push_utf8_string(b, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) &&
        OSSL_PARAM_BLD_push_octet_string(b, OSSL_PKEY_PARAM_PUB_KEY, point.p, point.n))
        key = jwk_from_params("EC", b); /* refuses what is not on the curve */
    OSSL_PARAM_BLD_free(b);
    return key;
}

static EVP_PKEY *jwk_read_ed25519(json_t *jwk)
{
    const char *curve = json_string_value(json_object_get(jwk, "crv"));
    _cleanup_buf_ struct buf x = {0};
    if (!curve || strcmp(curve, "Ed25519") != 0 || !jwk_bytes(jwk, "x", false, ED25519, ED25519, &x))
        return NULL;
    return EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, (unsigned char *)x.p, x.n);
}

/* False: not a key that we take. */
static bool jwk_read(json_t *jwk, struct jwk *ret)
{
    static const struct {
        const char *kty;
        enum jwt_alg alg;
        EVP_PKEY *(*read)(json_t *jwk);
    } kinds[] = {
        {"RSA", JWT_RS256, jwk_read_rsa}, {"EC", JWT_ES256, jwk_read_p256}, {"OKP", JWT_EDDSA, jwk_read_ed25519}};
    const char *kty = json_string_value(json_object_get(jwk, "kty")),
               *kid = json_string_value(json_object_get(jwk, "kid"));
    json_t *use = json_object_get(jwk, "use"), *alg = json_object_get(jwk, "alg");
    if (!kty || (use && (!json_is_string(use) || strcmp(json_string_value(use), "sig") != 0)) ||
        (kid && strlen(kid) > KID_MAX))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].kty, kty) == 0 && (!alg || jwt_alg_of(json_string_value(alg)) == kinds[i].alg)) {
            *ret = (struct jwk){.alg = kinds[i].alg, .key = kinds[i].read(jwk)};
            ret->kid = ret->key && kid ? xstrdup(kid) : NULL;
            return ret->key;
        }
    return false;
}

int jwks_read(const char *text, size_t n, struct jwks **ret, struct err *err)
{
    json_error_t why;
    if (n > OAUTH_JWKS_MAX)
        return err_set(err, ERR_USAGE, 0, "the set of keys has more than %d bytes", OAUTH_JWKS_MAX);
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    json_t *keys = json_object_get(root, "keys"), *one;
    if (!json_is_array(keys)) {
        json_decref(root);
        return err_set(err, ERR_USAGE, 0, "the set of keys must be an object with the list \"keys\"");
    }
    struct jwks *set = xcalloc(1, sizeof *set);
    size_t i;
    json_array_foreach(keys, i, one) if (set->n < OAUTH_KEYS_MAX && jwk_read(one, &set->v[set->n])) set->n++;
    json_decref(root);
    if (set->n == 0) {
        jwks_free(set);
        return err_set(err, ERR_USAGE, 0,
                       "the set of keys has none for RS256 (2048 bits or more), ES256 or EdDSA with Ed25519");
    }
    *ret = set;
    return 0;
}

void jwks_free(struct jwks *set)
{
    for (size_t i = 0; set && i < set->n; i++) {
        free(set->v[i].kid);
        EVP_PKEY_free(set->v[i].key);
    }
    free(set);
}

void *jwks_find(const struct jwks *set, enum jwt_alg alg, const char *kid)
{
    EVP_PKEY *found = NULL;
    for (size_t i = 0; i < set->n; i++) {
        const struct jwk *k = &set->v[i];
        if (k->alg != alg || (kid && (!k->kid || strcmp(k->kid, kid) != 0)))
            continue;
        if (found)
            return NULL; /* two fit: which one is not said */
        found = k->key;
    }
    return found;
}
