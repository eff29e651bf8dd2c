#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/mount.h"
#include "os/statx.h"
#include "wall/covers-int.h"

enum { TRIES = 100 };

/* As init did: its namespaces, and for a root caller its ids, so that it reaches what init reached. */
static int enter(const struct covers_place *p)
{
    const struct wall_spec *s = p->spec;
    bool own_root = s->plan->layers.n > 0;
    uid_t uid = own_root ? 0 : s->who.uid;
    gid_t gid = own_root ? 0 : s->who.gid;
    if (setns(p->userns, CLONE_NEWUSER) < 0 || setns(p->mntns, CLONE_NEWNS) < 0)
        return -1;
    if (s->range && (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0))
        return -1;
    return 0;
}

static int cover(const struct covers_place *p, int at, const struct statx *st)
{
    _cleanup_close_ int fd = mount_clone(S_ISDIR(st->stx_mode) ? p->cover_dir : p->cover_file, "", 0);
    return fd < 0 ? -1 : mount_attach(fd, at);
}

static int bind_self(int at, bool read_only)
{
    _cleanup_close_ int fd = mount_clone(at, "", MOUNT_RECURSIVE);
    if (fd < 0 || (read_only && mount_set(fd, "", MOUNT_RO | MOUNT_RECURSIVE) < 0))
        return -1;
    return mount_attach(fd, at);
}

static bool is_stub(const struct statx *sx)
{
    struct stat st = {.st_mode = sx->stx_mode, .st_size = (off_t)sx->stx_size, .st_nlink = sx->stx_nlink};
    return plan_is_stub(&st);
}

/* 1 = covered, 0 = it is covered already, -1 with errno. */
static int put_at(const struct covers_place *p, const struct plan_op *op, int at, const struct statx *st)
{
    int r;
    if (st->stx_attributes & STATX_ATTR_MOUNT_ROOT)
        return 0;
    if (op->kind == OP_MASK || (op->kind == OP_STUB && op->hidden && !is_stub(st)))
        r = cover(p, at, st);
    else
        r = bind_self(at, op->kind != OP_PIN);
    return r < 0 ? -1 : 1;
}

static int look(int at, struct statx *ret)
{
    return statx(at, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, ret);
}

static int put_once(const struct covers_place *p, int root, const struct plan_op *op)
{
    struct statx st, target_st;
    bool container = p->spec->plan->layers.n > 0;
    _cleanup_close_ int at = mount_place(root, op->path, container);
    if (at < 0 && errno == ELOOP && !container) /* a link higher up is new: what can be reached through it counts */
        at = mount_place(root, op->path, true);
    if (at < 0) /* what cannot be reached from here cannot be reached by the command */
        return errno == ENOENT || errno == EACCES || errno == ENOTDIR ? 0 : -1;
    if (look(at, &st) < 0)
        return -1;
    /* What a link leads to has another name. It is found before the link is covered. */
    bool link = S_ISLNK(st.stx_mode) && op->kind != OP_PIN;
    _cleanup_close_ int target = link ? mount_place(root, op->path, true) : -1;
    int r = put_at(p, op, at, &st);
    if (r > 0 && target >= 0 && (look(target, &target_st) < 0 || put_at(p, op, target, &target_st) < 0))
        return -1;
    return r;
}

/* The name may be replaced again under our hands: then the place is not in the tree any more. */
static int put_back(const struct covers_place *p, int root, const struct plan_op *op)
{
    int r;
    for (int i = 0; (r = put_once(p, root, op)) < 0 && i < TRIES && (errno == ENOENT || errno == EINVAL); i++) {
    }
    return r;
}

void covers_inside(const struct covers_place *p, const struct covers_set *set, int out)
{
    const struct plan *plan = p->spec->plan;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "hutch-covers", 0, 0, 0);
    int eno = enter(p) < 0 ? errno : 0;
    int root = eno ? -1 : open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < plan->nops; i++) {
        if (!covers_has(set, i))
            continue;
        int r = root < 0 ? -1 : put_back(p, root, &plan->ops[i]);
        struct covers_report report = {.op = (uint32_t)i, .eno = r < 0 ? (eno ? eno : errno) : 0};
        if (r != 0)
            (void)fd_write_all(out, &report, sizeof report);
    }
    _exit(0);
}
