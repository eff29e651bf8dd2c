/* scope.h - gets a cgroup for an ordinary user's limits from the user's systemd.
 *
 * An ordinary user may only use delegated cgroups. If limits need one and there is none, hutch executes itself once more
 * through `systemd-run --user --scope`, which asks the user's manager for a delegated scope with this very process in it
 * and then executes the rest of its command line: pid, terminal, directory and descriptors stay the same.
 */
#ifndef HUTCH_CLI_RUN_SCOPE_H
#define HUTCH_CLI_RUN_SCOPE_H

#include <stdbool.h>

#include "base/strv.h"
#include "os/cgroup.h"

/* Set for the second start, to prevent a third; scope_tried() removes it from the environment. */
#define SCOPE_VARIABLE "HUTCH_SCOPE"

struct scope_facts {
    bool root, nested;
    bool tried;     /* this is the second start, or the user opted out */
    bool available; /* cgroup_systemd_run_available() */
    bool cpu_time;  /* an option limits processor time */
    const struct cgroup_limits *want;
    const struct cgroup_info *have;
};
/* Whether a scope would help. */
bool scope_wanted(const struct scope_facts *f);
/* The command line of systemd-run: `self` is this program, argv its arguments with its name first. */
void scope_argv(const char *self, char *const *argv, struct strv *ret);

bool scope_tried(void);
/* Starts again in a scope. Returns only if that failed: then the caller goes on as it is. */
void scope_enter(char *const *argv);

#endif
