/* copy.c - copies an upper into a layer: by reflink where the file system can, holes as holes, unchanged files as links
 * to an earlier copy. See tree.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "trees/tree.h"
#include "trees/walk.h"

enum { COPY_BUFFER = 2 * WALK_COMPARE };

struct copier {
    struct tree_copy *c;
    enum xattr_view view;
    int root; /* of the copy */
    struct walk_path path;
    struct walk_inos links; /* files with several names, each with the first of them */
    struct walk_inos used;  /* files of prev that were linked: two files must not become one */
    bool no_clone, no_range;
    struct buf xattrs, other;
    unsigned char *block; /* COPY_BUFFER */
};

struct level { /* one directory in the trees; prev -1: not there */
    int from, to, prev;
    bool merged; /* lower layers may have something in it */
};

static int copy_fail(const struct copier *k, int eno, const char *what, struct err *err)
{
    return walk_fail(err, ERR_SETUP, eno, k->path.text, "%s", what);
}

static int copy_add_size(struct copier *k, const struct stat *st, struct err *err)
{
    struct tree_size *done = &k->c->done;
    const struct tree_size *max = &k->c->max;
    done->entries++;
    done->bytes += (uint64_t)st->st_blocks * 512;
    if (max->bytes && done->bytes > max->bytes)
        return walk_fail(err, ERR_LIMIT, 0, k->path.text, "with it there are more than %" PRIu64 " bytes, the limit",
                         max->bytes);
    if (max->entries && done->entries > max->entries)
        return walk_fail(err, ERR_LIMIT, 0, k->path.text, "with it there are more than %" PRIu64 " files, the limit",
                         max->entries);
    return 0;
}

/* With TREE_NO_CHOWN any owner is accepted: users of a directory service have ids far above those of a layer. */
static int copy_check_owner(const struct copier *k, const struct stat *st, struct err *err)
{
    uid_t shift = k->c->shift;
    if ((k->c->flags & TREE_NO_CHOWN) || (st->st_uid - shift <= LAY_ID_MAX && st->st_gid - shift <= LAY_ID_MAX))
        return 0;
    return walk_fail(err, ERR_SETUP, 0, k->path.text, "its owner %u:%u is outside %u..%u", st->st_uid, st->st_gid,
                     shift, shift + LAY_ID_MAX);
}

/* Reads the attributes to copy into k->xattrs. */
static int copy_collect_xattrs(struct copier *k, int fd, bool *opaque, struct err *err)
{
    char value;
    const char *mark = k->view == XATTR_USER ? "user.overlay.opaque" : "trusted.overlay.opaque";
    if (!(k->c->flags & TREE_BARE))
        return xattr_collect(fd, k->view, k->c->shift, k->path.text, &k->xattrs, opaque, err);
    k->xattrs.n = 0;
    *opaque = fgetxattr(fd, mark, &value, 1) == 1 && value == 'y';
    return 0;
}

/* Sets owner, attributes (k->xattrs), mode and time, in an order in which none undoes another. */
static int copy_set_attributes(const struct copier *k, int fd, const struct stat *st, bool opaque, struct err *err)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st->st_mtim};
    if (!(k->c->flags & TREE_NO_CHOWN) && fchown(fd, st->st_uid - k->c->shift, st->st_gid - k->c->shift) < 0)
        return copy_fail(k, errno, "the owner of its copy cannot be set", err);
    if (xattr_set(fd, &k->xattrs, k->path.text, err) < 0)
        return -1;
    if (opaque && xattr_mark_opaque(fd, k->view) < 0)
        return copy_fail(k, errno, "its copy cannot be marked opaque", err);
    if (fchmod(fd, st->st_mode & 07777) < 0 || futimens(fd, times) < 0)
        return copy_fail(k, errno, "mode or time of its copy cannot be set", err);
    return 0;
}

