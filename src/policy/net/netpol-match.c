/* netpol-match.c - decisions, in the order that "How a request is decided" in docs/network-reference.md has. */
#include <string.h>

#include "base/cleanup.h"
#include "policy/net/netpol-int.h"

static const enum netpol_reason stage_reasons[] = {
    [NETPOL_AT_HOST] = NETPOL_R_HOST,           [NETPOL_AT_PORT] = NETPOL_R_PORT,
    [NETPOL_AT_CLEARTEXT] = NETPOL_R_CLEARTEXT, [NETPOL_AT_PATH] = NETPOL_R_PATH,
    [NETPOL_AT_METHOD] = NETPOL_R_METHOD,       [NETPOL_AT_HEADER] = NETPOL_R_HEADER,
    [NETPOL_AT_TYPE] = NETPOL_R_CONTENT_TYPE,   [NETPOL_AT_BODY] = NETPOL_R_BODY,
    [NETPOL_AT_EXPIRED] = NETPOL_R_EXPIRED,     [NETPOL_AT_END] = NETPOL_R_NONE,
};

/* --- rules -------------------------------------------------------------------------------------------------------- */

static bool is_mail_port(uint16_t port) { return port == 25 || port == 465 || port == 587; }

/* SMTP needs the port named by itself: a range is no permission to send mail. */
bool netpol_rule_port(const struct netpol_rule *r, uint16_t port)
{
    const struct netpol_inside *in = r->inside;
    if (in->nports == 0)
        return true;
    for (size_t i = 0; i < in->nports; i++)
        if (in->ports[i].from <= port && port <= in->ports[i].to &&
            (r->deny || !is_mail_port(port) || in->ports[i].from == in->ports[i].to))
            return true;
    return false;
}

static bool has_expired(const struct netpol_rule *r, uint64_t now) { return r->expires && now >= r->expires; }

/* State of one decision. */
struct search {
    const struct netpol *p;
    const struct netpol_flow *f;
    const struct netpol_reading *rd; /* NULL: a connection */
    uint64_t now;
    bool opaque;                     /* only rules that let an opaque stream through count */
    const struct netpol_rule *found; /* allows, or denies */
    uint64_t max;                    /* body limit of what was found */
    const struct netpol_rule *ask;   /* would allow, after approval */
    const struct netpol_rule *near;
    enum netpol_stage stage; /* of near */
    bool needs;              /* some rule for this flow has to see requests */
    bool denies;             /* and one of them is a deny rule, which goes before any passthrough */
};

static void search_note_miss(struct search *s, const struct netpol_rule *r, enum netpol_stage stage)
{
    if (s->near && stage <= s->stage)
        return;
    s->near = r;
    s->stage = stage;
}

static bool deny_visit(void *arg, const struct netpol_rule *r)
{
    struct search *s = arg;
    const struct netpol_inside *in = r->inside;
    if (!netpol_rule_port(r, s->f->port) || has_expired(r, s->now))
        return false;
    if (in->nhttp > 0) {
        s->needs = s->denies = true;
        if (!s->rd || !netpol_any_reading(in->http, in->nhttp, s->rd))
            return false;
    }
    s->found = r;
    return true;
}

/* `deny` entries of allow rules subtract from all rules for the host. */
static bool subtract_visit(void *arg, const struct netpol_rule *r)
{
    struct search *s = arg;
    const struct netpol_inside *in = r->inside;
    if (in->ndeny == 0 || !netpol_rule_port(r, s->f->port) || has_expired(r, s->now) ||
        !netpol_any_reading(in->deny, in->ndeny, s->rd))
        return false;
    s->found = r;
    return true;
}

static bool allows_address(const struct netpol_rule *r, const struct netpol_flow *f)
{
    if (f->host || netpol_address_kind(&f->addr) == NETPOL_PUBLIC)
        return true;
    for (size_t i = 0; i < r->nprivate; i++)
        if (netpol_cidr_has(&r->private[i], &f -> addr))
            return true;
    return false;
}

/* Plain HTTP is allowed to port 80 by default, and elsewhere only if the rule says so. */
static bool allows_cleartext(const struct netpol_rule *r, const struct netpol_flow *f)
{
    if (f->tls || r->tcp)
        return true;
    return r->inside->cleartext_given ? r->inside->cleartext : f->port == 80;
}

