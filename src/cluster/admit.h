/* admit.h - may this tenant have one more sandbox? Rate and quotas of one tenant at one orchestrator, of which there are
 * several.
 *
 * Escrow. The quota of a tenant is shared out: the engine has one sum of all grants and one grant for each orchestrator,
 * and a request is admitted against the orchestrator's own grant, without asking anybody. If the grant is used up, more is
 * asked for, in one transaction that keeps the sum below the quota; what is not used goes back. A quota that is small
 * beside the request is asked for exactly, one request at a time.
 *
 * Invariants
 *   1. What all orchestrators have admitted and not seen end is never more than the quota, whatever fails: a grant counts
 *      from the transaction on that made it, and what is used counts in the grant.
 *   2. An orchestrator that dies takes its grant along. The sum keeps counting it until escrow_recount(), which must not
 *      happen before every create that the dead one sent has arrived or cannot arrive any more (ADMIT_RECOUNT_MS after its
 *      end). One that lost its lease and lives is dead in this sense: it starts anew (admit_start()), and what it had
 *      admitted counts as left behind.
 *   3. A create whose end is not known keeps its charge until a node says how it ended.
 */
#ifndef HUTCH_CLUSTER_ADMIT_H
#define HUTCH_CLUSTER_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "cluster/amount.h"
#include "cluster/meter.h"

enum {
    ADMIT_IDLE_MS = 10 * 1000,    /* after so long without a request everything that is not used goes back */
    ADMIT_RECOUNT_MS = 45 * 1000, /* lease (10 s), unconfirmed sandbox (30 s), and some */
    ADMIT_RETRY_MAX_S = 30,
};

struct admit_limits {
    struct amount most;         /* 0: no limit */
    uint32_t per_second, burst; /* creates of the tenant; 0: no limit */
};
enum admit_code {
    ADMIT_OK,
    ADMIT_ASK,   /* the engine must grant more first: answer.ask */
    ADMIT_RATE,  /* 429 rate_limited */
    ADMIT_QUOTA, /* 429 quota_exceeded */
    ADMIT_NEVER, /* 400: the request alone is more than the quota */
};
struct admit_answer {
    enum admit_code code;
    unsigned retry_after_s; /* 0: trying again does not help */
    enum amount_of lacks;   /* with ADMIT_QUOTA and ADMIT_NEVER */
    struct amount ask;      /* with ADMIT_ASK: what to ask for */
    struct amount least;    /* and with how much of that the request would be admitted */
};
struct admit {
    struct admit_limits limits;
    uint32_t members;      /* orchestrators that live, this one included */
    struct amount granted; /* to this one, as the engine last said */
    struct amount used;    /* by what this one admitted and has not seen end */
    uint64_t asked_ms;     /* when something was admitted last */
    uint64_t tat_us;       /* theoretical arrival time of the next request */
    uint64_t ended_ms;     /* when a sandbox of the tenant ended last */
    struct meter gap_ms;   /* between two ends */
};

void admit_start(struct admit *a, const struct admit_limits *limits, uint32_t members);
/* Takes one from the rate: 0, or the seconds to wait. Each orchestrator has its share of the tenant's rate, but one at
 * least. */
unsigned admit_rate(struct admit *a, uint64_t now_us);
/* Admits what is needed and charges it, or says why not. `asked`: the engine has just been asked for this request, so what
 * is lacking now is not to be had. */
struct admit_answer admit_take(struct admit *a, const struct amount *need, bool asked, uint64_t now_ms);
/* The sandbox has ended, or was never made. */
void admit_give_back(struct admit *a, const struct amount *need, bool ended, uint64_t now_ms);
/* How much of the grant is to go back. It is taken off the grant at once; the engine's record is then to be set to what is
 * left, again and again until that is known to have happened. False: nothing. */
bool admit_surplus(struct admit *a, uint64_t now_ms, struct amount *ret);
/* "this tenant has no memory left: 64 GiB are in use or promised; try again in 4 s" */
void admit_say(const struct admit *a, const struct admit_answer *answer, struct buf *b);

/* The engine's side: one sum for each tenant. These are what a transaction computes between reading and writing. */
struct escrow {
    struct amount sum; /* of all grants, and of what dead orchestrators left running */
};
/* How much of `ask` may be granted: less if that is all there is, and nothing at all if that is not even `least`. It is
 * added to the sum. */
struct amount escrow_grant(struct escrow *e, const struct amount *most, const struct admit_answer *asked);
/* The grant of an orchestrator was `was` and is now `is`, which is less. */
void escrow_return(struct escrow *e, const struct amount *was, const struct amount *is);
/* The sum anew: the grants of those that live, and what runs of those that do not. */
void escrow_recount(struct escrow *e, const struct amount *grants, uint32_t n, const struct amount *left);

#endif
