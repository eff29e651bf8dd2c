/* facts.c - struct plan_facts answered by the host's own file system. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "policy/run/plan.h"
#include "policy/run/seen.h"

enum {
    SOCKET_LIST_BYTES = 16 << 20,
    GIT_LINK_BYTES = PATH_MAX + 16, /* "gitdir: " and a path */
    GIT_DIR_ENTRIES = 4096,         /* entries looked at for the git directories inside one */
};

enum plan_type plan_type_of(mode_t mode)
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
    *ret = (struct plan_fact){
        .type = plan_type_of(st.st_mode),
        .dev = st.st_dev,
        .ino = st.st_ino,
        .mode = st.st_mode,
        .uid = st.st_uid,
        .nlink = st.st_nlink,
    };
    if (ret->type == TYPE_SYMLINK)
        ret->target = realpath(path, NULL);
    return 0;
}

static char *host_real(void *ctx, const char *path)
{
    (void)ctx;
    return realpath(path, NULL);
}

/* What makes a directory a repository. */
static const char *const marks[] = {".git", ".hg", ".jj"};

static bool facts_is_repo_mark(const char *name)
{
    return name[0] == '.' &&
           (strcmp(name, marks[0]) == 0 || strcmp(name, marks[1]) == 0 || strcmp(name, marks[2]) == 0);
}

/* Trees that hold dependencies or caches by the thousand and no repository of the user's. */
static bool facts_skips_dir(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "node_modules") == 0;
}

