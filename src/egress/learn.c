/* learn.c - records what a sandbox did in learn mode and writes the smallest policy document that allows the same.
 *
 * Hosts stay exact. Path segments that name one thing among many (numbers, UUIDs, hashes) become "*"; every form in
 * which a path is judged is kept, because all of them must be allowed. All records have limits, beyond which rules get
 * wider instead of more: too many paths of a host become "any path", too many hosts are not remembered. The document
 * never contains secrets or private networks: only people may grant those.
 */
#include "egress/deny.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"

enum {
    LEARN_HOSTS_MAX = 512,
    LEARN_PATHS_MAX = 256,     /* of a host */
    LEARN_PATHS_ALL = 16384,   /* of a sandbox */
    LEARN_BYTES_ALL = 1 << 20, /* of their texts */
    LEARN_METHODS_MAX = 16,
    LEARN_PORTS_MAX = 12,
    LEARN_SEGMENT_MAX = 100,
    LEARN_BODY_MIN = 1 << 20,             /* a limit on bodies is a power of two from here on */
    LEARN_VALUES = NODE_TOTAL_MAX - 1000, /* of the document; with keys */
    LEARN_TEXT = NODE_TEXT_MAX - 1000,
};

struct learned_path {
    uint32_t methods; /* bits of host->methods */
    char text[];      /* a pattern */
};
enum kind { KIND_STREAM, KIND_HTTP, KIND_TUNNEL, KINDS }; /* opaque bytes, requests, TLS passed through */
struct learned_ports {
    uint16_t v[LEARN_PORTS_MAX];
    size_t n; /* 0: nothing of this kind was seen */
    bool all;
};
struct learned_host {
    char name[NETPOL_NAME_MAX + 4]; /* or an address with its prefix length */
    bool literal;
    struct learned_ports ports[KINDS];
    bool all_paths, all_methods, server_options;
    bool cleartext; /* plain HTTP was used on another port than 80 */
    char methods[LEARN_METHODS_MAX][20];
    size_t nmethods;
    uint32_t all_mask; /* methods of paths that are not kept one by one */
    struct map paths;  /* text -> struct learned_path */
    uint64_t up;       /* the largest request */
};
struct learned {
    struct map hosts;
    size_t npaths, bytes;
    uint64_t forgotten; /* connections to hosts that did not fit */
};

static void learn_free_paths(struct learned *k, struct learned_host *h)
{
    size_t at = 0;
    for (struct learned_path *p; (p = map_next(&h->paths, &at));) {
        k->npaths--;
        k->bytes -= strlen(p->text);
        free(p);
    }
    map_done(&h->paths);
    h->paths = (struct map){0};
}

void learn_forget(struct esb *s)
{
    struct learned *k = s->learned;
    size_t at = 0;
    if (!k)
        return;
    for (struct learned_host *h; (h = map_next(&k->hosts, &at));) {
        learn_free_paths(k, h);
        free(h);
    }
    map_done(&k->hosts);
    free(k);
    s->learned = NULL;
}

/* --- seeing
 * --------------------------------------------------------------------------------------------------------- */

static bool learn_has_port(const struct learned_ports *p, uint16_t port)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->v[i] == port)
            return true;
    return p->all;
}

static void learn_add_port(struct learned_ports *p, uint16_t port)
{
    if (learn_has_port(p, port))
        return;
    if (p->n < LEARN_PORTS_MAX)
        p->v[p->n++] = port;
    else
        p->all = true;
}

