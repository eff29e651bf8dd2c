/* tenants.h - who may ask, and how much. Keys are "e2b_" + 40 hex digits, stored as SHA-256; a key belongs to one tenant,
 * has scopes and perhaps an expiry. Quotas are counted here, before anything is provisioned.
 */
#ifndef HUTCH_FRONT_TENANTS_H
#define HUTCH_FRONT_TENANTS_H

#include "front/front.h"

enum {
    SCOPE_SANDBOXES = 1,
    SCOPE_TEMPLATES = 2,
    SCOPE_ADMIN = 4,
    SCOPE_READ = 8,  /* reads metadata and changes nothing, whatever the other scopes allow */
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
    struct tenant *next_gone;         /* removed ones stay in memory: requests under way may still point at them */
    uint64_t tat_us;                  /* theoretical arrival time of the next request */
    uint64_t last_end_ms, end_gap_ms; /* when a sandbox ended last, and how long that usually takes */
};
struct principal {
    struct tenant *tenant; /* borrowed; valid until the request ends */
    char key_id[24];
    unsigned scopes;
};

#define TENANT_DEFAULT "default"   /* the operator's own; cannot be removed */
#define KEY_ADMIN      "key_admin" /* the key of STATE/admin.key */

int tenants_load(struct front *f, struct err *err);
void tenants_free(struct front *f);
/* From X-API-KEY or "Authorization: Bearer". False: not a valid key (hash compare in constant time). */
bool tenants_auth(struct front *f, const struct http_req *r, struct principal *ret);
struct tenant *tenants_find(struct front *f, const char *id);
/* Takes one token of the tenant's rate. 0, or the seconds to put into Retry-After. */
unsigned tenants_throttle(struct front *f, struct tenant *t);

/* What one sandbox takes. Checks all quotas, then counts it: 0, or the seconds to put into Retry-After and in `why` which
 * quota is used up. tenant_give_back() undoes it, when the sandbox has ended (or was never made: ended false). */
struct tenant_need {
    uint32_t cpu_milli;
    uint64_t memory, disk;
};
unsigned tenant_take(struct front *f, struct tenant *t, const struct tenant_need *n, char why[200]);
void tenant_count(struct tenant *t, const struct tenant_need *n); /* without checking: sandboxes found at start */
void tenant_give_back(struct front *f, struct tenant *t, const struct tenant_need *n, bool ended);

/* Administration (native API and CLI). The secret is returned once. done(): from the loop, after the commit. */
typedef void tenants_done(void *arg, const struct err *err /* NULL: done */);
void tenant_put(struct front *f, const char *id, const char *name, const struct quota *q, tenants_done *done,
                void *arg);
void tenant_remove(struct front *f, const char *id, tenants_done *done, void *arg);
void key_create(struct front *f, const char *tenant, const char *name, unsigned scopes, uint64_t expires_unix,
                char ret_secret[64], char ret_id[24], tenants_done *done, void *arg);
void key_remove(struct front *f, const char *id, tenants_done *done, void *arg);
struct key_info {
    char id[24], tenant[40], name[64], hint[12]; /* hint: the last digits */
    unsigned scopes;
    uint64_t created_unix, expires_unix, used_unix;
};
void tenants_each(struct front *f, void (*each)(void *arg, const struct tenant *t), void *arg);
void keys_each(struct front *f, void (*each)(void *arg, const struct key_info *k), void *arg);

#endif
