/* egress-world.h - an egress with one sandbox on a real loop, in one thread: connections of the sandbox with any destination, a
 * name server and servers on the loopback, and a clock that the test may move. HTTP is somebody else's: what is handed to it
 * is kept in world.http.
 */
#ifndef HUTCH_TESTS_UNIT_EGRESS_WORLD_H
#define HUTCH_TESTS_UNIT_EGRESS_WORLD_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "await.h"
#include "base/mem.h"
#include "egress/core/egress.h"
#include "egress/deny.h"
#include "egress/dns.h"
#include "egress/flow-int.h"
#include "tests/lib/unit.h"

#define UNUSED __attribute__((unused))

static struct {
    struct egress g;
    struct esb *s;
    uint64_t skew_ms, stopped_ms; /* stopped: time passes only by pass() */
    int dns_fd;                   /* of the name server */
    loop_id dns_watch;
    const char *dns_answer; /* IPv4 address for every name; NULL: there is no such name */
    uint32_t dns_ttl;
    unsigned dns_questions;
    struct flow *http; /* handed over, not yet ended */
} world;

/* --- HTTP, which is not tried here -------------------------------------------------------------------------------- */

static bool http_double_still(struct flow *f)
{
    (void)f;
    return true;
}
static void http_double_cut(struct flow *f)
{
    world.http = NULL;
    flow_end(f);
}
static const struct flow_ops http_double_ops = {.still = http_double_still, .cut = http_double_cut};

void http_flow(struct flow *f)
{
    f->ops = &http_double_ops;
    world.http = f;
}
int http_start(struct egress *g, struct err *err)
{
    (void)g;
    (void)err;
    return 0;
}
void http_stop(struct egress *g) { (void)g; }
void http_policy_changed(struct esb *s) { (void)s; }
void http_forget(struct esb *s) { (void)s; }

/* --- time and turns ----------------------------------------------------------------------------------------------- */

static uint64_t world_clock(void *arg)
{
    struct timespec t;
    (void)arg;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    return (world.stopped_ms ? world.stopped_ms : now) + world.skew_ms;
}

/* For a test that counts on how little time has passed. */
UNUSED static void stop_clock(void) { world.stopped_ms = world_clock(NULL) - world.skew_ms; }

UNUSED static void turn(void)
{
    struct err err = {0};
    for (int i = 0; i < 10; i++)
        assert_int_equal(loop_step(world.g.loop, 1, &err), 0);
}

UNUSED static void pass(uint64_t ms)
{
    world.skew_ms += ms;
    turn();
}

/* Turns until it is so; a test that waits for ever has failed. */
#define UNTIL(condition) AWAIT_STEPS(world.g.loop, condition)

/* --- a name server ------------------------------------------------------------------------------------------------ */

static void on_world_question(void *arg, int fd, unsigned events)
{
    unsigned char bytes[512];
    struct sockaddr_in from;
    socklen_t n = sizeof from;
    struct dns_query q;
    enum dns_rcode rcode;
    (void)arg;
    (void)events;
    ssize_t got = recvfrom(fd, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&from, &n);
    if (got <= 0 || !dns_parse(bytes, (size_t)got, &q, &rcode) || rcode != DNS_OK)
        return;
    world.dns_questions++;
    struct dns_answer a = {.rcode = world.dns_answer ? DNS_OK : DNS_NXDOMAIN, .ttl = world.dns_ttl};
    if (world.dns_answer && q.type == DNS_A && netpol_literal(world.dns_answer, strlen(world.dns_answer), &a.addrs[0]))
        a.naddrs = 1;
    _cleanup_buf_ struct buf out = {0};
    dns_write(&q, &a, 512, &out);
    (void)sendto(fd, out.p, out.n, 0, (struct sockaddr *)&from, n);
}

/* --- the world ---------------------------------------------------------------------------------------------------- */

