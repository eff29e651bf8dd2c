/* plan-protect.c - what stays read-only inside writable trees.
 *
 * A protected path that exists is bound read-only on itself; one that does not exist gets a stub, so that it cannot be
 * made; every directory between it and the writable root is pinned, because a mount point cannot be renamed but its
 * parent can. A symbolic link is protected as a link, and what it leads to as well if that is writable.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/plan-int.h"

/* Configuration and hooks of submodules and worktrees: protected where they exist. */
static const char *const nested_git[] = {
    ".git/modules/*/hooks",
    ".git/modules/*/config",
    ".git/modules/*/*/config",
    ".git/modules/*/*/hooks",
    ".git/worktrees/*/config.worktree",
    NULL,
};

static void identify(struct plan_op *op, const struct plan_fact *f, const char *src)
{
    free(op->src);
    op->src = src ? xstrdup(src) : NULL;
    op->type = f->type;
    op->dev = f->dev;
    op->ino = f->ino;
}

/* Pins every directory strictly between root and path. */
static void pin_parents(struct planner *pl, const char *root, const char *path, struct plan_why why)
{
    size_t n = strlen(root);
    for (const char *s = strchr(path + n + 1, '/'); s; s = strchr(s + 1, '/')) {
        _cleanup_free_ char *dir = xstrndup(path, (size_t)(s - path));
        _cleanup_free_ char *src = plan_host_path(pl, dir);
        struct plan_fact f = {0};
        if (plan_at(pl->plan, dir) || pl->facts->look(pl->facts->ctx, src, &f) < 0)
            continue;
        free(f.target);
        if (f.type != TYPE_DIR)
            continue;
        struct plan_op *op = plan_put(pl, OP_PIN, dir, why);
        if (op && op->kind == OP_PIN)
            identify(op, &f, src);
    }
}

static void protect(struct planner *pl, const char *path, struct plan_why why, bool stub_is_dir, unsigned depth);

static void protect_existing(struct planner *pl, const char *root, const char *path, const char *src,
                             const struct plan_fact *f, struct plan_why why)
{
    struct plan_op *op = plan_put(pl, OP_PROTECT, path, why);
    if (!op)
        return;
    if (op->kind == OP_PROTECT && !op->src)
        identify(op, f, src);
    pin_parents(pl, root, path, why);
}

/* Protects a path of the host wherever it is shown writable: under its own name and where a bind shows it. */
static void protect_host(struct planner *pl, const char *host, struct plan_why why, bool stub_is_dir, unsigned depth)
{
    _cleanup_strv_ struct strv places = {0};
    _cleanup_free_ char *shown = plan_host_path(pl, host);
    plan_other_places(pl, host, &places);
    if (!pl->who->rootdir && strcmp(shown, host) == 0)
        protect(pl, host, why, stub_is_dir, depth);
    for (size_t i = 0; i < places.n; i++)
        protect(pl, places.v[i], why, stub_is_dir, depth);
}

static void protect(struct planner *pl, const char *path, struct plan_why why, bool stub_is_dir, unsigned depth)
{
    const struct plan_op *tree = plan_writable_root(pl->plan, path);
    if (!tree || strcmp(tree->path, path) == 0 || depth > 8)
        return;
    _cleanup_free_ char *root = xstrdup(tree->path), *src = plan_host_path(pl, path);
    struct plan_fact f = {0};
    if (pl->facts->look(pl->facts->ctx, src, &f) < 0)
        return; /* what the caller cannot reach, the command cannot reach either */
    _cleanup_free_ char *target = f.target;
    if (f.type != TYPE_NONE) {
        protect_existing(pl, root, path, src, &f, why);
        if (f.type == TYPE_SYMLINK && target)
            protect_host(pl, target, why, stub_is_dir, depth + 1);
        return;
    }
    /* Absent: the first missing component below the root is what must not come into being. */
    _cleanup_free_ char *parent = path_parent(path);
    if (strcmp(parent, root) != 0) {
        _cleanup_free_ char *psrc = path_parent(src);
        struct plan_fact pf = {0};
        if (pl->facts->look(pl->facts->ctx, psrc, &pf) < 0)
            return;
        free(pf.target);
        if (pf.type == TYPE_SYMLINK) { /* a linked directory: protect the link, it cannot be stubbed through */
            protect(pl, parent, why, true, depth + 1);
            return;
        }
        if (pf.type != TYPE_DIR) {
            protect(pl, parent, why, true, depth + 1);
            return;
        }
    }
    struct plan_op *op = plan_put(pl, OP_STUB, path, why);
    if (op && op->kind == OP_STUB) {
        identify(op, &(struct plan_fact){.type = stub_is_dir ? TYPE_DIR : TYPE_FILE}, src);
        pin_parents(pl, root, path, why);
    }
}

