/* Makes on the host what a layer holds. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/random.h"
#include "base/text.h"
#include "cli/tx.h"
#include "stock/tree.h"

enum { CONFLICTS_SHOWN = 10, TEMP_MAX = 40 };

/* The directory that holds `path`, and its name there. No link is followed: a directory of the host that became one since is
 * an error. */
static int open_parent(int root, const char *path, const char **name)
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

static int64_t ns_of(const struct timespec *t) { return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec; }

/* Directories change their times with everything in them; what counts there is that they are still directories. */
static bool conflicts(const struct tx *tx, const struct tx_change *c)
{
    const char *name;
    struct stat st;
    _cleanup_close_ int dir = open_parent(tx->place[c->place].host, c->path, &name);
    if (dir < 0) /* its parent is one of the changes, or was taken away */
        return c->seen.there;
    bool there = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (there != c->seen.there)
        return true;
    if (!there)
        return false;
    if (S_ISDIR(st.st_mode) || S_ISDIR(c->seen.mode))
        return (st.st_mode & S_IFMT) != (c->seen.mode & S_IFMT);
    return st.st_ino != c->seen.ino || st.st_size != c->seen.size || ns_of(&st.st_ctim) != ns_of(&c->seen.ctime) ||
           ns_of(&st.st_ctim) > tx->started_ns;
}

static int check(const struct tx *tx, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    size_t n = 0;
    for (size_t i = 0; i < tx->n; i++)
        if (conflicts(tx, &tx->changes[i]) && n++ < CONFLICTS_SHOWN) {
            buf_adds(&text, n > 1 ? ", " : "");
            text_add_safe(&text, tx->changes[i].path, 80);
        }
    if (n == 0)
        return 0;
    return err_set(
        err, ERR_POLICY, 0,
        "changed on the host since the command started: %s%s; nothing was applied (--force applies all the same)",
        buf_str(&text), n > CONFLICTS_SHOWN ? " and more" : "");
}

/* --- one change --------------------------------------------------------------------------------------------------- */

static int set_owner(const struct tx *tx, int dir, const char *name, const struct stat *l)
{
    if (!tx->root)
        return 0;
    return fchownat(dir, name, l->st_uid - tx->shift, l->st_gid - tx->shift, AT_SYMLINK_NOFOLLOW);
}

static int copy_bytes(int from, int to, off_t size)
{
    while (size > 0) {
        ssize_t n = sendfile(to, from, NULL, (size_t)(size > (1 << 30) ? 1 << 30 : size));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno;
            return -1;
        }
        size -= n;
    }
    return 0;
}

/* Under a name of ours first, so that nobody ever sees half of it. */
static int put_file(const struct tx *tx, int layer, const char *from, int dir, const char *temp, const struct stat *l)
{
    _cleanup_close_ int in = openat(layer, from, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    _cleanup_close_ int out =
        in < 0 ? -1 : openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (out < 0 || copy_bytes(in, out, l->st_size) < 0 || set_owner(tx, dir, temp, l) < 0 ||
        fchmod(out, l->st_mode & 0777) < 0)
        return -1;
    const struct timespec times[2] = {l->st_atim, l->st_mtim};
    return futimens(out, times);
}

static int put_link(const struct tx *tx, int layer, const char *from, int dir, const char *temp, const struct stat *l)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(layer, from, target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';
    return symlinkat(target, dir, temp) < 0 || set_owner(tx, dir, temp, l) < 0 ? -1 : 0;
}

static int put_dir(const struct tx *tx, int dir, const char *name, const struct stat *l, const struct tx_change *c)
{
    struct err ignored = {0};
    if (c->seen.there && !S_ISDIR(c->seen.mode) && tree_remove(dir, name, &ignored) < 0)
        return -1;
    if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return -1;
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 || set_owner(tx, dir, name, l) < 0 ? -1 : fchmod(fd, l->st_mode & 0777);
}

static int put_other(const struct tx *tx, const struct tx_place *p, const struct tx_change *c, int dir,
                     const char *name, const struct stat *l)
{
    char temp[TEMP_MAX] = ".hutch-tx-";
    const char *from;
    struct err ignored = {0};
    random_hex(temp + strlen(temp), 8);
    _cleanup_close_ int layer = open_parent(p->layer, c->path, &from);
    if (layer < 0)
        return -1;
    int r = S_ISREG(l->st_mode)   ? put_file(tx, layer, from, dir, temp, l)
            : S_ISLNK(l->st_mode) ? put_link(tx, layer, from, dir, temp, l)
                                  : mkfifoat(dir, temp, l->st_mode & 0777);
    if (r == 0 && c->seen.there && S_ISDIR(c->seen.mode) && tree_remove(dir, name, &ignored) < 0)
        r = -1;
    if (r == 0)
        r = renameat(dir, temp, dir, name);
    if (r < 0) {
        int saved = errno;
        (void)unlinkat(dir, temp, 0);
        errno = saved;
    }
    return r;
}

static int apply_one(const struct tx *tx, const struct tx_change *c, struct err *err)
{
    const struct tx_place *p = &tx->place[c->place];
    const char *name;
    struct stat l;
    _cleanup_close_ int dir = open_parent(p->host, c->path, &name);
    if (dir < 0 && c->kind == TX_REMOVED)
        return 0; /* gone with its directory */
    if (dir < 0)
        return err_set(err, ERR_SETUP, errno, "the directory of %s/%s", p->src, c->path);
    if (c->kind == TX_REMOVED)
        return tree_remove(dir, name, err);
    if (fstatat(p->layer, c->path, &l, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(err, ERR_SETUP, errno, "%s in its layer", c->path);
    int r = S_ISDIR(l.st_mode) ? put_dir(tx, dir, name, &l, c) : put_other(tx, p, c, dir, name, &l);
    return r < 0 ? err_set(err, ERR_SETUP, errno, "write %s/%s", p->src, c->path) : 0;
}

int tx_apply(struct tx *tx, bool force, struct err *err)
{
    if (!force && check(tx, err) < 0)
        return -1;
    for (size_t i = 0; i < tx->n; i++)
        if (apply_one(tx, &tx->changes[i], err) < 0)
            return err_wrap(err, "%zu of %zu changes were applied", i, tx->n);
    return 0;
}
