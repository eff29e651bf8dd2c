/* capture.c - a layer from the upper of a living sandbox, which stands still only while it is copied. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/mount.h"
#include "os/upper.h"
#include "stock/jobs.h"

static void put_layer(struct job *j, const uint8_t digest[SHA256_BYTES])
{
    for (size_t i = 0; i < SHA256_BYTES; i++)
        (void)snprintf(j->reply.layer + 2 * i, 3, "%02x", digest[i]);
}

/* The tree of the uppermost layer of an earlier capture, to share with; -1 in *ret: none. Sharing is all that is lost
 * without it. */
static int open_earlier(struct job *j, int *ret, struct err *err)
{
    struct stack_file f;
    *ret = -1;
    if (j->ask->other[0] == '\0')
        return 0;
    if (stack_read(&j->place, j->ask->other, &f, err) < 0)
        return err->eno == ENOENT ? 0 : -1;
    if (f.n == 0)
        return 0;
    _cleanup_close_ int layer = layer_open(&j->place, f.layer[0], err);
    if (layer < 0)
        return err->eno == ENOENT ? 0 : -1;
    *ret = openat(layer, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *ret < 0 ? err_set(err, ERR_SETUP, errno, "open the layer of %s", j->ask->other) : 0;
}

enum { STAGE_MAX = 64 << 20 };

/* A place in memory for a copy of an upper that lies in memory itself: making a file there takes a tenth of the time
 * that it takes on a disk, and meanwhile the sandbox stands still. -1 without an error: too large, or it lies on a disk. */
static int make_stage(const struct job_box *b)
{
    struct statfs fs;
    if (fstatfs(b->upper, &fs) < 0 || fs.f_type != TMPFS_MAGIC)
        return -1;
    uint64_t used = (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
    uint64_t inodes = (uint64_t)(fs.f_files - fs.f_ffree);
    if (used > STAGE_MAX)
        return -1;
    _cleanup_close_ int mnt = mount_new_tmpfs(used * 2 + (1 << 20), inodes * 2 + 64, 0755, MOUNT_NOSUID | MOUNT_NODEV);
    return mnt < 0 ? -1 : openat(mnt, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int copy_to_stage(struct job *j, const struct job_box *b, int stage, struct err *err)
{
    struct tree_copy c = {.from = b->upper,
                          .to = stage,
                          .prev = -1,
                          .shift = b->record.shift,
                          .flags = j->tree_flags,
                          .max = {.bytes = j->ask->bytes, .entries = j->ask->entries}};
    return tree_copy(&c, err);
}

/* Into tmp/NAME/root; from the stage if there is one, whose owners are those of the store already. */
static int copy_upper(struct job *j, const struct job_box *b, int stage, int prev, int dir, struct err *err)
{
    int r = stage >= 0 ? 1 : upper_snapshot(b->upper, dir, "root", err);
    if (r <= 0)
        return r;
    if (mkdirat(dir, "root", 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "make a directory for a new layer");
    _cleanup_close_ int to = openat(dir, "root", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0)
        return err_set(err, ERR_SETUP, errno, "open a directory for a new layer");
    struct tree_copy c = {.from = stage >= 0 ? stage : b->upper,
                          .to = to,
                          .prev = prev,
                          .shift = stage >= 0 ? 0 : b->record.shift,
                          .flags = j->tree_flags,
                          .max = {.bytes = j->ask->bytes, .entries = j->ask->entries}};
    return tree_copy(&c, err);
}

/* A snapshot takes no heed of the limits. */
static int check_size(const struct job *j, const struct layer_meta *m, struct err *err)
{
    if (j->ask->bytes && m->bytes > j->ask->bytes)
        return err_set(err, ERR_LIMIT, 0, "what the sandbox wrote takes %llu bytes, more than %llu",
                       (unsigned long long)m->bytes, (unsigned long long)j->ask->bytes);
    if (j->ask->entries && m->entries > j->ask->entries)
        return err_set(err, ERR_LIMIT, 0, "the sandbox wrote %llu files, more than %llu",
                       (unsigned long long)m->entries, (unsigned long long)j->ask->entries);
    return 0;
}

/* Everything that needs the sandbox to stand still. */
static int copy_frozen(struct job *j, struct job_box *b, int prev, int dir, struct err *err)
{
    struct err second = {0};
    if ((j->ask->flags & STOCK_FREEZE) && job_box_freeze(j, b, err) < 0)
        return -1;
    /* Neither by us nor by keeper: it would change while it is copied. */
    if (!b->frozen && !b->record.frozen)
        return job_fail(j, STOCK_BAD_REQUEST, err, "the sandbox %s is not paused", b->record.id);
    static const char doing[] = "its files were copied";
    _cleanup_close_ int stage = make_stage(b);
    int r = job_box_still(j, b, true, doing, err);
    if (r == 0)
        r = stage >= 0 ? copy_to_stage(j, b, stage, err) : copy_upper(j, b, -1, prev, dir, err);
    if (r == 0)
        r = job_box_still(j, b, false, doing, err);
    if (job_box_thaw(j, b, r == 0 ? err : &second) < 0)
        r = -1;
    return r == 0 && stage >= 0 ? copy_upper(j, b, stage, prev, dir, err) : r;
}

static int is_empty(int dir, struct err *err)
{
    int fd = openat(dir, "root", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), n = 0;
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return err_set(err, ERR_SETUP, errno, "read the new layer");
    while (n <= 2 && readdir(d))
        n++;
    return n <= 2;
}

static int add_layer(struct job *j, const char *name, struct stack_file *f, struct err *err)
{
    struct layer_meta m;
    if (layer_commit(&j->place, name, LAYER_CAPTURE, NULL, j->tree_flags, &m, err) < 0)
        return -1;
    if (check_size(j, &m, err) < 0) /* nobody names the layer: it goes with the next collection */
        return -1;
    memmove(f->layer[1], f->layer[0], f->n * sizeof f->layer[0]);
    memcpy(f->layer[0], m.digest, sizeof m.digest);
    f->n++;
    put_layer(j, m.digest);
    j->reply.bytes = m.bytes;
    j->reply.entries = m.entries;
    return 0;
}

static int capture(struct job *j, struct job_box *b, struct err *err)
{
    struct stack_file f;
    char name[STOCK_TMP_NAME];
    _cleanup_close_ int prev = -1, dir = -1;
    if (job_box_open(j, j->ask->box, true, b, err) < 0 || job_box_stack(j, b, &f, err) < 0)
        return -1;
    if (f.n >= STACK_LAYERS_MAX && stack_flatten(j, &f, err) < 0)
        return -1;
    if (f.n >= STACK_LAYERS_MAX)
        return err_set(err, ERR_LIMIT, 0, "the sandbox is made from %u layers, and there can be no more than %d", f.n,
                       STACK_LAYERS_MAX);
    if (open_earlier(j, &prev, err) < 0 || (dir = job_tmp(j, false, name, err)) < 0)
        return -1;
    if (copy_frozen(j, b, prev, dir, err) < 0)
        return -1;
    int empty = is_empty(dir, err);
    if (empty < 0 || (empty ? tree_remove(j->place.tmp, name, err) : add_layer(j, name, &f, err)) < 0)
        return -1;
    j->reply.entries2 = f.n;
    return stack_write(&j->place, j->ask->stack, &f, err) < 0 ? -1 : job_layers_of(j, &f, err);
}

int job_capture(struct job *j, struct err *err)
{
    struct stack_file there;
    struct job_box b = JOB_BOX_INIT;
    if (stack_read(&j->place, j->ask->stack, &there, err) == 0) {
        if (there.n > 0)
            put_layer(j, there.layer[0]);
        return job_layers_of(j, &there, err);
    }
    if (err->eno != ENOENT)
        return -1;
    *err = (struct err){0};
    int r = capture(j, &b, err);
    job_box_close(&b);
    return r;
}
