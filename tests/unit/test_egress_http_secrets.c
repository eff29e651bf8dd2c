/* Unit tests: what happens to a request besides being forwarded: secrets, records, decisions of others, time. */
#include "lib/unit.h"

#include <dirent.h>

#include "base/fd.h"
#include "egress-http-world.h"
#include "egress/secrets/seal.h"

#define HOST  "code.example"
#define VALUE "sk-the-real-value-0123456789"
#define HELD  "sk-sbx-placeholder-aaaaaaaaaaaaaaaaaaaa"

static unsigned char sealed_key[SEAL_KEY], public_key[SEAL_KEY];
static uint64_t now_ms;

static uint64_t clock_ms(void *arg)
{
    (void)arg;
    return now_ms;
}

static int setup(void **state)
{
    struct err err = {0};
    assert_int_equal(world_setup(state), 0);
    assert_int_equal(seal_new_key(sealed_key, &err), 0);
    assert_int_equal(seal_public(sealed_key, public_key, &err), 0);
    egress.vault = secrets_new(sealed_key);
    (void)snprintf(sandbox->tenant, sizeof sandbox->tenant, "acme");
    return 0;
}

static int teardown(void **state)
{
    struct secrets *vault = egress.vault;
    (void)world_teardown(state);
    secrets_free(vault);
    return 0;
}

static void put_secret(const char *spec)
{
    struct err err = {0};
    _cleanup_free_ char *context = secret_context("acme", "key");
    _cleanup_buf_ struct buf sealed = {0};
    _cleanup_buf_ struct buf text = {0};
    assert_int_equal(seal_bytes(public_key, context, VALUE, strlen(VALUE), &sealed, &err), 0);
    base64_encode(&text, sealed.p, sealed.n);
    json_t *m = json_pack("{ss ss si ss so}", "tenant", "acme", "name", "key", "revision", 1, "sealed", buf_str(&text),
                          "spec", json_loads(spec, 0, NULL));
    assert_non_null(m);
    if (secrets_put(egress.vault, m, &err) < 0)
        fail_msg("%s", err.msg);
    json_decref(m);
    esb_placeholder(sandbox, HELD, "key");
}

static void allow_with_secret(const struct upstream *u)
{
    _cleanup_buf_ struct buf b = {0};
    buf_addf(&b,
             "{\"rules\":[{\"id\":\"r\",\"hosts\":[\"" HOST "\"],\"ports\":[%u],\"secrets\":[\"key\"]},"
             "{\"id\":\"plain\",\"hosts\":[\"docs.example\"],\"ports\":[%u],\"http\":[{\"methods\":[\"GET\"]}]}]}",
             u->port, u->port);
    policy(sandbox, buf_str(&b));
}

static void ask_with(struct answer *a, const struct upstream *u, const char *host, const char *method,
                     const char *target, const char *authorization, const char *body)
{
    char authority[64];
    const struct http_field fields[] = {{"authorization", authorization}, {"content-type", "application/json"}};
    (void)snprintf(authority, sizeof authority, "%s:%u", host, u->port);
    struct client *c = client_new(loop, tls_out(sandbox, host, u->port, false));
    struct client_request q = {.method = method,
                               .target = target,
                               .host = authority,
                               .fields = {fields, authorization ? 2 : 0},
                               .length = body ? strlen(body) : 0};
    client_start(c, &q, &answer_events.answer, a);
    client_want_trailers(c, answer_events.on_trailer);
    if (body) {
        (void)client_write(c, body, strlen(body));
        client_end(c);
    }
    UNTIL(a->ended || a->failed);
    client_free(c);
    turn(5);
}

/* ---- secrets ---- */

#define SPEC(places)                                                                                                  \
    "{\"bind\":[{\"hosts\":[\"" HOST "\"],\"ports\":[\"1-65535\"]}],\"inject\":{\"type\":\"replace\",\"in\":[" places \
    "]},"                                                                                                             \
    "\"redact_response\":true}"

