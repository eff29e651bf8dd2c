/* tier.h - what keeper asks of a kind of wall: one table of operations for each tier.
 *
 * The create request and the journal record say which tier a sandbox has (enum keeper_tier). An operation that is NULL
 * is absent: a request that needs it is answered with KEEPER_HOST (501 over HTTP) and a text that names the tier and
 * the operation. `start`, `adopt` and `kill` are never absent, because keeper itself ends sandboxes at their deadline.
 * No operation blocks.
 */
#ifndef HUTCH_KEEPER_TIER_H
#define HUTCH_KEEPER_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "keeper/proto.h"

struct cgroup_sub;

struct entry;
struct journal_record;
struct keeper;
struct waiter;

enum tier_operation {
    TIER_START,
    TIER_ADOPT,
    TIER_BIND,
    TIER_DIAL_INIT,
    TIER_FREEZE,
    TIER_KILL,
    TIER_USAGE,
    TIER_NETWORK,
    TIER_CAPTURE,
    TIER_RESTORE,
    TIER_RESIZE,
    TIER_LIMIT,
    TIER_SWEEP,
    TIER_OPERATIONS
};

enum tier_started {
    TIER_FAILED,
    TIER_STARTED, /* its first process exists and reports when it is ready */
    TIER_LATER,   /* no network namespace is ready: nothing was done */
    TIER_UNREADY, /* failed: an image must be made or checked first, or another process holds it */
};
enum tier_freezing { TIER_THAW, TIER_STOP, TIER_LOOK };

/* A request of a client about a living sandbox; the operation answers w. */
typedef void tier_request(struct keeper *k, struct entry *e, const struct waiter *w);

struct tier {
    const char *name;
    /* Takes all resources, writes the journal record, and makes the first process. On failure nothing is left but what
     * `kill` and end.c remove for an entry with a pidfd. */
    enum tier_started (*start)(struct keeper *k, struct entry *e, const struct keeper_create *ask, struct err *err);
    /* Finds what an earlier keeper started; e->pidfd stays -1 if it has ended. */
    void (*adopt)(struct keeper *k, struct entry *e, const struct journal_record *r);
    tier_request *bind;      /* gives a parked sandbox its environment, host name and user */
    tier_request *dial_init; /* connects to its init */
    /* TIER_STOP and TIER_THAW ask for it; TIER_LOOK returns 1 if everything in it stands still, 0 if not yet. */
    int (*freeze)(const struct keeper *k, const struct journal_record *r, enum tier_freezing what, struct err *err);
    /* Kills everything in it, frozen or not. r NULL: its record cannot be read. With `remove` it first tries to remove
     * what the kernel keeps of it, and returns false if that is still in use. */
    bool (*kill)(int pidfd, const struct journal_record *r, bool remove);
    /* Adds to *ret what it has used. */
    void (*usage)(const struct keeper *k, const struct journal_record *r, bool alive, struct keeper_usage *ret);
    /* The sandbox's sockets for egress, TCP and UDP; -1 with errno, EBADMSG if they are not those of the record. */
    int (*network)(const struct entry *e, const struct journal_record *r, int ret[2]);
    tier_request *capture, *restore; /* an image of what runs in it */
    tier_request *resize;            /* changes the limits of a living sandbox */
    /* A group in which one command has a limit on memory of its own; and removes those whose command has ended, returning
     * how many are left. Both or none. */
    int (*limit)(const struct keeper *k, const struct journal_record *r, uint64_t number, uint64_t memory,
                 struct cgroup_sub *ret, struct err *err);
    unsigned (*sweep)(const struct journal_record *r);
};

/* NULL: this version has no such tier. */
const struct tier *tier_of(uint32_t number);
bool tier_has(const struct tier *t, enum tier_operation op);
/* -1 with ERR_HOST, tier and operation in *err if the operation is absent. */
int tier_need(const struct tier *t, enum tier_operation op, struct err *err);

extern const struct tier tier_container; /* tier-container.c */

#endif
