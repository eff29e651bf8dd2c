/* The server over real sockets: states of a connection, back-pressure, limits and time-outs. */
#include "tests/lib/unit.h"

#include <arpa/inet.h>

#include "base/mem.h"
#include "http-world.h"
#include "http1-messages.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

static const struct http_limits limits = {.connections = 50, .head_ms = 10000, .idle_ms = 60000};
static struct http_req *parked; /* a request whose answer the test writes itself */
static int ended, closed;
static size_t got;
static struct buf seen;

static void on_closed(struct http_req *r)
{
    closed++;
    if (parked == r)
        parked = NULL;
}

static void on_end(struct http_req *r)
{
    (void)r;
    ended++;
}

static void echo_data(struct http_req *r, const void *p, size_t n)
{
    got += n;
    if (!http_write(r, p, n))
        http_pause(r);
}

static void echo_end(struct http_req *r) { http_end(r); }

static void see_data(struct http_req *r, const void *p, size_t n)
{
    (void)r;
    got += n;
    buf_add(&seen, p, n);
}

static void start_echo(struct http_req *r)
{
    r->on_data = echo_data;
    r->on_end = echo_end;
    r->on_writable = http_resume;
    http_head(r, 200, HTTP_UNKNOWN);
}

static void park(struct http_req *r)
{
    parked = r;
    r->on_data = see_data;
    r->on_end = on_end;
}

static void upgrade(struct http_req *r)
{
    park(r);
    http_set(r, "upgrade", "test");
    assert_true(http_upgrade(r));
}

static void handler(void *ctx, struct http_req *r)
{
    (void)ctx;
    r->on_closed = on_closed;
    if (strcmp(r->path, "/echo") == 0)
        start_echo(r);
    else if (strcmp(r->path, "/park") == 0)
        park(r);
    else if (strcmp(r->path, "/pause") == 0)
        park(r), http_pause(r);
    else if (strcmp(r->path, "/upgrade") == 0)
        upgrade(r);
    else if (strcmp(r->path, "/abort") == 0)
        http_abort(r);
    else if (strcmp(r->path, "/short") == 0)
        http_head(r, 200, 10), (void)http_write(r, "abc", 3), http_end(r);
    else
        http_set(r, "x-set", "1"), http_reply(r, 200, "text/plain", "hello", 5);
}

static int set_up(void **state)
{
    (void)state;
    parked = NULL;
    ended = closed = 0;
    got = 0;
    seen = (struct buf){0};
    world_start(&limits, handler);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    world_stop();
    buf_done(&seen);
    return 0;
}

