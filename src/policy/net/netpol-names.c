/* netpol-names.c - canonical host names, literal addresses and authorities; host patterns; finds the rules of a
 * host. */
#include <arpa/inet.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/num.h"
#include "policy/net/netpol-int.h"

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); }

/* "1", "0x7f": what resolvers take for a part of an IPv4 address. */
static bool is_numeric(const char *label, size_t n)
{
    size_t i = 0;
    if (n >= 2 && label[0] == '0' && label[1] == 'x') {
        for (i = 2; i < n && is_hex(label[i]);)
            i++;
        return i == n;
    }
    while (i < n && is_digit(label[i]))
        i++;
    return i == n;
}

bool netpol_name(const char *text, size_t n, char ret[NETPOL_NAME_MAX])
{
    size_t label = 0; /* where the current one starts */
    if (n > 0 && text[n - 1] == '.')
        n--;
    if (n == 0 || n >= NETPOL_NAME_MAX)
        return false;
    for (size_t i = 0; i <= n; i++) {
        char c = i < n ? text[i] : '.';
        if (c == '.') {
            if (i == label || i - label > 63 || ret[label] == '-' || ret[i - 1] == '-')
                return false;
            if (i < n)
                label = i + 1;
            ret[i] = '.';
            continue;
        }
        if (c >= 'A' && c <= 'Z')
            c = (char)(c + ('a' - 'A'));
        if (!(c >= 'a' && c <= 'z') && !is_digit(c) && c != '-' && c != '_')
            return false;
        ret[i] = c;
    }
    ret[n] = '\0';
    return !is_numeric(ret + label, n - label);
}

bool netpol_literal(const char *text, size_t n, struct in6_addr *ret)
{
    char copy[INET6_ADDRSTRLEN];
    struct in_addr v4;
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
        if (!memchr(text, ':', n))
            return false;
    }
    if (n == 0 || n >= sizeof copy || memchr(text, '\0', n))
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    if (memchr(text, ':', n))
        return inet_pton(AF_INET6, copy, ret) == 1; /* takes no scope */
    if (inet_pton(AF_INET, copy, &v4) != 1)
        return false;
    *ret = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(&ret->s6_addr[12], &v4, 4);
    return true;
}

static void literal_text(const struct in6_addr *a, char ret[NETPOL_NAME_MAX])
{
    if (IN6_IS_ADDR_V4MAPPED(a))
        (void)inet_ntop(AF_INET, &a->s6_addr[12], ret, NETPOL_NAME_MAX);
    else
        (void)inet_ntop(AF_INET6, a, ret, NETPOL_NAME_MAX);
}

bool netpol_authority(const char *text, char host[NETPOL_NAME_MAX], struct in6_addr *literal, bool *is_literal,
                      uint16_t *port)
{
    const char *end = text[0] == '[' ? strchr(text, ']') : NULL;
    size_t n = end ? (size_t)(end + 1 - text) : strcspn(text, ":");
    int number = 0;
    struct in6_addr a;
    if (text[n] != '\0' && (text[n] != ':' || text[n + 1] == '0' || !num_int(text + n + 1, 1, 65535, &number)))
        return false;
    bool address = netpol_literal(text, n, &a);
    if (address) {
        *literal = a;
        literal_text(&a, host);
    } else if (!netpol_name(text, n, host)) {
        return false;
    }
    *is_literal = address;
    if (number > 0)
        *port = (uint16_t)number;
    return true;
}

/* --- patterns ----------------------------------------------------------------------------------------------------- */

/* Suffixes under which anyone can register a name. A short list of common ones: it catches mistakes and is no security
 * boundary. */
static const char *const open_suffixes[] = {
    "ac.jp",           "ac.nz",
    "ac.uk",           "ac.za",
    "amazonaws.com",   "appspot.com",
    "azureedge.net",   "azurewebsites.net",
    "blogspot.com",    "cloudapp.net",
    "cloudfront.net",  "co.id",
    "co.il",           "co.in",
    "co.jp",           "co.kr",
    "co.nz",           "co.th",
    "co.uk",           "co.za",
    "com.ar",          "com.au",
    "com.br",          "com.cn",
    "com.co",          "com.hk",
    "com.mx",          "com.my",
    "com.ph",          "com.pl",
    "com.sg",          "com.tr",
    "com.tw",          "com.ua",
    "com.vn",          "deno.dev",
    "edu.au",          "edu.cn",
    "firebaseapp.com", "fly.dev",
    "gen.in",          "github.io",
    "gitlab.io",       "glitch.me",
    "go.jp",           "gob.mx",
    "gov.au",          "gov.br",
    "gov.cn",          "gov.in",
    "gov.uk",          "herokuapp.com",
    "hf.space",        "id.au",
    "ltd.uk",          "me.uk",
    "ne.jp",           "net.au",
    "net.br",          "net.cn",
    "net.in",          "net.nz",
    "net.uk",          "netlify.app",
    "ngrok-free.app",  "ngrok.app",
    "ngrok.io",        "nhs.uk",
    "onrender.com",    "or.jp",
    "or.kr",           "org.au",
    "org.br",          "org.cn",
    "org.in",          "org.mx",
    "org.nz",          "org.uk",
    "org.za",          "pages.dev",
    "plc.uk",          "r2.dev",
    "readthedocs.io",  "repl.co",
    "replit.app",      "run.app",
    "sch.uk",          "supabase.co",
    "surge.sh",        "trycloudflare.com",
    "vercel.app",      "web.app",
    "workers.dev",
};

