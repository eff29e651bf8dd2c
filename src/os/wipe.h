/* wipe.h - takes whole trees away, however deep and whatever is in them. */
#ifndef HUTCH_OS_WIPE_H
#define HUTCH_OS_WIPE_H

#include "base/err.h"

/* Removes `name` in dir with everything in it, whatever its modes; btrfs subvolumes too. Not there is success. ERR_SETUP
 * with the path, EBUSY if something is mounted in it.
 *
 * Others may still be able to reach the tree and rename in it. So this only ever goes down, from one descriptor to
 * the next, and removes nothing but what it sees in a directory that it reached that way: ".." may lead to a place that
 * another process chose meanwhile. What they add while it runs may make it fail or run longer. */
int wipe_tree(int dir, const char *name, struct err *err);

#endif
