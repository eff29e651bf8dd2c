/* Unit tests: requests under limits of size, pace and memory, by ways that are less usual: bare addresses, CONNECT, old TLS,
 * a sandbox that is watched to learn what it needs. */
#include "lib/unit.h"

#include <signal.h>
#include <sys/resource.h>

#include "egress-http-world.h"

#define HOST   "code.example"
#define QUOTED "\"code.example\""

static struct in6_addr address(const char *text)
{
    struct in6_addr a;
    assert_true(netpol_literal(text, strlen(text), &a));
    return a;
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

/* ---- ways ---- */

static void test_a_client_that_knows_tls_12_only_is_served(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    char authority[64];
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    (void)snprintf(authority, sizeof authority, HOST ":%u", u->port);
    client_newest = TLS1_2_VERSION;
    struct transport *t = tls_out(sandbox, HOST, u->port, false);
    assert_string_equal(SSL_get_version(tls_ssl(t)), "TLSv1.2");
    _cleanup_client_ struct client *c = client_new(loop, t);
    ask_on(c, &a, "GET", "/", authority, NULL);
    assert_int_equal(a.status, 200);
}

static void test_a_policy_may_demand_tls_13(void **state)
{
    _cleanup_buf_ struct buf b = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    buf_addf(&b,
             "{\"tls\":{\"intercept\":\"always\",\"min\":\"1.3\"},\"rules\":[{\"hosts\":[" QUOTED "],\"ports\":[%u]}]}",
             u->port);
    policy(sandbox, buf_str(&b));
    client_newest = TLS1_2_VERSION;
    assert_null(tls_out_to(sandbox, HOST, u->port, HOST, false));
    client_newest = 0;
    struct transport *t = tls_out(sandbox, HOST, u->port, false);
    t->ops->free(t);
}

/* An answer from a bare address under this policy. */
static void ask_address(struct answer *a, const char *text, uint16_t port, const char *document)
{
    struct in6_addr there = address(text);
    char authority[64];
    policy(sandbox, document);
    (void)snprintf(authority, sizeof authority, "%s:%u", text, port);
    struct client *c = client_new(loop, transport_plain(dial_to(sandbox, &there, port, false)));
    ask_on(c, a, "GET", "/x", authority, NULL);
    client_free(c);
    turn(5);
}

static void test_a_bare_address_is_refused_unless_a_rule_has_it_and_never_if_it_is_ours(void **state)
{
    _cleanup_buf_ struct buf b = {0};
    _cleanup_answer_ struct answer other_rule = {0};
    _cleanup_answer_ struct answer ours = {0};
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    ask_address(&other_rule, "9.9.9.9", 80, "{\"rules\":[{\"cidrs\":[\"9.9.9.8\"],\"ports\":[80]}]}");
    assert_int_equal(other_rule.status, 403);
    assert_has(other_rule.body, "ip_literal");
    buf_addf(&b, "{\"rules\":[{\"cidrs\":[\"127.0.0.1\"],\"ports\":[%u]}]}", u->port);
    ask_address(&ours, "127.0.0.1", u->port, buf_str(&b));
    assert_int_equal(ours.status, 403);
    assert_has(ours.body, "private_address");
    assert_int_equal(app_connections, 0);
}

static void test_connect_leads_into_tls_that_is_looked_into(void **state)
{
    _cleanup_buf_ struct buf b = {0};
    _cleanup_buf_ struct buf got = {0};
    _cleanup_answer_ struct answer a = {0};
    struct in6_addr gate = address("10.255.0.1");
    char authority[64];
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    (void)snprintf(authority, sizeof authority, HOST ":%u", u->port);
    int fd = dial_to(sandbox, &gate, 3128, true);
    buf_addf(&b, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority);
    assert_int_equal(send(fd, b.p, b.n, MSG_NOSIGNAL), b.n);
    UNTIL(heard(fd, &got, "\r\n\r\n"));
    assert_string_equal(buf_str(&got), "HTTP/1.1 200 Connection Established\r\n\r\n");
    struct transport *t = tls_over(fd, HOST, false);
    assert_non_null(t);
    _cleanup_client_ struct client *c = client_new(loop, t);
    ask_on(c, &a, "GET", "/inside", authority, NULL);
    assert_has(a.body, "GET /inside HTTP/11\nauthority: code.example:");
}

static void test_connect_to_a_host_that_is_not_allowed_is_refused(void **state)
{
    _cleanup_buf_ struct buf got = {0};
    struct in6_addr gate = address("10.255.0.1");
    static const char text[] = "CONNECT docs.example:443 HTTP/1.1\r\nHost: docs.example:443\r\n\r\n";
    (void)state;
    allow(sandbox, 443, QUOTED);
    int fd = dial_to(sandbox, &gate, 3128, true);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    UNTIL(heard(fd, &got, "host_not_allowed"));
    assert_has(got, "HTTP/1.1 403 Forbidden\r\n");
    (void)close(fd);
    turn(5);
}

static void test_what_is_asked_while_learning_is_learned(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf learned = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    policy(sandbox, "{\"mode\":\"learn\"}");
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/v1/things", NULL);
    assert_int_equal(a.status, 200);
    learn_write_document(sandbox, &learned);
    assert_has(learned, HOST);
    assert_has(learned, "/v1/things");
    assert_has(learned, "GET");
}

/* ---- limits ---- */

static void rule(uint16_t port, const char *limits, const char *more)
{
    _cleanup_buf_ struct buf b = {0};
    buf_addf(
        &b, "{\"tls\":{\"intercept\":\"always\"}%s,\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u]%s}]}",
        more, port, limits);
    policy(sandbox, buf_str(&b));
}

static void test_an_answer_that_says_it_is_too_long_is_refused_at_once(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    rule(u->port, ",\"limits\":{\"max_response_bytes\":10}", "");
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    assert_int_equal(a.status, 502);
    assert_has(a.body, "response_too_large");
}

static void test_an_answer_that_turns_out_too_long_is_cut(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    rule(u->port, ",\"limits\":{\"max_response_bytes\":10}", "");
    _cleanup_client_ struct client *c =
        begin_tls(sandbox, &a, HOST, u->port, (struct client_request){.method = "GET", .target = "/stream"});
    UNTIL(app_stream);
    (void)http_write(app_stream, "0123456789", 10);
    UNTIL(a.body.n == 10);
    (void)http_write(app_stream, "x", 1);
    UNTIL(a.ended || a.failed);
    assert_true(a.failed);
    assert_int_equal(a.body.n, 10);
}

static uint64_t now_ms;
static uint64_t clock_ms(void *arg)
{
    (void)arg;
    return now_ms;
}

/* What has come when nothing moves any more. */
static size_t settle(const struct answer *a)
{
    size_t before = 0;
    do {
        before = a->body.n;
        turn(200);
    } while (a->body.n != before);
    return before;
}

static void test_bytes_come_no_faster_than_the_bandwidth(void **state)
{
    enum { RATE = 1 << 20 };
    _cleanup_answer_ struct answer a = {0};
    char authority[64];
    (void)state;
    now_ms = loop_now(loop);
    loop_set_clock(loop, clock_ms, NULL);
    struct upstream *u = upstream_new(origin, HOST, false);
    rule(u->port, "", ",\"limits\":{\"rate_in\":\"1M\"}");
    (void)snprintf(authority, sizeof authority, HOST ":%u", u->port);
    _cleanup_client_ struct client *c = client_new(loop, tls_out(sandbox, HOST, u->port, false));
    struct client_request q = {.method = "GET", .target = "/bulk", .host = authority};
    app_bulk = 8 * RATE;
    client_start(c, &q, &answer_events.answer, &a);
    UNTIL(a.body.n > 0);
    size_t first = settle(&a);
    assert_in_range(first, 1, RATE); /* a burst of a quarter of a second, and one read behind it */
    for (int i = 0; i < 20; i++) {
        now_ms += 100;
        (void)settle(&a);
    }
    assert_in_range(a.body.n - first, RATE, 3 * RATE); /* two seconds */
    now_ms += 30000;
    for (int i = 0; i < 400 && !a.ended; i++) {
        now_ms += 100;
        turn(20);
    }
    assert_true(a.ended);
    assert_int_equal(a.body.n, 8 * RATE);
}

/* ---- memory ---- */

static size_t drained;
static void count_only(void *arg, const void *p, size_t n)
{
    (void)arg;
    (void)p;
    drained += n;
}

/* 256 MiB to a client that reads as fast as it can; the most that waited anywhere meanwhile. */
static size_t download(const struct upstream *u)
{
    static const struct client_events events = {got_head, count_only, got_end, got_room, got_error};
    const size_t total = 256u << 20;
    _cleanup_answer_ struct answer a = {0};
    char authority[64];
    size_t most = 0;
    (void)snprintf(authority, sizeof authority, HOST ":%u", u->port);
    struct client *c = client_new(loop, transport_plain(dial_out(sandbox, HOST, u->port)));
    struct client_request q = {.method = "GET", .target = "/bulk", .host = authority};
    app_bulk = total;
    drained = 0;
    client_start(c, &q, &events, &a);
    for (int i = 0, still = 0; still < 1000 && i < 1000000 && !a.ended && !a.failed; i++) {
        struct err err = {0};
        size_t before = drained;
        assert_int_equal(loop_step(loop, 5, &err), 0);
        most = outq_total() > most ? outq_total() : most;
        still = drained == before ? still + 1 : 0;
    }
    assert_int_equal(drained, total);
    assert_true(a.ended);
    client_free(c);
    turn(5);
    return most;
}

static void test_a_long_download_needs_no_more_memory_than_a_short_one(void **state)
{
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    allow(sandbox, u->port, QUOTED);
    assert_in_range(download(u), 0, 1024 * 1024);
}

static void test_a_long_opaque_stream_arrives_whole(void **state)
{
    _cleanup_buf_ struct buf b = {0};
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    buf_addf(&b, "{\"rules\":[{\"hosts\":[" QUOTED "],\"ports\":[%u],\"proto\":\"tcp\"}]}", u->port);
    policy(sandbox, buf_str(&b));
    assert_in_range(download(u), 0, 1024 * 1024);
}

/* ---- an audit log that takes nothing ---- */

static void test_nothing_goes_out_while_the_audit_log_cannot_be_written(void **state)
{
    struct upstream u;
    struct err err = {0};
    struct rlimit was;
    char dir[] = "/tmp/hutch-audit-XXXXXX";
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(audit_open(loop, dirfd, true, &egress.audit, &err), 0);
    upstream_start(&u, origin, HOST, false);
    allow(sandbox, u.port, QUOTED);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    struct rlimit none = {.rlim_cur = 1, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    ask_tls(sandbox, &a, "GET", HOST, u.port, "/", NULL); /* its own line is the first that cannot be written */
    ask_tls(sandbox, &b, "GET", HOST, u.port, "/", NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(a.status, 200);
    assert_int_equal(b.status, 503);
    assert_has(b.body, "audit_unavailable");
    assert_int_equal(app_requests, 1);
    upstream_stop(&u);
    audit_close(egress.audit);
    egress.audit = NULL;
    assert_int_equal(unlinkat(dirfd, "audit-00000001.ndjson", 0), 0);
    (void)close(dirfd);
    assert_int_equal(rmdir(dir), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_client_that_knows_tls_12_only_is_served),
        TEST(test_a_policy_may_demand_tls_13),
        TEST(test_a_bare_address_is_refused_unless_a_rule_has_it_and_never_if_it_is_ours),
        TEST(test_connect_leads_into_tls_that_is_looked_into),
        TEST(test_connect_to_a_host_that_is_not_allowed_is_refused),
        TEST(test_what_is_asked_while_learning_is_learned),
        TEST(test_an_answer_that_says_it_is_too_long_is_refused_at_once),
        TEST(test_an_answer_that_turns_out_too_long_is_cut),
        TEST(test_bytes_come_no_faster_than_the_bandwidth),
        TEST(test_a_long_download_needs_no_more_memory_than_a_short_one),
        TEST(test_a_long_opaque_stream_arrives_whole),
        TEST(test_nothing_goes_out_while_the_audit_log_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
