/* test_oauth.c - tokens and sets of keys: what is taken, and each reason for which a token is not. Keys are made here; an issuer of
 * others signs in tests/integration/test_mcp_oauth.py. */
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>

#include "base/base64.h"
#include "base/mem.h"
#include "oauth/oauth.h"

#include "tests/lib/unit.h"

#define NOW    1800000000
#define CLAIMS "\"iss\":\"https://issuer\",\"aud\":\"https://node/mcp\",\"exp\":1800000100"
static const struct jwt_rules rules = {.issuer = "https://issuer", .audience = "https://node/mcp", .now = NOW};

/* Three keys of each run, by algorithm. */
static EVP_PKEY *keys[JWT_NO_ALG];
static struct jwks *set;

static char *url64(const void *p, size_t n)
{
    _cleanup_buf_ struct buf b = {0};
    base64_encode(&b, p, n);
    char *text = xstrdup(buf_str(&b));
    text[strcspn(text, "=")] = 0;
    for (char *c = text; *c; c++)
        *c = *c == '+' ? '-' : *c == '/' ? '_' : *c;
    return text;
}

static char *number64(EVP_PKEY *key, const char *name)
{
    unsigned char room[600];
    BIGNUM *n = NULL;
    assert_int_equal(EVP_PKEY_get_bn_param(key, name, &n), 1);
    int size = BN_bn2bin(n, room);
    BN_free(n);
    return url64(room, (size_t)size);
}

/* The members of a key's public half. */
static char *jwk_of(enum jwt_alg alg)
{
    unsigned char room[200];
    size_t n = sizeof room;
    if (alg == JWT_RS256) {
        _cleanup_free_ char *mod = number64(keys[alg], OSSL_PKEY_PARAM_RSA_N),
                            *e = number64(keys[alg], OSSL_PKEY_PARAM_RSA_E);
        return xasprintf("\"kty\":\"RSA\",\"n\":\"%s\",\"e\":\"%s\"", mod, e);
    }
    if (alg == JWT_ES256) {
        assert_int_equal(EVP_PKEY_get_octet_string_param(keys[alg], OSSL_PKEY_PARAM_PUB_KEY, room, sizeof room, &n), 1);
        assert_int_equal(n, 65);
        _cleanup_free_ char *x = url64(room + 1, 32), *y = url64(room + 33, 32);
        return xasprintf("\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"%s\",\"y\":\"%s\"", x, y);
    }
    assert_int_equal(EVP_PKEY_get_raw_public_key(keys[alg], room, &n), 1);
    _cleanup_free_ char *x = url64(room, n);
    return xasprintf("\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"%s\"", x);
}

static char *sign(enum jwt_alg alg, const char *head, const char *claims)
{
    unsigned char sig[600], raw[64];
    size_t n = sizeof sig;
    _cleanup_free_ char *h = url64(head, strlen(head)), *c = url64(claims, strlen(claims)),
                        *text = xasprintf("%s.%s", h, c);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    assert_int_equal(EVP_DigestSignInit(ctx, NULL, alg == JWT_EDDSA ? NULL : EVP_sha256(), NULL, keys[alg]), 1);
    assert_int_equal(EVP_DigestSign(ctx, sig, &n, (unsigned char *)text, strlen(text)), 1);
    EVP_MD_CTX_free(ctx);
    if (alg == JWT_ES256) {
        const unsigned char *p = sig;
        ECDSA_SIG *two = d2i_ECDSA_SIG(NULL, &p, (long)n);
        (void)BN_bn2binpad(ECDSA_SIG_get0_r(two), raw, 32);
        (void)BN_bn2binpad(ECDSA_SIG_get0_s(two), raw + 32, 32);
        ECDSA_SIG_free(two);
        memcpy(sig, raw, n = sizeof raw);
    }
    _cleanup_free_ char *s = url64(sig, n);
    return xasprintf("%s.%s", text, s);
}

static int setup(void **state)
{
    (void)state;
    keys[JWT_RS256] = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)2048);
    keys[JWT_ES256] = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    keys[JWT_EDDSA] = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    _cleanup_free_ char *r = jwk_of(JWT_RS256), *e = jwk_of(JWT_ES256), *o = jwk_of(JWT_EDDSA),
                        *text = xasprintf("{\"keys\":[{%s,\"kid\":\"r\",\"use\":\"sig\"},{%s,\"kid\":\"e\"},{%s}]}", r,
                                          e, o);
    struct err err;
    return jwks_read(text, strlen(text), &set, &err);
}

