/* loop.h - the reactor: one epoll set, timers, signals, deferred calls and a few worker threads for what may block.
 *
 * A loop belongs to the thread that made it; only loop_post() may be called from another thread. Handles are numbers (slot
 * and generation), never pointers: a stale one is ignored, so an event that was already fetched for a watch that has been
 * removed since goes nowhere. Whoever frees an object from inside one of its own callbacks uses loop_defer().
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
void loop_free(struct loop *l);
/* Runs until loop_stop(). */
int loop_run(struct loop *l, struct err *err);
void loop_stop(struct loop *l);

/* Monotonic milliseconds, read once per wake-up. */
uint64_t loop_now(const struct loop *l);

/* Descriptors are borrowed: the caller closes them, after loop_fd_del(). Level-triggered. 0 on failure, with errno. */
typedef void loop_fd_fn(void *arg, int fd, unsigned events);
loop_id loop_fd_add(struct loop *l, int fd, unsigned events, loop_fd_fn *fn, void *arg);
void loop_fd_set(struct loop *l, loop_id id, unsigned events);
void loop_fd_del(struct loop *l, loop_id id);

/* One-shot timers; a periodic one sets itself again. Never fail (memory exhaustion aborts, as everywhere). */
typedef void loop_fn(void *arg);
loop_id loop_timer(struct loop *l, uint64_t after_ms, loop_fn *fn, void *arg);
void loop_timer_del(struct loop *l, loop_id id);

/* Called after the current batch of events, in order. */
void loop_defer(struct loop *l, loop_fn *fn, void *arg);

/* Signals through signalfd; blocks the signal for the thread. */
typedef void loop_signal_fn(void *arg, int signo);
int loop_signal(struct loop *l, int signo, loop_signal_fn *fn, void *arg, struct err *err);

/* From any thread: calls fn on the loop's thread. */
void loop_post(struct loop *l, loop_fn *fn, void *arg);
/* Runs `work` on one of the loop's worker threads (LOOP_WORKERS, made at first use), then `done` on the loop's thread. */
enum { LOOP_WORKERS = 4 };
void loop_work(struct loop *l, loop_fn *work, loop_fn *done, void *arg);

#endif
