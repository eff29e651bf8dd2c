/* netpol-check.c - finds errors in the rules as a whole: contradicting TLS modes, deny rules that can be bypassed,
 * rules that never decide.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "policy/net/netpol-int.h"

static bool ports_cover(const struct netpol_inside *wide, const struct netpol_inside *narrow)
{
    if (wide->nports == 0)
        return true;
    for (size_t i = 0; i < narrow->nports; i++) {
        bool covered = false;
        for (size_t k = 0; !covered && k < wide->nports; k++)
            covered = wide->ports[k].from <= narrow->ports[i].from && wide->ports[k].to >= narrow->ports[i].to;
        if (!covered)
            return false;
    }
    return narrow->nports > 0;
}

static bool ports_meet(const struct netpol_inside *a, const struct netpol_inside *b)
{
    if (a->nports == 0 || b->nports == 0)
        return true;
    for (size_t i = 0; i < a->nports; i++)
        for (size_t k = 0; k < b->nports; k++)
            if (a->ports[i].from <= b->ports[k].to && b->ports[k].from <= a->ports[i].to)
                return true;
    return false;
}

/* `fmt` with names of rules in it. */
__attribute__((format(printf, 3, 4))) static int fail_rule(struct netpol_reader *r, const struct netpol_rule *rule,
                                                           const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct netpol_at at = {.key = rule->inside->where};
    bool preset = rule->inside->preset; /* its line is not one of this document */
    return netpol_fail(r, &at, preset ? 0 : rule->inside->line, "%s%s%s%s", preset ? "preset rule \"" : "",
                       preset ? rule->id : "", preset ? "\": " : "", text);
}

/* --- rules that deny covers --------------------------------------------------------------------------------------- */

struct cover {
    const struct netpol_rule *rule, *by;
};

static bool is_covered_by(void *arg, const struct netpol_rule *deny)
{
    struct cover *c = arg;
    if (deny->inside->nhttp > 0 || deny->expires || !ports_cover(deny->inside, c->rule->inside))
        return false;
    c->by = deny;
    return true;
}

/* A name that the pattern stands for, or NULL. For "*.b.c" one that no pattern names by itself. */
static const char *example_of(const struct netpol_host *h, char ret[NETPOL_NAME_MAX + 8])
{
    if (h->kind == NETPOL_HOST_ANY)
        return "-";
    (void)snprintf(ret, NETPOL_NAME_MAX + 8, "%s%s", h->kind == NETPOL_HOST_EXACT ? "" : "-.", h->name);
    return ret;
}

static bool host_covered(const struct netpol *p, const struct netpol_host *h, struct cover *c)
{
    char name[NETPOL_NAME_MAX + 8];
    struct netpol_flow f = {.host = example_of(h, name)};
    struct netpol_hit hit;
    netpol_find(p, &f, &hit);
    if (!netpol_each(p, &f, &hit, true, is_covered_by, c))
        return false;
    if (h->kind != NETPOL_HOST_BOTH)
        return true;
    f.host = h->name;
    netpol_find(p, &f, &hit);
    return netpol_each(p, &f, &hit, true, is_covered_by, c);
}

static int check_denied(struct netpol_reader *r, const struct netpol_rule *rule)
{
    struct cover c = {.rule = rule};
    struct netpol_inside *in = rule->inside;
    if (r->p->allow_first || rule->deny || in->ncidrs > 0)
        return 0;
    for (size_t i = 0; i < in->nhosts; i++)
        if (!host_covered(r->p, &in->hosts[i], &c))
            return 0;
    if (in->may_repeat && !in->shorthand) {
        in->repeats = true;
        return 0;
    }
    return fail_rule(r, rule, "this rule can never allow anything: rule \"%s\" denies all its hosts", c.by->id);
}

/* --- pairs -------------------------------------------------------------------------------------------------------- */

