/* diff-lay.c - writes the difference of two trees as a lay stream, or as struct diff_record. See diff.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "trees/diff.h"
#include "trees/emit.h"

struct to_lay {
    const struct diff *d;
    struct emit emit;
    char at[LAY_PATH_MAX];     /* the directory that was written last: it and all above it are in the stream */
    char hidden[LAY_PATH_MAX]; /* removed path: entries below it need no records; "": none */
};

static bool diff_path_is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/';
}

/* Writes the directories above an entry that are not in the stream yet: an overlay shows the attributes of the
 * uppermost layer that has a directory. Names come in order, so a directory that the walk has left never comes
 * again. */
static int diff_put_parents(struct to_lay *k, const char *path, struct err *err)
{
    char part[LAY_PATH_MAX];
    int at = -1, r = 0;
    for (size_t n = strcspn(path, "/"); r == 0 && path[n]; n += 1 + strcspn(path + n + 1, "/")) {
        struct stat st;
        memcpy(part, path, n);
        part[n] = '\0';
        const char *slash = strrchr(part, '/');
        int next = walk_open_dir(at < 0 ? k->d->b : at, slash ? slash + 1 : part);
        if (at >= 0)
            (void)close(at);
        at = next;
        if (at < 0 || fstat(at, &st) < 0) {
            r = walk_fail(err, ERR_SETUP, errno, part, "cannot be opened");
        } else if (strcmp(k->at, part) != 0 && !diff_path_is_below(k->at, part)) {
            r = emit_dir(&k->emit, at, part, &st, false, err);
            memcpy(k->at, part, n + 1);
        }
    }
    if (at >= 0)
        (void)close(at);
    return r;
}

static int diff_put_removed(struct to_lay *k, const char *path, struct err *err)
{
    memcpy(k->hidden, path, strlen(path) + 1);
    return diff_put_parents(k, path, err) < 0 ? -1 : emit_mark(&k->emit, LAY_WHITEOUT, path, err);
}

static int diff_put_dir(struct to_lay *k, const struct diff_entry *e, struct err *err)
{
    _cleanup_close_ int fd = walk_open_dir(e->dir_b, e->name);
    if (fd < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "cannot be opened");
    memcpy(k->at, e->path, strlen(e->path) + 1);
    return emit_dir(&k->emit, fd, e->path, e->b, e->what & DIFF_TYPE, err);
}

static void diff_count(struct diff_counts *n, const struct diff_entry *e)
{
    if (e->kind == DIFF_ADDED)
        n->added++;
    else if (e->kind == DIFF_REMOVED)
        n->removed++;
    else if (e->what != DIFF_TIME)
        n->changed++;
}

static int diff_lay_on_entry(void *arg, const struct diff_entry *e, struct err *err)
{
    struct to_lay *k = arg;
    if (e->path[0] == '\0') /* diff_put_root() has written it */
        return 0;
    if (k->d->leave && k->d->leave(k->d->leave_arg, e))
        return 0;
    if (k->d->counts)
        diff_count(k->d->counts, e);
    if (k->hidden[0] && diff_path_is_below(e->path, k->hidden))
        return 0;
    k->hidden[0] = '\0';
    bool socket = e->b && S_ISSOCK(e->b->st_mode);
    if (socket && (!e->a || S_ISSOCK(e->a->st_mode)))
        return 0;
    if (!e->b || socket)
        return diff_put_removed(k, e->path, err);
    if (diff_put_parents(k, e->path, err) < 0)
        return -1;
    if (S_ISDIR(e->b->st_mode))
        return diff_put_dir(k, e, err);
    if (e->what & DIFF_TYPE) /* a file hides the directory it replaces, with all that was in it */
        memcpy(k->hidden, e->path, strlen(e->path) + 1);
    return emit_other(&k->emit, e->dir_b, e->name, e->path, e->b, err);
}

static int diff_put_root(struct to_lay *k, struct err *err)
{
    struct stat st;
    _cleanup_close_ int fd = walk_open_dir(k->d->b, ".");
    if (fd < 0 || fstat(fd, &st) < 0)
        return walk_fail(err, ERR_SETUP, errno, "", "cannot be opened");
    return emit_dir(&k->emit, fd, "", &st, false, err);
}

int diff_to_lay(const struct diff *d, struct lay_out *o, struct err *err)
{
    _cleanup_free_ struct to_lay *k = xcalloc(1, sizeof *k);
    struct diff with = *d;
    with.flags |= DIFF_WITH_TIMES;
    with.each = diff_lay_on_entry;
    with.arg = k;
    k->d = d;
    emit_start(&k->emit, emit_to_stream(o), XATTR_MERGED, d->shift_b);
    int r = diff_put_root(k, err);
    if (r == 0)
        r = diff_trees(&with, err);
    emit_done(&k->emit);
    if (r == 0 && lay_out_end(o) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write the end of the stream");
    return r;
}

/* Stats `path`. Returns the directory that holds it, or -1: errno 0 if there is no such directory, else the failure. */
static int diff_look_up(int root, const char *path, const char **name, struct stat *st, bool *there)
{
    char parent[LAY_PATH_MAX] = ".";
    bool mounted = false;
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV};
    const char *slash = strrchr(path, '/');
    if (slash) {
        memcpy(parent, path, (size_t)(slash - path));
        parent[slash - path] = '\0';
    }
    *name = slash ? slash + 1 : path;
    _cleanup_close_ int dir = (int)syscall(SYS_openat2, root, parent, &how, sizeof how);
    bool none = dir < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EXDEV);
    *there = dir >= 0 && walk_stat(dir, *name, st, &mounted) == 0;
    if (none || mounted) {
        errno = 0;
        return -1;
    }
    return dir < 0 || (!*there && errno != ENOENT) ? -1 : TAKE_FD(dir);
}

