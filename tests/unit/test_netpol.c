/* test_netpol.c - decisions: hosts, ports, methods, paths and the rest of a request against rules, and in which order. */
#include "lib/unit.h"

#include "policy/net/netpol.h"

enum { NOW = 1000 };

static struct netpol *takes(const char *text)
{
    _cleanup_node_ struct node *doc = NULL;
    struct netpol *p = NULL;
    struct netpol_error e = {0};
    struct err err = {0};
    if (node_read(text, strlen(text), "p.yaml", 0, &doc, &err) < 0)
        fail_msg("not YAML: %s", err.msg);
    if (netpol_parse(doc, NULL, NULL, &p, &e) < 0)
        fail_msg("refused: %s: %s\n%s", e.path, e.text, text);
    return p;
}

static struct netpol *takes_json(const struct buf *text)
{
    struct netpol *p = NULL;
    struct netpol_error e = {0};
    if (netpol_parse_json(buf_str(text), text->n, NULL, NULL, &p, &e) < 0)
        fail_msg("refused: %s: %s\n%s", e.path, e.text, buf_str(text));
    return p;
}

static struct netpol_flow flow_to(const char *host, uint16_t port, bool tls)
{
    struct netpol_flow f = {.port = port, .tls = tls};
    if (!netpol_literal(host, strlen(host), &f.addr))
        f.host = host;
    return f;
}

static const char *word(const struct netpol_decision *d)
{
    if (d->would_deny)
        return "would";
    return d->verdict == NETPOL_ALLOW ? "allow" : d->verdict == NETPOL_ASK ? "ask" : netpol_reason_name(d->reason);
}

/* "GET https://host:port/path?query" against the policy, with header fields; the word and the decision. */
static const char *ask_with(const struct netpol *p, const char *line, const struct netpol_field *fields, size_t n,
                            uint64_t length, struct netpol_decision *ret)
{
    static char copy[512], host[NETPOL_NAME_MAX];
    struct netpol_target t;
    const char *why;
    bool literal;
    (void)snprintf(copy, sizeof copy, "%s", line);
    char *url = strchr(copy, ' ');
    *url++ = '\0';
    bool tls = strncmp(url, "https://", 8) == 0;
    char *authority = url + (tls ? 8 : 7), *path = strchr(authority, '/'), *query = strchr(path, '?');
    struct netpol_flow f = {.port = tls ? 443 : 80, .tls = tls};
    char name[256];
    (void)snprintf(name, sizeof name, "%.*s", (int)(path - authority), authority);
    if (!netpol_authority(name, host, &f.addr, &literal, &f.port))
        fail_msg("no authority: %s", name);
    f.host = literal ? NULL : host;
    if (query)
        *query++ = '\0';
    if (!netpol_target(path, query, &t, &why))
        fail_msg("%s: %s", path, why);
    struct netpol_request q = {.method = copy, .target = &t, .fields = fields, .nfields = n, .length = length};
    netpol_request(p, &f, &q, NOW, ret);
    netpol_target_done(&t);
    return word(ret);
}

static const char *ask(const struct netpol *p, const char *line)
{
    struct netpol_decision d;
    return ask_with(p, line, NULL, 0, 0, &d);
}

static const char *dial(const struct netpol *p, const char *host, uint16_t port, struct netpol_decision *ret)
{
    struct netpol_flow f = flow_to(host, port, port == 443);
    netpol_connect(p, &f, NOW, ret);
    return word(ret);
}

static const char *relay(const struct netpol *p, const char *host, uint16_t port, bool tls)
{
    struct netpol_flow f = flow_to(host, port, tls);
    struct netpol_decision d;
    netpol_relay(p, &f, NOW, &d);
    return word(&d);
}

struct line {
    const char *request, *want;
};

static void expect(const struct netpol *p, const struct line *lines, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *got = ask(p, lines[i].request);
        if (strcmp(got, lines[i].want) != 0)
            fail_msg("%s: %s, not %s", lines[i].request, got, lines[i].want);
    }
}

/* --- hosts and ports ---------------------------------------------------------------------------------------------- */

