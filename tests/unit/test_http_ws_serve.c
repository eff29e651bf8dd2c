/* Unit tests: a WebSocket that we serve: handshake, messages, pings, closes of both sides, and clients that break the rules. */
#include "lib/unit.h"

#include "base/cleanup.h"
#include "http-world.h"
#include "http/ws-serve.h"
#include "ws-frames.h"

enum { MESSAGE_MAX = 100 };

#define FIELDS                                                                                          \
    "Host: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n" \
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

static const struct http_limits limits = {.connections = 50, .head_ms = 10000, .idle_ms = 60000};
static struct ws *socket_of_ours;
static struct buf heard;
static unsigned closes, writables;

static void on_message(void *arg, bool text, const void *p, size_t n)
{
    (void)arg;
    buf_addf(&heard, "%s:", text ? "text" : "bytes");
    buf_add(&heard, p, n);
    buf_addc(&heard, '|');
    if (n == 3 && memcmp(p, "bye", 3) == 0)
        ws_hang_up(socket_of_ours, WS_NORMAL, "as you wish");
    else
        (void)ws_send(socket_of_ours, text, p, n);
}
static void on_writable(void *arg)
{
    (void)arg;
    writables++;
}
static void on_closed(void *arg)
{
    (void)arg;
    closes++;
}

static void handler(void *ctx, struct http_req *r)
{
    static const struct ws_events events = {on_message, on_writable, on_closed};
    const char *why;
    _cleanup_buf_ struct buf offered = {0};
    (void)ctx;
    bool chosen = ws_offer(r, "want~", &offered);
    socket_of_ours = ws_serve(r, chosen ? buf_str(&offered) : NULL, MESSAGE_MAX, &events, NULL, &why);
    if (!socket_of_ours)
        http_reply(r, 400, "text/plain", why, strlen(why));
}

static int set_up(void **state)
{
    (void)state;
    socket_of_ours = NULL;
    heard = (struct buf){0};
    closes = writables = 0;
    world_start(&limits, handler);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(http_server_connections(world_server), 0);
    world_stop();
    buf_done(&heard);
    return 0;
}

static int opened(void)
{
    int fd = client();
    say(fd, "GET / HTTP/1.1\r\n" FIELDS "\r\n");
    expect(fd, "HTTP/1.1 101 Switching Protocols\r\n", false);
    assert_non_null(socket_of_ours);
    return fd;
}

static void put(int fd, const struct buf *b)
{
    assert_int_equal(send(fd, b->p, b->n, MSG_NOSIGNAL), b->n);
    turn();
}

/* What came, as frames; and whether the stream ended. */
static void expect_frames(int fd, const char *want, bool closed)
{
    _cleanup_buf_ struct buf raw = {0}, text = {0};
    bool eof;
    hear(fd, &raw, &eof);
    show(&raw, &text);
    assert_string_equal(buf_str(&text), want);
    assert_int_equal(eof, closed);
}

static void leave(int fd)
{
    (void)close(fd);
    turn();
}

static void the_handshake_is_that_of_the_rfc(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "GET / HTTP/1.1\r\n" FIELDS "Sec-WebSocket-Protocol: other, want~mine, want~second\r\n\r\n");
    _cleanup_buf_ struct buf b = {0};
    bool eof;
    hear(fd, &b, &eof);
    assert_non_null(strstr(buf_str(&b), "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
    assert_non_null(strstr(buf_str(&b), "sec-websocket-protocol: mine\r\n"));
    assert_non_null(strstr(buf_str(&b), "upgrade: websocket\r\n"));
    assert_false(eof);
    leave(fd);
    assert_int_equal(closes, 1);
}

static void wrong_handshakes_are_refused_by_name(void **state)
{
    static const struct {
        const char *request, *says;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "this address is a WebSocket"},
        {"POST / HTTP/1.1\r\nContent-Length: 0\r\n" FIELDS "\r\n", "this address is a WebSocket"},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n\r\n",
         "sec-websocket-version must be 13"},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: c2hvcnQ=\r\n\r\n",
         "sec-websocket-key must be 16 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int fd = client();
        say(fd, cases[i].request);
        expect(fd, cases[i].says, false);
        leave(fd);
    }
}

static void messages_are_whole_in_pieces_of_any_size(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf in = {0};
    int fd = opened();
    FRAME(&in, 0x81, "one", MASK);
    FRAME(&in, 0x01, "t", MASK);
    FRAME(&in, 0x89, "ping", MASK);
    FRAME(&in, 0x00, "w", 0x01020304);
    FRAME(&in, 0x80, "o", MASK);
    FRAME(&in, 0x82, "bin", MASK);
    FRAME(&in, 0x8a, "pong", MASK);
    FRAME(&in, 0x81, "", MASK);
    frame(&in, 0x81, "a\0b", 3, MASK);
    for (size_t i = 0; i < in.n; i++) {
        assert_int_equal(send(fd, in.p + i, 1, MSG_NOSIGNAL), 1);
        turn();
    }
    _cleanup_buf_ struct buf raw = {0}, text = {0};
    bool eof;
    hear(fd, &raw, &eof);
    show(&raw, &text);
    static const char want[] = "81:one|8a:ping|81:two|82:bin|81:|81:a\0b|";
    assert_int_equal(text.n, sizeof want - 1);
    assert_memory_equal(text.p, want, text.n);
    assert_int_equal(closes, 0);
    leave(fd);
    assert_int_equal(closes, 1);
}

