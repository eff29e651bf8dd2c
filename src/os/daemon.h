/* daemon.h - drops the rights of front and egress before they read the first foreign byte, and proves that they are
 * gone.
 *
 * Both load a filter that kills the process at any call that no daemon of ours makes; each adds the calls that it alone
 * does not need. Neither can run another program, enter or make a namespace, mount, trace, load code into the kernel,
 * or change its user.
 */
#ifndef HUTCH_OS_DAEMON_H
#define HUTCH_OS_DAEMON_H

#include <stddef.h>

#include "base/err.h"

enum { DAEMON_FORBIDDEN_MAX = 32, DAEMON_FAMILIES_MAX = 16 };

struct daemon_filter {
    const int *forbidden; /* calls besides those of all */
    size_t nforbidden;
    const int *families; /* of sockets, the only ones; none given: any */
    size_t nfamilies;
};
/* As many open files as the machine allows, and no core files: the memory holds tokens and secrets. */
int daemon_limits(struct err *err);
/* No capabilities, no_new_privs, and the filter. Before any thread. */
int daemon_confine(const struct daemon_filter *f, struct err *err);
/* Checks that this holds: `status` is the current text of /proc/self/status. `who` is named in the error. */
int daemon_prove(const char *who, const char *status, struct err *err);

#endif