static int bound(int type, uint16_t *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

UNUSED static int listener(uint16_t *ret_port)
{
    int fd = bound(SOCK_STREAM, ret_port);
    assert_int_equal(listen(fd, 64), 0);
    return fd;
}

UNUSED static int connect_to_port(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

UNUSED static void policy(const char *text)
{
    struct netpol *p = NULL;
    struct netpol_error e = {0};
    if (netpol_parse_json(text, strlen(text), NULL, NULL, &p, &e) < 0)
        fail_msg("%s: %s", e.path, e.text);
    esb_set_policy(world.s, p, world.s->epoch + 1);
}

UNUSED static int world_start(void **state)
{
    struct err err = {0};
    uint16_t port;
    (void)state;
    memset(&world, 0, sizeof world);
    world.dns_answer = "127.0.0.1";
    world.dns_ttl = 60;
    assert_int_equal(loop_new(&world.g.loop, &err), 0);
    loop_set_clock(world.g.loop, world_clock, NULL);
    world.dns_fd = bound(SOCK_DGRAM, &port);
    world.dns_watch = loop_fd_add(world.g.loop, world.dns_fd, LOOP_IN, on_world_question, NULL);
    world.g.config.connections = 1000;
    (void)snprintf(world.g.config.servers, sizeof world.g.config.servers, "127.0.0.1:%u", port);
    assert_true(netpol_cidr_parse("127.0.0.0/8", &world.g.config.loopback_ok[0]));
    world.g.config.nloopback_ok = 1;
    if (dial_setup(&world.g, &err) < 0)
        fail_msg("%s", err.msg);
    world.s = esb_get(&world.g, "box");
    return 0;
}

UNUSED static int world_stop(void **state)
{
    (void)state;
    esb_drop_all(&world.g);
    dial_teardown(&world.g);
    loop_fd_del(world.g.loop, world.dns_watch);
    (void)close(world.dns_fd);
    loop_free(world.g.loop);
    return 0;
}

/* --- connections of the sandbox ----------------------------------------------------------------------------------- */

/* The client's end of a connection that the sandbox makes to that address. */
UNUSED static int sandbox_connects(const char *dst, uint16_t port)
{
    uint16_t at;
    struct in6_addr a;
    int l = listener(&at), fd = connect_to_port(at), mine = -1;
    assert_true(netpol_literal(dst, strlen(dst), &a));
    AWAIT (mine >= 0)
        if ((mine = accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) < 0)
            (void)usleep(1000);
    assert_true(mine >= 0);
    (void)close(l);
    flow_begin(flow_new(world.s, mine, &a, port));
    return fd;
}

/* To the address that the resolver gives for a name. */
UNUSED static int sandbox_connects_to_name(const char *name, uint16_t port)
{
    struct in_addr v4 = {htonl(names_address(world.s->names, name, true))};
    char text[INET_ADDRSTRLEN];
    assert_non_null(inet_ntop(AF_INET, &v4, text, sizeof text));
    return sandbox_connects(text, port);
}

UNUSED static void says(int fd, const void *p, size_t n) { assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), (ssize_t)n); }
UNUSED static void says_text(int fd, const char *text) { says(fd, text, strlen(text)); }

/* What arrived so far; *ret_end: 1 after a proper end, -1 after a reset. */
UNUSED static void hears(int fd, struct buf *b, int *ret_end)
{
    char bytes[4096];
    *ret_end = 0;
    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0) {
            buf_add(b, bytes, (size_t)n);
            continue;
        }
        *ret_end = n == 0 ? 1 : errno == EAGAIN ? 0 : -1;
        return;
    }
}

/* Turns until the other side has ended; what came before that. */
UNUSED static int hears_end(int fd, struct buf *b)
{
    int end = 0;
    UNTIL((hears(fd, b, &end), end != 0));
    return end;
}

UNUSED static void hears_bytes(int fd, struct buf *b, size_t n)
{
    int end = 0;
    UNTIL((hears(fd, b, &end), b->n >= n || end != 0));
    assert_true(b->n >= n);
}

/* The last refusal that was recorded. The caller frees it. */
UNUSED static json_t *last_denial(void)
{
    _cleanup_buf_ struct buf b = {0};
    deny_list(world.s, 0, 256, &b);
    json_t *all = json_loadb(b.p, b.n, 0, NULL), *list = json_object_get(all, "denials");
    json_t *last = json_incref(json_array_get(list, json_array_size(list) - 1));
    json_decref(all);
    return last;
}

UNUSED static void assert_denied(const char *reason)
{
    json_t *d = last_denial();
    assert_non_null(d);
    assert_string_equal(json_string_value(json_object_get(d, "reason")), reason);
    json_decref(d);
}

#endif
