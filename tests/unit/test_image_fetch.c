#include "tests/lib/unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "image/fetch-int.h"

static void a_bearer_challenge_is_taken_apart(void **state)
{
    struct auth_challenge c;
    (void)state;
    auth_parse(
        "Bearer realm=\"https://auth.example/token\",service=\"registry.example\",scope=\"repository:a/b:pull,push\"",
        &c);
    assert_int_equal(c.scheme, AUTH_BEARER);
    assert_string_equal(c.realm, "https://auth.example/token");
    assert_string_equal(c.service, "registry.example");
    assert_string_equal(c.scope, "repository:a/b:pull,push");
}

static void spelling_and_order_do_not_matter(void **state)
{
    struct auth_challenge c;
    (void)state;
    auth_parse("  bEARER  Scope=x , error=\"invalid\\\"token\" , REALM=\"r\\\\s\"", &c);
    assert_int_equal(c.scheme, AUTH_BEARER);
    assert_string_equal(c.realm, "r\\s");
    assert_string_equal(c.scope, "x");
    auth_parse("Basic realm=\"x\"", &c);
    assert_int_equal(c.scheme, AUTH_BASIC);
}

static void other_schemes_and_cut_values_are_none(void **state)
{
    struct auth_challenge c;
    (void)state;
    auth_parse("", &c);
    assert_int_equal(c.scheme, AUTH_NONE);
    auth_parse("Digest realm=\"x\"", &c);
    assert_int_equal(c.scheme, AUTH_NONE);
    auth_parse("Bearer realm=\"https://cut", &c);
    assert_int_equal(c.scheme, AUTH_BEARER);
    assert_string_equal(c.realm, "");
}

static void an_address_is_host_port_and_target(void **state)
{
    static const struct {
        const char *text, *host, *authority, *target;
        unsigned port;
        bool tls;
    } cases[] = {
        {"https://h.x/a?b=c#d", "h.x", "h.x", "/a?b=c", 443, true},
        {"http://h.x:81", "h.x", "h.x:81", "/", 81, false},
        {"https://[::1]:8443/x", "::1", "[::1]:8443", "/x", 8443, true},
        {"http://h?x", "h", "h", "/?x", 80, false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct web_url u;
        struct err err = {0};
        if (web_url_parse(cases[i].text, NULL, &u, &err) < 0)
            fail_msg("%s: %s", cases[i].text, err.msg);
        assert_string_equal(u.host, cases[i].host);
        assert_string_equal(u.authority, cases[i].authority);
        assert_string_equal(u.target, cases[i].target);
        assert_int_equal(u.port, cases[i].port);
        assert_int_equal(u.tls, cases[i].tls);
    }
}

static void a_relative_address_stays_where_it_is(void **state)
{
    struct web_url base, u;
    struct err err = {0};
    (void)state;
    assert_int_equal(web_url_parse("https://h.x:99/a/b", NULL, &base, &err), 0);
    assert_int_equal(web_url_parse("/c", &base, &u, &err), 0);
    assert_string_equal(u.authority, "h.x:99");
    assert_string_equal(u.target, "/c");
    assert_true(u.tls);
    assert_int_equal(web_url_parse("//evil.example/c", &base, &u, &err), -1);
}

static void what_would_break_a_request_is_no_address(void **state)
{
    static const char *const cases[] = {
        "",
        "h.x/a",
        "ftp://h.x/",
        "https://",
        "https:///a",
        "https://u@h.x/a",
        "https://h.x:0/",
        "https://h.x:70000/",
        "https://h.x:8x/",
        "https://h.x/a b",
        "https://h.x/a\r\nb: c",
        "https://h x/",
        "https://[::1/",
        "https://h.x/\xc3\xa9",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct web_url u;
        struct err err = {0};
        if (web_url_parse(cases[i], NULL, &u, &err) == 0)
            fail_msg("%s was taken", cases[i]);
        assert_int_not_equal(err.msg[0], '\0');
    }
}

/* --- slow servers ------------------------------------------------------------------------------------------------- */

/* Answers one request with a head that promises a lot, and then a byte every few milliseconds. */
static void *trickle(void *arg)
{
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
    int fd = accept(*(const int *)arg, NULL, NULL);
    (void)send(fd, head, sizeof head - 1, MSG_NOSIGNAL);
    while (send(fd, "x", 1, MSG_NOSIGNAL) == 1)
        (void)usleep(5000);
    (void)close(fd);
    return NULL;
}

static void give_up(const struct blocking_pace *pace, const char *says)
{
    const struct blocking_pace usual = web_pace;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    struct web_reach reach = {.private = true};
    struct web w = WEB_INIT;
    struct web_url u;
    struct err err = {0};
    char url[64];
    pthread_t server;
    _cleanup_buf_ struct buf body = {0};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &n), 0);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u/", ntohs(a.sin_port));
    assert_int_equal(web_url_parse(url, NULL, &u, &err), 0);
    reach.registries = u.authority;
    assert_int_equal(pthread_create(&server, NULL, trickle, &listener), 0);
    assert_int_equal(web_get(&w, &u, NULL, NULL, true, &reach, &err), 0);
    web_pace = *pace; /* not before: on a machine with much to do even the beginning may be too slow */
    assert_true(reach.inside);
    assert_int_equal(web_read_all(&w, 1 << 20, "it", &body, &err), -1);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
    web_close(&w);
    assert_int_equal(pthread_join(server, NULL), 0);
    (void)close(listener);
    web_pace = usual;
}

