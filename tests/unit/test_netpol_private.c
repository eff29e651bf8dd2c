/* test_netpol_private.c - --allow-private: which rules get `private`, and that no condition is lost on the way. */
#include "lib/unit.h"

#include "policy/net/netpol.h"

/* The document after `text` was opened in it, compiled. */
static struct netpol *opened(const char *document, const char *text)
{
    _cleanup_node_ struct node *doc = NULL;
    struct netpol *p = NULL;
    struct netpol_error e = {0};
    struct err err = {0};
    _cleanup_netpol_ struct netpol *first = NULL;
    _cleanup_buf_ struct buf shown = {0};
    if (netpol_parse_json(document, strlen(document), NULL, NULL, &first, &e) < 0)
        fail_msg("%s: %s", e.path, e.text);
    netpol_show(first, &shown);
    assert_int_equal(node_read(buf_str(&shown), shown.n, "p", NODE_JSON, &doc, &err), 0);
    if (netpol_open_private(doc, text, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    if (netpol_parse(doc, NULL, NULL, &p, &e) < 0)
        fail_msg("%s: %s: %s", text, e.path, e.text);
    return p;
}

static void refuses(const char *document, const char *text, const char *want)
{
    _cleanup_node_ struct node *doc = NULL;
    struct err err = {0};
    assert_int_equal(node_read(document, strlen(document), "p", NODE_JSON, &doc, &err), 0);
    assert_int_equal(netpol_open_private(doc, text, &err), -1);
    if (!strstr(err.msg, want))
        fail_msg("%s: \"%s\" has no \"%s\"", text, err.msg, want);
}

/* The rule that allows a request, NULL: none does. */
static const struct netpol_rule *rule_for(const struct netpol *p, const char *method, const char *host, uint16_t port)
{
    struct netpol_target target = {0};
    struct netpol_decision d;
    const char *why;
    const struct netpol_flow f = {.host = host, .port = port, .tls = true};
    const struct netpol_request q = {.method = method, .target = &target};
    assert_true(netpol_target("/x", NULL, &target, &why));
    netpol_request(p, &f, &q, 0, &d);
    netpol_target_done(&target);
    return d.verdict == NETPOL_ALLOW ? d.rule : NULL;
}

static bool opens(const struct netpol_rule *r, const char *address)
{
    struct in6_addr a;
    assert_true(netpol_literal(address, strlen(address), &a));
    return r && netpol_cidrs_have(r->private, r->nprivate, &a);
}

static void a_host_that_nothing_allows_gets_a_rule(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = opened("{\"version\":1}", "a.test");
    assert_true(opens(rule_for(p, "POST", "a.test", 443), "198.18.3.4"));
    assert_true(opens(rule_for(p, "GET", "a.test", 443), "203.0.113.80"));
    assert_true(opens(rule_for(p, "GET", "a.test", 443), "fd12::1"));
    assert_null(rule_for(p, "GET", "a.test", 8443));
    assert_null(rule_for(p, "GET", "b.test", 443));
    _cleanup_netpol_ struct netpol *q = opened("{\"version\":1}", "A.test:8443=10.20.0.0/16,10.30.0.5");
    assert_true(opens(rule_for(q, "GET", "a.test", 8443), "10.20.9.9"));
    assert_true(opens(rule_for(q, "GET", "a.test", 8443), "10.30.0.5"));
    assert_false(opens(rule_for(q, "GET", "a.test", 8443), "10.30.0.6"));
    assert_null(rule_for(q, "GET", "a.test", 443));
}

static void conditions_of_a_rule_stay_and_its_other_hosts_stay_closed(void **state)
{
    static const char document[] =
        "{\"rules\":[{\"id\":\"r\",\"hosts\":[\"a.test\",\"b.test\",\"*.w.test\"],\"access\":\"read-only\"}]}";
    (void)state;
    _cleanup_netpol_ struct netpol *p = opened(document, "a.test");
    assert_true(opens(rule_for(p, "GET", "a.test", 443), "10.0.0.1"));
    assert_null(rule_for(p, "POST", "a.test", 443));
    assert_string_equal(rule_for(p, "GET", "a.test", 443)->id, "r/private");
    assert_non_null(rule_for(p, "GET", "b.test", 443));
    assert_false(opens(rule_for(p, "GET", "b.test", 443), "10.0.0.1"));
    assert_null(rule_for(p, "POST", "b.test", 443));

    /* One name below a wildcard: the others below it stay closed. */
    _cleanup_netpol_ struct netpol *q = opened(document, "x.w.test");
    assert_true(opens(rule_for(q, "GET", "x.w.test", 443), "10.0.0.1"));
    assert_null(rule_for(q, "POST", "x.w.test", 443));
    assert_false(opens(rule_for(q, "GET", "y.w.test", 443), "10.0.0.1"));
    assert_null(rule_for(q, "POST", "y.w.test", 443));

    /* A rule that was split before is split again. */
    _cleanup_buf_ struct buf shown = {0};
    netpol_show(p, &shown);
    _cleanup_netpol_ struct netpol *both = opened(buf_str(&shown), "b.test");
    assert_true(opens(rule_for(both, "GET", "b.test", 443), "10.0.0.1"));
    assert_string_equal(rule_for(both, "GET", "b.test", 443)->id, "r/private.2");
    assert_null(rule_for(both, "POST", "b.test", 443));

    /* All hosts of a rule: it stays one rule. */
    _cleanup_netpol_ struct netpol *s = opened(
        "{\"rules\":[{\"id\":\"r\",\"hosts\":[\"a.test\"],\"private\":[\"10.1.0.0/16\"]}]}", "a.test=10.2.0.0/16");
    assert_int_equal(netpol_rules(s), 1);
    assert_true(opens(rule_for(s, "GET", "a.test", 443), "10.1.0.1"));
    assert_true(opens(rule_for(s, "GET", "a.test", 443), "10.2.0.1"));
    assert_false(opens(rule_for(s, "GET", "a.test", 443), "10.3.0.1"));
}

static void a_port_that_the_rule_does_not_have_gets_a_rule_of_its_own(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p = opened(
        "{\"rules\":[{\"hosts\":[\"a.test\"],\"ports\":[443,\"8000-8099\"],\"access\":\"read-only\"}]}", "a.test:8050");
    assert_int_equal(netpol_rules(p), 2);
    assert_null(rule_for(p, "POST", "a.test", 8050));
    assert_true(opens(rule_for(p, "GET", "a.test", 8050), "10.0.0.1"));
    assert_non_null(rule_for(p, "GET", "a.test", 8051));
    assert_false(opens(rule_for(p, "GET", "a.test", 8051), "10.0.0.1"));
    assert_false(opens(rule_for(p, "GET", "a.test", 443), "10.0.0.1"));
    _cleanup_netpol_ struct netpol *same =
        opened("{\"rules\":[{\"hosts\":[\"a.test\"],\"ports\":[8050]}]}", "a.test:8050");
    assert_int_equal(netpol_rules(same), 1);
    assert_true(opens(rule_for(same, "GET", "a.test", 8050), "10.0.0.1"));
    /* A range permits no mail: the port gets a rule that names it. */
    _cleanup_netpol_ struct netpol *mail =
        opened("{\"rules\":[{\"hosts\":[\"a.test\"],\"ports\":[\"20-30\"]}]}", "a.test:25");
    assert_string_equal(rule_for(mail, "GET", "a.test", 25)->id, "flag/private");
    _cleanup_netpol_ struct netpol *q =
        opened("{\"rules\":[{\"hosts\":[\"a.test\"],\"access\":\"read-only\"}]}", "a.test:9000");
    assert_int_equal(netpol_rules(q), 2);
    assert_true(opens(rule_for(q, "POST", "a.test", 9000), "10.0.0.1"));
    assert_false(opens(rule_for(q, "GET", "a.test", 443), "10.0.0.1"));
}

static void a_star_needs_ranges_and_opens_what_is_allowed(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        opened("{\"allow\":[\"a.test\",\"*.b.test\"],\"deny\":[\"c.test\"]}", "*=198.18.0.0/15");
    assert_true(opens(rule_for(p, "GET", "a.test", 443), "198.19.0.1"));
    assert_true(opens(rule_for(p, "GET", "x.b.test", 443), "198.19.0.1"));
    assert_false(opens(rule_for(p, "GET", "a.test", 443), "10.0.0.1"));
    assert_null(rule_for(p, "GET", "d.test", 443));
    _cleanup_netpol_ struct netpol *q = opened("{\"default\":\"public\",\"deny\":[\"c.test\"]}", "*=198.18.0.0/15");
    assert_true(opens(rule_for(q, "GET", "d.test", 443), "198.18.0.9"));
    assert_null(rule_for(q, "GET", "c.test", 443));
    refuses("{\"allow\":[\"a.test\"]}", "*", "needs the range");
    refuses("{\"version\":1}", "*=198.18.0.0/15", "none is");
}

static void what_is_denied_stays_denied(void **state)
{
    (void)state;
    static const char exact[] = "{\"rules\":[{\"id\":\"no\",\"effect\":\"deny\",\"hosts\":[\"a.test\"]}]}";
    static const char below[] = "{\"rules\":[{\"id\":\"no\",\"effect\":\"deny\",\"hosts\":[\"*.test\"]}]}";
    static const char port[] = "{\"order\":\"allow-first\",\"rules\":[{\"id\":\"no\",\"effect\":\"deny\","
                               "\"hosts\":[\"a.test\"],\"ports\":[443]}]}";
    static const char all[] = "{\"order\":\"allow-first\",\"default\":\"public\",\"rules\":[{\"id\":\"no\","
                              "\"effect\":\"deny\",\"hosts\":[\"a.test\"]}]}";
    refuses(exact, "a.test", "\"a.test\" is denied by the rule no");
    refuses(exact, "A.test:9000", "is denied by the rule no");
    refuses(below, "a.test", "is denied by the rule no");
    refuses(port, "a.test", "is denied by the rule no");
    refuses(port, "*.test=10.0.0.0/8", "is denied");
    refuses(all, "*=10.0.0.0/8", "is denied");
    /* Denied in part, and denying goes first: the rest opens. */
    _cleanup_netpol_ struct netpol *p =
        opened("{\"rules\":[{\"effect\":\"deny\",\"hosts\":[\"a.test\"],\"ports\":[80]}]}", "a.test");
    assert_true(opens(rule_for(p, "GET", "a.test", 443), "10.0.0.1"));
    assert_null(rule_for(p, "GET", "a.test", 80));
    _cleanup_netpol_ struct netpol *q =
        opened("{\"rules\":[{\"effect\":\"deny\",\"hosts\":[\"a.b.test\"]}]}", "*.b.test=10.0.0.0/8");
    assert_true(opens(rule_for(q, "GET", "b.b.test", 443), "10.0.0.1"));
    assert_null(rule_for(q, "GET", "a.b.test", 443));
}

/* The rule keeps its addresses, and no empty list of hosts, which is none. */
static void a_rule_with_addresses_can_lose_all_its_hosts(void **state)
{
    (void)state;
    _cleanup_netpol_ struct netpol *p =
        opened("{\"rules\":[{\"id\":\"r\",\"hosts\":[\"a.test\"],\"cidrs\":[\"203.0.113.0/24\"],\"ports\":[443]}]}",
               "a.test=10.0.0.0/8");
    assert_int_equal(netpol_rules(p), 2);
    assert_true(opens(rule_for(p, "GET", "a.test", 443), "10.0.0.1"));
}

static void wrong_words_are_named(void **state)
{
    (void)state;
    refuses("{}", "a.test=", "comes a range");
    refuses("{}", "a.test=x", "\"x\" is not an address");
    refuses("{}", "a.test:0", "a port from 1 to 65535");
    refuses("{}", "a.test:70000", "a port from 1 to 65535");
    /* What may never be opened, the reader of rules refuses. */
    static const char *const never[] = {"127.0.0.0/8", "169.254.0.0/16", "169.254.169.254", "0.0.0.0/0",
                                        "::1",         "fe80::/10"};
    for (size_t i = 0; i < ARRAY_LEN(never); i++) {
        _cleanup_node_ struct node *doc = NULL;
        struct err err = {0};
        struct netpol_error e;
        struct netpol *p = NULL;
        _cleanup_buf_ struct buf text = {0};
        assert_int_equal(node_read("{}", 2, "p", NODE_JSON, &doc, &err), 0);
        buf_addf(&text, "a.test=%s", never[i]);
        assert_int_equal(netpol_open_private(doc, buf_str(&text), &err), 0);
        assert_int_equal(netpol_parse(doc, NULL, NULL, &p, &e), -1);
        assert_non_null(strstr(e.text, "is not inside"));
    }
}

/* Both ways of saying what may be opened agree, at the ends of each range. */
static void ranges_and_kinds_agree(void **state)
{
    (void)state;
    for (const char *const *r = netpol_private_ranges; *r; r++) {
        struct netpol_cidr c;
        assert_true(netpol_cidr_parse(*r, &c));
        assert_int_equal(netpol_address_kind(&c.addr), NETPOL_PRIVATE);
        struct in6_addr last = c.addr;
        for (unsigned bit = c.bits; bit < 128; bit++)
            last.s6_addr[bit / 8] |= (uint8_t)(0x80U >> (bit % 8));
        assert_int_equal(netpol_address_kind(&last), NETPOL_PRIVATE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_that_nothing_allows_gets_a_rule),
        cmocka_unit_test(conditions_of_a_rule_stay_and_its_other_hosts_stay_closed),
        cmocka_unit_test(a_port_that_the_rule_does_not_have_gets_a_rule_of_its_own),
        cmocka_unit_test(a_star_needs_ranges_and_opens_what_is_allowed),
        cmocka_unit_test(what_is_denied_stays_denied),
        cmocka_unit_test(a_rule_with_addresses_can_lose_all_its_hosts),
        cmocka_unit_test(wrong_words_are_named),
        cmocka_unit_test(ranges_and_kinds_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
