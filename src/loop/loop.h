/* loop.h - the reactor: one epoll set, timers, signals, deferred calls and a few worker threads for blocking calls.
 *
 * A loop belongs to the thread that made it; only loop_post() may be called from another thread. Handles are numbers (slot
 * and generation), never pointers: a stale one is ignored, so an event that was already fetched for a removed watch is
 * dropped. To free an object from inside one of its own callbacks, use loop_defer().
 */
#ifndef HUTCH_LOOP_LOOP_H
#define HUTCH_LOOP_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct loop;
typedef uint64_t loop_id; /* 0 is no handle */

enum { LOOP_IN = 1, LOOP_OUT = 2, LOOP_HUP = 4 /* reported only; error or both directions closed */, LOOP_RDHUP = 8 };

int loop_new(struct loop **ret, struct err *err);
/* Makes the deferred calls first; makes no call after it returns. */
void loop_free(struct loop *l);
/* Runs until loop_stop(). */
int loop_run(struct loop *l, struct err *err);
void loop_stop(struct loop *l);
/* One round: waits at most max_wait_ms (-1: until something happens), then makes the calls that are due. */
int loop_step(struct loop *l, int max_wait_ms, struct err *err);

/* Monotonic milliseconds, read once per wake-up. */
uint64_t loop_now(const struct loop *l);
typedef uint64_t loop_clock_fn(void *arg);
/* For tests: a clock that is read at once and at every wake-up. Waiting itself still takes real time; see
 * loop_step(). */
void loop_set_clock(struct loop *l, loop_clock_fn *fn, void *arg);

/* Descriptors are borrowed: the caller closes them, after loop_fd_del(). Level-triggered. 0 on failure, with errno.
 * LOOP_HUP is reported whenever events != 0, even if it is not among them; LOOP_HUP alone waits for it only. events ==
 * 0 reports nothing at all, so that a hang-up does not wake a paused reader. */
typedef void loop_fd_fn(void *arg, int fd, unsigned events);
loop_id loop_fd_add(struct loop *l, int fd, unsigned events, loop_fd_fn *fn, void *arg);
void loop_fd_set(struct loop *l, loop_id id, unsigned events);
void loop_fd_del(struct loop *l, loop_id id);

/* One-shot timers; a periodic one sets itself again. Cannot fail (running out of memory aborts, as everywhere). */
typedef void loop_fn(void *arg);
loop_id loop_timer(struct loop *l, uint64_t after_ms, loop_fn *fn, void *arg);
void loop_timer_del(struct loop *l, loop_id id);

/* Called after the current batch of events, in order. */
void loop_defer(struct loop *l, loop_fn *fn, void *arg);
/* Makes the deferred calls, and those that they defer, now: at shutdown, before their arguments are freed. */
void loop_settle(struct loop *l);

/* Signals through signalfd; blocks the signal for the thread. */
typedef void loop_signal_fn(void *arg, int signo);
int loop_signal(struct loop *l, int signo, loop_signal_fn *fn, void *arg, struct err *err);

/* From any thread: calls fn on the loop's thread. */
void loop_post(struct loop *l, loop_fn *fn, void *arg);
/* Runs `work` on one of the loop's worker threads (LOOP_WORKERS, made at first use), then `done` (may be NULL) on the loop's
 * thread. loop_free() waits for work that has begun; after that it calls neither `work` nor `done`. */
enum { LOOP_WORKERS = 4 };
void loop_work(struct loop *l, loop_fn *work, loop_fn *done, void *arg);

#endif
