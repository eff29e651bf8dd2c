#include "tests/lib/unit.h"

#include <jansson.h>

#include "base/fd.h"
#include "base/mem.h"
#include "egress/audit/audit.h"
#include "unit/egress-deny-world.h"

#define POLICY                                                                                                    \
    "{\"id\":\"acme/agent\",\"default\":\"deny\",\"deny_message\":\"Talk to ops.\",\"rules\":[{\"id\":\"forge\"," \
    "\"hosts\":[\"code.example.org\"],\"http\":[{\"methods\":[\"GET\"],\"paths\":[\"/acme/**\"]}]},"              \
    "{\"id\":\"never\",\"effect\":\"deny\",\"hosts\":[\"paste.example.org\"]}]}"

static int start(void **state)
{
    (void)state;
    deny_world_start(POLICY);
    return 0;
}
static int stop(void **state)
{
    (void)state;
    deny_world_stop();
    return 0;
}

static struct deny a_deny(enum netpol_reason reason)
{
    return (struct deny){.reason = reason,
                         .layer = "http",
                         .host = "code.example.org",
                         .port = 443,
                         .method = "DELETE",
                         .path = "/acme/x",
                         .rule = "forge"};
}

static json_t *parsed(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, 0, &e);
    if (!j)
        fail_msg("%s in:\n%s", e.text, text);
    return j;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* --- words
 * ------------------------------------------------------------------------------------------------------------ */

static void a_body_says_what_why_what_would_do_and_how_to_ask(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct deny d = a_deny(NETPOL_R_METHOD);
    deny_record(&world_sandbox, &d);
    deny_body(&world_sandbox, &d, &b);
    json_t *root = parsed(b.p), *e = json_object_get(root, "error"), *grant = json_object_get(e, "grant");
    assert_string_equal(text_of(e, "code"), "egress_denied");
    assert_string_equal(text_of(e, "reason"), "method_not_allowed");
    assert_string_equal(text_of(e, "layer"), "http");
    assert_string_equal(text_of(e, "host"), "code.example.org");
    assert_string_equal(text_of(e, "method"), "DELETE");
    assert_string_equal(text_of(e, "path"), "/acme/x");
    assert_string_equal(text_of(e, "rule"), "forge");
    assert_string_equal(text_of(e, "request_id"), d.id);
    assert_string_equal(text_of(json_object_get(e, "policy"), "id"), "acme/agent");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(e, "policy"), "epoch")), 7);
    assert_true(json_is_false(json_object_get(e, "retryable")));
    has(text_of(e, "message"), "DELETE code.example.org:443/acme/x was refused");
    has(text_of(e, "message"), "not a fault of the network");
    has(text_of(e, "message"), "gives the same answer");
    has(text_of(e, "message"), "Talk to ops.");
    assert_string_equal(json_string_value(json_array_get(json_object_get(grant, "hosts"), 0)), "code.example.org");
    assert_string_equal(text_of(json_object_get(e, "ask"), "url"), "http://sandbox.internal/v1/egress/requests");
    assert_string_equal(text_of(json_object_get(json_object_get(e, "ask"), "body"), "method"), "DELETE");
    json_decref(root);
}

/* The grant is the promise that asking for it is enough. */
static void the_grant_of_a_refusal_is_a_rule_that_allows_it(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, doc = {0};
    struct deny d = a_deny(NETPOL_R_PATH);
    struct netpol_target t;
    const char *why;
    deny_record(&world_sandbox, &d);
    deny_body(&world_sandbox, &d, &b);
    json_t *root = parsed(b.p);
    char *grant = json_dumps(json_object_get(json_object_get(root, "error"), "grant"), 0);
    buf_addf(&doc, "{\"default\":\"deny\",\"rules\":[%s]}", grant);
    free(grant);
    json_decref(root);
    struct netpol *p = policy(doc.p);
    struct netpol_flow f = {.host = "code.example.org", .port = 443, .tls = true};
    assert_true(netpol_target("/acme/x", NULL, &t, &why));
    struct netpol_request q = {.method = "DELETE", .target = &t};
    struct netpol_decision r = {0};
    netpol_request(p, &f, &q, egress_now(), &r);
    assert_int_equal(r.verdict, NETPOL_ALLOW);
    q.method = "POST";
    netpol_request(p, &f, &q, egress_now(), &r);
    assert_int_equal(r.verdict, NETPOL_DENY);
    netpol_target_done(&t);
    netpol_unref(p);
}