static int copy_set_attributes_at(const struct copier *k, int to, const char *name, const struct stat *st,
                                  struct err *err)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st->st_mtim};
    uid_t shift = k->c->shift;
    if (!(k->c->flags & TREE_NO_CHOWN) &&
        fchownat(to, name, st->st_uid - shift, st->st_gid - shift, AT_SYMLINK_NOFOLLOW) < 0)
        return copy_fail(k, errno, "the owner of its copy cannot be set", err);
    if (S_ISFIFO(st->st_mode) && fchmodat(to, name, st->st_mode & 07777, AT_SYMLINK_NOFOLLOW) < 0)
        return copy_fail(k, errno, "the mode of its copy cannot be set", err);
    if (utimensat(to, name, times, AT_SYMLINK_NOFOLLOW) < 0)
        return copy_fail(k, errno, "the time of its copy cannot be set", err);
    return 0;
}

/* One run of data. */
static int copy_data_run(struct copier *k, int from, int to, uint64_t at, uint64_t end, struct err *err)
{
    while (at < end && !k->no_range) {
        off_t in = (off_t)at, out = (off_t)at;
        ssize_t n = copy_file_range(from, &in, to, &out, end - at, 0);
        if (n > 0)
            at += (uint64_t)n;
        else if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EIO))
            return copy_fail(k, errno, "cannot be copied", err);
        else
            k->no_range = true; /* mostly because the trees lie on different file systems */
    }
    while (at < end) {
        size_t n = end - at < COPY_BUFFER ? (size_t)(end - at) : COPY_BUFFER;
        if (walk_read(from, k->block, n, at) < 0)
            return copy_fail(k, errno, "cannot be read", err);
        for (size_t put = 0; put < n;) {
            ssize_t w = pwrite(to, k->block + put, n - put, (off_t)(at + put));
            if (w < 0 && errno == EINTR)
                continue;
            if (w < 0)
                return copy_fail(k, errno, "its copy cannot be written", err);
            put += (size_t)w;
        }
        at += n;
    }
    return 0;
}

static int copy_file_content(struct copier *k, int from, int to, uint64_t size, struct err *err)
{
    if (size == 0)
        return 0;
    if (!k->no_clone) {
        if (ioctl(to, FICLONE, from) == 0)
            return 0;
        k->no_clone = errno == EOPNOTSUPP || errno == EXDEV || errno == ENOTTY || errno == ENOSYS;
    }
    uint64_t at = 0, end = 0;
    while ((at = walk_data(from, end, size)) < size) {
        off_t hole = lseek(from, (off_t)at, SEEK_HOLE);
        end = hole > (off_t)at && (uint64_t)hole < size ? (uint64_t)hole : size;
        if (copy_data_run(k, from, to, at, end, err) < 0)
            return -1;
        if (end == size)
            return 0;
    }
    if (ftruncate(to, (off_t)size) < 0) /* it ends with a hole */
        return walk_fail(err, ERR_SETUP, errno, k->path.text, "its copy cannot be made %" PRIu64 " bytes long", size);
    return 0;
}

