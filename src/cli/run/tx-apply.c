/* tx-apply.c - makes the changes of a transaction on the host. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/random.h"
#include "base/text.h"
#include "cli/run/tx.h"
#include "trees/tree.h"

enum { CONFLICTS_SHOWN = 10 };

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

static bool change_conflicts(const struct tx *tx, struct tx_change *c)
{
    const char *name;
    struct stat st;
    _cleanup_close_ int dir = tx_open_parent(tx->place[c->place].host, c->path, &name);
    if (dir < 0) /* removed since; report it now, not half-way through */
        return true;
    bool there = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (there != c->seen.there)
        return true;
    c->seen.mtime = there ? st.st_mtim : (struct timespec){0};
    return there && tx_changed(tx, &c->seen, &st, tx_takes_dir(c));
}

/* Whether the change makes a directory where the host has none. Changes in it follow it directly (see tx_compare) and cannot
 * conflict with the host. */
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

static void find_conflicts(const struct tx *tx, const struct map below[TX_PLACES_MAX], struct conflicts *ret)
{
    const struct tx_change *making = NULL;
    for (size_t i = 0; i < tx->n; i++) {
        struct tx_change *c = &tx->changes[i];
        if (making && making->place == c->place && path_under(c->path, making->path))
            continue;
        making = makes_dir(c) ? c : NULL;
        if (change_conflicts(tx, c))
            add_conflict(ret, c->path);
        else if (tx_takes_dir(c))
            tx_look_below(tx, c, &below[c->place], NULL, add_conflict, ret);
    }
}

static int apply_check_host(struct tx *tx, const struct map below[TX_PLACES_MAX], struct err *err)
{
    struct conflicts all = {0};
    struct timespec now;
    int r = 0;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &now); /* the clock of file times */
    tx->checked_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    find_conflicts(tx, below, &all);
    if (all.n > 0)
        r = err_set(
            err, ERR_POLICY, 0,
            "changed on the host since the command started: %s%s; nothing was applied (--force applies all the same)",
            buf_str(&all.text), all.n > CONFLICTS_SHOWN ? " and more" : "");
    buf_done(&all.text);
    return r;
}

/* --- modes of directories ----------------------------------------------------------------------------------------- */

/* Directories get their modes at the end: an ordinary user cannot write into one that denies its owner to write, such as those
 * of Go's module cache. */
struct dir_mode {
    unsigned place;
    char *path; /* owned; "" is the place itself */
    dev_t dev;
    ino_t ino;
    mode_t mode;
};
struct applying {
    const struct tx *tx;
    struct strv *left; /* of it */
    bool force;
    struct map below[TX_PLACES_MAX]; /* of tx, indexed */
    struct dir_mode *dirs;
    size_t n, cap;
};

static mode_t open_mode(const struct stat *st) { return (st->st_mode & 07777) | S_IRWXU; }

