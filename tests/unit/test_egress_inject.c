#include <fcntl.h>
#include <unistd.h>

#include "base/log.h"
#include "secrets-world.h"

#define HOST   "api.llm.example"
#define BIND   "'bind':[{'hosts':['" HOST "']}]"
#define P      "sbx-0123456789abcdefghijABCDEFGHIJ"
#define VALUE  "sk-live/ABC+def=12345"
#define VALUE_ "sk-live%2FABC%2Bdef%3D12345"

static const char replace_all[] =
    "{" BIND ",'inject':{'type':'replace','in':['header','basic','query','body','ws_text']}}";

/* The secret 'k' with placeholder P, bound as `spec` says. */
static void start(struct world *w, const char *spec)
{
    world_start(w);
    world_secret(w, "k", VALUE, spec);
    world_placeholder(w, P, "k");
}

static const char *field(const struct world *w, const char *name)
{
    const char *v = http_field(&w->fields, name);
    return v ? v : "(none)";
}

/* Nowhere in the request, nor in what is said about it. */
static void value_is_nowhere(const struct world *w)
{
    assert_null(strstr(w->ret.text, "sk-live"));
    assert_null(strstr(buf_str(&w->target), "sk-live"));
    assert_null(strstr(buf_str(&w->body), "sk-live"));
    for (size_t i = 0; i < w->fields.n; i++) {
        _cleanup_buf_ struct buf plain = {0};
        const char *v = w->fields.v[i].value;
        assert_null(strstr(v, "sk-live"));
        if (strncmp(v, "Basic ", 6) == 0 && base64_decode(&plain, v + 6, strlen(v + 6)))
            assert_null(strstr(buf_str(&plain), "sk-live"));
    }
    assert_null(w->ret.redact);
    assert_int_equal(w->ret.nused, 0);
}

static void refused(struct world *w, enum netpol_reason reason, const char *text)
{
    if (w->ret.reason != reason || !strstr(w->ret.text, text))
        fail_msg("%s '%s', not %s '%s'", netpol_reason_name(w->ret.reason), w->ret.text, netpol_reason_name(reason),
                 text);
    value_is_nowhere(w);
}

static void accepted(struct world *w, size_t uses)
{
    if (w->ret.reason != NETPOL_R_NONE || w->ret.nused != uses)
        fail_msg("%s '%s', %zu uses", netpol_reason_name(w->ret.reason), w->ret.text, w->ret.nused);
}

/* ---- replace ---- */

static void a_placeholder_in_a_header_becomes_the_value(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND "}");
    world_request(&w, "POST", HOST, "/v1/messages");
    world_field(&w, "authorization", "Bearer " P);
    world_field(&w, "x-api-key", "pre" P "post" P);
    world_field(&w, "x-other", "untouched");
    world_inject(&w);
    accepted(&w, 2);
    assert_string_equal(field(&w, "authorization"), "Bearer " VALUE);
    assert_string_equal(field(&w, "x-api-key"), "pre" VALUE "post" VALUE);
    assert_string_equal(field(&w, "x-other"), "untouched");
    assert_string_equal(w.ret.used[0].name, "k");
    assert_string_equal(w.ret.used[0].at, "header:authorization");
    assert_string_equal(w.ret.used[1].at, "header:x-api-key");
    assert_int_equal(w.sandbox.counts.injections, 2);
    assert_int_equal(w.sandbox.counts.violations, 0);
    world_end(&w);
}

static void a_placeholder_inside_basic_becomes_the_value(void **state)
{
    (void)state;
    struct world w;
    _cleanup_buf_ struct buf basic = {0}, want = {0};
    buf_adds(&basic, "Basic ");
    base64_encode(&basic, "git:" P, strlen("git:" P));
    base64_encode(&want, "git:" VALUE, strlen("git:" VALUE));
    start(&w, "{" BIND "}");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "authorization", basic.p);
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(field(&w, "authorization") + 6, want.p);
    assert_string_equal(w.ret.used[0].at, "basic:authorization");
    world_end(&w);
}

static void a_placeholder_in_the_query_becomes_the_encoded_value(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND "}");
    world_request(&w, "GET", HOST, "/v1?key=" P "&x=1");
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(buf_str(&w.target), "/v1?key=" VALUE_ "&x=1");
    assert_string_equal(w.ret.used[0].at, "query");
    world_end(&w);
}

