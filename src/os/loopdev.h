/* loopdev.h - loop devices by descriptor of the file behind them. A file is never attached twice: two devices over
 * one file are two caches that do not know of each other.
 */
#ifndef HUTCH_OS_LOOPDEV_H
#define HUTCH_OS_LOOPDEV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { LOOPDEV_MAX = 4096, LOOPDEV_NAME_MAX = 32 };
enum { LOOPDEV_DIRECT = 1 }; /* past the page cache, in blocks of 4096, where the file system of the file can do that */

struct loopdev {
    int fd;                      /* of the device; as long as it is open or something is mounted from it, it stays */
    char path[LOOPDEV_NAME_MAX]; /* "/dev/loop3" */
};
#define LOOPDEV_INIT \
    {                \
        .fd = -1     \
    }

/* The device of the file `img`, or 1 if it has none, or -1. */
int loopdev_find(int img, struct loopdev *ret, struct err *err);
/* Finds or attaches one. The caller keeps others from doing the same meanwhile (a lock on the file). It goes away
 * with its last user. */
int loopdev_attach(int img, unsigned flags, struct loopdev *ret, struct err *err);
bool loopdev_is_direct(const struct loopdev *d);
/* The file behind it has another size now. */
int loopdev_resized(const struct loopdev *d, struct err *err);
void loopdev_close(struct loopdev *d);

#endif