static void hosts_match_at_label_boundaries(void **state)
{
    static const struct line lines[] = {
        {"GET https://a.test/", "allow"},
        {"GET https://A.TEST./", "allow"},
        {"GET https://xa.test/", "host_not_allowed"},
        {"GET https://a.test.evil.test/", "host_not_allowed"},
        {"GET https://x.a.test/", "host_not_allowed"},
        {"GET https://w.test/", "host_not_allowed"},
        {"GET https://x.w.test/", "allow"},
        {"GET https://x.y.w.test/", "allow"},
        {"GET https://xw.test/", "host_not_allowed"},
        {"GET https://x.w.test.evil/", "host_not_allowed"},
        {"GET https://b.test/", "allow"},
        {"GET https://x.b.test/", "allow"},
        {"GET https://xb.test/", "host_not_allowed"},
        {"GET https://test/", "host_not_allowed"},
        {"GET https://9.9.9.9/", "ip_literal"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("allow: [a.test, '*.w.test', .b.test]");
    expect(p, lines, ARRAY_LEN(lines));
}

static void ports_are_the_web_s_unless_named(void **state)
{
    static const struct line lines[] = {
        {"GET https://a.test/", "allow"},
        {"GET http://a.test/", "allow"},
        {"GET https://a.test:8443/", "port_not_allowed"},
        {"GET https://b.test:8443/", "allow"},
        {"GET https://b.test/", "port_not_allowed"},
        {"GET https://c.test:8050/", "allow"},
        {"GET https://c.test:8100/", "port_not_allowed"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("{allow: [a.test, 'b.test:8443'], rules: [{hosts: [c.test], ports: [8000-8099]}]}");
    expect(p, lines, ARRAY_LEN(lines));
}

static void mail_ports_must_be_named_one_by_one(void **state)
{
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("{default: public, rules: [{hosts: [a.test], proto: tcp, ports: "
                                              "[1-65535]}, {hosts: [m.test], proto: tcp, ports: [25]}]}");
    assert_string_equal(dial(p, "a.test", 26, &d), "allow");
    assert_string_equal(dial(p, "a.test", 25, &d), "port_not_allowed");
    assert_string_equal(dial(p, "a.test", 465, &d), "port_not_allowed");
    assert_string_equal(dial(p, "m.test", 25, &d), "allow");
    assert_string_equal(dial(p, "other.test", 587, &d), "port_not_allowed");
    assert_string_equal(dial(p, "other.test", 588, &d), "allow");
}

static void plain_http_goes_to_port_80_or_where_it_is_allowed(void **state)
{
    static const struct line lines[] = {
        {"GET http://a.test/", "allow"},
        {"GET http://a.test:8080/", "cleartext_not_allowed"},
        {"GET https://a.test:8080/", "allow"},
        {"GET http://b.test:8080/", "allow"},
        {"GET http://c.test/", "cleartext_not_allowed"},
        {"GET https://c.test/", "allow"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("rules: [{hosts: [a.test], ports: [80, 8080]}, {hosts: [b.test], ports: [8080], "
              "cleartext: true}, {hosts: [c.test], cleartext: false}]");
    expect(p, lines, ARRAY_LEN(lines));
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void paths_match_by_segments(void **state)
{
    static const struct {
        const char *pattern, *path;
        bool match;
    } cases[] = {
        {"/a", "/a", true},
        {"/a", "/a/", false},
        {"/a", "/ab", false},
        {"/a/*", "/a/b", true},
        {"/a/*", "/a/b/c", false},
        {"/a/*", "/a", false},
        {"/a/**", "/a", true},
        {"/a/**", "/a/", true},
        {"/a/**", "/a/b/c", true},
        {"/a/**", "/ab", false},
        {"/**", "/", true},
        {"/**", "/x/y", true},
        {"/**/z", "/z", true},
        {"/**/z", "/a/b/z", true},
        {"/**/z", "/a/zz", false},
        {"/a/**/b/*/c", "/a/b/x/c", true},
        {"/a/**/b/*/c", "/a/q/b/b/x/c", true},
        {"/a/**/b/*/c", "/a/b/c", false},
        {"/v*/x", "/v1/x", true},
        {"/v*/x", "/v/x", true},
        {"/v*/x", "/v1/2/x", false},
        {"/*.json", "/a.json", true},
        {"/*.json", "/a.jsonx", false},
        {"/a*b*c", "/aXbYc", true},
        {"/a*b*c", "/aXcYb", false},
        {"/%2A", "/*", true},
        {"/%2A", "/x", false},
        {"/a,b", "/a%2Cb", true},
        {"/a%2cb", "/a,b", true},
        {"/%7euser", "/~user", true},
        {"/@*/*", "/@s%2fp", false},
        {"/A", "/a", false},
        {"/**/**", "/a", true},
        {"/a/**/**/b", "/a/x/b", true},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf doc = {0}, line = {0};
        buf_addf(&doc, "rules: [{hosts: [a.test], http: [{paths: ['%s']}]}]", cases[i].pattern);
        buf_addf(&line, "GET https://a.test%s", cases[i].path);
        _cleanup_netpol_ struct netpol *p = takes(buf_str(&doc));
        if (strcmp(ask(p, buf_str(&line)), cases[i].match ? "allow" : "path_not_allowed") != 0)
            fail_msg("%s %s %s", cases[i].pattern, cases[i].match ? "does not match" : "matches", cases[i].path);
    }
}

static void every_reading_of_a_path_must_be_allowed(void **state)
{
    static const struct line lines[] = {
        {"GET https://a.test/pkg/x", "allow"},
        {"GET https://a.test/pkg/a%2fb", "path_not_allowed"}, /* one segment, or two */
        {"GET https://n.test/@s%2fp", "allow"},               /* both are allowed here */
        {"GET https://a.test/pkg/x;v=1", "allow"},
        {"GET https://a.test/pkg/..;/admin", "path_not_allowed"},
        {"GET https://d.test/public", "allow"},
        {"GET https://d.test/admin/x", "denied_by_rule"},
        {"GET https://d.test/%61dmin/x", "denied_by_rule"},
        {"GET https://d.test/public/../admin/x", "denied_by_rule"},
        {"GET https://d.test/public%2f..%2fadmin%2fx", "denied_by_rule"},
        {"GET https://d.test/public/..;x/admin/x", "denied_by_rule"},
        {"GET https://d.test/admin;x/x", "denied_by_rule"},
        {"GET https://d.test/a/q;x%2f..%2f..%2fadmin", "denied_by_rule"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("rules:\n- {hosts: [a.test], http: [{paths: [/pkg/*]}]}\n"
                                              "- {hosts: [n.test], http: [{paths: ['/@*', '/@*/*']}]}\n"
                                              "- {hosts: [d.test], deny: [{paths: [/admin/**]}]}\n");
    expect(p, lines, ARRAY_LEN(lines));
}

static void methods_are_judged_with_what_overrides_them(void **state)
{
    static const struct {
        const char *method, *header, *value, *want;
    } cases[] = {
        {"GET", NULL, NULL, "allow"},
        {"POST", NULL, NULL, "allow"},
        {"get", NULL, NULL, "method_not_allowed"},
        {"DELETE", NULL, NULL, "method_not_allowed"},
        {"POST", "x-http-method-override", "DELETE", "method_not_allowed"},
        {"POST", "x-http-method-override", " delete ", "method_not_allowed"},
        {"POST", "x-http-method", "PUT", "method_not_allowed"},
        {"POST", "x-method-override", "GET", "allow"},
        {"POST", "x-method-override", "G ET", "method_not_allowed"},
        {"POST", "x-other", "DELETE", "allow"},
        {"TRACE", NULL, NULL, "method_not_allowed"},
        {"CONNECT", NULL, NULL, "method_not_allowed"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("rules: [{hosts: [a.test], http: [{methods: [GET, POST]}]}]");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char line[64];
        struct netpol_field field = {cases[i].header, cases[i].value};
        struct netpol_decision d;
        (void)snprintf(line, sizeof line, "%s https://a.test/", cases[i].method);
        const char *got = ask_with(p, line, &field, cases[i].header ? 1 : 0, 0, &d);
        if (strcmp(got, cases[i].want) != 0)
            fail_msg("%s with %s: %s, not %s", cases[i].method, cases[i].value ? cases[i].value : "nothing", got,
                     cases[i].want);
    }
}

static void a_denied_method_is_found_behind_an_override(void **state)
{
    struct netpol_field field = {"x-http-method-override", "delete"};
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("{default: public, rules: [{effect: deny, hosts: [a.test], http: [{methods: [DELETE]}]}]}");
    assert_string_equal(ask_with(p, "POST https://a.test/", &field, 1, 0, &d), "denied_by_rule");
    assert_string_equal(ask_with(p, "POST https://a.test/", NULL, 0, 0, &d), "allow");
    assert_string_equal(ask_with(p, "PO\x01ST https://a.test/", NULL, 0, 0, &d), "malformed_request");
}

static void queries_must_match_in_every_copy(void **state)
{
    static const struct line lines[] = {
        {"GET https://a.test/?ref=main", "allow"},
        {"GET https://a.test/?ref=mainline", "allow"},
        {"GET https://a.test/?x=1&r%65f=m%61in", "allow"},
        {"GET https://a.test/?ref=dev", "path_not_allowed"},
        {"GET https://a.test/", "path_not_allowed"},
        {"GET https://a.test/?ref=main&ref=dev", "path_not_allowed"},
        {"GET https://a.test/?ref=main;ref=dev", "path_not_allowed"},
        {"GET https://a.test/?ref", "path_not_allowed"},
        {"GET https://d.test/?x=1", "allow"},
        {"GET https://d.test/?force=1", "denied_by_rule"},
        {"GET https://d.test/?force=0&force=1", "denied_by_rule"},
        {"GET https://d.test/?a=b;force=1", "denied_by_rule"},
        {"GET https://d.test/?f%6frce=%31", "denied_by_rule"},
        {"GET https://p.test/?q=a+b", "allow"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("rules:\n- {hosts: [a.test], http: [{query: {ref: 'main*'}}]}\n"
                                              "- {hosts: [d.test], deny: [{query: {force: ['1', 'true']}}]}\n"
                                              "- {hosts: [p.test], http: [{query: {q: 'a b'}}]}\n");
    expect(p, lines, ARRAY_LEN(lines));
}

static void headers_types_and_sizes_are_conditions(void **state)
{
    static const struct netpol_field v1[] = {{"x-api", "v1"}, {"content-type", "application/JSON; charset=utf-8"}},
                                     v2[] = {{"x-api", "v1"}, {"x-api", "v2"}, {"content-type", "application/json"}},
                                     text[] = {{"x-api", "v1"}, {"content-type", "text/plain"}};
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("rules: [{hosts: [a.test], http: [{headers: {X-Api: v1}, content_types: "
                                              "[application/json], max_request_bytes: 10}]}]");
    assert_string_equal(ask_with(p, "POST https://a.test/", v1, 2, 10, &d), "allow");
    assert_int_equal(d.max_request_bytes, 10);
    assert_string_equal(ask_with(p, "POST https://a.test/", v1, 2, UINT64_MAX, &d), "allow");
    assert_int_equal(d.max_request_bytes, 10);
    assert_string_equal(ask_with(p, "POST https://a.test/", v1, 2, 11, &d), "body_too_large");
    assert_string_equal(ask_with(p, "POST https://a.test/", v2, 3, 1, &d), "header_not_allowed");
    assert_string_equal(ask_with(p, "POST https://a.test/", text, 2, 1, &d), "content_type");
    assert_string_equal(ask_with(p, "POST https://a.test/", NULL, 0, 1, &d), "header_not_allowed");
    assert_string_equal(ask_with(p, "GET https://a.test/", v1, 1, 0, &d), "allow"); /* no body, no type */
    assert_string_equal(ask_with(p, "GET https://a.test/", v1, 1, 1, &d), "content_type");
}

static void access_is_a_list_of_methods(void **state)
{
    static const struct line lines[] = {
        {"GET https://r.test/", "allow"},
        {"HEAD https://r.test/x", "allow"},
        {"OPTIONS https://r.test/", "allow"},
        {"POST https://r.test/", "method_not_allowed"},
        {"DELETE https://w.test/", "allow"},
        {"PATCH https://w.test/", "allow"},
        {"PROPFIND https://w.test/", "method_not_allowed"},
        {"PROPFIND https://f.test/", "allow"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("rules: [{hosts: [r.test], access: read-only}, {hosts: [w.test], access: read-write}, "
              "{hosts: [f.test], access: full}]");
    expect(p, lines, ARRAY_LEN(lines));
}

/* --- order -------------------------------------------------------------------------------------------------------- */

static void deny_wins(void **state)
{
    static const struct line lines[] = {
        {"GET https://a.test/", "allow"},
        {"GET https://x.a.test/", "allow"},
        {"GET https://bad.a.test/", "denied_by_rule"},
        {"GET https://a.test/settings/x", "denied_by_rule"},
        {"GET https://x.a.test/settings", "allow"}, /* another host: the entry does not speak of it */
        {"DELETE https://x.a.test/", "denied_by_rule"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("rules:\n- {id: never, effect: deny, hosts: [bad.a.test]}\n- {hosts: [.a.test]}\n"
              "- {hosts: [a.test], deny: [{paths: [/settings/**]}]}\n"
              "- {effect: deny, hosts: ['*'], http: [{methods: [DELETE]}]}\n");
    expect(p, lines, ARRAY_LEN(lines));
}

static void the_most_special_rule_is_named_and_others_may_still_allow(void **state)
{
    static const struct {
        const char *request, *rule;
    } cases[] = {
        {"GET https://x.a.test/", "exact"},  {"POST https://x.a.test/", "wild"}, {"GET https://y.a.test/", "wild"},
        {"GET https://y.b.a.test/", "deep"}, {"GET https://z.test/", "any"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes(
        "rules: [{id: any, hosts: ['*'], broad: true}, {id: wild, hosts: ['*.a.test'], limits: {rps: 1}}, "
        "{id: deep, hosts: ['*.b.a.test'], limits: {rps: 1}}, {id: exact, hosts: [x.a.test], access: read-only}]");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct netpol_decision d;
        assert_string_equal(ask_with(p, cases[i].request, NULL, 0, 0, &d), "allow");
        assert_string_equal(d.rule->id, cases[i].rule);
    }
}

static void a_refusal_names_the_nearest_rule(void **state)
{
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("rules: [{id: one, hosts: [a.test], http: [{methods: [GET], paths: [/x]}]}, "
              "{id: two, hosts: [a.test], http: [{methods: [POST], paths: [/y]}]}]");
    assert_string_equal(ask_with(p, "GET https://a.test/y", NULL, 0, 0, &d), "method_not_allowed");
    assert_string_equal(d.rule->id, "two");
    assert_string_equal(ask_with(p, "GET https://a.test/z", NULL, 0, 0, &d), "path_not_allowed");
    assert_string_equal(d.rule->id, "one");
    assert_string_equal(ask_with(p, "GET https://b.test/z", NULL, 0, 0, &d), "host_not_allowed");
    assert_null(d.rule);
}

static void public_is_all_names_and_public_addresses(void **state)
{
    static const struct line lines[] = {
        {"GET https://any.test/", "allow"},          {"POST http://any.test:8080/x", "allow"},
        {"GET https://9.9.9.9/", "allow"},           {"GET http://127.0.0.1/", "private_address"},
        {"GET http://10.0.0.1/", "private_address"}, {"GET http://169.254.169.254/", "private_address"},
        {"GET https://bad.test/", "denied_by_rule"}, {"GET http://9.9.9.8/", "denied_by_rule"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("{default: public, deny: [bad.test, 9.9.9.8]}");
    expect(p, lines, ARRAY_LEN(lines));
    assert_string_equal(relay(p, "any.test", 22, false), "allow");
    assert_string_equal(relay(p, "bad.test", 22, false), "denied_by_rule");
}

static void private_addresses_need_a_private_list(void **state)
{
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("rules: [{id: open, cidrs: [10.0.0.0/8, 127.0.0.0/8, 9.0.0.0/8], ports: [80]}, "
              "{id: db, cidrs: [10.1.0.0/16], ports: [80], private: [10.1.2.0/24]}]");
    assert_string_equal(dial(p, "9.1.1.1", 80, &d), "allow");
    assert_true(d.tcp);
    assert_string_equal(dial(p, "9.1.1.1", 81, &d), "port_not_allowed");
    assert_string_equal(dial(p, "10.1.2.3", 80, &d), "allow");
    assert_string_equal(d.rule->id, "db");
    assert_string_equal(dial(p, "10.1.3.3", 80, &d), "private_address");
    assert_string_equal(dial(p, "10.9.9.9", 80, &d), "private_address");
    assert_string_equal(dial(p, "127.0.0.1", 80, &d), "private_address");
    assert_string_equal(dial(p, "8.8.8.8", 80, &d), "ip_literal");
}

static void the_longest_range_is_found_first(void **state)
{
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("rules: [{id: all, cidrs: [0.0.0.0/0, '::/0'], ports: [443]}, {id: net, cidrs: "
              "[9.9.0.0/16], ports: [443]}, {id: one, cidrs: [9.9.9.9], ports: [443]}]");
    (void)dial(p, "9.9.9.9", 443, &d);
    assert_string_equal(d.rule->id, "one");
    (void)dial(p, "9.9.9.8", 443, &d);
    assert_string_equal(d.rule->id, "net");
    (void)dial(p, "9.8.9.8", 443, &d);
    assert_string_equal(d.rule->id, "all");
    (void)dial(p, "2606::1", 443, &d);
    assert_string_equal(d.rule->id, "all");
}

static void grants_end(void **state)
{
    static const struct line lines[] = {
        {"GET https://old.test/", "policy_expired"},
        {"GET https://new.test/", "allow"},
        {"GET https://ban.test/", "allow"}, /* the ban has ended */
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("{allow: [ban.test], rules: [{hosts: [old.test], expires: 1000}, {hosts: [new.test], "
              "expires: 1001}, {effect: deny, hosts: [ban.test], expires: 999}]}");
    expect(p, lines, ARRAY_LEN(lines));
    assert_false(netpol_name_possible(p, "old.test", NOW));
    assert_true(netpol_name_possible(p, "old.test", NOW - 1));
}

static void questions_are_asked_and_answered_by_grants(void **state)
{
    static const struct line lines[] = {
        {"GET https://a.test/", "allow"},
        {"POST https://a.test/x", "ask"},
        {"POST https://a.test/ok", "allow"},
        {"GET https://other.test/", "host_not_allowed"},
    };
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("rules: [{hosts: [a.test], access: read-only}, {id: writes, hosts: [a.test], approval: ask}, "
              "{id: grant, hosts: [a.test], http: [{methods: [POST], paths: [/ok]}], uses: 1}]");
    expect(p, lines, ARRAY_LEN(lines));
    assert_string_equal(ask_with(p, "POST https://a.test/ok", NULL, 0, 0, &d), "allow");
    assert_string_equal(d.rule->id, "grant");
    assert_string_equal(ask_with(p, "POST https://a.test/x", NULL, 0, 0, &d), "ask");
    assert_int_equal(d.reason, NETPOL_R_APPROVAL_PENDING);
    assert_string_equal(d.rule->id, "writes");
    assert_string_equal(dial(p, "a.test", 443, &d), "allow");
    assert_true(d.intercept);
}

static void misses_may_be_asked_about_and_denials_not(void **state)
{
    static const struct line lines[] = {
        {"GET https://new.test/", "ask"},
        {"POST https://a.test/", "ask"},
        {"GET https://bad.test/", "denied_by_rule"},
        {"GET https://9.9.9.9/", "ip_literal"},
        {"GET http://10.0.0.1/", "private_address"},
    };
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("{on_miss: ask, deny: [bad.test], rules: [{hosts: [a.test], access: read-only}]}");
    expect(p, lines, ARRAY_LEN(lines));
    assert_string_equal(dial(p, "new.test", 443, &d), "ask");
    assert_true(d.intercept);
    assert_true(netpol_name_possible(p, "new.test", NOW));
    assert_false(netpol_name_possible(p, "bad.test", NOW));
}

static void audit_and_learn_let_through_what_a_policy_could_allow(void **state)
{
    static const char *const modes[] = {"audit", "learn"};
    static const struct line lines[] = {
        {"GET https://a.test/", "allow"},
        {"GET https://b.test/", "would"},
        {"GET https://bad.test/", "would"},
        {"GET https://9.9.9.9/", "would"},
        {"GET http://10.0.0.1/", "private_address"},
        {"GET http://127.0.0.1/", "private_address"},
        {"TRACE https://a.test/", "method_not_allowed"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        char text[80];
        struct netpol_decision d;
        (void)snprintf(text, sizeof text, "{mode: %s, allow: [a.test], deny: [bad.test]}", modes[i]);
        _cleanup_netpol_ struct netpol *p = takes(text);
        expect(p, lines, ARRAY_LEN(lines));
        assert_string_equal(dial(p, "b.test", 443, &d), "would");
        assert_int_equal(d.reason, NETPOL_R_HOST);
        assert_int_equal(d.intercept, i == 1); /* to learn what is asked for */
        assert_string_equal(relay(p, "b.test", 22, false), "would");
        assert_true(netpol_name_possible(p, "b.test", NOW));
    }
}

static void names_that_only_a_wildcard_allows_are_told_apart(void **state)
{
    static const struct {
        const char *policy, *line;
        bool wildcard;
    } cases[] = {
        {"allow: ['*.a.test']", "GET https://x.a.test/", true},
        {"allow: [.a.test]", "GET https://y.x.a.test/", true},
        {"allow: [.a.test]", "GET https://a.test/", false},
        {"allow: [x.a.test, '*.a.test']", "GET https://x.a.test/", false},
        {"rules: [{hosts: ['*.a.test']}, {hosts: [x.a.test]}]", "GET https://x.a.test/", false},
        /* the one that names it does not allow this */
        {"rules: [{hosts: ['*.a.test']}, {hosts: [x.a.test], access: read-only}]", "POST https://x.a.test/", true},
        {"rules: [{hosts: ['*'], broad: true}]", "GET https://x.a.test/", false},
        {"{default: public, allow: ['*.a.test']}", "GET https://x.a.test/", false},
        {"{mode: audit, allow: ['*.a.test']}", "GET https://x.a.test/", false},
    };
    struct netpol_decision d;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_netpol_ struct netpol *p = takes(cases[i].policy);
        assert_string_equal(ask_with(p, cases[i].line, NULL, 0, 0, &d), "allow");
        if (d.wildcard != cases[i].wildcard)
            fail_msg("%s: %s", cases[i].policy, cases[i].line);
    }
    _cleanup_netpol_ struct netpol *p =
        takes("rules: [{hosts: ['*.a.test'], proto: tcp, ports: [22]}, {hosts: [b.test]}]");
    struct netpol_flow f = flow_to("x.a.test", 22, false);
    netpol_relay(p, &f, NOW, &d);
    assert_true(d.verdict == NETPOL_ALLOW && d.wildcard);
    assert_true(netpol_name_wildcard(p, "x.a.test"));
    assert_false(netpol_name_wildcard(p, "b.test"));
    assert_false(netpol_name_wildcard(p, "c.test"));
    _cleanup_netpol_ struct netpol *asks = takes("{on_miss: ask, allow: [b.test]}");
    assert_true(netpol_name_wildcard(asks, "c.test"));
    assert_false(netpol_name_wildcard(asks, "b.test"));
}

/* --- connections -------------------------------------------------------------------------------------------------- */

static void only_what_must_be_seen_is_looked_into(void **state)
{
    static const struct {
        const char *host;
        bool intercept;
        const char *relay; /* of TLS to it */
    } cases[] = {
        {"plain.test", false, "allow"},
        {"http.test", true, "protocol_not_allowed"},
        {"secret.test", true, "protocol_not_allowed"},
        {"limit.test", true, "protocol_not_allowed"},
        {"forced.test", true, "protocol_not_allowed"},
        {"pass.test", false, "allow"},
        {"seen.test", true, "protocol_not_allowed"},
        {"other.test", true, "host_not_allowed"},
        {"x.wild.test", true, "protocol_not_allowed"},
        {"pin.wild.test", false, "allow"},
        {"mixed.test", true, "protocol_not_allowed"},
    };
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("tls: {inspect: [seen.test]}\nallow: [plain.test, seen.test, mixed.test]\nrules:\n- {hosts: [http.test], "
              "access: read-only}\n"
              "- {hosts: [secret.test], secrets: [k]}\n- {hosts: [limit.test], limits: {max_response_bytes: 1}}\n"
              "- {hosts: [forced.test], tls: intercept}\n- {hosts: [pass.test], tls: passthrough}\n"
              "- {hosts: ['*.wild.test'], access: read-only}\n- {hosts: [pin.wild.test], tls: passthrough}\n"
              "- {effect: deny, hosts: [mixed.test], http: [{methods: [DELETE]}]}\n");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct netpol_decision d;
        (void)dial(p, cases[i].host, 443, &d);
        if (d.intercept != cases[i].intercept)
            fail_msg("%s is%s looked into", cases[i].host, d.intercept ? "" : " not");
        if (strcmp(relay(p, cases[i].host, 443, true), cases[i].relay) != 0)
            fail_msg("a tunnel to %s: %s", cases[i].host, relay(p, cases[i].host, 443, true));
    }
    assert_string_equal(relay(p, "plain.test", 443, false), "protocol_not_allowed"); /* neither HTTP nor TLS */
}

static void always_and_never_decide_for_all(void **state)
{
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *always = takes("{tls: {intercept: always}, allow: [a.test]}"),
                                   *never = takes("{tls: {intercept: never}, allow: [a.test]}");
    (void)dial(always, "a.test", 443, &d);
    assert_true(d.intercept);
    (void)dial(never, "a.test", 443, &d);
    assert_false(d.intercept);
    (void)dial(never, "b.test", 443, &d);
    assert_false(d.intercept);
    assert_int_equal(d.verdict, NETPOL_DENY);
}

static void opaque_streams_need_a_tcp_rule(void **state)
{
    struct netpol_decision d;
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        takes("rules: [{hosts: [db.test], proto: tcp, ports: [5432]}, {hosts: [git.test], access: read-only}, "
              "{hosts: ['*.test'], broad: true, proto: tcp, ports: [22]}]");
    assert_string_equal(dial(p, "db.test", 5432, &d), "allow");
    assert_true(d.tcp);
    assert_false(d.intercept);
    assert_string_equal(dial(p, "git.test", 443, &d), "allow");
    assert_false(d.tcp);
    assert_string_equal(dial(p, "git.test", 22, &d), "allow");
    assert_true(d.tcp);
    assert_string_equal(relay(p, "git.test", 22, false), "allow");
    assert_string_equal(relay(p, "git.test", 443, true), "protocol_not_allowed");
    assert_string_equal(dial(p, "db.test", 443, &d), "port_not_allowed");
}

static void names_are_possible_if_some_rule_could_allow_them(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("{allow: [a.test, '*.w.test'], deny: [no.w.test, 'port.w.test:443'], "
                                              "rules: [{hosts: [h.test], access: read-only}]}");
    assert_true(netpol_name_possible(p, "a.test", NOW));
    assert_true(netpol_name_possible(p, "h.test", NOW));
    assert_true(netpol_name_possible(p, "x.w.test", NOW));
    assert_true(netpol_name_possible(p, "port.w.test", NOW));
    assert_false(netpol_name_possible(p, "no.w.test", NOW));
    assert_false(netpol_name_possible(p, "w.test", NOW));
    assert_false(netpol_name_possible(p, "b.test", NOW));
}

static bool resolves(const struct netpol *p, const char *host, const char *address)
{
    struct netpol_flow f = flow_to(host, 443, true);
    struct in6_addr a;
    assert_true(netpol_literal(address, strlen(address), &a));
    return netpol_resolved(p, &f, &a, NOW);
}

static void denied_ranges_hold_for_what_names_resolve_to(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("{default: public, deny: [9.9.0.0/16, '8.8.8.8:53'], allow: [a.test]}"),
                                   *q = takes(
                                       "{default: public, order: allow-first, deny: [9.9.0.0/16], allow: [a.test]}");
    assert_false(resolves(p, "x.test", "9.9.1.1"));
    assert_false(resolves(p, "a.test", "9.9.1.1"));
    assert_true(resolves(p, "x.test", "9.8.1.1"));
    assert_true(resolves(p, "x.test", "8.8.8.8"));
    assert_false(resolves(q, "x.test", "9.9.1.1"));
    assert_true(resolves(q, "a.test", "9.9.1.1")); /* the name is allowed, and that comes first */
}

static void the_grant_that_is_offered_works(void **state)
{
    static const char *const lines[] = {
        "GET https://a.test/x/y",        "POST https://a.test:8443/v1?q=1", "DELETE http://a.test:8080/",
        "PUT https://a.test/@s%2fp;v=1", "GET https://a.test/a*b%25",       "OPTIONS https://a.test/%40x",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        char host[NETPOL_NAME_MAX], path[128], method[16], scheme[8], authority[64];
        assert_int_equal(sscanf(lines[i], "%15s %7[a-z]://%63[^/]%127s", method, scheme, authority, path), 4);
        char *query = strchr(path, '?');
        if (query)
            *query++ = '\0';
        bool literal, tls = strcmp(scheme, "https") == 0;
        struct netpol_flow f = {.host = host, .port = tls ? 443 : 80, .tls = tls};
        assert_true(netpol_authority(authority, host, &f.addr, &literal, &f.port));
        struct netpol_target t;
        const char *why;
        assert_true(netpol_target(path, query, &t, &why));
        struct netpol_request q = {.method = method, .target = &t};
        _cleanup_buf_ struct buf grant = {0}, doc = {0};
        netpol_grant(&f, &q, &grant);
        buf_addf(&doc, "{\"rules\":[%s]}", buf_str(&grant));
        _cleanup_netpol_ struct netpol *p = takes_json(&doc);
        if (strcmp(ask(p, lines[i]), "allow") != 0)
            fail_msg("%s does not allow %s: %s", buf_str(&grant), lines[i], ask(p, lines[i]));
        assert_string_not_equal(ask(p, "PATCH https://a.test/x/y"), "allow");
        assert_string_not_equal(ask(p, "GET https://b.test/x/y"), "allow");
        netpol_target_done(&t);
    }
    struct netpol_flow f = flow_to("9.9.9.9", 5432, false);
    _cleanup_buf_ struct buf grant = {0};
    netpol_grant(&f, NULL, &grant);
    assert_string_equal(buf_str(&grant), "{\"cidrs\":[\"9.9.9.9\"],\"ports\":[5432]}");
    buf_done(&grant);
    f = flow_to("a.test", 443, true);
    netpol_grant(&f, NULL, &grant);
    assert_string_equal(buf_str(&grant), "{\"hosts\":[\"a.test\"]}");
}

/* --- E2B and sandbox-runtime -------------------------------------------------------------------------------------- */

struct e2b_case {
    const char *allow[4], *deny[4];
    int internet;
    struct line lines[8];
};

static size_t count(const char *const *list)
{
    size_t n = 0;
    while (list[n])
        n++;
    return n;
}

static void e2b_lists_mean_what_they_mean_there(void **state)
{
    static const struct e2b_case cases[] = {
        {{NULL},
         {NULL},
         -1, /* everything public */
         {{"GET https://any.test/", "allow"},
          {"GET https://9.9.9.9:8443/", "allow"},
          {"GET http://10.0.0.1/", "private_address"}}},
        {{NULL}, {NULL}, 1, {{"GET https://any.test/", "allow"}}},
        {{NULL},
         {NULL},
         0, /* nothing */
         {{"GET https://any.test/", "host_not_allowed"}, {"GET https://9.9.9.9/", "ip_literal"}}},
        {{NULL},
         {"0.0.0.0/0"},
         -1,
         {{"GET https://any.test/", "host_not_allowed"}, {"GET https://9.9.9.9/", "ip_literal"}}},
        {{"a.test", "*.b.test", "9.9.9.9"},
         {"0.0.0.0/0"},
         -1, /* only these */
         {{"GET https://a.test/", "allow"},
          {"POST http://a.test/x", "allow"},
          {"GET https://x.b.test/", "allow"},
          {"GET https://b.test/", "host_not_allowed"},
          {"GET https://9.9.9.9:8443/", "allow"},
          {"GET https://9.9.9.8/", "ip_literal"},
          {"GET https://c.test/", "host_not_allowed"}}},
        {{"a.test"}, {NULL}, 0, {{"GET https://a.test/", "allow"}, {"GET https://b.test/", "host_not_allowed"}}},
        {{NULL},
         {"9.9.9.9", "8.8.0.0/16"},
         -1, /* all but these */
         {{"GET https://any.test/", "allow"},
          {"GET https://9.9.9.9/", "denied_by_rule"},
          {"GET https://8.8.1.1/", "denied_by_rule"},
          {"GET https://8.9.1.1/", "allow"}}},
        {{"8.8.8.8"},
         {"8.8.0.0/16"},
         -1, /* allow beats deny */
         {{"GET https://8.8.8.8/", "allow"},
          {"GET https://8.8.8.7/", "denied_by_rule"},
          {"GET https://any.test/", "allow"}}},
        {{"9.0.0.0/8"},
         {"9.9.9.9", "0.0.0.0/0"},
         -1,
         {{"GET https://9.9.9.9/", "allow"},
          {"GET https://8.8.8.8/", "ip_literal"},
          {"GET https://any.test/", "host_not_allowed"}}},
        {{"0.0.0.0/0"}, {"0.0.0.0/0"}, 0, {{"GET https://any.test/", "allow"}, {"GET https://9.9.9.9/", "allow"}}},
        {{"a.test", "*.github.io"},
         {"a.test", "0.0.0.0/0"},
         -1,
         {{"GET https://a.test/", "allow"}, {"GET https://x.github.io/", "allow"}}},
        {{"10.0.0.1"},
         {NULL},
         -1,
         {{"GET http://10.0.0.1/", "private_address"}}}, /* a client opens no private network */
        {{"*"}, {"0.0.0.0/0"}, -1, {{"GET https://any.test/", "allow"}}},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct e2b_case *c = &cases[i];
        _cleanup_buf_ struct buf doc = {0};
        netpol_from_e2b(c->allow, count(c->allow), c->deny, count(c->deny), c->internet, NULL, 0, &doc);
        _cleanup_netpol_ struct netpol *p = takes_json(&doc);
        for (size_t k = 0; k < ARRAY_LEN(c->lines) && c->lines[k].request; k++)
            if (strcmp(ask(p, c->lines[k].request), c->lines[k].want) != 0)
                fail_msg("case %zu, %s: %s, not %s\n%s", i, c->lines[k].request, ask(p, c->lines[k].request),
                         c->lines[k].want, buf_str(&doc));
    }
}

static void e2b_streams_go_where_its_firewall_lets_them(void **state)
{
    static const char *const allow[] = {"9.9.9.9", "a.test"}, *const deny[] = {"0.0.0.0/0"},
                             *const some[] = {"8.8.8.8"};
    _cleanup_buf_ struct buf doc = {0}, doc2 = {0};
    (void)state;
    netpol_from_e2b(NULL, 0, some, 1, -1, NULL, 0, &doc);
    _cleanup_netpol_ struct netpol *open = takes_json(&doc);
    assert_string_equal(relay(open, "any.test", 22, false), "allow");
    assert_string_equal(relay(open, "9.9.9.9", 22, false), "allow");
    assert_string_equal(relay(open, "8.8.8.8", 22, false), "denied_by_rule");
    assert_false(resolves(open, "any.test", "8.8.8.8"));
    netpol_from_e2b(allow, 2, deny, 1, -1, NULL, 0, &doc2);
    _cleanup_netpol_ struct netpol *closed = takes_json(&doc2);
    assert_string_equal(relay(closed, "9.9.9.9", 22, false), "allow");
    assert_string_equal(relay(closed, "a.test", 443, true), "allow");
    assert_string_equal(relay(closed, "a.test", 22, false), "port_not_allowed"); /* names count for the web's ports */
    assert_string_equal(relay(closed, "8.8.8.8", 22, false), "ip_literal");
    assert_true(resolves(closed, "a.test", "8.8.8.8"));
}

static void hosts_with_header_rules_are_looked_into_and_not_opened(void **state)
{
    static const char *const deny[] = {"0.0.0.0/0"}, *const headers[] = {"api.test"};
    _cleanup_buf_ struct buf doc = {0}, doc2 = {0};
    struct netpol_decision d;
    (void)state;
    netpol_from_e2b(NULL, 0, NULL, 0, -1, headers, 1, &doc);
    _cleanup_netpol_ struct netpol *open = takes_json(&doc);
    assert_string_equal(dial(open, "api.test", 443, &d), "allow");
    assert_true(d.intercept);
    assert_string_equal(dial(open, "other.test", 443, &d), "allow");
    assert_false(d.intercept);
    netpol_from_e2b(NULL, 0, deny, 1, -1, headers, 1, &doc2);
    _cleanup_netpol_ struct netpol *closed = takes_json(&doc2);
    assert_string_equal(ask(closed, "GET https://api.test/"), "host_not_allowed");
}

static void long_e2b_lists_are_split_into_rules(void **state)
{
    const char *allow[600];
    char names[600][24];
    _cleanup_buf_ struct buf doc = {0};
    (void)state;
    for (size_t i = 0; i < 600; i++) {
        (void)snprintf(names[i], sizeof names[i], "h%zu.test", i);
        allow[i] = names[i];
    }
    netpol_from_e2b(allow, 600, NULL, 0, 0, NULL, 0, &doc);
    _cleanup_netpol_ struct netpol *p = takes_json(&doc);
    assert_int_equal(netpol_rules(p), 3);
    assert_string_equal(ask(p, "GET https://h0.test/"), "allow");
    assert_string_equal(ask(p, "GET https://h599.test/"), "allow");
    assert_string_equal(ask(p, "GET https://h600.test/"), "host_not_allowed");
}

static void sandbox_runtime_s_domains_are_names_on_any_port(void **state)
{
    static const char *const allow[] = {"github.com", "*.npmjs.org", "*.github.io"},
                             *const deny[] = {"evil.npmjs.org", "9.9.9.9"}, *const wide[] = {"*.com"};
    static const struct line lines[] = {
        {"GET https://github.com/", "allow"},           {"GET http://x.npmjs.org/", "allow"},
        {"GET https://npmjs.org/", "host_not_allowed"}, {"GET https://evil.npmjs.org/", "denied_by_rule"},
        {"GET https://9.9.9.9/", "denied_by_rule"},     {"GET https://me.github.io/", "allow"},
    };
    _cleanup_buf_ struct buf doc = {0}, bad = {0};
    struct netpol *none = NULL;
    struct netpol_error e;
    (void)state;
    netpol_from_domains(allow, 3, deny, 2, &doc);
    _cleanup_netpol_ struct netpol *p = takes_json(&doc);
    expect(p, lines, ARRAY_LEN(lines));
    assert_string_equal(relay(p, "github.com", 22, false), "allow");
    assert_string_equal(relay(p, "github.com", 443, true), "allow");
    assert_string_equal(relay(p, "gitlab.com", 22, false), "host_not_allowed");
    assert_false(resolves(p, "github.com", "9.9.9.9"));
    netpol_from_domains(wide, 1, NULL, 0, &bad);
    assert_int_equal(netpol_parse_json(buf_str(&bad), bad.n, NULL, NULL, &none, &e), -1);
    assert_string_equal(e.path, "rules[0].hosts[0]");
}

static void five_hundred_rules_find_their_host(void **state)
{
    _cleanup_buf_ struct buf doc = {0};
    char line[64];
    (void)state;
    buf_adds(&doc, "{\"rules\":[");
    for (int i = 0; i < 500; i++)
        buf_addf(&doc,
                 "%s{\"id\":\"r%d\",\"hosts\":[\"h%d.test\",\"*.w%d.test\"],\"http\":[{\"methods\":[\"GET\"],\"paths\":"
                 "[\"/p%d/**\"]}]}",
                 i ? "," : "", i, i, i, i);
    buf_adds(&doc, "]}");
    _cleanup_netpol_ struct netpol *p = takes_json(&doc);
    for (int i = 0; i < 500; i += 7) {
        struct netpol_decision d;
        (void)snprintf(line, sizeof line, "GET https://h%d.test/p%d/x", i, i);
        assert_string_equal(ask_with(p, line, NULL, 0, 0, &d), "allow");
        assert_int_equal(d.rule->index, i);
        (void)snprintf(line, sizeof line, "GET https://a.b.w%d.test/p%d/x", i, i);
        assert_string_equal(ask_with(p, line, NULL, 0, 0, &d), "allow");
        (void)snprintf(line, sizeof line, "GET https://h%d.test/p%d/x", i, i + 1);
        assert_string_equal(ask_with(p, line, NULL, 0, 0, &d), "path_not_allowed");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_match_at_label_boundaries),
        cmocka_unit_test(ports_are_the_web_s_unless_named),
        cmocka_unit_test(mail_ports_must_be_named_one_by_one),
        cmocka_unit_test(plain_http_goes_to_port_80_or_where_it_is_allowed),
        cmocka_unit_test(paths_match_by_segments),
        cmocka_unit_test(every_reading_of_a_path_must_be_allowed),
        cmocka_unit_test(methods_are_judged_with_what_overrides_them),
        cmocka_unit_test(a_denied_method_is_found_behind_an_override),
        cmocka_unit_test(queries_must_match_in_every_copy),
        cmocka_unit_test(headers_types_and_sizes_are_conditions),
        cmocka_unit_test(access_is_a_list_of_methods),
        cmocka_unit_test(deny_wins),
        cmocka_unit_test(the_most_special_rule_is_named_and_others_may_still_allow),
        cmocka_unit_test(a_refusal_names_the_nearest_rule),
        cmocka_unit_test(public_is_all_names_and_public_addresses),
        cmocka_unit_test(private_addresses_need_a_private_list),
        cmocka_unit_test(the_longest_range_is_found_first),
        cmocka_unit_test(grants_end),
        cmocka_unit_test(questions_are_asked_and_answered_by_grants),
        cmocka_unit_test(misses_may_be_asked_about_and_denials_not),
        cmocka_unit_test(audit_and_learn_let_through_what_a_policy_could_allow),
        cmocka_unit_test(names_that_only_a_wildcard_allows_are_told_apart),
        cmocka_unit_test(only_what_must_be_seen_is_looked_into),
        cmocka_unit_test(always_and_never_decide_for_all),
        cmocka_unit_test(opaque_streams_need_a_tcp_rule),
        cmocka_unit_test(names_are_possible_if_some_rule_could_allow_them),
        cmocka_unit_test(denied_ranges_hold_for_what_names_resolve_to),
        cmocka_unit_test(the_grant_that_is_offered_works),
        cmocka_unit_test(e2b_lists_mean_what_they_mean_there),
        cmocka_unit_test(e2b_streams_go_where_its_firewall_lets_them),
        cmocka_unit_test(hosts_with_header_rules_are_looked_into_and_not_opened),
        cmocka_unit_test(long_e2b_lists_are_split_into_rules),
        cmocka_unit_test(sandbox_runtime_s_domains_are_names_on_any_port),
        cmocka_unit_test(five_hundred_rules_find_their_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
