/* outer.h - what keeper and the layer store share: one user namespace (without root), and the test whether a sandbox's process
 * lives. Each locks its own role, so that no node runs two of either. */
#ifndef HUTCH_KEEPER_OUTER_H
#define HUTCH_KEEPER_OUTER_H

#include "keeper/journal.h"

#define KEEPER_LOCK "keeper.lock" /* in STATE */
#define LAYERS_LOCK "stock/lock"

/* Opens the user namespace of the process that holds the lock `name` in the directory; -1 with errno, ESRCH if it is
 * free. */
int outer_of_lock(int dir, const char *name);
/* Takes that lock for the life of this process; waits a little, because the previous holder may be dying.
 * `who`: "keeper".
 */
int outer_take_lock(int dir, const char *name, const char *who, struct err *err);

/* Ties this process to the supervisor: dies with it (setup.c). */
void setup_tie(void);
/* The pidfd of the process in the record, or -1 if it is gone or its pid was reused (adopt.c). */
int adopt_pidfd(const struct journal_record *r, const char *boot);

#endif
