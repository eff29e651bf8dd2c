/* tx-diff.c - compares the layers with the host, and shows the differences. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/run/tx.h"
#include "cli/textdiff.h"

struct walk {
    struct tx *tx;
    unsigned place, depth;
    const struct map *modes;  /* original modes of opened-up entries of this place, by path */
    const struct map *opened; /* directories a killed apply unlocked, by path */
    const struct map *was;    /* the changes as written down, by path */
    unsigned kinds;           /* of attributes that the layer can hold */
    struct tx_entries *more;  /* where newly opened-up modes are added */
    struct err *err;
};

const char *tx_shown(const char *path)
{
    enum { AT_ONCE = 4, MAX = 300 };
    static struct buf ring[AT_ONCE];
    static unsigned next;
    struct buf *b = &ring[next++ % AT_ONCE];
    b->n = 0;
    text_add_safe(b, path, MAX);
    return buf_str(b);
}

static int read_names(int dir, struct strv *ret)
{
    int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d) {
        if (own >= 0)
            (void)close(own);
        return -1;
    }
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        strv_add(ret, e->d_name);
    }
    strv_sort(ret);
    return 0;
}

struct tx_seen tx_seen_of(const struct stat *host)
{
    return (struct tx_seen){
        .there = true, .mode = host->st_mode, .ino = host->st_ino, .size = host->st_size, .ctime = host->st_ctim};
}

static struct tx_change *diff_add_change(struct walk *w, const char *path, enum tx_kind kind, const struct stat *layer,
                                         const struct stat *host)
{
    struct tx *tx = w->tx;
    MEM_GROW(tx->changes, tx->n, tx->cap);
    struct tx_change *c = &tx->changes[tx->n++];
    *c = (struct tx_change){.place = w->place, .path = xstrdup(path), .kind = kind};
    if (layer) {
        c->mode = layer->st_mode;
        c->size = layer->st_size;
    }
    if (host)
        c->seen = tx_seen_of(host);
    return c;
}

static bool same_bytes(int a, int b)
{
    static char x[64 << 10], y[64 << 10];
    for (;;) {
        ssize_t n = read(a, x, sizeof x), m = 0;
        while (n > 0 && m < n) {
            ssize_t k = read(b, y + m, (size_t)(n - m));
            if (k <= 0)
                return false;
            m += k;
        }
        if (n < 0 || memcmp(x, y, (size_t)m) != 0)
            return false;
        if (n == 0)
            return read(b, y, 1) == 0;
    }
}

