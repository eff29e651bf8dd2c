/* verdict.c - the verdict for one path. */
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/run/doc.h"
#include "policy/run/plan.h"

/* Depth of the deepest part of `path` (itself or a directory above it) that the rule names, or -1. */
static int matched_depth(const struct file_rule *rule, const char *path)
{
    if (!rule->is_glob)
        return path_under(path, rule->path) ? (int)path_depth(rule->path) : -1;
    _cleanup_free_ char *part = xstrdup(path);
    for (;;) {
        if (path_match(rule->path, part))
            return (int)path_depth(part);
        char *slash = strrchr(part, '/');
        if (!slash || slash == part)
            return -1;
        *slash = '\0';
    }
}

enum effect { NO_EFFECT, DENIES, ALLOWS };

static enum effect verb_effect_on_read(enum file_verb verb)
{
    if (verb == FILE_DENY_READ)
        return DENIES;
    return verb == FILE_DENY_WRITE ? NO_EFFECT : ALLOWS;
}

static enum effect verb_effect_on_write(enum file_verb verb)
{
    switch (verb) {
    case FILE_DENY_READ: /* what is covered cannot be written either */
    case FILE_DENY_WRITE:
    case FILE_READ_ONLY:
        return DENIES;
    case FILE_ALLOW_WRITE:
    case FILE_TMPFS:
    case FILE_SOCKET: /* connecting is a write */
    case FILE_DEVICE:
        return ALLOWS;
    default:
        return NO_EFFECT;
    }
}

/* Deeper wins; at the same depth a plain path beats a glob, then deny beats allow. */
static const struct file_rule *verdict_find_rule(const struct policy *p, const char *path,
                                                 enum effect (*effect)(enum file_verb), int *ret_depth)
{
    const struct file_rule *best = NULL;
    int best_depth = -1;
    for (size_t i = 0; i < p->nfiles; i++) {
        const struct file_rule *r = &p->files[i];
        int depth = effect(r->verb) == NO_EFFECT ? -1 : matched_depth(r, path);
        if (depth < 0 || depth < best_depth)
            continue;
        bool better = !best || depth > best_depth || (best->is_glob && !r->is_glob) ||
                      (best->is_glob == r->is_glob && effect(r->verb) == DENIES);
        if (!better)
            continue;
        best = r;
        best_depth = depth;
    }
    *ret_depth = best_depth;
    return best;
}

bool policy_may_read(const struct policy *p, const char *path, const struct file_rule **ret_rule)
{
    int depth;
    const struct file_rule *rule = verdict_find_rule(p, path, verb_effect_on_read, &depth);
    if (ret_rule)
        *ret_rule = rule;
    return !rule || verb_effect_on_read(rule->verb) == ALLOWS;
}

/* `path` is `name` or lies below it, seen from `dir`, which it lies below. Returns the depth of the name, or -1. */
static int below_name(const char *path, const char *dir, const char *name)
{
    _cleanup_free_ char *full = path_join(dir, name);
    return path_under(path, full) ? (int)path_depth(full) : -1;
}

/* Whether the host has this name in a directory. `dir` is inside; what is shown there comes from rule->src. */
static bool verdict_host_has_name(const struct file_rule *rule, const char *dir, const char *name)
{
    struct stat st;
    _cleanup_free_ char *host = xasprintf("%s%s/%s", rule->src ? rule->src : rule->path,
                                          strcmp(rule->path, "/") ? dir + strlen(rule->path) : dir, name);
    return lstat(host, &st) == 0 && !plan_is_stub(&st);
}

/* Whether the directory of a name "dir/name" exists. */
static bool has_name_dir(const struct file_rule *rule, const char *dir, const char *name)
{
    _cleanup_free_ char *above = xstrndup(name, (size_t)(strrchr(name, '/') - name));
    return verdict_host_has_name(rule, dir, above);
}

/* Whether a name is protected at `dir`: a writable root, or a directory below one that may be a repository. Must agree
 * with plan-protect.c. */
static bool name_holds(const struct protected_name *n, const struct file_rule *rule, const char *dir, bool root,
                       bool repo)
{
    switch (n->place) {
    case NAME_IN_GIT:
        return n->absent != NAME_LEAVE || verdict_host_has_name(rule, dir, n->name);
    case NAME_IN_HOME: /* home_name_over() looks at home directories, this is another place */
        return root && n->name[0] == '.' && !strchr(n->name, '/') && verdict_host_has_name(rule, dir, n->name);
    case NAME_IN_REPOSITORY:
        return verdict_host_has_name(rule, dir, ".git") && (root || verdict_host_has_name(rule, dir, n->name));
    case NAME_IN_PROJECT:
        break;
    }
    if (!root && !repo)
        return false;
    if (n->absent == NAME_STUB_NEAR)
        return has_name_dir(rule, dir, n->name);
    return (root && n->absent == NAME_STUB) || verdict_host_has_name(rule, dir, n->name);
}

/* The protected name that covers `path` in the tree of `rule`, deeper than `depth`. Every directory from its root
 * down to the path may be a repository; a path that goes through ".git" has one by its own word. */
static const struct protected_name *name_over(const struct policy *p, const struct file_rule *rule, const char *path,
                                              int depth)
{
    _cleanup_free_ char *dir = xstrdup(path);
    while (path_under(dir, rule->path)) {
        bool root = strcmp(dir, rule->path) == 0;
        bool repo = !root && (verdict_host_has_name(rule, dir, ".git") || verdict_host_has_name(rule, dir, ".hg") ||
                              verdict_host_has_name(rule, dir, ".jj"));
        for (size_t i = 0; i < p->nnames; i++) {
            const struct protected_name *n = &p->names[i];
            if (below_name(path, dir, n->name) > depth && name_holds(n, rule, dir, root, repo))
                return n;
        }
        char *slash = strrchr(dir, '/');
        if (root || !slash || slash == dir)
            return NULL;
        *slash = '\0';
    }
    return NULL;
}

/* The same for the names of home directories. `host` is what the rule shows at the path. */
static const struct protected_name *home_name_over(const struct policy *p, const struct file_rule *rule,
                                                   const char *path, int depth)
{
    _cleanup_free_ char *host = xasprintf("%s%s", rule->src ? rule->src : rule->path, path + strlen(rule->path));
    int shift = (int)path_depth(path) - (int)path_depth(host);
    for (size_t h = 0; h < p->homes.n; h++)
        for (size_t i = 0; i < p->nnames; i++)
            if (p->names[i].place == NAME_IN_HOME) {
                int found = below_name(host, p->homes.v[h], p->names[i].name);
                if (found >= 0 && found + shift > depth)
                    return &p->names[i];
            }
    return NULL;
}

bool policy_may_write(const struct policy *p, const char *path, const struct file_rule **ret_rule,
                      const struct protected_name **ret_name)
{
    int depth;
    const struct protected_name *name = NULL;
    const struct file_rule *rule = verdict_find_rule(p, path, verb_effect_on_write, &depth);
    bool allowed = rule && verb_effect_on_write(rule->verb) == ALLOWS;
    for (size_t i = 0; allowed && !name && rule->verb == FILE_ALLOW_WRITE && i < p->nfiles; i++)
        if (p->files[i].verb == FILE_ALLOW_WRITE && path_under(path, p->files[i].path)) {
            name = home_name_over(p, &p->files[i], path, depth);
            if (!name)
                name = name_over(p, &p->files[i], path, depth);
        }
    if (ret_rule)
        *ret_rule = rule;
    if (ret_name)
        *ret_name = name;
    return allowed && !name;
}
