/* test_netpol_parse.c - the network document: what is taken, what is refused and with which words, and that what is shown says
 * the same again. */
#include "lib/unit.h"

#include <fcntl.h>
#include <unistd.h>

#include "policy/net/netpol.h"

static int preset(void *arg, const char *name, struct node **ret, struct err *err)
{
    static const char good[] =
        "description: a test\nrules:\n  - {id: one, hosts: [one.test, two.test], access: read-only}\n";
    static const char bad[] = "rules:\n  - id: x\n    hosts: ['*.com']\n";
    static const char more[] = "mode: learn\n";
    (void)arg;
    const char *text = strcmp(name, "good") == 0   ? good
                       : strcmp(name, "bad") == 0  ? bad
                       : strcmp(name, "more") == 0 ? more
                                                   : NULL;
    return text ? node_read(text, strlen(text), name, 0, ret, err) : err_set(err, ERR_POLICY, 0, "no preset %s", name);
}

static struct netpol *parse(const char *text, struct netpol_error *e)
{
    _cleanup_node_ struct node *doc = NULL;
    struct netpol *p = NULL;
    struct err err = {0};
    if (node_read(text, strlen(text), "p.yaml", 0, &doc, &err) < 0)
        fail_msg("not YAML: %s", err.msg);
    return netpol_parse(doc, preset, NULL, &p, e) < 0 ? NULL : p;
}

static struct netpol *takes(const char *text)
{
    struct netpol_error e = {0};
    struct netpol *p = parse(text, &e);
    if (!p)
        fail_msg("refused: %s line %u: %s\n%s", e.path, e.line, e.text, text);
    return p;
}

static void refuses(const char *text, const char *path, unsigned line, const char *want)
{
    struct netpol_error e = {0};
    _cleanup_netpol_ struct netpol *p = parse(text, &e);
    if (p)
        fail_msg("taken, but should be refused with \"%s\":\n%s", want, text);
    if (strcmp(e.path, path) != 0 || e.line != line || !strstr(e.text, want))
        fail_msg("%s line %u: %s\nis not\n%s line %u: ...%s...", e.path, e.line, e.text, path, line, want);
}

static void an_empty_document_denies_everything_with_the_usual_limits(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("{}");
    const struct netpol_settings *s = netpol_settings(p);
    assert_int_equal(netpol_rules(p), 0);
    assert_null(netpol_rule_at(p, 0));
    assert_int_equal(s->mode, NETPOL_ENFORCE);
    assert_int_equal(s->otherwise, NETPOL_DENY_ALL);
    assert_int_equal(s->ask_hold_s, 20);
    assert_true(s->require_sni);
    assert_int_equal(s->connections, 256);
    assert_int_equal(s->new_per_s, 50);
    assert_int_equal(s->new_names, 60);
    assert_int_equal(s->rps, 200);
    assert_int_equal(s->burst, 400);
    assert_int_equal(s->bytes_out, 10737418240);
    assert_int_equal(s->bytes_in, 0);
    assert_false(s->dns_real || s->dns_aaaa || s->tls13_only || s->ask_on_miss);
}

static void every_setting_is_read(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes(
        "version: 1\nid: acme/agent\nmode: audit\ndefault: public\non_miss: ask\nask_hold: 3m\n"
        "dns: {mode: real, denied: nxdomain, aaaa: true}\ntls: {intercept: always, min: '1.3', require_sni: false}\n"
        "limits: {connections: 7, new_conn_per_s: 8, rps: 9, burst: 10, bytes_out: 1G, bytes_in: 11, rate_out: 1M,\n"
        "  rate_in: 12}\ndeny_message: ask Ann\nrefusals: closed\nupstream_proxy: {address: 'Proxy.Corp:1080', "
        "username: u}\n");
    const struct netpol_settings *s = netpol_settings(p);
    assert_string_equal(s->id, "acme/agent");
    assert_int_equal(s->mode, NETPOL_AUDIT);
    assert_int_equal(s->otherwise, NETPOL_ALLOW_PUBLIC);
    assert_true(s->ask_on_miss && s->dns_real && s->dns_aaaa && s->tls13_only && !s->require_sni);
    assert_int_equal(s->ask_hold_s, 180);
    assert_int_equal(s->dns_denied, NETPOL_DNS_NXDOMAIN);
    assert_int_equal(s->intercept, NETPOL_TLS_INTERCEPT);
    assert_int_equal(s->connections, 7);
    assert_int_equal(s->new_per_s, 8);
    assert_int_equal(s->rps, 9);
    assert_int_equal(s->burst, 10);
    assert_int_equal(s->bytes_out, 1 << 30);
    assert_int_equal(s->bytes_in, 11);
    assert_int_equal(s->rate_out, 1 << 20);
    assert_int_equal(s->rate_in, 12);
    assert_string_equal(s->deny_message, "ask Ann");
    assert_true(s->refusals_closed);
    assert_string_equal(s->proxy, "proxy.corp:1080");
    assert_string_equal(s->proxy_user, "u");
}

