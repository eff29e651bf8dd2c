/* capture.c - makes a layer from the upper of a living sandbox, which is frozen only while its files are copied, or a
 * snapshot of them is taken, which is the layer (kept.h). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "layers/jobs.h"
#include "layers/kept.h"
#include "layers/numbers.h"
#include "layers/stage.h"

/* A capture under way. */
struct capture {
    struct job *j;
    char tmp[LAYERS_TMP_NAME];     /* the new layer in tmp/ */
    uint8_t earlier[SHA256_BYTES]; /* the name of the layer that files are shared with, if there is one */
    bool same;                     /* nothing has changed since that layer */
    struct tree_size size;
    struct kept kept;
};

/* Opens the top layer of an earlier capture, to share files with, and returns its name; -1 in *ret: there is none,
 * and nothing is shared. */
static int capture_open_earlier(struct job *j, int *ret, uint8_t name[SHA256_BYTES], struct err *err)
{
    struct stack_file f;
    *ret = -1;
    if (j->ask->other[0] == '\0')
        return 0;
    if (stack_read(&j->place, j->ask->other, &f, err) < 0)
        return err->eno == ENOENT ? 0 : -1;
    if (f.n == 0)
        return 0;
    memcpy(name, f.layer[0], SHA256_BYTES);
    _cleanup_close_ int layer = layer_open(&j->place, f.layer[0], err);
    if (layer < 0)
        return err->eno == ENOENT ? 0 : -1;
    *ret = openat(layer, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *ret < 0 ? err_set(err, ERR_SETUP, errno, "open the layer of %s", j->ask->other) : 0;
}

/* Checked again here: a btrfs snapshot is made without looking at the limits. */
static int capture_check_size(const struct job *j, const struct layer_meta *m, struct err *err)
{
    if (j->ask->bytes && m->bytes > j->ask->bytes)
        return err_set(err, ERR_LIMIT, 0, "what the sandbox wrote takes %llu bytes, more than %llu",
                       (unsigned long long)m->bytes, (unsigned long long)j->ask->bytes);
    if (j->ask->entries && m->entries > j->ask->entries)
        return err_set(err, ERR_LIMIT, 0, "the sandbox wrote %llu files, more than %llu",
                       (unsigned long long)m->entries, (unsigned long long)j->ask->entries);
    return 0;
}

/* Does everything that needs the sandbox frozen. */
static int capture_frozen(struct job *j, struct job_sandbox *b, int (*fill)(void *arg, struct err *err), void *arg,
                          struct err *err)
{
    struct err second = {0};
    if ((j->ask->flags & LAYERS_FREEZE) && job_sandbox_freeze(j, b, err) < 0)
        return -1;
    /* Frozen neither by us nor by keeper: its files would change while they are copied. */
    if (!b->frozen && !b->record.frozen)
        return job_fail(j, LAYERS_BAD_REQUEST, err, "the sandbox %s is not paused", b->record.id);
    static const char doing[] = "its files were copied";
    int r = job_sandbox_still(j, b, true, doing, err);
    if (r == 0)
        r = fill(arg, err);
    job_hold(j, "filled");
    if (r == 0)
        r = job_sandbox_still(j, b, false, doing, err);
    if (job_sandbox_thaw(j, b, r == 0 ? err : &second) < 0)
        r = -1;
    return r;
}

struct capture_filling {
    struct capture *c;
    struct job_sandbox *b;
    int root;
    struct stage *s;
};

static int capture_fill_stage(void *arg, struct err *err)
{
    const struct capture_filling *x = arg;
    return stage_fill(x->c->j, x->b, x->root, x->s, err);
}

/* Into tmp/NAME/root. */
static int capture_copy_sandbox(struct capture *c, struct job_sandbox *b, int root, struct err *err)
{
    struct job *j = c->j;
    _cleanup_(stage_close) struct stage s = STAGE_INIT;
    struct capture_filling x = {c, b, root, &s};
    if (capture_open_earlier(j, &s.prev, c->earlier, err) < 0 || stage_make(j, b, &s, err) < 0)
        return -1;
    job_hold(j, "sized");
    if (capture_frozen(j, b, capture_fill_stage, &x, err) < 0)
        return -1;
    job_hold(j, "thawed");
    if (stage_empty(j, b, root, &s, err) < 0)
        return -1;
    c->size = s.size;
    int same = s.prev < 0 ? 0 : tree_same(root, s.prev, j->tree_flags, NULL, err);
    c->same = same > 0;
    return same < 0 ? -1 : 0;
}

static int capture_fill_kept(void *arg, struct err *err)
{
    const struct capture_filling *x = arg;
    return kept_take(x->c->j, x->b, x->c->tmp, &x->c->kept, err);
}

/* The snapshot of the upper is the new layer. Returns its tree. */
static int capture_keep_snapshot(struct capture *c, struct job_sandbox *b, struct err *err)
{
    struct job *j = c->j;
    struct capture_filling x = {.c = c, .b = b};
    _cleanup_close_ int earlier = -1;
    if (capture_open_earlier(j, &earlier, c->earlier, err) < 0)
        return -1;
    job_tmp_name(j, c->tmp);
    if (j->ask->flags & LAYERS_FREEZE)
        kept_write_out(b);
    job_hold(j, "sized");
    if (capture_frozen(j, b, capture_fill_kept, &x, err) < 0)
        return -1;
    job_hold(j, "thawed");
    struct timespec earlier_at;
    bool related = earlier >= 0 && kept_is_related(j, b, c->earlier, &earlier_at, &j->reply.bytes2);
    _cleanup_close_ int root = kept_finish(j, b, c->tmp, &c->kept, &c->size, err);
    int same = root >= 0 && related ? tree_same(root, earlier, j->tree_flags, &earlier_at, err) : 0;
    c->same = same > 0;
    return same < 0 ? -1 : TAKE_FD(root);
}

static int capture_is_empty(int root, struct err *err)
{
    int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0;
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return err_set(err, ERR_SETUP, errno, "read the new layer");
    while (n <= 2 && readdir(d))
        n++;
    return n <= 2;
}

/* Makes the copy a layer; it has a name now and its digest later. */
static int capture_commit(struct capture *c, uint8_t ret_name[SHA256_BYTES], struct layer_meta *m, struct err *err)
{
    struct job *j = c->j;
    struct err gone = {0};
    char name[LAYER_NAME];
    sha256_text(c->earlier, name);
    /* The earlier layer may be gone: then the copy, which has its files, is one of its own. */
    if (c->same && layer_meta_read(&j->place, name, m, &gone) == 0) {
        memcpy(ret_name, c->earlier, SHA256_BYTES);
        return tree_remove(j->place.tmp, c->tmp, err);
    }
    return layer_commit_named(&j->place, c->tmp, LAYER_CAPTURE, c->size, ret_name, m, err);
}

static int capture_add_layer(struct capture *c, struct stack_file *f, struct err *err)
{
    struct job *j = c->j;
    struct layer_meta m;
    uint8_t name[SHA256_BYTES];
    if (capture_commit(c, name, &m, err) < 0)
        return -1;
    if (capture_check_size(j, &m, err) < 0) /* no stack names the layer: gc removes it */
        return -1;
    memmove(f->layer[1], f->layer[0], f->n * sizeof f->layer[0]);
    memcpy(f->layer[0], name, sizeof name);
    f->n++;
    sha256_text(name, j->reply.layer);
    j->reply.bytes = m.bytes;
    j->reply.entries = m.entries;
    if (memcmp(name, c->earlier, sizeof name) == 0) /* nothing has changed since */
        j->reply.bytes2 = m.bytes;
    return 0;
}

static int capture_sandbox(struct job *j, struct job_sandbox *b, struct err *err)
{
    struct stack_file f;
    struct capture c = {.j = j};
    _cleanup_close_ int root = -1;
    if (job_sandbox_open(j, j->ask->sandbox, true, b, err) < 0 || job_sandbox_stack(j, b, &f, err) < 0)
        return -1;
    bool flattened = f.n >= STACK_LAYERS_MAX; /* the new layer has higher numbers than the upper */
    if (flattened && stack_flatten(j, &f, err) < 0)
        return -1;
    if (f.n >= STACK_LAYERS_MAX)
        return err_set(err, ERR_LIMIT, 0, "the sandbox is made from %u layers, and there can be no more than %d", f.n,
                       STACK_LAYERS_MAX);
    int keep = flattened ? 0 : kept_possible(j, b, &f, err);
    if (keep < 0)
        return -1;
    if (keep && (root = capture_keep_snapshot(&c, b, err)) < 0)
        return -1;
    if (!keep && (numbers_raise_store(&j->place, &f, err) < 0 || (root = job_tmp(j, true, c.tmp, err)) < 0 ||
                  capture_copy_sandbox(&c, b, root, err) < 0))
        return -1;
    int empty = capture_is_empty(root, err);
    if (empty < 0 || (empty ? tree_remove(j->place.tmp, c.tmp, err) : capture_add_layer(&c, &f, err)) < 0)
        return -1;
    j->reply.entries2 = f.n;
    return stack_write(&j->place, j->ask->stack, &f, err) < 0 ? -1 : job_layers_of(j, &f, err);
}

int job_capture(struct job *j, struct err *err)
{
    struct stack_file there;
    struct job_sandbox b = JOB_SANDBOX_INIT;
    if (stack_read(&j->place, j->ask->stack, &there, err) == 0) {
        if (there.n > 0)
            sha256_text(there.layer[0], j->reply.layer);
        j->reply.entries2 = there.n;
        return job_layers_of(j, &there, err);
    }
    if (err->eno != ENOENT)
        return -1;
    *err = (struct err){0};
    int r = capture_sandbox(j, &b, err);
    job_sandbox_close(&b);
    return r;
}
