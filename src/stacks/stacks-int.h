/* stacks-int.h - shared by meet.c and quota.c: what is held, and who else names stacks. */
#ifndef HUTCH_STACKS_STACKS_INT_H
#define HUTCH_STACKS_STACKS_INT_H

#include "base/map.h"
#include "db/db.h"
#include "stacks/stacks.h"

enum { STACK_OWNERS_MAX = 8 };

/* A stack that no row names yet. */
struct state_held {
    char stack[STACK_ID_MAX];
    unsigned n;
    const struct tenant *tenant; /* in whose quota it counts; NULL: in none */
};

struct stacks {
    struct loop *loop; /* these four are borrowed */
    const struct config *config;
    struct db *db;
    const struct peers *peers;
    struct {
        const struct stack_owner *owner;
        void *ctx;
    } owners[STACK_OWNERS_MAX];
    size_t nowners;
    struct map held; /* stack -> struct state_held */
    struct strv to_flatten;
    bool flattening;
    char flat[STACK_ID_MAX]; /* the stack that is being flattened */
    struct layers *layers;   /* quota.c: which layers each stack has */
    loop_id meet_timer;      /* starts the next comparison with the layer store, at meet_at_ms */
    uint64_t meet_at_ms;
    size_t dropping; /* drops under way */
};

void stacks_each_use(struct stacks *st, stack_use_fn *fn, void *arg);

/* quota.c */
/* Reads the layer store's list of layers (LAYERS_OF_STACKS), of any number of stacks. */
void state_layers_read(struct stacks *st, int fd);
/* For a stack whose layers the layer store has not listed yet: assumes one layer of that size. */
void state_layers_guess(struct stacks *st, const char *stack, uint64_t bytes);
void state_layers_forget(struct stacks *st, const char *stack);
void state_layers_free(struct stacks *st);

#endif
