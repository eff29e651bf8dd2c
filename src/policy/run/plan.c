#include "policy/run/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/steps.h"
#include "policy/run/plan-int.h"

/* Trees that the wall provides; rules may not reach below these. */
static const char *const own_trees[] = {"/proc", "/sys", "/dev", NULL};

bool plan_own_tree(const char *path)
{
    for (const char *const *t = own_trees; *t; t++)
        if (path_under(path, *t))
            return true;
    return false;
}

/* Rank of ops that meet at one path: the stricter one stays. */
static int op_rank(enum plan_op_kind k)
{
    static const int ranks[] = {
        [OP_PIN] = 0,     [OP_SKELETON] = 1, [OP_BIND_RW] = 2, [OP_TMPFS] = 3,  [OP_BIND_RO] = 4,
        [OP_PROTECT] = 5, [OP_STUB] = 6,     [OP_MASK] = 7,    [OP_DEVICE] = 8,
    };
    return ranks[k];
}

struct plan_op *plan_at(const struct plan *plan, const char *path)
{
    for (size_t i = 0; i < plan->nops; i++)
        if (strcmp(plan->ops[i].path, path) == 0)
            return &plan->ops[i];
    return NULL;
}

struct plan_op *plan_put(struct planner *pl, enum plan_op_kind kind, const char *path, struct plan_why why)
{
    struct plan *plan = pl->plan;
    struct plan_op *op = plan_at(plan, path);
    if (op) {
        if (op_rank(kind) <= op_rank(op->kind))
            return op;
        free(op->src);
        op->src = NULL;
    } else {
        if (plan->nops >= PLAN_OPS_MAX) {
            pl->failed = true;
            (void)err_set(pl->err, ERR_POLICY, 0,
                          "the policy needs more than %d mounts (%zu file rules, %zu protected names); use fewer, or "
                          "a smaller files.search_depth",
                          PLAN_OPS_MAX, pl->p->nfiles, pl->p->nnames);
            return NULL;
        }
        MEM_GROW(plan->ops, plan->nops, plan->ops_cap);
        op = &plan->ops[plan->nops++];
        *op = (struct plan_op){.path = xstrdup(path)};
    }
    op->kind = kind;
    op->rule = why.rule;
    op->origin = why.origin;
    op->as_caller = false;
    op->writable = false;
    op->hidden = false;
    op->mode = 0755;
    return op;
}

const struct plan_op *plan_op_for(const struct plan *plan, const char *path)
{
    const struct plan_op *best = NULL;
    for (size_t i = 0; i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (op->kind != OP_PIN && path_under(path, op->path) && (!best || strlen(op->path) >= strlen(best->path)))
            best = op;
    }
    return best;
}

const struct plan_op *plan_writable_root(const struct plan *plan, const char *path)
{
    const struct plan_op *op = plan_op_for(plan, path);
    return op && op->kind == OP_BIND_RW ? op : NULL;
}

void plan_identify(struct plan_op *op, const struct plan_fact *f, char *src)
{
    free(op->src);
    op->src = src;
    op->type = f->type;
    op->dev = f->dev;
    op->ino = f->ino;
}

const char *plan_real_dir(struct planner *pl, const char *dir)
{
    if (!pl->memo_dir || strcmp(pl->memo_dir, dir) != 0) {
        free(pl->memo_dir);
        free(pl->memo_real);
        pl->memo_dir = xstrdup(dir);
        pl->memo_real = pl->facts->real(pl->facts->ctx, dir);
    }
    return pl->memo_real;
}

int plan_refuse(struct planner *pl, const struct file_rule *r, const char *what, const char *remedy)
{
    _cleanup_buf_ struct buf where = {0};
    origin_add(&where, &r->origin);
    pl->failed = true;
    return err_set(pl->err, ERR_POLICY, 0, "%s: %s %s; %s", buf_str(&where), r->src ? r->src : r->path, what, remedy);
}

