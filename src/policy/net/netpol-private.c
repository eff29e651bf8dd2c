/* netpol-private.c - lets hosts have private addresses, in a document: the machine stands behind a proxy, a VPN or split DNS
 * that answers with them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/strv.h"
#include "policy/net/netpol-int.h"

/* What was asked for. */
struct opening {
    char *host;   /* a pattern, canonical */
    char *suffix; /* "*.SUFFIX", ".SUFFIX": what it covers; else NULL */
    int port;     /* 0: any */
    struct strv ranges;
    bool any;   /* "*" */
    bool found; /* some rule allows the host */
};

static void opening_done(struct opening *o)
{
    free(o->host);
    free(o->suffix);
    strv_done(&o->ranges);
}

static int opening_read_ranges(struct opening *o, char *list, struct err *err)
{
    char *save = NULL;
    for (char *range = strtok_r(list, ",", &save); range; range = strtok_r(NULL, ",", &save)) {
        struct netpol_cidr c;
        if (!netpol_cidr_parse(range, &c))
            return err_set(err, ERR_POLICY, 0, "\"%.64s\" is not an address or a range like 10.20.0.0/16", range);
        strv_add(&o->ranges, range);
    }
    return o->ranges.n ? 0 : err_set(err, ERR_POLICY, 0, "after \"=\" comes a range like 10.20.0.0/16");
}

static int opening_read(const char *text, struct opening *ret, struct err *err)
{
    const char *equals = strchr(text, '=');
    _cleanup_free_ char *host = equals ? xstrndup(text, (size_t)(equals - text)) : xstrdup(text);
    _cleanup_free_ char *list = equals ? xstrdup(equals + 1) : NULL;
    char *colon = strchr(host, ':');
    if (colon && !num_int(colon + 1, 1, 65535, &ret->port))
        return err_set(err, ERR_POLICY, 0, "HOST, HOST:PORT or HOST=RANGE,... is wanted, with a port from 1 to 65535");
    if (colon)
        *colon = '\0';
    ret->any = strcmp(host, "*") == 0;
    if (list && opening_read_ranges(ret, list, err) < 0)
        return -1;
    if (ret->any && !list)
        return err_set(
            err, ERR_POLICY, 0,
            "\"*\" needs the range that your proxy or VPN answers with, like '*=198.18.0.0/15': without one, "
            "every name could lead into your own network");
    for (const char *const *r = netpol_private_ranges; !list && *r; r++)
        strv_add(&ret->ranges, *r);
    for (char *s = host; *s; s++)
        if (*s >= 'A' && *s <= 'Z')
            *s = (char)(*s - 'A' + 'a');
    if (strncmp(host, "*.", 2) == 0 || host[0] == '.')
        ret->suffix = xstrdup(strchr(host, '.'));
    ret->host = TAKE_PTR(host);
    return 0;
}

/* --- trees -------------------------------------------------------------------------------------------------------- */

static struct node *tree_get(const struct node *map, const char *key)
{
    for (size_t i = 0; map->kind == NODE_MAP && i < map->n; i += 2)
        if (strcmp(map->items[i]->text, key) == 0)
            return map->items[i + 1];
    return NULL;
}

static struct node *tree_copy(const struct node *n)
{
    struct node *copy = node_new(n->kind, n->text, n->line);
    copy->quoted = n->quoted;
    for (size_t i = 0; i < n->n; i++)
        node_take(copy, tree_copy(n->items[i]));
    return copy;
}

static void tree_put(struct node *map, const char *key, struct node *value)
{
    node_take(map, node_new(NODE_SCALAR, key, 0));
    node_take(map, value);
}

/* Takes items out of a list (or pairs out of a mapping). */
static void tree_drop(struct node *n, size_t at, size_t count)
{
    for (size_t i = at; i < at + count; i++)
        node_free(n->items[i]);
    if (at + count < n->n)
        memmove(n->items + at, n->items + at + count, (n->n - at - count) * sizeof n->items[0]);
    n->n -= count;
}

static void tree_drop_key(struct node *map, const char *key)
{
    for (size_t i = 0; i < map->n; i += 2)
        if (strcmp(map->items[i]->text, key) == 0) {
            tree_drop(map, i, 2);
            return;
        }
}

static void tree_insert(struct node *list, size_t at, struct node *child)
{
    node_take(list, child);
    memmove(list->items + at + 1, list->items + at, (list->n - 1 - at) * sizeof list->items[0]);
    list->items[at] = child;
}

