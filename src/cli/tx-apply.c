/* Makes on the host what a layer holds. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/random.h"
#include "base/text.h"
#include "cli/tx.h"
#include "stock/tree.h"

enum { CONFLICTS_SHOWN = 10, TEMP_MAX = 40 };

int tx_open_parent(int root, const char *path, const char **name)
{
    char part[256];
    int at = fcntl(root, F_DUPFD_CLOEXEC, 3);
    for (const char *slash; at >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        size_t n = (size_t)(slash - path);
        if (n >= sizeof part) {
            (void)close(at);
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(part, path, n);
        part[n] = '\0';
        int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int saved = errno;
        (void)close(at);
        errno = saved;
        at = next;
    }
    *name = path;
    return at;
}

/* --- conflicts ---------------------------------------------------------------------------------------------------- */

static bool conflicts(const struct tx *tx, const struct tx_change *c)
{
    const char *name;
    struct stat st;
    _cleanup_close_ int dir = tx_open_parent(tx->place[c->place].host, c->path, &name);
    if (dir < 0) /* taken away since: to find that out half-way would be too late */
        return true;
    bool there = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (there != c->seen.there)
        return true;
    return there && tx_changed(tx, &c->seen, &st, tx_takes_dir(c));
}

/* Whether the change makes a directory where the host has none. Changes in it follow it at once (see tx_compare), and have
 * nothing on the host that they could be in conflict with. */
static bool makes_dir(const struct tx_change *c) { return S_ISDIR(c->mode) && (c->kind == TX_ADDED || c->content); }

struct conflicts {
    struct buf text;
    size_t n;
};
static void add_conflict(void *arg, const char *path)
{
    struct conflicts *all = arg;
    if (all->n++ >= CONFLICTS_SHOWN)
        return;
    buf_adds(&all->text, all->n > 1 ? ", " : "");
    text_add_safe(&all->text, path, 80);
}

static void find_conflicts(const struct tx *tx, struct conflicts *ret)
{
    struct map below[TX_PLACES_MAX] = {0};
    const struct tx_change *making = NULL;
    tx_index(&tx->below, below);
    for (size_t i = 0; i < tx->n; i++) {
        const struct tx_change *c = &tx->changes[i];
        if (making && making->place == c->place && path_under(c->path, making->path))
            continue;
        making = makes_dir(c) ? c : NULL;
        if (conflicts(tx, c))
            add_conflict(ret, c->path);
        else if (tx_takes_dir(c))
            tx_look_below(tx, c, &below[c->place], add_conflict, ret);
    }
    tx_index_done(below);
}

static int check(const struct tx *tx, struct err *err)
{
    struct conflicts all = {0};
    int r = 0;
    find_conflicts(tx, &all);
    if (all.n > 0)
        r = err_set(
            err, ERR_POLICY, 0,
            "changed on the host since the command started: %s%s; nothing was applied (--force applies all the same)",
            buf_str(&all.text), all.n > CONFLICTS_SHOWN ? " and more" : "");
    buf_done(&all.text);
    return r;
}

/* --- modes of directories ----------------------------------------------------------------------------------------- */

/* Directories that are written into get their modes when everything is in them: one that its owner may not write to, as
 * Go's module cache has them, would take nothing from an ordinary user. */
struct dir_mode {
    unsigned place;
    char *path; /* owned; "" is the place itself */
    dev_t dev;
    ino_t ino;
    mode_t mode;
};
struct applying {
    const struct tx *tx;
    bool force;
    struct dir_mode *dirs;
    size_t n, cap;
};

/* Opens the directory to its owner until the end, when it gets `mode`. */
static int unlock(struct applying *a, unsigned place, const char *path, size_t n, int fd, mode_t mode)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || tx_set_mode(fd, (st.st_mode & 07777) | S_IRWXU) < 0)
        return -1;
    MEM_GROW(a->dirs, a->n, a->cap);
    a->dirs[a->n++] = (struct dir_mode){place, xstrndup(path, n), st.st_dev, st.st_ino, mode};
    return 0;
}

/* The directory that holds the change, so that it can be written to; what only it forbids its own owner is lifted. */
static int open_host_parent(struct applying *a, const struct tx_change *c, const char **name)
{
    struct stat st;
    _cleanup_close_ int dir = tx_open_parent(a->tx->place[c->place].host, c->path, name);
    if (dir < 0 || fstat(dir, &st) < 0)
        return -1;
    size_t n = *name > c->path ? (size_t)(*name - c->path) - 1 : 0;
    if (geteuid() != 0 && st.st_uid == geteuid() && (st.st_mode & (S_IWUSR | S_IXUSR)) != (S_IWUSR | S_IXUSR) &&
        unlock(a, c->place, c->path, n, dir, st.st_mode & 07777) < 0)
        return -1;
    return TAKE_FD(dir);
}

