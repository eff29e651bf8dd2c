/* learn-layers.c - reads from an upper layer what a command wrote.
 *
 * Overlay wrote the layer on behalf of the command, which chose names, modes and links. The walk uses descriptors only,
 * never follows a link, and does a bounded amount of work.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/run/learn.h"

struct walk {
    const struct learn_host *host;
    struct learn_seen *seen;
};

static void add_change(struct walk *w, const char *path, bool name)
{
    struct learn_seen *seen = w->seen;
    if (seen->n == LEARN_CHANGES_MAX) {
        seen->truncated = true;
        return;
    }
    MEM_GROW(seen->changes, seen->n, seen->cap);
    seen->changes[seen->n++] = (struct learn_change){.path = xstrdup(path), .name = name};
}

/* Whether overlay marks the file as copied up, that is, changed in place. A file that replaced another is not marked, unless
 * it was copied up itself before it was moved. */
static bool was_copied_up(const struct walk *w, int dir, const char *name, const char *path)
{
    char link[300];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d/%s", dir, name);
    return lgetxattr(link, "user.overlay.origin", NULL, 0) >= 0 && w->seen->moved.n < LEARN_MOVED_MAX &&
           !strv_has(&w->seen->moved, path);
}

static void read_dir(struct walk *w, int dir, const char *top, unsigned depth);

/* A directory in both layers is not a change itself, unless it was removed and made again. */
static void read_subdir(struct walk *w, int dir, const char *name, const char *path, unsigned depth)
{
    char opaque;
    _cleanup_close_ int sub = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (sub < 0 || depth >= LEARN_WALK_DEPTH) { /* the command denied us access: record a change of its mode */
        add_change(w, path, false);
        w->seen->truncated |= depth >= LEARN_WALK_DEPTH;
        return;
    }
    if (fgetxattr(sub, "user.overlay.opaque", &opaque, 1) == 1 && opaque == 'y')
        add_change(w, path, true);
    else
        read_dir(w, sub, path, depth + 1);
}

static void read_entry(struct walk *w, int dir, const char *name, const char *top, unsigned depth)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    _cleanup_free_ char *path = path_join(top, name);
    enum plan_type mine = plan_type_of(st.st_mode), theirs = w->host->type(w->host->ctx, path);
    if (S_ISCHR(st.st_mode) && st.st_rdev == 0) { /* a whiteout */
        if (theirs != TYPE_NONE)
            add_change(w, path, true);
    } else if (mine != theirs) {
        add_change(w, path, true);
    } else if (mine == TYPE_DIR) {
        read_subdir(w, dir, name, path, depth);
    } else {
        add_change(w, path, !was_copied_up(w, dir, name, path));
    }
}

static void read_dir(struct walk *w, int dir, const char *top, unsigned depth)
{
    int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d) {
        if (own >= 0)
            (void)close(own);
        return;
    }
    for (struct dirent *e = readdir(d); e && !w->seen->truncated; e = readdir(d))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            read_entry(w, dir, e->d_name, top, depth);
}

void learn_read_layer(int dir, const char *top, const struct learn_host *host, struct learn_seen *seen)
{
    struct walk w = {.host = host, .seen = seen};
    read_dir(&w, dir, top, 0);
}
