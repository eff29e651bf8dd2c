/* deny.h - refusals: each is recorded once, answered in a form the client can read, and listed inside the sandbox and
 * outside; also sandbox.internal (internal.c), approvals (ask.c) and learn mode (learn.c). Decides nothing itself:
 * policy/netpol.h does. */
#ifndef HUTCH_EGRESS_DENY_H
#define HUTCH_EGRESS_DENY_H

#include "egress/core/egress.h"
#include "http/http.h"

enum { DENIALS_KEPT = 256 };

struct deny {
    enum netpol_reason reason;
    const char *layer; /* "dns", "tcp", "tls", "http", "secret", "limit" */
    const char *host;  /* name or address text */
    uint16_t port;
    const char *method, *path; /* NULL: not known */
    const char *rule;          /* id, or NULL */
    const char *text;          /* more to say (which certificate, which byte), or NULL */
    unsigned retry_s;          /* 429 */
    const char *approval;      /* id of the pending request, or NULL */
    const struct flow *flow;   /* the refused connection, for the audit line; may be NULL */
    /* Filled by deny_record(). */
    char id[24];
    uint64_t seq;
};
/* Counts and keeps the refusal, tells front, writes the audit line. Equal refusals within a second are one record with
 * a count, told once more when the second is over: a sandbox cannot flood the log or front by repeating itself. */
void deny_record(struct esb *s, struct deny *d);
unsigned deny_status(enum netpol_reason r); /* 403, 429, 413, 421, 400, 502, 503, 504 */
/* The JSON body:
 * {"error":{code,reason,layer,host,port,method,path,rule,policy,request_id,retryable,message,grant,ask}}. */
void deny_body(const struct esb *s, const struct deny *d, struct buf *out);
/* Answers a request: status + JSON, or the gRPC form if the request was gRPC. */
void deny_answer(const struct esb *s, const struct deny *d, struct http_req *r);
/* Bytes of a complete HTTP/1.1 answer, for CONNECT. */
void deny_raw(const struct esb *s, const struct deny *d, struct buf *out);
/* The list as JSON from `since` on: {"denials":[...],"next":N}. */
void deny_list(const struct esb *s, uint64_t since, unsigned limit, struct buf *out);
void deny_forget(struct esb *s); /* drops all records and ends the listeners' connections */

/* internal.c: http://sandbox.internal/ of this sandbox. */
void internal_handle(struct esb *s, struct http_req *r);
/* What the policy would say to a request: {"verdict":...,"reason":...,"rule":...}; also answers front's "check". false:
 * url is not a URL, and *out is {"wrong":"why"}. method NULL: GET. */
bool internal_check(const struct esb *s, const char *url, const char *method, struct buf *out);

/* ask.c: asks front for approval. Returns the id of the ask (that of a pending equal one if there is one), or NULL if
 * too many wait. `decided` is called once, from the loop: with NONE when a new policy may allow the request, with
 * APPROVAL_DENIED when it was denied, with APPROVAL_PENDING when the hold time is over. q NULL: an opaque stream. The
 * id is valid until the loop turns. */
typedef void ask_decided(void *arg, enum netpol_reason reason, const char *id);
const char *ask_start(struct esb *s, const struct netpol_flow *f, const struct netpol_request *q, const char *rule,
                      ask_decided *decided, void *arg, uint64_t *ret_waiter);
void ask_cancel(struct esb *s, uint64_t waiter);
void ask_policy_changed(struct esb *s); /* also after front said which were denied */
void ask_denied(struct esb *s, const char *id);
void ask_dropped(struct esb *s, const char *id); /* front did not take the question: too many wait there */
/* From inside: a request for access without a connection; q NULL: the host as such. JSON answer; returns its HTTP
 * status. */
unsigned ask_from_inside(struct esb *s, const struct netpol_flow *f, const struct netpol_request *q, const char *why,
                         struct buf *out);
bool ask_status(struct esb *s, const char *id, struct buf *out);
/* Calls back once, when the request is no longer pending or after wait_ms; not from inside. false: no such id, or
 * not pending, or too many wait. */
typedef void ask_changed(void *arg);
bool ask_watch(struct esb *s, const char *id, uint64_t wait_ms, ask_changed *changed, void *arg, uint64_t *ret_waiter);
void asks_tell(struct esb *s); /* tells a new front of every pending ask */
void asks_free(struct esb *s); /* only after every connection was closed: no waiter is called back */

/* learn.c: records requests in learn mode and writes the smallest policy document that allows them. */
void learn_request(struct esb *s, const struct netpol_flow *f, const struct netpol_request *q, uint64_t up,
                   uint64_t down);
void learn_relay(struct esb *s, const struct netpol_flow *f);
void learn_write_document(struct esb *s, struct buf *out);
void learn_forget(struct esb *s);

#endif
