#include "tests/lib/unit.h"

#include "http/url.h"

static struct err err;

static void decoding_is_strict(void **state)
{
    (void)state;
    static const char *const bad[] = {"%", "a%", "a%2", "%2g", "%g0", "%%20", "%00", "a%0", "%-1", "% 1"};
    _cleanup_buf_ struct buf b = {0};
    assert_int_equal(url_decode("a%20b%2Fc%C3%a4", 15, URL_PLUS_LITERAL, &b, &err), 0);
    assert_string_equal(buf_str(&b), "a b/c\xc3\xa4");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (url_decode(bad[i], strlen(bad[i]), URL_PLUS_LITERAL, &b, &err) != -1)
            fail_msg("accepted '%s'", bad[i]);
        assert_string_equal(buf_str(&b), "a b/c\xc3\xa4");
        assert_int_equal(err.code, ERR_USAGE);
    }
    assert_int_equal(url_decode("ab%zz", 5, URL_PLUS_LITERAL, &b, &err), -1);
    assert_string_equal(err.msg, "bad percent-escape '%zz' at byte 2; expected '%' and two hexadecimal digits");
    assert_int_equal(url_decode("a\0b", 3, URL_PLUS_LITERAL, &b, &err), -1);
}

static void plus_is_a_space_only_in_forms(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf a = {0}, b = {0};
    assert_int_equal(url_decode("a+b%2B", 6, URL_PLUS_LITERAL, &a, &err), 0);
    assert_int_equal(url_decode("a+b%2B", 6, URL_PLUS_SPACE, &b, &err), 0);
    assert_string_equal(buf_str(&a), "a+b+");
    assert_string_equal(buf_str(&b), "a b+");
}

static void encoding_keeps_what_needs_no_escape(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    url_encode(&b, "a-b._~/c d\xff\0", 12, "/");
    assert_string_equal(buf_str(&b), "a-b._~/c%20d%FF%00");
    buf_done(&b);
    url_encode(&b, "/&=", 3, "");
    assert_string_equal(buf_str(&b), "%2F%26%3D");
}

static void a_query_is_read_pair_by_pair(void **state)
{
    (void)state;
    const char *q = "a=1&&b&=x&c=d=e&";
    struct url_pair p;
    assert_true(url_query_next(&q, &p));
    assert_true(p.key_n == 1 && *p.key == 'a' && p.value_n == 1 && *p.value == '1');
    assert_true(url_query_next(&q, &p));
    assert_true(p.key_n == 1 && *p.key == 'b' && p.value_n == 0);
    assert_true(url_query_next(&q, &p));
    assert_true(p.key_n == 0 && p.value_n == 1);
    assert_true(url_query_next(&q, &p));
    assert_true(p.key_n == 1 && p.value_n == 3 && memcmp(p.value, "d=e", 3) == 0);
    assert_false(url_query_next(&q, &p));
    q = NULL;
    assert_false(url_query_next(&q, &p));
}

static void a_value_is_found_by_its_decoded_key(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    assert_int_equal(url_query_get("x=1&pa%74h=%2Ftmp%2Fa+b&path=second", "path", URL_PLUS_LITERAL, &b, &err), 1);
    assert_string_equal(buf_str(&b), "/tmp/a+b");
    assert_int_equal(url_query_get("x=1", "path", URL_PLUS_LITERAL, &b, &err), 0);
    assert_int_equal(url_query_get(NULL, "path", URL_PLUS_LITERAL, &b, &err), 0);
    assert_int_equal(url_query_get("path=%", "path", URL_PLUS_LITERAL, &b, &err), -1);
    assert_string_equal(
        err.msg, "query parameter 'path': bad percent-escape '%' at byte 0; expected '%' and two hexadecimal digits");
}

static void the_metadata_filter_is_unescaped_three_times(void **state)
{
    (void)state;
    static const char wire[] = "a%252520b%3Dc%252526d%26e%3Df";
    _cleanup_strv_ struct strv pairs = {0};
    assert_int_equal(url_metadata(wire, strlen(wire), &pairs, &err), 0);
    assert_int_equal(pairs.n, 4);
    assert_string_equal(pairs.v[0], "a b");
    assert_string_equal(pairs.v[1], "c&d");
    assert_string_equal(pairs.v[2], "e");
    assert_string_equal(pairs.v[3], "f");
}

static void a_metadata_filter_has_limits_and_precise_errors(void **state)
{
    (void)state;
    _cleanup_strv_ struct strv pairs = {0};
    _cleanup_buf_ struct buf many = {0};
    for (int i = 0; i <= URL_METADATA_MAX; i++)
        buf_addf(&many, "k%d%%3Dv%%26", i);
    assert_int_equal(url_metadata(many.p, many.n, &pairs, &err), -1);
    assert_string_equal(err.msg, "metadata filter: more than 64 pairs");
    assert_int_equal(url_metadata("%3Dv", 4, &pairs, &err), -1);
    assert_int_equal(url_metadata("a%25252", 7, &pairs, &err), -1);
    assert_int_equal(url_metadata("", 0, &pairs, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_is_strict),
        cmocka_unit_test(plus_is_a_space_only_in_forms),
        cmocka_unit_test(encoding_keeps_what_needs_no_escape),
        cmocka_unit_test(a_query_is_read_pair_by_pair),
        cmocka_unit_test(a_value_is_found_by_its_decoded_key),
        cmocka_unit_test(the_metadata_filter_is_unescaped_three_times),
        cmocka_unit_test(a_metadata_filter_has_limits_and_precise_errors),
    };
    return cmocka_run_group_tests_name("http/url", tests, NULL, NULL);
}
