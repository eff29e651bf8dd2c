#include "network/doc/documents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "egress/secrets/seal.h"
#include "egress/secrets/secrets.h"
#include "network/doc/e2b-words.h"
#include "policy/net/netpol.h"

static int presets = -1;

void net_doc_presets(int dirfd) { presets = dirfd; }

static struct netpol_cidr reachable[NET_PRIVATE_MAX];
static size_t nreachable;

void net_doc_private(const char *list)
{
    nreachable = 0;
    while (list && *list && nreachable < NET_PRIVATE_MAX) {
        size_t n = strcspn(list, ",");
        _cleanup_free_ char *one = xstrndup(list, n);
        if (netpol_cidr_parse(one, &reachable[nreachable]))
            nreachable++;
        list += n + (list[n] == ',');
    }
}

static bool net_is_reachable(const struct netpol_cidr *c)
{
    for (size_t i = 0; i < nreachable; i++)
        if (reachable[i].bits <= c->bits && netpol_cidr_has(&reachable[i], &c->addr))
            return true;
    return false;
}

/* Rules may open only those private networks that the operator lists in egress.private. */
static int net_check_private(const struct netpol *p, struct err *err)
{
    for (size_t i = 0; i < netpol_rules(p); i++) {
        const struct netpol_rule *r = netpol_rule_at(p, i);
        for (size_t k = 0; k < r->nprivate; k++)
            if (!net_is_reachable(&r->private[k]))
                return err_set(
                    err, ERR_POLICY, 0,
                    "rules[%u].private[%zu]: this node lets no rule reach that network; its operator lists those "
                    "that are open in egress.private",
                    r->index, k);
    }
    return 0;
}

void net_header_done(struct net_header *h)
{
    free(h->name);
    free(h->host);
    free(h->headers);
    strv_done(&h->secrets);
}

void net_doc_done(struct net_doc *d)
{
    free(d->document);
    free(d->effective);
    free(d->e2b);
    free(d->proxy_password);
    strv_done(&d->secrets);
    for (size_t i = 0; i < d->nheaders; i++)
        net_header_done(&d->headers[i]);
    free(d->headers);
    *d = (struct net_doc){0};
}

void net_doc_copy(struct net_doc *to, const struct net_doc *from)
{
    *to = (struct net_doc){.document = xstrdup(from->document), .effective = xstrdup(from->effective)};
    to->e2b = from->e2b ? xstrdup(from->e2b) : NULL;
    to->proxy_password = from->proxy_password ? xstrdup(from->proxy_password) : NULL;
    to->open = from->open;
    to->nothing = from->nothing;
    to->closed = from->closed;
    for (size_t i = 0; i < from->secrets.n; i++)
        strv_add(&to->secrets, from->secrets.v[i]);
    to->headers = from->nheaders ? xcalloc(from->nheaders, sizeof *to->headers) : NULL;
    to->nheaders = from->nheaders;
    for (size_t i = 0; i < from->nheaders; i++) {
        const struct net_header *h = &from->headers[i];
        to->headers[i] =
            (struct net_header){.name = xstrdup(h->name), .host = xstrdup(h->host), .headers = xstrdup(h->headers)};
        for (size_t k = 0; k < h->secrets.n; k++)
            strv_add(&to->headers[i].secrets, h->secrets.v[k]);
    }
}

/* Lists the names of the secrets that rules use, each once, without those of headers. */
static void net_list_secrets(const struct netpol *p, struct net_doc *d)
{
    for (size_t i = 0; i < netpol_rules(p); i++) {
        const struct netpol_rule *r = netpol_rule_at(p, i);
        for (size_t k = 0; k < r->nsecrets; k++) {
            bool header = false;
            for (size_t h = 0; h < d->nheaders && !header; h++)
                header = strcmp(d->headers[h].name, r->secrets[k]) == 0;
            if (!header && !strv_has(&d->secrets, r->secrets[k]))
                strv_add(&d->secrets, r->secrets[k]);
        }
    }
}

/* --- the proxy's password ----------------------------------------------------------------------------------------- */

static net_doc_key_fn *key_fn;
static void *key_arg;

void net_doc_key(net_doc_key_fn *fn, void *arg)
{
    key_fn = fn;
    key_arg = arg;
}

