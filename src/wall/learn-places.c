/* learn-places.c - which directories of the host get a private layer. Runs in the caller, before anything is cloned. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"
#include "os/mount.h"
#include "wall/learn.h"

enum { MOUNTINFO_MAX = 4 << 20 };

struct finder {
    const struct plan *plan;
    const struct plan_caller *who;
    struct wall_learn *out;
    struct strv mounts; /* where something is mounted */
    bool full;
    bool every; /* mount, also those in private directories */
};

/* The kernel's trees and the sandbox's own. */
static bool is_own(const char *path)
{
    static const char *const own[] = {"/proc", "/sys", "/dev", "/run", "/tmp"};
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (path_under(path, own[i]))
            return true;
    return false;
}

static bool is_private(const struct plan *plan, const char *path)
{
    for (size_t i = 0; i < plan->nops; i++)
        if (plan->ops[i].kind == OP_TMPFS && plan->ops[i].writable && path_under(path, plan->ops[i].path))
            return true;
    return false;
}

static bool is_dir(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void finder_add(struct finder *f, const char *path, const char *src, bool late)
{
    for (size_t i = 0; i < f->out->n; i++)
        if (strcmp(f->out->place[i].path, path) == 0)
            return;
    if (f->out->n == LEARN_PLACES_MAX) {
        if (!f->full)
            strv_take(&f->out->notes,
                      xasprintf("only %d directories get a private layer; the rest stays read-only", LEARN_PLACES_MAX));
        f->full = true;
        return;
    }
    f->out->place[f->out->n++] = (struct learn_place){.path = xstrdup(path), .src = xstrdup(src), .late = late};
}

/* --- what is mounted ------------------------------------------------------------------------------------------------ */

/* Looking at an automounter would make it mount. */
static int finder_read_mounts(struct finder *f, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_MAX, &text) < 0)
        return err_set(err, ERR_SETUP, errno, "--learn: read /proc/self/mountinfo");
    for (char *line = text.p, *next; line && *line; line = next) {
        char *at = line;
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = '\0';
        bool automounter = strstr(line, " - autofs ");
        for (int field = 1; field < 5 && at; field++)
            at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
        if (!at || automounter)
            continue;
        at[strcspn(at, " ")] = '\0';
        mount_unescape(at);
        if (strcmp(at, "/") != 0 && (f->every || (!is_own(at) && !is_private(f->plan, at))) &&
            !strv_has(&f->mounts, at))
            strv_add(&f->mounts, at);
    }
    return 0;
}

static bool has_mount_below(const struct finder *f, const char *dir)
{
    for (size_t i = 0; i < f->mounts.n; i++)
        if (strcmp(f->mounts.v[i], dir) != 0 && path_under(f->mounts.v[i], dir))
            return true;
    return false;
}

/* --- the search ----------------------------------------------------------------------------------------------------- */

/* The command cannot enter a directory that the caller cannot enter. */
static bool can_enter(const char *dir) { return faccessat(AT_FDCWD, dir, X_OK, AT_EACCESS) == 0; }

static void finder_visit(struct finder *f, const char *dir, unsigned depth);

static int visit_children(struct finder *f, const char *dir, unsigned depth)
{
    _cleanup_closedir_ DIR *d = opendir(dir);
    if (!d)
        return -1;
    for (struct dirent *e = readdir(d); e && !f->full; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        _cleanup_free_ char *path = path_join(dir, e->d_name);
        if (!is_own(path) && !is_private(f->plan, path) && is_dir(path) && can_enter(path))
            finder_visit(f, path, depth);
    }
    return 0;
}

static void note_read_only(struct finder *f, const char *dir)
{
    _cleanup_buf_ struct buf note = {0};
    text_add_safe(&note, dir, 200);
    buf_adds(&note, " itself stays read-only while learning, because something is mounted below it");
    if (faccessat(AT_FDCWD, dir, W_OK, AT_EACCESS) == 0 && !strv_has(&f->out->notes, buf_str(&note)))
        strv_add(&f->out->notes, buf_str(&note));
}

