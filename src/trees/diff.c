/* diff.c - walks two trees side by side. See diff.h.
 *
 * Names are merged in order, so that each directory is read once. Where inode numbers can identify a file (both trees
 * are overlays, which show the inodes of their layers, or lie on one file system), a file with the same inode and times
 * is not read. An overlay shows the layer's inode for a copy in the upper too; their ctimes differ, because no process
 * can set a ctime, and a layer is older than the overlays over it by more than the clock's resolution. A directory is
 * always entered: it keeps its inode while layers above it change its content.
 */
#include "trees/diff.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "os/upper.h"
#include "trees/walk.h"

enum { DIFFERENCES_DEFAULT = 1000000 };

struct differ {
    const struct diff *d;
    bool inodes;        /* equal inode numbers mean the same file */
    bool inodes_by_dev; /* if the devices are equal too */
    bool overlays;
    uint64_t n, max;
    struct walk_path path;
    struct buf xattrs_a, xattrs_b;
    unsigned char *buf; /* 2 * WALK_COMPARE */
};

/* One entry on one side. */
struct side {
    int dir; /* the directory that holds it; -1: none */
    bool there, mounted;
    struct stat st;
};

static bool diff_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool diff_same_file(const struct differ *k, const struct stat *a, const struct stat *b)
{
    return k->inodes && a->st_ino == b->st_ino && (!k->inodes_by_dev || a->st_dev == b->st_dev) &&
           a->st_mode == b->st_mode && a->st_size == b->st_size &&
           a->st_uid - k->d->shift_a == b->st_uid - k->d->shift_b &&
           a->st_gid - k->d->shift_a == b->st_gid - k->d->shift_b && diff_same_time(&a->st_ctim, &b->st_ctim) &&
           diff_same_time(&a->st_mtim, &b->st_mtim);
}

/* Subvolumes number their files apart, and a snapshot repeats numbers and times: where two subvolumes hold the files, these
 * tell nothing. */
static bool diff_same_subvolume(const struct differ *k, const char *name, const struct side *a, const struct side *b)
{
    return !k->overlays || upper_subvolume_at(a->dir, name) == upper_subvolume_at(b->dir, name);
}

/* Both lie in subvolumes, which are those of one file system: that of the store. */
static bool diff_same_disk(const struct differ *k, const char *name, const struct side *a, const struct side *b)
{
    return k->overlays && upper_subvolume_at(a->dir, name) > 0 && upper_subvolume_at(b->dir, name) > 0;
}

static int diff_xattrs_differ(struct differ *k, int a, int b, struct err *err)
{
    bool opaque;
    if (xattr_collect(a, XATTR_MERGED, k->d->shift_a, k->path.text, &k->xattrs_a, &opaque, err) < 0 ||
        xattr_collect(b, XATTR_MERGED, k->d->shift_b, k->path.text, &k->xattrs_b, &opaque, err) < 0)
        return -1;
    return k->xattrs_a.n != k->xattrs_b.n ||
           (k->xattrs_a.n > 0 && memcmp(k->xattrs_a.p, k->xattrs_b.p, k->xattrs_a.n) != 0);
}

static int diff_compare_links(struct differ *k, const char *name, const struct side *a, const struct side *b,
                              unsigned *what, struct err *err)
{
    char ta[LAY_PATH_MAX], tb[LAY_PATH_MAX];
    ssize_t na = readlinkat(a->dir, name, ta, sizeof ta), nb = readlinkat(b->dir, name, tb, sizeof tb);
    if (na < 0 || nb < 0)
        return walk_fail(err, ERR_SETUP, errno, k->path.text, "the link cannot be read");
    if (na != nb || memcmp(ta, tb, (size_t)na) != 0)
        *what |= DIFF_CONTENT;
    return 0;
}

