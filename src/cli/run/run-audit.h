/* run-audit.h - `hutch run --audit FILE`: a chained log of everything that leaves the run (docs/audit.md).
 *
 * Opens the file with the caller's rights; only the run's egress writes to it. The file is new, empty or such a log. The
 * command must never be able to write to it: the file is protected where it is visible, else the run does not start.
 */
#ifndef HUTCH_CLI_RUN_RUN_AUDIT_H
#define HUTCH_CLI_RUN_RUN_AUDIT_H

#include "cli/run/options.h"
#include "policy/run/plan.h"

struct run_audit {
    int fd;     /* -1: none */
    int dir;    /* of the file */
    char *path; /* real */
    bool created;
};
/* clang-format off */
#define RUN_AUDIT_INIT {.fd = -1, .dir = -1}
/* clang-format on */

/* Opens and locks the file, if --audit names one. */
int run_audit_open(const struct run_args *a, struct run_audit *ret, struct err *err);
/* Fails if the command could write to it. */
int run_audit_check(const struct run_audit *a, const struct run_args *args, const struct plan *plan, struct err *err);
/* Whether its path still leads to it. */
bool run_audit_there(const struct run_audit *a);
/* Closes it; removes a file that was made for a run that did not start. */
void run_audit_done(struct run_audit *a);

#endif
