/* boxes-int.h - inside of boxes*.c: what a box is besides what others see. */
#ifndef HUTCH_FRONT_BOXES_INT_H
#define HUTCH_FRONT_BOXES_INT_H

#include "base/map.h"
#include "front/boxes.h"
#include "front/state.h"
#include "store/store.h"

struct creation; /* boxes-create.c */

enum {
    /* Of boxes that keeper must not end by itself: those that are paused, and those that are to be paused at their end. */
    BOX_FAR_S = 10 * 365 * 86400,
    IDEMS_MAX = 100000,        /* idempotency keys in all; the tenant that has the most gives its oldest */
    BOX_CHANGE_MS = 30 * 1000, /* whoever waits for a change is told by then */
};

/* A box on its way from one state to another: paused, unloaded, resumed. One at a time. */
struct change_waiter {
    struct change_waiter *next;
    box_paused *done;
    void *arg;
};
struct box_change {
    struct front *front;
    struct box_own *box; /* NULL: it has ended, or the change is over; the last call under way frees */
    enum { CHANGE_FREEZE, CHANGE_STORE, CHANGE_UNLOAD, CHANGE_THAW, CHANGE_RESTORE } kind;
    struct change_waiter *waiters;  /* for this change */
    struct change_waiter *resumers; /* for a resume right after it */
    uint64_t resume_timeout_s;      /* of those */
    unsigned pending;               /* calls under way */
    loop_id timer;
    char id[SANDBOX_ID_MAX];
    char stack[STACK_ID_MAX], before[STACK_ID_MAX]; /* made by it; what the box had */
    uint64_t bytes_before, frozen_us;
    uint64_t end_unix_ms, end_boot_ms, timeout_s; /* resume: the new end */
    uint64_t begun_ms;
    bool held;                            /* `stack` is */
    bool life_changed;                    /* meanwhile: keeper has been told an end that is not the box's any more */
    bool bound, net_done, undoing, quota; /* restore: how far it is; the tenant's quota was taken */
    struct start_run *start;
    struct state_failure failure;
};

struct waiter {
    struct waiter *next;
    box_done *done;
    void *arg;
};

struct box_own {
    struct box b; /* first */
    struct front *front;
    struct creation *creation;             /* while it is being made */
    struct waiter *killers;                /* told when it is gone */
    uint64_t round;                        /* of the reconciliation that may miss it: those begun after it was there */
    uint64_t started_boot_ms, end_boot_ms; /* CLOCK_BOOTTIME: what counts, whatever happens to the wall clock */
    bool seen;                             /* by the reconciliation under way */
    bool unmet;                            /* loaded from a row; keeper has not said yet whether it lives */
    bool died;                             /* while it was being made */
    bool unsure;        /* loaded from a row that did not say yet whether the create came to its end */
    bool ended;         /* freed when the loop goes round */
    bool stored;        /* counts as files only: see box_count_stored */
    bool leftover;      /* STORED, but something of it may still live */
    uint32_t row_state; /* as it was last written */
    struct box_change *change;
    uint64_t pause_retry_ms; /* loop time: an automatic pause failed; not before */
    uint64_t
        pause_wait_ms; /* its files did not fit: after which time it is tried again if that happens once more; else 0 */
    const char *why;   /* of a kill: static */
    bool counted;      /* hidden, but in the tenant's quota */
};

/* An idempotency key: tenant and key as one text, "tenant/key" (a tenant's id has no slash). */
struct idem {
    struct idem *next, **link; /* of its tenant, oldest first */
    struct idem_share *share;
    char *name;
    char digest[72];
    char sandbox[SANDBOX_ID_MAX];
    uint64_t created_unix; /* by idem_now */
};

struct end_fn {
    box_ended_fn *fn;
    void *arg;
};

/* A stack that no row names yet. */
struct state_held {
    char stack[STACK_ID_MAX];
    unsigned n;
    const struct tenant *tenant; /* whose it is, if it counts for somebody */
};

struct boxes {
    struct map by_id;
    struct map idems;       /* "tenant/key" -> struct idem */
    struct map idem_shares; /* tenant -> struct idem_share */
    struct end_fn ends[8];
    size_t nends;
    struct pause_fn {
        box_pausing_fn *fn;
        void *arg;
    } pauses[4];
    size_t npauses;
    size_t nstored;             /* of by_id */
    struct creation *creations; /* under way, also those given up whose calls still run */
    uint64_t round;             /* of reconciliation */
    bool keeper_up;
    uint64_t boot_unix_ms; /* the wall clock at boot, as it was told when front started: for idempotency keys */
    loop_id timer;         /* expires idempotency keys */
    loop_id idle_timer;    /* boxes-idle.c */
    uint64_t idle_at;      /* when it goes off */
    struct map held;       /* state-meet.c: stack -> struct state_held */
    struct strv to_flatten;
    bool flattening;
    char flat[STACK_ID_MAX]; /* what is being made into one layer */
    struct layers *layers;   /* state-quota.c: of what stacks consist */
    loop_id meet_timer;      /* for the next meeting with stock, which is at meet_at_ms */
    uint64_t meet_at_ms;
    size_t dropping; /* stacks on their way out */
    struct state_ability ability;
};

