/* Names to addresses to connections, and what is never dialled. */
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "egress-world.h"
#include "egress/resolve.h"
#include "egress/secrets/seal.h"
#include "egress/secrets/secrets.h"

static struct dial_result result;
static bool done;

static void on_done(void *arg, struct dial_result *r)
{
    (void)arg;
    result = *r;
    done = true;
}

static struct dial *dial(const char *host, const char *literal, uint16_t port, const struct netpol_rule *rule)
{
    struct in6_addr a = {0};
    done = false;
    if (literal)
        assert_true(netpol_literal(literal, strlen(literal), &a));
    return dial_start(world.s, host, literal ? &a : NULL, port, rule, on_done, NULL);
}

static enum dial_failure dialled(const char *host, const char *literal, uint16_t port, const struct netpol_rule *rule)
{
    (void)dial(host, literal, port, rule);
    assert_false(done);
    UNTIL(done);
    return result.failure;
}

static enum dial_failure check(const char *text, const struct netpol_rule *rule)
{
    struct in6_addr a;
    assert_true(netpol_literal(text, strlen(text), &a));
    return dial_check(&world.g, &a, rule);
}

static void test_a_name_is_resolved_and_connected_to(void **state)
{
    uint16_t port;
    int l = listener(&port);
    char text[INET6_ADDRSTRLEN];
    (void)state;
    policy("{\"default\":\"allow-public\"}");
    assert_int_equal(dialled("db.example", NULL, port, NULL), DIAL_OK);
    int fd = accept(l, NULL, NULL);
    assert_true(fd >= 0 && result.fd >= 0);
    (void)inet_ntop(AF_INET, result.addr.s6_addr + 12, text, sizeof text);
    assert_string_equal(text, "127.0.0.1");
    (void)close(fd);
    (void)close(result.fd);
    (void)close(l);
}

static void test_answers_are_kept_for_their_time(void **state)
{
    uint16_t port;
    int l = listener(&port);
    (void)state;
    policy("{\"default\":\"allow-public\"}");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dialled("db.example", NULL, port, NULL), DIAL_OK);
        (void)close(result.fd);
    }
    assert_int_equal(world.dns_questions, 2); /* A and AAAA */
    pass(61000);
    assert_int_equal(dialled("db.example", NULL, port, NULL), DIAL_OK);
    (void)close(result.fd);
    assert_int_equal(world.dns_questions, 4);
    (void)close(l);
}

static void test_a_name_that_does_not_exist_says_so(void **state)
{
    (void)state;
    policy("{\"default\":\"allow-public\"}");
    world.dns_answer = NULL;
    assert_int_equal(dialled("none.example", NULL, 80, NULL), DIAL_NO_NAME);
    assert_non_null(strstr(result.text, "there is no such name"));
    assert_int_equal(result.fd, -1);
}

static void test_a_name_with_private_addresses_only_is_not_dialled(void **state)
{
    (void)state;
    policy("{\"default\":\"allow-public\"}");
    world.dns_answer = "10.1.2.3";
    assert_int_equal(dialled("inside.example", NULL, 80, NULL), DIAL_PRIVATE);
    world.dns_answer = "169.254.169.254";
    assert_int_equal(dialled("meta.example", NULL, 80, NULL), DIAL_NEVER);
}

static void test_a_rebinding_name_is_checked_at_every_dial(void **state)
{
    (void)state;
    policy("{\"default\":\"allow-public\"}");
    world.dns_ttl = 0;
    world.dns_answer = "192.168.7.7";
    assert_int_equal(dialled("bind.example", NULL, 80, NULL), DIAL_PRIVATE);
    pass(6000);
    world.dns_answer = "127.0.0.1";
    uint16_t port;
    int l = listener(&port);
    assert_int_equal(dialled("bind.example", NULL, port, NULL), DIAL_OK);
    (void)close(result.fd);
    world.dns_answer = "10.0.0.1";
    pass(1000);
    assert_int_equal(dialled("bind.example", NULL, port, NULL), DIAL_PRIVATE);
    (void)close(l);
}

