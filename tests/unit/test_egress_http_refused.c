/* Unit tests: what the HTTP engine refuses, how it says so, and that nobody outside hears of it. */
#include "lib/unit.h"

#include "egress-http-world.h"

#define HOST   "code.example"
#define QUOTED "\"code.example\""

static void test_a_denied_host_answers_in_json_over_a_certificate_that_verifies(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, "\"docs.example\"");
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/secret", NULL);
    assert_int_equal(a.status, 403);
    assert_has(a.fields, "content-type: application/json");
    assert_has(a.body, "host_not_allowed");
    assert_has(a.body, "\"/secret\"");
    assert_int_equal(app_connections, 0);
}

/* What a client of a plain connection hears until it ends. */
static void hear_plain(const char *host, uint16_t port, const char *text, struct buf *ret)
{
    int fd = dial_out(sandbox, host, port);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
    for (bool ended = false; !ended;) {
        char bytes[4096];
        turn(1);
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0)
            buf_add(ret, bytes, (size_t)n);
        assert_true(n >= 0 || errno == EAGAIN); /* no reset */
        ended = n == 0;
    }
    (void)close(fd);
}

static void test_closed_refusals_close_the_connection_and_keep_the_whole_record(void **state)
{
    _cleanup_buf_ struct buf heard = {0}, list = {0}, doc = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    buf_addf(&doc,
             "{\"refusals\":\"closed\",\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"http\":["
             "{\"methods\":[\"GET\"],\"paths\":[\"/open/**\"]}]}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    hear_plain("docs.example", 80, "GET /secret HTTP/1.1\r\nhost: docs.example\r\n\r\n", &heard);
    assert_int_equal(heard.n, 0);
    deny_list(sandbox, 0, 10, &list);
    assert_has(list, "\"reason\":\"host_not_allowed\"");
    assert_has(list, "\"path\":\"/secret\"");
    assert_has(list, "\"grant\":{\"hosts\":[\"docs.example\"]");
    assert_int_equal(app_connections, 0);
}

static void test_closed_refusals_answer_what_is_about_one_request_of_an_open_host(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf doc = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    buf_addf(&doc,
             "{\"refusals\":\"closed\",\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"http\":["
             "{\"methods\":[\"GET\"],\"paths\":[\"/open/**\"]}]}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/shut", NULL);
    assert_int_equal(a.status, 403);
    assert_has(a.body, "path_not_allowed");
    assert_int_equal(app_connections, 0);
}

static void test_a_method_or_path_outside_the_rule_is_refused_before_anybody_is_called(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_buf_ struct buf doc = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    buf_addf(&doc,
             "{\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],"
             "\"http\":[{\"methods\":[\"GET\"],\"paths\":[\"/open/**\"]}]}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    ask_tls(sandbox, &a, "POST", HOST, u->port, "/open/x", "body");
    assert_int_equal(a.status, 403);
    assert_has(a.body, "method_not_allowed");
    ask_tls(sandbox, &b, "GET", HOST, u->port, "/open/../shut", NULL);
    assert_int_equal(b.status, 403);
    assert_has(b.body, "path_not_allowed");
    assert_int_equal(app_connections, 0);
}

static void test_one_name_too_many_under_a_wildcard_is_refused_with_its_grant(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    _cleanup_buf_ struct buf doc = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, "one.z.example", false);
    buf_addf(&doc,
             "{\"limits\":{\"new_names_per_min\":1},\"rules\":[{\"id\":\"r\",\"hosts\":[\"*.z.example\"],"
             "\"ports\":[%u],\"tls\":\"intercept\"}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    ask_tls(sandbox, &a, "GET", "one.z.example", u->port, "/", NULL);
    assert_int_equal(a.status, 200);
    ask_tls(sandbox, &b, "GET", "onswg4tf.z.example", u->port, "/x", NULL);
    assert_int_equal(b.status, 429);
    assert_has(b.fields, "retry-after: ");
    assert_has(b.body, "\"code\":\"egress_limited\",\"reason\":\"too_many_new_names\"");
    assert_has(b.body, "\"grant\":{\"hosts\":[\"onswg4tf.z.example\"]");
    assert_int_equal(app_connections, 1);
    ask_tls(sandbox, &c, "GET", "one.z.example", u->port, "/", NULL); /* a name that is known */
    assert_int_equal(c.status, 200);
}

static void test_a_host_other_than_the_one_connected_to_is_misdirected(void **state)
{
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, "\"code.example\",\"docs.example\"");
    struct client *c = client_new(loop, tls_out(sandbox, HOST, u->port, false));
    static const char *const wrong[] = {"docs.example", "code.example:1", "127.0.0.1", "code.example.evil.example"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        _cleanup_answer_ struct answer a = {0};
        if (!client_reusable(c)) {
            client_free(c);
            c = client_new(loop, tls_out(sandbox, HOST, u->port, false));
        }
        ask_on(c, &a, "GET", "/", wrong[i], NULL);
        assert_int_equal(a.status, 421);
        assert_has(a.body, "host_mismatch");
    }
    assert_int_equal(app_connections, 0);
    client_free(c);
}

static void refused_certificate(struct mint *m, const char *host, const char *why)
{
    _cleanup_answer_ struct answer a = {0};
    struct upstream *u = upstream_new(m, host, false);
    allow(sandbox, u->port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    assert_int_equal(a.status, 502);
    assert_has(a.body, "upstream_cert");
    assert_has(a.body, why);
    assert_int_equal(app_requests, 0);
}

static void test_a_server_with_a_certificate_of_another_name_is_not_spoken_to(void **state)
{
    (void)state;
    refused_certificate(origin, "docs.example", "is not for code.example");
}

static void test_a_server_with_a_certificate_of_an_unknown_root_is_not_spoken_to(void **state)
{
    (void)state;
    refused_certificate(egress.mint, HOST, "unable to get local issuer certificate");
}

/* A certificate of its own making, valid from and for so many seconds. */
static void own_certificate(struct upstream *u, long from, long until)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *c = X509_new();
    X509_NAME *name = X509_get_subject_name(c);
    (void)X509_set_version(c, X509_VERSION_3);
    (void)ASN1_INTEGER_set(X509_get_serialNumber(c), 7);
    (void)X509_gmtime_adj(X509_getm_notBefore(c), from);
    (void)X509_gmtime_adj(X509_getm_notAfter(c), until);
    (void)X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)HOST, -1, -1, 0);
    (void)X509_set_issuer_name(c, name);
    (void)X509_set_pubkey(c, key);
    assert_true(X509_sign(c, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(u->ctx, c), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(u->ctx, key), 1);
    X509_free(c);
    EVP_PKEY_free(key);
}

