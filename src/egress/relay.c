/* relay.c - passes opaque streams through: dials, then copies both ways until both sides have ended.
 *
 * Each direction holds at most one buffer (BUFFER) and reads no more until the other side has taken it. After
 * SPLICE_AFTER bytes a direction is spliced through a pipe in the kernel instead. One audit line is written at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/audit/audit.h"
#include "egress/deny.h"
#include "egress/flow-int.h"

enum {
    BUFFER = 32 * 1024,
    SPLICE_AFTER = 1 << 20,
    SPLICE_CHUNK = 64 * 1024,
    BURST = 256 * 1024,
    IDLE_MS = 900 * 1000,
    TICK_MS = 30 * 1000
};

struct relay;

/* One direction. */
struct half {
    struct relay *r;
    bool up;      /* from the sandbox */
    bool ended;   /* nothing more to read */
    bool shut;    /* the end was passed on to the other side */
    bool blocked; /* the other side takes no more now */
    char *p;      /* BUFFER bytes; NULL until needed and while spliced */
    size_t at, n; /* what is to be written */
    int pipe[2];  /* -1: not spliced */
    size_t piped;
    uint64_t total;
    loop_id pause; /* until there is bandwidth again */
};

struct relay {
    struct flow *f;
    struct netpol *policy; /* keeps the rule */
    const struct netpol_rule *rule;
    bool would_deny, counted; /* counted: against the limits of the rule */
    struct dial *dial;
    int fd; /* the upstream; -1 while dialling */
    loop_id inside, outside, tick;
    struct half up, down;
    uint64_t epoch; /* of the policy under which it began */
    uint64_t active_ms, started_us, dial_us;
    struct in6_addr addr;
};

/* --- the end ------------------------------------------------------------------------------------------------------ */

static void half_done(struct half *h)
{
    loop_timer_del(h->r->f->sb->g->loop, h->pause);
    free(h->p);
    for (int i = 0; i < 2; i++)
        if (h->pipe[i] >= 0)
            (void)close(h->pipe[i]);
}

static void relay_write_audit(struct relay *r)
{
    struct flow *f = r->f;
    char host[NETPOL_NAME_MAX];
    flow_host_text(f, host);
    audit_write(f->sb->g->audit, &(struct audit_record){.kind = "tunnel",
                                                        .sandbox = f->sb,
                                                        .flow = f,
                                                        .host = host,
                                                        .port = f->port,
                                                        .tls = f->tls ? "passthrough" : "none",
                                                        .verdict = r->would_deny ? "would_deny" : "allow",
                                                        .rule = r->rule ? r->rule->id : NULL,
                                                        .upstream = &r->addr,
                                                        .upstream_port = f->port,
                                                        .bytes_up = r->up.total,
                                                        .bytes_down = r->down.total,
                                                        .dial_us = r->dial_us,
                                                        .total_us = egress_clock_us() - r->started_us});
}

/* Writes the audit line if the upstream was ever connected; returns the flow without a driver. */
static struct flow *relay_free(struct relay *r)
{
    struct flow *f = r->f;
    struct loop *l = f->sb->g->loop;
    if (r->fd >= 0)
        relay_write_audit(r);
    if (r->counted)
        limit_request_end(f->sb, r->rule);
    dial_cancel(r->dial);
    loop_fd_del(l, r->inside);
    loop_fd_del(l, r->outside);
    loop_timer_del(l, r->tick);
    half_done(&r->up);
    half_done(&r->down);
    if (r->fd >= 0)
        (void)close(r->fd);
    netpol_unref(r->policy);
    free(r);
    f->driver = NULL;
    return f;
}

static void relay_reset_both(struct relay *r)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (r->fd >= 0)
        (void)setsockopt(r->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    flow_reset(r->f);
}

static void relay_cut(struct flow *f)
{
    struct relay *r = f->driver;
    relay_reset_both(r);
    flow_end(relay_free(r));
}

static void relay_refuse(struct relay *r, enum netpol_reason reason, const char *layer, const char *text)
{
    char rule[NETPOL_ID_MAX] = "";
    if (r->rule)
        memcpy(rule, r->rule->id, sizeof rule);
    relay_reset_both(r);
    flow_refuse(relay_free(r),
                &(struct flow_refusal){
                    .reason = reason, .layer = layer, .text = text, .rule = rule[0] ? rule : NULL, .form = FLOW_RST});
}

static bool relay_still(struct flow *f)
{
    struct netpol_flow t = flow_target(f);
    struct netpol_decision d;
    const struct relay *r = f->driver;
    netpol_relay(f->sb->policy, &t, egress_now(), &d);
    if (d.verdict != NETPOL_ALLOW)
        return esb_grant_holds(f->sb, r->rule, r->epoch, &d);
    if (r->fd < 0) /* still dialling, with the old rule's private list */
        return !r->rule || r->rule->nprivate == 0 || r->policy == f->sb->policy;
    return dial_check(f->sb->g, &r->addr, d.rule) == DIAL_OK &&
           netpol_resolved(f->sb->policy, &t, &r->addr, egress_now());
}

