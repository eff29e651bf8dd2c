/* stage.c - see stage.h. */
#include "stock/stage.h"

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
    SMALL_MAX = 64 << 20,          /* as many at once as there are jobs */
    ALL_JOBS = 2 * STOCK_JOBS_MAX, /* if as many of that size take no more than half of the memory there is */
    SHARE_OF_ROOM = 4,             /* a larger one: one at a time, and not more than this part of the memory there is */
    FILE_MAX = 128 << 10,          /* and if its files are not larger than this on average */
    INODE = 1024,                  /* bytes that a file takes beside what is in it */
    SPARE = 16 << 20,              /* for what is written between the look at it and the moment it stands still */
    ENTRIES_MAX = 4 << 20,         /* that are counted */
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

/* To make a file in memory takes a tenth of the time that it takes on a disk; to fill one takes as long here as there, where
 * writes go to memory at first as well. So little is gained with large files, and much memory taken. Whoever grows after the
 * look gets no more than twice of what was allowed: then it goes to the disk. */
uint64_t stage_memory(const struct upper_usage *size, uint64_t room, bool *ret_alone)
{
    uint64_t bytes = size->used + size->inodes * INODE;
    *ret_alone = bytes > SMALL_MAX || bytes > room / ALL_JOBS;
    if (*ret_alone && (bytes > room / SHARE_OF_ROOM || size->used > size->inodes * FILE_MAX))
        return 0;
    return bytes * 2 + SPARE;
}

/* A tmpfs knows it at once. Elsewhere it runs while we count. */
static bool look(int upper, uint64_t room, struct upper_usage *ret)
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

static bool take_turn(const struct job *j, struct stage *s)
{
    s->turn = openat(j->place.tmp, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return s->turn >= 0 && flock(s->turn, LOCK_EX | LOCK_NB) == 0;
}

/* false: the files had better go to the disk at once. */
static bool make_memory(const struct job *j, const struct job_box *b, struct stage *s)
{
    struct upper_usage size;
    bool alone;
    uint64_t room = memory_room();
    if (!look(b->upper, room, &size))
        return false;
    uint64_t most = stage_memory(&size, room, &alone);
    if (most == 0 || (alone && !take_turn(j, s)))
        return false;
    _cleanup_close_ int mnt = mount_new_tmpfs(most, size.inodes * 2 + 4096, 0755, MOUNT_NOSUID | MOUNT_NODEV);
    s->dir = mnt < 0 ? -1 : openat(mnt, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* When memory runs out the kernel looks for a process that has much, and sees none of this: it would end others for it,
     * sandboxes first, and have no more than before. With us it has all of it. */
    (void)fd_put(AT_FDCWD, "/proc/self/oom_score_adj", "1000");
    return s->dir >= 0;
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

static int copy_tree(struct job *j, const struct job_box *b, int from, bool shifted, int to, int prev, unsigned flags,
                     struct err *err)
{
    struct tree_copy c = {.from = from,
                          .to = to,
                          .prev = prev,
                          .shift = shifted ? b->record.shift : 0,
                          .flags = j->tree_flags | flags,
                          .max = {.bytes = j->ask->bytes, .entries = j->ask->entries}};
    int r = tree_copy(&c, err);
    j->reply.bytes2 = c.linked;
    return r;
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

int stage_make(struct job *j, const struct job_box *b, struct stage *s, struct err *err)
{
    /* Paused for longer than this takes: nothing is gained, and what it needs is memory, for which many are paused. */
    if (!(j->ask->flags & STOCK_FREEZE))
        return 0;
    _cleanup_close_ int place = openat(b->place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place >= 0 && upper_can_snapshot(place, j->place.tmp)) {
        s->kind = STAGE_SNAPSHOT;
        job_tmp_name(j, s->name);
        /* A snapshot waits until everything in it is on the disk; with this, little is left to wait for. */
        (void)syncfs(place);
        return 0;
    }
    if (can_share(j, b)) {
        if (s->prev < 0)
            return 0; /* nothing to compare with, and the files share their blocks with the layer's */
        s->kind = STAGE_DISK;
        return (s->dir = job_tmp(j, false, s->name, err)) < 0 ? -1 : 0;
    }
    if (make_memory(j, b, s))
        s->kind = STAGE_MEMORY;
    return 0;
}

/* What a tmpfs may lack and the disk has: room, memory, attributes of a kind. */
static bool lacks(const struct err *err)
{
    return err->eno == ENOSPC || err->eno == EDQUOT || err->eno == ENOMEM || err->eno == EOPNOTSUPP ||
           err->eno == E2BIG;
}

int stage_fill(struct job *j, const struct job_box *b, int root, struct stage *s, struct err *err)
{
    int r = s->kind == STAGE_SNAPSHOT ? take_snapshot(j, b, s, err) : 1;
    if (r <= 0)
        return r;
    if (s->kind == STAGE_MEMORY || s->kind == STAGE_DISK)
        r = copy_tree(j, b, b->upper, true, s->dir, -1, 0, err);
    if (s->kind == STAGE_MEMORY && r < 0 && lacks(err)) {
        (void)close(s->dir);
        s->dir = -1;
        *err = (struct err){0};
        r = 1;
    }
    if (r <= 0)
        return r;
    s->kind = STAGE_NONE;
    return copy_tree(j, b, b->upper, true, root, s->prev, 0, err);
}

int stage_empty(struct job *j, const struct job_box *b, int root, struct stage *s, struct err *err)
{
    if (s->kind == STAGE_NONE)
        return 0;
    if (copy_tree(j, b, s->dir, s->kind == STAGE_SNAPSHOT, root, s->prev, s->kind == STAGE_DISK ? TREE_TAKE : 0, err) <
        0)
        return -1;
    return s->name[0] ? tree_remove(j->place.tmp, s->name, err) : 0;
}