/* True if a longer rule of the caller opens this very path again. */
static bool opened_again(const struct planner *pl, const char *path)
{
    const struct plan_op *op = plan_at(pl->plan, path);
    return op && op->kind == OP_BIND_RW;
}

/* A directory as it is on the host and as it is shown inside. */
struct shown {
    struct planner *pl;
    const char *host, *inside;
    struct plan_why why;
    struct strv *dirs;
};

static char *shown_at(const struct shown *s, const char *host)
{
    return host[strlen(s->host)] ? path_join(s->inside, host + strlen(s->host) + 1) : xstrdup(s->inside);
}

static void protect_each(void *arg, const char *host)
{
    struct shown *s = arg;
    if (!path_under(host, s->host))
        return;
    _cleanup_free_ char *path = shown_at(s, host);
    protect(s->pl, path, s->why, false, 0);
}

static enum plan_type type_of_git(struct planner *pl, const char *host)
{
    _cleanup_free_ char *git = path_join(host, ".git");
    struct plan_fact f = {0};
    if (pl->facts->look(pl->facts->ctx, git, &f) < 0)
        return TYPE_NONE;
    free(f.target);
    return f.type;
}

/* Protects the names at one directory: a writable root, or a repository below it. */
static void protect_names(struct planner *pl, const char *dir)
{
    _cleanup_free_ char *host = plan_host_path(pl, dir);
    enum plan_type git = type_of_git(pl, host);
    for (size_t i = 0; i < pl->p->nnames && !pl->failed; i++) {
        const struct protected_name *n = &pl->p->names[i];
        struct plan_why why = {n->id, &n->origin};
        _cleanup_free_ char *path = path_join(dir, n->name);
        if (opened_again(pl, path))
            continue;
        if (n->repo_only && git != TYPE_DIR) { /* ".git" may be a file that points elsewhere: keep it as it is */
            _cleanup_free_ char *link = path_join(dir, ".git");
            if (git == TYPE_FILE || git == TYPE_SYMLINK)
                protect(pl, link, why, false, 0);
            continue;
        }
        protect(pl, path, why, n->is_dir, 0);
    }
    static const struct origin builtin = {.level = LEVEL_BUILTIN};
    for (const char *const *g = nested_git; git == TYPE_DIR && *g && !pl->failed; g++) {
        _cleanup_free_ char *glob = path_join(host, *g);
        struct shown s = {pl, host, dir, {"builtin.protect.git-modules", &builtin}, NULL};
        (void)pl->facts->expand(pl->facts->ctx, glob, protect_each, &s);
    }
}

static void add_repo(void *arg, const char *host)
{
    const struct shown *s = arg;
    strv_take(s->dirs, shown_at(s, host));
}

/* Links above the path are resolved, where that can be done before the tree exists. */
static void deny_write(struct planner *pl, const struct file_rule *r)
{
    struct plan_why why = {r->id, &r->origin};
    _cleanup_free_ char *parent = path_parent(r->path), *host = plan_host_path(pl, parent);
    if (pl->who->rootdir || strcmp(host, parent) != 0) {
        protect(pl, r->path, why, false, 0);
        return;
    }
    _cleanup_free_ char *real = pl->facts->real(pl->facts->ctx, parent);
    _cleanup_free_ char *path = path_join(real ? real : parent, path_name(r->path));
    protect_host(pl, path, why, false, 0);
}

static int deny_writes(struct planner *pl)
{
    for (size_t i = 0; i < pl->p->nfiles && !pl->failed; i++) {
        const struct file_rule *r = &pl->p->files[i];
        if (r->verb != FILE_DENY_WRITE)
            continue;
        if (!r->is_glob) {
            deny_write(pl, r);
            continue;
        }
        _cleanup_buf_ struct buf where = {0};
        origin_add(&where, &r->origin);
        /* Files that match later could be created at will, so this promise cannot be kept. */
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

/* A bind below a writable tree cannot be moved itself, but what is between them could be moved away with it. */
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

int plan_protect(struct planner *pl)
{
    if (deny_writes(pl) < 0)
        return -1;
    _cleanup_strv_ struct strv dirs = {0};
    unsigned depth = pl->p->search_depth ? pl->p->search_depth : PLAN_REPO_DEPTH;
    for (size_t i = 0; i < pl->plan->nops; i++) {
        const struct plan_op *op = &pl->plan->ops[i];
        if (op->kind != OP_BIND_RW || op->type != TYPE_DIR)
            continue;
        struct shown s = {.pl = pl, .host = op->src, .inside = op->path, .dirs = &dirs};
        strv_add(&dirs, op->path);
        if (pl->facts->find_repos(pl->facts->ctx, op->src, depth, PLAN_REPO_ENTRIES, add_repo, &s) > 0)
            pl->plan->repos_truncated = true;
    }
    for (size_t i = 0; i < dirs.n && !pl->failed; i++)
        protect_names(pl, dirs.v[i]);
    pin_binds(pl);
    return pl->failed ? -1 : 0;
}
