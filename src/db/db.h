/* db.h - keeps what must outlive a front process: tenants, keys, secrets (sealed), sandboxes and their networks,
 * idempotency keys, recent events. SQLite in WAL mode.
 *
 * Reading happens at start, on the loop's thread (the functions with `each`; rows are borrowed for the call). Writing
 * never blocks the loop: rows are copied into a queue; one writer thread takes all that wait, writes them in one
 * transaction and posts the results back, so that many writes share one fsync. Writes keep their order. A failed write
 * is reported to its `done` and changes nothing; later writes are tried normally. On a full disk (err->eno ENOSPC) only
 * removals are written, as long as the reserve lasts (store-reserve.c).
 */
#ifndef HUTCH_DB_DB_H
#define HUTCH_DB_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"
#include "loop/loop.h"

struct db;

#define DB_FILE         "store.db"
#define DB_MARK_FILE    "store.mark"    /* beside it; shows whether a copy was put back (store-mark.c) */
#define DB_RESERVE_FILE "store.reserve" /* beside it; blocks reserved for a full disk */

enum {
    DB_SCHEMA = 9,
    DB_QUEUE_MAX = 20000,     /* queued writes; more fail at once */
    DB_BATCH_MAX = 256,       /* writes in one transaction */
    DB_EVENTS_MAX = 20000,    /* kept in all; the tenants with the most lose their oldest */
    DB_RESERVE_MAX = 8 << 20, /* bytes; an eighth of a small disk */
    DB_IDEM_HOURS = 24,       /* an idempotency key is remembered this long */
};

/* Opens or makes DB_FILE in a directory, reached only through its descriptor (borrowed until db_close()): we may
 * not be allowed to search the path to it. `shown` is its path for messages. Errors (ERR_SETUP) say what is wrong with
 * the file and what to do: damaged, not ours, from a newer version, locked. Blocks. */
int db_open(struct loop *l, int dir, const char *shown, struct db **ret, struct err *err);
/* Writes what is queued, then closes. Calls no `done`; the loop must not run again. NULL is fine. */
void db_close(struct db *s);

/* Called once, from the loop. err NULL: committed. Tenants, keys and secrets are on the disk then; rows of running
 * sandboxes may be lost in a power cut, which the sandboxes do not survive either. A NULL function is allowed
 * everywhere. */
typedef void db_done(void *arg, const struct err *err);

struct db_tenant {
    const char *id, *name;
    uint32_t sandboxes, cpu_milli;
    uint64_t memory, disk;
    uint32_t requests_per_second, burst, max_timeout_s;
    uint32_t snapshots; /* and paused sandboxes, together */
    uint64_t state_bytes, state_entries;
};
void db_tenant_put(struct db *s, const struct db_tenant *t, db_done *done, void *arg);
void db_tenant_del(struct db *s, const char *id, db_done *done, void *arg); /* with its keys */
int db_tenants(struct db *s, void (*each)(void *arg, const struct db_tenant *t), void *arg, struct err *err);

struct db_key {
    const char *id, *tenant, *name, *hint;
    const char *digest; /* SHA-256 of the secret, hexadecimal */
    uint32_t scopes;
    uint64_t created_unix, expires_unix, used_unix;
};
void db_key_put(struct db *s, const struct db_key *k, db_done *done, void *arg);
void db_key_del(struct db *s, const char *id, db_done *done, void *arg);
void db_key_used(struct db *s, const char *id, uint64_t used_unix);
int db_keys(struct db *s, void (*each)(void *arg, const struct db_key *k), void *arg, struct err *err);