/* Resolves the host side of a rule. 1 = there, 0 = absent and to be skipped, -1 = error. */
static int rule_resolve_host(struct planner *pl, const struct file_rule *r, char **ret_real, struct plan_fact *ret)
{
    const char *want = r->src ? r->src : r->path;
    if (r->origin.level == LEVEL_BUILTIN && r->verb == FILE_ALLOW_READ && plan_look(pl, want, ret) == 0) {
        free(ret->target);
        ret->target = NULL;
        if (ret->type == TYPE_NONE) /* nothing to be opened again */
            return 0;
    }
    _cleanup_free_ char *real = pl->facts->real(pl->facts->ctx, want);
    if (!real) {
        if (errno == ELOOP)
            return plan_refuse(pl, r, "is a loop of symbolic links", "name the directory itself");
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
            return plan_refuse(pl, r, "cannot be resolved", strerror(errno));
        if (r->origin.level >= LEVEL_SETTINGS && !(r->flags & FILE_TRY) && r->verb != FILE_DENY_READ)
            return errno == EACCES
                       ? plan_refuse(pl, r, "cannot be reached by you", "check the permissions of its parents")
                       : plan_refuse(pl, r, "does not exist",
                                     r->verb == FILE_ALLOW_WRITE
                                         ? "create it first, give --rw-make in place of --rw, or add --try before it"
                                         : "create it first, or add --try before it");
        return 0;
    }
    if (pl->facts->look(pl->facts->ctx, real, ret) < 0 || ret->type == TYPE_NONE)
        return 0;
    *ret_real = TAKE_PTR(real);
    return 1;
}

/* Where inside a resolved rule shows up: the real path, unless another place was asked for. */
static char *rule_destination(struct planner *pl, const struct file_rule *r, const char *real)
{
    if (!r->src)
        return xstrdup(real);
    if (pl->who->rootdir)
        return xstrdup(r->path);
    char *dest = pl->facts->real(pl->facts->ctx, r->path);
    return dest ? dest : xstrdup(r->path);
}

static int check_bind_place(struct planner *pl, const struct file_rule *r, const char *dest, const struct plan_fact *f)
{
    if (strcmp(dest, "/") == 0)
        return plan_refuse(pl, r, "would cover the whole root", "name the directories that are needed");
    if (plan_own_tree(dest))
        return plan_refuse(pl, r, "lies in /proc, /sys or /dev, which the sandbox has of its own", "remove the rule");
    if (!pl->who->rootdir && plan_own_tree(r->src ? r->src : dest))
        return plan_refuse(pl, r, "lies in /proc, /sys or /dev of the host", "use --dev for a device");
    if (f->type == TYPE_OTHER)
        return plan_refuse(pl, r, "is a device or a pipe", "only directories, files and sockets can be given");
    return 0;
}

static int add_bind(struct planner *pl, const struct file_rule *r, enum plan_op_kind kind)
{
    struct plan_fact f = {0};
    char *real = NULL;
    int there = rule_resolve_host(pl, r, &real, &f);
    if (there <= 0)
        return there;
    _cleanup_free_ char *dest = rule_destination(pl, r, real);
    if (check_bind_place(pl, r, dest, &f) < 0) {
        free(real);
        return -1;
    }
    struct plan_op *op = plan_put(pl, kind, dest, (struct plan_why){r->id, &r->origin});
    if (!op || op->kind != kind) {
        free(real);
        return op ? 0 : -1;
    }
    plan_identify(op, &f, real);
    op->as_caller = pl->who->root;
    return 0;
}

static int add_tmpfs(struct planner *pl, const struct file_rule *r)
{
    struct plan_fact f = {0};
    char *real = NULL;
    if (strcmp(r->path, "/") == 0)
        return plan_refuse(pl, r, "would cover the whole root", "name the directories that are needed");
    if (plan_own_tree(r->path))
        return plan_refuse(pl, r, "lies in /proc, /sys or /dev, which the sandbox has of its own", "remove the rule");
    if (!pl->who->rootdir) { /* a container's tmpfs may be anywhere: its directory is made in the private upper layer */
        int there = rule_resolve_host(pl, r, &real, &f);
        if (there <= 0)
            return there;
        if (f.type != TYPE_DIR) {
            free(real);
            return plan_refuse(pl, r, "is not a directory", "name one");
        }
    }
    struct plan_op *op = plan_put(pl, OP_TMPFS, real ? real : r->path, (struct plan_why){r->id, &r->origin});
    free(real);
    if (op && op->kind == OP_TMPFS) {
        op->writable = true;
        op->mode = strcmp(r->path, "/run") == 0 ? 0755 : 01777;
    }
    return op ? 0 : -1;
}

static int add_device(struct planner *pl, const struct file_rule *r)
{
    struct plan_fact f = {0};
    if (path_under(r->path, "/dev") && pl->facts->look(pl->facts->ctx, r->path, &f) == 0)
        free(f.target);
    if (f.type == TYPE_NONE && (r->flags & FILE_TRY))
        return 0;
    if (f.type != TYPE_OTHER)
        return plan_refuse(pl, r, "is not a device below /dev", "name one that exists");
    struct plan_op *op = plan_put(pl, OP_DEVICE, r->path, (struct plan_why){r->id, &r->origin});
    if (op)
        plan_identify(op, &f, xstrdup(r->path));
    return op ? 0 : -1;
}

