/* plan-mask.c - what may not be read: deny_read rules, and sockets of the host.
 *
 * A rule names a path inside and hides the file that is shown there. The same thing may be shown at a second place as
 * well (`--ro ~:/mnt` brings ~/.ssh along), so a mask is put at each of them. A directory that a rule binds by itself
 * (`--ro ~/.ssh:/mnt/ssh`) was meant, and stays open.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/run/plan-int.h"

static bool is_bind(const struct plan_op *op) { return (op->kind == OP_BIND_RO || op->kind == OP_BIND_RW) && op->src; }

/* The path at `to` that corresponds to `path` below `from`. */
static char *mask_translate_path(const char *path, const char *from, const char *to)
{
    const char *rest = path + strlen(from);
    if (strcmp(from, "/") != 0 && *rest)
        rest++;
    return *rest ? path_join(to, rest) : xstrdup(to);
}

char *plan_host_path(const struct planner *pl, const char *path)
{
    const struct plan_op *op = plan_op_for(pl->plan, path);
    if (op && is_bind(op))
        return mask_translate_path(path, op->path, op->src);
    for (size_t i = 0; i < pl->plan->layers.n; i++) {
        char *host = mask_translate_path(path, "/", pl->plan->layers.v[i]);
        struct plan_fact f = {0};
        if (pl->facts->look(pl->facts->ctx, host, &f) == 0 && f.type != TYPE_NONE) {
            free(f.target);
            return host;
        }
        free(host);
    }
    return pl->who->rootdir ? mask_translate_path(path, "/", pl->plan->layers.v[0]) : xstrdup(path);
}

void plan_other_places(const struct planner *pl, const char *host, struct strv *ret)
{
    for (size_t i = 0; i < pl->plan->nops; i++) {
        const struct plan_op *op = &pl->plan->ops[i];
        bool moves = is_bind(op) && (pl->who->rootdir || strcmp(op->src, op->path) != 0);
        if (moves && path_under(host, op->src) && strcmp(host, op->src) != 0)
            strv_take(ret, mask_translate_path(host, op->src, op->path));
    }
}

/* `host` is the host path shown at `path`. Paths in a layer are not watched: a layer must not change under an
 * overlay. */
static void mask_cover_path(struct planner *pl, const char *path, const char *host, const struct plan_fact *f,
                            struct plan_why why)
{
    const struct plan_op *above = plan_op_for(pl->plan, path);
    if (above && above->kind == OP_TMPFS)
        return;
    bool shared = !pl->who->rootdir || (above && is_bind(above));
    struct plan_op *op = plan_put(pl, OP_MASK, path, why);
    if (op && op->kind == OP_MASK)
        plan_identify(op, f, shared ? xstrdup(host) : NULL);
}

static void cover_other_places(struct planner *pl, const char *host, const struct plan_fact *f, struct plan_why why)
{
    _cleanup_strv_ struct strv places = {0};
    plan_other_places(pl, host, &places);
    for (size_t i = 0; i < places.n; i++)
        mask_cover_path(pl, places.v[i], host, f, why);
}

/* Remembers a hidden path that does not exist yet and that the command could make. Of the built-in rules only those for
 * the home directory count: a missing "./.env" is a file that commands make from a template, and no secret. */
static void remember_absent(struct planner *pl, const char *host, struct plan_why why)
{
    bool makes = false;
    for (size_t i = 0; i < pl->plan->nops && !makes; i++) {
        const struct plan_op *op = &pl->plan->ops[i];
        makes = op->kind == OP_BIND_RW && op->src && path_under(host, op->src) && strcmp(host, op->src) != 0 &&
                (why.origin->level != LEVEL_BUILTIN ||
                 (pl->who->home && path_under(pl->who->home, op->src) && path_under(host, pl->who->home)));
    }
    if (!makes)
        return;
    MEM_GROW(pl->absent, pl->nabsent, pl->absent_cap);
    pl->absent[pl->nabsent++] = (struct plan_absent){xstrdup(host), why};
}

/* The path with the links above its last component resolved, or NULL. */
static char *real_name(struct planner *pl, const char *path)
{
    _cleanup_free_ char *parent = path_parent(path);
    const char *real = plan_real_dir(pl, parent);
    return real ? path_join(real, path_name(path)) : NULL;
}

/* Masks a host path wherever it is shown. `inside` is that path inside, or NULL if it is not shown under its own name
 * (container tier). */
static void mask_host(struct planner *pl, const char *host, const char *inside, struct plan_why why, unsigned depth)
{
    struct plan_fact f = {0};
    if (depth > 8 || plan_look(pl, host, &f) < 0)
        return; /* what the caller cannot reach, the command cannot reach either */
    free(f.target);
    f.target = NULL;
    if (f.type == TYPE_NONE) {
        remember_absent(pl, host, why);
        return;
    }
    /* Cover the target of a link, not the link, or the target would stay open under its real name. Links further up are
     * resolved for the same reason. */
    _cleanup_free_ char *real = f.type == TYPE_SYMLINK ? pl->facts->real(pl->facts->ctx, host) : real_name(pl, host);
    if (f.type == TYPE_SYMLINK) {
        if (real && strcmp(real, host) != 0)
            mask_host(pl, real, pl->who->rootdir ? NULL : real, why, depth + 1);
        _cleanup_free_ char *text = real ? NULL : pl->facts->link_text(pl->facts->ctx, host);
        if (text)
            remember_absent(pl, text, why);
        return;
    }
    const char *name = real ? real : host;
    if (inside && !plan_own_tree(inside))
        mask_cover_path(pl, strcmp(inside, host) == 0 ? name : inside, name, &f, why);
    cover_other_places(pl, name, &f, why);
}

