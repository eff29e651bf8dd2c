/* The resolver of a sandbox: bytes, decisions, datagrams, streams. */
#include "egress-world.h"
#include "egress/resolve.h"

#define ALLOW "{\"rules\":[{\"hosts\":[\"api.example\",\"*.wild.example\"]}]}"

static void add_name(struct buf *b, const char *name)
{
    while (*name) {
        size_t n = strcspn(name, ".");
        buf_addc(b, (char)n);
        buf_add(b, name, n);
        name += n + (name[n] == '.');
    }
    buf_addc(b, 0);
}

static void query(struct buf *b, const char *name, unsigned type, bool edns)
{
    const unsigned char head[] = {0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, edns};
    const unsigned char tail[] = {(unsigned char)(type >> 8), (unsigned char)type, 0, 1};
    buf_add(b, head, sizeof head);
    add_name(b, name);
    buf_add(b, tail, sizeof tail);
    if (edns)
        buf_add(b, "\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00", 11);
}

/* What comes back over UDP, through a real pair of sockets. */
struct answer {
    unsigned rcode, flags, count, additional;
    struct buf raw;
};
static int client_fd = -1;

static int start(void **state)
{
    uint16_t port, ignored;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    (void)world_start(state);
    int udp = bound(SOCK_DGRAM, &port), on = 1;
    assert_int_equal(setsockopt(udp, IPPROTO_IP, IP_PKTINFO, &on, sizeof on), 0);
    client_fd = bound(SOCK_DGRAM, &ignored);
    a.sin_port = htons(port);
    assert_int_equal(connect(client_fd, (struct sockaddr *)&a, sizeof a), 0);
    esb_attach(world.s, -1, udp);
    return 0;
}

static int stop(void **state)
{
    (void)close(client_fd);
    return world_stop(state);
}

static void ask_raw(const void *p, size_t n, struct answer *ret)
{
    unsigned char bytes[2048];
    ssize_t got = -1;
    assert_int_equal(send(client_fd, p, n, 0), (ssize_t)n);
    UNTIL((got = recv(client_fd, bytes, sizeof bytes, MSG_DONTWAIT)) >= 0);
    assert_true(got >= 12);
    buf_done(&ret->raw);
    buf_add(&ret->raw, bytes, (size_t)got);
    ret->flags = (unsigned)bytes[2] << 8 | bytes[3];
    ret->rcode = bytes[3] & 15;
    ret->count = bytes[7];
    ret->additional = bytes[11];
}

static struct answer ask(const char *name, unsigned type)
{
    _cleanup_buf_ struct buf q = {0};
    struct answer a = {0};
    query(&q, name, type, false);
    ask_raw(q.p, q.n, &a);
    return a;
}

/* The address of the only record of an answer. */
static uint32_t address(struct answer *a)
{
    uint32_t v4;
    assert_int_equal(a->rcode, 0);
    assert_int_equal(a->count, 1);
    memcpy(&v4, a->raw.p + a->raw.n - 4, 4);
    buf_done(&a->raw);
    return ntohl(v4);
}

static uint32_t address_of(const char *name)
{
    struct answer a = ask(name, DNS_A);
    return address(&a);
}

static unsigned rcode_of(const char *name, unsigned type, unsigned *ret_count)
{
    struct answer a = ask(name, type);
    *ret_count = a.count;
    buf_done(&a.raw);
    return a.rcode;
}

static struct in6_addr v4_address(uint32_t v4)
{
    struct in6_addr a = {0};
    uint32_t net = htonl(v4);
    a.s6_addr[10] = a.s6_addr[11] = 0xff;
    memcpy(a.s6_addr + 12, &net, 4);
    return a;
}

static void test_names_get_addresses_of_ours_and_nobody_is_asked(void **state)
{
    (void)state;
    policy(ALLOW);
    uint32_t one = address_of("api.example"), two = address_of("x.wild.example"), no = address_of("evil.example");
    assert_int_equal(one >> 16, 0xc612);
    assert_int_equal(two >> 16, 0xc612);
    assert_int_equal(no >> 16, 0xc613);
    assert_int_not_equal(one, two);
    assert_int_equal(address_of("API.Example"), one);
    struct in6_addr a = v4_address(one), b = v4_address(no);
    assert_string_equal(names_name(world.s->names, &a), "api.example");
    assert_string_equal(names_name(world.s->names, &b), "evil.example");
    assert_int_equal(world.dns_questions, 0);
}