static void what_nobody_may_grant_does_not_offer_to_ask(void **state)
{
    (void)state;
    static const enum netpol_reason reasons[] = {NETPOL_R_PRIVATE,          NETPOL_R_RESOLVED_PRIVATE,
                                                 NETPOL_R_SECRET_VIOLATION, NETPOL_R_MALFORMED,
                                                 NETPOL_R_DENY_RULE,        NETPOL_R_APPROVAL_DENIED};
    for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
        _cleanup_buf_ struct buf b = {0};
        struct deny d = a_deny(reasons[i]);
        deny_body(&world_sandbox, &d, &b);
        if (strstr(b.p, "\"ask\"") || strstr(b.p, "\"grant\""))
            fail_msg("%s", b.p);
    }
}

static void every_reason_has_words_and_valid_json(void **state)
{
    (void)state;
    for (unsigned r = 0; r < NETPOL_R_COUNT; r++) {
        _cleanup_buf_ struct buf b = {0};
        struct deny d = a_deny((enum netpol_reason)r);
        d.path = "/\"\x01\xff";
        d.text = "a \"text\"";
        unsigned status = deny_status(d.reason);
        deny_body(&world_sandbox, &d, &b);
        json_decref(parsed(b.p));
        assert_true(status == 400 || status == 403 || status == 413 || status == 421 || status == 429 ||
                    status == 502 || status == 503 || status == 504);
        if (r != NETPOL_R_NONE && strstr(b.p, "it was refused"))
            fail_msg("%s has no words", netpol_reason_name(d.reason));
    }
}

static void what_is_no_decision_is_not_called_one(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct deny d = a_deny(NETPOL_R_UNREACHABLE);
    deny_body(&world_sandbox, &d, &b);
    has(b.p, "\"code\":\"egress_failed\"");
    has(b.p, "\"retryable\":true");
    assert_null(strstr(b.p, "gives the same answer"));
}

static void a_pending_approval_says_where_to_look(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct deny d = a_deny(NETPOL_R_APPROVAL_PENDING);
    d.approval = "ap_1";
    deny_body(&world_sandbox, &d, &b);
    has(b.p, "\"ask\":{\"id\":\"ap_1\",\"status_url\":\"http://sandbox.internal/v1/egress/requests/ap_1?wait=60\"}");
    has(b.p, "\"retryable\":true");
}

static void statuses_fit_the_reason(void **state)
{
    (void)state;
    assert_int_equal(deny_status(NETPOL_R_HOST), 403);
    assert_int_equal(deny_status(NETPOL_R_RATE), 429);
    assert_int_equal(deny_status(NETPOL_R_NAMES), 429);
    assert_int_equal(deny_status(NETPOL_R_BODY), 413);
    assert_int_equal(deny_status(NETPOL_R_SNI_MISMATCH), 421);
    assert_int_equal(deny_status(NETPOL_R_MALFORMED), 400);
    assert_int_equal(deny_status(NETPOL_R_UPSTREAM_CERT), 502);
    assert_int_equal(deny_status(NETPOL_R_TIMEOUT), 504);
}

/* --- answers
 * ---------------------------------------------------------------------------------------------------------- */

static struct deny answered;
static void refuse(void *ctx, struct http_req *r)
{
    (void)ctx;
    deny_answer(&world_sandbox, &answered, r);
}

static void refused(const char *request, struct buf *answer)
{
    struct err err = {0};
    struct http_server *was = world_server;
    assert_int_equal(http_server_new(world_loop, NULL, refuse, NULL, &world_server, &err), 0);
    call(request, answer);
    http_server_free(world_server);
    turn();
    world_server = was;
}

static void an_answer_is_json_that_no_cache_keeps(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    answered = a_deny(NETPOL_R_RATE);
    answered.retry_s = 3;
    deny_record(&world_sandbox, &answered);
    refused("GET /x HTTP/1.1\r\nhost: code.example.org\r\n\r\n", &b);
    has(b.p, "HTTP/1.1 429 ");
    has(b.p, "content-type: application/json\r\n");
    has(b.p, "cache-control: no-store\r\n");
    has(b.p, "retry-after: 3\r\n");
    has(b.p, "x-hutch-egress: denied; reason=rate_limited; id=dn_");
    json_decref(parsed(strstr(b.p, "\r\n\r\n") + 4));
}