static enum netpol_stage allow_stage(struct search *s, const struct netpol_rule *r, uint64_t *max)
{
    const struct netpol_inside *in = r->inside;
    if (!netpol_rule_port(r, s->f->port))
        return NETPOL_AT_PORT;
    if (s->rd && !allows_cleartext(r, s->f))
        return NETPOL_AT_CLEARTEXT;
    enum netpol_stage stage = NETPOL_AT_END;
    *max = r->max_request_bytes;
    if (s->rd && in->nhttp > 0)
        stage = netpol_every_reading(in->http, in->nhttp, s->rd, max);
    if (stage == NETPOL_AT_END && s->rd && s->p->allow_first && in->ndeny > 0 &&
        netpol_any_reading(in->deny, in->ndeny, s->rd))
        stage = NETPOL_AT_PATH;
    if (stage == NETPOL_AT_END && s->rd && r->max_request_bytes && s->rd->q->length != UINT64_MAX &&
        s->rd->q->length > r->max_request_bytes)
        stage = NETPOL_AT_BODY;
    return stage == NETPOL_AT_END && has_expired(r, s->now) ? NETPOL_AT_EXPIRED : stage;
}

static bool allow_visit(void *arg, const struct netpol_rule *r)
{
    struct search *s = arg;
    uint64_t max = 0;
    enum netpol_stage stage = allow_stage(s, r, &max);
    if (stage > NETPOL_AT_PORT && stage != NETPOL_AT_EXPIRED)
        s->needs |= r->inside->needs && !r->tcp;
    if (stage != NETPOL_AT_END) {
        search_note_miss(s, r, stage);
        return false;
    }
    if (s->opaque && !r->tcp)
        return false;
    if (!allows_address(r, s->f)) {
        search_note_miss(s, r, NETPOL_AT_PORT);
        return false;
    }
    if (r->ask) {
        if (!s->ask)
            s->ask = r;
        return false;
    }
    /* After a rule that asks, only its answers count: grants for a time or a number of uses. */
    if (!s->found && s->ask && !r->expires && !r->uses)
        return false;
    if (!s->found) {
        s->found = r;
        s->max = max;
    }
    return s->rd || s->opaque || s->needs; /* else continue: another rule may have to see requests */
}

/* --- the order ---------------------------------------------------------------------------------------------------- */

static enum netpol_verdict decision_set(struct netpol_decision *ret, enum netpol_verdict verdict,
                                        enum netpol_reason reason, const struct netpol_rule *rule)
{
    ret->verdict = verdict;
    ret->reason = reason;
    ret->rule = rule;
    return verdict;
}

static bool search_denied_by_rule(struct search *s, const struct netpol_hit *hit, struct netpol_decision *ret)
{
    s->found = NULL;
    bool denied = netpol_each(s->p, s->f, hit, true, deny_visit, s);
    if (!denied && s->rd && s->p->subtracts && !s->p->allow_first)
        denied = netpol_each(s->p, s->f, hit, false, subtract_visit, s);
    if (denied)
        (void)decision_set(ret, NETPOL_DENY, NETPOL_R_DENY_RULE, s->found);
    return denied;
}

/* If "*" or the default allows every server, counting names would stop no leak. */
static bool counts_names(const struct netpol *p)
{
    return p->settings.mode == NETPOL_ENFORCE && p->settings.otherwise == NETPOL_DENY_ALL;
}

static bool list_has_rule(const struct netpol_list *l, unsigned index)
{
    for (size_t i = 0; i < l->n && l->v[i] <= index; i++)
        if (l->v[i] == index)
            return true;
    return false;
}

static bool found_by_wildcard(const struct search *s, const struct netpol_hit *hit)
{
    if (!s->f->host || !counts_names(s->p) ||
        (hit->whole && list_has_rule(&hit->nodes[hit->n - 1]->exact[0], s->found->index)))
        return false;
    for (unsigned i = 0; i < hit->n - hit->whole; i++)
        if (list_has_rule(&hit->nodes[i]->below[0], s->found->index))
            return true;
    return false;
}

static bool search_allowed_by_rule(struct search *s, const struct netpol_hit *hit, struct netpol_decision *ret)
{
    s->found = NULL;
    (void)netpol_each(s->p, s->f, hit, false, allow_visit, s);
    if (s->found) {
        (void)decision_set(ret, NETPOL_ALLOW, NETPOL_R_NONE, s->found);
        ret->max_request_bytes = s->max;
        ret->wildcard = found_by_wildcard(s, hit);
    } else if (s->ask) {
        (void)decision_set(ret, NETPOL_ASK, NETPOL_R_APPROVAL_PENDING, s->ask);
    }
    return s->found || s->ask;
}

