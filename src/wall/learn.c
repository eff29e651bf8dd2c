/* learn.c - the private layers over the host, mounted by init; see learn.h. */
#include "wall/learn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/path.h"
#include "wall/inside.h"

enum { NAME = 32 };

/* Installed software keeps its owner: if the command owned it, programs would quietly refresh caches there, and we
 * would learn that. */
static bool is_software(const char *path) { return path_under(path, "/usr") || path_under(path, "/boot"); }

/* The host's directory without what is mounted below it, as the lower layer. A file system that cannot map ids is shown
 * as it is: then the command reads there as a stranger, as it does without --learn. */
int learn_clone_lower(const struct wall_learn *l, size_t i, int userns, struct err *err)
{
    const struct learn_place *place = &l->place[i];
    const char *option = l->tx ? "--tx" : "--learn";
    _cleanup_close_ int fd = mount_clone(AT_FDCWD, place->src, MOUNT_NOFOLLOW);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "%s: take %s", option, place->src);
    if ((l->tx || !is_software(place->src)) && mount_idmap(fd, userns, 0) < 0 && l->tx)
        return err_set(err, ERR_HOST, errno,
                       "--tx: the file system of %s cannot map ids; run hutch as an ordinary user", place->src);
    if (mount_set(fd, "", MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_PRIVATE) < 0)
        return err_set(err, ERR_SETUP, errno, "%s: set the flags of %s", option, place->src);
    return TAKE_FD(fd);
}

int learn_take_lowers(struct inside *in)
{
    const struct wall_learn *l = in->spec->learn;
    if (l->n > INSIDE_BINDS_MAX - in->nbinds)
        return inside_fail(in, E2BIG, "more than %d directories are shared", INSIDE_BINDS_MAX);
    for (size_t i = 0; i < l->n; i++) {
        int fd = mount_clone(AT_FDCWD, l->place[i].src, MOUNT_NOFOLLOW);
        if (fd >= 0 && mount_set(fd, "", MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_PRIVATE) < 0)
            return inside_fail(in, errno, "set the flags of %s", l->place[i].src);
        in->binds[in->nbinds++] = fd; /* -1: cannot be entered, or something was mounted below it meanwhile */
    }
    return 0;
}

/* The merged directory takes owner and mode from its upper half. If the owner is not mapped here, the mode bits alone
 * give the command the rights that it has there. */
static int learn_dress_upper(int base, const struct stat *lower, uid_t uid, gid_t gid)
{
    mode_t mode = lower->st_mode & 01777;
    if (fchownat(base, "u", lower->st_uid, lower->st_gid, AT_SYMLINK_NOFOLLOW) < 0 && lower->st_uid != uid) {
        mode_t rest = lower->st_gid == gid ? (mode >> 3) & 7 : mode & 7;
        mode = rest << 6 | rest << 3 | rest | (mode & 01000);
    }
    return fchmodat(base, "u", mode, 0);
}

static int mount_place_number(struct inside *in, size_t i, int vault)
{
    const struct learn_place *place = &in->spec->learn->place[i];
    int *lower = &in->binds[in->nbinds - in->spec->learn->n + i];
    char dir[NAME], l[NAME], u[NAME], w[NAME];
    struct stat st;
    if (*lower < 0)
        return 0;
    (void)snprintf(dir, sizeof dir, "L%zu", i);
    (void)snprintf(l, sizeof l, "/sys/L%zu/l", i);
    (void)snprintf(u, sizeof u, "/sys/L%zu/u", i);
    (void)snprintf(w, sizeof w, "/sys/L%zu/w", i);
    if (mkdirat(vault, dir, 0755) < 0)
        return inside_fail(in, errno, "make the private layer for %s", place->path);
    _cleanup_close_ int base = openat(vault, dir, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (base < 0 || mkdirat(base, "l", 0755) < 0 || mkdirat(base, "u", 0755) < 0 || mkdirat(base, "w", 0755) < 0 ||
        mkdirat(base, "a", 0700) < 0)
        return inside_fail(in, errno, "make the private layer for %s", place->path);
    _cleanup_close_ int under = openat(base, "l", O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (under < 0 || fstatat(*lower, "", &st, AT_EMPTY_PATH) < 0 || mount_attach(*lower, under) < 0 ||
        learn_dress_upper(base, &st, in->spec->who.uid, in->spec->who.gid) < 0)
        return inside_fail(in, errno, "attach the lower layer of %s", place->path);
    (void)close(TAKE_FD(*lower));
    const char *lowers[] = {l};
    _cleanup_close_ int overlay = mount_new_overlay(lowers, 1, u, w, true, MOUNT_NOSUID | MOUNT_NODEV);
    _cleanup_close_ int at = place->late ? inside_make_place(in, place->path, true) : inside_place(in, place->path);
    if ((overlay < 0 || at < 0) && in->spec->learn->tx)
        return inside_fail(in, errno, "put a private layer over %s", place->path);
    if (overlay < 0 || at < 0) { /* cannot be a lower layer, or its place lies in another one that could not */
        (void)unlinkat(base, "u", AT_REMOVEDIR);
        return 0;
    }
    return mount_attach(overlay, at) < 0 ? inside_fail(in, errno, "mount the private layer over %s", place->path) : 0;
}

int learn_mount_early(struct inside *in)
{
    const struct wall_learn *l = in->spec->learn;
    if (in->nbinds < l->n)
        return inside_fail(in, EPROTO, "the lower layers did not arrive");
    in->vault = open("/sys", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (in->vault < 0)
        return inside_fail(in, errno, "open the private tmpfs");
    for (size_t i = 0; i < l->n; i++)
        if (!l->place[i].late && mount_place_number(in, i, in->vault) < 0)
            return -1;
    return 0;
}

int learn_mount_late(struct inside *in, const struct plan_op *op)
{
    const struct wall_learn *l = in->spec->learn;
    for (size_t i = 0; i < l->n; i++)
        if (l->place[i].late && strcmp(l->place[i].path, op->path) == 0)
            return mount_place_number(in, i, in->vault);
    return 0;
}

static bool in_private(const struct plan *plan, const char *path)
{
    for (size_t i = 0; i < plan->nops; i++)
        if (plan->ops[i].kind == OP_TMPFS && plan->ops[i].writable && path_under(path, plan->ops[i].path))
            return true;
    return false;
}

bool learn_skips(const struct inside *in, const struct plan_op *op)
{
    if (in->spec->learn->tx)
        return op->kind == OP_BIND_RW && op->type == TYPE_DIR;
    switch (op->kind) {
    case OP_TMPFS:
        return !op->writable;
    case OP_DEVICE:
        return false;
    case OP_MASK:
        return op->type != TYPE_SOCKET;
    case OP_SKELETON:
        return !in_private(in->spec->plan, op->path);
    case OP_BIND_RO:
        return strcmp(op->path, op->src) == 0 && !in_private(in->spec->plan, op->path);
    case OP_BIND_RW: /* a directory becomes a place instead; a file is shown read-only, see bind_flags */
        return op->type == TYPE_DIR || (strcmp(op->path, op->src) == 0 && !in_private(in->spec->plan, op->path));
    default:
        return true;
    }
}
