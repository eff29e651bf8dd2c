#include "tests/lib/unit.h"

#include "base/base64.h"
#include "base/mem.h"
#include "egress/secrets/lockmem.h"
#include "egress/secrets/secrets-int.h"
#include "http/url.h"

#define SECRET "s3cr3t/key+value=="

static struct redactor *make(const char *value, const char *user, const char *with)
{
    struct redact_value v = {value, strlen(value), user};
    struct redact_set *set = redact_set_new(&v, 1);
    struct redactor *r = redactor_new(set, &with, 1);
    redact_set_unref(set);
    return r;
}

/* In pieces of `step` bytes; 0: as a whole. */
static void run(struct redactor *r, const char *text, size_t n, size_t step, struct buf *out)
{
    for (size_t i = 0; i < n; i += step ? step : n)
        redact_feed(r, text + i, step && n - i > step ? step : n - i, out);
    redact_end(r, out);
}

static void becomes(const char *value, const char *text, const char *want, uint64_t count)
{
    size_t n = strlen(text);
    for (size_t step = 0; step <= n; step++) {
        struct redactor *r = make(value, "user", "<P>");
        _cleanup_buf_ struct buf out = {0};
        run(r, text, n, step, &out);
        if (strcmp(buf_str(&out), want) != 0 || redact_count(r) != count)
            fail_msg("'%s' in steps of %zu: '%s' (%u), not '%s'", text, step, buf_str(&out), (unsigned)redact_count(r),
                     want);
        redactor_free(r);
    }
}

static void a_value_is_replaced_wherever_the_stream_is_cut(void **state)
{
    (void)state;
    becomes(SECRET, SECRET, "<P>", 1);
    becomes(SECRET, "a" SECRET "b", "a<P>b", 1);
    becomes(SECRET, SECRET SECRET, "<P><P>", 2);
    becomes(SECRET, "nothing to see s3cr3t/key+valu", "nothing to see s3cr3t/key+valu", 0);
    becomes(SECRET, "s3cr3t/s3cr3t/key+value==s3cr3t/", "s3cr3t/<P>s3cr3t/", 1);
    becomes(SECRET, "", "", 0);
    becomes(SECRET, "{\"headers\": {\"Authorization\": \"Bearer " SECRET "\"}}\n",
            "{\"headers\": {\"Authorization\": \"Bearer <P>\"}}\n", 1);
}

static void bytes_of_utf8_around_a_value_stay_whole(void **state)
{
    (void)state;
    becomes("gehe\xc3\xaf"
            "mnis\xe2\x82\xac",
            "\xe2\x82\xac gehe\xc3\xaf"
            "mnis\xe2\x82\xac\xe2\x82\xac",
            "\xe2\x82\xac <P>\xe2\x82\xac", 1);
}

static void percent_encoded_forms_are_replaced_in_both_cases(void **state)
{
    (void)state;
    becomes(SECRET, "?k=s3cr3t%2Fkey%2Bvalue%3D%3D&x", "?k=<P>&x", 1);
    becomes(SECRET, "?k=s3cr3t%2fkey%2bvalue%3d%3d&x", "?k=<P>&x", 1);
    becomes(SECRET, "?k=s3cr3t/key%2Bvalue%3D%3D&x", "?k=<P>&x", 1);
}

static void a_value_inside_a_json_string_is_replaced(void **state)
{
    (void)state;
    becomes("line one\n\"two\"/\\end", "{\"v\":\"line one\\n\\\"two\\\"/\\\\end\"}", "{\"v\":\"<P>\"}", 1);
    becomes("line one\n\"two\"/\\end", "{\"v\":\"line one\\n\\\"two\\\"\\/\\\\end\"}", "{\"v\":\"<P>\"}", 1);
}

/* At every alignment, of every length, in both alphabets: nothing of the value is left but what the neighbours
 * determine too. */
static void base64_of_something_with_the_value_in_it_is_replaced(void **state)
{
    (void)state;
    static const char value[] = "\xfb\xff?>~key-0123456789?>\xff";
    for (size_t before = 0; before < 7; before++)
        for (size_t after = 0; after < 4; after++)
            for (unsigned url = 0; url < 2; url++) {
                _cleanup_buf_ struct buf plain = {0}, text = {0}, out = {0};
                struct redactor *r = make(value, NULL, "<P>");
                buf_add(&plain, "user:x:", before);
                buf_adds(&plain, value);
                buf_add(&plain, "tail", after);
                base64_encode(&text, plain.p, plain.n);
                for (size_t i = 0; url && i < text.n; i++)
                    text.p[i] = text.p[i] == '+' ? '-' : text.p[i] == '/' ? '_' : text.p[i];
                run(r, text.p, text.n, 3, &out);
                assert_int_equal(redact_count(r), 1);
                const char *at = strstr(buf_str(&out), "<P>");
                assert_non_null(at);
                assert_true((size_t)(at - out.p) <= (before * 8 + 5) / 6);
                assert_true(strlen(at + 3) <= (after * 8 + 5) / 6 + 3 + 1);
                redactor_free(r);
            }
}