/* Opens a directory of the host; path "": the place itself. */
static int apply_open_dir(const struct tx *tx, unsigned place, const char *path)
{
    const char *name;
    _cleanup_close_ int dir = tx_open_parent(tx->place[place].host, path, &name);
    return dir < 0 ? -1 : openat(dir, *name ? name : ".", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Lets the owner write to the directory; apply_set_modes() sets `mode` at the end. */
static int apply_unlock_dir(struct applying *a, unsigned place, const char *path, size_t n, int fd, mode_t mode)
{
    struct stat st;
    _cleanup_free_ char *own = xstrndup(path, n);
    if (fstat(fd, &st) < 0)
        return -1;
    const struct tx_entry e = {
        .place = place, .path = own, .seen = {.there = true, .mode = mode, .ino = st.st_ino, .size = open_mode(&st)}};
    if (tx_note_opened(a->tx, &e) < 0 || tx_set_mode(fd, open_mode(&st)) < 0)
        return -1;
    MEM_GROW(a->dirs, a->n, a->cap);
    a->dirs[a->n++] = (struct dir_mode){place, TAKE_PTR(own), st.st_dev, st.st_ino, mode};
    return 0;
}

/* Adopts directories that a killed `apply` unlocked and that still have the mode it set. */
static void take_over(struct applying *a)
{
    for (size_t i = 0; i < a->tx->opened.n; i++) {
        const struct tx_entry *e = &a->tx->opened.v[i];
        struct stat st;
        _cleanup_close_ int fd = apply_open_dir(a->tx, e->place, e->path);
        if (fd < 0 || fstat(fd, &st) < 0 || !tx_still_open(e, &st))
            continue;
        MEM_GROW(a->dirs, a->n, a->cap);
        a->dirs[a->n++] = (struct dir_mode){e->place, xstrdup(e->path), st.st_dev, st.st_ino, e->seen.mode};
    }
}

/* Opens the directory that holds the change, and unlocks it if its mode keeps its owner, us, from writing. */
static int open_host_parent(struct applying *a, const struct tx_change *c, const char **name)
{
    struct stat st;
    _cleanup_close_ int dir = tx_open_parent(a->tx->place[c->place].host, c->path, name);
    if (dir < 0 || fstat(dir, &st) < 0)
        return -1;
    size_t n = *name > c->path ? (size_t)(*name - c->path) - 1 : 0;
    if (geteuid() != 0 && st.st_uid == geteuid() && (st.st_mode & (S_IWUSR | S_IXUSR)) != (S_IWUSR | S_IXUSR) &&
        apply_unlock_dir(a, c->place, c->path, n, dir, st.st_mode & 07777) < 0)
        return -1;
    return TAKE_FD(dir);
}

/* If the inode differs from the one we recorded, another process replaced the directory: leave it alone. */
static int set_mode(const struct applying *a, const struct dir_mode *d)
{
    struct stat st;
    _cleanup_close_ int fd = apply_open_dir(a->tx, d->place, d->path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -1;
    return st.st_dev == d->dev && st.st_ino == d->ino ? tx_set_mode(fd, d->mode) : 0;
}

/* Inner directories first: the mode of an outer one may block the way. Goes on after a failure. */
static int apply_set_modes(struct applying *a, struct err *err)
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
    if (r == 0 && a->n)
        tx_forget_opened(a->tx);
    return r;
}

/* --- one change --------------------------------------------------------------------------------------------------- */

/* The host's file changed after the search for conflicts, which may have taken minutes. */
static int apply_changed_meanwhile(const char *path, struct err *err)
{
    return err_set(err, ERR_POLICY, 0, "%s was changed on the host just now", tx_shown(path));
}

static int look_again(const struct applying *a, const struct tx_change *c, int dir, const char *name, struct err *err)
{
    struct stat st;
    bool there = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (a->force || (there == c->seen.there && (!there || !tx_changed_again(&c->seen, &st, tx_takes_dir(c)))))
        return 0;
    return apply_changed_meanwhile(c->path, err);
}

static int apply_fail(const struct applying *a, const struct tx_change *c, struct err *err)
{
    return err_set(err, ERR_SETUP, errno, "write %s/%s", tx_shown(a->tx->place[c->place].src), tx_shown(c->path));
}

static int apply_rename(int dir, const char *from, const char *to, unsigned flags)
{
    return (int)syscall(SYS_renameat2, dir, from, dir, to, flags);
}

/* The file system knows no flags of renameat2(), or an overlay cannot rename entries of its lower layers. */
static bool cannot_move(void) { return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP || errno == EXDEV; }

/* Fails unless the old entry, which is now `at` in `dir`, is unchanged since the search for conflicts. */
static int look_at_old(const struct applying *a, const struct tx_change *c, int dir, const char *at, struct err *err)
{
    struct conflicts more = {0};
    const struct tx_at place = {dir, at};
    if (look_again(a, c, dir, at, err) < 0)
        return -1;
    if (!a->force && tx_takes_dir(c))
        tx_look_below(a->tx, c, &a->below[c->place], &place, add_conflict, &more);
    int r = more.n ? apply_changed_meanwhile(buf_str(&more.text), err) : 0;
    buf_done(&more.text);
    return r;
}

/* The old entry is at `temp`, where no other process looks for it: this last look is final. Removes it, or puts it back under
 * its name if it was changed at the last moment or cannot be removed. */
static int drop_old(struct applying *a, const struct tx_change *c, int dir, const char *temp, const char *name,
                    unsigned back, struct err *err)
{
    if (look_at_old(a, c, dir, temp, err) == 0 && tree_remove(dir, temp, err) == 0)
        return 0;
    return apply_rename(dir, temp, name, back) < 0 ? err_wrap(err, "what was there is %s beside it", temp) : -1;
}

/* Removes an entry; a directory with everything in it. */
static int take_away(struct applying *a, const struct tx_change *c, int dir, const char *name, struct err *err)
{
    char temp[TX_TEMP_MAX];
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return 0; /* another process removed it */
    if (look_again(a, c, dir, name, err) < 0)
        return -1;
    tx_name_temp(a->tx, temp);
    int r = apply_rename(dir, name, temp, RENAME_NOREPLACE);
    if (r < 0 && errno == EEXIST && tx_drop_temp(dir, temp) == 0)
        r = apply_rename(dir, name, temp, RENAME_NOREPLACE);
    if (r == 0)
        return drop_old(a, c, dir, temp, name, RENAME_NOREPLACE, err);
    if (cannot_move())
        return look_at_old(a, c, dir, name, err) < 0 ? -1 : tree_remove(dir, name, err);
    return errno == ENOENT ? 0 : apply_fail(a, c, err);
}

/* Gives a directory the owner, mode and attributes of the layer's. Set-id bits only if the host's directory has them already:
 * there, or inherited when it was made. */
static int apply_dress_dir(struct applying *a, const struct tx_change *c, int fd, const struct stat *l)
{
    struct stat st;
    if (tx_set_owner(a->tx, fd, l) < 0 || fstat(fd, &st) < 0)
        return -1;
    mode_t mode = (l->st_mode & 01777) | (l->st_mode & st.st_mode & 06000);
    mode = tx_attrs_set(fd, c->attrs, mode, c->path, a->left);
    if (geteuid() == 0 || (mode & S_IRWXU) == S_IRWXU)
        return tx_set_mode(fd, mode);
    return apply_unlock_dir(a, c->place, c->path, strlen(c->path), fd, mode);
}

/* For file systems without RENAME_NOREPLACE and RENAME_EXCHANGE. */
static int put_plainly(struct applying *a, const struct tx_change *c, int dir, const char *temp, const char *name,
                       struct err *err)
{
    struct stat st;
    bool other = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) != S_ISDIR(c->mode);
    if (fstatat(dir, temp, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return apply_fail(a, c, err);
    if (look_at_old(a, c, dir, name, err) < 0 || (other && tree_remove(dir, name, err) < 0))
        return -1;
    return renameat(dir, temp, dir, name) < 0 ? apply_fail(a, c, err) : 0;
}

/* Renames `temp` to the name of the change. If an entry is there, the two are exchanged: the name is never missing, and a
 * change to the old entry at the last moment is still found in it. */
static int apply_place_change(struct applying *a, const struct tx_change *c, int dir, const char *temp,
                              const char *name, struct err *err)
{
    struct stat st, ours;
    bool there = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (fstatat(dir, temp, &ours, AT_SYMLINK_NOFOLLOW) < 0)
        return apply_fail(a, c, err);
    int r = look_again(a, c, dir, name, err);
    if (r == 0 && apply_rename(dir, temp, name, there ? RENAME_EXCHANGE : RENAME_NOREPLACE) == 0)
        r = there ? drop_old(a, c, dir, temp, name, RENAME_EXCHANGE, err) : 0;
    else if (r == 0 && (errno == EEXIST || errno == ENOENT) && !a->force) /* it came or went since */
        r = apply_changed_meanwhile(c->path, err);
    else if (r == 0)
        r = errno == EEXIST || errno == ENOENT || cannot_move() ? put_plainly(a, c, dir, temp, name, err)
                                                                : apply_fail(a, c, err);
    if (r < 0 && fstatat(dir, temp, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino == ours.st_ino)
        (void)tx_drop_temp(dir, temp);
    return r;
}

static int new_dir(struct applying *a, const struct tx_change *c, int dir, const char *name, const struct stat *l,
                   struct err *err)
{
    char temp[TX_TEMP_MAX];
    tx_name_temp(a->tx, temp);
    if (mkdirat(dir, temp, 0700) < 0 &&
        (errno != EEXIST || tx_drop_temp(dir, temp) < 0 || mkdirat(dir, temp, 0700) < 0))
        return apply_fail(a, c, err);
    _cleanup_close_ int fd = openat(dir, temp, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        tx_attrs_bare(fd);
    if (fd >= 0 && apply_dress_dir(a, c, fd, l) == 0)
        return apply_place_change(a, c, dir, temp, name, err);
    int r = apply_fail(a, c, err);
    (void)tx_drop_temp(dir, temp);
    return r;
}

static int put_dir(struct applying *a, const struct tx_change *c, int dir, const char *name, const struct stat *l,
                   struct err *err)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
        return new_dir(a, c, dir, name, l, err);
    if (look_again(a, c, dir, name, err) < 0)
        return -1;
    _cleanup_close_ int fd = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 || apply_dress_dir(a, c, fd, l) < 0 ? apply_fail(a, c, err) : 0;
}

static int put_other(struct applying *a, const struct tx_change *c, int layer, const char *from, int dir,
                     const char *name, const struct stat *l, struct err *err)
{
    char temp[TX_TEMP_MAX];
    const struct tx_put p = {.tx = a->tx,
                             .l = l,
                             .layer = layer,
                             .dir = dir,
                             .from = from,
                             .name = name,
                             .temp = temp,
                             .attrs = c->attrs,
                             .left = a->left};
    tx_name_temp(a->tx, temp);
    int r = tx_put(&p);
    if (r < 0 && errno == EEXIST && tx_drop_temp(dir, temp) == 0)
        r = tx_put(&p);
    if (r == 0)
        return apply_place_change(a, c, dir, temp, name, err);
    r = apply_fail(a, c, err);
    (void)tx_drop_temp(dir, temp);
    return r;
}

static int apply_one(struct applying *a, const struct tx_change *c, struct err *err)
{
    const struct tx_place *p = &a->tx->place[c->place];
    const char *name, *from;
    struct stat l;
    _cleanup_close_ int dir = open_host_parent(a, c, &name);
    if (dir < 0 && c->kind == TX_REMOVED && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
        return 0; /* gone with its directory */
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "the directory of %s/%s", tx_shown(p->src), tx_shown(c->path));
    if (c->kind == TX_REMOVED)
        return take_away(a, c, dir, name, err);
    _cleanup_close_ int layer = tx_open_parent(p->layer, c->path, &from);
    if (layer < 0 || fstatat(layer, from, &l, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_SETUP, errno, "%s in its layer", tx_shown(c->path));
    l.st_mode = c->mode; /* the layer's may have been opened up; see struct tx, `modes` */
    return S_ISDIR(l.st_mode) ? put_dir(a, c, dir, name, &l, err) : put_other(a, c, layer, from, dir, name, &l, err);
}

/* The caller drops the layers after this, which are the only other copy: so write everything to the disk. On some file
 * systems, a renamed file that was not synced is empty after a power cut. */
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
    static struct applying a; /* large */
    struct err later = {0};
    a = (struct applying){.tx = tx, .left = &tx->left, .force = force};
    if (tx->unseen && !force)
        return err_set(err, ERR_POLICY, 0,
                       "what was on the host when the command ran is not known: look at `hutch diff %s`, then `hutch "
                       "apply --force %s`",
                       tx->id, tx->id);
    if (tx->blind)
        return err_set(err, ERR_POLICY, 0,
                       "%s cannot be looked into on the host, so what the command did there cannot be applied: `chmod "
                       "u+rwx` it first; nothing was applied",
                       tx_shown(tx->blind));
    tx_choose_id(tx);
    tx_index(&tx->below, a.below);
    take_over(&a);
    int r = force ? 0 : apply_check_host(tx, a.below, err);
    for (size_t i = 0; i < tx->n && r == 0; i++)
        if (apply_one(&a, &tx->changes[i], err) < 0)
            r = err_wrap(err, "%zu of %zu changes were applied", i, tx->n);
    if (apply_set_modes(&a, &later) < 0 && r == 0) {
        *err = later;
        r = -1;
    }
    tx_index_done(a.below);
    return r == 0 ? sync_places(tx, err) : -1;
}