static int plan_add_rule(struct planner *pl, const struct file_rule *r)
{
    switch (r->verb) {
    case FILE_ALLOW_WRITE:
        return add_bind(pl, r, OP_BIND_RW);
    case FILE_READ_ONLY:
    case FILE_SOCKET:
    case FILE_ALLOW_READ:
        return add_bind(pl, r, OP_BIND_RO);
    case FILE_TMPFS:
        return add_tmpfs(pl, r);
    case FILE_DEVICE:
        return add_device(pl, r);
    case FILE_DENY_READ:
    case FILE_DENY_WRITE: /* handled once the writable trees are known */
    case FILE_VERB_MAX:
        break;
    }
    return 0;
}

/* Order of execution: parents before what lies below them. */
static int op_compare_path(const void *a, const void *b)
{
    const unsigned char *x = (const unsigned char *)((const struct plan_op *)a)->path;
    const unsigned char *y = (const unsigned char *)((const struct plan_op *)b)->path;
    while (*x && *x == *y) {
        x++;
        y++;
    }
    return (*x == '/' ? 1 : *x) - (*y == '/' ? 1 : *y);
}

/* Whether it replaces what is visible at its place. */
static bool op_covers_place(const struct plan_op *op)
{
    return op->kind != OP_PIN && op->kind != OP_SKELETON && op->kind != OP_DEVICE;
}

/* The deepest op strictly above path that replaces what is visible there. */
static struct plan_op *cover_of(struct plan *plan, const char *path)
{
    struct plan_op *best = NULL;
    for (size_t i = 0; i < plan->nops; i++) {
        struct plan_op *op = &plan->ops[i];
        if (!op_covers_place(op) || !path_under(path, op->path) || strcmp(op->path, path) == 0)
            continue;
        if (!best || strlen(op->path) > strlen(best->path))
            best = op;
    }
    return best;
}

static bool brings_content(const struct plan_op *op)
{
    return op->kind == OP_BIND_RO || op->kind == OP_BIND_RW || op->kind == OP_TMPFS;
}

/* A root caller's command runs with a foreign uid: a parent that it cannot pass becomes an empty 0755 directory. */
static void open_parents(struct planner *pl, const char *path, struct plan_why why)
{
    for (const char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
        _cleanup_free_ char *dir = xstrndup(path, (size_t)(s - path));
        struct plan_fact f = {0};
        if (plan_at(pl->plan, dir) || pl->facts->look(pl->facts->ctx, dir, &f) < 0)
            continue;
        free(f.target);
        if (f.type == TYPE_DIR && !(f.mode & S_IXOTH)) {
            const struct plan_op *cover = cover_of(pl->plan, dir);
            if (!cover || cover->kind != OP_TMPFS)
                (void)plan_put(pl, OP_TMPFS, dir, why);
            return;
        }
    }
}

/* The cover of every op (an index, or NO_COVER) in one pass over the sorted ops: each stands behind what is above it, and
 * the covers above it form a chain. */
#define NO_COVER SIZE_MAX
static size_t *find_covers(const struct plan *plan)
{
    size_t *cover = xcalloc(plan->nops, sizeof *cover);
    size_t last = NO_COVER; /* the nearest op before this one that covers something */
    for (size_t i = 0; i < plan->nops; i++) {
        while (last != NO_COVER && !path_under(plan->ops[i].path, plan->ops[last].path))
            last = cover[last];
        cover[i] = last;
        if (op_covers_place(&plan->ops[i]))
            last = i;
    }
    return cover;
}

/* An op below a private tmpfs or a mask needs a mount point there; an op that only hides is dropped. The ops are
 * sorted. */
