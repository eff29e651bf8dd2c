/* record.h - writes the result of one run: a JSON record for programs, a short tail for people. Decides nothing. */
#ifndef HUTCH_CLI_RUN_RECORD_H
#define HUTCH_CLI_RUN_RECORD_H

#include "base/buf.h"
#include "base/strv.h"
#include "cli/run/denials.h"
#include "cli/run/supervise.h"

struct record_in {
    const struct outcome *outcome;
    const struct denials *denials;
    const struct policy *policy;
    const struct plan *plan;
    const struct wall_spec *spec;
    const struct strv *host_may_execute; /* new files with protected names, and new repositories */
    const struct strv *notes;            /* degraded defaults and the like */
    const struct strv *replaced;         /* what happened to covers; also in the tail. May be NULL */
    const struct strv *env_dropped;
    const struct run_egress *egress; /* with network rules; else NULL */
    const char *tx;                  /* --tx: what became of the changes; else NULL */
    char *const *argv;
    const char *cgroup_backend; /* cgroup_backend_name(), or NULL if there was no cgroup */
    bool memory_watched;        /* no memory controller: the supervisor adds up the processes' memory */
    bool nested;                /* without namespaces, inside another sandbox */
};

/* One JSON object without a newline behind it; docs/records.md describes every field. Valid whatever bytes the
 * sandbox put into names. */
void record_json(const struct record_in *in, struct buf *out);
/* Prints only what the user must know: refusals, the limit that ended the command, OOM, files the host may execute. Nothing
 * if all went well; about a dozen lines at most. */
void record_tail(const struct record_in *in, struct buf *out);

#endif
