/* stubs.h - placeholders on the host for protected names that do not exist, and the guard that takes them away.
 *
 * A name can only be kept from coming into being by something that is there: for the duration of a run an empty stub
 * stands in its place on the host, covered by a mount inside. A stub is a socket node of mode 01000 without a listener,
 * and is recognised by that shape alone, so no journal can go stale. Sockets are what tools skip and git ignores.
 *
 * Runs of one user in one directory share its stubs. Each holds a shared lock (flock) on a file for that directory,
 * out of the sandboxes' sight; a run that ends and can turn its lock into an exclusive one is the last, and removes
 * them. This matters beyond tidiness: removing a stub on the host would detach the mounts that other sandboxes have on
 * it.
 *
 * The guard is a small process outside, in a process group of its own. If the caller dies without a word (kill -9), it waits
 * until the sandbox is gone, removes stubs and cgroup and gives the terminal back. If it is killed as well, the next run in
 * the directory removes the stubs, and the next run anywhere the cgroup.
 */
#ifndef HUTCH_WALL_STUBS_H
#define HUTCH_WALL_STUBS_H

#include "base/err.h"
#include "os/cgroup.h"
#include "policy/run/plan.h"
#include "wall/wall.h"

struct stubs;

/* Makes the stubs of a plan. Those that cannot be made because the caller may not write there are not needed: their bits in
 * `skipped` (struct wall_shared) are set. *ret is NULL if there is nothing to do; after a failure it holds what was made.
 * Waits up to 2 s for a run that is just ending. */
int stubs_make(const struct plan *plan, struct stubs **ret, uint64_t *skipped, struct err *err);
/* Takes away lock files whose owners died without a word. True if one of them had cgroups, which may be left as well. */
bool stubs_sweep(void);
/* Removes the stubs that no other run uses; allocates and frees nothing. Accepts NULL. */
void stubs_remove(struct stubs *s);
/* Releases the memory and the locks; only after guard_dismiss(). Accepts NULL. */
void stubs_free(struct stubs *s);

struct guard {
    pid_t pid; /* -1 = none */
    pid_t caller;
    int pipe;
    int read_end, pidfd; /* numbers in the guard's own table */
    int mounts;          /* the same: the sandbox's mount namespace; -1 */
    struct stubs *const *stubs;
    struct cgroup *cgroup;
    void (*last)(void);
    unsigned terminals; /* bits of the standard streams that are: kept open for `last` */
};
#define GUARD_NONE                          \
    {                                       \
        .pid = -1, .pipe = -1, .mounts = -1 \
    }
/* Starts the guard for a sandbox that is being built, before the stubs are made: it looks at *s only when the caller has
 * died. `last`, which is called in the guard when the sandbox of a dead caller is gone, finds those of the caller's standard
 * streams open that are terminals; it may neither allocate nor lock. `s`, `cg` and `last` may be NULL (all: no guard). It
 * shares the caller's memory, so what is pointed to, *ret included, must stay where it is until guard_dismiss(). */
int guard_start(struct stubs *const *s, struct cgroup *cg, void (*last)(void), const struct wall *w, struct guard *ret,
                struct err *err);
/* The sandbox is about to end and its mount namespace is needed no more. The guard holds it until init is gone: so the kernel
 * undoes the mounts on the guard's account, which takes some hundred microseconds, and not on that of init, for which the
 * caller waits. */
void guard_drop_mounts(struct guard *g);
/* Tells the guard that all is done; it ends by itself. */
void guard_tell(struct guard *g);
/* The same, if it was not told, and reaps it. */
void guard_dismiss(struct guard *g);

#endif