static struct learned_host *learn_host(struct esb *s, const struct netpol_flow *f, enum kind kind)
{
    char name[NETPOL_NAME_MAX + 4], text[INET6_ADDRSTRLEN];
    bool v4 = IN6_IS_ADDR_V4MAPPED(&f->addr);
    if (!s->learned)
        s->learned = xcalloc(1, sizeof(struct learned));
    struct learned *k = s->learned;
    if (f->host)
        (void)snprintf(name, sizeof name, "%s", f->host);
    else if (inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? f->addr.s6_addr + 12 : f->addr.s6_addr, text, sizeof text))
        (void)snprintf(name, sizeof name, "%s/%u", text, v4 ? 32 : 128);
    else
        return NULL;
    struct learned_host *h = map_get(&k->hosts, name);
    if (!h && k->hosts.n < LEARN_HOSTS_MAX) {
        h = xcalloc(1, sizeof *h);
        memcpy(h->name, name, sizeof h->name);
        h->literal = !f->host;
        (void)map_put(&k->hosts, h->name, h);
    }
    if (!h) {
        k->forgotten++;
        return NULL;
    }
    learn_add_port(&h->ports[kind], f->port);
    return h;
}

static uint32_t learn_method_bit(struct learned_host *h, const char *method)
{
    for (size_t i = 0; i < h->nmethods; i++)
        if (strcmp(h->methods[i], method) == 0)
            return 1u << i;
    if (h->nmethods == LEARN_METHODS_MAX || strlen(method) >= sizeof h->methods[0]) {
        h->all_methods = true;
        return 0;
    }
    (void)snprintf(h->methods[h->nmethods], sizeof h->methods[0], "%s", method);
    return 1u << h->nmethods++;
}

static bool in_set(const char *s, size_t n, const char *set)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(set, s[i]))
            return false;
    return n > 0;
}

static size_t digits_in(const char *s, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += s[i] >= '0' && s[i] <= '9';
    return found;
}

#define HEX    "0123456789abcdefABCDEF"
#define LETTER "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"

/* Names one thing among many: 4711, 6f1c...-...., a hash, a long random name. */
static bool is_identifier(const char *s, size_t n)
{
    static const size_t parts[] = {8, 4, 4, 4, 12};
    if (in_set(s, n, "0123456789"))
        return true;
    if (n >= 7 && in_set(s, n, HEX))
        return digits_in(s, n) >= (n >= 12 ? 1 : 2); /* facade is a word */
    if (n >= 20 && in_set(s, n, LETTER) && digits_in(s, n) >= 3)
        return true;
    if (n != 36)
        return false;
    for (size_t i = 0, at = 0; i < ARRAY_LEN(parts); at += parts[i++] + 1)
        if (!in_set(s + at, parts[i], HEX) || (i < 4 && s[at + parts[i]] != '-'))
            return false;
    return true;
}

static void learn_add_segment(struct buf *out, const char *s, size_t n)
{
    size_t stem = 0;
    while (stem < n && s[stem] != '.')
        stem++;
    if (n > LEARN_SEGMENT_MAX || memchr(s, '*', n) || memmem(s, n, "%2F", 3)) {
        buf_addc(out, '*');
    } else if (is_identifier(s, stem) && !(stem < n && in_set(s, n, "0123456789."))) { /* 1.2.3 is a version */
        buf_addc(out, '*');
        buf_add(out, s + stem, n - stem);
    } else {
        buf_add(out, s, n);
    }
}

/* The pattern for a path in one of its judged forms. */
static void learn_generalise(const char *path, size_t n, struct buf *out)
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(path + at + 1, '/', n - at - 1);
        size_t len = (end ? (size_t)(end - path) : n) - at - 1;
        if (out->n + LEARN_SEGMENT_MAX + 4 > NETPOL_PATTERN_MAX) {
            buf_adds(out, "/**");
            return;
        }
        buf_addc(out, '/');
        learn_add_segment(out, path + at + 1, len);
        at += len + 1;
    }
}

static void learn_add_path(struct learned *k, struct learned_host *h, const char *path, size_t n, uint32_t method)
{
    _cleanup_buf_ struct buf text = {0};
    if (h->all_paths) {
        h->all_mask |= method;
        return;
    }
    learn_generalise(path, n, &text);
    struct learned_path *p = map_get(&h->paths, buf_str(&text));
    if (p) {
        p->methods |= method;
        return;
    }
    if (h->paths.n < LEARN_PATHS_MAX && k->npaths < LEARN_PATHS_ALL && k->bytes + text.n < LEARN_BYTES_ALL) {
        p = xcalloc(1, sizeof *p + text.n + 1);
        memcpy(p->text, buf_str(&text), text.n);
        p->methods = method;
        (void)map_put(&h->paths, p->text, p);
        k->npaths++;
        k->bytes += text.n;
        return;
    }
    size_t at = 0;
    for (const struct learned_path *q; (q = map_next(&h->paths, &at));)
        h->all_mask |= q->methods;
    h->all_mask |= method;
    h->all_paths = true;
    learn_free_paths(k, h);
}

