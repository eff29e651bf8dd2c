#include "cli/run/hostexec.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"
#include "cli/run/hostexec-int.h"

enum {
    LIST_DEPTH = 5,  /* levels below a writable root that are read after the run, at least */
    HOOKS_MAX = 256, /* entries of a directory of hooks that are read */
};

struct hostexec *hostexec_before(const struct policy *policy, const struct plan *plan, const char *home,
                                 const struct seen *seen)
{
    struct hostexec *h = xcalloc(1, sizeof *h);
    h->policy = policy;
    h->plan = plan;
    h->home = home;
    h->before = seen;
    h->thorough = HOSTEXEC_THOROUGH;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &h->start); /* the clock that inodes are stamped with */
    return h;
}

bool hostexec_changed(const struct walk *w, const struct stat *st)
{
    const struct timespec *s = &w->h->start;
    return st->st_ctim.tv_sec > s->tv_sec || (st->st_ctim.tv_sec == s->tv_sec && st->st_ctim.tv_nsec >= s->tv_nsec);
}

bool hostexec_was_writable(const struct walk *w, const char *host)
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

void hostexec_add(struct strv *ret, char *path)
{
    if (ret->n >= HOSTEXEC_MAX || strv_has(ret, path))
        free(path);
    else
        strv_take(ret, path);
}

void hostexec_list(struct walk *w, char *path)
{
    if (hostexec_was_writable(w, path) || replaced_stub(w, path))
        hostexec_add(w->ret, path);
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

void hostexec_list_changed(struct walk *w, int fd, const char *dir, const char *name)
{
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && hostexec_changed(w, &st) && !plan_is_stub(&st))
        hostexec_list(w, path_join(dir, name));
}

/* git runs no hook of that name. */
static bool is_sample(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".sample") == 0;
}

void hostexec_list_entries(struct walk *w, const char *dir, bool all)
{
    _cleanup_closedir_ DIR *d = open_dir(dir);
    const struct dirent *e;
    for (unsigned left = HOOKS_MAX; d && left > 0 && (e = readdir(d)); left--) {
        struct stat st;
        if (e->d_type == DT_DIR || is_sample(e->d_name) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !hostexec_changed(w, &st) || plan_is_stub(&st))
            continue;
        if (all)
            hostexec_add(w->ret, path_join(dir, e->d_name));
        else
            hostexec_list(w, path_join(dir, e->d_name));
    }
}

static bool first_component(const char *name, const char *entry)
{
    size_t n = strlen(entry);
    return strncmp(name, entry, n) == 0 && (name[n] == '\0' || name[n] == '/');
}

/* Lists one name of the table if it changed; of an unchanged directory its changed entries. */
static void look_name(struct walk *w, int fd, const char *dir, const char *name)
{
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    if (hostexec_changed(w, &st)) {
        hostexec_list_changed(w, fd, dir, name);
        return;
    }
    _cleanup_free_ char *path = S_ISDIR(st.st_mode) ? path_join(dir, name) : NULL;
    if (path)
        hostexec_list_entries(w, path, false);
}

static bool is_home(const struct walk *w, const char *dir) { return strv_has(&w->h->policy->homes, dir); }

/* Judges one name of the table, if the entry is its first component and the name has a meaning in that directory. */
static void look_one(struct walk *w, int fd, const char *dir, const char *entry, const char *name,
                     enum name_place place)
{
    if (place != NAME_IN_GIT && first_component(name, entry) && (place != NAME_IN_HOME || is_home(w, dir)))
        look_name(w, fd, dir, name);
}

/* Judges the names that the policy adds and those of the table: protected, opened, and reported ones. */
static void look_entry(struct walk *w, int fd, const char *dir, const char *entry)
{
    const struct policy *p = w->h->policy;
    size_t n;
    const struct known_name *known = names_known(&n);
    if (strcmp(entry, ".git") == 0) {
        hostexec_look_git(w, fd, dir);
        return;
    }
    if (strcmp(entry, "HEAD") == 0)
        hostexec_look_bare(w, fd, dir);
    for (size_t i = 0; i < n; i++)
        look_one(w, fd, dir, entry, known[i].name, known[i].place);
    for (size_t i = 0; i < p->nnames; i++)
        if (p->names[i].origin.level != LEVEL_BUILTIN)
            look_one(w, fd, dir, entry, p->names[i].name, p->names[i].place);
}

static void find_starts(const struct policy *p, bool starts[256])
{
    size_t n;
    const struct known_name *known = names_known(&n);
    starts['H'] = true; /* "HEAD" */
    for (size_t i = 0; i < n; i++)
        starts[(unsigned char)known[i].name[0]] = true;
    for (size_t i = 0; i < p->nnames; i++)
        starts[(unsigned char)p->names[i].name[0]] = true;
}

void hostexec_begin(const struct policy *policy, struct seen *ret)
{
    find_starts(policy, ret->starts);
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &ret->since);
}