static void test_a_private_list_opens_exactly_what_it_names(void **state)
{
    struct netpol_cidr list[1];
    struct netpol_rule rule = {.private = list, .nprivate = 1};
    (void)state;
    assert_true(netpol_cidr_parse("10.20.1.5/32", &list[0]));
    assert_int_equal(check("10.20.1.5", &rule), DIAL_OK);
    assert_int_equal(check("10.20.1.6", &rule), DIAL_PRIVATE);
    assert_int_equal(check("10.20.1.5", NULL), DIAL_PRIVATE);
    assert_true(netpol_cidr_parse("169.254.0.0/16", &list[0]));
    assert_int_equal(check("169.254.169.254", &rule), DIAL_NEVER);
}

static void test_addresses_in_disguise_are_seen_through(void **state)
{
    (void)state;
    assert_true(netpol_cidr_parse("8.8.4.0/24", &world.g.config.infra[0]));
    world.g.config.ninfra = 1;
    assert_int_equal(check("8.8.8.8", NULL), DIAL_OK);
    assert_int_equal(check("8.8.4.4", NULL), DIAL_NEVER);
    assert_int_equal(check("64:ff9b::808:404", NULL), DIAL_NEVER);
    assert_int_equal(check("2002:808:404::1", NULL), DIAL_NEVER);
    assert_int_equal(check("64:ff9b::a9fe:a9fe", NULL), DIAL_NEVER);
    assert_int_equal(check("::1", NULL), DIAL_NEVER);
    assert_int_equal(check("fd00:ec2::254", NULL), DIAL_NEVER);
}

static void test_addresses_of_this_machine_are_refused(void **state)
{
    (void)state;
    world.g.config.nloopback_ok = 0;
    assert_int_equal(check("127.0.0.1", NULL), DIAL_NEVER);
    assert_int_equal(dialled(NULL, "127.0.0.1", 80, NULL), DIAL_NEVER);
}

static void test_a_closed_port_is_named(void **state)
{
    uint16_t port;
    int l = listener(&port);
    (void)state;
    (void)close(l);
    policy("{\"default\":\"allow-public\"}");
    assert_int_equal(dialled("db.example", NULL, port, NULL), DIAL_UNREACHABLE);
    assert_non_null(strstr(result.text, "127.0.0.1 port "));
    assert_non_null(strstr(result.text, "refused"));
}

static void test_a_dial_ends_after_its_time(void **state)
{
    (void)state;
    policy("{\"default\":\"allow-public\"}");
    loop_fd_set(world.g.loop, world.dns_watch, 0); /* a name server that says nothing */
    (void)dial("slow.example", NULL, 80, NULL);
    turn();
    assert_false(done);
    world.skew_ms += 10001;
    UNTIL(done);
    assert_int_equal(result.failure, DIAL_TIMEOUT);
}

static unsigned times;
static void count_done(void *arg, struct dial_result *r)
{
    (void)arg;
    times++;
    if (r->fd >= 0)
        (void)close(r->fd);
}

static void give_up(void *arg) { dial_cancel(arg); }

static void test_a_dial_whose_time_is_over_before_it_begins_is_told_once(void **state)
{
    static const char *const addresses[] = {"127.0.0.1", "10.0.0.1" /* refused at once, if it were looked at */};
    uint16_t port;
    (void)state;
    int l = listener(&port);
    for (size_t i = 0; i < ARRAY_LEN(addresses); i++) {
        struct in6_addr a;
        assert_true(netpol_literal(addresses[i], strlen(addresses[i]), &a));
        times = 0;
        assert_non_null(dial_start(world.s, NULL, &a, port, NULL, count_done, NULL));
        world.skew_ms += 60 * 1000; /* both are due in the same turn */
        turn();
        turn();
        assert_int_equal(times, 1);
    }
    /* Given up between the end of its time and its beginning. */
    struct in6_addr a;
    assert_true(netpol_literal("127.0.0.1", 9, &a));
    times = 0;
    struct dial *d = dial_start(world.s, NULL, &a, port, NULL, count_done, NULL);
    assert_true(loop_timer(world.g.loop, 10001, give_up, d) != 0);
    world.skew_ms += 60 * 1000;
    turn();
    turn();
    assert_int_equal(times, 0);
    (void)close(l);
}

/* --- the resolver ------------------------------------------------------------------------------------------------- */

