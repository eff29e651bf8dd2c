/* work-remove.c - removes a tree while other processes may be changing it. Walks down to a directory it can empty and up
 * again, so that a few descriptors are enough for any depth. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/work.h"

enum { LEVELS_MAX = 1 << 20, ROUNDS_MAX = 8 };

/* The directories on the way down to the one that is being emptied. */
struct way {
    struct {
        dev_t dev;
        ino_t ino;
    } * v; /* room for LEVELS_MAX, of which the kernel provides what is used */
    size_t n;
};

static void way_done(struct way *w)
{
    if (w->v)
        (void)munmap(w->v, LEVELS_MAX * sizeof *w->v);
}

static int way_down(struct way *w, int dir)
{
    struct stat st;
    if (!w->v) {
        void *p = mmap(NULL, LEVELS_MAX * sizeof *w->v, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return -1;
        w->v = p;
    }
    if (w->n == LEVELS_MAX)
        errno = E2BIG;
    if (w->n == LEVELS_MAX || fstat(dir, &st) < 0)
        return -1;
    w->v[w->n].dev = st.st_dev;
    w->v[w->n++].ino = st.st_ino;
    return 0;
}

/* Goes back up. ESTALE if the directory above is not the one we came from: another process moved ours, so stop here. */
static int way_up(struct way *w, int dir)
{
    struct stat st;
    int up = work_open(dir, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    w->n--;
    if (up < 0 || (fstat(up, &st) == 0 && st.st_dev == w->v[w->n].dev && st.st_ino == w->v[w->n].ino))
        return up;
    (void)close(up);
    errno = ESTALE;
    return -1;
}

/* Removes the entry, or opens it if it is a directory that is not empty. -1 with errno 0: it is gone. */
static int remove_or_enter(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT || unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT) {
        errno = 0;
        return -1;
    }
    if (errno == ENOTEMPTY || errno == EEXIST)
        return work_open(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (errno == ENOTDIR)
        (void)unlinkat(dir, name, 0); /* for its errno */
    return -1;
}

/* Removes entries of dir up to the first directory that is not empty, and returns that one, opened. -1: dir is empty
 * (errno 0), or an entry cannot be removed. */
static int empty_dir(int dir)
{
    _Alignas(struct dirent64) char buf[8192];
    if (lseek(dir, 0, SEEK_SET) < 0)
        return -1;
    for (;;) {
        ssize_t n = syscall(SYS_getdents64, dir, buf, sizeof buf);
        if (n == 0)
            errno = 0;
        if (n <= 0)
            return -1;
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(buf + at);
            at += e->d_reclen;
            if (work_is_dot(e->d_name))
                continue;
            int next = remove_or_enter(dir, e->d_name);
            if (next >= 0 || errno != 0)
                return next;
        }
    }
}

/* Empties the directory `top`. */
static int empty_tree(int top)
{
    _cleanup_(way_done) struct way way = {0};
    _cleanup_close_ int dir = work_open(top, ".", O_RDONLY | O_DIRECTORY, 0);
    while (dir >= 0) {
        int next = empty_dir(dir);
        if (next < 0 && errno != 0)
            return -1;
        if (next < 0 && way.n == 0)
            return 0;
        if (next < 0)
            next = way_up(&way, dir);
        else if (way_down(&way, dir) < 0) {
            (void)close(next);
            return -1;
        }
        (void)close(dir);
        dir = next;
    }
    return -1;
}

int work_unlink(int dir, const char *name)
{
    /* Several rounds: a process may add entries while we remove them. */
    for (int round = 0; round < ROUNDS_MAX; round++) {
        _cleanup_close_ int top = remove_or_enter(dir, name);
        if (top < 0)
            return errno == 0 || errno == ENOENT ? 0 : -1;
        if (empty_tree(top) < 0)
            return -1;
    }
    errno = ENOTEMPTY;
    return -1;
}
