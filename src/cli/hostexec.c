#include "cli/hostexec.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/gitconfig.h"

enum {
    LIST_DEPTH = 5,    /* levels below a writable root that are looked at after the run, at least */
    HOOKS_MAX = 256,   /* entries of a directory of hooks that are looked at */
    CONFIGS_MAX = 128, /* configuration files of git that are read for the places they name */
    INCLUDE_DEPTH = 5  /* files that include each other */
};

/* An entry with a name that matters, found while the command was started. */
struct seen {
    const struct plan_op *root;
    char *dir, *entry;
};

struct hostexec {
    const struct policy *policy;
    const struct plan *plan;
    const char *home;
    struct timespec start;
    struct seen *seen;
    size_t nseen, seen_cap;
    bool looked;       /* the first walk was made, and whole */
    unsigned thorough; /* entries that are read in the end in any case */
};

struct walk {
    struct hostexec *h;
    const struct plan_op *root;
    struct strv *ret;
    struct strv works; /* working trees of the repositories that the plan knows */
    unsigned configs;  /* read so far */
    unsigned left;     /* directory entries that may still be looked at */
    bool cut;          /* not every git directory in another one was looked at */
    bool first;        /* nothing is listed yet: entries are only noted */
    bool starts[256];  /* first bytes of names that matter: nearly every entry is told apart by it */
};

struct hostexec *hostexec_before(const struct policy *policy, const struct plan *plan, const char *home)
{
    struct hostexec *h = xcalloc(1, sizeof *h);
    h->policy = policy;
    h->plan = plan;
    h->home = home;
    h->thorough = HOSTEXEC_THOROUGH;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &h->start); /* the clock that inodes are stamped with */
    return h;
}

static bool changed(const struct walk *w, const struct stat *st)
{
    const struct timespec *s = &w->h->start;
    return st->st_ctim.tv_sec > s->tv_sec || (st->st_ctim.tv_sec == s->tv_sec && st->st_ctim.tv_nsec >= s->tv_nsec);
}

/* Whether the plan let the command write at this path of the host. */
static bool was_writable(const struct walk *w, const char *host)
{
    const struct plan_op *root = w->root;
    _cleanup_free_ char *inside = xasprintf("%s%s", root->path, host + strlen(root->src));
    const struct plan_op *op = plan_op_for(w->h->plan, inside);
    return op && op->kind == OP_BIND_RW;
}

/* Whether a process outside put something at the place of a stub. */
static bool replaced_stub(const struct walk *w, const char *host)
{
    const struct plan_op *root = w->root;
    _cleanup_free_ char *inside = xasprintf("%s%s", root->path, host + strlen(root->src));
    const struct plan_op *op = plan_op_for(w->h->plan, inside);
    return op && op->kind == OP_STUB && strcmp(op->path, inside) == 0;
}

static void add(struct strv *ret, char *path)
{
    if (ret->n >= HOSTEXEC_MAX || strv_has(ret, path))
        free(path);
    else
        strv_take(ret, path);
}

/* Adds what the command could write; the rest is up to look_op(). */
static void list(struct walk *w, char *path)
{
    if (was_writable(w, path) || replaced_stub(w, path))
        add(w->ret, path);
    else
        free(path);
}

static DIR *open_dir(const char *path)
{
    int fd = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        (void)close(fd);
    return d;
}

static bool first_component(const char *name, const char *entry)
{
    size_t n = strlen(entry);
    return strncmp(name, entry, n) == 0 && (name[n] == '\0' || name[n] == '/');
}

/* --- git ---------------------------------------------------------------------------------------------------------- */

/* Lists dir/name if it changed. */
static void list_changed(struct walk *w, int fd, const char *dir, const char *name)
{
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && changed(w, &st) && !plan_is_stub(&st))
        list(w, path_join(dir, name));
}

/* git runs no hook of that name. */
static bool is_sample(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".sample") == 0;
}

/* Lists the entries of a directory that changed, up to a bound. With `all` also those that the plan protects: they may
 * have been changed through another hard link, or from outside. */
static void list_entries(struct walk *w, const char *dir, bool all)
{
    _cleanup_closedir_ DIR *d = open_dir(dir);
    const struct dirent *e;
    for (unsigned left = HOOKS_MAX; d && left > 0 && (e = readdir(d)); left--) {
        struct stat st;
        if (e->d_type == DT_DIR || is_sample(e->d_name) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !changed(w, &st))
            continue;
        if (all)
            add(w->ret, path_join(dir, e->d_name));
        else
            list(w, path_join(dir, e->d_name));
    }
}

