/* stacks.h - which stacks of the layer store this node needs, and how much of it each tenant keeps.
 *
 * Owns: captures, holds on stacks that no row names yet, dropping what nothing names, flattening, the comparison
 * with the layer store when it comes back, and the count of a tenant's layers. A row is written after its stack is
 * whole; a stack without a row is dropped. May never: touch a file, or know what names a stack: rooms that have rows
 * register as owners.
 */
#ifndef HUTCH_STACKS_STACKS_H
#define HUTCH_STACKS_STACKS_H

#include "base/err.h"
#include "base/strv.h"
#include "config/config.h"
#include "layers/proto.h"
#include "loop/loop.h"
#include "peers/peers.h"
#include "tenants/tenants.h"

struct db;
struct stacks;

struct stacks_deps { /* borrowed, for as long as the stacks */
    struct loop *loop;
    const struct config *config;
    struct db *db;
    const struct peers *peers;
};
struct stacks *stacks_new(const struct stacks_deps *d);
void stacks_free(struct stacks *st);

/* The failure of an operation on state; status 0: success. */
struct state_failure {
    unsigned status;
    const char *error_code; /* static; or NULL */
    char text[512];
};
void state_fail(struct state_failure *ret, unsigned status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* `what` could not be written to the database: 507 if the disk is full, else 503. */
void state_fail_write(struct state_failure *ret, const struct err *err, const char *what);
#define STATE_DISK_FULL "disk_full" /* the error_code of a 507 */

struct state_size {
    uint64_t bytes, entries; /* entries: files, directories, links */
};

/* --- owners: rooms whose rows name stacks ------------------------------------------------------------------------- */
struct stack_use {
    const char *stack;
    uint64_t bytes;              /* of it, by the row; 0: not known */
    const struct tenant *tenant; /* whose; NULL: the node's own, which counts for no tenant */
    bool public;                 /* every tenant may use it; it counts for its owner only */
    bool kept;                   /* counts as one snapshot or paused sandbox */
    bool counted_only;           /* its room drops it by itself; whether it is named, the database says */
    const char *files_of;        /* the sandbox whose only files these are; NULL: none */
    uint64_t created_unix_ms;    /* of public ones: a layer that several have counts for the oldest */
    const char *id;              /* of public ones: decides between two of the same age */
};
typedef void stack_use_fn(void *arg, const struct stack_use *u);
struct stack_owner {
    void (*each)(void *ctx, stack_use_fn *fn, void *arg);
    /* Storage that is no stack (volumes, waiting transactions), of one tenant; NULL: none. */
    struct state_size (*size)(void *ctx, const struct tenant *t);
    /* The layer store told what it has: compares what is not a stack, adds what is older than the database to
     * `foreign`, returns how many are too young to judge. NULL: nothing to compare. */
    size_t (*meet)(void *ctx, const struct layers_item *v, size_t n, int64_t born, struct strv *foreign);
};
void stacks_add_owner(struct stacks *st, const struct stack_owner *owner, void *ctx); /* ctx and owner outlive it */

/* --- stacks: meet.c ------------------------------------------------------------------------------------------- */
typedef void state_captured(void *arg, const struct layers_reply *r);
/* Captures a sandbox of that tenant (NULL: it has ended) into a new stack (LAYERS_CAPTURE), which is held (see
 * below) from now on. freeze: the sandbox runs. */
void state_capture(struct stacks *st, const char *sandbox, const struct tenant *t, const char stack[STACK_ID_MAX],
                   bool freeze, state_captured *done, void *arg);
/* The same; `earlier`: a stack of the same sandbox that it may share with, or "". */
void state_capture_after(struct stacks *st, const char *sandbox, const struct tenant *t, const char stack[STACK_ID_MAX],
                         const char *earlier, bool freeze, state_captured *done, void *arg);
/* In addition to enum layers_error: the stack was made but exceeds the tenant's quota, and is dropped. */
enum { STATE_NO_ROOM = 1000 };
/* Translates an error of the layer store into a failure; `what` is its subject ("the snapshot"). */
void state_layers_failure(const struct layers_reply *r, const char *what, struct state_failure *ret);
/* Protects a stack that no row names yet from being dropped. Holds are counted. */
void state_hold(struct stacks *st, const char *stack);
/* The same; the stack also counts in the tenant's quota (t may be NULL) until it is released. */
void state_hold_for(struct stacks *st, const char *stack, const struct tenant *t);
void state_release(struct stacks *st, const char *stack);
/* Drops it, unless a row names it or it is held. */
void state_drop(struct stacks *st, const char *stack);
/* Whether drops are under way. */
bool state_dropping(const struct stacks *st);
/* Stacks with many layers are flattened in the background, one at a time. */
void state_flatten(struct stacks *st, const char *stack);
/* --- quotas: quota.c ------------------------------------------------------------------------------------------ */
enum { STATE_KEPT_MAX = 10000 }; /* snapshots and paused sandboxes of a tenant, whatever its quota */
struct state_kept {
    uint64_t count; /* snapshots and paused sandboxes */
    struct state_size size;
};
struct state_kept state_kept(struct stacks *st, const struct tenant *t);
/* The same with these stacks added; size only. */
struct state_size state_kept_with(struct stacks *st, const struct tenant *t, const char *const *stacks, size_t n);
/* May the tenant keep that much more? STATE_SOME: the size is not known yet; refused only if there is no room at
 * all. */
#define STATE_NOTHING ((struct state_size){0, 0})
#define STATE_SOME    ((struct state_size){1, 1})
bool state_room(struct stacks *st, const struct tenant *t, unsigned count, struct state_size more,
                struct state_failure *ret);
bool state_room_count(struct stacks *st, const struct tenant *t, unsigned count, struct state_failure *ret);
/* The limit of a tenant: that of its quota, else the node's; 0: none. */
struct state_size state_limit(const struct stacks *st, const struct tenant *t);
bool state_within(struct state_size size, struct state_size limit);
/* Whether the tenant (may be NULL) is still within its quota with `stack`, which is made and held. */
bool state_fits(struct stacks *st, const struct tenant *t, const char *stack, struct state_failure *ret);
/* Asks the layer store for the layers of a stack ("": of all); done() when they are counted. Returns the call, as
 * layersc_of_stacks(). */
uint64_t state_layers_ask(struct stacks *st, const char *stack, void (*done)(void *arg), void *arg);
/* True, with a failure (429): too many operations of this tenant wait for the layer store. */
bool state_crowded(struct stacks *st, const struct tenant *t, struct state_failure *ret);
/* Compares rows with what the layer store has: when it connects, then periodically. */
void state_meet(struct stacks *st);

#endif