static inline struct box_own *box_own(struct box *b) { return (struct box_own *)b; }

uint64_t boxes_unix_ms(void);
uint64_t boxes_boot_ms(void); /* CLOCK_BOOTTIME */

/* boxes.c */
struct box_own *box_new(struct front *f, struct tenant *t, const char *id);
void box_write(struct front *f, const struct box *b, const struct store_idem *idem, store_done *done, void *arg);
/* As a row of that state, whatever b->state is on the way. */
void box_write_as(struct front *f, struct box *b, uint32_t state, store_done *done, void *arg);
struct tenant_need box_need(const struct box *b);
/* When keeper shall end it. */
uint64_t box_deadline(const struct box *b);
/* The box is gone: everyone is told, the row goes. `type` is the event's: "died", "killed", or NULL for none. */
void box_end(struct front *f, struct box_own *o, const char *type, const char *cause, const struct keeper_usage *u);
/* Frees a box that never ran; its row goes, nobody is told. */
void box_discard(struct front *f, struct box_own *o);

/* boxes-create.c: at the end of the process, nobody is told. */
void creation_drop(struct creation *c);
/* Its box was killed before it was there; or it could not be, and goes on. */
void creation_killed(struct creation *c);
void creation_go_on(struct creation *c);

/* boxes-spawn.c */
struct box_source {
    struct template_info info;
    char stack[STACK_ID_MAX];   /* "": a directory of the templates */
    struct tmpl_config *config; /* owned; NULL: it says nothing */
};
/* A row of the tenant or for everybody, else a directory; for a build also a stack by its id. False: there is none. */
bool box_source_find(struct front *f, const struct tenant *who, const char *name, bool build, struct box_source *ret);
void box_source_fork(const struct box *from, const char *stack, struct box_source *ret);
void box_source_done(struct box_source *s);
/* Its own variables and those of its template, appended. */
void box_variables(const struct box *b, struct strv *env);
/* What keeper is asked for, and init told; the environment is appended to env, of which bind borrows. */
void box_keeper_request(struct front *f, const struct box *b, struct keeper_create *ret);
void box_binding(struct front *f, const struct box *b, struct strv *env, struct link_bind *ret);
void box_kept(struct front *f, struct box *b, const struct keeper_reply *r);

/* boxes-pause.c */
/* At the end of its life or without traffic: the number of what is kept does not refuse it (there was a place when that
 * was asked for). Files that do not fit the quota of storage do, with 429. */
void box_pause_anyway(struct front *f, struct box *b, bool memory, box_paused *done, void *arg);
struct box_change *box_change_new(struct front *f, struct box_own *o, int kind);
/* list: c->waiters or c->resumers. */
void box_change_wait(struct box_change *c, struct change_waiter **list, box_paused *done, void *arg);
void box_change_longer(struct box_change *c, uint64_t ms); /* it may take that much more */
/* Ends it: the box is in `state` now; who waits is told c->failure. */
void box_change_over(struct box_change *c, enum box_state state);
/* A call came back: false, nobody needs the answer any more (and c may be gone). */
bool box_change_back(struct box_change *c);
/* The box has ended while it was on its way. */
void box_change_ended(struct box_own *o);
/* It could not be killed: what it is now, by its row; what was under way when the kill came (`before`) is taken back. */
enum box_state box_not_killed(struct front *f, struct box_own *o, enum box_state before);
void box_change_drop(struct box_own *o); /* at the end of the process */
/* Calls done from the loop. */
void box_refuse(struct front *f, const struct state_failure *why, box_paused *done, void *arg);
void box_publish(struct front *f, const struct box *b, const char *type, const struct box_change *c);
/* Frozen or stored, found so at the start: what it counts for. */
void box_count_stored(struct front *f, struct box *b, bool stored);

/* boxes-idle.c: something has changed that may end or pause a box earlier than was known. */
void boxes_idle_look(struct front *f, uint64_t in_ms);
void boxes_idle_free(struct front *f);

/* state-meet.c */
void state_held_free(struct front *f);

/* state-quota.c */
/* Stock's list of layers (STOCK_LAYERS), of as many stacks as it has. */
void state_layers_read(struct front *f, int fd);
/* Of a stack that stock has not told about: one layer of that size. */
void state_layers_guess(struct front *f, const char *stack, uint64_t bytes);
void state_layers_forget(struct front *f, const char *stack);
void state_layers_free(struct front *f);

/* boxes-idem.c */
int idems_load(struct front *f, struct err *err);
void idems_free(struct front *f);
void idems_expire(struct front *f);
/* Seconds, nearly of the wall clock, but a wall clock that is set while front runs does not change their age. */
uint64_t idem_now(const struct front *f);
struct idem *idem_find(struct front *f, const char *tenant, const char *key);
void idem_add(struct front *f, const char *tenant, const char *key, const char *digest, const char *sandbox,
              uint64_t created_unix);
/* Of a create that failed: the next try with this key starts anew. From memory and from the store. */
void idem_forget(struct front *f, const char *tenant, const char *key);
/* The same for the key that this sandbox was asked for with, if there was one. */
void idem_forget_box(struct front *f, const char *sandbox);
/* Of what was asked for. */
void idem_digest(const struct box_spec *s, char ret[72]);

#endif