static void settle_covers(struct planner *pl)
{
    struct plan *plan = pl->plan;
    _cleanup_free_ size_t *cover = find_covers(plan);
    for (size_t i = 0; i < plan->nops; i++) {
        struct plan_op *over = cover[i] != NO_COVER && brings_content(&plan->ops[i]) ? &plan->ops[cover[i]] : NULL;
        if (over && over->kind == OP_MASK && over->type == TYPE_DIR) {
            over->kind = OP_TMPFS; /* passable, not listable: only the exceptions are there */
            over->mode = 0111;
        }
    }
    /* Decide for all ops before dropping any, because each may be the cover of another. */
    _cleanup_free_ bool *drop = xcalloc(plan->nops, sizeof *drop);
    for (size_t i = 0; i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i], *over = cover[i] != NO_COVER ? &plan->ops[cover[i]] : NULL;
        bool hidden = over && (over->kind == OP_TMPFS || over->kind == OP_MASK || over->kind == OP_STUB);
        drop[i] = hidden && !brings_content(op) && op->kind != OP_SKELETON;
    }
    size_t n = 0;
    for (size_t i = 0; i < plan->nops; i++) {
        if (drop[i]) {
            free(plan->ops[i].path);
            free(plan->ops[i].src);
        } else {
            plan->ops[n++] = plan->ops[i];
        }
    }
    plan->nops = n;
}

/* The directories between a private tmpfs and what is mounted deeper in it. True if there are any. */
static bool add_skeletons(struct planner *pl)
{
    size_t n = pl->plan->nops;
    _cleanup_free_ size_t *cover = find_covers(pl->plan);
    for (size_t i = 0; i < n; i++) {
        struct plan_op op = pl->plan->ops[i]; /* copied: plan_put may move the array */
        if (!brings_content(&op) || cover[i] == NO_COVER || pl->plan->ops[cover[i]].kind != OP_TMPFS)
            continue;
        size_t root = strlen(pl->plan->ops[cover[i]].path);
        struct plan_why why = {op.rule, op.origin};
        for (const char *s = strchr(op.path + root + 1, '/'); s; s = strchr(s + 1, '/')) {
            _cleanup_free_ char *dir = xstrndup(op.path, (size_t)(s - op.path));
            if (!plan_at(pl->plan, dir))
                (void)plan_put(pl, OP_SKELETON, dir, why);
        }
    }
    return pl->plan->nops > n;
}

static void plan_sort(struct plan *plan)
{
    if (plan->nops > 0)
        qsort(plan->ops, plan->nops, sizeof *plan->ops, op_compare_path);
}

static int plan_add_layers(struct planner *pl)
{
    const char *s = pl->who->rootdir;
    for (bool more = s != NULL; more;) {
        size_t n = strcspn(s, ":");
        if (n == 0) /* no layer at all would be the host, without its deny list */
            return err_set(pl->err, ERR_USAGE, 0, "--root: an empty word is not a directory");
        _cleanup_free_ char *one = xstrndup(s, n), *clean = path_clean(pl->who->cwd, one);
        char *real = pl->facts->real(pl->facts->ctx, clean);
        struct plan_fact f = {0};
        if (!real)
            return err_set(pl->err, ERR_USAGE, errno, "--root: layer %s", clean);
        strv_take(&pl->plan->layers, real);
        if (pl->facts->look(pl->facts->ctx, real, &f) < 0 || f.type != TYPE_DIR)
            return err_set(pl->err, ERR_USAGE, 0, "--root: %s is not a directory", clean);
        if (strcmp(real, "/") == 0)
            return err_set(pl->err, ERR_USAGE, 0, "--root: / is the host itself; leave --root out to run on it");
        more = s[n] == ':';
        s += n + more;
    }
    for (size_t i = 0; i < pl->plan->layers.n; i++)
        for (size_t k = 0; k < pl->plan->layers.n; k++)
            if (i != k && path_under(pl->plan->layers.v[i], pl->plan->layers.v[k]))
                return err_set(pl->err, ERR_USAGE, 0, "--root: layer %s lies inside layer %s; layers must be apart",
                               pl->plan->layers.v[i], pl->plan->layers.v[k]);
    return 0;
}

static int plan_add_all(struct planner *pl)
{
    if (plan_add_layers(pl) < 0)
        return -1;
    for (size_t i = 0; i < pl->p->nfiles && !pl->failed; i++)
        if (plan_add_rule(pl, &pl->p->files[i]) < 0)
            return -1;
    if (plan_mask(pl) < 0 || plan_protect(pl) < 0)
        return -1;
    if (pl->who->root && !pl->who->rootdir)
        for (size_t i = 0, n = pl->plan->nops; i < n; i++)
            if (pl->plan->ops[i].kind == OP_BIND_RO || pl->plan->ops[i].kind == OP_BIND_RW)
                open_parents(pl, pl->plan->ops[i].path,
                             (struct plan_why){pl->plan->ops[i].rule, pl->plan->ops[i].origin});
    if (pl->who->root && !pl->who->rootdir && pl->who->home) {
        /* git and npm fail in a home that cannot be entered; an empty one works. */
        static const struct origin builtin = {.level = LEVEL_BUILTIN};
        _cleanup_free_ char *below = path_join(pl->who->home, "x");
        open_parents(pl, below, (struct plan_why){"builtin.home", &builtin});
    }
    plan_sort(pl->plan);
    settle_covers(pl);
    if (!pl->who->rootdir && add_skeletons(pl))
        plan_sort(pl->plan);
    return pl->failed ? -1 : 0;
}