static void test_a_self_signed_server_is_not_spoken_to(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(NULL, HOST, false);
    own_certificate(u, -3600, 3600);
    allow(sandbox, u->port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    assert_int_equal(a.status, 502);
    assert_has(a.body, "self-signed certificate");
}

static void test_a_server_whose_certificate_has_expired_is_not_spoken_to(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    struct err err = {0};
    (void)state;
    struct upstream *u = upstream_new(NULL, HOST, false);
    own_certificate(u, -7200, -3600);
    /* Trusted but for its age. */
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem;
    PEM_write_bio_X509(bio, SSL_CTX_get0_certificate(u->ctx));
    long n = BIO_get_mem_data(bio, &pem);
    assert_int_equal(etls_trust(((struct http_engine *)egress.http)->tls, pem, (size_t)n, &err), 0);
    BIO_free(bio);
    allow(sandbox, u->port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    assert_int_equal(a.status, 502);
    assert_has(a.body, "certificate has expired");
}

static void test_a_server_that_is_not_there_is_named_unreachable(void **state)
{
    uint16_t port;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    (void)close(listen_here(SOCK_STREAM, &port));
    allow(sandbox, port, QUOTED);
    ask_tls(sandbox, &a, "GET", HOST, port, "/", NULL);
    assert_int_equal(a.status, 502);
    assert_has(a.body, "upstream_unreachable");
}

/* What bytes sent by hand are answered with. */
static void say_raw(uint16_t port, const char *bytes, size_t n, struct buf *out)
{
    char got[8192];
    ssize_t len = -1;
    int fd = dial_out(sandbox, HOST, port), quiet = 0;
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
    AWAIT (len == 0 || (out->n > 0 && quiet >= 200)) { /* its end, or something and then nothing for a while */
        struct err err = {0};
        assert_int_equal(loop_step(loop, 1, &err), 0);
        quiet++;
        for (; (len = recv(fd, got, sizeof got, 0)) > 0; quiet = 0)
            buf_add(out, got, (size_t)len);
    }
    (void)close(fd);
    turn(5);
}

static void test_ambiguous_requests_are_refused_and_nothing_is_forwarded(void **state)
{
    static const char *const bad[] = {
        "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: +4\r\n\r\nabcd",
        "POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\nHost: %s\n\n",
        "GET / HTTP/1.1\r\nHost: %s\r\nX: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: %s\r\nX: a\x01\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: %s\r\nHost: docs.example\r\n\r\n",
        "GET http://docs.example/ HTTP/1.1\r\nHost: %s\r\n\r\n",
        "GET /a#b HTTP/1.1\r\nHost: %s\r\n\r\n",
        "GET /a\\b HTTP/1.1\r\nHost: %s\r\n\r\n",
        "GET /%%00 HTTP/1.1\r\nHost: %s\r\n\r\n",
        "GET /%%252e%%252e/x HTTP/1.1\r\nHost: %s\r\n\r\n",
        "GET /../x HTTP/1.1\r\nHost: %s\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
    };
    char authority[64];
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    allow(sandbox, u->port, QUOTED);
    (void)snprintf(authority, sizeof authority, "%s:%u", HOST, u->port);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        _cleanup_buf_ struct buf text = {0};
        _cleanup_buf_ struct buf got = {0};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
        buf_addf(&text, bad[i], authority);
#pragma GCC diagnostic pop
        say_raw(u->port, text.p, text.n, &got);
        if (strncmp(buf_str(&got), "HTTP/1.1 400", 12) != 0 && strncmp(buf_str(&got), "HTTP/1.1 501", 12) != 0)
            fail_msg("request %zu was answered:\n%s", i, buf_str(&got));
        assert_has(got, "malformed_request");
    }
    assert_int_equal(app_requests, 0);
}

static void test_a_client_that_does_not_trust_the_root_is_listed_with_the_reason(void **state)
{
    _cleanup_buf_ struct buf list = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    root_trusted = false;
    assert_null(tls_out_to(sandbox, HOST, u->port, HOST, false));
    root_trusted = true;
    UNTIL(!sandbox->flows);
    deny_list(sandbox, 0, 10, &list);
    assert_has(list, "unknown CA");
    assert_has(list, "passthrough");
}

static void test_bytes_behind_a_request_are_a_request_of_their_own_and_judged_so(void **state)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_buf_ struct buf got = {0};
    _cleanup_buf_ struct buf doc = {0};
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    buf_addf(&doc,
             "{\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"cleartext\":true,"
             "\"http\":[{\"methods\":[\"POST\"],\"paths\":[\"/echo\"]}]}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    buf_addf(&text,
             "POST /echo HTTP/1.1\r\nHost: " HOST ":%u\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\n\r\n"
             "GET /admin HTTP/1.1\r\nHost: " HOST ":%u\r\n\r\n",
             u->port, u->port);
    say_raw(u->port, text.p, text.n, &got);
    assert_has(got, "HTTP/1.1 200 OK\r\n");
    assert_has(got, "HTTP/1.1 403 Forbidden\r\n");
    assert_int_equal(app_requests, 1);
}