/* Writes a whiteout for a path that exists in d->a only: the stream made it. If its parent directory does not exist
 * in d->b, restoring the parent removes it. */
static int diff_put_unmade(struct to_lay *k, const char *path, struct err *err)
{
    const char *name;
    struct stat st;
    bool made = false, there = false;
    _cleanup_close_ int a = diff_look_up(k->d->a, path, &name, &st, &made);
    if (a < 0 && errno != 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be looked at");
    _cleanup_close_ int b = made ? diff_look_up(k->d->b, path, &name, &st, &there) : -1;
    if (made && b < 0 && errno != 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be looked at");
    return made && b >= 0 && !there ? emit_mark(&k->emit, LAY_WHITEOUT, path, err) : 0;
}

static int diff_put_former(struct to_lay *k, const char *path, struct err *err)
{
    struct diff_entry e = {.path = path};
    struct stat st;
    bool there = false;
    _cleanup_close_ int dir = diff_look_up(k->d->b, path, &e.name, &st, &there);
    if (dir < 0)
        return errno ? walk_fail(err, ERR_SETUP, errno, path, "cannot be looked at") : 0;
    if (diff_put_parents(k, path, err) < 0)
        return -1;
    e.dir_b = dir;
    e.b = &st;
    if (!there)
        return 0;
    return S_ISDIR(st.st_mode) ? diff_put_dir(k, &e, err) : emit_other(&k->emit, dir, e.name, path, &st, err);
}

int diff_back_to_lay(const struct diff *d, const struct strv *paths, struct lay_out *o, struct err *err)
{
    _cleanup_free_ struct to_lay *k = xcalloc(1, sizeof *k);
    k->d = d;
    emit_start(&k->emit, emit_to_stream(o), XATTR_MERGED, d->shift_b);
    int r = diff_put_root(k, err);
    for (size_t i = 0; r == 0 && i < paths->n; i++)
        r = paths->v[i][0] ? diff_put_unmade(k, paths->v[i], err) : 0;
    for (size_t i = 0; r == 0 && i < paths->n; i++)
        r = paths->v[i][0] ? diff_put_former(k, paths->v[i], err) : 0;
    emit_done(&k->emit);
    if (r == 0 && lay_out_end(o) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write the end of the stream");
    return r;
}

enum { RECORDS_BYTES_MAX = 64 << 20 }; /* they are kept in memory */

struct to_records {
    const struct diff *d;
    int fd;
    uint64_t n;
    size_t bytes;
    struct buf out;
};

static int diff_flush_records(struct to_records *k, size_t above, struct err *err)
{
    if (k->out.n <= above)
        return 0;
    if (fd_write_all(k->fd, k->out.p, k->out.n) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write the differences");
    k->out.n = 0;
    return 0;
}

static int diff_record_on_entry(void *arg, const struct diff_entry *e, struct err *err)
{
    enum { AT_ONCE = 64 << 10 };
    struct to_records *k = arg;
    struct diff_record r = {
        .magic = DIFF_MAGIC, .kind = e->kind, .what = e->what, .path_len = (uint32_t)strlen(e->path)};
    if (e->a) {
        r.mode_a = e->a->st_mode;
        r.uid_a = e->a->st_uid - k->d->shift_a;
        r.gid_a = e->a->st_gid - k->d->shift_a;
        r.size_a = (uint64_t)e->a->st_size;
        r.mtime_a = e->a->st_mtim.tv_sec;
    }
    if (e->b) {
        r.mode_b = e->b->st_mode;
        r.uid_b = e->b->st_uid - k->d->shift_b;
        r.gid_b = e->b->st_gid - k->d->shift_b;
        r.size_b = (uint64_t)e->b->st_size;
        r.mtime_b = e->b->st_mtim.tv_sec;
    }
    k->bytes += sizeof r + r.path_len;
    if (k->bytes > RECORDS_BYTES_MAX)
        return err_set(err, ERR_LIMIT, 0, "the list of differences is longer than %d bytes, the limit",
                       RECORDS_BYTES_MAX);
    buf_add(&k->out, &r, sizeof r);
    buf_adds(&k->out, e->path);
    k->n++;
    return diff_flush_records(k, AT_ONCE, err);
}

int diff_to_records(const struct diff *d, int fd, struct err *err)
{
    struct to_records k = {.d = d, .fd = fd};
    struct diff with = *d;
    with.each = diff_record_on_entry;
    with.arg = &k;
    int r = diff_trees(&with, err);
    if (r == 0) {
        struct diff_record end = {.magic = DIFF_MAGIC, .size_b = k.n};
        buf_add(&k.out, &end, sizeof end);
        r = diff_flush_records(&k, 0, err);
    }
    buf_done(&k.out);
    return r;
}
