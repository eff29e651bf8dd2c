/* netpol-parse.c - reading rules and the shorthands for them. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "policy/net/netpol-int.h"

/* A rule while it is read; hosts wait for `broad`, which may stand behind them. */
struct rule_reader {
    struct netpol_rule rule;
    struct netpol_inside *in;
    const struct node *hosts;
    bool ports, proto, http, access;
};

/* --- rules -------------------------------------------------------------------------------------------------------- */

static int rule_read_id(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/@:+-";
    struct netpol_rule *rule = &((struct rule_reader *)into)->rule;
    const char *text = netpol_text(r, value, at, NETPOL_ID_MAX - 1);
    if (!text)
        return -1;
    if (strspn(text, ok) != strlen(text))
        return netpol_fail(r, at, value->line, "\"%s\": an id has letters, digits and . _ / @ : + -",
                           netpol_safe(r, text));
    int n = r->preset_name ? snprintf(rule->id, sizeof rule->id, "%s/%s", r->preset_name, text)
                           : snprintf(rule->id, sizeof rule->id, "%s", text);
    return n < (int)sizeof rule->id ? 0 : netpol_fail(r, at, value->line, "longer than %d bytes", NETPOL_ID_MAX - 1);
}

static int rule_read_effect(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const char *const words[] = {"allow", "deny", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct rule_reader *)into)->rule.deny = i == 1;
    return i < 0 ? -1 : 0;
}

static int rule_read_hosts(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    (void)r;
    (void)at;
    ((struct rule_reader *)into)->hosts = value;
    return 0;
}

static int rule_read_blocks(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                            struct netpol_cidr **ret, size_t *ret_n)
{
    size_t n = netpol_scalars(r, value, at, NETPOL_HOSTS_MAX);
    if (n == 0)
        return -1;
    *ret = netpol_keep(r->p, n, sizeof **ret);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(value, i);
        struct netpol_at here = {.up = at, .index = i};
        if (!netpol_cidr_parse(item->text, &(*ret)[i]))
            return netpol_fail(r, &here, item->line,
                               "\"%s\" is not an address or a range like 192.0.2.0/24 or 2001:db8::/32",
                               netpol_safe(r, item->text));
    }
    *ret_n = n;
    return 0;
}

static int rule_read_cidrs(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_inside *in = ((struct rule_reader *)into)->in;
    return rule_read_blocks(r, value, at, &in->cidrs, &in->ncidrs);
}

/* Whether the range lies in a private one: only such ranges can be opened. */
static bool is_private_block(const struct netpol_cidr *c)
{
    for (const char *const *text = netpol_private_ranges; *text; text++) {
        struct netpol_cidr range = {0};
        (void)netpol_cidr_parse(*text, &range);
        if (c->bits >= range.bits && netpol_cidr_has(&range, &c->addr))
            return true;
    }
    return false;
}

static int rule_read_private(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_rule *rule = &((struct rule_reader *)into)->rule;
    struct netpol_cidr *v;
    if (rule_read_blocks(r, value, at, &v, &rule->nprivate) < 0)
        return -1;
    for (size_t i = 0; i < rule->nprivate; i++) {
        struct netpol_at here = {.up = at, .index = i};
        if (!is_private_block(&v[i]))
            return netpol_fail(
                r, &here, value->line,
                "\"%s\" is not inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, fc00::/7, "
                "198.18.0.0/15 "
                "or a documentation range; public addresses need no mention, loopback, link-local and metadata are "
                "never reached",
                netpol_safe(r, netpol_item(value, i)->text));
    }
    rule->private = v;
    return 0;
}

static bool parse_ports(const char *text, struct netpol_port *ret)
{
    int from, to;
    const char *dash = strchr(text, '-');
    _cleanup_free_ char *first = xstrndup(text, dash ? (size_t)(dash - text) : strlen(text));
    if (!num_int(first, 1, 65535, &from) || (dash && !num_int(dash + 1, from, 65535, &to)))
        return false;
    *ret = (struct netpol_port){.from = (uint16_t)from, .to = (uint16_t)(dash ? to : from)};
    return true;
}

