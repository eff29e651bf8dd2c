/* netpol-read.c - strict readers for the network document; every error names path and line. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/num.h"
#include "base/text.h"
#include "policy/net/netpol-int.h"

void netpol_at_add(struct buf *b, const struct netpol_at *at)
{
    if (!at)
        return;
    netpol_at_add(b, at->up);
    if (!at->key)
        buf_addf(b, "[%zu]", at->index);
    else
        buf_addf(b, "%s%s", b->n > 0 ? "." : "", at->key);
}

int netpol_fail(struct netpol_reader *r, const struct netpol_at *at, unsigned line, const char *fmt, ...)
{
    _cleanup_buf_ struct buf path = {0};
    va_list ap;
    netpol_at_add(&path, at);
    (void)snprintf(r->e->path, sizeof r->e->path, "%s", buf_str(&path));
    r->e->line = line;
    va_start(ap, fmt);
    (void)vsnprintf(r->e->text, sizeof r->e->text, fmt, ap);
    va_end(ap);
    return -1;
}

const char *netpol_safe(struct netpol_reader *r, const char *text)
{
    _cleanup_buf_ struct buf b = {0};
    char *slot = r->safe[r->nsafe++ % ARRAY_LEN(r->safe)];
    text_add_safe(&b, text, 80);
    (void)snprintf(slot, sizeof r->safe[0], "%s", buf_str(&b));
    return slot;
}

static int netpol_fail_unknown_key(struct netpol_reader *r, const struct node *key, const struct netpol_at *at,
                                   const struct netpol_key *keys)
{
    const char *known[40];
    size_t n = 0;
    for (; keys[n].name && n < ARRAY_LEN(known) - 1; n++)
        known[n] = keys[n].name;
    known[n] = NULL;
    const char *near = text_nearest(key->text, known);
    return netpol_fail(r, at, key->line, "unknown key \"%s\"%s%s%s", netpol_safe(r, key->text),
                       near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

int netpol_map(struct netpol_reader *r, const struct node *node, const struct netpol_at *at,
               const struct netpol_key *keys, void *into)
{
    if (node->kind != NODE_MAP)
        return netpol_fail(r, at, node->line, "expected a mapping of keys to values");
    for (size_t i = 0; i < node->n; i += 2) {
        const struct netpol_key *k = keys;
        while (k->name && strcmp(k->name, node->items[i]->text) != 0)
            k++;
        if (!k->name)
            return netpol_fail_unknown_key(r, node->items[i], at, keys);
        struct netpol_at here = {.up = at, .key = k->name};
        if (k->read(r, node->items[i + 1], &here, into) < 0)
            return -1;
    }
    return 0;
}

const struct node *netpol_item(const struct node *list, size_t i)
{
    return list->kind == NODE_LIST ? list->items[i] : list;
}

size_t netpol_scalars(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, size_t max)
{
    if (node->kind == NODE_MAP) {
        (void)netpol_fail(r, at, node->line, "expected a list, not a mapping");
        return 0;
    }
    size_t n = node->kind == NODE_LIST ? node->n : 1;
    if (n == 0 || n > max) {
        (void)netpol_fail(r, at, node->line,
                          n == 0 ? "the list is empty; leave the key out, or say what it is to hold"
                                 : "%zu entries; at most %zu are possible",
                          n, max);
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        struct netpol_at here = {.up = at, .index = i};
        if (!netpol_text(r, netpol_item(node, i), node->kind == NODE_LIST ? &here : at, 4096))
            return 0;
    }
    return n;
}

const char *netpol_text(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, size_t max)
{
    if (node->kind != NODE_SCALAR)
        (void)netpol_fail(r, at, node->line, "expected a plain value, not a list or a mapping");
    else if (node->text[0] == '\0' ||
             (!node->quoted && (strcmp(node->text, "null") == 0 || strcmp(node->text, "~") == 0)))
        (void)netpol_fail(r, at, node->line, "the value is empty");
    else if (strlen(node->text) > max)
        (void)netpol_fail(r, at, node->line, "longer than %zu bytes", max);
    else
        return node->text;
    return NULL;
}

int netpol_word(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, const char *const *words)
{
    const char *text = netpol_text(r, node, at, 4096);
    if (!text)
        return -1;
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], text) == 0)
            return i;
    _cleanup_buf_ struct buf list = {0};
    text_add_choices(&list, words);
    return netpol_fail(r, at, node->line, "must be %s, not \"%s\"", buf_str(&list), netpol_safe(r, text));
}

int netpol_bool(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, bool *ret)
{
    const char *text = netpol_text(r, node, at, 4096);
    if (!text)
        return -1;
    bool yes = strcmp(text, "true") == 0;
    if (node->quoted || (!yes && strcmp(text, "false") != 0))
        return netpol_fail(r, at, node->line, "must be true or false, not \"%s\"", netpol_safe(r, text));
    *ret = yes;
    return 0;
}

int netpol_number(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, uint64_t min,
                  uint64_t max, uint64_t *ret)
{
    uint64_t n;
    const char *text = netpol_text(r, node, at, 4096);
    if (!text)
        return -1;
    if (!num_u64(text, &n) || n < min || n > max)
        return netpol_fail(r, at, node->line, "must be a number from %llu to %llu, not \"%s\"", (unsigned long long)min,
                           (unsigned long long)max, netpol_safe(r, text));
    *ret = n;
    return 0;
}

int netpol_size(struct netpol_reader *r, const struct node *node, const struct netpol_at *at, uint64_t *ret)
{
    uint64_t n;
    const char *text = netpol_text(r, node, at, 4096);
    if (!text)
        return -1;
    if (!num_size(text, &n) || n > INT64_MAX)
        return netpol_fail(r, at, node->line, "must be a size like 65536, 512K or 10G, not \"%s\"",
                           netpol_safe(r, text));
    *ret = n;
    return 0;
}
