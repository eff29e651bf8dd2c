/* capture.c - a layer from the upper of a living sandbox, which stands still only while it is copied. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
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

/* Where the files of the sandbox are put while it stands still. What costs time is left for later: comparing them with an
 * earlier capture, digesting them, syncing them. */
struct stage {
    enum {
        STAGE_NONE,     /* straight into the new layer */
        STAGE_MEMORY,   /* a tmpfs */
        STAGE_DISK,     /* a directory in tmp/ whose files share their blocks with those of the sandbox */
        STAGE_SNAPSHOT, /* a subvolume in tmp/ that is the upper as it was */
    } kind;
    int dir;  /* the files */
    int prev; /* an earlier capture, or -1 */
    char name[STOCK_TMP_NAME];
};

static void stage_close(struct stage *s)
{
    if (s->dir >= 0)
        (void)close(s->dir);
    if (s->prev >= 0)
        (void)close(s->prev);
}

/* A place in memory for a copy of an upper that lies in memory itself: making a file there takes a tenth of the time
 * that it takes on a disk. -1 without an error: too large, or it lies on a disk. */
static int make_memory(const struct job_box *b)
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

/* Whether a copy of the upper in tmp/ takes no room. */
static bool can_share(const struct job *j, const struct job_box *b)
{
    struct stat upper, tmp;
    if (fstat(b->upper, &upper) < 0 || fstat(j->place.tmp, &tmp) < 0 || upper.st_dev != tmp.st_dev)
        return false;
    _cleanup_close_ int from = openat(j->place.tmp, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    _cleanup_close_ int to = openat(j->place.tmp, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return from >= 0 && to >= 0 && fd_write_all(from, "x", 1) == 0 && ioctl(to, FICLONE, from) == 0;
}

/* Before the sandbox is stopped. */
static int make_stage(struct job *j, const struct job_box *b, struct stage *s, struct err *err)
{
    _cleanup_close_ int place = openat(b->place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place >= 0 && upper_can_snapshot(place, j->place.tmp)) {
        s->kind = STAGE_SNAPSHOT;
        job_tmp_name(j, s->name);
        /* A snapshot waits until everything in it is on the disk; with this, little is left to wait for. */
        (void)syncfs(place);
        return 0;
    }
    if ((s->dir = make_memory(b)) >= 0) {
        s->kind = STAGE_MEMORY;
        return 0;
    }
    if (s->prev < 0 || !can_share(j, b)) /* a copy of everything may not fit; what is the same is linked at once then */
        return 0;
    s->kind = STAGE_DISK;
    return (s->dir = job_tmp(j, false, s->name, err)) < 0 ? -1 : 0;
}

static int copy_tree(const struct job *j, const struct job_box *b, int from, bool shifted, int to, int prev,
                     unsigned flags, struct err *err)
{
    struct tree_copy c = {.from = from,
                          .to = to,
                          .prev = prev,
                          .shift = shifted ? b->record.shift : 0,
                          .flags = j->tree_flags | flags,
                          .max = {.bytes = j->ask->bytes, .entries = j->ask->entries}};
    return tree_copy(&c, err);
}

/* 1: it cannot be done after all. */
static int take_snapshot(struct job *j, const struct job_box *b, struct stage *s, struct err *err)
{
    struct stat st;
    int r = upper_snapshot(b->place, j->place.tmp, s->name, true, err);
    if (r != 0)
        return r;
    _cleanup_close_ int top = openat(j->place.tmp, s->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    s->dir = top < 0 ? -1 : openat(top, "u", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (s->dir < 0 || fstat(s->dir, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open the snapshot of the sandbox %s", b->record.id);
    if (st.st_ino != b->record.upper_ino)
        return err_set(err, ERR_SETUP, ESTALE, "the snapshot of the sandbox %s holds something else", b->record.id);
    return 0;
}

/* While it stands still. */
static int fill_stage(struct job *j, const struct job_box *b, int root, struct stage *s, struct err *err)
{
    int r = s->kind == STAGE_SNAPSHOT ? take_snapshot(j, b, s, err) : 1;
    if (r <= 0)
        return r;
    if (s->kind == STAGE_SNAPSHOT)
        s->kind = STAGE_NONE;
    bool straight = s->kind == STAGE_NONE;
    return copy_tree(j, b, b->upper, true, straight ? root : s->dir, straight ? s->prev : -1, 0, err);
}

/* When it runs again. */
static int empty_stage(struct job *j, const struct job_box *b, int root, struct stage *s, struct err *err)
{
    if (s->kind == STAGE_NONE)
        return 0;
    if (copy_tree(j, b, s->dir, s->kind == STAGE_SNAPSHOT, root, s->prev, s->kind == STAGE_DISK ? TREE_TAKE : 0, err) <
        0)
        return -1;
    return s->name[0] ? tree_remove(j->place.tmp, s->name, err) : 0;
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
static int copy_frozen(struct job *j, struct job_box *b, int root, struct stage *s, struct err *err)
{
    struct err second = {0};
    if ((j->ask->flags & STOCK_FREEZE) && job_box_freeze(j, b, err) < 0)
        return -1;
    /* Neither by us nor by keeper: it would change while it is copied. */
    if (!b->frozen && !b->record.frozen)
        return job_fail(j, STOCK_BAD_REQUEST, err, "the sandbox %s is not paused", b->record.id);
    static const char doing[] = "its files were copied";
    int r = job_box_still(j, b, true, doing, err);
    if (r == 0)
        r = fill_stage(j, b, root, s, err);
    if (r == 0)
        r = job_box_still(j, b, false, doing, err);
    if (job_box_thaw(j, b, r == 0 ? err : &second) < 0)
        r = -1;
    return r;
}

/* Into tmp/NAME/root. */
static int copy_box(struct job *j, struct job_box *b, int root, struct err *err)
{
    _cleanup_(stage_close) struct stage s = {.dir = -1, .prev = -1};
    if (open_earlier(j, &s.prev, err) < 0 || make_stage(j, b, &s, err) < 0 || copy_frozen(j, b, root, &s, err) < 0)
        return -1;
    return empty_stage(j, b, root, &s, err);
}

static int is_empty(int root, struct err *err)
{
    int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0;
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
    _cleanup_close_ int root = -1;
    if (job_box_open(j, j->ask->box, true, b, err) < 0 || job_box_stack(j, b, &f, err) < 0)
        return -1;
    if (f.n >= STACK_LAYERS_MAX && stack_flatten(j, &f, err) < 0)
        return -1;
    if (f.n >= STACK_LAYERS_MAX)
        return err_set(err, ERR_LIMIT, 0, "the sandbox is made from %u layers, and there can be no more than %d", f.n,
                       STACK_LAYERS_MAX);
    if ((root = job_tmp(j, true, name, err)) < 0 || copy_box(j, b, root, err) < 0)
        return -1;
    int empty = is_empty(root, err);
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
        j->reply.entries2 = there.n;
        return job_layers_of(j, &there, err);
    }
    if (err->eno != ENOENT)
        return -1;
    *err = (struct err){0};
    int r = capture(j, &b, err);
    job_box_close(&b);
    return r;
}
