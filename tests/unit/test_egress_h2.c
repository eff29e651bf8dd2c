/* Unit tests: HTTP/2 on either side, and on both: streams, trailers, flow control, and what upstreams may do wrong. */
#include "lib/unit.h"

#include <nghttp2/nghttp2.h>

#include "egress-http-world.h"
#include "http/h2-flood.h"

#define HOST   "code.example"
#define QUOTED "\"code.example\""

static char authority[64];

static struct h2up *h2_out(struct esb *s, const struct upstream *u)
{
    (void)snprintf(authority, sizeof authority, "%s:%u", HOST, u->port);
    struct transport *t = tls_out(s, HOST, u->port, true);
    assert_string_equal(t->ops->protocol(t), "h2");
    struct h2up *h = h2up_new(loop, t, gone_nothing, NULL);
    assert_non_null(h);
    return h;
}

static struct h2up_stream *start(struct h2up *h, struct answer *a, const char *method, const char *target,
                                 uint64_t length)
{
    struct client_request q = {.method = method, .target = target, .host = authority, .length = length};
    return h2up_start(h, &q, "https", &answer_events, a);
}

static void test_http2_inside_may_be_http1_outside(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    (void)start(h, &a, "GET", "/a?b", 0);
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.status, 200);
    assert_has(a.body, "GET /a?b HTTP/11\n");
    struct h2up_stream *s = start(h, &b, "POST", "/echo", HTTP_UNKNOWN);
    (void)h2up_write(s, "one ", 4);
    UNTIL(b.body.n == 4);
    (void)h2up_write(s, "two", 3);
    h2up_end(s);
    UNTIL(b.ended || b.failed);
    assert_string_equal(buf_str(&b.body), "one two");
    h2up_free(h);
}

static void trailers_through(bool h2)
{
    _cleanup_answer_ struct answer a = {0};
    struct upstream *u = upstream_new(origin, HOST, h2);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    struct h2up_stream *s = start(h, &a, "POST", "/count", HTTP_UNKNOWN);
    (void)h2up_write(s, "body", 4);
    h2up_trailer(s, "x-checksum", "abc");
    h2up_trailer(s, "grpc-status", "0");
    h2up_end(s);
    UNTIL(a.ended || a.failed);
    assert_string_equal(buf_str(&a.body), "4");
    assert_string_equal(buf_str(&app_trailers), "x-checksum: abc\ngrpc-status: 0\n");
    h2up_free(h);
}

static void test_trailers_of_a_request_arrive_over_http2(void **state)
{
    (void)state;
    trailers_through(true);
}

static void test_trailers_of_an_http2_request_follow_the_chunks_of_http1(void **state)
{
    (void)state;
    trailers_through(false);
}

enum { AT_ONCE = 12 }; /* first requests to a host */

static void ask_at_once(struct upstream *u, struct answer *a, struct h2up **h, unsigned status)
{
    *h = h2_out(sandbox, u);
    for (size_t i = 0; i < AT_ONCE; i++)
        (void)start(*h, &a[i], "GET", "/x", 0);
    for (size_t i = 0; i < AT_ONCE; i++) {
        UNTIL(a[i].ended || a[i].failed);
        assert_int_equal(a[i].status, status);
    }
}

static void end_at_once(struct upstream *u, struct answer *a, struct h2up *h)
{
    for (size_t i = 0; i < AT_ONCE; i++)
        answer_done(&a[i]);
    h2up_free(h);
    turn(5);
    upstream_stop(u);
}

static void test_first_requests_at_once_share_one_connection(void **state)
{
    struct upstream u;
    struct answer a[AT_ONCE] = {0};
    struct h2up *h;
    (void)state;
    upstream_start(&u, origin, HOST, true);
    allow(sandbox, u.port, QUOTED);
    ask_at_once(&u, a, &h, 200);
    assert_int_equal(app_connections, 1);
    end_at_once(&u, a, h);
}