/* How many host patterns a rule shares with each other rule. */
struct shared {
    uint16_t count[NETPOL_RULES_MAX];
    const struct netpol_host *host[NETPOL_RULES_MAX]; /* one of them */
};

static void count_list(const struct netpol_list *l, const struct netpol_host *h, unsigned below, struct shared *ret)
{
    for (size_t i = 0; i < l->n && l->v[i] < below; i++) {
        ret->count[l->v[i]]++;
        ret->host[l->v[i]] = h;
    }
}

static void count_shared(const struct netpol *p, const struct netpol_rule *rule, struct shared *ret)
{
    memset(ret->count, 0, sizeof ret->count);
    for (size_t i = 0; i < rule->inside->nhosts; i++) {
        const struct netpol_host *h = &rule->inside->hosts[i];
        const struct netpol_node *node = h->kind == NETPOL_HOST_ANY ? NULL : map_get(&p->names, h->name);
        for (int deny = 0; deny < 2; deny++)
            count_list(!node                          ? &p->any[deny]
                       : h->kind == NETPOL_HOST_EXACT ? &node->exact[deny]
                                                      : &node->below[deny],
                       h, rule->index, ret);
    }
}

/* Whether egress sees the contents: -1 never, 1 always, 0 depends on the flow. */
static int rule_sees_contents(const struct netpol_rule *rule)
{
    if (rule->deny)
        return rule->inside->nhttp > 0 ? 1 : 0;
    if (rule->tcp || rule->tls == NETPOL_TLS_PASSTHROUGH)
        return -1;
    return rule->inside->needs ? 1 : 0;
}

static int check_modes(struct netpol_reader *r, const struct netpol_rule *rule, const struct netpol_rule *other,
                       const struct netpol_host *h)
{
    if (rule_sees_contents(rule) * rule_sees_contents(other) >= 0 || !ports_meet(rule->inside, other->inside))
        return 0;
    const struct netpol_rule *blind = rule_sees_contents(rule) < 0 ? rule : other,
                             *seeing = blind == rule ? other : rule;
    return fail_rule(r, rule,
                     "rule \"%s\" treats %.100s as an opaque stream, and rule \"%s\" needs to see its requests",
                     blind->id, h->kind == NETPOL_HOST_ANY ? "*" : h->name, seeing->id);
}

/* --- deny rules that an uninspected stream would bypass ----------------------------------------------------------- */

/* Whether the rule denies some requests of its hosts, so that all of them must be seen. Not if allowing goes first:
 * then a rule that allows a stream wins anyway. */
static bool denies_requests(const struct netpol_rule *rule)
{
    return rule->deny ? rule->inside->nhttp > 0 : rule->inside->ndeny > 0;
}

struct passing {
    const struct netpol_rule *rule, *other;
};

static bool passes_by(void *arg, const struct netpol_rule *other)
{
    struct passing *c = arg;
    bool blind = rule_sees_contents(c->rule) < 0 ? denies_requests(other) : rule_sees_contents(other) < 0;
    if (!blind || other == c->rule || !ports_meet(c->rule->inside, other->inside))
        return false;
    c->other = other;
    return true;
}

/* Finds rules with the same or a wider pattern that let the stream pass. Narrower ones are checked on their own. */
static bool find_passing(const struct netpol *p, const struct netpol_host *h, struct passing *c)
{
    char name[NETPOL_NAME_MAX + 8];
    const char *const names[] = {example_of(h, name), h->kind == NETPOL_HOST_BOTH ? h->name : NULL};
    for (size_t i = 0; i < ARRAY_LEN(names) && names[i]; i++) {
        struct netpol_flow f = {.host = names[i]};
        struct netpol_hit hit;
        netpol_find(p, &f, &hit);
        if (netpol_each(p, &f, &hit, true, passes_by, c) || netpol_each(p, &f, &hit, false, passes_by, c))
            return true;
    }
    return false;
}

