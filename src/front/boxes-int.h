/* boxes-int.h - inside of boxes*.c: what a box is besides what others see. */
#ifndef HUTCH_FRONT_BOXES_INT_H
#define HUTCH_FRONT_BOXES_INT_H

#include "base/map.h"
#include "front/boxes.h"
#include "store/store.h"

struct creation; /* boxes-create.c */

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
    bool died;                             /* while it was being made */
    bool unsure;     /* loaded from a row that did not say yet whether the create came to its end */
    bool ended;      /* freed when the loop goes round */
    const char *why; /* of a kill: static */
};

/* An idempotency key: tenant and key as one text, "tenant/key" (a tenant's id has no slash). */
struct idem {
    struct idem *next; /* oldest first */
    char *name;
    char digest[72];
    char sandbox[SANDBOX_ID_MAX];
    uint64_t created_unix; /* by idem_now */
};

struct end_fn {
    box_ended_fn *fn;
    void *arg;
};

struct boxes {
    struct map by_id;
    struct map idems;
    struct idem *first_idem, **last_idem;
    struct end_fn ends[8];
    size_t nends;
    struct creation *creations; /* under way, also those given up whose calls still run */
    uint64_t round;             /* of reconciliation */
    bool keeper_up;
    uint64_t boot_unix_ms; /* the wall clock at boot, as it was told when front started: for idempotency keys */
    loop_id timer;         /* expires idempotency keys */
};

static inline struct box_own *box_own(struct box *b) { return (struct box_own *)b; }

uint64_t boxes_unix_ms(void);
uint64_t boxes_boot_ms(void); /* CLOCK_BOOTTIME */

/* boxes.c */
struct box_own *box_new(struct front *f, struct tenant *t, const char *id);
void box_write(struct front *f, const struct box *b, const struct store_idem *idem, store_done *done, void *arg);
struct tenant_need box_need(const struct box *b);
/* The box is gone: everyone is told, the row goes. `type` is the event's: "died", "killed", or NULL for none. */
void box_end(struct front *f, struct box_own *o, const char *type, const char *cause, const struct keeper_usage *u);
/* Frees a box that never ran; its row goes, nobody is told. */
void box_discard(struct front *f, struct box_own *o);

/* boxes-create.c: at the end of the process, nobody is told. */
void creation_drop(struct creation *c);

/* boxes-idem.c */
int idems_load(struct front *f, struct err *err);
void idems_free(struct front *f);
void idems_expire(struct front *f);
/* Seconds, nearly of the wall clock, but a wall clock that is set while front runs does not change their age. */
uint64_t idem_now(const struct front *f);
struct idem *idem_find(struct front *f, const char *tenant, const char *key);
void idem_add(struct front *f, const char *tenant, const char *key, const char *digest, const char *sandbox,
              uint64_t created_unix);
/* Of a create that failed: the next try with this key starts anew. */
void idem_forget(struct front *f, const char *tenant, const char *key);
/* Of what was asked for. */
void idem_digest(const struct box_spec *s, char ret[72]);

#endif