static void test_first_requests_at_once_to_an_http1_server_get_a_connection_each(void **state)
{
    struct upstream u;
    struct answer a[AT_ONCE] = {0};
    struct h2up *h;
    (void)state;
    upstream_start(&u, origin, HOST, false);
    allow(sandbox, u.port, QUOTED);
    ask_at_once(&u, a, &h, 200);
    assert_in_range(app_connections, 2, AT_ONCE);
    end_at_once(&u, a, h);
}

static void test_a_connection_that_fails_fails_for_all_who_wait(void **state)
{
    struct upstream u;
    struct answer a[AT_ONCE] = {0};
    struct h2up *h;
    (void)state;
    upstream_start(&u, egress.mint, HOST, true); /* not to be trusted */
    allow(sandbox, u.port, QUOTED);
    ask_at_once(&u, a, &h, 502);
    for (size_t i = 0; i < AT_ONCE; i++)
        assert_has(a[i].body, "upstream_cert");
    assert_int_equal(app_connections, 1);
    assert_int_equal(app_requests, 0);
    end_at_once(&u, a, h);
}

static void test_one_who_does_not_wait_leaves_the_others_their_connection(void **state)
{
    struct answer a[3] = {0};
    struct h2up_stream *s[3];
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    for (size_t i = 0; i < 3; i++)
        s[i] = start(h, &a[i], "GET", "/x", 0);
    UNTIL(sandbox->flows && ((struct hflow *)sandbox->flows->driver)->exchanges);
    h2up_cancel(s[0]);
    h2up_cancel(s[2]);
    UNTIL(a[1].ended || a[1].failed);
    assert_int_equal(a[1].status, 200);
    assert_int_equal(app_connections, 1);
    for (size_t i = 0; i < 3; i++)
        answer_done(&a[i]);
    h2up_free(h);
}

static void test_all_who_wait_may_leave(void **state)
{
    struct answer a = {0}, b = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    (void)start(h, &a, "GET", "/x", 0);
    (void)start(h, &b, "GET", "/x", 0);
    UNTIL(sandbox->flows && ((struct hflow *)sandbox->flows->driver)->exchanges);
    h2up_free(h);
    UNTIL(!sandbox->flows);
    turn(20);
    assert_int_equal(app_requests, 0);
}

static void test_many_streams_share_one_connection_to_an_http2_server(void **state)
{
    enum { COUNT = 60 };
    struct answer a[COUNT] = {0}, first = {0};
    size_t done = 0;
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    (void)start(h, &first, "GET", "/", 0);
    UNTIL(first.ended || first.failed);
    assert_has(first.body, "HTTP/20\n");
    for (size_t i = 0; i < COUNT; i++) {
        struct h2up_stream *s = start(h, &a[i], "POST", "/echo", 5);
        (void)h2up_write(s, "hello", 5);
        h2up_end(s);
    }
    for (size_t i = 0; i < COUNT; i++) {
        UNTIL(a[i].ended || a[i].failed);
        done += a[i].ended && a[i].body.n == 5;
        answer_done(&a[i]);
    }
    assert_int_equal(done, COUNT);
    assert_int_equal(app_connections, 1);
    answer_done(&first);
    h2up_free(h);
}

static void grpc_request(struct h2up *h, struct answer *a)
{
    const struct http_field fields[] = {{"content-type", "application/grpc+proto"}, {"te", "trailers"}};
    struct client_request q = {
        .method = "POST", .target = "/grpc", .host = authority, .fields = {fields, 2}, .length = HTTP_UNKNOWN};
    struct h2up_stream *s = h2up_start(h, &q, "https", &answer_events, a);
    (void)h2up_write(s, "\0\0\0\0\2hi", 7);
    h2up_end(s);
    UNTIL(a->ended || a->failed);
}

static void test_grpc_has_its_trailers(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    grpc_request(h, &a);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body.n, 8);
    assert_string_equal(buf_str(&a.trailers), "grpc-status: 0\ngrpc-message: fine\n");
    h2up_free(h);
}