void net_doc_wipe(char **password)
{
    if (*password)
        explicit_bzero(*password, strlen(*password));
    free(*password);
    *password = NULL;
}

int net_doc_take_password(json_t *proxy, const char *where, char **ret, struct err *err)
{
    const json_t *v = json_object_get(proxy, "password");
    *ret = NULL;
    if (v && !json_is_null(v)) {
        size_t n = json_string_length(v);
        if (!json_is_string(v) || n == 0 || n > SECRET_PROXY_PASSWORD_MAX || strlen(json_string_value(v)) != n)
            return err_set(err, ERR_POLICY, 0, "%s.password must be a text of 1 to %d bytes", where,
                           SECRET_PROXY_PASSWORD_MAX);
        *ret = xstrdup(json_string_value(v));
    }
    (void)json_object_del(proxy, "password");
    return 0;
}

static int net_seal_password(const struct netpol_settings *s, const char *password, const char *where, char **ret,
                             struct err *err)
{
    unsigned char key[SEAL_KEY];
    _cleanup_buf_ struct buf sealed = {0}, text = {0};
    if (!s->proxy_user[0])
        return err_set(err, ERR_POLICY, 0, "%s.password needs a username beside it", where);
    if (!key_fn || !key_fn(key_arg, key))
        return err_set(err, ERR_HOST, EAGAIN, "%s.password: the process that it would be sealed for is not there",
                       where);
    _cleanup_free_ char *context = secret_proxy_context(s->proxy, s->proxy_user);
    if (seal_bytes(key, context, password, strlen(password), &sealed, err) < 0)
        return -1;
    base64_encode(&text, sealed.p, sealed.n);
    *ret = xstrdup(buf_str(&text));
    return 0;
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

static enum { REFUSALS_AUTO, REFUSALS_READABLE, REFUSALS_CLOSED } refusals;

void net_doc_refusals(const char *word)
{
    refusals = word && strcmp(word, "readable") == 0 ? REFUSALS_READABLE
               : word && strcmp(word, "closed") == 0 ? REFUSALS_CLOSED
                                                     : REFUSALS_AUTO;
}

static bool net_standard_closed(enum net_dialect dialect)
{
    return refusals == REFUSALS_AUTO ? dialect == NET_E2B : refusals == REFUSALS_CLOSED;
}

/* Documents that are one word: 0 off, 1 public; -1: no such word. */
static int net_word_of(const json_t *value)
{
    static const char *const words[] = {"off", "none", "public", "allow-public"};
    const char *text = json_string_value(value);
    for (size_t i = 0; text && i < ARRAY_LEN(words); i++)
        if (strcmp(text, words[i]) == 0)
            return i >= 2;
    return -1;
}

static json_t *net_object_of_word(int word)
{
    return json_pack("{s:i, s:s}", "version", 1, "default", word > 0 ? "allow-public" : "deny");
}

json_t *net_doc_standard(const json_t *value, enum net_dialect dialect)
{
    int word = net_word_of(value);
    if (!net_standard_closed(dialect) || !(word >= 0 || json_is_object(value)) || json_object_get(value, "refusals"))
        return json_deep_copy(value); /* also if invalid: the reader reports that */
    json_t *doc = word >= 0 ? net_object_of_word(word) : json_deep_copy(value);
    (void)json_object_set_new(doc, "refusals", json_string("closed"));
    return doc;
}

int net_doc_refusals_word(const char *word, const char *where, bool *ret_closed, struct err *err)
{
    *ret_closed = word && strcmp(word, "closed") == 0;
    if (*ret_closed || (word && strcmp(word, "readable") == 0))
        return 0;
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, word ? word : "?", 40);
    return err_set(err, ERR_USAGE, 0, "%s must be \"readable\" or \"closed\", not \"%s\"", where, buf_str(&safe));
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

int net_doc_again(const char *document, const char *e2b, struct net_doc *ret, struct err *err)
{
    return net_doc_with(document, e2b, NULL, "", ret, err);
}

int net_doc_with(const char *document, const char *e2b, const char *password, const char *where, struct net_doc *ret,
                 struct err *err)
{
    struct netpol_error bad = {0};
    _cleanup_netpol_ struct netpol *p = NULL;
    _cleanup_buf_ struct buf shown = {0};
    _cleanup_net_doc_ struct net_doc d = {0};
    if (strlen(document) > NET_DOC_MAX)
        return err_set(err, ERR_POLICY, 0, "the document is larger than %d bytes", NET_DOC_MAX);
    if (e2b && *e2b && net_e2b_headers(e2b, &d.headers, &d.nheaders, err) < 0)
        return -1;
    if (netpol_parse_json(document, strlen(document), presets >= 0 ? netpol_preset_file : NULL, &presets, &p, &bad) < 0)
        return err_set(err, ERR_POLICY, 0, "%s%s%s", bad.path, *bad.path ? ": " : "", bad.text);
    if (net_check_private(p, err) < 0 ||
        (password && net_seal_password(netpol_settings(p), password, where, &d.proxy_password, err) < 0))
        return -1;
    netpol_show(p, &shown);
    net_list_secrets(p, &d);
    d.document = xstrdup(document);
    d.effective = xstrdup(buf_str(&shown));
    d.e2b = e2b && *e2b ? xstrdup(e2b) : NULL;
    d.closed = netpol_settings(p)->refusals_closed;
    d.nothing = !netpol_rules(p) && netpol_settings(p)->otherwise != NETPOL_ALLOW_PUBLIC &&
                netpol_settings(p)->mode == NETPOL_ENFORCE && !netpol_settings(p)->ask_on_miss;
    d.open = netpol_settings(p)->otherwise == NETPOL_ALLOW_PUBLIC || netpol_settings(p)->mode != NETPOL_ENFORCE;
    *ret = d;
    d = (struct net_doc){0};
    return 0;
}

/* A JSON value as text; owned. */
static char *json_text_of(const json_t *v)
{
    char *made = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    char *text = xstrdup(made ? made : "null");
    free(made);
    return text;
}

int net_doc_text(const char *text, size_t n, struct net_doc *ret, struct err *err)
{
    _cleanup_free_ char *copy = xstrndup(text, n);
    return net_doc_again(copy, NULL, ret, err);
}

int net_doc_file(const char *text, size_t n, const char *name, enum net_dialect dialect, struct net_doc *ret,
                 struct err *err)
{
    _cleanup_node_ struct node *root = NULL;
    _cleanup_netpol_ struct netpol *p = NULL;
    _cleanup_buf_ struct buf shown = {0};
    struct netpol_error bad = {0};
    if (node_read(text, n, name, 0, &root, err) < 0)
        return -1;
    if (netpol_parse(root, presets >= 0 ? netpol_preset_file : NULL, &presets, &p, &bad) < 0)
        return err_set(err, ERR_POLICY, 0, "%s:%u: %s%s%s", name, bad.line, bad.path, *bad.path ? ": " : "", bad.text);
    netpol_show(p, &shown);
    if (netpol_settings(p)->refusals_given || !net_standard_closed(dialect))
        return net_doc_again(buf_str(&shown), NULL, ret, err);
    json_t *doc = json_loads(buf_str(&shown), 0, NULL);
    (void)json_object_set_new(doc, "refusals", json_string("closed"));
    _cleanup_free_ char *closed = json_text_of(doc);
    json_decref(doc);
    return net_doc_again(closed, NULL, ret, err);
}

/* `kept`: the sealed password that the proxy keeps if the document names none. */
static int net_read_object(json_t *doc, const char *e2b, const char *kept, struct net_doc *ret, struct err *err)
{
    _cleanup_password_ char *password = NULL;
    json_t *proxy = json_object_get(doc, "upstream_proxy");
    if (net_doc_take_password(proxy, "upstream_proxy", &password, err) < 0)
        return -1;
    _cleanup_free_ char *text = json_text_of(doc);
    if (net_doc_with(text, e2b, password, "upstream_proxy", ret, err) < 0)
        return -1;
    if (!password && kept && proxy)
        ret->proxy_password = xstrdup(kept);
    return 0;
}

int net_doc_read(const json_t *value, struct net_doc *ret, struct err *err)
{
    if (!json_is_object(value) && !json_is_string(value))
        return err_set(err, ERR_POLICY, 0, "a network is an object, or the word \"public\" or \"off\"");
    json_t *copy = net_doc_standard(value, NET_NATIVE); /* a copy, so that the caller's object keeps its password */
    int rc = net_read_object(copy, NULL, NULL, ret, err);
    json_decref(copy);
    return rc;
}

/* --- changes ------------------------------------------------------------------------------------------------------ */

/* The document as an object with a list of rules; a new reference. */
static json_t *net_open_document(const char *document)
{
    json_t *v = json_loads(document, JSON_DECODE_ANY, NULL);
    if (json_is_string(v) || !v) {
        int word = net_word_of(v);
        json_decref(v);
        v = net_object_of_word(word);
    }
    if (!json_is_array(json_object_get(v, "rules")))
        (void)json_object_set_new(v, "rules", json_array());
    return v;
}

/* Removes an empty list of rules, which the language does not allow. */
static void net_close_document(json_t *v)
{
    if (json_array_size(json_object_get(v, "rules")) == 0)
        (void)json_object_del(v, "rules");
}

static bool net_remove_rule(json_t *rules, const char *id)
{
    for (size_t i = 0; i < json_array_size(rules); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(rules, i), "id"));
        if (name && strcmp(name, id) == 0) {
            (void)json_array_remove(rules, i);
            return true;
        }
    }
    return false;
}

