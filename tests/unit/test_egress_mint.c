/* Unit tests: the root, and certificates that are minted for names. */
#include "lib/unit.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/mem.h"
#include "egress/mint.h"

static struct mint *mint;
static X509 *root;
static SSL_CTX *ctx;

static int start(void **state)
{
    struct err err = {0};
    char *cert, *key;
    (void)state;
    assert_int_equal(mint_root("Hutch test root", &cert, &key, &err), 0);
    assert_int_equal(mint_new(cert, strlen(cert), key, strlen(key), &mint, &err), 0);
    BIO *bio = BIO_new_mem_buf(cert, -1);
    root = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    free(cert);
    free(key);
    ctx = SSL_CTX_new(TLS_server_method());
    return 0;
}

static int stop(void **state)
{
    (void)state;
    mint_free(mint);
    X509_free(root);
    SSL_CTX_free(ctx);
    return 0;
}

/* The certificate that a connection would show for a name; to be freed. */
static X509 *leaf(const char *host)
{
    struct err err = {0};
    SSL *ssl = SSL_new(ctx);
    if (mint_use(mint, ssl, host, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(SSL_check_private_key(ssl), 1);
    X509 *c = SSL_get_certificate(ssl);
    X509_up_ref(c);
    SSL_free(ssl);
    return c;
}

static int verify(X509 *c)
{
    X509_STORE *db = X509_STORE_new();
    X509_STORE_CTX *sctx = X509_STORE_CTX_new();
    X509_STORE_add_cert(db, root);
    X509_STORE_CTX_init(sctx, db, c, NULL);
    (void)X509_STORE_CTX_set_purpose(sctx, X509_PURPOSE_SSL_SERVER);
    X509_VERIFY_PARAM_set_flags(X509_STORE_CTX_get0_param(sctx), X509_V_FLAG_X509_STRICT);
    int result = X509_verify_cert(sctx) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(sctx);
    X509_STORE_CTX_free(sctx);
    X509_STORE_free(db);
    return result;
}

static void test_the_root_is_a_ca_of_path_length_zero_for_ten_years(void **state)
{
    int days, seconds;
    (void)state;
    assert_int_equal(X509_check_ca(root), 1);
    assert_int_equal(X509_get_pathlen(root), 0);
    assert_int_equal(X509_get_key_usage(root), KU_KEY_CERT_SIGN | KU_CRL_SIGN);
    assert_int_equal(EVP_PKEY_get_bits(X509_get0_pubkey(root)), 256);
    assert_int_equal(ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(root)), 1);
    assert_in_range(days, 3649, 3650);
    assert_int_equal(X509_check_issued(root, root), X509_V_OK);
}

static void test_a_leaf_for_a_name_verifies_strictly_against_the_root(void **state)
{
    (void)state;
    X509 *c = leaf("code.example");
    assert_int_equal(verify(c), X509_V_OK);
    assert_int_equal(X509_check_host(c, "code.example", 0, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, NULL), 1);
    assert_int_equal(X509_check_host(c, "other.example", 0, 0, NULL), 0);
    assert_int_equal(X509_get_extended_key_usage(c), XKU_SSL_SERVER);
    assert_non_null(X509_get0_subject_key_id(c));
    assert_int_equal(ASN1_OCTET_STRING_cmp(X509_get0_authority_key_id(c), X509_get0_subject_key_id(root)), 0);
    X509_free(c);
}

static void test_a_leaf_has_exactly_one_name_and_lives_for_three_days(void **state)
{
    int days, seconds;
    (void)state;
    X509 *c = leaf("code.example");
    GENERAL_NAMES *names = X509_get_ext_d2i(c, NID_subject_alt_name, NULL, NULL);
    assert_int_equal(sk_GENERAL_NAME_num(names), 1);
    assert_int_equal(sk_GENERAL_NAME_value(names, 0)->type, GEN_DNS);
    GENERAL_NAMES_free(names);
    assert_int_equal(ASN1_TIME_diff(&days, &seconds, X509_get0_notBefore(c), X509_get0_notAfter(c)), 1);
    assert_int_equal(days * 24 + seconds / 3600, MINT_HOURS + 1);
    BIGNUM *serial = ASN1_INTEGER_to_BN(X509_get0_serialNumber(c), NULL);
    assert_int_equal(BN_num_bits(serial), 127);
    BN_free(serial);
    X509_free(c);
}

static void test_an_address_becomes_an_address_and_not_a_name(void **state)
{
    static const char *const addresses[] = {"192.0.2.7", "2001:db8::7"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(addresses); i++) {
        X509 *c = leaf(addresses[i]);
        assert_int_equal(verify(c), X509_V_OK);
        assert_int_equal(X509_check_ip_asc(c, addresses[i], 0), 1);
        assert_int_equal(X509_check_host(c, addresses[i], 0, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, NULL), 0);
        X509_free(c);
    }
}

static void test_a_name_too_long_for_a_common_name_stands_in_the_alternative_name_only(void **state)
{
    static const char name[] = "a-label-of-some-length.and-another-one-of-some-length.and-a-third-one.example";
    (void)state;
    X509 *c = leaf(name);
    assert_int_equal(X509_NAME_entry_count(X509_get_subject_name(c)), 0);
    assert_int_equal(verify(c), X509_V_OK);
    assert_int_equal(X509_check_host(c, name, 0, 0, NULL), 1);
    X509_free(c);
}

static void test_what_looks_like_configuration_syntax_is_only_a_name(void **state)
{
    static const char name[] = "a.example,DNS:b.example";
    (void)state;
    X509 *c = leaf(name);
    assert_int_equal(X509_check_host(c, "b.example", 0, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, NULL), 0);
    X509_free(c);
}

static void test_the_same_name_is_signed_once(void **state)
{
    (void)state;
    X509 *a = leaf("code.example"), *b = leaf("code.example"), *c = leaf("docs.example");
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_int_equal(EVP_PKEY_eq(X509_get0_pubkey(a), X509_get0_pubkey(c)), 1);
    X509_free(a);
    X509_free(b);
    X509_free(c);
}

static void test_the_cache_forgets_the_name_that_was_not_used_for_longest(void **state)
{
    char name[40];
    (void)state;
    X509 *kept = leaf("kept.example"), *lost = leaf("lost.example");
    for (int i = 0; i < MINT_CACHE - 1; i++) {
        (void)snprintf(name, sizeof name, "n%d.example", i);
        X509_free(leaf(name));
        if (i == MINT_CACHE / 2) {
            X509 *again = leaf("kept.example");
            assert_ptr_equal(again, kept);
            X509_free(again);
        }
    }
    X509 *kept_again = leaf("kept.example"), *lost_again = leaf("lost.example");
    assert_ptr_equal(kept_again, kept);
    assert_ptr_not_equal(lost_again, lost);
    X509_free(kept);
    X509_free(lost);
    X509_free(kept_again);
    X509_free(lost_again);
}

static void test_a_key_of_another_root_is_refused(void **state)
{
    struct err err = {0};
    char *cert, *key, *cert2, *key2;
    struct mint *m = NULL;
    (void)state;
    assert_int_equal(mint_root("a", &cert, &key, &err), 0);
    assert_int_equal(mint_root("b", &cert2, &key2, &err), 0);
    assert_int_equal(mint_new(cert, strlen(cert), key2, strlen(key2), &m, &err), -1);
    assert_non_null(strstr(err.msg, "does not belong"));
    assert_int_equal(mint_new("x", 1, key, strlen(key), &m, &err), -1);
    assert_non_null(strstr(err.msg, "root certificate"));
    free(cert);
    free(key);
    free(cert2);
    free(key2);
}

static char *text_of(BIO *b)
{
    char *p;
    long n = BIO_get_mem_data(b, &p);
    return xstrndup(p, (size_t)n);
}

static void test_a_certificate_that_is_not_a_ca_is_refused_as_root(void **state)
{
    struct err err = {0};
    struct mint *m = NULL;
    (void)state;
    SSL *ssl = SSL_new(ctx);
    assert_int_equal(mint_use(mint, ssl, "leaf.example", &err), 0);
    BIO *c = BIO_new(BIO_s_mem()), *k = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(c, SSL_get_certificate(ssl));
    PEM_write_bio_PrivateKey(k, SSL_get_privatekey(ssl), NULL, NULL, 0, NULL, NULL);
    char *cert = text_of(c), *key = text_of(k);
    assert_int_equal(mint_new(cert, strlen(cert), key, strlen(key), &m, &err), -1);
    assert_non_null(strstr(err.msg, "not one of a CA"));
    free(cert);
    free(key);
    BIO_free(c);
    BIO_free(k);
    SSL_free(ssl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_root_is_a_ca_of_path_length_zero_for_ten_years, start, stop),
        cmocka_unit_test_setup_teardown(test_a_leaf_for_a_name_verifies_strictly_against_the_root, start, stop),
        cmocka_unit_test_setup_teardown(test_a_leaf_has_exactly_one_name_and_lives_for_three_days, start, stop),
        cmocka_unit_test_setup_teardown(test_an_address_becomes_an_address_and_not_a_name, start, stop),
        cmocka_unit_test_setup_teardown(test_a_name_too_long_for_a_common_name_stands_in_the_alternative_name_only,
                                        start, stop),
        cmocka_unit_test_setup_teardown(test_what_looks_like_configuration_syntax_is_only_a_name, start, stop),
        cmocka_unit_test_setup_teardown(test_the_same_name_is_signed_once, start, stop),
        cmocka_unit_test_setup_teardown(test_the_cache_forgets_the_name_that_was_not_used_for_longest, start, stop),
        cmocka_unit_test_setup_teardown(test_a_key_of_another_root_is_refused, start, stop),
        cmocka_unit_test_setup_teardown(test_a_certificate_that_is_not_a_ca_is_refused_as_root, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
