/* netpol-http.c - reading what a rule says about requests: methods, paths, query, headers, content types, sizes. */
#include <string.h>

#include "base/cleanup.h"
#include "policy/net/netpol-int.h"

const char *const netpol_access_words[] = {"none", "read-only", "read-write", "full", NULL};

bool netpol_is_token(const char *text, size_t max)
{
    size_t n = strlen(text);
    return n > 0 && n <= max &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~") == n;
}

struct entry_reader {
    struct netpol_entry *entry;
    bool deny;
};

static int entry_read_methods(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_entry *entry = ((struct entry_reader *)into)->entry;
    size_t n = netpol_scalars(r, value, at, NETPOL_LIST_MAX);
    if (n == 0)
        return -1;
    entry->methods = netpol_keep(r->p, n, sizeof entry->methods[0]);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(value, i);
        struct netpol_at here = {.up = at, .index = i};
        if (!netpol_is_token(item->text, NETPOL_METHOD_MAX - 1) || strchr(item->text, '*'))
            return netpol_fail(r, &here, item->line,
                               "\"%s\" is not a method like GET or POST; leave methods out for any",
                               netpol_safe(r, item->text));
        if (strcmp(item->text, "TRACE") == 0 || strcmp(item->text, "CONNECT") == 0 || strcmp(item->text, "PRI") == 0)
            return netpol_fail(r, &here, item->line, "%s is never forwarded and cannot be allowed or denied",
                               item->text);
        for (const char *s = item->text; *s; s++)
            if (*s >= 'a' && *s <= 'z')
                return netpol_fail(r, &here, item->line, "methods are case-sensitive and written in capitals: \"%s\"",
                                   netpol_safe(r, item->text));
        entry->methods[entry->nmethods++] = netpol_keep_text(r->p, item->text, strlen(item->text));
    }
    return 0;
}

static int entry_read_paths(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_entry *entry = ((struct entry_reader *)into)->entry;
    size_t n = netpol_scalars(r, value, at, NETPOL_LIST_MAX);
    if (n == 0)
        return -1;
    entry->paths = netpol_keep(r->p, n, sizeof entry->paths[0]);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(value, i);
        struct netpol_at here = {.up = at, .index = i};
        const char *why = netpol_path_parse(r->p, item->text, &entry->paths[i]);
        if (why)
            return netpol_fail(r, &here, item->line, "\"%s\": %s", netpol_safe(r, item->text), why);
        entry->npaths++;
    }
    return 0;
}

static struct netpol_glob make_glob(struct netpol *p, const char *text)
{
    size_t n = strlen(text);
    char *compiled = netpol_keep(p, n + 1, 1);
    for (size_t i = 0; i < n; i++)
        compiled[i] = text[i] == '*' ? (char)NETPOL_STAR : text[i];
    return (struct netpol_glob){.source = netpol_keep_text(p, text, n), .text = compiled};
}

static int entry_read_globs(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                            struct netpol_glob **ret, size_t *ret_n)
{
    size_t n = netpol_scalars(r, value, at, NETPOL_LIST_MAX);
    if (n == 0)
        return -1;
    *ret = netpol_keep(r->p, n, sizeof **ret);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(value, i);
        struct netpol_at here = {.up = at, .index = i};
        for (const char *s = item->text; *s; s++)
            if ((unsigned char)*s < 0x20 || *s == 0x7f)
                return netpol_fail(r, &here, item->line, "a control character can stand in no value");
        if (strlen(item->text) > NETPOL_PATTERN_MAX)
            return netpol_fail(r, &here, item->line, "longer than %d bytes", NETPOL_PATTERN_MAX);
        (*ret)[i] = make_glob(r->p, item->text);
    }
    *ret_n = n;
    return 0;
}

/* {name: value or list of values}: all of them must hold. */
static int entry_read_pairs(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, bool headers,
                            struct netpol_pair **ret, size_t *ret_n)
{
    if (value->kind != NODE_MAP)
        return netpol_fail(r, at, value->line, "expected a mapping of names to a value or a list of values");
    size_t n = value->n / 2;
    if (n == 0 || n > NETPOL_LIST_MAX)
        return netpol_fail(r, at, value->line, "expected 1 to %d names, not %zu", NETPOL_LIST_MAX, n);
    *ret = netpol_keep(r->p, n, sizeof **ret);
    for (size_t i = 0; i < n; i++) {
        const struct node *name = value->items[2 * i];
        struct netpol_pair *pair = &(*ret)[i];
        struct netpol_at here = {.up = at, .key = netpol_safe(r, name->text)};
        if (name->text[0] == '\0' || strlen(name->text) > NETPOL_PATTERN_MAX ||
            (headers && !netpol_is_token(name->text, 128)))
            return netpol_fail(r, at, name->line, "\"%s\" is not the name of a %s", netpol_safe(r, name->text),
                               headers ? "header" : "query parameter");
        char *copy = netpol_keep(r->p, strlen(name->text) + 1, 1);
        for (size_t k = 0; name->text[k]; k++) {
            char c = name->text[k];
            copy[k] = headers && c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
        }
        pair->name = copy;
        if (entry_read_globs(r, value->items[2 * i + 1], &here, &pair->values, &pair->nvalues) < 0)
            return -1;
    }
    *ret_n = n;
    return 0;
}