enum db_sandbox_state {
    DB_SANDBOX_CREATING = 0,
    DB_SANDBOX_RUNNING = 1,
    DB_SANDBOX_FROZEN = 2, /* paused in memory: keeper holds it */
    DB_SANDBOX_STORED = 3, /* paused as files: `stack` holds it */
};
enum {
    DB_SANDBOX_PUBLIC = 1,
    DB_SANDBOX_INTERNET = 2,
    DB_SANDBOX_AUTO_PAUSE = 4,       /* paused at its end instead of killed */
    DB_SANDBOX_AUTO_PAUSE_FILES = 8, /* without memory */
    DB_SANDBOX_AUTO_RESUME = 16,     /* by traffic */
    DB_SANDBOX_HISTORY = 32,         /* every exec opens a generation */
};
enum { DB_VOLUMES_MAX = 8 };
struct db_mount {
    const char *volume, *name, *place;
    uint32_t flags;
};
enum { DB_PORTS_MAX = 32 };
struct store_port {
    uint32_t port, flags; /* flags: front's */
};
struct db_sandbox {
    const char *id, *tenant, *template, *token, *traffic_token, *mask_host, *tier, *degraded;
    uint32_t state, flags; /* enum db_sandbox_state; DB_SANDBOX_* */
    uint32_t https_ports[8];
    size_t nhttps_ports;
    struct store_port ports[DB_PORTS_MAX]; /* those with settings */
    size_t nports;
    uint64_t links;            /* generation of the links to its ports */
    struct strv metadata, env; /* borrowed when writing */
    uint64_t started_unix_ms, end_unix_ms;
    uint32_t cpu_milli, pids;
    uint64_t memory, disk;
    const char *stack;  /* it was made from, or, if STORED, its own; or "" */
    const char *parent; /* the sandbox it was forked from, or "" */
    uint32_t idle_s;    /* paused after so long without traffic; 0: never */
    uint64_t timeout_s; /* last requested; a resume starts with it */
    struct db_mount mounts[DB_VOLUMES_MAX];
    size_t nmounts;
    const char *config;   /* JSON: the start configuration of its template, or "" */
    uint64_t state_bytes; /* STORED: size of the captured state */
    const char *more;     /* JSON: fields without a column; their words are the writer's. "": none */
};
struct db_idem {
    const char *tenant, *key, *digest, *sandbox; /* digest: of the request, hexadecimal */
    uint64_t created_unix;
};
/* Writes both rows or none; idem may be NULL. */
void db_sandbox_put(struct db *s, const struct db_sandbox *b, const struct db_idem *idem, db_done *done, void *arg);
void db_sandbox_end_at(struct db *s, const char *id, uint64_t end_unix_ms, db_done *done, void *arg);
void db_sandbox_del(struct db *s, const char *id, db_done *done, void *arg);
/* Counts the sandboxes that are DB_SANDBOX_STORED. */
int db_stored_sandboxes(struct db *s, size_t *ret, struct err *err);
int db_sandboxes(struct db *s, void (*each)(void *arg, const struct db_sandbox *b), void *arg, struct err *err);
/* Oldest first. */
int db_idems(struct db *s, void (*each)(void *arg, const struct db_idem *i), void *arg, struct err *err);
/* Forgets those older than that. */
void db_idem_expire(struct db *s, uint64_t before_unix);
void db_idem_del(struct db *s, const char *tenant, const char *key);

/* The network of a sandbox; the row is deleted with the sandbox's. It is written first, so that no sandbox is without
 * one. */
struct db_net {
    const char *sandbox;
    uint64_t epoch;
    const char *document;             /* as it was given: JSON */
    const char *e2b;                  /* the same in E2B's words, or "" */
    const char *proxy_password;       /* sealed, base64, or "" */
    struct strv placeholders, denied; /* secret, text, secret, text ...; ids of approvals that were refused. Borrowed */
};
void db_net_put(struct db *s, const struct db_net *n, db_done *done, void *arg);
int db_nets(struct db *s, void (*each)(void *arg, const struct db_net *n), void *arg, struct err *err);
/* Deletes rows without a sandbox: a create was interrupted. At start only. */
void db_net_sweep(struct db *s);

/* Counters of a sandbox, or (sandbox "") of a whole tenant, as JSON. Deleted with the sandbox or the tenant. */
void db_usage_put(struct db *s, const char *tenant, const char *sandbox, const char *counters, db_done *done,
                  void *arg);
int db_usages(struct db *s, void (*each)(void *arg, const char *tenant, const char *sandbox, const char *counters),
              void *arg, struct err *err);
void db_usage_sweep(struct db *s); /* deletes those without a sandbox or tenant. At start only */

struct db_secret {
    const char *tenant, *name, *id;
    uint64_t revision;
    const void *sealed; /* ciphertext: only egress can open it */
    size_t nsealed;
    const char *spec;     /* JSON: where it may go */
    const char *metadata; /* JSON */
    uint64_t created_unix_ms, updated_unix_ms;
};
void db_secret_put(struct db *s, const struct db_secret *x, db_done *done, void *arg);
void db_secret_del(struct db *s, const char *tenant, const char *name, db_done *done, void *arg);
int db_secrets(struct db *s, void (*each)(void *arg, const struct db_secret *x), void *arg, struct err *err);

/* Templates made here and snapshots. `config` is JSON; tags: tag, build, stack, "created bytes JSON", tag, ...
 * (borrowed; templates-tags.c in front has words for the last). */
