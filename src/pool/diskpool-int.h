/* diskpool-int.h - shared by diskpool*.c only. */
#ifndef HUTCH_POOL_DISKPOOL_INT_H
#define HUTCH_POOL_DISKPOOL_INT_H

#include "os/loopdev.h"
#include "pool/diskpool.h"

#define POOL_NEW     POOL_FILE ".new" /* being made; a killed process leaves it */
#define POOL_DEFAULT "files.auto"     /* the node began when `files: auto` was the default */

struct diskpool { /* while we work on it */
    int lock, img;
    int mount; /* a detached mount of it, to be attached: all mounts of one device are one file system */
    int root;  /* its root directory, readable */
    struct loopdev dev;
};
#define DISKPOOL_INIT                                                       \
    {                                                                       \
        .lock = -1, .img = -1, .mount = -1, .root = -1, .dev = LOOPDEV_INIT \
    }
void diskpool_close(struct diskpool *p);
int diskpool_lock(int state, struct diskpool *p, struct err *err);
/* The image `name`. 1: there is none. Refuses what is not a whole btrfs. */
int diskpool_open_image(int state, const char *name, struct diskpool *p, struct err *err);
/* Loop device and detached mount; the file system becomes as large as the file. Damage is told with a remedy. */
int diskpool_open_root(int state, struct diskpool *p, struct err *err);
/* Whether STATE/stock is a mount of p->dev. -1: it is a mount of something else. */
int diskpool_is_mounted(int state, const struct diskpool *p, struct err *err);
/* The path of STATE, for messages. */
const char *diskpool_path(int state);
void diskpool_size_text(uint64_t bytes, char ret[32]);

/* diskpool-make.c: makes POOL_NEW with a file system in it and quotas on. */
int diskpool_make(int state, uint64_t size, struct diskpool *p, struct err *err);
uint64_t diskpool_default_size(int state);

/* diskpool-move.c. Whether STATE/stock, which is not the pool, holds something. */
bool diskpool_store_used(int state);
/* Copies STATE/stock into the new pool p. */
int diskpool_move_in(int state, int run, const struct diskpool *p, struct err *err);

#endif
