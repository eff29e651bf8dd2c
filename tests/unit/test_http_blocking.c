/* The blocking HTTP client: answers that are whole, bad, cut, too large or too slow, and the layer below it. */
#include "lib/unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "http/blocking.h"

/* A connection whose peer has said `answer` and, with `end`, closed its direction. *ret_peer is the other end. */
static void begin(struct blocking *b, const char *answer, bool end, struct blocking_pace *pace, int *ret_peer)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(send(pair[1], answer, strlen(answer), MSG_NOSIGNAL), strlen(answer));
    if (end)
        assert_int_equal(shutdown(pair[1], SHUT_WR), 0);
    blocking_start(b, pair[0], pace);
    *ret_peer = pair[1];
}

/* The failure with which reading the whole answer ends; 0: none. */
static enum blocking_failure outcome(const char *method, const char *answer, size_t max, struct buf *ret)
{
    struct blocking b;
    _cleanup_close_ int peer = -1;
    begin(&b, answer, true, NULL, &peer);
    int r = blocking_read_head(&b, method);
    if (r == 0)
        r = blocking_read_all(&b, max, ret);
    enum blocking_failure failure = r < 0 ? b.failure : 0;
    if (failure == BLOCKING_NOT_HTTP)
        assert_non_null(b.why);
    blocking_close(&b);
    blocking_close(&b);
    return failure;
}

