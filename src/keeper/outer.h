/* outer.h - what keeper and stock share of each other's life: one user namespace (without root), and the processes of
 * sandboxes. */
#ifndef HUTCH_KEEPER_OUTER_H
#define HUTCH_KEEPER_OUTER_H

#include "keeper/journal.h"

#define KEEPER_LOCK "keeper.lock" /* in STATE */
#define STOCK_LOCK  "stock/lock"

/* The user namespace of whoever holds the lock `name` in the directory; -1 with errno, ESRCH if nobody holds it. */
int outer_of_lock(int dir, const char *name);
/* Takes that lock for the life of this process alone; waits a little, for the one before may be dying. `who`: "keeper".
 */
int outer_take_lock(int dir, const char *name, const char *who, struct err *err);

/* To the supervisor: dies with it (setup.c). */
void setup_tie(void);
/* Whether the process in the record is alive and the same: its pidfd, or -1 (adopt.c). */
int adopt_pidfd(const struct journal_record *r, const char *boot);

#endif