static void a_client_that_closes_is_answered(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf in = {0};
    int fd = opened();
    FRAME(&in, 0x88, "\x03\xe8gone", MASK);
    FRAME(&in, 0x81, "too late", MASK);
    put(fd, &in);
    expect_frames(fd, "88:\x03\xe8|", true);
    assert_string_equal(buf_str(&heard), "");
    assert_int_equal(closes, 1);
    leave(fd);
}

static void our_close_waits_for_theirs(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf in = {0}, answer = {0};
    int fd = opened();
    FRAME(&in, 0x81, "bye", MASK);
    FRAME(&in, 0x81, "not heard", MASK);
    put(fd, &in);
    expect_frames(fd,
                  "88:\x03\xe8"
                  "as you wish|",
                  false);
    FRAME(&answer, 0x88, "\x03\xe8", MASK);
    put(fd, &answer);
    expect_frames(fd, "", true);
    assert_string_equal(buf_str(&heard), "text:bye|");
    leave(fd);
    assert_int_equal(closes, 0); /* it was the caller who hung up */
}

static void a_close_that_is_too_long_is_not_read_after_ours(void **state)
{
    (void)state;
    static const char long_reason[4096] = {'x'};
    static const unsigned firsts[] = {0x88, 0x89, 0x8f};
    for (size_t i = 0; i < ARRAY_LEN(firsts); i++) {
        _cleanup_buf_ struct buf in = {0};
        int fd = opened();
        FRAME(&in, 0x81, "bye", MASK);
        frame(&in, firsts[i], long_reason, sizeof long_reason, MASK);
        put(fd, &in);
        expect_frames(fd,
                      "88:\x03\xe8"
                      "as you wish|",
                      true);
        leave(fd);
    }
}

static void a_client_that_never_answers_our_close_is_cut(void **state)
{
    (void)state;
    for (int halves = 0; halves < 2; halves++) {
        _cleanup_buf_ struct buf in = {0};
        int fd = opened();
        FRAME(&in, halves ? 0x88 : 0x81, halves ? "" : "bye", MASK);
        put(fd, &in);
        assert_int_equal(http_server_connections(world_server), 1);
        pass(5001);
        assert_int_equal(http_server_connections(world_server), 0);
        (void)close(fd);
    }
}

static void clients_that_break_the_rules_are_told(void **state)
{
    static const struct {
        unsigned first;
        const char *payload;
        unsigned mask;
        const char *answer;
    } cases[] = {
        {0x81, "a", 0,
         "88:\x03\xea"
         "a client must mask its frames|"},
        {0xc1, "a", MASK,
         "88:\x03\xea"
         "no extension was negotiated|"},
        {0x80, "a", MASK,
         "88:\x03\xea"
         "wrong order of frames|"},
        {0x83, "a", MASK,
         "88:\x03\xea"
         "wrong order of frames|"},
        {0x09, "a", MASK,
         "88:\x03\xea"
         "wrong control frame|"},
        {0x8b, "a", MASK,
         "88:\x03\xea"
         "wrong control frame|"},
        {0x81, "\xff\xfe", MASK,
         "88:\x03\xef"
         "the text is not UTF-8|"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf in = {0}, raw = {0}, text = {0};
        bool eof;
        int fd = opened();
        FRAME(&in, cases[i].first, cases[i].payload, cases[i].mask);
        put(fd, &in);
        hear(fd, &raw, &eof);
        show(&raw, &text);
        assert_string_equal(buf_str(&text), cases[i].answer);
        assert_int_equal(closes, i + 1);
        leave(fd);
    }
    assert_string_equal(buf_str(&heard), "");
}

static void the_limit_holds_for_a_message_of_many_frames(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf in = {0};
    static const char piece[60] = {'x'};
    int fd = opened();
    frame(&in, 0x01, piece, sizeof piece, MASK);
    frame(&in, 0x80, piece, sizeof piece, MASK);
    put(fd, &in);
    expect_frames(fd, "88:\x03\xf1the message is too long|", true);
    assert_int_equal(closes, 1);
    leave(fd);
}

static void sending_says_when_to_stop(void **state)
{
    (void)state;
    static const char piece[32 * 1024] = {'x'};
    int fd = opened();
    unsigned sent = 0;
    while (ws_send(socket_of_ours, false, piece, sizeof piece) && sent < 1000)
        sent++;
    assert_in_range(sent, 2, 999);
    assert_int_equal(writables, 0);
    _cleanup_buf_ struct buf raw = {0};
    bool eof;
    hear(fd, &raw, &eof);
    assert_int_equal(writables, 1);
    assert_int_equal(ws_queued(socket_of_ours), 0);
    leave(fd);
}

static void a_paused_client_is_not_read(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf in = {0};
    int fd = opened();
    ws_pause(socket_of_ours, true);
    FRAME(&in, 0x81, "later", MASK);
    put(fd, &in);
    assert_string_equal(buf_str(&heard), "");
    ws_pause(socket_of_ours, false);
    turn();
    assert_string_equal(buf_str(&heard), "text:later|");
    leave(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_handshake_is_that_of_the_rfc, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_handshakes_are_refused_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(messages_are_whole_in_pieces_of_any_size, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_client_that_closes_is_answered, set_up, tear_down),
        cmocka_unit_test_setup_teardown(our_close_waits_for_theirs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_close_that_is_too_long_is_not_read_after_ours, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_client_that_never_answers_our_close_is_cut, set_up, tear_down),
        cmocka_unit_test_setup_teardown(clients_that_break_the_rules_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_limit_holds_for_a_message_of_many_frames, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sending_says_when_to_stop, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_paused_client_is_not_read, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