static void every_field_of_a_rule_is_read(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes(
        "rules:\n  - {id: llm, hosts: [API.llm.test], ports: [443], secrets: [key, other], approval: ask,\n"
        "     http: [{methods: [POST], paths: [/v1/messages], max_request_bytes: 32M}], expires: "
        "2030-01-31T12:00:00Z,\n"
        "     uses: 3, limits: {rps: 20, burst: 40, concurrent: 4, max_request_bytes: 1M, max_response_bytes: 2M}}\n"
        "  - {hosts: db.corp.test, proto: tcp, ports: [5432], private: [10.20.1.5/32, 'fd00:1::/64']}\n"
        "  - {effect: deny, hosts: ['*.paste.test']}\n");
    assert_int_equal(netpol_rules(p), 3);
    const struct netpol_rule *r = netpol_rule_at(p, 0);
    assert_string_equal(r->id, "llm");
    assert_true(r->ask && r->has_http && !r->deny && !r->tcp);
    assert_int_equal(r->nsecrets, 2);
    assert_string_equal(r->secrets[1], "other");
    assert_int_equal(r->rps, 20);
    assert_int_equal(r->burst, 40);
    assert_int_equal(r->concurrent, 4);
    assert_int_equal(r->max_request_bytes, 1 << 20);
    assert_int_equal(r->max_response_bytes, 2 << 20);
    assert_int_equal(r->expires, 1896091200);
    assert_int_equal(r->uses, 3);
    r = netpol_rule_at(p, 1);
    assert_string_equal(r->id, "rule.1");
    assert_true(r->tcp);
    assert_int_equal(r->nprivate, 2);
    assert_int_equal(r->index, 1);
    assert_true(netpol_rule_at(p, 2)->deny);
}

static void shorthands_become_rules(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes(
        "allow: [a.test, '*.b.test', 'c.test:8443', 9.9.9.9, 9.8.0.0/16, '2606::/32', '9.9.9.8:53', '[2606:1::1]:53']\n"
        "deny: [d.test, 9.9.9.7]\nrules: [{id: allow.1, hosts: [e.test]}]\n");
    _cleanup_buf_ struct buf out = {0};
    netpol_show(p, &out);
    const char *rules = strstr(buf_str(&out), "\"rules\":");
    assert_string_equal(rules, "\"rules\":["
                               "{\"id\":\"allow.1\",\"hosts\":[\"e.test\"],\"ports\":[80,443]},"
                               "{\"id\":\"allow.0\",\"hosts\":[\"a.test\"],\"ports\":[80,443]},"
                               "{\"id\":\"allow.2\",\"hosts\":[\"*.b.test\"],\"ports\":[80,443]},"
                               "{\"id\":\"allow.3\",\"hosts\":[\"c.test\"],\"ports\":[8443]},"
                               "{\"id\":\"allow.4\",\"cidrs\":[\"9.9.9.9\"],\"ports\":[80,443],\"proto\":\"tcp\"},"
                               "{\"id\":\"allow.5\",\"cidrs\":[\"9.8.0.0/16\"],\"ports\":[80,443],\"proto\":\"tcp\"},"
                               "{\"id\":\"allow.6\",\"cidrs\":[\"2606::/32\"],\"ports\":[80,443],\"proto\":\"tcp\"},"
                               "{\"id\":\"allow.7\",\"cidrs\":[\"9.9.9.8\"],\"ports\":[53],\"proto\":\"tcp\"},"
                               "{\"id\":\"allow.8\",\"cidrs\":[\"2606:1::1\"],\"ports\":[53],\"proto\":\"tcp\"},"
                               "{\"id\":\"deny.0\",\"effect\":\"deny\",\"hosts\":[\"d.test\"]},"
                               "{\"id\":\"deny.1\",\"effect\":\"deny\",\"cidrs\":[\"9.9.9.7\"]}]}");
}