static int teardown(void **state)
{
    (void)state;
    jwks_free(set);
    for (size_t i = 0; i < JWT_NO_ALG; i++)
        EVP_PKEY_free(keys[i]);
    return 0;
}

static void a_token_of_each_algorithm_is_taken(void **state)
{
    static const char *const heads[] = {"{\"alg\":\"RS256\",\"kid\":\"r\"}", "{\"alg\":\"ES256\",\"typ\":\"at+jwt\"}",
                                        "{\"alg\":\"EdDSA\",\"typ\":\"JWT\"}"};
    (void)state;
    for (enum jwt_alg alg = 0; alg < JWT_NO_ALG; alg++) {
        struct jwt_claims c;
        struct err err = {0};
        _cleanup_free_ char *t =
            sign(alg, heads[alg],
                 "{" CLAIMS ",\"scope\":\"openid hutch:read hutch:files\",\"hutch_tenant\":\"acme\",\"sub\":\"bot\"}");
        if (jwt_check(t, set, &rules, &c, &err) != 0)
            fail_msg("%s: %s", heads[alg], err.msg);
        assert_string_equal(c.tenant, "acme");
        assert_string_equal(c.subject, "bot");
        assert_int_equal(c.scopes, SCOPE_READ | SCOPE_FILES);
        assert_true(jwt_is_one(t));
    }
    assert_false(jwt_is_one("e2b_0123456789012345678901234567890123456789"));
}

static void each_claim_that_does_not_hold_refuses_the_token(void **state)
{
    static const struct {
        const char *claims, *want; /* want NULL: taken */
    } cases[] = {
        {CLAIMS, NULL},
        {"\"iss\":\"https://issuer\",\"aud\":[\"x\",\"https://node/mcp\"],\"exp\":1800000000.5,\"nbf\":1799999999",
         NULL},
        {"\"iss\":\"https://issuer\",\"aud\":\"https://node/mcp\",\"exp\":1799999941",
         NULL}, /* the clocks may differ */
        {"\"iss\":\"https://issuer\",\"aud\":\"https://node/mcp\",\"exp\":1799999940", "expired"},
        {"\"iss\":\"https://issuer\",\"aud\":\"https://node/mcp\"", "must say with the number \"exp\""},
        {"\"iss\":\"https://issuer\",\"aud\":\"https://node/mcp\",\"exp\":\"1800000100\"", "must say with the number"},
        {"\"iss\":\"https://issuer\",\"aud\":\"https://node/mcp\",\"exp\":-5", "must say with the number"},
        {"\"iss\":\"https://issuer/\",\"aud\":\"https://node/mcp\",\"exp\":1800000100", "another issuer"},
        {"\"aud\":\"https://node/mcp\",\"exp\":1800000100", "another issuer"},
        {"\"iss\":\"https://issuer\",\"aud\":\"https://node\",\"exp\":1800000100", "another audience"},
        {"\"iss\":\"https://issuer\",\"aud\":[],\"exp\":1800000100", "another audience"},
        {"\"iss\":\"https://issuer\",\"aud\":{\"https://node/mcp\":1},\"exp\":1800000100", "another audience"},
        {"\"iss\":\"https://issuer\",\"exp\":1800000100", "another audience"},
        {CLAIMS ",\"nbf\":1800000061", "not valid yet"},
        {CLAIMS ",\"iat\":1800000061", "not valid yet"},
        {CLAIMS ",\"nbf\":\"x\"", "numbers as"},
        {CLAIMS ",\"hutch_tenant\":7", "id of a tenant"},
        {CLAIMS ",\"hutch_tenant\":\"\"", "id of a tenant"},
        {CLAIMS ",\"hutch_tenant\":\"0123456789012345678901234567890123456789\"", "id of a tenant"},
        {CLAIMS ",\"aud\":\"https://node/mcp\"", "not a signed JWT"}, /* a member twice */
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct jwt_claims c;
        struct err err = {0};
        _cleanup_free_ char *claims = xasprintf("{%s}", cases[i].claims),
                            *t = sign(JWT_ES256, "{\"alg\":\"ES256\"}", claims);
        int rc = jwt_check(t, set, &rules, &c, &err);
        if (!cases[i].want ? rc != 0 : rc != -1 || !strstr(err.msg, cases[i].want))
            fail_msg("%s: %d %s", claims, rc, err.msg);
    }
}

