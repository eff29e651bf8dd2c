/* egressc.h - front's way to egress: policies and secrets go there, refusals and questions come back. Asynchronous, over one
 * connection that is made again when egress restarts; egress then knows nothing, so everything is told again, piece by piece
 * (`next`), and until that is done no sandbox is served. See egress/proto.h.
 */
#ifndef HUTCH_FRONT_EGRESSC_H
#define HUTCH_FRONT_EGRESSC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "loop/loop.h"

enum {
    EGRESSC_QUEUE_MAX = 32 << 20, /* bytes that wait to be sent; above it the connection is made anew */
    EGRESSC_QUEUE_LOW = 256 << 10,
    EGRESSC_CALLS_MAX = 4096, /* answers that are waited for */
    EGRESSC_AWAY_MS = 2000,   /* for an egress that is not there to come back and take a policy */
    EGRESSC_KEY = 32,
};

struct egressc;

struct egressc_ops {
    /* Connected (again): from now on next() is asked for everything from the beginning. */
    void (*up)(void *arg);
    /* Sends one thing that egress must know; false: that was all. */
    bool (*next)(void *arg);
    void (*down)(void *arg);
    /* "denied", "ask", "used", "usage", "tenant_usage": the message is borrowed. */
    void (*event)(void *arg, const char *type, json_t *message);
};

/* The socket is EGRESS_SOCKET in run_dir (borrowed). Connects from the loop. */
int egressc_new(struct loop *l, int run_dir, const struct egressc_ops *ops, void *arg, struct egressc **ret,
                struct err *err);
void egressc_free(struct egressc *e); /* NULL is fine; nobody is called any more */

/* What egress said about itself; false or NULL until it did. Kept while it is away. */
bool egressc_key(const struct egressc *e, unsigned char ret[EGRESSC_KEY]);
const char *egressc_ca(const struct egressc *e);
bool egressc_is_up(const struct egressc *e);

/* Sends a message if there is a connection; takes the object. What must survive a restart is told by next(). */
void egressc_send(struct egressc *e, json_t *message);

/* error NULL: it went well. `answer` is borrowed; NULL: egress has said nothing. */
typedef void egressc_done(void *arg, json_t *answer, const char *error);
/* Sends a policy message (taken) and waits until egress says that this epoch of this sandbox is in force, or refuses it; if
 * egress is not there, at most EGRESSC_AWAY_MS. */
void egressc_policy(struct egressc *e, json_t *message, uint64_t wait_ms, egressc_done *done, void *arg);
/* Sends a request (taken; its number is put in) and waits for the message of the same type with that number. */
void egressc_ask(struct egressc *e, json_t *message, uint64_t wait_ms, egressc_done *done, void *arg);

#endif
