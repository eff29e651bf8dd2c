/* E2B's `network`: allowOut, denyOut, rules with headers, egressProxy; and allow_internet_access. */
#include "network/doc/e2b-words.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/text.h"
#include "egress/secrets/secrets.h"
#include "policy/net/netpol.h"

#define REFERENCE "${e2b.secrets."

enum { LIST_MAX = 256, FIELD_NAME_MAX = 64, FIELD_VALUE_MAX = 2048, HASH_SHOWN = 16, HOST_SHOWN = 40 };

/* --- lists -------------------------------------------------------------------------------------------------------- */

static bool e2b_is_address(const char *text)
{
    struct netpol_cidr c;
    return netpol_cidr_parse(text, &c);
}

static bool e2b_is_host(const char *text)
{
    char name[NETPOL_NAME_MAX];
    if (strncmp(text, "*.", 2) == 0)
        text += 2;
    return netpol_name(text, strlen(text), name);
}

static int e2b_read_list(const json_t *net, const char *field, bool hosts, struct strv *ret, bool *ret_names,
                         struct err *err)
{
    const json_t *list = json_object_get(net, field);
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return err_set(err, ERR_USAGE, 0, "field 'network.%s' must be an array", field);
    if (json_array_size(list) > LIST_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'network.%s' has %zu entries; at most %d are allowed", field,
                       json_array_size(list), LIST_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        bool address = text && e2b_is_address(text);
        if (!address && !(text && hosts && e2b_is_host(text))) {
            _cleanup_buf_ struct buf safe = {0};
            text_add_safe(&safe, text ? text : "?", 80);
            return err_set(err, ERR_USAGE, 0, "field 'network.%s[%zu]' must be %s, not \"%s\"", field, i,
                           hosts ? "an address, a network such as 10.0.0.0/8, a host or *.host"
                                 : "an address or a network such as 10.0.0.0/8 (hosts stand in allowOut)",
                           buf_str(&safe));
        }
        *ret_names |= !address;
        strv_add(ret, text);
    }
    return 0;
}

static bool e2b_denies_all(const struct strv *deny) { return strv_has(deny, "0.0.0.0/0") || strv_has(deny, "0.0.0.0"); }

/* --- headers ------------------------------------------------------------------------------------------------------ */

/* The name of the secret for the headers of a host: readable, and equal for equal headers. */
static char *e2b_header_name(const struct net_header *h)
{
    char hex[SHA256_HEX];
    _cleanup_free_ char *all = xasprintf("%s %s", h->host, h->headers);
    sha256_hex(all, strlen(all), hex);
    return xasprintf("e2b-%.*s-%.*s", HOST_SHOWN, h->host, HASH_SHOWN, hex);
}

/* Collects the names in ${e2b.secrets.NAME} of a value. */
static int e2b_read_references(const char *value, struct strv *names, const char *where, struct err *err)
{
    for (const char *at = value; (at = strstr(at, "${e2b."));) {
        char name[SECRET_NAME_MAX];
        size_t n = 0;
        if (strncmp(at, REFERENCE, strlen(REFERENCE)) == 0)
            for (at += strlen(REFERENCE); at[n] && at[n] != '}' && n < sizeof name - 1; n++)
                name[n] = (char)tolower((unsigned char)at[n]);
        name[n] = '\0';
        if (at[n] != '}' || !secret_name_valid(name))
            return err_set(err, ERR_USAGE, 0, "%s: only ${e2b.secrets.NAME} can be put into a header here", where);
        if (!strv_has(names, name))
            strv_add(names, name);
    }
    return 0;
}

static bool e2b_is_token(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("!#$%&'*+-.^_`|~", s[i]))
            return false;
    return n > 0 && n <= FIELD_NAME_MAX;
}

static int e2b_check_header(const char *where, const char *field, const json_t *value, struct strv *names,
                            struct err *err)
{
    const char *text = json_string_value(value);
    if (!e2b_is_token(field))
        return err_set(err, ERR_USAGE, 0, "%s: a header's name has 1 to %d letters, digits and dashes", where,
                       FIELD_NAME_MAX);
    if (!text || strlen(text) != json_string_length(value) || strlen(text) > FIELD_VALUE_MAX)
        return err_set(err, ERR_USAGE, 0, "%s: the value of %s must be a string of at most %d bytes", where, field,
                       FIELD_VALUE_MAX);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            return err_set(err, ERR_USAGE, 0, "%s: the value of %s has a control character", where, field);
    return e2b_read_references(text, names, where, err);
}

struct header_list {
    struct net_header *v;
    size_t n, cap;
};
static void header_list_done(struct header_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        net_header_done(&l->v[i]);
    free(l->v);
}

