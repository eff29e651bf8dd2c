/* tenants.h - tenants, their keys, quotas and rates. A key is "e2b_" + 40 hex digits and stored only as SHA-256; it
 * belongs to one tenant and has scopes and perhaps an expiry. Quotas of running sandboxes are counted here, before
 * anything is made.
 */
#ifndef HUTCH_TENANTS_TENANTS_H
#define HUTCH_TENANTS_TENANTS_H

#include "http/http.h"
#include "loop/loop.h"

enum {
    SCOPE_SANDBOXES = 1,
    SCOPE_TEMPLATES = 2,
    SCOPE_ADMIN = 4,
    SCOPE_READ = 8,  /* reads metadata; forbids all changes, even those that other scopes allow */
    SCOPE_FILES = 16 /* reads contents: files, output, logs */
};

struct quota { /* 0 = no limit */
    uint32_t sandboxes;
    uint32_t cpu_milli;
    uint64_t memory, disk;               /* bytes, of all running sandboxes together */
    uint32_t requests_per_second, burst; /* of control-plane requests */
    uint32_t max_timeout_s;              /* longest life of one sandbox */
    uint32_t snapshots;                  /* and paused sandboxes, together; 0: the node's kept.snapshots */
    uint64_t state_bytes;                /* of both and of templates; 0: the node's kept.bytes */
    uint64_t state_entries;              /* files, directories and links in them; 0: the node's kept.entries */
};
struct tenant {
    char id[40];
    char name[64];
    struct quota quota;
    /* in use now */
    uint32_t sandboxes, cpu_milli;
    uint64_t memory, disk;
    uint32_t stored; /* paused sandboxes that exist as files only; not among the above */
    /* kept by tenants.c */
    bool closing;                     /* being removed: takes nothing new */
    struct tenant *next_gone;         /* removed tenants stay in memory: requests under way may still point at them */
    uint64_t tat_us;                  /* theoretical arrival time of the next request */
    uint64_t last_end_ms, end_gap_ms; /* when a sandbox ended last; average time between two ends */
};
struct principal {
    struct tenant *tenant; /* borrowed; valid until the request ends */
    char key_id[24];
    unsigned scopes;
};

#define TENANT_DEFAULT "default"   /* the operator's own; cannot be removed */
#define KEY_ADMIN      "key_admin" /* the key of STATE/admin.key */

struct db;
struct tenants;
struct tenants_deps {
    struct loop *loop; /* borrowed, as the database is */
    struct db *db;
    const char *admin_digest, *admin_hint; /* SHA-256 of the operator's key and its last digits; "": none */
};
struct tenants *tenants_new(const struct tenants_deps *d);
int tenants_load(struct tenants *ts, struct err *err);
void tenants_free(struct tenants *ts); /* may be NULL */
/* A room that keeps something of tenants is told when one was removed. */
typedef void tenant_gone_fn(void *arg, const struct tenant *t);
void tenants_on_gone(struct tenants *ts, tenant_gone_fn *fn, void *arg);
/* Reads the key from X-API-KEY or "Authorization: Bearer". False: no valid key. Keys are looked up by their hash. */
bool tenants_auth(struct tenants *ts, const struct http_req *r, struct principal *ret);
/* The same for a key that came another way; NULL is none. */
bool tenants_auth_key(struct tenants *ts, const char *secret, struct principal *ret);
struct tenant *tenants_find(struct tenants *ts, const char *id);
/* Takes one token of the tenant's rate. 0, or the seconds to put into Retry-After. */
unsigned tenants_throttle(struct tenants *ts, struct tenant *t);

/* What one sandbox needs. tenant_take() checks all quotas, then counts it: 0, or the seconds for Retry-After, with
 * `why` naming the quota that is used up. tenant_give_back() undoes it when the sandbox has ended (ended false: it
 * was never made). */
struct tenant_need {
    uint32_t cpu_milli;
    uint64_t memory, disk;
};
unsigned tenant_take(struct tenants *ts, struct tenant *t, const struct tenant_need *n, char why[200]);
void tenant_count(struct tenant *t, const struct tenant_need *n); /* without checking: sandboxes found at start */
void tenant_give_back(struct tenants *ts, struct tenant *t, const struct tenant_need *n, bool ended);

/* Administration (native API and CLI). The secret is returned once. done(): from the loop, after the commit. */
typedef void tenants_done(void *arg, const struct err *err /* NULL: done */);
void tenant_put(struct tenants *ts, const char *id, const char *name, const struct quota *q, tenants_done *done,
                void *arg);
void tenant_remove(struct tenants *ts, const char *id, tenants_done *done, void *arg);
void key_create(struct tenants *ts, const char *tenant, const char *name, unsigned scopes, uint64_t expires_unix,
                char ret_secret[64], char ret_id[24], tenants_done *done, void *arg);
void key_remove(struct tenants *ts, const char *id, tenants_done *done, void *arg);
struct key_info {
    char id[24], tenant[40], name[64], hint[12]; /* hint: the last digits */
    unsigned scopes;
    uint64_t created_unix, expires_unix, used_unix;
};
void tenants_each(struct tenants *ts, void (*each)(void *arg, const struct tenant *t), void *arg);
void keys_each(struct tenants *ts, void (*each)(void *arg, const struct key_info *k), void *arg);

#endif
