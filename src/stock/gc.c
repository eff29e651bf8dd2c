/* gc.c - what nobody needs goes: dropped stacks, layers that no stack names, uppers of sandboxes that are gone, old
 * uploads.
 *
 * Everything that others may be about to use is taken in two steps, REFS_GRACE_S apart: renamed, looked for once
 * more, then removed or put back. A layer is layers/.gone-HEX between the steps, and layers/.dead-HEX once there is
 * no way back.
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
#include "os/upper.h"
#include "stock/merged.h"
#include "stock/refs.h"

#define LAYER_GONE ".gone-"
#define LAYER_DEAD ".dead-"
#define STACK_TMP  "stack-" /* stack_write() was ended */
enum { BLOB_SECONDS = 7 * 24 * 3600, TMP_SECONDS = 600, LINES_MAX = 4 << 20 };

struct gc {
    struct job *j;
    bool dry;
    struct buf lines;
    struct livings living;
    struct refs refs;
    const char *unsure; /* why no layer may go; NULL: all is known */
    char why[200];
    uint64_t removed_bytes, removed, later_bytes, later;
    bool dropped; /* a stack was put away: its directory is to be synced, once for all of them */
};

static void say(struct gc *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct gc *g, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (g->lines.n < LINES_MAX)
        buf_addf(&g->lines, "%s%s\n", text, g->dry ? " (not done)" : "");
}

/* Older than that, by when it was made or got its name. A time to come is no age. */
static bool is_older(int dir, const char *name, time_t seconds)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && time(NULL) - st.st_ctime > seconds;
}

static bool grace_over(const struct stack_name *n)
{
    char boot[REFS_BOOT];
    uint64_t now = refs_now(boot);
    return strcmp(boot, n->boot) != 0 || now > n->ticks + refs_grace_ticks();
}

/* --- stacks ------------------------------------------------------------------------------------------------------- */

static int note_drop(const struct stock_place *p, const char *id, struct err *err)
{
    char note[REFS_NAME_MAX];
    (void)snprintf(note, sizeof note, "%s.drop", id);
    _cleanup_close_ int fd = openat(p->stacks, note, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "note that %s was dropped", id) : 0;
}

static int sync_stacks(const struct stock_place *p, struct err *err)
{
    return fsync(p->stacks) < 0 ? err_set(err, ERR_SETUP, errno, "sync the directory of stacks") : 0;
}

/* Out of the way; its layers stay known for as long as somebody may have read it. sync_stacks() is left to the caller. */
static int put_away(const struct stock_place *p, const char *id, struct err *err)
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
        return note_drop(&j->place, id, err);
    return put_away(&j->place, id, err) < 0 ? -1 : sync_stacks(&j->place, err);
}

/* A create had read it before it was dropped, and lives: it is as if the drop had come later. */
static void put_stack_back(struct gc *g, const char *name, const struct stack_name *n)
{
    struct err err = {0};
    const struct stock_place *p = &g->j->place;
    say(g, "stack %s: a living sandbox was made from it; put back", n->id);
    if (!g->dry && note_drop(p, n->id, &err) == 0)
        (void)renameat(p->stacks, name, p->stacks, n->id);
}

static void unlink_stack(struct gc *g, const char *name, const char *what, const char *id)
{
    say(g, "%s %s: nobody needs it; removed", what, id);
    g->removed++;
    if (!g->dry)
        (void)unlinkat(g->j->place.stacks, name, 0);
}

static int stack_file_step(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    struct stack_name n = stack_name_parse(name);
    const struct living *user = livings_find(&g->living, n.id, 0);
    bool known = !g->living.damaged[0];
    if (n.kind == STACK_NAME_DROP && !user && known) {
        say(g, "stack %s: was dropped, and the last sandbox made from it has ended", n.id);
        g->dropped |= !g->dry;
        return g->dry ? 0 : put_away(&g->j->place, n.id, err);
    }
    if (n.kind == STACK_NAME_GONE && user)
        put_stack_back(g, name, &n);
    else if (n.kind == STACK_NAME_GONE && known && grace_over(&n))
        unlink_stack(g, name, "dropped stack", n.id);
    else if (n.kind == STACK_NAME_WAS && known && grace_over(&n) &&
             !livings_find(&g->living, n.id, n.ticks + refs_grace_ticks()))
        unlink_stack(g, name, "former state of stack", n.id);
    return 0;
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

/* A sandbox that lives from a stack we cannot read: which layers it uses is not known. */
static void look_for_doubt(struct gc *g)
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
        say(g, "layers: none is removed, because %s", g->why);
    }
}