static void whole_answers_are_read(void **state)
{
    static const struct {
        const char *method, *answer, *body;
    } cases[] = {
        {"GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "hello"},
        {"GET", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", ""},
        {"GET", "HTTP/1.1 204 No Content\r\n\r\n", ""},
        {"HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", ""},
        {"GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nt: 1\r\n\r\n",
         "hello"},
        {"GET", "HTTP/1.1 200 OK\r\n\r\nuntil the end", "until the end"},
        {"GET",
         "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
         "ok"},
        {"GET", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 No\r\n\r\n", "ok"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf body = {0};
        buf_adds(&body, "something else");
        assert_int_equal(outcome(cases[i].method, cases[i].answer, 100, &body), 0);
        assert_int_equal(body.n, strlen(cases[i].body));
        assert_memory_equal(body.p, cases[i].body, body.n);
    }
}

static void bad_answers_have_names(void **state)
{
    static const struct {
        enum blocking_failure failure;
        const char *answer;
    } cases[] = {
        {BLOCKING_UNANSWERED, ""},
        {BLOCKING_UNANSWERED, "HTTP/1.1 200 OK\r\ncontent-le"},
        {BLOCKING_UNANSWERED, "HTTP/1.1 100 Continue\r\n\r\n"},
        {BLOCKING_NOT_HTTP, "SSH-2.0-OpenSSH_9.6\r\n\r\n"},
        {BLOCKING_NOT_HTTP, "HTTP/1.1 200 OK\n\n"},
        {BLOCKING_NOT_HTTP, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"},
        {BLOCKING_CUT, "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello"},
        {BLOCKING_CUT, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel"},
        {BLOCKING_CUT, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"},
        {BLOCKING_DAMAGED, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfive\r\nhello\r\n0\r\n\r\n"},
        {BLOCKING_DAMAGED, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n"},
        {BLOCKING_TOO_LARGE, "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world"},
        {BLOCKING_TOO_LARGE,
         "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"},
        {BLOCKING_TOO_LARGE, "HTTP/1.1 200 OK\r\n\r\nhello world"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf body = {0};
        assert_int_equal(outcome("GET", cases[i].answer, 10, &body), cases[i].failure);
        assert_true(body.n <= 10);
    }
}

static void interim_answers_and_heads_have_an_end(void **state)
{
    _cleanup_buf_ struct buf interim = {0}, head = {0}, body = {0};
    (void)state;
    for (unsigned i = 0; i < BLOCKING_INTERIM_MAX; i++)
        buf_adds(&interim, "HTTP/1.1 102 Processing\r\n\r\n");
    buf_adds(&interim, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    assert_int_equal(outcome("GET", buf_str(&interim), 10, &body), BLOCKING_NOT_HTTP);
    buf_adds(&head, "HTTP/1.1 200 OK\r\nx: ");
    for (unsigned i = 0; i < HTTP_HEAD_MAX; i++)
        buf_addc(&head, 'x');
    assert_int_equal(outcome("GET", buf_str(&head), 10, &body), BLOCKING_NOT_HTTP);
}

static void a_body_comes_in_pieces_of_at_most_the_room(void **state)
{
    struct blocking b;
    _cleanup_close_ int peer = -1;
    _cleanup_buf_ struct buf body = {0};
    const void *p;
    ssize_t n;
    (void)state;
    begin(&b, "HTTP/1.1 206 Some\r\nx-a: 1\r\ncontent-length: 10\r\n\r\n0123456789", false, NULL, &peer);
    assert_int_equal(blocking_read_head(&b, "GET"), 0);
    while ((n = blocking_read(&b, 3, &p)) > 0) {
        assert_true(n <= 3);
        buf_add(&body, p, (size_t)n);
    }
    assert_int_equal(n, 0);
    assert_string_equal(buf_str(&body), "0123456789");
    assert_int_equal(b.answer.status, 206); /* the head stays readable behind the body */
    assert_string_equal(http_field(&b.answer.fields, "x-a"), "1");
    blocking_close(&b);
}

static enum blocking_failure paced(struct blocking_pace pace, const char *answer)
{
    struct blocking b;
    _cleanup_close_ int peer = -1;
    _cleanup_buf_ struct buf body = {0};
    begin(&b, answer, false, &pace, &peer);
    int r = blocking_read_head(&b, "GET");
    if (r == 0)
        r = blocking_read_all(&b, 100, &body);
    assert_int_equal(r, -1);
    enum blocking_failure failure = b.failure;
    blocking_close(&b);
    return failure;
}

static void slow_peers_are_given_up(void **state)
{
    static const char *const answers[] = {"", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n1234"};
    const unsigned ever = 600000, soon = 30;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        assert_int_equal(paced((struct blocking_pace){soon, ever, 0, ever, 0}, answers[i]), BLOCKING_SILENT);
        assert_int_equal(paced((struct blocking_pace){ever, soon, 1000, ever, 0}, answers[i]), BLOCKING_SLOW);
        assert_int_equal(paced((struct blocking_pace){ever, 10, 0, soon, 0}, answers[i]), BLOCKING_LATE);
        assert_int_equal(paced((struct blocking_pace){ever, ever, 0, ever, 1}, answers[i]), BLOCKING_LATE);
    }
}

static void a_peer_that_takes_nothing_is_given_up(void **state)
{
    struct blocking_pace pace = {.silence_ms = 30, .window_ms = 600000, .total_ms = 600000};
    struct blocking b;
    _cleanup_free_ char *much = xcalloc(1, 8 << 20);
    _cleanup_close_ int peer = -1;
    (void)state;
    begin(&b, "", false, &pace, &peer);
    assert_int_equal(blocking_send(&b, much, 8 << 20), -1);
    assert_int_equal(b.failure, BLOCKING_SILENT);
    blocking_close(&b);
}

static void an_answer_survives_a_request_that_was_not_taken(void **state)
{
    struct blocking b;
    _cleanup_buf_ struct buf body = {0};
    int peer;
    (void)state;
    begin(&b, "HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno", false, NULL, &peer);
    assert_int_equal(close(peer), 0);
    assert_int_equal(blocking_send(&b, "x", 1), -1);
    assert_int_equal(b.failure, BLOCKING_UNSENT);
    assert_int_equal(b.eno, EPIPE);
    assert_int_equal(blocking_read_head(&b, "POST"), 0);
    assert_int_equal(blocking_read_all(&b, 10, &body), 0);
    assert_string_equal(buf_str(&body), "no");
    blocking_close(&b);
}

static void another_descriptor_wakes_a_reader(void **state)
{
    struct blocking b;
    const void *p;
    _cleanup_close_ int peer = -1;
    int wake[2];
    (void)state;
    assert_int_equal(pipe2(wake, O_CLOEXEC), 0);
    begin(&b, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", false, NULL, &peer);
    assert_int_equal(blocking_read_head(&b, "GET"), 0);
    assert_int_equal(write(wake[1], "", 1), 1);
    b.wake_fd = wake[0];
    assert_int_equal(blocking_read(&b, 10, &p), 2); /* what is there needs no waiting */
    assert_int_equal(send(peer, "cd", 2, MSG_NOSIGNAL), 2);
    assert_int_equal(blocking_read(&b, 10, &p), -1);
    assert_int_equal(b.failure, BLOCKING_WOKEN);
    b.wake_fd = -1;
    assert_int_equal(blocking_read(&b, 10, &p), 2);
    assert_memory_equal(p, "cd", 2);
    assert_int_equal(blocking_read(&b, 10, &p), 0);
    blocking_close(&b);
    (void)close(wake[0]);
    (void)close(wake[1]);
}

/* A layer that shifts letters by one, one byte a call, and wants the socket to be writable before every other call. */
struct shifted {
    const char *in;
    struct buf out;
    int end; /* errno at the end of `in`; -1: it ends as it should */
    bool wait;
    unsigned freed;
};

static bool shifted_waits(struct shifted *s, bool *ret_out)
{
    s->wait = !s->wait;
    *ret_out = true;
    errno = EAGAIN;
    return s->wait;
}

static ssize_t shifted_read(void *arg, void *p, size_t n, bool *ret_out)
{
    struct shifted *s = arg;
    assert_true(n > 0);
    if (shifted_waits(s, ret_out))
        return -1;
    errno = s->end;
    if (!*s->in)
        return s->end < 0 ? 0 : -1;
    *(char *)p = (char)(*s->in++ - 1);
    return 1;
}

static ssize_t shifted_write(void *arg, const void *p, size_t n, bool *ret_out)
{
    struct shifted *s = arg;
    assert_true(n > 0);
    if (shifted_waits(s, ret_out))
        return -1;
    buf_addc(&s->out, (char)(*(const char *)p + 1));
    return 1;
}

static void shifted_free(void *arg) { ((struct shifted *)arg)->freed++; }

static void a_layer_lies_below(void **state)
{
    static const struct blocking_layer layer = {.read = shifted_read, .write = shifted_write, .free = shifted_free};
    static const char plain[] = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    (void)state;
    static const int ends[] = {-1, 0, ECONNRESET};
    for (size_t e = 0; e < ARRAY_LEN(ends); e++) {
        int end = ends[e];
        struct blocking b;
        _cleanup_close_ int peer = -1;
        _cleanup_buf_ struct buf answer = {0}, body = {0};
        for (size_t i = 0; i < sizeof plain - 1 - (end >= 0); i++)
            buf_addc(&answer, (char)(plain[i] + 1));
        struct shifted s = {.in = buf_str(&answer), .end = end};
        begin(&b, "", false, NULL, &peer);
        b.layer = &layer;
        b.arg = &s;
        assert_int_equal(blocking_send(&b, "HAL", 3), 0);
        assert_string_equal(buf_str(&s.out), "IBM");
        assert_int_equal(blocking_read_head(&b, "GET"), 0);
        assert_int_equal(blocking_read_all(&b, 10, &body), end < 0 ? 0 : -1);
        assert_string_equal(buf_str(&body), end < 0 ? "hello" : "hell");
        assert_int_equal(b.failure, end < 0 ? 0 : BLOCKING_BROKEN);
        assert_int_equal(b.eno, end < 0 ? 0 : end);
        blocking_close(&b);
        blocking_close(&b);
        assert_int_equal(s.freed, 1);
        buf_done(&s.out);
    }
}

static bool shifted_pending(void *arg) { return *((struct shifted *)arg)->in != '\0'; }

/* Bytes that a layer holds come although the socket has none; the other descriptor still goes first. */
static void a_layer_holds_bytes_while_another_descriptor_is_watched(void **state)
{
    static const struct blocking_layer layer = {
        .read = shifted_read, .write = shifted_write, .pending = shifted_pending, .free = shifted_free};
    static const char plain[] = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    (void)state;
    struct blocking b;
    int ends[2];
    const void *p;
    _cleanup_close_ int peer = -1;
    _cleanup_buf_ struct buf answer = {0};
    for (size_t i = 0; i < sizeof plain - 1; i++)
        buf_addc(&answer, (char)(plain[i] + 1));
    struct shifted s = {.in = buf_str(&answer), .end = -1};
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    begin(&b, "", false, NULL, &peer);
    b.layer = &layer;
    b.arg = &s;
    assert_int_equal(blocking_read_head(&b, "GET"), 0);
    b.wake_fd = ends[0];
    assert_int_equal(blocking_read(&b, 1, &p), 1);
    assert_int_equal(*(const char *)p, 'h');
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_int_equal(blocking_read(&b, 1, &p), -1);
    assert_int_equal(b.failure, BLOCKING_WOKEN);
    b.wake_fd = -1;
    assert_int_equal(blocking_read(&b, 1, &p), 1);
    assert_int_equal(*(const char *)p, 'e');
    blocking_close(&b);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void connecting_ends(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fds[8], last = 0;
    (void)state;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(blocking_connect((const struct sockaddr *)&a, n, 1000), -1);
    assert_int_equal(errno, ECONNREFUSED);
    assert_int_equal(blocking_connect((const struct sockaddr *)&a, n, -1), -1);
    assert_int_equal(errno, ECONNREFUSED);
    assert_int_equal(listen(listener, 0), 0);
    fds[0] = blocking_connect((const struct sockaddr *)&a, n, 1000);
    assert_true(fds[0] >= 0);
    /* The queue of one that never accepts is full soon. */
    while (last < 7 && fds[last] >= 0)
        fds[++last] = blocking_connect((const struct sockaddr *)&a, n, 50);
    assert_int_equal(fds[last], -1);
    assert_int_equal(errno, ETIMEDOUT);
    while (last-- > 0)
        (void)close(fds[last]);
    (void)close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_answers_are_read),
        cmocka_unit_test(bad_answers_have_names),
        cmocka_unit_test(interim_answers_and_heads_have_an_end),
        cmocka_unit_test(a_body_comes_in_pieces_of_at_most_the_room),
        cmocka_unit_test(slow_peers_are_given_up),
        cmocka_unit_test(a_peer_that_takes_nothing_is_given_up),
        cmocka_unit_test(an_answer_survives_a_request_that_was_not_taken),
        cmocka_unit_test(another_descriptor_wakes_a_reader),
        cmocka_unit_test(a_layer_lies_below),
        cmocka_unit_test(a_layer_holds_bytes_while_another_descriptor_is_watched),
        cmocka_unit_test(connecting_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
