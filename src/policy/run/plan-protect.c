/* plan-protect.c - what stays read-only inside writable trees.
 *
 * A protected path that exists is bound read-only on itself; one that does not exist gets a stub, so that it cannot be
 * made; every directory between it and the writable root is pinned, because a mount point cannot be renamed but its
 * parent can. A symbolic link is protected as a link, and what it leads to as well if that is writable, even if nothing
 * is there yet.
 *
 * What git runs and believes is in git directories: ".git", where a file ".git" points, and those of submodules and
 * worktrees inside. The names ".git/NAME" of the policy are protected in each of them. A "commondir" that exists is as
 * well; one that does not cannot be, because git gives up on a stub there, and is reported after the run.
 *
 * The command of an earlier run may have made the tree, so all of this is bounded, with what lies nearest to the
 * writable root first: hitting a bound leaves the rest unprotected and is noted, but must not keep the next run from
 * starting.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/steps.h"
#include "policy/run/plan-int.h"

/* What happens to a name that does not exist. */
enum absent {
    ABSENT_FILE,  /* a stub; if directories above are missing, too, one for the first of them */
    ABSENT_DIR,   /* the same, standing for a directory */
    ABSENT_NEAR,  /* a stub if its directory exists, for something that may not be read either */
    ABSENT_THERE, /* a stub if its directory exists */
    ABSENT_LEAVE, /* nothing */
};

static const struct origin builtin = {.level = LEVEL_BUILTIN};

/* Pins every directory strictly between root and path. */
static void pin_parents(struct planner *pl, const char *root, const char *path, struct plan_why why)
{
    size_t n = strlen(root);
    for (const char *s = strchr(path + n + 1, '/'); s; s = strchr(s + 1, '/')) {
        _cleanup_free_ char *dir = xstrndup(path, (size_t)(s - path));
        _cleanup_free_ char *src = plan_host_path(pl, dir);
        struct plan_fact f = {0};
        if (plan_at(pl->plan, dir) || plan_look(pl, src, &f) < 0)
            continue;
        free(f.target);
        if (f.type != TYPE_DIR)
            continue;
        struct plan_op *op = plan_put(pl, OP_PIN, dir, why);
        if (op && op->kind == OP_PIN)
            plan_identify(op, &f, src ? xstrdup(src) : NULL);
    }
}

static void protect_path(struct planner *pl, const char *path, struct plan_why why, enum absent absent, unsigned depth);

static void protect_existing(struct planner *pl, const char *root, const char *path, const char *src,
                             const struct plan_fact *f, struct plan_why why)
{
    struct plan_op *op = plan_put(pl, OP_PROTECT, path, why);
    if (!op)
        return;
    if (op->kind == OP_PROTECT && !op->src) {
        plan_identify(op, f, src ? xstrdup(src) : NULL);
        if (f->type == TYPE_FILE && f->nlink > 1 && pl->linked++ == 0)
            pl->linked_first = xstrdup(src);
    }
    pin_parents(pl, root, path, why);
}

/* Protects a path of the host wherever it is shown writable: under its own name and where a bind shows it. */
static void protect_host(struct planner *pl, const char *host, struct plan_why why, enum absent absent, unsigned depth)
{
    _cleanup_strv_ struct strv places = {0};
    _cleanup_free_ char *shown = plan_host_path(pl, host);
    plan_other_places(pl, host, &places);
    if (!pl->who->rootdir && strcmp(shown, host) == 0)
        protect_path(pl, host, why, absent, depth);
    for (size_t i = 0; i < places.n; i++)
        protect_path(pl, places.v[i], why, absent, depth);
}

/* Protects the target of a link; if it does not exist, what could be created there. */
static void protect_target(struct planner *pl, const char *link, const char *target, struct plan_why why,
                           enum absent absent, unsigned depth)
{
    if (target) {
        protect_host(pl, target, why, absent, depth);
        return;
    }
    _cleanup_free_ char *text = pl->facts->link_text(pl->facts->ctx, link), *parent = text ? path_parent(text) : NULL;
    if (!text || strcmp(text, link) == 0)
        return;
    const char *real = plan_real_dir(pl, parent);
    _cleanup_free_ char *path = path_join(real ? real : parent, path_name(text));
    protect_host(pl, path, why, absent, depth);
}