static int rule_read_ports(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct rule_reader *rr = into;
    size_t n = netpol_scalars(r, value, at, NETPOL_LIST_MAX);
    if (n == 0)
        return -1;
    rr->in->ports = netpol_keep(r->p, n, sizeof rr->in->ports[0]);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(value, i);
        struct netpol_at here = {.up = at, .index = i};
        if (!parse_ports(item->text, &rr->in->ports[i]))
            return netpol_fail(r, &here, item->line, "\"%s\" is not a port from 1 to 65535 or a range like 8000-8099",
                               netpol_safe(r, item->text));
    }
    rr->in->nports = n;
    rr->ports = true;
    return 0;
}

static int rule_read_proto(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const char *const words[] = {"http", "tcp", NULL};
    struct rule_reader *rr = into;
    int i = netpol_word(r, value, at, words);
    rr->rule.tcp = i == 1;
    rr->proto = true;
    return i < 0 ? -1 : 0;
}

static int rule_read_http(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct rule_reader *rr = into;
    rr->http = true;
    return netpol_read_http(r, value, at, false, &rr->in->http, &rr->in->nhttp);
}

static int rule_read_deny(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct rule_reader *rr = into;
    return netpol_read_http(r, value, at, true, &rr->in->deny, &rr->in->ndeny);
}

static int rule_read_access(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct rule_reader *rr = into;
    int i = netpol_word(r, value, at, netpol_access_words + 1);
    if (i < 0)
        return -1;
    rr->access = true;
    rr->in->access = (enum netpol_access)(i + 1);
    return 0;
}

static int rule_read_tls(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const char *const words[] = {"auto", "intercept", "passthrough", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct rule_reader *)into)->rule.tls = i < 0 ? NETPOL_TLS_AUTO : (enum netpol_tls)i;
    return i < 0 ? -1 : 0;
}

static int rule_read_secrets(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_rule *rule = &((struct rule_reader *)into)->rule;
    size_t n = netpol_scalars(r, value, at, NETPOL_SECRETS_MAX);
    if (n == 0)
        return -1;
    const char **names = netpol_keep(r->p, n, sizeof names[0]);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(value, i);
        struct netpol_at here = {.up = at, .index = i};
        size_t len = strlen(item->text);
        if (len > 63 || strspn(item->text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != len)
            return netpol_fail(r, &here, item->line,
                               "\"%s\" is not the name of a secret (letters, digits and . _ -, at most 63)",
                               netpol_safe(r, item->text));
        names[i] = netpol_keep_text(r->p, item->text, len);
    }
    rule->secrets = names;
    rule->nsecrets = n;
    return 0;
}

static int rule_read_approval(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const char *const words[] = {"none", "ask", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct rule_reader *)into)->rule.ask = i == 1;
    return i < 0 ? -1 : 0;
}

static int rule_read_count(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, uint32_t *ret)
{
    uint64_t n;
    if (netpol_number(r, value, at, 1, 1000000, &n) < 0)
        return -1;
    *ret = (uint32_t)n;
    return 0;
}

static int rule_read_rps(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    return rule_read_count(r, value, at, &((struct netpol_rule *)into)->rps);
}

static int rule_read_burst(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    return rule_read_count(r, value, at, &((struct netpol_rule *)into)->burst);
}

static int rule_read_concurrent(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                void *into)
{
    return rule_read_count(r, value, at, &((struct netpol_rule *)into)->concurrent);
}

static int rule_read_body_limit(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                void *into)
{
    struct netpol_rule *rule = into;
    uint64_t *to = strcmp(at->key, "max_request_bytes") == 0 ? &rule->max_request_bytes : &rule->max_response_bytes;
    if (netpol_size(r, value, at, to) < 0)
        return -1;
    return *to > 0 ? 0 : netpol_fail(r, at, value->line, "must be more than 0; leave it out for no limit");
}

