/* wall.h - builds the isolation from a plan and starts one command behind it.
 *
 * Three processes. The *caller* (outside) calls wall_begin(), wall_start() and supervises. It clones *init*, pid 1 of the
 * new pid namespace, which builds everything from the inside, locks itself in, and starts the *command* as its child. init
 * then only reaps and passes signals on; when the command ends, init writes the outcome to a page it shares with the
 * caller and exits, and the kernel kills whatever else is left inside.
 *
 * After clone init allocates nothing: every string and table is in struct wall_spec, which is made before, or is copied to
 * memory that the caller shares with it. init never execs; it is not dumpable, holds no capability and runs under the same
 * filter as the command.
 *
 * Talking: init -> caller, over a SEQPACKET socket, struct wall_msg with at most two descriptors. caller -> init: that the
 * ids are mapped, that the spec is complete (with idmapped mounts of root callers), that the stubs are made; and signals:
 * whatever is sent to init from outside is passed on to the command (to its process group if the signal carries the value
 * WALL_SIGNAL_GROUP).
 */
#ifndef HUTCH_WALL_WALL_H
#define HUTCH_WALL_WALL_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/strv.h"
#include "os/cgroup.h"
#include "os/idmap.h"
#include "os/idrange.h"
#include "policy/run/filter.h"
#include "policy/run/plan.h"
#include "wall/layers.h"
#include "wall/learn.h"

enum { WALL_KEEP_FDS_MAX = 16, WALL_SIGNAL_GROUP = 1, WALL_EXEC_MAX = 128 };

/* A file that the sandbox finds at `path` whatever the root has there: read-only, in memory. */
struct wall_file {
    const char *path; /* absolute; links in it are followed inside */
    const void *bytes;
    size_t n;
    bool make; /* also where the root has no such file, as far as that place is in memory; else it is left out */
};

struct wall_spec {
    const struct plan *plan;
    const struct filter *filter; /* its flags say whether there is a listener */
    struct plan_caller who;
    const struct idrange *range; /* root caller: its own ids; init keeps the range taken. NULL for an ordinary user */
    const struct idmap_subids *subids; /* rootless --root: inside 0 is the caller, 1.. are these. NULL otherwise */
    enum privilege privilege;
    enum network_mode network;
    const struct cgroup *cgroup;      /* may be NULL */
    uint64_t disk_bytes, disk_inodes; /* of the private writable parts together */
    uint64_t open_files, pids;        /* rlimits; 0 = leave */
    char *const *argv;
    char *const *env;
    const char *const *exec_paths; /* candidates for argv[0], in order, NULL-terminated */
    bool tty;                      /* give the command a terminal of its own */
    bool tty_stderr;               /* stderr is a terminal too and becomes the pty; otherwise it is passed through */
    int keep_fds[WALL_KEEP_FDS_MAX];
    size_t nkeep;
    const char *hostname;
    const struct wall_file *files;
    size_t nfiles;
    sigset_t sigmask;    /* of the command */
    bool ignore_sigpipe; /* the caller was itself started so */
    bool
        wait_release; /* init waits for wall_release() before it mounts what the plan lists: stubs are made meanwhile */
    bool nested;      /* no namespaces can be had: Landlock, seccomp and rlimits only */
    bool skip_landlock;             /* best-effort and the kernel has none */
    const struct wall_learn *learn; /* --learn: the host under private layers; NULL otherwise */
    layer_set without;              /* always 0 unless built for the red-team suite */
};

enum wall_stage {
    STAGE_CLONE,
    STAGE_CGROUP,
    STAGE_IDS,
    STAGE_PRIVATE,
    STAGE_PLAN,
    STAGE_MOUNTS,
    STAGE_DEV,
    STAGE_PROC,
    STAGE_NET,
    STAGE_LIMITS,
    STAGE_LANDLOCK,
    STAGE_SECCOMP,
    STAGE_EXEC,
    STAGE_RUNNING,
    STAGE_DONE,
    STAGE_MAX
};
const char *wall_stage_name(enum wall_stage s);