/* A place that a configuration names: a directory of hooks or a further configuration. Listed if the command could write
 * there and did: the whole if it is new, was renamed or had entries added, else what changed in it. */
static void look_target(struct walk *w, const char *path)
{
    struct stat st;
    _cleanup_free_ char *real = realpath(path, NULL);
    const struct plan_op *before = w->root, *root = NULL;
    for (size_t i = 0; real && i < w->h->plan->nops; i++) {
        const struct plan_op *op = &w->h->plan->ops[i];
        if (op->kind == OP_BIND_RW && op->src && path_under(real, op->src) &&
            (!root || strlen(op->src) > strlen(root->src)))
            root = op;
    }
    if (!root || lstat(real, &st) < 0)
        return;
    w->root = root;
    if (changed(w, &st))
        list(w, TAKE_PTR(real));
    else if (S_ISDIR(st.st_mode))
        list_entries(w, real, false);
    w->root = before;
}

static char *expand(const struct walk *w, const char *base, const char *value)
{
    if (strncmp(value, "~/", 2) == 0 && w->h->home)
        return path_join(w->h->home, value + 2);
    return *value == '/' ? xstrdup(value) : path_join(base, value);
}

/* A configuration may name any file of the host for another one, so nothing is waited for and nothing is read beyond its size:
 * files of the kernel, such as /proc/kmsg, are regular ones of no size that a reader may wait at for ever. */
static bool read_regular(const char *path, struct buf *ret)
{
    struct stat st;
    char chunk[4096];
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0) /* to open a device can do something */
        return false;
    _cleanup_close_ int fd = openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > GITCONFIG_BYTES_MAX)
        return false;
    for (size_t left = (size_t)st.st_size; left > 0;) {
        ssize_t n = read(fd, chunk, left < sizeof chunk ? left : sizeof chunk);
        if (n <= 0)
            return n == 0;
        buf_add(ret, chunk, (size_t)n);
        left -= (size_t)n;
    }
    return true;
}

static bool read_config(struct walk *w, const char *path, struct gitconfig *ret)
{
    _cleanup_buf_ struct buf text = {0};
    if (w->configs >= CONFIGS_MAX || !read_regular(path, &text))
        return false;
    w->configs++;
    gitconfig_read(text.p, text.n, ret);
    return true;
}

/* A configuration may name writable places: then git outside executes, or believes, what the command wrote there. Git takes
 * hooks from a relative path below the working tree, an included file below the one that includes it. */
static void look_config(struct walk *w, const char *config, const struct strv *works, unsigned depth)
{
    struct gitconfig g = {0};
    if (depth == 0 || !read_config(w, config, &g))
        return;
    _cleanup_free_ char *dir = path_parent(config);
    for (size_t i = 0; i < g.hooks.n; i++)
        for (size_t k = 0; k < works->n; k++) {
            _cleanup_free_ char *path = expand(w, works->v[k], g.hooks.v[i]);
            look_target(w, path);
        }
    for (size_t i = 0; i < g.includes.n; i++) {
        _cleanup_free_ char *path = expand(w, dir, g.includes.v[i]);
        look_target(w, path);
        look_config(w, path, works, depth - 1);
    }
    gitconfig_done(&g);
}

/* The configuration of one repository, whose git directory is `git`. */
static void look_repository(struct walk *w, const char *git, const char *config)
{
    _cleanup_strv_ struct strv work = {0};
    strv_take(&work, strcmp(path_name(git), ".git") == 0 ? path_parent(git) : xstrdup(git));
    if (w->works.n < CONFIGS_MAX && !strv_has(&w->works, work.v[0]))
        strv_add(&w->works, work.v[0]);
    look_config(w, config, &work, INCLUDE_DEPTH);
}

/* Those that hold for every repository of the caller. */
static void look_global(struct walk *w)
{
    static const char *const of_home[] = {".gitconfig", ".config/git/config"};
    look_config(w, "/etc/gitconfig", &w->works, INCLUDE_DEPTH);
    for (size_t i = 0; w->h->home && i < ARRAY_LEN(of_home); i++) {
        _cleanup_free_ char *path = path_join(w->h->home, of_home[i]);
        look_config(w, path, &w->works, INCLUDE_DEPTH);
    }
}

/* Whether the plan left the configuration or the hooks of this ".git" open. */
static bool unprotected(const struct walk *w, const char *git)
{
    _cleanup_free_ char *hooks = path_join(git, "hooks"), *config = path_join(git, "config");
    return was_writable(w, hooks) && was_writable(w, config);
}

