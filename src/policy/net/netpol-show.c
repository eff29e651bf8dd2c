/* netpol-show.c - prints a policy as the document it came from, with presets and shorthands resolved, and a grant as a
 * document. */
#include <arpa/inet.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/net/netpol-int.h"

static void add_block(struct buf *b, const struct netpol_cidr *c)
{
    char text[INET6_ADDRSTRLEN];
    bool v4 = c->bits >= 96 && IN6_IS_ADDR_V4MAPPED(&c->addr);
    (void)inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? &c->addr.s6_addr[12] : c->addr.s6_addr, text, sizeof text);
    buf_adds(b, text);
    if (c->bits < 128)
        buf_addf(b, "/%u", v4 ? c->bits - 96 : c->bits);
}

static void show_blocks(struct json *j, const char *key, const struct netpol_cidr *v, size_t n)
{
    if (n == 0)
        return;
    json_arr(j, key);
    for (size_t i = 0; i < n; i++) {
        _cleanup_buf_ struct buf b = {0};
        add_block(&b, &v[i]);
        json_str(j, NULL, buf_str(&b));
    }
    json_end_arr(j);
}

static void show_hosts(struct json *j, const char *key, const struct netpol_host *v, size_t n)
{
    if (n == 0)
        return;
    json_arr(j, key);
    for (size_t i = 0; i < n; i++) {
        _cleanup_buf_ struct buf b = {0};
        netpol_host_add(&v[i], &b);
        json_str(j, NULL, buf_str(&b));
    }
    json_end_arr(j);
}

static void show_ports(struct json *j, const struct netpol_inside *in)
{
    if (in->nports == 0)
        return;
    json_arr(j, "ports");
    for (size_t i = 0; i < in->nports; i++) {
        _cleanup_buf_ struct buf b = {0};
        if (in->ports[i].from == in->ports[i].to) {
            json_u64(j, NULL, in->ports[i].from);
            continue;
        }
        buf_addf(&b, "%u-%u", in->ports[i].from, in->ports[i].to);
        json_str(j, NULL, buf_str(&b));
    }
    json_end_arr(j);
}

static void show_globs(struct json *j, const char *key, const struct netpol_glob *v, size_t n)
{
    json_arr(j, key);
    for (size_t i = 0; i < n; i++)
        json_str(j, NULL, v[i].source);
    json_end_arr(j);
}

static void show_pairs(struct json *j, const char *key, const struct netpol_pair *v, size_t n)
{
    if (n == 0)
        return;
    json_obj(j, key);
    for (size_t i = 0; i < n; i++)
        show_globs(j, v[i].name, v[i].values, v[i].nvalues);
    json_end_obj(j);
}

static void show_entries(struct json *j, const char *key, const struct netpol_entry *v, size_t n)
{
    json_arr(j, key);
    for (size_t i = 0; i < n; i++) {
        const struct netpol_entry *e = &v[i];
        json_obj(j, NULL);
        if (e->nmethods > 0) {
            json_arr(j, "methods");
            for (size_t k = 0; k < e->nmethods; k++)
                json_str(j, NULL, e->methods[k]);
            json_end_arr(j);
        }
        if (e->npaths > 0) {
            json_arr(j, "paths");
            for (size_t k = 0; k < e->npaths; k++)
                json_str(j, NULL, e->paths[k].source);
            json_end_arr(j);
        }
        show_pairs(j, "query", e->query, e->nquery);
        show_pairs(j, "headers", e->headers, e->nheaders);
        if (e->ntypes > 0)
            show_globs(j, "content_types", e->types, e->ntypes);
        if (e->max_request_bytes)
            json_u64(j, "max_request_bytes", e->max_request_bytes);
        json_end_obj(j);
    }
    json_end_arr(j);
}

static void show_rule_limits(struct json *j, const struct netpol_rule *r)
{
    if (!r->rps && !r->concurrent && !r->max_request_bytes && !r->max_response_bytes)
        return;
    json_obj(j, "limits");
    if (r->rps)
        json_u64(j, "rps", r->rps);
    if (r->burst)
        json_u64(j, "burst", r->burst);
    if (r->concurrent)
        json_u64(j, "concurrent", r->concurrent);
    if (r->max_request_bytes)
        json_u64(j, "max_request_bytes", r->max_request_bytes);
    if (r->max_response_bytes)
        json_u64(j, "max_response_bytes", r->max_response_bytes);
    json_end_obj(j);
}