static bool is_open_suffix(const char *name)
{
    if (!strchr(name, '.'))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(open_suffixes); i++)
        if (strcmp(open_suffixes[i], name) == 0)
            return true;
    return false;
}

const char *netpol_host_parse(struct netpol *p, const char *text, bool broad, struct netpol_host *ret)
{
    char name[NETPOL_NAME_MAX];
    struct in6_addr ignored;
    *ret = (struct netpol_host){.kind = NETPOL_HOST_EXACT, .name = ""};
    if (strcmp(text, "*") == 0) {
        ret->kind = NETPOL_HOST_ANY;
        return broad ? NULL : "\"*\" stands for every name; say broad: true in the rule if that is meant";
    }
    if (strncmp(text, "*.", 2) == 0) {
        ret->kind = NETPOL_HOST_BELOW;
        text += 2;
    } else if (text[0] == '.') {
        ret->kind = NETPOL_HOST_BOTH;
        text++;
    }
    size_t n = strlen(text);
    if (strchr(text, '*'))
        return "a wildcard stands only alone in front: *.example.com";
    if (netpol_literal(text, n, &ignored))
        return "an address is no host name; put it under cidrs";
    if (!netpol_name(text, n, name))
        return "not a host name like api.example.com, *.example.com or .example.com (no scheme, port or path; "
               "international names as xn--...)";
    if (ret->kind != NETPOL_HOST_EXACT && !broad && is_open_suffix(name))
        return "anyone can register a name below this suffix; name the hosts, or say broad: true in the rule";
    ret->name = netpol_keep_text(p, name, strlen(name));
    return NULL;
}

void netpol_host_add(const struct netpol_host *h, struct buf *out)
{
    static const char *const before[] = {"", "*.", ".", "*"};
    buf_addf(out, "%s%s", before[h->kind], h->name);
}

/* --- finding rules ------------------------------------------------------------------------------------------------ */

void netpol_find(const struct netpol *p, const struct netpol_flow *f, struct netpol_hit *ret)
{
    ret->n = 0;
    ret->whole = ret->inspect = false;
    if (!f->host || p->names.n == 0)
        return;
    for (const char *at = f->host + strlen(f->host); at > f->host && ret->n < NETPOL_LABELS_MAX;) {
        do
            at--;
        while (at > f->host && at[-1] != '.');
        const struct netpol_node *node = map_get(&p->names, at);
        if (!node)
            return;
        ret->whole = at == f->host;
        ret->inspect |= ret->whole ? node->inspect_exact : node->inspect_below;
        ret->nodes[ret->n++] = node;
        if (!ret->whole)
            at--; /* over the dot */
    }
}

static bool each_of(const struct netpol *p, const struct netpol_list *l, netpol_visit *visit, void *arg)
{
    for (size_t i = 0; i < l->n; i++)
        if (visit(arg, &p->rules[l->v[i]]))
            return true;
    return false;
}

bool netpol_each(const struct netpol *p, const struct netpol_flow *f, const struct netpol_hit *hit, bool deny,
                 netpol_visit *visit, void *arg)
{
    if (!f->host)
        return netpol_each_block(p, &f->addr, deny, visit, arg);
    for (unsigned i = hit->n; i-- > 0;) {
        bool exact = hit->whole && i == hit->n - 1;
        if (each_of(p, exact ? &hit->nodes[i]->exact[deny] : &hit->nodes[i]->below[deny], visit, arg))
            return true;
    }
    return each_of(p, &p->any[deny], visit, arg);
}

/* The first of a group that is not before `addr`. */
static size_t lower_bound(const struct netpol_block *v, size_t from, size_t to, const struct in6_addr *addr)
{
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (memcmp(&v[mid].cidr.addr, addr, sizeof *addr) < 0)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

bool netpol_each_block(const struct netpol *p, const struct in6_addr *a, bool deny, netpol_visit *visit, void *arg)
{
    const struct netpol_blocks *b = &p->blocks[deny];
    for (size_t g = 0; g < b->ngroups; g++) {
        struct in6_addr prefix = *a;
        unsigned bits = b->groups[g].bits;
        for (unsigned i = bits / 8; i < 16; i++)
            prefix.s6_addr[i] &= (uint8_t)(i == bits / 8 ? 0xff00U >> bits % 8 : 0);
        size_t i = lower_bound(b->v, b->groups[g].from, b->groups[g].to, &prefix);
        for (; i < b->groups[g].to && memcmp(&b->v[i].cidr.addr, &prefix, sizeof prefix) == 0; i++)
            if (netpol_cidr_has(&b->v[i].cidr, a) && visit(arg, &p->rules[b->v[i].rule]))
                return true;
    }
    return false;
}