static bool rules_have_id(const struct node *rules, const char *id)
{
    for (size_t i = 0; i < rules->n; i++) {
        const struct node *have = tree_get(rules->items[i], "id");
        if (have && strcmp(have->text, id) == 0)
            return true;
    }
    return false;
}

/* An id that no rule has: BASE/WORD, BASE/WORD.2 ... */
static char *rules_new_id(const struct node *rules, const char *base, const char *word)
{
    char *id = xasprintf("%.40s/%s", base, word);
    for (unsigned n = 2; rules_have_id(rules, id); n++) {
        free(id);
        id = xasprintf("%.40s/%s.%u", base, word, n);
    }
    return id;
}

/* --- rules -------------------------------------------------------------------------------------------------------- */

static bool opening_covers(const struct opening *o, const char *host)
{
    size_t n = strlen(host), s = o->suffix ? strlen(o->suffix) : 0;
    if (o->any || strcmp(host, o->host) == 0)
        return true;
    return o->suffix &&
           ((n > s && strcmp(host + n - s, o->suffix) == 0) || (o->host[0] == '.' && strcmp(host, o->host + 1) == 0));
}

static bool opening_takes_port(const struct opening *o, const struct node *rule)
{
    const struct node *ports = tree_get(rule, "ports");
    bool mail = o->port == 25 || o->port == 465 || o->port == 587; /* no range permits these (netpol_rule_port) */
    for (size_t i = 0; o->port && ports && i < ports->n; i++) {
        int from = 0, to = 0;
        int n = sscanf(ports->items[i]->text, "%d-%d", &from, &to);
        if (n >= 1 && from <= o->port && o->port <= (n == 2 ? to : from) && (!mail || n == 1 || from == to))
            return true;
    }
    return !o->port || (!ports && (o->port == 80 || o->port == 443));
}

/* Whether the rule has the ports that are asked for and no others. */
static bool opening_takes_all_ports(const struct opening *o, const struct node *rule)
{
    const struct node *ports = tree_get(rule, "ports");
    int port = 0;
    return !o->port || (ports && ports->n == 1 && num_int(ports->items[0]->text, 1, 65535, &port) && port == o->port);
}

static void rule_put_port(const struct opening *o, struct node *rule)
{
    struct node *list = tree_get(rule, "ports");
    _cleanup_free_ char *port = xasprintf("%d", o->port);
    if (!list) {
        list = node_new(NODE_LIST, NULL, 0);
        tree_put(rule, "ports", list);
    }
    tree_drop(list, 0, list->n);
    node_take(list, node_new(NODE_SCALAR, port, 0));
}

static void rule_open_private(const struct opening *o, struct node *rule)
{
    struct node *list = tree_get(rule, "private");
    if (!list) {
        list = node_new(NODE_LIST, NULL, 0);
        tree_put(rule, "private", list);
    }
    for (size_t i = 0; i < o->ranges.n; i++)
        node_take(list, node_new(NODE_SCALAR, o->ranges.v[i], 0));
}

/* Whether a wildcard of a rule stands for the host, among others. */
static bool opening_lies_in(const struct opening *o, const char *pattern)
{
    const char *suffix = pattern + (pattern[0] == '*');
    size_t n = strlen(o->host), s = strlen(suffix);
    if (o->any || (pattern[0] != '*' && pattern[0] != '.'))
        return false;
    return s == 0 || (n > s && strcmp(o->host + n - s, suffix) == 0) ||
           (pattern[0] == '.' && strcmp(o->host, pattern + 1) == 0);
}

/* A rule for the covered hosts (and the port) alone, with the others' conditions; its id says where it comes from. */
static struct node *rule_split(const struct opening *o, const struct node *rules, const struct node *rule)
{
    struct node *copy = tree_copy(rule), *hosts = tree_get(copy, "hosts"), *id = tree_get(copy, "id");
    for (size_t i = hosts->n; i-- > 0;)
        if (!opening_covers(o, hosts->items[i]->text))
            tree_drop(hosts, i, 1);
    if (hosts->n == 0)
        node_take(hosts, node_new(NODE_SCALAR, o->host, 0));
    if (id) {
        char *name = rules_new_id(rules, id->text, "private");
        free(id->text);
        id->text = name;
    }
    tree_drop_key(copy, "cidrs");
    if (o->port)
        rule_put_port(o, copy);
    return copy;
}

