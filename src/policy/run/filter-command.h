/* filter-command.h - the second filter, of one command with fewer rights than its sandbox (init/rights.c).
 *
 * It lies on top of the sandbox's filter and can only take away. Refusals are answered by the kernel: a process has one
 * listener at most, and that is the sandbox's. A pure function of its flags; nothing allocates.
 */
#ifndef HUTCH_POLICY_RUN_FILTER_COMMAND_H
#define HUTCH_POLICY_RUN_FILTER_COMMAND_H

#include <linux/filter.h>
#include <stddef.h>

enum filter_command_flag {
    /* No way to a process with more rights that is not a file: unix sockets but connected pairs, System V objects, message
     * queues, limits of other processes. */
    FILTER_COMMAND_APART = 1 << 0,
    FILTER_COMMAND_NO_NETWORK = 1 << 1,  /* no sockets at all but connected pairs */
    FILTER_COMMAND_READ_ONLY = 1 << 2,   /* modes, owners, times, attributes: what Landlock does not look at */
    FILTER_COMMAND_NO_TRUNCATE = 1 << 3, /* for Landlock below ABI 3, which does not look at truncation either */
    FILTER_COMMAND_ONE_GROUP = 1 << 4,   /* nothing leaves the process group, so that a signal reaches all of it */
    /* With NO_NETWORK: it may wait for connections on unix sockets, and connects nowhere. Stream sockets only: a datagram
     * could be sent to any address. */
    FILTER_COMMAND_UNIX_SERVER = 1 << 5,
};

enum { FILTER_COMMAND_MAX = 160 };

/* Returns the number of instructions. */
size_t filter_command(unsigned flags, struct sock_filter ret[FILTER_COMMAND_MAX]);

#endif
