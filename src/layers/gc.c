/* gc.c - removes dropped stacks, layers that no stack names, uppers of sandboxes that have ended, and old uploads.
 *
 * What another process may be about to use is removed in two steps, REFS_GRACE_S apart: gc renames it, checks again
 * whether it is in use, and then removes it or puts it back. A layer is layers/.gone-HEX between the steps, and
 * layers/.dead-HEX once its removal is final.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/num.h"
#include "layers/merged.h"
#include "layers/refs.h"
#include "os/btrfs.h"
#include "os/upper.h"

#define LAYER_GONE ".gone-"
#define LAYER_DEAD ".dead-"
#define STACK_TMP  "stack-" /* left by a stack_write() that was killed */
enum { BLOB_SECONDS = 7 * 24 * 3600, TMP_SECONDS = 600, LINES_MAX = 4 << 20 };

struct gc {
    struct job *j;
    bool dry;
    struct buf lines;
    struct livings living;
    struct refs refs;
    const char *unsure; /* why no layer may be removed; NULL: all references are known */
    char why[200];
    uint64_t removed_bytes, removed, later_bytes, later;
    bool dropped; /* a stack was put away: sync the directory once after all of them */
};

static void gc_say(struct gc *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void gc_say(struct gc *g, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (g->lines.n < LINES_MAX)
        buf_addf(&g->lines, "%s%s\n", text, g->dry ? " (not done)" : "");
}

/* By ctime, which changes when it is made or renamed. A time in the future counts as new. */
static bool gc_is_older(int dir, const char *name, time_t seconds)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && time(NULL) - st.st_ctime > seconds;
}

static bool gc_grace_is_over(const struct stack_name *n)
{
    char boot[REFS_BOOT];
    uint64_t now = refs_now(boot);
    return strcmp(boot, n->boot) != 0 || now > n->ticks + refs_grace_ticks();
}

/* --- stacks ------------------------------------------------------------------------------------------------------- */

static int gc_note_drop(const struct layers_place *p, const char *id, struct err *err)
{
    char note[REFS_NAME_MAX];
    (void)snprintf(note, sizeof note, "%s.drop", id);
    _cleanup_close_ int fd = openat(p->stacks, note, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "note that %s was dropped", id) : 0;
}

static int gc_sync_stacks(const struct layers_place *p, struct err *err)
{
    return fsync(p->stacks) < 0 ? err_set(err, ERR_SETUP, errno, "sync the directory of stacks") : 0;
}

/* Renames the stack to .gone, where its layers stay referenced: a create may have read it just before. The caller calls
 * gc_sync_stacks(). */
static int gc_put_stack_away(const struct layers_place *p, const char *id, struct err *err)
{
    char gone[REFS_NAME_MAX], note[REFS_NAME_MAX];
    stack_name_now(STACK_NAME_GONE, id, gone);
    (void)snprintf(note, sizeof note, "%s.drop", id);
    if (renameat(p->stacks, id, p->stacks, gone) < 0 && errno != ENOENT)
        return err_set(err, ERR_SETUP, errno, "drop the stack %s", id);
    (void)unlinkat(p->stacks, note, 0);
    return 0;
}

