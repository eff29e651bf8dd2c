/* numbers.h - keeps inode numbers of the layers of a stack, and of the upper over them, apart (os/upper.h).
 *
 * What is made later has higher numbers than everything below it. Layers that are plain directories lie in one
 * subvolume, the store itself, and share no number. STATE/stock/seed is a subvolume whose numbers are as high as theirs;
 * keeper starts an upper as a snapshot of the uppermost layer, if that is a subvolume, else of the seed.
 *
 * All functions do nothing where the store is not the root of a btrfs of its own, as it is in the pool.
 */
#ifndef HUTCH_LAYERS_NUMBERS_H
#define HUTCH_LAYERS_NUMBERS_H

#include "layers/jobs.h"

/* Call before a plain layer gets its name: uppers that start from the seed from now on have higher numbers. */
int numbers_raise_seed(const struct layers_place *p, struct err *err);
/* The same when the store starts, unless it takes longer than a second: then a job does it (tasks.c). */
void numbers_begin(const struct layers_place *p);
/* Call before a plain layer is made over layers of this stack: what is made in the store from now on has higher
 * numbers. */
int numbers_raise_store(const struct layers_place *p, const struct stack_file *f, struct err *err);
/* Whether what the upper holds has numbers of its own beside all layers of the stack, which may have been made into
 * others since the upper was made. 1, 0, or -1 with err. */
int numbers_are_apart(const struct layers_place *p, const struct stack_file *f, int place, struct err *err);
/* Directory of a layer that is a subvolume; -1: it is not, or not there. */
int numbers_layer_subvolume(const struct layers_place *p, const uint8_t layer[SHA256_BYTES]);

#endif
