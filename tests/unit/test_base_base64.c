#include "tests/lib/unit.h"

#include "base/base64.h"

static const struct {
    const char *plain, *text;
} vectors[] = {{"", ""},
               {"f", "Zg=="},
               {"fo", "Zm8="},
               {"foo", "Zm9v"},
               {"foob", "Zm9vYg=="},
               {"fooba", "Zm9vYmE="},
               {"foobar", "Zm9vYmFy"}};

static void the_vectors_of_the_standard_go_both_ways(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
        _cleanup_buf_ struct buf text = {0}, plain = {0};
        base64_encode(&text, vectors[i].plain, strlen(vectors[i].plain));
        assert_string_equal(buf_str(&text), vectors[i].text);
        assert_true(base64_decode(&plain, vectors[i].text, strlen(vectors[i].text)));
        assert_string_equal(buf_str(&plain), vectors[i].plain);
    }
}

static void all_bytes_survive(void **state)
{
    (void)state;
    uint8_t bytes[1000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t n = 0; n <= sizeof bytes; n += 37) {
        _cleanup_buf_ struct buf text = {0}, plain = {0};
        base64_encode(&text, bytes, n);
        assert_int_equal(text.n, (n + 2) / 3 * 4);
        assert_true(base64_decode(&plain, buf_str(&text), text.n));
        assert_int_equal(plain.n, n);
        if (n > 0)
            assert_memory_equal(plain.p, bytes, n);
    }
}

static void padding_may_be_missing_and_the_url_alphabet_is_read(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf out = {0};
    assert_true(base64_decode(&out, "Zg", 2));
    assert_true(base64_decode(&out, "Zm8", 3));
    assert_string_equal(buf_str(&out), "ffo");
    buf_done(&out);
    assert_true(base64_decode(&out, "-_-_", 4));
    assert_true(base64_decode(&out, "+/+/", 4));
    assert_memory_equal(out.p, out.p + 3, 3);
}

static void what_is_not_base64_is_refused_and_leaves_the_buffer_alone(void **state)
{
    (void)state;
    static const char *const bad[] = {"Z",        "Zg=",  "Zg===",  "Zm9v=", "=",   "Zm 9",
                                      "Zg==Zg==", "Zh==", "Zm9v\n", "Zm9*",  "===="};
    _cleanup_buf_ struct buf out = {0};
    buf_adds(&out, "kept");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (base64_decode(&out, bad[i], strlen(bad[i])))
            fail_msg("accepted '%s'", bad[i]);
        assert_string_equal(buf_str(&out), "kept");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_vectors_of_the_standard_go_both_ways),
        cmocka_unit_test(all_bytes_survive),
        cmocka_unit_test(padding_may_be_missing_and_the_url_alphabet_is_read),
        cmocka_unit_test(what_is_not_base64_is_refused_and_leaves_the_buffer_alone),
    };
    return cmocka_run_group_tests_name("base/base64", tests, NULL, NULL);
}
