/* preset.c - --preset NAME: a file of share/presets, as hosts that a command may reach and, in its part `run`, what a tool
 * of that name needs of the machine: directories of its own, and variables that point it there. */
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/net/netpol.h"
#include "policy/run/doc.h"

enum { PRESET_NESTED_MAX = 4 };

static int preset_apply_named(struct doc *d, const char *name, unsigned depth);

/* No preset opens a home directory, or what is above it, as a whole. */
static int preset_check_path(struct doc *d, const struct node *item, const char *key)
{
    const char *home = d->where->home, *text = item->text;
    if (text[0] == '~' && !home)
        return doc_fail(d, item->line, "run.%s: HOME is not set, so there is no %s", key, doc_safe(text));
    if (text[0] != '/' && strncmp(text, "~/", 2) != 0)
        return doc_fail(d, item->line, "run.%s: \"%s\" must begin with ~/ or /", key, doc_safe(text));
    _cleanup_free_ char *path = path_clean(text[0] == '~' ? home : "/", text[0] == '~' ? text + 2 : text);
    if (strcmp(path, "/") == 0 || (home && path_under(home, path)))
        return doc_fail(d, item->line,
                        "run.%s: \"%s\" would open the home directory as a whole; name what is needed in it", key,
                        doc_safe(text));
    return 0;
}

struct preset_list {
    const char *key;
    enum file_verb verb;
    unsigned flags;
};
static const struct preset_list preset_lists[] = {
    {"make", FILE_ALLOW_WRITE, FILE_MAKE},
    {"write", FILE_ALLOW_WRITE, FILE_TRY},
    {"read", FILE_ALLOW_READ, FILE_TRY},
};

static int preset_read_path(struct doc *d, const struct node *item, unsigned index, unsigned which)
{
    const struct preset_list *l = &preset_lists[which];
    _cleanup_free_ char *id = xasprintf("%s.%s[%u]", d->name, l->key, index);
    if (preset_check_path(d, item, l->key) < 0)
        return -1;
    d->file_flags = l->flags;
    int r = doc_add_path(d, item->line, l->verb, item->text, false, id);
    d->file_flags = 0;
    return r;
}

static int preset_read_paths(struct doc *d, const struct node *value, unsigned which)
{
    return d->where->container ? 0 : doc_list(d, value, preset_lists[which].key, preset_read_path, which);
}

/* The home directory in a variable's value: where "~/" begins it, or follows the first "=", as in an option of a program
 * ("-Duser.home=~/..."). NULL: the value has none. */
static const char *preset_find_home(const char *text)
{
    const char *equals = strstr(text, "=~/");
    return strncmp(text, "~/", 2) == 0 ? text : equals ? equals + 1 : NULL;
}

static int preset_read_env(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    if (value->kind != NODE_MAP)
        return doc_fail(d, value->line, "run.env must be a mapping of names to values");
    for (size_t i = 0; i < value->n && !d->where->container; i += 2) {
        const struct node *v = value->items[i + 1];
        const char *home = v->kind == NODE_SCALAR ? preset_find_home(v->text) : NULL;
        if (v->kind != NODE_SCALAR)
            return doc_fail(d, v->line, "run.env: the value of \"%s\" must be text", doc_safe(value->items[i]->text));
        if (home && !d->where->home)
            return doc_fail(d, v->line, "run.env: HOME is not set, so there is no %s", doc_safe(v->text));
        _cleanup_free_ char *path = home ? path_join(d->where->home, home + 2) : NULL;
        _cleanup_free_ char *text = home ? xasprintf("%.*s%s", (int)(home - v->text), v->text, path) : xstrdup(v->text);
        if (doc_add_env(d, value->items[i]->line, ENV_SET, value->items[i]->text, text) < 0)
            return -1;
    }
    return 0;
}

static int preset_skip(struct doc *d, const struct node *value, unsigned arg)
{
    (void)d;
    (void)value;
    (void)arg;
    return 0;
}

static int preset_read_word(struct doc *d, const struct node *item, unsigned index, unsigned arg)
{
    (void)index;
    (void)arg;
    return strchr(item->text, '/')
               ? doc_fail(d, item->line, "run.commands: \"%s\" must be the name of a command", doc_safe(item->text))
               : 0;
}

static int preset_read_commands(struct doc *d, const struct node *value, unsigned arg)
{
    return doc_list(d, value, "run.commands", preset_read_word, arg);
}

static int preset_include(struct doc *d, const struct node *item, unsigned index, unsigned depth)
{
    (void)index;
    if (depth >= PRESET_NESTED_MAX)
        return doc_fail(d, item->line, "run.presets: more than %d presets inside one another", PRESET_NESTED_MAX);
    return preset_apply_named(d, item->text, depth + 1);
}

static int preset_read_run(struct doc *d, const struct node *value, unsigned depth)
{
    const struct doc_key keys[] = {
        {"commands", preset_read_commands, 0},
        {"make", preset_read_paths, 0},
        {"write", preset_read_paths, 1},
        {"read", preset_read_paths, 2},
        {"env", preset_read_env, 0},
        {"presets", preset_skip, 0},
        {NULL, NULL, 0},
    };
    if (doc_map(d, value, "run", keys) < 0)
        return -1;
    for (size_t i = 0; i < value->n; i += 2)
        if (strcmp(value->items[i]->text, "presets") == 0 &&
            doc_list(d, value->items[i + 1], "run.presets", preset_include, depth) < 0)
            return -1;
    return 0;
}

/* The part `run` stands above settings and below options, so that any option can say otherwise. */
static int preset_apply_run(const struct doc *d, const char *real, const struct node *doc, unsigned depth)
{
    _cleanup_free_ char *name = xasprintf("preset %s", real);
    struct doc inner = *d;
    inner.level = LEVEL_SETTINGS;
    inner.name = doc_keep(d->p, name);
    inner.base = NULL;
    inner.file_flags = 0;
    for (size_t i = 0; i < doc->n; i += 2)
        if (strcmp(doc->items[i]->text, "run") == 0)
            return preset_read_run(&inner, doc->items[i + 1], depth);
    return 0;
}

static bool preset_has_rules(const struct node *doc)
{
    for (size_t i = 0; i < doc->n; i += 2)
        if (strcmp(doc->items[i]->text, "rules") == 0)
            return true;
    return false;
}

static int preset_apply_named(struct doc *d, const char *name, unsigned depth)
{
    char real[NETPOL_PRESET_NAME];
    _cleanup_node_ struct node *doc = NULL;
    struct err why = {0};
    if (netpol_preset_find(d->where->home, name, real, &doc, &why) < 0)
        return doc_fail(d, 0, "%s", why.msg);
    if (strv_has(&d->p->presets, real))
        return 0;
    strv_add(&d->p->presets, real);
    if (preset_has_rules(doc) && doc_add_network_preset(d, real) < 0)
        return -1;
    return preset_apply_run(d, real, doc, depth);
}

int preset_apply(struct doc *d, const char *name) { return preset_apply_named(d, name, 0); }
