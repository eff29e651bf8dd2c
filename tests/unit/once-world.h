/* All orders in which orchestrators, nodes, the engine and the network can do the steps of one create with a key.
 *
 * The world is closed: requests come again and again, at up to WORLD_ACTORS orchestrators at a time; each may die between two
 * steps; each message and each answer may get lost or arrive later, once, after anything else; nodes refuse, seem dead,
 * reap, and end what they have; the engine's answers are ambiguous. An id that nothing refers to any more is used anew, so
 * the number of attempts has no bound, only that of ids that are in use at the same time has (WORLD_IDS_MAX). */
#ifndef HUTCH_TESTS_ONCE_WORLD_H
#define HUTCH_TESTS_ONCE_WORLD_H

#include "tests/lib/unit.h"

#include "cluster/once.h"

enum { WORLD_ACTORS_MAX = 3, WORLD_IDS_MAX = 4, WORLD_NODES_MAX = 2, WORLD_NO_ID = 7 };

/* What the world leaves out or does wrong: each must be noticed. */
enum world_mutant {
    WORLD_RIGHT,
    WORLD_NO_FENCE,          /* a sandbox counts as decided as soon as it is made */
    WORLD_NO_REAPER,         /* nodes keep what is not confirmed */
    WORLD_NO_CONFIRM,        /* a sandbox is answered as soon as it is decided */
    WORLD_SILENCE_IS_REAPED, /* a decided sandbox is given up because its node is silent */
    WORLD_NO_TOMBSTONES,     /* nodes forget ids that were reaped */
    WORLD_UNKNOWN_IS_DONE,   /* a change whose answer got lost is believed to have been made */
    WORLD_UNTESTED,          /* the engine changes the record whatever its revision is */
    WORLD_MUTANTS,
};

struct world_result {
    const char *wrong; /* NULL: nothing was */
    size_t states, steps;
    size_t answered;  /* states in which a sandbox was answered to a client */
    char trace[8192]; /* the states that led there, one in a line; names of sandboxes change between lines */
};
struct world_size {
    unsigned actors, ids, nodes;
};
void world_explore(struct world_size size, enum world_mutant mutant, struct world_result *ret);

#endif
