/* steps.h - when each step of starting a command was done, for `hutch run --trace-start`.
 *
 * Marks are always taken, because asking whether they are wanted costs more: one read of a clock each. One list
 * for the process, not for threads. */
#ifndef HUTCH_BASE_STEPS_H
#define HUTCH_BASE_STEPS_H

#include <stddef.h>
#include <stdint.h>

enum { STEPS_MAX = 32 };

struct step {
    const char *name; /* static */
    uint64_t end_ns;  /* CLOCK_MONOTONIC; a step begins where the one before it ended */
};

/* The clock of the first step. */
void steps_begin(void);
/* The step that just ended is called so. More than STEPS_MAX are forgotten. */
void steps_mark(const char *name);
/* What was marked; *ret_begin is the time of steps_begin(). */
const struct step *steps_taken(size_t *ret_n, uint64_t *ret_begin);
/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t steps_now(void);

#endif