/* Opens what one rule allows; returns how many rules stand there now. */
static size_t rule_open_covered(struct opening *o, struct node *rules, size_t at)
{
    struct node *rule = rules->items[at], *hosts = tree_get(rule, "hosts"), *effect = tree_get(rule, "effect");
    size_t covered = 0, around = 0;
    if (!hosts || hosts->kind != NODE_LIST || (effect && strcmp(effect->text, "deny") == 0) ||
        !opening_takes_port(o, rule))
        return 1;
    for (size_t i = 0; i < hosts->n; i++) {
        covered += opening_covers(o, hosts->items[i]->text);
        around += opening_lies_in(o, hosts->items[i]->text);
    }
    if (covered + around == 0)
        return 1;
    o->found = true;
    bool all_ports = opening_takes_all_ports(o, rule);
    if (covered > 0 && covered == hosts->n && all_ports && !tree_get(rule, "cidrs")) {
        rule_open_private(o, rule);
        return 1;
    }
    struct node *copy = rule_split(o, rules, rule);
    for (size_t i = hosts->n; all_ports && i-- > 0;) /* else they stay for its other ports; the copy goes first */
        if (opening_covers(o, hosts->items[i]->text))
            tree_drop(hosts, i, 1);
    if (hosts->n == 0) /* it has addresses */
        tree_drop_key(rule, "hosts");
    rule_open_private(o, copy);
    tree_insert(rules, at, copy);
    return 2;
}

static struct node *rule_new(const struct opening *o, const struct node *rules)
{
    struct node *rule = node_new(NODE_MAP, NULL, 0), *hosts = node_new(NODE_LIST, NULL, 0);
    _cleanup_free_ char *id = rules_new_id(rules, "flag", "private");
    tree_put(rule, "id", node_new(NODE_SCALAR, id, 0));
    node_take(hosts, node_new(NODE_SCALAR, o->host, 0));
    tree_put(rule, "hosts", hosts);
    if (o->port)
        rule_put_port(o, rule);
    if (o->any)
        tree_put(rule, "broad", node_new(NODE_SCALAR, "true", 0));
    rule_open_private(o, rule);
    return rule;
}

/* A new rule must not open what a rule denies. If denying goes first, only a deny rule without conditions refuses all of it;
 * otherwise the new rule would win over every deny rule that has one of its hosts. */
static const struct node *rules_denying(const struct opening *o, const struct node *rules, bool allow_first)
{
    for (size_t i = 0; i < rules->n; i++) {
        const struct node *rule = rules->items[i], *hosts = tree_get(rule, "hosts"), *effect = tree_get(rule, "effect");
        if (!hosts || !effect || strcmp(effect->text, "deny") != 0)
            continue;
        bool partly = tree_get(rule, "http") || tree_get(rule, "expires") ||
                      (tree_get(rule, "ports") && (!o->port || !opening_takes_port(o, rule)));
        for (size_t k = 0; k < hosts->n; k++) {
            const char *host = hosts->items[k]->text;
            if (allow_first ? opening_covers(o, host) || opening_lies_in(o, host)
                            : !partly && (strcmp(host, o->host) == 0 || opening_lies_in(o, host)))
                return rule;
        }
    }
    return NULL;
}

static int rules_add(const struct opening *o, struct node *doc, struct node *rules, size_t at, struct err *err)
{
    const struct node *order = tree_get(doc, "order");
    const struct node *deny = rules_denying(o, rules, order && strcmp(order->text, "allow-first") == 0);
    if (deny) {
        const struct node *id = tree_get(deny, "id");
        return err_set(err, ERR_POLICY, 0, "\"%.253s\" is denied by %s%.64s: take it out of that rule first", o->host,
                       id ? "the rule " : "a rule", id ? id->text : "");
    }
    tree_insert(rules, at, rule_new(o, rules));
    return 0;
}

int netpol_open_private(struct node *doc, const char *text, struct err *err)
{
    __attribute__((cleanup(opening_done))) struct opening o = {0};
    if (opening_read(text, &o, err) < 0)
        return -1;
    struct node *rules = tree_get(doc, "rules"), *otherwise = tree_get(doc, "default");
    bool public = otherwise && strcmp(otherwise->text, "public") == 0;
    if (!rules) {
        rules = node_new(NODE_LIST, NULL, 0);
        tree_put(doc, "rules", rules);
    }
    for (size_t i = 0; i < rules->n;)
        i += rule_open_covered(&o, rules, i);
    if (o.any && public)
        return rules_add(&o, doc, rules, rules->n, err); /* last: the others keep their conditions */
    if (o.any && !o.found)
        return err_set(err, ERR_POLICY, 0,
                       "\"*\" means the hosts that are allowed, and none is: give --allow-host too");
    return o.found ? 0 : rules_add(&o, doc, rules, 0, err);
}