/* Nothing exists at path: the first missing component below the root must not be created. */
static void protect_absent(struct planner *pl, const char *root, const char *path, const char *src, struct plan_why why,
                           enum absent absent, unsigned depth)
{
    _cleanup_free_ char *parent = path_parent(path);
    if (absent == ABSENT_LEAVE)
        return;
    const struct plan_op *above = plan_at(pl->plan, parent); /* a pin was looked at already */
    if (strcmp(parent, root) != 0 && !(above && above->kind == OP_PIN)) {
        _cleanup_free_ char *psrc = path_parent(src);
        struct plan_fact pf = {0};
        if (plan_look(pl, psrc, &pf) < 0)
            return;
        free(pf.target);
        if (pf.type != TYPE_DIR) { /* a link to a directory is protected as such: nothing is stubbed through it */
            if (absent != ABSENT_NEAR && absent != ABSENT_THERE)
                protect_path(pl, parent, why, ABSENT_DIR, depth + 1);
            return;
        }
    }
    struct plan_op *op = plan_put(pl, OP_STUB, path, why);
    if (op && op->kind == OP_STUB) {
        plan_identify(op, &(struct plan_fact){.type = absent == ABSENT_DIR ? TYPE_DIR : TYPE_FILE},
                      src ? xstrdup(src) : NULL);
        op->hidden = op->hidden || absent == ABSENT_NEAR;
        pin_parents(pl, root, path, why);
    }
}

static void protect_path(struct planner *pl, const char *path, struct plan_why why, enum absent absent, unsigned depth)
{
    const struct plan_op *tree = plan_writable_root(pl->plan, path);
    if (!tree || strcmp(tree->path, path) == 0 || depth > 8)
        return;
    _cleanup_free_ char *root = xstrdup(tree->path), *src = plan_host_path(pl, path);
    struct plan_fact f = {0};
    if (plan_look(pl, src, &f) < 0)
        return; /* what the caller cannot reach, the command cannot reach either */
    _cleanup_free_ char *target = f.target;
    if (f.type != TYPE_NONE) {
        protect_existing(pl, root, path, src, &f, why);
        if (f.type == TYPE_SYMLINK)
            protect_target(pl, src, target, why, absent, depth + 1);
        return;
    }
    protect_absent(pl, root, path, src, why, absent, depth);
}

/* What happens to a name that the policy protects in full. */
static enum absent absent_of(const struct protected_name *n)
{
    switch (n->absent) {
    case NAME_STUB:
        break;
    case NAME_STUB_NEAR:
        return ABSENT_THERE;
    case NAME_LEAVE:
        return ABSENT_LEAVE;
    }
    return n->is_dir ? ABSENT_DIR : ABSENT_FILE;
}

/* True if a longer rule of the caller opens this very path again. */
static bool opened_again(const struct planner *pl, const char *path)
{
    const struct plan_op *op = plan_at(pl->plan, path);
    return op && op->kind == OP_BIND_RW;
}

static enum plan_type type_at(struct planner *pl, const char *host)
{
    struct plan_fact f = {0};
    if (plan_look(pl, host, &f) < 0)
        return TYPE_NONE;
    free(f.target);
    return f.type;
}

/* --- git directories ---------------------------------------------------------------------------------------------- */

/* Protects the policy's names for git directories in one of them. */
static void protect_git_names(struct planner *pl, const char *git, const char *only)
{
    for (size_t i = 0; i < pl->p->nnames && !pl->failed; i++) {
        const struct protected_name *n = &pl->p->names[i];
        const char *name = n->name + strlen(".git/");
        if (n->place != NAME_IN_GIT || (only && strcmp(name, only) != 0))
            continue;
        _cleanup_free_ char *path = path_join(git, name);
        if (!opened_again(pl, path))
            protect_host(pl, path, (struct plan_why){n->id, &n->origin}, absent_of(n), 0);
    }
}

/* A git directory that is not a plain ".git": of a submodule, of a worktree, or one that a file points to. That of a
 * worktree has its configuration and its hooks in the common one. */
static void protect_git_dir(struct planner *pl, const char *git)
{
    static const struct plan_why why = {"builtin.git-links", &builtin};
    _cleanup_free_ char *common = path_join(git, "commondir"), *back = path_join(git, "gitdir");
    bool worktree = type_at(pl, common) != TYPE_NONE;
    if (!worktree) {
        protect_git_names(pl, git, NULL);
        return;
    }
    protect_host(pl, common, why, ABSENT_LEAVE, 0);
    protect_host(pl, back, why, ABSENT_LEAVE, 0);
    protect_git_names(pl, git, "config.worktree");
    _cleanup_free_ char *shared = pl->facts->git_link(pl->facts->ctx, common);
    if (shared)
        protect_git_names(pl, shared, NULL);
}