static void only_the_listed_places_are_written(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND ",'inject':{'type':'replace','in':['query']}}");
    world_request(&w, "GET", HOST, "/" P "?key=" P);
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(field(&w, "x-api-key"), P);
    assert_string_equal(buf_str(&w.target), "/" P "?key=" VALUE_);
    world_end(&w);
}

static void a_body_is_asked_for_and_written_in_its_own_syntax(void **state)
{
    (void)state;
    static const struct {
        const char *type, *body, *want;
    } cases[] = {
        {"application/json", "{\"k\":\"" P "\"}", "{\"k\":\"a\\\"b\\\\c\\nd\"}"},
        {"application/problem+json; charset=utf-8", "[\"" P "\"]", "[\"a\\\"b\\\\c\\nd\"]"},
        {"application/x-www-form-urlencoded", "k=" P "&x=1", "k=a%22b%5Cc%0Ad&x=1"},
        {"text/plain", "<" P ">", "<a\"b\\c\nd>"},
    };
    struct world w;
    world_start(&w);
    world_secret(&w, "k", "a\"b\\c\nd", replace_all);
    world_placeholder(&w, P, "k");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char length[16];
        world_request(&w, "POST", HOST, "/");
        world_field(&w, "content-type", cases[i].type);
        world_field(&w, "content-length", "1");
        world_inject(&w);
        accepted(&w, 0);
        assert_true(w.ret.need_body);
        buf_adds(&w.body, cases[i].body);
        w.q.body = &w.body;
        world_inject(&w);
        accepted(&w, 1);
        assert_false(w.ret.need_body);
        assert_string_equal(buf_str(&w.body), cases[i].want);
        assert_string_equal(w.ret.used[0].at, "body");
        (void)snprintf(length, sizeof length, "%zu", w.body.n);
        assert_string_equal(field(&w, "content-length"), length);
        assert_int_equal(world_count(&w, "content-length"), 1);
    }
    world_end(&w);
}

static void nothing_is_changed_before_the_body_is_there(void **state)
{
    (void)state;
    struct world w;
    start(&w, replace_all);
    world_request(&w, "POST", HOST, "/?k=" P);
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    assert_true(w.ret.need_body);
    value_is_nowhere(&w);
    assert_string_equal(field(&w, "x-api-key"), P);
    assert_int_equal(w.fields.n, 1);
    world_end(&w);
}

static void a_body_that_is_encoded_is_left_alone(void **state)
{
    (void)state;
    struct world w;
    start(&w, replace_all);
    world_request(&w, "POST", HOST, "/");
    world_field(&w, "content-encoding", "gzip");
    buf_adds(&w.body, "looks like " P);
    w.q.body = &w.body;
    world_inject(&w);
    accepted(&w, 0);
    assert_string_equal(buf_str(&w.body), "looks like " P);
    world_end(&w);
}

static void every_placeholder_of_a_secret_counts(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND "}");
    world_placeholder(&w, "sbx-another-placeholder-of-it", "k");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-a", P);
    world_field(&w, "x-b", "sbx-another-placeholder-of-it");
    world_inject(&w);
    accepted(&w, 2);
    assert_string_equal(field(&w, "x-a"), VALUE);
    assert_string_equal(field(&w, "x-b"), VALUE);
    world_end(&w);
}

/* ---- violations ---- */

static void a_placeholder_to_another_host_is_a_violation(void **state)
{
    (void)state;
    static const char *const hosts[] = {"evil.example", "api.llm.example.evil.example", "xapi.llm.example",
                                        "llm.example", "sub.api.llm.example"};
    struct world w;
    start(&w, "{" BIND "}");
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        world_request(&w, "POST", hosts[i], "/v1/messages");
        world_field(&w, "x-api-key", P);
        world_inject(&w);
        refused(&w, NETPOL_R_SECRET_VIOLATION,
                "the placeholder of secret 'k' stands in header 'x-api-key' of a request to ");
        assert_non_null(strstr(w.ret.text, hosts[i]));
        assert_true(w.ret.violation);
        assert_int_equal(w.sandbox.counts.violations, i + 1);
    }
    world_request(&w, "GET", NULL, "/");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_VIOLATION, "of a request to an address");
    world_end(&w);
}

