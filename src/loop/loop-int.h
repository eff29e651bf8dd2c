/* loop-int.h - the inside of a loop, shared by the files of loop/: slots behind handles, the heap of timers, queues of
 * calls. No file outside of loop/ may include it. */
#ifndef HUTCH_LOOP_LOOP_INT_H
#define HUTCH_LOOP_LOOP_INT_H

#include <pthread.h>
#include <signal.h>

#include "loop/loop.h"

enum slot_kind { SLOT_FREE, SLOT_FD, SLOT_TIMER };

/* What a handle refers to. Slots move when their array grows: never keep a pointer to one across a callback. */
struct slot {
    uint32_t gen; /* never 0; changes when the slot is freed */
    enum slot_kind kind;
    void *arg;
    union {
        struct {
            loop_fd_fn *fn;
            int fd;
            unsigned events; /* 0: not in the epoll set */
        } fd;
        struct {
            loop_fn *fn;
            uint64_t due, seq;
            uint32_t heap; /* index in the heap */
        } timer;
        uint32_t next_free;
    } u;
};

struct call {
    loop_fn *fn;
    void *arg;
};
struct calls {
    struct call *v;
    size_t n, cap;
};
void calls_add(struct calls *c, loop_fn *fn, void *arg);

struct loop_workers;

struct loop {
    int epoll;
    bool stop;
    uint64_t now;
    loop_clock_fn *clock;
    void *clock_arg;

    struct slot *slots;
    uint32_t nslots, cap_slots;
    uint32_t first_free; /* UINT32_MAX: none */

    uint32_t *heap; /* slot numbers, earliest first */
    uint32_t nheap, cap_heap;
    uint64_t timer_seq;

    struct calls deferred, running;

    int signal_fd;
    loop_id signal_watch;
    sigset_t signals;
    struct {
        loop_signal_fn *fn;
        void *arg;
    } on_signal[_NSIG];

    int wake_fd;
    loop_id wake_watch;
    pthread_mutex_t lock; /* protects posted */
    struct calls posted, taken;
    struct loop_workers *workers;
};

loop_id loop_slot_new(struct loop *l, enum slot_kind kind, void *arg, struct slot **ret);
/* NULL if the handle is stale or of another kind. */
struct slot *loop_slot_get(struct loop *l, loop_id id, enum slot_kind kind);
void loop_slot_free(struct loop *l, struct slot *s);

/* timer.c */
int timers_wait(const struct loop *l, int max_wait_ms);
void timers_run(struct loop *l);
/* work.c */
int posts_open(struct loop *l, struct err *err);
void posts_close(struct loop *l);
void workers_stop(struct loop *l);

#endif