static const struct flow_ops relay_ops = {.still = relay_still, .cut = relay_cut};

/* --- copying ------------------------------------------------------------------------------------------------------ */

static int from_of(const struct half *h) { return h->up ? h->r->f->fd : h->r->fd; }
static int to_of(const struct half *h) { return h->up ? h->r->fd : h->r->f->fd; }
static bool has_data(const struct half *h) { return h->n > 0 || h->piped > 0; }
static bool would_block(void) { return errno == EAGAIN || errno == EINTR; }

static void start_splicing(struct half *h)
{
    if (h->pipe[0] >= 0 || h->total < SPLICE_AFTER || pipe2(h->pipe, O_NONBLOCK | O_CLOEXEC) < 0)
        return; /* without a pipe it continues by copying */
    free(h->p);
    h->p = NULL;
}

/* >0: bytes; 0: the end; -1 with errno. */
static ssize_t half_read(struct half *h)
{
    if (h->pipe[0] >= 0) {
        ssize_t n = splice(from_of(h), NULL, h->pipe[1], NULL, SPLICE_CHUNK, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
        h->piped += n > 0 ? (size_t)n : 0;
        return n;
    }
    if (!h->p)
        h->p = xmalloc(BUFFER);
    ssize_t n = recv(from_of(h), h->p, BUFFER, 0);
    h->at = 0;
    h->n = n > 0 ? (size_t)n : 0;
    return n;
}

/* 0: all is written, or the other side is full (h->blocked); -1: failed. */
static int half_write(struct half *h)
{
    h->blocked = false;
    while (has_data(h)) {
        ssize_t n = h->n ? send(to_of(h), h->p + h->at, h->n, MSG_NOSIGNAL)
                         : splice(h->pipe[0], NULL, to_of(h), NULL, h->piped, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
        if (n < 0 && would_block()) {
            h->blocked = true;
            return 0;
        }
        if (n <= 0)
            return -1;
        if (h->n) {
            h->at += (size_t)n;
            h->n -= (size_t)n;
        } else {
            h->piped -= (size_t)n;
        }
    }
    return 0;
}

static void relay_watch(struct relay *r);
static void half_on_pause(void *arg);

/* false: the quota is used up. */
static bool relay_count_bytes(struct half *h, size_t n)
{
    struct relay *r = h->r;
    struct flow *f = r->f;
    char host[NETPOL_NAME_MAX];
    h->total += n;
    *(h->up ? &f->bytes_up : &f->bytes_down) += n;
    r->active_ms = loop_now(f->sb->g->loop);
    flow_host_text(f, host);
    return limit_bytes(f->sb, host, h->up ? n : 0, h->up ? 0 : n) == NETPOL_R_NONE;
}

enum pumped { PUMP_ON, PUMP_BROKEN, PUMP_QUOTA };

static enum pumped half_pump(struct half *h)
{
    struct esb *s = h->r->f->sb;
    for (size_t moved = 0; moved < BURST;) {
        if (half_write(h) < 0)
            return PUMP_BROKEN;
        if (h->blocked || h->ended || h->pause)
            break;
        unsigned wait = limit_wait(s, h->up);
        if (wait) {
            h->pause = loop_timer(s->g->loop, wait, half_on_pause, h);
            break;
        }
        start_splicing(h);
        ssize_t n = half_read(h);
        if (n < 0 && would_block())
            break;
        if (n < 0)
            return PUMP_BROKEN;
        h->ended = n == 0;
        moved += (size_t)n;
        if (n > 0 && !relay_count_bytes(h, (size_t)n))
            return PUMP_QUOTA;
    }
    if (h->ended && !has_data(h) && !h->shut) {
        h->shut = true;
        (void)shutdown(to_of(h), SHUT_WR);
    }
    return PUMP_ON;
}

/* Moves one direction on, or both; ends the relay when both have ended. */
static void relay_move(struct relay *r, bool up, bool down)
{
    enum pumped a = up ? half_pump(&r->up) : PUMP_ON, b = down && a == PUMP_ON ? half_pump(&r->down) : PUMP_ON;
    if (a == PUMP_QUOTA || b == PUMP_QUOTA) {
        relay_refuse(r, NETPOL_R_QUOTA, "limit", NULL);
    } else if (a == PUMP_BROKEN || b == PUMP_BROKEN) {
        relay_reset_both(r);
        flow_end(relay_free(r));
    } else if (r->up.shut && r->down.shut) {
        flow_end(relay_free(r));
    } else {
        relay_watch(r);
    }
}

static void half_on_pause(void *arg)
{
    struct half *h = arg;
    h->pause = 0;
    relay_move(h->r, h->up, !h->up);
}

/* The events that the two directions need of one side. Wants LOOP_OUT for any data: a turn may end before it was
 * written. */
static unsigned relay_wants(const struct half *in, const struct half *out)
{
    return (!in->ended && !has_data(in) && !in->pause ? LOOP_IN : 0) | (has_data(out) ? LOOP_OUT : 0);
}

static void relay_watch(struct relay *r)
{
    struct loop *l = r->f->sb->g->loop;
    loop_fd_set(l, r->inside, relay_wants(&r->up, &r->down));
    loop_fd_set(l, r->outside, relay_wants(&r->down, &r->up));
}

static void relay_on_inside(void *arg, int fd, unsigned events)
{
    (void)fd;
    relay_move(arg, events & (LOOP_IN | LOOP_HUP), events & (LOOP_OUT | LOOP_HUP));
}

static void relay_on_outside(void *arg, int fd, unsigned events)
{
    (void)fd;
    relay_move(arg, events & (LOOP_OUT | LOOP_HUP), events & (LOOP_IN | LOOP_HUP));
}

static void relay_on_tick(void *arg)
{
    struct relay *r = arg;
    struct loop *l = r->f->sb->g->loop;
    r->tick = 0;
    if (loop_now(l) - r->active_ms >= IDLE_MS) {
        relay_reset_both(r);
        flow_end(relay_free(r));
        return;
    }
    r->tick = loop_timer(l, TICK_MS, relay_on_tick, r);
}

/* --- the beginning ------------------------------------------------------------------------------------------------ */

static enum netpol_reason relay_reason(enum dial_failure f, bool literal)
{
    switch (f) {
    case DIAL_PRIVATE:
    case DIAL_NEVER:
        return literal ? NETPOL_R_PRIVATE : NETPOL_R_RESOLVED_PRIVATE;
    case DIAL_TIMEOUT:
        return NETPOL_R_TIMEOUT;
    case DIAL_OK:
    case DIAL_NO_NAME:
    case DIAL_UNREACHABLE:
        break;
    }
    return NETPOL_R_UNREACHABLE;
}

static void relay_on_dialled(void *arg, struct dial_result *d)
{
    struct relay *r = arg;
    struct flow *f = r->f;
    struct loop *l = f->sb->g->loop;
    struct netpol_flow t = flow_target(f);
    r->dial = NULL;
    if (d->failure == DIAL_OK && !netpol_resolved(f->sb->policy, &t, &d->addr, egress_now())) {
        (void)close(d->fd); /* the policy has changed since the address was checked */
        d->failure = DIAL_PRIVATE;
    }
    if (d->failure != DIAL_OK) {
        relay_refuse(r, relay_reason(d->failure, !f->host[0]), "tcp", d->text);
        return;
    }
    r->fd = d->fd;
    r->addr = d->addr;
    r->dial_us = d->took_us;
    r->active_ms = loop_now(l);
    /* The bytes that sniffing read go first. */
    _Static_assert((int)FLOW_HEAD_MAX <= (int)BUFFER, "it becomes the buffer");
    r->up.p = xreallocarray(f->head.p, BUFFER, 1);
    r->up.n = f->head.n;
    f->head = (struct buf){0};
    if (r->up.n && !relay_count_bytes(&r->up, r->up.n)) {
        relay_refuse(r, NETPOL_R_QUOTA, "limit", NULL);
        return;
    }
    r->inside = loop_fd_add(l, f->fd, LOOP_IN, relay_on_inside, r);
    r->outside = loop_fd_add(l, r->fd, LOOP_IN, relay_on_outside, r);
    r->tick = loop_timer(l, TICK_MS, relay_on_tick, r);
    if (!r->inside || !r->outside)
        relay_cut(f);
    else
        relay_move(r, true, true);
}

void relay_flow(struct flow *f, const struct netpol_rule *rule)
{
    struct relay *r = xcalloc(1, sizeof *r);
    struct netpol_flow t = flow_target(f);
    struct netpol_decision d;
    r->f = f;
    r->policy = netpol_ref(f->sb->policy);
    r->rule = rule;
    r->fd = -1;
    r->started_us = egress_clock_us();
    r->epoch = f->sb->epoch;
    r->up = (struct half){.r = r, .up = true, .pipe = {-1, -1}};
    r->down = (struct half){.r = r, .pipe = {-1, -1}};
    f->ops = &relay_ops;
    f->driver = r;
    netpol_relay(f->sb->policy, &t, egress_now(), &d);
    r->would_deny = d.would_deny;
    if (audit_blocked(f->sb->g->audit)) {
        relay_refuse(r, NETPOL_R_AUDIT, "limit", NULL);
        return;
    }
    unsigned retry_s;
    enum netpol_reason limit =
        d.wildcard && !limit_new_name(f->sb, t.host, &retry_s) ? NETPOL_R_NAMES : limit_request(f->sb, rule, &retry_s);
    if (limit != NETPOL_R_NONE) {
        relay_refuse(r, limit, "limit", NULL);
        return;
    }
    char host[NETPOL_NAME_MAX];
    flow_host_text(f, host);
    r->counted = true;
    f->sb->counts.requests++;
    esb_host(f->sb, host)->requests++;
    learn_relay(f->sb, &t);
    r->dial = dial_start(f->sb, t.host, &f->literal, f->port, rule, relay_on_dialled, r);
}
