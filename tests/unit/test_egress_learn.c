#include "tests/lib/unit.h"

#include "unit/egress-deny-world.h"

#define ASKS                                                                                                      \
    "{\"default\":\"deny\",\"on_miss\":\"ask\",\"ask_hold\":20,\"rules\":[{\"id\":\"never\",\"effect\":\"deny\"," \
    "\"hosts\":[\"paste.example.org\"]}]}"
#define GRANTED                                                                                               \
    "{\"default\":\"deny\",\"on_miss\":\"ask\",\"rules\":[{\"id\":\"granted\",\"hosts\":[\"a.example.org\"]," \
    "\"http\":[{\"methods\":[\"GET\"],\"paths\":[\"/x\"]}]}]}"

static int start_asks(void **state)
{
    (void)state;
    deny_world_start(ASKS);
    return 0;
}
static int start_plain(void **state)
{
    (void)state;
    deny_world_start("{\"default\":\"deny\"}");
    return 0;
}
static int stop(void **state)
{
    (void)state;
    deny_world_stop();
    return 0;
}

/* --- asks
 * ------------------------------------------------------------------------------------------------------------- */

struct answer {
    unsigned n;
    enum netpol_reason reason;
    char id[24];
    uint64_t waiter;
    bool free_all, again; /* in the callback */
};

static const char *ask(struct answer *a, const char *host, const char *method, const char *path);

static void on_decided(void *arg, enum netpol_reason reason, const char *id)
{
    struct answer *a = arg;
    a->n++;
    a->reason = reason;
    (void)snprintf(a->id, sizeof a->id, "%s", id);
    if (a->free_all)
        asks_free(&world_sandbox);
    if (a->again) {
        a->again = false;
        assert_non_null(ask(a, "again.example.org", "GET", "/"));
    }
}

static const char *ask(struct answer *a, const char *host, const char *method, const char *path)
{
    struct netpol_flow f = {.host = host, .port = 443, .tls = true};
    struct netpol_target t = {0};
    struct netpol_request q = {.method = method, .target = &t};
    const char *why;
    if (path)
        assert_true(netpol_target(path, NULL, &t, &why));
    unsigned before = a->n;
    const char *id = ask_start(&world_sandbox, &f, path ? &q : NULL, NULL, on_decided, a, &a->waiter);
    assert_int_equal(a->n, before); /* never from inside */
    netpol_target_done(&t);
    return id;
}

static void a_request_waits_until_a_policy_allows_it(void **state)
{
    (void)state;
    struct answer a = {0};
    const char *id = ask(&a, "a.example.org", "GET", "/x");
    assert_non_null(id);
    has(buf_str(&world_told), "{\"type\":\"ask\",\"sandbox\":\"box1\",\"id\":\"ap_");
    has(world_told.p,
        "\"host\":\"a.example.org\",\"port\":443,\"method\":\"GET\",\"path\":\"/x\",\"rule\":null,\"tls\":true");
    turn();
    assert_int_equal(a.n, 0);
    set_policy(GRANTED);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.reason, NETPOL_R_NONE);
    assert_string_equal(a.id, id);
    pass(100000);
    assert_int_equal(a.n, 1);
}

static void a_policy_that_does_not_speak_of_it_changes_nothing(void **state)
{
    (void)state;
    struct answer a = {0};
    assert_non_null(ask(&a, "b.example.org", "GET", "/x"));
    set_policy(GRANTED);
    assert_int_equal(a.n, 0);
}

static void a_policy_that_forbids_it_or_asks_no_more_refuses_it(void **state)
{
    (void)state;
    struct answer a = {0}, b = {0};
    assert_non_null(ask(&a, "a.example.org", "GET", "/x"));
    set_policy(
        "{\"default\":\"deny\",\"on_miss\":\"ask\",\"rules\":[{\"effect\":\"deny\",\"hosts\":[\"a.example.org\"]}]}");
    assert_int_equal(a.reason, NETPOL_R_APPROVAL_DENIED);
    assert_non_null(ask(&b, "b.example.org", "GET", "/x"));
    set_policy("{\"default\":\"deny\"}");
    assert_int_equal(b.reason, NETPOL_R_APPROVAL_DENIED);
}