static void an_answer_to_head_has_no_body(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    answered = a_deny(NETPOL_R_HOST);
    refused("HEAD /x HTTP/1.1\r\nhost: code.example.org\r\n\r\n", &b);
    has(b.p, "HTTP/1.1 403 ");
    assert_string_equal(strstr(b.p, "\r\n\r\n"), "\r\n\r\n");
}

static void grpc_hears_it_in_its_own_words(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    answered = a_deny(NETPOL_R_HOST);
    refused("POST /pkg.Service/Call HTTP/1.1\r\nhost: code.example.org\r\ncontent-type: application/grpc+proto\r\n"
            "content-length: 0\r\n\r\n",
            &b);
    has(b.p, "HTTP/1.1 200 ");
    has(b.p, "content-type: application/grpc+proto\r\n");
    has(b.p, "grpc-status: 7\r\n");
    has(b.p, "grpc-message: host_not_allowed: ");
    has(b.p, "content-length: 0\r\n");
    assert_string_equal(strstr(b.p, "\r\n\r\n"), "\r\n\r\n");
}

static void raw_bytes_are_a_whole_answer(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct deny d = a_deny(NETPOL_R_HOST);
    d.method = d.path = NULL;
    deny_record(&world_sandbox, &d);
    deny_raw(&world_sandbox, &d, &b);
    has(b.p, "HTTP/1.1 403 Forbidden\r\n");
    has(b.p, "connection: close\r\n");
    const char *body = strstr(b.p, "\r\n\r\n") + 4, *length = strstr(b.p, "content-length: ") + 16;
    assert_int_equal(strtoul(length, NULL, 10), strlen(body));
    json_decref(parsed(body));
}

/* --- records
 * ---------------------------------------------------------------------------------------------------------- */

static void a_refusal_is_counted_kept_and_told(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf list = {0};
    struct deny d = a_deny(NETPOL_R_METHOD);
    deny_record(&world_sandbox, &d);
    assert_int_equal(world_sandbox.counts.denied, 1);
    assert_int_equal(world_hosts.denied, 1);
    assert_int_equal(d.seq, 1);
    has(buf_str(&world_told), "{\"type\":\"denied\",\"sandbox\":\"box1\",\"seq\":1,\"id\":\"dn_");
    has(world_told.p, "\"reason\":\"method_not_allowed\",\"layer\":\"http\",\"host\":\"code.example.org\",\"port\":443,"
                      "\"method\":\"DELETE\",\"path\":\"/acme/x\",\"rule\":\"forge\"");
    deny_list(&world_sandbox, 0, 100, &list);
    has(list.p, d.id);
    has(list.p, "\"next\":1}");
}

static void the_same_within_a_second_is_one_record_with_a_count(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf list = {0};
    char id[24];
    for (int i = 0; i < 1000; i++) {
        struct deny d = a_deny(NETPOL_R_METHOD);
        deny_record(&world_sandbox, &d);
        if (i == 0)
            memcpy(id, d.id, sizeof id);
        assert_string_equal(d.id, id);
    }
    assert_int_equal(world_sandbox.counts.denied, 1000);
    assert_int_equal(count(world_told.p, "\"type\":\"denied\""), 1);
    pass(1100);
    assert_int_equal(count(world_told.p, "\"type\":\"denied\""), 2);
    has(world_told.p, "\"count\":1000");
    struct deny d = a_deny(NETPOL_R_METHOD);
    deny_record(&world_sandbox, &d);
    assert_string_not_equal(d.id, id);
    deny_list(&world_sandbox, 0, 100, &list);
    assert_int_equal(count(list.p, "\"seq\":"), 2);
}

static void different_refusals_stay_different(void **state)
{
    (void)state;
    struct deny d = a_deny(NETPOL_R_METHOD);
    deny_record(&world_sandbox, &d);
    d.reason = NETPOL_R_PATH;
    deny_record(&world_sandbox, &d);
    d.path = "/acme/y";
    deny_record(&world_sandbox, &d);
    d.method = NULL;
    deny_record(&world_sandbox, &d);
    d.port = 80;
    deny_record(&world_sandbox, &d);
    d.host = "other.example.org";
    deny_record(&world_sandbox, &d);
    assert_int_equal(d.seq, 6);
}