static void show_conduct(struct json *j, const struct netpol_rule *r)
{
    static const char *const tls[] = {"auto", "intercept", "passthrough"};
    if (r->tls != NETPOL_TLS_AUTO)
        json_str(j, "tls", tls[r->tls]);
    show_blocks(j, "private", r->private, r->nprivate);
    if (r->nsecrets > 0) {
        json_arr(j, "secrets");
        for (size_t i = 0; i < r->nsecrets; i++)
            json_str(j, NULL, r->secrets[i]);
        json_end_arr(j);
    }
    if (r->ask)
        json_str(j, "approval", "ask");
    show_rule_limits(j, r);
    if (r->expires)
        json_u64(j, "expires", r->expires);
    if (r->uses)
        json_u64(j, "uses", r->uses);
}

static void netpol_show_rule(struct json *j, const struct netpol_rule *r)
{
    const struct netpol_inside *in = r->inside;
    json_obj(j, NULL);
    json_str(j, "id", r->id);
    if (r->deny)
        json_str(j, "effect", "deny");
    show_hosts(j, "hosts", in->hosts, in->nhosts);
    show_blocks(j, "cidrs", in->cidrs, in->ncidrs);
    show_ports(j, in);
    if (r->tcp)
        json_str(j, "proto", "tcp");
    if (in->access != NETPOL_ACCESS_NONE)
        json_str(j, "access", netpol_access_words[in->access]);
    else if (in->nhttp > 0)
        show_entries(j, "http", in->http, in->nhttp);
    if (in->ndeny > 0)
        show_entries(j, "deny", in->deny, in->ndeny);
    show_conduct(j, r);
    if (in->broad)
        json_bool(j, "broad", true);
    if (in->repeats)
        json_bool(j, "repeats", true);
    if (in->cleartext_given)
        json_bool(j, "cleartext", in->cleartext);
    json_end_obj(j);
}

static void show_tls(struct json *j, const struct netpol *p)
{
    static const char *const intercept[] = {"auto", "always", "never"};
    json_obj(j, "tls");
    json_str(j, "intercept", intercept[p->settings.intercept]);
    json_str(j, "min", p->settings.tls13_only ? "1.3" : "1.2");
    json_bool(j, "require_sni", p->settings.require_sni);
    show_hosts(j, "inspect", p->inspect, p->ninspect);
    json_end_obj(j);
}

static void netpol_show_limits(struct json *j, const struct netpol_settings *s)
{
    json_obj(j, "limits");
    json_u64(j, "connections", s->connections);
    json_u64(j, "new_conn_per_s", s->new_per_s);
    json_u64(j, "rps", s->rps);
    json_u64(j, "burst", s->burst);
    json_u64(j, "new_names_per_min", s->new_names);
    json_u64(j, "bytes_out", s->bytes_out);
    json_u64(j, "bytes_in", s->bytes_in);
    json_u64(j, "rate_out", s->rate_out);
    json_u64(j, "rate_in", s->rate_in);
    json_end_obj(j);
}

static void show_settings(struct json *j, const struct netpol *p)
{
    static const char *const modes[] = {"enforce", "audit", "learn"}, *const denied[] = {"synthetic", "nxdomain",
                                                                                         "refused"};
    const struct netpol_settings *s = &p->settings;
    json_u64(j, "version", 1);
    if (s->id[0])
        json_str(j, "id", s->id);
    json_str(j, "mode", modes[s->mode]);
    json_str(j, "default", s->otherwise == NETPOL_ALLOW_PUBLIC ? "public" : "deny");
    if (p->allow_first)
        json_str(j, "order", "allow-first");
    json_str(j, "on_miss", s->ask_on_miss ? "ask" : "deny");
    json_u64(j, "ask_hold", s->ask_hold_s);
    json_obj(j, "dns");
    json_str(j, "mode", s->dns_real ? "real" : "synthetic");
    json_str(j, "denied", denied[s->dns_denied]);
    json_bool(j, "aaaa", s->dns_aaaa);
    json_end_obj(j);
    show_tls(j, p);
    netpol_show_limits(j, s);
    json_str(j, "refusals", s->refusals_closed ? "closed" : "readable");
    if (s->deny_message[0])
        json_str(j, "deny_message", s->deny_message);
    if (s->proxy[0]) {
        json_obj(j, "upstream_proxy");
        json_str(j, "address", s->proxy);
        if (s->proxy_user[0])
            json_str(j, "username", s->proxy_user);
        json_end_obj(j);
    }
}

