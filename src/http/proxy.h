/* proxy.h - joins an incoming request with a call to an upstream: bytes pass to the other side at once, and a slow side
 * slows the other down. So server-sent events and WebSockets need no special handling.
 *
 * Heads are written anew: hop-by-hop fields are dropped, and each side has its own framing. If the client goes away,
 * the upstream is cut; if the upstream dies in the middle of an answer, the client is cut, because only a cut
 * connection shows that an answer is incomplete.
 */
#ifndef HUTCH_HTTP_PROXY_H
#define HUTCH_HTTP_PROXY_H

#include <stdbool.h>
#include <stdint.h>

#include "http/client.h"
#include "http/http.h"

struct proxy_result {
    unsigned status;      /* sent to the client; 0 if none was */
    uint64_t up, down;    /* bytes of body or tunnel */
    bool upgraded, whole; /* whole: both sides came to a proper end */
};

struct proxy_options {
    const char *target;      /* for the upstream; NULL: as the client asked */
    const char *host;        /* Host for the upstream; NULL: as the client sent it */
    bool forwarded;          /* replace x-forwarded-for, -proto, -host, -port and forwarded by our own values */
    bool no_upgrade;         /* pass upgrades on as ordinary requests */
    unsigned answer_ms;      /* limit from the request's end to the answer's head; 0: none */
    const char *const *drop; /* names of request fields that stop here, NULL-terminated; may be NULL */
    struct http_fields add;  /* request fields to add or replace */
    void *arg;
    /* Returns the value to send for a field of the answer, borrowed until the next call; NULL: drop the field. The
     * function may be NULL. */
    const char *(*answer_field)(void *arg, const char *name, const char *value);
    /* Whether this answer is dropped before anything of it is sent: on_failure() follows with CLIENT_UNWANTED. Only for
     * requests without a body. May be NULL. */
    bool (*unwanted)(void *arg, unsigned status, const struct http_fields *fields);
    /* There was no answer: 502 or 504, and why. The callee answers the request, which is untouched so far; its
     * callbacks and `user` are free to use. */
    void (*on_failure)(void *arg, struct http_req *r, unsigned status, enum client_failure failure, const char *why);
    /* The last call, after on_failure too. `again` is the upstream connection if it may be used for another request
     * (client_reusable): the callee takes it over. NULL otherwise. May be NULL, then connections are closed. */
    void (*on_done)(void *arg, const struct proxy_result *result, struct client *again);
};

/* Takes the client over and, until the end, the request's callbacks. Everything in the options is copied. The
 * handler must have paused the request (http_pause) if it did not call this at once; it is resumed here. */
void proxy_start(struct http_req *r, struct client *upstream, const struct proxy_options *o);

#endif