static int rule_read_limits(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const struct netpol_key keys[] = {
        {"rps", rule_read_rps},
        {"burst", rule_read_burst},
        {"concurrent", rule_read_concurrent},
        {"max_request_bytes", rule_read_body_limit},
        {"max_response_bytes", rule_read_body_limit},
        {NULL, NULL},
    };
    struct netpol_rule *rule = &((struct rule_reader *)into)->rule;
    if (netpol_map(r, value, at, keys, rule) < 0)
        return -1;
    if (rule->burst && !rule->rps)
        return netpol_fail(r, at, value->line, "burst is how far rps may be exceeded for a moment; give rps too");
    return 0;
}

static int rule_read_expires(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_rule *rule = &((struct rule_reader *)into)->rule;
    const char *text = netpol_text(r, value, at, 64);
    struct tm tm = {0};
    if (!text)
        return -1;
    if (num_u64(text, &rule->expires) && rule->expires > 0 && rule->expires < (uint64_t)1 << 40)
        return 0;
    const char *end = strlen(text) == 20 && text[10] == 'T' ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    time_t t = end && strcmp(end, "Z") == 0 ? timegm(&tm) : 0;
    if (t <= 0)
        return netpol_fail(r, at, value->line,
                           "\"%s\" is not a time like 2030-01-31T12:00:00Z or in seconds since 1970",
                           netpol_safe(r, text));
    rule->expires = (uint64_t)t;
    return 0;
}

static int rule_read_uses(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    return rule_read_count(r, value, at, &((struct rule_reader *)into)->rule.uses);
}

static int rule_read_broad(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    return netpol_bool(r, value, at, &((struct rule_reader *)into)->in->broad);
}

static int rule_read_repeats(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_inside *in = ((struct rule_reader *)into)->in;
    bool yes = false;
    int result = netpol_bool(r, value, at, &yes);
    in->may_repeat |= yes;
    return result;
}

static int rule_read_cleartext(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                               void *into)
{
    struct netpol_inside *in = ((struct rule_reader *)into)->in;
    in->cleartext_given = true;
    return netpol_bool(r, value, at, &in->cleartext);
}

/* --- a rule as a whole -------------------------------------------------------------------------------------------- */

static int finish_hosts(struct netpol_reader *r, struct rule_reader *rr, const struct netpol_at *at)
{
    struct netpol_at list = {.up = at, .key = "hosts"};
    if (!rr->hosts)
        return 0;
    size_t n = netpol_scalars(r, rr->hosts, &list, NETPOL_HOSTS_MAX);
    if (n == 0)
        return -1;
    rr->in->hosts = netpol_keep(r->p, n, sizeof rr->in->hosts[0]);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(rr->hosts, i);
        struct netpol_at here = {.up = &list, .index = i};
        /* Denying much is no risk. */
        const char *why = netpol_host_parse(r->p, item->text, rr->in->broad || rr->rule.deny, &rr->in->hosts[i]);
        if (why)
            return netpol_fail(r, &here, item->line, "\"%s\": %s", netpol_safe(r, item->text), why);
    }
    rr->in->nhosts = n;
    return 0;
}