/* Compares files and directories, which must be opened to read their attributes. */
static int diff_compare_open(struct differ *k, const char *name, const struct side *a, const struct side *b,
                             unsigned *what, struct err *err)
{
    bool dir = S_ISDIR(a->st.st_mode);
    _cleanup_close_ int fa = dir ? walk_open_dir(a->dir, name) : walk_open_file(a->dir, name);
    if (fa < 0)
        return walk_fail(err, ERR_SETUP, errno, k->path.text, "cannot be opened in the first tree");
    _cleanup_close_ int fb = dir ? walk_open_dir(b->dir, name) : walk_open_file(b->dir, name);
    if (fb < 0)
        return walk_fail(err, ERR_SETUP, errno, k->path.text, "cannot be opened in the second tree");
    int differ = diff_xattrs_differ(k, fa, fb, err);
    if (differ < 0)
        return -1;
    if (differ)
        *what |= DIFF_XATTRS;
    if (dir)
        return 0;
    int same = a->st.st_size == b->st.st_size;
    if (same && !(diff_same_disk(k, name, a, b) && walk_same_extents(fa, fb)))
        same = walk_same_content(fa, fb, (uint64_t)a->st.st_size, k->buf);
    if (same < 0)
        return walk_fail(err, ERR_SETUP, errno, k->path.text, "cannot be compared");
    if (!same)
        *what |= DIFF_CONTENT;
    return 0;
}

static int diff_compare(struct differ *k, const char *name, const struct side *a, const struct side *b, unsigned *what,
                        struct err *err)
{
    const struct stat *sa = &a->st, *sb = &b->st;
    bool dir = S_ISDIR(sa->st_mode);
    *what = 0;
    if (!dir && diff_same_file(k, sa, sb) && diff_same_subvolume(k, name, a, b))
        return 0;
    if ((sa->st_mode & 07777) != (sb->st_mode & 07777) && !S_ISLNK(sa->st_mode))
        *what |= DIFF_MODE;
    if (sa->st_uid - k->d->shift_a != sb->st_uid - k->d->shift_b ||
        sa->st_gid - k->d->shift_a != sb->st_gid - k->d->shift_b)
        *what |= DIFF_OWNER;
    if (!diff_same_time(&sa->st_mtim, &sb->st_mtim))
        *what |= DIFF_TIME;
    int r = 0;
    if ((sa->st_mode & S_IFMT) != (sb->st_mode & S_IFMT))
        *what |= DIFF_TYPE;
    else if (S_ISLNK(sa->st_mode))
        r = diff_compare_links(k, name, a, b, what, err);
    else if (dir || S_ISREG(sa->st_mode))
        r = diff_compare_open(k, name, a, b, what, err);
    else if (sa->st_rdev != sb->st_rdev)
        *what |= DIFF_CONTENT;
    if (*what == DIFF_TIME && !(k->d->flags & DIFF_WITH_TIMES))
        *what = 0;
    return r;
}

static int diff_report(struct differ *k, const char *name, const struct side *a, const struct side *b, unsigned what,
                       struct err *err)
{
    if (k->n++ >= k->max)
        return err_set(err, ERR_LIMIT, 0, "the trees differ in more than %" PRIu64 " entries", k->max);
    struct diff_entry e = {.path = k->path.text,
                           .kind = !a->there   ? DIFF_ADDED
                                   : !b->there ? DIFF_REMOVED
                                               : DIFF_CHANGED,
                           .what = what,
                           .a = a->there ? &a->st : NULL,
                           .b = b->there ? &b->st : NULL,
                           .dir_a = a->dir,
                           .dir_b = b->dir,
                           .name = name};
    return k->d->each(k->d->arg, &e, err);
}

static int diff_stat_side(struct differ *k, struct side *s, const char *name, struct err *err)
{
    s->there = s->dir >= 0 && walk_stat(s->dir, name, &s->st, &s->mounted) == 0;
    if (!s->there && s->dir >= 0 && errno != ENOENT)
        return walk_fail(err, ERR_SETUP, errno, k->path.text, "cannot be looked at");
    return 0;
}

static int diff_open_side(struct differ *k, const struct side *s, const char *name, int *ret, struct err *err)
{
    *ret = -1;
    if (!s->there || !S_ISDIR(s->st.st_mode))
        return 0;
    *ret = walk_open_dir(s->dir, name);
    return *ret < 0 ? walk_fail(err, ERR_SETUP, errno, k->path.text, "cannot be opened") : 0;
}

static int diff_dirs(struct differ *k, int a, int b, struct err *err);

