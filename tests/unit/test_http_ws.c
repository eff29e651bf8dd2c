/* Unit tests: frames of WebSockets: read, given to the caller, written anew; and frames that break the protocol. */
#include "lib/unit.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/ws.h"
#include "ws-frames.h"

enum { TEXT_MAX = 256 * 1024 };

/* ---- a client's ---- */

static unsigned messages;
static bool brackets(void *arg, const char *p, size_t n, struct buf *out)
{
    (void)arg;
    messages++;
    if (memmem(p, n, "stop", 4))
        return false;
    _cleanup_buf_ struct buf text = {0};
    buf_addf(&text, "<%.*s>", (int)n, p);
    ws_add_text(out, buf_str(&text), text.n);
    return true;
}

/* Through the filter, `step` bytes at a time. */
static bool client(const struct buf *in, size_t step, struct buf *out)
{
    struct ws_client *w = ws_client_new(TEXT_MAX, brackets, NULL);
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
    _cleanup_free_ char *much = xmalloc(TEXT_MAX + 1);
    (void)state;
    memset(much, 'x', TEXT_MAX + 1);
    frame(&in, 0x81, much, TEXT_MAX + 1, MASK);
    FRAME(&in, 0x01, "begin", MASK);
    frame(&in, 0x80, much, TEXT_MAX, MASK);
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
    _cleanup_free_ char *much = xmalloc(TEXT_MAX);
    (void)state;
    memset(much, 'x', TEXT_MAX);
    frame(&in, 0x81, much, TEXT_MAX, MASK);
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
        struct ws_client *w = ws_client_new(TEXT_MAX, brackets, NULL);
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

/* Counts messages, holds back a piece that ends in '-', and lets four bytes of a control frame pass. */
struct listener {
    struct buf held;
    unsigned messages;
};

static void listener_on_data(void *arg, const void *p, size_t n, bool last, struct buf *out)
{
    struct listener *l = arg;
    buf_add(&l->held, p, n);
    l->messages += last;
    if (!last && l->held.n > 0 && l->held.p[l->held.n - 1] == '-')
        return;
    buf_add(out, buf_str(&l->held), l->held.n);
    l->held.n = 0;
}

static size_t listener_on_control(void *arg, uint8_t opcode, const void *p, size_t n)
{
    (void)arg;
    (void)p;
    assert_true(opcode >= WS_CLOSE && opcode <= WS_PONG);
    return n < 4 ? n : 4;
}

static bool server(const struct buf *in, size_t step, struct buf *out, unsigned *ret_messages)
{
    static const struct ws_server_events events = {listener_on_data, listener_on_control};
    struct listener l = {0};
    struct ws_server *w = ws_server_new(&events, &l);
    _cleanup_buf_ struct buf raw = {0};
    bool ok = true;
    for (size_t i = 0; i < in->n && ok; i += step)
        ok = ws_server_feed(w, in->p + i, in->n - i < step ? in->n - i : step, &raw);
    ws_server_free(w);
    buf_done(&l.held);
    show(&raw, out);
    *ret_messages = l.messages;
    return ok;
}

static void test_messages_leave_as_the_caller_wants(void **state)
{
    _cleanup_buf_ struct buf in = {0}, out = {0};
    unsigned count;
    (void)state;
    FRAME(&in, 0x81, "whole", 0);
    FRAME(&in, 0x02, "held-", 0);
    FRAME(&in, 0x89, "pingpong", 0);
    FRAME(&in, 0x00, "back", 0);
    FRAME(&in, 0x80, " end-", 0);
    FRAME(&in, 0x81, "", 0);
    FRAME(&in, 0x88, "\x03\xe8", 0);
    assert_true(server(&in, in.n, &out, &count));
    assert_string_equal(buf_str(&out), "81:whole|89:ping|02:held-back|80: end-|81:|88:\x03\xe8|");
    assert_int_equal(count, 3);
}

/* One message may leave in more frames if it came in more pieces; put together they are the same. */
static void test_no_cut_of_the_stream_changes_a_message(void **state)
{
    static const size_t lengths[] = {1, 125, 126, 127, 65535, 65536};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        for (size_t step = 1; step < 20000; step = step * 5 + 1) {
            _cleanup_buf_ struct buf in = {0}, out = {0};
            _cleanup_free_ char *much = xmalloc(lengths[i]);
            unsigned count;
            size_t letters = 0;
            memset(much, 'z', lengths[i]);
            frame(&in, 0x82, much, lengths[i], 0);
            assert_true(server(&in, step, &out, &count));
            for (size_t k = 0; k < out.n; k++)
                letters += out.p[k] == 'z';
            assert_int_equal(letters, lengths[i]);
            assert_int_equal(count, 1);
        }
}

static void test_a_server_that_breaks_the_protocol_ends_the_filter(void **state)
{
    static const struct {
        unsigned first, mask;
    } wrong[] = {{0x81, MASK}, {0xc1, 0}, {0x83, 0}, {0x80, 0}, {0x09, 0}, {0x8b, 0}};
    char long_ping[126] = "";
    _cleanup_buf_ struct buf ping = {0}, none = {0};
    unsigned count;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        _cleanup_buf_ struct buf in = {0}, out = {0};
        FRAME(&in, wrong[i].first, "text", wrong[i].mask);
        assert_false(server(&in, 2, &out, &count));
        assert_int_equal(out.n, 0);
    }
    frame(&ping, 0x89, long_ping, sizeof long_ping, 0);
    assert_false(server(&ping, ping.n, &none, &count));
    assert_int_equal(none.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_messages_are_whole_and_the_rest_passes),
        cmocka_unit_test(test_a_message_that_is_too_long_passes_untouched),
        cmocka_unit_test(test_a_message_of_just_the_limit_is_looked_at),
        cmocka_unit_test(test_a_client_that_breaks_the_protocol_is_left_to_the_server),
        cmocka_unit_test(test_a_message_may_be_refused),
        cmocka_unit_test(test_messages_leave_as_the_caller_wants),
        cmocka_unit_test(test_no_cut_of_the_stream_changes_a_message),
        cmocka_unit_test(test_a_server_that_breaks_the_protocol_ends_the_filter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