void learn_request(struct esb *s, const struct netpol_flow *f, const struct netpol_request *q, uint64_t up,
                   uint64_t down)
{
    struct learned_host *h =
        learn_host(s, f, f->host ? KIND_HTTP : KIND_STREAM); /* an address has no rules for requests */
    const struct netpol_target *t = q->target;
    (void)down; /* answers have no limit by default, and their size does not predict that of the next */
    if (!h || !f->host)
        return;
    uint32_t bit = learn_method_bit(h, q->method);
    h->cleartext |= !f->tls && f->port != 80;
    if (up > h->up)
        h->up = up;
    if (t->path_len == 0 || t->text[0] != '/') {
        h->server_options = true; /* OPTIONS * */
        return;
    }
    if (t->judged)
        learn_add_path(s->learned, h, t->judged, strlen(t->judged), bit);
    else
        learn_add_path(s->learned, h, t->text, t->path_len, bit);
    const char *const forms[] = {t->decoded, t->bare, t->both};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++)
        if (forms[i])
            learn_add_path(s->learned, h, forms[i], strlen(forms[i]), bit);
}

void learn_relay(struct esb *s, const struct netpol_flow *f)
{
    (void)learn_host(s, f, f->tls && f->host ? KIND_TUNNEL : KIND_STREAM);
}

/* --- the document
 * --------------------------------------------------------------------------------------------------- */

static void learn_add_methods(struct json *j, const struct learned_host *h, uint32_t mask)
{
    if (h->all_methods || mask == 0)
        return;
    json_arr(j, "methods");
    for (size_t i = 0; i < h->nmethods; i++)
        if (mask & (1u << i))
            json_str(j, NULL, h->methods[i]);
    json_end_arr(j);
}

/* Allows the largest body seen, rounded up to a power of two: an exact limit would fail with the next larger body. */
static void learn_add_body(struct json *j, const struct learned_host *h, uint32_t mask)
{
    uint64_t limit = LEARN_BODY_MIN;
    bool writes = h->all_methods;
    for (size_t i = 0; i < h->nmethods; i++)
        writes |= (mask & (1u << i)) && strcmp(h->methods[i], "GET") != 0 && strcmp(h->methods[i], "HEAD") != 0 &&
                  strcmp(h->methods[i], "OPTIONS") != 0;
    if (!writes || h->up > UINT64_MAX / 4)
        return;
    while (limit < h->up)
        limit *= 2;
    json_u64(j, "max_request_bytes", limit);
}

static int learn_by_methods(const void *a, const void *b)
{
    const struct learned_path *x = *(struct learned_path *const *)a, *y = *(struct learned_path *const *)b;
    if (x->methods != y->methods)
        return x->methods < y->methods ? -1 : 1;
    return strcmp(x->text, y->text);
}

static size_t learn_count_entries(struct learned_path *const *v, size_t n)
{
    size_t entries = 0;
    for (size_t i = 0, in = 0; i < n; i++) {
        bool next = i == 0 || v[i]->methods != v[i - 1]->methods || in == NETPOL_LIST_MAX;
        entries += next;
        in = next ? 1 : in + 1;
    }
    return entries;
}

/* Paths with the same methods share an entry. If that makes too many entries for a rule, every path gets every
 * method. */
