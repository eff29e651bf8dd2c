#include "tests/lib/unit.h"

#include "egress/secrets/seal.h"

static struct err err;

/* Made with another implementation (Python's cryptography) from the layout in seal.c. */
static const struct {
    const char *private_key, *public_key, *context, *sealed, *plain;
} vectors[] = {
    {"2551f5c609e466be6c27289440b08be0a5a7f96f83dbefecf581367d8a01a99e",
     "0a703b364cc040ecc2dcd8a91819b50f34f0b4d4b106643d1f2335c39c896b30", "hutch secret 4:acme/llm-key",
     "013feb6bc323cbbfb894437cd2d220a1936f3c1145d0d306f2454d1a130923481c648f8e193a06c30767e71fb35e44cb47eb49de65996261"
     "d40e120ea2b728b1ac0bd970cd081c35de5f5e12e36496",
     "sk-live-0123456789"},
    {"1557f949eb074ee1de813d3598b394ea654e9066ba7dd5ffe290848c31a8c9c8",
     "40c2f7bae53231d26156094dbbc18233a773d47a217bef8f48c93bfa6cc0e359", "",
     "01add819ef8651662b29304347c691e8e92b7ede88e92fc4980b576c88ffa1702e0a78009591722cc84825ca950e1c3aa4ea4bfb7f6b93e2"
     "c14f081d3b",
     ""},
};

static size_t unhex(const char *hex, unsigned char *ret)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(sscanf(hex + 2 * i, "%2hhx", &ret[i]), 1);
    return n;
}

static void values_sealed_by_another_implementation_open(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
        unsigned char key[SEAL_KEY], public_key[SEAL_KEY], want[SEAL_KEY], sealed[512];
        _cleanup_buf_ struct buf plain = {0};
        (void)unhex(vectors[i].private_key, key);
        (void)unhex(vectors[i].public_key, want);
        assert_int_equal(seal_public(key, public_key, &err), 0);
        assert_memory_equal(public_key, want, SEAL_KEY);
        size_t n = unhex(vectors[i].sealed, sealed);
        assert_int_equal(n, SEAL_OVERHEAD + strlen(vectors[i].plain));
        assert_int_equal(seal_open(key, vectors[i].context, sealed, n, &plain, &err), 0);
        assert_string_equal(buf_str(&plain), vectors[i].plain);
    }
}

struct keys {
    unsigned char private_key[SEAL_KEY], public_key[SEAL_KEY];
};

static void new_keys(struct keys *k)
{
    assert_int_equal(seal_new_key(k->private_key, &err), 0);
    assert_int_equal(seal_public(k->private_key, k->public_key, &err), 0);
}

static void what_was_sealed_opens_again_whatever_its_length(void **state)
{
    (void)state;
    unsigned char bytes[70000];
    static const size_t lengths[] = {0, 1, 15, 16, 17, 255, 4096, sizeof bytes};
    struct keys k;
    new_keys(&k);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 31 + i / 256);
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        _cleanup_buf_ struct buf sealed = {0}, plain = {0};
        buf_adds(&plain, "before");
        assert_int_equal(seal_bytes(k.public_key, "ctx", bytes, lengths[i], &sealed, &err), 0);
        assert_int_equal(sealed.n, lengths[i] + SEAL_OVERHEAD);
        assert_int_equal(seal_open(k.private_key, "ctx", sealed.p, sealed.n, &plain, &err), 0);
        assert_int_equal(plain.n, lengths[i] + 6);
        assert_memory_equal(plain.p + 6, bytes, lengths[i]);
    }
}

static void two_seals_of_one_value_have_nothing_in_common(void **state)
{
    (void)state;
    struct keys k;
    _cleanup_buf_ struct buf a = {0}, b = {0};
    new_keys(&k);
    assert_int_equal(seal_bytes(k.public_key, "c", "the same value", 14, &a, &err), 0);
    assert_int_equal(seal_bytes(k.public_key, "c", "the same value", 14, &b, &err), 0);
    assert_memory_not_equal(a.p + 1, b.p + 1, SEAL_KEY);
    assert_memory_not_equal(a.p + 1 + SEAL_KEY, b.p + 1 + SEAL_KEY, 12);
    assert_memory_not_equal(a.p + 1 + SEAL_KEY + 12, b.p + 1 + SEAL_KEY + 12, 14);
}