static void protect_each_git_dir(void *arg, const char *git)
{
    struct planner *pl = arg;
    if (!pl->failed)
        protect_git_dir(pl, git);
}

static bool has_git_names(const struct policy *p)
{
    for (size_t i = 0; i < p->nnames; i++)
        if (p->names[i].place == NAME_IN_GIT)
            return true;
    return false;
}

/* `dir` holds a ".git" of this type; it is `host` outside. */
static void protect_git(struct planner *pl, const char *dir, const char *host, enum plan_type type)
{
    static const struct plan_why why = {"builtin.git-links", &builtin};
    _cleanup_free_ char *git = path_join(dir, ".git"), *src = path_join(host, ".git");
    if (!has_git_names(pl->p))
        return;
    if (type == TYPE_DIR) {
        _cleanup_free_ char *common = path_join(git, "commondir");
        for (size_t i = 0; i < pl->p->nnames && !pl->failed; i++) {
            const struct protected_name *n = &pl->p->names[i];
            _cleanup_free_ char *path = n->place == NAME_IN_GIT ? path_join(dir, n->name) : NULL;
            if (path && !opened_again(pl, path))
                protect_path(pl, path, (struct plan_why){n->id, &n->origin}, absent_of(n), 0);
        }
        protect_path(pl, common, why, ABSENT_LEAVE, 0);
        if (pl->facts->git_dirs(pl->facts->ctx, src, PLAN_MODULES, protect_each_git_dir, pl) > 0)
            pl->plan->repos_truncated = true;
        return;
    }
    if (type != TYPE_FILE && type != TYPE_SYMLINK)
        return;
    protect_path(pl, git, why, ABSENT_LEAVE, 0); /* it points to another git directory and must keep doing so */
    _cleanup_free_ char *target = pl->facts->git_link(pl->facts->ctx, src);
    if (target)
        protect_git_dir(pl, target);
}

/* --- directories -------------------------------------------------------------------------------------------------- */

/* Whether a name matters in such a directory, and what happens to it while it is missing. Names outside a repository's
 * own directory get stubs at writable roots only: a dozen in each of many repositories would outweigh the rest of a
 * plan. A hidden name of home directories may be installed from here ("dotfiles"); "bin" is an ordinary project
 * directory. */
static bool name_is_for(const struct protected_name *n, bool root, bool git, enum absent *ret)
{
    *ret = root || n->absent == NAME_STUB_NEAR ? absent_of(n) : ABSENT_LEAVE;
    switch (n->place) {
    case NAME_IN_PROJECT:
        return true;
    case NAME_IN_REPOSITORY:
        return git;
    case NAME_IN_HOME:
        *ret = ABSENT_LEAVE;
        return root && n->name[0] == '.' && !strchr(n->name, '/');
    case NAME_IN_GIT:
        break;
    }
    return false;
}

/* Protects the names at one directory: a writable root, or a repository below it. */
static void protect_names(struct planner *pl, const char *dir, bool root)
{
    _cleanup_free_ char *host = plan_host_path(pl, dir), *git = path_join(host, ".git");
    enum plan_type type = type_at(pl, git);
    protect_git(pl, dir, host, type);
    for (size_t i = 0; i < pl->p->nnames && !pl->failed; i++) {
        const struct protected_name *n = &pl->p->names[i];
        enum absent absent;
        if (!name_is_for(n, root, type != TYPE_NONE, &absent))
            continue;
        _cleanup_free_ char *path = path_join(dir, n->name);
        if (!opened_again(pl, path))
            protect_path(pl, path, (struct plan_why){n->id, &n->origin}, absent, 0);
    }
}

/* Whether a path of the host is in a directory that the command may write to. */
static bool is_shared_writable(const struct planner *pl, const char *host)
{
    for (size_t i = 0; i < pl->plan->nops; i++) {
        const struct plan_op *op = &pl->plan->ops[i];
        if (op->kind == OP_BIND_RW && op->src && path_under(host, op->src))
            return true;
    }
    return false;
}

/* The name in a home directory, with links above it resolved. Most homes have none. New string. */
static char *home_path(struct planner *pl, const char *home, const char *name)
{
    char *path = path_join(home, name);
    for (const char *s = strchr(path + strlen(home) + 1, '/'); s; s = strchr(s + 1, '/')) {
        _cleanup_free_ char *dir = xstrndup(path, (size_t)(s - path));
        if (strv_has(&pl->plain_dirs, dir))
            continue;
        if (type_at(pl, dir) != TYPE_SYMLINK) {
            strv_add(&pl->plain_dirs, dir);
            continue;
        }
        _cleanup_free_ char *parent = path_parent(path);
        const char *real = plan_real_dir(pl, parent);
        char *resolved = real ? path_join(real, path_name(path)) : xstrdup(path);
        free(path);
        return resolved;
    }
    return path;
}