static void test_a_server_sees_the_value_and_the_sandbox_never_does(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    put_secret(SPEC("\"header\""));
    allow_with_secret(u);
    ask_with(&a, u, HOST, "GET", "/show", "Bearer " HELD, NULL);
    assert_int_equal(a.status, 200);
    /* The server echoes what it got; on the way back the value turns into its placeholder again. */
    assert_has(a.body, "authorization: Bearer " HELD);
    assert_has_not(a.body, VALUE);
    assert_has(a.body, "accept-encoding: identity");
    assert_int_equal(sandbox->counts.injections, 1);
    assert_int_equal(sandbox->counts.redactions, 1);
    _cleanup_answer_ struct answer behind = {0};
    ask_with(&behind, u, HOST, "GET", "/trailers", "Bearer " HELD, NULL);
    assert_has(behind.trailers, "x-echo: Bearer " HELD);
    assert_has_not(behind.trailers, VALUE);
}

static void test_a_value_goes_into_a_body_that_was_read_whole(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, true);
    put_secret(SPEC("\"body\",\"header\""));
    allow_with_secret(u);
    ask_with(&a, u, HOST, "POST", "/count", "Bearer x", "{\"key\":\"" HELD "\"}");
    assert_int_equal(a.status, 200);
    assert_string_equal(buf_str(&app_seen), "{\"key\":\"" VALUE "\"}");
}

static void test_a_placeholder_to_another_host_is_a_violation_and_goes_nowhere(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, "docs.example", false);
    put_secret(SPEC("\"header\""));
    allow_with_secret(u);
    ask_with(&a, u, "docs.example", "GET", "/", "Bearer " HELD, NULL);
    assert_int_equal(a.status, 403);
    assert_has(a.body, "secret_violation");
    assert_int_equal(app_connections, 0);
}

static void test_a_refused_request_gets_no_secret(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, "docs.example", false);
    put_secret(SPEC("\"header\""));
    allow_with_secret(u);
    ask_with(&a, u, "docs.example", "DELETE", "/", NULL, NULL);
    assert_int_equal(a.status, 403);
    assert_int_equal(sandbox->counts.injections, 0);
}

static void test_a_server_that_cannot_be_verified_gets_no_secret(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(egress.mint, HOST, false);
    put_secret(SPEC("\"header\""));
    allow_with_secret(u);
    ask_with(&a, u, HOST, "GET", "/", "Bearer " HELD, NULL);
    assert_int_equal(a.status, 502);
    assert_int_equal(app_requests, 0);
}

static void test_a_value_is_taken_out_of_any_kind_of_answer(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    put_secret(SPEC("\"header\""));
    allow_with_secret(u);
    ask_with(&a, u, HOST, "GET", "/binary", "Bearer " HELD, NULL);
    assert_int_equal(a.status, 200);
    assert_has(a.fields, "application/octet-stream");
    assert_int_equal(a.body.n, 3 + strlen("Bearer " HELD));
    assert_memory_equal(a.body.p + 3, "Bearer " HELD, strlen("Bearer " HELD));
}

static void test_an_answer_that_cannot_be_searched_is_refused(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    put_secret(SPEC("\"header\""));
    allow_with_secret(u);
    ask_with(&a, u, HOST, "GET", "/coded", "Bearer " HELD, NULL);
    assert_int_equal(a.status, 502);
    assert_has(a.body, "coded_response");
    ask_with(&b, u, HOST, "GET", "/coded", "Bearer none", NULL); /* nothing went out that must not come back */
    assert_int_equal(b.status, 200);
    assert_has(b.fields, "content-encoding: gzip");
}

/* ---- records ---- */

static char audit_dir[64];
static int audit_fd = -1;

