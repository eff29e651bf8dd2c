/* supervise.h - the caller's loop while a command runs: signals, terminal, deadlines, limits, notifications.
 *
 * One poll loop in the caller's process, outside the sandbox. It decides nothing about what the command may do; it ends
 * the command when a limit of the policy is reached, and collects what the result record says.
 */
#ifndef HUTCH_CLI_RUN_SUPERVISE_H
#define HUTCH_CLI_RUN_SUPERVISE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/run/denials.h"
#include "cli/run/run-egress.h"
#include "os/cgroup.h"
#include "os/oom.h"
#include "policy/run/policy.h"
#include "wall/covers.h"
#include "wall/wall.h"

enum { SUPERVISE_IDLE_MS = 40 };

enum end_cause {
    END_EXIT, /* the command ended by itself */
    END_SIGNAL,
    END_OOM,      /* the memory limit */
    END_DEADLINE, /* wall_time */
    END_CPU_TIME,
    END_OUTPUT,  /* output_bytes */
    END_DENIALS, /* on_denial: kill */
    END_COVER,   /* a hidden or protected name was replaced from outside and stayed open */
    END_NOT_RUN, /* could not be executed */
    END_UNKNOWN, /* init was killed from outside */
};

struct outcome {
    enum end_cause cause;
    int exit_code; /* what `hutch run` exits with */
    int status;    /* of the command, as from wait(), if it ran */
    int signal;    /* that ended it, or 0 */
    int exec_errno;
    char sender[96]; /* who sent the signal, as far as it is known; "" otherwise */
    uint64_t wall_us, user_us, system_us;
    uint64_t max_rss;      /* bytes of the biggest single process */
    struct cgroup_stat cg; /* have-bits say what is known */
    struct oom_kill oom;   /* valid if cause is END_OOM or an OOM kill happened */
    bool oom_seen;
    bool disk_full, inodes_full;
    uint64_t stage_ns[STAGE_MAX];
    unsigned landlock_abi;
    uint64_t output_bytes;
};

struct supervise {
    struct wall *wall;
    struct cgroup *cgroup; /* may be NULL */
    const struct policy *policy;
    const struct wall_spec *spec;
    struct denials *denials;
    struct covers *covers;     /* may be NULL */
    struct run_egress *egress; /* with network rules; else NULL */
    void (*idle)(void *arg);   /* called once, when the command has run for SUPERVISE_IDLE_MS; may be NULL */
    void *idle_arg;
    bool watch_memory;      /* no cgroup: add up the processes' memory from time to time */
    int out_pipe, err_pipe; /* read ends when output is counted, else -1; closed by supervise() */
    int vault;              /* set by supervise(): the private layers of --learn, for the caller to close; -1 */
    bool dying;             /* set by supervise(): init is to be reaped by the caller */
    int oom_log;            /* from oom_open(), before the start; -1 */
    int input; /* the caller's stdin if it is a file, to be moved to where the command stopped reading; -1 */
    const sigset_t *signals; /* blocked by the caller; taken from a signalfd here */
};

/* Blocks until nothing inside can act any more. Fills *ret; on a set-up failure returns -1 and *err. Reaps the sandbox, or
 * sets s->dying: then init is on its way out, and the caller has time for other things before wall_finish(). */
int supervise(struct supervise *s, struct outcome *ret, struct err *err);

#endif
