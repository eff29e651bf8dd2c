/* Connections until they are known, explicit proxies, streams that are passed through, limits. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "egress-world.h"

#include "egress/audit/audit.h"
#include "os/netns.h"

/* A ClientHello with this server name ("" : none), ECH, ALPN. */
static void hello(struct buf *ret, const char *sni, bool ech, const char *alpn)
{
    _cleanup_buf_ struct buf e = {0}, b = {0};
    size_t n = strlen(sni);
#define U16(b, v) (buf_addc((b), (char)((v) >> 8)), buf_addc((b), (char)(v)))
    if (n) {
        U16(&e, 0);
        U16(&e, n + 5);
        U16(&e, n + 3);
        buf_addc(&e, 0);
        U16(&e, n);
        buf_add(&e, sni, n);
    }
    if (ech) {
        U16(&e, 0xfe0d);
        U16(&e, 1);
        buf_addc(&e, 1);
    }
    if (alpn) {
        U16(&e, 16);
        U16(&e, strlen(alpn) + 3);
        U16(&e, strlen(alpn) + 1);
        buf_addc(&e, (char)strlen(alpn));
        buf_adds(&e, alpn);
    }
    U16(&b, 0x0303);
    for (int i = 0; i < 32; i++)
        buf_addc(&b, 7);
    buf_add(&b, "\x00\x00\x02\x13\x01\x01\x00", 7);
    U16(&b, e.n);
    buf_add(&b, e.p, e.n);
    buf_add(ret, "\x16\x03\x01", 3);
    U16(ret, b.n + 4);
    buf_add(ret, "\x01\x00", 2);
    U16(ret, b.n);
    buf_add(ret, b.p, b.n);
}

static void says_hello(int fd, const char *sni, bool ech, const char *alpn)
{
    _cleanup_buf_ struct buf b = {0};
    hello(&b, sni, ech, alpn);
    says(fd, b.p, b.n);
}

static void assert_alert(int fd, unsigned code)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)hears_end(fd, &heard);
    assert_int_equal(heard.n, 7);
    assert_int_equal(heard.p[0], 0x15);
    assert_int_equal((unsigned char)heard.p[6], code);
}

static void rule_for(const char *members)
{
    char text[600];
    (void)snprintf(text, sizeof text, "{\"rules\":[{\"id\":\"r\",\"hosts\":[\"api.example\"]%s}]}", members);
    policy(text);
}

static uint16_t server_port;
static int server_fd = -1;

static void tcp_rule(void)
{
    char members[100];
    server_fd = listener(&server_port);
    (void)snprintf(members, sizeof members, ",\"proto\":\"tcp\",\"ports\":[%u]", server_port);
    rule_for(members);
}