static void one_word_is_a_document(void **state)
{
    static const struct {
        const char *text;
        bool public;
    } cases[] = {{"\"off\"", false}, {" \"none\"\n", false}, {"\"public\"", true}, {"\"allow-public\"", true}};
    struct netpol_error e;
    struct netpol *p = NULL;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (netpol_parse_json(cases[i].text, strlen(cases[i].text), NULL, NULL, &p, &e) < 0)
            fail_msg("%s: %s", cases[i].text, e.text);
        assert_int_equal(netpol_settings(p)->otherwise == NETPOL_ALLOW_PUBLIC, cases[i].public);
        netpol_unref(p);
    }
    assert_int_equal(netpol_parse_json("\"on\"", 4, NULL, NULL, &p, &e), -1);
    assert_string_equal(e.text, "must be off, none, public or allow-public, not \"on\"");
}

static void text_that_is_no_json_is_refused_with_its_line(void **state)
{
    static const char text[] = "{\"mode\": \"enforce\",\n\"rules\": [}";
    struct netpol_error e;
    struct netpol *p;
    (void)state;
    assert_int_equal(netpol_parse_json(text, strlen(text), NULL, NULL, &p, &e), -1);
    assert_int_equal(e.line, 2);
    assert_non_null(strstr(e.text, "not valid JSON"));
    assert_int_equal(netpol_parse_json("[]", 2, NULL, NULL, &p, &e), -1);
    assert_non_null(strstr(e.text, "must be a mapping"));
}

