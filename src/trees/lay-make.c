/* lay-make.c - creates the entries of a lay stream below one directory. Every parent is resolved from the root, through
 * no link and into no other mount, even if the stream created links there before. See lay.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/text.h"
#include "trees/lay-int.h"
#include "trees/tree.h"

enum { CAPABILITY_MAX = 24 };

static enum xattr_view lay_xattr_view(const struct lay_maker *m)
{
    return m->flags & LAY_USERXATTR ? XATTR_USER : XATTR_TRUSTED;
}

static void lay_note_dropped(struct lay_maker *m, const char *path, const char *what, int eno)
{
    struct err told = {0};
    if (m->done->dropped++ > 0)
        return;
    (void)walk_fail(&told, ERR_USAGE, eno, path, "%s is left out", what);
    memcpy(m->done->note, told.msg, strnlen(told.msg, sizeof m->done->note - 1));
}

static void lay_forget_parent(struct lay_maker *m)
{
    if (m->parent >= 0)
        (void)close(m->parent);
    m->parent = -1;
}

/* The entry at path is about to change: close the cached parent if it is at or below path. */
static void lay_forget_below(struct lay_maker *m, const char *path)
{
    size_t n = strlen(path);
    if (n == 0 || (strncmp(m->parent_path, path, n) == 0 && (m->parent_path[n] == '/' || m->parent_path[n] == '\0')))
        lay_forget_parent(m);
}

static bool has_default_acl(int dir) { return fgetxattr(dir, "system.posix_acl_default", NULL, 0) > 0; }

/* Removes what a new entry inherited from its directory's default ACL. */
static void lay_strip_acl(int fd)
{
    (void)fremovexattr(fd, "system.posix_acl_access");
    (void)fremovexattr(fd, "system.posix_acl_default");
}

static bool lay_is_made(const struct lay_maker *m, const struct stat *st)
{
    return walk_inos_get(&m->made, st->st_dev, st->st_ino);
}

static int lay_note_made(struct lay_maker *m, const char *path, const struct stat *st, struct err *err)
{
    if (!lay_is_made(m, st) && !walk_inos_put(&m->made, st->st_dev, st->st_ino, NULL))
        return walk_fail(err, ERR_LIMIT, 0, path, "more than %d files in one stream", WALK_INOS_MAX);
    return 0;
}

