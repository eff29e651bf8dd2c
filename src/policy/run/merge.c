/* merge.c - a policy as a container: making, freeing, and adding rules so that later levels win. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "policy/net/netpol.h"
#include "policy/run/doc.h"

struct policy *policy_new(void)
{
    struct policy *p = xcalloc(1, sizeof *p);
    p->profile = "default";
    p->search_depth = DOC_SEARCH_DEPTH;
    return p;
}

static void rule_done(struct file_rule *rule)
{
    free(rule->path);
    free(rule->src);
    free(rule->id);
}

static void name_done(struct protected_name *name)
{
    free(name->name);
    free(name->id);
}

void merge_network(struct policy *p, enum network_mode mode, struct netpol *netpol)
{
    _cleanup_buf_ struct buf text = {0};
    netpol_unref(p->netpol);
    free(p->network_text);
    if (netpol)
        netpol_show(netpol, &text);
    p->network = mode;
    p->netpol = netpol;
    p->network_text = netpol ? TAKE_PTR(text.p) : NULL;
}

void policy_free(struct policy *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->nfiles; i++)
        rule_done(&p->files[i]);
    for (size_t i = 0; i < p->nnames; i++)
        name_done(&p->names[i]);
    for (size_t i = 0; i < p->nsyscalls; i++)
        free(p->syscalls[i].name);
    for (size_t i = 0; i < p->nenv; i++) {
        free(p->env[i].name);
        free(p->env[i].value);
    }
    free(p->files);
    free(p->names);
    free(p->syscalls);
    free(p->env);
    merge_network(p, NETWORK_OFF, NULL);
    strv_done(&p->sources);
    strv_done(&p->presets);
    strv_done(&p->homes);
    strv_done(&p->strings);
    for (size_t i = 0; i < ARRAY_LEN(p->ceiling); i++)
        policy_free(p->ceiling[i]); /* a ceiling has no ceiling: one level */
    free(p);
}

/* Two verbs that cannot both hold for one path. */
static bool verbs_clash(enum file_verb a, enum file_verb b)
{
    if (a > b)
        return verbs_clash(b, a);
    switch (a) {
    case FILE_DENY_READ:
        return b != FILE_DENY_READ && b != FILE_DENY_WRITE;
    case FILE_ALLOW_WRITE:
        return b == FILE_DENY_WRITE || b == FILE_READ_ONLY || b == FILE_TMPFS || b == FILE_SOCKET || b == FILE_DEVICE;
    case FILE_READ_ONLY:
    case FILE_TMPFS:
        return b != a;
    default:
        return false;
    }
}

static bool same_source(const struct file_rule *a, const struct file_rule *b)
{
    return a->src && b->src ? strcmp(a->src, b->src) == 0 : a->src == b->src;
}

static int fail_contradiction(const struct file_rule *a, const struct file_rule *b, struct err *err)
{
    _cleanup_buf_ struct buf here = {0}, there = {0}, path = {0};
    origin_add(&here, &a->origin);
    origin_add(&there, &b->origin);
    text_add_safe(&path, a->path, 256);
    return err_set(err, ERR_POLICY, 0, "%s: %s %s contradicts %s of the same path in %s", buf_str(&here),
                   file_verb_name(a->verb), buf_str(&path), file_verb_name(b->verb), buf_str(&there));
}

void merge_remove_file_rule(struct policy *p, size_t index)
{
    rule_done(&p->files[index]);
    memmove(&p->files[index], &p->files[index + 1], (p->nfiles - index - 1) * sizeof p->files[0]);
    p->nfiles--;
}

void merge_remove_name_at(struct policy *p, size_t index)
{
    name_done(&p->names[index]);
    memmove(&p->names[index], &p->names[index + 1], (p->nnames - index - 1) * sizeof p->names[0]);
    p->nnames--;
}

void merge_remove_name(struct policy *p, const char *name)
{
    for (size_t i = p->nnames; i-- > 0;)
        if (strcmp(p->names[i].name, name) == 0)
            merge_remove_name_at(p, i);
}

static int merge_add_rule(struct policy *p, struct file_rule *rule, struct err *err)
{
    if (p->nfiles >= DOC_RULES_MAX) {
        _cleanup_buf_ struct buf here = {0};
        origin_add(&here, &rule->origin);
        rule_done(rule);
        return err_set(err, ERR_POLICY, 0, "%s: more than %d file rules in all", buf_str(&here), DOC_RULES_MAX);
    }
    MEM_GROW(p->files, p->nfiles, p->files_cap);
    p->files[p->nfiles++] = *rule;
    return 0;
}