static int check_passing(struct netpol_reader *r, const struct netpol_rule *rule)
{
    struct passing c = {.rule = rule};
    if (r->p->allow_first || (rule_sees_contents(rule) >= 0 && !denies_requests(rule)))
        return 0;
    for (size_t i = 0; i < rule->inside->nhosts; i++) {
        const struct netpol_host *h = &rule->inside->hosts[i];
        if (!find_passing(r->p, h, &c))
            continue;
        const struct netpol_rule *blind = rule_sees_contents(rule) < 0 ? rule : c.other,
                                 *denies = blind == rule ? c.other : rule;
        _cleanup_buf_ struct buf pattern = {0};
        netpol_host_add(h, &pattern);
        return fail_rule(r, rule,
                         "rule \"%s\" passes streams to %.100s on unseen, and rule \"%s\" refuses some of its "
                         "requests: give them different ports or hosts, or let the first look inside",
                         blind->id, buf_str(&pattern), denies->id);
    }
    return 0;
}

/* --- rules that never decide -------------------------------------------------------------------------------------- */

/* Whether `first` allows all that the later rule could at their shared hosts, so that the later one never decides
 * there. */
static bool answers_for(const struct netpol_rule *first, const struct netpol_rule *rule)
{
    const struct netpol_inside *a = first->inside, *b = rule->inside;
    if (first->deny || first->has_http || first->ask || first->expires || first->uses || first->max_request_bytes)
        return false;
    return first->tcp == rule->tcp && b->ncidrs == 0 && b->ndeny == 0 && !a->cleartext_given && !b->cleartext_given &&
           rule->nprivate == 0 && ports_cover(a, b);
}

static int check_pairs(struct netpol_reader *r, const struct netpol_rule *rule, struct shared *shared)
{
    bool grant = rule->expires || rule->uses;
    count_shared(r->p, rule, shared);
    for (unsigned i = 0; i < rule->index; i++) {
        const struct netpol_rule *first = &r->p->rules[i];
        if (shared->count[i] == 0)
            continue;
        if (check_modes(r, rule, first, shared->host[i]) < 0)
            return -1;
        if (rule->deny || grant || shared->count[i] != rule->inside->nhosts || !answers_for(first, rule))
            continue;
        rule->inside->repeats = rule->inside->may_repeat;
        if (!rule->inside->may_repeat)
            return fail_rule(r, rule,
                             "this rule never decides anything: the earlier rule \"%s\" allows all of it; put this one "
                             "first, or take one of them out",
                             first->id);
    }
    return 0;
}

static int check_settings(struct netpol_reader *r, const struct netpol_rule *rule)
{
    bool needs = rule->deny ? rule->inside->nhttp > 0 : rule->inside->needs && !rule->tcp;
    if (r->p->settings.intercept == NETPOL_TLS_PASSTHROUGH && needs)
        return fail_rule(
            r, rule,
            "tls.intercept is never, and this rule needs to see requests (http, access, deny, secrets, limits, "
            "approval, uses or tls: intercept)");
    return 0;
}

int netpol_check(struct netpol_reader *r)
{
    const struct netpol *p = r->p;
    _cleanup_free_ struct shared *shared = xcalloc(1, sizeof *shared);
    for (size_t i = 0; i < p->nrules; i++) {
        const struct netpol_rule *rule = &p->rules[i];
        if (check_settings(r, rule) < 0 || check_denied(r, rule) < 0 || check_pairs(r, rule, shared) < 0)
            return -1;
    }
    for (size_t i = 0; i < p->nrules; i++)
        if (check_passing(r, &p->rules[i]) < 0)
            return -1;
    if (p->settings.intercept == NETPOL_TLS_PASSTHROUGH && p->ninspect > 0) {
        struct netpol_at tls = {.key = "tls"}, at = {.up = &tls, .key = "inspect"};
        return netpol_fail(r, &at, 0, "tls.intercept is never");
    }
    return 0;
}