static void test_grpc_to_a_server_without_http2_is_refused_in_grpcs_own_terms(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    grpc_request(h, &a);
    assert_int_equal(a.status, 200);
    assert_has(a.fields, "grpc-status: ");
    assert_int_equal(app_requests, 0);
    h2up_free(h);
}

/* Reads what there is, zeros among it; true once `part` has come. */
static bool heard(struct transport *t, struct buf *b, const char *part)
{
    char bytes[4096];
    ssize_t n = t->ops->read(t, bytes, sizeof bytes);
    if (n > 0)
        buf_add(b, bytes, (size_t)n);
    return memmem(buf_str(b), b->n, part, strlen(part)) != NULL;
}

static void test_trailers_of_an_http2_server_follow_the_chunks_of_http1(void **state)
{
    _cleanup_buf_ struct buf got = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct transport *t = tls_out(sandbox, HOST, u->port, false);
    _cleanup_free_ char *text =
        xasprintf("POST /grpc HTTP/1.1\r\nHost: %s:%u\r\nTE: trailers\r\nContent-Length: 0\r\n\r\n", HOST, u->port);
    struct iovec v = {text, strlen(text)};
    assert_int_equal(t->ops->writev(t, &v, 1), v.iov_len);
    UNTIL(heard(t, &got, "0\r\ngrpc-status: 0\r\ngrpc-message: fine\r\n\r\n"));
    t->ops->free(t);
}

static void test_trailers_of_an_http1_server_reach_clients_of_either_protocol(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_buf_ struct buf got = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    (void)start(h, &a, "GET", "/trailers", 0);
    UNTIL(a.ended || a.failed);
    /* Those that say how a message is read, where it goes or who sends it are not among them. */
    assert_string_equal(buf_str(&a.trailers), "x-checksum: abc\nx-te: none\nx-hop: none\n");
    (void)start(h, &b, "GET", "/trailers?5000", 0);
    UNTIL(b.ended || b.failed);
    assert_true(b.failed); /* 4 KiB of them, not more */
    h2up_free(h);
    struct transport *t = tls_out(sandbox, HOST, u->port, false);
    _cleanup_free_ char *text = xasprintf(
        "GET /trailers?2000 HTTP/1.1\r\nHost: %s:%u\r\nTE: trailers\r\nConnection: TE\r\n\r\n", HOST, u->port);
    struct iovec v = {text, strlen(text)};
    assert_int_equal(t->ops->writev(t, &v, 1), v.iov_len);
    UNTIL(heard(t, &got, "x\r\n\r\n"));
    assert_non_null(strstr(buf_str(&got), "\r\n0\r\nx-checksum: abc\r\nx-te: trailers\r\nx-hop: te\r\nx-long: xxx"));
    t->ops->free(t);
    turn(5);
}

static void test_an_authority_other_than_the_name_of_the_handshake_is_misdirected(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, "\"code.example\",\"docs.example\"");
    struct h2up *h = h2_out(sandbox, u);
    (void)snprintf(authority, sizeof authority, "docs.example:%u", u->port);
    (void)start(h, &a, "GET", "/", 0);
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.status, 421);
    assert_has(a.body, "host_mismatch");
    (void)snprintf(authority, sizeof authority, "%s:%u", HOST, u->port);
    (void)start(h, &b, "GET", "/", 0); /* the connection goes on */
    UNTIL(b.ended || b.failed);
    assert_int_equal(b.status, 200);
    h2up_free(h);
}

