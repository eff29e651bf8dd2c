/* volumes-int.h - shared by volumes.c and volumes-files.c. */
#ifndef HUTCH_FRONT_VOLUMES_INT_H
#define HUTCH_FRONT_VOLUMES_INT_H

#include "base/map.h"
#include "front/volumes.h"

struct volume_box; /* volumes-files.c */

struct volume_own {
    struct volume v; /* first */
    enum { VOLUME_MAKING, VOLUME_THERE, VOLUME_GOING } state;
    bool resizing;
    char key[40 + BOX_MOUNT_NAME_MAX + 2]; /* "tenant/name" */
};
struct volumes {
    struct front *front;
    struct map by_id, by_name;
    struct volume_box *boxes; /* hidden ones */
};

/* Without a quota, or with a larger one than the node's, a tenant would have more than it was given. */
bool volume_quota_allowed(const struct front *f, const struct tenant *t, const struct volume_quota *q,
                          struct state_failure *why);
/* volumes-files.c: nobody works in it any more, because it is gone or for a while; told when its sandbox is gone, at once if
 * there is none. */
void volume_box_close(struct front *f, const char *volume, bool gone, box_done *done, void *arg);
/* A box_ended_fn. */
void volume_box_ended(void *arg, struct box *box, const char *cause, const struct keeper_usage *u);
void volume_boxes_free(struct front *f);

#endif