static void requests_follow_each_other(void **state)
{
    (void)state;
    int fd = client();
    for (int i = 0; i < 3; i++) {
        say(fd, GET("/"));
        expect(fd, "content-length: 5\r\n\r\nhello", false);
    }
    say(fd, GET("/"));
    expect(fd, "x-set: 1\r\n", false);
    say(fd, GET("/"));
    expect(fd, "\r\nx-request-id: ", false);
    say(fd, GET("/"));
    expect(fd, "\r\ndate: ", false);
    say(fd, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    expect(fd, "content-length: 5\r\n\r\n", false);
    say(fd, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    expect(fd, "connection: close\r\n\r\nhello", true);
    (void)close(fd);
    turn();
    assert_int_equal(http_server_connections(world_server), 0);
}

static void old_clients_are_served(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    expect(fd, "connection: keep-alive\r\n\r\nhello", false);
    say(fd, "POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc");
    expect(fd, "connection: close\r\n\r\nabc", true);
    (void)close(fd);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    int fd = client();
    say(fd, GET("/") GET("/park") GET("/"));
    expect(fd, "hello", false);
    assert_int_equal(heard_count, 1);
    assert_non_null(parked);
    assert_int_equal(ended, 1);
    http_reply(parked, 404, NULL, NULL, 0);
    expect(fd, "HTTP/1.1 404 Not Found", false);
    assert_int_equal(heard_count, 2);
    (void)close(fd);
}

static void a_request_in_single_bytes_is_the_same(void **state)
{
    (void)state;
    int fd = client();
    const char *text =
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    for (const char *p = text; *p; p++)
        say(fd, (char[2]){*p, '\0'});
    expect(fd, "\r\n0\r\n\r\n", false);
    assert_int_equal(got, 5);
    (void)close(fd);
}

static void malformed_messages_are_refused_and_the_connection_closed(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(malformed); i++) {
        const struct message *m = &malformed[i];
        int fd = client();
        char want[32];
        (void)snprintf(want, sizeof want, "HTTP/1.1 %u ", m->status);
        assert_int_equal(send(fd, m->text, m->n, MSG_NOSIGNAL), m->n);
        /* A request behind it must never be served. */
        (void)send(fd, GET("/"), strlen(GET("/")), MSG_NOSIGNAL);
        _cleanup_buf_ struct buf b = {0};
        bool eof;
        hear(fd, &b, &eof);
        /* A chunk that breaks after the answer has begun can only be cut. */
        if (!eof || strstr(buf_str(&b), "hello\n") ||
            (!strstr(buf_str(&b), want) && !strstr(m->text, "chunked\r\n\r\n")))
            fail_msg("%s: (%s) %s", m->name, eof ? "closed" : "open", buf_str(&b));
        if (strstr(buf_str(&b), "\r\n\r\nhello") && !strstr(m->text, "chunked\r\n\r\n"))
            fail_msg("%s: served", m->name);
        (void)close(fd);
        turn();
    }
    assert_int_equal(http_server_connections(world_server), 0);
}

static void a_broken_body_is_refused_while_unanswered(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "POST /park HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    assert_int_equal(got, 3);
    say(fd, "zz\r\n");
    assert_int_equal(closed, 1);
    expect(fd, "HTTP/1.1 400 ", true);
    (void)close(fd);
}

static size_t send_all(int fd, const char *p, size_t n)
{
    size_t sent = 0;
    for (ssize_t k; sent < n && (k = send(fd, p + sent, n - sent, MSG_NOSIGNAL)) > 0;)
        sent += (size_t)k;
    return sent;
}

/* A client that writes and never reads is stopped: what the server holds for it stays bounded. */
static void back_pressure_reaches_the_client(void **state)
{
    enum { TOTAL = 8 << 20 };
    (void)state;
    _cleanup_free_ char *block = xcalloc(1, 65536);
    int fd = client();
    char head[128];
    size_t sent = 0, idle = 0;
    (void)snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", TOTAL);
    say(fd, head);
    while (idle < 5) {
        size_t k = send_all(fd, block, TOTAL - sent < 65536 ? TOTAL - sent : 65536);
        sent += k;
        idle = k == 0 ? idle + 1 : 0;
        turn();
    }
    assert_true(sent < TOTAL / 2);
    assert_true(got < HTTP_HIGH_WATER + 1024 * 1024);
    /* Others are served meanwhile. */
    int other = client();
    say(other, GET("/"));
    expect(other, "hello", false);
    (void)close(other);
    /* Once it reads, everything arrives. */
    size_t heard = 0;
    char chunk[65536];
    for (int rounds = 0; rounds < 100000 && !(got == TOTAL && heard > TOTAL); rounds++) {
        ssize_t n = recv(fd, chunk, sizeof chunk, 0);
        heard += n > 0 ? (size_t)n : 0;
        sent += send_all(fd, block, TOTAL - sent < 65536 ? TOTAL - sent : 65536);
        struct err err;
        (void)loop_step(world_loop, 0, &err);
    }
    assert_int_equal(got, TOTAL);
    /* An answer that began with most of the body still to come had to announce the end of the connection. */
    expect(fd, "", true);
    (void)close(fd);
}

static void a_paused_request_reads_nothing(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "POST /pause HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc");
    say(fd, "def" GET("/"));
    assert_int_equal(got, 0);
    assert_int_equal(ended, 0);
    http_resume(parked);
    turn();
    assert_int_equal(got, 6);
    assert_int_equal(ended, 1);
    http_reply(parked, 204, NULL, NULL, 0);
    expect(fd, "HTTP/1.1 204 No Content\r\n", false);
    assert_int_equal(heard_count, 2);
    (void)close(fd);
}

