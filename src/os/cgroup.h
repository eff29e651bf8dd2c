/* cgroup.h - one leaf cgroup per sandbox: limits, accounting, freezing and complete killing.
 *
 * A host has up to two kinds of hierarchy. In v2 all controllers share one tree; in v1 each controller (or group of
 * controllers) has its own. Both can be mounted at once ("hybrid"): limits then live in v1 trees while cgroup.kill,
 * cgroup.freeze and cpu.stat are taken from the v2 tree. Which one a host has is found by looking (mountinfo, the magic
 * of the file system, cgroup.controllers, permissions), never by the name of a distribution.
 *
 * Where a leaf is made
 *   v1   below the caller's own cgroup of that hierarchy, so limits around the caller hold for the sandbox too. Only
 *        for euid 0: v1 trees must not be handed to users.
 *
 *   v2   a cgroup with processes cannot pass controllers on to children, and the caller is never moved. So: the first
 *        of own cgroup, its parent, and so on up to the mount's root that already passes the needed controllers on;
 *        else own, parent, root if they can be made to. Without delegation that needs root. Controllers switched on
 *        there stay on: switching them off again could take them from another program.
 *
 * Entering: clone with CLONE_INTO_CGROUP and cgroup_into_fd(), then the child calls cgroup_enter() first of all. Both
 * ways skip the kernel's global thread-group lock, which costs an RCU grace period (10 to 20 ms) on a quiet host;
 * cgroup_attach() moves from outside, works always and pays that price.
 *
 * Nothing here prints. A struct cgroup is plain data plus descriptors (all CLOEXEC); a forked copy may be used by
 * another process, or cgroup_save()/cgroup_load() carry it over an exec. Functions block only where they say so.
 */
#ifndef HUTCH_OS_CGROUP_H
#define HUTCH_OS_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

enum cgroup_backend { CGROUP_NONE, CGROUP_V1, CGROUP_HYBRID, CGROUP_V2 };

/* What a hierarchy can do; also what a caller wants from a leaf beyond its limits. */
enum {
    CGROUP_CPU = 1 << 0,     /* quota and throttling counts */
    CGROUP_CPUACCT = 1 << 1, /* user and system time */
    CGROUP_MEMORY = 1 << 2,  /* limit, peak, OOM counts */
    CGROUP_PIDS = 1 << 3,
    CGROUP_IO = 1 << 4,
    CGROUP_FREEZER = 1 << 5, /* freeze and a kill that cannot be outrun */
    CGROUP_CORE = 1 << 6,    /* a v2 leaf: cgroup.kill, cgroup.freeze, cpu.stat, CLONE_INTO_CGROUP */
};
enum {
    CGROUP_ACCOUNT = CGROUP_CPUACCT | CGROUP_MEMORY | CGROUP_PIDS, /* what the usage part of a result needs */
    CGROUP_KILL = CGROUP_FREEZER,                                  /* v2 core where there is one, else the v1 freezer */
    CGROUP_JOURNALLED = 1 << 9, /* the owner remembers the leaf elsewhere; no mark (cgroup_mark.c) is needed */
    CGROUP_INNER =
        1 << 10, /* v2: processes live in a group CGROUP_MAIN below the leaf, so that others can be beside it */
    CGROUP_OOM_GROUP = 1 << 8, /* v2: an OOM kill ends every process of the leaf, not only the biggest */
};

enum { CGROUP_HIER_MAX = 8, CGROUP_DIR_MAX = 512, CGROUP_NAME_MAX = 80 };

struct cgroup_limits {
    uint64_t cpu_milli; /* thousandths of a CPU */
    uint64_t memory;    /* bytes; swap is not given on top */
    uint64_t pids;      /* tasks, threads included */
    /* 0 = no limit */
};

struct cgroup_hier {
    bool v2;
    unsigned has;               /* CGROUP_* bits that live in this hierarchy */
    char mount[CGROUP_DIR_MAX]; /* mount point */
    char own[CGROUP_DIR_MAX];   /* directory of the caller's own cgroup, at or below mount */
};

