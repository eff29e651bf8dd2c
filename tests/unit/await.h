/*
 * await.h - waiting in a test. How many steps of a loop something takes depends on the machine, its disk and what runs beside, so
 * a test counts time, not steps:
 *
 *     AWAIT(a->calls > 0)
 *         step(1);
 *     assert_int_equal(a->calls, 1);
 *
 * The time is that of the machine, whatever clock the loop was given. It is long because it is only used up by a failure.
 */
#ifndef HUTCH_TEST_AWAIT_H
#define HUTCH_TEST_AWAIT_H

#include <stdint.h>
#include <time.h>

#define AWAIT_S  60
#define AWAIT_MS (AWAIT_S * 1000) /* for calls that have a time-out of their own */

static inline int64_t await_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/* For loop_set_clock(): read once a step, and what the machine stood still for in between does not count. arg: NULL, or a
 * uint64_t of milliseconds that is added. */
static inline uint64_t await_clock_ms(void *arg)
{
    static uint64_t last, at;
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    at += last == 0 || now - last < 10 ? now - last : 10;
    last = now;
    return at + (arg ? *(const uint64_t *)arg : 0);
}

#define AWAIT(cond) for (int64_t await_end_ = await_now() + AWAIT_S; !(cond) && await_now() <= await_end_;)

/* The same with the steps of a loop, and a word of what did not come. */
#define AWAIT_STEPS(loop_, condition)                              \
    do {                                                           \
        struct err await_err_ = {0};                               \
        bool await_so_ = false;                                    \
        AWAIT (await_so_ = (condition))                            \
            assert_int_equal(loop_step(loop_, 5, &await_err_), 0); \
        if (!await_so_)                                            \
            fail_msg("it never came to this: %s", #condition);     \
    } while (0)

/* Where a store is kept for a test that is not about disks: what is synced there costs nothing. */
#define FAST_DIR "/dev/shm"

#endif