/* A git directory in another one, of a submodule or a worktree. One that the plan knew is protected: what it protects there is
 * not writable. A new one is listed as a whole, else what of it changed. */
static void look_inner_git(void *arg, const char *git)
{
    enum { COMMON, CONFIG, CONFIG_WORKTREE, BACK, HOOKS, N };
    static const char *const names[N] = {"commondir", "config", "config.worktree", "gitdir", "hooks"};
    struct walk *w = arg;
    bool hit[N];
    for (size_t i = 0; i < N; i++) {
        struct stat st;
        _cleanup_free_ char *path = path_join(git, names[i]);
        hit[i] = lstat(path, &st) == 0 && changed(w, &st) && !plan_is_stub(&st) && was_writable(w, path);
    }
    if (hit[COMMON] || (hit[CONFIG] && hit[HOOKS])) {
        list(w, xstrdup(git));
        return;
    }
    for (size_t i = 0; i < N; i++)
        if (hit[i])
            list(w, path_join(git, names[i]));
    _cleanup_free_ char *config = path_join(git, names[CONFIG]), *hooks = path_join(git, names[HOOKS]);
    if (!hit[HOOKS])
        list_entries(w, hooks, false);
    if (was_writable(w, config))
        look_repository(w, git, config);
}

/* A repository that the plan did not know is listed as a whole if it is new, else what of it changed. Of one that it
 * knew, a "commondir" can have appeared, with which git takes configuration and hooks from elsewhere, the list of a rebase
 * that was left half done, and submodules and worktrees. */
