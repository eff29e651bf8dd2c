/* sandboxes-int.h - the private part of a sandbox and the functions that the files of this room share. Other rooms use
 * sandboxes.h.
 */
#ifndef HUTCH_SANDBOXES_SANDBOXES_INT_H
#define HUTCH_SANDBOXES_SANDBOXES_INT_H

#include "base/map.h"
#include "db/db.h"
#include "sandboxes/sandboxes.h"
#include "sandboxes/session.h"

struct creation; /* create.c */

enum {
    /* keeper's deadline of sandboxes that it must not end: paused ones, and those that front pauses at their end. */
    SANDBOX_FAR_S = 10 * 365 * 86400,
    IDEMS_MAX = 100000, /* idempotency keys in all; beyond it the tenant with the most keys loses its oldest */
    SANDBOX_CHANGE_MS = 30 * 1000, /* those who wait for a change are answered by then */
};

/* Answers that a create or a restore waits for before its start command runs. */
enum { SANDBOX_AWAITS_ROW = 1, SANDBOX_AWAITS_BINDING = 2, SANDBOX_AWAITS_NETWORK = 4 };

/* A sandbox changes its state: it is paused, unloaded or resumed; its state says which. A sandbox has one change at a
 * time. */
struct change_waiter {
    struct change_waiter *next;
    sandbox_paused *done;
    void *arg;
};
struct sandbox_change {
    struct sandboxes *sandboxes;
    /* NULL: the sandbox has ended or the change is over; the last call that returns frees the change */
    struct sandbox_own *sandbox;
    struct change_waiter *waiters;  /* wait for this change */
    struct change_waiter *resumers; /* wait for a resume that follows this change */
    uint64_t resume_timeout_s;      /* the longest timeout that the resumers asked for */
    unsigned pending;               /* calls under way */
    loop_id timer;
    char id[SANDBOX_ID_MAX];
    char stack[STACK_ID_MAX];  /* the stack this change makes, which is held (state_hold); "": none */
    char before[STACK_ID_MAX]; /* the one the sandbox had */
    uint64_t bytes_before, frozen_us;
    uint64_t end_unix_ms, end_boot_ms, timeout_s; /* resume: the new end */
    uint64_t begun_ms;
    unsigned awaits;   /* restore: SANDBOX_AWAITS_* */
    bool life_changed; /* the sandbox's end changed meanwhile: keeper's deadline is out of date */
    struct start_run *start;
    struct state_failure failure;
};

struct waiter {
    struct waiter *next;
    sandbox_done *done;
    void *arg;
};

/* What is known of a sandbox that was loaded from a row. */
enum sandbox_met {
    SANDBOX_MET,    /* keeper said that it lives, or it was made by this front */
    SANDBOX_UNMET,  /* keeper has not said yet whether it lives */
    SANDBOX_UNSURE, /* the row is `creating`: only init knows whether it was bound */
};

struct sandbox_own {
    struct sandbox b; /* first */
    struct sandboxes *sandboxes;
    struct creation *creation;             /* while it is being made */
    struct waiter *killers;                /* told when it is gone */
    uint64_t round;                        /* keeper's lists of this round and earlier ones need not name the sandbox */
    uint64_t started_boot_ms, end_boot_ms; /* CLOCK_BOOTTIME: authoritative, unaffected by changes of the wall clock */
    bool seen;                             /* keeper's current list names it */
    enum sandbox_met met;
    bool stored;        /* counted as one that exists as files only: sandbox_count_stored() */
    bool leftover;      /* as files, but processes of it may still live */
    uint32_t row_state; /* the state that the row says */
    struct sandbox_change *change;
    uint64_t pause_retry_ms; /* loop time: an automatic pause failed; the next try is not earlier */
    uint64_t pause_wait_ms;  /* back-off after its files did not fit, for the next failure; 0: none */
    const char *why;         /* reason of a kill; static */
};

/* An idempotency key: tenant and key as one text, "tenant/key" (a tenant's id has no slash). */
struct idem {
    struct idem *next, **link; /* of its tenant, oldest first */
    struct idem_share *share;
    char *name;
    char digest[72];
    char sandbox[SANDBOX_ID_MAX];
    uint64_t created_unix; /* as idem_now() counts */
};