static void front_hears_of_at_most_fifty_a_second_and_how_many_it_missed(void **state)
{
    (void)state;
    char path[32];
    for (int i = 0; i < 400; i++) {
        struct deny d = a_deny(NETPOL_R_PATH);
        (void)snprintf(path, sizeof path, "/%d", i);
        d.path = path;
        deny_record(&world_sandbox, &d);
    }
    assert_int_equal(count(world_told.p, "\"type\":\"denied\""), 50);
    pass(1000);
    struct deny d = a_deny(NETPOL_R_HOST);
    deny_record(&world_sandbox, &d);
    has(world_told.p, "\"dropped\":350");
}

static void the_list_keeps_the_last_and_goes_on_from_a_cursor(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf all = {0}, some = {0}, none = {0};
    char path[32];
    for (int i = 1; i <= 300; i++) {
        struct deny d = a_deny(NETPOL_R_PATH);
        (void)snprintf(path, sizeof path, "/n/%d", i);
        d.path = path;
        deny_record(&world_sandbox, &d);
    }
    deny_list(&world_sandbox, 0, 1000, &all);
    assert_int_equal(count(all.p, "\"seq\":"), DENIALS_KEPT);
    assert_null(strstr(all.p, "\"/n/44\""));
    has(all.p, "\"/n/45\"");
    deny_list(&world_sandbox, 290, 4, &some);
    assert_int_equal(count(some.p, "\"seq\":"), 4);
    has(some.p, "\"next\":294}");
    deny_list(&world_sandbox, 300, 10, &none);
    assert_string_equal(none.p, "{\"denials\":[],\"next\":300}");
}

static void long_texts_of_a_sandbox_are_cut(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf list = {0};
    _cleanup_free_ char *path = xmalloc(16001);
    memset(path, 'a', 16000);
    path[0] = '/';
    path[16000] = '\0';
    struct deny d = a_deny(NETPOL_R_PATH);
    d.path = path;
    deny_record(&world_sandbox, &d);
    deny_list(&world_sandbox, 0, 10, &list);
    assert_true(list.n < 2000);
}

static bool keep_line(void *arg, const char *line, size_t n)
{
    buf_add(arg, line, n);
    buf_addc(arg, '\n');
    return true;
}

static void the_audit_log_gets_a_line_first_and_a_count_later(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char folder[] = "/tmp/hutch-deny.XXXXXX";
    struct err err = {0};
    assert_non_null(mkdtemp(folder));
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    assert_int_equal(audit_open(world_loop, dir, false, &world_egress.audit, &err), 0);
    for (int i = 0; i < 10; i++) {
        struct deny d = a_deny(NETPOL_R_PATH);
        deny_record(&world_sandbox, &d);
    }
    struct deny d = {.reason = NETPOL_R_HOST, .layer = "dns", .host = "evil.example.com"};
    deny_record(&world_sandbox, &d);
    pass(1100);
    audit_close(world_egress.audit);
    world_egress.audit = NULL;
    assert_int_equal(audit_each(dir, false, keep_line, &b, &err), 0);
    assert_int_equal(count(b.p, "\"kind\":\"deny\""), 2);
    assert_int_equal(count(b.p, "\"kind\":\"dns\""), 1);
    has(b.p, "\"status\":403,\"verdict\":\"deny\",\"rule\":\"forge\",\"layer\":\"http\",\"reason\":\"path_not_"
             "allowed\",\"seq\":1,");
    has(b.p, "\"count\":9,");
    (void)unlinkat(dir, "audit-00000001.ndjson", 0);
    (void)close(dir);
    assert_int_equal(rmdir(folder), 0);
}

/* --- sandbox.internal
 * ------------------------------------------------------------------------------------------------- */

