/* stock-int.h - shared by the files of the daemon only: setup.c, loop.c, tasks.c.
 *
 * A task is a request of front from its arrival to its answer. It waits, runs as a job (a child), perhaps is cleaned up
 * after (one more child), and is free when its answer is sent. Nothing here waits for anything but poll().
 */
#ifndef HUTCH_STOCK_STOCK_INT_H
#define HUTCH_STOCK_STOCK_INT_H

#include "stock/jobs.h"

enum {
    STOCK_CONNS = 8,
    STOCK_LINGER_MAX = 64, /* jobs that go on after their answer */
    STOCK_TASKS = STOCK_JOBS_MAX + STOCK_LINGER_MAX,
    STOCK_CLEAN_TRIES = 3,
};
#define STOCK_GONE   ".gone-" /* names in STATE/stock of what is to be removed */
#define STOCK_FROZEN "stock-frozen"

struct message {
    size_t n;
    int fd; /* goes along; -1 */
    union {
        struct stock_reply reply;
        struct stock_items items;
    } m;
};

enum task_state {
    TASK_FREE,
    TASK_WAITING,
    TASK_RUNNING,
    TASK_CLEANING,
    TASK_DONE, /* its answer is being sent */
};
struct task {
    enum task_state state;
    uint64_t serial; /* in the order of arrival */
    int conn;        /* index; -1: nobody waits for the answer */
    struct stock_request ask;
    int fds[STOCK_FDS_MAX];
    size_t nfds;
    pid_t pid;
    int pidfd, sock; /* -1 */
    int status;      /* of the process, once it has `ended` */
    int how;         /* the job's own */
    bool ended, drained, answered, cancelled, sweeper;
    unsigned cleans;
    struct message *out;
};

struct stock_conn {
    int fd;              /* -1: free */
    bool full;           /* a message did not go out: wait for room */
    struct message *out; /* to a request that is no task; nothing is read meanwhile */
};

struct stock {
    const struct stock_config *config;
    struct stock_place place;
    int run, listener, no_net; /* no_net: a network namespace with nothing in it */
    bool rootless;
    uint64_t next_serial;
    struct stock_conn conns[STOCK_CONNS];
    struct task tasks[STOCK_TASKS];
    struct {
        uint64_t at_ms; /* when the next collection is due */
        unsigned more, put_off;
    } gc; /* periodic.c */
};

/* setup.c: namespaces, lock, capabilities, directories. */
int stock_setup(const struct stock_config *c, struct stock *s, struct err *err);

/* periodic.c: collections that nobody asks for. */
int periodic_wait_ms(const struct stock *s);
void periodic_step(struct stock *s);
/* Something was dropped. */
void periodic_soon(struct stock *s);

/* loop.c */
/* Sends m to the task's or request's asker and frees it; false: no room, m stays the caller's. */
bool stock_send(struct stock *s, int conn, struct message *m);
struct message *stock_message(const struct stock_request *ask, enum stock_error error, const char *text);
void stock_message_free(struct message *m);

/* tasks.c */
/* Takes the descriptors. NULL: as many as there may be are under way. */
struct task *task_new(struct stock *s, int conn, const struct stock_request *ask, const int *fds, size_t nfds);
bool task_cancel(struct stock *s, int conn, uint64_t request);
void task_conn_gone(struct stock *s, int conn);
/* Its socket can be read, its process has ended. */
void task_read(struct stock *s, struct task *t);
void task_reap(struct stock *s, struct task *t);
/* Everything that has become possible: sends, ends, cleans, begins. */
void tasks_step(struct stock *s);
/* Removes what STATE/stock/.gone-* names. */
void task_sweep(struct stock *s);
/* Ends all jobs and waits for them. */
void tasks_stop(struct stock *s);

#endif
