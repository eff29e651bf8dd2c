/* tx-names.c - finds changes of a transaction that programs outside execute or trust without the user's doing.
 *
 * The names are those of policy/names.h, and a few of git's that no rule can protect. It is stricter than the table in
 * one way: a name that the table refuses at a root is refused at any depth if it was on the host before, or is new in a git
 * directory that was.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/run/tx.h"
#include "policy/run/names.h"

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

static enum name_base base_of(const struct tx_place *p)
{
    const char *home = getenv("HOME");
    return home && strcmp(home, p->src) == 0 ? NAME_BELOW_HOME : NAME_BELOW_ROOT;
}

static bool is_refused_name(const struct policy *policy, enum name_base base, const char *path)
{
    return name_judge(policy, base, path).class == NAME_REFUSED;
}

/* A file ".git" that points elsewhere, and what makes git read another configuration. */
static bool is_git_link(const char *path)
{
    bool inner = path_is_name(path, ".git/worktrees") || path_is_name(path, ".git/modules");
    const char *last = path_name(path);
    return strcmp(path, ".git") == 0 || strcmp(path, ".git/commondir") == 0 ||
           (inner && (strcmp(last, "commondir") == 0 || strcmp(last, "gitdir") == 0));
}

/* Whether the git directory that a path of git's lies in was on the host: what is above its last component of this kind. */
static bool git_dir_was_there(const struct tx_place *p, const char *path)
{
    static const char *const parts[] = {"hooks", "config", "config.worktree", "commondir", "gitdir", "rebase-merge"};
    size_t end = 0;
    struct stat st;
    for (const char *s = path; s; s = strchr(s, '/'), s += s != NULL)
        for (size_t i = 0; i < ARRAY_LEN(parts) && s > path; i++)
            if (path_is_name(s, parts[i]))
                end = (size_t)(s - 1 - path);
    _cleanup_free_ char *dir = xstrndup(path, end);
    return p->host < 0 || (end > 0 && fstatat(p->host, dir, &st, AT_SYMLINK_NOFOLLOW) == 0);
}

/* Whether a link there leads programs elsewhere that look for a refused name: ".jj/repo", ".config", ".git/modules". */
static bool link_leads_names(const struct policy *policy, enum name_base base, const char *path)
{
    size_t n;
    const struct known_name *known = names_known(&n);
    for (size_t i = 0; i < n; i++)
        if (path_is_name(known[i].name, path) && is_refused_name(policy, base, known[i].name))
            return true;
    return (path_is_name(path, ".git/modules") || path_is_name(path, ".git/worktrees")) &&
           is_refused_name(policy, base, ".git/config");
}

/* Samples that git init copies; git never runs a hook of this name. */
static bool hook_is_sample(const char *path)
{
    size_t n = strlen(path), m = strlen(".sample");
    return n > m && strcmp(path + n - m, ".sample") == 0 && path_has(path, "hooks");
}

/* A directory that was opened by its name, although rules protect it: alone, or below another place. */
static bool is_opened_place(const struct tx *tx, const struct tx_place *p)
{
    _cleanup_free_ char *parent = path_parent(p->src), *grand = path_parent(parent);
    if (is_refused_name(NULL, NAME_BELOW_ROOT, path_name(p->src)) ||
        (strlen(grand) > 1 && is_refused_name(NULL, NAME_BELOW_ROOT, p->src + strlen(grand) + 1)))
        return true;
    for (size_t i = 0; i < tx->nplaces; i++) {
        const struct tx_place *above = &tx->place[i];
        if (strcmp(above->src, p->src) != 0 && path_under(p->src, above->src) &&
            is_refused_name(NULL, base_of(above), p->src + strlen(above->src) + 1))
            return true;
    }
    return false;
}

enum tx_class tx_judge(const struct tx *tx, const struct tx_change *c)
{
    const struct tx_place *p = &tx->place[c->place];
    bool dir = S_ISDIR(c->kind == TX_REMOVED ? c->seen.mode : c->mode);
    if (c->kind == TX_REMOVED || (dir && !(c->kind == TX_CHANGED && c->content)) || hook_is_sample(c->path))
        return TX_PLAIN;
    if (is_opened_place(tx, p))
        return TX_REPORTED;
    enum name_base base = base_of(p);
    for (const char *s = c->path; s; s = strchr(s, '/'), s += s != NULL, base = NAME_BELOW_ROOT) {
        bool git = path_is_name(s, ".git");
        if (is_refused_name(tx->policy, base, s) ||
            (is_git_link(s) && is_refused_name(tx->policy, NAME_BELOW_ROOT, ".git/config")))
            return c->seen.there || (git ? git_dir_was_there(p, c->path) : s == c->path) ? TX_REFUSED : TX_REPORTED;
        if (S_ISLNK(c->mode) && link_leads_names(tx->policy, base, s))
            return c->seen.there || s == c->path ? TX_REFUSED : TX_REPORTED;
    }
    return name_judge(tx->policy, base_of(p), c->path).class == NAME_NONE ? TX_PLAIN : TX_REPORTED;
}

size_t tx_count_class(const struct tx *tx, enum tx_class least)
{
    size_t n = 0;
    for (size_t i = 0; i < tx->n; i++)
        n += tx_judge(tx, &tx->changes[i]) >= least;
    return n;
}