static void look_git(struct walk *w, int fd, const char *dir)
{
    enum { ALWAYS = 2 }; /* the first of these */
    static const char *const inner[] = {".git/commondir", ".git/rebase-merge", ".git/config", ".git/config.worktree",
                                        ".git/hooks"};
    _cleanup_free_ char *git = path_join(dir, ".git"), *hooks = path_join(dir, ".git/hooks");
    struct stat st;
    if (fstatat(fd, ".git", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    bool open = unprotected(w, git);
    if (open && changed(w, &st)) {
        list(w, TAKE_PTR(git));
        return;
    }
    if (!S_ISDIR(st.st_mode))
        return;
    for (size_t i = 0; i < (open ? ARRAY_LEN(inner) : ALWAYS); i++)
        list_changed(w, fd, dir, inner[i]);
    if (plan_host_facts.git_dirs(plan_host_facts.ctx, git, PLAN_MODULES, look_inner_git, w) > 0)
        w->cut = true;
    if (open) {
        _cleanup_free_ char *config = path_join(git, "config");
        list_entries(w, hooks, false);
        look_repository(w, git, config);
    }
}

/* A directory that is itself a git directory ("bare"): git takes it for one when it is the current directory. It needs
 * a HEAD, and either a commondir or objects and refs. */
static void look_bare(struct walk *w, int fd, const char *dir)
{
    enum { HEAD, COMMON, OBJECTS, REFS, CONFIG, HOOKS, N };
    static const char *const names[N] = {"HEAD", "commondir", "objects", "refs", "config", "hooks"};
    bool there[N], any = false;
    for (size_t i = 0; i < N; i++) {
        struct stat st;
        there[i] = fstatat(fd, names[i], &st, AT_SYMLINK_NOFOLLOW) == 0;
        any = any || (there[i] && changed(w, &st));
        if (i == REFS && !there[COMMON] && (!there[OBJECTS] || !there[REFS]))
            return;
    }
    if (any)
        list(w, xstrdup(dir));
    else if (there[HOOKS]) {
        _cleanup_free_ char *hooks = path_join(dir, "hooks");
        list_entries(w, hooks, false);
    }
}

/* One name of the table: the thing itself if it changed, else what changed in it if it is a directory. */
static void look_name(struct walk *w, int fd, const char *dir, const char *name)
{
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    if (changed(w, &st)) {
        list_changed(w, fd, dir, name);
        return;
    }
    _cleanup_free_ char *path = S_ISDIR(st.st_mode) ? path_join(dir, name) : NULL;
    if (path)
        list_entries(w, path, false);
}

static bool is_home(const struct walk *w, const char *dir) { return strv_has(&w->h->policy->homes, dir); }

/* One name, if the entry is its beginning and it has a meaning in that directory. */
static void look_one(struct walk *w, int fd, const char *dir, const char *entry, const char *name,
                     enum name_place place)
{
    if (place != NAME_IN_GIT && first_component(name, entry) && (place != NAME_IN_HOME || is_home(w, dir)))
        look_name(w, fd, dir, name);
}

/* Names that the policy adds, and all of the table: what is protected, was opened, or is only reported. */
static void look_entry(struct walk *w, int fd, const char *dir, const char *entry)
{
    const struct policy *p = w->h->policy;
    size_t n;
    const struct known_name *known = names_known(&n);
    if (strcmp(entry, ".git") == 0) {
        look_git(w, fd, dir);
        return;
    }
    if (strcmp(entry, "HEAD") == 0)
        look_bare(w, fd, dir);
    for (size_t i = 0; i < n; i++)
        look_one(w, fd, dir, entry, known[i].name, known[i].place);
    for (size_t i = 0; i < p->nnames; i++)
        if (p->names[i].origin.level != LEVEL_BUILTIN)
            look_one(w, fd, dir, entry, p->names[i].name, p->names[i].place);
}

static void find_starts(struct walk *w)
{
    const struct policy *p = w->h->policy;
    size_t n;
    const struct known_name *known = names_known(&n);
    w->starts['H'] = true; /* "HEAD" */
    for (size_t i = 0; i < n; i++)
        w->starts[(unsigned char)known[i].name[0]] = true;
    for (size_t i = 0; i < p->nnames; i++)
        w->starts[(unsigned char)p->names[i].name[0]] = true;
}

/* The first walk, in a directory that the second one may pass over. Whether the name is one of those that matter is decided
 * afterwards: few entries begin like them. */
static void note_entry(struct walk *w, const char *dir, const char *entry)
{
    struct hostexec *h = w->h;
    if (strcmp(entry, ".") == 0 || strcmp(entry, "..") == 0)
        return;
    MEM_GROW(h->seen, h->nseen, h->seen_cap);
    h->seen[h->nseen++] = (struct seen){w->root, xstrdup(dir), xstrdup(entry)};
}

static void look_seen(struct walk *w)
{
    for (size_t i = 0; i < w->h->nseen; i++) {
        struct seen *s = &w->h->seen[i];
        _cleanup_close_ int fd = openat(AT_FDCWD, s->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        w->root = s->root;
        if (fd >= 0)
            look_entry(w, fd, s->dir, s->entry);
        free(s->dir);
        free(s->entry);
    }
    free(w->h->seen);
}

static bool descends(const struct dirent64 *e)
{
    return (e->d_type == DT_DIR || e->d_type == DT_UNKNOWN) && strcmp(e->d_name, ".") != 0 &&
           strcmp(e->d_name, "..") != 0 && strcmp(e->d_name, ".git") != 0 && strcmp(e->d_name, "node_modules") != 0;
}

static bool walk_dir(struct walk *w, int parent, const char *name, const char *path, unsigned depth, bool moved);

/* A directory in one that was read. It is passed over if it has no subdirectories (where link counts tell: else it is read)
 * and nothing was added to it since the start: only what was there before can have changed in it. Not if one above it changed,
 * which may have been renamed: then what was noted there was noted under another path. */
static bool walk_sub(struct walk *w, int fd, const char *name, const char *path, unsigned depth, bool moved)
{
    bool seen = w->h->looked || w->left < PLAN_REPO_ENTRIES - w->h->thorough;
    struct stat st;
    bool there = !w->first && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    bool touched = there && changed(w, &st);
    if (there && seen && !moved && st.st_nlink == 2 && !touched)
        return true;
    _cleanup_free_ char *sub = path_join(path, name);
    if (touched && S_ISDIR(st.st_mode) && faccessat(fd, name, R_OK | X_OK, AT_EACCESS) < 0)
        list(w, xstrdup(sub)); /* others need not read it to run what is in it */
    return walk_dir(w, fd, name, sub, depth, moved || touched);
}

/* moved: see walk_sub(). Returns false when the budget is used up. */
static bool walk_dir(struct walk *w, int parent, const char *name, const char *path, unsigned depth, bool moved)
{
    _cleanup_close_ int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    _cleanup_strv_ struct strv subs = {0};
    char entries[8192] __attribute__((aligned(8)));
    struct stat st;
    if (fd < 0)
        return true;
    bool last = w->first && fstat(fd, &st) == 0 && st.st_nlink == 2;
    for (;;) {
        long n = syscall(SYS_getdents64, fd, entries, sizeof entries);
        if (n <= 0)
            break;
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(entries + at);
            at += e->d_reclen;
            if (w->left == 0)
                return false;
            w->left--;
            bool named = w->starts[(unsigned char)e->d_name[0]] && e->d_type != DT_SOCK; /* a stub: nothing reads it */
            if (named && !w->first)
                look_entry(w, fd, path, e->d_name);
            else if (named && last)
                note_entry(w, path, e->d_name);
            if (depth > 0 && descends(e))
                strv_add(&subs, e->d_name);
        }
    }
    for (size_t i = 0; i < subs.n; i++)
        if (!walk_sub(w, fd, subs.v[i], path, depth - 1, moved))
            return false;
    return true;
}

/* --- what the plan protects --------------------------------------------------------------------------------------- */

/* Next to a protected configuration of git: a commondir that was not there can be made, see plan-protect.c. And what the
 * configuration names need not be protected. */
static void look_beside_config(struct walk *w, const struct plan_op *op)
{
    struct stat st;
    bool git = strcmp(path_name(op->src), "config") == 0;
    if (!git && strcmp(path_name(op->src), "config.worktree") != 0)
        return;
    _cleanup_free_ char *dir = path_parent(op->src), *path = path_join(dir, "commondir");
    if (git && lstat(path, &st) == 0 && changed(w, &st))
        add(w->ret, TAKE_PTR(path));
    look_repository(w, dir, op->src);
}

/* Whether the path lies directly in a writable directory. */
static bool in_root(const struct walk *w, const char *path)
{
    size_t n = (size_t)(path_name(path) - path) - 1;
    for (size_t i = 0; i < w->h->plan->nops; i++) {
        const struct plan_op *op = &w->h->plan->ops[i];
        if (op->kind == OP_BIND_RW && op->type == TYPE_DIR && op->src && strncmp(op->src, path, n) == 0 &&
            op->src[n] == '\0')
            return true;
    }
    return false;
}

/* A mount goes when somebody outside renames another file over its place, as editors and git do to save one, and the
 * name is open from then on; and a file can be changed through a further link. So a protected name must still be the
 * same, unchanged, and a stub's must be gone. What is merely pinned may change, but must be the same directory. */
static void look_op(struct walk *w, const struct plan_op *op)
{
    struct stat st;
    if (op->kind == OP_STUB && in_root(w, op->src)) /* the walk reads that directory */
        return;
    bool there = lstat(op->src, &st) == 0 && !plan_is_stub(&st);
    bool same = there && st.st_dev == op->dev && st.st_ino == op->ino;
    bool bad = op->kind == OP_STUB ? there : op->kind == OP_PIN ? there && !same : there && (!same || changed(w, &st));
    if (bad)
        add(w->ret, xstrdup(op->src));
    if (op->kind == OP_PROTECT && same && S_ISDIR(st.st_mode))
        list_entries(w, op->src, true);
    if (op->kind != OP_PIN)
        look_beside_config(w, op);
}

static unsigned walk_depth(const struct hostexec *h)
{
    return h->policy->search_depth > LIST_DEPTH ? h->policy->search_depth : LIST_DEPTH;
}

void hostexec_look(struct hostexec *h)
{
    struct walk w = {.h = h, .first = true};
    bool whole = true;
    find_starts(&w);
    for (size_t i = 0; i < h->plan->nops; i++) {
        w.root = &h->plan->ops[i];
        w.left = HOSTEXEC_LOOK;
        if (w.root->src && w.root->kind == OP_BIND_RW && w.root->type == TYPE_DIR)
            whole = walk_dir(&w, AT_FDCWD, w.root->src, w.root->src, walk_depth(h), false) && whole;
    }
    h->looked = whole;
    h->thorough = HOSTEXEC_LOOK; /* if not whole: the command may have made the tree big for this moment */
}

void hostexec_after(struct hostexec *h, struct strv *ret)
{
    if (!h)
        return;
    struct walk w = {.h = h, .ret = ret};
    find_starts(&w);
    bool all = true;
    for (size_t i = 0; i < h->plan->nops; i++) {
        const struct plan_op *op = &h->plan->ops[i];
        if (!op->src)
            continue;
        if (op->kind == OP_PROTECT || op->kind == OP_PIN || op->kind == OP_STUB)
            look_op(&w, op);
        if (op->kind != OP_BIND_RW || op->type != TYPE_DIR)
            continue;
        w.root = op;
        w.left = PLAN_REPO_ENTRIES;
        all = walk_dir(&w, AT_FDCWD, op->src, op->src, walk_depth(h), false) && all;
    }
    look_seen(&w);
    look_global(&w);
    strv_done(&w.works);
    if (ret->n >= HOSTEXEC_MAX || !all || w.cut || w.configs >= CONFIGS_MAX)
        strv_add(ret, "... (not everything was looked at)");
    free(h);
}