/* Only root may leave out what is mounted below a directory; for other users that would uncover what it hides. */
static void finder_visit(struct finder *f, const char *dir, unsigned depth)
{
    if (f->who->root || !has_mount_below(f, dir)) {
        finder_add(f, dir, dir, false);
        return;
    }
    note_read_only(f, dir);
    if (depth < LEARN_DEPTH_MAX)
        (void)visit_children(f, dir, depth + 1);
}

/* An ordinary user's layer cannot hold a copy of another user's directory, and a change needs copies of all directories
 * above it. So where the caller works, the layer starts right there. */
static void visit_own(struct finder *f)
{
    const struct plan *plan = f->plan;
    const char *tops[] = {f->who->home, f->who->cwd};
    for (size_t i = 0; i < ARRAY_LEN(tops); i++)
        if (tops[i] && path_depth(tops[i]) > 1 && !is_own(tops[i]) && !is_private(plan, tops[i]) && is_dir(tops[i]))
            finder_visit(f, tops[i], 1);
    for (size_t i = 0; i < plan->nops; i++)
        if (plan->ops[i].kind == OP_BIND_RW && plan->ops[i].type == TYPE_DIR && !is_private(plan, plan->ops[i].path) &&
            strcmp(plan->ops[i].path, plan->ops[i].src) == 0)
            finder_visit(f, plan->ops[i].path, 1);
}

static int place_compare_path(const void *a, const void *b)
{
    return strcmp(((const struct learn_place *)a)->path, ((const struct learn_place *)b)->path);
}

int learn_find(const struct plan *plan, const struct plan_caller *who, struct wall_learn *ret, struct err *err)
{
    struct finder f = {.plan = plan, .who = who, .out = ret};
    int r = finder_read_mounts(&f, err);
    if (r == 0 && visit_children(&f, "/", 1) < 0)
        r = err_set(err, ERR_SETUP, errno, "--learn: read the root directory");
    for (size_t i = 0; r == 0 && who->root && i < f.mounts.n; i++)
        if (path_depth(f.mounts.v[i]) > 1 && is_dir(f.mounts.v[i]))
            finder_add(&f, f.mounts.v[i], f.mounts.v[i], false);
    if (r == 0 && !who->root)
        visit_own(&f);
    qsort(ret->place, ret->n, sizeof ret->place[0], place_compare_path);
    for (size_t i = 0; r == 0 && i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (op->kind == OP_BIND_RW && op->type == TYPE_DIR &&
            (strcmp(op->path, op->src) != 0 || is_private(plan, op->path)))
            finder_add(&f, op->path, op->src, true);
    }
    strv_done(&f.mounts);
    return r;
}

int learn_find_tx(const struct plan *plan, struct wall_learn *ret, struct err *err)
{
    struct finder f = {.plan = plan, .out = ret, .every = true};
    int r = finder_read_mounts(&f, err);
    ret->tx = true;
    for (size_t i = 0; r == 0 && i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (op->kind != OP_BIND_RW)
            continue;
        if (op->type != TYPE_DIR)
            r = err_set(err, ERR_USAGE, 0, "--tx works on directories and %s is not one: give its directory with --rw",
                        op->path);
        for (size_t k = 0; r == 0 && k < f.mounts.n; k++)
            if (strcmp(f.mounts.v[k], op->src) != 0 && path_under(f.mounts.v[k], op->src))
                r = err_set(err, ERR_HOST, 0, "--tx: %s is mounted below %s, where a private layer would hide it",
                            f.mounts.v[k], op->src);
        if (r == 0 && ret->n == LEARN_PLACES_MAX)
            r = err_set(err, ERR_USAGE, 0, "--tx: more than %d writable directories", LEARN_PLACES_MAX);
        if (r == 0)
            ret->place[ret->n++] =
                (struct learn_place){.path = xstrdup(op->path), .src = xstrdup(op->src), .late = true};
    }
    strv_done(&f.mounts);
    return r;
}
