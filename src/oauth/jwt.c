/* jwt.c - reads and checks one token (RFC 7519, 8725): three parts of base64url, a signature by a key of the set with an
 * algorithm that goes with the kind of that key, and claims that are about this node and now. */
#include <jansson.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "oauth/oauth.h"

enum { ES256_BYTES = 64, SCOPES_MAX = 4096 };
#define BASE64URL "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

bool jwt_is_one(const char *token)
{
    size_t a = strspn(token, BASE64URL), b = token[a] == '.' ? strspn(token + a + 1, BASE64URL) : 0;
    return a > 0 && b > 0 && token[a + 1 + b] == '.';
}

static int jwt_fail(struct err *err, const char *why) { return err_set(err, ERR_USAGE, 0, "the token %s", why); }

/* An object that a part of the token holds; NULL: it is none. */
static json_t *jwt_part(const char *p, size_t n)
{
    _cleanup_buf_ struct buf text = {0};
    json_t *root =
        base64_decode(&text, p, n) ? json_loadb(text.p ? text.p : "", text.n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (json_is_object(root))
        return root;
    json_decref(root);
    return NULL;
}

/* --- the signature --------------------------------------------------------------------------------------------------- */

static bool jwt_verify_bytes(EVP_PKEY *key, enum jwt_alg alg, const char *text, size_t n, const void *sig, size_t sig_n)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool good = ctx && EVP_DigestVerifyInit(ctx, NULL, alg == JWT_EDDSA ? NULL : EVP_sha256(), NULL, key) == 1 &&
                EVP_DigestVerify(ctx, sig, sig_n, (const unsigned char *)text, n) == 1;
    EVP_MD_CTX_free(ctx);
    return good;
}

/* Tokens carry the two numbers of an ECDSA signature side by side; OpenSSL wants them as DER. */
static bool jwt_verify_ecdsa(EVP_PKEY *key, const char *text, size_t n, const struct buf *sig)
{
    if (sig->n != ES256_BYTES)
        return false;
    const unsigned char *s = (const unsigned char *)sig->p;
    ECDSA_SIG *two = ECDSA_SIG_new();
    BIGNUM *a = BN_bin2bn(s, ES256_BYTES / 2, NULL), *b = BN_bin2bn(s + ES256_BYTES / 2, ES256_BYTES / 2, NULL);
    if (!two || !a || !b || !ECDSA_SIG_set0(two, a, b))
        abort(); /* out of memory */
    unsigned char *der = NULL;
    int der_n = i2d_ECDSA_SIG(two, &der);
    bool good = der_n > 0 && jwt_verify_bytes(key, JWT_ES256, text, n, der, (size_t)der_n);
    OPENSSL_free(der);
    ECDSA_SIG_free(two);
    return good;
}

/* 0, -1, or 1: the set has no such key. */
static int jwt_check_signature(const char *token, size_t signed_n, json_t *head, const struct jwks *set,
                               const char *signature, struct err *err)
{
    json_t *name = json_object_get(head, "alg"), *kid = json_object_get(head, "kid"),
           *typ = json_object_get(head, "typ");
    enum jwt_alg alg = jwt_alg_of(json_string_value(name));
    const char *t = json_string_value(typ);
    _cleanup_buf_ struct buf sig = {0};
    if (alg == JWT_NO_ALG)
        return jwt_fail(err, "must be signed with RS256, ES256 or EdDSA");
    if (json_object_get(head, "crit"))
        return jwt_fail(err, "has critical header members that this node does not know");
    if (typ &&
        (!t || (strcasecmp(t, "JWT") != 0 && strcasecmp(t, "at+jwt") != 0 && strcasecmp(t, "application/at+jwt") != 0)))
        return jwt_fail(err, "must be of type at+jwt or JWT");
    if (kid && !json_is_string(kid))
        return jwt_fail(err, "must name its key with a string");
    if (strspn(signature, BASE64URL) != strlen(signature) || !base64_decode(&sig, signature, strlen(signature)))
        return jwt_fail(err, "has a signature that is not base64url");
    EVP_PKEY *key = jwks_find(set, alg, json_string_value(kid));
    if (!key)
        return 1;
    bool good = alg == JWT_ES256 ? jwt_verify_ecdsa(key, token, signed_n, &sig)
                                 : jwt_verify_bytes(key, alg, token, signed_n, sig.p ? sig.p : "", sig.n);
    return good ? 0 : jwt_fail(err, "has a signature that is not its issuer's");
}

/* --- the claims ------------------------------------------------------------------------------------------------------ */

static bool jwt_names_audience(json_t *aud, const char *wanted)
{
    json_t *one;
    size_t i;
    if (json_is_string(aud))
        return strcmp(json_string_value(aud), wanted) == 0;
    json_array_foreach(aud, i, one) if (json_is_string(one) && strcmp(json_string_value(one), wanted) == 0) return true;
    return false;
}