static void when_nobody_can_be_asked_who_waits_hears_it_at_once(void **state)
{
    (void)state;
    struct answer a = {0}, b = {0};
    _cleanup_buf_ struct buf out = {0};
    char id[24];
    (void)snprintf(id, sizeof id, "%s", ask(&a, "a.example.org", "GET", "/x"));
    ask_dropped(&world_sandbox, "ap_other");
    ask_dropped(&world_sandbox, id);
    turn();
    assert_int_equal(a.n, 1);
    assert_int_equal(a.reason, NETPOL_R_RATE);
    assert_true(ask_status(&world_sandbox, id, &out));
    assert_non_null(strstr(buf_str(&out), "\"status\":\"too_many\""));
    assert_string_not_equal(ask(&b, "a.example.org", "GET", "/x"), id); /* the next one is asked about again */
}

static void somebody_refuses(void **state)
{
    (void)state;
    struct answer a = {0}, b = {0}, c = {0};
    char id[24];
    (void)snprintf(id, sizeof id, "%s", ask(&a, "a.example.org", "GET", "/x"));
    ask_denied(&world_sandbox, "ap_other");
    ask_denied(&world_sandbox, id);
    ask_denied(&world_sandbox, id);
    assert_int_equal(a.n, 0);
    turn();
    assert_int_equal(a.n, 1);
    assert_int_equal(a.reason, NETPOL_R_APPROVAL_DENIED);
    /* The same soon after is refused without asking again; later somebody is asked again. */
    assert_string_equal(ask(&b, "a.example.org", "GET", "/x"), id);
    turn();
    assert_int_equal(b.reason, NETPOL_R_APPROVAL_DENIED);
    assert_int_equal(count(world_told.p, "\"type\":\"ask\""), 1);
    pass(61000);
    assert_string_not_equal(ask(&c, "a.example.org", "GET", "/x"), id);
    assert_int_equal(count(world_told.p, "\"type\":\"ask\""), 2);
}

static void the_hold_time_ends_the_wait_but_not_the_question(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct answer a = {0};
    const char *id = ask(&a, "a.example.org", "GET", "/x");
    pass(19000);
    assert_int_equal(a.n, 0);
    pass(1001);
    turn();
    assert_int_equal(a.n, 1);
    assert_int_equal(a.reason, NETPOL_R_APPROVAL_PENDING);
    assert_true(ask_status(&world_sandbox, id, &b));
    has(b.p, "\"status\":\"pending\"");
    set_policy(GRANTED);
    buf_done(&b);
    assert_true(ask_status(&world_sandbox, id, &b));
    has(b.p, "\"status\":\"allowed\"");
    assert_int_equal(a.n, 1);
}

static void nobody_decides_and_the_question_expires(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct answer a = {0};
    const char *id = ask(&a, "a.example.org", "GET", "/x");
    pass(60 * 60 * 1000);
    assert_true(ask_status(&world_sandbox, id, &b));
    has(b.p, "\"status\":\"expired\"");
}

static void equal_requests_join_and_all_hear(void **state)
{
    (void)state;
    struct answer a[5] = {{0}};
    const char *first = ask(&a[0], "a.example.org", "GET", "/x");
    assert_string_equal(ask(&a[1], "a.example.org", "GET", "/x"), first);
    assert_string_not_equal(ask(&a[2], "a.example.org", "GET", "/y"), first);
    assert_string_not_equal(ask(&a[3], "a.example.org", "POST", "/x"), first);
    assert_string_not_equal(ask(&a[4], "b.example.org", NULL, NULL), first);
    assert_int_equal(count(world_told.p, "\"type\":\"ask\""), 4);
    set_policy(GRANTED);
    assert_int_equal(a[0].n + a[1].n, 2);
    assert_int_equal(a[2].n + a[3].n + a[4].n, 0);
}

