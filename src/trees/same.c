/* same.c - whether a copy holds nothing but what an earlier copy holds. See tree.h. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "trees/tree.h"
#include "trees/walk.h"

/* Kernels stamp files with a clock that stands still for up to 10 ms. */
enum { TICK_NS = 20000000, SECOND_NS = 1000000000 };
enum { READ_MAX = 4 << 20 }; /* a larger file that was just changed counts as changed if its blocks are others */

struct same {
    enum xattr_view view;
    bool snapshots;
    struct timespec settled; /* what was changed before has another time after its next change */
    struct walk_path path;
    struct buf a, b;
};

static int same_dir(struct same *s, int a, int b, struct err *err);

static bool same_attributes(const struct stat *a, const struct stat *b)
{
    return a->st_mode == b->st_mode && a->st_uid == b->st_uid && a->st_gid == b->st_gid &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static struct timespec same_settled(const struct timespec *prev_at)
{
    struct timespec t = *prev_at;
    t.tv_sec -= t.tv_nsec < TICK_NS;
    t.tv_nsec += t.tv_nsec < TICK_NS ? SECOND_NS - TICK_NS : -TICK_NS;
    return t;
}

static bool same_is_before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/* No process can set a ctime. */
static bool same_inode(const struct stat *a, const struct stat *b)
{
    return same_attributes(a, b) && a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_nlink == b->st_nlink &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static int same_link(const struct same *s, int a, int b, const char *name, struct err *err)
{
    char one[LAY_PATH_MAX], two[LAY_PATH_MAX];
    ssize_t n = readlinkat(a, name, one, sizeof one), m = readlinkat(b, name, two, sizeof two);
    if (n < 0 || m < 0)
        return walk_fail(err, ERR_SETUP, errno, s->path.text, "the link cannot be read");
    return n == m && memcmp(one, two, (size_t)n) == 0;
}

/* Of a file that was changed in the last moment before the earlier snapshot: by what it holds. */
static int same_file(struct same *s, int a, int b, const char *name, uint64_t size, struct err *err)
{
    static unsigned char block[2 * WALK_COMPARE];
    bool opaque;
    _cleanup_close_ int one = walk_open_file(a, name), two = walk_open_file(b, name);
    if (one < 0 || two < 0)
        return walk_fail(err, ERR_SETUP, errno, s->path.text, "cannot be opened");
    if (xattr_collect(one, s->view, 0, s->path.text, &s->a, &opaque, err) < 0 ||
        xattr_collect(two, s->view, 0, s->path.text, &s->b, &opaque, err) < 0)
        return -1;
    if (s->a.n != s->b.n || (s->a.n && memcmp(s->a.p, s->b.p, s->a.n) != 0))
        return 0;
    if (walk_same_extents(one, two))
        return 1;
    int same = size > READ_MAX ? 0 : walk_same_content(one, two, size, block);
    return same < 0 ? walk_fail(err, ERR_SETUP, errno, s->path.text, "cannot be read") : same;
}

static int same_entry(struct same *s, int a, int b, const char *name, struct err *err)
{
    struct stat one, two;
    bool mounted;
    if (walk_stat(a, name, &one, &mounted) < 0 || walk_stat(b, name, &two, &mounted) < 0)
        return walk_fail(err, ERR_SETUP, errno, s->path.text, "cannot be looked at");
    if (walk_is_whiteout(&one) && walk_is_whiteout(&two)) /* nothing of it is visible but that it is there */
        return 1;
    if (s->snapshots && !same_inode(&one, &two))
        return 0;
    if (s->snapshots && S_ISREG(one.st_mode) && !same_is_before(&one.st_ctim, &s->settled))
        return same_file(s, a, b, name, (uint64_t)one.st_size, err);
    if (s->snapshots && !S_ISDIR(one.st_mode))
        return 1;
    if (S_ISREG(one.st_mode)) /* the copy linked what was the same */
        return one.st_dev == two.st_dev && one.st_ino == two.st_ino;
    if (!same_attributes(&one, &two))
        return 0;
    if (S_ISLNK(one.st_mode))
        return same_link(s, a, b, name, err);
    if (!S_ISDIR(one.st_mode))
        return 1;
    _cleanup_close_ int below_a = walk_open_dir(a, name), below_b = walk_open_dir(b, name);
    if (below_a < 0 || below_b < 0)
        return walk_fail(err, ERR_SETUP, errno, s->path.text, "cannot be opened");
    return same_dir(s, below_a, below_b, err);
}

static int same_dir(struct same *s, int a, int b, struct err *err)
{
    _cleanup_names_ struct walk_names one = {0}, two = {0};
    bool opaque_a = false, opaque_b = false;
    if (xattr_collect(a, s->view, 0, s->path.text, &s->a, &opaque_a, err) < 0 ||
        xattr_collect(b, s->view, 0, s->path.text, &s->b, &opaque_b, err) < 0 ||
        walk_names_read(a, s->path.text, &one, err) < 0 || walk_names_read(b, s->path.text, &two, err) < 0)
        return -1;
    if (opaque_a != opaque_b || s->a.n != s->b.n || one.n != two.n || (s->a.n && memcmp(s->a.p, s->b.p, s->a.n) != 0))
        return 0;
    for (size_t i = 0; i < one.n; i++) {
        size_t old;
        if (strcmp(one.v[i], two.v[i]) != 0)
            return 0;
        if (walk_push(&s->path, one.v[i], &old, err) < 0)
            return -1;
        int r = same_entry(s, a, b, one.v[i], err);
        if (r <= 0)
            return r;
        walk_pop(&s->path, old);
    }
    return 1;
}

int tree_same(int copy, int prev, unsigned flags, const struct timespec *prev_at, struct err *err)
{
    struct stat one, two;
    struct same s = {.view = flags & TREE_USERXATTR ? XATTR_USER : XATTR_TRUSTED, .snapshots = prev_at != NULL};
    if (prev_at)
        s.settled = same_settled(prev_at);
    _cleanup_close_ int a = walk_open_dir(copy, "."), b = walk_open_dir(prev, ".");
    if (a < 0 || b < 0 || fstat(a, &one) < 0 || fstat(b, &two) < 0)
        return walk_fail(err, ERR_SETUP, errno, "", "cannot be opened");
    int r = same_attributes(&one, &two) ? same_dir(&s, a, b, err) : 0;
    buf_done(&s.a);
    buf_done(&s.b);
    return r;
}