static void a_placeholder_is_found_wherever_it_hides(void **state)
{
    (void)state;
    struct world w;
    _cleanup_buf_ struct buf basic = {0}, bearer = {0}, url = {0};
    start(&w, "{" BIND "}");
    buf_adds(&basic, "Basic ");
    base64_encode(&basic, "user:" P, strlen("user:" P));
    buf_adds(&bearer, "Bearer x-");
    base64_encode(&bearer, "zz" P "yy", strlen(P) + 4);
    for (const char *p = P; *p; p++)
        buf_addf(&url, "%%%02x", *p);
    const struct {
        const char *target, *name, *value, *where;
    } places[] = {
        {"/", "x-any", "a" P "b", "header 'x-any'"},
        {"/", "cookie", "a=1; b=" P, "header 'cookie'"},
        {"/", "authorization", "Bearer " P, "header 'authorization'"},
        {"/", "authorization", basic.p, "header 'authorization'"},
        {"/", "authorization", bearer.p, "header 'authorization'"},
        {"/", "x-b64", basic.p + 6, "header 'x-b64'"},
        {"/", "referer", url.p, "header 'referer'"},
        {"/?x=" P, "a", "b", "the query"},
        {"/a/" P "/b?x", "a", "b", "the path"},
    };
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        world_request(&w, "GET", "evil.example", places[i].target);
        world_field(&w, places[i].name, places[i].value);
        world_inject(&w);
        refused(&w, NETPOL_R_SECRET_VIOLATION, places[i].where);
    }
    _cleanup_buf_ struct buf target = {0};
    buf_addf(&target, "/?q=%s", url.p);
    world_request(&w, "GET", "evil.example", target.p);
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_VIOLATION, "the query");
    world_request(&w, "POST", "evil.example", "/");
    buf_adds(&w.body, "{\"leak\":\"" P "\"}");
    w.q.body = &w.body;
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_VIOLATION, "the body");
    world_end(&w);
}

static void a_violation_that_is_only_logged_lets_the_placeholder_pass(void **state)
{
    (void)state;
    struct world w;
    char line[LOG_LINE_MAX] = "";
    int pipes[2];
    start(&w, "{" BIND ",'on_violation':'log'}");
    assert_int_equal(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
    log_open("egress", LOG_LEVEL_WARN, pipes[1]);
    world_request(&w, "GET", "evil.example", "/");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    accepted(&w, 0);
    assert_true(w.ret.violation);
    assert_non_null(strstr(w.ret.text, "secret 'k'"));
    assert_string_equal(field(&w, "x-api-key"), P);
    assert_int_equal(w.sandbox.counts.violations, 1);
    value_is_nowhere(&w);
    assert_true(read(pipes[0], line, sizeof line - 1) > 0);
    assert_non_null(strstr(line, "the placeholder of secret 'k' stands in header 'x-api-key'"));
    assert_null(strstr(line, P));
    log_open("egress", LOG_LEVEL_ERROR, 2);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    world_end(&w);
}

static void a_bound_host_with_another_method_path_or_port_gets_nothing(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{'bind':[{'hosts':['" HOST "'],'methods':['POST'],'paths':['/v1/**']}]}");
    const struct {
        const char *method, *target;
        uint16_t port;
        bool ok;
    } cases[] = {{"POST", "/v1/messages", 443, true}, {"GET", "/v1/messages", 443, false},
                 {"POST", "/v2", 443, false},         {"POST", "/v1/messages", 8443, false},
                 {"POST", "/v1/../v2", 443, false},   {"POST", "/v1%2f..%2fv2", 443, false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        world_request(&w, cases[i].method, HOST, cases[i].target);
        w.flow.port = cases[i].port;
        world_field(&w, "x-api-key", P);
        world_inject(&w);
        if (cases[i].ok)
            accepted(&w, 1);
        else if (w.ret.reason != NETPOL_R_MALFORMED)
            refused(&w, NETPOL_R_SECRET_UNBOUND,
                    "secret 'k' (in header 'x-api-key') is bound to " HOST ", but not to this");
        if (!cases[i].ok)
            value_is_nowhere(&w);
    }
    world_request(&w, "POST", HOST, "/v1/messages");
    world_field(&w, "x-api-key", P);
    world_field(&w, "x-http-method-override", "DELETE");
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "not to this port, method or path");
    world_end(&w);
}

static void a_rule_that_does_not_name_the_secret_does_not_get_it(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND "}");
    w.rule.nsecrets = 0;
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "is not among the secrets of rule llm");
    world_request(&w, "GET", HOST, "/");
    w.q.rule = NULL;
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "allowed by default");
    world_end(&w);
}

