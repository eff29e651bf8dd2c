/* Unit tests: HTTP/1.1 of sandboxes, in the clear and inside TLS, through the engine to real servers. */
#include "lib/unit.h"

#include "egress-http-world.h"

#define HOST   "code.example"
#define QUOTED "\"code.example\""

/* ---- what passes ---- */

static void test_a_request_inside_tls_reaches_a_verified_server(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/x//y/../z?q=1", NULL);
    assert_int_equal(a.status, 200);
    assert_has(a.body, "GET /x/z?q=1 HTTP/11\n");
}

static void test_a_request_in_the_clear_is_forwarded_from_canonical_parts(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    char authority[64];
    const struct http_field fields[] = {{"connection", "x-hop"},          {"x-hop", "1"}, {"x-kept", "2"},
                                        {"proxy-authorization", "Basic"}, {"te", "gzip"}, {"upgrade", "h2c"}};
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    allow(sandbox, u->port, QUOTED);
    (void)snprintf(authority, sizeof authority, "CODE.example.:%u", u->port);
    _cleanup_client_ struct client *c = client_new(loop, transport_plain(dial_out(sandbox, HOST, u->port)));
    struct client_request q = {.method = "GET", .target = "/%7Ea", .host = authority, .fields = {fields, 6}};
    client_start(c, &q, &answer_events.answer, &a);
    UNTIL(a.ended || a.failed);
    assert_has(a.body, "GET /~a HTTP/11\nauthority: code.example:");
    assert_has(a.body, "x-kept: 2");
    assert_has_not(a.body, "x-hop");
    assert_has_not(a.body, "proxy-authorization");
    assert_has_not(a.body, "te: ");
    assert_has_not(a.body, "upgrade");
    assert_has_not(a.body, "via");
}

static void test_the_answer_is_the_servers_own_but_for_alt_svc(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    assert_has(a.fields, "x-request-id: of-the-server\n");
    assert_has_not(a.fields, "alt-svc");
    assert_has_not(a.fields, "date");
}

static void test_http1_inside_may_be_http2_outside(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    assert_has(a.body, "GET / HTTP/20\n");
    ask_tls(sandbox, &b, "POST", HOST, u->port, "/echo", "what was said");
    assert_string_equal(buf_str(&b.body), "what was said");
    assert_int_equal(app_connections, 1);
}

static void test_a_connection_is_used_again_for_the_next_request(void **state)
{
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    for (int i = 0; i < 3; i++) {
        _cleanup_answer_ struct answer a = {0};
        ask_tls(sandbox, &a, "POST", HOST, u->port, "/echo", "x");
        assert_int_equal(a.status, 200);
    }
    assert_int_equal(app_connections, 1);
    assert_int_equal(pool_size(sandbox), 1);
}

static void test_a_kept_connection_that_died_is_replaced_without_anybody_noticing(void **state)
{
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    /* The server closes it as it reads the next request. */
    ask_tls(sandbox, &b, "GET", HOST, u->port, "/cut", NULL);
    assert_int_equal(b.status, 502);
    assert_int_equal(app_requests, 3); /* once more, and no more than that */
}

static void test_connections_are_never_shared_between_hosts_or_sandboxes(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, "\"code.example\",\"docs.example\"");
    allow(other, u->port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    ask_tls(other, &b, "GET", HOST, u->port, "/", NULL);
    assert_int_equal(a.status, 200);
    assert_int_equal(b.status, 200);
    assert_int_equal(app_connections, 2);
    /* The server's certificate is for the first name only: a connection that was verified for it must not serve another. */
    ask_tls(sandbox, &c, "GET", "docs.example", u->port, "/", NULL);
    assert_int_equal(c.status, 502);
    assert_has(c.body, "upstream_cert");
    assert_int_equal(app_connections, 3);
}

static void test_a_change_of_policy_closes_idle_connections(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    assert_int_equal(pool_size(sandbox), 1);
    allow(sandbox, u->port, "\"code.example\",\"docs.example\"");
    assert_int_equal(pool_size(sandbox), 0);
}

static void test_events_arrive_one_by_one_as_they_are_sent(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    _cleanup_client_ struct client *c =
        begin_tls(sandbox, &a, HOST, u->port, (struct client_request){.method = "GET", .target = "/stream"});
    UNTIL(a.head);
    for (unsigned i = 1; i <= 5; i++) {
        (void)http_write(app_stream, "data: x\n\n", 9);
        UNTIL(a.body.n == i * 9u);
    }
    assert_false(a.ended);
    http_end(app_stream);
    UNTIL(a.ended);
}