int merge_file_rule(struct policy *p, struct file_rule *rule, struct err *err)
{
    for (size_t i = p->nfiles; i-- > 0;) {
        struct file_rule *old = &p->files[i];
        if (old->is_glob != rule->is_glob || strcmp(old->path, rule->path) != 0)
            continue;
        bool same = old->verb == rule->verb, equal = same && same_source(old, rule);
        if (!same && !verbs_clash(old->verb, rule->verb))
            continue;
        if (old->origin.level == rule->origin.level) {
            int r = equal ? 0 : fail_contradiction(rule, old, err);
            if (equal)
                old->flags &= rule->flags;
            rule_done(rule);
            return r;
        }
        merge_remove_file_rule(p, i);
    }
    return merge_add_rule(p, rule, err);
}

void merge_protected_name(struct policy *p, struct protected_name *name)
{
    for (size_t i = 0; i < p->nnames; i++) {
        if (p->names[i].place == name->place && strcmp(p->names[i].name, name->name) == 0) {
            name_done(name);
            return;
        }
    }
    MEM_GROW(p->names, p->nnames, p->names_cap);
    p->names[p->nnames++] = *name;
}

/* --- SRC:DEST ----------------------------------------------------------------------------------------------------- */

/* The part of a glob behind the components of `dir`, or NULL if it matches nothing below. "**" before that point may
 * stand for any of them, and matches below every place. */
static const char *glob_below(const char *glob, const char *dir, bool *ret_any)
{
    *ret_any = false;
    while (*glob == '/' && *dir == '/' && dir[1]) {
        glob++;
        dir++;
        size_t gl = strcspn(glob, "/"), dl = strcspn(dir, "/");
        if (gl >= 2 && memmem(glob, gl, "**", 2)) {
            *ret_any = true;
            return glob - 1;
        }
        _cleanup_free_ char *g = xstrndup(glob, gl), *c = xstrndup(dir, dl);
        if (fnmatch(g, c, 0) != 0)
            return NULL;
        glob += gl;
        dir += dl;
    }
    return *glob == '/' ? glob : NULL;
}

static void add_glob_escaped(struct buf *b, const char *s)
{
    for (; *s; s++) {
        if (strchr("*?[\\", *s))
            buf_addc(b, '\\');
        buf_addc(b, *s);
    }
}

/* The path at which `deny` must hold because alias->src is shown at alias->path, or NULL. New string. */
static char *alias_path(const struct file_rule *alias, const struct file_rule *deny)
{
    struct buf b = {0};
    if (!deny->is_glob) {
        if (!path_under(deny->path, alias->src) || strcmp(deny->path, alias->src) == 0)
            return NULL;
        size_t skip = strcmp(alias->src, "/") == 0 ? 0 : strlen(alias->src);
        return xasprintf("%s%s", alias->path, deny->path + skip);
    }
    bool any;
    const char *rest = glob_below(deny->path, alias->src, &any);
    if (!rest)
        return NULL;
    add_glob_escaped(&b, alias->path);
    buf_adds(&b, rest);
    return b.p;
}

static bool has_rule_at(const struct policy *p, const char *path)
{
    for (size_t i = 0; i < p->nfiles; i++)
        if (strcmp(p->files[i].path, path) == 0)
            return true;
    return false;
}

static int add_alias(struct policy *p, size_t alias, size_t deny, struct err *err)
{
    if (p->files[deny].verb == FILE_DENY_WRITE && p->files[alias].verb != FILE_ALLOW_WRITE)
        return 0;
    char *path = alias_path(&p->files[alias], &p->files[deny]);
    if (!path || has_rule_at(p, path)) {
        free(path);
        return 0;
    }
    struct file_rule rule = p->files[deny];
    rule.path = path;
    rule.src = NULL;
    rule.id = xstrdup(rule.id);
    return merge_add_rule(p, &rule, err);
}

int merge_aliases(struct policy *p, struct err *err)
{
    size_t n = p->nfiles;
    for (size_t a = 0; a < n; a++) {
        if (!p->files[a].src || (p->files[a].verb != FILE_READ_ONLY && p->files[a].verb != FILE_ALLOW_WRITE))
            continue;
        for (size_t d = 0; d < n; d++)
            if ((p->files[d].verb == FILE_DENY_READ || p->files[d].verb == FILE_DENY_WRITE) &&
                add_alias(p, a, d, err) < 0)
                return -1;
    }
    return 0;
}
