/* box-int.h - shared by the box*.c files only. */
#ifndef HUTCH_WALL_BOX_INT_H
#define HUTCH_WALL_BOX_INT_H

#include "wall/box.h"

#define BOX_SCRATCH \
    "/scratch"             /* in keeper's root: where a layer hangs for the moment in which an overlay is made of it */
#define BOX_NEW   "/new"   /* in keeper's root: where the child hangs its new root before it moves there */
#define BOX_TRUST "/trust" /* in keeper's root: layers of files of ours */
#define BOX_HOST  "/host"  /* in keeper's root: the host's tree, on kernels that cannot copy a detached one */

extern const char box_resolv_conf[];

struct box_go { /* from keeper to the child once its ids are mapped; the new root comes along */
    uint32_t version;
};

/* Never returns. `tree` is the host's, -1 if the root comes with struct box_go. */
void box_inside(const struct wall_box_spec *spec, struct wall_shared *shared, int sync, int tree)
    __attribute__((noreturn));

/* box-host.c, in this order: plan before the host's root is left behind; cover after. */
int box_host_plan(const struct policy *policy, const struct wall_box_places *p, struct plan **ret, struct err *err);
int box_host_cover(const struct plan *plan, const struct wall_box_places *p, struct wall_box_world *w, struct err *err);
/* Before the tree is copied for a sandbox: covers sockets that were bound on the host since. */
int box_host_refresh(const struct wall_box_world *w, struct err *err);

#endif
