/* generations.h - the history of a sandbox's files. A generation is a stack (stacks/stacks.h) of all files at one
 * time: after a command, if the sandbox keeps history, or on request. Generations are removed with their sandbox,
 * and the oldest ones when there are too many. This code never touches files: the layer store captures and applies
 * them.
 */
#ifndef HUTCH_SNAPSHOTS_GENERATIONS_H
#define HUTCH_SNAPSHOTS_GENERATIONS_H

#include "snapshots/snapshots.h"

enum { GENERATIONS_MAX = 32, GENERATION_COMMAND_MAX = 200 };
#define GENERATIONS_BYTES_MAX \
    (UINT64_C(1) << 30) /* of one sandbox; each counts with the bytes it does not share with the one before */

struct generation {
    uint64_t number; /* from 1; unique within the sandbox */
    uint64_t at_unix_ms, bytes, frozen_us;
    char stack[STACK_ID_MAX];
    char command[GENERATION_COMMAND_MAX]; /* the command before it; "": made on request */
};

/* For snapshots.c. */
int generations_load(struct snapshots *sn, struct err *err);
void generations_free(struct snapshots *sn);
void generations_each_use(void *sn, stack_use_fn *fn, void *arg);

/* g is borrowed for the call; NULL with a failure. The sandbox must run or be frozen. */
typedef void generation_done(void *arg, const struct generation *g, const struct state_failure *failure);
void generation_make(struct snapshots *sn, struct sandbox *b, const char *command, generation_done *done, void *arg);
/* Oldest first. */
typedef void generation_each_fn(void *arg, const struct generation *g);
void generations_each(struct snapshots *sn, const char *sandbox, generation_each_fn *fn, void *arg);
const struct generation *generation_find(struct snapshots *sn, const char *sandbox, uint64_t number);
/* The newest whose number is at most `below`; NULL: none. */
const struct generation *generation_newest(struct snapshots *sn, const char *sandbox, uint64_t below);

/* Replaces the sandbox's files by those of the generation, while its processes are frozen. First the present files
 * become a generation, so that an undo can be undone. Atomic, even if a process of the node dies meanwhile: see
 * transactions.h. */
typedef void generation_undone(void *arg, const struct layers_reply *r, const struct state_failure *failure);
void generation_undo(struct snapshots *sn, struct sandbox *b, uint64_t number, generation_undone *done, void *arg);

#endif
