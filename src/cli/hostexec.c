#include "cli/hostexec.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/path.h"

enum { LIST_DEPTH = 5 /* levels below a writable root that are looked at after the run, at least */ };

struct hostexec {
    const struct policy *policy;
    const struct plan *plan;
    struct timespec start;
};

struct walk {
    const struct hostexec *h;
    const struct plan_op *root;
    struct strv *ret;
    unsigned left;    /* directory entries that may still be looked at */
    bool starts[256]; /* first bytes of names that matter: nearly every entry is told apart by it */
};

struct dirent_raw {
    uint64_t ino;
    int64_t off;
    unsigned short reclen;
    unsigned char type;
    char name[];
};

struct hostexec *hostexec_before(const struct policy *policy, const struct plan *plan)
{
    struct hostexec *h = xcalloc(1, sizeof *h);
    h->policy = policy;
    h->plan = plan;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &h->start); /* the clock that inodes are stamped with */
    return h;
}

static bool changed(const struct walk *w, const struct stat *st)
{
    const struct timespec *s = &w->h->start;
    return st->st_ctim.tv_sec > s->tv_sec || (st->st_ctim.tv_sec == s->tv_sec && st->st_ctim.tv_nsec >= s->tv_nsec);
}

/* The command cannot have touched what the plan keeps from it; if it changed, someone outside did. */
static bool was_writable(const struct walk *w, const char *host)
{
    const struct plan_op *root = w->root;
    _cleanup_free_ char *inside = xasprintf("%s%s", root->path, host + strlen(root->src));
    const struct plan_op *op = plan_op_for(w->h->plan, inside);
    return op && op->kind == OP_BIND_RW;
}

static void list(struct walk *w, char *path)
{
    if (w->ret->n >= HOSTEXEC_MAX || strv_has(w->ret, path) || !was_writable(w, path)) {
        free(path);
        return;
    }
    strv_take(w->ret, path);
}

static bool first_component(const char *name, const char *entry)
{
    size_t n = strlen(entry);
    return strncmp(name, entry, n) == 0 && (name[n] == '\0' || name[n] == '/');
}

/* A repository that the plan knew has its hooks and its configuration protected. */
static void look_repo(struct walk *w, const char *dir)
{
    static const char *const inner[] = {".git/hooks", ".git/config"};
    for (size_t i = 0; i < ARRAY_LEN(inner); i++) {
        _cleanup_free_ char *path = path_join(dir, inner[i]);
        if (!was_writable(w, path))
            return;
    }
    list(w, path_join(dir, ".git"));
}

static void look_entry(struct walk *w, int fd, const char *dir, const char *entry)
{
    const struct policy *p = w->h->policy;
    struct stat st;
    if (strcmp(entry, ".git") == 0) {
        if (fstatat(fd, entry, &st, AT_SYMLINK_NOFOLLOW) == 0 && changed(w, &st))
            look_repo(w, dir);
        return;
    }
    for (size_t i = 0; i < p->nnames; i++) {
        const char *name = p->names[i].name;
        if (!first_component(name, entry) || fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (changed(w, &st) && !plan_is_stub(&st))
            list(w, path_join(dir, name));
    }
}

static bool descends(const struct dirent_raw *e)
{
    return (e->type == DT_DIR || e->type == DT_UNKNOWN) && strcmp(e->name, ".") != 0 && strcmp(e->name, "..") != 0 &&
           strcmp(e->name, ".git") != 0 && strcmp(e->name, "node_modules") != 0;
}

/* A directory without subdirectories (where link counts tell: else it is read) to which nothing was added since the
 * start. Only what was there before can have changed in it. */
static bool settled(const struct walk *w, int parent, const char *name)
{
    struct stat st;
    return fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_nlink == 2 && !changed(w, &st);
}

/* Returns false when the budget is used up. */
static bool walk_dir(struct walk *w, int parent, const char *name, const char *path, unsigned depth)
{
    _cleanup_close_ int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    _cleanup_strv_ struct strv subs = {0};
    char entries[8192] __attribute__((aligned(8)));
    if (fd < 0)
        return true;
    for (;;) {
        long n = syscall(SYS_getdents64, fd, entries, sizeof entries);
        if (n <= 0)
            break;
        for (long at = 0; at < n;) {
            const struct dirent_raw *e = (const struct dirent_raw *)(const void *)(entries + at);
            at += e->reclen;
            if (w->left == 0)
                return false;
            w->left--;
            if (w->starts[(unsigned char)e->name[0]])
                look_entry(w, fd, path, e->name);
            if (depth > 0 && descends(e))
                strv_add(&subs, e->name);
        }
    }
    for (size_t i = 0; i < subs.n; i++) {
        if (w->left < PLAN_REPO_ENTRIES - HOSTEXEC_THOROUGH && settled(w, fd, subs.v[i]))
            continue;
        _cleanup_free_ char *sub = path_join(path, subs.v[i]);
        if (!walk_dir(w, fd, subs.v[i], sub, depth - 1))
            return false;
    }
    return true;
}

void hostexec_after(struct hostexec *h, struct strv *ret)
{
    if (!h)
        return;
    struct walk w = {.h = h, .ret = ret};
    unsigned depth = h->policy->search_depth > LIST_DEPTH ? h->policy->search_depth : LIST_DEPTH;
    w.starts['.'] = true; /* ".git" */
    for (size_t i = 0; i < h->policy->nnames; i++)
        w.starts[(unsigned char)h->policy->names[i].name[0]] = true;
    bool all = true;
    for (size_t i = 0; i < h->plan->nops; i++) {
        const struct plan_op *op = &h->plan->ops[i];
        if (op->kind != OP_BIND_RW || op->type != TYPE_DIR || !op->src)
            continue;
        w.root = op;
        w.left = PLAN_REPO_ENTRIES;
        all = walk_dir(&w, AT_FDCWD, op->src, op->src, depth) && all;
    }
    if (ret->n >= HOSTEXEC_MAX || !all)
        strv_add(ret, "... (not everything was looked at)");
    free(h);
}