static void what_is_wrong_is_named_with_path_and_line(void **state)
{
    static const struct {
        const char *text, *path;
        unsigned line;
        const char *want;
    } cases[] = {
        {"version: 2", "version", 1, "from 1 to 1"},
        {"\nmod: enforce", "", 2, "unknown key \"mod\"; did you mean \"mode\"?"},
        {"mode: learning", "mode", 1, "must be enforce, audit or learn, not \"learning\""},
        {"default: allow", "default", 1, "must be deny, public or allow-public"},
        {"order: x", "order", 1, "must be deny-first or allow-first"},
        {"ask_hold: 181", "ask_hold", 1, "from 0 to 180"},
        {"ask_hold: 500ms", "ask_hold", 1, "whole seconds"},
        {"dns: {mod: x}", "dns", 1, "did you mean \"mode\"?"},
        {"dns: synthetic", "dns", 1, "expected a mapping"},
        {"tls: {min: 1.1}", "tls.min", 1, "must be 1.2 or 1.3"},
        {"tls: {require_sni: 'true'}", "tls.require_sni", 1, "must be true or false"},
        {"tls: {inspect: ['*']}", "tls.inspect[0]", 1, "intercept: always"},
        {"tls: {intercept: never, inspect: [a.test]}", "tls.inspect", 0, "never"},
        {"limits: {connections: 0}", "limits.connections", 1, "from 1 to 100000"},
        {"limits: {bytes_out: lots}", "limits.bytes_out", 1, "must be a size"},
        {"upstream_proxy: host", "upstream_proxy", 1, "is not HOST:PORT"},
        {"upstream_proxy: {address: 'h:1', username: u, password: x}", "upstream_proxy.password", 1, "API"},
        {"upstream_proxy: {address: 'h:1', password_sealed: x}", "upstream_proxy", 1, "password_sealed"},
        {"upstream_proxy: {username: u}", "upstream_proxy", 1, "address is missing"},
        {"deny_message: \"a\\nb\"", "deny_message", 1, "one line"},
        {"refusals: silent", "refusals", 1, "readable"},
        {"id: a b", "id", 1, "no spaces"},
        {"rules: {}", "rules", 1, "expected a list of rules"},
        {"rules:\n- {}\n", "rules[0]", 2, "a rule needs hosts or cidrs"},
        {"rules:\n- hosts: []\n", "rules[0].hosts", 2, "the list is empty"},
        {"rules:\n- hosts:\n  - a.test\n  - http://a.test/\n", "rules[0].hosts[1]", 4, "not a host name"},
        {"rules:\n- hosts: ['a.*.test']\n", "rules[0].hosts[0]", 2, "a wildcard stands only alone in front"},
        {"rules:\n- hosts: ['a*.test']\n", "rules[0].hosts[0]", 2, "a wildcard stands only alone in front"},
        {"rules:\n- hosts: ['*']\n", "rules[0].hosts[0]", 2, "broad: true"},
        {"rules:\n- hosts: ['*.com']\n", "rules[0].hosts[0]", 2, "anyone can register a name below"},
        {"rules:\n- hosts: [.com]\n", "rules[0].hosts[0]", 2, "anyone can register a name below"},
        {"rules:\n- hosts: ['*.co.uk']\n", "rules[0].hosts[0]", 2, "anyone can register a name below"},
        {"rules:\n- hosts: ['*.github.io']\n", "rules[0].hosts[0]", 2, "anyone can register a name below"},
        {"allow: ['*.com']", "allow[0]", 1, "anyone can register a name below"},
        {"rules:\n- hosts: [1.2.3.4]\n", "rules[0].hosts[0]", 2, "put it under cidrs"},
        {"rules:\n- hosts: [0x7f000001]\n", "rules[0].hosts[0]", 2, "not a host name"},
        {"rules:\n- hosts: ['a.test:443']\n", "rules[0].hosts[0]", 2, "not a host name"},
        {"rules:\n- {hosts: [a.test], ports: [0]}\n", "rules[0].ports[0]", 2, "is not a port"},
        {"rules:\n- {hosts: [a.test], ports: [90-80]}\n", "rules[0].ports[0]", 2, "is not a port"},
        {"rules:\n- {hosts: [a.test], proto: tcp}\n", "rules[0]", 2, "need ports"},
        {"rules:\n- {hosts: [a.test], proto: udp}\n", "rules[0].proto", 2, "must be http or tcp"},
        {"rules:\n- {cidrs: [10.0.0.0/33], ports: [1]}\n", "rules[0].cidrs[0]", 2, "is not an address or a range"},
        {"rules:\n- {cidrs: [9.0.0.0/8]}\n", "rules[0]", 2, "need ports"},
        {"rules:\n- {cidrs: [9.0.0.0/8], ports: [1], proto: http}\n", "rules[0]", 2, "cidrs need proto: tcp"},
        {"rules:\n- {cidrs: [9.0.0.0/8], ports: [1], access: read-only}\n", "rules[0]", 2, "opaque stream"},
        {"rules:\n- {hosts: [a.test], proto: tcp, ports: [1], secrets: [x]}\n", "rules[0]", 2, "opaque stream"},
        {"rules:\n- {hosts: [a.test], proto: tcp, ports: [1], tls: intercept}\n", "rules[0]", 2,
         "tls cannot be chosen"},
        {"rules:\n- {hosts: [a.test], tls: passthrough, secrets: [x]}\n", "rules[0]", 2, "hides requests"},
        {"rules:\n- {hosts: [a.test], tls: passthrough, access: read-only}\n", "rules[0]", 2, "hides requests"},
        {"rules:\n- {hosts: [a.test], access: full, http: [{methods: [GET]}]}\n", "rules[0]", 2, "give one of them"},
        {"rules:\n- {hosts: [a.test], effect: deny, secrets: [x]}\n", "rules[0]", 2, "and nothing else"},
        {"rules:\n- {hosts: [a.test], http: []}\n", "rules[0].http", 2, "expected a list of 1 to 64"},
        {"rules:\n- {hosts: [a.test], http: [{}]}\n", "rules[0].http[0]", 2, "an empty entry"},
        {"rules:\n- {hosts: [a.test], http: [{methods: [get]}]}\n", "rules[0].http[0].methods[0]", 2, "case-sensitive"},
        {"rules:\n- {hosts: [a.test], http: [{methods: ['*']}]}\n", "rules[0].http[0].methods[0]", 2,
         "is not a method"},
        {"rules:\n- {hosts: [a.test], http: [{methods: [TRACE]}]}\n", "rules[0].http[0].methods[0]", 2,
         "never forwarded"},
        {"rules:\n- {hosts: [a.test], http: [{paths: [a]}]}\n", "rules[0].http[0].paths[0]", 2,
         "must begin with \"/\""},
        {"rules:\n- {hosts: [a.test], http: [{paths: [/a/../b]}]}\n", "rules[0].http[0].paths[0]", 2,
         "no canonical path has"},
        {"rules:\n- {hosts: [a.test], http: [{paths: [/a**]}]}\n", "rules[0].http[0].paths[0]", 2, "whole segments"},
        {"rules:\n- {hosts: [a.test], http: [{paths: ['/a?b']}]}\n", "rules[0].http[0].paths[0]", 2,
         "query: {name: value}"},
        {"rules:\n- {hosts: [a.test], http: [{paths: [/a%2fb]}]}\n", "rules[0].http[0].paths[0]", 2,
         "an escaped slash"},
        {"rules:\n- {hosts: [a.test], http: [{paths: ['/a b']}]}\n", "rules[0].http[0].paths[0]", 2, "a space"},
        {"rules:\n- {hosts: [a.test], http: [{query: {}}]}\n", "rules[0].http[0].query", 2, "1 to 64 names"},
        {"rules:\n- {hosts: [a.test], http: [{headers: {'a b': x}}]}\n", "rules[0].http[0].headers", 2,
         "name of a header"},
        {"rules:\n- {hosts: [a.test], http: [{headers: {A: x, a: y}}]}\n", "rules[0].http[0].headers", 2,
         "given twice"},
        {"rules:\n- {hosts: [a.test], http: [{content_types: [json]}]}\n", "rules[0].http[0].content_types[0]", 2,
         "is not a content type"},
        {"rules:\n- {hosts: [a.test], deny: [{max_request_bytes: 1}]}\n", "rules[0].deny[0].max_request_bytes", 2,
         "cannot stand under deny"},
        {"rules:\n- {hosts: [a.test], private: [8.8.8.0/24]}\n", "rules[0].private[0]", 2, "is not inside 10.0.0.0/8"},
        {"rules:\n- {hosts: [a.test], private: [127.0.0.1]}\n", "rules[0].private[0]", 2, "never reached"},
        {"rules:\n- {hosts: [a.test], private: [0.0.0.0/0]}\n", "rules[0].private[0]", 2, "is not inside"},
        {"rules:\n- {hosts: [a.test], limits: {burst: 3}}\n", "rules[0].limits", 2, "give rps too"},
        {"rules:\n- {hosts: [a.test], expires: tomorrow}\n", "rules[0].expires", 2, "is not a time"},
        {"rules:\n- {hosts: [a.test], uses: 0}\n", "rules[0].uses", 2, "from 1 to"},
        {"rules:\n- {hosts: [a.test], secrets: ['a b']}\n", "rules[0].secrets[0]", 2, "name of a secret"},
        {"rules:\n- {id: x, hosts: [a.test]}\n- {id: x, hosts: [b.test]}\n", "rules[1]", 3,
         "the id \"x\" is given twice"},
        {"rules:\n- {id: 'a b', hosts: [a.test]}\n", "rules[0].id", 2, "an id has letters"},
        {"rules:\n- {hosts: [a.test], hots: 1}\n", "rules[0]", 2, "did you mean \"hosts\"?"},
        {"rules:\n- {hosts: [a.test], broad: ~}\n", "rules[0].broad", 2, "is empty"},
        {"allow:\n- a.test\n- 'b.test:99999'\n", "allow[1]", 3, "a port from 1 to 65535"},
        {"allow: {a: b}", "allow", 1, "not a mapping"},
        {"presets: [good, good]", "presets[1]", 1, "named twice"},
        {"presets: [nope]", "presets[0]", 1, "no preset nope"},
        {"presets: [../x]", "presets[0]", 1, "is not the name of a preset"},
        {"\npresets: [bad]", "presets[0]", 2, "preset bad, line 3: rules[0].hosts[0]"},
        {"presets: [more]", "presets[0]", 1, "unknown key \"mode\""},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refuses(cases[i].text, cases[i].path, cases[i].line, cases[i].want);
}

static void rules_that_contradict_each_other_are_refused(void **state)
{
    static const struct {
        const char *text, *path, *want;
    } cases[] = {
        {"{allow: [a.test], deny: [a.test]}", "allow[0]", "rule \"deny.0\" denies all its hosts"},
        {"{allow: [x.a.test], deny: ['*.a.test']}", "allow[0]", "can never allow anything"},
        {"{allow: ['*.b.a.test'], deny: [.a.test]}", "allow[0]", "can never allow anything"},
        {"{allow: ['.a.test'], deny: [.a.test]}", "allow[0]", "can never allow anything"},
        {"rules: [{id: one, hosts: [a.test]}, {hosts: [a.test], access: read-only}]", "rules[1]",
         "the earlier rule \"one\" allows all of it"},
        {"rules: [{hosts: [a.test], tls: passthrough}, {hosts: [a.test, b.test], access: read-only}]", "rules[1]",
         "treats a.test as an opaque stream"},
        {"rules: [{hosts: [a.test], proto: tcp, ports: [443]}, {hosts: [a.test], secrets: [k]}]", "rules[1]",
         "needs to see its requests"},
        {"rules: [{hosts: ['*.a.test'], tls: passthrough}, {effect: deny, hosts: ['*.a.test'], http: [{methods: "
         "[PUT]}]}]",
         "rules[1]", "needs to see its requests"},
        {"{tls: {intercept: never}, rules: [{hosts: [a.test], access: read-only}]}", "rules[0]",
         "tls.intercept is never"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refuses(cases[i].text, cases[i].path, 1, cases[i].want);
}

static void a_refusal_of_requests_beside_a_stream_that_nobody_sees_is_refused(void **state)
{
#define PUT "http: [{methods: [PUT]}]"
    static const struct {
        const char *text, *path, *want;
    } cases[] = {
        /* the stream's pattern is wider */
        {"rules: [{id: t, hosts: ['*.a.test'], proto: tcp, ports: [443]}, {effect: deny, hosts: [x.a.test], " PUT "}]",
         "rules[1]", "rule \"t\" passes streams to x.a.test on unseen"},
        {"rules: [{id: t, hosts: [.a.test], tls: passthrough}, {effect: deny, hosts: [y.a.test], " PUT "}]", "rules[1]",
         "rule \"t\" passes streams to y.a.test on unseen"},
        {"rules: [{hosts: ['*'], broad: true, proto: tcp, ports: [1-1024]}, {id: d, effect: deny, hosts: [a.test], "
         "ports: [443], " PUT "}]",
         "rules[1]", "rule \"d\" refuses some of its requests"},
        {"rules: [{hosts: ['*.a.test'], proto: tcp, ports: [443]}, {effect: deny, hosts: ['*.b.a.test'], " PUT "}]",
         "rules[1]", "passes streams to *.b.a.test on unseen"},
        /* the refusal's is */
        {"rules: [{hosts: [x.a.test], proto: tcp, ports: [443]}, {id: d, effect: deny, hosts: ['*.a.test'], " PUT "}]",
         "rules[0]", "rule \"d\" refuses some of its requests"},
        {"rules: [{effect: deny, hosts: ['*'], " PUT "}, {hosts: ['*.a.test'], tls: passthrough}]", "rules[1]",
         "passes streams to *.a.test on unseen"},
        {"rules: [{effect: deny, hosts: ['*.a.test'], " PUT "}, {hosts: [.b.a.test], tls: passthrough}]", "rules[1]",
         "passes streams to .b.a.test on unseen"},
        /* deny entries of an allow rule hold for every rule of its hosts */
        {"rules: [{id: s, hosts: ['*.a.test'], deny: [{methods: [PUT]}]}, {hosts: [x.a.test], proto: tcp, ports: "
         "[443]}]",
         "rules[1]", "rule \"s\" refuses some of its requests"},
    };
    static const char *const taken[] = {
        "rules: [{hosts: ['*.a.test'], proto: tcp, ports: [5432]}, {effect: deny, hosts: [x.a.test], ports: [443], " PUT
        "}]",
        "rules: [{hosts: ['*.a.test'], tls: passthrough}, {effect: deny, hosts: [a.test], " PUT "}]",
        "rules: [{hosts: ['*.a.test'], tls: passthrough}, {effect: deny, hosts: [b.test, xa.test], " PUT "}]",
        "rules: [{hosts: ['*.a.test']}, {effect: deny, hosts: [x.a.test], " PUT "}]",
        "rules: [{hosts: ['*.a.test'], tls: passthrough}, {effect: deny, hosts: [x.a.test]}]",
        "rules: [{hosts: ['*.a.test'], access: read-only}, {hosts: [x.a.test], tls: passthrough}]",
        "{order: allow-first, rules: [{hosts: ['*.a.test'], tls: passthrough}, {effect: deny, hosts: [x.a.test], " PUT
        "}]}",
    };
#undef PUT
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refuses(cases[i].text, cases[i].path, 1, cases[i].want);
    for (size_t i = 0; i < ARRAY_LEN(taken); i++)
        netpol_unref(takes(taken[i]));
}

static void rules_that_only_seem_to_contradict_are_taken(void **state)
{
    static const char *const texts[] = {
        "{allow: ['.a.test'], deny: ['*.a.test']}",
        "{allow: ['*.a.test'], deny: [x.a.test]}",
        "{order: allow-first, allow: [a.test], deny: [a.test]}",
        "{allow: ['a.test:8443'], deny: ['a.test:443']}",
        "{allow: [a.test, a.test]}",
        "{allow: [one.test], presets: [good]}",
        "{deny: [one.test, two.test], presets: [good]}",
        "rules: [{hosts: [a.test], access: read-only}, {hosts: [a.test], approval: ask}]",
        "rules: [{hosts: ['*.a.test'], access: read-only}, {hosts: [p.a.test], tls: passthrough}]",
        "rules: [{hosts: [a.test], secrets: [k]}, {hosts: [a.test], proto: tcp, ports: [22]}]",
        "rules: [{hosts: [a.test]}, {hosts: [a.test], access: read-only, uses: 1}]",
        "rules: [{hosts: ['*'], broad: true}, {hosts: ['*.com'], broad: true, ports: [1]}]",
        "rules: [{effect: deny, hosts: ['*.com', '*']}]",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        netpol_unref(takes(texts[i]));
}

static void documents_have_their_limits(void **state)
{
    _cleanup_buf_ struct buf b = {0};
    struct netpol_error e = {0};
    (void)state;
    buf_adds(&b, "allow:\n");
    for (int i = 0; i < NETPOL_RULES_MAX; i++)
        buf_addf(&b, "- h%d.test\n", i);
    netpol_unref(takes(buf_str(&b)));
    buf_adds(&b, "deny: [x.test]\n");
    assert_null(parse(buf_str(&b), &e));
    assert_non_null(strstr(e.text, "more than 1024 rules"));
    buf_done(&b);
    buf_adds(&b, "rules:\n- hosts:\n");
    for (int i = 0; i <= NETPOL_HOSTS_MAX; i++)
        buf_addf(&b, "  - h%d.test\n", i);
    assert_null(parse(buf_str(&b), &e));
    assert_non_null(strstr(e.text, "at most 256"));
}

static void presets_bring_rules_behind_the_documents_own(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = takes("presets: [good]\nrules: [{id: mine, hosts: [one.test]}]\n");
    assert_int_equal(netpol_rules(p), 2);
    assert_string_equal(netpol_rule_at(p, 0)->id, "mine");
    assert_string_equal(netpol_rule_at(p, 1)->id, "good/one");
    struct netpol_error e;
    struct netpol *q;
    assert_int_equal(netpol_parse_json("{\"presets\":[\"good\"]}", 20, NULL, NULL, &q, &e), -1);
    assert_non_null(strstr(e.text, "are not installed here"));
}

static void presets_that_come_with_hutch_are_valid(void **state)
{
    static const char *const names[] = {"anthropic", "conda",  "containers",  "debian", "git",   "github",
                                        "gemini",    "go",     "huggingface", "java",   "node",  "openai",
                                        "php",       "python", "ruby",        "rust",   "ubuntu"};
    _cleanup_close_ int dir = open(HUTCH_SOURCE "/share/presets", O_PATH | O_DIRECTORY | O_CLOEXEC);
    (void)state;
    assert_true(dir >= 0);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char text[64];
        struct netpol *p = NULL;
        struct netpol_error e;
        (void)snprintf(text, sizeof text, "{\"presets\":[\"%s\"]}", names[i]);
        if (netpol_parse_json(text, strlen(text), netpol_preset_file, &dir, &p, &e) < 0)
            fail_msg("%s: %s", names[i], e.text);
        assert_true(netpol_rules(p) > 0);
        for (size_t k = 0; k < netpol_rules(p); k++) {
            assert_false(netpol_rule_at(p, k)->deny);
            assert_int_equal(netpol_rule_at(p, k)->nprivate, 0);
            assert_int_equal(netpol_rule_at(p, k)->nsecrets, 0);
        }
        netpol_unref(p);
    }
    struct node *node = NULL;
    struct err err;
    assert_int_equal(netpol_preset_file(&dir, "npm", &node, &err), 0); /* an alias */
    assert_true(netpol_preset_has_word(node, "aliases", "npm"));
    node_free(node);
    assert_int_equal(netpol_preset_file(&dir, "nope", &node, &err), -1);
    assert_int_equal(netpol_preset_file(&dir, "../x", &node, &err), -1);
    assert_int_equal(netpol_preset_file(&dir, "", &node, &err), -1);
}

static void what_is_shown_is_a_document_that_says_the_same(void **state)
{
    static const char *const texts[] = {
        "{}",
        "{allow: [a.test, 9.9.9.9], deny: ['*.b.test'], presets: [good], default: public, order: allow-first}",
        "id: x\nmode: learn\non_miss: ask\nask_hold: 0\ndns: {mode: real, denied: refused, aaaa: true}\n"
        "tls: {intercept: always, min: '1.3', require_sni: false, inspect: [a.test, '*.b.test', .c.test]}\n"
        "limits: {connections: 1, bytes_out: 0, rate_in: 5, new_names_per_min: 7}\ndeny_message: \"say \\\"please\\\" "
        "\xc3\xa9\"\n"
        "upstream_proxy: '[2606::1]:1080'\n",
        "rules:\n  - {id: r, hosts: [a.test, .b.test], ports: [443, 8000-8099], secrets: [k], approval: ask,\n"
        "     http: [{methods: [POST], paths: ['/a*b/**', '/%2A', '/x%20y', /], query: {q: ['a*', '\"']}, \n"
        "       headers: {X-Api: v1}, content_types: ['text/*'], max_request_bytes: 1}, {paths: [/z]}],\n"
        "     deny: [{paths: [/**/settings/**]}], limits: {rps: 1, burst: 2, concurrent: 3, max_response_bytes: 4},\n"
        "     expires: 99, uses: 5, cleartext: true, private: [10.0.0.0/8], tls: intercept}\n"
        "  - {hosts: ['*'], broad: true, access: read-write}\n  - {effect: deny, cidrs: ['::/0', 0.0.0.0/0]}\n"
        "  - {hosts: [c.test], tls: passthrough, cleartext: false}\n  - {hosts: [f.test], access: full}\n",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        _cleanup_buf_ struct buf first = {0}, second = {0}, lines = {0}, third = {0};
        _cleanup_netpol_ struct netpol *p = takes(texts[i]), *q = NULL;
        struct netpol_error e;
        netpol_show(p, &first);
        if (netpol_parse_json(buf_str(&first), first.n, NULL, NULL, &q, &e) < 0)
            fail_msg("%s: %s\n%s", e.path, e.text, buf_str(&first));
        netpol_show(q, &second);
        assert_string_equal(buf_str(&first), buf_str(&second));
        netpol_show_lines(p, "", &lines);
        _cleanup_netpol_ struct netpol *r = takes(buf_str(&lines));
        netpol_show(r, &third);
        assert_string_equal(buf_str(&first), buf_str(&third));
    }
}

static void references_keep_a_policy(void **state)
{
    (void)state;
    struct netpol *p = takes("allow: [a.test]");
    assert_ptr_equal(netpol_ref(p), p);
    netpol_unref(p);
    assert_int_equal(netpol_rules(p), 1);
    netpol_unref(p);
    netpol_unref(NULL);
}

static void every_reason_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(netpol_reason_name(NETPOL_R_HOST), "host_not_allowed");
    assert_string_equal(netpol_reason_name(NETPOL_R_CLEARTEXT), "cleartext_not_allowed");
    for (int i = 0; i < NETPOL_R_COUNT; i++)
        assert_non_null(netpol_reason_name((enum netpol_reason)i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_document_denies_everything_with_the_usual_limits),
        cmocka_unit_test(every_setting_is_read),
        cmocka_unit_test(every_field_of_a_rule_is_read),
        cmocka_unit_test(shorthands_become_rules),
        cmocka_unit_test(one_word_is_a_document),
        cmocka_unit_test(text_that_is_no_json_is_refused_with_its_line),
        cmocka_unit_test(what_is_wrong_is_named_with_path_and_line),
        cmocka_unit_test(rules_that_contradict_each_other_are_refused),
        cmocka_unit_test(a_refusal_of_requests_beside_a_stream_that_nobody_sees_is_refused),
        cmocka_unit_test(rules_that_only_seem_to_contradict_are_taken),
        cmocka_unit_test(documents_have_their_limits),
        cmocka_unit_test(presets_bring_rules_behind_the_documents_own),
        cmocka_unit_test(presets_that_come_with_hutch_are_valid),
        cmocka_unit_test(what_is_shown_is_a_document_that_says_the_same),
        cmocka_unit_test(references_keep_a_policy),
        cmocka_unit_test(every_reason_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