static void test_the_case_of_a_question_is_kept_and_edns_is_answered(void **state)
{
    _cleanup_buf_ struct buf q = {0};
    struct answer a = {0};
    (void)state;
    policy(ALLOW);
    query(&q, "aPi.ExAmPlE", DNS_A, true);
    ask_raw(q.p, q.n, &a);
    assert_memory_equal(a.raw.p + 12, q.p + 12, 13);
    assert_int_equal(a.additional, 1);
    assert_memory_equal(a.raw.p + a.raw.n - 11, "\x00\x00\x29\x04\xd0", 5);
    assert_int_equal(a.flags & 0x8180, 0x8180);
    buf_done(&a.raw);
}

static void test_each_type_has_its_answer(void **state)
{
    unsigned n;
    (void)state;
    policy(ALLOW);
    assert_int_equal(rcode_of("api.example", DNS_AAAA, &n), DNS_OK);
    assert_int_equal(n, 0);
    assert_int_equal(rcode_of("api.example", DNS_HTTPS, &n), DNS_OK);
    assert_int_equal(n, 0);
    assert_int_equal(rcode_of("api.example", 16, &n), DNS_OK);
    assert_int_equal(n, 0);
    assert_int_equal(rcode_of("api.example", DNS_ANY, &n), DNS_REFUSED);
    assert_int_equal(rcode_of("api.example", 252, &n), DNS_REFUSED);
    assert_int_equal(rcode_of("1.2.3.4", DNS_A, &n), DNS_NXDOMAIN);
}

static void test_our_own_names_mean_the_platform_and_the_sandbox(void **state)
{
    (void)state;
    policy(ALLOW);
    assert_int_equal(address_of("sandbox.internal"), 0x0aff0001);
    assert_int_equal(address_of("localhost"), 0x7f000001);
}

static void test_an_address_of_ours_can_be_looked_up(void **state)
{
    char name[64];
    (void)state;
    policy(ALLOW);
    uint32_t v4 = address_of("api.example");
    (void)snprintf(name, sizeof name, "%u.%u.%u.%u.in-addr.arpa", v4 & 255, v4 >> 8 & 255, v4 >> 16 & 255, v4 >> 24);
    struct answer a = ask(name, DNS_PTR);
    assert_int_equal(a.count, 1);
    assert_memory_equal(a.raw.p + a.raw.n - 13,
                        "\x03"
                        "api\x07"
                        "example\x00",
                        13);
    buf_done(&a.raw);
    unsigned n;
    assert_int_equal(rcode_of("8.8.8.8.in-addr.arpa", DNS_PTR, &n), DNS_NXDOMAIN);
}

