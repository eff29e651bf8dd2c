/* work-watch.c - a long-lived helper that reports changes in a directory. When front does not read, it waits and the
 * kernel's bounded queue fills: then the watch fails and says so. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/work.h"

enum { DIRS_MAX = 8192, NAMES_BYTES = 32 << 20, DEPTH_MAX = 64 };

#define EVENTS \
    (IN_CREATE | IN_MOVED_TO | IN_MODIFY | IN_DELETE | IN_DELETE_SELF | IN_MOVED_FROM | IN_MOVE_SELF | IN_ATTRIB)

/* One watch at a time in this process. */
static struct {
    int inotify;
    bool recursive, with_info;
    uint32_t upload; /* cookie of an upload that is being put in its place; 0: none */
    char *names;     /* bump memory for relative paths */
    size_t used;
    unsigned n;
    struct {
        int wd; /* -1: free */
        const char *rel;
    } dir[DIRS_MAX]; /* dir[0] is the watched directory itself, "" */
} watch;

static void watch_give_up(struct work *w, enum init_code code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
static void watch_give_up(struct work *w, enum init_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    work_end(w, INIT_WATCH_FAILED, code, fmt, ap);
}

/* Opened for each use: an open descriptor would delay the event that the directory is gone. */
static int open_root(const struct work *w) { return work_open(AT_FDCWD, w->path, O_PATH | O_DIRECTORY, 0); }

static void tell(struct work *w, enum init_event type, const char *rel)
{
    static char full[INIT_PATH_MAX * 2];
    struct init_info i;
    struct wire_out o = work_begin(w);
    bool have = false;
    if (watch.with_info && (type == INIT_EV_CREATED || type == INIT_EV_WRITTEN || type == INIT_EV_CHMOD)) {
        (void)snprintf(full, sizeof full, "%s%s%s", strcmp(w->path, "/") == 0 ? "" : w->path, rel[0] ? "/" : "", rel);
        _cleanup_close_ int root = open_root(w);
        have = root >= 0 && work_info(w, root, rel[0] ? rel : ".", full, &i) == 0;
    }
    wire_put_u32(&o, type);
    wire_put_str(&o, rel[0] ? rel : ".");
    wire_put_u32(&o, have);
    if (have)
        init_put_info(&o, &i);
    if (work_send(w, INIT_WATCH_EVENT, &o, -1) < 0)
        _exit(0);
}

/* Keeps a relative path. Paths of directories that are gone are thrown out when the memory is full. False: still full. */
static bool keep_name(const char *rel, const char **ret)
{
    size_t len = strlen(rel) + 1;
    if (NAMES_BYTES - watch.used < len) {
        char *fresh =
            mmap(NULL, NAMES_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fresh == MAP_FAILED)
            return false;
        watch.used = 0;
        for (unsigned i = 0; i < watch.n; i++) {
            if (watch.dir[i].wd < 0 || !watch.dir[i].rel)
                continue;
            size_t n = strlen(watch.dir[i].rel) + 1;
            watch.dir[i].rel = memcpy(fresh + watch.used, watch.dir[i].rel, n);
            watch.used += n;
        }
        (void)munmap(watch.names, NAMES_BYTES);
        watch.names = fresh;
    }
    if (NAMES_BYTES - watch.used < len)
        return false;
    *ret = memcpy(watch.names + watch.used, rel, len);
    watch.used += len;
    return true;
}

/* Adds one directory. False: it is not there any more. */
static bool add_dir(struct work *w, const char *rel)
{
    char path[INIT_PATH_MAX + 64];
    const char *name;
    _cleanup_close_ int root = open_root(w);
    if (root < 0)
        return false;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d%s%s", root, rel[0] ? "/" : "", rel);
    int wd = inotify_add_watch(watch.inotify, path,
                               EVENTS | IN_ONLYDIR | IN_EXCL_UNLINK | (rel[0] ? (uint32_t)IN_DONT_FOLLOW : 0U));
    if (wd < 0)
        return false;
    unsigned at = 0;
    while (at < watch.n && watch.dir[at].wd != wd)
        at++;
    for (unsigned i = 1; at == watch.n && i < watch.n; i++)
        if (watch.dir[i].wd == -1)
            at = i;
    if (at == DIRS_MAX || !keep_name(rel, &name)) {
        (void)inotify_rm_watch(watch.inotify, wd);
        errno = ENOSPC;
        return false;
    }
    if (at == watch.n)
        watch.n++;
    watch.dir[at].wd = wd;
    watch.dir[at].rel = name;
    return true;
}

/* Watches a directory and its subdirectories. With `announce`, entries that are already there are reported as
 * created. */
static bool add_tree(struct work *w, const char *rel, bool announce, unsigned depth)
{
    _Alignas(struct dirent64) char buf[4096];
    if (!add_dir(w, rel))
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP;
    if (!watch.recursive || depth >= DEPTH_MAX)
        return true;
    _cleanup_close_ int root = open_root(w);
    _cleanup_close_ int fd = work_open(root, rel[0] ? rel : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd < 0)
        return true;
    for (ssize_t n; (n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0;) {
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(buf + at);
            char sub[INIT_PATH_MAX];
            struct stat st;
            at += e->d_reclen;
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                continue;
            if (snprintf(sub, sizeof sub, "%s%s%s", rel, rel[0] ? "/" : "", e->d_name) >= (int)sizeof sub)
                continue;
            if (announce && !work_is_upload(e->d_name))
                tell(w, INIT_EV_CREATED, sub);
            if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
                !add_tree(w, sub, announce, depth + 1))
                return false;
        }
    }
    return true;
}