static int entry_read_query(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_entry *entry = ((struct entry_reader *)into)->entry;
    return entry_read_pairs(r, value, at, false, &entry->query, &entry->nquery);
}

static int entry_read_headers(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_entry *entry = ((struct entry_reader *)into)->entry;
    if (entry_read_pairs(r, value, at, true, &entry->headers, &entry->nheaders) < 0)
        return -1;
    for (size_t i = 0; i < entry->nheaders; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(entry->headers[i].name, entry->headers[k].name) == 0)
                return netpol_fail(r, at, value->line, "header %s is given twice", entry->headers[i].name);
    return 0;
}

static int entry_read_types(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, void *into)
{
    struct netpol_entry *entry = ((struct entry_reader *)into)->entry;
    size_t n = netpol_scalars(r, value, at, NETPOL_LIST_MAX);
    if (n == 0)
        return -1;
    entry->types = netpol_keep(r->p, n, sizeof entry->types[0]);
    for (size_t i = 0; i < n; i++) {
        const struct node *item = netpol_item(value, i);
        struct netpol_at here = {.up = at, .index = i};
        size_t len = strlen(item->text);
        const char *slash = strchr(item->text, '/');
        if (!slash || slash == item->text || !slash[1] || len > 127 ||
            strspn(item->text, "abcdefghijklmnopqrstuvwxyz0123456789.+-_*/") != len)
            return netpol_fail(r, &here, item->line,
                               "\"%s\" is not a content type like application/json or text/*, in small letters",
                               netpol_safe(r, item->text));
        entry->types[entry->ntypes++] = make_glob(r->p, item->text);
    }
    return 0;
}

static int entry_read_max_bytes(struct netpol_reader *r, const struct node *value, const struct netpol_at *at,
                                void *into)
{
    struct entry_reader *er = into;
    if (er->deny)
        return netpol_fail(r, at, value->line, "a size limits what is allowed; it cannot stand under deny");
    if (netpol_size(r, value, at, &er->entry->max_request_bytes) < 0)
        return -1;
    return er->entry->max_request_bytes > 0 ? 0 : netpol_fail(r, at, value->line, "must be more than 0");
}

int netpol_read_http(struct netpol_reader *r, const struct node *value, const struct netpol_at *at, bool deny,
                     struct netpol_entry **ret, size_t *ret_n)
{
    static const struct netpol_key keys[] = {
        {"methods", entry_read_methods},
        {"paths", entry_read_paths},
        {"query", entry_read_query},
        {"headers", entry_read_headers},
        {"content_types", entry_read_types},
        {"max_request_bytes", entry_read_max_bytes},
        {NULL, NULL},
    };
    if (value->kind != NODE_LIST || value->n == 0 || value->n > NETPOL_ENTRIES_MAX)
        return netpol_fail(r, at, value->line,
                           "expected a list of 1 to %d mappings like {methods: [GET], paths: [/v1/**]}",
                           NETPOL_ENTRIES_MAX);
    *ret = netpol_keep(r->p, value->n, sizeof **ret);
    for (size_t i = 0; i < value->n; i++) {
        struct netpol_at here = {.up = at, .index = i};
        struct entry_reader er = {.entry = &(*ret)[i], .deny = deny};
        if (netpol_map(r, value->items[i], &here, keys, &er) < 0)
            return -1;
        if (value->items[i]->n == 0)
            return netpol_fail(r, &here, value->items[i]->line,
                               "an empty entry holds for every request; say what it is for");
    }
    *ret_n = value->n;
    return 0;
}

void netpol_access_entry(struct netpol *p, enum netpol_access access, struct netpol_inside *in)
{
    static const char *const methods[] = {"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"};
    size_t n = access == NETPOL_ACCESS_READ ? 3 : ARRAY_LEN(methods);
    in->access = access;
    if (access == NETPOL_ACCESS_FULL)
        return;
    in->http = netpol_keep(p, 1, sizeof in->http[0]);
    in->nhttp = 1;
    in->http[0].methods = netpol_keep(p, n, sizeof methods[0]);
    in->http[0].nmethods = n;
    memcpy(in->http[0].methods, methods, n * sizeof methods[0]);
}