static int accepted(void)
{
    int fd = -1;
    UNTIL((fd = fd >= 0 ? fd : accept4(server_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0);
    return fd;
}

static int stop(void **state)
{
    if (server_fd >= 0)
        (void)close(server_fd);
    server_fd = -1;
    return world_stop(state);
}

/* --- what it is --------------------------------------------------------------------------------------------------- */

static void test_http_is_handed_over_with_its_first_bytes(void **state)
{
    (void)state;
    rule_for("");
    int fd = sandbox_connects_to_name("api.example", 80);
    says_text(fd, "GE");
    turn();
    assert_null(world.http);
    says_text(fd, "T / HTTP/1.1\r\n");
    UNTIL(world.http);
    assert_string_equal(world.http->host, "api.example");
    assert_false(world.http->tls || world.http->gate);
    assert_memory_equal(world.http->head.p, "GET / HTTP/1.1", 14);
    (void)close(fd);
}

static void test_denied_hosts_are_handed_over_to_be_answered_in_words(void **state)
{
    (void)state;
    rule_for("");
    int fd = sandbox_connects_to_name("evil.example", 443);
    says_hello(fd, "Evil.Example.", false, "h2");
    UNTIL(world.http);
    assert_true(world.http->tls);
    assert_string_equal(world.http->sni, "evil.example");
    (void)close(fd);
}

/* --- refusals: closed --------------------------------------------------------------------------------------------- */

#define CLOSED "{\"refusals\":\"closed\",\"rules\":[{\"id\":\"r\",\"hosts\":[\"api.example\"],\"tls\":\"intercept\"}]}"

static void test_closed_refusals_fail_the_handshake_and_are_recorded_with_their_grant(void **state)
{
    (void)state;
    policy(CLOSED);
    int fd = sandbox_connects_to_name("evil.example", 443);
    says_hello(fd, "evil.example", false, "h2");
    assert_alert(fd, ALERT_ACCESS_DENIED);
    assert_null(world.http);
    json_t *d = last_denial();
    assert_string_equal(json_string_value(json_object_get(d, "reason")), "host_not_allowed");
    assert_string_equal(json_string_value(json_object_get(d, "host")), "evil.example");
    assert_string_equal(json_string_value(json_object_get(d, "layer")), "tls");
    const json_t *hosts = json_object_get(json_object_get(d, "grant"), "hosts");
    assert_string_equal(json_string_value(json_array_get(hosts, 0)), "evil.example");
    json_decref(d);
    (void)close(fd);
}

static void test_closed_refusals_check_names_as_ever(void **state)
{
    (void)state;
    policy(CLOSED);
    int fd = sandbox_connects_to_name("api.example", 443);
    says_hello(fd, "evil.example", false, NULL); /* not the name that was looked up */
    assert_alert(fd, ALERT_ACCESS_DENIED);
    assert_denied("sni_mismatch");
    (void)close(fd);
    fd = sandbox_connects_to_name("api.example", 443);
    says_hello(fd, "api.example", false, NULL); /* allowed: it is looked into */
    UNTIL(world.http);
    world.http->ops->cut(world.http);
    (void)close(fd);
}

static void test_closed_refusals_end_a_stale_address_without_a_word(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    policy(CLOSED);
    int fd = sandbox_connects("198.18.77.77", 80);
    says_text(fd, "GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    (void)hears_end(fd, &heard);
    assert_int_equal(heard.n, 0);
    assert_denied("stale_dns");
    (void)close(fd);
}

static void test_a_name_other_than_the_one_meant_is_never_passed_through(void **state)
{
    (void)state;
    policy("{\"rules\":[{\"hosts\":[\"a.example\",\"b.example\"],\"tls\":\"passthrough\"}]}");
    int fd = sandbox_connects_to_name("a.example", 443);
    says_hello(fd, "b.example", false, NULL);
    UNTIL(world.http);
    assert_string_equal(world.http->host, "a.example");
    assert_string_equal(world.http->sni, "b.example");
    world.http->ops->cut(world.http);
    (void)close(fd);
    world.g.config.no_interception = true;
    fd = sandbox_connects_to_name("a.example", 443);
    says_hello(fd, "b.example", false, NULL);
    assert_alert(fd, ALERT_ACCESS_DENIED);
    assert_denied("sni_mismatch");
    (void)close(fd);
}

static void test_a_missing_name_is_refused(void **state)
{
    (void)state;
    rule_for(",\"tls\":\"passthrough\"");
    world.g.config.no_interception = true;
    int fd = sandbox_connects_to_name("api.example", 443);
    says_hello(fd, "", false, NULL);
    assert_alert(fd, ALERT_ACCESS_DENIED);
    assert_denied("sni_missing");
    (void)close(fd);
    fd = sandbox_connects_to_name("api.example", 443);
    says_hello(fd, "10.0.0.1", false, NULL);
    assert_alert(fd, ALERT_ACCESS_DENIED);
    assert_denied("sni_missing");
    (void)close(fd);
}

static void test_an_encrypted_hello_is_not_passed_through(void **state)
{
    (void)state;
    rule_for(",\"tls\":\"passthrough\"");
    int fd = sandbox_connects_to_name("api.example", 443);
    says_hello(fd, "api.example", true, NULL);
    assert_alert(fd, ALERT_ACCESS_DENIED);
    assert_denied("ech_not_allowed");
    (void)close(fd);
    rule_for(",\"tls\":\"intercept\"");
    fd = sandbox_connects_to_name("api.example", 443);
    says_hello(fd, "api.example", true, NULL);
    UNTIL(world.http);
    (void)close(fd);
}

static void test_a_protocol_inside_tls_that_cannot_be_looked_into_is_refused(void **state)
{
    (void)state;
    rule_for(",\"tls\":\"intercept\"");
    int fd = sandbox_connects_to_name("api.example", 443);
    says_hello(fd, "api.example", false, "smtp");
    assert_alert(fd, ALERT_NO_PROTOCOL);
    (void)close(fd);
}

static void test_old_tls_is_refused_if_the_policy_says_so(void **state)
{
    (void)state;
    policy("{\"tls\":{\"min\":\"1.3\"},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    int fd = sandbox_connects_to_name("api.example", 443);
    says_hello(fd, "api.example", false, NULL);
    assert_alert(fd, ALERT_PROTOCOL_VERSION);
    assert_denied("tls_version");
    (void)close(fd);
}

static void test_a_broken_hello_gets_an_alert(void **state)
{
    (void)state;
    rule_for("");
    int fd = sandbox_connects_to_name("api.example", 443);
    says(fd, "\x16\x03\x01\x00\x04\x02\x00\x00\x00", 9);
    assert_alert(fd, ALERT_DECODE_ERROR);
    assert_denied("malformed_request");
    (void)close(fd);
}

static void test_other_protocols_are_reset(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    rule_for("");
    int fd = sandbox_connects_to_name("api.example", 22);
    says_text(fd, "SSH-2.0-x\r\n");
    assert_int_equal(hears_end(fd, &heard), -1);
    assert_int_equal(world.s->counts.denied, 1);
    assert_int_equal(world.s->nflows, 0);
    (void)close(fd);
}

static void test_silence_is_reset_after_its_time(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    rule_for("");
    stop_clock();
    int fd = sandbox_connects_to_name("api.example", 22);
    turn();
    assert_int_equal(world.s->nflows, 1);
    pass(SNIFF_MS + 1);
    assert_int_equal(hears_end(fd, &heard), -1);
    (void)close(fd);
}

static void test_an_address_whose_name_is_forgotten_says_so(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    rule_for("");
    int fd = sandbox_connects("198.18.44.44", 80);
    says_text(fd, "GET / HTTP/1.1\r\n\r\n");
    assert_int_equal(hears_end(fd, &heard), 1);
    assert_memory_equal(heard.p, "HTTP/1.1 4", 10);
    assert_denied("stale_dns");
    (void)close(fd);
    rule_for(",\"tls\":\"intercept\"");
    fd = sandbox_connects("198.18.44.44", 443); /* TLS says the name itself */
    says_hello(fd, "api.example", false, NULL);
    UNTIL(world.http);
    assert_string_equal(world.http->host, "api.example");
    (void)close(fd);
}

static void test_the_platforms_address_speaks_http(void **state)
{
    (void)state;
    rule_for("");
    int fd = sandbox_connects(NETNS_GATE4, 80);
    assert_non_null(world.http);
    assert_true(world.http->gate);
    (void)close(fd);
}

/* --- explicit proxies --------------------------------------------------------------------------------------------- */

static void test_connect_fixes_the_destination(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    rule_for("");
    int fd = sandbox_connects(NETNS_GATE4, NETNS_HTTP_PROXY_PORT);
    says_text(fd, "CONNECT api.example:443 HTTP/1.1\r\nHost: api.example:443\r\n\r\n");
    hears_bytes(fd, &heard, 19);
    assert_memory_equal(heard.p, "HTTP/1.1 200 ", 13);
    says_hello(fd, "evil.example", false, NULL);
    UNTIL(world.http);
    assert_true(world.http->explicit_proxy);
    assert_int_equal(world.http->port, 443);
    assert_string_equal(world.http->host, "api.example");
    assert_string_equal(world.http->sni, "evil.example"); /* http refuses it */
    (void)close(fd);
}

static void test_a_denied_connect_is_answered(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    rule_for("");
    int fd = sandbox_connects(NETNS_GATE4, NETNS_HTTP_PROXY_PORT);
    says_text(fd, "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n");
    assert_int_equal(hears_end(fd, &heard), 1);
    assert_memory_equal(heard.p, "HTTP/1.1 403 ", 13);
    assert_non_null(strstr(buf_str(&heard), "host_not_allowed"));
    (void)close(fd);
    UNTIL(world.s->nflows == 0);
}

static void test_a_connect_without_a_port_is_malformed(void **state)
{
    static const char *const heads[] = {
        "CONNECT api.example HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "CONNECT 0x7f000001:443 HTTP/1.1\r\nHost: x:443\r\n\r\n",
        "CONNECT api.example:0 HTTP/1.1\r\nHost: api.example:0\r\n\r\n",
        "CONNECT api.example:443 HTTP/1.1\nHost: api.example\n\n",
    };
    (void)state;
    rule_for("");
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        _cleanup_buf_ struct buf heard = {0};
        int fd = sandbox_connects(NETNS_GATE4, NETNS_HTTP_PROXY_PORT);
        says_text(fd, heads[i]);
        assert_int_equal(hears_end(fd, &heard), 1);
        assert_memory_equal(heard.p, "HTTP/1.1 400 ", 13);
        (void)close(fd);
    }
}

static void test_absolute_requests_are_handed_over(void **state)
{
    (void)state;
    rule_for("");
    int fd = sandbox_connects("127.0.0.1", NETNS_PORT); /* somebody found the listener */
    says_text(fd, "GET http://api.example/ HTTP/1.1\r\n");
    UNTIL(world.http);
    assert_true(world.http->gate && !world.http->explicit_proxy);
    (void)close(fd);
}

static void test_connect_to_the_platform_is_the_platform(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    rule_for("");
    int fd = sandbox_connects(NETNS_GATE4, NETNS_HTTP_PROXY_PORT);
    says_text(fd, "CONNECT sandbox.internal:80 HTTP/1.1\r\nHost: sandbox.internal:80\r\n\r\n");
    hears_bytes(fd, &heard, 19);
    says_text(fd, "GET / HTTP/1.1\r\n");
    UNTIL(world.http);
    assert_true(world.http->gate && !world.http->explicit_proxy && world.http->port == 80);
    (void)close(fd);
}

static void test_socks_5_leads_to_a_tcp_rule(void **state)
{
    _cleanup_buf_ struct buf heard = {0}, ask = {0};
    (void)state;
    tcp_rule();
    int fd = sandbox_connects(NETNS_GATE4, NETNS_SOCKS_PORT);
    says(fd, "\x05\x02\x00\x02", 4);
    hears_bytes(fd, &heard, 2);
    assert_memory_equal(heard.p, "\x05\x00", 2);
    buf_add(&ask,
            "\x05\x01\x00\x03\x0b"
            "api.example",
            16);
    U16(&ask, server_port);
    says(fd, ask.p, ask.n);
    int up = accepted();
    hears_bytes(fd, &heard, 12);
    assert_memory_equal(heard.p + 2, "\x05\x00\x00\x01", 4);
    says_text(up, "220 ready"); /* the server speaks first */
    hears_bytes(fd, &heard, 21);
    (void)close(up);
    (void)close(fd);
}

static void test_socks_says_what_is_not_allowed(void **state)
{
    _cleanup_buf_ struct buf five = {0}, four = {0};
    (void)state;
    rule_for("");
    int fd = sandbox_connects(NETNS_GATE4, NETNS_SOCKS_PORT);
    says(fd, "\x05\x01\x00\x05\x01\x00\x01\x09\x09\x09\x09\x00\x16", 13);
    assert_int_equal(hears_end(fd, &five), 1);
    assert_memory_equal(five.p, "\x05\x00\x05\x02", 4);
    (void)close(fd);
    fd = sandbox_connects(NETNS_GATE4, NETNS_SOCKS_PORT);
    says(fd,
         "\x04\x01\x01\xbb\x00\x00\x00\x01me\x00"
         "evil.example\x00",
         24);
    assert_int_equal(hears_end(fd, &four), 1);
    assert_memory_equal(four.p, "\x00\x5b", 2);
    assert_denied("host_not_allowed");
    (void)close(fd);
}

/* --- relay -------------------------------------------------------------------------------------------------------- */

static void test_a_tcp_rule_relays_both_ways_and_each_end(void **state)
{
    _cleanup_buf_ struct buf inside = {0}, outside = {0};
    int end;
    (void)state;
    tcp_rule();
    int fd = sandbox_connects_to_name("api.example", server_port), up = accepted();
    says_text(up, "hello from outside");
    hears_bytes(fd, &inside, 18);
    says_text(fd, "hello from inside");
    (void)shutdown(fd, SHUT_WR);
    assert_int_equal(hears_end(up, &outside), 1);
    assert_string_equal(buf_str(&outside), "hello from inside");
    says_text(up, " and more"); /* one direction goes on */
    hears_bytes(fd, &inside, 27);
    (void)close(up);
    end = hears_end(fd, &inside);
    assert_int_equal(end, 1);
    assert_string_equal(buf_str(&inside), "hello from outside and more");
    (void)close(fd);
    UNTIL(world.s->nflows == 0);
    assert_int_equal(world.s->counts.bytes_up, 17);
    assert_int_equal(world.s->counts.bytes_down, 27);
    assert_int_equal(esb_host(world.s, "api.example")->bytes_down, 27);
}

static void test_much_is_relayed_whole(void **state)
{
    static char chunk[65536];
    size_t sent = 0, got = 0, total = 8 << 20;
    unsigned want = 0;
    (void)state;
    tcp_rule();
    int fd = sandbox_connects_to_name("api.example", server_port), up = accepted();
    struct err err = {0};
    while (got < total) {
        if (sent < total) {
            for (size_t i = 0; i < sizeof chunk; i++)
                chunk[i] = (char)((sent + i) % 251);
            ssize_t n = send(fd, chunk, total - sent < sizeof chunk ? total - sent : sizeof chunk, MSG_NOSIGNAL);
            sent += n > 0 ? (size_t)n : 0;
        }
        assert_int_equal(loop_step(world.g.loop, 1, &err), 0);
        for (ssize_t n; (n = recv(up, chunk, sizeof chunk, 0)) > 0; got += (size_t)n)
            for (ssize_t i = 0; i < n; i++, want = (want + 1) % 251)
                assert_int_equal((unsigned char)chunk[i], want);
    }
    assert_int_equal(world.s->counts.bytes_up, total);
    (void)close(fd);
    (void)close(up);
}

static void test_a_change_of_policy_cuts_what_is_no_longer_allowed(void **state)
{
    _cleanup_buf_ struct buf inside = {0}, outside = {0};
    (void)state;
    tcp_rule();
    int fd = sandbox_connects_to_name("api.example", server_port), up = accepted();
    says_text(up, "x");
    hears_bytes(fd, &inside, 1);
    char same[200];
    (void)snprintf(same, sizeof same,
                   "{\"rules\":[{\"hosts\":[\"api.example\",\"other.test\"],\"proto\":\"tcp\",\"ports\":[%u]}]}",
                   server_port);
    policy(same);
    turn();
    assert_int_equal(world.s->nflows, 1);
    rule_for("");
    assert_int_equal(world.s->nflows, 0);
    assert_int_equal(hears_end(fd, &inside), -1);
    assert_int_equal(hears_end(up, &outside), -1);
    (void)close(fd);
    (void)close(up);
}

static void test_a_policy_that_takes_the_address_back_cuts_the_stream_there(void **state)
{
    _cleanup_buf_ struct buf inside = {0};
    char text[200];
    (void)state;
    tcp_rule();
    int fd = sandbox_connects_to_name("api.example", server_port), up = accepted();
    (void)snprintf(text, sizeof text,
                   "{\"rules\":[{\"hosts\":[\"api.example\"],\"proto\":\"tcp\",\"ports\":[%u]},{\"effect\":\"deny\","
                   "\"cidrs\":[\"127.0.0.0/8\"]}]}",
                   server_port);
    policy(text); /* egress may have heard already that it is connected, or not */
    UNTIL(world.s->nflows == 0);
    assert_int_equal(hears_end(fd, &inside), -1);
    (void)close(fd);
    (void)close(up);
}

static void test_a_stream_granted_once_ends_in_peace_unless_the_document_is_replaced(void **state)
{
    _cleanup_buf_ struct buf inside = {0}, outside = {0};
    char text[200];
    (void)state;
    tcp_rule();
    (void)snprintf(text, sizeof text, ",\"proto\":\"tcp\",\"ports\":[%u],\"uses\":1", server_port);
    rule_for(text);
    world.s->replaced = world.s->epoch;
    int fd = sandbox_connects_to_name("api.example", server_port), up = accepted();
    policy("{\"default\":\"deny\"}"); /* front takes the grant out */
    turn();
    says_text(up, "x");
    hears_bytes(fd, &inside, 1);
    world.s->replaced = world.s->epoch + 1;
    policy("\"off\"");
    assert_int_equal(world.s->nflows, 0);
    assert_int_equal(hears_end(fd, &inside), -1);
    assert_int_equal(hears_end(up, &outside), -1);
    (void)close(fd);
    (void)close(up);
}

static void test_a_rule_that_expires_cuts_too(void **state)
{
    char text[300];
    (void)state;
    server_fd = listener(&server_port);
    (void)snprintf(text, sizeof text,
                   "{\"rules\":[{\"hosts\":[\"api.example\"],\"proto\":\"tcp\",\"ports\":[%u],\"expires\":%llu}]}",
                   server_port, (unsigned long long)egress_now() + 2);
    policy(text);
    int fd = sandbox_connects_to_name("api.example", server_port), up = accepted();
    UNTIL(world.s->nflows == 0);
    (void)close(fd);
    (void)close(up);
}

static void test_the_quota_ends_a_stream(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    char text[300], bytes[2000] = {0};
    (void)state;
    server_fd = listener(&server_port);
    (void)snprintf(
        text, sizeof text,
        "{\"limits\":{\"bytes_out\":1000},\"rules\":[{\"hosts\":[\"api.example\"],\"proto\":\"tcp\",\"ports\":[%u]}]}",
        server_port);
    policy(text);
    int fd = sandbox_connects_to_name("api.example", server_port), up = accepted();
    says(fd, bytes, sizeof bytes);
    assert_int_equal(hears_end(fd, &heard), -1);
    assert_denied("quota_bytes");
    (void)close(fd);
    (void)close(up);
}

static void test_a_stream_to_nobody_is_reset_with_a_reason(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    tcp_rule();
    (void)close(server_fd);
    server_fd = -1;
    int fd = sandbox_connects_to_name("api.example", server_port);
    assert_int_equal(hears_end(fd, &heard), -1);
    assert_denied("upstream_unreachable");
    (void)close(fd);
    world.g.config.nloopback_ok = 0;
    fd = sandbox_connects_to_name("api.example", server_port);
    (void)hears_end(fd, &heard);
    assert_denied("resolved_private");
    (void)close(fd);
}

static void test_a_passthrough_rule_replays_the_hello(void **state)
{
    _cleanup_buf_ struct buf heard = {0}, sent = {0};
    char members[100];
    (void)state;
    server_fd = listener(&server_port);
    (void)snprintf(members, sizeof members, ",\"tls\":\"passthrough\",\"ports\":[%u]", server_port);
    rule_for(members);
    int fd = sandbox_connects_to_name("api.example", server_port);
    hello(&sent, "api.example", false, "h2");
    for (size_t i = 0; i < sent.n; i++) {
        says(fd, sent.p + i, 1);
        if (i % 16 == 0)
            turn();
    }
    int up = accepted();
    hears_bytes(up, &heard, sent.n);
    assert_int_equal(heard.n, sent.n);
    assert_memory_equal(heard.p, sent.p, sent.n);
    (void)close(fd);
    (void)close(up);
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

static void test_too_many_connections_are_reset(void **state)
{
    uint16_t port;
    int fds[4], end, resets = 0;
    (void)state;
    esb_attach(world.s, listener(&port), -1);
    policy("{\"limits\":{\"connections\":2},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    for (int i = 0; i < 4; i++)
        fds[i] = connect_to_port(port);
    UNTIL(world.s->counts.denied >= 1 && world.s->nflows == 2);
    turn();
    for (int i = 0; i < 4; i++) {
        _cleanup_buf_ struct buf heard = {0};
        hears(fds[i], &heard, &end);
        resets += end == -1;
        (void)close(fds[i]);
    }
    assert_int_equal(resets, 2);
    assert_denied("too_many_connections");
}

static void test_new_connections_beyond_the_rate_wait(void **state)
{
    uint16_t port;
    int fds[8];
    (void)state;
    stop_clock();
    esb_attach(world.s, listener(&port), -1);
    policy("{\"limits\":{\"new_conn_per_s\":2},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    for (int i = 0; i < 8; i++)
        fds[i] = connect_to_port(port);
    UNTIL(world.s->nflows >= 4);
    turn();
    assert_int_equal(world.s->nflows, 4); /* twice the rate at once */
    pass(1000);
    UNTIL(world.s->nflows >= 6);
    pass(1000);
    UNTIL(world.s->nflows == 8);
    for (int i = 0; i < 8; i++)
        (void)close(fds[i]);
}

static void test_rates_and_uses_of_a_rule_are_counted(void **state)
{
    struct netpol_rule rule = {.id = "r", .rps = 1, .burst = 2}, few = {.id = "f", .concurrent = 1},
                       once = {.id = "o", .uses = 1};
    unsigned retry;
    (void)state;
    rule_for("");
    assert_int_equal(limit_request(world.s, &rule, &retry), NETPOL_R_NONE);
    assert_int_equal(limit_request(world.s, &rule, &retry), NETPOL_R_NONE);
    assert_int_equal(limit_request(world.s, &rule, &retry), NETPOL_R_RATE);
    assert_int_equal(retry, 2);
    pass(1100);
    assert_int_equal(limit_request(world.s, &rule, &retry), NETPOL_R_NONE);
    assert_int_equal(limit_request(world.s, &few, &retry), NETPOL_R_NONE);
    assert_int_equal(limit_request(world.s, &few, &retry), NETPOL_R_RATE);
    limit_request_end(world.s, &few);
    assert_int_equal(limit_request(world.s, &few, &retry), NETPOL_R_NONE);
    assert_int_equal(limit_request(world.s, &once, &retry), NETPOL_R_NONE);
    assert_int_equal(limit_request(world.s, &once, &retry), NETPOL_R_EXPIRED);
}

static void test_new_names_under_a_wildcard_are_so_many_a_minute(void **state)
{
    char name[32];
    unsigned retry = 0;
    (void)state;
    policy("{\"allow\":[\"*.z.example\"],\"limits\":{\"new_names_per_min\":6}}");
    for (int i = 0; i < 6; i++) {
        (void)snprintf(name, sizeof name, "n%d.z.example", i);
        assert_true(limit_new_name(world.s, name, &retry));
    }
    assert_false(limit_new_name(world.s, "n6.z.example", &retry));
    assert_in_range(retry, 1, 11);                                /* one in ten seconds */
    assert_true(limit_new_name(world.s, "n0.z.example", &retry)); /* it is known */
    pass(10001);
    assert_true(limit_new_name(world.s, "n6.z.example", &retry));
    assert_false(limit_new_name(world.s, "n7.z.example", &retry));
    pass(3600 * 1000); /* they do not pile up */
    for (int i = 0; i < 6; i++) {
        (void)snprintf(name, sizeof name, "m%d.z.example", i);
        assert_true(limit_new_name(world.s, name, &retry));
    }
    assert_false(limit_new_name(world.s, "m6.z.example", &retry));
}

static void test_the_longest_unused_name_under_a_wildcard_is_new_again(void **state)
{
    char name[32];
    unsigned retry = 0;
    (void)state;
    policy("{\"allow\":[\"*.z.example\"],\"limits\":{\"new_names_per_min\":4098}}");
    assert_true(limit_new_name(world.s, "first.z.example", &retry));
    assert_true(limit_new_name(world.s, "second.z.example", &retry));
    assert_true(limit_new_name(world.s, "first.z.example", &retry));
    for (int i = 0; i < 4095; i++) { /* one more than there is room for */
        (void)snprintf(name, sizeof name, "n%d.z.example", i);
        assert_true(limit_new_name(world.s, name, &retry));
    }
    policy("{\"allow\":[\"*.z.example\"],\"limits\":{\"new_names_per_min\":1}}");
    assert_true(limit_new_name(world.s, "n0.z.example", &retry));
    assert_true(limit_new_name(world.s, "first.z.example", &retry));
    assert_true(limit_new_name(world.s, "new.z.example", &retry)); /* the last one of this minute */
    assert_false(limit_new_name(world.s, "second.z.example", &retry));
}

static void test_a_stream_to_one_name_too_many_is_reset_before_anybody_is_asked(void **state)
{
    _cleanup_buf_ struct buf inside = {0};
    char text[200];
    (void)state;
    tcp_rule();
    (void)snprintf(text, sizeof text,
                   "{\"limits\":{\"new_names_per_min\":1},\"rules\":[{\"hosts\":[\"*.z.example\"],\"proto\":\"tcp\","
                   "\"ports\":[%u]}]}",
                   server_port);
    policy(text);
    int fd = sandbox_connects_to_name("one.z.example", server_port), up = accepted();
    unsigned asked = world.dns_questions;
    int other = sandbox_connects_to_name("c2VjcmV0.z.example", server_port);
    assert_int_equal(hears_end(other, &inside), -1);
    assert_int_equal(world.dns_questions, asked);
    assert_denied("too_many_new_names");
    (void)close(fd);
    (void)close(up);
    (void)close(other);
}

static void test_the_bandwidth_is_waited_for(void **state)
{
    (void)state;
    policy("{\"limits\":{\"rate_out\":100000},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    assert_int_equal(limit_wait(world.s, true), 0);
    assert_int_equal(limit_bytes(world.s, "x", 165536, 0), NETPOL_R_NONE);
    unsigned ms = limit_wait(world.s, true);
    assert_true(ms > 900 && ms <= 1000);
    assert_int_equal(limit_wait(world.s, false), 0);
    pass(1100);
    assert_int_equal(limit_wait(world.s, true), 0);
}

static void test_hosts_beyond_the_table_are_counted_together(void **state)
{
    char name[20];
    (void)state;
    for (int i = 0; i < 600; i++) {
        (void)snprintf(name, sizeof name, "h%d", i);
        esb_host(world.s, name)->requests++;
    }
    assert_int_equal(esb_host(world.s, "h599")->requests, esb_host(world.s, "other")->requests);
    assert_int_equal(esb_host(world.s, "h0")->requests, 1);
    assert_int_equal(world.s->hosts.n, 512);
}

/* --- an init that was taken over ---------------------------------------------------------------------------------- */

static atomic_bool attack_over;
static void *make_blocking(void *arg)
{
    while (!atomic_load(&attack_over))
        (void)fcntl(*(const int *)arg, F_SETFL, 0);
    return NULL;
}

static void test_a_listener_that_is_made_blocking_from_inside_is_dropped(void **state)
{
    uint16_t port;
    int l = listener(&port), theirs = dup(l);
    pthread_t attacker;
    sigset_t all, old;
    (void)state;
    policy("{\"default\":\"public\",\"limits\":{\"new_conn_per_s\":100000}}");
    esb_attach(world.s, l, -1);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    assert_int_equal(pthread_create(&attacker, NULL, make_blocking, &theirs), 0);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    for (time_t end = time(NULL) + 60; world.s->tcp >= 0 && time(NULL) < end;)
        flow_accept(world.s);
    atomic_store(&attack_over, true);
    (void)pthread_join(attacker, NULL);
    assert_int_equal(world.s->tcp, -1);
    assert_non_null(world.s->policy);
    (void)close(theirs);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, world_start, stop)
    const struct CMUnitTest tests[] = {
        T(test_http_is_handed_over_with_its_first_bytes),
        T(test_denied_hosts_are_handed_over_to_be_answered_in_words),
        T(test_closed_refusals_fail_the_handshake_and_are_recorded_with_their_grant),
        T(test_closed_refusals_check_names_as_ever),
        T(test_closed_refusals_end_a_stale_address_without_a_word),
        T(test_a_name_other_than_the_one_meant_is_never_passed_through),
        T(test_a_missing_name_is_refused),
        T(test_an_encrypted_hello_is_not_passed_through),
        T(test_a_protocol_inside_tls_that_cannot_be_looked_into_is_refused),
        T(test_old_tls_is_refused_if_the_policy_says_so),
        T(test_a_broken_hello_gets_an_alert),
        T(test_other_protocols_are_reset),
        T(test_silence_is_reset_after_its_time),
        T(test_an_address_whose_name_is_forgotten_says_so),
        T(test_the_platforms_address_speaks_http),
        T(test_connect_fixes_the_destination),
        T(test_a_denied_connect_is_answered),
        T(test_a_connect_without_a_port_is_malformed),
        T(test_absolute_requests_are_handed_over),
        T(test_connect_to_the_platform_is_the_platform),
        T(test_socks_5_leads_to_a_tcp_rule),
        T(test_socks_says_what_is_not_allowed),
        T(test_a_tcp_rule_relays_both_ways_and_each_end),
        T(test_much_is_relayed_whole),
        T(test_a_change_of_policy_cuts_what_is_no_longer_allowed),
        T(test_a_stream_granted_once_ends_in_peace_unless_the_document_is_replaced),
        T(test_a_policy_that_takes_the_address_back_cuts_the_stream_there),
        T(test_a_rule_that_expires_cuts_too),
        T(test_the_quota_ends_a_stream),
        T(test_a_stream_to_nobody_is_reset_with_a_reason),
        T(test_a_passthrough_rule_replays_the_hello),
        T(test_too_many_connections_are_reset),
        T(test_new_connections_beyond_the_rate_wait),
        T(test_rates_and_uses_of_a_rule_are_counted),
        T(test_new_names_under_a_wildcard_are_so_many_a_minute),
        T(test_the_longest_unused_name_under_a_wildcard_is_new_again),
        T(test_a_stream_to_one_name_too_many_is_reset_before_anybody_is_asked),
        T(test_the_bandwidth_is_waited_for),
        T(test_a_listener_that_is_made_blocking_from_inside_is_dropped),
        T(test_hosts_beyond_the_table_are_counted_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
