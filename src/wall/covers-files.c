/* covers-files.c - protected files that are replaced from outside: whether the command can, or could, write to the new one.
 *
 * covers-writers.c asks the kernel who has such a file open. Beyond that, events are counted for files that git replaces:
 * git's lock file is closed once after it was written to, and the file that it becomes is never written to in place.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "os/statx.h"
#include "wall/covers-int.h"

/* Git writes "NAME.lock" and renames it to NAME. */
static bool is_git_file(const struct plan_op *op)
{
    const char *name = path_name(op->src);
    return covers_is_file(op) && (strcmp(name, "config") == 0 || strcmp(name, "config.worktree") == 0);
}

bool covers_is_git_dir(const struct covers *c, const char *path)
{
    const struct plan *plan = c->place.spec->plan;
    size_t n = strlen(path);
    for (size_t i = 0; i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (op->src && strncmp(op->src, path, n) == 0 && op->src + n + 1 == path_name(op->src) && is_git_file(op))
            return true;
    }
    return false;
}

/* At the first look: what has not changed since before the start is what the command could not write to. */
static void file_first_look(struct covers *c, size_t i)
{
    const struct plan_op *op = &c->place.spec->plan->ops[i];
    struct covers_file *f = &c->files[i];
    struct stat st;
    *f = (struct covers_file){.wd = -1, .lock_wd = -1, .put_back = -1};
    if (!covers_is_file(op) || covers_doubtful(c, i))
        return;
    f->absent = op->kind == OP_STUB && (lstat(op->src, &st) < 0 || plan_is_stub(&st));
    _cleanup_close_ int fd = f->absent || c->kept > COVERS_FILES_MAX ? -1 : covers_open_file(op->src);
    covers_remember(f, fd);
    c->kept += f->content.n;
}

static void file_lost(struct covers_file *f, const char *sign, bool *ret_lost)
{
    f->sign = f->sign ? f->sign : sign;
    f->pending = false;
    *ret_lost = true;
}

static const char in_place[] = "it was written to in place, which git does not do";

static bool file_identity(int fd, struct identity *ret)
{
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &st) < 0)
        return false;
    *ret = (struct identity){.dev = (uint64_t)st.stx_dev_major << 32 | st.stx_dev_minor, .ino = st.stx_ino};
    ret->born = st.stx_btime;
    return true;
}

/* Whether it is the file that was asked about before, with another content: for the time when no watch says so. */
static bool file_changed_in_place(const struct covers_file *f, int fd)
{
    struct covers_file now = {0};
    struct identity is;
    const struct identity *was = &f->asked_as;
    if (fd < 0 || !f->asked || !f->known || !file_identity(fd, &is) || is.dev != was->dev || is.ino != was->ino ||
        is.born.tv_sec != was->born.tv_sec || is.born.tv_nsec != was->born.tv_nsec)
        return false;
    covers_remember(&now, fd);
    bool same = now.known && now.content.n == f->content.n &&
                (now.content.n == 0 || memcmp(now.content.p, f->content.p, now.content.n) == 0);
    buf_done(&now.content);
    return !same;
}

/* Asks about a file that is new at its name, and covered by now. */
static void file_ask(struct covers *c, size_t i, bool *ret_lost)
{
    const struct plan_op *op = &c->place.spec->plan->ops[i];
    struct covers_file *f = &c->files[i];
    _cleanup_close_ int fd = covers_open_file(op->src);
    enum covers_held held = fd < 0 ? COVERS_FREE : covers_ask(fd);
    f->settled = false;
    f->pending = held == COVERS_BUSY;
    if (f->pending)
        c->busy_ms = covers_now_ms() + COVERS_BUSY_MS;
    else if (held == COVERS_HELD)
        file_lost(f, "the command had it open for writing", ret_lost);
    else if (is_git_file(op) && file_changed_in_place(f, fd))
        file_lost(f, in_place, ret_lost);
    else if (held == COVERS_LINKED && is_git_file(op))
        file_lost(f, "it has a further name through which the command may write to it", ret_lost);
    else if (fd >= 0 && c->notify >= 0 && is_git_file(op)) {
        int wd = inotify_add_watch(c->notify, op->src, IN_MODIFY | IN_CLOSE_WRITE | IN_DONT_FOLLOW);
        if (f->wd >= 0 && f->wd != wd)
            (void)inotify_rm_watch(c->notify, f->wd);
        f->wd = wd;
        f->lock_wd = f->lock_wd == f->wd ? -1 : f->lock_wd;
    }
}