static int mask_path(struct planner *pl, const struct file_rule *r, const char *path)
{
    struct plan_why why = {r->id, &r->origin};
    _cleanup_free_ char *host = pl->moves ? plan_host_path(pl, path) : NULL;
    if (!host || strcmp(host, path) == 0) {
        mask_host(pl, path, path, why, 0);
        return 0;
    }
    struct plan_fact f = {0};
    if (plan_look(pl, host, &f) < 0)
        return 0;
    free(f.target);
    if (f.type == TYPE_NONE) {
        remember_absent(pl, host, why);
        return 0;
    }
    if (f.type == TYPE_SYMLINK) /* it leads somewhere in a tree that does not exist yet */
        return plan_refuse(pl, r, "is a symbolic link there and cannot be hidden", "name what it leads to");
    mask_cover_path(pl, path, host, &f, why);
    return pl->failed ? -1 : 0;
}

struct glob_arg {
    struct planner *pl;
    const struct file_rule *rule;
    const char *from, *to; /* where the match was looked for, and what that is inside */
};

static void mask_match(void *arg, const char *path)
{
    struct glob_arg *g = arg;
    if (g->pl->failed || !path_under(path, g->from))
        return;
    _cleanup_free_ char *inside = mask_translate_path(path, g->from, g->to);
    (void)mask_path(g->pl, g->rule, inside);
}

static int expand_in(struct planner *pl, const struct file_rule *r, const char *from, const char *to)
{
    struct glob_arg g = {pl, r, from, to};
    _cleanup_free_ char *glob = mask_translate_path(r->path, to, from);
    if (pl->facts->expand(pl->facts->ctx, glob, mask_match, &g) < 0)
        return plan_refuse(pl, r, "cannot be expanded", "name the paths one by one");
    return pl->failed ? -1 : 0;
}

static int mask_glob(struct planner *pl, const struct file_rule *r)
{
    if (!pl->who->rootdir && expand_in(pl, r, "/", "/") < 0)
        return -1;
    for (size_t i = 0; i < pl->plan->layers.n; i++)
        if (expand_in(pl, r, pl->plan->layers.v[i], "/") < 0)
            return -1;
    for (size_t i = 0, n = pl->plan->nops; i < n; i++) {
        const struct plan_op *op = &pl->plan->ops[i];
        bool moves = is_bind(op) && (pl->who->rootdir || strcmp(op->src, op->path) != 0);
        if (!moves || !path_under(r->path, op->path))
            continue;
        _cleanup_free_ char *from = xstrdup(op->src), *to = xstrdup(op->path); /* the array may move */
        if (expand_in(pl, r, from, to) < 0)
            return -1;
    }
    return 0;
}

/* A host socket can be connected to through a read-only mount, so each one that would be visible is masked. */
static void mask_socket(void *arg, const char *path)
{
    struct planner *pl = arg;
    static const struct origin builtin = {.level = LEVEL_BUILTIN};
    const struct plan_op *op = plan_at(pl->plan, path);
    if (op && is_bind(op)) /* given by name */
        return;
    op = plan_op_for(pl->plan, path);
    bool hidden = pl->who->rootdir || (op && (op->kind == OP_TMPFS || op->kind == OP_MASK));
    if (hidden && !pl->moves) /* most of them: they are in /run */
        return;
    struct plan_fact f = {0};
    if (plan_look(pl, path, &f) < 0 || f.type == TYPE_NONE) /* its owner removed the name */
        return;
    free(f.target);
    mask_host(pl, path, hidden ? NULL : path, (struct plan_why){"builtin.host-sockets", &builtin}, 0);
}

int plan_mask(struct planner *pl)
{
    pl->moves = pl->who->rootdir != NULL;
    for (size_t i = 0; i < pl->plan->nops && !pl->moves; i++)
        pl->moves = is_bind(&pl->plan->ops[i]) && strcmp(pl->plan->ops[i].src, pl->plan->ops[i].path) != 0;
    for (size_t i = 0; i < pl->p->nfiles && !pl->failed; i++) {
        const struct file_rule *r = &pl->p->files[i];
        if (r->verb == FILE_DENY_READ && (r->is_glob ? mask_glob(pl, r) : mask_path(pl, r, r->path)) < 0)
            return -1;
    }
    if (pl->failed)
        return -1;
    if (pl->facts->sockets(pl->facts->ctx, mask_socket, pl) < 0)
        return err_set(pl->err, ERR_HOST, errno,
                       "the host's sockets cannot be listed (/proc/net/unix), so they could not be "
                       "kept from the command");
    return pl->failed ? -1 : 0;
}