/* LAY_PLAIN: notes that the stream describes this directory. */
static int lay_note_dir(struct lay_maker *m, const char *path, int fd, struct err *err)
{
    struct stat st;
    if (!(m->flags & LAY_PLAIN))
        return 0;
    if (fstat(fd, &st) < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be looked at");
    return lay_note_made(m, path, &st, err);
}

static int lay_set_later(struct lay_maker *m, const char *path, uint32_t mode, int64_t sec, uint32_t nsec,
                         struct err *err)
{
    m->later_bytes += sizeof *m->later + strlen(path) + 1;
    if (m->later_bytes > LAY_LATER_BYTES_MAX)
        return walk_fail(err, ERR_LIMIT, 0, path, "too many directories in one stream");
    MEM_GROW(m->later, m->nlater, m->later_cap);
    m->later[m->nlater++] = (struct lay_later){xstrdup(path), sec, nsec, mode};
    return 0;
}

/* A new directory `name` in `at`, open to us alone until the end. */
static int lay_new_dir(struct lay_maker *m, int at, const char *name, const char *path, bool opaque, struct err *err)
{
    if (mkdirat(at, name, 0700) < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be made");
    _cleanup_close_ int fd = walk_open_dir(at, name);
    if (fd < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be opened");
    if (has_default_acl(at))
        lay_strip_acl(fd);
    if (opaque && !(m->flags & LAY_PLAIN) && xattr_mark_opaque(fd, lay_xattr_view(m)) < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be marked opaque");
    return TAKE_FD(fd);
}

static int lay_refuse_parent(int at, const char *name, const char *part, const char *whole, const struct stat *st,
                             struct err *err)
{
    _cleanup_buf_ struct buf safe = {0};
    char target[LAY_PATH_MAX];
    text_add_safe(&safe, part, 300);
    if (!S_ISLNK(st->st_mode))
        return walk_fail(err, ERR_USAGE, 0, whole, "lies below '%s', which is not a directory", buf_str(&safe));
    ssize_t n = readlinkat(at, name, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    buf_adds(&safe, "', which is a symbolic link to '");
    text_add_safe(&safe, target, 100);
    return walk_fail(err, ERR_USAGE, 0, whole, "lies below '%s'", buf_str(&safe));
}

/* Opens the next directory on the way; with `make`, creates it if it is missing. `part` is the path up to it,
 * `whole` the path of the entry. */
static int lay_step_down(struct lay_maker *m, int at, const char *part, const char *whole, bool make, struct err *err)
{
    const char *slash = strrchr(part, '/'), *name = slash ? slash + 1 : part;
    struct stat st;
    bool mounted = false, missing = walk_stat(at, name, &st, &mounted) < 0;
    if (missing && (errno != ENOENT || !make))
        return walk_fail(err, errno == ENOENT ? ERR_USAGE : ERR_SETUP, errno, whole, "cannot be reached");
    if (!missing && mounted)
        return walk_fail(err, ERR_USAGE, EXDEV, whole, "something else is mounted on the way to it");
    bool hidden = !missing && walk_is_whiteout(&st) && make;
    if (!missing && !S_ISDIR(st.st_mode) && !hidden)
        return lay_refuse_parent(at, name, part, whole, &st, err);
    if (hidden && unlinkat(at, name, 0) < 0)
        return walk_fail(err, ERR_SETUP, errno, part, "cannot be replaced");
    if (!missing && !hidden) {
        int fd = walk_open_dir(at, name);
        return fd < 0 ? walk_fail(err, ERR_SETUP, errno, part, "cannot be opened") : fd;
    }
    _cleanup_close_ int fd = lay_new_dir(m, at, name, part, hidden, err);
    if (fd < 0 || lay_note_dir(m, part, fd, err) < 0 || lay_set_later(m, part, 0755, 0, 0, err) < 0)
        return -1;
    if (!(m->flags & LAY_NO_CHOWN) && fchown(fd, 0, 0) < 0)
        return walk_fail(err, ERR_SETUP, errno, part, "its owner cannot be set");
    return TAKE_FD(fd);
}

/* Opens the directory at path with one openat2(); if that fails, part by part, to create what is missing or to name the
 * part that is wrong. */
static int lay_open_dir(struct lay_maker *m, const char *path, const char *whole, bool make, struct err *err)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV};
    int fd = (int)syscall(SYS_openat2, m->root, path[0] ? path : ".", &how, sizeof how);
    if (fd >= 0)
        return fd;
    if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENOSYS && errno != EXDEV)
        return walk_fail(err, ERR_SETUP, errno, whole, "cannot be reached");
    char part[LAY_PATH_MAX];
    int at = walk_open_dir(m->root, ".");
    if (at < 0)
        return walk_fail(err, ERR_SETUP, errno, "", "cannot be opened");
    for (size_t n = 0; path[n];) {
        n += strcspn(path + n, "/");
        memcpy(part, path, n);
        part[n] = '\0';
        int next = lay_step_down(m, at, part, whole, make, err);
        (void)close(at);
        if (next < 0)
            return -1;
        at = next;
        n += path[n] == '/';
    }
    return at;
}

static void lay_split_path(const char *path, char parent[LAY_PATH_MAX], const char **name)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    memcpy(parent, path, n);
    parent[n] = '\0';
    *name = slash ? slash + 1 : path;
}

/* Parent directory of the entry in m->parent, its name there in *name. */
static int lay_go_to_parent(struct lay_maker *m, const char *path, const char **name, struct err *err)
{
    char parent[LAY_PATH_MAX];
    lay_split_path(path, parent, name);
    if (m->parent >= 0 && strcmp(m->parent_path, parent) == 0)
        return 0;
    lay_forget_parent(m);
    m->parent = lay_open_dir(m, parent, path, true, err);
    if (m->parent < 0)
        return -1;
    m->parent_acl = has_default_acl(m->parent);
    memcpy(m->parent_path, parent, strlen(parent) + 1);
    return 0;
}

/* Removes what is at the entry's place: the later record wins. */
static int lay_make_room(struct lay_maker *m, const char *name, const char *path, struct err *err)
{
    if (unlinkat(m->parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return walk_fail(err, ERR_SETUP, errno, path, "what is there cannot be replaced");
    return tree_remove(m->parent, name, err);
}

/* Owner and attributes; then mode and time, unless it is a directory. */
static int lay_set_attributes(struct lay_maker *m, const struct lay_entry *e, int fd, bool dir, struct err *err)
{
    struct xattr_item x;
    if (!(m->flags & LAY_NO_CHOWN) && fchown(fd, e->r.uid, e->r.gid) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "its owner cannot be set");
    for (size_t at = 0; xattr_next(e->xattrs, e->r.xattrs_len, &at, &x) > 0;) {
        bool overlay = strncmp(x.name, "user.overlay.", 13) == 0;
        if (overlay || !xattr_kept(x.name, XATTR_MERGED)) {
            lay_note_dropped(m, e->path, x.name, 0);
            continue;
        }
        unsigned char value[CAPABILITY_MAX];
        if (strcmp(x.name, "security.capability") == 0 && x.n <= sizeof value) {
            memcpy(value, x.value, x.n);
            x.value = value;
            if (!xattr_capability(value, &x.n, 0)) { /* set by root of another user namespace */
                lay_note_dropped(m, e->path, x.name, 0);
                continue;
            }
        }
        if (fsetxattr(fd, x.name, x.value, x.n, 0) == 0)
            continue;
        /* ENOSPC may also mean that the file system has no room for so many attributes of one file. */
        if (errno != ENOTSUP && errno != EPERM && errno != EACCES && errno != EINVAL && errno != ERANGE &&
            errno != E2BIG && (errno != ENOSPC || m->flags & LAY_WHOLE))
            return walk_fail(err, ERR_SETUP, errno, e->path, "attribute %s cannot be set", x.name);
        lay_note_dropped(m, e->path, x.name, errno);
    }
    if (dir && lay_note_dir(m, e->path, fd, err) < 0)
        return -1;
    if (dir)
        return lay_set_later(m, e->path, e->r.mode, e->r.mtime_sec, e->r.mtime_nsec, err);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {e->r.mtime_sec, e->r.mtime_nsec}};
    if (fchmod(fd, e->r.mode) < 0 || futimens(fd, times) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "its mode or time cannot be set");
    return 0;
}

static int lay_set_attributes_at(struct lay_maker *m, const struct lay_entry *e, const char *name, struct err *err)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {e->r.mtime_sec, e->r.mtime_nsec}};
    struct stat st;
    if (fstatat(m->parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "cannot be looked at");
    if (lay_note_made(m, e->path, &st, err) < 0)
        return -1;
    if (!(m->flags & LAY_NO_CHOWN) && fchownat(m->parent, name, e->r.uid, e->r.gid, AT_SYMLINK_NOFOLLOW) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "its owner cannot be set");
    if (e->r.type == LAY_FIFO && fchmodat(m->parent, name, e->r.mode, AT_SYMLINK_NOFOLLOW) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "its mode cannot be set");
    if (utimensat(m->parent, name, times, AT_SYMLINK_NOFOLLOW) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "its time cannot be set");
    return 0;
}

int lay_make_file(struct lay_maker *m, const struct lay_entry *e, int *ret_fd, struct err *err)
{
    const char *name;
    struct stat st;
    const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    if (lay_go_to_parent(m, e->path, &name, err) < 0)
        return -1;
    *ret_fd = openat(m->parent, name, how, 0600);
    if (*ret_fd < 0 && errno == EEXIST) {
        if (lay_make_room(m, name, e->path, err) < 0)
            return -1;
        *ret_fd = openat(m->parent, name, how, 0600);
    }
    if (*ret_fd < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "cannot be made");
    if (m->parent_acl)
        lay_strip_acl(*ret_fd);
    if (fstat(*ret_fd, &st) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "cannot be looked at");
    return lay_note_made(m, e->path, &st, err);
}

int lay_make_file_done(struct lay_maker *m, const struct lay_entry *e, int fd, struct err *err)
{
    return lay_set_attributes(m, e, fd, false, err);
}

static int make_dir(struct lay_maker *m, const struct lay_entry *e, struct err *err)
{
    const char *name;
    struct stat st;
    bool mounted = false;
    if (lay_go_to_parent(m, e->path, &name, err) < 0)
        return -1;
    bool there = walk_stat(m->parent, name, &st, &mounted) == 0, whiteout = there && walk_is_whiteout(&st);
    if (there && !S_ISDIR(st.st_mode) && lay_make_room(m, name, e->path, err) < 0)
        return -1;
    if (there && S_ISDIR(st.st_mode)) {
        lay_forget_below(m, e->path);
        _cleanup_close_ int fd = lay_open_dir(m, e->path, e->path, false, err);
        if (fd < 0)
            return -1;
        if (xattr_clear(fd) < 0)
            return walk_fail(err, ERR_SETUP, errno, e->path, "its attributes cannot be replaced");
        return lay_set_attributes(m, e, fd, true, err);
    }
    _cleanup_close_ int fd = lay_new_dir(m, m->parent, name, e->path, whiteout, err);
    return fd < 0 ? -1 : lay_set_attributes(m, e, fd, true, err);
}

static int make_hardlink(struct lay_maker *m, const struct lay_entry *e, const char *name, struct err *err)
{
    _cleanup_buf_ struct buf safe = {0};
    char parent[LAY_PATH_MAX];
    const char *target;
    struct stat st;
    text_add_safe(&safe, e->target, 300);
    if (strcmp(e->path, e->target) == 0)
        return walk_fail(err, ERR_USAGE, 0, e->path, "is a hard link to itself");
    lay_split_path(e->target, parent, &target);
    if (lay_make_room(m, name, e->path, err) < 0)
        return -1;
    _cleanup_close_ int dir = lay_open_dir(m, parent, e->target, false, err);
    if (dir < 0)
        return err_wrap(err, "a hard link to it cannot be made");
    if (fstatat(dir, target, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode) || !lay_is_made(m, &st))
        return walk_fail(err, ERR_USAGE, 0, e->path, "is a hard link to '%s', which is not a file that came before it",
                         buf_str(&safe));
    if (linkat(dir, target, m->parent, name, 0) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "cannot be linked to '%s'", buf_str(&safe));
    return 0;
}

static int make_whiteout(struct lay_maker *m, const struct lay_entry *e, struct err *err)
{
    const char *name;
    if (lay_go_to_parent(m, e->path, &name, err) < 0 || lay_make_room(m, name, e->path, err) < 0)
        return -1;
    if (!(m->flags & LAY_PLAIN) && mknodat(m->parent, name, S_IFCHR, makedev(0, 0)) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "a whiteout cannot be made");
    return 0;
}

static int make_by_name(struct lay_maker *m, const struct lay_entry *e, struct err *err)
{
    const char *name;
    if (lay_go_to_parent(m, e->path, &name, err) < 0)
        return -1;
    if (e->r.type == LAY_HARDLINK)
        return make_hardlink(m, e, name, err);
    for (int again = 0;; again++) {
        int r =
            e->r.type == LAY_FIFO ? mknodat(m->parent, name, S_IFIFO | 0600, 0) : symlinkat(e->target, m->parent, name);
        if (r == 0)
            return lay_set_attributes_at(m, e, name, err);
        if (errno != EEXIST || again)
            return walk_fail(err, ERR_SETUP, errno, e->path, "cannot be made");
        if (lay_make_room(m, name, e->path, err) < 0)
            return -1;
    }
}

static int lay_sweep_dir(struct lay_maker *m, int dir, const char *path, unsigned depth, struct err *err);

/* Removes one former entry. A former directory stays if it holds an entry of this stream. */
static int lay_sweep_entry(struct lay_maker *m, int dir, const char *name, const char *path, unsigned depth,
                           struct err *err)
{
    struct stat st;
    bool mounted = false;
    if (walk_stat(dir, name, &st, &mounted) < 0)
        return errno == ENOENT ? 0 : walk_fail(err, ERR_SETUP, errno, path, "what is in it cannot be looked at");
    bool ours = lay_is_made(m, &st);
    if (!S_ISDIR(st.st_mode) && ours)
        return 0;
    if (!S_ISDIR(st.st_mode) || mounted || depth == LAY_DEPTH_MAX) /* streams have no deeper entries */
        return tree_remove(dir, name, err);
    _cleanup_close_ int sub = walk_open_dir(dir, name);
    if (sub < 0 && errno == EACCES && !ours) /* the stream could not enter it either */
        return tree_remove(dir, name, err);
    if (sub < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "what is in it cannot be opened");
    if (lay_sweep_dir(m, sub, path, depth + 1, err) < 0)
        return -1;
    if (!ours && unlinkat(dir, name, AT_REMOVEDIR) < 0 && errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT)
        return walk_fail(err, ERR_SETUP, errno, path, "what is in it cannot be removed");
    return 0;
}

/* Removes what was in the directory before the stream. Each directory is swept once: later entries are the stream's
 * own. */
static int lay_sweep_dir(struct lay_maker *m, int dir, const char *path, unsigned depth, struct err *err)
{
    _cleanup_names_ struct walk_names names = {0};
    struct stat st;
    if (fstat(dir, &st) < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be looked at");
    if (walk_inos_get(&m->swept, st.st_dev, st.st_ino))
        return 0;
    if (walk_names_read(dir, path, &names, err) < 0)
        return -1;
    for (size_t i = 0; i < names.n; i++)
        if (lay_sweep_entry(m, dir, names.v[i], path, depth, err) < 0)
            return -1;
    if (!walk_inos_put(&m->swept, st.st_dev, st.st_ino, NULL))
        return walk_fail(err, ERR_LIMIT, 0, path, "more than %d directories are emptied in one stream", WALK_INOS_MAX);
    return 0;
}

static int make_opaque(struct lay_maker *m, const struct lay_entry *e, struct err *err)
{
    _cleanup_close_ int fd = lay_open_dir(m, e->path, e->path, true, err);
    if (fd < 0)
        return -1;
    lay_forget_below(m, e->path);
    if (m->flags & LAY_PLAIN)
        return lay_sweep_dir(m, fd, e->path, 0, err);
    if (xattr_mark_opaque(fd, lay_xattr_view(m)) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "cannot be marked opaque");
    m->done->alone |= e->path[0] == '\0';
    return 0;
}

static int make_meta(struct lay_maker *m, const struct lay_entry *e, struct err *err)
{
    _cleanup_close_ int fd = lay_open_dir(m, e->path, e->path, false, err);
    if (fd < 0)
        return -1;
    lay_forget_below(m, e->path);
    m->root_said |= e->path[0] == '\0';
    if (xattr_clear(fd) < 0)
        return walk_fail(err, ERR_SETUP, errno, e->path, "its attributes cannot be replaced");
    return lay_set_attributes(m, e, fd, true, err);
}

int lay_make_entry(struct lay_maker *m, const struct lay_entry *e, struct err *err)
{
    switch (e->r.type) {
    case LAY_DIR:
        return make_dir(m, e, err);
    case LAY_WHITEOUT:
        return make_whiteout(m, e, err);
    case LAY_OPAQUE:
        return make_opaque(m, e, err);
    case LAY_META:
        return make_meta(m, e, err);
    default:
        return make_by_name(m, e, err);
    }
}

int lay_make_start(struct lay_maker *m, int root, unsigned flags, struct lay_done *done, struct err *err)
{
    _cleanup_names_ struct walk_names names = {0};
    m->parent = m->root = -1;
    m->flags = flags;
    m->done = done;
    m->root = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* the caller's may be O_PATH */
    if (m->root < 0)
        return walk_fail(err, ERR_SETUP, errno, "", "cannot be opened");
    if (walk_names_some(m->root, 1, "", &names, err) < 0)
        return -1;
    m->fresh = names.n == 0 && !(flags & LAY_PLAIN);
    return 0;
}

/* Sets mode and time. If path is no longer a directory, a later record replaced it: skip it. */
static int lay_apply_later(struct lay_maker *m, const struct lay_later *l, struct err *err)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {l->sec, l->nsec}};
    struct err gone = {0};
    _cleanup_close_ int fd = lay_open_dir(m, l->path, l->path, false, &gone);
    if (fd < 0 && gone.code != ERR_USAGE) {
        *err = gone;
        return -1;
    }
    if (fd >= 0 && (fchmod(fd, l->mode) < 0 || futimens(fd, times) < 0))
        return walk_fail(err, ERR_SETUP, errno, l->path, "its mode or time cannot be set");
    return 0;
}

