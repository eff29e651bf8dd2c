/* tx-names.c - changes of a transaction that programs outside execute or believe without the user's doing.
 *
 * tx_judge() is the one place that knows the names: those that policies protect from the start, and what of a git directory
 * makes git run something.
 */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/path.h"
#include "cli/tx.h"
#include "policy/policy.h"

static const struct policy *builtin_names(void)
{
    static struct policy p;
    static bool made;
    if (!made)
        policy_add_defaults(&(struct policy_where){.cwd = "/", .no_workspace = true, .container = true}, &p);
    made = true;
    return &p;
}

/* Whether `path` is `name`, or lies below it. */
static bool path_is_name(const char *path, const char *name)
{
    size_t n = strlen(name);
    return strncmp(path, name, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

static bool path_has(const char *path, const char *name)
{
    for (const char *s = path; s; s = strchr(s, '/'), s += s != NULL)
        if (path_is_name(s, name))
            return true;
    return false;
}

static bool is_builtin_name(const char *path)
{
    const struct policy *p = builtin_names();
    for (size_t i = 0; i < p->nnames; i++)
        if (path_is_name(path, p->names[i].name))
            return true;
    return false;
}

/* A file ".git" that points elsewhere, and what the git directories of submodules and worktrees have of their own. */
static bool git_runs(const char *path)
{
    static const char *const last[] = {"config", "config.worktree", "commondir", "gitdir"};
    if (strcmp(path, ".git") == 0 || strcmp(path, ".git/commondir") == 0)
        return true;
    if (!path_is_name(path, ".git/modules") && !path_is_name(path, ".git/worktrees"))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(last); i++)
        if (strcmp(path_name(path), last[i]) == 0)
            return true;
    return path_has(path, "hooks");
}

/* Hooks that git init copies, and never runs under this name. */
static bool is_sample(const char *path)
{
    size_t n = strlen(path), m = strlen(".sample");
    return n > m && strcmp(path + n - m, ".sample") == 0 && path_has(path, "hooks");
}

/* A directory that was opened by its name, although rules protect it: alone, or below another place. */
static bool is_opened_place(const struct tx *tx, const struct tx_place *p)
{
    const struct policy *all = builtin_names();
    for (size_t i = 0; i < all->nnames; i++) {
        size_t n = strlen(p->src), m = strlen(all->names[i].name);
        if (n > m && p->src[n - m - 1] == '/' && strcmp(p->src + n - m, all->names[i].name) == 0)
            return true;
    }
    for (size_t i = 0; i < tx->nplaces; i++) {
        const char *above = tx->place[i].src;
        if (strcmp(above, p->src) != 0 && path_under(p->src, above) && is_builtin_name(p->src + strlen(above) + 1))
            return true;
    }
    return false;
}

enum tx_class tx_judge(const struct tx *tx, const struct tx_change *c)
{
    const struct tx_place *p = &tx->place[c->place];
    bool dir = S_ISDIR(c->kind == TX_REMOVED ? c->seen.mode : c->mode);
    if (c->kind == TX_REMOVED || (dir && !(c->kind == TX_CHANGED && c->content)) || is_sample(c->path))
        return TX_PLAIN;
    if (is_opened_place(tx, p))
        return TX_REPORTED;
    for (const char *s = c->path; s; s = strchr(s, '/'), s += s != NULL)
        if (is_builtin_name(s) || git_runs(s))
            return s == c->path || c->seen.there ? TX_REFUSED : TX_REPORTED;
    return TX_PLAIN;
}

size_t tx_count_class(const struct tx *tx, enum tx_class least)
{
    size_t n = 0;
    for (size_t i = 0; i < tx->n; i++)
        n += tx_judge(tx, &tx->changes[i]) >= least;
    return n;
}
