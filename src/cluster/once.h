/* once.h - a create with a key makes one sandbox, whatever dies on the way: what an orchestrator does for it, and what a
 * node remembers of it. Answers go in; what to do next comes out.
 *
 * Concepts
 *   record      The engine's fact of a key. Pending: a node was asked for this sandbox. Decided: this is the sandbox.
 *   fence       The change from pending to decided. It holds only if the record is still the one that was read before.
 *   confirm     Tells the node that its sandbox is the one. Until then the sandbox is on trial: its node ends it after
 *               ONCE_TRIAL_MS.
 *   reaped      It ended before it was confirmed, for whatever reason. Ended: it was confirmed before.
 *
 * Invariants
 *   1. All orchestrators that answer for a key name the same sandbox, as long as the key's record is kept.
 *   2. A sandbox is confirmed only if the record says that it is decided, and answered only if it is confirmed. So each one
 *      that is not answered ends by itself or is found by the next request with the key.
 *   3. A decided record changes only on the node's word that its sandbox was reaped. Silence is not a word.
 *   4. What an id was on a node is remembered longer than the key: an id that was reaped or has ended is not made again.
 *
 * A change whose answer got lost may have been made, or be made later: nothing is repeated, the record is read again. As all
 * changes test the record's revision, a late one changes nothing or is seen.
 *
 * A create without a key takes the same way without the engine: choose, make, confirm, answer.
 * tests/unit/test_cluster_once.c goes through all orders of the steps of several orchestrators.
 */
#ifndef HUTCH_CLUSTER_ONCE_H
#define HUTCH_CLUSTER_ONCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/ids.h"
#include "base/sha256.h"
#include "cluster/place.h"

enum {
    ONCE_TRIAL_MS = 30 * 1000,      /* a sandbox that is not confirmed lives so long */
    ONCE_KEY_MS = 15 * 60 * 1000,   /* a key holds so long at least, counted from the last change of its record */
    ONCE_BUCKET_MS = 5 * 60 * 1000, /* records that are written in the same five minutes share a lease */
    ONCE_LEASE_S = 20 * 60,         /* of that lease: the bucket, and what the last record of it needs */
    ONCE_REMEMBER_S = 24 * 60 * 60, /* a node remembers ids that were reaped or have ended */
    ONCE_VALUE_MAX = 1024,          /* bytes of a record's text */
};

struct once_place {
    char id[SANDBOX_ID_MAX];
    uint32_t node;
};
enum once_state { ONCE_ABSENT, ONCE_PENDING, ONCE_DECIDED };
struct once_record {
    enum once_state state;
    struct once_place at;
    char request[SHA256_HEX]; /* digest of what the client asked for */
    uint64_t until_ms;        /* by the clock: what a client is told about the key */
    uint64_t revision;        /* 0: there is no record. Not in the text */
};

