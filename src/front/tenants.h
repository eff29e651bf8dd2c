/* tenants.h - who may ask, and how much. Keys are "e2b_" + 40 hex digits, stored as SHA-256; a key belongs to one tenant,
 * has scopes and perhaps an expiry. Quotas are counted here, before anything is provisioned.
 */
#ifndef HUTCH_FRONT_TENANTS_H
#define HUTCH_FRONT_TENANTS_H

#include "front/front.h"

enum { SCOPE_SANDBOXES = 1, SCOPE_TEMPLATES = 2, SCOPE_ADMIN = 4, SCOPE_READ = 8 /* only reading */ };

struct quota { /* 0 = no limit */
    uint32_t sandboxes;
    uint32_t cpu_milli;
    uint64_t memory, disk; /* bytes, of all running sandboxes together */
    uint32_t requests_per_second, burst; /* of control-plane requests */
    uint32_t max_timeout_s; /* longest life of one sandbox */
};
struct tenant {
    char id[40];
    char name[64];
    struct quota quota;
    /* in use now */
    uint32_t sandboxes, cpu_milli;
    uint64_t memory, disk;
};
struct principal {
    struct tenant *tenant; /* borrowed; valid until the request ends */
    char key_id[24];
    unsigned scopes;
};

int tenants_load(struct front *f, struct err *err);
/* From X-API-KEY or "Authorization: Bearer". False: not a valid key (hash compare in constant time). */
bool tenants_auth(struct front *f, const struct http_req *r, struct principal *ret);
struct tenant *tenants_find(struct front *f, const char *id);
/* Takes one token of the tenant's rate. 0, or the seconds to put into Retry-After. */
unsigned tenants_throttle(struct front *f, struct tenant *t);

/* Administration (native API and CLI). The secret is returned once. done(): from the loop, after the commit. */
typedef void tenants_done(void *arg, const struct err *err /* NULL: done */);
void tenant_put(struct front *f, const char *id, const char *name, const struct quota *q, tenants_done *done, void *arg);
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
