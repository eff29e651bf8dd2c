/* work-files.c - open, create, compose, stat. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "init/work.h"

enum { FEED_MAX = 64 << 20 };

void work_file_stat(struct work *w)
{
    struct init_info i;
    if (work_info_path(w, w->path, &i) < 0)
        work_fail_errno(w, errno, w->path);
    work_reply_info(w, &i, -1);
}

/* Kernel files have new contents for every reader and rights of their own: read them here, as the user, and send only
 * bytes. */
static void work_feed_kernel_file(struct work *w, struct init_info *i)
{
    static char buf[64 * 1024];
    int pipe_fds[2];
    const char *step;
    size_t total = 0;
    if (!w->strict && lock_become(w->g, &w->user, &step) < 0)
        work_fail(w, INIT_DENIED, "become user '%s': %s", w->user.name, step);
    _cleanup_close_ int fd = work_open(AT_FDCWD, w->path, O_RDONLY, 0);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        work_fail_errno(w, errno, w->path);
    if (!S_ISREG(st.st_mode))
        work_fail(w, INIT_INVALID, "path '%.200s' is not a regular file", w->path);
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        work_fail_errno(w, errno, w->path);
    work_reply_info(w, i, pipe_fds[0]);
    (void)close(pipe_fds[0]);
    while (total < FEED_MAX) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || fd_write_all(pipe_fds[1], buf, (size_t)n) < 0)
            break;
        total += (size_t)n;
    }
}

void work_file_open(struct work *w)
{
    struct init_info i;
    struct stat st;
    if (w->root >= 0 && work_rooted_follow(w, &st) < 0)
        work_fail_errno(w, errno, w->path);
    _cleanup_close_ int probe = work_open_path(w, w->path, O_PATH);
    if (probe < 0 || fstat(probe, &st) < 0)
        work_fail_errno(w, errno, w->path);
    if (S_ISDIR(st.st_mode))
        work_fail_errno(w, EISDIR, w->path);
    if (!S_ISREG(st.st_mode))
        work_fail(w, INIT_INVALID, "path '%.200s' is not a regular file", w->path);
    if (work_info_path(w, w->path, &i) < 0)
        work_fail_errno(w, errno, w->path);
    if (work_is_kernel_fs(probe)) {
        work_feed_kernel_file(w, &i);
        return;
    }
    _cleanup_close_ int fd = work_open_path(w, w->path, O_RDONLY);
    if (fd < 0)
        work_fail_errno(w, errno, w->path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || work_is_kernel_fs(fd)) /* changed meanwhile */
        work_fail(w, INIT_INVALID, "path '%.200s' is not a regular file", w->path);
    work_reply_info(w, &i, fd);
}

void work_file_create(struct work *w)
{
    static struct upload u = {.fd = -1, .old = -1};
    struct init_info i;
    if (strcmp(w->path, "/") == 0)
        work_fail_errno(w, EISDIR, w->path);
    if (w->root >= 0) {
        work_rooted_upload(w, &u, &i);
        work_receive(w, &i, &u);
    }
    u.dir = work_parent(w, w->path, true, &u.name);
    if (u.dir < 0)
        work_fail_errno(w, errno, w->path);
    work_upload_begin(w, &u, &i);
    work_receive(w, &i, &u);
}

static void work_append_part(struct work *w, const char *source, int to)
{
    char path[INIT_PATH_MAX];
    struct stat st;
    paths_resolve(path, w->user.home, w->g->workdir, source);
    _cleanup_close_ int fd = work_open(AT_FDCWD, path, O_RDONLY, 0);
    if (fd < 0 || fstat(fd, &st) < 0)
        work_fail_errno(w, errno, path);
    if (S_ISDIR(st.st_mode))
        work_fail_errno(w, EISDIR, path);
    if (!S_ISREG(st.st_mode) || work_is_kernel_fs(fd))
        work_fail(w, INIT_INVALID, "path '%.200s' is not a regular file", path);
    if (work_copy_bytes(fd, to) < 0)
        work_fail_errno(w, errno, w->to);
}

/* Removes a source that is now part of the result, unless it is the result itself under another path. */
static void remove_source(struct work *w, const char *source, const struct stat *result)
{
    char path[INIT_PATH_MAX];
    struct stat st;
    const char *name;
    paths_resolve(path, w->user.home, w->g->workdir, source);
    _cleanup_close_ int dir = work_parent(w, path, false, &name);
    if (dir >= 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        (st.st_dev != result->st_dev || st.st_ino != result->st_ino))
        (void)unlinkat(dir, name, 0);
}

/* Builds the result beside the destination, then moves it over: a failure changes nothing. */
void work_file_compose(struct work *w)
{
    const struct init_request *r = w->r;
    char path[INIT_PATH_MAX];
    static struct upload u = {.fd = -1, .old = -1};
    struct init_info i;
    struct stat st;
    u.dir = work_parent(w, w->to, true, &u.name);
    if (u.dir < 0)
        work_fail_errno(w, errno, w->to);
    if (fstatat(u.dir, u.name, &st, 0) == 0 && S_ISDIR(st.st_mode))
        work_fail_errno(w, EISDIR, w->to);
    for (size_t s = 0; s < r->nargs; s++) { /* before anything is made */
        paths_resolve(path, w->user.home, w->g->workdir, r->args[s]);
        struct stat src;
        if (path[0] == '\0' || stat(path, &src) < 0)
            work_fail_errno(w, path[0] ? errno : ENAMETOOLONG, path[0] ? path : r->args[s]);
    }
    work_upload_stage(w, &u, w->to);
    work_give(w, u.fd);
    for (size_t s = 0; s < r->nargs; s++)
        work_append_part(w, r->args[s], u.fd);
    if (fstat(u.fd, &st) < 0 || work_upload_publish(w, &u) < 0)
        work_fail_errno(w, errno, w->to);
    w->half = NULL;
    for (size_t s = 0; s < r->nargs; s++)
        remove_source(w, r->args[s], &st);
    if (work_info(w, u.dir, u.name, w->to, &i) < 0)
        work_fail_errno(w, errno, w->to);
    work_reply_info(w, &i, -1);
}
