/* limits.c - rates, quotas and counters of one sandbox, in memory of bounded size. Buckets are refilled when they are
 * used.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "egress/core/egress.h"

enum {
    DNS_PER_S = 100,
    DNS_DENIED_PER_MIN = 120,
    ACCEPT_BURST_FACTOR = 2,
    RATE_BURST_MIN = 64 * 1024,
    WAIT_MAX_MS = 1000,
    RULES_KEPT = 2 * NETPOL_RULES_MAX,
    NAMES_KEPT = 4096, /* under wildcards; beyond that the least recently used is forgotten and counts as new again */
    MINUTE_S = 60,
};

/* Tokens are thousandths, so that slow rates add up too. Negative if more was used than there was: bytes count
 * afterwards. */
struct bucket {
    int64_t tokens;
    uint64_t at_ms;
    bool started;
};

struct rule_state {
    struct bucket requests;
    uint32_t concurrent, used;
    char id[NETPOL_ID_MAX];
};

/* A name that was reached under a wildcard. */
struct known_name {
    struct known_name *newer, *older;
    char name[];
};

struct limits {
    const struct netpol *policy; /* for which `rules` was swept; only compared, never dereferenced */
    struct bucket accepts, requests, dns, rate_out, rate_in;
    uint64_t denied_minute;
    unsigned denied_names;
    struct map rules; /* id -> struct rule_state */
    struct map names; /* name -> struct known_name */
    struct known_name *newest, *oldest;
    struct bucket new_names;
};

static struct limits *limits_get(struct esb *s)
{
    if (!s->limits)
        s->limits = xcalloc(1, sizeof(struct limits));
    return s->limits;
}

static uint64_t limits_now(const struct esb *s) { return loop_now(s->g->loop); }

static void bucket_refill(struct bucket *b, uint64_t now, uint64_t per_s, uint64_t burst)
{
    int64_t full = (int64_t)(burst > INT64_MAX / 2000 ? INT64_MAX / 2 : burst * 1000);
    if (!b->started) {
        *b = (struct bucket){.tokens = full, .at_ms = now, .started = true};
        return;
    }
    uint64_t passed = now > b->at_ms ? now - b->at_ms : 0;
    if (passed > 3600 * 1000)
        passed = 3600 * 1000;
    b->at_ms = now;
    if (__builtin_mul_overflow(passed, per_s, &passed) || passed > (uint64_t)full || b->tokens + (int64_t)passed > full)
        b->tokens = full;
    else
        b->tokens += (int64_t)passed;
}

/* How long until there is a whole token (ms). */
static unsigned bucket_wait(const struct bucket *b, uint64_t per_s)
{
    if (b->tokens >= 1000 || !per_s)
        return 0;
    uint64_t ms = ((uint64_t)(1000 - b->tokens) + per_s - 1) / per_s;
    return ms > WAIT_MAX_MS * 1000u ? WAIT_MAX_MS * 1000u : (unsigned)ms;
}

static bool bucket_take(struct bucket *b, uint64_t now, uint64_t per_s, uint64_t burst)
{
    bucket_refill(b, now, per_s, burst ? burst : per_s);
    if (b->tokens < 1000)
        return false;
    b->tokens -= 1000;
    return true;
}

/* --- connections -------------------------------------------------------------------------------------------------- */

bool limit_connection(struct esb *s)
{
    const struct netpol_settings *set = netpol_settings(s->policy);
    return (!set->connections || s->nflows < set->connections) && s->g->nflows < s->g->config.connections;
}

