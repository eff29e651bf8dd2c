/* store.h - the facts that outlive a front: tenants, keys, secrets (sealed), sandboxes and their networks,
 * idempotency keys, recent events. SQLite in WAL mode.
 *
 * Reading happens at start, on the loop's thread (the *_each functions; the rows are borrowed for the call). Writing never
 * blocks the loop: rows are copied into a queue, one writer thread takes what is there, writes it in one transaction and
 * posts the results back, so that many writers share one fsync. Writes happen in the order they were asked for. A write
 * that fails is reported to its `done` and leaves nothing behind; the next one is tried again. On a full disk (err->eno
 * ENOSPC) what removes something is written all the same, as long as the reserve lasts (store-reserve.c).
 */
#ifndef HUTCH_STORE_STORE_H
#define HUTCH_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"
#include "loop/loop.h"

struct store;

#define STORE_FILE         "store.db"
#define STORE_MARK_FILE    "store.mark"    /* beside it; says which store was here last */
#define STORE_RESERVE_FILE "store.reserve" /* beside it; blocks for a disk that is full */

enum {
    STORE_SCHEMA = 8,
    STORE_QUEUE_MAX = 20000,     /* writes that wait; more fail at once */
    STORE_BATCH_MAX = 256,       /* writes in one transaction */
    STORE_EVENTS_MAX = 20000,    /* kept in all; the tenant that has the most gives its oldest */
    STORE_RESERVE_MAX = 8 << 20, /* bytes; of a small disk an eighth */
    STORE_IDEM_HOURS = 24,       /* an idempotency key is remembered this long */
};

/* Opens or makes STORE_FILE in a directory, which is reached by its descriptor only (borrowed, until the end): the way
 * to it need not be open to us. `shown` is its path for messages. Errors (ERR_SETUP) say what is wrong with it and what
 * to do: damaged, not ours, from a newer version, locked. Blocks. */
int store_open(struct loop *l, int dir, const char *shown, struct store **ret, struct err *err);
/* Writes what is queued, then closes. No `done` is called any more; the loop must not run again. NULL is fine. */
void store_close(struct store *s);

/* From the loop, once. NULL: committed; tenants, keys and secrets are on disk by then, what concerns sandboxes is safe from
 * everything but a power cut, which they do not survive either. A NULL function is allowed everywhere. */
typedef void store_done(void *arg, const struct err *err);

struct store_tenant {
    const char *id, *name;
    uint32_t sandboxes, cpu_milli;
    uint64_t memory, disk;
    uint32_t requests_per_second, burst, max_timeout_s;
    uint32_t snapshots; /* and paused sandboxes, together */
    uint64_t state_bytes, state_entries;
};
void store_tenant_put(struct store *s, const struct store_tenant *t, store_done *done, void *arg);
void store_tenant_del(struct store *s, const char *id, store_done *done, void *arg); /* with its keys */
int store_tenants(struct store *s, void (*each)(void *arg, const struct store_tenant *t), void *arg, struct err *err);

struct store_key {
    const char *id, *tenant, *name, *hint;
    const char *digest; /* SHA-256 of the secret, hexadecimal */
    uint32_t scopes;
    uint64_t created_unix, expires_unix, used_unix;
};
void store_key_put(struct store *s, const struct store_key *k, store_done *done, void *arg);
void store_key_del(struct store *s, const char *id, store_done *done, void *arg);
void store_key_used(struct store *s, const char *id, uint64_t used_unix);
int store_keys(struct store *s, void (*each)(void *arg, const struct store_key *k), void *arg, struct err *err);

