/* webhook.h - tells somebody outside what sandboxes ask for: one POST per question to the operator's URL (approvals.webhook).
 * The answer may be the decision already; otherwise it is taken later, through the API. See "Ask somebody" in docs/network.md.
 *
 * A question is told again if the first attempts fail, and once more after front was restarted; its id stays the same.
 */
#ifndef HUTCH_FRONT_WEBHOOK_H
#define HUTCH_FRONT_WEBHOOK_H

#include "base/buf.h"
#include "front/nets.h"

#define WEBHOOK_EVENT "network.approval_requested"

enum {
    WEBHOOK_ATTEMPTS = 3,
    WEBHOOK_RUNNING_MAX = 8,
    WEBHOOK_ANSWER_MAX = 64 * 1024,
    WEBHOOK_SECRET_MIN = 16,
    WEBHOOK_SECRET_MAX = 4096,
    WEBHOOK_SIGNATURE = 96, /* "t=...,v1=..." with its NUL */
};

/* Without approvals.webhook in the configuration: nothing. secret: signs what is sent, NULL: nothing does. trust: PEM roots
 * for https. Both are copied. */
int webhook_open(struct front *f, const char *secret, const struct buf *trust, struct err *err);
void webhook_free(struct front *f); /* before the loop goes; nothing is decided after it */
/* The question was just asked. */
void webhook_ask(struct front *f, const struct approval *a);

/* --- the formats, for webhook.c and tests ---------------------------------------------------------------------------- */

struct webhook_decision {
    enum approval_decision decision;
    unsigned minutes; /* APPROVAL_MINUTES */
};
/* The body of an answer: 1 a decision, 0 none (yet), -1 with *err: something that cannot be meant. */
int webhook_answer(const char *p, size_t n, struct webhook_decision *ret, struct err *err);
/* The value of x-hutch-signature: HMAC-SHA256 of "TIME.BODY". */
void webhook_sign(const char *secret, uint64_t unix_time, const char *body, size_t n, char ret[WEBHOOK_SIGNATURE]);
void webhook_body(const struct front *f, const struct approval *a, struct buf *out);

#endif