/* The part of `path` behind `rel`; NULL if it is not at or below it. */
static const char *watch_path_below(const char *path, const char *rel)
{
    size_t n = strlen(rel);
    return path && strncmp(path, rel, n) == 0 && (path[n] == '\0' || path[n] == '/') ? path + n : NULL;
}

static void forget_tree(const char *rel)
{
    for (unsigned i = 1; i < watch.n; i++) {
        if (watch.dir[i].wd < 0 || !watch_path_below(watch.dir[i].rel, rel))
            continue;
        watch.dir[i].rel = NULL; /* IN_IGNORED frees the place */
        (void)inotify_rm_watch(watch.inotify, watch.dir[i].wd);
    }
}

/* Watches follow the directory, not its name. */
static void rename_tree(const char *from, const char *to)
{
    char path[INIT_PATH_MAX];
    for (unsigned i = 1; i < watch.n; i++) {
        const char *rest = watch.dir[i].wd < 0 ? NULL : watch_path_below(watch.dir[i].rel, from);
        if (!rest)
            continue;
        const char *name;
        if (snprintf(path, sizeof path, "%s%s", to, rest) < (int)sizeof path && keep_name(path, &name))
            watch.dir[i].rel = name;
    }
}

/* A directory that was moved away; the next event tells whether it was only renamed. */
static struct {
    bool set;
    uint32_t cookie;
    char rel[INIT_PATH_MAX * 2];
} moving;

static void settle_move(void)
{
    if (moving.set)
        forget_tree(moving.rel);
    moving.set = false;
}

static void follow_dirs(struct work *w, const struct inotify_event *e, const char *rel)
{
    if (e->mask & IN_MOVED_FROM) {
        moving.set = true;
        moving.cookie = e->cookie;
        (void)snprintf(moving.rel, sizeof moving.rel, "%s", rel);
    } else if ((e->mask & IN_MOVED_TO) && moving.set) {
        rename_tree(moving.rel, rel);
        moving.set = false;
    } else if ((e->mask & (IN_CREATE | IN_MOVED_TO)) && !add_tree(w, rel, e->mask & IN_CREATE, 1)) {
        watch_give_up(w, INIT_LIMIT, "cannot watch more directories under '%.160s' (at most %d)", w->path, DIRS_MAX);
    }
}

/* Hides uploads: their temporary name (work-upload.c), and the final rename over an existing file, because the write
 * event that follows says enough. */
static bool watch_hides(const struct inotify_event *e)
{
    if (e->mask & (IN_ISDIR | IN_Q_OVERFLOW))
        return false;
    if (e->len && work_is_upload(e->name)) {
        if (e->mask & IN_MOVED_FROM)
            watch.upload = e->cookie;
        return true;
    }
    if (!(e->mask & IN_MOVED_TO) || watch.upload == 0 || e->cookie != watch.upload)
        return false;
    watch.upload = 0;
    return true;
}

