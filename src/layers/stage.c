/* stage.c - see stage.h. */
#include "layers/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/memory.h"
#include "os/mount.h"

enum {
    SMALL_MAX = 64 << 20,           /* stages up to this size: all jobs may have one at once ... */
    ALL_JOBS = 2 * LAYERS_JOBS_MAX, /* ... if all of them take at most half of the free memory */
    SHARE_OF_ROOM = 4,              /* larger ones: one at a time, at most this part of the free memory ... */
    FILE_MAX = 128 << 10,           /* ... and only if files are not larger than this on average */
    INODE = 1024,                   /* bytes that a file takes besides its content */
    SPARE = 16 << 20,               /* for what the sandbox writes between measuring and freezing */
    ENTRIES_MAX = 4 << 20,          /* counted at most */
};

void stage_close(struct stage *s)
{
    if (s->dir >= 0)
        (void)close(s->dir);
    if (s->prev >= 0)
        (void)close(s->prev);
    if (s->turn >= 0)
        (void)close(s->turn);
    s->dir = s->prev = s->turn = -1;
}

/* Creating a file in memory takes a tenth of the time on a disk; writing its content takes as long, because a disk's
 * writes go to memory first too. So large files gain little and cost much memory. A sandbox that grows after
 * measuring gets at most twice its size; beyond that the copy goes to the disk. */
uint64_t stage_memory(const struct upper_usage *size, uint64_t room, bool *ret_alone)
{
    uint64_t bytes = size->used + size->inodes * INODE;
    *ret_alone = bytes > SMALL_MAX || bytes > room / ALL_JOBS;
    if (*ret_alone && (bytes > room / SHARE_OF_ROOM || size->used > size->inodes * FILE_MAX))
        return 0;
    return bytes * 2 + SPARE;
}

