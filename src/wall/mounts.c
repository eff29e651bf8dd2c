#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "wall/inside.h"

/* A mount_clone source inside the vault for writable tmpfs number i: "/sys/t<i>". */
enum { VAULT_NAME = 32 };

int inside_place(const struct inside *in, const char *path) { return mount_place(in->root, path, in->new_root); }

int inside_make_place(const struct inside *in, const char *path, bool dir)
{
    int fd = inside_place(in, path);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    _cleanup_close_ int at = inside_place(in, "/");
    const char *p = path;
    while (at >= 0) {
        char name[256];
        while (*p == '/')
            p++;
        size_t n = strcspn(p, "/");
        if (n == 0 || n >= sizeof name) {
            errno = n ? ENAMETOOLONG : EINVAL;
            return -1;
        }
        memcpy(name, p, n);
        name[n] = '\0';
        p += n;
        bool last = p[strspn(p, "/")] == '\0';
        if (last && !dir) {
            int f = openat(at, name, O_CREAT | O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0644);
            if (f < 0)
                return -1;
            (void)close(f);
        } else if (mkdirat(at, name, 0755) < 0 && errno != EEXIST) {
            return -1;
        }
        if (last)
            return inside_place(in, path);
        int next = openat(at, name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (next < 0)
            return -1;
        (void)close(at);
        at = next;
    }
    return -1;
}

static bool same_object(int fd, const struct plan_op *op)
{
    struct stat st;
    return fstatat(fd, "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == op->dev &&
           st.st_ino == op->ino;
}

static bool wants_bind(const struct plan_op *op)
{
    return op->kind == OP_BIND_RW || op->kind == OP_BIND_RO || op->kind == OP_DEVICE;
}

static unsigned bind_flags(const struct inside *in, const struct plan_op *op)
{
    unsigned f = MOUNT_RECURSIVE | MOUNT_PRIVATE | (op->kind == OP_DEVICE ? 0U : MOUNT_NODEV);
    if (!LAYER_OFF(in->spec->without, NOSUID))
        f |= MOUNT_NOSUID;
    if ((op->kind == OP_BIND_RO && !LAYER_OFF(in->spec->without, MOUNTS)) ||
        (in->spec->learn && op->kind == OP_BIND_RW))
        f |= MOUNT_RO;
    return f;
}

int inside_take_binds(struct inside *in)
{
    const struct plan *plan = in->spec->plan;
    for (size_t i = 0; i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (!wants_bind(op))
            continue;
        if (in->nbinds == INSIDE_BINDS_MAX)
            return inside_fail(in, E2BIG, "more than %d directories are shared", INSIDE_BINDS_MAX);
        int fd = mount_clone(AT_FDCWD, op->src, MOUNT_RECURSIVE);
        if (fd < 0)
            return inside_fail(in, errno, "share %s", op->src);
        in->binds[in->nbinds++] = fd;
        if (!same_object(fd, op))
            return inside_fail(in, 0, "%s was replaced while the sandbox was being built", op->src);
        if (mount_set(fd, "", bind_flags(in, op)) < 0)
            return inside_fail(in, errno, "set the flags of %s", op->src);
    }
    return 0;
}

/* Binds `path` on itself: read-only if it is to be protected, as it is if it is only to stay where it is. */
static int bind_self(struct inside *in, const struct plan_op *op, bool protect)
{
    _cleanup_close_ int at =
        op->src ? inside_place(in, op->path) : inside_make_place(in, op->path, op->type == TYPE_DIR);
    if (at < 0)
        return inside_fail(in, errno, "protect %s", op->path);
    bool layered = in->spec->learn && in->spec->learn->tx; /* there it has another device */
    if (op->src && !layered && !same_object(at, op))
        return inside_fail(in, 0, "%s was replaced while the sandbox was being built", op->path);
    _cleanup_close_ int fd = mount_clone(at, "", MOUNT_RECURSIVE);
    if (fd < 0)
        return inside_fail(in, errno, "copy the mount of %s", op->path);
    if (protect && mount_set(fd, "", MOUNT_RO | MOUNT_RECURSIVE) < 0)
        return inside_fail(in, errno, "make %s read-only", op->path);
    if (mount_attach(fd, at) < 0)
        return inside_fail(in, errno, "mount over %s", op->path);
    return 0;
}

static int mask(struct inside *in, const struct plan_op *op)
{
    _cleanup_close_ int at = inside_place(in, op->path);
    /* What init cannot reach, the command with fewer rights cannot reach either. */
    if (at < 0)
        return errno == ENOENT || errno == EACCES || errno == ENOTDIR ? 0 : inside_fail(in, errno, "find %s", op->path);
    return inside_cover(in, at, op->type == TYPE_DIR ? in->cover_dir : in->cover_file, op->path);
}

/* The directory that holds `path`, open until another one is asked for: stubs come by the dozen in one directory. Nothing
 * is mounted on it in between, because ops are sorted. */
static int stub_dir(struct inside *in, const char *path, size_t len)
{
    char parent[4096];
    if (in->stub_dir >= 0 && in->stub_dir_len == len && memcmp(in->stub_dir_path, path, len) == 0)
        return in->stub_dir;
    if (in->stub_dir >= 0)
        (void)close(TAKE_FD(in->stub_dir));
    if (len >= sizeof parent) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(parent, path, len);
    parent[len] = '\0';
    in->stub_dir = inside_place(in, parent);
    in->stub_dir_path = path;
    in->stub_dir_len = len;
    return in->stub_dir;
}

static int cover_stub(struct inside *in, const struct plan_op *op)
{
    struct stat st;
    size_t i = (size_t)(op - in->spec->plan->ops);
    if (in->shared->skipped[i / 64] >> i % 64 & 1)
        return 0;
    bool image = !op->src; /* there the stub is made in our own memory, by us */
    const char *name = strrchr(op->path, '/') + 1;
    if (image) {
        _cleanup_close_ int made = inside_make_place(in, op->path, false);
        if (made < 0)
            return inside_fail(in, errno, "protect %s", op->path);
    }
    int dir = stub_dir(in, op->path, name - op->path > 1 ? (size_t)(name - op->path) - 1 : 1);
    if (dir < 0 || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return inside_fail(in, errno, "protect %s", op->path);
    if (!image && !plan_is_stub(&st))
        return inside_fail(in, 0, "%s came into being while the sandbox was being built", op->path);
    _cleanup_close_ int fd = mount_clone(in->cover_stub, "", 0);
    if (fd < 0 || mount_attach_at(fd, dir, name) < 0)
        return inside_fail(in, errno, "cover %s", op->path);
    return 0;
}

static int put_tmpfs(struct inside *in, const struct plan_op *op, unsigned number)
{
    char name[VAULT_NAME];
    if (in->new_root && op->origin &&
        op->origin->level == LEVEL_BUILTIN) { /* /tmp of a container is in its upper layer */
        _cleanup_close_ int own = inside_make_place(in, op->path, true);
        char self[32];
        (void)snprintf(self, sizeof self, "/proc/self/fd/%d", own);
        return own < 0 || chmod(self, op->mode) < 0 ? inside_fail(in, errno, "make %s", op->path) : 0;
    }
    (void)snprintf(name, sizeof name, "/sys/t%u", number);
    _cleanup_close_ int vault = inside_place(in, "/sys");
    if (vault < 0 || mkdirat(vault, name + 5, 0700) < 0 || fchmodat(vault, name + 5, op->mode, 0) < 0)
        return inside_fail(in, errno, "make the private directory for %s", op->path);
    _cleanup_close_ int at = in->new_root ? inside_make_place(in, op->path, true) : inside_place(in, op->path);
    if (at < 0 && errno == ENOENT) /* inside another private directory */
        at = inside_make_place(in, op->path, true);
    _cleanup_close_ int src = openat(vault, name + 5, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_close_ int fd = src < 0 ? -1 : mount_clone(src, "", 0); /* nosuid and nodev come with the vault */
    if (at < 0 || fd < 0 || mount_attach(fd, at) < 0)
        return inside_fail(in, errno, "mount the private directory %s", op->path);
    return 0;
}

static bool skipped_by_removal(const struct inside *in, const struct plan_op *op)
{
    layer_set off = in->spec->without;
    return (op->kind == OP_MASK && LAYER_OFF(off, MASKS)) || (op->kind == OP_PIN && LAYER_OFF(off, PINS)) ||
           (op->kind == OP_STUB && LAYER_OFF(off, STUBS)) || (op->kind == OP_PROTECT && LAYER_OFF(off, PROTECT)) ||
           (op->kind == OP_TMPFS && op->writable &&
            ((strcmp(op->path, "/run") == 0 && LAYER_OFF(off, RUN)) ||
             (strcmp(op->path, "/run") != 0 && LAYER_OFF(off, TMP))));
}

static int attach_bind(struct inside *in, const struct plan_op *op, size_t *next)
{
    int *fd = &in->binds[(*next)++];
    bool dir = op->type == TYPE_DIR;
    _cleanup_close_ int at = in->new_root ? inside_make_place(in, op->path, dir) : inside_place(in, op->path);
    if (at < 0 && errno == ENOENT) /* below a private tmpfs: the last component is ours to make */
        at = inside_make_place(in, op->path, dir);
    if (at < 0)
        return inside_fail(in, errno, "mount %s at %s: no such place inside", op->src, op->path);
    if (mount_attach(*fd, at) < 0)
        return inside_fail(in, errno, "mount %s at %s", op->src, op->path);
    (void)close(TAKE_FD(*fd));
    return 0;
}

static int do_op(struct inside *in, const struct plan_op *op, size_t *next_bind, unsigned *next_tmpfs)
{
    if (skipped_by_removal(in, op))
        return 0;
    if (in->spec->learn && learn_skips(in, op)) {
        *next_bind += wants_bind(op);
        return learn_mount_late(in, op);
    }
    switch (op->kind) {
    case OP_TMPFS:
        return put_tmpfs(in, op, (*next_tmpfs)++);
    case OP_SKELETON: {
        _cleanup_close_ int at = inside_make_place(in, op->path, true);
        return at < 0 ? inside_fail(in, errno, "make the directory %s", op->path) : 0;
    }
    case OP_BIND_RO:
    case OP_BIND_RW:
    case OP_DEVICE:
        return attach_bind(in, op, next_bind);
    case OP_STUB:
        return cover_stub(in, op);
    case OP_PROTECT:
        return bind_self(in, op, true);
    case OP_PIN:
        return bind_self(in, op, false);
    case OP_MASK:
        return mask(in, op);
    }
    return 0;
}

/* Directories that only carry mount points become read-only once everything hangs in them. */
static int close_skeletons(struct inside *in)
{
    for (size_t i = 0; i < in->spec->plan->nops; i++) {
        const struct plan_op *op = &in->spec->plan->ops[i];
        if (op->kind != OP_TMPFS || op->writable || (in->spec->learn && !in->spec->learn->tx))
            continue;
        _cleanup_close_ int at = inside_place(in, op->path);
        if (at < 0 || mount_set(at, "", MOUNT_RO) < 0)
            return inside_fail(in, errno, "make %s read-only", op->path);
    }
    return 0;
}

int inside_mounts(struct inside *in)
{
    size_t next_bind = 0;
    unsigned next_tmpfs = 0;
    if (in->spec->learn && learn_mount_early(in) < 0)
        return -1;
    for (size_t i = 0; i < in->spec->plan->nops; i++) {
        if (in->spec->plan->ops[i].kind == OP_DEVICE) {
            next_bind++; /* attached in the private /dev, see kernfs.c */
            continue;
        }
        if (do_op(in, &in->spec->plan->ops[i], &next_bind, &next_tmpfs) < 0)
            return -1;
    }
    return close_skeletons(in);
}

int inside_pivot(struct inside *in)
{
    if (!in->new_root)
        return 0;
    if (fchdir(in->root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        return inside_fail(in, errno, "change to the new root");
    if (umount2(".", MNT_DETACH) < 0)
        return inside_fail(in, errno, "detach the old root");
    if (chdir("/") < 0)
        return inside_fail(in, errno, "enter the new root");
    (void)close(in->root);
    in->new_root = false;
    in->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return in->root < 0 ? inside_fail(in, errno, "open the new root") : 0;
}