unsigned limit_accept(struct esb *s)
{
    struct limits *l = limits_get(s);
    uint32_t rate = netpol_settings(s->policy)->new_per_s;
    if (!rate || bucket_take(&l->accepts, limits_now(s), rate, (uint64_t)rate * ACCEPT_BURST_FACTOR))
        return 0;
    return bucket_wait(&l->accepts, rate);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static bool limits_policy_has(const struct netpol *p, const char *id)
{
    for (size_t i = 0; i < netpol_rules(p); i++)
        if (strcmp(netpol_rule_at(p, i)->id, id) == 0)
            return true;
    return false;
}

/* After a change of the policy: forgets rules that are gone and have no request under way. */
static void limits_sweep_rules(struct esb *s, struct limits *l)
{
    struct rule_state *gone[RULES_KEPT];
    size_t n = 0, at = 0;
    if (l->policy == s->policy)
        return;
    l->policy = s->policy;
    for (struct rule_state *r; n < RULES_KEPT && (r = map_next(&l->rules, &at));)
        if (!r->concurrent && !limits_policy_has(s->policy, r->id))
            gone[n++] = r;
    for (size_t i = 0; i < n; i++) {
        (void)map_del(&l->rules, gone[i]->id);
        free(gone[i]);
    }
}

static struct rule_state *limits_rule_state(struct esb *s, struct limits *l, const struct netpol_rule *rule)
{
    struct rule_state *r = map_get(&l->rules, rule->id);
    if (r || l->rules.n == RULES_KEPT)
        return r;
    limits_sweep_rules(s, l);
    r = xcalloc(1, sizeof *r);
    memcpy(r->id, rule->id, sizeof r->id);
    (void)map_put(&l->rules, r->id, r);
    return r;
}

static bool is_limited(const struct netpol_rule *rule) { return rule && (rule->rps || rule->concurrent || rule->uses); }

/* Tells front, which removes the grant from the policy; until then the rule allows nothing. */
static void tell_used(struct esb *s, const struct netpol_rule *rule)
{
    struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "type", "used");
    json_str(&j, "sandbox", s->id);
    json_str(&j, "rule", rule->id);
    json_end_obj(&j);
    control_tell(s->g, &out);
}

static enum netpol_reason limit_rule(struct esb *s, struct limits *l, const struct netpol_rule *rule, unsigned *retry_s)
{
    struct rule_state *r = limits_rule_state(s, l, rule);
    if (!r)
        return NETPOL_R_RATE;
    if (rule->uses && r->used >= rule->uses)
        return NETPOL_R_EXPIRED;
    if (rule->concurrent && r->concurrent >= rule->concurrent)
        return NETPOL_R_RATE;
    if (rule->rps && !bucket_take(&r->requests, limits_now(s), rule->rps, rule->burst)) {
        *retry_s = bucket_wait(&r->requests, rule->rps) / 1000 + 1;
        return NETPOL_R_RATE;
    }
    if (rule->concurrent)
        r->concurrent++;
    if (rule->uses && ++r->used == rule->uses)
        tell_used(s, rule);
    return NETPOL_R_NONE;
}

static bool over_quota(const struct esb *s)
{
    const struct netpol_settings *set = s->policy ? netpol_settings(s->policy) : NULL;
    return set && ((set->bytes_out && s->counts.bytes_up > set->bytes_out) ||
                   (set->bytes_in && s->counts.bytes_down > set->bytes_in));
}

enum netpol_reason limit_request(struct esb *s, const struct netpol_rule *rule, unsigned *retry_s)
{
    struct limits *l = limits_get(s);
    const struct netpol_settings *set = netpol_settings(s->policy);
    *retry_s = 1;
    if (over_quota(s))
        return NETPOL_R_QUOTA;
    if (set->rps && !bucket_take(&l->requests, limits_now(s), set->rps, set->burst)) {
        *retry_s = bucket_wait(&l->requests, set->rps) / 1000 + 1;
        return NETPOL_R_RATE;
    }
    return is_limited(rule) ? limit_rule(s, l, rule, retry_s) : NETPOL_R_NONE;
}

void limit_request_end(struct esb *s, const struct netpol_rule *rule)
{
    struct limits *l = s->limits;
    struct rule_state *r = l && rule ? map_get(&l->rules, rule->id) : NULL;
    if (r && r->concurrent)
        r->concurrent--;
}

/* --- names under wildcards ---------------------------------------------------------------------------------------- */

static void unlink_name(struct limits *l, struct known_name *k)
{
    *(k->newer ? &k->newer->older : &l->newest) = k->older;
    *(k->older ? &k->older->newer : &l->oldest) = k->newer;
}

