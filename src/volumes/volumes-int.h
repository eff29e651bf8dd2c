/* volumes-int.h - the private state of volumes, which the files of this room share. Other rooms use volumes.h. */
#ifndef HUTCH_VOLUMES_VOLUMES_INT_H
#define HUTCH_VOLUMES_VOLUMES_INT_H

#include "base/map.h"
#include "db/db.h"
#include "volumes/volumes.h"

struct volume_sandbox; /* files.c */

struct volume_own {
    struct volume v; /* first */
    enum { VOLUME_MAKING, VOLUME_THERE, VOLUME_GOING } state;
    bool resizing;
    char key[40 + SANDBOX_MOUNT_NAME_MAX + 2]; /* "tenant/name" */
};
struct volumes {
    struct loop *loop; /* these, up to sandboxes, are borrowed */
    const struct config *config;
    struct db *db;
    const struct peers *peers;
    struct tenants *tenants;
    struct stacks *stacks;
    struct sandboxes *sandboxes;
    struct map by_id, by_name;
    struct volume_sandbox *hidden; /* files.c */
};

/* Whether the tenant may have this quota: only an admin may exceed volumes.quota, or leave the quota out where
 * limits apply. */
bool volume_quota_allowed(const struct volumes *vs, const struct tenant *t, const struct volume_quota *q,
                          struct state_failure *why);
/* files.c: ends the hidden sandbox of a volume, because the volume is gone or for a moment; done when the
 * sandbox has ended, at once if there is none. */
void volume_sandbox_close(struct volumes *vs, const char *volume, bool gone, sandbox_done *done, void *arg);
/* A sandbox_ended_fn. */
void volume_sandbox_ended(void *arg, struct sandbox *sandbox, const char *cause, const struct keeper_usage *u);
void volume_sandboxes_free(struct volumes *vs);

#endif