enum store_box_state {
    STORE_BOX_CREATING = 0,
    STORE_BOX_RUNNING = 1,
    STORE_BOX_FROZEN = 2, /* paused in memory: keeper holds it */
    STORE_BOX_STORED = 3, /* paused as files: `stack` holds it */
};
enum {
    STORE_BOX_PUBLIC = 1,
    STORE_BOX_INTERNET = 2,
    STORE_BOX_AUTO_PAUSE = 4,       /* at its end it is paused, not killed */
    STORE_BOX_AUTO_PAUSE_FILES = 8, /* without memory */
    STORE_BOX_AUTO_RESUME = 16,     /* by traffic */
    STORE_BOX_HISTORY = 32,         /* every exec opens a generation */
};
enum { STORE_VOLUMES_MAX = 8 };
struct store_mount {
    const char *volume, *name, *place;
    uint32_t flags;
};
enum { STORE_PORTS_MAX = 32 };
struct store_port {
    uint32_t port, flags; /* flags: front's */
};
struct store_box {
    const char *id, *tenant, *template, *token, *traffic_token, *mask_host, *tier, *degraded;
    uint32_t state, flags; /* enum store_box_state; STORE_BOX_* */
    uint32_t https_ports[8];
    size_t nhttps_ports;
    struct store_port ports[STORE_PORTS_MAX]; /* about which something was said */
    size_t nports;
    uint64_t links;            /* generation of the links to its ports */
    struct strv metadata, env; /* borrowed when writing */
    uint64_t started_unix_ms, end_unix_ms;
    uint32_t cpu_milli, pids;
    uint64_t memory, disk;
    const char *stack;  /* what it was made from, or, STORED, what it is: a stack, or "" */
    const char *parent; /* the sandbox it was forked from, or "" */
    uint32_t idle_s;    /* paused after so long without traffic; 0: never */
    uint64_t timeout_s; /* as asked for last: what a resume starts with */
    struct store_mount mounts[STORE_VOLUMES_MAX];
    size_t nmounts;
    const char *config;   /* JSON: what its template says a sandbox starts with, or "" */
    uint64_t state_bytes; /* STORED: of what was captured */
};
struct store_idem {
    const char *tenant, *key, *digest, *sandbox; /* digest: of the request, hexadecimal */
    uint64_t created_unix;
};
/* Both rows or none; idem may be NULL. */
void store_box_put(struct store *s, const struct store_box *b, const struct store_idem *idem, store_done *done,
                   void *arg);
void store_box_end_at(struct store *s, const char *id, uint64_t end_unix_ms, store_done *done, void *arg);
void store_box_del(struct store *s, const char *id, store_done *done, void *arg);
/* How many are STORE_BOX_STORED. */
int store_stored_boxes(struct store *s, size_t *ret, struct err *err);
int store_boxes(struct store *s, void (*each)(void *arg, const struct store_box *b), void *arg, struct err *err);
/* Oldest first. */
int store_idems(struct store *s, void (*each)(void *arg, const struct store_idem *i), void *arg, struct err *err);
/* Forgets those older than that. */
void store_idem_expire(struct store *s, uint64_t before_unix);
void store_idem_del(struct store *s, const char *tenant, const char *key);

/* The network of a sandbox; the row goes with the sandbox's own. Written before that one it is there whenever the other
 * is. */
struct store_net {
    const char *sandbox;
    uint64_t epoch;
    const char *document;             /* as it was given: JSON */
    const char *e2b;                  /* the same in E2B's words, or "" */
    const char *proxy_password;       /* sealed, base64, or "" */
    struct strv placeholders, denied; /* secret, text, secret, text ...; ids of approvals that were refused. Borrowed */
};
void store_net_put(struct store *s, const struct store_net *n, store_done *done, void *arg);
int store_nets(struct store *s, void (*each)(void *arg, const struct store_net *n), void *arg, struct err *err);
/* Rows whose sandbox is not there: a create was cut short. At start only. */
void store_net_sweep(struct store *s);

/* Counters of a sandbox, or (sandbox "") of all of a tenant's, as JSON. Those of a sandbox go with it, a tenant's with it. */
void store_usage_put(struct store *s, const char *tenant, const char *sandbox, const char *counters, store_done *done,
                     void *arg);
int store_usages(struct store *s,
                 void (*each)(void *arg, const char *tenant, const char *sandbox, const char *counters), void *arg,
                 struct err *err);
void store_usage_sweep(struct store *s); /* of sandboxes that are not there. At start only */

struct store_secret {
    const char *tenant, *name, *id;
    uint64_t revision;
    const void *sealed; /* ciphertext: what it holds is known to egress alone */
    size_t nsealed;
    const char *spec;     /* JSON: where it may go */
    const char *metadata; /* JSON */
    uint64_t created_unix_ms, updated_unix_ms;
};
void store_secret_put(struct store *s, const struct store_secret *x, store_done *done, void *arg);
void store_secret_del(struct store *s, const char *tenant, const char *name, store_done *done, void *arg);
int store_secrets(struct store *s, void (*each)(void *arg, const struct store_secret *x), void *arg, struct err *err);

/* Templates made here and snapshots. `config` is JSON; tags: tag, build, stack, "created bytes JSON", tag, ...
 * (borrowed; templates-tags.c in front has words for the last). */
struct store_template {
    const char *id, *name, *tenant, *source, *config; /* tenant "": the node's */
    uint32_t kind, public;
    struct strv tags;
    uint64_t created_unix_ms, updated_unix_ms, spawned, builds, last_spawned_unix_ms, bytes;
};
void store_template_put(struct store *s, const struct store_template *t, store_done *done,
                        void *arg); /* on disk when told */
