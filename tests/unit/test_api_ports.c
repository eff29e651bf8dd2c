/* Who may see a port, signed links, and the names in heads, in a world without a network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api-world.h"
#include "api/gateway/gateway-int.h"
#include "api/gateway/gateway.h"
#include "api/port-link.h"
#include "base/mem.h"

static const char *const html = "text/html,*/*;q=0.8";

/* Takes the answer. text NULL: any. */
static void expect(struct asked *a, unsigned status, const char *text)
{
    asked_end(a);
    if (a->status != status || (text && !strstr(buf_str(&a->body), text)))
        fail_msg("%u %s", a->status, buf_str(&a->body));
    asked_free(a);
}

/* A visitor: every port is closed in this world, so who may enter gets a 502. */
static struct asked *visit(const char *host, const char *target, const char *name, const char *value)
{
    const char *fields[] = {"host", host, name, value, NULL};
    return ask("GET", target, fields, NULL, 0);
}

static struct sandbox *private_sandbox(const char *id)
{
    struct sandbox *b = world_sandbox(id, 0, 1000);
    b->desc.allow_public_traffic = false;
    (void)snprintf(b->traffic_token, sizeof b->traffic_token, "%s", "traffic");
    return b;
}

static void link_of(const struct sandbox *b, uint32_t port, uint64_t expires, struct buf *out)
{
    port_link_make(&world.api, b, port, expires, out);
}

static void test_a_link_is_good_for_its_sandbox_port_time_and_generation(void **state)
{
    (void)state;
    struct sandbox *b = private_sandbox("i0"), *other = private_sandbox("i1");
    _cleanup_buf_ struct buf t = {0};
    uint64_t until = 0;
    link_of(b, 3000, 1000, &t);
    const char *token = buf_str(&t);
    assert_true(t.n <= PORT_LINK_MAX);
    assert_int_equal(port_link_check(&world.api, b, 3000, token, 999, &until), PORT_LINK_GOOD);
    assert_int_equal(until, 1000);
    assert_int_equal(port_link_check(&world.api, b, 3000, token, 1000, &until), PORT_LINK_EXPIRED);
    assert_int_equal(port_link_check(&world.api, b, 3001, token, 999, &until), PORT_LINK_BAD);
    assert_int_equal(port_link_check(&world.api, other, 3000, token, 999, &until), PORT_LINK_BAD);
    b->desc.ports.links++;
    assert_int_equal(port_link_check(&world.api, b, 3000, token, 999, &until), PORT_LINK_BAD);
    b->desc.ports.links--;
    world.api.link_key[0] ^= 1;
    assert_int_equal(port_link_check(&world.api, b, 3000, token, 999, &until), PORT_LINK_BAD);
}

