/* volumes.h - directories that outlive sandboxes and that several of them share.
 *
 * A volume is a row and a place of stock (stock/volume.c). The row is written when the place is whole; on the way out the row
 * goes first. So a row always has its place, and a place without a row is dropped when front and stock meet. Sandboxes get
 * volumes when they are made (box_spec.mounts); whoever wants files without a sandbox of his own (the content API) gets a turn
 * in a hidden one.
 */
#ifndef HUTCH_FRONT_VOLUMES_H
#define HUTCH_FRONT_VOLUMES_H

#include "front/boxes.h"
#include "front/state.h"
#include "stock/proto.h"

enum {
    VOLUME_TOKEN = 48,
    VOLUMES_NODE_MAX = 100000, /* of all tenants */
    VOLUME_USERS_SHOWN = 16,
    VOLUME_BOXES_MAX = 8, /* hidden sandboxes at once; further volumes wait for one to be idle */
    VOLUME_BOXES_PER_TENANT = 2,
    VOLUME_YIELD_MS = 30000,     /* how long work goes on in one whose place others wait for */
    VOLUME_BOX_IDLE_MS = 60000,  /* how long one is kept without use */
    VOLUME_TURNS_MAX = 32,       /* operations at once in one of them; further ones wait */
    VOLUME_WAITING_MAX = 512,    /* for one volume; more are refused */
    VOLUME_WAIT_MS = 55000,      /* nobody waits longer for a turn */
    VOLUME_BYTES_MIN = 16 << 20, /* of a quota */
    VOLUME_ENTRIES_MIN = 16,
};
#define VOLUME_BYTES_MAX   (UINT64_C(16) << 40)
#define VOLUME_ENTRIES_MAX (UINT64_C(1) << 30)

struct volume {
    char id[STOCK_BOX_MAX]; /* "vol-..." */
    char name[BOX_MOUNT_NAME_MAX];
    struct tenant *tenant;
    char token[VOLUME_TOKEN + 1]; /* of the content API */
    uint64_t created_unix_ms;
    uint64_t bytes, entries; /* quota; 0: none */
};

int volumes_load(struct front *f, struct err *err);
void volumes_free(struct front *f);
/* Rows without a place, places without a row. Those that are older than the store are added to *foreign; how many are too young
 * to go is returned. */
size_t volumes_meet(struct front *f, const struct stock_item *v, size_t n, int64_t born, struct strv *foreign);
void volumes_tenant_gone(struct front *f, const struct tenant *t);
/* Of all quotas of a tenant's volumes. One without a number of entries counts with as many as an image of its size has. */
struct state_size volumes_size(const struct front *f, const struct tenant *t);
struct state_size volume_size_of(uint64_t bytes, uint64_t entries);

/* 1 to 127 of letters, digits, '_' and '-'. */
bool volume_name_valid(const char *name);
/* The tenant's own, by id or by name; NULL: there is none. */
struct volume *volume_find(struct front *f, const struct tenant *t, const char *id_or_name);
/* By id, whoever asks; the content API compares tokens. */
struct volume *volume_by_id(struct front *f, const char *id);
typedef void volume_each_fn(void *arg, const struct volume *v);
void volumes_each(struct front *f, const struct tenant *t, volume_each_fn *fn, void *arg);
/* Sandboxes, living or paused, that have it; returns how many there are, of which at most `max` are written. */
size_t volume_users(struct front *f, const struct volume *v, char (*ret)[SANDBOX_ID_MAX], size_t max);

struct volume_quota {
    bool given;              /* somebody chose it: it is enforced, or there is no volume */
    bool admin;              /* whoever asks may go beyond volumes.quota */
    uint64_t bytes, entries; /* 0: none */
};
/* From the loop, once; the volume may be gone when whoever asked looks again. */
typedef void volume_done(void *arg, const struct volume *v, const struct state_failure *failure);
void volume_create(struct front *f, struct tenant *t, const char *name, const struct volume_quota *q, volume_done *done,
                   void *arg);
struct volume_size {
    bool has_bytes, has_entries; /* others stay as they are */
    bool admin;
    uint64_t bytes, entries; /* 0: none */
};
/* Another quota (volumes-resize.c). 409 with volume_in_use, or quota_below_use if it holds more than that. */
void volume_resize(struct front *f, struct volume *v, const struct volume_size *size, volume_done *done, void *arg);
/* 409 while a sandbox, living or paused, has it. v is NULL in `done`. */
void volume_delete(struct front *f, struct volume *v, volume_done *done, void *arg);
typedef void volume_measured(void *arg, const struct stock_reply *r);
void volume_measure(struct front *f, const struct volume *v, volume_measured *done, void *arg);

/* --- volumes-files.c ----------------------------------------------------------------------------------------------- */
/* A turn in the hidden sandbox of a volume, where it is at VOLUME_PLACE and our program at VOLUME_PROGRAM. */
#define VOLUME_PLACE   "/volume"
#define VOLUME_PROGRAM "/.hutch/hutch"
struct volume_turn;
/* box: its id. From the loop, once, unless volume_turn_end() was called before; after a failure the turn is gone. */
/* A sandbox that others wait for ends with the work in it, after VOLUME_YIELD_MS. */
typedef void volume_turn_fn(void *arg, const char *box, const struct state_failure *failure);
struct volume_turn *volume_turn(struct front *f, const struct volume *v, volume_turn_fn *fn, void *arg);
void volume_turn_end(struct volume_turn *t);

#endif