static void add_notes(const struct planner *pl)
{
    struct strv *notes = &pl->plan->notes;
    const char *home = pl->who->home;
    for (size_t i = 0; home && i < pl->plan->nops; i++) {
        const struct plan_op *op = &pl->plan->ops[i];
        if (op->kind == OP_BIND_RW && op->src && strcmp(op->src, home) == 0)
            strv_take(notes, xasprintf("%s: everything in it that no rule protects is writable",
                                       strcmp(home, pl->who->cwd) == 0 ? "the current directory is your home directory"
                                                                       : "your home directory was made writable"));
    }
    if (pl->plan->repos_truncated)
        strv_take(notes, xasprintf("not every repository in the writable directories is protected: one of them has a "
                                   "directory of yours that cannot be read, or a limit was met, of which there are %d "
                                   "entries searched and %d repositories in each, %d submodules in a repository and "
                                   "%d mounts; files.search_depth says how deep is searched",
                                   PLAN_REPO_ENTRIES, PLAN_REPOS, PLAN_MODULES, PLAN_REPO_OPS));
    if (pl->linked > 0)
        strv_take(notes, xasprintf("%zu protected files have further hard links, through which they can be changed if "
                                   "one is in a writable directory: %s%s",
                                   pl->linked, pl->linked_first, pl->linked > 1 ? ", ..." : ""));
}

static void planner_done(struct planner *pl)
{
    for (size_t i = 0; i < pl->nabsent; i++)
        free(pl->absent[i].host);
    free(pl->absent);
    free(pl->memo_dir);
    free(pl->memo_real);
    free(pl->linked_first);
    plan_look_done(pl);
    strv_done(&pl->plain_dirs);
}

int plan_make(const struct policy *p, const struct plan_caller *who, const struct plan_facts *facts, struct plan **ret,
              struct err *err)
{
    struct plan *plan = xcalloc(1, sizeof *plan);
    struct planner pl = {.p = p, .who = who, .facts = facts, .plan = plan, .err = err};
    MEM_RESERVE(plan->ops, plan->nops, plan->ops_cap, (size_t)PLAN_OPS_USUAL);
    if (plan_add_all(&pl) < 0) {
        planner_done(&pl);
        plan_free(plan);
        return -1;
    }
    plan->cwd = who->chdir ? path_clean(who->cwd, who->chdir) : xstrdup(who->rootdir ? "/" : who->cwd);
    add_notes(&pl);
    planner_done(&pl);
    steps_mark("plan");
    *ret = plan;
    return 0;
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; i < plan->nops; i++) {
        free(plan->ops[i].path);
        free(plan->ops[i].src);
    }
    free(plan->ops);
    free(plan->cwd);
    strv_done(&plan->layers);
    strv_done(&plan->notes);
    free(plan);
}

int plan_check(const struct plan *plan, struct err *err)
{
    for (size_t i = 0; i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (i > 0 && op_compare_path(&plan->ops[i - 1], op) >= 0)
            return err_set(err, ERR_INTERNAL, 0, "plan: %s comes after %s", op->path, plan->ops[i - 1].path);
        if (op->kind != OP_PROTECT && op->kind != OP_STUB)
            continue;
        const struct plan_op *root = NULL;
        for (size_t k = 0; k < i; k++)
            if (!root && plan->ops[k].kind == OP_BIND_RW && path_under(op->path, plan->ops[k].path))
                root = &plan->ops[k];
        bool image = plan->layers.n > 0 && !op->src;
        if (!root && !image)
            return err_set(err, ERR_INTERNAL, 0, "plan: %s is protected but not in a writable tree", op->path);
        size_t above = root ? strlen(root->path) : 0;
        for (const char *s = strchr(op->path + above + 1, '/'); s; s = strchr(s + 1, '/')) {
            _cleanup_free_ char *dir = xstrndup(op->path, (size_t)(s - op->path));
            if ((image || plan_writable_root(plan, dir)) && !plan_at(plan, dir))
                return err_set(err, ERR_INTERNAL, 0, "plan: %s is protected but %s above it is not pinned", op->path,
                               dir);
        }
    }
    return 0;
}
