/* Unit tests: messages of WebSockets on their way: held, given their secrets, searched; and frames that are none of that. */
#include "lib/unit.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/secrets-int.h"
#include "egress/ws.h"

#define VALUE "the-secret-value-0123456789"
#define SHOWN "[placeholder]"

/* A frame; mask 0: none. */
static void frame(struct buf *out, unsigned first, const void *p, size_t n, unsigned mask)
{
    uint8_t head[14] = {(uint8_t)first, mask ? 0x80 : 0};
    size_t size = 2;
    if (n < 126) {
        head[1] |= (uint8_t)n;
    } else if (n < 65536) {
        head[1] |= 126;
        head[2] = (uint8_t)(n >> 8);
        head[3] = (uint8_t)n;
        size = 4;
    } else {
        head[1] |= 127;
        for (unsigned i = 0; i < 8; i++)
            head[2 + i] = (uint8_t)((uint64_t)n >> (56 - 8 * i));
        size = 10;
    }
    for (unsigned i = 0; mask && i < 4; i++)
        head[size++] = (uint8_t)(mask >> (8 * i));
    buf_add(out, head, size);
    for (size_t i = 0; i < n; i++)
        buf_addc(out, (char)(((const uint8_t *)p)[i] ^ (mask ? (mask >> (8 * (i & 3))) & 0xff : 0)));
}

/* Frames as "first byte in hex:payload|". */
static void show(const struct buf *in, struct buf *out)
{
    const uint8_t *p = (const uint8_t *)in->p, *end = p + in->n;
    while (p < end) {
        unsigned first = *p++;
        bool masked = *p & 0x80;
        uint64_t n = *p++ & 0x7f;
        unsigned wide = n == 126 ? 2 : n == 127 ? 8 : 0;
        for (unsigned i = 0; i < wide; i++)
            n = (i == 0 ? 0 : n << 8) | *p++;
        const uint8_t *mask = p;
        p += masked ? 4 : 0;
        assert_true((uint64_t)(end - p) >= n);
        buf_addf(out, "%02x:", first);
        for (uint64_t i = 0; i < n; i++)
            buf_addc(out, (char)(p[i] ^ (masked ? mask[i & 3] : 0)));
        buf_addc(out, '|');
        p += n;
    }
}

static unsigned messages;
static bool brackets(void *arg, const char *p, size_t n, struct buf *out)
{
    (void)arg;
    messages++;
    if (memmem(p, n, "stop", 4))
        return false;
    buf_addf(out, "<%.*s>", (int)n, p);
    return true;
}

/* Through the filter, `step` bytes at a time. */
static bool client(const struct buf *in, size_t step, struct buf *out)
{
    struct ws_client *w = ws_client_new(brackets, NULL);
    _cleanup_buf_ struct buf raw = {0};
    bool ok = true;
    messages = 0;
    for (size_t i = 0; i < in->n && ok; i += step)
        ok = ws_client_feed(w, in->p + i, in->n - i < step ? in->n - i : step, &raw);
    ws_client_free(w);
    if (ok)
        show(&raw, out);
    return ok;
}

#define FRAME(b, first, text, mask) frame(b, first, text, strlen(text), mask)
enum { MASK = 0x1badc0de };

static void test_text_messages_are_whole_and_the_rest_passes(void **state)
{
    (void)state;
    for (size_t step = 1; step < 40; step++) {
        _cleanup_buf_ struct buf in = {0}, out = {0};
        FRAME(&in, 0x81, "one", MASK);
        FRAME(&in, 0x01, "t", MASK);
        FRAME(&in, 0x89, "ping", MASK);
        FRAME(&in, 0x00, "w", 0x01020304);
        FRAME(&in, 0x80, "o", MASK);
        FRAME(&in, 0x02, "bin", MASK);
        FRAME(&in, 0x80, "ary", MASK);
        FRAME(&in, 0x81, "", MASK);
        FRAME(&in, 0x88, "\x03\xe8", MASK);
        assert_true(client(&in, step, &out));
        assert_string_equal(buf_str(&out), "81:<one>|89:ping|81:<two>|02:bin|80:ary|81:<>|88:\x03\xe8|");
    }
}