static void the_basic_form_of_a_known_user_leaves_nothing(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf text = {0};
    base64_encode(&text, "user:" SECRET, strlen("user:" SECRET));
    becomes(SECRET, buf_str(&text), "<P>", 1);
}

static void several_values_get_their_own_placeholders(void **state)
{
    (void)state;
    static const char *const with[] = {"<A>", "<B>", "[redacted:c]"};
    const struct redact_value v[] = {{"first-value", 11, NULL}, {"second-value", 12, NULL}, {"value-first", 11, NULL}};
    static const char text[] = "first-value second-value first-value-first second-value-first";
    struct redact_set *set = redact_set_new(v, 3);
    for (size_t step = 0; step < sizeof text; step++) {
        struct redactor *r = redactor_new(set, with, 3);
        _cleanup_buf_ struct buf out = {0};
        run(r, text, strlen(text), step, &out);
        assert_string_equal(buf_str(&out), "<A> <B> <A> <B>");
        redactor_free(r);
    }
    redact_set_unref(set);
}

static void one_value_inside_another_hides_both(void **state)
{
    (void)state;
    static const char *const with[] = {"<short>", "<long>"};
    const struct redact_value v[] = {{"inner-value", 11, NULL}, {"an inner-value and more", 23, NULL}};
    static const char text[] = "an inner-value and more, an inner-value and mor";
    struct redact_set *set = redact_set_new(v, 2);
    for (size_t step = 0; step < sizeof text; step++) {
        struct redactor *r = redactor_new(set, with, 2);
        _cleanup_buf_ struct buf out = {0};
        run(r, text, strlen(text), step, &out);
        assert_string_equal(buf_str(&out), "<long>, an <short> and mor");
        redactor_free(r);
    }
    redact_set_unref(set);
}

static void a_value_that_repeats_itself_is_one_span(void **state)
{
    (void)state;
    becomes("aaaaaaaa", "xaaaaaaaaaaaay", "x<P>y", 1);
    becomes("abababab", "ababababab!", "<P>!", 1);
}

static void short_values_are_left_alone(void **state)
{
    (void)state;
    becomes("1234567", "1234567", "1234567", 0);
    becomes("12345678", "12345678", "<P>", 1);
}

/* Longer than what is held back: every byte of it goes, however the stream is cut, and what only begins like it goes as
 * far as it agrees. */
static void a_long_value_goes_to_its_last_byte(void **state)
{
    (void)state;
    char value[3000], text[8000];
    static const size_t steps[] = {0, 1, 7, 255, 256, 257, 2999, 3000, 3001};
    for (size_t i = 0; i < sizeof value - 1; i++)
        value[i] = (char)('a' + (i * i + i / 7) % 26);
    value[sizeof value - 1] = '\0';
    (void)snprintf(text, sizeof text, "<%s>%s|%.1000s|", value, value, value);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct redactor *r = make(value, NULL, "P");
        _cleanup_buf_ struct buf out = {0};
        run(r, text, strlen(text), steps[i], &out);
        assert_string_equal(buf_str(&out), "<P>P|P|");
        redactor_free(r);
    }
}

static void two_long_values_that_begin_alike_are_both_hidden(void **state)
{
    (void)state;
    char a[400], b[500], text[1000];
    static const char *const with[] = {"A", "B"};
    memset(a, 'x', sizeof a);
    memset(b, 'x', sizeof b);
    memcpy(a + 390, "aaaaaaaaa", 10);
    memcpy(b + 390, "bbbbbbbbb", 9);
    b[499] = '\0';
    const struct redact_value v[] = {{a, strlen(a), NULL}, {b, strlen(b), NULL}};
    (void)snprintf(text, sizeof text, "1%s2%s3", a, b);
    for (size_t step = 0; step < 300; step += 13) {
        struct redact_set *set = redact_set_new(v, 2);
        struct redactor *r = redactor_new(set, with, 2);
        _cleanup_buf_ struct buf out = {0};
        redact_set_unref(set);
        run(r, text, strlen(text), step, &out);
        assert_int_equal(out.n, 5);
        assert_true(out.p[0] == '1' && out.p[2] == '2' && out.p[4] == '3');
        redactor_free(r);
    }
}