struct end_fn {
    sandbox_ended_fn *fn;
    void *arg;
};

struct sandboxes {
    struct loop *loop; /* these, up to ids, are borrowed */
    const struct config *config;
    struct db *db;
    const struct peers *peers;
    struct tenants *tenants;
    struct stacks *stacks;
    struct templates *templates;
    struct events *events;
    struct idseal *ids;
    const struct sandbox_network *network;
    struct networks *networks;
    sandbox_mount_fn *mount_exists;
    void *mount_arg;
    session_generation_fn *make_generation; /* session.h */
    struct snapshots *snapshots;
    bool has_watchers;       /* there was one, so that watchers.c is told of ends */
    struct metrics *metrics; /* metrics.c */
    struct map by_id;
    struct map idems;       /* "tenant/key" -> struct idem */
    struct map idem_shares; /* tenant -> struct idem_share */
    struct end_fn ends[8];
    size_t nends;
    struct pause_fn {
        sandbox_pausing_fn *fn;
        void *arg;
    } pauses[4];
    size_t npauses;
    struct change_fn {
        sandbox_changed_fn *fn;
        void *arg;
    } changes[2];
    size_t nchanges;
    size_t nstored;             /* of by_id */
    struct creation *creations; /* under way, and failed ones with calls that have not returned */
    uint64_t round;             /* number of the latest comparison with keeper */
    bool keeper_up;
    uint64_t boot_unix_ms; /* wall clock at boot, computed when front started: for idempotency keys */
    loop_id timer;         /* expires idempotency keys */
    loop_id idle_timer;    /* idle.c */
    uint64_t idle_at;      /* when idle_timer fires */
    struct state_ability ability;
};

static inline struct sandbox_own *sandbox_own(struct sandbox *b) { return (struct sandbox_own *)b; }

/* sandboxes.c */
struct sandbox_own *sandbox_new(struct sandboxes *sb, struct tenant *t, const char *id);
void sandbox_write(struct sandboxes *sb, const struct sandbox *b, const struct db_idem *idem, db_done *done, void *arg);
/* Writes a row of that state; b->state may still differ. */
void sandbox_write_as(struct sandboxes *sb, struct sandbox *b, uint32_t state, db_done *done, void *arg);
/* Takes the step of life.h that the event means: sets the state. The caller performs the action. */
const struct life_cell *sandbox_step(struct sandbox *b, enum life_event e);
/* Whether the state allows the request, without a step. False: *why has the refusal. */
bool sandbox_may_ask(const struct sandbox *b, enum life_event e, struct state_failure *why);
struct tenant_need sandbox_need(const struct sandbox *b);
/* The deadline that keeper gets for it. */
uint64_t sandbox_deadline(const struct sandbox *b);
/* The sandbox is gone: publishes the event `type` ("died", "killed"; NULL: none), calls sandboxes_on_end()
 * callbacks, deletes the row. */
void sandbox_end(struct sandboxes *sb, struct sandbox_own *o, const char *type, const char *cause,
                 const struct keeper_usage *u);
/* Frees a sandbox that never ran and deletes its row, without an event and without callbacks. */
void sandbox_discard(struct sandboxes *sb, struct sandbox_own *o);

/* desc.c */
void sandbox_desc_set_config(struct sandbox_desc *d, struct template_config *config); /* takes it; NULL: none */
/* The row of a sandbox; it borrows from b and from `texts`, to which this appends. */
void sandbox_row_encode(const struct sandbox *b, uint32_t state, struct strv *texts, struct db_sandbox *ret);
/* Fills a fresh sandbox from its row, but for id, tenant and state. Rows of all earlier versions are readable. */
void sandbox_row_decode(const struct db_sandbox *row, struct sandbox *b);

/* create.c: frees without answering, at the end of the process. */
void creation_drop(struct creation *c);
/* creation_killed(): its sandbox was killed before it was ready. creation_go_on(): the kill failed, the creation
 * continues. */
void creation_killed(struct creation *c);
void creation_go_on(struct creation *c);

/* spawn.c */
/* Settles what the description's template decides, as far as it is known: stack, config, image. Finds a row that the
 * tenant may use, else a directory; with d->hidden also a stack by its id. False: there is none. */
