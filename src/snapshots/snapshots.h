/* snapshots.h - copies of a sandbox's files that outlive it: snapshots, which are templates, and forks, which are
 * sandboxes at once. Generations and transactions stand beside it (generations.h, transactions.h).
 */
#ifndef HUTCH_SNAPSHOTS_SNAPSHOTS_H
#define HUTCH_SNAPSHOTS_SNAPSHOTS_H

#include "sandboxes/sandboxes.h"
#include "templates/templates.h"

struct snapshots;
struct snapshots_deps { /* borrowed, for as long as the snapshots */
    struct loop *loop;
    struct db *db;
    const struct peers *peers;
    struct stacks *stacks;
    struct templates *templates;
    struct sandboxes *sandboxes;
    struct events *events;
    struct idseal *ids;
};
struct snapshots *snapshots_new(const struct snapshots_deps *d);
/* Generations and transactions, after the sandboxes. */
int snapshots_load(struct snapshots *sn, struct err *err);
void snapshots_free(struct snapshots *sn);

enum { FORK_MAX = 100 };
struct state_cost {
    uint64_t frozen_us, bytes; /* how long the sandbox stood still; what was captured */
};
typedef void snapshot_done(void *arg, const struct template *t, const struct state_cost *cost,
                           const struct state_failure *failure);
void sandbox_snapshot(struct snapshots *sn, struct sandbox *b, const char *name /* NULL: none */, snapshot_done *done,
                      void *arg);
struct fork_spec {
    unsigned count; /* up to FORK_MAX */
    uint32_t timeout_s;
    /* The children's label "name", which no other sandbox of the tenant may have: for one child. "": they have none. NULL: they
     * have the labels of the parent, whatever those are. */
    const char *name;
};
/* Makes the children and calls `child` once for each, in any order; index 0..count-1. */
typedef void fork_child(void *arg, unsigned index, struct sandbox *b, const struct state_cost *cost,
                        const struct sandbox_failure *failure);
void sandbox_fork(struct snapshots *sn, struct sandbox *b, const struct fork_spec *spec, fork_child *child, void *arg);

#endif