static void test_a_websocket_carries_bytes_both_ways(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    const struct http_field fields[] = {{"connection", "Upgrade"},
                                        {"upgrade", "websocket"},
                                        {"sec-websocket-version", "13"},
                                        {"sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="}};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct client *c =
        begin_tls(sandbox, &a, HOST, u->port,
                  (struct client_request){.method = "GET", .target = "/ws", .fields = {fields, 4}, .upgrade = true});
    UNTIL(a.head || a.failed);
    assert_int_equal(a.status, 101);
    assert_has(a.fields, "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    for (unsigned i = 1; i <= 200; i++) {
        (void)client_write(c, "0123456789", 10);
        UNTIL(a.body.n == i * 10u);
    }
    client_end(c);
    UNTIL(a.ended);
    client_free(c);
    UNTIL(pool_size(sandbox) == 0);
    assert_int_equal(sandbox->counts.bytes_up, 2000);
    assert_int_equal(sandbox->counts.bytes_down, 2000);
}

static void test_a_server_that_switches_without_the_right_proof_is_refused(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    const struct http_field fields[] = {
        {"connection", "Upgrade"}, {"upgrade", "websocket"}, {"sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="}};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    _cleanup_client_ struct client *c = begin_tls(
        sandbox, &a, HOST, u->port,
        (struct client_request){.method = "GET", .target = "/ws-wrong", .fields = {fields, 3}, .upgrade = true});
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.status, 502);
}

/* Writes blocks up to `total` as they are taken, until nobody takes any more; the most that waited anywhere meanwhile. */
static size_t pump(struct client *c, size_t *written, size_t total)
{
    static const char block[65536];
    size_t most = 0;
    for (int still = 0; *written < total && still < 300; still++) {
        if (client_queued(c) < sizeof block) {
            (void)client_write(c, block, sizeof block);
            *written += sizeof block;
            still = 0;
        }
        turn(1);
        most = outq_total() > most ? outq_total() : most;
    }
    return most;
}

/* The client's own queue is part of what is counted: a block and what did not fit into the one before. */
enum { WAITING_MAX = 1024 * 1024 };

static void upload_through(bool h2)
{
    _cleanup_answer_ struct answer a = {0};
    const size_t total = 64u << 20;
    size_t written = 0;
    struct upstream *u = upstream_new(origin, HOST, h2);
    allow(sandbox, u->port, QUOTED);
    app_stopped = true;
    _cleanup_client_ struct client *c = begin_tls(
        sandbox, &a, HOST, u->port, (struct client_request){.method = "POST", .target = "/count", .length = total});
    UNTIL(app_stream);
    assert_in_range(pump(c, &written, total), 1, WAITING_MAX);
    assert_in_range(written, 1, total / 2); /* it was stopped, with no more than the kernel's buffers full */
    http_resume(app_stream);
    assert_in_range(pump(c, &written, total), 1, WAITING_MAX);
    assert_int_equal(written, total);
    client_end(c);
    UNTIL(a.ended || a.failed);
    assert_string_equal(buf_str(&a.body), "67108864");
    assert_int_equal(sandbox->counts.bytes_up, total);
}

static void test_a_long_upload_to_a_slow_server_waits_at_the_client(void **state)
{
    (void)state;
    upload_through(false);
}

static void test_a_long_upload_to_a_slow_http2_server_waits_at_the_client(void **state)
{
    (void)state;
    upload_through(true);
}

static void test_a_client_that_does_not_read_stops_the_server(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    static const char block[65536];
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    _cleanup_client_ struct client *c =
        begin_tls(sandbox, &a, HOST, u->port, (struct client_request){.method = "GET", .target = "/stream"});
    UNTIL(a.head);
    client_pause(c);
    size_t sent = 0;
    for (int still = 0; still < 300 && sent < 64u << 20; still++) {
        if (http_queued(app_stream) < sizeof block) {
            (void)http_write(app_stream, block, sizeof block);
            sent += sizeof block;
            still = 0;
        }
        turn(1);
    }
    assert_in_range(sent, 1, 32u << 20);
    assert_in_range(outq_total(), 1, WAITING_MAX);
    http_end(app_stream);
    client_resume(c);
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.body.n, sent);
}

/* Reads what there is; true once `part` has come. */
static bool heard(int fd, struct buf *b, const char *part)
{
    char bytes[4096];
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n > 0)
        buf_add(b, bytes, (size_t)n);
    return strstr(buf_str(b), part) != NULL;
}

static void test_a_client_that_expects_to_be_told_gets_its_100(void **state)
{
    _cleanup_buf_ struct buf head = {0};
    _cleanup_buf_ struct buf got = {0};
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    allow(sandbox, u->port, QUOTED);
    int fd = dial_out(sandbox, HOST, u->port);
    buf_addf(&head, "POST /echo HTTP/1.1\r\nHost: " HOST ":%u\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
             u->port);
    assert_int_equal(write(fd, head.p, head.n), head.n);
    UNTIL(heard(fd, &got, "HTTP/1.1 100 Continue\r\n\r\n"));
    assert_int_equal(write(fd, "abc", 3), 3);
    UNTIL(heard(fd, &got, "3\r\nabc\r\n0\r\n\r\n"));
    assert_has(got, "HTTP/1.1 200 OK\r\n");
    (void)close(fd);
}