/* One that is another now is somebody else's. */
static int set_mode(const struct applying *a, const struct dir_mode *d)
{
    struct stat st;
    const char *name;
    _cleanup_close_ int dir = tx_open_parent(a->tx->place[d->place].host, d->path, &name);
    _cleanup_close_ int fd =
        dir < 0 ? -1 : openat(dir, *name ? name : ".", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -1;
    return st.st_dev == d->dev && st.st_ino == d->ino ? tx_set_mode(fd, d->mode) : 0;
}

/* What is inside first: the outer one may forbid to get there. All of them, also after a failure. */
static int set_modes(struct applying *a, struct err *err)
{
    int r = 0;
    for (size_t i = a->n; i-- > 0;) {
        const struct dir_mode *d = &a->dirs[i];
        if (set_mode(a, d) < 0 && r == 0)
            r = err_set(err, ERR_SETUP, errno, "set the mode %04o of %s/%s", (unsigned)d->mode,
                        tx_shown(a->tx->place[d->place].src), tx_shown(d->path));
        free(d->path);
    }
    free(a->dirs);
    return r;
}

/* --- one change --------------------------------------------------------------------------------------------------- */

/* Whether what is at the name now may be taken away for something of another type. */
static bool may_replace(const struct applying *a, const struct tx_change *c, bool dir)
{
    return a->force || (c->seen.there && S_ISDIR(c->seen.mode) == dir);
}

/* A directory is the command's in all but what only the host's may be: set-gid, where that one is and new ones in it are. */
static int dress(struct applying *a, const struct tx_change *c, int fd, const struct stat *l)
{
    struct stat st;
    if (tx_set_owner(a->tx, fd, l) < 0 || fstat(fd, &st) < 0)
        return -1;
    mode_t mode = (l->st_mode & 01777) | (l->st_mode & st.st_mode & 06000);
    if (geteuid() == 0 || (mode & S_IRWXU) == S_IRWXU)
        return tx_set_mode(fd, mode);
    return unlock(a, c->place, c->path, strlen(c->path), fd, mode);
}

static int put_dir(struct applying *a, const struct tx_change *c, int dir, const char *name, const struct stat *l)
{
    struct stat st;
    struct err ignored = {0};
    bool other = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode);
    if (other && may_replace(a, c, false) && tree_remove(dir, name, &ignored) < 0)
        return -1;
    if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return -1;
    _cleanup_close_ int fd = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -1 : dress(a, c, fd, l);
}

static int put_other(const struct applying *a, const struct tx_change *c, int dir, const char *name,
                     const struct stat *l)
{
    char temp[TEMP_MAX] = ".hutch-tx-";
    const char *from;
    struct stat st;
    struct err ignored = {0};
    random_hex(temp + strlen(temp), 8);
    _cleanup_close_ int layer = tx_open_parent(a->tx->place[c->place].layer, c->path, &from);
    if (layer < 0)
        return -1;
    const struct tx_put p = {.tx = a->tx, .l = l, .layer = layer, .dir = dir, .from = from, .name = name, .temp = temp};
    int r = tx_put(&p);
    if (r == 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) && may_replace(a, c, true))
        r = tree_remove(dir, name, &ignored);
    if (r == 0)
        r = renameat(dir, temp, dir, name);
    if (r < 0) {
        int saved = errno;
        (void)unlinkat(dir, temp, 0);
        errno = saved;
    }
    return r;
}

static int apply_one(struct applying *a, const struct tx_change *c, struct err *err)
{
    const struct tx_place *p = &a->tx->place[c->place];
    const char *name;
    struct stat l;
    _cleanup_close_ int dir = open_host_parent(a, c, &name);
    if (dir < 0 && c->kind == TX_REMOVED && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
        return 0; /* gone with its directory */
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "the directory of %s/%s", tx_shown(p->src), tx_shown(c->path));
    if (c->kind == TX_REMOVED)
        return tree_remove(dir, name, err);
    if (fstatat(p->layer, c->path, &l, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_SETUP, errno, "%s in its layer", tx_shown(c->path));
    l.st_mode = c->mode; /* it may have been opened up, see `modes` */
    int r = S_ISDIR(l.st_mode) ? put_dir(a, c, dir, name, &l) : put_other(a, c, dir, name, &l);
    return r < 0 ? err_set(err, ERR_SETUP, errno, "write %s/%s", tx_shown(p->src), tx_shown(c->path)) : 0;
}

/* When this has come back, the layers may go: they are the only other copy, and a file that was put in place by a rename and
 * never written to the disk is empty after a power cut on some file systems. */
static int sync_places(const struct tx *tx, struct err *err)
{
    for (size_t i = 0; i < tx->n; i++) {
        const struct tx_place *p = &tx->place[tx->changes[i].place];
        if ((i == 0 || tx->changes[i].place != tx->changes[i - 1].place) && syncfs(p->host) < 0)
            return err_set(err, ERR_SETUP, errno, "the changes are applied, but %s cannot be written to the disk",
                           tx_shown(p->src));
    }
    return 0;
}

int tx_apply(struct tx *tx, bool force, struct err *err)
{
    struct applying a = {.tx = tx, .force = force};
    struct err later = {0};
    int r = 0;
    if (!force && check(tx, err) < 0)
        return -1;
    for (size_t i = 0; i < tx->n && r == 0; i++)
        if (apply_one(&a, &tx->changes[i], err) < 0)
            r = err_wrap(err, "%zu of %zu changes were applied", i, tx->n);
    if (set_modes(&a, &later) < 0 && r == 0) {
        *err = later;
        r = -1;
    }
    return r == 0 ? sync_places(tx, err) : -1;
}
