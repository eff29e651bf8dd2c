/* egressc.h - front's client of egress: front sends policies and sealed secrets, egress sends refusals and questions.
 * Asynchronous, over one connection that is made again when egress restarts. A new egress knows nothing: front sends it
 * everything again, piece by piece (`next`), and egress serves no sandbox before that is complete. See egress/proto.h.
 */
#ifndef HUTCH_PEERS_EGRESSC_H
#define HUTCH_PEERS_EGRESSC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "loop/loop.h"

enum {
    EGRESSC_QUEUE_MAX = 32 << 20, /* bytes that wait to be sent; beyond it we reconnect */
    EGRESSC_QUEUE_LOW = 256 << 10,
    EGRESSC_CALLS_MAX = 4096, /* calls without an answer yet */
    EGRESSC_AWAY_MS = 2000,   /* how long a policy waits for an egress that is not connected */
    EGRESSC_KEY = 32,
};

struct egressc;

struct egressc_ops {
    /* Connected (again): calls of next() follow, which must start from the beginning. */
    void (*up)(void *arg);
    /* Sends the next thing that egress must know; false: there is no more. */
    bool (*next)(void *arg);
    void (*down)(void *arg);
    /* "denied", "ask", "used", "usage", "tenant_usage": the message is borrowed. */
    void (*event)(void *arg, const char *type, json_t *message);
};

/* The socket is EGRESS_SOCKET in run_dir (borrowed). Connects from the loop. */
int egressc_new(struct loop *l, int run_dir, const struct egressc_ops *ops, void *arg, struct egressc **ret,
                struct err *err);
void egressc_free(struct egressc *e); /* may be NULL; makes no callbacks */

/* egress's public key; false before its first hello. Kept while egress is away. */
bool egressc_key(const struct egressc *e, unsigned char ret[EGRESSC_KEY]);
bool egressc_is_up(const struct egressc *e); /* for tests */

/* Sends a message if there is a connection, else drops it; takes the object. What a restarted egress must know,
 * next() sends. */
void egressc_send(struct egressc *e, json_t *message);

/* error NULL: success. `answer` is borrowed; NULL: egress did not answer. */
typedef void egressc_done(void *arg, json_t *answer, const char *error);
/* Sends a policy message (taken) and waits until egress confirms or refuses this epoch of this sandbox; without a
 * connection at most EGRESSC_AWAY_MS. */
void egressc_policy(struct egressc *e, json_t *message, uint64_t wait_ms, egressc_done *done, void *arg);
/* Sends a request (taken; gets a number) and waits for the answer with the same number. */
void egressc_ask(struct egressc *e, json_t *message, uint64_t wait_ms, egressc_done *done, void *arg);

#endif
