#include "base/steps.h"

#include <time.h>

static struct step taken[STEPS_MAX];
static size_t ntaken;
static uint64_t begin_ns;

uint64_t steps_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

void steps_begin(void)
{
    ntaken = 0;
    begin_ns = steps_now();
}

void steps_mark(const char *name)
{
    if (ntaken < STEPS_MAX)
        taken[ntaken++] = (struct step){name, steps_now()};
}

const struct step *steps_taken(size_t *ret_n, uint64_t *ret_begin)
{
    *ret_n = ntaken;
    *ret_begin = begin_ns;
    return taken;
}