static void test_a_policy_that_takes_the_host_back_cuts_what_is_under_way(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, QUOTED);
    _cleanup_client_ struct client *c =
        begin_tls(sandbox, &a, HOST, u->port, (struct client_request){.method = "GET", .target = "/stream"});
    UNTIL(a.head);
    allow(sandbox, u->port, "\"code.example\",\"docs.example\""); /* still allowed: nothing happens */
    (void)http_write(app_stream, "x", 1);
    UNTIL(a.body.n == 1);
    allow(sandbox, u->port, "\"docs.example\"");
    UNTIL(a.failed);
    UNTIL(!app_stream); /* the server is told, too */
    assert_null(sandbox->flows);
    assert_int_equal(pool_size(sandbox), 0);
}

/* A stream under the first document is cut by the second, although both allow the request. */
static void cut_by(const char *first, const char *second)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf one = {0}, two = {0};
    struct upstream *u = upstream_new(origin, HOST, false);
    buf_addf(&one, "{\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"tls\":\"intercept\"%s]}", u->port,
             first);
    buf_addf(&two, "{\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"tls\":\"intercept\"%s]}", u->port,
             second);
    policy(sandbox, buf_str(&one));
    _cleanup_client_ struct client *c =
        begin_tls(sandbox, &a, HOST, u->port, (struct client_request){.method = "GET", .target = "/stream"});
    UNTIL(a.head);
    policy(sandbox, buf_str(&one)); /* the same again: nothing happens */
    (void)http_write(app_stream, "x", 1);
    UNTIL(a.body.n == 1);
    policy(sandbox, buf_str(&two));
    UNTIL(a.failed);
    UNTIL(!app_stream);
}