static void test_a_session_ticket_of_one_sandbox_is_worth_nothing_in_another(void **state)
{
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    allow(other, u->port, QUOTED);
    struct transport *t = tls_out(sandbox, HOST, u->port, false);
    char byte;
    UNTIL(t->ops->read(t, &byte, 1) <= 0 && client_session);
    t->ops->free(t);
    t = tls_out(sandbox, HOST, u->port, false);
    assert_int_equal(SSL_session_reused(tls_ssl(t)), 1);
    t->ops->free(t);
    t = tls_out(other, HOST, u->port, false);
    assert_int_equal(SSL_session_reused(tls_ssl(t)), 0);
    t->ops->free(t);
}

static void test_a_hello_that_came_in_pieces_is_replayed_whole(void **state)
{
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    /* A client whose bytes reach the egress one by one. */
    int outer[2], inner = dial_out(sandbox, HOST, u->port);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, outer), 0);
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    SSL_CTX_free(ctx);
    SSL_set_connect_state(ssl);
    (void)SSL_set_tlsext_host_name(ssl, HOST);
    struct transport *t = tls_wrap(ssl, outer[0], NULL, 0);
    char chunk[4096];
    int done = 0;
    for (int i = 0; i < 20000 && done == 0; i++) {
        done = t->ops->handshake(t);
        ssize_t n = recv(outer[1], chunk, 1, 0);
        if (n > 0)
            assert_int_equal(send(inner, chunk, (size_t)n, MSG_NOSIGNAL), n);
        turn(1);
        n = recv(inner, chunk, sizeof chunk, 0);
        if (n > 0)
            assert_int_equal(send(outer[1], chunk, (size_t)n, MSG_NOSIGNAL), n);
    }
    assert_int_equal(done, 1);
    t->ops->free(t);
    (void)close(outer[1]);
    (void)close(inner);
}

static void test_a_proxy_request_goes_where_its_target_says(void **state)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_buf_ struct buf got = {0};
    char bytes[8192];
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    allow(sandbox, u->port, QUOTED);
    struct in6_addr gate;
    assert_true(netpol_literal("10.255.0.1", 10, &gate));
    int fd = dial_to(sandbox, &gate, 3128, true);
    buf_addf(&text,
             "GET http://" HOST ":%u/a HTTP/1.1\r\nHost: " HOST ":%u\r\nProxy-Connection: keep-alive\r\n\r\n"
             "GET http://docs.example:%u/b HTTP/1.1\r\nHost: docs.example:%u\r\n\r\n"
             "GET /c HTTP/1.1\r\nHost: " HOST "\r\n\r\n",
             u->port, u->port, u->port, u->port);
    assert_int_equal(send(fd, text.p, text.n, MSG_NOSIGNAL), text.n);
    int quiet = 0;
    AWAIT (quiet >= 100 && strstr(buf_str(&got), "HTTP/1.1 403 Forbidden\r\n")) {
        struct err err = {0};
        assert_int_equal(loop_step(loop, 1, &err), 0);
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        quiet = n > 0 ? 0 : quiet + 1;
        if (n > 0)
            buf_add(&got, bytes, (size_t)n);
    }
    assert_has(got, "GET /a HTTP/11\nauthority: code.example:");
    assert_has_not(got, "proxy-connection");
    assert_has(got, "HTTP/1.1 403 Forbidden\r\n");
    assert_int_equal(app_requests, 1);
    (void)close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_request_inside_tls_reaches_a_verified_server),
        TEST(test_a_request_in_the_clear_is_forwarded_from_canonical_parts),
        TEST(test_the_answer_is_the_servers_own_but_for_alt_svc),
        TEST(test_http1_inside_may_be_http2_outside),
        TEST(test_a_connection_is_used_again_for_the_next_request),
        TEST(test_a_kept_connection_that_died_is_replaced_without_anybody_noticing),
        TEST(test_connections_are_never_shared_between_hosts_or_sandboxes),
        TEST(test_a_change_of_policy_closes_idle_connections),
        TEST(test_events_arrive_one_by_one_as_they_are_sent),
        TEST(test_a_websocket_carries_bytes_both_ways),
        TEST(test_a_server_that_switches_without_the_right_proof_is_refused),
        TEST(test_a_long_upload_to_a_slow_server_waits_at_the_client),
        TEST(test_a_long_upload_to_a_slow_http2_server_waits_at_the_client),
        TEST(test_a_client_that_does_not_read_stops_the_server),
        TEST(test_a_client_that_expects_to_be_told_gets_its_100),
        TEST(test_a_session_ticket_of_one_sandbox_is_worth_nothing_in_another),
        TEST(test_a_hello_that_came_in_pieces_is_replayed_whole),
        TEST(test_a_proxy_request_goes_where_its_target_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
