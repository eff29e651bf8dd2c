/* refs.h - finds which stacks and living sandboxes use which layers. It reads stacks/ and the journal whenever asked; no
 * counts are kept on disk.
 *
 * Besides stacks (st-ID), stacks/ holds
 *   st-ID.drop                 a note: only living sandboxes still need st-ID
 *   st-ID.gone-BOOT-TICKS      a stack that was dropped then; a create that had read it before may still be under way
 *   st-ID.redo                 apply.c: the complete change to a sandbox that ends in this stack (LAYERS_BACK: starts from
 *                              it); it has begun and must be completed or undone
 *   st-ID.undo                 apply.c: what the sandbox had in the places that the .redo changes
 *   st-ID.done                 apply.c: the change is complete
 *   st-ID.was-BOOT-TICKS       what the stack was until then; sandboxes that began before may use its layers
 * BOOT is the beginning of the boot id, TICKS the time since boot in the units of a process's start time, so that setting
 * the clock does no harm.
 */
#ifndef HUTCH_LAYERS_REFS_H
#define HUTCH_LAYERS_REFS_H

#include "base/map.h"
#include "layers/jobs.h"

/* GRACE: longer than keeper takes for any create, up to its record. */
enum { REFS_GRACE_S = 60, REFS_BOOT = 9, REFS_NAME_MAX = 96 };

enum stack_name_kind { STACK_NAME_OTHER, STACK_NAME_STACK, STACK_NAME_DROP, STACK_NAME_GONE, STACK_NAME_WAS };
struct stack_name {
    enum stack_name_kind kind;
    char id[STACK_ID_MAX];
    char boot[REFS_BOOT];
    uint64_t ticks;
};
/* Pure. */
struct stack_name stack_name_parse(const char *name);
/* kind GONE or WAS, with the time now. */
void stack_name_now(enum stack_name_kind kind, const char *id, char ret[REFS_NAME_MAX]);
/* Now, in ticks, and this boot. */
uint64_t refs_now(char boot[REFS_BOOT]);
uint64_t refs_grace_ticks(void);

struct refs_layer {
    char name[LAYER_NAME];
    uint32_t stacks; /* that name it: st-ID alone */
    bool held;       /* named by anything */
    char by[STACK_ID_MAX];
};
struct refs {
    struct map layers;
    struct refs_layer **v;
    size_t n, cap;
    char damaged[REFS_NAME_MAX]; /* a file that cannot be read: what it names is not known */
};
/* Reads all of stacks/. A damaged file is no failure; refs.damaged says which. */
int refs_read(const struct layers_place *p, struct refs *ret, struct err *err);
const struct refs_layer *refs_get(const struct refs *r, const char *layer);
void refs_done(struct refs *r); /* for tests: a job keeps them until it ends */
/* One file of stacks/, whatever it is called. */
int refs_read_file(const struct layers_place *p, const char *name, struct stack_file *ret, struct err *err);

/* Sandboxes in the journal. */
struct living {
    char id[KEEPER_ID_MAX], template[KEEPER_TEMPLATE_MAX];
    uint64_t start;                                 /* 0: it has no process yet */
    bool alive;                                     /* else its record is all that is left */
    char volume[KEEPER_VOLUMES_MAX][KEEPER_ID_MAX]; /* its volumes; "" ends them */
    const struct living *same;                      /* another one with the same template */
};
struct livings {
    struct living *v;
    size_t n, cap;
    struct map by_stack, by_id;
    char damaged[KEEPER_ID_MAX]; /* a record that cannot be read */
};
int livings_read(int run_dir, struct livings *ret, struct err *err);
/* One of that id, whether it lives or not; NULL. */
const struct living *livings_get(const struct livings *l, const char *id);
/* One that lives and was made from the stack; with `ticks`, only one that began by then. */
const struct living *livings_find(const struct livings *l, const char *stack, uint64_t ticks);
/* One that lives and was given the volume. */
const struct living *livings_volume(const struct livings *l, const char *volume);
void livings_done(struct livings *l);

bool layer_name_valid(const char *name);

/* Calls `each` for every name in the directory but "." and "..", until it returns -1. Names that come or go
 * meanwhile may be missed. */
int refs_each_name(int dir, int (*each)(void *arg, const char *name, struct err *err), void *arg, struct err *err);

#endif