int job_drop(struct job *j, struct err *err)
{
    struct livings l;
    const char *id = j->ask->stack;
    if (job_apply_forget(j, err) < 0)
        return -1;
    if (faccessat(j->place.stacks, id, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return 0;
    if (livings_read(j->run_dir, &l, err) < 0)
        return -1;
    const struct living *user = livings_find(&l, id, 0);
    if (user)
        (void)snprintf(j->reply.text, sizeof j->reply.text, "%s goes when the sandbox %s has ended", id, user->id);
    if (user || l.damaged[0])
        return gc_note_drop(&j->place, id, err);
    return gc_put_stack_away(&j->place, id, err) < 0 ? -1 : gc_sync_stacks(&j->place, err);
}

/* A create read the stack before it was dropped, and its sandbox lives: treat the drop as if it had come later. */
static void gc_put_stack_back(struct gc *g, const char *name, const struct stack_name *n)
{
    struct err err = {0};
    const struct layers_place *p = &g->j->place;
    gc_say(g, "stack %s: a living sandbox was made from it; put back", n->id);
    if (!g->dry && gc_note_drop(p, n->id, &err) == 0)
        (void)renameat(p->stacks, name, p->stacks, n->id);
}

static void gc_unlink_stack(struct gc *g, const char *name, const char *what, const char *id)
{
    gc_say(g, "%s %s: no longer in use; removed", what, id);
    g->removed++;
    if (!g->dry)
        (void)unlinkat(g->j->place.stacks, name, 0);
}

static int gc_on_stack_file(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    struct stack_name n = stack_name_parse(name);
    const struct living *user = livings_find(&g->living, n.id, 0);
    bool known = !g->living.damaged[0];
    if (n.kind == STACK_NAME_DROP && !user && known) {
        gc_say(g, "stack %s: was dropped, and the last sandbox made from it has ended", n.id);
        g->dropped |= !g->dry;
        return g->dry ? 0 : gc_put_stack_away(&g->j->place, n.id, err);
    }
    if (n.kind == STACK_NAME_GONE && user)
        gc_put_stack_back(g, name, &n);
    else if (n.kind == STACK_NAME_GONE && known && gc_grace_is_over(&n))
        gc_unlink_stack(g, name, "dropped stack", n.id);
    else if (n.kind == STACK_NAME_WAS && known && gc_grace_is_over(&n) &&
             !livings_find(&g->living, n.id, n.ticks + refs_grace_ticks()))
        gc_unlink_stack(g, name, "former state of stack", n.id);
    return 0;
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

/* If a stack or a record cannot be read, the layers in use are not all known: then no layer is removed. */
static void gc_check_doubt(struct gc *g)
{
    struct stack_file f;
    struct err err = {0};
    if (g->refs.damaged[0])
        (void)snprintf(g->why, sizeof g->why, "stacks/%s is damaged", g->refs.damaged);
    else if (g->living.damaged[0])
        (void)snprintf(g->why, sizeof g->why, "the record of the sandbox %s cannot be read", g->living.damaged);
    for (size_t i = 0; i < g->living.n && !g->why[0]; i++) {
        const struct living *l = &g->living.v[i];
        if (l->alive && stack_id_valid(l->template) && refs_read_file(&g->j->place, l->template, &f, &err) < 0)
            (void)snprintf(g->why, sizeof g->why, "the sandbox %s lives from the stack %s, which is missing", l->id,
                           l->template);
    }
    if (g->why[0]) {
        g->unsure = g->why;
        gc_say(g, "layers: none is removed, because %s", g->why);
    }
}

static uint64_t gc_layer_bytes(const struct gc *g, const char *dir_name)
{
    char path[LAYER_NAME + 16];
    struct layer_meta m;
    (void)snprintf(path, sizeof path, "%s/meta", dir_name);
    _cleanup_close_ int fd = openat(g->j->place.layers, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 && pread(fd, &m, sizeof m, 0) == (ssize_t)sizeof m ? m.bytes : 0;
}

static void gc_say_layer(struct gc *g, const char *hex, uint64_t bytes, const char *what)
{
    _cleanup_buf_ struct buf size = {0};
    num_add_size(&size, bytes);
    gc_say(g, "layer %.12s (%s): %s", hex, buf_str(&size), what);
}

static int gc_layer_set_aside(struct gc *g, const char *hex, struct err *err)
{
    char gone[LAYER_NAME + 8];
    const struct layers_place *p = &g->j->place;
    if (refs_get(&g->refs, hex) || g->unsure || !gc_is_older(p->layers, hex, REFS_GRACE_S))
        return 0;
    uint64_t bytes = gc_layer_bytes(g, hex);
    gc_say_layer(g, hex, bytes, "no stack names it; removed after a minute if none does then");
    g->later++;
    g->later_bytes += bytes;
    (void)snprintf(gone, sizeof gone, LAYER_GONE "%s", hex);
    if (g->dry)
        return 0;
    /* The grace begins now: a rename does not change the time of a subvolume. */
    if (utimensat(p->layers, hex, NULL, AT_SYMLINK_NOFOLLOW) < 0 || renameat(p->layers, hex, p->layers, gone) < 0)
        return err_set(err, ERR_SETUP, errno, "put the layer %.12s away", hex);
    return 0;
}

static int gc_layer_take(struct gc *g, const char *name, struct err *err)
{
    const char *hex = name + strlen(LAYER_GONE);
    const struct layers_place *p = &g->j->place;
    char dead[LAYER_NAME + 8];
    uint64_t bytes = gc_layer_bytes(g, name);
    bool held = refs_get(&g->refs, hex);
    bool again =
        faccessat(p->layers, hex, F_OK, AT_SYMLINK_NOFOLLOW) == 0; /* the same layer was made again meanwhile */
    if (held && !again) {
        gc_say_layer(g, hex, bytes, "a stack names it again; put back");
        if (!g->dry && renameat(p->layers, name, p->layers, hex) < 0)
            return err_set(err, ERR_SETUP, errno, "put the layer %.12s back", hex);
        return 0;
    }
    /* held: a living sandbox may use either of the two */
    if (held || g->unsure || !gc_is_older(p->layers, name, REFS_GRACE_S)) {
        g->later++;
        g->later_bytes += bytes;
        return 0;
    }
    gc_say_layer(g, hex, bytes, "no stack names it; removed");
    g->removed++;
    g->removed_bytes += bytes;
    if (g->dry)
        return 0;
    (void)snprintf(dead, sizeof dead, LAYER_DEAD "%s", hex);
    if (renameat(p->layers, name, p->layers, dead) < 0 && errno != EEXIST && errno != ENOTEMPTY)
        return err_set(err, ERR_SETUP, errno, "put the layer %.12s away", hex);
    return 0; /* gc_sweep() removes its files after the answer */
}

/* Reports a failure and goes on with the other layers. */
static int gc_on_layer(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    struct err one = {0};
    int r = 0;
    (void)err;
    job_progress(g->j, g->removed_bytes, 0, "layers");
    if (layer_name_valid(name))
        r = gc_layer_set_aside(g, name, &one);
    else if (strncmp(name, LAYER_GONE, strlen(LAYER_GONE)) == 0 && layer_name_valid(name + strlen(LAYER_GONE)))
        r = gc_layer_take(g, name, &one);
    if (r < 0)
        gc_say(g, "layers/%.20s: %.300s", name, one.msg);
    return 0;
}

/* Runs after the answer: no process can reach a .dead layer, so its removal may take long. */
static int gc_remove_dead(void *arg, const char *name, struct err *err)
{
    const struct gc *g = arg;
    struct err one = {0};
    (void)err;
    if (strncmp(name, LAYER_DEAD, strlen(LAYER_DEAD)) == 0 && tree_remove(g->j->place.layers, name, &one) < 0)
        log_text(LOG_LEVEL_WARN, "an unused layer is removed later: %s", one.msg);
    return 0;
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

static int gc_on_upper(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    char id[KEEPER_ID_MAX] = "";
    size_t n = strcspn(name, ".");
    if (n == 0 || n >= sizeof id || !gc_is_older(g->j->place.uppers, name, REFS_GRACE_S) || g->living.damaged[0])
        return 0;
    memcpy(id, name, n);
    if (livings_get(&g->living, id))
        return 0;
    gc_say(g, "upper of %s: no such sandbox; removed", id);
    g->removed++;
    return g->dry ? 0 : upper_remove(g->j->place.uppers, id, err);
}

static int gc_on_blob(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    struct stat st;
    (void)err;
    if (fstatat(g->j->place.blobs, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !gc_is_older(g->j->place.blobs, name, BLOB_SECONDS))
        return 0;
    gc_say(g, "upload %.12s: older than seven days; removed", name);
    g->removed++;
    g->removed_bytes += (uint64_t)st.st_blocks * 512;
    if (!g->dry)
        (void)unlinkat(g->j->place.blobs, name, 0);
    return 0;
}

static int gc_on_tmp(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    (void)err;
    if (strncmp(name, STACK_TMP, strlen(STACK_TMP)) == 0 && gc_is_older(g->j->place.tmp, name, TMP_SECONDS) && !g->dry)
        (void)unlinkat(g->j->place.tmp, name, 0);
    return 0;
}

/* Removes files, which takes long, after the answer was sent. */
static void gc_sweep(const struct gc *g)
{
    const struct layers_place *p = &g->j->place;
    struct err one = {0}, two = {0}, three = {0};
    /* One sweep at a time, however long it takes; the next one removes what this one missed. */
    _cleanup_close_ int lock = openat(p->layers, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0)
        return;
    if (refs_each_name(p->layers, gc_remove_dead, (void *)g, &one) < 0)
        log_text(LOG_LEVEL_WARN, "unused layers are removed later: %s", one.msg);
    if (upper_sweep(p->uppers, &two) < 0)
        log_text(LOG_LEVEL_WARN, "unused uppers are removed later: %s", two.msg);
    if (upper_sweep(p->volumes, &three) < 0)
        log_text(LOG_LEVEL_WARN, "what is left of a volume is removed later: %s", three.msg);
    if (upper_is_subvolume(p->root)) /* the pool; another btrfs is the operator's */
        btrfs_qgroups_sweep(p->root);
}

static int gc_collect(struct gc *g, struct err *err)
{
    const struct layers_place *p = &g->j->place;
    if (livings_read(g->j->run_dir, &g->living, err) < 0 || refs_each_name(p->stacks, gc_on_stack_file, g, err) < 0 ||
        (g->dropped && gc_sync_stacks(p, err) < 0) || refs_read(p, &g->refs, err) < 0)
        return -1;
    /* Read again: a sandbox that was made from a stack meanwhile has its record by now. */
    livings_done(&g->living);
    if (livings_read(g->j->run_dir, &g->living, err) < 0)
        return -1;
    gc_check_doubt(g);
    if (refs_each_name(p->layers, gc_on_layer, g, err) < 0 || refs_each_name(p->uppers, gc_on_upper, g, err) < 0 ||
        refs_each_name(p->blobs, gc_on_blob, g, err) < 0 || refs_each_name(p->tmp, gc_on_tmp, g, err) < 0)
        return -1;
    return 0;
}

int job_gc(struct job *j, struct err *err)
{
    static struct gc g; /* for the life of this process */
    g = (struct gc){.j = j, .dry = j->ask->flags & LAYERS_DRY};
    _cleanup_close_ int fd = job_memfd("gc", err);
    if (fd < 0 || gc_collect(&g, err) < 0)
        return -1;
    if (fd_write_all(fd, buf_str(&g.lines), g.lines.n) < 0)
        return err_set(err, ERR_SETUP, errno, "write the answer");
    if (job_memfd_seal(fd, err) < 0)
        return -1;
    j->reply.bytes = g.removed_bytes;
    j->reply.entries = g.removed;
    j->reply.bytes2 = g.later_bytes;
    j->reply.entries2 = g.later;
    j->reply_fd = TAKE_FD(fd);
    if (g.dry)
        return 0;
    if (job_answer(j, err) < 0)
        return -1;
    gc_sweep(&g);
    return 0;
}