static void nothing_is_held_back_that_begins_nothing(void **state)
{
    (void)state;
    struct redactor *r = make(SECRET, NULL, "<P>");
    _cleanup_buf_ struct buf out = {0};
    redact_feed(r, "data: hello\n\n", 13, &out);
    assert_string_equal(buf_str(&out), "data: hello\n\n");
    redact_feed(r, "data: s3cr", 10, &out);
    assert_string_equal(buf_str(&out), "data: hello\n\ndata: ");
    redact_feed(r, "!", 1, &out);
    assert_string_equal(buf_str(&out), "data: hello\n\ndata: s3cr!");
    redactor_free(r);
}

static void a_header_is_looked_at_as_a_whole_and_does_not_disturb_the_stream(void **state)
{
    (void)state;
    struct redactor *r = make(SECRET, NULL, "<P>");
    _cleanup_buf_ struct buf out = {0};
    _cleanup_free_ char *new = NULL;
    redact_feed(r, "s3cr3t", 6, &out);
    assert_false(redact_value(r, "/key+value==", &new));
    assert_null(new);
    assert_true(redact_value(r, "token=" SECRET "; Path=/", &new));
    assert_string_equal(new, "token=<P>; Path=/");
    redact_feed(r, "/key+value==", 12, &out);
    redact_end(r, &out);
    assert_string_equal(buf_str(&out), "<P>");
    assert_int_equal(redact_count(r), 2);
    redactor_free(r);
}

/* A megabyte that is always about to match. */
static void a_hostile_stream_loses_nothing(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    char *text = xmalloc(n);
    _cleanup_buf_ struct buf out = {0};
    struct redactor *r = make("aaaaaaaaaaaaaaab", NULL, "");
    memset(text, 'a', n);
    run(r, text, n, 4096, &out);
    assert_int_equal(out.n, n);
    assert_memory_equal(out.p, text, n);
    redactor_free(r);
    free(text);
}

static void too_many_or_too_large_values_are_refused(void **state)
{
    (void)state;
    struct redact_value v[REDACT_VALUES_MAX + 1];
    char *large = xmalloc(SECRET_VALUE_MAX);
    size_t before = lockmem_used();
    memset(large, '/', SECRET_VALUE_MAX);
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        v[i] = (struct redact_value){"some value", 10, NULL};
    assert_null(redact_set_new(v, ARRAY_LEN(v)));
    for (size_t i = 0; i < REDACT_VALUES_MAX; i++) {
        large[i] = (char)('a' + i);
        v[i] = (struct redact_value){large + i, SECRET_VALUE_MAX - i, NULL};
    }
    assert_null(redact_set_new(v, REDACT_VALUES_MAX));
    struct redact_set *one = redact_set_new(v, 1);
    assert_non_null(one);
    redact_set_unref(one);
    assert_int_equal(lockmem_used(), before);
    free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_replaced_wherever_the_stream_is_cut),
        cmocka_unit_test(bytes_of_utf8_around_a_value_stay_whole),
        cmocka_unit_test(percent_encoded_forms_are_replaced_in_both_cases),
        cmocka_unit_test(a_value_inside_a_json_string_is_replaced),
        cmocka_unit_test(base64_of_something_with_the_value_in_it_is_replaced),
        cmocka_unit_test(the_basic_form_of_a_known_user_leaves_nothing),
        cmocka_unit_test(several_values_get_their_own_placeholders),
        cmocka_unit_test(one_value_inside_another_hides_both),
        cmocka_unit_test(a_value_that_repeats_itself_is_one_span),
        cmocka_unit_test(short_values_are_left_alone),
        cmocka_unit_test(a_long_value_goes_to_its_last_byte),
        cmocka_unit_test(two_long_values_that_begin_alike_are_both_hidden),
        cmocka_unit_test(nothing_is_held_back_that_begins_nothing),
        cmocka_unit_test(a_header_is_looked_at_as_a_whole_and_does_not_disturb_the_stream),
        cmocka_unit_test(a_hostile_stream_loses_nothing),
        cmocka_unit_test(too_many_or_too_large_values_are_refused),
    };
    return cmocka_run_group_tests_name("egress/redact", tests, NULL, NULL);
}