/* What to do next. */
enum once_do {
    ONCE_READ,    /* the record, not an old one -> once_on_read() */
    ONCE_CHOOSE,  /* a node but those of `tried`, and a new id for it -> once_on_chosen() or once_on_full() */
    ONCE_WRITE,   /* `write`, if the record's revision is still write.revision -> once_on_written() */
    ONCE_MAKE,    /* ask the node of `at` to make that sandbox -> once_on_node() */
    ONCE_CONFIRM, /* ask it to confirm that sandbox -> once_on_node() */
    ONCE_ANSWER,  /* the end: `answer` */
};
enum once_answer {
    ONCE_MADE,          /* 201; 200 if `replay` */
    ONCE_OVER,          /* the same, but the sandbox has ended since */
    ONCE_LOST,          /* 410 sandbox_lost: its node does not know it any more */
    ONCE_REUSED,        /* 422 idempotency_key_reuse: the key belongs to another request */
    ONCE_FULL,          /* 503 capacity_unavailable, or what placement says */
    ONCE_AWAY,          /* 503 coordination_unavailable: the engine */
    ONCE_STATE_UNKNOWN, /* 503 state_unknown: there is a sandbox, and its node does not answer */
    ONCE_UNREADABLE,    /* 503 coordination_unavailable: the record is not one of ours */
    ONCE_LATE,          /* 504 placement_timeout */
};
/* What the engine said. FACTS_GONE, FACTS_COMPACTED: differs; FACTS_REFUSED, FACTS_FULL, FACTS_DENIED: down. */
enum once_engine { ONCE_ENGINE_OK, ONCE_ENGINE_DIFFERS, ONCE_ENGINE_UNKNOWN, ONCE_ENGINE_DOWN, ONCE_ENGINE_UNREADABLE };
/* What a node said. */
enum once_said {
    ONCE_SAID_YES,      /* it is there; it is confirmed */
    ONCE_SAID_REFUSED,  /* not now: nothing was made or confirmed */
    ONCE_SAID_REAPED,   /* it was reaped */
    ONCE_SAID_ENDED,    /* it has ended */
    ONCE_SAID_NEVER,    /* there was no such sandbox: answer to confirm only */
    ONCE_SAID_NOTHING,  /* no answer, and the node's lease lives */
    ONCE_SAID_NO_LEASE, /* no answer, and its lease is gone; or, to make only, the caller does not want to wait for it */
};

struct once {
    bool keyed;
    char request[SHA256_HEX];
    uint64_t until_ms;
    enum once_do next;
    bool wait;                 /* a moment before that: it was done before and did not help */
    struct once_record record; /* as it was read or written last */
    struct once_record write;
    struct once_place
        at; /* ONCE_MAKE, ONCE_CONFIRM, and the sandbox of ONCE_MADE, ONCE_OVER, ONCE_LOST, ONCE_STATE_UNKNOWN */
    struct once_place own;                    /* what this request chose last */
    uint32_t tried[PLACE_TRIED_MAX], n_tried; /* as place_request wants them */
    enum once_answer answer;
    bool replay; /* another request made the sandbox */
};

/* `now_ms`: by the clock, for what clients are told. `request`: the digest of what is asked for; NULL, there is no key. */
void once_start(struct once *o, const char *request, uint64_t now_ms);
/* Each belongs to what `next` asks for; `record`: NULL, there is none. */
void once_on_read(struct once *o, enum once_engine said, const struct once_record *record);
void once_on_chosen(struct once *o, const char *id, uint32_t node);
void once_on_full(struct once *o);
void once_on_written(struct once *o, enum once_engine said, uint64_t revision);
void once_on_node(struct once *o, enum once_said said);
/* The time of the request is over, whatever is going on. */
void once_on_deadline(struct once *o);

/* What a node remembers of an id. It is on disk before the node answers. */
enum once_life { ONCE_LIFE_NONE, ONCE_LIFE_TRIAL, ONCE_LIFE_CONFIRMED, ONCE_LIFE_REAPED, ONCE_LIFE_ENDED };
enum once_life_event {
    ONCE_LIFE_MAKE,    /* asked to make it */
    ONCE_LIFE_CONFIRM, /* asked to confirm it */
    ONCE_LIFE_OVERDUE, /* ONCE_TRIAL_MS are over */
    ONCE_LIFE_END,     /* it ended: killed, its time over, its processes gone */
};
/* Changes the life and says what to answer. It was ONCE_LIFE_NONE and is now ONCE_LIFE_TRIAL: make it. It is now
 * ONCE_LIFE_REAPED: end it. */
enum once_said once_life_step(enum once_life *life, enum once_life_event event);

/* The engine's key of a record: "i/<tenant>/<digest of the client's key>". `tenant` may be part of a key. */
void once_key(const char *tenant, const void *key, size_t n, struct buf *ret);
/* Which lease a record goes to that is written now. */
uint64_t once_bucket(uint64_t now_ms);
void once_record_write(const struct once_record *r, struct buf *ret);
/* Strict: -1, and the record is not one of ours. The revision is the caller's. */
int once_record_read(const void *text, size_t n, struct once_record *ret, struct err *err);

#endif