/* The target of a link in a home directory. New string; NULL if it is not a link or its target cannot be resolved. */
static char *home_link_target(struct planner *pl, const char *path)
{
    struct plan_fact f = {0};
    if (plan_look(pl, path, &f) < 0)
        return NULL;
    return f.target;
}

/* Protects what is read in home directories, or where a link in them leads, as far as that is writable. */
static void protect_homes(struct planner *pl)
{
    for (size_t h = 0; h < pl->p->homes.n; h++) {
        if (h > 0 && !is_shared_writable(pl, pl->p->homes.v[h]))
            continue;
        for (size_t i = 0; i < pl->p->nnames && !pl->failed; i++) {
            const struct protected_name *n = &pl->p->names[i];
            if (n->place != NAME_IN_HOME)
                continue;
            _cleanup_free_ char *path = home_path(pl, pl->p->homes.v[h], n->name);
            bool writable = is_shared_writable(pl, path);
            _cleanup_free_ char *target = writable ? NULL : home_link_target(pl, path);
            if (writable && !opened_again(pl, path))
                protect_host(pl, path, (struct plan_why){n->id, &n->origin}, absent_of(n), 0);
            else if (target && is_shared_writable(pl, target) && !opened_again(pl, target))
                protect_host(pl, target, (struct plan_why){n->id, &n->origin}, ABSENT_LEAVE, 0);
        }
    }
}

/* The repositories below one writable root. */
struct repos {
    const char *host, *inside; /* the root */
    struct strv *dirs;
    size_t n;
};

static void add_repo(void *arg, const char *host)
{
    struct repos *r = arg;
    if (r->n++ < PLAN_REPOS)
        strv_take(r->dirs, path_join(r->inside, host + strlen(r->host) + 1));
}

/* Protects a path of the image. Mounts, missing directories and, for an absent path, a stub are made in the private
 * overlay. No op has a src: there is nothing on the host to compare, watch or remove. */
static int protect_image(struct planner *pl, const struct file_rule *r)
{
    struct plan_why why = {r->id, &r->origin};
    for (const char *s = r->path; *s && !pl->failed;) {
        s += 1 + strcspn(s + 1, "/");
        _cleanup_free_ char *path = xstrndup(r->path, (size_t)(s - r->path)), *host = plan_host_path(pl, path);
        struct plan_fact f = {0};
        if (plan_look(pl, host, &f) < 0)
            return plan_refuse(pl, r, "cannot be looked at in the image", "check the permissions there");
        free(f.target);
        if (f.type == TYPE_SYMLINK) /* it leads somewhere in a tree that does not exist yet */
            return plan_refuse(pl, r, "is a symbolic link there, or leads through one, and cannot be protected",
                               "name what it leads to");
        if (*s && f.type != TYPE_DIR && f.type != TYPE_NONE)
            return plan_refuse(pl, r, "leads through something that is not a directory", "remove the rule");
        enum plan_op_kind kind = *s ? OP_PIN : f.type == TYPE_NONE ? OP_STUB : OP_PROTECT;
        struct plan_op *op = plan_put(pl, kind, path, why);
        if (op && op->kind == kind)
            op->type = *s ? TYPE_DIR : f.type == TYPE_NONE ? TYPE_FILE : f.type;
    }
    return pl->failed ? -1 : 0;
}

/* Links above the path are resolved, where that can be done before the tree exists. */
static int deny_write(struct planner *pl, const struct file_rule *r)
{
    struct plan_why why = {r->id, &r->origin};
    _cleanup_free_ char *parent = path_parent(r->path), *host = plan_host_path(pl, parent);
    if (pl->who->rootdir && !plan_op_for(pl->plan, r->path) && !plan_own_tree(r->path))
        return protect_image(pl, r);
    if (pl->who->rootdir || strcmp(host, parent) != 0) {
        protect_path(pl, r->path, why, ABSENT_FILE, 0);
        return 0;
    }
    const char *real = plan_real_dir(pl, parent);
    _cleanup_free_ char *path = path_join(real ? real : parent, path_name(r->path));
    protect_host(pl, path, why, ABSENT_FILE, 0);
    return 0;
}