static void audit_start(void)
{
    struct err err = {0};
    (void)snprintf(audit_dir, sizeof audit_dir, "/tmp/hutch-audit-XXXXXX");
    assert_non_null(mkdtemp(audit_dir));
    audit_fd = open(audit_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(audit_open(loop, audit_fd, false, &egress.audit, &err), 0);
}

/* All of it; the log is closed and gone. */
static void audit_end(struct buf *text)
{
    audit_close(egress.audit);
    egress.audit = NULL;
    DIR *d = fdopendir(dup(audit_fd));
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        if (strstr(e->d_name, ".ndjson"))
            assert_int_equal(fd_read_file(audit_fd, e->d_name, 1 << 20, text), 0);
        (void)unlinkat(audit_fd, e->d_name, 0);
    }
    closedir(d);
    (void)close(audit_fd);
    assert_int_equal(rmdir(audit_dir), 0);
}

static void test_every_request_leaves_one_line_in_the_audit_log(void **state)
{
    struct upstream u;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_buf_ struct buf text = {0};
    (void)state;
    audit_start();
    upstream_start(&u, origin, HOST, false);
    put_secret(SPEC("\"header\",\"query\""));
    allow_with_secret(&u);
    ask_with(&a, &u, HOST, "GET", "/show?token=" HELD, "Bearer " HELD, NULL);
    ask_with(&b, &u, "docs.example", "DELETE", "/x", NULL, NULL);
    upstream_stop(&u);
    audit_end(&text);
    assert_has(text, "\"kind\":\"http\"");
    assert_has(text, "\"path\":\"/show\"");
    assert_has(text, "\"status\":200");
    assert_has(text, "header:authorization");
    assert_has(text, "\"tls\":\"intercept\"");
    assert_has(text, "method_not_allowed");
    assert_has_not(text, VALUE);
    assert_has_not(text, HELD);
}

static void test_a_violation_that_is_only_to_be_known_is_in_the_audit_log(void **state)
{
    struct upstream u;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf text = {0};
    (void)state;
    audit_start();
    upstream_start(&u, origin, "docs.example", false);
    put_secret("{\"bind\":[{\"hosts\":[\"" HOST "\"]}],\"inject\":{\"type\":\"replace\"},\"on_violation\":\"log\"}");
    allow_with_secret(&u);
    ask_with(&a, &u, "docs.example", "GET", "/", "Bearer " HELD, NULL);
    assert_int_equal(a.status, 200);
    assert_has(a.body, "authorization: Bearer " HELD);
    assert_int_equal(sandbox->counts.violations, 1);
    upstream_stop(&u);
    audit_end(&text);
    assert_has(text, "\"verdict\":\"allow\"");
    assert_has(text, "\"reason\":\"secret_violation\"");
    assert_has_not(text, HELD);
}

/* ---- WebSockets ---- */

static void add_message(struct buf *out, const char *text)
{
    size_t n = strlen(text);
    unsigned char head[8] = {0x81, (unsigned char)(0x80 | (n < 126 ? n : 126))};
    size_t size = 2;
    if (n >= 126) {
        head[2] = (unsigned char)(n >> 8);
        head[3] = (unsigned char)n;
        size = 4;
    }
    memcpy(head + size, "mask", 4);
    buf_add(out, head, size + 4);
    for (size_t i = 0; i < n; i++)
        buf_addc(out, (char)(text[i] ^ "mask"[i & 3]));
}

static struct client *open_websocket(struct answer *a, const struct upstream *u, const char *path)
{
    static const struct http_field fields[] = {{"connection", "upgrade"},
                                               {"upgrade", "websocket"},
                                               {"sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="},
                                               {"sec-websocket-version", "13"},
                                               {"sec-websocket-extensions", "permessage-deflate"}};
    static char authority[64];
    (void)snprintf(authority, sizeof authority, HOST ":%u", u->port);
    struct client *c = client_new(loop, tls_out(sandbox, HOST, u->port, false));
    struct client_request q = {
        .method = "GET", .target = path, .host = authority, .fields = {fields, 5}, .upgrade = true};
    client_start(c, &q, &answer_events.answer, a);
    UNTIL(a->head || a->failed);
    return c;
}

static void say(struct client *c, const char *text)
{
    _cleanup_buf_ struct buf b = {0};
    add_message(&b, text);
    (void)client_write(c, b.p, b.n);
}

