/* caller.h - the asking end of a connection to another of our processes, in an event loop.
 *
 * It connects by itself, and again when the connection ends. Its calls are kept in the order asked until they are taken out
 * again: a call that was sent over a connection that ended is sent again over the next one. Calls fail when their time is
 * over, when there has been no connection for too long, and when too many wait. What a message means is the business of
 * the room that uses it: a call's bytes and numbers are made there, and answers are matched there.
 */
#ifndef HUTCH_RPC_CALLER_H
#define HUTCH_RPC_CALLER_H

#include <stdint.h>

#include "loop/loop.h"
#include "rpc/channel.h"

struct caller;

enum caller_why {
    CALLER_LATE = 1, /* no answer until due_ms */
    CALLER_AWAY,     /* no connection for away_ms */
    CALLER_FULL,     /* calls_max wait already, or the user's own bound (caller_refuse()) */
    CALLER_SPENT,    /* the connection ended, and may_repeat() says that it must not be sent twice */
};

/* The first member of a user's own call. The user fills in message to due_ms and owns it again once it was taken or
 * failed. */
struct caller_call {
    const void *message;
    size_t size;
    const int *fds; /* kept open until the answer */
    size_t nfds;
    uint64_t due_ms;  /* by loop_now(); 0: never */
    uint64_t request; /* its number, from caller_number() */
    bool sent;
    enum caller_why why; /* not 0: fails from the loop */
    struct caller_call *next;
};

struct caller_ops {
    void (*up)(void *arg);                    /* connected (again), and pending calls are sent */
    void (*down)(void *arg, const char *why); /* may be NULL */
    /* False: malformed; the connection is made again. Descriptors that it does not take are closed. */
    bool (*message)(void *arg, struct channel_message *m);
    void (*failed)(void *arg, struct caller_call *c); /* with c->why; taken out already */
    /* These may be NULL. */
    bool (*may_send)(void *arg, const struct caller_call *c); /* false: not yet */
    bool (*may_repeat)(void *arg, const struct caller_call *c);
    void (*marked)(void *arg, struct caller_call *c); /* c->sent has changed, or it is taken out while it was set */
    void (*drained)(void *arg); /* less than queue_low waits to be sent: time for caller_post() of more */
};

struct caller_spec {
    const char *socket; /* its name in run_dir */
    struct channel_limits limits;
    size_t queue_low;
    size_t calls_max;
    uint64_t away_ms; /* 0: calls wait for ever */
    struct caller_ops ops;
};

/* The spec outlives the caller; run_dir is borrowed. Connects from the loop. */
struct caller *caller_new(struct loop *l, const struct caller_spec *spec, int run_dir, void *arg);
/* Calls are left to the user: caller_first(), caller_take(). Makes no callbacks. May be NULL. */
void caller_free(struct caller *c);

bool caller_is_up(const struct caller *c);
/* Ends the connection, which is made again. */
void caller_drop(struct caller *c, const char *why);
uint64_t caller_number(struct caller *c); /* of the next request; never 0, never twice */

/* Keeps the call and sends it as soon as it may go. */
void caller_add(struct caller *c, struct caller_call *call);
/* The call fails from the loop: no callback may run inside a call of the user. */
void caller_refuse(struct caller *c, struct caller_call *call, enum caller_why why);
struct caller_call *caller_first(const struct caller *c); /* then ->next: in the order asked */
size_t caller_count(const struct caller *c);
struct caller_call *caller_find(const struct caller *c, uint64_t request);
/* Takes it out; NULL: none has this number. */
struct caller_call *caller_take(struct caller *c, uint64_t request);

/* Sends a message that nothing answers, if there is a connection; over a stream together with those that follow at once. */
void caller_post(struct caller *c, const void *p, size_t n);
size_t caller_queued(const struct caller *c); /* bytes that wait to be sent */

#endif