static void no_bit_can_be_changed(void **state)
{
    (void)state;
    struct keys k;
    _cleanup_buf_ struct buf sealed = {0}, plain = {0};
    new_keys(&k);
    assert_int_equal(seal_bytes(k.public_key, "tenant/name", "value", 5, &sealed, &err), 0);
    for (size_t bit = 0; bit < sealed.n * 8; bit++) {
        /* The top bit of an X25519 key is not part of the key, but it is authenticated. */
        sealed.p[bit / 8] = (char)(sealed.p[bit / 8] ^ (1 << bit % 8));
        if (seal_open(k.private_key, "tenant/name", sealed.p, sealed.n, &plain, &err) != -1)
            fail_msg("bit %zu can be changed", bit);
        assert_int_equal(plain.n, 0);
        sealed.p[bit / 8] = (char)(sealed.p[bit / 8] ^ (1 << bit % 8));
    }
    assert_int_equal(seal_open(k.private_key, "tenant/name", sealed.p, sealed.n, &plain, &err), 0);
}

static void a_cut_value_does_not_open(void **state)
{
    (void)state;
    struct keys k;
    _cleanup_buf_ struct buf sealed = {0}, plain = {0};
    new_keys(&k);
    assert_int_equal(seal_bytes(k.public_key, "c", "0123456789", 10, &sealed, &err), 0);
    for (size_t n = 0; n < sealed.n; n++)
        assert_int_equal(seal_open(k.private_key, "c", sealed.p, n, &plain, &err), -1);
    buf_addc(&sealed, 'x');
    assert_int_equal(seal_open(k.private_key, "c", sealed.p, sealed.n, &plain, &err), -1);
    assert_int_equal(plain.n, 0);
}

static void another_key_or_another_context_does_not_open_it(void **state)
{
    (void)state;
    static const char *const contexts[] = {"", "acme/ke", "acme/key2", "Acme/key", "acme/key "};
    struct keys k, other;
    _cleanup_buf_ struct buf sealed = {0}, plain = {0};
    new_keys(&k);
    new_keys(&other);
    assert_int_equal(seal_bytes(k.public_key, "acme/key", "value", 5, &sealed, &err), 0);
    assert_int_equal(seal_open(other.private_key, "acme/key", sealed.p, sealed.n, &plain, &err), -1);
    for (size_t i = 0; i < ARRAY_LEN(contexts); i++)
        assert_int_equal(seal_open(k.private_key, contexts[i], sealed.p, sealed.n, &plain, &err), -1);
    assert_null(strstr(err.msg, "value v"));
    assert_int_equal(plain.n, 0);
}

static void the_public_key_cannot_open(void **state)
{
    (void)state;
    struct keys k;
    _cleanup_buf_ struct buf sealed = {0}, plain = {0};
    new_keys(&k);
    assert_int_equal(seal_bytes(k.public_key, "c", "value", 5, &sealed, &err), 0);
    assert_int_equal(seal_open(k.public_key, "c", sealed.p, sealed.n, &plain, &err), -1);
}

static void a_public_key_of_small_order_is_refused(void **state)
{
    (void)state;
    static const unsigned char zero[SEAL_KEY], one[SEAL_KEY] = {1};
    _cleanup_buf_ struct buf sealed = {0};
    assert_int_equal(seal_bytes(zero, "c", "value", 5, &sealed, &err), -1);
    assert_int_equal(seal_bytes(one, "c", "value", 5, &sealed, &err), -1);
    assert_non_null(strstr(err.msg, "no X25519 public key"));
    assert_int_equal(sealed.n, 0);
}

static void another_version_is_named(void **state)
{
    (void)state;
    struct keys k;
    _cleanup_buf_ struct buf sealed = {0}, plain = {0};
    new_keys(&k);
    assert_int_equal(seal_bytes(k.public_key, "c", "value", 5, &sealed, &err), 0);
    sealed.p[0] = 2;
    assert_int_equal(seal_open(k.private_key, "c", sealed.p, sealed.n, &plain, &err), -1);
    assert_string_equal(err.msg, "a sealed value of version 2; only 1 is known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_sealed_by_another_implementation_open),
        cmocka_unit_test(what_was_sealed_opens_again_whatever_its_length),
        cmocka_unit_test(two_seals_of_one_value_have_nothing_in_common),
        cmocka_unit_test(no_bit_can_be_changed),
        cmocka_unit_test(a_cut_value_does_not_open),
        cmocka_unit_test(another_key_or_another_context_does_not_open_it),
        cmocka_unit_test(the_public_key_cannot_open),
        cmocka_unit_test(a_public_key_of_small_order_is_refused),
        cmocka_unit_test(another_version_is_named),
    };
    return cmocka_run_group_tests_name("egress/seal", tests, NULL, NULL);
}
