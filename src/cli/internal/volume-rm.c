/* volume-rm.c - removes a tree of a volume while sandboxes may be changing it. Walks down to a directory it can empty and up
 * again, so that a few descriptors are enough for any depth.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/cli.h"

/* The directories on the way down to the one that is being emptied. */
struct way {
    struct {
        dev_t dev;
        ino_t ino;
    } * v;
    size_t n, cap;
};

static void way_done(struct way *w) { free(w->v); }

static void way_down(struct way *w, int dir)
{
    struct stat st = {0};
    (void)fstat(dir, &st);
    MEM_GROW(w->v, w->n, w->cap);
    w->v[w->n].dev = st.st_dev;
    w->v[w->n++].ino = st.st_ino;
}

/* Goes back up. ESTALE if the directory above is not the one we came from: a sandbox moved ours, so stop here. */
static int way_up(struct way *w, int dir)
{
    struct stat st;
    int up = openat(dir, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    w->n--;
    if (up < 0 || (fstat(up, &st) == 0 && st.st_dev == w->v[w->n].dev && st.st_ino == w->v[w->n].ino))
        return up;
    (void)close(up);
    errno = ESTALE;
    return -1;
}

/* Removes entries of dir up to the first directory that is not empty, and returns that one, opened. -1: dir is empty (errno 0),
 * or an entry cannot be removed. */
static int empty_dir(int dir)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *e;
    if (!d)
        return -1;
    while ((errno = 0, e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || unlinkat(dir, e->d_name, 0) == 0 ||
            errno == ENOENT)
            continue;
        int why = errno;
        if (unlinkat(dir, e->d_name, AT_REMOVEDIR) == 0 || errno == ENOENT)
            continue;
        int next = openat(dir, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0 && errno == ENOTDIR)
            errno = why;
        return next;
    }
    return -1;
}

int volume_remove_tree(int parent, const char *name)
{
    _cleanup_(way_done) struct way way = {0};
    if (unlinkat(parent, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -1;
    _cleanup_close_ int dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    while (dir >= 0) {
        int next = empty_dir(dir);
        if (next >= 0)
            way_down(&way, dir);
        else if (errno != 0)
            return -1;
        else if (way.n == 0)
            return unlinkat(parent, name, AT_REMOVEDIR);
        else
            next = way_up(&way, dir);
        (void)close(dir);
        dir = next;
    }
    return -1;
}