/* With the events up to the answer read: a writer that closed the file before is among them. */
static void file_conclude(struct covers *c, size_t i, bool *ret_lost)
{
    const struct plan_op *op = &c->place.spec->plan->ops[i];
    struct covers_file *f = &c->files[i];
    if (f->pending || f->sign)
        return;
    if (f->written > 1 || f->swapped) {
        file_lost(f,
                  f->swapped ? "another file was put in the place of git's lock file"
                             : "more than one process wrote to it",
                  ret_lost);
        return;
    }
    _cleanup_close_ int fd = covers_open_file(op->src);
    f->written = 0;
    f->settled = f->wd >= 0;
    f->absent = false;
    c->kept -= f->content.n;
    covers_remember(f, c->kept > COVERS_FILES_MAX ? -1 : fd);
    c->kept += f->content.n;
    f->asked = is_git_file(op) && fd >= 0 && file_identity(fd, &f->asked_as);
}

void covers_files_watch(struct covers *c)
{
    for (size_t i = 0; c->files && i < c->place.spec->plan->nops; i++) {
        struct covers_file *f = &c->files[i];
        if (!f->asked || f->wd >= 0)
            continue;
        f->wd =
            inotify_add_watch(c->notify, c->place.spec->plan->ops[i].src, IN_MODIFY | IN_CLOSE_WRITE | IN_DONT_FOLLOW);
        f->settled = f->wd >= 0;
    }
}

bool covers_last_look(struct covers *c)
{
    bool lost = false;
    for (size_t i = 0; c && c->files && i < c->place.spec->plan->nops; i++) {
        _cleanup_close_ int fd = c->files[i].asked ? covers_open_file(c->place.spec->plan->ops[i].src) : -1;
        if (!c->files[i].sign && file_changed_in_place(&c->files[i], fd))
            file_lost(&c->files[i], in_place, &lost);
    }
    return lost;
}

void covers_files_first_look(struct covers *c)
{
    c->files = xcalloc(c->place.spec->plan->nops, sizeof *c->files);
    for (size_t i = 0; i < c->place.spec->plan->nops; i++)
        file_first_look(c, i);
}

/* An event of a directory with files that git replaces, about the file or its lock file. */
static void file_on_event(struct covers *c, size_t i, const struct inotify_event *e, bool lock)
{
    struct covers_file *f = &c->files[i];
    if (lock && (e->mask & IN_CREATE)) {
        _cleanup_free_ char *path = xasprintf("%s.lock", c->place.spec->plan->ops[i].src);
        int wd = inotify_add_watch(c->notify, path, IN_MODIFY | IN_CLOSE_WRITE | IN_DONT_FOLLOW);
        if (f->lock_wd >= 0 && f->lock_wd != wd && f->lock_wd != f->wd)
            (void)inotify_rm_watch(c->notify, f->lock_wd);
        f->lock_wd = wd;
        f->lock_closes[0] = f->lock_closes[1] = 0;
        f->lock_changed = f->lock_swapped = false;
    } else if (lock && (e->mask & IN_MOVED_TO)) {
        f->lock_swapped = true; /* git makes it by its name */
    } else if (lock) {
        f->lock_changed = f->lock_changed || (e->mask & IN_MODIFY);
        f->lock_closes[0] += f->lock_changed && (e->mask & IN_CLOSE_WRITE);
    } else if (e->mask & (IN_CREATE | IN_MOVED_TO)) {
        unsigned closes = f->lock_closes[0] > f->lock_closes[1] ? f->lock_closes[0] : f->lock_closes[1];
        f->was_lock = (e->mask & IN_MOVED_TO) && closes > 0;
        f->written = f->was_lock ? closes : 0; /* else an editor put it there, its own way */
        f->swapped = f->lock_swapped && (e->mask & IN_MOVED_TO);
        f->lock_closes[0] = f->lock_closes[1] = 0;
        f->lock_swapped = f->settled = false;
    } else if (!f->settled && (e->mask & IN_CLOSE_WRITE)) {
        f->written += f->was_lock;
    }
}

static void file_on_own_event(struct covers *c, size_t i, const struct inotify_event *e, bool *ret_lost)
{
    struct covers_file *f = &c->files[i];
    if (e->wd == f->lock_wd) {
        f->lock_changed = f->lock_changed || (e->mask & IN_MODIFY);
        f->lock_closes[1] += f->lock_changed && (e->mask & IN_CLOSE_WRITE);
    }
    if (e->wd == f->wd && f->settled && (e->mask & (IN_MODIFY | IN_CLOSE_WRITE)))
        file_lost(f, in_place, ret_lost);
    if (e->mask & IN_IGNORED) {
        f->lock_wd = e->wd == f->lock_wd ? -1 : f->lock_wd;
        f->wd = e->wd == f->wd ? -1 : f->wd;
    }
}