static void learn_add_entries(struct json *j, struct learned_host *h)
{
    _cleanup_free_ struct learned_path **v = xcalloc(h->paths.n + 1, sizeof *v);
    size_t n = 0, at = 0;
    uint32_t every = 0;
    for (struct learned_path *p; (p = map_next(&h->paths, &at)); every |= p->methods)
        v[n++] = p;
    qsort(v, n, sizeof *v, learn_by_methods);
    if (learn_count_entries(v, n) > NETPOL_ENTRIES_MAX - 2)
        for (size_t i = 0; i < n; i++)
            v[i]->methods = every;
    for (size_t i = 0; i < n;) {
        json_obj(j, NULL);
        uint32_t mask = v[i]->methods;
        learn_add_methods(j, h, mask);
        json_arr(j, "paths");
        for (size_t in = 0; i < n && v[i]->methods == mask && in < NETPOL_LIST_MAX; i++, in++)
            json_str(j, NULL, v[i]->text);
        json_end_arr(j);
        learn_add_body(j, h, mask);
        json_end_obj(j);
    }
}

/* How exact a host's rules are; lowered when the document gets too large. */
enum level { LEVEL_EXACT, LEVEL_ANY_PATH, LEVEL_ANY_METHOD };

static void learn_add_http(struct json *j, struct learned_host *h, enum level level)
{
    json_arr(j, "http");
    if (h->all_paths || level != LEVEL_EXACT) {
        uint32_t mask = h->all_paths ? h->all_mask : UINT32_MAX;
        json_obj(j, NULL);
        if (level != LEVEL_ANY_METHOD)
            learn_add_methods(j, h, mask);
        json_arr(j, "paths");
        json_str(j, NULL, "/**");
        json_end_arr(j);
        learn_add_body(j, h, mask);
        json_end_obj(j);
    } else {
        learn_add_entries(j, h);
    }
    if (h->server_options) {
        json_obj(j, NULL);
        json_arr(j, "methods");
        json_str(j, NULL, "OPTIONS");
        json_end_arr(j);
        json_end_obj(j);
    }
    json_end_arr(j);
}

static int learn_by_port(const void *a, const void *b) { return *(const uint16_t *)a - *(const uint16_t *)b; }

/* Ports of the kinds before; may contain duplicates. */
struct taken {
    uint16_t v[KINDS * LEARN_PORTS_MAX];
    size_t n;
};

/* The ports that a rule of this kind names. Each port gets one kind: an opaque stream allows everything there, and a
 * port seen both with requests and as a tunnel gets rules for requests. false: none. */
static bool learn_ports_for(const struct learned_host *h, enum kind kind, struct learned_ports *ret,
                            struct taken *taken)
{
    *ret = (struct learned_ports){.all = h->ports[kind].all};
    *taken = (struct taken){0};
    for (enum kind first = 0; first < kind; first++) {
        if (h->ports[first].all)
            return false;
        memcpy(taken->v + taken->n, h->ports[first].v, h->ports[first].n * sizeof taken->v[0]);
        taken->n += h->ports[first].n;
    }
    for (size_t i = 0; i < h->ports[kind].n; i++) {
        bool free_port = true;
        for (size_t k = 0; k < taken->n; k++)
            free_port &= taken->v[k] != h->ports[kind].v[i];
        if (free_port)
            ret->v[ret->n++] = h->ports[kind].v[i];
    }
    qsort(ret->v, ret->n, sizeof ret->v[0], learn_by_port);
    qsort(taken->v, taken->n, sizeof taken->v[0], learn_by_port);
    return ret->n > 0;
}

static void learn_add_range(struct json *j, unsigned from, unsigned to)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%u-%u", from, to);
    if (from <= to)
        json_str(j, NULL, text);
}

static void learn_add_ports(struct json *j, const struct learned_ports *ports, const struct taken *taken)
{
    unsigned from = 1;
    json_arr(j, "ports");
    for (size_t i = 0; ports->all && i < taken->n; i++) {
        learn_add_range(j, from, taken->v[i] - 1u);
        from = taken->v[i] + 1u;
    }
    if (ports->all)
        learn_add_range(j, from, 65535);
    for (size_t i = 0; !ports->all && i < ports->n; i++)
        json_u64(j, NULL, ports->v[i]);
    json_end_arr(j);
}

