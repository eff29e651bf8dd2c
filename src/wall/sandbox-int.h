/* sandbox-int.h - keeper's own root and the two sides of a start, shared by the sandbox*.c files only. Functions of the child
 * run after clone and allocate nothing. */
#ifndef HUTCH_WALL_SANDBOX_INT_H
#define HUTCH_WALL_SANDBOX_INT_H

#include "wall/sandbox.h"

#define SANDBOX_SCRATCH \
    "/scratch" /* in keeper's root: where a layer hangs for the moment in which an overlay is made of it */
#define SANDBOX_NEW   "/new"   /* in keeper's root: where the child hangs its new root before it moves there */
#define SANDBOX_TRUST "/trust" /* in keeper's root: layers of files of ours */
#define SANDBOX_HOST  "/host"  /* in keeper's root: the host's tree, on kernels that cannot copy a detached one */

extern const char sandbox_resolv_conf[];

#define SANDBOX_SKEL \
    "/skel" /* in keeper's root: directories in which the parts of an overlay hang; shown at SANDBOX_SCRATCH */
#define SANDBOX_LAYERS "/stock" /* in keeper's root: the database */
#define SANDBOX_GIVEN  "/given" /* in keeper's root: directories of the host that sandboxes may be given */

struct sandbox_go { /* from keeper to the child once its ids are mapped */
    uint32_t version;
    uint32_t root, upper, volumes; /* how many descriptors of each kind come along, in this order */
};
enum { SANDBOX_GO_VERSION = 2, SANDBOX_GO_FDS = 2 + WALL_SANDBOX_VOLUMES_MAX };

/* sandbox-root.c: keeper's side. The overlay, detached; *upper: what the child keeps at WALL_SANDBOX_UPPER. */
int sandbox_root_make(const struct wall_sandbox_spec *s, int userns, struct wall_sandbox *b, int *upper,
                      struct err *err);
/* Detached mounts of the volumes. On failure none is open. */
int sandbox_root_volumes(const struct wall_sandbox_spec *s, int userns, int *ret, struct err *err);

/* sandbox-own.c: the child's side of what is each sandbox's own. */
struct inside;
/* Attaches them; in the new root already. */
int sandbox_own_volumes(struct inside *in, const struct wall_sandbox_spec *s, const int *fds);
/* Before /proc is mounted, makes a file with a random boot id; then covers the kernel's with it. */
int sandbox_own_boot_id(struct inside *in, int *ret);
int sandbox_own_cover_boot_id(struct inside *in, int fd);
/* 32 hexadecimal digits and a newline. */
void sandbox_own_machine_id(char ret[34]);

/* Never returns. `tree` is the host's, -1 if the root comes with struct sandbox_go. */
void sandbox_inside(const struct wall_sandbox_spec *spec, struct wall_shared *shared, int sync, int tree)
    __attribute__((noreturn));

/* sandbox-host.c, in this order: plan before the host's root is left behind; cover after. */
int sandbox_host_plan(const struct policy *policy, const struct wall_sandbox_places *p, struct plan **ret,
                      struct err *err);
int sandbox_host_cover(const struct plan *plan, const struct wall_sandbox_places *p, struct wall_sandbox_world *w,
                       struct err *err);
/* Covers sockets that were bound on the host since. Call it before the tree is copied for a sandbox. */
int sandbox_host_refresh(const struct wall_sandbox_world *w, struct err *err);

#endif
