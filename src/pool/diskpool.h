/* diskpool.h - the pool: a btrfs in the sparse file STATE/pool.img, on a loop device, mounted at STATE/stock.
 *
 * Root's node makes one where the file system of its state directory has no snapshots, so that files of sandboxes lie on
 * disk and a snapshot costs what the file system's own costs. Once there is a pool, the whole layer store is in it, and the
 * node does not start without it: an empty store would make the node drop everything that its database names.
 *
 * The file is as large as the pool may become; the host gives it blocks when something is written, and gets them back when
 * it is removed (discard). Were the host's disk to fill up first, the kernel could not write the pool's own metadata, and
 * would stop writing altogether. So one file inside, the ballast, occupies as much of the pool as the host cannot give:
 * writers inside get ENOSPC while there still is a reserve outside. The process `hutch pool watch` keeps its size.
 *
 * Everything here takes a descriptor of STATE. pool.lock in it keeps two of these functions from working at the same time.
 */
#ifndef HUTCH_POOL_DISKPOOL_H
#define HUTCH_POOL_DISKPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define POOL_FILE    "pool.img"
#define POOL_BALLAST ".ballast" /* in the root of the pool */
#define POOL_BEFORE  "stock.before-pool"
#define POOL_MIN     (UINT64_C(1) << 30)

struct diskpool_want {
    const char *files; /* the operator's word: "auto", "pool", or a driver of os/upper.h */
    bool given;        /* the operator said it; else it is the default */
    uint64_t size;     /* at most; 0: half of what is free when the pool is made */
    int run;           /* the run directory, whose journal names living sandboxes */
};
struct diskpool_found {
    bool on;         /* STATE/stock is the pool */
    char driver[16]; /* what keeper makes uppers with */
    char why[600];   /* one sentence for doctor, df and the log */
};
/* Finds the pool and mounts it, or makes it if it shall be there and is not, or says why there is none. A pool that is there
 * and cannot be mounted is an error that names the remedy; so is one that the operator asked for ("pool") and that cannot be
 * made. */
int diskpool_attach(int state, const struct diskpool_want *w, struct diskpool_found *ret, struct err *err);
/* Unmounts it, if it is mounted. The kernel frees the loop device with the last user: a living sandbox keeps it, and the next
 * diskpool_attach() finds it. 1: a process outside of our sandboxes uses STATE/stock, and it stays mounted. */
int diskpool_detach(int state, struct err *err);

/* Local commands of the operator, with the node or without. grow: sizes of 0 and less than now are refused. shrink: moves what
 * lies beyond first, which may take minutes. */
int diskpool_grow(int state, uint64_t size, struct err *err);
int diskpool_shrink(int state, uint64_t size, struct err *err);
/* Mounted: reads everything and compares checksums. Else `btrfs check --readonly`. Adds lines to `out`; 0: in order, 1: not. */
int diskpool_check(int state, struct buf *out, struct err *err);

struct diskpool_stat {
    uint64_t size;    /* of the file: what the pool may become */
    uint64_t used;    /* by files and the file system */
    uint64_t avail;   /* may still be written now */
    uint64_t held;    /* by the ballast, because the host's disk could not give it */
    uint64_t on_host; /* blocks that the file occupies */
    bool read_only;   /* the kernel stopped writing after an error */
};
/* False: there is no pool, or it is not mounted. Reads a few numbers, waits for nothing. */
bool diskpool_stat(int state, struct diskpool_stat *ret);
/* One look of the watcher. */
void diskpool_balance(int state);
/* Looks every second, for ever; gives up all capabilities. */
int diskpool_watch(int state, struct err *err);

#endif