static void test_a_stream_that_is_not_read_does_not_stop_its_neighbour(void **state)
{
    _cleanup_answer_ struct answer slow = {0};
    _cleanup_answer_ struct answer quick = {0};
    static const char block[65536];
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    struct h2up_stream *s = start(h, &slow, "GET", "/stream", 0);
    UNTIL(slow.head);
    h2up_pause(s);
    size_t sent = 0;
    for (int still = 0; still < 300 && sent < 32u << 20; still++) {
        if (http_queued(app_stream) < sizeof block) {
            (void)http_write(app_stream, block, sizeof block);
            sent += sizeof block;
            still = 0;
        }
        turn(1);
    }
    assert_in_range(sent, 1, 4u << 20); /* windows and queues, all of them bounded */
    (void)start(h, &quick, "GET", "/", 0);
    UNTIL(quick.ended || quick.failed);
    assert_int_equal(quick.status, 200);
    http_end(app_stream);
    h2up_resume(s);
    UNTIL(slow.ended || slow.failed);
    assert_int_equal(slow.body.n, sent);
    h2up_free(h);
}

static void test_a_client_that_resets_its_stream_takes_the_request_back(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    struct h2up_stream *s = start(h, &a, "GET", "/stream", 0);
    UNTIL(a.head);
    h2up_cancel(s);
    UNTIL(!app_stream);
    (void)start(h, &b, "GET", "/", 0);
    UNTIL(b.ended || b.failed);
    assert_int_equal(app_connections, 1); /* what the two shared lives on */
    h2up_free(h);
}

static void test_a_new_policy_cuts_the_stream_that_it_forbids_and_no_other(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_buf_ struct buf doc = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, QUOTED);
    struct h2up *h = h2_out(sandbox, u);
    (void)start(h, &a, "GET", "/stream", 0);
    UNTIL(a.head);
    struct h2up_stream *s = start(h, &b, "POST", "/echo", HTTP_UNKNOWN);
    UNTIL(b.head);
    buf_addf(&doc,
             "{\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"http\":[{\"paths\":[\"/echo\"]}]}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    UNTIL(a.failed);
    (void)h2up_write(s, "still here", 10);
    h2up_end(s);
    UNTIL(b.ended || b.failed);
    assert_string_equal(buf_str(&b.body), "still here");
    h2up_free(h);
}

static void test_a_sandbox_has_so_many_requests_under_way_and_no_more(void **state)
{
    enum { PER_CONNECTION = 64, CONNECTIONS = POOL_EXCHANGES / PER_CONNECTION };
    struct h2up *h[CONNECTIONS];
    static struct answer a[POOL_EXCHANGES];
    _cleanup_answer_ struct answer one = {0};
    _cleanup_buf_ struct buf doc = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    buf_addf(&doc,
             "{\"limits\":{\"rps\":10000,\"burst\":10000},"
             "\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"http\":[{\"paths\":[\"/**\"]}]}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    for (size_t i = 0; i < CONNECTIONS; i++) {
        h[i] = h2_out(sandbox, u);
        for (size_t k = 0; k < PER_CONNECTION; k++)
            (void)start(h[i], &a[i * PER_CONNECTION + k], "GET", "/hold", 0);
        for (size_t k = 0; k < PER_CONNECTION; k++)
            UNTIL(a[i * PER_CONNECTION + k].head);
    }
    (void)start(h[0], &one, "GET", "/hold", 0);
    UNTIL(one.ended || one.failed);
    assert_int_equal(one.status, 429);
    for (size_t i = 0; i < CONNECTIONS; i++)
        h2up_free(h[i]);
    UNTIL(!sandbox->flows);
    for (size_t i = 0; i < POOL_EXCHANGES; i++) {
        assert_int_equal(a[i].status, 200);
        answer_done(&a[i]);
    }
}

static void test_a_denied_stream_is_answered_in_json(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    allow(sandbox, u->port, "\"docs.example\"");
    struct h2up *h = h2_out(sandbox, u);
    struct h2up_stream *s = start(h, &a, "POST", "/x", HTTP_UNKNOWN);
    (void)h2up_write(s, "body", 4);
    UNTIL(a.head);
    assert_int_equal(a.status, 403);
    UNTIL(a.ended || a.failed);
    assert_has(a.body, "host_not_allowed");
    assert_int_equal(app_connections, 0);
    h2up_free(h);
}