static void a_server_that_only_trickles_is_given_up(void **state)
{
    (void)state;
    give_up(&(struct blocking_pace){.silence_ms = 60000, .window_ms = 100, .window_bytes = 100000, .total_ms = 600000},
            "slower than");
}

static void all_connections_together_have_a_deadline(void **state)
{
    (void)state;
    give_up(&(struct blocking_pace){.silence_ms = 60000, .window_ms = 10, .window_bytes = 0, .total_ms = 200},
            "takes too long");
}

static int reach(const char *url, struct web_reach *r, bool first, struct err *err)
{
    struct web w = WEB_INIT;
    struct web_url u;
    *err = (struct err){0};
    assert_int_equal(web_url_parse(url, NULL, &u, err), 0);
    int rc = web_get(&w, &u, NULL, NULL, first, r, err);
    web_close(&w);
    return rc;
}

static void private_addresses_are_not_for_everybody(void **state)
{
    static const char *const urls[] = {"http://127.0.0.1:9/", "http://[::1]:9/", "http://10.255.255.1:9/",
                                       "http://192.168.255.1:9/", "http://[::ffff:10.0.0.1]:9/"};
    struct err err;
    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        struct web_reach r = {0};
        assert_int_equal(reach(urls[i], &r, true, &err), -1);
        assert_int_equal(image_failure_of(&err), IMAGE_DENIED);
        assert_non_null(strstr(err.msg, "images.registries"));
        assert_false(r.known);
    }
}

static void what_was_not_reached_does_not_make_a_registry_private(void **state)
{
    struct web_reach r = {.private = true, .registries = "10.0.0.1,127.0.0.1:9"};
    struct err err;
    (void)state;
    assert_int_equal(reach("http://127.0.0.1:9/", &r, true, &err), -1);
    assert_int_equal(image_failure_of(&err), IMAGE_NETWORK);
    assert_false(r.known || r.inside || r.listed);
    r = (struct web_reach){.private = true, .known = true}; /* a public one */
    for (int first = 0; first < 2; first++) {
        assert_int_equal(reach("http://10.255.255.1:9/", &r, first, &err), -1);
        assert_int_equal(image_failure_of(&err), IMAGE_DENIED);
        assert_non_null(strstr(err.msg, "a public registry may not lead"));
    }
}

static void only_a_list_opens_this_machine_and_infra(void **state)
{
    static const char *const urls[] = {"http://127.0.0.1:9/", "http://[::1]:9/", "http://8.8.4.4:9/",
                                       "http://[64:ff9b::808:404]:9/", "http://8.8.8.8:9/"};
    static const char *const never[] = {"http://169.254.169.254:9/", "http://0.0.0.0:9/"};
    struct netpol_cidr infra;
    struct in6_addr own;
    struct err err;
    (void)state;
    assert_true(netpol_cidr_parse("8.8.4.0/24", &infra));
    assert_int_equal(inet_pton(AF_INET6, "::ffff:8.8.8.8", &own), 1);
    const struct netpol_reach machine = {.own = &own, .nown = 1, .infra = &infra, .ninfra = 1};
    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        struct web_reach r = {.private = true, .machine = machine, .registries = "127.0.0.1,other:9"};
        for (int first = 0; first < 2; first++) {
            assert_int_equal(reach(urls[i], &r, first, &err), -1);
            assert_int_equal(image_failure_of(&err), IMAGE_DENIED);
            assert_non_null(strstr(err.msg, "images.registries"));
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(never); i++) {
        struct web_reach r = {.private = true, .registries = "169.254.169.254:9,0.0.0.0:9"};
        assert_int_equal(reach(never[i], &r, true, &err), -1);
        assert_non_null(strstr(err.msg, "reserved address"));
    }
}

static void a_listed_registry_opens_its_own_address_and_no_other(void **state)
{
    struct web_reach r = {.registries = "x:1", .known = true, .inside = true, .listed = true};
    struct err err;
    (void)state;
    assert_int_equal(inet_pton(AF_INET6, "::ffff:127.0.0.1", &r.home), 1);
    assert_int_equal(reach("http://127.0.0.1:9/", &r, false, &err), -1);
    assert_int_equal(image_failure_of(&err), IMAGE_NETWORK);
    assert_int_equal(reach("http://127.0.0.2:9/", &r, false, &err), -1);
    assert_int_equal(image_failure_of(&err), IMAGE_DENIED);
    r.listed = false;
    assert_int_equal(reach("http://127.0.0.1:9/", &r, false, &err), -1);
    assert_int_equal(image_failure_of(&err), IMAGE_DENIED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bearer_challenge_is_taken_apart),
        cmocka_unit_test(spelling_and_order_do_not_matter),
        cmocka_unit_test(other_schemes_and_cut_values_are_none),
        cmocka_unit_test(an_address_is_host_port_and_target),
        cmocka_unit_test(a_relative_address_stays_where_it_is),
        cmocka_unit_test(what_would_break_a_request_is_no_address),
        cmocka_unit_test(a_server_that_only_trickles_is_given_up),
        cmocka_unit_test(all_connections_together_have_a_deadline),
        cmocka_unit_test(private_addresses_are_not_for_everybody),
        cmocka_unit_test(what_was_not_reached_does_not_make_a_registry_private),
        cmocka_unit_test(only_a_list_opens_this_machine_and_infra),
        cmocka_unit_test(a_listed_registry_opens_its_own_address_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
