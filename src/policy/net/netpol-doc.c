/* netpol-doc.c - reading the network document: its settings, shorthands, presets and rules, in this order of trust: a preset
 * may hold rules and nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/text.h"
#include "policy/net/netpol-int.h"

/* --- settings ----------------------------------------------------------------------------------------------------- */

static int netdoc_read_version(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                               void *into)
{
    uint64_t ignored;
    (void)into;
    return netpol_number(r, value, at, 1, 1, &ignored);
}

static int netdoc_read_id(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_settings *s = into;
    const char *text = netpol_text(r, value, at, sizeof s->id - 1);
    if (!text)
        return -1;
    for (const char *c = text; *c; c++)
        if (*c <= 0x20 || *c >= 0x7f)
            return netpol_fail(r, at, value->line, "an id has no spaces and only ASCII");
    (void)snprintf(s->id, sizeof s->id, "%s", text);
    return 0;
}

static int netdoc_read_mode(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const char *const words[] = {"enforce", "audit", "learn", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct netpol_settings *)into)->mode = i < 0 ? NETPOL_ENFORCE : (enum netpol_mode)i;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_default(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                               void *into)
{
    static const char *const words[] = {"deny", "public", "allow-public", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct netpol_settings *)into)->otherwise = i > 0 ? NETPOL_ALLOW_PUBLIC : NETPOL_DENY_ALL;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_order(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const char *const words[] = {"deny-first", "allow-first", NULL};
    int i = netpol_word(r, value, at, words);
    (void)into;
    r->p->allow_first = i == 1;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_on_miss(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                               void *into)
{
    static const char *const words[] = {"deny", "ask", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct netpol_settings *)into)->ask_on_miss = i == 1;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_ask_hold(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                void *into)
{
    uint64_t ms;
    const char *text = netpol_text(r, value, at, 64);
    if (!text)
        return -1;
    if (!num_duration(text, &ms) || ms % 1000 != 0 || ms > 180000)
        return netpol_fail(r, at, value->line, "must be whole seconds from 0 to 180, like 20 or 3m, not \"%s\"",
                           netpol_safe(r, text));
    ((struct netpol_settings *)into)->ask_hold_s = (uint32_t)(ms / 1000);
    return 0;
}

static int netdoc_read_deny_message(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                    void *into)
{
    struct netpol_settings *s = into;
    const char *text = netpol_text(r, value, at, sizeof s->deny_message - 1);
    if (!text)
        return -1;
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return netpol_fail(r, at, value->line, "one line without control characters is possible");
    (void)snprintf(s->deny_message, sizeof s->deny_message, "%s", text);
    return 0;
}

/* Sets how a refusal looks to the program, not what is refused. */
static int netdoc_read_refusals(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                void *into)
{
    static const char *const words[] = {"readable", "closed", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct netpol_settings *)into)->refusals_closed = i == 1;
    ((struct netpol_settings *)into)->refusals_given = true;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_dns_mode(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                void *into)
{
    static const char *const words[] = {"synthetic", "real", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct netpol_settings *)into)->dns_real = i == 1;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_dns_denied(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                  void *into)
{
    static const char *const words[] = {"synthetic", "nxdomain", "refused", NULL};
    struct netpol_settings *s = into;
    int i = netpol_word(r, value, at, words);
    s->dns_denied = i == 1 ? NETPOL_DNS_NXDOMAIN : i == 2 ? NETPOL_DNS_REFUSED : NETPOL_DNS_SYNTHETIC;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_dns_aaaa(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                void *into)
{
    return netpol_bool(r, value, at, &((struct netpol_settings *)into)->dns_aaaa);
}

static int netdoc_read_dns(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const struct netpol_key keys[] = {{"mode", netdoc_read_dns_mode},
                                             {"denied", netdoc_read_dns_denied},
                                             {"aaaa", netdoc_read_dns_aaaa},
                                             {NULL, NULL}};
    return netpol_map(r, value, at, keys, into);
}

static int netdoc_read_intercept(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                 void *into)
{
    static const char *const words[] = {"auto", "always", "never", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct netpol_settings *)into)->intercept = i < 0 ? NETPOL_TLS_AUTO : (enum netpol_tls)i;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_tls_min(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                               void *into)
{
    static const char *const words[] = {"1.2", "1.3", NULL};
    int i = netpol_word(r, value, at, words);
    ((struct netpol_settings *)into)->tls13_only = i == 1;
    return i < 0 ? -1 : 0;
}

static int netdoc_read_require_sni(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                   void *into)
{
    return netpol_bool(r, value, at, &((struct netpol_settings *)into)->require_sni);
}

static int netdoc_read_inspect(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                               void *into)
{
    struct netpol *p = r->p;
    size_t n = netpol_scalars(r, value, at, NETPOL_HOSTS_MAX);
    (void)into;
    if (n == 0)
        return -1;
    p->inspect = netpol_keep(p, n, sizeof p->inspect[0]);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(value, i);
        struct netpol_at here = {.up = at, .index = i};
        const char *why = strcmp(item->text, "*") == 0 ? "say intercept: always"
                                                       : netpol_host_parse(p, item->text, true, &p->inspect[i]);
        if (why)
            return netpol_fail(r, &here, item->line, "\"%s\": %s", netpol_safe(r, item->text), why);
        p->ninspect++;
    }
    return 0;
}

static int netdoc_read_tls(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const struct netpol_key keys[] = {{"intercept", netdoc_read_intercept},
                                             {"min", netdoc_read_tls_min},
                                             {"require_sni", netdoc_read_require_sni},
                                             {"inspect", netdoc_read_inspect},
                                             {NULL, NULL}};
    return netpol_map(r, value, at, keys, into);
}

static int netdoc_read_limit(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_settings *s = into;
    const struct {
        const char *name;
        uint32_t *to;
    } counts[] = {{"connections", &s->connections},
                  {"new_conn_per_s", &s->new_per_s},
                  {"rps", &s->rps},
                  {"burst", &s->burst},
                  {"new_names_per_min", &s->new_names}};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        uint64_t n;
        if (strcmp(counts[i].name, at->key) != 0)
            continue;
        if (netpol_number(r, value, at, 1, 100000, &n) < 0)
            return -1;
        *counts[i].to = (uint32_t)n;
        return 0;
    }
    bool out = strstr(at->key, "_out") != NULL, rate = at->key[0] == 'r';
    return netpol_size(r, value, at, rate ? (out ? &s->rate_out : &s->rate_in) : (out ? &s->bytes_out : &s->bytes_in));
}