static void the_client_is_told_to_continue(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "POST /park HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    expect(fd, "HTTP/1.1 100 Continue\r\n\r\n", false);
    say(fd, "abc");
    assert_int_equal(ended, 1);
    http_reply(parked, 200, NULL, "x", 1);
    expect(fd, "\r\n\r\nx", false);
    /* Not when the answer comes first; and then the connection ends, for nobody knows whether a body follows. */
    say(fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    expect(fd, "connection: close", true);
    assert_int_equal(heard_count, 1);
    (void)close(fd);
    fd = client();
    say(fd, "POST /pause HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    expect(fd, "", false);
    http_resume(parked);
    expect(fd, "100 Continue", false);
    (void)close(fd);
}

static void an_early_answer_keeps_a_small_body_apart(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
    expect(fd, "hello", false);
    say(fd, "cde" GET("/"));
    expect(fd, "hello", false);
    assert_int_equal(heard_count, 1);
    /* Nobody waits long for the rest. */
    say(fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
    expect(fd, "hello", false);
    pass(2001);
    expect(fd, "", true);
    (void)close(fd);
}

static void an_early_answer_does_not_wait_for_a_large_body(void **state)
{
    (void)state;
    _cleanup_free_ char *block = xcalloc(1, 65536);
    int fd = client();
    say(fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
    size_t sent = 0;
    for (int i = 0; i < 200; i++) {
        sent += send_all(fd, block, 65536);
        turn();
    }
    assert_true(sent < 2 << 20);
    _cleanup_buf_ struct buf b = {0};
    bool eof;
    hear(fd, &b, &eof);
    assert_non_null(strstr(buf_str(&b), "connection: close"));
    assert_true(eof);
    (void)close(fd);
    assert_int_equal(http_server_connections(world_server), 0);
}

static void half_closed_clients_get_their_answer(void **state)
{
    (void)state;
    int fd = client();
    say(fd, GET("/park"));
    (void)shutdown(fd, SHUT_WR);
    turn();
    assert_int_equal(closed, 0);
    http_head(parked, 200, HTTP_UNKNOWN);
    expect(fd, "transfer-encoding: chunked", false);
    assert_true(http_write(parked, "late", 4));
    http_end(parked);
    expect(fd, "4\r\nlate\r\n0\r\n\r\n", true);
    (void)close(fd);
    fd = client();
    say(fd, "POST /park HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na");
    (void)shutdown(fd, SHUT_WR);
    turn();
    assert_int_equal(closed, 1);
    (void)close(fd);
}

static void a_client_that_leaves_is_noticed(void **state)
{
    (void)state;
    int fd = client();
    say(fd, GET("/park"));
    (void)close(fd);
    turn();
    assert_int_equal(closed, 1);
    assert_null(parked);
    fd = client();
    say(fd, GET("/park"));
    http_head(parked, 200, HTTP_UNKNOWN);
    (void)http_write(parked, "x", 1);
    (void)close(fd);
    turn();
    assert_int_equal(closed, 2);
    assert_int_equal(http_server_connections(world_server), 0);
}

static void upgraded_connections_carry_bytes(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\nearly");
    expect(fd, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n", false);
    assert_string_equal(buf_str(&seen), "early");
    (void)http_write(parked, "raw\r\n", 5);
    expect(fd, "raw\r\n", false);
    http_pause(parked);
    say(fd, "more");
    assert_int_equal(got, 5);
    http_resume(parked);
    turn();
    assert_string_equal(buf_str(&seen), "earlymore");
    /* Our end first: the client may still speak. */
    http_end(parked);
    expect(fd, "", true);
    say(fd, "last");
    assert_string_equal(buf_str(&seen), "earlymorelast");
    assert_int_equal(ended, 0);
    (void)shutdown(fd, SHUT_WR);
    turn();
    assert_int_equal(ended, 1);
    assert_int_equal(closed, 0);
    assert_int_equal(http_server_connections(world_server), 0);
    (void)close(fd);
}

static void an_upgrade_may_come_later_or_never(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "GET /park HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n");
    say(fd, "held");
    assert_int_equal(ended, 1);
    assert_int_equal(got, 0);
    assert_true(http_upgrade(parked));
    expect(fd, "upgrade: test\r\n", false);
    assert_string_equal(buf_str(&seen), "held");
    (void)shutdown(fd, SHUT_WR);
    turn();
    assert_int_equal(ended, 2);
    http_end(parked);
    expect(fd, "", true);
    (void)close(fd);
    fd = client();
    say(fd, GET("/park"));
    assert_false(http_upgrade(parked));
    (void)close(fd);
}

static void tcp_pair(int fd[2])
{
    struct sockaddr_storage a = {.ss_family = AF_INET};
    socklen_t n = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in *in = (struct sockaddr_in *)&a;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof *in), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &n), 0);
    fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd[1], (struct sockaddr *)&a, n), 0);
    fd[0] = listener;
}