static void inside_sees_its_policy_help_and_certificate(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    get("/", &b);
    has(b.p, "HTTP/1.1 200 ");
    has(b.p, "/v1/egress/requests");
    get("/v1/egress/help", &b);
    has(b.p, "x-hutch-egress");
    get("/v1/egress/policy", &b);
    has(b.p, "\"epoch\":7");
    has(b.p, "code.example.org");
    get("/ca.pem", &b);
    has(b.p, "HTTP/1.1 404 ");
    char pem[] = "-----BEGIN CERTIFICATE-----\n";
    world_egress.ca_pem = pem;
    get("/ca.pem", &b);
    has(b.p, "application/x-pem-file");
    has(b.p, pem);
}

static void inside_does_not_see_how_the_node_gets_out(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    set_policy("{\"default\":\"deny\",\"upstream_proxy\":{\"address\":\"proxy.corp.example:1080\",\"username\":\"joe\"}"
               ",\"allow\":["
               "\"a.example.org\"]}");
    get("/v1/egress/policy", &b);
    has(b.p, "a.example.org");
    assert_null(strstr(b.p, "proxy.corp"));
    assert_null(strstr(b.p, "joe"));
}

static void inside_asks_what_would_be(void **state)
{
    (void)state;
    static const struct {
        const char *query, *want;
    } cases[] = {
        {"url=https%3A%2F%2Fcode.example.org%2Facme%2Fx%3Fa%3Db",
         "{\"verdict\":\"allow\",\"reason\":null,\"rule\":\"forge\"}"},
        {"url=https://code.example.org/other", "\"reason\":\"path_not_allowed\""},
        {"url=https://code.example.org/acme/x&method=DELETE", "\"reason\":\"method_not_allowed\""},
        {"url=https://example.com", "\"reason\":\"host_not_allowed\""},
        {"url=https://example.com", "\"grant\":{\"hosts\":[\"example.com\"]"},
        {"url=https://paste.example.org/", "\"reason\":\"denied_by_rule\""},
        {"url=https://code.example.org:8443/acme/x", "\"reason\":\"port_not_allowed\""},
        {"url=ftp://code.example.org/", "HTTP/1.1 400 "},
        {"url=https://a@b/", "HTTP/1.1 400 "},
        {"url=https://code.example.org/%252e%252e", "HTTP/1.1 400 "},
        {"url=", "HTTP/1.1 400 "},
        {"", "HTTP/1.1 400 "},
        {"url=https://code.example.org/&method=G%20T", "HTTP/1.1 400 "},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf b = {0};
        char path[300];
        (void)snprintf(path, sizeof path, "/v1/egress/check?%s", cases[i].query);
        get(path, &b);
        has(b.p, cases[i].want);
        pass(100);
    }
}

static void inside_lists_its_refusals(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct deny d = a_deny(NETPOL_R_METHOD);
    deny_record(&world_sandbox, &d);
    get("/v1/egress/denials?since=0&limit=5", &b);
    has(b.p, d.id);
    get("/v1/egress/denials?since=x", &b);
    has(b.p, "HTTP/1.1 400 ");
    has(b.p, "\"error\":{\"code\":\"bad_request\"");
}

static void inside_errors_are_json(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    get("/v1/nothing", &b);
    has(b.p, "HTTP/1.1 404 ");
    has(b.p, "\"error\":{\"code\":\"not_found\"");
    post("/v1/egress/policy", "{}", &b);
    has(b.p, "HTTP/1.1 405 ");
    has(b.p, "allow: GET, HEAD");
}

static void inside_may_call_twenty_times_a_second(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    for (int i = 0; i < 20; i++)
        get("/v1/egress/denials", &b);
    has(b.p, "HTTP/1.1 200 ");
    get("/v1/egress/denials", &b);
    has(b.p, "HTTP/1.1 429 ");
    has(b.p, "retry-after: 1\r\n");
    pass(1000);
    get("/v1/egress/denials", &b);
    has(b.p, "HTTP/1.1 200 ");
}

static void listeners_hear_of_refusals_and_may_begin_where_they_were(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    bool eof;
    struct deny d = a_deny(NETPOL_R_METHOD);
    deny_record(&world_sandbox, &d);
    int fd = client();
    say(fd, "GET /v1/egress/events HTTP/1.1\r\nhost: sandbox.internal\r\nlast-event-id: 0\r\n\r\n");
    hear(fd, &b, &eof);
    has(b.p, "content-type: text/event-stream");
    has(b.p, "id: 1\nevent: denied\ndata: {\"seq\":1,");
    d = a_deny(NETPOL_R_PATH);
    deny_record(&world_sandbox, &d);
    buf_done(&b);
    hear(fd, &b, &eof);
    has(b.p, "id: 2\nevent: denied\n");
    (void)close(fd);
    turn();
    d = a_deny(NETPOL_R_HOST);
    deny_record(&world_sandbox, &d); /* to nobody */
}

