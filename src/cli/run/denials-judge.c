/* denials-judge.c - whether the plan lets an attempt succeed. It only explains; the kernel decides.
 *
 * The mount that holds a file decides about its content, the mount of its directory about its name; a mount point itself
 * can be neither moved nor removed. An attempt that would also fail without a sandbox is not recorded: a file that does
 * not exist, a name that is taken.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/run/denials-int.h"
#include "policy/run/explain.h"

/* Why an attempt is refused: the op that decides (NULL = the host's root), and which grant would help. */
struct refusal {
    const struct plan_op *op;
    const char *why;
    int eno;
    bool read;                  /* an attempt to read; else to write */
    bool name_fixed;            /* a mount point: moving and removing is refused whatever is granted */
    bool by_parent;             /* the grant must cover the directory, because a name is made or removed */
    bool kernel;                /* /proc, /sys: there is no grant */
    bool private;               /* to read: a private directory stands over what the host has there */
    bool makes_dir, makes_file; /* the name is to become one */
};

static bool is_write(const struct path_attempt *a)
{
    if (a->intent == INTENT_EXEC)
        return false;
    if (a->intent != INTENT_OPEN)
        return true;
    if (a->flags & O_PATH)
        return false;
    return (a->flags & O_ACCMODE) != O_RDONLY || (a->flags & (O_CREAT | O_TRUNC));
}

static bool is_tmpfile(const struct path_attempt *a)
{
    return a->intent == INTENT_OPEN && (a->flags & O_TMPFILE) == O_TMPFILE;
}

static const struct plan_op *op_at(const struct plan *plan, const char *path)
{
    for (size_t i = 0; i < plan->nops; i++)
        if (strcmp(plan->ops[i].path, path) == 0)
            return &plan->ops[i];
    return NULL;
}

static bool op_is_writable(const struct plan *plan, const struct plan_op *op)
{
    if (!op)
        return plan->layers.n > 0; /* with --root, the root has a private upper layer */
    return op->kind == OP_BIND_RW || op->kind == OP_DEVICE || (op->kind == OP_TMPFS && op->writable);
}

static void explain_op(struct refusal *r)
{
    r->eno = EROFS;
    if (!r->op) {
        r->why = "the host's root is read-only";
        return;
    }
    switch (r->op->kind) {
    case OP_MASK:
        r->why = "the policy hides it";
        r->eno = EACCES;
        break;
    case OP_PROTECT:
        r->why = "it is protected: programs outside may run or trust it";
        break;
    case OP_STUB:
        r->why = "this name is protected also while it does not exist; make it outside first to grant it";
        r->eno = 0;
        break;
    case OP_TMPFS:
    case OP_SKELETON:
        r->why = "this directory only leads to what is shown below it";
        r->eno = EACCES;
        break;
    default:
        r->why = "it is shown read-only";
    }
}

static bool is_private_place(const struct plan_op *op)
{
    return op && (op->kind == OP_TMPFS || op->kind == OP_SKELETON);
}

/* Opening and changing an existing entry, or making a file by opening it. */
static bool judge_thing(const struct denials *d, const struct path_attempt *a, const struct place *at,
                        struct refusal *ret)
{
    const struct plan_op *op = plan_op_for(d->plan, at->real);
    bool masked = op && op->kind == OP_MASK, stub = op && op->kind == OP_STUB && strcmp(op->path, at->real) == 0;
    bool creates = a->intent == INTENT_OPEN && (a->flags & O_CREAT), exists = at->exists && !stub;
    *ret = (struct refusal){.op = op, .why = "the policy hides it", .eno = EACCES, .read = !is_write(a)};
    if (!is_write(a) && !masked && !at->exists && is_private_place(op) && access(at->real, F_OK) == 0) {
        ret->private = policy_may_read(d->policy, at->real, NULL);
        ret->eno = ENOENT;
        if (ret->private)
            ret->why = "this directory is private in here: what the host has there is not shown";
        return true;
    }
    if (!is_write(a))
        return masked;
    if (op_is_writable(d->plan, op))
        return false;
    explain_op(ret);
    if (masked)
        return true;
    if (!exists) {
        ret->by_parent = !stub;
        return creates && at->parent_exists;
    }
    if (a->intent == INTENT_CHANGE || is_tmpfile(a))
        return true;
    if (creates && (a->flags & O_EXCL))
        return false;
    /* Directories cannot be opened for writing; pipes and sockets can, wherever they are. */
    return S_ISREG(at->mode) && ((a->flags & O_ACCMODE) != O_RDONLY || (a->flags & O_TRUNC));
}

/* Making, removing or moving a name. */
static bool judge_name(const struct denials *d, const char *path, struct refusal *ret)
{
    const struct plan_op *exact = op_at(d->plan, path);
    _cleanup_free_ char *parent = path_parent(path);
    *ret = (struct refusal){.op = plan_op_for(d->plan, parent), .by_parent = true};
    if (!op_is_writable(d->plan, ret->op)) {
        explain_op(ret);
        return true;
    }
    if (!exact)
        return false;
    ret->op = exact;
    explain_op(ret);
    ret->by_parent = false;
    if (exact->kind != OP_STUB) {
        ret->name_fixed = true;
        ret->eno = EBUSY;
        ret->why = exact->kind == OP_PIN
                       ? "it holds protected names, so it cannot be moved or removed while the command runs"
                       : "it is protected where it is and cannot be moved or removed";
    }
    return true;
}

static bool is_stub_name(const struct denials *d, const char *path)
{
    const struct plan_op *op = op_at(d->plan, path);
    return op && op->kind == OP_STUB;
}

