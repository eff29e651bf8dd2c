/* lock.h - locks between programs of one user that a sandbox cannot take.
 *
 * A process that can open a file or directory, if only for reading, can lock it (flock). So a lock file has mode 0200
 * and is opened for writing: a sandbox sees it on a read-only mount and can open it neither for reading nor for
 * writing. Every wait has a deadline, and SIGINT, SIGTERM, SIGHUP and SIGQUIT end it even in a process that blocks
 * them.
 */
#ifndef HUTCH_OS_LOCK_H
#define HUTCH_OS_LOCK_H

#include <stdbool.h>

#include "base/err.h"

enum { LOCK_WAIT_MS = 10000 };

/* Opens the lock file, which is made if it is not there and belongs to the owner of the directory. -1 with errno. */
int lock_open(int dir, const char *name);
/* flock(fd, how) within `ms`. The error names `what` and the process that holds the lock. ERR_SETUP, ERR_POLICY. */
int lock_take(int fd, int how, int ms, const char *what, struct err *err);
/* Whether one of the signals that end a program is pending. */
bool lock_interrupted(void);

#endif
