/* room.h - room on the disk for a change to the files of a living sandbox: whether there is enough before it begins, and
 * more than the sandbox's limit while a change that failed is taken back.
 *
 * In the pool a file that is replaced or removed frees nothing as long as a snapshot of the sandbox holds it, and the job has
 * such a snapshot. So a change needs all of its bytes on top of what is in use, and so does taking it back.
 */
#ifndef HUTCH_LAYERS_ROOM_H
#define HUTCH_LAYERS_ROOM_H

#include "layers/jobs.h"

/* Whether a change of `bytes`, and after it what restores the files, `back` bytes, fit into the limit of the sandbox and into
 * the file system. held: a stack with a capture of the sandbox; if that does not hold its files (room.h), all fits here, and
 * writing tells. LAYERS_NO_SPACE with what is full and what helps. */
int room_check(struct job *j, const struct job_sandbox *b, const char *held, uint64_t bytes, uint64_t back,
               struct err *err);
/* The sandbox stands still: `more` bytes above its limit may be written until room_restore(), which is repeated at the next
 * try of the same change if the job is killed in between. Other kinds of limits: nothing. */
void room_raise(const struct job_sandbox *b, uint64_t more);
int room_restore(const struct job_sandbox *b, struct err *err);

/* After a write into the files of the sandbox failed with ENOSPC or EDQUOT: "sandbox" or "node". */
const char *room_whose(const struct job_sandbox *b, int eno);

#endif