static void watch_on_inotify(struct work *w, const struct inotify_event *e)
{
    char rel[INIT_PATH_MAX * 2];
    if (watch_hides(e))
        return;
    if (e->mask & IN_Q_OVERFLOW)
        watch_give_up(w, INIT_LIMIT, "too many changes at once under '%.160s'; some were lost", w->path);
    if (moving.set && !((e->mask & IN_MOVED_TO) && e->cookie == moving.cookie))
        settle_move();
    unsigned at = 0;
    while (at < watch.n && watch.dir[at].wd != e->wd)
        at++;
    if (at == watch.n)
        return;
    if (e->mask & IN_IGNORED) {
        if (at == 0)
            watch_give_up(w, INIT_NOT_FOUND, "the watched directory '%.180s' is gone", w->path);
        watch.dir[at].wd = -1;
        return;
    }
    if ((e->len == 0 && at != 0) || !watch.dir[at].rel)
        return; /* its parent reports the same, or it left our tree */
    const char *base = watch.dir[at].rel;
    (void)snprintf(rel, sizeof rel, "%s%s%s", base, base[0] && e->len ? "/" : "", e->len ? e->name : "");
    if (e->mask & (IN_CREATE | IN_MOVED_TO))
        tell(w, INIT_EV_CREATED, rel);
    if (e->mask & IN_MODIFY)
        tell(w, INIT_EV_WRITTEN, rel);
    if (e->mask & (IN_DELETE | IN_DELETE_SELF))
        tell(w, INIT_EV_REMOVED, rel);
    if (e->mask & (IN_MOVED_FROM | IN_MOVE_SELF))
        tell(w, INIT_EV_RENAMED, rel);
    if (e->mask & IN_ATTRIB)
        tell(w, INIT_EV_CHMOD, rel);
    if (watch.recursive && (e->mask & IN_ISDIR))
        follow_dirs(w, e, rel);
}

/* Reports one buffer of events; 0: none was there. */
static size_t watch_take(struct work *w)
{
    _Alignas(struct inotify_event) static char buf[64 * 1024];
    ssize_t n = read(watch.inotify, buf, sizeof buf);
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *e = (const struct inotify_event *)(const void *)(buf + at);
        at += (ssize_t)(sizeof *e + e->len);
        watch_on_inotify(w, e);
    }
    return n > 0 ? (size_t)n : 0;
}

/* Reports the queued events, then that it has done so. False: init has ended. */
static bool watch_settle(struct work *w)
{
    uint64_t turn;
    int queued = 0;
    if (recv(w->sock, &turn, sizeof turn, MSG_DONTWAIT) != (ssize_t)sizeof turn)
        return false;
    (void)ioctl(watch.inotify, FIONREAD, &queued);
    for (size_t done = 0, n; done < (size_t)queued && (n = watch_take(w)) > 0;)
        done += n;
    struct wire_out o = work_begin(w);
    wire_put_u64(&o, turn);
    return work_send(w, INIT_WATCH_SETTLED, &o, -1) == 0;
}

static void watch_run(struct work *w)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = watch.inotify, .events = POLLIN}, {.fd = w->sock, .events = POLLIN}};
        int ready = poll(p, 2, moving.set ? 10 : -1); /* the other half of a move comes at once, or never */
        if (ready == 0)
            settle_move();
        if (ready < 0 && errno != EINTR)
            return;
        if (p[1].revents && !watch_settle(w))
            return;
        (void)watch_take(w);
    }
}

void work_watch(struct work *w)
{
    watch.recursive = w->r->flags & INIT_WATCH_RECURSIVE;
    watch.with_info = w->r->flags & INIT_WATCH_INFO;
    int root = open_root(w);
    if (root < 0)
        work_fail_errno(w, errno, w->path);
    if (!(w->r->flags & INIT_WATCH_NETWORK) && work_is_network_fs(root))
        work_fail(w, INIT_INVALID, "'%.160s' is on a network file system, where changes by others are not seen",
                  w->path);
    (void)close(root);
    watch.inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    watch.names = mmap(NULL, NAMES_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (watch.inotify < 0 || watch.names == MAP_FAILED)
        work_fail(w, INIT_LIMIT, "no more watches can be made: %s", strerror(errno));
    if (!add_tree(w, "", false, 0))
        work_fail(w, INIT_LIMIT, "cannot watch '%.160s': more than %d directories, or %s", w->path, DIRS_MAX,
                  strerror(errno));
    if (watch.n == 0)
        work_fail_errno(w, errno, w->path);
    work_reply_ok(w, -1);
    watch_run(w);
}