static void an_abort_is_a_reset(void **state)
{
    (void)state;
    int fd[2];
    struct err err = {0};
    tcp_pair(fd);
    (void)fcntl(fd[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(fd[1], F_SETFL, O_NONBLOCK);
    assert_int_equal(http_server_listen(world_server, fd[0], NULL, NULL, &err), 0);
    say(fd[1], GET("/abort"));
    assert_int_equal(closed, 1);
    char c;
    assert_int_equal(recv(fd[1], &c, 1, 0), -1);
    assert_int_equal(errno, ECONNRESET);
    (void)close(fd[1]);
    http_server_drain(world_server);
    (void)close(fd[0]);
    /* An answer shorter than announced must not look complete either. */
    world_stop();
    world_start(&limits, handler);
    int pair = client();
    say(pair, GET("/short"));
    expect(pair, "abc", true);
    (void)close(pair);
}

static void silent_and_slow_clients_are_cut(void **state)
{
    (void)state;
    int silent = client(), slow = client(), idle = client(), open = client();
    say(slow, "GET / HT");
    say(idle, GET("/"));
    expect(idle, "hello", false);
    say(open, GET("/park"));
    pass(9000);
    say(slow, "TP/1.1\r\n");
    expect(slow, "", false);
    pass(1001);
    expect(slow, "HTTP/1.1 408 ", true);
    expect(silent, "", true);
    expect(idle, "", false);
    pass(50000);
    expect(idle, "", true);
    pass(100000000);
    expect(open, "", false);
    assert_int_equal(closed, 0);
    http_reply(parked, 200, NULL, NULL, 0);
    expect(open, "200 OK", false);
    (void)close(silent), (void)close(slow), (void)close(idle), (void)close(open);
}

static void limits_of_connections_hold(void **state)
{
    (void)state;
    int fd[60];
    for (size_t i = 0; i < ARRAY_LEN(fd); i++)
        fd[i] = client();
    assert_int_equal(http_server_connections(world_server), limits.connections);
    expect(fd[59], "", true);
    for (size_t i = 0; i < ARRAY_LEN(fd); i++)
        (void)close(fd[i]);
    turn();
    assert_int_equal(http_server_connections(world_server), 0);
    world_stop();
    world_start(
        &(struct http_limits){
            .connections = 50, .connections_per_peer = 2, .head_ms = 100, .idle_ms = 100, .requests = 2},
        handler);
    for (size_t i = 0; i < 4; i++)
        fd[i] = client();
    assert_int_equal(http_server_connections(world_server), 2);
    say(fd[0], GET("/"));
    expect(fd[0], "hello", false);
    say(fd[0], GET("/"));
    expect(fd[0], "connection: close", true);
    (void)close(fd[0]);
    turn();
    fd[0] = client();
    say(fd[0], GET("/"));
    expect(fd[0], "hello", false);
    for (size_t i = 0; i < 4; i++)
        (void)close(fd[i]);
}

static void draining_finishes_what_is_open(void **state)
{
    (void)state;
    int idle = client(), busy = client();
    say(idle, GET("/"));
    expect(idle, "hello", false);
    say(busy, GET("/park"));
    http_server_drain(world_server);
    expect(idle, "", true);
    expect(busy, "", false);
    (void)close(idle);
    http_reply(parked, 200, NULL, NULL, 0);
    expect(busy, "connection: close", true);
    assert_int_equal(http_server_connections(world_server), 1);
    (void)close(busy);
    turn();
    assert_int_equal(http_server_connections(world_server), 0);
}

static void freeing_the_server_tells_handlers(void **state)
{
    (void)state;
    int fd = client();
    say(fd, GET("/park"));
    world_stop();
    assert_int_equal(closed, 1);
    world_start(&limits, handler);
    (void)close(fd);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(requests_follow_each_other),
        T(old_clients_are_served),
        T(pipelined_requests_are_answered_in_order),
        T(a_request_in_single_bytes_is_the_same),
        T(malformed_messages_are_refused_and_the_connection_closed),
        T(a_broken_body_is_refused_while_unanswered),
        T(back_pressure_reaches_the_client),
        T(a_paused_request_reads_nothing),
        T(the_client_is_told_to_continue),
        T(an_early_answer_keeps_a_small_body_apart),
        T(an_early_answer_does_not_wait_for_a_large_body),
        T(half_closed_clients_get_their_answer),
        T(a_client_that_leaves_is_noticed),
        T(upgraded_connections_carry_bytes),
        T(an_upgrade_may_come_later_or_never),
        T(an_abort_is_a_reset),
        T(silent_and_slow_clients_are_cut),
        T(limits_of_connections_hold),
        T(draining_finishes_what_is_open),
        T(freeing_the_server_tells_handlers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