static void put_first(struct limits *l, struct known_name *k)
{
    k->newer = NULL;
    k->older = l->newest;
    *(l->newest ? &l->newest->newer : &l->oldest) = k;
    l->newest = k;
}

static void forget_oldest_name(struct limits *l)
{
    struct known_name *k = l->oldest;
    unlink_name(l, k);
    (void)map_del(&l->names, k->name);
    free(k);
}

/* One name costs 1000 * MINUTE_S tokens, so that the refill per millisecond is a whole number. */
bool limit_new_name(struct esb *s, const char *name, unsigned *retry_s)
{
    struct limits *l = limits_get(s);
    struct known_name *k = map_get(&l->names, name);
    uint64_t rate = netpol_settings(s->policy)->new_names;
    if (k) {
        unlink_name(l, k);
        put_first(l, k);
        return true;
    }
    bucket_refill(&l->new_names, limits_now(s), rate, rate * MINUTE_S);
    if (l->new_names.tokens < 1000 * MINUTE_S) {
        *retry_s = (unsigned)((uint64_t)(1000 * MINUTE_S - l->new_names.tokens) / rate / 1000 + 1);
        return false;
    }
    l->new_names.tokens -= 1000 * MINUTE_S;
    if (l->names.n == NAMES_KEPT)
        forget_oldest_name(l);
    size_t n = strlen(name) + 1;
    k = xcalloc(1, sizeof *k + n);
    memcpy(k->name, name, n);
    put_first(l, k);
    (void)map_put(&l->names, k->name, k);
    return true;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static uint64_t burst_of(uint64_t rate) { return rate / 4 > RATE_BURST_MIN ? rate / 4 : RATE_BURST_MIN; }

static void bucket_spend(struct bucket *b, uint64_t now, uint64_t rate, uint64_t n)
{
    if (!rate || !n)
        return;
    bucket_refill(b, now, rate, burst_of(rate));
    b->tokens -= (int64_t)(n > INT32_MAX ? INT32_MAX : n) * 1000;
}

enum netpol_reason limit_bytes(struct esb *s, const char *host, uint64_t up, uint64_t down)
{
    struct limits *l = limits_get(s);
    struct host_counts *h = esb_host(s, host && host[0] ? host : "-");
    s->counts.bytes_up += up;
    s->counts.bytes_down += down;
    h->bytes_up += up;
    h->bytes_down += down;
    if (s->policy) {
        bucket_spend(&l->rate_out, limits_now(s), netpol_settings(s->policy)->rate_out, up);
        bucket_spend(&l->rate_in, limits_now(s), netpol_settings(s->policy)->rate_in, down);
    }
    return over_quota(s) ? NETPOL_R_QUOTA : NETPOL_R_NONE;
}

unsigned limit_wait(struct esb *s, bool up)
{
    struct limits *l = limits_get(s);
    uint64_t rate = !s->policy ? 0 : up ? netpol_settings(s->policy)->rate_out : netpol_settings(s->policy)->rate_in;
    struct bucket *b = up ? &l->rate_out : &l->rate_in;
    if (!rate)
        return 0;
    bucket_refill(b, limits_now(s), rate, burst_of(rate));
    unsigned ms = bucket_wait(b, rate);
    return ms > WAIT_MAX_MS ? WAIT_MAX_MS : ms;
}

/* --- DNS ---------------------------------------------------------------------------------------------------------- */

bool limit_dns(struct esb *s, bool denied)
{
    struct limits *l = limits_get(s);
    if (!denied)
        return bucket_take(&l->dns, limits_now(s), DNS_PER_S, DNS_PER_S);
    uint64_t minute = limits_now(s) / 60000;
    if (l->denied_minute != minute) {
        l->denied_minute = minute;
        l->denied_names = 0;
    }
    return l->denied_names < DNS_DENIED_PER_MIN && ++l->denied_names;
}

void limits_free(struct esb *s)
{
    struct limits *l = s->limits;
    size_t at = 0;
    if (!l)
        return;
    for (struct rule_state *r; (r = map_next(&l->rules, &at));)
        free(r);
    map_done(&l->rules);
    while (l->oldest)
        forget_oldest_name(l);
    map_done(&l->names);
    free(l);
    s->limits = NULL;
}