static void a_listener_that_was_further_than_anybody_ever_is_hears_what_comes(void **state)
{
    static const char *const numbers[] = {"2", "18446744073709551615", "18446744073709551614", "99999999999999999999",
                                          "-1"};
    (void)state;
    struct deny d = a_deny(NETPOL_R_METHOD);
    deny_record(&world_sandbox, &d);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        _cleanup_buf_ struct buf b = {0}, more = {0}, text = {0};
        bool eof;
        int fd = client();
        buf_addf(&text, "GET /v1/egress/events HTTP/1.1\r\nhost: sandbox.internal\r\nlast-event-id: %s\r\n\r\n",
                 numbers[i]);
        say(fd, buf_str(&text));
        hear(fd, &b, &eof);
        has(b.p, "content-type: text/event-stream");
        assert_null(strstr(b.p, "event: denied"));
        pass(2000); /* not the same refusal within a second */
        d = a_deny(NETPOL_R_PATH);
        deny_record(&world_sandbox, &d);
        hear(fd, &more, &eof);
        has(more.p, "event: denied\n");
        (void)close(fd);
        turn();
    }
}

static void the_number_of_listeners_is_limited(void **state)
{
    (void)state;
    int fds[5];
    for (int i = 0; i < 5; i++) {
        fds[i] = client();
        say(fds[i], "GET /v1/egress/events HTTP/1.1\r\nhost: sandbox.internal\r\n\r\n");
        expect(fds[i], i < 4 ? "HTTP/1.1 200 " : "HTTP/1.1 429 ", false);
    }
    for (int i = 0; i < 5; i++)
        (void)close(fds[i]);
    turn();
}

static void a_sandbox_that_goes_takes_its_listeners_along(void **state)
{
    (void)state;
    int fd = client();
    say(fd, "GET /v1/egress/events HTTP/1.1\r\nhost: sandbox.internal\r\n\r\n");
    expect(fd, "HTTP/1.1 200 ", false);
    deny_forget(&world_sandbox);
    expect(fd, "", true);
    (void)close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_body_says_what_why_what_would_do_and_how_to_ask),
        TEST(the_grant_of_a_refusal_is_a_rule_that_allows_it),
        TEST(what_nobody_may_grant_does_not_offer_to_ask),
        TEST(every_reason_has_words_and_valid_json),
        TEST(what_is_no_decision_is_not_called_one),
        TEST(a_pending_approval_says_where_to_look),
        TEST(statuses_fit_the_reason),
        TEST(an_answer_is_json_that_no_cache_keeps),
        TEST(an_answer_to_head_has_no_body),
        TEST(grpc_hears_it_in_its_own_words),
        TEST(raw_bytes_are_a_whole_answer),
        TEST(a_refusal_is_counted_kept_and_told),
        TEST(the_same_within_a_second_is_one_record_with_a_count),
        TEST(different_refusals_stay_different),
        TEST(front_hears_of_at_most_fifty_a_second_and_how_many_it_missed),
        TEST(the_list_keeps_the_last_and_goes_on_from_a_cursor),
        TEST(long_texts_of_a_sandbox_are_cut),
        TEST(the_audit_log_gets_a_line_first_and_a_count_later),
        TEST(inside_sees_its_policy_help_and_certificate),
        TEST(inside_does_not_see_how_the_node_gets_out),
        TEST(inside_asks_what_would_be),
        TEST(inside_lists_its_refusals),
        TEST(inside_errors_are_json),
        TEST(inside_may_call_twenty_times_a_second),
        TEST(listeners_hear_of_refusals_and_may_begin_where_they_were),
        TEST(a_listener_that_was_further_than_anybody_ever_is_hears_what_comes),
        TEST(the_number_of_listeners_is_limited),
        TEST(a_sandbox_that_goes_takes_its_listeners_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