static void test_messages_of_a_websocket_get_the_value_and_give_none_back(void **state)
{
    struct upstream u;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf text = {0};
    (void)state;
    audit_start();
    upstream_start(&u, origin, HOST, false);
    put_secret(SPEC("\"ws_text\""));
    allow_with_secret(&u);
    struct client *c = open_websocket(&a, &u, "/ws-say");
    assert_int_equal(a.status, 101);
    say(c, "{\"token\":\"" HELD "\"}");
    UNTIL(a.body.n >= strlen(HELD) + 14 || a.failed);
    assert_string_equal(buf_str(&app_seen), "{\"token\":\"" VALUE "\"}\n");
    assert_has(a.body, "{\"token\":\"" HELD "\"}");
    assert_has_not(a.body, VALUE);
    client_end(c);
    UNTIL(a.ended || a.failed);
    client_free(c);
    UNTIL(!sandbox->flows);
    upstream_stop(&u);
    audit_end(&text);
    assert_has(text, "\"kind\":\"websocket\"");
    assert_has(text, "ws_text");
    assert_has_not(text, VALUE);
}

static void test_ten_thousand_messages_of_a_websocket_arrive_in_order(void **state)
{
    enum { COUNT = 10000, AT_ONCE = 100 };
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf expected = {0};
    char line[128];
    size_t size = 0;
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    put_secret(SPEC("\"ws_text\""));
    allow_with_secret(u);
    _cleanup_client_ struct client *c = open_websocket(&a, u, "/ws-say");
    for (int i = 0; i < COUNT; i++) {
        (void)snprintf(line, sizeof line, "%d " HELD, i);
        size += strlen(line) + 2;
        say(c, line);
        buf_addf(&expected, "%d " VALUE "\n", i);
        if (i % AT_ONCE == AT_ONCE - 1)
            UNTIL(a.body.n == size || a.failed);
    }
    assert_false(a.failed);
    assert_int_equal(app_seen.n, expected.n);
    assert_memory_equal(app_seen.p, expected.p, expected.n);
    assert_has_not(a.body, VALUE);
    assert_int_equal(sandbox->counts.injections, COUNT);
}

static void test_a_server_that_extends_a_websocket_unasked_is_refused(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    put_secret(SPEC("\"ws_text\""));
    allow_with_secret(u);
    _cleanup_client_ struct client *c = open_websocket(&a, u, "/ws-extended");
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.status, 502);
    assert_has(a.body, "coded_response");
}

static void test_frames_that_cannot_be_searched_end_a_websocket(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    put_secret(SPEC("\"ws_text\""));
    allow_with_secret(u);
    _cleanup_client_ struct client *c =
        open_websocket(&a, u, "/ws"); /* says again the very bytes, masked as no server may */
    assert_int_equal(a.status, 101);
    say(c, HELD);
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.body.n, 0);
}

/* ---- decisions of others ---- */

static void ask_policy(const struct upstream *u, const char *rules)
{
    _cleanup_buf_ struct buf b = {0};
    buf_addf(&b, "{\"tls\":{\"intercept\":\"always\"},\"on_miss\":\"ask\",\"ask_hold\":\"20s\",\"rules\":[");
    if (rules)
        buf_addf(&b, "{\"id\":\"g\",\"hosts\":[\"%s\"],\"ports\":[%u]}", rules, u->port);
    else
        buf_addf(&b, "{\"id\":\"g\",\"hosts\":[\"never.example\"]}");
    buf_adds(&b, "]}");
    policy(sandbox, buf_str(&b));
}

static void test_a_request_that_somebody_has_to_decide_on_waits_and_then_goes(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    ask_policy(u, NULL);
    _cleanup_client_ struct client *c = begin_tls(
        sandbox, &a, HOST, u->port, (struct client_request){.method = "POST", .target = "/echo", .length = 4});
    (void)client_write(c, "body", 4);
    client_end(c);
    turn(50);
    assert_false(a.head);
    assert_int_equal(app_connections, 0);
    ask_policy(u, HOST);
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.status, 200);
    assert_string_equal(buf_str(&a.body), "body");
}