static int net_apply_remove(json_t *rules, const json_t *list, struct err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *id = json_string_value(json_array_get(list, i));
        if (!id)
            return err_set(err, ERR_POLICY, 0, "remove[%zu] must be the id of a rule", i);
        if (!net_remove_rule(rules, id))
            return err_set(err, ERR_POLICY, 0, "remove[%zu]: there is no rule with the id \"%.64s\"", i, id);
    }
    return 0;
}

static int net_apply_add(json_t *rules, const json_t *list, struct err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *rule = json_array_get(list, i);
        if (!json_is_object(rule))
            return err_set(err, ERR_POLICY, 0, "add[%zu] must be a rule", i);
        const char *id = json_string_value(json_object_get(rule, "id"));
        if (id)
            (void)net_remove_rule(rules, id);
        (void)json_array_append(rules, rule);
    }
    return 0;
}

static int net_check_patch(json_t *patch, struct err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach(patch, name, v)
    {
        bool list = strcmp(name, "add") == 0 || strcmp(name, "remove") == 0;
        if (!list && strcmp(name, "set") != 0)
            return err_set(err, ERR_POLICY, 0, "a change has 'add', 'remove' and 'set', not '%.64s'", name);
        if (list ? !json_is_array(v) : !json_is_object(v))
            return err_set(err, ERR_POLICY, 0, "'%s' must be %s", name, list ? "a list" : "an object");
    }
    return 0;
}

