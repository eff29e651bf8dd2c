/* volumes.h - volumes: directories that outlive sandboxes and that several of them can share.
 *
 * A volume is a row and a place of the layer store (layers/volume.c). The row is written after the place is
 * complete and deleted before the place is dropped: a row always has its place, and the comparison with the layer
 * store drops places without a row. Sandboxes get volumes when they are made (sandbox_spec.mounts). The content API,
 * which has no sandbox, gets a turn in a hidden one. front itself never opens a file of a volume.
 */
#ifndef HUTCH_VOLUMES_VOLUMES_H
#define HUTCH_VOLUMES_VOLUMES_H

#include "layers/proto.h"
#include "sandboxes/sandboxes.h"

enum {
    VOLUME_TOKEN = 48,
    VOLUMES_NODE_MAX = 100000, /* of all tenants */
    VOLUME_USERS_SHOWN = 16,
    VOLUME_SANDBOXES_MAX = 8, /* hidden sandboxes at once; further volumes wait for one to end */
    VOLUME_SANDBOXES_PER_TENANT = 2,
    VOLUME_YIELD_MS = 30000, /* how long work goes on in a hidden sandbox when other volumes wait for its place */
    VOLUME_SANDBOX_IDLE_MS = 60000, /* how long an unused one is kept */
    VOLUME_TURNS_MAX = 32,          /* operations at once in one of them; further ones wait */
    VOLUME_WAITING_MAX = 512,       /* for one volume; more are refused */
    VOLUME_WAIT_MS = 55000,         /* the longest wait for a turn */
    VOLUME_BYTES_MIN = 16 << 20,    /* of a quota */
    VOLUME_ENTRIES_MIN = 16,
};
#define VOLUME_BYTES_MAX   (UINT64_C(16) << 40)
#define VOLUME_ENTRIES_MAX (UINT64_C(1) << 30)

struct volume {
    char id[LAYERS_SANDBOX_MAX]; /* "vol-..." */
    char name[SANDBOX_MOUNT_NAME_MAX];
    struct tenant *tenant;
    char token[VOLUME_TOKEN + 1]; /* of the content API */
    uint64_t created_unix_ms;
    uint64_t bytes, entries; /* quota; 0: none */
};

struct volumes;
struct volumes_deps { /* borrowed, for as long as the volumes */
    struct loop *loop;
    const struct config *config;
    struct db *db;
    const struct peers *peers;
    struct tenants *tenants;
    struct stacks *stacks;
    struct sandboxes *sandboxes;
};
struct volumes *volumes_new(const struct volumes_deps *d);
int volumes_load(struct volumes *vs, struct err *err);
void volumes_free(struct volumes *vs);
struct state_size volume_size_of(uint64_t bytes, uint64_t entries);

/* Fills in the volume that this tenant calls m->name. False: it has none. */
bool volume_find_mount(struct volumes *vs, const struct tenant *t, struct sandbox_mount *m);

/* 1 to 127 of letters, digits, '_' and '-'. */
bool volume_name_valid(const char *name);
/* The tenant's own, by id or by name; NULL: there is none. */
struct volume *volume_find(struct volumes *vs, const struct tenant *t, const char *id_or_name);
/* By id, of any tenant: the content API checks the token. */
struct volume *volume_by_id(struct volumes *vs, const char *id);
typedef void volume_each_fn(void *arg, const struct volume *v);
void volumes_each(struct volumes *vs, const struct tenant *t, volume_each_fn *fn, void *arg);
/* Sandboxes, running or paused, that mount it; returns how many there are and writes the ids of at most `max`. */
size_t volume_users(struct volumes *vs, const struct volume *v, char (*ret)[SANDBOX_ID_MAX], size_t max);

struct volume_quota {
    bool given;              /* the request names it: it must be enforced, or the create fails */
    bool admin;              /* the key may exceed volumes.quota */
    uint64_t bytes, entries; /* 0: none */
};
/* Once, from the loop. v is valid for the call only. */
typedef void volume_done(void *arg, const struct volume *v, const struct state_failure *failure);
void volume_create(struct volumes *vs, struct tenant *t, const char *name, const struct volume_quota *q,
                   volume_done *done, void *arg);
struct volume_size {
    bool has_bytes, has_entries; /* false: unchanged */
    bool admin;
    uint64_t bytes, entries; /* 0: none */
};
/* Changes the quota (resize.c). 409: volume_in_use, or quota_below_use if the volume holds more than that. */
void volume_resize(struct volumes *vs, struct volume *v, const struct volume_size *size, volume_done *done, void *arg);
/* 409 while a sandbox, running or paused, mounts it. `done` gets v NULL. */
void volume_delete(struct volumes *vs, struct volume *v, volume_done *done, void *arg);
typedef void volume_measured(void *arg, const struct layers_reply *r);
void volume_measure(struct volumes *vs, const struct volume *v, volume_measured *done, void *arg);

/* --- files.c ----------------------------------------------------------------------------------------------- */
/* A turn in the hidden sandbox of a volume, which is mounted at VOLUME_PLACE: the requests of peers/files.h with that root.
 * Sandboxes of the tenant that have the volume are not used for that: they may be frozen, out of memory or processes, may
 * have it read-only or at a path that they have moved, and may run an init of an older version. */
#define VOLUME_PLACE "/volume"
struct volume_turn;
/* sandbox: id of the hidden sandbox. Called once, from the loop, unless volume_turn_end() came first; after a failure
 * the turn is gone. If other volumes wait for a place, the sandbox ends after VOLUME_YIELD_MS, even with work under
 * way. */
typedef void volume_turn_fn(void *arg, const char *sandbox, const struct state_failure *failure);
struct volume_turn *volume_turn(struct volumes *vs, const struct volume *v, volume_turn_fn *fn, void *arg);
void volume_turn_end(struct volume_turn *t);

#endif