/* Calls `each` for the entries of a directory until `left` is used up: then 1; -1 if it cannot be read. */
static int facts_each_entry_at(int fd, unsigned *left, void (*each)(void *arg, const struct dirent64 *d), void *arg)
{
    char buf[8192] __attribute__((aligned(8)));
    long n;
    while ((n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0)
        for (long at = 0; at < n;) {
            const struct dirent64 *d = (const struct dirent64 *)(const void *)(buf + at);
            at += d->d_reclen;
            if (*left == 0)
                return 1;
            --*left;
            each(arg, d);
        }
    return n < 0 ? -1 : 0;
}

static int facts_each_entry(const char *path, unsigned *left, void (*each)(void *arg, const struct dirent64 *d),
                            void *arg)
{
    _cleanup_close_ int fd = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    return fd >= 0 && facts_each_entry_at(fd, left, each, arg) > 0;
}

static bool may_be_dir(const struct dirent64 *d)
{
    return (d->d_type == DT_DIR || d->d_type == DT_UNKNOWN) && strcmp(d->d_name, ".") != 0 &&
           strcmp(d->d_name, "..") != 0;
}

struct list {
    void (*each)(void *arg, const char *name);
    void *arg;
};

static void list_entry(void *arg, const struct dirent64 *d)
{
    const struct list *l = arg;
    if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
        l->each(l->arg, d->d_name);
}

static int host_list(void *ctx, const char *dir, unsigned max, void (*each)(void *arg, const char *name), void *arg)
{
    struct list l = {each, arg};
    _cleanup_close_ int fd = openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    (void)ctx;
    return fd < 0 ? -1 : facts_each_entry_at(fd, &max, list_entry, &l);
}

/* --- repositories ------------------------------------------------------------------------------------------------- */

/* A search, level by level, so that a big subtree does not use up what is meant for its neighbours. */
struct search {
    unsigned left;  /* entries that may still be looked at */
    bool deepest;   /* what is found now is not looked into */
    bool closed;    /* a directory of the caller's own could not be seen */
    bool over;      /* there was more than `left` */
    dev_t counting; /* a file system whose directories have a link for each subdirectory, beside their own two; or 0 */
    const char *path;   /* the directory that is being read */
    int fd;             /* the same */
    bool repo;          /* it is one */
    struct level *subs; /* directories of the next level */
    struct strv *found; /* repositories of the next level that need not be read */
    struct seen *seen;  /* what is read is noted there; NULL if it need not be, or link counts do not tell */
    size_t at;          /* the directory that is being read, in seen */
};

/* Directories that are to be read. */
struct level {
    struct strv paths;
    size_t *at; /* the same in seen, if anything is noted */
    size_t nat, cap;
};

static void level_add(struct search *s, struct level *l, char *path, size_t at)
{
    strv_take(&l->paths, path);
    if (!s->seen)
        return;
    MEM_GROW(l->at, l->nat, l->cap);
    l->at[l->nat++] = at;
}

static void level_done(struct level *l)
{
    strv_done(&l->paths);
    free(l->at);
}

static bool counts_subdirs(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 &&
           (fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == XFS_SUPER_MAGIC || fs.f_type == TMPFS_MAGIC);
}

/* A directory into which the caller cannot look, but could let itself: so can the command. */
static bool facts_dir_is_closed(const char *path)
{
    struct stat st;
    return faccessat(AT_FDCWD, path, R_OK | X_OK, AT_EACCESS) < 0 && errno == EACCES && lstat(path, &st) == 0 &&
           S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

/* Looks for what makes a subdirectory a repository, without reading it. */
static void search_marks(struct search *s, const char *name, size_t nmarks, uid_t owner)
{
    char mark[NAME_MAX + 8];
    struct stat st;
    for (size_t i = 0; i < nmarks; i++) {
        (void)snprintf(mark, sizeof mark, "%s/%s", name, marks[i]);
        if (fstatat(s->fd, mark, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            strv_take(s->found, path_join(s->path, name));
            return;
        }
        s->closed = s->closed || (errno == EACCES && owner == geteuid());
    }
}

/* Notes a subdirectory; st is NULL if nothing is to be known of it. */
static size_t search_note(struct search *s, const char *name, const struct stat *st)
{
    if (!s->seen)
        return 0;
    s->seen->dirs[s->at].n++;
    return seen_add(s->seen, name, st && st->st_dev == s->counting ? st : NULL);
}

/* Most directories of a tree have no subdirectories, and need not be read where link counts tell: in them only a file ".git"
 * can be a mark. */
static void search_sub(struct search *s, const struct dirent64 *d)
{
    struct stat st;
    if (!s->counting && !s->deepest) {
        level_add(s, s->subs, path_join(s->path, d->d_name), 0);
        return;
    }
    if (s->left == 0) {
        s->over = true;
        return;
    }
    s->left--;
    bool there = fstatat(s->fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
    size_t at = search_note(s, d->d_name, there ? &st : NULL);
    if (!there)
        return;
    bool last = s->counting && st.st_dev == s->counting && st.st_nlink == 2;
    if (last || s->deepest)
        search_marks(s, d->d_name, last ? 1 : ARRAY_LEN(marks), st.st_uid);
    else
        level_add(s, s->subs, path_join(s->path, d->d_name), at);
}

static void note_entry(void *arg, const struct dirent64 *d)
{
    const struct search *s = arg;
    struct seen_dir *dir = &s->seen->dirs[s->at];
    dir->entries++;
    if (s->seen->starts[(unsigned char)d->d_name[0]] && strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
        strv_add(&dir->names, d->d_name);
}

static void search_entry(void *arg, const struct dirent64 *d)
{
    struct search *s = arg;
    if (s->seen)
        note_entry(s, d);
    if (facts_is_repo_mark(d->d_name)) {
        s->repo = true;
        if (strcmp(d->d_name, marks[0]) != 0 && may_be_dir(d))
            (void)search_note(s, d->d_name, NULL);
    } else if (may_be_dir(d) && !facts_skips_dir(d->d_name)) {
        search_sub(s, d);
    }
}

static void search_dir(struct search *s, const char *path, bool top, void (*each)(void *arg, const char *dir),
                       void *arg)
{
    _cleanup_close_ int fd = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    s->path = path;
    s->fd = fd;
    s->repo = false;
    if (s->seen)
        s->seen->dirs[s->at].first = s->seen->n;
    int r = fd < 0 ? 0 : facts_each_entry_at(fd, &s->left, search_entry, s);
    s->over = s->over || r > 0;
    if (s->seen) /* a directory above it may have been replaced since its parent was read */
        s->seen->dirs[s->at].read =
            r == 0 && !s->over && fd >= 0 && fstat(fd, &st) == 0 && seen_is(&s->seen->dirs[s->at], &st);
    s->closed = s->closed || r < 0 || (fd < 0 && facts_dir_is_closed(path));
    if (s->repo && !top)
        each(arg, path);
}

static int host_find_repos(void *ctx, const char *root, unsigned depth, unsigned max,
                           void (*each)(void *arg, const char *dir), void *arg)
{
    struct level now = {0};
    struct stat st;
    struct search s = {.left = max};
    s.counting = counts_subdirs(root) && lstat(root, &st) == 0 ? st.st_dev : 0;
    s.seen = s.counting ? ctx : NULL;
    level_add(&s, &now, xstrdup(root), s.seen ? seen_add_root(s.seen, root, &st) : 0);
    for (unsigned level = 0; level < depth && now.paths.n > 0 && !s.over; level++) {
        struct level next = {0};
        struct strv found = {0};
        s.deepest = level + 1 == depth;
        s.subs = &next;
        s.found = &found;
        for (size_t i = 0; i < now.paths.n && !s.over; i++) {
            s.at = s.seen ? now.at[i] : 0;
            search_dir(&s, now.paths.v[i], level == 0, each, arg);
        }
        for (size_t i = 0; i < found.n; i++)
            each(arg, found.v[i]);
        strv_done(&found);
        level_done(&now);
        now = next;
    }
    level_done(&now);
    return s.closed || s.over;
}

/* Of a directory without subdirectories. */
static void read_last(struct seen *seen, size_t at, const char *path, unsigned max)
{
    _cleanup_close_ int fd = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct search s = {.seen = seen, .at = at};
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !seen_is(&seen->dirs[at], &st) || st.st_nlink != 2)
        return;
    seen->dirs[at].read = facts_each_entry_at(fd, &max, note_entry, &s) == 0;
}

static bool read_below(struct seen *s, size_t at, const char *path, unsigned *left)
{
    if (!s->dirs[at].read && s->dirs[at].ino != 0)
        read_last(s, at, path, *left);
    if (s->dirs[at].entries >= *left)
        return false;
    *left -= s->dirs[at].entries;
    for (size_t i = 0; s->dirs[at].read && i < s->dirs[at].n; i++) {
        _cleanup_free_ char *sub = path_join(path, s->dirs[s->dirs[at].first + i].name);
        if (!read_below(s, s->dirs[at].first + i, sub, left))
            return false;
    }
    return true;
}

void seen_read(struct seen *s, unsigned max)
{
    for (size_t i = 0; i < s->nroots; i++) {
        unsigned left = max;
        (void)read_below(s, s->roots[i], s->dirs[s->roots[i]].name, &left);
    }
}

static char *host_link_text(void *ctx, const char *path)
{
    char text[PATH_MAX];
    (void)ctx;
    ssize_t n = readlink(path, text, sizeof text - 1);
    if (n < 0)
        return NULL;
    text[n] = '\0';
    _cleanup_free_ char *dir = path_parent(path);
    return path_clean(dir, text);
}

static char *host_git_link(void *ctx, const char *path)
{
    /* As git does, a link to such a file is followed, and what the file says is taken from where the link is. Nothing is
     * opened but a regular file, wherever the link leads. */
    _cleanup_close_ int at = openat(AT_FDCWD, path, O_PATH | O_CLOEXEC);
    char text[GIT_LINK_BYTES + 1], self[32];
    struct stat st;
    (void)ctx;
    if (at < 0 || fstat(at, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    (void)snprintf(self, sizeof self, "/proc/self/fd/%d", at);
    _cleanup_close_ int fd = openat(AT_FDCWD, self, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (n <= 0)
        return NULL;
    text[n] = '\0';
    static const char prefix[] = "gitdir: ";
    char *to = strncmp(text, prefix, sizeof prefix - 1) == 0 ? text + sizeof prefix - 1 : text;
    to[strcspn(to, "\r\n")] = '\0';
    _cleanup_free_ char *dir = path_parent(path), *full = to[0] == '/' ? xstrdup(to) : xasprintf("%s/%s", dir, to);
    return to[0] ? realpath(full, NULL) : NULL;
}

/* A directory below ".git/modules": a part of a submodule's name, or its git directory. */
struct module {
    const char *path;
    struct strv subs;
    bool is_git;
};

static void module_entry(void *arg, const struct dirent64 *d)
{
    static const char *const signs[] = {"HEAD", "config", "hooks", "commondir"};
    struct module *m = arg;
    for (size_t i = 0; i < ARRAY_LEN(signs); i++)
        if (strcmp(d->d_name, signs[i]) == 0)
            m->is_git = true;
    if (may_be_dir(d))
        strv_take(&m->subs, path_join(m->path, d->d_name));
}

struct module_walk {
    unsigned entries, dirs; /* that may still be looked at, and be found */
    void (*each)(void *arg, const char *dir);
    void *arg;
};

/* Directories of a git directory that contain no other one. All others are searched, also in what only looks like a
 * git directory: a command may have made it look so. */
static bool git_internal(const char *name)
{
    static const char *const names[] = {"objects", "refs", "logs", "hooks", "info", "lfs"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static int walk_modules(struct module_walk *w, const char *path, unsigned depth, bool top)
{
    struct module m = {.path = path};
    int r = facts_each_entry(path, &w->entries, module_entry, &m);
    if (m.is_git && !top) {
        if (w->dirs == 0)
            r = 1;
        else if (w->dirs--)
            w->each(w->arg, path);
    }
    for (size_t i = 0; i < m.subs.n && depth > 0 && r == 0; i++)
        if (!m.is_git || !git_internal(path_name(m.subs.v[i])))
            r = walk_modules(w, m.subs.v[i], depth - 1, false);
    strv_done(&m.subs);
    return r;
}

static int host_git_dirs(void *ctx, const char *git, unsigned max, void (*each)(void *arg, const char *dir), void *arg)
{
    struct module_walk w = {.entries = GIT_DIR_ENTRIES, .dirs = max, .each = each, .arg = arg};
    _cleanup_free_ char *modules = path_join(git, "modules"), *worktrees = path_join(git, "worktrees");
    (void)ctx;
    int r = walk_modules(&w, modules, PLAN_MODULE_DEPTH, true);
    return r | walk_modules(&w, worktrees, 1, true);
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

/* The directories that sockets are in, resolved: a host has many sockets in few of them. */
struct socket_dirs {
    size_t n;
    struct {
        char *dir, *real; /* real: NULL if it cannot be resolved */
    } v[16];
};

/* The path with its directory resolved, or NULL; what is at the last name is up to the reader. New string. */
static char *socket_path(struct socket_dirs *d, const char *path)
{
    _cleanup_free_ char *clean = path_clean("/", path), *dir = path_parent(clean);
    if (strcmp(clean, path) != 0) /* ".." in it would mean something else behind a link */
        return realpath(path, NULL);
    for (size_t i = 0; i < d->n; i++)
        if (strcmp(d->v[i].dir, dir) == 0)
            return d->v[i].real ? path_join(d->v[i].real, path_name(clean)) : NULL;
    _cleanup_free_ char *real = realpath(dir, NULL);
    char *ret = real ? path_join(real, path_name(clean)) : NULL;
    if (d->n < ARRAY_LEN(d->v)) {
        d->v[d->n].dir = TAKE_PTR(dir);
        d->v[d->n++].real = TAKE_PTR(real);
    }
    return ret;
}

/* /proc/net/unix: one line per socket of this network namespace, the path last; abstract names begin with '@'. */
static int host_sockets(void *ctx, void (*each)(void *arg, const char *path), void *arg)
{
    _cleanup_buf_ struct buf text = {0};
    struct socket_dirs dirs = {0};
    (void)ctx;
    if (fd_read_file(AT_FDCWD, "/proc/net/unix", SOCKET_LIST_BYTES, &text) < 0)
        return -1;
    for (char *line = text.p; line && *line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        char *path = strchr(line, '/');
        if (path && path > line && path[-1] == ' ') {
            _cleanup_free_ char *real = socket_path(&dirs, path);
            if (real)
                each(arg, real);
        }
        line = end ? end + 1 : NULL;
    }
    for (size_t i = 0; i < dirs.n; i++) {
        free(dirs.v[i].dir);
        free(dirs.v[i].real);
    }
    return 0;
}

const struct plan_facts plan_host_facts = {
    .look = host_look,
    .real = host_real,
    .list = host_list,
    .find_repos = host_find_repos,
    .expand = host_expand,
    .sockets = host_sockets,
    .link_text = host_link_text,
    .git_link = host_git_link,
    .git_dirs = host_git_dirs,
};
