/* seccomp.h - loading a filter, and the supervisor's end of its notifications.
 *
 * Nothing here allocates, so everything may be used after clone. Errors of seccomp_load() go to *err; the notification
 * calls run in a loop and report through errno.
 */
#ifndef HUTCH_OS_SECCOMP_H
#define HUTCH_OS_SECCOMP_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum seccomp_load_flag {
    SECCOMP_LOAD_LISTENER = 1 << 0, /* *ret_listener is set to the notification descriptor: CLOEXEC, the caller's */
};

/* Puts the calling thread, and what it will start, behind a program. It must have no_new_privs or CAP_SYS_ADMIN in
 * its user namespace. Where the kernel can, a received notification is only interrupted by a fatal signal, so that no
 * answer is lost. ret_listener may be NULL without SECCOMP_LOAD_LISTENER. ERR_HOST if the kernel has no filters, else
 * ERR_SETUP. */
int seccomp_load(const struct sock_filter *insns, size_t n, unsigned flags, int *ret_listener, struct err *err);

/* Asks the kernel to run the supervisor on the caller's CPU while it waits: several times faster on a busy machine.
 * Call it once for a new listener. 1 if on, 0 if this kernel cannot (before 6.6). */
int seccomp_sync_wake(int listener);

/* Blocks for the next notified call. 1 and *ret, or 0 if it vanished meanwhile (its process died, a signal came: look
 * again). -1 with errno; no process is left behind the filter when poll() says POLLHUP. */
int seccomp_receive(int listener, struct seccomp_notif *ret);
/* Makes the call fail with eno; 0: succeed with 0. 0, also if the caller is gone; -1 with errno. */
int seccomp_refuse(int listener, uint64_t id, int eno);
/* Makes the call return a new descriptor of what `fd` is. 0, also if the caller is gone; -1 with errno and no answer
 * (EMFILE: the caller's table is full). */
int seccomp_give(int listener, uint64_t id, int fd, bool cloexec);
/* Lets the kernel perform the call. Never a security decision: its memory may change after any look at it. */
int seccomp_continue(int listener, uint64_t id);
/* Whether the process behind a notification still waits: to be asked after reading its memory, before believing it. */
bool seccomp_id_valid(int listener, uint64_t id);

struct seccomp_support {
    bool filter;        /* filters at all */
    bool kill_process;  /* SECCOMP_RET_KILL_PROCESS */
    bool user_notif;    /* notifications */
    bool wait_killable; /* SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV */
};

/* For tests: what this kernel has; loads nothing and needs no privilege. */
struct seccomp_support seccomp_probe(void);

#endif