static int netdoc_read_limits(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const struct netpol_key keys[] = {
        {"connections", netdoc_read_limit},
        {"new_conn_per_s", netdoc_read_limit},
        {"rps", netdoc_read_limit},
        {"burst", netdoc_read_limit},
        {"bytes_out", netdoc_read_limit},
        {"bytes_in", netdoc_read_limit},
        {"rate_out", netdoc_read_limit},
        {"rate_in", netdoc_read_limit},
        {"new_names_per_min", netdoc_read_limit},
        {NULL, NULL},
    };
    return netpol_map(r, value, at, keys, into);
}

static int netdoc_read_proxy_address(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                     void *into)
{
    struct netpol_settings *s = into;
    const char *text = netpol_text(r, value, at, sizeof s->proxy - 1);
    char host[NETPOL_NAME_MAX];
    struct in6_addr literal;
    bool is_literal;
    uint16_t port = 0;
    if (!text)
        return -1;
    if (!netpol_authority(text, host, &literal, &is_literal, &port) || port == 0)
        return netpol_fail(r, at, value->line, "\"%s\" is not HOST:PORT of a SOCKS5 proxy", netpol_safe(r, text));
    bool v6 = is_literal && strchr(host, ':');
    (void)snprintf(s->proxy, sizeof s->proxy, "%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", port);
    return 0;
}

static int netdoc_read_proxy_user(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                  void *into)
{
    struct netpol_settings *s = into;
    const char *text = netpol_text(r, value, at, sizeof s->proxy_user - 1);
    if (!text)
        return -1;
    (void)snprintf(s->proxy_user, sizeof s->proxy_user, "%s", text);
    return 0;
}

static int refuse_password(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    (void)into;
    return netpol_fail(
        r, at, value->line,
        "a password does not stand in a document: give it to a node's API, which seals it and keeps it apart");
}

