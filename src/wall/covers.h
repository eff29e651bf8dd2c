/* covers.h - puts covers back that somebody outside took away.
 *
 * Covers, pins and read-only binds are mounts on names of the host. When somebody outside replaces such a name while the
 * command runs (git and most editors write a new file and rename it), the kernel takes the mount away with the old one.
 * The caller watches the directories above these names, and when one comes into being anew, a short-lived child of the
 * caller enters the sandbox's user and mount namespaces and covers what is there now. It never enters the pid namespace,
 * so nothing inside can see, signal or trace it; all it can be talked into by what is inside is one cover too many.
 *
 * Between the replacing and the covering the name is open: about a millisecond once the watches stand. Taking them down
 * can cost many milliseconds (the kernel waits for all its readers), so a young run is looked at instead, at doubling
 * intervals, and watched from COVERS_WATCH_MS on. Every directory above a covered name is watched, as far as the caller
 * may read it.
 */
#ifndef HUTCH_WALL_COVERS_H
#define HUTCH_WALL_COVERS_H

#include "base/strv.h"
#include "wall/wall.h"

enum {
    COVERS_LOOK_MS = 50, /* the first look */
    COVERS_WATCH_MS = 800,
    COVERS_DIRS_MAX = 512,  /* directories watched */
    COVERS_LISTED = 32,     /* names that the notes speak of */
    COVERS_CHILD_MS = 5000, /* a child that takes longer is stuck in a file system, and has failed */
};

struct covers;

/* Opens the namespaces of a sandbox that is being built: before wall_release(), as long as init can be looked at. spec and
 * wall are borrowed until covers_free(). NULL if this run has nothing that could be put back. */
struct covers *covers_new(const struct wall_spec *spec, const struct wall *w);
/* Takes the two covers that init sends (WALL_MSG_COVERS) just before the command starts; the clock runs from here. */
void covers_take(struct covers *c, int file, int dir);
/* Milliseconds until covers_turn() wants to be called, -1 if only when the descriptor is readable. */
int covers_wait_ms(const struct covers *c);
/* Looks, begins to watch or handles what was seen, as it is time for. Returns the descriptor to poll, -1 while there is
 * none. *ret_lost is set if a name stays open. */
int covers_turn(struct covers *c, bool *ret_lost);
/* What happened, one sentence part for each name; appended. Accepts NULL. */
void covers_notes(const struct covers *c, struct strv *ret);
void covers_free(struct covers *c);

#endif