static int e2b_read_transforms(const char *host, json_t *list, struct header_list *ret, struct err *err)
{
    char name[NETPOL_NAME_MAX];
    const char *key, *field;
    json_t *v, *value;
    if (!netpol_name(host, strlen(host), name))
        return err_set(err, ERR_USAGE, 0,
                       "field 'network.rules' has hosts as its keys, without a port; \"%.100s\" is none", host);
    json_t *rule = json_is_array(list) && json_array_size(list) == 1 ? json_array_get(list, 0) : NULL;
    json_t *transform = json_object_get(rule, "transform"), *headers = json_object_get(transform, "headers");
    if (!json_is_object(headers) || json_object_size(rule) != 1)
        return err_set(err, ERR_USAGE, 0,
                       "field 'network.rules.%.100s' must be a list of one rule {\"transform\":{\"headers\":{...}}}",
                       host);
    json_object_foreach(transform, key, v) if (strcmp(key, "headers") != 0) return err_set(
        err, ERR_USAGE, 0, "field 'network.rules.%.100s': transform knows only headers, not '%.64s'", host, key);
    if (json_object_size(headers) > NET_HEADERS_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'network.rules.%.100s' sets %zu headers; at most %d are allowed", host,
                       json_object_size(headers), NET_HEADERS_MAX);
    _cleanup_free_ char *where = xasprintf("field 'network.rules.%.100s'", host);
    MEM_GROW(ret->v, ret->n, ret->cap);
    struct net_header *h = &ret->v[ret->n++];
    *h = (struct net_header){.host = xstrdup(name)};
    json_object_foreach(headers, field,
                        value) if (e2b_check_header(where, field, value, &h->secrets, err) < 0) return -1;
    char *made = json_dumps(headers, JSON_COMPACT | JSON_SORT_KEYS);
    h->headers = xstrdup(made ? made : "{}");
    free(made);
    h->name = e2b_header_name(h);
    return json_object_size(headers) ? 0 : err_set(err, ERR_USAGE, 0, "%s sets no header", where);
}

static int e2b_read_rules(json_t *net, struct header_list *ret, struct err *err)
{
    json_t *rules = json_object_get(net, "rules"), *v;
    const char *host;
    if (!rules || json_is_null(rules))
        return 0;
    if (!json_is_object(rules))
        return err_set(err, ERR_USAGE, 0, "field 'network.rules' must be an object: host -> list of rules");
    if (json_object_size(rules) > NET_HEADER_HOSTS_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'network.rules' has %zu hosts; at most %d are allowed",
                       json_object_size(rules), NET_HEADER_HOSTS_MAX);
    json_object_foreach(rules, host, v) if (e2b_read_transforms(host, v, ret, err) < 0) return -1;
    return 0;
}

int net_e2b_headers(const char *e2b, struct net_header **ret, size_t *n, struct err *err)
{
    struct header_list list = {0};
    json_t *net = json_loads(e2b, 0, NULL);
    int rc = e2b_read_rules(net, &list, err);
    json_decref(net);
    if (rc < 0) {
        header_list_done(&list);
        return -1;
    }
    *ret = list.v;
    *n = list.n;
    return 0;
}

/* --- the document ------------------------------------------------------------------------------------------------- */

/* Whether a pattern of allowOut, "host" or "*.host", matches a host. */
static bool e2b_pattern_covers(const char *pattern, const char *host)
{
    size_t n = strlen(host), p = strlen(pattern);
    if (strncmp(pattern, "*.", 2) != 0)
        return strcasecmp(pattern, host) == 0;
    return n > p - 1 && strcasecmp(host + n - (p - 1), pattern + 1) == 0;
}

static bool e2b_is_allowed(const struct strv *allow, const char *host)
{
    for (size_t i = 0; i < allow->n; i++)
        if (e2b_pattern_covers(allow->v[i], host))
            return true;
    return false;
}

/* Removes a host from all rules, because the rule that sets its headers must be its only one. */
static void e2b_take_out_host(json_t *rules, const char *host)
{
    for (size_t i = json_array_size(rules); i-- > 0;) {
        json_t *hosts = json_object_get(json_array_get(rules, i), "hosts");
        for (size_t k = json_array_size(hosts); k-- > 0;) {
            const char *name = json_string_value(json_array_get(hosts, k));
            if (name && strcasecmp(name, host) == 0)
                (void)json_array_remove(hosts, k);
        }
        if (hosts && json_array_size(hosts) == 0)
            (void)json_array_remove(rules, i);
    }
}

/* Gives each host with headers a rule of its own, if the sandbox may reach it at all. */
static void e2b_bind_headers(json_t *document, const struct header_list *headers, const struct strv *allow)
{
    json_t *rules = json_object_get(document, "rules");
    const char *otherwise = json_string_value(json_object_get(document, "default"));
    for (size_t h = 0; h < headers->n; h++) {
        const char *host = headers->v[h].host;
        if (otherwise && strcmp(otherwise, "deny") == 0 && !e2b_is_allowed(allow, host))
            continue;
        e2b_take_out_host(rules, host);
        _cleanup_free_ char *id = xasprintf("rules.%zu", h);
        (void)json_array_append_new(
            rules, json_pack("{s:s, s:[s], s:[s]}", "id", id, "hosts", host, "secrets", headers->v[h].name));
    }
    if (json_array_size(rules) == 0)
        (void)json_object_del(document, "rules");
}