static void decide_default(struct search *s, struct netpol_decision *ret)
{
    const struct netpol_settings *settings = &s->p->settings;
    bool literal = s->f->host == NULL, public = !literal || netpol_address_kind(&s->f->addr) == NETPOL_PUBLIC;
    if (!public) {
        (void)decision_set(ret, NETPOL_DENY, NETPOL_R_PRIVATE, s->near);
        return;
    }
    if (settings->otherwise == NETPOL_ALLOW_PUBLIC && !is_mail_port(s->f->port)) {
        (void)decision_set(ret, NETPOL_ALLOW, NETPOL_R_NONE, NULL);
        return;
    }
    enum netpol_reason reason = s->near                                      ? stage_reasons[s->stage]
                                : settings->otherwise == NETPOL_ALLOW_PUBLIC ? NETPOL_R_PORT
                                : literal                                    ? NETPOL_R_LITERAL
                                                                             : NETPOL_R_HOST;
    bool plain = reason == NETPOL_R_HOST || reason == NETPOL_R_PORT || reason == NETPOL_R_PATH ||
                 reason == NETPOL_R_METHOD || reason == NETPOL_R_HEADER || reason == NETPOL_R_CONTENT_TYPE ||
                 reason == NETPOL_R_EXPIRED;
    bool ask = settings->ask_on_miss && plain && !literal;
    (void)decision_set(ret, ask ? NETPOL_ASK : NETPOL_DENY, ask ? NETPOL_R_APPROVAL_PENDING : reason, s->near);
}

/* In audit and learn mode allows what would be refused, except what no policy can allow. */
static void decision_soften(const struct netpol *p, struct netpol_decision *d)
{
    if (p->settings.mode == NETPOL_ENFORCE || d->verdict == NETPOL_ALLOW || d->reason == NETPOL_R_PRIVATE)
        return;
    d->verdict = NETPOL_ALLOW;
    d->would_deny = true;
}

static void search_decide(struct search *s, const struct netpol_hit *hit, struct netpol_decision *ret)
{
    *ret = (struct netpol_decision){0};
    if (!s->f->host && netpol_address_kind(&s->f->addr) == NETPOL_NEVER) {
        (void)decision_set(ret, NETPOL_DENY, NETPOL_R_PRIVATE, NULL);
        return;
    }
    bool done = s->p->allow_first ? search_allowed_by_rule(s, hit, ret) || search_denied_by_rule(s, hit, ret)
                                  : search_denied_by_rule(s, hit, ret) || search_allowed_by_rule(s, hit, ret);
    if (!done)
        decide_default(s, ret);
    decision_soften(s->p, ret);
}

static bool sees_inside(const struct search *s, const struct netpol_hit *hit, const struct netpol_decision *d)
{
    enum netpol_tls all = s->p->settings.intercept;
    if (d->verdict != NETPOL_ALLOW)
        return all != NETPOL_TLS_PASSTHROUGH;
    if (d->tcp || all == NETPOL_TLS_PASSTHROUGH)
        return false;
    if (all == NETPOL_TLS_INTERCEPT || hit->inspect || (d->rule && d->rule->tls == NETPOL_TLS_INTERCEPT))
        return true;
    if (d->rule && d->rule->tls == NETPOL_TLS_PASSTHROUGH && !s->denies)
        return false;
    return s->needs || (d->would_deny && s->p->settings.mode == NETPOL_LEARN);
}

static void connect_flow(const struct netpol *p, const struct netpol_flow *f, uint64_t now, struct netpol_hit *hit,
                         struct netpol_decision *ret)
{
    struct search s = {.p = p, .f = f, .now = now};
    netpol_find(p, f, hit);
    search_decide(&s, hit, ret);
    /* A rule that asks per request asks when there is one: allow the connection for now. */
    if (ret->verdict == NETPOL_ASK && ret->rule && ret->rule->ask && !ret->rule->tcp) {
        ret->verdict = NETPOL_ALLOW;
        ret->reason = NETPOL_R_NONE;
    }
    ret->tcp = ret->rule && ret->rule->tcp && ret->verdict != NETPOL_DENY && !ret->would_deny;
    ret->intercept = sees_inside(&s, hit, ret);
}

void netpol_connect(const struct netpol *p, const struct netpol_flow *f, uint64_t now, struct netpol_decision *ret)
{
    struct netpol_hit hit;
    connect_flow(p, f, now, &hit, ret);
}