static void test_a_policy_that_takes_a_secret_back_cuts_what_carries_it(void **state)
{
    (void)state;
    cut_by(",\"secrets\":[\"one\",\"two\"]}", ",\"secrets\":[\"two\"]}");
}

static void test_a_policy_that_takes_the_address_back_cuts_what_goes_there(void **state)
{
    (void)state;
    cut_by("}", "},{\"effect\":\"deny\",\"cidrs\":[\"127.0.0.0/8\"]}");
}

/* ---- fields behind a body ---- */

static void say_trailers(uint16_t port, const char *trailers, struct buf *got)
{
    _cleanup_buf_ struct buf text = {0};
    buf_addf(&text,
             "POST /echo HTTP/1.1\r\nHost: " HOST
             ":%u\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nok\r\n"
             "0\r\n%s\r\n",
             port, trailers);
    got->n = 0;
    say_raw(port, text.p, text.n, got);
}

static void test_fields_behind_a_body_are_passed_on_judged_like_those_before_it(void **state)
{
    static const char *const forbidden[] = {"Authorization: x",    "Content-Length: 1", "Transfer-Encoding: chunked",
                                            "Host: evil.example",  "Cookie: a=b",       "X-HTTP-Method-Override: PUT",
                                            "Proxy-Connection: x", "If-Match: x",       "TE: trailers"};
    _cleanup_buf_ struct buf got = {0}, doc = {0};
    (void)state;
    struct upstream *u = upstream_new(NULL, NULL, false);
    buf_addf(&doc,
             "{\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"cleartext\":true,"
             "\"deny\":[{\"headers\":{\"x-danger\":\"*\"}}]}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    esb_placeholder(sandbox, "sbx-placeholder-of-it", "key");
    say_trailers(u->port, "X-Checksum:  abc \r\nx-two: \r\nGRPC-Status: 0\r\n", &got);
    assert_has(got, "HTTP/1.1 200 OK\r\n");
    assert_string_equal(buf_str(&app_trailers), "x-checksum: abc\nx-two: \ngrpc-status: 0\n");
    app_trailers.n = 0;
    for (size_t i = 0; i < ARRAY_LEN(forbidden); i++) {
        char line[80];
        (void)snprintf(line, sizeof line, "x-before: 1\r\n%s\r\n", forbidden[i]);
        say_trailers(u->port, line, &got);
        if (app_trailers.n > 0) /* the upstream was cut off before the end of the request */
            fail_msg("%s: %s", forbidden[i], buf_str(&app_trailers));
    }
    say_trailers(u->port, "x-danger: 1\r\n", &got);
    say_trailers(u->port, "x-key: Bearer sbx-placeholder-of-it\r\n", &got);
    assert_int_equal(app_trailers.n, 0);
    _cleanup_buf_ struct buf list = {0};
    deny_list(sandbox, 0, 256, &list);
    assert_has(list, "malformed_request");
    assert_has(list, "denied_by_rule");
    assert_has(list, "secret_violation");
}

/* A request that runs under a grant for one use. */
static struct client *begin_granted(struct upstream *u, struct answer *a, const char *more)
{
    static char authority[64];
    _cleanup_buf_ struct buf doc = {0};
    upstream_start(u, origin, HOST, false);
    buf_addf(&doc, "{%s\"rules\":[{\"id\":\"grant-1\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"uses\":1}]}", more,
             u->port);
    policy(sandbox, buf_str(&doc));
    sandbox->replaced = sandbox->epoch;
    (void)snprintf(authority, sizeof authority, "%s:%u", HOST, u->port);
    struct client *c = client_new(loop, tls_out(sandbox, HOST, u->port, false));
    struct client_request q = {.method = "GET", .target = "/stream", .host = authority};
    client_start(c, &q, &answer_events.answer, a);
    UNTIL(a->head);
    return c;
}

static void goes_on(struct answer *a, size_t n)
{
    (void)http_write(app_stream, "x", 1);
    UNTIL(a->body.n == n);
    assert_false(a->failed);
}

static void test_a_grant_that_is_used_up_lets_its_request_end_but_a_new_document_does_not(void **state)
{
    struct upstream u;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct client *c = begin_granted(&u, &a, "");
    policy(sandbox, "{\"allow\":[\"docs.example\"]}"); /* front takes the grant out, and adds something */
    goes_on(&a, 1);
    sandbox->replaced = epoch + 1;
    policy(sandbox, "\"off\"");
    UNTIL(a.failed);
    UNTIL(!app_stream); /* the server is told, too */
    client_free(c);
    upstream_stop(&u);
}

static void test_a_request_under_a_grant_goes_on_where_it_would_be_asked_about_again(void **state)
{
    struct upstream u;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct client *c = begin_granted(&u, &a, "\"on_miss\":\"ask\",");
    sandbox->replaced = epoch + 1;
    policy(sandbox, "{\"on_miss\":\"ask\",\"allow\":[\"docs.example\"]}");
    goes_on(&a, 1);
    policy(sandbox, "{\"on_miss\":\"ask\",\"deny\":[" QUOTED "]}");
    UNTIL(a.failed);
    UNTIL(!app_stream);
    client_free(c);
    upstream_stop(&u);
}

static void test_a_request_under_a_grant_ends_with_its_sandbox(void **state)
{
    struct upstream u;
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct client *c = begin_granted(&u, &a, "");
    esb_set_policy(sandbox, NULL, 0);
    UNTIL(a.failed);
    UNTIL(!app_stream);
    client_free(c);
    upstream_stop(&u);
}

static void test_a_body_longer_than_the_rule_allows_is_refused(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_buf_ struct buf doc = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    buf_addf(&doc,
             "{\"rules\":[{\"id\":\"r\",\"hosts\":[" QUOTED "],\"ports\":[%u],\"http\":[{\"methods\":[\"POST\"],"
             "\"max_request_bytes\":10}]}]}",
             u->port);
    policy(sandbox, buf_str(&doc));
    ask_tls(sandbox, &a, "POST", HOST, u->port, "/count", "0123456789ab");
    assert_int_equal(a.status, 413);
    assert_has(a.body, "body_too_large");
    ask_tls(sandbox, &b, "POST", HOST, u->port, "/count", "0123456789");
    assert_int_equal(b.status, 200);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_denied_host_answers_in_json_over_a_certificate_that_verifies),
        TEST(test_closed_refusals_close_the_connection_and_keep_the_whole_record),
        TEST(test_closed_refusals_answer_what_is_about_one_request_of_an_open_host),
        TEST(test_a_method_or_path_outside_the_rule_is_refused_before_anybody_is_called),
        TEST(test_one_name_too_many_under_a_wildcard_is_refused_with_its_grant),
        TEST(test_a_host_other_than_the_one_connected_to_is_misdirected),
        TEST(test_a_server_with_a_certificate_of_another_name_is_not_spoken_to),
        TEST(test_a_server_with_a_certificate_of_an_unknown_root_is_not_spoken_to),
        TEST(test_a_self_signed_server_is_not_spoken_to),
        TEST(test_a_server_whose_certificate_has_expired_is_not_spoken_to),
        TEST(test_a_server_that_is_not_there_is_named_unreachable),
        TEST(test_ambiguous_requests_are_refused_and_nothing_is_forwarded),
        TEST(test_a_client_that_does_not_trust_the_root_is_listed_with_the_reason),
        TEST(test_bytes_behind_a_request_are_a_request_of_their_own_and_judged_so),
        TEST(test_a_policy_that_takes_the_host_back_cuts_what_is_under_way),
        TEST(test_a_grant_that_is_used_up_lets_its_request_end_but_a_new_document_does_not),
        TEST(test_a_request_under_a_grant_goes_on_where_it_would_be_asked_about_again),
        TEST(test_a_request_under_a_grant_ends_with_its_sandbox),
        TEST(test_a_policy_that_takes_a_secret_back_cuts_what_carries_it),
        TEST(test_a_policy_that_takes_the_address_back_cuts_what_goes_there),
        TEST(test_fields_behind_a_body_are_passed_on_judged_like_those_before_it),
        TEST(test_a_body_longer_than_the_rule_allows_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