static void nothing_is_sent_without_verified_tls(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND "}");
    world_request(&w, "GET", HOST, "/");
    world_cleartext(&w);
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    refused(&w, NETPOL_R_CLEARTEXT, "over verified TLS only");
    world_request(&w, "GET", HOST, "/");
    w.q.verified_tls = false; /* TLS, but nobody checked the certificate */
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    refused(&w, NETPOL_R_CLEARTEXT, "over verified TLS only");
    world_end(&w);
}

static void plaintext_has_to_be_allowed(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    world_secret(&w, "strict", VALUE, "{" BIND ",'inject':{'type':'header','header':'x-strict'}}");
    world_secret(&w, "loose", VALUE, "{" BIND ",'inject':{'type':'header','header':'x-loose'},'allow_plaintext':true}");
    world_request(&w, "GET", HOST, "/");
    world_cleartext(&w);
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(field(&w, "x-strict"), "(none)");
    assert_string_equal(field(&w, "x-loose"), VALUE);
    world_end(&w);
}

static void a_secret_that_is_gone_is_named(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND "}");
    secrets_remove(w.vault, "acme", "k");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND,
            "the placeholder in header 'x-api-key' belongs to secret 'k', which does not exist any more");
    world_request(&w, "GET", HOST, "/");
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "rule llm wants secret 'k', which does not exist");
    world_end(&w);
}

static void secrets_of_another_tenant_do_not_exist(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    assert_int_equal(world_put(&w, "other", "k", 1, VALUE, "{" BIND "}"), 0);
    w.rule_secrets[w.rule.nsecrets++] = "k";
    world_placeholder(&w, P, "k");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "does not exist");
    world_end(&w);
}

/* ---- the other types ---- */

static void set_takes_every_copy_of_the_client_out(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND ",'inject':{'type':'set','header':'X-Api-Key','format':'Token {value};v=1'}}");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", "mine");
    world_field(&w, "accept", "*/*");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    accepted(&w, 1);
    assert_int_equal(world_count(&w, "x-api-key"), 1);
    assert_string_equal(field(&w, "x-api-key"), "Token " VALUE ";v=1");
    assert_string_equal(field(&w, "accept"), "*/*");
    world_end(&w);
}

static void bearer_basic_header_and_query_are_set(void **state)
{
    (void)state;
    struct world w;
    _cleanup_buf_ struct buf want = {0};
    world_start(&w);
    world_secret(&w, "bearer", VALUE, "{'bind':[{'hosts':['bearer.example']}],'inject':{'type':'bearer'}}");
    world_secret(&w, "basic", VALUE, "{'bind':[{'hosts':['basic.example']}],'inject':{'type':'basic','user':'me'}}");
    world_secret(&w, "query", VALUE,
                 "{'bind':[{'hosts':['query.example']}],'inject':{'type':'query','param':'a key'}}");
    world_request(&w, "GET", "bearer.example", "/");
    world_field(&w, "authorization", "Basic Zm9v");
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(field(&w, "authorization"), "Bearer " VALUE);
    world_request(&w, "GET", "basic.example", "/");
    world_inject(&w);
    accepted(&w, 1);
    base64_encode(&want, "me:" VALUE, strlen("me:" VALUE));
    assert_string_equal(field(&w, "authorization") + 6, want.p);
    assert_string_equal(w.ret.used[0].at, "basic:authorization");
    world_request(&w, "GET", "query.example", "/x?a%20key=mine&b=&a%20key=2&c");
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(buf_str(&w.target), "/x?b=&c&a%20key=" VALUE_);
    assert_string_equal(w.ret.used[0].at, "query:a key");
    world_request(&w, "GET", "query.example", "/x");
    world_inject(&w);
    assert_string_equal(buf_str(&w.target), "/x?a%20key=" VALUE_);
    world_end(&w);
}

static void a_secret_bound_elsewhere_is_not_put_in(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND ",'inject':{'type':'bearer'}}");
    world_request(&w, "GET", "other.example", "/");
    world_field(&w, "authorization", "Bearer own");
    world_inject(&w);
    accepted(&w, 0);
    assert_string_equal(field(&w, "authorization"), "Bearer own");
    value_is_nowhere(&w);
    world_end(&w);
}

