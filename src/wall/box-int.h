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

#define BOX_SKEL  "/skel" /* in keeper's root: directories in which the parts of an overlay hang; shown at BOX_SCRATCH */
#define BOX_STOCK "/stock" /* in keeper's root: the store */
#define BOX_GIVEN "/given" /* in keeper's root: directories of the host that sandboxes may be given */

struct box_go { /* from keeper to the child once its ids are mapped */
    uint32_t version;
    uint32_t root, upper, volumes; /* how many descriptors of each kind come along, in this order */
};
enum { BOX_GO_VERSION = 2, BOX_GO_FDS = 2 + WALL_BOX_VOLUMES_MAX };

/* box-root.c: keeper's side. The overlay, detached; *upper: what the child keeps at WALL_BOX_UPPER. */
int box_root_make(const struct wall_box_spec *s, int userns, struct wall_box *b, int *upper, struct err *err);
/* Detached mounts of the volumes. On failure none is open. */
int box_root_volumes(const struct wall_box_spec *s, int userns, int *ret, struct err *err);

/* box-own.c: the child's side of what is each sandbox's own. */
struct inside;
/* Attaches them; in the new root already. */
int box_own_volumes(struct inside *in, const struct wall_box_spec *s, const int *fds);
/* Before /proc is mounted: a file with an id like the kernel's own of this boot. Then over the kernel's. */
int box_own_boot_id(struct inside *in, int *ret);
int box_own_cover_boot_id(struct inside *in, int fd);
/* 32 hexadecimal digits and a newline. */
void box_own_machine_id(char ret[34]);

/* Never returns. `tree` is the host's, -1 if the root comes with struct box_go. */
void box_inside(const struct wall_box_spec *spec, struct wall_shared *shared, int sync, int tree)
    __attribute__((noreturn));

/* box-host.c, in this order: plan before the host's root is left behind; cover after. */
int box_host_plan(const struct policy *policy, const struct wall_box_places *p, struct plan **ret, struct err *err);
int box_host_cover(const struct plan *plan, const struct wall_box_places *p, struct wall_box_world *w, struct err *err);
/* Before the tree is copied for a sandbox: covers sockets that were bound on the host since. */
int box_host_refresh(const struct wall_box_world *w, struct err *err);

#endif