static void who_cancelled_hears_nothing_even_when_it_was_decided(void **state)
{
    (void)state;
    struct answer a = {0}, b = {0};
    char id[24];
    (void)snprintf(id, sizeof id, "%s", ask(&a, "a.example.org", "GET", "/x"));
    assert_non_null(ask(&b, "a.example.org", "GET", "/x"));
    ask_denied(&world_sandbox, id);
    ask_cancel(&world_sandbox, a.waiter);
    ask_cancel(&world_sandbox, 4711);
    turn();
    assert_int_equal(a.n, 0);
    assert_int_equal(b.n, 1);
}

static void what_waits_is_limited(void **state)
{
    (void)state;
    static struct answer a[300];
    char path[32];
    for (int i = 0; i < 64; i++) {
        (void)snprintf(path, sizeof path, "/%d", i);
        assert_non_null(ask(&a[i], "a.example.org", "GET", path));
    }
    assert_null(ask(&a[64], "a.example.org", "GET", "/one-more"));
    assert_non_null(ask(&a[65], "a.example.org", "GET", "/0")); /* joins */
    int n = 65;
    while (n < 299 && ask(&a[n], "a.example.org", "GET", "/1"))
        n++;
    assert_int_equal(n, 65 + 256 - 65);
}

static void decided_questions_make_room(void **state)
{
    (void)state;
    char path[32], id[24];
    for (int i = 0; i < 400; i++) {
        struct answer a = {0};
        (void)snprintf(path, sizeof path, "/%d", i);
        (void)snprintf(id, sizeof id, "%s", ask(&a, "a.example.org", "GET", path));
        ask_denied(&world_sandbox, id);
        turn();
        assert_int_equal(a.n, 1);
    }
}

static void a_callback_may_ask_again_or_end_it_all(void **state)
{
    (void)state;
    struct answer a = {.again = true}, b = {.free_all = true}, c = {.free_all = true};
    assert_non_null(ask(&a, "a.example.org", "GET", "/x"));
    set_policy(GRANTED);
    assert_int_equal(a.n, 1);
    assert_non_null(ask(&b, "b.example.org", "GET", "/x"));
    assert_non_null(ask(&c, "b.example.org", "GET", "/x"));
    pass(21000);
    assert_int_equal(b.n + c.n, 1);
    assert_null(world_sandbox.asks);
}

static void a_new_front_is_told_what_waits(void **state)
{
    (void)state;
    struct answer a = {0}, b = {0};
    char id[24];
    (void)snprintf(id, sizeof id, "%s", ask(&a, "a.example.org", "GET", "/x"));
    assert_non_null(ask(&b, "b.example.org", "GET", "/x"));
    ask_denied(&world_sandbox, id);
    buf_done(&world_told);
    asks_tell(&world_sandbox);
    assert_int_equal(count(world_told.p, "\"type\":\"ask\""), 1);
    has(world_told.p, "b.example.org");
}

static void inside_asks_and_waits_for_the_decision(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char path[100], id[24];
    bool eof;
    post("/v1/egress/requests",
         "{\"host\":\"A.example.org\",\"port\":443,\"method\":\"GET\",\"path\":\"/x\",\"reason\":\"to build\"}", &b);
    has(b.p, "HTTP/1.1 202 ");
    has(b.p, "\"status\":\"pending\"");
    has(world_told.p, "\"why\":\"to build\"");
    const char *at = strstr(b.p, "\"id\":\"") + 6;
    (void)snprintf(id, sizeof id, "%.*s", (int)strcspn(at, "\""), at);
    (void)snprintf(path, sizeof path, "/v1/egress/requests/%s", id);
    get(path, &b);
    has(b.p, "\"status\":\"pending\"");
    get("/v1/egress/requests/ap_none", &b);
    has(b.p, "HTTP/1.1 404 ");
    int fd = client();
    (void)snprintf(path, sizeof path, "GET /v1/egress/requests/%s?wait=60 HTTP/1.1\r\nhost: x\r\n\r\n", id);
    say(fd, path);
    buf_done(&b);
    hear(fd, &b, &eof);
    assert_int_equal(b.n, 0);
    set_policy(GRANTED);
    hear(fd, &b, &eof);
    has(b.p, "\"status\":\"allowed\"");
    (void)close(fd);
    turn();
}

