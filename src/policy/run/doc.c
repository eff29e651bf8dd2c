#include "policy/run/doc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"

enum { SAFE_MAX = 128 };

const char *doc_keep(struct policy *p, const char *s)
{
    for (size_t i = 0; i < p->strings.n; i++)
        if (strcmp(p->strings.v[i], s) == 0)
            return p->strings.v[i];
    strv_add(&p->strings, s);
    return p->strings.v[p->strings.n - 1];
}

struct origin doc_origin(const struct doc *d, unsigned line)
{
    return (struct origin){.level = d->level, .file = d->name, .line = line};
}

void origin_add(struct buf *out, const struct origin *o)
{
    if (!o->file) {
        buf_adds(out, "built-in");
        return;
    }
    text_add_safe(out, o->file, 512);
    if (o->line != 0)
        buf_addf(out, ":%u", o->line);
}

const char *doc_safe(const char *text)
{
    static char ring[4][SAFE_MAX * 4 + 8];
    static unsigned next;
    _cleanup_buf_ struct buf b = {0};
    text_add_safe(&b, text, SAFE_MAX);
    char *slot = ring[next++ % ARRAY_LEN(ring)];
    (void)snprintf(slot, sizeof ring[0], "%s", buf_str(&b));
    return slot;
}

int doc_fail(struct doc *d, unsigned line, const char *fmt, ...)
{
    _cleanup_buf_ struct buf where = {0};
    char what[896];
    va_list ap;
    struct origin o = doc_origin(d, line);
    origin_add(&where, &o);
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    /* A wrong flag is a wrong command line; a line number means a document. */
    bool flag = d->level == LEVEL_FLAGS && line == 0;
    return err_set(d->err, flag ? ERR_USAGE : ERR_POLICY, 0, "%s: %s", buf_str(&where), what);
}

int doc_fail_widens(struct doc *d, unsigned line, const char *what)
{
    return doc_fail(d, line,
                    "%s would widen the policy, which a project document may do only once you trust it: "
                    "read it, then run `hutch policy trust`",
                    what);
}

static int fail_unknown_key(struct doc *d, const struct node *key, const char *section, const struct doc_key *keys)
{
    const char *known[32];
    size_t n = 0;
    for (; keys[n].name && n < ARRAY_LEN(known) - 1; n++)
        known[n] = keys[n].name;
    known[n] = NULL;
    const char *near = text_nearest(key->text, known);
    return doc_fail(d, key->line, "unknown key \"%s\"%s%s%s%s%s", doc_safe(key->text), *section ? " in " : "", section,
                    near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

int doc_map(struct doc *d, const struct node *node, const char *section, const struct doc_key *keys)
{
    if (node_is_empty(node))
        return 0;
    if (node->kind != NODE_MAP)
        return doc_fail(d, node->line, "%s must be a mapping of keys to values", *section ? section : "the document");
    for (size_t i = 0; i < node->n; i += 2) {
        const struct doc_key *k = keys;
        while (k->name && strcmp(k->name, node->items[i]->text) != 0)
            k++;
        if (!k->name)
            return fail_unknown_key(d, node->items[i], section, keys);
        d->key = k->name;
        if (k->read(d, node->items[i + 1], k->arg) < 0)
            return -1;
    }
    return 0;
}

int doc_list(struct doc *d, const struct node *node, const char *key,
             int (*each)(struct doc *d, const struct node *item, unsigned index, unsigned arg), unsigned arg)
{
    if (node_is_empty(node))
        return 0;
    if (node->kind == NODE_SCALAR)
        return each(d, node, 0, arg);
    if (node->kind != NODE_LIST)
        return doc_fail(d, node->line, "%s must be a list", key);
    for (size_t i = 0; i < node->n; i++) {
        if (!doc_scalar(d, node->items[i], key) || each(d, node->items[i], (unsigned)i, arg) < 0)
            return -1;
    }
    return 0;
}

const char *doc_scalar(struct doc *d, const struct node *node, const char *key)
{
    if (node->kind == NODE_SCALAR && node->text[0] != '\0')
        return node->text;
    (void)doc_fail(d, node->line,
                   node->kind == NODE_SCALAR ? "%s is empty" : "%s: expected a plain value here, not a list or mapping",
                   key);
    return NULL;
}

int doc_bool(struct doc *d, const struct node *node, const char *key, bool *ret)
{
    const char *text = doc_scalar(d, node, key);
    if (!text)
        return -1;
    bool yes = strcmp(text, "true") == 0;
    if (node->quoted || (!yes && strcmp(text, "false") != 0))
        return doc_fail(d, node->line, "%s must be true or false, not \"%s\"", key, doc_safe(text));
    *ret = yes;
    return 0;
}

int doc_word(struct doc *d, const struct node *node, const char *key, const char *const *words)
{
    const char *text = doc_scalar(d, node, key);
    if (!text)
        return -1;
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], text) == 0)
            return i;
    _cleanup_buf_ struct buf list = {0};
    text_add_choices(&list, words);
    const char *near = text_nearest(text, words);
    return doc_fail(d, node->line, "%s must be %s, not \"%s\"%s%s%s", key, buf_str(&list), doc_safe(text),
                    near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}
