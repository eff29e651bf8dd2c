/* deny-int.h - the refusals of one sandbox, shared by deny.c (keeps and reports them), deny-say.c (words) and
 * internal*.c (sandbox.internal and its listeners). Only these files may touch struct denials. */
#ifndef HUTCH_EGRESS_DENY_INT_H
#define HUTCH_EGRESS_DENY_INT_H

#include "base/json.h"
#include "egress/deny.h"

enum {
    DENY_SAME_MS = 1000,   /* equal refusals within this time are one record */
    DENY_TELL_PER_S = 50,  /* messages to front */
    DENY_PATH_KEPT = 1024, /* bytes of a path */
    DENY_TEXT_KEPT = 300,
    INTERNAL_RPS = 20,
    INTERNAL_BODY_MAX = 16 * 1024,
    INTERNAL_OPEN_MAX = 64,  /* calls that wait for something */
    INTERNAL_EVENTS_MAX = 4, /* of them listeners */
    INTERNAL_PING_MS = 15000,
    INTERNAL_SLOW = 256 * 1024, /* bytes that a listener may be behind */
    INTERNAL_WAIT_S = 60,
};

struct denials;

/* A bucket of `per_s` tokens. */
struct deny_bucket {
    uint64_t at_ms;
    uint32_t milli;
    bool used;
};
bool deny_bucket_take(struct deny_bucket *b, uint32_t per_s, uint64_t now_ms);

/* One record. The texts are owned. */
struct denial {
    uint64_t seq;
    uint64_t unix_ms, first_ms;
    uint64_t count, told;
    uint64_t hash;
    enum netpol_reason reason;
    uint16_t port;
    bool tls;
    char id[24], layer[12];
    char *host, *method, *path, *rule, *text, *approval; /* NULL: not known */
};

/* A call of sandbox.internal that is answered later. `user` and `on_closed` are what the request had before and gets
 * back. */
struct internal_call {
    struct internal_call *next, **prev; /* of struct denials */
    struct esb *s;                      /* NULL: the sandbox is gone */
    struct http_req *r;
    void *user;
    void (*on_closed)(struct http_req *r);
    bool events;     /* a listener */
    loop_id ping;    /* of a listener */
    uint64_t waiter; /* of a request for access that is waited for */
    char id[24];
};
/* NULL: too many are open. */
struct internal_call *internal_call_new(struct esb *s, struct http_req *r);
/* Frees the call and returns its request, to be answered now. */
struct http_req *internal_call_end(struct internal_call *c);
void internal_calls_abort(struct denials *k);

struct denials {
    struct denial *ring[DENIALS_KEPT]; /* by seq; NULL: none yet */
    uint64_t last_seq;
    struct deny_bucket tells;
    uint64_t untold;          /* messages that front did not get */
    loop_id timer;            /* there are repetitions to tell of */
    struct deny_bucket calls; /* of sandbox.internal */
    struct internal_call *open;
    size_t nopen, nevents;
};
struct denials *denials_of(struct esb *s); /* makes it if there is none */

/* Adds the fields of a record to the open object. */
void denial_fields(struct json *j, const struct denial *d);
/* internal-events.c */
void internal_events_start(struct esb *s, struct http_req *r);
void internal_events_tell(struct esb *s, const struct denial *d);
void internal_events_say(struct esb *s, const char *type, const struct buf *json); /* asks */
/* deny-say.c */
/* The smallest rule that would allow it, JSON. false: there is none. */
bool denial_grant(const struct denial *d, struct buf *out);
bool deny_over_tls(const struct deny *d);
bool deny_may_ask(enum netpol_reason r);
bool deny_may_retry(enum netpol_reason r);

#endif