bool sandbox_source_find(struct sandboxes *sb, const struct tenant *who, struct sandbox_desc *d,
                         struct template_info *ret);
/* The request to keeper; the binding for init, which borrows from env: sandbox_binding() appends the environment
 * there. */
void sandbox_keeper_request(struct sandboxes *sb, const struct sandbox *b, struct keeper_create *ret);
void sandbox_binding(struct sandboxes *sb, const struct sandbox *b, struct strv *env, struct link_bind *ret);
void sandbox_kept(struct sandboxes *sb, struct sandbox *b, const struct keeper_reply *r);

/* pause.c */
/* An automatic pause. The quota of the number of paused sandboxes does not refuse it: sandbox_set_life() and the
 * create checked that. Files that do not fit the quota of storage refuse it, with 429. */
void sandbox_pause_anyway(struct sandboxes *sb, struct sandbox *b, bool memory, sandbox_paused *done, void *arg);
/* Begins what was asked for: takes the step and makes the change. */
struct sandbox_change *sandbox_change_new(struct sandboxes *sb, struct sandbox_own *o, enum life_event asked);
/* list: c->waiters or c->resumers. */
void sandbox_change_wait(struct sandbox_change *c, struct change_waiter **list, sandbox_paused *done, void *arg);
void sandbox_change_longer(struct sandbox_change *c, uint64_t ms); /* extends the time by ms */
/* Ends the change with the event (FINISHED, FAILED, UNDONE); all waiters get c->failure. */
void sandbox_change_over(struct sandbox_change *c, enum life_event e);
/* Call first when a call returns. False: the change is over, ignore the answer; c may be freed. */
bool sandbox_change_back(struct sandbox_change *c);
/* The sandbox has ended during the change. */
void sandbox_change_ended(struct sandbox_own *o);
/* A kill failed: the sandbox is what the row says. A pause that was under way is undone. */
void sandbox_not_killed(struct sandboxes *sb, struct sandbox_own *o, bool was_pausing);
void sandbox_change_drop(struct sandbox_own *o); /* at the end of the process */
/* Calls done from the loop. */
void sandbox_refuse(struct sandboxes *sb, const struct state_failure *why, sandbox_paused *done, void *arg);
void sandbox_publish(struct sandboxes *sb, const struct sandbox *b, const char *type, const struct sandbox_change *c);
/* Counts the sandbox as stored (files only) or not. */
void sandbox_count_stored(struct sandboxes *sb, struct sandbox *b, bool stored);

/* idle.c: looks in in_ms, or earlier, for sandboxes whose pause is due. */
void sandboxes_idle_look(struct sandboxes *sb, uint64_t in_ms);
void sandboxes_idle_free(struct sandboxes *sb);

/* idempotency.c */
int idems_load(struct sandboxes *sb, struct err *err);
void idems_free(struct sandboxes *sb);
void idems_expire(struct sandboxes *sb);
/* Unix seconds that ignore changes of the wall clock while front runs, so that the age of a key is right. */
uint64_t idem_now(const struct sandboxes *sb);
struct idem *idem_find(struct sandboxes *sb, const char *tenant, const char *key);
void idem_add(struct sandboxes *sb, const char *tenant, const char *key, const char *digest, const char *sandbox,
              uint64_t created_unix);
/* After a failed create: removes the key from memory and the database, so that the next try with it starts anew. */
void idem_forget(struct sandboxes *sb, const char *tenant, const char *key);
/* The same for the key with which this sandbox was requested, if there is one. */
void idem_forget_sandbox(struct sandboxes *sb, const char *sandbox);
/* Digest of the request. */
void idem_digest(const struct sandbox_spec *s, char ret[72]);

/* session-limit.c: the start of a command with a limit on memory. */
struct limited_start;
/* The spec is a copy, for this call, with the number of its cgroup; failed: why it cannot be started. */
typedef void limited_ready(void *arg, const struct exec_spec *spec, const struct link_status *failed);
struct limited_start *limited_start(struct sandboxes *sb, const char *id, const struct exec_spec *spec,
                                    limited_ready *ready, void *arg);
/* No more call of ready. */
void limited_drop(struct limited_start *l);

#endif
