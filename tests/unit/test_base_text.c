#include "tests/lib/unit.h"

#include "base/json.h"
#include "base/strv.h"
#include "base/text.h"

static const char *const known[] = {"allow_write", "deny_read", "memory", "pids", "network", NULL};

static void a_typo_finds_its_word(void **state)
{
    (void)state;
    assert_string_equal(text_nearest("alow_write", known), "allow_write");
    assert_string_equal(text_nearest("deny_raed", known), "deny_read");
    assert_string_equal(text_nearest("memroy", known), "memory");
    assert_string_equal(text_nearest("pid", known), "pids");
}

static void a_stranger_finds_nothing(void **state)
{
    (void)state;
    char longest[200];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(text_nearest("kubernetes", known));
    assert_null(text_nearest(longest, known));
    assert_null(text_nearest("", known));
}

static void control_characters_cannot_reach_a_terminal(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    text_add_safe(&b, "a\x1b[31mb\nc\td\x7f", 100);
    assert_string_equal(buf_str(&b), "a\\x1b[31mb\\nc\\td\\x7f");
    buf_done(&b);
    text_add_safe(&b, "abcdef", 3);
    assert_string_equal(buf_str(&b), "abc...");
}

static void json_escapes_what_a_sandbox_may_name(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct json j;
    json_start(&j, &b);
    json_obj(&j, NULL);
    json_str(&j, "q", "\"\\\n\x01");
    json_str(&j, "bad", "a\xff\xc0\x80z");
    json_str(&j, "surrogate", "\xed\xa0\x80");
    json_str(&j, "good", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\x87");
    json_str(&j, "none", NULL);
    json_end_obj(&j);
    assert_string_equal(buf_str(&b), "{\"q\":\"\\\"\\\\\\n\\u0001\",\"bad\":\"a\\ufffd\\ufffd\\ufffdz\","
                                     "\"surrogate\":\"\\ufffd\\ufffd\\ufffd\","
                                     "\"good\":\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\x87\",\"none\":null}");
    assert_true(json_may_hold("") && json_may_hold("\"\\\n\x01") &&
                json_may_hold("\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\x87"));
    assert_false(json_may_hold("a\xff") || json_may_hold("\xed\xa0\x80") || json_may_hold("\xc3"));
}

static void json_keeps_commas_and_nesting(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct json j;
    json_start(&j, &b);
    json_obj(&j, NULL);
    json_arr(&j, "a");
    json_u64(&j, NULL, UINT64_MAX);
    json_i64(&j, NULL, -1);
    json_obj(&j, NULL);
    json_end_obj(&j);
    json_end_arr(&j);
    json_bool(&j, "t", true);
    json_fixed(&j, "f", 1050, 3);
    json_fixed(&j, "i", 7, 0);
    json_end_obj(&j);
    assert_string_equal(buf_str(&b), "{\"a\":[18446744073709551615,-1,{}],\"t\":true,\"f\":1.050,\"i\":7}");
}

static void a_string_vector_is_always_an_argv(void **state)
{
    (void)state;
    _cleanup_strv_ struct strv s = {0};
    for (int i = 0; i < 40; i++) {
        strv_add(&s, i % 2 ? "odd" : "even");
        assert_null(s.v[s.n]);
    }
    assert_int_equal(s.n, 40);
    assert_true(strv_has(&s, "odd"));
    assert_false(strv_has(&s, "od"));
}

static void a_buffer_grows_and_holds_nul_bytes(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    assert_string_equal(buf_str(&b), "");
    buf_add(&b, "a\0b", 3);
    assert_int_equal(b.n, 3);
    assert_memory_equal(b.p, "a\0b", 4);
    for (int i = 0; i < 1000; i++)
        buf_addf(&b, "%03d", i);
    assert_int_equal(b.n, 3003);
    assert_string_equal(b.p + 3000, "999");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_typo_finds_its_word),
        cmocka_unit_test(a_stranger_finds_nothing),
        cmocka_unit_test(control_characters_cannot_reach_a_terminal),
        cmocka_unit_test(json_escapes_what_a_sandbox_may_name),
        cmocka_unit_test(json_keeps_commas_and_nesting),
        cmocka_unit_test(a_string_vector_is_always_an_argv),
        cmocka_unit_test(a_buffer_grows_and_holds_nul_bytes),
    };
    return cmocka_run_group_tests_name("base/text", tests, NULL, NULL);
}