static int deny_writes(struct planner *pl)
{
    for (size_t i = 0; i < pl->p->nfiles && !pl->failed; i++) {
        const struct file_rule *r = &pl->p->files[i];
        if (r->verb != FILE_DENY_WRITE)
            continue;
        if (!r->is_glob) {
            if (deny_write(pl, r) < 0)
                return -1;
            continue;
        }
        if (pl->who->rootdir)
            return plan_refuse(pl, r,
                               "cannot be enforced: the image is writable, and files that match could be created later",
                               "name the paths one by one");
        _cleanup_buf_ struct buf where = {0};
        origin_add(&where, &r->origin);
        /* Matching files could be created later, so the rule cannot be kept for them. */
        size_t fixed = strcspn(r->path, "*?[");
        _cleanup_free_ char *head = xstrndup(r->path, fixed), *dir = path_parent(head[0] ? head : "/");
        for (size_t k = 0; k < pl->plan->nops; k++) {
            const struct plan_op *op = &pl->plan->ops[k];
            if (op->kind == OP_BIND_RW && (path_under(dir, op->path) || path_under(op->path, dir)))
                return err_set(
                    pl->err, ERR_POLICY, 0,
                    "%s: deny_write %s cannot be enforced: %s is writable, and files that match could be created "
                    "later; name the paths one by one",
                    buf_str(&where), r->path, op->path);
        }
    }
    return 0;
}

/* A bind below a writable tree cannot be moved itself, but a directory between them could be, together with it: pin
 * these. */
static void pin_binds(struct planner *pl)
{
    for (size_t i = 0, n = pl->plan->nops; i < n && !pl->failed; i++) {
        const struct plan_op *op = &pl->plan->ops[i];
        if (op->kind != OP_BIND_RO && op->kind != OP_BIND_RW)
            continue;
        _cleanup_free_ char *path = xstrdup(op->path), *parent = path_parent(path); /* the array may move */
        const struct plan_op *tree = plan_writable_root(pl->plan, parent);
        if (!tree || strcmp(parent, path) == 0)
            continue;
        _cleanup_free_ char *root = xstrdup(tree->path);
        pin_parents(pl, root, path, (struct plan_why){op->rule, op->origin});
    }
}

/* A hidden name that does not exist yet: the command must neither create it nor read what another process creates
 * there. */
static void protect_hidden(struct planner *pl)
{
    for (size_t i = 0; i < pl->nabsent && !pl->failed; i++)
        protect_host(pl, pl->absent[i].host, pl->absent[i].why, ABSENT_NEAR, 0);
}

static unsigned search_depth(const struct policy *p) { return p->search_depth ? p->search_depth : PLAN_REPO_DEPTH; }

static void note_repo(void *arg, const char *host)
{
    (void)host;
    *(bool *)arg = true;
}

bool plan_has_repos(const struct plan *plan, const struct policy *p, const struct plan_facts *facts)
{
    bool found = false;
    for (size_t i = 0; i < plan->nops && !found; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (op->kind == OP_BIND_RW && op->type == TYPE_DIR &&
            facts->find_repos(facts->ctx, op->src, search_depth(p), PLAN_REPO_ENTRIES, note_repo, &found) > 0)
            found = true;
    }
    return found;
}

int plan_protect(struct planner *pl)
{
    if (deny_writes(pl) < 0)
        return -1;
    steps_mark("rules");
    _cleanup_strv_ struct strv roots = {0}, dirs = {0};
    unsigned depth = search_depth(pl->p);
    for (size_t i = 0; i < pl->plan->nops; i++) {
        const struct plan_op *op = &pl->plan->ops[i];
        if (op->kind != OP_BIND_RW || op->type != TYPE_DIR)
            continue;
        struct repos r = {.host = op->src, .inside = op->path, .dirs = &dirs};
        strv_add(&roots, op->path);
        if (pl->who->search_later)
            continue;
        if (pl->facts->find_repos(pl->facts->ctx, op->src, depth, PLAN_REPO_ENTRIES, add_repo, &r) > 0 ||
            r.n > PLAN_REPOS)
            pl->plan->repos_truncated = true;
    }
    if (!pl->who->search_later)
        steps_mark("search");
    protect_homes(pl);
    for (size_t i = 0; i < roots.n && !pl->failed; i++)
        protect_names(pl, roots.v[i], true);
    protect_hidden(pl);
    pin_binds(pl);
    for (size_t i = 0; i < dirs.n && !pl->failed; i++) {
        if (pl->plan->nops >= PLAN_REPO_OPS) {
            pl->plan->repos_truncated = true;
            break;
        }
        protect_names(pl, dirs.v[i], false);
    }
    return pl->failed ? -1 : 0;
}
