/* tx-apart.c - sets entries apart that lie too deep in a layer to be walked through, copied and applied.
 *
 * By entering each one, a command can nest directories until memory is full; a path to the innermost is too long for any
 * other program. Such a subtree is moved, unchanged, to where the transaction is kept; the user can copy from there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/run/tx.h"

enum {
    FDS_AT_A_LEVEL = 4,
    FDS_BESIDE = 256,
    DEPTH_MIN = 16,
    NUMBER_MAX = 24,
    LENGTH_MAX = PATH_MAX / 2, /* of a path in the part; leaves room for the path to it */
};

unsigned tx_depth(void)
{
    struct rlimit r;
    const rlim_t want = (rlim_t)TX_DEPTH_MAX * FDS_AT_A_LEVEL + FDS_BESIDE;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return DEPTH_MIN;
    if (r.rlim_cur < want) {
        r.rlim_cur = want < r.rlim_max ? want : r.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
    if (r.rlim_cur >= want)
        return TX_DEPTH_MAX;
    unsigned depth = r.rlim_cur > FDS_BESIDE ? (unsigned)(r.rlim_cur - FDS_BESIDE) / FDS_AT_A_LEVEL : 0;
    return depth > DEPTH_MIN ? depth : DEPTH_MIN;
}

/* Makes all permitted capabilities effective again after setfsuid() cleared some. */
static void raise_caps(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    if (syscall(SYS_capget, &head, data) < 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(data); i++)
        data[i].effective = data[i].permitted;
    (void)syscall(SYS_capset, &head, data);
}

/* Acts as an id of the sandbox: the id-mapped vault of a root caller rejects new names from any other id. */
static int move_in_vault(const struct tx *tx, int dir, const char *name, const char *to)
{
    bool foreign = tx->root && tx->shift;
    if (foreign) {
        (void)setfsgid(tx->shift);
        (void)setfsuid(tx->shift);
        raise_caps();
    }
    int r = renameat(dir, name, tx->apart_dir, to), eno = errno;
    if (foreign) {
        (void)setfsuid(0);
        (void)setfsgid(0);
    }
    errno = eno;
    return r;
}

int tx_set_apart(struct tx *tx, unsigned place, int dir, const char *name, const char *path, struct err *err)
{
    char to[NUMBER_MAX];
    struct stat st;
    struct tx_entries *all = &tx->apart;
    if (!tx->has_apart)
        return err_set(err, ERR_LIMIT, 0, "%s lies too deep; see `ulimit -n`", tx_shown(path));
    (void)snprintf(to, sizeof to, "%zu", all->n);
    bool closed = !tx->root && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
                  (st.st_mode & S_IRWXU) != S_IRWXU;
    if ((closed && fchmodat(dir, name, (st.st_mode & 07777) | S_IRWXU, 0) < 0) || move_in_vault(tx, dir, name, to) < 0)
        return err_set(err, ERR_SETUP, errno, "set %s apart", tx_shown(path));
    MEM_GROW(all->v, all->n, all->cap);
    all->v[all->n++] = (struct tx_entry){.place = place, .path = xstrdup(path), .seen = {.there = true}};
    return 0;
}

struct flatten {
    struct tx *tx;
    size_t of; /* in tx->apart */
    unsigned max;
    struct err *err;
};
static int flatten_entry(const struct flatten *f, int parent, const char *name, size_t length, unsigned depth);

static int flatten_below(const struct flatten *f, int parent, const char *name, size_t length, unsigned depth)
{
    _cleanup_strv_ struct strv names = {0};
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        int r = err_set(f->err, ERR_SETUP, errno, "look into what lies too deep");
        if (fd >= 0)
            (void)close(fd);
        return r;
    }
    for (const struct dirent *e = readdir(d); e; e = readdir(d))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            strv_add(&names, e->d_name);
    for (size_t i = 0; i < names.n; i++)
        if (flatten_entry(f, dirfd(d), names.v[i], length + 1 + strlen(names.v[i]), depth + 1) < 0)
            return -1;
    return 0;
}

static int flatten_entry(const struct flatten *f, int parent, const char *name, size_t length, unsigned depth)
{
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(f->err, ERR_SETUP, errno, "look at what lies too deep");
    mode_t need = S_ISDIR(st.st_mode) ? S_IRWXU : S_ISREG(st.st_mode) ? S_IRUSR : 0;
    if (!f->tx->root && (st.st_mode & need) != need && fchmodat(parent, name, (st.st_mode & 07777) | need, 0) < 0)
        return err_set(f->err, ERR_SETUP, errno, "open up what lies too deep");
    if (depth >= f->max || length >= LENGTH_MAX) {
        _cleanup_free_ char *path = xasprintf("%s/...", f->tx->apart.v[f->of].path);
        return tx_set_apart(f->tx, f->tx->apart.v[f->of].place, parent, name, path, f->err);
    }
    return S_ISDIR(st.st_mode) ? flatten_below(f, parent, name, length, depth) : 0;
}

int tx_flatten_apart(struct tx *tx, struct err *err)
{
    struct flatten f = {.tx = tx, .max = tx_depth() - 2, .err = err};
    for (f.of = 0; tx->has_apart && f.of < tx->apart.n; f.of++) {
        char name[NUMBER_MAX];
        (void)snprintf(name, sizeof name, "%zu", f.of);
        if (flatten_entry(&f, tx->apart_dir, name, strlen(name), 0) < 0)
            return -1;
    }
    return 0;
}
