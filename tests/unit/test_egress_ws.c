/* Unit tests: secrets are taken out of the messages of a WebSocket's server. */
#include "lib/unit.h"

#include <string.h>

#include "base/cleanup.h"
#include "egress/secrets/secrets-int.h"
#include "http/ws.h"
#include "ws-frames.h"

#define VALUE "the-secret-value-0123456789"
#define SHOWN "[placeholder]"

static bool server(const struct buf *in, size_t step, struct buf *out, uint64_t *count)
{
    static const struct redact_value value = {VALUE, sizeof VALUE - 1, NULL};
    static const char *const with[] = {SHOWN};
    struct redact_set *set = redact_set_new(&value, 1);
    struct redactor *r = redactor_new(set, with, 1);
    struct ws_server *w = ws_server_new(&redact_messages, r);
    _cleanup_buf_ struct buf raw = {0};
    bool ok = true;
    for (size_t i = 0; i < in->n && ok; i += step)
        ok = ws_server_feed(w, in->p + i, in->n - i < step ? in->n - i : step, &raw);
    *count = redact_count(r);
    ws_server_free(w);
    redactor_free(r);
    redact_set_unref(set);
    show(&raw, out);
    return ok;
}

static void test_secrets_are_taken_out_of_messages(void **state)
{
    _cleanup_buf_ struct buf in = {0}, out = {0};
    uint64_t count;
    (void)state;
    FRAME(&in, 0x81, "a " VALUE " b", 0);
    FRAME(&in, 0x82, VALUE, 0);
    FRAME(&in, 0x01, "the-secret", 0);
    FRAME(&in, 0x8a, "pong", 0);
    FRAME(&in, 0x80, "-value-0123456789.", 0);
    FRAME(&in, 0x81, "", 0);
    assert_true(server(&in, in.n, &out, &count));
    assert_string_equal(buf_str(&out), "81:a " SHOWN " b|82:" SHOWN "|8a:pong|81:" SHOWN ".|81:|");
    assert_int_equal(count, 3);
}

static void test_no_cut_of_the_stream_lets_a_secret_through(void **state)
{
    (void)state;
    for (size_t step = 1; step < 60; step++) {
        _cleanup_buf_ struct buf in = {0}, out = {0};
        uint64_t count;
        FRAME(&in, 0x01, "x the-sec", 0);
        FRAME(&in, 0x80, "ret-value-0123456789 y", 0);
        FRAME(&in, 0x81, VALUE VALUE, 0);
        assert_true(server(&in, step, &out, &count));
        assert_int_equal(count, 3);
        assert_null(strstr(buf_str(&out), "secret"));
    }
}

static void test_control_frames_lose_what_they_may_not_show(void **state)
{
    _cleanup_buf_ struct buf in = {0}, out = {0};
    uint64_t count;
    (void)state;
    FRAME(&in, 0x8a, "x " VALUE, 0);
    FRAME(&in, 0x88, "\x03\xe8 for " VALUE, 0);
    assert_true(server(&in, 7, &out, &count));
    assert_string_equal(buf_str(&out), "8a:|88:\x03\xe8|");
}

static void test_frames_that_could_hide_something_end_it(void **state)
{
    static const struct {
        unsigned first, mask;
    } wrong[] = {{0x81, MASK}, {0xc1, 0}, {0x83, 0}, {0x80, 0}, {0x09, 0}, {0x8b, 0}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        _cleanup_buf_ struct buf in = {0}, out = {0};
        uint64_t count;
        FRAME(&in, wrong[i].first, "text", wrong[i].mask);
        assert_false(server(&in, 2, &out, &count));
        assert_int_equal(out.n, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_secrets_are_taken_out_of_messages),
        cmocka_unit_test(test_no_cut_of_the_stream_lets_a_secret_through),
        cmocka_unit_test(test_control_frames_lose_what_they_may_not_show),
        cmocka_unit_test(test_frames_that_could_hide_something_end_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
