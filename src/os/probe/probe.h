/* probe.h - what this host can enforce: one table of probes, each of which tries the thing instead of trusting a version.
 *
 * A probe runs in the calling process or in a short-lived child with its own namespaces; nothing it makes outlives it.
 * probe_run_all() takes about 50 ms, blocks on its children (each has a deadline) and never fails: what could not be
 * found out is PROBE_MISSING with the reason. Not thread-safe (it forks).
 */
#ifndef HUTCH_OS_PROBE_PROBE_H
#define HUTCH_OS_PROBE_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum probe_state {
    PROBE_OK,
    PROBE_ADVICE,  /* works without; the remedy makes the host harder to attack or adds a feature */
    PROBE_MISSING, /* cannot be had here as things are */
};

enum probe_need {
    NEED_RUN,       /* `hutch run` with enforcement required does not work without it */
    NEED_CONTAINER, /* needed for `--root` only */
    NEED_FEATURE,   /* a better way of doing something that has a fallback */
    NEED_HARDENING, /* a setting of the host; never needed */
};

struct probe_result {
    enum probe_state state;
    char detail[200]; /* what was seen, one line */
    char remedy[240]; /* the command or change that helps, "" if none is needed */
};

struct probe {
    const char *id;    /* stable, dotted: "ns.user", "landlock.abi" */
    const char *group; /* heading it is printed under */
    const char *title;
    const char *how; /* how it was tested */
    enum probe_need need;
    void (*run)(const struct probe *p, struct probe_result *r);
    const void *arg; /* for probes that share one function */
};

/* The strongest tier that the results allow. */
enum probe_tier { TIER_NONE, TIER_NESTED, TIER_PROCESS, TIER_CONTAINER };

struct probe_report {
    const struct probe *probes;   /* the table, static */
    struct probe_result *results; /* owned, one per probe */
    size_t n;
    enum probe_tier tier;
    bool can_run; /* every NEED_RUN probe is fine */
};

/* How many sandboxes the tables of this machine carry. */
enum { PROBE_FULL_TASKS = 512 /* the default of sandboxes.pids */ };
struct probe_capacity {
    uint64_t pid_max, threads_max, file_max, nofile; /* nofile: the hard limit of this process */
    uint64_t at_rest, full;                          /* an init and a command each; PROBE_FULL_TASKS processes each */
    const char *at_rest_by, *full_by;                /* the limit that is reached first */
};
/* Reads the limits and counts. 0, or -1 with errno. */
int probe_read_capacity(struct probe_capacity *ret);
/* The pure part: fills the lower four from the upper four. */
void probe_count_capacity(struct probe_capacity *c);

void probe_run_all(struct probe_report *ret);
void probe_report_done(struct probe_report *r);
/* "container", "process", "nested", "none". */
const char *probe_tier_name(enum probe_tier tier);
/* The result with that id, or NULL. Borrowed from the report. */
const struct probe_result *probe_find(const struct probe_report *r, const char *id);

#endif