static int netdoc_read_proxy(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    static const struct netpol_key keys[] = {{"address", netdoc_read_proxy_address},
                                             {"username", netdoc_read_proxy_user},
                                             {"password", refuse_password},
                                             {NULL, NULL}};
    if (value->kind == NODE_SCALAR)
        return netdoc_read_proxy_address(r, value, at, into);
    if (netpol_map(r, value, at, keys, into) < 0)
        return -1;
    return ((struct netpol_settings *)into)->proxy[0] ? 0 : netpol_fail(r, at, value->line, "address is missing");
}

/* --- rules from three places -------------------------------------------------------------------------------------- */

static int netdoc_read_rules(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    (void)into;
    return netpol_read_rules(r, value, at);
}

static int netdoc_read_allow(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    (void)into;
    return netpol_read_short(r, value, at, false);
}

static int netdoc_read_deny(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    (void)into;
    return netpol_read_short(r, value, at, true);
}

static int netdoc_skip_key(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    (void)r;
    (void)value;
    (void)at;
    (void)into;
    return 0;
}

/* Reports an error in a preset at the place that names it; the position inside the preset goes into the text. */
static int fail_preset(struct netpol_reader *r, const struct node *item, const struct netpol_at *at)
{
    struct netpol_error inner = *r->e;
    return netpol_fail(r, at, item->line, "preset %s, line %u: %s: %.300s", item->text, inner.line, inner.path,
                       inner.text);
}

static int netdoc_read_one_preset(struct netpol_reader *r, const struct node *item, const struct netpol_at *at)
{
    static const struct netpol_key keys[] = {{"version", netdoc_read_version}, {"description", netdoc_skip_key},
                                             {"aliases", netdoc_skip_key},     {"run", netdoc_skip_key},
                                             {"rules", netdoc_read_rules},     {NULL, NULL}};
    _cleanup_node_ struct node *doc = NULL;
    struct err err = {0};
    size_t n = strlen(item->text);
    if (n > 32 || strspn(item->text, "abcdefghijklmnopqrstuvwxyz0123456789-") != n)
        return netpol_fail(r, at, item->line, "\"%s\" is not the name of a preset (small letters, digits and -)",
                           netpol_safe(r, item->text));
    if (!r->preset)
        return netpol_fail(r, at, item->line,
                           "the presets that come with hutch (share/hutch/presets) are not installed here");
    if (r->preset(r->arg, item->text, &doc, &err) < 0)
        return netpol_fail(r, at, item->line, "%.400s", err.msg);
    r->preset_name = item->text;
    int result = netpol_map(r, doc, NULL, keys, NULL);
    r->preset_name = NULL;
    return result < 0 ? fail_preset(r, item, at) : 0;
}