/* -1: not a time. */
static int jwt_time(json_t *v, double *ret)
{
    if (!json_is_number(v))
        return -1;
    *ret = json_number_value(v);
    return *ret >= 0 && *ret < 1e15 ? 0 : -1;
}

static int jwt_check_times(json_t *claims, uint64_t now, struct err *err)
{
    double exp, t, at = (double)now;
    json_t *nbf = json_object_get(claims, "nbf"), *iat = json_object_get(claims, "iat");
    if (jwt_time(json_object_get(claims, "exp"), &exp) < 0)
        return jwt_fail(err, "must say with the number \"exp\" when it ends");
    if (at >= exp + OAUTH_SKEW_S)
        return jwt_fail(err, "has expired");
    if ((nbf && jwt_time(nbf, &t) < 0) || (iat && jwt_time(iat, &t) < 0))
        return jwt_fail(err, "must have numbers as \"nbf\" and \"iat\"");
    if ((nbf && json_number_value(nbf) > at + OAUTH_SKEW_S) || (iat && json_number_value(iat) > at + OAUTH_SKEW_S))
        return jwt_fail(err, "is not valid yet");
    return 0;
}

static unsigned jwt_scope(const char *s, size_t n)
{
    static const struct {
        const char *name;
        unsigned scope;
    } known[] = {{"hutch:sandboxes", SCOPE_SANDBOXES}, {"hutch:read", SCOPE_READ}, {"hutch:files", SCOPE_FILES}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, s, n) == 0)
            return known[i].scope;
    return 0;
}

/* "scope" is a string with spaces (RFC 9068); some issuers write the list "scp". Scopes of others are left out. */
static unsigned jwt_scopes(json_t *claims)
{
    const char *text = json_string_value(json_object_get(claims, "scope"));
    json_t *one;
    unsigned all = 0;
    size_t i, n;
    for (const char *p = text; p && *p; p += n + (p[n] == ' ')) {
        n = strcspn(p, " ");
        all |= jwt_scope(p, n);
    }
    json_array_foreach(json_object_get(claims, "scp"), i, one) if (json_is_string(one)) all |=
        jwt_scope(json_string_value(one), json_string_length(one));
    return all;
}

static int jwt_check_claims(json_t *claims, const struct jwt_rules *rules, struct jwt_claims *ret, struct err *err)
{
    const char *iss = json_string_value(json_object_get(claims, "iss")),
               *tenant = json_string_value(json_object_get(claims, "hutch_tenant")),
               *sub = json_string_value(json_object_get(claims, "sub"));
    if (!iss || strcmp(iss, rules->issuer) != 0)
        return jwt_fail(err, "is of another issuer");
    if (!jwt_names_audience(json_object_get(claims, "aud"), rules->audience))
        return jwt_fail(err, "is for another audience: \"aud\" must name this node");
    if (jwt_check_times(claims, rules->now, err) < 0)
        return -1;
    memset(ret, 0, sizeof *ret);
    if (json_object_get(claims, "hutch_tenant") && (!tenant || !*tenant || strlen(tenant) >= sizeof ret->tenant))
        return jwt_fail(err, "must have the id of a tenant as \"hutch_tenant\"");
    if (tenant)
        memcpy(ret->tenant, tenant, strlen(tenant) + 1);
    if (sub)
        (void)memccpy(ret->subject, sub, 0, sizeof ret->subject - 1);
    ret->scopes = jwt_scopes(claims);
    return 0;
}

int jwt_check_unsigned(const char *token, const struct jwt_rules *rules, struct err *err)
{
    struct jwt_claims ignored;
    if (strlen(token) > OAUTH_TOKEN_MAX)
        return jwt_fail(err, "has more than 8 KiB");
    if (!jwt_is_one(token))
        return jwt_fail(err, "is not a signed JWT");
    const char *body = token + strcspn(token, ".") + 1;
    json_t *claims = jwt_part(body, strcspn(body, "."));
    int rc = claims ? jwt_check_claims(claims, rules, &ignored, err) : jwt_fail(err, "is not a signed JWT");
    json_decref(claims);
    return rc;
}

int jwt_check(const char *token, const struct jwks *set, const struct jwt_rules *rules, struct jwt_claims *ret,
              struct err *err)
{
    if (strlen(token) > OAUTH_TOKEN_MAX)
        return jwt_fail(err, "has more than 8 KiB");
    if (!jwt_is_one(token))
        return jwt_fail(err, "is not a signed JWT");
    size_t head_n = strcspn(token, "."), body_n = strcspn(token + head_n + 1, ".");
    const char *body = token + head_n + 1;
    json_t *head = jwt_part(token, head_n), *claims = jwt_part(body, body_n);
    int rc = !head || !claims ? jwt_fail(err, "is not a signed JWT")
                              : jwt_check_signature(token, head_n + 1 + body_n, head, set, body + body_n + 1, err);
    if (rc == 0)
        rc = jwt_check_claims(claims, rules, ret, err);
    json_decref(head);
    json_decref(claims);
    return rc;
}