static void each_header_that_does_not_fit_refuses_the_token(void **state)
{
    static const struct {
        enum jwt_alg by;
        const char *head, *want; /* want NULL: the key is unknown */
    } cases[] = {
        {JWT_ES256, "{\"alg\":\"none\"}", "must be signed with"},
        {JWT_ES256, "{\"alg\":\"HS256\"}", "must be signed with"},
        {JWT_ES256, "{\"alg\":\"es256\"}", "must be signed with"},
        {JWT_ES256, "{}", "must be signed with"},
        {JWT_ES256, "{\"alg\":[\"ES256\"]}", "must be signed with"},
        {JWT_RS256, "{\"alg\":\"ES256\"}", "signature"},
        {JWT_ES256, "{\"alg\":\"RS256\"}", "signature"},
        {JWT_RS256, "{\"alg\":\"EdDSA\"}", "signature"},
        {JWT_ES256, "{\"alg\":\"ES256\",\"crit\":[\"b64\"],\"b64\":false}", "critical"},
        {JWT_ES256, "{\"alg\":\"ES256\",\"typ\":\"logout+jwt\"}", "of type"},
        {JWT_ES256, "{\"alg\":\"ES256\",\"typ\":1}", "of type"},
        {JWT_ES256, "{\"alg\":\"ES256\",\"kid\":5}", "with a string"},
        {JWT_ES256, "[\"ES256\"]", "not a signed JWT"},
        {JWT_ES256, "{\"alg\":\"ES256\"", "not a signed JWT"},
        {JWT_ES256, "{\"alg\":\"ES256\",\"kid\":\"other\"}", NULL},
        {JWT_ES256, "{\"alg\":\"ES256\",\"kid\":\"r\"}", NULL},
        {JWT_EDDSA, "{\"alg\":\"EdDSA\",\"kid\":\"r\"}", NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct jwt_claims c;
        struct err err = {0};
        _cleanup_free_ char *t = sign(cases[i].by, cases[i].head, "{" CLAIMS "}");
        int rc = jwt_check(t, set, &rules, &c, &err);
        if (!cases[i].want ? rc != 1 : rc != -1 || !strstr(err.msg, cases[i].want))
            fail_msg("%s: %d %s", cases[i].head, rc, err.msg);
    }
}

static void no_byte_of_a_token_can_be_changed(void **state)
{
    (void)state;
    _cleanup_free_ char *t = sign(JWT_EDDSA, "{\"alg\":\"EdDSA\"}", "{" CLAIMS "}");
    for (size_t i = 0; t[i]; i++) {
        struct jwt_claims c;
        struct err err;
        char was = t[i];
        t[i] = was == 'A' ? 'B' : 'A';
        if (jwt_check(t, set, &rules, &c, &err) == 0)
            fail_msg("byte %zu", i);
        t[i] = was;
    }
    struct jwt_claims c;
    struct err err;
    assert_int_equal(jwt_check(t, set, &rules, &c, &err), 0);
    static const char *const forms[] = {"",         ".",           "..",          "a.b",       "a.b.c.d",
                                        "e30.e30.", "e30=.e30.AA", "e3 0.e30.AA", "e30.e30.A+"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++)
        assert_int_equal(jwt_check(forms[i], set, &rules, &c, &err), -1);
    _cleanup_buf_ struct buf longest = {0};
    buf_adds(&longest, "e30.e30.");
    while (longest.n <= OAUTH_TOKEN_MAX)
        buf_addc(&longest, 'A');
    assert_int_equal(jwt_check(buf_str(&longest), set, &rules, &c, &err), -1);
    assert_non_null(strstr(err.msg, "8 KiB"));
}

static void claims_are_looked_at_before_keys_are_fetched(void **state)
{
    struct err err;
    (void)state;
    _cleanup_free_ char *good = sign(JWT_RS256, "{\"alg\":\"RS256\",\"kid\":\"new\"}", "{" CLAIMS "}"),
                        *foreign = sign(JWT_RS256, "{\"alg\":\"RS256\",\"kid\":\"new\"}",
                                        "{\"iss\":\"https://other\",\"aud\":\"https://node/mcp\",\"exp\":1800000100}"),
                        *old = sign(JWT_RS256, "{\"alg\":\"RS256\",\"kid\":\"new\"}",
                                    "{\"iss\":\"https://issuer\",\"aud\":\"https://node/mcp\",\"exp\":1700000000}"),
                        *long_one = xcalloc(1, OAUTH_TOKEN_MAX + 200);
    (void)snprintf(long_one, OAUTH_TOKEN_MAX + 200, "%s%0*d", good, OAUTH_TOKEN_MAX, 0);
    assert_int_equal(jwt_check_unsigned(good, &rules, &err), 0);
    assert_int_equal(jwt_check_unsigned(foreign, &rules, &err), -1);
    assert_non_null(strstr(err.msg, "another issuer"));
    assert_int_equal(jwt_check_unsigned(old, &rules, &err), -1);
    assert_non_null(strstr(err.msg, "expired"));
    assert_int_equal(jwt_check_unsigned("YQ.YQ.YQ", &rules, &err), -1);
    assert_int_equal(jwt_check_unsigned(long_one, &rules, &err), -1);
    assert_non_null(strstr(err.msg, "8 KiB"));
}

static void keys_that_are_weak_or_not_for_signatures_are_left_out(void **state)
{
    (void)state;
    _cleanup_free_ char *e = jwk_of(JWT_ES256);
    EVP_PKEY *weak = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)1024);
    _cleanup_free_ char *n = number64(weak, OSSL_PKEY_PARAM_RSA_N);
    EVP_PKEY_free(weak);
    _cleanup_free_ char *small = xasprintf("{\"keys\":[{\"kty\":\"RSA\",\"n\":\"%s\",\"e\":\"AQAB\"}]}", n),
                        *enc = xasprintf("{\"keys\":[{%s,\"use\":\"enc\"}]}", e),
                        *other = xasprintf("{\"keys\":[{%s,\"alg\":\"ES384\"}]}", e),
                        *off =
                            xasprintf("{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"%.43s\",\"y\":\"%.43s\"}]}",
                                      "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE",
                                      "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE");
    const char *const none[] = {small,
                                enc,
                                other,
                                off,
                                "{\"keys\":[]}",
                                "{\"keys\":[{\"kty\":\"oct\",\"k\":\"AAAA\"}]}",
                                "{\"keys\":[1,null,[]]}",
                                "{\"keys\":{}}",
                                "{}",
                                "[]",
                                "",
                                "{\"keys\":[],\"keys\":[]}"};
    for (size_t i = 0; i < ARRAY_LEN(none); i++) {
        struct jwks *got = NULL;
        struct err err;
        if (jwks_read(none[i], strlen(none[i]), &got, &err) == 0)
            fail_msg("%s", none[i]);
    }
    _cleanup_buf_ struct buf many = {0};
    buf_adds(&many, "{\"keys\":[");
    for (int i = 0; i < OAUTH_KEYS_MAX + 10; i++)
        buf_addf(&many, "%s{%s,\"kid\":\"%d\"}", i ? "," : "", e, i);
    buf_adds(&many, "]}");
    struct jwks *got = NULL;
    struct err err;
    assert_int_equal(jwks_read(buf_str(&many), many.n, &got, &err), 0);
    assert_null(jwks_find(got, JWT_ES256, NULL)); /* which one is not said */
    assert_non_null(jwks_find(got, JWT_ES256, "63"));
    assert_null(jwks_find(got, JWT_ES256, "64"));
    jwks_free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_of_each_algorithm_is_taken),
        cmocka_unit_test(each_claim_that_does_not_hold_refuses_the_token),
        cmocka_unit_test(each_header_that_does_not_fit_refuses_the_token),
        cmocka_unit_test(no_byte_of_a_token_can_be_changed),
        cmocka_unit_test(claims_are_looked_at_before_keys_are_fetched),
        cmocka_unit_test(keys_that_are_weak_or_not_for_signatures_are_left_out),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