static void learn_add_rule(struct buf *out, struct learned_host *h, enum kind kind, enum level level, size_t number)
{
    static const char *const suffix[] = {[KIND_STREAM] = "-tcp", [KIND_HTTP] = "", [KIND_TUNNEL] = "-tls"};
    struct learned_ports ports;
    struct taken taken;
    char id[40];
    struct json j;
    if (!learn_ports_for(h, kind, &ports, &taken))
        return;
    (void)snprintf(id, sizeof id, "learned-%zu%s", number, suffix[kind]);
    if (out->n > 0)
        buf_addc(out, ',');
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "id", id);
    if (kind == KIND_STREAM)
        json_str(&j, "proto", "tcp");
    json_arr(&j, h->literal ? "cidrs" : "hosts");
    json_str(&j, NULL, h->name);
    json_end_arr(&j);
    learn_add_ports(&j, &ports, &taken);
    if (kind == KIND_HTTP && h->cleartext)
        json_bool(&j, "cleartext", true);
    if (kind == KIND_TUNNEL)
        json_str(&j, "tls", "passthrough");
    else if (kind == KIND_HTTP)
        learn_add_http(&j, h, level);
    json_end_obj(&j);
}

/* A host's rules as text, and how many values the policy parser will count in them. */
struct draft {
    struct learned_host *host;
    enum level level;
    struct buf text;
    size_t values;
};

static void learn_write_draft(struct draft *d, size_t number)
{
    bool quoted = false;
    d->text.n = 0;
    for (enum kind kind = 0; kind < KINDS; kind++)
        learn_add_rule(&d->text, d->host, kind, d->level, number);
    d->values = 0;
    for (size_t i = 0; i < d->text.n; i++) {
        char c = d->text.p[i];
        if (c == '\\' && quoted)
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted)
            d->values += strchr(",:[{]}", c) != NULL; /* ends count too */
    }
}

/* Widens the longest rules until the document fits; at the widest level even LEARN_HOSTS_MAX hosts fit. */
static void learn_fit_drafts(struct draft *v, size_t n)
{
    for (;;) {
        size_t values = 0, bytes = 0, heaviest = n;
        for (size_t i = 0; i < n; i++) {
            values += v[i].values;
            bytes += v[i].text.n + 1;
            if (v[i].level < LEVEL_ANY_METHOD && (heaviest == n || v[i].text.n > v[heaviest].text.n))
                heaviest = i;
        }
        if ((values <= LEARN_VALUES && bytes <= LEARN_TEXT) || heaviest == n)
            return;
        v[heaviest].level++;
        learn_write_draft(&v[heaviest], heaviest + 1);
    }
}

static int learn_by_name(const void *a, const void *b)
{
    return strcmp(((const struct draft *)a)->host->name, ((const struct draft *)b)->host->name);
}

static void learn_add_rules(struct learned *k, struct buf *out)
{
    _cleanup_free_ struct draft *v = xcalloc(k->hosts.n, sizeof *v);
    size_t n = 0, at = 0;
    for (struct learned_host *h; (h = map_next(&k->hosts, &at));)
        v[n++].host = h;
    qsort(v, n, sizeof *v, learn_by_name);
    for (size_t i = 0; i < n; i++)
        learn_write_draft(&v[i], i + 1);
    learn_fit_drafts(v, n);
    for (size_t i = 0; i < n; i++) {
        buf_addf(out, "%s%s", i ? "," : "", v[i].text.p);
        buf_done(&v[i].text);
    }
}

void learn_write_document(struct esb *s, struct buf *out)
{
    struct learned *k = s->learned;
    buf_adds(out, "{\"version\":1,\"mode\":\"enforce\",\"default\":\"deny\"");
    if (k && k->hosts.n > 0) {
        buf_adds(out, ",\"rules\":[");
        learn_add_rules(k, out);
        buf_addc(out, ']');
    }
    buf_addc(out, '}');
}