/* dir: the watched directory that the event is of; NULL: it is of a file itself. */
void covers_files_on_event(struct covers *c, const struct watched *dir, const struct inotify_event *e, bool *ret_lost)
{
    const struct plan *plan = c->place.spec->plan;
    for (size_t i = 0; i < plan->nops && c->files; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (!dir && (c->files[i].wd == e->wd || c->files[i].lock_wd == e->wd))
            file_on_own_event(c, i, e, ret_lost);
        size_t n = dir ? strlen(dir->path) : 0;
        if (!dir || !dir->git || !op->src || strncmp(op->src, dir->path, n) != 0 || !is_git_file(op) ||
            op->src + n + 1 != path_name(op->src))
            continue;
        size_t len = strlen(path_name(op->src));
        if (strncmp(e->name, path_name(op->src), len) == 0 &&
            (e->name[len] == '\0' || strcmp(e->name + len, ".lock") == 0))
            file_on_event(c, i, e, e->name[len] != '\0');
    }
}

bool covers_files_ask(struct covers *c, const struct covers_set *set, struct covers_set *ret_asked, bool *ret_lost)
{
    const struct plan *plan = c->place.spec->plan;
    bool due = c->busy_ms && c->busy_ms <= covers_now_ms();
    c->busy_ms = due ? 0 : c->busy_ms;
    for (size_t i = 0; c->files && (set->any || due) && i < plan->nops; i++)
        if (covers_is_file(&plan->ops[i]) && (covers_has(set, i) || (due && c->files[i].pending))) {
            file_ask(c, i, ret_lost);
            covers_add(ret_asked, i);
        }
    return ret_asked->any;
}

void covers_files_conclude(struct covers *c, const struct covers_set *asked, bool *ret_lost)
{
    for (size_t i = 0; i < c->place.spec->plan->nops; i++)
        if (covers_has(asked, i))
            file_conclude(c, i, ret_lost);
}

/* --- after the run ------------------------------------------------------------------------------------------------- */

/* The command may have put another file there while it was being killed. */
static bool file_is_back(const struct covers_file *f, const char *path)
{
    struct stat st;
    bool there = lstat(path, &st) == 0;
    if (f->put_back != 0)
        return false;
    return f->absent ? !there || plan_is_stub(&st)
                     : there && st.st_dev == f->back_dev && st.st_ino == f->back_ino && st.st_nlink == 1;
}

void covers_settle(struct covers *c)
{
    for (size_t i = 0; c && c->files && i < c->place.spec->plan->nops; i++) {
        struct covers_file *f = &c->files[i];
        const char *path = c->place.spec->plan->ops[i].src;
        struct stat st;
        if (!f->sign || file_is_back(f, path))
            continue;
        free(TAKE_PTR(f->suspect));
        f->put_back = covers_put_back(f, path, &f->suspect) < 0 ? errno : 0;
        if (f->put_back == 0 && lstat(path, &st) == 0) {
            f->back_dev = st.st_dev;
            f->back_ino = st.st_ino;
        }
    }
}

static void file_note(const struct covers *c, size_t i, struct strv *ret)
{
    const struct covers_file *f = &c->files[i];
    _cleanup_buf_ struct buf b = {0};
    text_add_safe(&b, c->place.spec->plan->ops[i].src, 400);
    buf_addf(&b, " was replaced from outside, and %s: look at it before a program uses it", f->sign);
    if (f->put_back == 0) {
        buf_adds(&b, "; the file that was there before is back, the other one is now ");
        text_add_safe(&b, f->suspect, 400);
    } else if (f->put_back > 0) {
        buf_addf(&b, "; the file that was there before could not be put back (%s)",
                 f->known || f->absent ? strerror(f->put_back) : "it is not known");
    }
    strv_add(ret, buf_str(&b));
}

void covers_files_notes(const struct covers *c, struct strv *ret)
{
    for (size_t i = 0; c->files && i < c->place.spec->plan->nops; i++)
        if (c->files[i].sign)
            file_note(c, i, ret);
}

void covers_files_free(struct covers *c)
{
    for (size_t i = 0; c->files && i < c->place.spec->plan->nops; i++) {
        buf_done(&c->files[i].content);
        free(c->files[i].suspect);
    }
    free(c->files);
}
