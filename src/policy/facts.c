/* facts.c - struct plan_facts answered by the host's own file system. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/plan.h"

enum { SOCKET_LIST_BYTES = 16 << 20 };

static enum plan_type type_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return TYPE_DIR;
    case S_IFREG:
        return TYPE_FILE;
    case S_IFLNK:
        return TYPE_SYMLINK;
    case S_IFSOCK:
        return TYPE_SOCKET;
    default:
        return TYPE_OTHER;
    }
}

bool plan_is_stub(const struct stat *st)
{
    mode_t mode = st->st_mode;
    return mode == (S_IFSOCK | 01000) || (mode == (S_IFREG | 01000) && st->st_size == 0);
}

static int host_look(void *ctx, const char *path, struct plan_fact *ret)
{
    struct stat st;
    (void)ctx;
    *ret = (struct plan_fact){0};
    if (lstat(path, &st) < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
    if (plan_is_stub(&st))
        return 0;
    *ret = (struct plan_fact){type_of(st.st_mode), st.st_dev, st.st_ino, st.st_mode, st.st_uid, NULL};
    if (ret->type == TYPE_SYMLINK)
        ret->target = realpath(path, NULL);
    return 0;
}

static char *host_real(void *ctx, const char *path)
{
    (void)ctx;
    return realpath(path, NULL);
}

struct walk {
    unsigned left;
    void (*each)(void *arg, const char *dir);
    void *arg;
};

struct dirent_raw {
    uint64_t ino;
    int64_t off;
    unsigned short reclen;
    unsigned char type;
    char name[];
};

/* Trees that hold dependencies or caches by the thousand and no repository of the user's. */
static bool skipped(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, ".git") == 0 ||
           strcmp(name, "node_modules") == 0;
}

static int walk_dir(struct walk *w, int parent, const char *name, const char *path, unsigned depth, bool root)
{
    _cleanup_close_ int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    _cleanup_strv_ struct strv subs = {0};
    char buf[8192] __attribute__((aligned(8)));
    bool repo = false;
    if (fd < 0)
        return 0;
    for (;;) {
        long n = syscall(SYS_getdents64, fd, buf, sizeof buf);
        if (n <= 0)
            break;
        for (long at = 0; at < n;) {
            const struct dirent_raw *d = (const struct dirent_raw *)(const void *)(buf + at);
            at += d->reclen;
            if (w->left-- == 0) {
                w->left = 0;
                return 1;
            }
            if (strcmp(d->name, ".git") == 0)
                repo = true;
            else if (depth > 0 && (d->type == DT_DIR || d->type == DT_UNKNOWN) && !skipped(d->name))
                strv_add(&subs, d->name);
        }
    }
    if (repo && !root)
        w->each(w->arg, path);
    for (size_t i = 0; i < subs.n; i++) {
        _cleanup_free_ char *sub = path_join(path, subs.v[i]);
        if (walk_dir(w, fd, subs.v[i], sub, depth - 1, false) > 0)
            return 1;
    }
    return 0;
}

static int host_find_repos(void *ctx, const char *root, unsigned depth, unsigned max,
                           void (*each)(void *arg, const char *dir), void *arg)
{
    struct walk w = {max, each, arg};
    (void)ctx;
    return walk_dir(&w, AT_FDCWD, root, root, depth, true);
}

static int host_expand(void *ctx, const char *pattern, void (*each)(void *arg, const char *path), void *arg)
{
    glob_t g = {0};
    (void)ctx;
    int r = glob(pattern, GLOB_NOSORT | GLOB_PERIOD, NULL, &g);
    for (size_t i = 0; r == 0 && i < g.gl_pathc; i++) {
        const char *name = path_name(g.gl_pathv[i]);
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            each(arg, g.gl_pathv[i]);
    }
    globfree(&g);
    return r == 0 || r == GLOB_NOMATCH ? 0 : -1;
}

/* /proc/net/unix: one line per socket of this network namespace, the path last; abstract names begin with '@'. */
static int host_sockets(void *ctx, void (*each)(void *arg, const char *path), void *arg)
{
    _cleanup_buf_ struct buf text = {0};
    (void)ctx;
    if (fd_read_file(AT_FDCWD, "/proc/net/unix", SOCKET_LIST_BYTES, &text) < 0)
        return -1;
    for (char *line = text.p; line && *line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        char *path = strchr(line, '/');
        if (path && path > line && path[-1] == ' ') {
            _cleanup_free_ char *real = realpath(path, NULL);
            if (real)
                each(arg, real);
        }
        line = end ? end + 1 : NULL;
    }
    return 0;
}

const struct plan_facts plan_host_facts = {
    .look = host_look,
    .real = host_real,
    .find_repos = host_find_repos,
    .expand = host_expand,
    .sockets = host_sockets,
};