/* Goes backwards, so that subdirectories are reached before their parent's mode may forbid it. Of several notes for one
 * path the last counts: each creation of a directory adds a note, so the last one describes the directory that is there
 * now, however often the stream replaced it. Inode numbers would not identify it: an overlay over several file systems
 * numbers a directory anew whenever the kernel has dropped it from its cache. */
int lay_make_end(struct lay_maker *m, struct err *err)
{
    if (m->fresh && !m->root_said) {
        if (!(m->flags & LAY_NO_CHOWN) && fchown(m->root, 0, 0) < 0)
            return walk_fail(err, ERR_SETUP, errno, "", "its owner cannot be set");
        if (lay_set_later(m, "", 0755, 0, 0, err) < 0)
            return -1;
    }
    struct map set = {0};
    int r = 0;
    for (size_t i = m->nlater; r == 0 && i > 0; i--) {
        struct lay_later *l = &m->later[i - 1];
        if (!map_put(&set, l->path, l))
            r = lay_apply_later(m, l, err);
    }
    map_done(&set);
    return r;
}

void lay_make_done(struct lay_maker *m)
{
    lay_forget_parent(m);
    if (m->root >= 0)
        (void)close(m->root);
    for (size_t i = 0; i < m->nlater; i++)
        free(m->later[i].path);
    free(m->later);
    walk_inos_done(&m->made);
    walk_inos_done(&m->swept);
}