enum { OTHERS = RESOLVE_CACHE - 1, BATCH = 100 };
static unsigned resolved;
static void count_resolved(void *arg, const struct resolve_answer *r)
{
    (void)arg;
    assert_int_equal(r->status, RESOLVE_OK);
    resolved++;
}

static void ask_others(unsigned from, unsigned n)
{
    char name[32];
    for (unsigned i = from; i < from + n; i++) {
        (void)snprintf(name, sizeof name, "n%u.example", i);
        assert_non_null(resolve_start(&world.g, name, count_resolved, NULL));
    }
}

/* Everybody else is waited for, so that the only name that could make room is the one whose answer this is. */
static void fill_cache(void *arg, const struct resolve_answer *r)
{
    (void)arg;
    assert_int_equal(r->status, RESOLVE_OK);
    resolved++;
    ask_others(0, OTHERS);
    ask_others(OTHERS, 1);
}

static void test_a_name_stays_while_who_asked_for_it_is_told(void **state)
{
    (void)state;
    world.dns_ttl = 300;
    resolved = 0;
    assert_non_null(resolve_start(&world.g, "first.example", count_resolved, NULL));
    UNTIL(resolved == 1);
    for (unsigned at = 0; at < OTHERS; at += BATCH) {
        unsigned n = OTHERS - at < BATCH ? OTHERS - at : BATCH, want = resolved + n;
        ask_others(at, n);
        for (int i = 0; i < 20 && resolved < want; i++)
            for (int k = 0; k < 200 && resolved < want; k++)
                turn();
        assert_int_equal(resolved, want);
    }
    resolved = 0;
    assert_non_null(resolve_start(&world.g, "first.example", fill_cache, NULL));
    assert_non_null(resolve_start(&world.g, "first.example", count_resolved, NULL));
    UNTIL(resolved == OTHERS + 3);
}

static void test_a_dial_can_be_given_up_at_any_time(void **state)
{
    uint16_t port;
    int l = listener(&port);
    (void)state;
    policy("{\"default\":\"allow-public\"}");
    dial_cancel(dial("db.example", NULL, port, NULL));
    struct dial *d = dial("db.example", NULL, port, NULL);
    turn();
    if (!done)
        dial_cancel(d);
    else
        (void)close(result.fd);
    dial_cancel(dial(NULL, "127.0.0.1", port, NULL));
    turn();
    (void)close(l);
}

/* --- through a proxy ---------------------------------------------------------------------------------------------- */

static int proxied(int l, uint16_t port, struct buf *heard)
{
    static const unsigned char target[] = {5, 1, 0, 1, 127, 0, 0, 1};
    int fd = -1;
    (void)dial("db.example", NULL, 443, NULL);
    UNTIL((fd = fd >= 0 ? fd : accept4(l, NULL, NULL, SOCK_NONBLOCK)) >= 0);
    hears_bytes(fd, heard, 3);
    assert_memory_equal(heard->p, "\x05\x01\x00", 3);
    says(fd, "\x05\x00", 2);
    buf_done(heard);
    hears_bytes(fd, heard, 10);
    assert_memory_equal(heard->p, target, sizeof target);
    assert_memory_equal(heard->p + 8, "\x01\xbb", 2);
    (void)port;
    return fd;
}

static void use_proxy(uint16_t port)
{
    char text[200];
    (void)snprintf(text, sizeof text, "{\"default\":\"allow-public\",\"upstream_proxy\":\"proxy.example:%u\"}", port);
    policy(text);
}

static void test_an_upstream_proxy_is_told_the_checked_address(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    uint16_t port;
    int l = listener(&port);
    (void)state;
    use_proxy(port);
    int fd = proxied(l, port, &heard);
    says(fd, "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00hi", 12);
    UNTIL(done);
    assert_int_equal(result.failure, DIAL_OK);
    char two[2];
    assert_int_equal(recv(result.fd, two, 2, 0), 2); /* what follows belongs to the stream */
    assert_memory_equal(two, "hi", 2);
    (void)close(result.fd);
    (void)close(fd);
    (void)close(l);
}