static uint64_t layer_bytes(const struct gc *g, const char *dir_name)
{
    char path[LAYER_NAME + 16];
    struct layer_meta m;
    (void)snprintf(path, sizeof path, "%s/meta", dir_name);
    _cleanup_close_ int fd = openat(g->j->place.layers, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 && pread(fd, &m, sizeof m, 0) == (ssize_t)sizeof m ? m.bytes : 0;
}

static void say_layer(struct gc *g, const char *hex, uint64_t bytes, const char *what)
{
    _cleanup_buf_ struct buf size = {0};
    num_add_size(&size, bytes);
    say(g, "layer %.12s (%s): %s", hex, buf_str(&size), what);
}

static int layer_first(struct gc *g, const char *hex, struct err *err)
{
    char gone[LAYER_NAME + 8];
    const struct stock_place *p = &g->j->place;
    if (refs_get(&g->refs, hex) || g->unsure || !is_older(p->layers, hex, REFS_GRACE_S))
        return 0;
    uint64_t bytes = layer_bytes(g, hex);
    say_layer(g, hex, bytes, "no stack names it; removed after a minute if none does then");
    g->later++;
    g->later_bytes += bytes;
    (void)snprintf(gone, sizeof gone, LAYER_GONE "%s", hex);
    if (!g->dry && renameat(p->layers, hex, p->layers, gone) < 0)
        return err_set(err, ERR_SETUP, errno, "put the layer %.12s away", hex);
    return 0;
}

static int layer_second(struct gc *g, const char *name, struct err *err)
{
    const char *hex = name + strlen(LAYER_GONE);
    const struct stock_place *p = &g->j->place;
    char dead[LAYER_NAME + 8];
    uint64_t bytes = layer_bytes(g, name);
    bool held = refs_get(&g->refs, hex);
    bool again = faccessat(p->layers, hex, F_OK, AT_SYMLINK_NOFOLLOW) == 0; /* made once more meanwhile */
    if (held && !again) {
        say_layer(g, hex, bytes, "a stack names it again; put back");
        if (!g->dry && renameat(p->layers, name, p->layers, hex) < 0)
            return err_set(err, ERR_SETUP, errno, "put the layer %.12s back", hex);
        return 0;
    }
    /* held: which of the two a living sandbox uses is not known */
    if (held || g->unsure || !is_older(p->layers, name, REFS_GRACE_S)) {
        g->later++;
        g->later_bytes += bytes;
        return 0;
    }
    say_layer(g, hex, bytes, "no stack names it; removed");
    g->removed++;
    g->removed_bytes += bytes;
    if (g->dry)
        return 0;
    (void)snprintf(dead, sizeof dead, LAYER_DEAD "%s", hex);
    if (renameat(p->layers, name, p->layers, dead) < 0 && errno != EEXIST && errno != ENOTEMPTY)
        return err_set(err, ERR_SETUP, errno, "put the layer %.12s away", hex);
    return 0; /* what is in it goes when we have answered */
}

/* What cannot be done to one must not keep the others. */
static int layer_step(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    struct err one = {0};
    int r = 0;
    (void)err;
    job_progress(g->j, g->removed_bytes, 0, "layers");
    if (layer_name_valid(name))
        r = layer_first(g, name, &one);
    else if (strncmp(name, LAYER_GONE, strlen(LAYER_GONE)) == 0 && layer_name_valid(name + strlen(LAYER_GONE)))
        r = layer_second(g, name, &one);
    if (r < 0)
        say(g, "layers/%.20s: %.300s", name, one.msg);
    return 0;
}

/* Nobody can come by them any more, so nobody waits for this. */
static int remove_dead(void *arg, const char *name, struct err *err)
{
    const struct gc *g = arg;
    struct err one = {0};
    (void)err;
    if (strncmp(name, LAYER_DEAD, strlen(LAYER_DEAD)) == 0 && tree_remove(g->j->place.layers, name, &one) < 0)
        log_text(LOG_LEVEL_WARN, "a layer that nobody needs is removed later: %s", one.msg);
    return 0;
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

static int upper_step(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    char id[KEEPER_ID_MAX] = "";
    size_t n = strcspn(name, ".");
    if (n == 0 || n >= sizeof id || !is_older(g->j->place.uppers, name, REFS_GRACE_S) || g->living.damaged[0])
        return 0;
    memcpy(id, name, n);
    if (livings_get(&g->living, id))
        return 0;
    say(g, "upper of %s: no such sandbox; removed", id);
    g->removed++;
    return g->dry ? 0 : upper_remove(g->j->place.uppers, id, err);
}

static int blob_step(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    struct stat st;
    (void)err;
    if (fstatat(g->j->place.blobs, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !is_older(g->j->place.blobs, name, BLOB_SECONDS))
        return 0;
    say(g, "upload %.12s: older than seven days; removed", name);
    g->removed++;
    g->removed_bytes += (uint64_t)st.st_blocks * 512;
    if (!g->dry)
        (void)unlinkat(g->j->place.blobs, name, 0);
    return 0;
}

static int tmp_step(void *arg, const char *name, struct err *err)
{
    struct gc *g = arg;
    (void)err;
    if (strncmp(name, STACK_TMP, strlen(STACK_TMP)) == 0 && is_older(g->j->place.tmp, name, TMP_SECONDS) && !g->dry)
        (void)unlinkat(g->j->place.tmp, name, 0);
    return 0;
}

/* All that takes as long as there are files, when nobody waits for us any more. */
static void sweep(const struct gc *g)
{
    const struct stock_place *p = &g->j->place;
    struct err one = {0}, two = {0}, three = {0};
    /* One is enough, however long it takes; what it does not see any more is the next one's. */
    _cleanup_close_ int lock = openat(p->layers, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0)
        return;
    if (refs_each_name(p->layers, remove_dead, (void *)g, &one) < 0)
        log_text(LOG_LEVEL_WARN, "layers that nobody needs are removed later: %s", one.msg);
    if (upper_sweep(p->uppers, &two) < 0)
        log_text(LOG_LEVEL_WARN, "uppers that nobody needs are removed later: %s", two.msg);
    if (upper_sweep(p->volumes, &three) < 0)
        log_text(LOG_LEVEL_WARN, "what is left of a volume is removed later: %s", three.msg);
}

static int collect(struct gc *g, struct err *err)
{
    const struct stock_place *p = &g->j->place;
    if (livings_read(g->j->run_dir, &g->living, err) < 0 || refs_each_name(p->stacks, stack_file_step, g, err) < 0 ||
        (g->dropped && sync_stacks(p, err) < 0) || refs_read(p, &g->refs, err) < 0)
        return -1;
    /* Once more: what was made from a stack meanwhile has its record by now. */
    livings_done(&g->living);
    if (livings_read(g->j->run_dir, &g->living, err) < 0)
        return -1;
    look_for_doubt(g);
    if (refs_each_name(p->layers, layer_step, g, err) < 0 || refs_each_name(p->uppers, upper_step, g, err) < 0 ||
        refs_each_name(p->blobs, blob_step, g, err) < 0 || refs_each_name(p->tmp, tmp_step, g, err) < 0)
        return -1;
    return 0;
}

int job_gc(struct job *j, struct err *err)
{
    static struct gc g; /* for the life of this process */
    g = (struct gc){.j = j, .dry = j->ask->flags & STOCK_DRY};
    _cleanup_close_ int fd = job_memfd("gc", err);
    if (fd < 0 || collect(&g, err) < 0)
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
    sweep(&g);
    return 0;
}