/* First walk: notes an entry of a directory that the second walk may skip. Whether its name matters is decided then:
 * few entries begin like one that does. */
static void note_entry(struct walk *w, const char *dir, const char *entry)
{
    struct hostexec *h = w->h;
    if (strcmp(entry, ".") == 0 || strcmp(entry, "..") == 0)
        return;
    MEM_GROW(h->noted, h->nnoted, h->noted_cap);
    h->noted[h->nnoted++] = (struct noted){w->root, xstrdup(dir), xstrdup(entry)};
}

static void look_noted(struct walk *w)
{
    for (size_t i = 0; i < w->h->nnoted; i++) {
        struct noted *s = &w->h->noted[i];
        _cleanup_close_ int fd = openat(AT_FDCWD, s->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        w->root = s->root;
        if (fd >= 0)
            look_entry(w, fd, s->dir, s->entry);
        free(s->dir);
        free(s->entry);
    }
    free(w->h->noted);
}

static bool descends(const struct dirent64 *e)
{
    return (e->d_type == DT_DIR || e->d_type == DT_UNKNOWN) && strcmp(e->d_name, ".") != 0 &&
           strcmp(e->d_name, "..") != 0 && strcmp(e->d_name, ".git") != 0 && strcmp(e->d_name, "node_modules") != 0;
}

/* A directory on the way: `name` in `parent`, which is `path` on the host. */
struct place {
    int parent;
    const char *name, *path;
    unsigned depth;             /* levels below it that are walked */
    bool moved;                 /* see walk_sub() */
    const struct seen_dir *was; /* what the search saw there; NULL if nothing */
};

static bool walk_dir(struct walk *w, const struct place *p);
static bool walk_sub(struct walk *w, const struct place *p);

/* Decides without a stat() whether the name may matter. */
static bool matters(const struct walk *w, const char *entry)
{
    const struct policy *p = w->h->policy;
    size_t n;
    const struct known_name *known = names_known(&n);
    if (strcmp(entry, ".git") == 0 || strcmp(entry, "HEAD") == 0)
        return true;
    for (size_t i = 0; i < n; i++)
        if (first_component(known[i].name, entry))
            return true;
    for (size_t i = 0; i < p->nnames; i++)
        if (first_component(p->names[i].name, entry))
            return true;
    return false;
}

/* No link is followed on the way from the writable root. */
static int open_place(const struct place *p)
{
    const char *name = p->name;
    _cleanup_close_ int above = -1;
    for (size_t n = strcspn(name, "/"); p->parent != AT_FDCWD && name[n]; n = strcspn(name, "/")) {
        char part[NAME_MAX + 1];
        if (n > NAME_MAX)
            return -1;
        memcpy(part, name, n);
        part[n] = '\0';
        int fd = openat(above < 0 ? p->parent : above, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return -1;
        if (above >= 0)
            (void)close(above);
        above = fd;
        name += n + 1;
    }
    return openat(above < 0 ? p->parent : above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
}

/* A directory with the same entries as before the run: the names that matter in it, and its subdirectories, are
 * known. */
static bool walk_known(struct walk *w, const struct place *p)
{
    _cleanup_close_ int fd = -1;
    size_t top = strlen(w->root->src);
    if (w->left < p->was->entries) {
        w->left = 0;
        return false;
    }
    w->left -= p->was->entries;
    for (size_t i = 0; i < p->was->names.n; i++) {
        if (!matters(w, p->was->names.v[i]))
            continue;
        fd = fd < 0 ? open_place(p) : fd;
        if (fd >= 0)
            look_entry(w, fd, p->path, p->was->names.v[i]);
    }
    for (size_t i = 0; p->depth > 0 && i < p->was->n; i++) {
        const struct seen_dir *sub = &w->h->before->dirs[p->was->first + i];
        _cleanup_free_ char *path = path_join(p->path, sub->name);
        if (!walk_sub(w, &(struct place){w->top, path + top + (path[top] == '/'), path, p->depth - 1, p->moved, sub}))
            return false;
    }
    return true;
}

/* Whether a subdirectory can be skipped: it has no subdirectories (by its link count; where the file system has
 * none, it is read) and got no entry since the start, so only noted entries can have changed. Not if a directory
 * above it changed: it may have been renamed, and the notes are under another path. */
static bool walk_sub(struct walk *w, const struct place *p)
{
    bool seen = w->h->looked || w->left < PLAN_REPO_ENTRIES - w->h->thorough;
    struct stat st;
    bool there = !w->first && fstatat(p->parent, p->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    bool touched = there && hostexec_changed(w, &st);
    if (there && seen && !p->moved && st.st_nlink == 2 && !touched)
        return true;
    if (there && seen_unchanged(w->h->before, p->was, &st))
        return walk_known(w, p);
    if (touched && S_ISDIR(st.st_mode) && faccessat(p->parent, p->name, R_OK | X_OK, AT_EACCESS) < 0)
        hostexec_list(w, xstrdup(p->path)); /* a program can execute what is in it without reading it */
    struct place in = *p;
    in.moved = p->moved || touched;
    in.was = there && seen_is(p->was, &st) ? p->was : NULL;
    return walk_dir(w, &in);
}

/* Reads the directory and those below it. Returns false when the budget is used up. */
static bool walk_dir(struct walk *w, const struct place *p)
{
    _cleanup_close_ int fd = open_place(p);
    _cleanup_strv_ struct strv subs = {0};
    char entries[8192] __attribute__((aligned(8)));
    struct stat st;
    size_t guess = 0;
    if (fd < 0)
        return true;
    if (p->parent == AT_FDCWD)
        w->top = fd;
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
                look_entry(w, fd, p->path, e->d_name);
            else if (named && last)
                note_entry(w, p->path, e->d_name);
            if (p->depth > 0 && descends(e))
                strv_add(&subs, e->d_name);
        }
    }
    for (size_t i = 0; i < subs.n; i++) {
        _cleanup_free_ char *path = path_join(p->path, subs.v[i]);
        const struct seen_dir *was = seen_sub(w->h->before, p->was, subs.v[i], &guess);
        if (!walk_sub(w, &(struct place){fd, subs.v[i], path, p->depth - 1, p->moved, was}))
            return false;
    }
    return true;
}

/* Walks the writable root that is w->root. */
static bool walk_root(struct walk *w)
{
    const char *src = w->root->src;
    struct place p = {.parent = AT_FDCWD, .name = src, .path = src, .was = seen_root(w->h->before, src)};
    unsigned want = w->h->policy->search_depth;
    struct stat st;
    p.depth = want > LIST_DEPTH ? want : LIST_DEPTH;
    if (w->first || !p.was || lstat(src, &st) < 0 || !seen_is(p.was, &st))
        p.was = NULL;
    return walk_dir(w, &p);
}

/* --- what the plan protects --------------------------------------------------------------------------------------- */

/* Beside a protected git configuration the command can make a commondir (see plan-protect.c), and the places that
 * the configuration names may be unprotected. */
static void look_beside_config(struct walk *w, const struct plan_op *op)
{
    struct stat st;
    bool git = strcmp(path_name(op->src), "config") == 0;
    if (!git && strcmp(path_name(op->src), "config.worktree") != 0)
        return;
    _cleanup_free_ char *dir = path_parent(op->src), *path = path_join(dir, "commondir");
    if (git && lstat(path, &st) == 0 && hostexec_changed(w, &st))
        hostexec_add(w->ret, TAKE_PTR(path));
    hostexec_look_repository(w, dir, op->src);
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

/* When a program outside renames another file over a name, as editors and git do to save, the kernel drops the mount there
 * and the name is unprotected from then on; and a file can be changed through another hard link. So a protected name must
 * still be the same unchanged file, and a stub's name must be gone. A pinned directory may change but must be the same. */
static void look_op(struct walk *w, const struct plan_op *op)
{
    struct stat st;
    if (op->kind == OP_STUB && in_root(w, op->src)) /* the walk reads that directory */
        return;
    bool there = lstat(op->src, &st) == 0 && !plan_is_stub(&st);
    bool same = there && st.st_dev == op->dev && st.st_ino == op->ino;
    bool bad = op->kind == OP_STUB  ? there
               : op->kind == OP_PIN ? there && !same
                                    : there && (!same || hostexec_changed(w, &st));
    if (bad)
        hostexec_add(w->ret, xstrdup(op->src));
    if (op->kind == OP_PROTECT && same && S_ISDIR(st.st_mode))
        hostexec_list_entries(w, op->src, true);
    if (op->kind != OP_PIN)
        look_beside_config(w, op);
}

void hostexec_look(struct hostexec *h)
{
    struct walk w = {.h = h, .first = true};
    bool whole = true;
    find_starts(h->policy, w.starts);
    for (size_t i = 0; i < h->plan->nops; i++) {
        w.root = &h->plan->ops[i];
        w.left = HOSTEXEC_LOOK;
        if (w.root->src && w.root->kind == OP_BIND_RW && w.root->type == TYPE_DIR)
            whole = walk_root(&w) && whole;
    }
    h->looked = whole;
    h->thorough = HOSTEXEC_LOOK; /* if incomplete: the command may have enlarged the tree to stop the walk */
}

void hostexec_drop(struct hostexec *h) { free(h); }

void hostexec_after(struct hostexec *h, struct strv *ret)
{
    if (!h)
        return;
    struct walk w = {.h = h, .ret = ret};
    find_starts(h->policy, w.starts);
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
        all = walk_root(&w) && all;
    }
    look_noted(&w);
    hostexec_look_global(&w);
    strv_done(&w.works);
    if (ret->n >= HOSTEXEC_MAX || !all || w.cut || w.configs >= CONFIGS_MAX)
        strv_add(ret, "... (not everything was looked at)");
    free(h);
}