static void test_no_byte_of_a_link_may_be_changed(void **state)
{
    (void)state;
    const struct sandbox *b = private_sandbox("i0");
    _cleanup_buf_ struct buf t = {0};
    uint64_t until;
    link_of(b, 3000, 1000, &t);
    for (size_t i = 0; i < t.n; i++) {
        char kept = t.p[i];
        t.p[i] = kept == '7' ? '8' : '7';
        assert_int_equal(port_link_check(&world.api, b, 3000, t.p, 1, &until), PORT_LINK_BAD);
        t.p[i] = 0;
        assert_int_equal(port_link_check(&world.api, b, 3000, t.p, 1, &until), PORT_LINK_BAD);
        t.p[i] = kept;
    }
    static const char *const bad[] = {"", ".", "1000.", "-1.AAAA", "18446744073709551616.AAAA"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(port_link_check(&world.api, b, 3000, bad[i], 1, &until), PORT_LINK_BAD);
}

static void test_a_private_port_wants_token_link_or_cookie(void **state)
{
    (void)state;
    struct sandbox *b = private_sandbox("i0");
    const char *host = "3000-i0.hutch.test:7443";
    _cleanup_buf_ struct buf t = {0}, target = {0}, cookie = {0};
    expect(visit(host, "/", NULL, NULL), 403, "This port is private");
    expect(visit(host, "/", "hutch-traffic-token", "traffic"), 502, NULL);
    expect(visit(host, "/", "e2b-traffic-access-token", "traffic"), 502, NULL);
    expect(visit(host, "/", "hutch-traffic-token", "Traffic"), 403, "not the one of this sandbox");
    link_of(b, 3000, 99999999999, &t);
    buf_addf(&target, "/a?x=1&hutch-link=%s&y=2", buf_str(&t));
    struct asked *a = visit(host, buf_str(&target), NULL, NULL);
    assert_string_equal(asked_field(a, "location"), "http://3000-i0.hutch.test:7443/a?x=1&y=2");
    assert_non_null(strstr(asked_field(a, "set-cookie"), "HttpOnly; SameSite=Lax"));
    expect(a, 303, NULL);
    buf_addf(&cookie, "a=b; hutch-port=wrong; hutch-port=%s", buf_str(&t));
    expect(visit(host, "/", "cookie", buf_str(&cookie)), 502, NULL);
    expect(visit("3001-i0.hutch.test", "/", "cookie", buf_str(&cookie)), 403, NULL);
    b->desc.ports.links++;
    expect(visit(host, "/", "cookie", buf_str(&cookie)), 403, NULL);
    expect(visit(host, buf_str(&target), NULL, NULL), 403, "not valid for this port");
}

static void test_a_cookie_is_not_for_pages_of_others(void **state)
{
    (void)state;
    const struct sandbox *b = private_sandbox("i0");
    _cleanup_buf_ struct buf cookie = {0};
    buf_adds(&cookie, GATEWAY_COOKIE_SECURE "=");
    link_of(b, 3000, 99999999999, &cookie);
    static const struct {
        const char *origin;
        unsigned status;
    } v[] = {{"https://3000-i0.hutch.test:7443", 502}, {"https://8000-i0.hutch.test", 502},
             {"https://3000-i1.hutch.test", 403},      {"null", 403},
             {"https://3000-i0.evil.test", 403},       {"https://hutch.test", 403}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        const char *fields[] = {"host", "3000-i0.hutch.test", "cookie", buf_str(&cookie), "origin", v[i].origin, NULL};
        expect(ask("GET", "/", fields, NULL, 0), v[i].status, NULL);
    }
}

static void test_a_cookie_is_not_for_what_pages_of_others_embed(void **state)
{
    (void)state;
    const struct sandbox *b = private_sandbox("i0");
    _cleanup_buf_ struct buf cookie = {0};
    buf_adds(&cookie, GATEWAY_COOKIE_SECURE "=");
    link_of(b, 3000, 99999999999, &cookie);
    static const struct {
        const char *site, *dest, *referer;
        unsigned status;
    } v[] = {
        {"same-origin", "script", NULL, 502},
        {"none", "document", NULL, 502},
        {"cross-site", "document", NULL, 502}, /* a link that is followed */
        {"cross-site", "script", NULL, 403},   /* no Origin, no Referer: who knows */
        {"same-site", "image", "https://evil.test/", 403},
        {"same-site", "image", "https://3000-i1.hutch.test/x", 403},
        {"same-site", "image", "https://8000-i0.hutch.test/x", 502},
        {"same-site", "iframe", "https://evil.test/https://8000-i0.hutch.test/", 403},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        const char *fields[] = {"host",
                                "3000-i0.hutch.test",
                                "cookie",
                                buf_str(&cookie),
                                "sec-fetch-site",
                                v[i].site,
                                "sec-fetch-dest",
                                v[i].dest,
                                v[i].referer ? "referer" : NULL,
                                v[i].referer,
                                NULL};
        struct asked *a = ask("GET", "/", fields, NULL, 0);
        if (a->status != v[i].status)
            fail_msg("%s %s %s: %u", v[i].site, v[i].dest, v[i].referer ? v[i].referer : "-", a->status);
        asked_free(a);
    }
}

static void test_what_is_ours_is_taken_out(void **state)
{
    (void)state;
    const struct sandbox *b = private_sandbox("i0");
    static const struct {
        const char *query, *target, *cookie, *left;
        bool ours;
    } v[] = {
        {"a=1", NULL, "x=1; y=2", NULL, false},
        {"hutch-link=q", "/p", "hutch-port=1", NULL, true},
        {"a&hutch-link=q&b&hutch-link=r", "/p?a&b", "a=1;hutch-port=1 ; b=2;; __Host-hutch-port=3", "a=1; b=2", true},
        {"xhutch-link=q", NULL, "xhutch-port=1; hutch-ports=2", NULL, false},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct http_field f = {"cookie", v[i].cookie};
        struct http_req r = {.method = "GET", .path = "/p", .query = v[i].query, .authority = "x", .fields = {&f, 1}};
        struct gateway_entry e;
        gateway_enter(&world.api, &r, b, 3000, &e);
        assert_false(e.allowed);
        assert_true(v[i].target ? e.target && strcmp(e.target, v[i].target) == 0 : !e.target);
        assert_true(v[i].left ? e.cookie && strcmp(e.cookie, v[i].left) == 0 : !e.cookie);
        assert_int_equal(e.cookies_ours, v[i].ours);
        gateway_entry_done(&e);
    }
}

static void test_names_lead_in_and_back(void **state)
{
    (void)state;
    struct sandbox b = {.desc.ports = {.v = {{3000, SANDBOX_PORT_LOCALHOST}}, .n = 1}};
    struct http_req r = {.authority = "3000-i0.hutch.test:7443", .tls = true};
    struct gateway_names n;
    _cleanup_buf_ struct buf out = {0}, scratch = {0};
    gateway_names(&r, &b, 3000, &n);
    assert_string_equal(n.host, "localhost:3000");
    assert_true(gateway_own_origin(&n, "https://3000-I0.hutch.test:7443/x", &out));
    assert_string_equal(buf_str(&out), "http://localhost:3000/x");
    assert_false(gateway_own_origin(&n, "http://3000-i0.hutch.test:7443", &out));
    assert_false(gateway_own_origin(&n, "https://3000-i0.hutch.test:74430", &out));
    static const char *const v[][2] = {
        {"http://LOCALHOST:3000/x", "https://3000-i0.hutch.test:7443/x"},
        {"https://127.0.0.1:3000?q", "https://3000-i0.hutch.test:7443?q"},
        {"http://localhost/x", "http://localhost/x"},
        {"http://localhost:3000@evil.test/", "http://localhost:3000@evil.test/"},
        {"//localhost:3000/", "//localhost:3000/"},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        assert_string_equal(gateway_answer_field(&n, "location", v[i][0], &scratch), v[i][1]);
    assert_string_equal(gateway_answer_field(&n, "set-cookie", "a=domain; Domain = x ;Path=/;DOMAIN", &scratch),
                        "a=domain;Path=/");
    assert_null(gateway_answer_field(&n, "set-cookie", "hutch-port=1; Path=/", &scratch));
    gateway_names(&r, &b, 8000, &n);
    assert_string_equal(n.host, "");
    assert_false(gateway_own_origin(&n, "https://3000-i0.hutch.test:7443", &out));
    r.authority = "3000-i0.hutch.test:\"x";
    gateway_names(&r, &b, 3000, &n);
    assert_string_equal(n.origin, "");
}

static void test_ports_are_set_and_shown(void **state)
{
    (void)state;
    const struct sandbox *b = world_sandbox("i0", 0, 1000);
    const char *path = "/v1/sandboxes/i0/ports";
    expect(ask_api(KEY_A, "PUT", path,
                   "{\"publicTraffic\":false,\"publicPorts\":[80,8000],\"portHosts\":{\"80\":\"localhost\"}}"),
           200, "\"trafficAccessToken\":\"");
    assert_int_equal(b->desc.ports.n, 2);
    expect(
        ask_api(KEY_READ, "GET", path, NULL), 200,
        "{\"sandboxID\":\"i0\",\"publicTraffic\":false,\"publicPorts\":[80,8000],\"portHosts\":{\"80\":\"localhost\"},"
        "\"url\":\"http://{port}-i0.hutch.test:7443\"}");
    expect(visit("8000-i0.hutch.test", "/", NULL, NULL), 502, NULL);
    expect(visit("8001-i0.hutch.test", "/", "accept", html), 403, "<h1>This port is private");
    /* what is left out stays; a port of which nothing is said any more is forgotten */
    expect(ask_api(KEY_A, "PUT", path, "{\"publicPorts\":[]}"), 200, "\"publicPorts\":[],\"portHosts\":{\"80\":");
    assert_int_equal(b->desc.ports.n, 1);
    expect(ask_api(KEY_A, "PUT", path, "{\"publicPorts\":\"all\"}"), 400, "publicPorts");
    expect(ask_api(KEY_A, "PUT", path, "{\"portHosts\":{\"0\":\"localhost\"}}"), 400, "'0' is not a port");
    expect(ask_api(KEY_READ, "PUT", path, "{}"), 403, "only read");
    expect(ask_api(KEY_B, "GET", path, NULL), 404, NULL);
    world_fail_writes(true);
    expect(ask_api(KEY_A, "PUT", path, "{\"publicPorts\":[1]}"), 503, "could not be stored");
    world_fail_writes(false);
}

static void test_links_are_made_and_revoked(void **state)
{
    (void)state;
    const struct sandbox *b = private_sandbox("i0");
    struct asked *a =
        ask_api(KEY_A, "POST", "/v1/sandboxes/i0/ports/3000/link", "{\"expiresIn\":60,\"path\":\"/x?y\"}");
    json_t *j = asked_json(a);
    const char *url = json_string_value(json_object_get(j, "url"));
    assert_non_null(strstr(url, "http://3000-i0.hutch.test:7443/x?y&hutch-link="));
    expect(visit("3000-i0.hutch.test:7443", strchr(url + 7, '/'), NULL, NULL), 303, NULL);
    expect(ask_api(KEY_A, "DELETE", "/v1/sandboxes/i0/links", NULL), 204, NULL);
    assert_int_equal(b->desc.ports.links, 1);
    expect(visit("3000-i0.hutch.test:7443", strchr(url + 7, '/'), NULL, NULL), 403, NULL);
    json_decref(j);
    asked_free(a);
    expect(ask_api(KEY_A, "POST", "/v1/sandboxes/i0/ports/3000/link", NULL), 201, NULL);
    expect(ask_api(KEY_A, "POST", "/v1/sandboxes/i0/ports/49983/link", NULL), 400, "49983");
    expect(ask_api(KEY_A, "POST", "/v1/sandboxes/i0/ports/3000/link", "{\"expiresIn\":604801}"), 400, "expiresIn");
    expect(ask_api(KEY_B, "POST", "/v1/sandboxes/i0/ports/3000/link", NULL), 404, NULL);
    expect(ask_api(KEY_READ, "POST", "/v1/sandboxes/i0/ports/3000/link", NULL), 403, NULL);
}

static void test_a_native_sandbox_names_its_public_ports(void **state)
{
    (void)state;
    expect(ask_api(KEY_A, "POST", "/v1/sandboxes", "{\"publicPorts\":[8000],\"portHosts\":{\"8000\":\"preserve\"}}"),
           201, "\"trafficAccessToken\":\"");
    const struct sandbox *b = world_find("i0new");
    assert_int_equal(b->desc.ports.n, 1);
    assert_int_equal(b->desc.ports.v[0].flags, SANDBOX_PORT_PUBLIC | SANDBOX_PORT_PRESERVE);
    expect(ask_api(KEY_A, "POST", "/v1/sandboxes", "{\"publicPorts\":[70000]}"), 400, "publicPorts[0]");
}

int main(void)
{
#define WORLD(f) cmocka_unit_test_setup_teardown(f, world_start, world_end)
    const struct CMUnitTest tests[] = {
        WORLD(test_a_link_is_good_for_its_sandbox_port_time_and_generation),
        WORLD(test_no_byte_of_a_link_may_be_changed),
        WORLD(test_a_private_port_wants_token_link_or_cookie),
        WORLD(test_a_cookie_is_not_for_pages_of_others),
        WORLD(test_a_cookie_is_not_for_what_pages_of_others_embed),
        WORLD(test_what_is_ours_is_taken_out),
        WORLD(test_names_lead_in_and_back),
        WORLD(test_ports_are_set_and_shown),
        WORLD(test_links_are_made_and_revoked),
        WORLD(test_a_native_sandbox_names_its_public_ports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