void netpol_relay(const struct netpol *p, const struct netpol_flow *f, uint64_t now, struct netpol_decision *ret)
{
    struct netpol_hit hit;
    connect_flow(p, f, now, &hit, ret);
    if (ret->verdict == NETPOL_DENY || ret->tcp || ret->would_deny)
        return;
    /* Another rule than the first may take opaque streams. */
    struct search s = {.p = p, .f = f, .now = now, .opaque = true};
    struct netpol_decision other = {0};
    if (search_allowed_by_rule(&s, &hit, &other)) {
        *ret = other;
        ret->tcp = true;
        return;
    }
    bool public = ret->verdict == NETPOL_ALLOW && !ret->rule;
    if (ret->verdict == NETPOL_ALLOW && (f->tls ? !ret->intercept : public))
        return;
    if (ret->verdict == NETPOL_ASK)
        return;
    bool soft = p->settings.mode != NETPOL_ENFORCE;
    (void)decision_set(ret, soft ? NETPOL_ALLOW : NETPOL_DENY, NETPOL_R_PROTOCOL, ret->rule);
    ret->would_deny = soft;
}

static bool is_refused_method(const char *method)
{
    return strcmp(method, "TRACE") == 0 || strcmp(method, "CONNECT") == 0 || strcmp(method, "PRI") == 0;
}

void netpol_request(const struct netpol *p, const struct netpol_flow *f, const struct netpol_request *q, uint64_t now,
                    struct netpol_decision *ret)
{
    struct netpol_hit hit;
    struct netpol_reading rd;
    bool token = netpol_is_token(q->method, NETPOL_METHOD_MAX - 1);
    *ret = (struct netpol_decision){0};
    if (!token || is_refused_method(q->method)) {
        (void)decision_set(ret, NETPOL_DENY, token ? NETPOL_R_METHOD : NETPOL_R_MALFORMED, NULL);
        return;
    }
    netpol_read_request(q, &rd);
    struct search s = {.p = p, .f = f, .rd = &rd, .now = now};
    netpol_find(p, f, &hit);
    search_decide(&s, &hit, ret);
}

/* --- around them -------------------------------------------------------------------------------------------------- */

static bool rule_closes_host(void *arg, const struct netpol_rule *r)
{
    const struct search *s = arg;
    return r->inside->nhttp == 0 && r->inside->nports == 0 && !has_expired(r, s->now);
}

static bool rule_opens_host(void *arg, const struct netpol_rule *r)
{
    const struct search *s = arg;
    return !has_expired(r, s->now);
}

bool netpol_name_possible(const struct netpol *p, const char *name, uint64_t now)
{
    struct netpol_flow f = {.host = name};
    struct search s = {.p = p, .f = &f, .now = now};
    struct netpol_hit hit;
    if (p->settings.mode != NETPOL_ENFORCE)
        return true;
    netpol_find(p, &f, &hit);
    bool open = netpol_each(p, &f, &hit, false, rule_opens_host, &s);
    if (p->allow_first && open)
        return true;
    if (netpol_each(p, &f, &hit, true, rule_closes_host, &s))
        return false;
    return open || p->settings.otherwise == NETPOL_ALLOW_PUBLIC || p->settings.ask_on_miss;
}

bool netpol_name_wildcard(const struct netpol *p, const char *name)
{
    struct netpol_flow f = {.host = name};
    struct netpol_hit hit;
    netpol_find(p, &f, &hit);
    if (!counts_names(p) || p->any[0].n > 0 || (hit.whole && hit.nodes[hit.n - 1]->exact[0].n > 0))
        return false;
    if (p->settings.ask_on_miss) /* then every name may be looked up */
        return true;
    for (unsigned i = 0; i < hit.n - hit.whole; i++)
        if (hit.nodes[i]->below[0].n > 0)
            return true;
    return false;
}

static bool takes_port(void *arg, const struct netpol_rule *r)
{
    const struct search *s = arg;
    return netpol_rule_port(r, s->f->port) && !has_expired(r, s->now);
}

bool netpol_resolved(const struct netpol *p, const struct netpol_flow *f, const struct in6_addr *a, uint64_t now)
{
    struct search s = {.p = p, .f = f, .now = now};
    struct netpol_hit hit;
    if (!f->host || p->blocks[1].n == 0 || p->settings.mode != NETPOL_ENFORCE)
        return true;
    netpol_find(p, f, &hit);
    if (p->allow_first &&
        (netpol_each(p, f, &hit, false, takes_port, &s) || netpol_each_block(p, a, false, takes_port, &s)))
        return true;
    return !netpol_each_block(p, a, true, takes_port, &s);
}
