/* table.c - the sandboxes: when they exist, when they are served, and what a change of policy does to open
 * connections. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/core/egress.h"
#include "egress/deny.h"

enum { EXPIRY_MAX_S = 3600 };

uint64_t egress_now(void) { return (uint64_t)time(NULL); }

uint64_t egress_clock_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

struct esb *esb_find(struct egress *g, const char *id) { return map_get(&g->sandboxes, id); }

struct esb *esb_get(struct egress *g, const char *id)
{
    struct esb *s = esb_find(g, id);
    if (s)
        return s;
    s = xcalloc(1, sizeof *s);
    s->g = g;
    (void)strncpy(s->id, id, sizeof s->id - 1);
    s->tcp = s->udp = -1;
    s->names = names_new();
    (void)map_put(&g->sandboxes, s->id, s);
    return s;
}

/* --- sockets ------------------------------------------------------------------------------------------------------ */

static void esb_on_tcp(void *arg, int fd, unsigned events)
{
    (void)fd;
    (void)events;
    flow_accept(arg);
}

static void esb_on_udp(void *arg, int fd, unsigned events)
{
    (void)fd;
    (void)events;
    dns_readable(arg);
}

static void esb_unwatch(struct esb *s)
{
    loop_fd_del(s->g->loop, s->tcp_watch);
    loop_fd_del(s->g->loop, s->udp_watch);
    loop_timer_del(s->g->loop, s->accept_timer);
    s->tcp_watch = s->udp_watch = s->accept_timer = 0;
}

void esb_watch(struct esb *s)
{
    if (!s->policy || s->g->draining) {
        esb_unwatch(s);
        return;
    }
    if (s->tcp >= 0 && !s->tcp_watch)
        s->tcp_watch = loop_fd_add(s->g->loop, s->tcp, s->accept_timer ? 0 : LOOP_IN, esb_on_tcp, s);
    if (s->udp >= 0 && !s->udp_watch)
        s->udp_watch = loop_fd_add(s->g->loop, s->udp, LOOP_IN, esb_on_udp, s);
}

static void esb_close_sockets(struct esb *s)
{
    esb_unwatch(s);
    if (s->tcp >= 0)
        (void)close(s->tcp);
    if (s->udp >= 0)
        (void)close(s->udp);
    s->tcp = s->udp = -1;
}

void esb_attach(struct esb *s, int tcp, int udp)
{
    esb_close_sockets(s);
    s->tcp = tcp;
    s->udp = udp;
    esb_watch(s);
}

static void esb_cut_flows(struct esb *s)
{
    while (s->flows) {
        struct flow *f = s->flows;
        f->ops->cut(f);
    }
}

void esb_detach(struct esb *s)
{
    esb_close_sockets(s);
    dns_forget(s);
    esb_cut_flows(s);
}

/* --- policy and open connections ---------------------------------------------------------------------------------- */

/* In two steps, because cutting one connection may end others. */
void esb_judge(struct esb *s)
{
    for (struct flow *f = s->flows; f; f = f->next)
        f->doomed = !s->policy || !f->ops->still(f);
    for (struct flow *f = s->flows; f;) {
        if (!f->doomed) {
            f = f->next;
            continue;
        }
        f->doomed = false;
        f->ops->cut(f);
        f = s->flows;
    }
}

static void esb_on_expiry(void *arg);

/* Judges open connections again when the next rule expires. */
static void esb_set_expiry(struct esb *s)
{
    uint64_t now = egress_now(), next = 0;
    loop_timer_del(s->g->loop, s->expiry_timer);
    s->expiry_timer = 0;
    for (size_t i = 0; s->policy && i < netpol_rules(s->policy); i++) {
        uint64_t at = netpol_rule_at(s->policy, i)->expires;
        if (at > now && (!next || at < next))
            next = at;
    }
    if (!next)
        return;
    uint64_t wait = next - now > EXPIRY_MAX_S ? EXPIRY_MAX_S : next - now;
    s->expiry_timer = loop_timer(s->g->loop, wait * 1000 + 50, esb_on_expiry, s);
}

static void esb_on_expiry(void *arg)
{
    struct esb *s = arg;
    s->expiry_timer = 0;
    esb_judge(s);
    esb_set_expiry(s);
}

bool esb_grant_holds(const struct esb *s, const struct netpol_rule *rule, uint64_t epoch,
                     const struct netpol_decision *now)
{
    if (!rule || rule->uses == 0 || now->reason == NETPOL_R_DENY_RULE || now->reason == NETPOL_R_PRIVATE)
        return false;
    return now->verdict != NETPOL_DENY || epoch >= s->replaced;
}

void esb_set_policy(struct esb *s, struct netpol *p, uint64_t epoch)
{
    struct netpol *old = s->policy;
    s->policy = p;
    s->epoch = epoch;
    esb_watch(s);
    esb_judge(s);
    if (p) {
        http_policy_changed(s);
        ask_policy_changed(s);
    } else {
        dns_forget(s);
    }
    esb_set_expiry(s);
    netpol_unref(old);
}

/* --- placeholders and counters ------------------------------------------------------------------------------------ */

void esb_placeholder(struct esb *s, const char *text, const char *name)
{
    if (map_get(&s->placeholders, text))
        return;
    (void)map_put(&s->placeholders, xstrdup(text), xstrdup(name));
}

void esb_placeholders_clear(struct esb *s)
{
    for (size_t i = 0; i < s->placeholders.cap; i++) {
        if (!s->placeholders.slots[i].key)
            continue;
        free((char *)(uintptr_t)s->placeholders.slots[i].key);
        free(s->placeholders.slots[i].value);
    }
    map_done(&s->placeholders);
}

struct host_counts *esb_host(struct esb *s, const char *host) { return &usage_host(&s->hosts, host)->counts; }

/* --- the end ------------------------------------------------------------------------------------------------------ */

static void esb_free(struct esb *s)
{
    (void)map_del(&s->g->sandboxes, s->id);
    usage_ended(s);
    esb_detach(s);
    loop_timer_del(s->g->loop, s->expiry_timer);
    http_forget(s);
    asks_free(s);
    deny_forget(s);
    learn_forget(s);
    limits_free(s);
    names_free(s->names);
    esb_placeholders_clear(s);
    usage_free_hosts(&s->hosts);
    free(s->proxy_password);
    netpol_unref(s->policy);
    free(s);
}

void esb_drop_if_unused(struct esb *s)
{
    if (!s->policy && s->tcp < 0)
        esb_free(s);
}

void esb_drop_all(struct egress *g)
{
    for (size_t at = 0; g->sandboxes.n; at = 0)
        esb_free(map_next(&g->sandboxes, &at));
    map_done(&g->sandboxes);
    usage_forget_all(g);
}