static void headers_refer_to_other_secrets(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    assert_int_equal(world_put(&w, "acme", "one", 1, "value-of-one", "{}"), 0);
    assert_int_equal(world_put(&w, "acme", "two", 1, "value-of-two", "{}"), 0);
    world_secret(&w, "rules.sb1.0", NULL,
                 "{" BIND ",'inject':{'type':'headers','headers':{'Authorization':'Bearer ${e2b.secrets.ONE}',"
                 "'x-both':'${e2b.secrets.one}-${e2b.secrets.two}!','x-static':'plain ${text}'}}}");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "authorization", "Bearer client");
    world_inject(&w);
    accepted(&w, 4);
    assert_string_equal(field(&w, "authorization"), "Bearer value-of-one");
    assert_string_equal(field(&w, "x-both"), "value-of-one-value-of-two!");
    assert_string_equal(field(&w, "x-static"), "plain ${text}");
    assert_string_equal(w.ret.used[0].name, "one");
    assert_string_equal(w.ret.used[0].at, "header:authorization");
    _cleanup_free_ char *echo = NULL;
    assert_true(redact_value(w.ret.redact, "value-of-two value-of-one", &echo));
    assert_string_equal(echo, "[redacted:two] [redacted:one]");
    world_request(&w, "GET", "other.example", "/");
    world_inject(&w);
    accepted(&w, 0);
    world_end(&w);
}

static void a_reference_does_not_get_around_a_binding(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    assert_int_equal(world_put(&w, "acme", "k", 1, VALUE, "{" BIND "}"), 0);
    world_secret(&w, "rules", NULL,
                 "{'bind':[{'hosts':['evil.example','" HOST
                 "']}],'inject':{'type':'headers','headers':{'x':'${e2b.secrets.k}'}}}");
    world_request(&w, "GET", "evil.example", "/");
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND,
            "'rules' refers to secret 'k', which is not bound to this request to evil.example");
    world_request(&w, "GET", HOST, "/");
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(field(&w, "x"), VALUE);
    world_end(&w);
}

static void a_reference_to_nothing_is_refused(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    assert_int_equal(world_put(&w, "other", "k", 1, VALUE, "{}"), 0);
    world_secret(&w, "rules", NULL, "{" BIND ",'inject':{'type':'headers','headers':{'x':'${e2b.secrets.k}'}}}");
    world_request(&w, "GET", HOST, "/");
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "'rules' refers to secret 'k', which does not exist");
    world_end(&w);
}

static void a_value_cannot_break_out_of_its_header(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    world_secret(&w, "k", "sk-live\r\nx-evil: 1", "{" BIND "}");
    world_placeholder(&w, P, "k");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "secret 'k' holds a control character");
    world_end(&w);
}

static void there_is_an_end_to_fields_and_places(void **state)
{
    (void)state;
    static const char *const names[] = {"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"};
    struct world w;
    start(&w, "{" BIND ",'inject':{'type':'bearer'}}");
    world_request(&w, "GET", HOST, "/");
    for (size_t i = 0; i < WORLD_FIELDS; i++)
        world_field(&w, "x", "y");
    world_inject(&w);
    refused(&w, NETPOL_R_HEADER, "the request has 24 headers; there is no room for 'authorization'");
    world_end(&w);
    start(&w, "{" BIND "}");
    world_request(&w, "GET", HOST, "/");
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        world_field(&w, names[i], P);
    world_inject(&w);
    assert_int_equal(w.ret.reason, NETPOL_R_SECRET_UNBOUND);
    assert_non_null(strstr(w.ret.text, "more than 8 places"));
    world_end(&w);
}

static void a_new_value_is_used_from_the_next_request_on(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND "}");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    struct redactor *first = w.ret.redact;
    w.ret.redact = NULL;
    assert_int_equal(world_put(&w, "acme", "k", 2, "sk-rotated-value", "{" BIND "}"), 0);
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", P);
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(field(&w, "x-api-key"), "sk-rotated-value");
    /* The answer of the first request still hides the old value, the second one the new. */
    _cleanup_free_ char *old = NULL, *new = NULL;
    assert_true(redact_value(first, VALUE, &old));
    assert_false(redact_value(w.ret.redact, VALUE, &new));
    assert_true(redact_value(w.ret.redact, "sk-rotated-value", &new));
    assert_string_equal(old, P);
    assert_string_equal(new, P);
    redactor_free(first);
    world_end(&w);
}