void store_template_del(struct store *s, const char *id, store_done *done, void *arg);
int store_templates(struct store *s, void (*each)(void *arg, const struct store_template *t), void *arg,
                    struct err *err);

struct store_volume {
    const char *id, *name, *tenant, *token;   /* token: of the content API */
    uint64_t created_unix_ms, bytes, entries; /* quota */
};
void store_volume_put(struct store *s, const struct store_volume *v, store_done *done, void *arg);
void store_volume_del(struct store *s, const char *id, store_done *done, void *arg);
int store_volumes(struct store *s, void (*each)(void *arg, const struct store_volume *v), void *arg, struct err *err);

/* By the name a tenant gave it; blocks for the time of a lookup. False: none. */
bool store_volume_find(struct store *s, const char *tenant, const char *name, char *ret_id, size_t room);

/* Generations of a sandbox's files; they go with it. */
struct store_generation {
    const char *sandbox, *stack, *command;
    uint64_t number, at_unix_ms, bytes;
};
void store_generation_put(struct store *s, const struct store_generation *g, store_done *done, void *arg);
void store_generation_del(struct store *s, const char *sandbox, uint64_t number, store_done *done, void *arg);
int store_generations(struct store *s, void (*each)(void *arg, const struct store_generation *g), void *arg,
                      struct err *err);

/* Transactions; they go with their sandbox. Put again, only the state of one is changed. UNDOING: none, but what there was
 * (base) goes back to a generation (result). */
enum { STORE_TRANSACTION_OPEN = 1, STORE_TRANSACTION_COMMITTING, STORE_TRANSACTION_UNDOING };
struct store_transaction {
    const char *id, *sandbox, *tenant, *base, *result, *command;
    uint64_t at_unix_ms, wall_ms, omitted;
    uint32_t state;
    bool exited;
    int code;
    const void *out, *err; /* what it wrote */
    size_t nout, nerr;
};
void store_transaction_put(struct store *s, const struct store_transaction *t, store_done *done, void *arg);
void store_transaction_del(struct store *s, const char *id, store_done *done, void *arg);
int store_transactions(struct store *s, void (*each)(void *arg, const struct store_transaction *t), void *arg,
                       struct err *err);

/* Layers of build steps, by the digest of what went into them. */
struct store_step {
    const char *tenant, *key, *stack; /* key: hexadecimal */
    uint64_t used_unix;
};
void store_step_put(struct store *s, const struct store_step *x, store_done *done, void *arg);
void store_step_del(struct store *s, const char *tenant, const char *key, store_done *done, void *arg);
int store_steps(struct store *s, void (*each)(void *arg, const struct store_step *x), void *arg, struct err *err);

struct store_event {
    const char *sandbox, *tenant, *type, *json;
    uint64_t seq, at_unix_ms; /* seq: per sandbox, from 1 */
};
/* Dropped without a word when the queue is half full: history is no reason to refuse work. */
void store_event_add(struct store *s, const struct store_event *e);
/* The newest, `max` at most, oldest first; a tenant that has many leaves the others theirs. */
int store_events(struct store *s, size_t max, void (*each)(void *arg, const struct store_event *e), void *arg,
                 struct err *err);

/* Told when everything that was asked for before is decided. */
void store_barrier(struct store *s, store_done *done, void *arg);
/* The same, and on the disk. */
void store_sync(struct store *s, store_done *done, void *arg);

/* Whether a committed row of a sandbox, a generation or a step names the stack. Blocks for the time of a lookup. */
bool store_stack_named(struct store *s, const char *stack);

/* Whether this is not the store that was here last, but a copy of before (or that cannot be known). */
bool store_put_back(const struct store *s);

/* When this store was made or put back (Unix time; INT64_MAX if that cannot be read): what it does not name and is older may be
 * named by one that was lost. `newest`: of all that there is. At the first call after it was made or put back, that is older,
 * too: the clock may have been behind then. Blocks for the time of a lookup. */
int64_t store_born(struct store *s, int64_t newest);

/* A counter that is one higher at each call (the epoch of ids). Blocks; at start only. */
int store_count_up(struct store *s, const char *name, uint64_t *ret, struct err *err);

/* Whether the last write that needs room was refused because the disk is full. */
bool store_disk_full(const struct store *s);

/* Writes that wait now; for metrics. */
size_t store_queued(const struct store *s);

#endif