static void test_a_message_that_is_too_long_passes_untouched(void **state)
{
    _cleanup_buf_ struct buf in = {0}, out = {0};
    _cleanup_free_ char *much = xmalloc(SECRET_BODY_MAX + 1);
    (void)state;
    memset(much, 'x', SECRET_BODY_MAX + 1);
    frame(&in, 0x81, much, SECRET_BODY_MAX + 1, MASK);
    FRAME(&in, 0x01, "begin", MASK);
    frame(&in, 0x80, much, SECRET_BODY_MAX, MASK);
    FRAME(&in, 0x81, "next", MASK);
    assert_true(client(&in, 5000, &out));
    assert_int_equal(messages, 1);
    assert_memory_equal(out.p, "81:xxx", 6);
    assert_non_null(strstr(out.p, "x|01:begin|80:xxx"));
    assert_non_null(strstr(out.p, "x|81:<next>|"));
}

static void test_a_message_of_just_the_limit_is_looked_at(void **state)
{
    _cleanup_buf_ struct buf in = {0}, out = {0};
    _cleanup_free_ char *much = xmalloc(SECRET_BODY_MAX);
    (void)state;
    memset(much, 'x', SECRET_BODY_MAX);
    frame(&in, 0x81, much, SECRET_BODY_MAX, MASK);
    assert_true(client(&in, 65536, &out));
    assert_int_equal(messages, 1);
}

static void test_a_client_that_breaks_the_protocol_is_left_to_the_server(void **state)
{
    static const struct {
        unsigned first, mask;
    } wrong[] = {{0x81, 0}, {0xc1, MASK}, {0x83, MASK}, {0x80, MASK}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        _cleanup_buf_ struct buf in = {0}, raw = {0};
        struct ws_client *w = ws_client_new(brackets, NULL);
        messages = 0;
        FRAME(&in, wrong[i].first, "text", wrong[i].mask);
        FRAME(&in, 0x81, "text", MASK);
        assert_true(ws_client_feed(w, in.p, in.n, &raw));
        ws_client_free(w);
        assert_int_equal(messages, 0);
        assert_int_equal(raw.n, in.n);
        assert_memory_equal(raw.p, in.p, in.n);
    }
}

static void test_a_message_may_be_refused(void **state)
{
    _cleanup_buf_ struct buf in = {0}, out = {0};
    (void)state;
    FRAME(&in, 0x81, "go", MASK);
    FRAME(&in, 0x81, "stop", MASK);
    assert_false(client(&in, 3, &out));
}

/* ---- a server's ---- */

static bool server(const struct buf *in, size_t step, struct buf *out, uint64_t *count)
{
    static const struct redact_value value = {VALUE, sizeof VALUE - 1, NULL};
    static const char *const with[] = {SHOWN};
    struct redact_set *set = redact_set_new(&value, 1);
    struct redactor *r = redactor_new(set, with, 1);
    struct ws_server *w = ws_server_new(r);
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
        cmocka_unit_test(test_text_messages_are_whole_and_the_rest_passes),
        cmocka_unit_test(test_a_message_that_is_too_long_passes_untouched),
        cmocka_unit_test(test_a_message_of_just_the_limit_is_looked_at),
        cmocka_unit_test(test_a_client_that_breaks_the_protocol_is_left_to_the_server),
        cmocka_unit_test(test_a_message_may_be_refused),
        cmocka_unit_test(test_secrets_are_taken_out_of_messages),
        cmocka_unit_test(test_no_cut_of_the_stream_lets_a_secret_through),
        cmocka_unit_test(test_control_frames_lose_what_they_may_not_show),
        cmocka_unit_test(test_frames_that_could_hide_something_end_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