struct db_template {
    const char *id, *name, *tenant, *source, *config; /* tenant "": the node's */
    uint32_t kind, public;
    struct strv tags;
    uint64_t created_unix_ms, updated_unix_ms, spawned, builds, last_spawned_unix_ms, bytes;
};
void db_template_put(struct db *s, const struct db_template *t, db_done *done, void *arg); /* on disk when told */
void db_template_del(struct db *s, const char *id, db_done *done, void *arg);
int db_templates(struct db *s, void (*each)(void *arg, const struct db_template *t), void *arg, struct err *err);

struct db_volume {
    const char *id, *name, *tenant, *token;   /* token: of the content API */
    uint64_t created_unix_ms, bytes, entries; /* quota */
};
void db_volume_put(struct db *s, const struct db_volume *v, db_done *done, void *arg);
void db_volume_del(struct db *s, const char *id, db_done *done, void *arg);
int db_volumes(struct db *s, void (*each)(void *arg, const struct db_volume *v), void *arg, struct err *err);

/* Generations of a sandbox's files; deleted with it. */
struct db_generation {
    const char *sandbox, *stack, *command;
    uint64_t number, at_unix_ms, bytes;
};
void db_generation_put(struct db *s, const struct db_generation *g, db_done *done, void *arg);
void db_generation_del(struct db *s, const char *sandbox, uint64_t number, db_done *done, void *arg);
int db_generations(struct db *s, void (*each)(void *arg, const struct db_generation *g), void *arg, struct err *err);

/* Transactions; deleted with their sandbox. Putting one again changes only its state. UNDOING: not a transaction, but
 * the files (base) are being set back to a generation (result). */
enum { DB_TRANSACTION_OPEN = 1, DB_TRANSACTION_COMMITTING, DB_TRANSACTION_UNDOING };
struct db_transaction {
    const char *id, *sandbox, *tenant, *base, *result, *command;
    uint64_t at_unix_ms, wall_ms, omitted;
    uint32_t state;
    bool exited;
    int code;
    const void *out, *err; /* what it wrote */
    size_t nout, nerr;
};
void db_transaction_put(struct db *s, const struct db_transaction *t, db_done *done, void *arg);
void db_transaction_del(struct db *s, const char *id, db_done *done, void *arg);
int db_transactions(struct db *s, void (*each)(void *arg, const struct db_transaction *t), void *arg, struct err *err);

/* Layers of build steps, by the digest of their inputs. */
struct db_step {
    const char *tenant, *key, *stack; /* key: hexadecimal */
    uint64_t used_unix;
};
void db_step_put(struct db *s, const struct db_step *x, db_done *done, void *arg);
void db_step_del(struct db *s, const char *tenant, const char *key, db_done *done, void *arg);
int db_steps(struct db *s, void (*each)(void *arg, const struct db_step *x), void *arg, struct err *err);

struct db_event {
    const char *sandbox, *tenant, *type, *json;
    uint64_t seq, at_unix_ms; /* seq: per sandbox, from 1 */
};
/* Silently dropped when the queue is half full: events must not displace other writes. */
void db_event_add(struct db *s, const struct db_event *e);
/* The newest events, at most `max`, oldest first; a tenant with many does not displace those of others. */
int db_events(struct db *s, size_t max, void (*each)(void *arg, const struct db_event *e), void *arg, struct err *err);

/* Calls back when all earlier writes are committed or have failed. */
void db_barrier(struct db *s, db_done *done, void *arg);
/* The same, and all of them are on the disk. */
void db_sync(struct db *s, db_done *done, void *arg);

/* Whether a committed row of a sandbox, a generation or a step names the stack. Blocks for the time of a lookup. */
bool db_stack_named(struct db *s, const char *stack);

/* Whether this is an older copy that was put back, or whether that cannot be known. */
bool db_put_back(const struct db *s);

/* When this store was made or put back (Unix time; INT64_MAX if that cannot be read): layers that no row names and that
 * are older may have been named by a lost store. `newest`: time of the newest existing layer; the first call after the
 * store was made or put back counts that as older too, because the clock may have been behind. Blocks for the time of a
 * lookup. */
int64_t db_born(struct db *s, int64_t newest);

/* Increments a counter and returns it (the epoch of ids). Blocks; at start only. */
int db_count_up(struct db *s, const char *name, uint64_t *ret, struct err *err);

/* Whether the last write that needs room was refused because the disk is full. */
bool db_disk_full(const struct db *s);

/* For tests: queued writes. */
size_t db_queued(const struct db *s);

#endif