/* A tmpfs knows its usage at once. Elsewhere count, while the sandbox still runs. */
static bool stage_measure(int upper, uint64_t room, struct upper_usage *ret)
{
    struct statfs fs;
    struct err ignored = {0};
    if (fstatfs(upper, &fs) == 0 && (uint32_t)fs.f_type == TMPFS_MAGIC && fs.f_files > 0) {
        *ret = (struct upper_usage){.used = (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize,
                                    .inodes = (uint64_t)(fs.f_files - fs.f_ffree)};
        return true;
    }
    uint64_t most = room / SHARE_OF_ROOM / INODE + 1;
    return upper_count(upper, most < ENTRIES_MAX ? most : ENTRIES_MAX, ret, &ignored) == 0;
}

static bool stage_take_turn(const struct job *j, struct stage *s)
{
    s->turn = openat(j->place.tmp, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return s->turn >= 0 && flock(s->turn, LOCK_EX | LOCK_NB) == 0;
}

/* false: copy to the disk instead. */
static bool stage_make_memory(const struct job *j, const struct job_sandbox *b, struct stage *s)
{
    struct upper_usage size;
    bool alone;
    uint64_t room = memory_room();
    if (!stage_measure(b->upper, room, &size))
        return false;
    uint64_t most = stage_memory(&size, room, &alone);
    if (most == 0 || (alone && !stage_take_turn(j, s)))
        return false;
    _cleanup_close_ int mnt = mount_new_tmpfs(most, size.inodes * 2 + 4096, 0755, MOUNT_NOSUID | MOUNT_NODEV);
    s->dir = mnt < 0 ? -1 : openat(mnt, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* The OOM killer does not count a tmpfs as any process's memory: it would kill sandboxes and free none of this.
     * Killing this job frees all of it, so make the job the first choice. */
    (void)fd_put(AT_FDCWD, "/proc/self/oom_score_adj", "1000");
    return s->dir >= 0;
}

/* Whether copies of the upper's files in tmp/ can share their blocks (reflink). */
static bool stage_can_share(const struct job *j, const struct job_sandbox *b)
{
    struct stat upper, tmp;
    if (fstat(b->upper, &upper) < 0 || fstat(j->place.tmp, &tmp) < 0 || upper.st_dev != tmp.st_dev)
        return false;
    _cleanup_close_ int from = openat(j->place.tmp, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    _cleanup_close_ int to = openat(j->place.tmp, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return from >= 0 && to >= 0 && fd_write_all(from, "x", 1) == 0 && ioctl(to, FICLONE, from) == 0;
}

static int stage_copy_tree(struct job *j, const struct job_sandbox *b, struct stage *s, int from, bool shifted, int to,
                           int prev, unsigned flags, struct err *err)
{
    struct tree_copy c = {.from = from,
                          .to = to,
                          .prev = prev,
                          .shift = shifted ? b->record.shift : 0,
                          .flags = j->tree_flags | flags,
                          .max = {.bytes = j->ask->bytes, .entries = j->ask->entries}};
    int r = tree_copy(&c, err);
    j->reply.bytes2 = c.linked;
    s->size = c.done;
    return r;
}

/* 1: the file system cannot do it after all. */
static int stage_take_snapshot(struct job *j, const struct job_sandbox *b, struct stage *s, struct err *err)
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

int stage_make(struct job *j, const struct job_sandbox *b, struct stage *s, struct err *err)
{
    /* keeper paused it: a stage would save no time, and sandboxes are often paused because memory is short. */
    if (!(j->ask->flags & LAYERS_FREEZE))
        return 0;
    _cleanup_close_ int place = openat(b->place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place >= 0 && upper_can_snapshot(place, j->place.tmp)) {
        s->kind = STAGE_SNAPSHOT;
        job_tmp_name(j, s->name);
        /* A snapshot waits until its data is on the disk: sync most of it before the freeze. */
        (void)syncfs(place);
        return 0;
    }
    if (stage_can_share(j, b)) {
        if (s->prev < 0)
            return 0; /* nothing to compare with, and the files share their blocks with the layer's */
        s->kind = STAGE_DISK;
        return (s->dir = job_tmp(j, false, s->name, err)) < 0 ? -1 : 0;
    }
    if (stage_make_memory(j, b, s))
        s->kind = STAGE_MEMORY;
    return 0;
}

/* A tmpfs lacks something that the disk may have: room, memory, a kind of attribute. */
static bool stage_lacks_room(const struct err *err)
{
    return err->eno == ENOSPC || err->eno == EDQUOT || err->eno == ENOMEM || err->eno == EOPNOTSUPP ||
           err->eno == E2BIG;
}

int stage_fill(struct job *j, const struct job_sandbox *b, int root, struct stage *s, struct err *err)
{
    int r = s->kind == STAGE_SNAPSHOT ? stage_take_snapshot(j, b, s, err) : 1;
    if (r <= 0)
        return r;
    if (s->kind == STAGE_MEMORY || s->kind == STAGE_DISK)
        r = stage_copy_tree(j, b, s, b->upper, true, s->dir, -1, 0, err);
    if (s->kind == STAGE_MEMORY && r < 0 && stage_lacks_room(err)) {
        (void)close(s->dir);
        s->dir = -1;
        *err = (struct err){0};
        r = 1;
    }
    if (r <= 0)
        return r;
    s->kind = STAGE_NONE;
    return stage_copy_tree(j, b, s, b->upper, true, root, s->prev, 0, err);
}

int stage_empty(struct job *j, const struct job_sandbox *b, int root, struct stage *s, struct err *err)
{
    if (s->kind == STAGE_NONE)
        return 0;
    if (stage_copy_tree(j, b, s, s->dir, s->kind == STAGE_SNAPSHOT, root, s->prev,
                        s->kind == STAGE_DISK ? TREE_TAKE : 0, err) < 0)
        return -1;
    return s->name[0] ? tree_remove(j->place.tmp, s->name, err) : 0;
}
