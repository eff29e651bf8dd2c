/* run-prepare.h - prepares everything `hutch run` needs before it clones the first process, and releases it. */
#ifndef HUTCH_CLI_RUN_RUN_PREPARE_H
#define HUTCH_CLI_RUN_RUN_PREPARE_H

#include "cli/run/learn.h"
#include "cli/run/options.h"
#include "cli/run/run-audit.h"
#include "cli/run/run-egress.h"
#include "cli/run/supervise.h"
#include "os/cgroup.h"
#include "os/idmap.h"
#include "os/idrange.h"
#include "policy/run/filter.h"
#include "policy/run/plan.h"
#include "policy/run/seen.h"
#include "wall/stubs.h"
#include "wall/wall.h"

/* One run. It is the last thing its process does: prepared_release() releases what would outlive the process, however far the
 * run got, and leaves the memory to the kernel, which frees it ten times as fast. */
struct prepared {
    const struct run_args *args;
    char *cwd, *home;
    struct policy *policy;
    struct plan *plan;
    struct seen seen; /* what the search for repositories read */
    struct filter filter;
    struct strv argv, env, env_dropped, exec_paths, notes;
    struct strv replaced; /* hidden and protected names that were replaced from outside; for the record */
    struct idrange range;
    struct idmap_subids subids;
    struct cgroup_info cgroup_info;
    struct cgroup cgroup;
    bool has_cgroup;  /* to be destroyed */
    bool used_cgroup; /* for the record */
    struct stubs *stubs;
    struct wall_spec spec;
    struct wall wall; /* begun before there is a plan; WALL_NONE when start() has taken it, or it could not be */
    bool watch_memory;
    struct wall_learn places; /* --learn */
    struct learn *learn;
    bool no_network;            /* --learn without a network: egress records requests and refuses them */
    int64_t started_ns;         /* CLOCK_REALTIME */
    const char *tx_end;         /* --tx: what became of the changes; static */
    int vault;                  /* the private layers of --learn; -1 */
    struct run_secrets secrets; /* --secret */
    struct run_audit audit;     /* --audit */
    struct run_egress egress;   /* with network rules */
};
#define PREPARED_INIT                                                                                           \
    {                                                                                                           \
        .range = {.fd = -1}, .vault = -1, .audit = RUN_AUDIT_INIT, .egress = RUN_EGRESS_INIT, .wall = WALL_NONE \
    }

/* Clones init, which builds what needs no plan meanwhile; not where the options say that it would be in vain. What fails here
 * is tried again, and reported, by wall_start(). */
void prepare_init(struct prepared *p, const struct run_args *args);
/* Options and documents -> policy, plan, filter, environment. Touches nothing on the host. */
int prepare_plan(struct prepared *p, const struct run_args *args, struct err *err);
/* The host, which is read into p->seen. */
struct plan_facts prepare_facts(struct prepared *p);
/* Makes the plan once more, with the search for repositories that was put off: into the same place, which others refer to. */
int prepare_plan_again(struct prepared *p, struct err *err);
/* Executes hutch again in a scope of the user's systemd if the limits need that (scope.h); argv is the whole command line.
 * Returns if not. Call it before prepare_host(), while nothing is set up. */
void prepare_scope(struct prepared *p, bool tried, char *const *argv);
/* Ids and cgroup. Stubs are made while init builds the rest; see run.c. */
int prepare_host(struct prepared *p, struct err *err);
/* With network rules: starts the process that enforces them. After the signals are blocked. */
int prepare_network(struct prepared *p, struct err *err);
void prepared_release(struct prepared *p);

#endif
