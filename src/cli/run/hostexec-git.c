/* hostexec-git.c - lists what git executes or trusts: repositories, and the places that their configurations name. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/run/gitconfig.h"
#include "cli/run/hostexec-int.h"

enum { INCLUDE_DEPTH = 5 }; /* files that include each other */

/* A place that a configuration names: a directory of hooks or another configuration. Listed if the command wrote
 * there: as a whole if it is new, was renamed or got new entries, otherwise its changed files. */
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
    if (!root || lstat(real, &st) < 0 || plan_is_stub(&st))
        return;
    w->root = root;
    if (hostexec_changed(w, &st))
        hostexec_list(w, TAKE_PTR(real));
    else if (S_ISDIR(st.st_mode))
        hostexec_list_entries(w, real, false);
    w->root = before;
}

static char *expand(const struct walk *w, const char *base, const char *value)
{
    if (strncmp(value, "~/", 2) == 0 && w->h->home)
        return path_join(w->h->home, value + 2);
    return *value == '/' ? xstrdup(value) : path_join(base, value);
}

/* A configuration may include any file of the host. Reads without blocking and at most the file's size: kernel files
 * such as /proc/kmsg are regular files of size 0 that can block a reader for ever. */
static bool read_regular(const char *path, struct buf *ret)
{
    struct stat st;
    char chunk[4096];
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0) /* opening a device can have effects */
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

/* A configuration may name writable places: git outside then executes or trusts what the command wrote there. Git
 * resolves a relative hooks path from the working tree, and a relative include from the including file. */
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

void hostexec_look_repository(struct walk *w, const char *git, const char *config)
{
    _cleanup_strv_ struct strv work = {0};
    strv_take(&work, strcmp(path_name(git), ".git") == 0 ? path_parent(git) : xstrdup(git));
    if (w->works.n < CONFIGS_MAX && !strv_has(&w->works, work.v[0]))
        strv_add(&w->works, work.v[0]);
    look_config(w, config, &work, INCLUDE_DEPTH);
}

void hostexec_look_global(struct walk *w)
{
    static const char *const of_home[] = {".gitconfig", ".config/git/config"};
    look_config(w, "/etc/gitconfig", &w->works, INCLUDE_DEPTH);
    for (size_t i = 0; w->h->home && i < ARRAY_LEN(of_home); i++) {
        _cleanup_free_ char *path = path_join(w->h->home, of_home[i]);
        look_config(w, path, &w->works, INCLUDE_DEPTH);
    }
}

/* Whether the plan leaves the configuration or the hooks of this ".git" writable. */
static bool unprotected(const struct walk *w, const char *git)
{
    _cleanup_free_ char *hooks = path_join(git, "hooks"), *config = path_join(git, "config");
    return hostexec_was_writable(w, hooks) && hostexec_was_writable(w, config);
}

/* A git directory inside another one, of a submodule or a worktree. The plan protects those it knew. A new one is
 * listed as a whole; otherwise its changed files are. */
static void look_inner_git(void *arg, const char *git)
{
    enum { COMMON, CONFIG, CONFIG_WORKTREE, BACK, HOOKS, N };
    static const char *const names[N] = {"commondir", "config", "config.worktree", "gitdir", "hooks"};
    struct walk *w = arg;
    bool hit[N];
    for (size_t i = 0; i < N; i++) {
        struct stat st;
        _cleanup_free_ char *path = path_join(git, names[i]);
        hit[i] =
            lstat(path, &st) == 0 && hostexec_changed(w, &st) && !plan_is_stub(&st) && hostexec_was_writable(w, path);
    }
    if (hit[COMMON] || (hit[CONFIG] && hit[HOOKS])) {
        hostexec_list(w, xstrdup(git));
        return;
    }
    for (size_t i = 0; i < N; i++)
        if (hit[i])
            hostexec_list(w, path_join(git, names[i]));
    _cleanup_free_ char *config = path_join(git, names[CONFIG]), *hooks = path_join(git, names[HOOKS]);
    if (!hit[HOOKS])
        hostexec_list_entries(w, hooks, false);
    if (hostexec_was_writable(w, config))
        hostexec_look_repository(w, git, config);
}

/* Lists a repository that the plan did not know: as a whole if it is new, otherwise its changed files. In a
 * repository that the plan knew, these can have appeared: a "commondir", with which git takes configuration and
 * hooks from elsewhere, the list of an unfinished rebase, submodules and worktrees. */
void hostexec_look_git(struct walk *w, int fd, const char *dir)
{
    enum { ALWAYS = 2 }; /* the first of these */
    static const char *const inner[] = {".git/commondir", ".git/rebase-merge", ".git/config", ".git/config.worktree",
                                        ".git/hooks"};
    _cleanup_free_ char *git = path_join(dir, ".git"), *hooks = path_join(dir, ".git/hooks");
    struct stat st;
    if (fstatat(fd, ".git", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    bool open = unprotected(w, git);
    if (open && hostexec_changed(w, &st)) {
        hostexec_list(w, TAKE_PTR(git));
        return;
    }
    if (!S_ISDIR(st.st_mode))
        return;
    for (size_t i = 0; i < (open ? ARRAY_LEN(inner) : ALWAYS); i++)
        hostexec_list_changed(w, fd, dir, inner[i]);
    if (plan_host_facts.git_dirs(plan_host_facts.ctx, git, PLAN_MODULES, look_inner_git, w) > 0)
        w->cut = true;
    if (open) {
        _cleanup_free_ char *config = path_join(git, "config");
        hostexec_list_entries(w, hooks, false);
        hostexec_look_repository(w, git, config);
    }
}

/* A directory that is itself a git directory ("bare"): git takes it for one when it is the current directory. It needs
 * a HEAD, and either a commondir or objects and refs. */
void hostexec_look_bare(struct walk *w, int fd, const char *dir)
{
    enum { HEAD, COMMON, OBJECTS, REFS, CONFIG, HOOKS, N };
    static const char *const names[N] = {"HEAD", "commondir", "objects", "refs", "config", "hooks"};
    bool there[N], any = false;
    for (size_t i = 0; i < N; i++) {
        struct stat st;
        there[i] = fstatat(fd, names[i], &st, AT_SYMLINK_NOFOLLOW) == 0 && !plan_is_stub(&st);
        any = any || (there[i] && hostexec_changed(w, &st));
        if (i == REFS && !there[COMMON] && (!there[OBJECTS] || !there[REFS]))
            return;
    }
    if (any)
        hostexec_list(w, xstrdup(dir));
    else if (there[HOOKS]) {
        _cleanup_free_ char *hooks = path_join(dir, "hooks");
        hostexec_list_entries(w, hooks, false);
    }
}
