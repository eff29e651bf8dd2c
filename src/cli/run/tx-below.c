/* tx-below.c - what lies on the host in directories that a transaction takes away.
 *
 * The command saw such a directory, removed it, moved it (which is a copy and a removal) or put something else in its
 * place; the layer has one mark for that and says nothing of what was inside. So what is inside is written down when the
 * command has ended, and what was added or changed there later, or while the command ran, is not removed without --force.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/run/tx.h"

static int64_t ns_of(const struct timespec *t) { return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec; }

bool tx_changed(const struct tx *tx, const struct tx_seen *s, const struct stat *st, bool goes)
{
    if ((st->st_mode & S_IFMT) != (s->mode & S_IFMT))
        return true;
    if (S_ISDIR(st->st_mode))
        return goes ? st->st_ino != s->ino || ns_of(&s->ctime) > tx->started_ns : st->st_mode != s->mode;
    return st->st_ino != s->ino || st->st_size != s->size || ns_of(&st->st_ctim) != ns_of(&s->ctime) ||
           ns_of(&st->st_ctim) > tx->started_ns;
}

bool tx_changed_again(const struct tx_seen *s, const struct stat *st, bool goes)
{
    if ((st->st_mode & S_IFMT) != (s->mode & S_IFMT))
        return true;
    if (S_ISDIR(st->st_mode))
        return goes && st->st_ino != s->ino;
    return st->st_ino != s->ino || st->st_size != s->size || ns_of(&st->st_mtim) != ns_of(&s->mtime);
}

bool tx_takes_dir(const struct tx_change *c)
{
    return c->seen.there && S_ISDIR(c->seen.mode) && (c->kind == TX_REMOVED || !S_ISDIR(c->mode));
}

/* --- a look around ------------------------------------------------------------------------------------------------ */

struct look {
    /* Called for each entry; returns whether to enter a directory. st NULL: the entry or its content cannot be read. */
    bool (*see)(struct look *l, const char *path, const struct stat *st);
    struct tx *writes; /* below_remember() */
    size_t max;
    unsigned place;
    const struct tx *tx; /* below_judge() */
    const struct map *known;
    bool again;
    tx_found *found;
    void *arg;
};

static void look_into(struct look *l, int parent, const char *name, const char *path, unsigned depth)
{
    const struct dirent *e;
    int fd =
        depth < TX_DEPTH_MAX ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK) : -1;
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            (void)close(fd);
        (void)l->see(l, path, NULL);
        return;
    }
    while (errno = 0, (e = readdir(d))) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        _cleanup_free_ char *below = path_join(path, e->d_name);
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno != ENOENT)
                (void)l->see(l, below, NULL);
        } else if (l->see(l, below, &st) && S_ISDIR(st.st_mode)) {
            look_into(l, dirfd(d), e->d_name, below, depth + 1);
        }
    }
    if (errno)
        (void)l->see(l, path, NULL);
}

static void look_below(struct look *l, int host, const char *path, const struct tx_at *at)
{
    const char *name;
    if (at) {
        look_into(l, at->dir, at->name, path, 0);
        return;
    }
    _cleanup_close_ int dir = tx_open_parent(host, path, &name);
    if (dir >= 0)
        look_into(l, dir, name, path, 0);
}

/* --- when the command has ended ----------------------------------------------------------------------------------- */

static bool below_remember(struct look *l, const char *path, const struct stat *st)
{
    struct tx *tx = l->writes;
    struct tx_entries *b = &tx->below;
    size_t n = strlen(path);
    if (!st) /* tx_look_below() finds it again before anything is removed */
        return false;
    if (tx->below_cut || b->n >= l->max || n > TX_BELOW_BYTES - tx->below_bytes) {
        tx->below_cut = true;
        return false;
    }
    MEM_GROW(b->v, b->n, b->cap);
    b->v[b->n++] = (struct tx_entry){.place = l->place, .path = xstrdup(path), .seen = tx_seen_of(st)};
    tx->below_bytes += n;
    return true;
}

void tx_survey(struct tx *tx, size_t max)
{
    for (size_t i = 0; i < tx->n && !tx->below_cut; i++) {
        const struct tx_change *c = &tx->changes[i];
        struct look l = {.see = below_remember, .writes = tx, .max = max, .place = c->place};
        if (tx_takes_dir(c))
            look_below(&l, tx->place[c->place].host, c->path, NULL);
    }
}

/* --- when it is applied ------------------------------------------------------------------------------------------- */

/* Whether an entry that was not written down is new. If there were too many to write down, its times decide, which is right
 * unless the clock was set back. */
static bool judge_unknown(const struct tx *tx, const struct stat *st, bool again)
{
    if (!tx->below_cut)
        return true;
    int64_t since = again ? tx->checked_ns : tx->started_ns;
    bool other_name = again && !S_ISDIR(st->st_mode) && ns_of(&st->st_mtim) <= since; /* linked elsewhere by apply */
    return ns_of(&st->st_ctim) > since && !other_name;
}

static bool below_judge(struct look *l, const char *path, const struct stat *st)
{
    struct tx_entry *e = map_get(l->known, path);
    bool theirs = !st        ? true
                  : !e       ? judge_unknown(l->tx, st, l->again)
                  : l->again ? tx_changed_again(&e->seen, st, true)
                             : tx_changed(l->tx, &e->seen, st, true);
    if (e && st && !l->again)
        e->seen.mtime = st->st_mtim;
    if (theirs)
        l->found(l->arg, path);
    return !theirs;
}

void tx_look_below(const struct tx *tx, const struct tx_change *c, const struct map *known, const struct tx_at *again,
                   tx_found *found, void *arg)
{
    struct look l = {.see = below_judge,
                     .place = c->place,
                     .tx = tx,
                     .known = known,
                     .again = again != NULL,
                     .found = found,
                     .arg = arg};
    look_below(&l, tx->place[c->place].host, c->path, again);
}