/* ---- answers ---- */

static void an_answer_gets_the_placeholder_back(void **state)
{
    (void)state;
    struct world w;
    _cleanup_buf_ struct buf out = {0};
    start(&w, "{" BIND "}");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", P);
    world_field(&w, "accept-encoding", "gzip, br");
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(field(&w, "accept-encoding"), "identity");
    assert_int_equal(world_count(&w, "accept-encoding"), 1);
    redact_feed(w.ret.redact, "you sent " VALUE " (", strlen("you sent " VALUE " ("), &out);
    redact_feed(w.ret.redact, VALUE_ ")", strlen(VALUE_ ")"), &out);
    redact_end(w.ret.redact, &out);
    assert_string_equal(buf_str(&out), "you sent " P " (" P ")");
    world_end(&w);
}

static void redaction_can_be_off_and_is_off_if_nothing_was_used(void **state)
{
    (void)state;
    struct world w;
    start(&w, "{" BIND ",'redact_response':false}");
    world_request(&w, "GET", HOST, "/");
    world_field(&w, "x-api-key", P);
    world_field(&w, "accept-encoding", "gzip");
    world_inject(&w);
    accepted(&w, 1);
    assert_null(w.ret.redact);
    assert_string_equal(field(&w, "accept-encoding"), "gzip");
    world_end(&w);
    start(&w, "{" BIND "}");
    world_request(&w, "GET", HOST, "/");
    world_inject(&w);
    accepted(&w, 0);
    assert_null(w.ret.redact);
    world_end(&w);
}

/* ---- signatures ---- */

#define AWS_BIND                                                                                                     \
    "'bind':[{'hosts':['dynamodb.eu-central-1.amazonaws.com','lambda.us-east-1.amazonaws.com','bucket.s3.amazonaws." \
    "com']}]"
#define SIGN(service, region)                                                          \
    "{" AWS_BIND ",'inject':{'type':'sigv4','region':'" region "','service':'" service \
    "','access_key_id':'AKIDEXAMPLE'}}"
#define AWS_KEY "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

/* The signatures are botocore's for the same requests. */
static void a_request_is_signed_as_the_sdk_would(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    world_secret(&w, "aws", AWS_KEY, SIGN("dynamodb", "eu-central-1"));
    world_request(&w, "POST", "dynamodb.eu-central-1.amazonaws.com", "/");
    world_field(&w, "x-amz-target", "DynamoDB_20120810.ListTables");
    world_field(&w, "content-type", "application/x-amz-json-1.0");
    world_field(&w, "authorization", "AWS4-HMAC-SHA256 Credential=dummy");
    world_field(&w, "x-amz-date", "20000101T000000Z");
    world_field(&w, "x-amz-security-token", "dummy");
    world_inject(&w);
    assert_true(w.ret.need_body);
    buf_adds(&w.body, "{}");
    w.q.body = &w.body;
    world_inject(&w);
    accepted(&w, 1);
    assert_string_equal(field(&w, "authorization"),
                        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/eu-central-1/dynamodb/aws4_request, "
                        "SignedHeaders=content-type;host;x-amz-content-sha256;x-amz-date;x-amz-target, "
                        "Signature=08c09b132be6111b438ac2e27e3082a921a354c9993dfb02b93f35738a08eddf");
    assert_string_equal(field(&w, "x-amz-date"), "20150830T123600Z");
    assert_string_equal(field(&w, "x-amz-security-token"), "(none)");
    assert_string_equal(w.ret.used[0].at, "sigv4:authorization");
    assert_null(w.ret.redact); /* the key itself was not sent */
    world_end(&w);
    world_start(&w);
    world_secret(&w, "aws", AWS_KEY, SIGN("lambda", "us-east-1"));
    world_request(&w, "POST", "lambda.us-east-1.amazonaws.com",
                  "/2015-03-31/functions/arn%3Aaws%3Alambda/invocations?Qualifier=1&A=x%2Fy");
    buf_adds(&w.body, "{\"a\":1}");
    w.q.body = &w.body;
    world_inject(&w);
    accepted(&w, 1);
    assert_non_null(strstr(field(&w, "authorization"),
                           "Signature=b48594c550ba3d398c2c7c656e3bc02ff61821c5a57bd93f99f98c9d8621a4d8"));
    world_end(&w);
}