static int e2b_read_proxy(json_t *net, json_t *document, char **password, struct err *err)
{
    json_t *proxy = json_object_get(net, "egressProxy"), *v;
    const char *key;
    if (!proxy || json_is_null(proxy))
        return 0;
    if (!json_is_string(json_object_get(proxy, "address")))
        return err_set(err, ERR_USAGE, 0, "field 'network.egressProxy.address' must be host:port of a SOCKS5 proxy");
    json_t *ours = json_object();
    json_object_foreach(proxy, key, v)
    {
        bool known = strcmp(key, "address") == 0 || strcmp(key, "username") == 0 || strcmp(key, "password") == 0;
        if (!known && !json_is_null(v)) {
            json_decref(ours);
            return err_set(err, ERR_USAGE, 0, "field 'network.egressProxy.%.32s' is not supported by this node", key);
        }
        if (known && !json_is_null(v))
            (void)json_object_set(ours, key, v);
    }
    (void)json_object_set_new(document, "upstream_proxy", ours);
    return net_doc_take_password(ours, "field 'network.egressProxy'", password, err);
}

/* The E2B form that is stored: the fields about outgoing traffic as given, without the proxy's password. */
static char *e2b_remember(json_t *net, int internet)
{
    static const char *const fields[] = {"allowOut", "denyOut", "rules", "egressProxy"};
    json_t *o = json_object();
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        json_t *v = json_object_get(net, fields[i]);
        if (v && !json_is_null(v))
            (void)json_object_set_new(o, fields[i], json_copy(v));
    }
    (void)json_object_del(json_object_get(o, "egressProxy"), "password");
    if (internet >= 0)
        (void)json_object_set_new(o, "allow_internet_access", json_boolean(internet));
    char *made = json_dumps(o, JSON_COMPACT), *text = xstrdup(made ? made : "{}");
    free(made);
    json_decref(o);
    return text;
}

static json_t *e2b_compose(const struct strv *allow, const struct strv *deny, int internet,
                           const struct header_list *headers)
{
    _cleanup_buf_ struct buf text = {0};
    _cleanup_strv_ struct strv hosts = {0};
    for (size_t i = 0; i < headers->n; i++)
        if (!strv_has(&hosts, headers->v[i].host))
            strv_add(&hosts, headers->v[i].host);
    netpol_from_e2b((const char *const *)allow->v, allow->n, (const char *const *)deny->v, deny->n, internet,
                    (const char *const *)hosts.v, hosts.n, &text);
    return json_loadb(buf_str(&text), text.n, JSON_DECODE_ANY, NULL);
}

/* `refusals` is our extension of E2B's object. */
static int e2b_add_refusals(json_t *net, const struct net_doc *before, json_t *document, struct err *err)
{
    const json_t *v = json_object_get(net, "refusals");
    bool closed = before && before->closed;
    if (v && !json_is_null(v) &&
        net_doc_refusals_word(json_string_value(v), "field 'network.refusals'", &closed, err) < 0)
        return -1;
    if (before || (v && !json_is_null(v)))
        (void)json_object_set_new(document, "refusals", json_string(closed ? "closed" : "readable"));
    return 0;
}

int net_doc_e2b(json_t *network, int internet, const struct net_doc *before, struct net_doc *ret, struct err *err)
{
    _cleanup_strv_ struct strv allow = {0}, deny = {0};
    struct header_list headers __attribute__((cleanup(header_list_done))) = {0};
    bool names = false, ignored = false;
    if (e2b_read_list(network, "allowOut", true, &allow, &names, err) < 0 ||
        e2b_read_list(network, "denyOut", false, &deny, &ignored, err) < 0 ||
        e2b_read_rules(network, &headers, err) < 0)
        return -1;
    if (names && internet != 0 && !e2b_denies_all(&deny))
        return err_set(err, ERR_USAGE, 0,
                       "field 'network.allowOut' has hosts, so 'network.denyOut' must have 0.0.0.0/0: without it "
                       "everything else would be allowed too");
    json_t *document = e2b_compose(&allow, &deny, internet, &headers);
    e2b_bind_headers(document, &headers, &allow);
    _cleanup_password_ char *password = NULL;
    int rc =
        e2b_add_refusals(network, before, document, err) < 0 ? -1 : e2b_read_proxy(network, document, &password, err);
    if (rc == 0) {
        json_t *whole = net_doc_standard(document, NET_E2B);
        char *made = json_dumps(whole, JSON_COMPACT | JSON_ENCODE_ANY);
        _cleanup_free_ char *e2b = e2b_remember(network, internet);
        rc = net_doc_with(made ? made : "", e2b, password, "field 'network.egressProxy'", ret, err);
        free(made);
        json_decref(whole);
    }
    json_decref(document);
    return rc;
}