static void test_synthetic_ipv6_stands_for_the_same_name(void **state)
{
    (void)state;
    policy("{\"dns\":{\"aaaa\":true},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    struct answer a = ask("api.example", DNS_AAAA);
    struct in6_addr v6;
    assert_int_equal(a.count, 1);
    memcpy(&v6, a.raw.p + a.raw.n - 16, 16);
    buf_done(&a.raw);
    assert_true(names_synthetic(&v6));
    assert_string_equal(names_name(world.s->names, &v6), "api.example");
}

static void test_denied_names_may_not_exist_instead(void **state)
{
    unsigned n;
    (void)state;
    policy("{\"dns\":{\"denied\":\"nxdomain\"},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    assert_int_equal(rcode_of("evil.example", DNS_A, &n), DNS_NXDOMAIN);
    policy("{\"dns\":{\"denied\":\"refused\"},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    assert_int_equal(rcode_of("evil.example", DNS_A, &n), DNS_REFUSED);
}

static void test_a_denied_name_is_recorded_once_a_minute(void **state)
{
    (void)state;
    policy(ALLOW);
    for (int i = 0; i < 5; i++)
        (void)address_of("evil.example");
    assert_int_equal(world.s->counts.denied, 1);
    assert_denied("host_not_allowed");
    pass(61000);
    (void)address_of("evil.example");
    assert_int_equal(world.s->counts.denied, 2);
}

/* 130 denied names within two seconds; how many of them fail. */
static unsigned flood_denied(unsigned round)
{
    char name[40];
    unsigned n, failed = 0;
    for (unsigned i = 0; i < 130; i++) {
        (void)snprintf(name, sizeof name, "x%u.evil.example", round * 1000 + i);
        failed += rcode_of(name, DNS_A, &n) == DNS_SERVFAIL;
        world.skew_ms += 15;
        if (i % 20 == 0)
            turn();
    }
    return failed;
}

static void test_too_many_denied_names_or_questions_fail(void **state)
{
    unsigned n, failed = 0;
    (void)state;
    stop_clock();
    policy(ALLOW);
    uint64_t before = world.s->counts.denied;
    failed = flood_denied(0);
    if (failed != 10) { /* the minute that is counted ended meanwhile; the next one is 58 s long */
        world.skew_ms += 60000;
        before = world.s->counts.denied;
        failed = flood_denied(1);
    }
    assert_int_equal(failed, 10);
    assert_int_equal(world.s->counts.denied - before, 120);
    failed = 0;
    for (int i = 0; i < 300; i++)
        failed += rcode_of("api.example", DNS_A, &n) == DNS_SERVFAIL;
    assert_true(failed > 0);
}

static void test_malformed_questions_are_refused_or_ignored(void **state)
{
    _cleanup_buf_ struct buf q = {0};
    struct answer a = {0};
    struct dns_query parsed;
    enum dns_rcode rcode;
    (void)state;
    policy(ALLOW);
    query(&q, "api.example", DNS_A, false);
    buf_addc(&q, 0);
    ask_raw(q.p, q.n, &a);
    assert_int_equal(a.rcode, DNS_FORMERR);
    q.n--;
    q.p[2] = 0x10; /* opcode 2 */
    ask_raw(q.p, q.n, &a);
    assert_int_equal(a.rcode, DNS_NOTIMP);
    q.p[2] = 1;
    q.p[13] = ' ';
    ask_raw(q.p, q.n, &a);
    assert_int_equal(a.rcode, DNS_FORMERR);
    buf_done(&a.raw);
    q.p[2] = (char)0x81; /* an answer */
    assert_false(dns_parse(q.p, q.n, &parsed, &rcode));
    assert_false(dns_parse(q.p, 11, &parsed, &rcode));
}

static void test_in_real_mode_the_node_is_asked_for_allowed_names_only(void **state)
{
    unsigned n;
    (void)state;
    policy("{\"dns\":{\"mode\":\"real\"},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    assert_int_equal(address_of("api.example"), 0x7f000001);
    struct in6_addr a = v4_address(0x7f000001);
    assert_string_equal(names_name(world.s->names, &a), "api.example");
    unsigned asked = world.dns_questions;
    assert_int_equal(address_of("evil.example") >> 16, 0xc613);
    assert_int_equal(world.dns_questions, asked);
    world.dns_answer = NULL;
    pass(61000);
    assert_int_equal(rcode_of("api.example", DNS_A, &n), DNS_NXDOMAIN);
}

static void test_in_real_mode_new_names_under_a_wildcard_are_limited(void **state)
{
    unsigned n;
    (void)state;
    policy("{\"dns\":{\"mode\":\"real\"},\"limits\":{\"new_names_per_min\":2},\"allow\":[\"*.z.example\",\"api.z."
           "example\"]}");
    assert_int_equal(address_of("a.z.example"), 0x7f000001);
    assert_int_equal(address_of("b.z.example"), 0x7f000001);
    unsigned asked = world.dns_questions;
    assert_int_equal(rcode_of("c2VjcmV0.z.example", DNS_A, &n), DNS_SERVFAIL);
    assert_int_equal(world.dns_questions, asked);
    assert_denied("too_many_new_names");
    assert_int_equal(address_of("a.z.example"), 0x7f000001);
    assert_int_equal(address_of("api.z.example"), 0x7f000001); /* it stands there by itself */
}

static void test_a_sandbox_may_end_while_a_question_waits(void **state)
{
    _cleanup_buf_ struct buf q = {0};
    (void)state;
    policy("{\"dns\":{\"mode\":\"real\"},\"rules\":[{\"hosts\":[\"api.example\"]}]}");
    loop_fd_set(world.g.loop, world.dns_watch, 0);
    query(&q, "api.example", DNS_A, false);
    assert_int_equal(send(client_fd, q.p, q.n, 0), (ssize_t)q.n);
    turn();
    assert_non_null(world.s->dns);
    esb_detach(world.s);
    assert_null(world.s->dns);
    loop_fd_set(world.g.loop, world.dns_watch, LOOP_IN);
    turn();
}

static void test_without_a_policy_nothing_is_answered(void **state)
{
    _cleanup_buf_ struct buf q = {0};
    unsigned char bytes[512];
    (void)state;
    query(&q, "api.example", DNS_A, false);
    assert_int_equal(send(client_fd, q.p, q.n, 0), (ssize_t)q.n);
    turn();
    assert_int_equal(recv(client_fd, bytes, sizeof bytes, MSG_DONTWAIT), -1);
    policy(ALLOW);
    ssize_t got = -1;
    UNTIL((got = recv(client_fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0); /* it had waited */
}

static void test_any_resolver_over_tcp_is_ours(void **state)
{
    _cleanup_buf_ struct buf q = {0}, heard = {0};
    (void)state;
    policy(ALLOW);
    int fd = sandbox_connects("8.8.8.8", 53);
    buf_add(&q, "\x00\x1d", 2);
    query(&q, "api.example", DNS_A, false);
    assert_int_equal(q.n, 2 + 0x1d);
    says(fd, q.p, 10);
    turn();
    says(fd, q.p + 10, q.n - 10);
    says(fd, q.p, q.n); /* a second one behind it */
    hears_bytes(fd, &heard, 2 * (2 + 0x1d + 16));
    assert_int_equal((unsigned char)heard.p[heard.n - 4], 198);
    assert_int_equal((unsigned char)heard.p[heard.n - 3], 18);
    (void)close(fd);
    UNTIL(world.s->nflows == 0);
}

static void test_a_stream_that_is_not_dns_is_closed(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    (void)state;
    policy(ALLOW);
    int fd = sandbox_connects("8.8.8.8", 53);
    says(fd, "\xff\xff", 2);
    (void)hears_end(fd, &heard);
    assert_int_equal(heard.n, 0);
    (void)close(fd);
}

static void test_the_longest_unused_name_makes_room(void **state)
{
    char name[40];
    (void)state;
    struct names *n = names_new();
    uint32_t first = names_address(n, "first.example", true), kept = names_address(n, "kept.example", true);
    for (int i = 0; i < 4200; i++) {
        (void)snprintf(name, sizeof name, "n%d.example", i);
        (void)names_address(n, name, true);
        assert_int_equal(names_address(n, "kept.example", true), kept);
    }
    struct in6_addr a = v4_address(first), b = v4_address(kept);
    assert_null(names_name(n, &a));
    assert_string_equal(names_name(n, &b), "kept.example");
    assert_int_not_equal(names_address(n, "first.example", true), first);
    names_free(n);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        T(test_names_get_addresses_of_ours_and_nobody_is_asked),
        T(test_the_case_of_a_question_is_kept_and_edns_is_answered),
        T(test_each_type_has_its_answer),
        T(test_our_own_names_mean_the_platform_and_the_sandbox),
        T(test_an_address_of_ours_can_be_looked_up),
        T(test_synthetic_ipv6_stands_for_the_same_name),
        T(test_denied_names_may_not_exist_instead),
        T(test_a_denied_name_is_recorded_once_a_minute),
        T(test_too_many_denied_names_or_questions_fail),
        T(test_malformed_questions_are_refused_or_ignored),
        T(test_in_real_mode_the_node_is_asked_for_allowed_names_only),
        T(test_in_real_mode_new_names_under_a_wildcard_are_limited),
        T(test_a_sandbox_may_end_while_a_question_waits),
        T(test_without_a_policy_nothing_is_answered),
        T(test_any_resolver_over_tcp_is_ours),
        T(test_a_stream_that_is_not_dns_is_closed),
        T(test_the_longest_unused_name_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
