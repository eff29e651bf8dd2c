/* record.h - the result record of one run: JSON for programs, a short tail for people. */
#ifndef HUTCH_CLI_RECORD_H
#define HUTCH_CLI_RECORD_H

#include "base/buf.h"
#include "base/strv.h"
#include "cli/denials.h"
#include "cli/supervise.h"

struct record_in {
    const struct outcome *outcome;
    const struct denials *denials;
    const struct policy *policy;
    const struct plan *plan;
    const struct wall_spec *spec;
    const struct strv *host_may_execute; /* files with protected names, or repositories, that came into being */
    const struct strv *notes;            /* degraded defaults and the like */
    const struct strv *replaced;         /* what happened to covers; notes that the tail says, too. May be NULL */
    const struct strv *env_dropped;
    const struct run_egress *egress; /* with network rules; else NULL */
    const char *tx;                  /* --tx: what became of the changes; else NULL */
    char *const *argv;
    const char *cgroup_backend; /* cgroup_backend_name(), or NULL if there was no cgroup */
    bool memory_watched;        /* no memory controller: the supervisor sums the processes up */
    bool nested;                /* without namespaces, inside another sandbox */
};

/* One JSON object without a newline behind it; docs/records.md describes every field. Valid whatever bytes the
 * sandbox put into names. */
void record_json(const struct record_in *in, struct buf *out);
/* Only what a reader must know: refusals, the limit that ended the command, OOM, files the host may execute. Nothing
 * if all went well; about a dozen lines at most. */
void record_tail(const struct record_in *in, struct buf *out);

#endif
