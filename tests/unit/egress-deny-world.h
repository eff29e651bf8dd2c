/* egress-deny-world.h - one sandbox with a policy, on a loop whose time the test decides, and what front is told
 * about it. For the tests of refusals, asks and learning; the rest of egress is not there. Include after
 * tests/lib/unit.h. */
#ifndef HUTCH_TESTS_UNIT_EGRESS_DENY_WORLD_H
#define HUTCH_TESTS_UNIT_EGRESS_DENY_WORLD_H

#include "egress/deny.h"
#include "unit/http-world.h"

static struct egress world_egress;
static struct esb world_sandbox;
static struct buf world_told; /* messages to front, a line each */
static struct host_counts world_hosts;

/* In place of control.c, table.c and main.c. */
__attribute__((weak)) void control_tell(struct egress *g, struct buf *json)
{
    assert_ptr_equal(g, &world_egress);
    buf_add(&world_told, json->p, json->n);
    buf_addc(&world_told, '\n');
    buf_done(json);
}
__attribute__((weak)) uint64_t egress_now(void) { return 1800000000 + world_now / 1000; }
__attribute__((weak)) struct host_counts *esb_host(struct esb *s, const char *host)
{
    assert_ptr_equal(s, &world_sandbox);
    assert_non_null(host);
    return &world_hosts;
}

static struct netpol *policy(const char *text)
{
    struct netpol_error e = {0};
    struct netpol *p = NULL;
    if (netpol_parse_json(text, strlen(text), NULL, NULL, &p, &e) < 0)
        fail_msg("%s: %s", e.path, e.text);
    return p;
}

__attribute__((unused)) static void set_policy(const char *text)
{
    struct netpol *old = world_sandbox.policy;
    world_sandbox.policy = policy(text);
    world_sandbox.epoch++;
    ask_policy_changed(&world_sandbox);
    netpol_unref(old);
    turn();
}

static void handle(void *ctx, struct http_req *r)
{
    (void)ctx;
    internal_handle(&world_sandbox, r);
}

static void deny_world_start(const char *text)
{
    world_start(NULL, handle);
    world_egress = (struct egress){.loop = world_loop};
    world_sandbox = (struct esb){.g = &world_egress, .id = "box1", .tenant = "acme", .tcp = -1, .udp = -1, .epoch = 7};
    world_hosts = (struct host_counts){0};
    world_sandbox.policy = policy(text);
}

static void deny_world_stop(void)
{
    asks_free(&world_sandbox);
    deny_forget(&world_sandbox);
    learn_forget(&world_sandbox);
    turn();
    netpol_unref(world_sandbox.policy);
    buf_done(&world_told);
    world_stop();
}

__attribute__((unused)) static unsigned count(const char *text, const char *part)
{
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, part)); p++)
        n++;
    return n;
}

__attribute__((unused)) static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in:\n%s", part, text);
}

/* A request to sandbox.internal on a connection of its own; the whole answer. */
__attribute__((unused)) static void call(const char *request, struct buf *answer)
{
    bool eof;
    int fd = client();
    buf_done(answer);
    say(fd, request);
    hear(fd, answer, &eof);
    (void)close(fd);
    turn();
}

__attribute__((unused)) static void get(const char *path, struct buf *answer)
{
    char text[600];
    (void)snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nhost: sandbox.internal\r\n\r\n", path);
    call(text, answer);
}

__attribute__((unused)) static void post(const char *path, const char *body, struct buf *answer)
{
    _cleanup_buf_ struct buf text = {0};
    buf_addf(&text, "POST %s HTTP/1.1\r\nhost: sandbox.internal\r\ncontent-length: %zu\r\n\r\n%s", path, strlen(body),
             body);
    call(text.p, answer);
}

#endif