/* Written by init, read by the caller, but for `spec`, `given_ns` and `skipped`; in anonymous shared memory. */
struct wall_shared {
    volatile int stage;           /* enum wall_stage */
    volatile int failed;          /* err is valid */
    volatile int finished;        /* status and usage are valid */
    const struct wall_spec *spec; /* of an init that was begun without it: in memory that both see. NULL otherwise */
    volatile int alone;           /* at the end: no other process was left in the pid namespace, init only had to die */
    int exec_errno;               /* why the command could not be executed, 0 if it could */
    int status;                   /* of the command, as from wait() */
    pid_t command;                /* its pid inside */
    struct rusage usage;          /* of the command and everything reaped inside */
    unsigned landlock_abi;
    /* Written by the caller before wall_release(): bit i: op i of the plan is a stub that was not made, because the caller
     * may not write there, and so neither may the command. */
    uint64_t skipped[PLAN_OPS_MAX / 64];
    bool disk_full, inodes_full; /* of the private writable parts, at the end */
    uint64_t at_ns[STAGE_MAX];   /* monotonic time at which each stage began */
    uint64_t given_ns;           /* the same, at which init had all that the caller gives: the run counts from here */
    struct err err;
} __attribute__((aligned(16))); /* the room behind it is for everything */

/* After WALL_MSG_TTY init waits for (another) wall_release(), so that the caller can set the terminal up first. */
enum wall_msg_type {
    WALL_MSG_LISTENER = 1, /* and the network namespace, if it is not the caller's */
    WALL_MSG_TTY,
    WALL_MSG_STOPPED,
    WALL_MSG_VAULT,  /* --learn */
    WALL_MSG_COVERS, /* two descriptors: what files and directories are covered with; see covers.h */
    WALL_MSG_NETWORK, /* two descriptors: listener and datagram socket, the only way out (NETWORK_RULES); see os/netns.h */
    WALL_MSG_INPUT, /* the command's stdin, if it is a file: where it was read up to is known from this descriptor */
};
enum { WALL_MSG_FDS = 2 };
struct wall_msg {
    uint32_t type;
    int32_t value; /* WALL_MSG_STOPPED: the signal */
};

struct wall {
    pid_t pid; /* init, as seen outside */
    int pidfd;
    int sock; /* caller's end */
    struct wall_shared *shared;
    size_t room; /* of wall_begin(): bytes behind *shared, to which the spec is copied; 0 otherwise */
};
#define WALL_NONE                           \
    {                                       \
        .pid = -1, .pidfd = -1, .sock = -1, \
    }

/* Clones init before the rest of the spec is known: it makes what is the same for every sandbox while the caller makes the
 * plan, then waits. Of *spec only who, range and without are read, and these must not change. On failure nothing is left
 * running and *err says why. */
int wall_begin(const struct wall_spec *spec, struct wall *ret, struct err *err);
/* Hands init the spec and what only the caller can give; clones it first if *w is WALL_NONE, or if what was begun does not
 * fit the spec (a root of its own, layers, a cgroup). Returns as soon as init can go on by itself; whether it gets to the
 * command is seen in wall->shared once pidfd is readable. On failure nothing is left running and *err says why. */
int wall_start(const struct wall_spec *spec, struct wall *w, struct err *err);
/* Ends an init that is not needed after all. WALL_NONE is allowed, and is what *w is afterwards. */
void wall_drop(struct wall *w);
/* Whether this process is itself in a sandbox that forbids namespaces, so that only the nested tier can be had. */
bool wall_only_nested(void);
/* Receives one message. 1 with its descriptors (-1 where there is none), 0 at the end, -1 with errno. */
int wall_receive(struct wall *w, struct wall_msg *ret, int ret_fds[WALL_MSG_FDS]);
/* Lets a waiting init go on. 0, or -1 with errno. */
int wall_release(const struct wall *w);
/* Sends a signal to the command (or its group). ESRCH is not an error. */
int wall_signal(const struct wall *w, int sig, bool group);
/* Kills init, and with it everything inside. */
void wall_kill(const struct wall *w);
/* Reaps init (blocking) and releases everything. Fills *err and returns -1 if the sandbox could not be built. */
int wall_finish(struct wall *w, struct err *err);

#endif
