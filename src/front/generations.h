/* generations.h - the history of a sandbox's files. Each generation is a stack (state.h) of what the files were when it
 * was made: after a command, if the sandbox keeps history, or when somebody asks. They go with the sandbox, and the
 * oldest go when there are too many.
 */
#ifndef HUTCH_FRONT_GENERATIONS_H
#define HUTCH_FRONT_GENERATIONS_H

#include "front/state.h"

enum { GENERATIONS_MAX = 32, GENERATION_COMMAND_MAX = 200 };
#define GENERATIONS_BYTES_MAX \
    (UINT64_C(1) << 30) /* of one sandbox, each counted with what it does not share with the one before */

struct generation {
    uint64_t number; /* from 1; never used twice */
    uint64_t at_unix_ms, bytes, frozen_us;
    char stack[STACK_ID_MAX];
    char command[GENERATION_COMMAND_MAX]; /* after which it was made; "" if somebody asked */
};

int generations_load(struct front *f, struct err *err); /* after boxes_load() */
void generations_free(struct front *f);

/* g is borrowed for the call; NULL with a failure. The box must run or be frozen. */
typedef void generation_done(void *arg, const struct generation *g, const struct state_failure *failure);
void generation_make(struct front *f, struct box *b, const char *command, generation_done *done, void *arg);
/* Oldest first. */
typedef void generation_each_fn(void *arg, const struct generation *g);
void generations_each(struct front *f, const char *box, generation_each_fn *fn, void *arg);
const struct generation *generation_find(struct front *f, const char *box, uint64_t number);
/* The newest whose number is at most `below`; NULL: none. */
const struct generation *generation_newest(struct front *f, const char *box, uint64_t below);

/* The sandbox's files become those of the generation; what runs meanwhile stands still. What was there before becomes a
 * generation first, so that an undo can be undone. All of it or nothing, whatever dies meanwhile: see transactions.h. */
typedef void generation_undone(void *arg, const struct stock_reply *r, const struct state_failure *failure);
void generation_undo(struct front *f, struct box *b, uint64_t number, generation_undone *done, void *arg);

#endif