static void inside_waits_no_longer_than_it_said_and_may_leave(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char text[100];
    post("/v1/egress/requests", "{\"host\":\"a.example.org\"}", &b);
    const char *at = strstr(b.p, "\"id\":\"") + 6;
    (void)snprintf(text, sizeof text, "GET /v1/egress/requests/%.19s?wait=5 HTTP/1.1\r\nhost: x\r\n\r\n", at);
    int stays = client(), leaves = client();
    say(stays, text);
    say(leaves, text);
    (void)close(leaves);
    pass(4000);
    pass(1001);
    expect(stays, "\"status\":\"pending\"", false);
    (void)close(stays);
    turn();
}

static void inside_is_told_what_cannot_be_asked_for(void **state)
{
    (void)state;
    static const struct {
        const char *body, *want;
    } cases[] = {
        {"{\"host\":\"paste.example.org\",\"path\":\"/\"}", "HTTP/1.1 403 "},
        {"{\"host\":\"169.254.169.254\"}", "HTTP/1.1 403 "},
        {"{\"host\":\"a.example.org\",\"path\":\"no-slash\"}", "HTTP/1.1 400 "},
        {"{\"host\":\"a.example.org\",\"port\":0}", "HTTP/1.1 400 "},
        {"{\"host\":\"a.example.org\",\"what\":1}", "HTTP/1.1 400 "},
        {"{\"host\":\"*.example.org\"}", "HTTP/1.1 400 "},
        {"{\"host\":7}", "HTTP/1.1 400 "},
        {"{}", "HTTP/1.1 400 "},
        {"[]", "HTTP/1.1 400 "},
        {"{", "HTTP/1.1 400 "},
        {"", "HTTP/1.1 400 "},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_buf_ struct buf b = {0};
        post("/v1/egress/requests", cases[i].body, &b);
        if (!strstr(b.p, cases[i].want))
            fail_msg("%s: %s", cases[i].body, b.p);
    }
    assert_null(strstr(buf_str(&world_told), "\"type\":\"ask\""));
}

static void a_body_from_inside_has_a_limit(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0}, body = {0};
    buf_adds(&body, "{\"host\":\"");
    for (int i = 0; i < 17000; i++)
        buf_addc(&body, 'a');
    buf_adds(&body, "\"}");
    post("/v1/egress/requests", body.p, &b);
    has(b.p, "HTTP/1.1 413 ");
}

static void listeners_hear_of_decisions(void **state)
{
    (void)state;
    struct answer a = {0};
    int fd = client();
    say(fd, "GET /v1/egress/events HTTP/1.1\r\nhost: sandbox.internal\r\n\r\n");
    expect(fd, "HTTP/1.1 200 ", false);
    assert_non_null(ask(&a, "a.example.org", "GET", "/x"));
    set_policy(GRANTED);
    expect(fd, "event: decided\ndata: {\"id\":\"ap_", false);
    (void)close(fd);
    turn();
}

/* --- learning
 * --------------------------------------------------------------------------------------------------------- */

static void see(const char *host, uint16_t port, bool tls, const char *method, const char *path)
{
    struct netpol_flow f = {.host = host, .port = port, .tls = tls};
    struct netpol_target t;
    const char *why;
    if (!netpol_target(path, NULL, &t, &why))
        fail_msg("%s: %s", path, why);
    struct netpol_request q = {.method = method, .target = &t};
    learn_request(&world_sandbox, &f, &q, 100, 1000);
    netpol_target_done(&t);
}

