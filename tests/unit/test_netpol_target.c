/* test_netpol_target.c - names, addresses, authorities and request targets in the form that is judged and forwarded. */
#include "lib/unit.h"

#include <arpa/inet.h>

#include "policy/net/netpol.h"

static void host_names_have_one_form(void **state)
{
    static const struct {
        const char *text, *want; /* NULL: refused */
    } cases[] = {
        {"example.com", "example.com"},
        {"EXAMPLE.Com", "example.com"},
        {"example.com.", "example.com"},
        {"xn--bcher-kva.example", "xn--bcher-kva.example"},
        {"_dmarc.example.com", "_dmarc.example.com"},
        {"localhost", "localhost"},
        {"1.example", "1.example"},
        {"a.1b", "a.1b"},
        {"", NULL},
        {".", NULL},
        {"example.com..", NULL},
        {".example.com", NULL},
        {"a..b", NULL},
        {"-a.example", NULL},
        {"a-.example", NULL},
        {"b\xc3\xbc"
         "cher.example",
         NULL},
        {"a b.example", NULL},
        {"a%2eb.example", NULL},
        {"user@example.com", NULL},
        {"example.com:443", NULL},
        {"example.com/x", NULL},
        {"*.example.com", NULL},
        {"1.2.3.4", NULL},
        {"1.2.3", NULL},
        {"2130706433", NULL},
        {"0x7f000001", NULL},
        {"0x7f.1", NULL},
        {"127.0.0.0x1", NULL},
        {"017700000001", NULL},
        {"0x", NULL},
        {"[::1]", NULL},
        {"::1", NULL},
        {"fe80::1%eth0", NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char got[NETPOL_NAME_MAX] = "";
        bool ok = netpol_name(cases[i].text, strlen(cases[i].text), got);
        if (ok != (cases[i].want != NULL) || (ok && strcmp(got, cases[i].want) != 0))
            fail_msg("\"%s\" gives \"%s\"", cases[i].text, ok ? got : "(refused)");
    }
    char got[NETPOL_NAME_MAX];
    assert_false(netpol_name("a\0b.example", 11, got));
}

static void names_and_labels_have_their_length(void **state)
{
    char label[65], name[300], got[NETPOL_NAME_MAX];
    (void)state;
    memset(label, 'a', 64);
    label[64] = '\0';
    assert_false(netpol_name(label, 64, got));
    assert_true(netpol_name(label, 63, got));
    for (size_t i = 0; i < sizeof name; i++)
        name[i] = i % 2 ? '.' : 'a';
    assert_true(netpol_name(name, 253, got));
    assert_true(netpol_name(name, 254, got)); /* with a dot at the end */
    assert_false(netpol_name(name, 255, got));
}

static void addresses_have_few_spellings(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"1.2.3.4", "::ffff:1.2.3.4"},
        {"::1", "::1"},
        {"[2001:DB8::1]", "2001:db8::1"},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.1"},
        {"1.2.3", NULL},
        {"01.2.3.4", NULL},
        {"1.2.3.4.", NULL},
        {"1.2.3.256", NULL},
        {"0x1.2.3.4", NULL},
        {"[1.2.3.4]", NULL},
        {"fe80::1%1", NULL},
        {"[fe80::1%25eth0]", NULL},
        {"[]", NULL},
        {"[::1", NULL},
        {"1.2.3.4 ", NULL},
        {"", NULL},
        {"1:2:3:4:5:6:7:8:9", NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct in6_addr a;
        char got[INET6_ADDRSTRLEN] = "";
        bool ok = netpol_literal(cases[i].text, strlen(cases[i].text), &a);
        if (ok)
            (void)inet_ntop(AF_INET6, &a, got, sizeof got);
        if (ok != (cases[i].want != NULL) || (ok && strcmp(got, cases[i].want) != 0))
            fail_msg("\"%s\" gives \"%s\"", cases[i].text, ok ? got : "(refused)");
    }
}