/* Seals for the user joe at that port. */
static void use_password(const char *password, uint16_t port)
{
    unsigned char private_key[SEAL_KEY], public_key[SEAL_KEY];
    _cleanup_buf_ struct buf sealed = {0}, text = {0};
    char address[40], policy_text[200];
    struct err err;
    (void)snprintf(address, sizeof address, "proxy.example:%u", port);
    (void)snprintf(policy_text, sizeof policy_text,
                   "{\"default\":\"allow-public\",\"upstream_proxy\":{\"address\":\"%s\",\"username\":\"joe\"}}",
                   address);
    policy(policy_text);
    assert_int_equal(seal_new_key(private_key, &err), 0);
    assert_int_equal(seal_public(private_key, public_key, &err), 0);
    _cleanup_free_ char *context = secret_proxy_context(address, "joe");
    assert_int_equal(seal_bytes(public_key, context, password, strlen(password), &sealed, &err), 0);
    base64_encode(&text, sealed.p, sealed.n);
    world.g.vault = secrets_new(private_key);
    world.s->proxy_password = xstrdup(buf_str(&text));
}

static void test_a_proxy_is_told_the_sealed_password(void **state)
{
    uint16_t port;
    int l = listener(&port);
    (void)state;
    for (int wrong = 0; wrong < 3; wrong++) {
        _cleanup_buf_ struct buf heard = {0};
        use_password("pa55", port);
        if (wrong == 2) /* not what was sealed */
            world.s->proxy_password[20] = world.s->proxy_password[20] == 'A' ? 'B' : 'A';
        int fd = -1;
        (void)dial("db.example", NULL, 443, NULL);
        UNTIL((fd = fd >= 0 ? fd : accept4(l, NULL, NULL, SOCK_NONBLOCK)) >= 0);
        if (wrong < 2) {
            hears_bytes(fd, &heard, 3);
            assert_memory_equal(heard.p, "\x05\x01\x02", 3);
            says(fd, "\x05\x02", 2);
            hears_bytes(fd, &heard, 3 + 10);
            assert_memory_equal(heard.p + 3, "\x01\x03joe\x04pa55", 10);
            says(fd, wrong ? "\x01\x01" : "\x01\x00", 2);
        }
        if (!wrong) {
            hears_bytes(fd, &heard, 3 + 10 + 10);
            says(fd, "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00", 10);
        }
        UNTIL(done);
        assert_int_equal(result.failure, wrong ? DIAL_UNREACHABLE : DIAL_OK);
        if (wrong)
            assert_non_null(
                strstr(result.text, wrong == 1 ? "does not accept the user name or the password" : "cannot be opened"));
        else
            (void)close(result.fd);
        (void)close(fd);
        secrets_free(world.g.vault);
        world.g.vault = NULL;
        free(world.s->proxy_password);
        world.s->proxy_password = NULL;
    }
    (void)close(l);
}

static void test_a_proxy_that_refuses_is_quoted(void **state)
{
    _cleanup_buf_ struct buf heard = {0};
    uint16_t port;
    int l = listener(&port);
    (void)state;
    use_proxy(port);
    int fd = proxied(l, port, &heard);
    says(fd, "\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00", 10);
    UNTIL(done);
    assert_int_equal(result.failure, DIAL_UNREACHABLE);
    assert_non_null(strstr(result.text, "does not allow"));
    (void)close(fd);
    (void)close(l);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, world_start, world_stop)
    const struct CMUnitTest tests[] = {
        T(test_a_name_is_resolved_and_connected_to),
        T(test_answers_are_kept_for_their_time),
        T(test_a_name_that_does_not_exist_says_so),
        T(test_a_name_with_private_addresses_only_is_not_dialled),
        T(test_a_rebinding_name_is_checked_at_every_dial),
        T(test_a_private_list_opens_exactly_what_it_names),
        T(test_addresses_in_disguise_are_seen_through),
        T(test_addresses_of_this_machine_are_refused),
        T(test_a_closed_port_is_named),
        T(test_a_dial_ends_after_its_time),
        T(test_a_dial_whose_time_is_over_before_it_begins_is_told_once),
        T(test_a_name_stays_while_who_asked_for_it_is_told),
        T(test_a_dial_can_be_given_up_at_any_time),
        T(test_an_upstream_proxy_is_told_the_checked_address),
        T(test_a_proxy_is_told_the_sealed_password),
        T(test_a_proxy_that_refuses_is_quoted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