static enum netpol_verdict verdict(struct netpol *p, const char *host, uint16_t port, bool tls, const char *method,
                                   const char *path)
{
    struct netpol_flow f = {.host = host, .port = port, .tls = tls};
    struct netpol_target t;
    struct netpol_decision d = {0};
    const char *why;
    assert_true(netpol_target(path, NULL, &t, &why));
    struct netpol_request q = {.method = method, .target = &t};
    netpol_request(p, &f, &q, egress_now(), &d);
    netpol_target_done(&t);
    return d.verdict;
}

static struct netpol *learned(struct buf *text)
{
    learn_write_document(&world_sandbox, text);
    return policy(text->p);
}

static void nothing_seen_is_a_policy_that_allows_nothing(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    _cleanup_netpol_ struct netpol *p = learned(&b);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "GET", "/"), NETPOL_DENY);
}

static void what_was_seen_is_allowed_and_nothing_else(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    see("a.example.org", 443, true, "GET", "/v1/items/4711");
    see("a.example.org", 443, true, "POST", "/v1/items");
    see("b.example.org", 80, false, "GET", "/");
    see("c.example.org", 8080, false, "GET", "/plain");
    _cleanup_netpol_ struct netpol *p = learned(&b);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "GET", "/v1/items/4712"), NETPOL_ALLOW);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "POST", "/v1/items"), NETPOL_ALLOW);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "POST", "/v1/items/4711"), NETPOL_DENY);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "GET", "/v1/items/4711/x"), NETPOL_DENY);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "GET", "/v1/other"), NETPOL_DENY);
    assert_int_equal(verdict(p, "a.example.org", 8443, true, "GET", "/v1/items/1"), NETPOL_DENY);
    assert_int_equal(verdict(p, "x.a.example.org", 443, true, "GET", "/v1/items/1"), NETPOL_DENY);
    assert_int_equal(verdict(p, "b.example.org", 80, false, "GET", "/"), NETPOL_ALLOW);
    assert_int_equal(verdict(p, "c.example.org", 8080, false, "GET", "/plain"), NETPOL_ALLOW);
    assert_int_equal(netpol_settings(p)->mode, NETPOL_ENFORCE);
}

