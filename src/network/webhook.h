/* webhook.h - sends each request for approval to the operator's URL (approvals.webhook), as one POST. The answer may
 * contain the decision; otherwise the decision comes later through the API. See docs/network.md.
 *
 * Failed attempts are repeated, and after a restart of front the request is sent once more with the same id. Sends
 * nothing without approvals.webhook.
 */
#ifndef HUTCH_NETWORK_WEBHOOK_H
#define HUTCH_NETWORK_WEBHOOK_H

#include "base/buf.h"
#include "network/networks.h"

#define WEBHOOK_EVENT "network.approval_requested"

enum {
    WEBHOOK_ATTEMPTS = 3,
    WEBHOOK_RUNNING_MAX = 8,
    WEBHOOK_ANSWER_MAX = 64 * 1024,
    WEBHOOK_SECRET_MIN = 16,
    WEBHOOK_SECRET_MAX = 4096,
    WEBHOOK_SIGNATURE = 96, /* "t=...,v1=..." with its NUL */
};

/* Does nothing without approvals.webhook in the configuration. secret: signs the requests; NULL: they are not
 * signed. trust: PEM roots for https. Both are copied. */
int webhook_open(struct networks *nw, const char *secret, const struct buf *trust, struct err *err);
void webhook_free(struct networks *nw); /* before the loop is freed; no decision comes after it */
/* Queues a new question. */
void webhook_ask(struct networks *nw, const struct approval *a);

/* --- the formats, for webhook.c and tests ------------------------------------------------------------------------- */

struct webhook_decision {
    enum approval_decision decision;
    unsigned minutes; /* APPROVAL_MINUTES */
};
/* Reads the body of an answer: 1 a decision, 0 no decision yet, -1 with *err: an invalid decision. */
int webhook_answer(const char *p, size_t n, struct webhook_decision *ret, struct err *err);
/* The value of x-hutch-signature: HMAC-SHA256 of "TIME.BODY". */
void webhook_sign(const char *secret, uint64_t unix_time, const char *body, size_t n, char ret[WEBHOOK_SIGNATURE]);
void webhook_body(const struct networks *nw, const struct approval *a, struct buf *out);

#endif