/* ---- an upstream that sends what it likes ---- */

struct raw {
    struct h2up *h;
    int fd;
    bool gone;
};

static void raw_gone(void *arg) { ((struct raw *)arg)->gone = true; }

static void raw_start(struct raw *r)
{
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
    *r = (struct raw){.fd = sv[1]};
    r->h = h2up_new(loop, transport_plain(sv[0]), raw_gone, r);
    (void)snprintf(authority, sizeof authority, HOST);
}

static void raw_stop(struct raw *r)
{
    h2up_free(r->h);
    (void)close(r->fd);
    turn(2);
}

static void raw_frame(struct raw *r, uint8_t type, uint8_t flags, uint32_t stream, const void *p, size_t n)
{
    uint8_t head[9] = {
        (uint8_t)(n >> 16),      (uint8_t)(n >> 8),      (uint8_t)n,     type, flags, (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    assert_int_equal(send(r->fd, head, sizeof head, MSG_NOSIGNAL), sizeof head);
    if (n > 0)
        assert_int_equal(send(r->fd, p, n, MSG_NOSIGNAL), n);
}

static void test_an_interim_answer_is_not_taken_for_the_answer(void **state)
{
    struct raw r;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    raw_start(&r);
    (void)start(r.h, &a, "GET", "/", 0);
    turn(2);
    raw_frame(&r, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    raw_frame(&r, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1,
              "\x08\x03"
              "103",
              5);
    turn(3);
    assert_false(a.head);
    raw_frame(&r, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 1, "\x88", 1);
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.status, 200);
    raw_stop(&r);
}

static void test_interim_answers_without_end_are_given_up(void **state)
{
    struct raw r;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    raw_start(&r);
    (void)start(r.h, &a, "GET", "/", 0);
    turn(2);
    raw_frame(&r, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    for (int i = 0; i <= H2UP_INTERIM_MAX; i++)
        raw_frame(&r, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1,
                  "\x08\x03"
                  "103",
                  5);
    UNTIL(a.failed);
    assert_has(a.error, "too many interim answers");
    raw_stop(&r);
}

static void test_a_connection_that_says_goodbye_takes_no_more_requests(void **state)
{
    struct raw r;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    raw_start(&r);
    (void)start(r.h, &a, "GET", "/", 0);
    turn(2);
    assert_true(h2up_usable(r.h));
    raw_frame(&r, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    raw_frame(&r, NGHTTP2_GOAWAY, 0, 0, "\0\0\0\1\0\0\0\0", 8);
    UNTIL(!h2up_usable(r.h));
    raw_frame(&r, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 1, "\x88", 1);
    UNTIL(a.ended || a.failed);
    assert_true(a.ended);
    UNTIL(r.gone);
    raw_stop(&r);
}

static void test_a_connection_that_breaks_fails_each_of_its_requests_once(void **state)
{
    struct raw r;
    struct answer a[3] = {0};
    (void)state;
    raw_start(&r);
    for (size_t i = 0; i < 3; i++)
        (void)start(r.h, &a[i], "GET", "/", 0);
    turn(2);
    assert_int_equal(h2up_streams(r.h), 3);
    (void)shutdown(r.fd, SHUT_RDWR);
    UNTIL(r.gone);
    for (size_t i = 0; i < 3; i++) {
        assert_true(a[i].failed);
        answer_done(&a[i]);
    }
    raw_stop(&r);
}

static void flooded_with(uint8_t type, uint8_t flags, uint32_t stream, const void *p, size_t n)
{
    struct raw r;
    _cleanup_answer_ struct answer a = {0};
    raw_start(&r);
    (void)start(r.h, &a, "GET", "/", 0);
    turn(2);
    raw_frame(&r, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    raw_frame(&r, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, "\x88", 1);
    UNTIL(a.head);
    for (int i = 0; i < 3 * H2_IDLE_FRAMES && !r.gone; i++) {
        char bytes[4096];
        if (send(r.fd, "", 0, MSG_NOSIGNAL) < 0)
            break;
        raw_frame(&r, type, flags, stream, p, n);
        if (i % 50 == 0)
            turn(1);
        while (recv(r.fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
        if (i == H2_IDLE_FRAMES / 2)
            assert_false(a.failed);
    }
    UNTIL(a.failed);
    UNTIL(r.gone);
    raw_stop(&r);
}

static void test_a_server_that_sends_frames_of_no_use_without_end_is_left(void **state)
{
    (void)state;
    flooded_with(NGHTTP2_DATA, 0, 1, NULL, 0);
    flooded_with(NGHTTP2_PING, 0, 0, "12345678", 8);
    flooded_with(NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    flooded_with(NGHTTP2_PRIORITY, 0, 1, "\0\0\0\0\1", 5);
}

static void test_a_server_that_breaks_the_protocol_is_left(void **state)
{
    struct raw r;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    raw_start(&r);
    (void)start(r.h, &a, "GET", "/", 0);
    turn(2);
    raw_frame(&r, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    raw_frame(&r, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 7, "\x88", 1); /* a stream that nobody opened */
    UNTIL(a.failed);
    UNTIL(r.gone);
    raw_stop(&r);
}

static void test_more_streams_than_the_server_takes_are_not_started(void **state)
{
    struct raw r;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    raw_start(&r);
    raw_frame(&r, NGHTTP2_SETTINGS, 0, 0, "\0\3\0\0\0\1", 6); /* MAX_CONCURRENT_STREAMS 1 */
    turn(3);
    assert_true(h2up_usable(r.h));
    (void)start(r.h, &a, "GET", "/", 0);
    turn(2);
    assert_false(h2up_usable(r.h));
    raw_stop(&r);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_http2_inside_may_be_http1_outside),
        TEST(test_first_requests_at_once_share_one_connection),
        TEST(test_first_requests_at_once_to_an_http1_server_get_a_connection_each),
        TEST(test_a_connection_that_fails_fails_for_all_who_wait),
        TEST(test_one_who_does_not_wait_leaves_the_others_their_connection),
        TEST(test_all_who_wait_may_leave),
        TEST(test_many_streams_share_one_connection_to_an_http2_server),
        TEST(test_grpc_has_its_trailers),
        TEST(test_grpc_to_a_server_without_http2_is_refused_in_grpcs_own_terms),
        TEST(test_trailers_of_an_http2_server_follow_the_chunks_of_http1),
        TEST(test_trailers_of_an_http1_server_reach_clients_of_either_protocol),
        TEST(test_an_authority_other_than_the_name_of_the_handshake_is_misdirected),
        TEST(test_a_stream_that_is_not_read_does_not_stop_its_neighbour),
        TEST(test_a_client_that_resets_its_stream_takes_the_request_back),
        TEST(test_a_new_policy_cuts_the_stream_that_it_forbids_and_no_other),
        TEST(test_a_sandbox_has_so_many_requests_under_way_and_no_more),
        TEST(test_a_denied_stream_is_answered_in_json),
        TEST(test_an_interim_answer_is_not_taken_for_the_answer),
        TEST(test_interim_answers_without_end_are_given_up),
        TEST(test_a_connection_that_says_goodbye_takes_no_more_requests),
        TEST(test_a_connection_that_breaks_fails_each_of_its_requests_once),
        TEST(test_trailers_of_a_request_arrive_over_http2),
        TEST(test_trailers_of_an_http2_request_follow_the_chunks_of_http1),
        TEST(test_a_server_that_sends_frames_of_no_use_without_end_is_left),
        TEST(test_a_server_that_breaks_the_protocol_is_left),
        TEST(test_more_streams_than_the_server_takes_are_not_started),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
