/* run-audit.h - `hutch run --audit FILE`: what leaves the run, as lines that are chained (docs/audit.md).
 *
 * The file is opened here, with the caller's rights, and written by the run's egress alone. It is new, empty or such a log
 * already, and the command cannot write to it: it is protected where it is seen, and if that cannot be the run does not start.
 */
#ifndef HUTCH_CLI_RUN_AUDIT_H
#define HUTCH_CLI_RUN_AUDIT_H

#include "cli/options.h"
#include "policy/plan.h"

struct run_audit {
    int fd;     /* -1: none */
    int dir;    /* of the file */
    char *path; /* real */
    bool created;
};
/* clang-format off */
#define RUN_AUDIT_INIT {.fd = -1, .dir = -1}
/* clang-format on */

/* Opens and locks it, if the options name one. */
int run_audit_open(const struct run_args *a, struct run_audit *ret, struct err *err);
/* Whether the command can reach it in a way that lets it write. */
int run_audit_check(const struct run_audit *a, const struct run_args *args, const struct plan *plan, struct err *err);
/* Whether its name still leads to it. */
bool run_audit_there(const struct run_audit *a);
/* Gives it back; a file that was made for a run that never came to anything is removed. */
void run_audit_done(struct run_audit *a);

#endif