static bool diff_is_skipped(const struct differ *k)
{
    for (const char *const *s = k->d->skip; s && *s; s++)
        if (strcmp(*s, k->path.text) == 0)
            return true;
    return k->d->wanted && !k->d->wanted(k->d->wanted_arg, k->path.text);
}

static int diff_entry(struct differ *k, int dir_a, int dir_b, const char *name, struct err *err)
{
    struct side a = {.dir = dir_a}, b = {.dir = dir_b};
    unsigned what = 0;
    if (diff_is_skipped(k))
        return 0;
    if (diff_stat_side(k, &a, name, err) < 0 || diff_stat_side(k, &b, name, err) < 0)
        return -1;
    if ((!a.there && !b.there) || a.mounted || b.mounted)
        return 0;
    if (a.there && b.there && diff_compare(k, name, &a, &b, &what, err) < 0)
        return -1;
    if ((!a.there || !b.there || what) && diff_report(k, name, &a, &b, what, err) < 0)
        return -1;
    _cleanup_close_ int in_a = -1, in_b = -1;
    if (diff_open_side(k, &a, name, &in_a, err) < 0 || diff_open_side(k, &b, name, &in_b, err) < 0)
        return -1;
    return in_a >= 0 || in_b >= 0 ? diff_dirs(k, in_a, in_b, err) : 0;
}

/* Either may be -1: nothing is there. */
static int diff_dirs(struct differ *k, int a, int b, struct err *err)
{
    _cleanup_names_ struct walk_names na = {0}, nb = {0};
    if ((a >= 0 && walk_names_read(a, k->path.text, &na, err) < 0) ||
        (b >= 0 && walk_names_read(b, k->path.text, &nb, err) < 0))
        return -1;
    for (size_t i = 0, j = 0; i < na.n || j < nb.n;) {
        int order = i == na.n ? 1 : j == nb.n ? -1 : strcmp(na.v[i], nb.v[j]);
        const char *name = order <= 0 ? na.v[i] : nb.v[j];
        size_t old;
        if (walk_push(&k->path, name, &old, err) < 0)
            return -1;
        /* Both sides are given even if only one has the name: the entry needs the other's directory too. */
        if (diff_entry(k, a, b, name, err) < 0)
            return -1;
        walk_pop(&k->path, old);
        i += order <= 0;
        j += order >= 0;
    }
    return 0;
}

static bool is_overlay(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && (unsigned long)fs.f_type == OVERLAYFS_SUPER_MAGIC;
}

static int diff_roots(struct differ *k, int a, int b, struct err *err)
{
    struct side sa = {.dir = a, .there = true}, sb = {.dir = b, .there = true};
    unsigned what = 0;
    if (fstat(a, &sa.st) < 0 || fstat(b, &sb.st) < 0)
        return walk_fail(err, ERR_SETUP, errno, "", "cannot be looked at");
    bool overlays = is_overlay(a) && is_overlay(b);
    k->inodes = overlays || sa.st.st_dev == sb.st.st_dev;
    k->inodes_by_dev = !overlays;
    k->overlays = overlays;
    if (diff_compare(k, ".", &sa, &sb, &what, err) < 0 || (what && diff_report(k, ".", &sa, &sb, what, err) < 0))
        return -1;
    return diff_dirs(k, a, b, err);
}

int diff_trees(const struct diff *d, struct err *err)
{
    _cleanup_close_ int a = walk_open_dir(d->a, "."), b = walk_open_dir(d->b, "."); /* theirs may be O_PATH */
    if (a < 0 || b < 0)
        return walk_fail(err, ERR_SETUP, errno, "", "cannot be opened");
    _cleanup_free_ struct differ *k = xcalloc(1, sizeof *k);
    _cleanup_free_ unsigned char *buf = xmalloc((size_t)2 * WALK_COMPARE);
    k->d = d;
    k->max = d->max_entries ? d->max_entries : DIFFERENCES_DEFAULT;
    k->buf = buf;
    int r = diff_roots(k, a, b, err);
    buf_done(&k->xattrs_a);
    buf_done(&k->xattrs_b);
    return r;
}