/* The host as this caller finds it. Plain data. */
struct cgroup_info {
    enum cgroup_backend backend;
    bool can_memory, can_cpu, can_pids; /* limits */
    bool can_kill, can_freeze, can_cpuacct;
    char why[512]; /* what is missing, why, and what would give it; "" if nothing is */
    struct cgroup_hier hier[CGROUP_HIER_MAX];
    unsigned nhier;
};

struct cgroup_leaf {
    bool v2;
    unsigned has;
    int fd;       /* the leaf's directory */
    int enter_fd; /* v1: open `tasks` for cgroup_enter(); v2 with CGROUP_INNER: the group to clone into; -1 otherwise */
    char dir[CGROUP_DIR_MAX];
};

struct cgroup {
    char name[CGROUP_NAME_MAX]; /* last component of every leaf */
    unsigned nleaf;
    struct cgroup_leaf leaf[CGROUP_HIER_MAX];
    bool marked;
    int mark; /* if marked: a locked file that says that there are leaves, see cgroup_mark.c */
};
/* In the name of such a file, after ".hutch-UID-". */
#define CGROUP_MARK "cg-"
#define CGROUP_INIT \
    {               \
        .nleaf = 0  \
    }

/* Every field has a bit in `have`; a field without its bit is 0 and means "not known". */
enum {
    CGROUP_HAVE_CPU_TIME = 1 << 0,
    CGROUP_HAVE_MEMORY_PEAK = 1 << 1,
    CGROUP_HAVE_PIDS_PEAK = 1 << 2,
    CGROUP_HAVE_THROTTLED = 1 << 3,
    CGROUP_HAVE_IO = 1 << 4,
    CGROUP_HAVE_OOM_KILLS = 1 << 5,
    CGROUP_HAVE_PIDS_HITS = 1 << 6,
};

struct cgroup_stat {
    unsigned have;
    uint64_t user_us, system_us;
    uint64_t memory_peak;
    uint64_t pids_peak;
    uint64_t nr_throttled, throttled_us;
    uint64_t io_read_bytes, io_write_bytes;
    uint64_t oom_kills;
    uint64_t pids_max_hits; /* forks refused by the limit */
};

/* Looks at the host; changes nothing. 0, or -1 with errno if /proc cannot be read. A host without any cgroup is not a
 * failure: backend is CGROUP_NONE and why says what to do. */
int cgroup_probe(struct cgroup_info *ret);
const char *cgroup_backend_name(enum cgroup_backend b);
/* Pure part of the probe, for tests and fuzzing: the texts of /proc/self/mountinfo and /proc/self/cgroup. */
void cgroup_parse_hosts(const char *mountinfo, const char *self_cgroup, struct cgroup_info *ret);

/* Makes the leaf with its limits written before any process can enter. `want` is CGROUP_* bits: those that cannot be
 * had are left out (cgroup_stat() then lacks the have-bit), but a limit that cannot be had is an error (ERR_HOST, with
 * the remedy). On failure nothing is left and *ret is empty. With nothing wanted or nothing to be had, *ret has no
 * leaves and every other call accepts that. */
int cgroup_create(const struct cgroup_info *info, const struct cgroup_limits *limits, unsigned want, struct cgroup *ret,
                  struct err *err);

/* The v2 leaf's descriptor for CLONE_INTO_CGROUP, or -1. Borrowed. */
int cgroup_into_fd(const struct cgroup *cg);
/* Called in the new child, single-threaded, before anything else: joins the v1 leaves. No allocation, no locks; the
 * child's own privileges do not matter. 0, or -1 with errno. */
int cgroup_enter(const struct cgroup *cg);
/* Joins the leaf that counts memory, for a process that writes on behalf of the sandbox. 1: not done, because no
 * such leaf exists, or because the same leaf freezes (v2) and would freeze the caller, too. */
int cgroup_enter_memory(const struct cgroup *cg);
/* For tests: moves `pid` from outside into all leaves, or with `cloned_into` into all but the v2 one. May block some 20 ms. */
int cgroup_attach(const struct cgroup *cg, pid_t pid, bool cloned_into, struct err *err);

/* Reads counters. Never fails: what cannot be read has no have-bit. */
void cgroup_stat(const struct cgroup *cg, struct cgroup_stat *ret);
/* For tests: 1 if a process is inside, 0 if none, -1 with errno: unknown (no leaf). */
int cgroup_populated(const struct cgroup *cg);