static bool same_content(int layer, int host, const char *name, const struct stat *l, const struct stat *h)
{
    if (S_ISLNK(l->st_mode)) {
        char a[PATH_MAX], b[PATH_MAX];
        ssize_t n = readlinkat(layer, name, a, sizeof a), m = readlinkat(host, name, b, sizeof b);
        return n >= 0 && n == m && memcmp(a, b, (size_t)n) == 0;
    }
    if (!S_ISREG(l->st_mode))
        return true;
    if (l->st_size != h->st_size)
        return false;
    _cleanup_close_ int a = openat(layer, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    _cleanup_close_ int b = openat(host, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    return a >= 0 && b >= 0 && same_bytes(a, b);
}

static bool same_attributes(const struct tx *tx, const struct stat *l, const struct stat *h)
{
    mode_t bits = S_ISDIR(l->st_mode) ? 01777 : 0777;
    return S_ISLNK(l->st_mode) ||
           ((l->st_mode & bits) == (h->st_mode & bits) &&
            (!tx->root || (l->st_uid - tx->shift == h->st_uid && l->st_gid - tx->shift == h->st_gid)));
}

/* The attributes of the layer's entry if they differ from the host's, else NULL. A kept layer has none; theirs were written
 * down with the change. host -1: the host has no such entry. */
static char *other_attrs(const struct walk *w, int layer, int host, const char *name, const char *path)
{
    const struct tx_entry *e = w->was ? map_get(w->was, path) : NULL;
    _cleanup_free_ char *mine = !w->was         ? tx_attrs_read(layer, name, w->kinds, w->tx->shift)
                                : e && e->attrs ? xstrdup(e->attrs)
                                                : NULL;
    _cleanup_free_ char *theirs = mine ? tx_attrs_read(host, name, tx_attrs_kinds_of(mine), 0) : NULL;
    return mine && theirs && strcmp(mine, theirs) == 0 ? NULL : TAKE_PTR(mine);
}

static bool is_whiteout(const struct stat *st) { return S_ISCHR(st->st_mode) && st->st_rdev == 0; }

static bool is_opaque(int dir)
{
    char value;
    return fgetxattr(dir, "user.overlay.opaque", &value, 1) == 1 && value == 'y';
}

/* Makes an entry readable that its mode keeps from us, its owner; else it could be neither compared nor copied. The layer is
 * private, and the mode that the command gave it is kept in tx->modes. */
static int open_up(struct walk *w, int layer, const char *name, const char *path, struct stat *l)
{
    struct tx_entries *modes = w->more;
    const struct tx_entry *known = map_get(w->modes, path);
    mode_t need = S_ISDIR(l->st_mode) ? S_IRWXU : S_ISREG(l->st_mode) ? S_IRUSR : 0;
    if (known && (known->seen.mode & S_IFMT) == (l->st_mode & S_IFMT))
        l->st_mode = known->seen.mode;
    if (known || w->tx->root || (l->st_mode & need) == need)
        return 0;
    if (fchmodat(layer, name, (l->st_mode & 07777) | need, 0) < 0)
        return err_set(w->err, ERR_SETUP, errno, "open up %s in its layer", tx_shown(path));
    MEM_GROW(modes->v, modes->n, modes->cap);
    modes->v[modes->n++] =
        (struct tx_entry){.place = w->place, .path = xstrdup(path), .seen = {.there = true, .mode = l->st_mode}};
    return 0;
}

static int diff_walk_layer(struct walk *w, int layer, int host, const char *top, bool replaced, unsigned depth);

/* `replaced`: a directory above it was. Overlay marks only the outermost of replaced directories. */
static int diff_walk_dir(struct walk *w, int layer, int host, const char *name, const char *path, const struct stat *l,
                         const struct stat *h, bool replaced, unsigned depth)
{
    bool both = h && S_ISDIR(h->st_mode);
    _cleanup_close_ int sub = openat(layer, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    _cleanup_close_ int under =
        both ? openat(host, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK) : -1;
    if (sub >= 0 && both && under < 0 && errno == EACCES) {
        strv_take(&w->tx->notes,
                  xasprintf("%s cannot be looked into on the host: nothing can be applied before its owner may read it",
                            tx_shown(path)));
        w->tx->blind = w->tx->blind ? w->tx->blind : xstrdup(path);
        return 0;
    }
    if (sub < 0 || (both && under < 0))
        return err_set(w->err, ERR_SETUP, errno, "look into %s", tx_shown(path));
    _cleanup_free_ char *attrs = other_attrs(w, layer, both ? host : -1, name, path);
    if (!both || attrs || !same_attributes(w->tx, l, h)) {
        struct tx_change *c = diff_add_change(w, path, h ? TX_CHANGED : TX_ADDED, l, h);
        c->attrs = TAKE_PTR(attrs);
        c->attributes = both;
        c->content = h && !both;
    }
    return diff_walk_layer(w, sub, under, path, both && (replaced || is_opaque(sub)), depth + 1);
}

static int diff_walk_entry(struct walk *w, int layer, int host, const char *name, const char *top, bool replaced,
                           unsigned depth)
{
    struct stat l, hs, *h = &hs;
    if (fstatat(layer, name, &l, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(w->err, ERR_SETUP, errno, "look at %s/%s in its layer", tx_shown(top), tx_shown(name));
    if (host < 0 || fstatat(host, name, h, AT_SYMLINK_NOFOLLOW) < 0)
        h = NULL;
    _cleanup_free_ char *path = *top ? path_join(top, name) : xstrdup(name);
    const struct tx_entry *opened = h ? map_get(w->opened, path) : NULL;
    if (opened && tx_still_open(opened, h)) /* compare with the mode it gets at the end */
        h->st_mode = S_IFDIR | opened->seen.mode;
    if (depth >= w->depth || strlen(path) >= PATH_MAX) /* as in tree_copy() */
        return is_whiteout(&l) ? 0 : tx_set_apart(w->tx, w->place, layer, name, path, w->err);
    bool odd = !S_ISDIR(l.st_mode) && !S_ISREG(l.st_mode) && !S_ISLNK(l.st_mode) && !S_ISFIFO(l.st_mode);
    if (odd && !is_whiteout(&l))
        strv_take(&w->tx->notes,
                  xasprintf("%s is not a file, directory, link or pipe and is not applied", tx_shown(path)));
    if (odd && h) /* the host's entry was removed in any case */
        (void)diff_add_change(w, path, TX_REMOVED, NULL, h);
    if (odd)
        return 0;
    if (open_up(w, layer, name, path, &l) < 0)
        return -1;
    if (S_ISDIR(l.st_mode))
        return diff_walk_dir(w, layer, host, name, path, &l, h, replaced, depth);
    bool kind = h && (l.st_mode & S_IFMT) == (h->st_mode & S_IFMT);
    _cleanup_free_ char *attrs = S_ISREG(l.st_mode) ? other_attrs(w, layer, kind ? host : -1, name, path) : NULL;
    bool content = !kind || !same_content(layer, host, name, &l, h),
         attributes = kind && (attrs || !same_attributes(w->tx, &l, h));
    if (!content && !attributes)
        return 0;
    struct tx_change *c = diff_add_change(w, path, h ? TX_CHANGED : TX_ADDED, &l, h);
    c->content = h && content;
    c->attributes = attributes;
    c->attrs = TAKE_PTR(attrs);
    return 0;
}

/* `replaced`: the directory was removed and made again, so entries that only the host has are removed. */
static int diff_walk_layer(struct walk *w, int layer, int host, const char *top, bool replaced, unsigned depth)
{
    _cleanup_strv_ struct strv mine = {0}, theirs = {0};
    if (read_names(layer, &mine) < 0 || (replaced && read_names(host, &theirs) < 0))
        return err_set(w->err, ERR_SETUP, errno, "list %s", tx_shown(*top ? top : w->tx->place[w->place].src));
    for (size_t i = 0; i < theirs.n; i++) {
        struct stat st;
        if (mine.n && bsearch(&theirs.v[i], mine.v, mine.n, sizeof *mine.v, strv_compare))
            continue;
        _cleanup_free_ char *path = *top ? path_join(top, theirs.v[i]) : xstrdup(theirs.v[i]);
        if (fstatat(host, theirs.v[i], &st, AT_SYMLINK_NOFOLLOW) == 0)
            (void)diff_add_change(w, path, TX_REMOVED, NULL, &st);
    }
    for (size_t i = 0; i < mine.n; i++)
        if (diff_walk_entry(w, layer, host, mine.v[i], top, replaced, depth) < 0)
            return -1;
    return 0;
}

int tx_compare(struct tx *tx, struct err *err)
{
    struct tx_entries more = {0};
    struct map modes[TX_PLACES_MAX] = {0}, opened[TX_PLACES_MAX] = {0}, was[TX_PLACES_MAX] = {0};
    unsigned depth = tx_depth();
    int r = 0;
    tx_index(&tx->modes, modes);
    tx_index(&tx->opened, opened);
    if (tx->was)
        tx_index(tx->was, was);
    for (size_t i = 0; i < tx->nplaces && r == 0; i++) {
        struct walk w = {.tx = tx,
                         .place = (unsigned)i,
                         .depth = depth,
                         .modes = &modes[i],
                         .opened = &opened[i],
                         .was = tx->was ? &was[i] : NULL,
                         .kinds = tx_attrs_kinds(tx->place[i].layer),
                         .more = &more,
                         .err = err};
        r = diff_walk_layer(&w, tx->place[i].layer, tx->place[i].host, "", false, 0);
    }
    tx_index_done(modes);
    tx_index_done(opened);
    tx_index_done(was);
    for (size_t i = 0; i < more.n; i++) {
        MEM_GROW(tx->modes.v, tx->modes.n, tx->modes.cap);
        tx->modes.v[tx->modes.n++] = more.v[i];
    }
    free(more.v);
    return r < 0 ? -1 : tx_flatten_apart(tx, err);
}

/* --- for people --------------------------------------------------------------------------------------------------- */

static void diff_put_path(const struct tx *tx, const struct tx_change *c, struct buf *out)
{
    if (tx->nplaces > 1) {
        text_add_safe(out, tx->place[c->place].src, 300);
        buf_addc(out, '/');
    }
    text_add_safe(out, c->path, 600);
    if (S_ISDIR(c->kind == TX_REMOVED ? c->seen.mode : c->mode))
        buf_addc(out, '/');
}

static void put_change(const struct tx *tx, const struct tx_change *c, struct buf *out)
{
    buf_addf(out, "  %c ", c->kind);
    diff_put_path(tx, c, out);
    if (c->kind == TX_CHANGED && c->attrs)
        buf_adds(out, " (attributes)");
    if (c->kind == TX_CHANGED && c->attributes && (c->seen.mode & 07777) != (c->mode & 07777))
        buf_addf(out, " (mode %04o -> %04o)", c->seen.mode & 07777, c->mode & 07777);
    buf_addc(out, '\n');
}

/* Lists the changes that programs outside run, or the others; at most `max`. Returns how many there are. */
static size_t put_changes(const struct tx *tx, bool running, size_t max, struct buf *out)
{
    size_t n = 0;
    for (size_t i = 0; i < tx->n; i++)
        if ((tx_judge(tx, &tx->changes[i]) != TX_PLAIN) == running && n++ < max)
            put_change(tx, &tx->changes[i], out);
    if (n > max)
        buf_addf(out, "  ... and %zu more\n", n - max);
    return n;
}

void tx_list_running(const struct tx *tx, size_t max, struct buf *out)
{
    _cleanup_buf_ struct buf list = {0};
    if (put_changes(tx, true, max, &list) > 0)
        buf_addf(out, "these run without your doing:\n%s", buf_str(&list));
}

void tx_list(const struct tx *tx, size_t max, struct buf *out)
{
    _cleanup_buf_ struct buf rest = {0};
    tx_list_running(tx, max, out);
    size_t n = put_changes(tx, false, max, &rest);
    buf_addf(out, "%s%s", out->n && n ? "the rest:\n" : "", buf_str(&rest));
}

/* The file's bytes, at most TX_TEXT_MAX; false if it is larger or cannot be read. */
static bool diff_read_text(int root, const char *path, struct buf *ret)
{
    struct stat st;
    const char *name;
    _cleanup_close_ int dir = tx_open_parent(root, path, &name);
    _cleanup_close_ int fd = dir < 0 ? -1 : openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > TX_TEXT_MAX)
        return false;
    char block[8192];
    for (ssize_t n; (n = read(fd, block, sizeof block)) > 0;) {
        buf_add(ret, block, (size_t)n);
        if (ret->n > TX_TEXT_MAX)
            return false;
    }
    return true;
}

static void add_diff(const struct tx *tx, const struct tx_change *c, struct buf *out)
{
    const struct tx_place *p = &tx->place[c->place];
    bool before = c->kind != TX_ADDED && S_ISREG(c->seen.mode), after = c->kind != TX_REMOVED && S_ISREG(c->mode);
    _cleanup_buf_ struct buf a = {0}, b = {0}, name = {0};
    diff_put_path(tx, c, &name);
    bool content = c->kind != TX_CHANGED || c->content;
    if (!content || !(before || after) || (before && !diff_read_text(p->host, c->path, &a)) ||
        (after && !diff_read_text(p->layer, c->path, &b)))
        buf_addf(out, "%c %s\n", c->kind, buf_str(&name));
    else
        (void)textdiff_add(buf_str(&name), buf_str(&a), a.n, buf_str(&b), b.n, out);
}

/* One file at a time: together they may be larger than memory. */
int tx_diff(const struct tx *tx, int fd)
{
    int r = 0;
    for (int running = 1; running >= 0; running--)
        for (size_t i = 0; i < tx->n && r == 0; i++) {
            _cleanup_buf_ struct buf text = {0};
            if ((tx_judge(tx, &tx->changes[i]) != TX_PLAIN) != running)
                continue;
            add_diff(tx, &tx->changes[i], &text);
            r = fd_write_all(fd, buf_str(&text), text.n);
        }
    return r;
}