static int netdoc_read_presets(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                               void *into)
{
    (void)into;
    if (node_is_empty(value) || (value->kind == NODE_LIST && value->n == 0))
        return 0;
    size_t n = netpol_scalars(r, value, at, NETPOL_PRESETS_MAX);
    if (n == 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        struct netpol_at here = {.up = at, .index = i};
        for (size_t k = 0; k < i; k++)
            if (strcmp(netpol_item(value, i)->text, netpol_item(value, k)->text) == 0)
                return netpol_fail(r, &here, netpol_item(value, i)->line, "preset \"%s\" is named twice",
                                   netpol_safe(r, netpol_item(value, i)->text));
        if (netdoc_read_one_preset(r, netpol_item(value, i), &here) < 0)
            return -1;
    }
    return 0;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

#define SETTINGS_KEYS                                                                                     \
    {"version", netdoc_read_version}, {"id", netdoc_read_id}, {"mode", netdoc_read_mode},                 \
        {"default", netdoc_read_default}, {"order", netdoc_read_order}, {"on_miss", netdoc_read_on_miss}, \
        {"ask_hold", netdoc_read_ask_hold}, {"dns", netdoc_read_dns}, {"tls", netdoc_read_tls},           \
        {"limits", netdoc_read_limits}, {"deny_message", netdoc_read_deny_message},                       \
        {"refusals", netdoc_read_refusals},                                                               \
    {                                                                                                     \
        "upstream_proxy", netdoc_read_proxy                                                               \
    }

/* Reads rules in a fixed order, whatever the order of the keys: own rules, shorthands, presets. So the document's own
 * rules win over a preset's that name a host equally well. */
static int netdoc_read_document(struct netpol_reader *r, const struct node *doc)
{
    static const struct netpol_key passes[][18] = {
        {SETTINGS_KEYS,
         {"rules", netdoc_read_rules},
         {"allow", netdoc_skip_key},
         {"deny", netdoc_skip_key},
         {"presets", netdoc_skip_key},
         {NULL, NULL}},
        {{"allow", netdoc_read_allow}, {"deny", netdoc_read_deny}, {NULL, NULL}},
        {{"presets", netdoc_read_presets}, {NULL, NULL}},
    };
    struct netpol_settings *s = &r->p->settings;
    if (netpol_map(r, doc, NULL, passes[0], s) < 0)
        return -1;
    for (size_t pass = 1; pass < ARRAY_LEN(passes); pass++)
        for (const struct netpol_key *k = passes[pass]; k->name; k++)
            for (size_t i = 0; i < doc->n; i += 2) {
                struct netpol_at at = {.key = k->name};
                if (strcmp(doc->items[i]->text, k->name) == 0 && k->read(r, doc->items[i + 1], &at, s) < 0)
                    return -1;
            }
    if (s->burst < s->rps)
        s->burst = s->rps;
    return 0;
}

static int netdoc_read_scalar(struct netpol_reader *r, const struct node *doc)
{
    static const char *const words[] = {"off", "none", "public", "allow-public", NULL};
    int i = netpol_word(r, doc, NULL, words);
    r->p->settings.otherwise = i >= 2 ? NETPOL_ALLOW_PUBLIC : NETPOL_DENY_ALL;
    return i < 0 ? -1 : 0;
}

static struct netpol *new_policy(void)
{
    struct netpol *p = xcalloc(1, sizeof *p);
    p->refs = 1;
    p->settings = (struct netpol_settings){
        .ask_hold_s = 20,
        .require_sni = true,
        .connections = 256,
        .new_per_s = 50,
        .rps = 200,
        .burst = 400,
        .new_names = 60,
        .bytes_out = (uint64_t)10 << 30,
    };
    return p;
}

int netpol_parse(const struct node *doc, netpol_preset_fn *preset, void *arg, struct netpol **ret,
                 struct netpol_error *e)
{
    _cleanup_netpol_ struct netpol *p = new_policy();
    struct netpol_reader r = {.p = p, .preset = preset, .arg = arg, .e = e};
    *e = (struct netpol_error){0};
    int result = doc->kind == NODE_SCALAR ? netdoc_read_scalar(&r, doc) : netdoc_read_document(&r, doc);
    map_done(&r.ids);
    if (result < 0)
        return -1;
    netpol_index(p);
    if (netpol_check(&r) < 0)
        return -1;
    *ret = TAKE_PTR(p);
    return 0;
}

/* A document that is one word, in quotes: node_read() takes mappings only. */
static struct node *word_document(const char *text, size_t n)
{
    static const char space[] = " \t\r\n";
    while (n > 0 && strchr(space, text[0])) {
        text++;
        n--;
    }
    while (n > 0 && strchr(space, text[n - 1]))
        n--;
    if (n < 2 || n > 64 || text[0] != '"' || text[n - 1] != '"' || memchr(text + 1, '"', n - 2) ||
        memchr(text, '\0', n))
        return NULL;
    _cleanup_free_ char *word = xstrndup(text + 1, n - 2);
    struct node *node = node_new(NODE_SCALAR, word, 1);
    node->quoted = true;
    return node;
}

int netpol_parse_json(const char *text, size_t n, netpol_preset_fn *preset, void *arg, struct netpol **ret,
                      struct netpol_error *e)
{
    _cleanup_node_ struct node *doc = word_document(text, n);
    struct err err = {0};
    if (!doc && node_read(text, n, "policy", NODE_JSON, &doc, &err) < 0) {
        *e = (struct netpol_error){0};
        /* "policy:LINE: what" */
        const char *line = strchr(err.msg, ':'), *what = line ? strchr(line + 1, ':') : NULL;
        if (line)
            (void)sscanf(line + 1, "%u", &e->line);
        (void)snprintf(e->text, sizeof e->text, "%.400s", what ? what + 2 : err.msg);
        return -1;
    }
    return netpol_parse(doc, preset, arg, ret, e);
}
