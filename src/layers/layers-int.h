/* layers-int.h - shared by the files of the daemon only: setup.c, loop.c, tasks.c, periodic.c.
 *
 * A task is a request of front from its arrival to its answer. It waits, runs as a job (a child), may need a second
 * child to clean up, and is free when its answer is sent. The daemon never blocks outside of poll().
 */
#ifndef HUTCH_LAYERS_LAYERS_INT_H
#define HUTCH_LAYERS_LAYERS_INT_H

#include "layers/jobs.h"
#include "rpc/channel.h"

enum {
    LAYERS_CONNS = 8,
    LAYERS_LINGER_MAX = 64, /* jobs that go on after their answer */
    LAYERS_TASKS = LAYERS_JOBS_MAX + LAYERS_LINGER_MAX,
    LAYERS_CLEAN_TRIES = 3,
};
#define LAYERS_GONE ".gone-" /* prefix in STATE/stock: to be removed */

enum task_state {
    TASK_FREE,
    TASK_WAITING,
    TASK_RUNNING,
    TASK_CLEANING,
    TASK_DONE, /* it was answered */
};
struct task {
    enum task_state state;
    uint64_t serial; /* in the order of arrival */
    int conn;        /* index; -1: the answer goes to no connection */
    struct layers_request ask;
    int fds[LAYERS_FDS_MAX];
    size_t nfds;
    pid_t pid;
    int pidfd, sock; /* -1 */
    int status;      /* of the process, once it has `ended` */
    int how;         /* the job's own */
    bool ended, drained, answered, cancelled, sweeper;
    unsigned cleans;
};

struct layers {
    const struct layers_config *config;
    struct layers_place place;
    int run, listener, no_net; /* no_net: a network namespace with nothing in it */
    bool rootless;
    uint64_t next_serial;
    struct channel conns[LAYERS_CONNS]; /* of front; fd -1: free */
    struct task tasks[LAYERS_TASKS];
    struct {
        uint64_t at_ms; /* when the next collection is due */
        unsigned more, put_off;
    } gc; /* periodic.c */
    struct {
        bool wanted;              /* a layer may lack its digest */
        uint64_t since_ms, at_ms; /* since when; when to begin, unless captures come */
    } digest;                     /* periodic.c */
};

/* setup.c: namespaces, lock, capabilities, directories. */
int layers_setup(const struct layers_config *c, struct layers *s, struct err *err);

/* periodic.c: collections, and digests of new layers, that the daemon starts by itself. */
int periodic_wait_ms(const struct layers *s);
void periodic_step(struct layers *s);
/* Call after a drop: collects soon. */
void periodic_soon(struct layers *s);

/* loop.c */
/* To the connection, unless that is gone; fd is borrowed, or -1. */
void layers_send(struct layers *s, int conn, const void *p, size_t n, int fd);
void layers_answer(struct layers *s, int conn, uint64_t request, enum layers_error error, const char *text);
/* Messages wait for front to read: neither requests nor what jobs say is read meanwhile. */
bool layers_waits(const struct layers *s, int conn);

/* tasks.c */
/* Takes the descriptors. NULL: the maximum of tasks is under way. */
struct task *task_new(struct layers *s, int conn, const struct layers_request *ask, const int *fds, size_t nfds);
bool task_cancel(struct layers *s, int conn, uint64_t request);
void task_conn_gone(struct layers *s, int conn);
/* Call when its socket is readable; when its process has ended. */
void task_read(struct layers *s, struct task *t);
void task_reap(struct layers *s, struct task *t);
/* Moves every task on as far as possible: sends, ends, cleans up, begins. */
void tasks_step(struct layers *s);
/* Starts a child that removes STATE/stock/.gone-*. */
void task_sweep(struct layers *s);
/* Ends all jobs and waits for them. */
void tasks_stop(struct layers *s);

#endif