/* Kernel files are read-only inside, except descriptors that a process has open (/proc/self/fd). Names such as /proc/self
 * lead elsewhere in our process, so nothing is resolved. */
static bool judge_kernel(const struct path_attempt *a, const char *path, struct refusal *ret)
{
    *ret = (struct refusal){.why = "kernel files are read-only", .eno = EROFS, .kernel = true};
    return (a->intent == INTENT_OPEN || a->intent == INTENT_CHANGE) && is_write(a) && path_under(path, "/proc") &&
           !strstr(path, "/fd/");
}

/* --- the record --------------------------------------------------------------------------------------------------- */

/* Whether the user may not write there outside either: then a grant alone does not help. */
static bool caller_could(const char *path)
{
    return geteuid() == 0 || faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0 || errno != EACCES;
}

static void refusal_add_grant(const struct denials *d, const struct refusal *r, const char *path, struct denial *x)
{
    _cleanup_buf_ struct buf source = {0};
    _cleanup_free_ char *parent = path_parent(path);
    const char *rule = NULL;
    /* A new name needs a grant of its directory; but never grant the root directory, only a file in it. */
    const char *what = r->by_parent && strcmp(parent, "/") != 0 ? parent : path;
    bool grantable = !r->kernel && !r->name_fixed && !path_under(path, "/sys") && !path_under(path, "/dev") &&
                     (r->read || !policy_holds_home(d->policy, path));
    struct buf *line = grantable ? &x->grant_policy : NULL, *flag = grantable ? &x->grant_flag : NULL;
    /* Of a home directory only the name itself is ever opened, never all of it. */
    bool home = r->by_parent && policy_holds_home(d->policy, parent), exactly = r->private || r->makes_dir || home;
    policy_grant_for_path(d->policy, what, !r->read, exactly ? NULL : line, exactly ? NULL : flag, &rule, &source);
    if (r->private)
        policy_grant_as(d->policy, path, FILE_GRANT_SHOW, line, flag);
    else if (r->makes_dir)
        policy_grant_as(d->policy, path, FILE_GRANT_MAKE, line, flag);
    else if (home && r->makes_file) {
        policy_grant_as(d->policy, path, FILE_GRANT_WRITE, line, flag);
        buf_adds(&x->hint, "; make the file outside first, so that it alone can be opened");
    }
    if (r->op && r->op->rule) {
        buf_done(&source);
        rule = r->op->rule;
        if (r->op->origin)
            origin_add(&source, r->op->origin);
    }
    x->rule = xstrdup(r->kernel ? "builtin.kernel-files" : rule ? rule : "default");
    x->source = xstrdup(r->kernel || source.n == 0 ? "built-in" : buf_str(&source));
    if (!r->op && !r->read && !r->kernel && !caller_could(what))
        buf_adds(&x->hint, ", and you may not write there outside either");
}

static void refusal_record(struct denials *d, const struct refusal *r, const char *path)
{
    struct denial *x = denials_count(d, "file", r->read ? "read" : "write", path, 1);
    if (!x)
        return;
    x->probable = true;
    x->eno = r->eno;
    buf_adds(&x->hint, r->why);
    refusal_add_grant(d, r, path, x);
}

/* A move between two mounts always fails and programs copy instead, so it is not recorded: the copy is judged. The call may
 * be over by now: if the source is gone from a writable directory, it was moved. */
static void judge_rename(struct denials *d, const struct path_attempt *a)
{
    struct place from, to;
    struct refusal r;
    denials_resolve(d, a->path, true, &from);
    denials_resolve(d, a->path2, true, &to);
    if (d->watch.move)
        d->watch.move(d->watch.ctx, to.real);
    if (!to.parent_exists)
        return;
    if (from.exists && judge_name(d, from.real, &r) && r.name_fixed) {
        refusal_record(d, &r, from.real);
        return;
    }
    _cleanup_free_ char *p = path_parent(from.real), *q = path_parent(to.real);
    const struct plan_op *op = plan_op_for(d->plan, p);
    if (op != plan_op_for(d->plan, q) || (!from.exists && !op_is_writable(d->plan, op)))
        return;
    if (from.exists && judge_name(d, from.real, &r))
        refusal_record(d, &r, from.real);
    else if (judge_name(d, to.real, &r))
        refusal_record(d, &r, to.real);
}

void denials_judge(struct denials *d, const struct path_attempt *a)
{
    struct place at;
    struct refusal r;
    _cleanup_free_ char *clean = path_clean("/", a->path);
    if (path_under(clean, "/dev"))
        return;
    if (path_under(clean, "/proc")) {
        if (judge_kernel(a, clean, &r))
            refusal_record(d, &r, clean);
        return;
    }
    if (a->intent == INTENT_RENAME) {
        judge_rename(d, a);
        return;
    }
    denials_resolve(d, a->path, a->nofollow, &at);
    if (d->watch.path && at.exists)
        d->watch.path(d->watch.ctx, at.real, is_write(a));
    if (path_under(at.real, "/dev") || path_under(at.real, "/proc"))
        return;
    bool refused = false;
    if (a->intent == INTENT_CREATE)
        refused = at.parent_exists && (!at.exists || is_stub_name(d, at.real)) && judge_name(d, at.real, &r);
    else if (a->intent == INTENT_REMOVE)
        refused = at.exists && !is_stub_name(d, at.real) && judge_name(d, at.real, &r);
    else
        refused = judge_thing(d, a, &at, &r);
    if (!refused)
        return;
    bool makes = !at.exists && (a->intent == INTENT_CREATE || a->intent == INTENT_OPEN) && is_write(a);
    r.makes_dir = makes && a->directory && r.by_parent;
    r.makes_file = makes && !a->directory;
    refusal_record(d, &r, at.real);
}