static void segments_that_name_one_of_many_become_stars(void **state)
{
    (void)state;
    static const struct {
        const char *seen, *pattern;
    } cases[] = {
        {"/u/4711", "\"/u/*\""},
        {"/o/6f1c9a52-0000-4abc-8def-0123456789ab/z", "\"/o/*/z\""},
        {"/c/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "\"/c/*\""},
        {"/s/a1b2c3d", "\"/s/*\""},
        {"/t/01J8Z3QK5W9VX7T2M4N6P8R0AB", "\"/t/*\""},
        {"/j/4711.json", "\"/j/*.json\""},
        {"/pkg/1.2.3/file.tar.gz", "\"/pkg/1.2.3/file.tar.gz\""},
        {"/words/facade/decade", "\"/words/facade/decade\""},
        {"/v1/chat/completions", "\"/v1/chat/completions\""},
        {"/dir/", "\"/dir/\""},
        {"/lit/a*b", "\"/lit/*\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        see("a.example.org", 443, true, "GET", cases[i].seen);
    _cleanup_buf_ struct buf b = {0};
    _cleanup_netpol_ struct netpol *p = learned(&b);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        has(b.p, cases[i].pattern);
        assert_int_equal(verdict(p, "a.example.org", 443, true, "GET", cases[i].seen), NETPOL_ALLOW);
    }
}

static void paths_that_are_read_in_several_ways_are_allowed_in_all(void **state)
{
    (void)state;
    static const char *const paths[] = {"/@scope%2fname", "/a;v=1/b", "/@x%2fy;z=2/q", "/%40scope/name", "/a%20b"};
    _cleanup_buf_ struct buf b = {0};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        see("a.example.org", 443, true, "GET", paths[i]);
    _cleanup_netpol_ struct netpol *p = learned(&b);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        if (verdict(p, "a.example.org", 443, true, "GET", paths[i]) != NETPOL_ALLOW)
            fail_msg("%s is not allowed by %s", paths[i], b.p);
}

static void tunnels_streams_and_addresses_have_rules_of_their_own(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct netpol_flow pinned = {.host = "pinned.example.org", .port = 443, .tls = true};
    struct netpol_flow db = {.host = "db.example.org", .port = 5432};
    struct netpol_flow address = {.port = 4443};
    struct netpol_decision d = {0};
    assert_true(netpol_literal("93.184.216.34", 13, &address.addr));
    learn_relay(&world_sandbox, &pinned);
    learn_relay(&world_sandbox, &db);
    learn_relay(&world_sandbox, &address);
    see("pinned.example.org", 8443, true, "GET", "/");
    see("db.example.org", 5432, false, "GET", "/");
    _cleanup_netpol_ struct netpol *p = learned(&b);
    netpol_relay(p, &db, egress_now(), &d);
    assert_int_equal(d.verdict, NETPOL_ALLOW);
    netpol_relay(p, &address, egress_now(), &d);
    assert_int_equal(d.verdict, NETPOL_ALLOW);
    netpol_connect(p, &pinned, egress_now(), &d);
    assert_int_equal(d.verdict, NETPOL_ALLOW);
    address.port = 4444;
    netpol_relay(p, &address, egress_now(), &d);
    assert_int_equal(d.verdict, NETPOL_DENY);
}

static void a_tunnel_alone_stays_closed_to_us(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct netpol_flow pinned = {.host = "pinned.example.org", .port = 443, .tls = true};
    struct netpol_decision d = {0};
    learn_relay(&world_sandbox, &pinned);
    _cleanup_netpol_ struct netpol *p = learned(&b);
    has(b.p, "\"tls\":\"passthrough\"");
    netpol_relay(p, &pinned, egress_now(), &d);
    assert_int_equal(d.verdict, NETPOL_ALLOW);
}

static void too_many_paths_become_any_path(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char path[64];
    for (int i = 0; i < 300; i++) {
        (void)snprintf(path, sizeof path, "/p/n%d-x", i);
        see("a.example.org", 443, true, i % 2 ? "GET" : "PUT", path);
    }
    see("a.example.org", 443, true, "PATCH", "/later");
    _cleanup_netpol_ struct netpol *p = learned(&b);
    has(b.p, "\"paths\":[\"/**\"]");
    assert_int_equal(verdict(p, "a.example.org", 443, true, "PUT", "/anything"), NETPOL_ALLOW);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "PATCH", "/anything"), NETPOL_ALLOW);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "DELETE", "/anything"), NETPOL_DENY);
}

static void many_paths_with_many_methods_still_fit(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char path[64], method[16];
    for (int i = 0; i < 250; i++)
        for (int bit = 0; bit < 8; bit++)
            if (i >> bit & 1) {
                (void)snprintf(path, sizeof path, "/p/n%d-x", i);
                (void)snprintf(method, sizeof method, "M%c", 'A' + bit);
                see("a.example.org", 443, true, method, path);
            }
    _cleanup_netpol_ struct netpol *p = learned(&b);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "MA", "/p/n1-x"), NETPOL_ALLOW);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "MH", "/p/n249-x"), NETPOL_ALLOW);
    assert_int_equal(verdict(p, "a.example.org", 443, true, "MA", "/p/other"), NETPOL_DENY);
}