static void test_nobody_decides_in_time_and_the_request_is_refused_as_pending(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    now_ms = loop_now(loop);
    loop_set_clock(loop, clock_ms, NULL);
    struct upstream *u = upstream_new(origin, HOST, false);
    ask_policy(u, NULL);
    _cleanup_client_ struct client *c =
        begin_tls(sandbox, &a, HOST, u->port, (struct client_request){.method = "GET", .target = "/"});
    turn(50);
    assert_false(a.head);
    now_ms += 21000;
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.status, 403);
    assert_has(a.body, "approval_pending");
}

static void test_a_client_that_leaves_while_it_waits_is_forgotten(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    struct upstream *u = upstream_new(origin, HOST, false);
    ask_policy(u, NULL);
    struct client *c = begin_tls(sandbox, &a, HOST, u->port, (struct client_request){.method = "GET", .target = "/"});
    turn(50);
    client_free(c);
    UNTIL(!sandbox->flows);
    ask_policy(u, HOST);
    turn(20);
    assert_int_equal(app_requests, 0);
}

/* ---- time ---- */

static void test_a_server_that_never_answers_is_given_up(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    now_ms = loop_now(loop);
    loop_set_clock(loop, clock_ms, NULL);
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, "\"" HOST "\"");
    app_stopped = true;
    _cleanup_client_ struct client *c =
        begin_tls(sandbox, &a, HOST, u->port, (struct client_request){.method = "GET", .target = "/count"});
    UNTIL(app_stream);
    for (int i = 0; i < 19; i++) { /* 285 s */
        now_ms += HTTP_TICK_MS;
        turn(3);
    }
    assert_false(a.head);
    for (int i = 0; i < 3; i++) {
        now_ms += HTTP_TICK_MS;
        turn(3);
    }
    UNTIL(a.ended || a.failed);
    assert_int_equal(a.status, 504);
    assert_has(a.body, "upstream_timeout");
}

static void test_idle_connections_to_servers_are_closed_after_half_a_minute(void **state)
{
    _cleanup_answer_ struct answer a = {0};
    (void)state;
    now_ms = loop_now(loop);
    loop_set_clock(loop, clock_ms, NULL);
    struct upstream *u = upstream_new(origin, HOST, false);
    allow(sandbox, u->port, "\"" HOST "\"");
    ask_tls(sandbox, &a, "GET", HOST, u->port, "/", NULL);
    assert_int_equal(pool_size(sandbox), 1);
    now_ms += POOL_IDLE_MS - 1000;
    turn(3);
    assert_int_equal(pool_size(sandbox), 1);
    now_ms += 2000;
    UNTIL(pool_size(sandbox) == 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_server_sees_the_value_and_the_sandbox_never_does),
        TEST(test_a_value_goes_into_a_body_that_was_read_whole),
        TEST(test_a_placeholder_to_another_host_is_a_violation_and_goes_nowhere),
        TEST(test_a_refused_request_gets_no_secret),
        TEST(test_a_server_that_cannot_be_verified_gets_no_secret),
        TEST(test_a_value_is_taken_out_of_any_kind_of_answer),
        TEST(test_an_answer_that_cannot_be_searched_is_refused),
        TEST(test_every_request_leaves_one_line_in_the_audit_log),
        TEST(test_a_violation_that_is_only_to_be_known_is_in_the_audit_log),
        TEST(test_messages_of_a_websocket_get_the_value_and_give_none_back),
        TEST(test_ten_thousand_messages_of_a_websocket_arrive_in_order),
        TEST(test_a_server_that_extends_a_websocket_unasked_is_refused),
        TEST(test_frames_that_cannot_be_searched_end_a_websocket),
        TEST(test_a_request_that_somebody_has_to_decide_on_waits_and_then_goes),
        TEST(test_nobody_decides_in_time_and_the_request_is_refused_as_pending),
        TEST(test_a_client_that_leaves_while_it_waits_is_forgotten),
        TEST(test_a_server_that_never_answers_is_given_up),
        TEST(test_idle_connections_to_servers_are_closed_after_half_a_minute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