/* Kills everything inside, frozen or not (a CPU quota is lifted for it), and returns when the leaf is empty. Blocks up
 * to deadline_ms; then ERR_INTERNAL naming the number of processes left. */
int cgroup_kill(const struct cgroup *cg, unsigned deadline_ms, struct err *err);
enum { CGROUP_FREEZE_MS = 2000 };
/* Freezes or thaws and waits, at most deadline_ms from now, until that is true of every process. ERR_HOST if there is no
 * freezer. ETIMEDOUT in err->eno if it took longer: some may stand still already, so the caller thaws. */
int cgroup_freeze(const struct cgroup *cg, bool on, uint64_t deadline_ms, struct err *err);
/* The same in two parts, for callers that cannot wait: ask, then look again until it is so. */
int cgroup_freeze_ask(const struct cgroup *cg, bool on, struct err *err);
/* 1: every process is frozen; 0: not, or not yet; -1 with errno: unknown. */
int cgroup_frozen(const struct cgroup *cg);

/* Removes the leaves and closes everything; *cg is empty afterwards. A leaf that is still busy is tried again for 200
 * ms. 0, or -1 with errno if a directory stayed (sweep takes it later). Idempotent. */
int cgroup_destroy(struct cgroup *cg);
/* cgroup_sub.c: groups below the leaf that counts memory, each with a limit on memory of its own within the leaf's. */
#define CGROUP_MAIN       "main"
#define CGROUP_SUB_PREFIX "command-"
struct cgroup_sub {
    int enter;  /* a process that writes "0" here joins, whatever its privileges are */
    int events; /* has a line "oom_kill N" */
    int peak;   /* v1: the most bytes it ever had, a number; v2: has a line "oom N", how often the limit was reached */
};
/* Makes one; the caller chooses a number that no other one of this leaf has. ERR_HOST: it cannot be had here. */
int cgroup_sub_make(const struct cgroup *cg, uint64_t number, uint64_t memory, struct cgroup_sub *ret, struct err *err);
void cgroup_sub_close(struct cgroup_sub *s);
/* Removes those whose last process has ended, and those that no process has joined in 15 s. Returns how many are left. */
unsigned cgroup_sub_sweep(const struct cgroup *cg);
/* Removes a leaf's directory and the empty groups below it. 0 also if it was gone; -1 with errno, EBUSY if a process is in
 * it. */
int cgroup_rmdir(const char *dir);
/* Closes descriptors without removing anything. */
void cgroup_close(struct cgroup *cg);

/* Paths of the leaves, one per line, for a process that takes over after an exec or a crash. */
void cgroup_save(const struct cgroup *cg, struct buf *out);
/* The reverse. Refuses lines that do not name a leaf of Hutch on a cgroup file system; skips leaves that are gone. */
int cgroup_load(const char *text, struct cgroup *ret, struct err *err);

/* Removes empty leaves, in the places this caller would use, whose owner (pid and start time are part of the name) is
 * dead. Leaves of other users, of other pid namespaces and of the living are not touched. Returns how many went. Costs
 * a directory scan per hierarchy: call it after a run, not before. */
unsigned cgroup_sweep(const struct cgroup_info *info);

/* Start time of a process in clock ticks since boot; false if there is none. */
bool cgroup_start_time(pid_t pid, uint64_t *ret);
/* Owner of a leaf by its name; false if the name is not one of ours. */
bool cgroup_parse_name(const char *name, uint64_t *ret_pidns, pid_t *ret_pid, uint64_t *ret_start);

/* Makes a group `name` in every hierarchy, where a leaf would be made, and turns `info` into what a caller in that group
 * would see: leaves are then made in it. Hierarchies in which that fails are left out, and the can_ fields follow. 0 if
 * any is left; else -1, with info->why saying what is missing. */
int cgroup_group(struct cgroup_info *info, const char *name);
/* Takes the group away if it is empty: at the end of its owner. */
void cgroup_group_leave(const struct cgroup_info *info);

/* Whether an ordinary user without delegation can get it by running under
 *     systemd-run --user --scope --quiet -p Delegate=yes -- hutch ...
 * that is: systemd-run is installed and this user's manager has its socket. */
bool cgroup_systemd_run_available(void);

#endif