/* Links `name` to the earlier copy of the same file. 1: done, 0: it is another file, copy it. */
static int copy_link_prev(struct copier *k, const struct level *l, const char *name, const struct stat *st, int from,
                          struct err *err)
{
    struct stat p;
    struct err none = {0};
    bool opaque = false;
    if (l->prev < 0 || st->st_size == 0 || fstatat(l->prev, name, &p, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    bool owner =
        k->c->flags & TREE_NO_CHOWN || (p.st_uid == st->st_uid - k->c->shift && p.st_gid == st->st_gid - k->c->shift);
    if (p.st_mode != st->st_mode || !owner || p.st_size != st->st_size || p.st_mtim.tv_sec != st->st_mtim.tv_sec ||
        p.st_mtim.tv_nsec != st->st_mtim.tv_nsec || walk_inos_get(&k->used, p.st_dev, p.st_ino))
        return 0;
    _cleanup_close_ int fd = walk_open_file(l->prev, name);
    if (fd < 0 || xattr_collect(fd, k->view, 0, k->path.text, &k->other, &opaque, &none) < 0 ||
        k->other.n != k->xattrs.n || (k->other.n > 0 && memcmp(k->other.p, k->xattrs.p, k->other.n) != 0))
        return 0;
    int same = walk_same_content(from, fd, (uint64_t)st->st_size, k->block);
    if (same < 0)
        return copy_fail(k, errno, "cannot be compared with its earlier copy", err);
    if (!same || !walk_inos_put(&k->used, p.st_dev, p.st_ino, NULL) || linkat(l->prev, name, l->to, name, 0) < 0)
        return 0; /* too many links, another file system: then it is copied */
    k->c->linked += (uint64_t)p.st_blocks * 512;
    return 1;
}

static int copy_new(struct copier *k, const struct level *l, const char *name, const struct stat *st, int from,
                    struct err *err)
{
    if ((k->c->flags & TREE_TAKE) && linkat(l->from, name, l->to, name, 0) == 0)
        return 0;
    _cleanup_close_ int to = openat(l->to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return copy_fail(k, errno, "its copy cannot be made", err);
    if (copy_file_content(k, from, to, (uint64_t)st->st_size, err) < 0)
        return -1;
    return copy_set_attributes(k, to, st, false, err);
}

static int copy_regular_file(struct copier *k, const struct level *l, const char *name, const struct stat *st,
                             struct err *err)
{
    const struct walk_ino *first = st->st_nlink > 1 ? walk_inos_get(&k->links, st->st_dev, st->st_ino) : NULL;
    struct stat now;
    bool opaque = false;
    if (first) {
        k->c->done.entries++;
        if (linkat(k->root, first->text, l->to, name, 0) < 0)
            return copy_fail(k, errno, "its copy cannot be linked to that of its other name", err);
        return 0;
    }
    _cleanup_close_ int from = walk_open_file(l->from, name);
    if (from < 0 || fstat(from, &now) < 0)
        return copy_fail(k, errno, "cannot be opened", err);
    if (now.st_ino != st->st_ino || !S_ISREG(now.st_mode))
        return copy_fail(k, ESTALE, "is another file than before", err);
    if (copy_add_size(k, st, err) < 0 || copy_collect_xattrs(k, from, &opaque, err) < 0)
        return -1;
    int linked = copy_link_prev(k, l, name, st, from, err);
    if (linked < 0 || (linked == 0 && copy_new(k, l, name, st, from, err) < 0))
        return -1;
    if (st->st_nlink > 1 && !walk_inos_put(&k->links, st->st_dev, st->st_ino, k->path.text))
        return walk_fail(err, ERR_LIMIT, 0, k->path.text, "too many files with several names in one tree");
    return 0;
}

static int copy_symlink(struct copier *k, const struct level *l, const char *name, const struct stat *st,
                        struct err *err)
{
    char target[LAY_PATH_MAX];
    ssize_t n = readlinkat(l->from, name, target, sizeof target);
    if (n <= 0 || (size_t)n >= sizeof target)
        return copy_fail(k, n < 0 ? errno : ENAMETOOLONG, "the link cannot be read", err);
    target[n] = '\0';
    if (symlinkat(target, l->to, name) < 0)
        return copy_fail(k, errno, "its copy cannot be made", err);
    return copy_set_attributes_at(k, l->to, name, st, err);
}

static int copy_put_whiteout(const struct copier *k, const struct level *l, const char *name, struct err *err)
{
    if (mknodat(l->to, name, S_IFCHR, makedev(0, 0)) < 0)
        return copy_fail(k, errno, "a whiteout cannot be made", err);
    return 0;
}

/* Pipes, whiteouts and sockets; devices are refused. */
static int copy_special(struct copier *k, const struct level *l, const char *name, const struct stat *st,
                        struct err *err)
{
    if (walk_is_whiteout(st))
        return copy_put_whiteout(k, l, name, err);
    if (S_ISSOCK(st->st_mode)) {
        k->c->skipped++;
        return l->merged ? copy_put_whiteout(k, l, name, err) : 0;
    }
    if (!S_ISFIFO(st->st_mode))
        return walk_fail(err, ERR_SETUP, 0, k->path.text, "is a device (%u:%u), which no layer holds",
                         major(st->st_rdev), minor(st->st_rdev));
    if (mknodat(l->to, name, S_IFIFO | 0600, 0) < 0)
        return copy_fail(k, errno, "its copy cannot be made", err);
    return copy_set_attributes_at(k, l->to, name, st, err);
}

static int copy_tree_entry(struct copier *k, const struct level *l, const char *name, struct err *err);

/* Copies the content first, then the directory's own attributes: entries must not inherit its default ACL, and its mode
 * must not prevent their creation. */
static int copy_dir(struct copier *k, struct level *l, const struct stat *st, struct err *err)
{
    const char *origin = k->view == XATTR_USER ? "user.overlay.origin" : "trusted.overlay.origin";
    _cleanup_names_ struct walk_names names = {0};
    bool opaque = false;
    if (copy_collect_xattrs(k, l->from, &opaque, err) < 0 || walk_names_read(l->from, k->path.text, &names, err) < 0)
        return -1;
    l->merged = !opaque && (k->path.n == 0 || fgetxattr(l->from, origin, NULL, 0) >= 0);
    for (size_t i = 0; i < names.n; i++) {
        size_t old;
        if (walk_push(&k->path, names.v[i], &old, err) < 0 || copy_tree_entry(k, l, names.v[i], err) < 0)
            return -1;
        walk_pop(&k->path, old);
    }
    if (names.n > 0 && copy_collect_xattrs(k, l->from, &opaque, err) < 0)
        return -1;
    return copy_set_attributes(k, l->to, st, opaque, err);
}

static int copy_subdir(struct copier *k, const struct level *up, const char *name, const struct stat *st,
                       struct err *err)
{
    if (mkdirat(up->to, name, 0700) < 0)
        return copy_fail(k, errno, "its copy cannot be made", err);
    _cleanup_close_ int from = walk_open_dir(up->from, name), to = walk_open_dir(up->to, name);
    _cleanup_close_ int prev = up->prev >= 0 ? walk_open_dir(up->prev, name) : -1;
    if (from < 0 || to < 0)
        return copy_fail(k, errno, "cannot be opened", err);
    return copy_dir(k, &(struct level){from, to, prev, false}, st, err);
}

static int copy_tree_entry(struct copier *k, const struct level *l, const char *name, struct err *err)
{
    struct stat st;
    bool mounted = false;
    if (walk_stat(l->from, name, &st, &mounted) < 0)
        return copy_fail(k, errno, "cannot be looked at", err);
    if (mounted)
        return 0;
    if (!walk_is_whiteout(&st) && copy_check_owner(k, &st, err) < 0)
        return -1;
    if (S_ISREG(st.st_mode))
        return copy_regular_file(k, l, name, &st, err);
    if (!S_ISSOCK(st.st_mode) && copy_add_size(k, &st, err) < 0)
        return -1;
    if (S_ISDIR(st.st_mode))
        return copy_subdir(k, l, name, &st, err);
    return S_ISLNK(st.st_mode) ? copy_symlink(k, l, name, &st, err) : copy_special(k, l, name, &st, err);
}

int tree_copy(struct tree_copy *c, struct err *err)
{
    _cleanup_close_ int from = walk_open_dir(c->from, "."), to = walk_open_dir(c->to, "."); /* theirs may be O_PATH */
    _cleanup_close_ int prev = c->prev >= 0 ? walk_open_dir(c->prev, ".") : -1;
    struct stat st;
    c->done = (struct tree_size){0};
    c->linked = c->skipped = 0;
    if (from < 0 || to < 0 || (c->prev >= 0 && prev < 0) || fstat(from, &st) < 0)
        return walk_fail(err, ERR_SETUP, errno, "", "cannot be opened");
    _cleanup_free_ struct copier *k = xcalloc(1, sizeof *k);
    _cleanup_free_ unsigned char *block = xmalloc(COPY_BUFFER);
    k->c = c;
    k->view = c->flags & TREE_USERXATTR ? XATTR_USER : XATTR_TRUSTED;
    k->root = to;
    k->path.max = c->depth;
    k->block = block;
    int r = copy_check_owner(k, &st, err);
    if (r == 0)
        r = copy_add_size(k, &st, err);
    if (r == 0)
        r = copy_dir(k, &(struct level){from, to, prev, true}, &st, err);
    walk_inos_done(&k->links);
    walk_inos_done(&k->used);
    buf_done(&k->xattrs);
    buf_done(&k->other);
    return r;
}
