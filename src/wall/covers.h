/* covers.h - puts covers back that were removed from outside.
 *
 * Covers, pins and read-only binds are mounts on names of the host. When a program outside replaces such a name while the
 * command runs (git and most editors write a new file and rename it), the kernel removes the mount with the old one.
 * The caller watches the directories above these names, and when one comes into being anew, a short-lived child of the
 * caller enters the sandbox's user and mount namespaces and covers what is there now. It never enters the pid namespace,
 * so nothing inside can see, signal or trace it; all it can be talked into by what is inside is one cover too many.
 *
 * Between the replacing and the covering the name is open: about a millisecond once the watches stand. Taking them down
 * can cost many milliseconds (the kernel waits for all its readers), so a young run is looked at instead, at doubling
 * intervals, and watched from COVERS_WATCH_MS on. Every directory above a covered name is watched, as far as the caller
 * may read it.
 *
 * What the command opened before the cover stood stays open to it: the new file in that moment, or earlier under another
 * name. Git writes "config.lock" and renames it to "config"; the command may open the first. So a protected file that was
 * put there from outside is asked about (covers-files.c): if a process has it open for writing and none outside does, or if
 * it was written to by a second process before or after, it counts as lost, and the command is to be ended. Once nothing
 * inside lives, covers_settle() puts the former file back. There are signs that this misses: a command that links git's lock
 * file elsewhere, opens, writes and closes it before the caller has seen that it exists leaves none. Nor does one that does so
 * in the first COVERS_WATCH_MS, between two looks. The file is listed as replaced then, as it always is.
 */
#ifndef HUTCH_WALL_COVERS_H
#define HUTCH_WALL_COVERS_H

#include "base/strv.h"
#include "wall/wall.h"

enum {
    COVERS_LOOK_MS = 50, /* the first look */
    COVERS_WATCH_MS = 800,
    COVERS_DIRS_MAX = 512,       /* directories watched */
    COVERS_LISTED = 32,          /* names that the notes speak of */
    COVERS_FILE_MAX = 256 << 10, /* a protected file up to this size is remembered, */
    COVERS_FILES_MAX = 8 << 20,  /* all of them together */
    COVERS_BUSY_MS = 50,         /* until a file is asked about again that a process outside is writing */
    COVERS_CHILD_MS = 5000,      /* a child that takes longer is stuck in a file system, and has failed */
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
 * none. *ret_lost is set if a name stays open, or if the command can or could write to what is there. */
int covers_turn(struct covers *c, bool *ret_lost);
/* The sandbox is about to end: lets go of its namespaces. Accepts NULL. */
void covers_leave(struct covers *c);
/* Nothing inside lives any more. Whether a file of git's that was put there from outside was written to in place since. Accepts
 * NULL. */
bool covers_last_look(struct covers *c);
/* The command was killed because of *ret_lost, or the last look found something: puts former files back. Called at once, so
 * that programs outside find them, and once more when nothing inside lives any more. Accepts NULL. */
void covers_settle(struct covers *c);
/* What happened, one sentence part for each name; appended. Accepts NULL. */
void covers_notes(const struct covers *c, struct strv *ret);
void covers_free(struct covers *c);

#endif