int net_doc_patch(const char *document, const char *e2b, const char *proxy_password, json_t *patch, struct net_doc *ret,
                  struct err *err)
{
    const char *key;
    json_t *v;
    if (net_check_patch(patch, err) < 0)
        return -1;
    json_t *doc = net_open_document(document), *rules = json_object_get(doc, "rules");
    int rc = net_apply_remove(rules, json_object_get(patch, "remove"), err);
    if (rc == 0)
        rc = net_apply_add(rules, json_object_get(patch, "add"), err);
    json_object_foreach(json_object_get(patch, "set"), key, v)
    {
        if (json_is_null(v))
            (void)json_object_del(doc, key);
        else
            (void)json_object_set(doc, key, v);
    }
    if (json_is_null(json_object_get(json_object_get(patch, "set"), "refusals")) &&
        net_standard_closed(e2b && *e2b ? NET_E2B : NET_NATIVE))
        (void)json_object_set_new(doc, "refusals", json_string("closed"));
    net_close_document(doc);
    if (rc == 0)
        rc = net_read_object(doc, e2b,
                             json_object_get(json_object_get(patch, "set"), "upstream_proxy") ? NULL : proxy_password,
                             ret, err);
    json_decref(doc);
    return rc;
}

int net_doc_reword(const struct net_doc *from, bool closed, struct net_doc *ret, struct err *err)
{
    json_t *patch = json_pack("{s:{s:s}}", "set", "refusals", closed ? "closed" : "readable");
    int rc = net_doc_patch(from->document, from->e2b, from->proxy_password, patch, ret, err);
    json_decref(patch);
    return rc;
}