void netpol_show(const struct netpol *p, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    show_settings(&j, p);
    json_arr(&j, "rules");
    for (size_t i = 0; i < p->nrules; i++)
        netpol_show_rule(&j, &p->rules[i]);
    json_end_arr(&j);
    json_end_obj(&j);
}

/* --- for people --------------------------------------------------------------------------------------------------- */

/* The end of the JSON value that starts at `s`. */
static const char *value_end(const char *s)
{
    unsigned depth = 0;
    for (bool quoted = false; *s; s++) {
        if (quoted) {
            if (*s == '\\')
                s++;
            else if (*s == '"')
                quoted = false;
            continue;
        }
        if (depth == 0 && (*s == ',' || *s == '}' || *s == ']'))
            return s;
        quoted = *s == '"';
        depth += *s == '{' || *s == '[';
        depth -= *s == '}' || *s == ']';
    }
    return s;
}

/* The document is our own JSON: {"key":value,...} without spaces, "rules" last. */
void netpol_show_lines(const struct netpol *p, const char *indent, struct buf *out)
{
    _cleanup_buf_ struct buf doc = {0};
    netpol_show(p, &doc);
    const char *s = doc.p + 1;
    while (*s == '"') {
        size_t key = strcspn(s + 1, "\"");
        const char *value = s + key + 3, *end = value_end(value);
        bool rules = strncmp(s, "\"rules\"", 7) == 0 && value[1] != ']';
        buf_addf(out, "%s%.*s:", indent, (int)key, s + 1);
        if (!rules)
            buf_addf(out, " %.*s", (int)(end - value), value);
        buf_addc(out, '\n');
        for (const char *item = value + 1; rules && item < end;) {
            const char *stop = value_end(item);
            buf_addf(out, "%s  - %.*s\n", indent, (int)(stop - item), item);
            item = stop + 1;
        }
        s = end + (*end == ',');
    }
}

/* --- grants ------------------------------------------------------------------------------------------------------- */

/* Adds the path as a pattern that matches only itself. A path that is too long for a pattern is cut at a slash. */
static void add_pattern(struct buf *b, const char *path, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (path[i] == '*')
            buf_adds(b, "%2A");
        else if (strncmp(path + i, "%2F", 3) == 0) {
            if (b->n == 0 || b->p[b->n - 1] != '*')
                buf_addc(b, '*'); /* no pattern has an escaped slash */
            i += 2;
        } else
            buf_addc(b, path[i]);
    }
    if (b->n <= NETPOL_PATTERN_MAX)
        return;
    b->n = NETPOL_PATTERN_MAX - 3;
    while (b->p[b->n] != '/')
        b->n--;
    b->p[b->n] = '\0';
    buf_adds(b, "/**");
}

static void netpol_add_request(struct json *j, const struct netpol_request *q)
{
    _cleanup_buf_ struct buf b = {0};
    json_arr(j, "http");
    json_obj(j, NULL);
    json_arr(j, "methods");
    json_str(j, NULL, q->method);
    json_end_arr(j);
    if (q->target && q->target->text[0] == '/') {
        const struct netpol_target *t = q->target;
        const char *more[] = {t->decoded, t->bare, t->both};
        add_pattern(&b, t->text, t->path_len);
        json_arr(j, "paths");
        json_str(j, NULL, buf_str(&b));
        for (size_t i = 0; i < ARRAY_LEN(more); i++) {
            buf_done(&b);
            if (more[i]) {
                add_pattern(&b, more[i], strlen(more[i]));
                json_str(j, NULL, buf_str(&b));
            }
        }
        json_end_arr(j);
    }
    json_end_obj(j);
    json_end_arr(j);
}

void netpol_grant(const struct netpol_flow *f, const struct netpol_request *q, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    if (!f->host) {
        struct netpol_cidr block = {.addr = f->addr, .bits = 128};
        show_blocks(&j, "cidrs", &block, 1);
    } else {
        json_arr(&j, "hosts");
        json_str(&j, NULL, f->host);
        json_end_arr(&j);
    }
    if (!f->host || (f->port != 80 && f->port != 443)) {
        json_arr(&j, "ports");
        json_u64(&j, NULL, f->port);
        json_end_arr(&j);
    }
    if (f->host && q && !f->tls && f->port != 80)
        json_bool(&j, "cleartext", true);
    if (f->host && q)
        netpol_add_request(&j, q);
    json_end_obj(&j);
}
