/* learn.h - private layers over the host that take what the command writes: `hutch run --learn` and `--tx`.
 *
 * Each place is a directory of the host over which init mounts an overlay. Its lower layer is a read-only copy of the
 * host's mount (for a root caller mapped as the caller's own directories are), its upper layer lies in the vault and is
 * gone with the sandbox. The caller gets a descriptor of the vault (WALL_MSG_VAULT) and reads from the upper layers
 * what the command wrote; place i has them in "L<i>/u". A place that could not be mounted has no "u" and stays
 * read-only. Beside it is an empty "a", into which the caller may move files: it may be unable to create anything in
 * the vault.
 *
 * --tx: the places are the directories that the command may write to; the rest of the plan holds as it does without.
 * --learn: only private directories, devices, the covers over the host's sockets and what is shown at another path
 * remain of the plan: a socket is not a file that a layer could keep apart, and its listener is outside.
 */
#ifndef HUTCH_WALL_LEARN_H
#define HUTCH_WALL_LEARN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/strv.h"
#include "policy/run/plan.h"

enum { LEARN_PLACES_MAX = 96, LEARN_DEPTH_MAX = 5 };

struct learn_place {
    char *path; /* inside; owned */
    char *src;  /* on the host; owned */
    bool late;  /* lies in a private directory or away from src: mounted in the plan's order, not before it */
};

struct wall_learn {
    struct learn_place place[LEARN_PLACES_MAX];
    size_t n;
    bool tx;
    struct strv notes; /* what stays read-only, for people */
};

/* Finds the places: every directory of the host's root but the kernel's, the sandbox's own and the private ones. Where
 * mounts below a directory would be hidden, the parts of it become places instead, and a note names what stays read-only
 * though the caller could write there. ret must be zeroed; it is kept until the process ends. ERR_SETUP. Reads
 * directories. */
int learn_find(const struct plan *plan, const struct plan_caller *who, struct wall_learn *ret, struct err *err);
/* --tx: the directories that the plan shares writable. ERR_USAGE for a single file, ERR_HOST if something is mounted
 * below one of them, which a layer would hide. */
int learn_find_tx(const struct plan *plan, struct wall_learn *ret, struct err *err);

/* Inside, after clone; see inside.h. */
struct inside;
int learn_take_lowers(struct inside *in); /* an ordinary user's own copies; a root caller sends them behind the binds */
int learn_mount_early(struct inside *in);
/* Whether learning leaves this op out. */
bool learn_skips(const struct inside *in, const struct plan_op *op);
int learn_mount_late(struct inside *in, const struct plan_op *op); /* 0 if there is no place for the op */

/* Root caller, outside: a place's lower layer as a detached mount, mapped through `userns`. ERR_SETUP. */
int learn_clone_lower(const struct wall_learn *l, size_t i, int userns, struct err *err);

#endif