static void authorities_are_split(void **state)
{
    static const struct {
        const char *text, *host;
        bool literal;
        uint16_t port;
    } cases[] = {
        {"Example.COM", "example.com", false, 9},
        {"example.com.:8080", "example.com", false, 8080},
        {"1.2.3.4:80", "1.2.3.4", true, 80},
        {"[2001:db8::0:1]:443", "2001:db8::1", true, 443},
        {"[::ffff:1.2.3.4]", "1.2.3.4", true, 9},
        {"::1", NULL, false, 0},
        {"example.com:", NULL, false, 0},
        {"example.com:0", NULL, false, 0},
        {"example.com:65536", NULL, false, 0},
        {"example.com:080", NULL, false, 0},
        {"example.com:80:81", NULL, false, 0},
        {"u@example.com", NULL, false, 0},
        {"[::1]x", NULL, false, 0},
        {"[::1", NULL, false, 0},
        {"", NULL, false, 0},
        {":80", NULL, false, 0},
        {"example.com:+80", NULL, false, 0},
        {"example.com:80 ", NULL, false, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char host[NETPOL_NAME_MAX] = "";
        struct in6_addr a;
        bool literal = false;
        uint16_t port = 9;
        bool ok = netpol_authority(cases[i].text, host, &a, &literal, &port);
        if (ok != (cases[i].host != NULL))
            fail_msg("\"%s\" is %s", cases[i].text, ok ? "taken" : "refused");
        if (ok && (strcmp(host, cases[i].host) != 0 || literal != cases[i].literal || port != cases[i].port))
            fail_msg("\"%s\" gives %s %d %u", cases[i].text, host, literal, port);
    }
}

/* --- targets ------------------------------------------------------------------------------------------------------ */

static void paths_have_one_form(void **state)
{
    static const struct {
        const char *path, *want; /* NULL: refused */
    } cases[] = {
        {"/", "/"},
        {"/a/b", "/a/b"},
        {"/a/", "/a/"},
        {"//a///b//", "/a/b/"},
        {"/a/./b", "/a/b"},
        {"/a/.", "/a/"},
        {"/a/b/..", "/a/"},
        {"/a/b/../c", "/a/c"},
        {"/a/%2e%2e/c", "/c"},
        {"/a/.%2E/c", "/c"},
        {"/%61%7E%2d", "/a~-"},
        {"/%3a%2c", "/%3A%2C"},
        {"/@scope%2fpkg", "/@scope%2Fpkg"},
        {"/a;v=1/b", "/a;v=1/b"},
        {"/%c3%a9", "/%C3%A9"},
        {"/a\"<>^`{|}", "/a%22%3C%3E%5E%60%7B%7C%7D"},
        {"/100%25", "/100%25"},
        {"/a...", "/a..."},
        {"/..a", "/..a"},
        {"*", "*"},
        {"", NULL},
        {"a", NULL},
        {"**", NULL},
        {"/..", NULL},
        {"/a/../..", NULL},
        {"/%2e%2e/x", NULL},
        {"/a\\b", NULL},
        {"/a%5cb", NULL},
        {"/a%5Cb", NULL},
        {"/a%00", NULL},
        {"/a%0d%0a", NULL},
        {"/a%7f", NULL},
        {"/a b", NULL},
        {"/a\tb", NULL},
        {"/a\x7f", NULL},
        {"/\xc3\xa9", NULL},
        {"/a#b", NULL},
        {"/a?b", NULL},
        {"/%", NULL},
        {"/%2", NULL},
        {"/%zz", NULL},
        {"/%252e%252e/x", NULL},
        {"/%252F", NULL},
        {"/%255c", NULL},
        {"/%2500", NULL},
        {"/%25252e", NULL},
        {"/%252%65", NULL},
        {"/%25%32%65", NULL},
        {"/a/..%2f..%2fb", NULL}, /* as slashes this leaves the root */
        {"/..;/a", NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct netpol_target t;
        const char *why;
        bool ok = netpol_target(cases[i].path, NULL, &t, &why);
        if (ok != (cases[i].want != NULL) || (ok && strcmp(t.text, cases[i].want) != 0))
            fail_msg("\"%s\" gives \"%s\"", cases[i].path, ok ? t.text : why);
        assert_true(ok ? !why : why && *why);
        if (ok)
            assert_int_equal(t.path_len, strlen(t.text));
        netpol_target_done(&t);
    }
}

static void queries_are_kept_and_cleaned(void **state)
{
    static const struct {
        const char *query, *want;
    } cases[] = {
        {"", "/?"},
        {"a=1&b=%61%2f", "/?a=1&b=a%2F"},
        {"q=a\\b|c", "/?q=a%5Cb%7Cc"},
        {"u=https%253A%252F%252Fx", "/?u=https%253A%252F%252Fx"},
        {"a=b?c/d", "/?a=b?c/d"},
        {"a=%", NULL},
        {"a=%00", NULL},
        {"a= ", NULL},
        {"a=\xff", NULL},
        {"a=1#b", NULL},
        {"a=1\n", NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct netpol_target t;
        const char *why;
        bool ok = netpol_target("/", cases[i].query, &t, &why);
        if (ok != (cases[i].want != NULL) || (ok && strcmp(t.text, cases[i].want) != 0))
            fail_msg("\"%s\" gives \"%s\"", cases[i].query, ok ? t.text : why);
        if (ok)
            assert_int_equal(t.path_len, 1);
        netpol_target_done(&t);
    }
}

static void a_path_is_read_in_every_way_servers_do(void **state)
{
    static const struct {
        const char *path, *judged, *decoded, *bare, *both;
    } cases[] = {
        {"/a/b", NULL, NULL, NULL, NULL},
        {"/%40s%2fp", "/@s%2Fp", "/@s/p", NULL, NULL},
        {"/a/x%2f..%2fb", NULL, "/a/b", NULL, NULL},
        {"/a;x=1/b", NULL, NULL, "/a/b", NULL},
        {"/a/..;x/b", NULL, NULL, "/b", NULL},
        {"/a/b%2fc;x/..;/d", NULL, "/a/b/c;x/..;/d", "/a/d", "/a/b/d"},
        {"/a%2c%21", "/a,!", NULL, NULL, NULL},
        {"/a%3bx", NULL, NULL, NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct netpol_target t;
        const char *why;
        assert_true(netpol_target(cases[i].path, NULL, &t, &why));
        const char *got[] = {t.judged, t.decoded, t.bare, t.both},
                   *want[] = {cases[i].judged, cases[i].decoded, cases[i].bare, cases[i].both};
        for (size_t k = 0; k < ARRAY_LEN(got); k++)
            if ((got[k] == NULL) != (want[k] == NULL) || (got[k] && strcmp(got[k], want[k]) != 0))
                fail_msg("%s: form %zu is %s, not %s", cases[i].path, k, got[k] ? got[k] : "NULL",
                         want[k] ? want[k] : "NULL");
        netpol_target_done(&t);
    }
}

static void a_canonical_target_stays_as_it_is(void **state)
{
    static const char *const paths[] = {"/a/%2E./b//c;x%2f%7e", "/%40a%2Fb/../c%20d", "/{x}/|", "//"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct netpol_target once, twice;
        const char *why;
        assert_true(netpol_target(paths[i], NULL, &once, &why));
        assert_true(netpol_target(once.text, NULL, &twice, &why));
        assert_string_equal(once.text, twice.text);
        netpol_target_done(&once);
        netpol_target_done(&twice);
    }
}

static void a_target_has_a_length(void **state)
{
    char path[NETPOL_TARGET_MAX + 2];
    struct netpol_target t;
    const char *why;
    (void)state;
    memset(path, 'a', sizeof path);
    path[0] = '/';
    path[NETPOL_TARGET_MAX] = '\0';
    assert_true(netpol_target(path, NULL, &t, &why));
    netpol_target_done(&t);
    assert_false(netpol_target(path, "q", &t, &why));
    assert_non_null(strstr(why, "16 KiB"));
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

static void addresses_are_public_private_or_never_reached(void **state)
{
    static const struct {
        const char *address;
        enum netpol_address kind;
    } cases[] = {
        {"1.1.1.1", NETPOL_PUBLIC},
        {"8.8.8.8", NETPOL_PUBLIC},
        {"9.255.255.255", NETPOL_PUBLIC},
        {"11.0.0.0", NETPOL_PUBLIC},
        {"172.15.255.255", NETPOL_PUBLIC},
        {"172.32.0.0", NETPOL_PUBLIC},
        {"192.167.255.255", NETPOL_PUBLIC},
        {"192.169.0.0", NETPOL_PUBLIC},
        {"100.63.255.255", NETPOL_PUBLIC},
        {"100.128.0.0", NETPOL_PUBLIC},
        {"198.17.255.255", NETPOL_PUBLIC},
        {"198.20.0.0", NETPOL_PUBLIC},
        {"223.255.255.255", NETPOL_PUBLIC},
        {"192.0.1.1", NETPOL_PUBLIC},
        {"10.0.0.0", NETPOL_PRIVATE},
        {"10.255.255.255", NETPOL_PRIVATE},
        {"172.16.0.1", NETPOL_PRIVATE},
        {"172.31.255.255", NETPOL_PRIVATE},
        {"192.168.1.1", NETPOL_PRIVATE},
        {"100.64.0.1", NETPOL_PRIVATE},
        {"0.0.0.0", NETPOL_NEVER},
        {"0.1.2.3", NETPOL_NEVER},
        {"127.0.0.1", NETPOL_NEVER},
        {"127.255.255.255", NETPOL_NEVER},
        {"169.254.169.254", NETPOL_NEVER},
        {"192.0.0.192", NETPOL_NEVER},
        {"192.0.2.1", NETPOL_PRIVATE},
        {"192.88.99.1", NETPOL_NEVER},
        {"198.18.0.1", NETPOL_PRIVATE},
        {"198.19.255.255", NETPOL_PRIVATE},
        {"198.51.100.1", NETPOL_PRIVATE},
        {"203.0.113.1", NETPOL_PRIVATE},
        {"100.100.100.200", NETPOL_NEVER},
        {"168.63.129.16", NETPOL_NEVER},
        {"224.0.0.1", NETPOL_NEVER},
        {"240.0.0.1", NETPOL_NEVER},
        {"255.255.255.255", NETPOL_NEVER},
        {"2606:4700::1111", NETPOL_PUBLIC},
        {"2a00:1450::1", NETPOL_PUBLIC},
        {"fc00::1", NETPOL_PRIVATE},
        {"fd12:3456::1", NETPOL_PRIVATE},
        {"fd00:ec2::254", NETPOL_NEVER},
        {"fd20:ce::254", NETPOL_NEVER},
        {"::", NETPOL_NEVER},
        {"::1", NETPOL_NEVER},
        {"::127.0.0.1", NETPOL_NEVER},
        {"::8.8.8.8", NETPOL_NEVER},
        {"100::1", NETPOL_NEVER},
        {"2001:db8::1", NETPOL_PRIVATE},
        {"2001::1", NETPOL_NEVER}, /* Teredo */
        {"2001:1ff:ffff::", NETPOL_NEVER},
        {"2001:200::1", NETPOL_PUBLIC},
        {"3fff::1", NETPOL_PRIVATE},
        {"3fff:1000::1", NETPOL_PUBLIC},
        {"5f00::1", NETPOL_NEVER},
        {"fe80::1", NETPOL_NEVER},
        {"fec0::1", NETPOL_NEVER},
        {"ff02::1", NETPOL_NEVER},
        {"::ffff:127.0.0.1", NETPOL_NEVER},
        {"::ffff:10.1.2.3", NETPOL_PRIVATE},
        {"::ffff:8.8.8.8", NETPOL_PUBLIC},
        {"64:ff9b::169.254.169.254", NETPOL_NEVER},
        {"64:ff9b::10.0.0.1", NETPOL_PRIVATE},
        {"64:ff9b::8.8.8.8", NETPOL_PUBLIC},
        {"64:ff9b:1::8.8.8.8", NETPOL_NEVER},
        {"2002:7f00:1::", NETPOL_NEVER},
        {"2002:a00:1::", NETPOL_PRIVATE},
        {"2002:808:808::", NETPOL_PUBLIC},
        {"4000::1", NETPOL_NEVER},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct in6_addr a;
        assert_true(netpol_literal(cases[i].address, strlen(cases[i].address), &a));
        if (netpol_address_kind(&a) != cases[i].kind)
            fail_msg("%s is of kind %d", cases[i].address, netpol_address_kind(&a));
    }
}

static bool block_has(const char *block, const char *address)
{
    struct netpol_cidr c;
    struct in6_addr a;
    if (!netpol_cidr_parse(block, &c))
        fail_msg("%s is refused", block);
    assert_true(netpol_literal(address, strlen(address), &a));
    return netpol_cidr_has(&c, &a);
}

static void ranges_hold_what_they_say(void **state)
{
    (void)state;
    assert_true(block_has("10.0.0.0/8", "10.255.0.1"));
    assert_false(block_has("10.0.0.0/8", "11.0.0.1"));
    assert_true(block_has("10.9.9.9/8", "10.0.0.1")); /* bits behind the mask do not count */
    assert_true(block_has("192.0.2.1", "192.0.2.1"));
    assert_false(block_has("192.0.2.1", "192.0.2.2"));
    assert_true(block_has("192.0.2.0/31", "192.0.2.1"));
    assert_true(block_has("0.0.0.0/0", "9.9.9.9"));
    assert_false(block_has("0.0.0.0/0", "2606::1"));
    assert_true(block_has("::/0", "2606::1"));
    assert_false(block_has("::/0", "9.9.9.9"));
    assert_true(block_has("2001:db8::/33", "2001:db8:7fff::"));
    assert_false(block_has("2001:db8::/33", "2001:db8:8000::"));
}

static void odd_ranges_are_refused(void **state)
{
    static const char *const texts[] = {
        "",       "/8",          "10.0.0.0/",   "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/-1", "10.0.0/8",
        "::/129", "10.0.0.0/8/", "example.com", "[::1]/128",   "10.0.0.0/+8", "010.0.0.0/8"};
    struct netpol_cidr c;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (netpol_cidr_parse(texts[i], &c))
            fail_msg("\"%s\" is taken", texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_names_have_one_form),
        cmocka_unit_test(names_and_labels_have_their_length),
        cmocka_unit_test(addresses_have_few_spellings),
        cmocka_unit_test(authorities_are_split),
        cmocka_unit_test(paths_have_one_form),
        cmocka_unit_test(queries_are_kept_and_cleaned),
        cmocka_unit_test(a_path_is_read_in_every_way_servers_do),
        cmocka_unit_test(a_canonical_target_stays_as_it_is),
        cmocka_unit_test(a_target_has_a_length),
        cmocka_unit_test(addresses_are_public_private_or_never_reached),
        cmocka_unit_test(ranges_hold_what_they_say),
        cmocka_unit_test(odd_ranges_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