static void whatever_a_hostile_sandbox_does_the_document_is_one(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    char host[64], path[700], method[32];
    for (int i = 0; i < 600; i++) {
        (void)snprintf(host, sizeof host, "h%d.example.org", i);
        for (int k = 0; k < 40; k++) {
            size_t n = (size_t)snprintf(path, sizeof path, "/q%d-", k);
            memset(path + n, 'z', 80);
            memcpy(path + n + 80, "/y-y", 5);
            (void)snprintf(method, sizeof method, "M%c%c", 'A' + k % 20, 'A' + i % 20);
            see(host, (uint16_t)(1000 + k), k % 2, method, path);
        }
    }
    memset(path, '/', sizeof path);
    for (size_t i = 0; i < 600; i += 60)
        memset(path + i + 1, 'w', 50);
    path[600] = '\0';
    see("h1.example.org", 443, true, "GET", path);
    for (uint16_t port = 1; port < 30; port++) {
        struct netpol_flow stream = {.host = "h2.example.org", .port = port},
                           tunnel = {.host = "h3.example.org", .port = port};
        tunnel.tls = true;
        learn_relay(&world_sandbox, &stream);
        learn_relay(&world_sandbox, &tunnel);
    }
    struct netpol_flow one = {.host = "h4.example.org", .port = 1001};
    learn_relay(&world_sandbox, &one);
    _cleanup_netpol_ struct netpol *p = learned(&b);
    assert_true(netpol_rules(p) >= 512);
    assert_true(b.n < 1 << 20);
}

static void a_larger_body_than_seen_is_allowed_only_up_to_a_round_number(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct netpol_flow f = {.host = "a.example.org", .port = 443, .tls = true};
    struct netpol_target t;
    struct netpol_decision d = {0};
    const char *why;
    assert_true(netpol_target("/up", NULL, &t, &why));
    struct netpol_request q = {.method = "PUT", .target = &t};
    learn_request(&world_sandbox, &f, &q, 3 << 20, 0);
    _cleanup_netpol_ struct netpol *p = learned(&b);
    q.length = 4 << 20;
    netpol_request(p, &f, &q, egress_now(), &d);
    assert_int_equal(d.verdict, NETPOL_ALLOW);
    q.length = (4 << 20) + 1;
    netpol_request(p, &f, &q, egress_now(), &d);
    assert_int_equal(d.verdict, NETPOL_DENY);
    netpol_target_done(&t);
}

#define ASK(name)   cmocka_unit_test_setup_teardown(name, start_asks, stop)
#define LEARN(name) cmocka_unit_test_setup_teardown(name, start_plain, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ASK(a_request_waits_until_a_policy_allows_it),
        ASK(a_policy_that_does_not_speak_of_it_changes_nothing),
        ASK(a_policy_that_forbids_it_or_asks_no_more_refuses_it),
        ASK(when_nobody_can_be_asked_who_waits_hears_it_at_once),
        ASK(somebody_refuses),
        ASK(the_hold_time_ends_the_wait_but_not_the_question),
        ASK(nobody_decides_and_the_question_expires),
        ASK(equal_requests_join_and_all_hear),
        ASK(who_cancelled_hears_nothing_even_when_it_was_decided),
        ASK(what_waits_is_limited),
        ASK(decided_questions_make_room),
        ASK(a_callback_may_ask_again_or_end_it_all),
        ASK(a_new_front_is_told_what_waits),
        ASK(inside_asks_and_waits_for_the_decision),
        ASK(inside_waits_no_longer_than_it_said_and_may_leave),
        ASK(inside_is_told_what_cannot_be_asked_for),
        ASK(a_body_from_inside_has_a_limit),
        ASK(listeners_hear_of_decisions),
        LEARN(nothing_seen_is_a_policy_that_allows_nothing),
        LEARN(what_was_seen_is_allowed_and_nothing_else),
        LEARN(segments_that_name_one_of_many_become_stars),
        LEARN(paths_that_are_read_in_several_ways_are_allowed_in_all),
        LEARN(tunnels_streams_and_addresses_have_rules_of_their_own),
        LEARN(a_tunnel_alone_stays_closed_to_us),
        LEARN(too_many_paths_become_any_path),
        LEARN(many_paths_with_many_methods_still_fit),
        LEARN(whatever_a_hostile_sandbox_does_the_document_is_one),
        LEARN(a_larger_body_than_seen_is_allowed_only_up_to_a_round_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