/* Returns a contradiction inside one rule, or NULL. */
static const char *rule_check_conflicts(const struct rule_reader *rr)
{
    const struct netpol_rule *rule = &rr->rule;
    const struct netpol_inside *in = rr->in;
    bool limits = rule->rps || rule->concurrent || rule->max_request_bytes || rule->max_response_bytes;
    bool requests = rr->http || in->ndeny > 0 || rule->nsecrets > 0 || (rr->access && in->access != NETPOL_ACCESS_FULL);
    if (in->nhosts == 0 && in->ncidrs == 0)
        return "a rule needs hosts or cidrs";
    if (rr->http && rr->access)
        return "access is a shorthand for http; give one of them";
    if (rule->deny && (rr->access || in->ndeny || rule->nsecrets || rule->ask || limits || rule->nprivate ||
                       rule->tls || rr->proto || in->cleartext_given || rule->uses))
        return "a deny rule has hosts, cidrs, ports, http, expires and broad, and nothing else";
    if (rule->deny && rr->http && in->ncidrs > 0)
        return "cidrs speak of connections, http of requests to a name; make two rules";
    if (rule->deny)
        return NULL;
    if (in->ncidrs > 0 && rr->proto && !rule->tcp)
        return "cidrs need proto: tcp (the default with them): a request has a host name";
    if (rule->tcp && requests)
        return "proto: tcp is an opaque stream: http, access, deny and secrets cannot be kept on it";
    if (rule->tcp && rule->tls)
        return "proto: tcp is an opaque stream: tls cannot be chosen";
    if (rule->tcp && in->cleartext_given)
        return "proto: tcp is an opaque stream: cleartext cannot be chosen";
    if (rule->tcp && (rule->rps || rule->concurrent || rule->max_request_bytes || rule->max_response_bytes))
        return "proto: tcp is an opaque stream: limits on requests cannot be kept on it";
    if (rule->tcp && !rr->ports)
        return "proto: tcp and cidrs need ports";
    if (rule->tls == NETPOL_TLS_PASSTHROUGH && (requests || limits || rule->ask))
        return "tls: passthrough hides requests: http, access, deny, secrets, limits and approval cannot be kept";
    return NULL;
}

static void default_ports(struct netpol *p, struct netpol_inside *in)
{
    in->ports = netpol_keep(p, 2, sizeof in->ports[0]);
    in->ports[0] = (struct netpol_port){80, 80};
    in->ports[1] = (struct netpol_port){443, 443};
    in->nports = 2;
}

static int rule_add_to_policy(struct netpol_reader *r, struct rule_reader *rr, const struct netpol_at *at,
                              unsigned line, const char *kind)
{
    struct netpol *p = r->p;
    struct netpol_rule *rule = &rr->rule;
    if (p->nrules == NETPOL_RULES_MAX)
        return netpol_fail(r, at, line, "more than %d rules, presets and shorthands included", NETPOL_RULES_MAX);
    if (rule->id[0] && map_get(&r->ids, rule->id))
        return netpol_fail(r, at, line, "the id \"%s\" is given twice", rule->id);
    for (size_t i = at->index; !rule->id[0] || map_get(&r->ids, rule->id); i++)
        (void)snprintf(rule->id, sizeof rule->id, "%s%s%s.%zu", r->preset_name ? r->preset_name : "",
                       r->preset_name ? "/" : "", kind, i);
    (void)map_put(&r->ids, netpol_keep_text(p, rule->id, strlen(rule->id)), rr->in);
    if (!rule->deny && rr->in->nports == 0)
        default_ports(p, rr->in);
    if (rr->access)
        netpol_access_entry(p, rr->in->access, rr->in);
    rule->has_http = rr->in->nhttp > 0 || rr->in->ndeny > 0;
    rr->in->needs = rule->has_http || rule->nsecrets || rule->ask || rule->rps || rule->concurrent || rule->uses ||
                    rule->max_request_bytes || rule->max_response_bytes || rule->tls == NETPOL_TLS_INTERCEPT;
    _cleanup_buf_ struct buf where = {0};
    netpol_at_add(&where, at);
    rr->in->where = netpol_keep_text(p, buf_str(&where), where.n);
    rr->in->line = line;
    rule->inside = rr->in;
    MEM_GROW(p->rules, p->nrules, p->rules_cap);
    p->rules[p->nrules++] = *rule;
    return 0;
}