static void s3_needs_no_body_over_tls(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    world_secret(&w, "aws", AWS_KEY, SIGN("s3", "us-east-1"));
    world_request(&w, "PUT", "bucket.s3.amazonaws.com",
                  "/dir/a%20b%2Bc.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&x-amz-signature=00&X-Amz-Expires=60");
    world_field(&w, "x-amz-acl", "private");
    world_field(&w, "content-type", "text/plain");
    world_inject(&w);
    accepted(&w, 1);
    assert_false(w.ret.need_body);
    assert_string_equal(buf_str(&w.target), "/dir/a%20b%2Bc.txt");
    assert_string_equal(field(&w, "x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
    assert_string_equal(field(&w, "authorization"),
                        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/s3/aws4_request, "
                        "SignedHeaders=content-type;host;x-amz-acl;x-amz-content-sha256;x-amz-date, "
                        "Signature=17a2a108d4e91e83e5d6af9b709fc3d0b75f8c80c74167d625cdf14b161b8d64");
    world_end(&w);
}

static void a_session_token_is_another_secret(void **state)
{
    (void)state;
    struct world w;
    _cleanup_free_ char *echo = NULL;
    world_start(&w);
    assert_int_equal(world_put(&w, "acme", "token", 1, "the-session-token", "{}"), 0);
    world_secret(&w, "aws", AWS_KEY,
                 "{" AWS_BIND ",'inject':{'type':'sigv4','region':'us-east-1','service':'s3',"
                 "'access_key_id':'AKIDEXAMPLE','session_token':'token'}}");
    world_request(&w, "GET", "bucket.s3.amazonaws.com", "/?list-type=2&prefix=a%2Fb&delimiter=%2F");
    world_inject(&w);
    accepted(&w, 2);
    assert_string_equal(field(&w, "x-amz-security-token"), "the-session-token");
    assert_non_null(strstr(field(&w, "authorization"),
                           "Signature=f92672f12076e986e2c745e919d0c4b9296259b113fa9319f205f7eca4419bd0"));
    assert_true(redact_value(w.ret.redact, "<the-session-token>", &echo));
    assert_string_equal(echo, "<[redacted:token]>");
    secrets_remove(w.vault, "acme", "token");
    world_request(&w, "GET", "bucket.s3.amazonaws.com", "/");
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "'aws' refers to secret 'token', which does not exist");
    world_end(&w);
}

static void payloads_the_client_described_are_kept_or_refused(void **state)
{
    (void)state;
    static const char hash[] = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    struct world w;
    world_start(&w);
    world_secret(&w, "aws", AWS_KEY, SIGN("s3", "us-east-1"));
    static const struct {
        const char *claimed, *sent;
    } kept[] = {{hash, hash},
                {"STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"},
                {"UNSIGNED-PAYLOAD", "UNSIGNED-PAYLOAD"},
                {"nonsense", "UNSIGNED-PAYLOAD"}};
    for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
        world_request(&w, "PUT", "bucket.s3.amazonaws.com", "/x");
        world_field(&w, "x-amz-content-sha256", kept[i].claimed);
        world_inject(&w);
        accepted(&w, 1);
        assert_string_equal(field(&w, "x-amz-content-sha256"), kept[i].sent);
        assert_int_equal(world_count(&w, "x-amz-content-sha256"), 1);
    }
    world_request(&w, "PUT", "bucket.s3.amazonaws.com", "/x");
    world_field(&w, "x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
    world_inject(&w);
    refused(&w, NETPOL_R_SECRET_UNBOUND, "the body is signed chunk by chunk (STREAMING-AWS4-HMAC-SHA256-PAYLOAD)");
    world_end(&w);
}

/* ---- WebSocket ---- */

static void text_messages_are_written_if_that_was_asked_for(void **state)
{
    (void)state;
    struct world w;
    _cleanup_buf_ struct buf out = {0};
    _cleanup_free_ char *echo = NULL;
    start(&w, "{" BIND ",'inject':{'type':'replace','in':['ws_text']}}");
    world_request(&w, "GET", HOST, "/socket");
    world_field(&w, "sec-websocket-key", "x");
    world_inject(&w);
    accepted(&w, 0);
    assert_true(w.ret.ws_text);
    assert_true(redact_value(w.ret.redact, VALUE, &echo)); /* what comes back later is hidden too */
    static const char message[] = "{\"auth\":\"" P "\"}";
    struct inject_result ret;
    inject_message(w.vault, &w.q, message, strlen(message), &out, &ret);
    assert_int_equal(ret.reason, NETPOL_R_NONE);
    assert_string_equal(buf_str(&out), "{\"auth\":\"" VALUE "\"}");
    assert_string_equal(ret.used[0].at, "ws_text");
    world_end(&w);
}

static void a_message_to_another_host_is_a_violation(void **state)
{
    (void)state;
    struct world w;
    _cleanup_buf_ struct buf out = {0};
    struct inject_result ret;
    start(&w, "{" BIND ",'inject':{'type':'replace','in':['ws_text']}}");
    world_request(&w, "GET", "evil.example", "/socket");
    inject_message(w.vault, &w.q, "x" P, strlen("x" P), &out, &ret);
    assert_int_equal(ret.reason, NETPOL_R_SECRET_VIOLATION);
    assert_non_null(strstr(ret.text, "in a WebSocket message of a request to evil.example"));
    assert_int_equal(out.n, 0);
    inject_message(w.vault, &w.q, "harmless", 8, &out, &ret);
    assert_int_equal(ret.reason, NETPOL_R_NONE);
    assert_string_equal(buf_str(&out), "harmless");
    world_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_placeholder_in_a_header_becomes_the_value),
        cmocka_unit_test(a_placeholder_inside_basic_becomes_the_value),
        cmocka_unit_test(a_placeholder_in_the_query_becomes_the_encoded_value),
        cmocka_unit_test(only_the_listed_places_are_written),
        cmocka_unit_test(a_body_is_asked_for_and_written_in_its_own_syntax),
        cmocka_unit_test(nothing_is_changed_before_the_body_is_there),
        cmocka_unit_test(a_body_that_is_encoded_is_left_alone),
        cmocka_unit_test(every_placeholder_of_a_secret_counts),
        cmocka_unit_test(a_placeholder_to_another_host_is_a_violation),
        cmocka_unit_test(a_placeholder_is_found_wherever_it_hides),
        cmocka_unit_test(a_violation_that_is_only_logged_lets_the_placeholder_pass),
        cmocka_unit_test(a_bound_host_with_another_method_path_or_port_gets_nothing),
        cmocka_unit_test(a_rule_that_does_not_name_the_secret_does_not_get_it),
        cmocka_unit_test(nothing_is_sent_without_verified_tls),
        cmocka_unit_test(plaintext_has_to_be_allowed),
        cmocka_unit_test(a_secret_that_is_gone_is_named),
        cmocka_unit_test(secrets_of_another_tenant_do_not_exist),
        cmocka_unit_test(set_takes_every_copy_of_the_client_out),
        cmocka_unit_test(bearer_basic_header_and_query_are_set),
        cmocka_unit_test(a_secret_bound_elsewhere_is_not_put_in),
        cmocka_unit_test(headers_refer_to_other_secrets),
        cmocka_unit_test(a_reference_does_not_get_around_a_binding),
        cmocka_unit_test(a_reference_to_nothing_is_refused),
        cmocka_unit_test(a_value_cannot_break_out_of_its_header),
        cmocka_unit_test(there_is_an_end_to_fields_and_places),
        cmocka_unit_test(a_new_value_is_used_from_the_next_request_on),
        cmocka_unit_test(an_answer_gets_the_placeholder_back),
        cmocka_unit_test(redaction_can_be_off_and_is_off_if_nothing_was_used),
        cmocka_unit_test(a_request_is_signed_as_the_sdk_would),
        cmocka_unit_test(s3_needs_no_body_over_tls),
        cmocka_unit_test(a_session_token_is_another_secret),
        cmocka_unit_test(payloads_the_client_described_are_kept_or_refused),
        cmocka_unit_test(text_messages_are_written_if_that_was_asked_for),
        cmocka_unit_test(a_message_to_another_host_is_a_violation),
    };
    return cmocka_run_group_tests_name("egress/inject", tests, NULL, NULL);
}
