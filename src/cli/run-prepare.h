/* run-prepare.h - everything `hutch run` needs before the first process is cloned, and how it is given back. */
#ifndef HUTCH_CLI_RUN_PREPARE_H
#define HUTCH_CLI_RUN_PREPARE_H

#include "cli/learn.h"
#include "cli/options.h"
#include "cli/run-audit.h"
#include "cli/run-egress.h"
#include "cli/supervise.h"
#include "os/cgroup.h"
#include "os/idmap.h"
#include "os/idrange.h"
#include "policy/filter.h"
#include "policy/plan.h"
#include "wall/stubs.h"
#include "wall/wall.h"

/* One run, and the last thing its process does: prepared_release() gives back what would outlive the process, whatever was
 * reached, and leaves the memory to the kernel, which takes a tenth of the time for it. */
struct prepared {
    const struct run_args *args;
    char *cwd, *home;
    struct policy *policy;
    struct plan *plan;
    struct filter filter;
    struct strv argv, env, env_dropped, exec_paths, notes;
    struct strv replaced; /* hidden and protected names that somebody replaced meanwhile; for the record */
    struct idrange range;
    struct idmap_subids subids;
    struct cgroup_info cgroup_info;
    struct cgroup cgroup;
    bool has_cgroup;  /* to be destroyed */
    bool used_cgroup; /* for the record */
    struct stubs *stubs;
    struct wall_spec spec;
    bool watch_memory;
    struct wall_learn places; /* --learn */
    struct learn *learn;
    bool no_network;            /* --learn without a network: egress only notes what is asked for, and refuses it */
    int64_t started_ns;         /* CLOCK_REALTIME */
    const char *tx_end;         /* --tx: what became of the changes; static */
    int vault;                  /* the private layers of --learn; -1 */
    struct run_secrets secrets; /* --secret */
    struct run_audit audit;     /* --audit */
    struct run_egress egress;   /* with network rules */
};
#define PREPARED_INIT                                                                        \
    {                                                                                        \
        .range = {.fd = -1}, .vault = -1, .audit = RUN_AUDIT_INIT, .egress = RUN_EGRESS_INIT \
    }

/* Options and documents -> policy, plan, filter, environment. Touches nothing on the host. */
int prepare_plan(struct prepared *p, const struct run_args *args, struct err *err);
/* Makes the plan once more, with the search for repositories that was put off: into the same place, which others refer to. */
int prepare_plan_again(struct prepared *p, struct err *err);
/* Starts all over in a scope of the user's systemd, if that is what the limits need (scope.h); argv is the whole command
 * line. Returns if not. Before prepare_host(): nothing may be set up yet. */
void prepare_scope(struct prepared *p, bool tried, char *const *argv);
/* Ids and cgroup. Stubs are made while init builds the rest; see run.c. */
int prepare_host(struct prepared *p, struct err *err);
/* With network rules: starts the process that enforces them. After the signals are blocked. */
int prepare_network(struct prepared *p, struct err *err);
void prepared_release(struct prepared *p);

#endif