static int rule_read_one(struct netpol_reader *r, const struct node *value, const struct netpol_at *at)
{
    static const struct netpol_key keys[] = {
        {"id", rule_read_id},
        {"effect", rule_read_effect},
        {"hosts", rule_read_hosts},
        {"cidrs", rule_read_cidrs},
        {"ports", rule_read_ports},
        {"proto", rule_read_proto},
        {"http", rule_read_http},
        {"access", rule_read_access},
        {"deny", rule_read_deny},
        {"tls", rule_read_tls},
        {"private", rule_read_private},
        {"secrets", rule_read_secrets},
        {"approval", rule_read_approval},
        {"limits", rule_read_limits},
        {"expires", rule_read_expires},
        {"uses", rule_read_uses},
        {"broad", rule_read_broad},
        {"cleartext", rule_read_cleartext},
        {"repeats", rule_read_repeats},
        {NULL, NULL},
    };
    struct rule_reader rr = {.in = netpol_keep(r->p, 1, sizeof *rr.in)};
    rr.in->preset = rr.in->may_repeat = r->preset_name != NULL;
    if (netpol_map(r, value, at, keys, &rr) < 0 || finish_hosts(r, &rr, at) < 0)
        return -1;
    if (rr.in->ncidrs > 0 && !rr.rule.deny && !rr.proto)
        rr.rule.tcp = true;
    const char *why = rule_check_conflicts(&rr);
    if (why)
        return netpol_fail(r, at, value->line, "%s", why);
    return rule_add_to_policy(r, &rr, at, value->line, "rule");
}

int netpol_read_rules(struct netpol_reader *r, const struct node *value, const struct netpol_at *at)
{
    if (value->kind != NODE_LIST)
        return netpol_fail(r, at, value->line, "expected a list of rules");
    for (size_t i = 0; i < value->n; i++) {
        struct netpol_at here = {.up = at, .index = i};
        if (rule_read_one(r, value->items[i], &here) < 0)
            return -1;
    }
    return 0;
}

/* --- shorthands --------------------------------------------------------------------------------------------------- */

/* "host", "*.host", ".host", each with ":port"; an address or a range, an address with ":port". */
static int rule_read_one_short(struct netpol_reader *r, const struct node *item, const struct netpol_at *at, bool deny)
{
    struct rule_reader rr = {.rule.deny = deny, .in = netpol_keep(r->p, 1, sizeof *rr.in)};
    struct netpol_cidr block;
    struct netpol_host host;
    const char *text = item->text, *bracket = text[0] == '[' ? strchr(text, ']') : NULL;
    const char *colon = strchr(bracket ? bracket : text, ':');
    bool range = netpol_cidr_parse(text, &block); /* before looking for ports: IPv6 is full of colons */
    _cleanup_free_ char *bare = xstrndup(text, !range && colon ? (size_t)(colon - text) : strlen(text));
    size_t n = strlen(bare);
    if (!range && bracket && bare[n - 1] == ']') {
        bare[n - 1] = '\0';
        memmove(bare, bare + 1, n - 1);
    }
    if (!range && colon) {
        rr.in->ports = netpol_keep(r->p, 1, sizeof rr.in->ports[0]);
        rr.in->nports = 1;
        if (!parse_ports(colon + 1, rr.in->ports))
            return netpol_fail(r, at, item->line,
                               "\"%s\" is not HOST or HOST:PORT with a port from 1 to 65535 (no scheme, no path)",
                               netpol_safe(r, text));
    }
    rr.in->shorthand = rr.in->may_repeat = true;
    if (range || netpol_cidr_parse(bare, &block)) {
        rr.in->cidrs = netpol_keep(r->p, 1, sizeof block);
        rr.in->cidrs[rr.in->ncidrs++] = block;
        rr.rule.tcp = !deny;
        return rule_add_to_policy(r, &rr, at, item->line, deny ? "deny" : "allow");
    }
    const char *why = netpol_host_parse(r->p, bare, deny, &host);
    if (why)
        return netpol_fail(r, at, item->line, "\"%s\": %s", netpol_safe(r, text), why);
    rr.in->hosts = netpol_keep(r->p, 1, sizeof host);
    rr.in->hosts[rr.in->nhosts++] = host;
    return rule_add_to_policy(r, &rr, at, item->line, deny ? "deny" : "allow");
}

int netpol_read_short(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, bool deny)
{
    /* An empty list is allowed here: it adds nothing. */
    if (node_is_empty(value) || (value->kind == NODE_LIST && value->n == 0))
        return 0;
    size_t n = netpol_scalars(r, value, at, NETPOL_RULES_MAX);
    if (n == 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        struct netpol_at here = {.up = at, .index = i};
        if (rule_read_one_short(r, netpol_item(value, i), &here, deny) < 0)
            return -1;
    }
    return 0;
}
