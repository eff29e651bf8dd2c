/* stage.h - holds a copy of a sandbox's files from the freeze until the layer is made. Slow work waits until the
 * sandbox runs again: writing to a disk, comparing with an earlier capture, digesting, syncing.
 *
 * Call stage_make() before the freeze, stage_fill() while the sandbox is frozen, stage_empty() when it runs again, and
 * stage_close() in any case. A stage belongs to its job.
 */
#ifndef HUTCH_LAYERS_STAGE_H
#define HUTCH_LAYERS_STAGE_H

#include "layers/jobs.h"
#include "os/upper.h"

struct stage {
    enum {
        STAGE_NONE,     /* straight into the new layer */
        STAGE_MEMORY,   /* a tmpfs */
        STAGE_DISK,     /* a directory in tmp/ whose files share their blocks with those of the sandbox */
        STAGE_SNAPSHOT, /* a subvolume in tmp/ that is the upper as it was */
    } kind;
    int dir;  /* the files */
    int prev; /* the tree of an earlier capture, to share with; the stage's; -1: none */
    int turn; /* locked while it takes much memory; or -1 */
    char name[LAYERS_TMP_NAME];
    struct tree_size size; /* of what was copied last */
};
#define STAGE_INIT                        \
    {                                     \
        .dir = -1, .prev = -1, .turn = -1 \
    }

int stage_make(struct job *j, const struct job_sandbox *b, struct stage *s, struct err *err);
/* `root` is that of the new layer, empty. */
int stage_fill(struct job *j, const struct job_sandbox *b, int root, struct stage *s, struct err *err);
int stage_empty(struct job *j, const struct job_sandbox *b, int root, struct stage *s, struct err *err);
void stage_close(struct stage *s);

/* Pure. The size of a tmpfs for files of that size with `room` bytes of free memory; 0: use the disk. *ret_alone:
 * only one such stage may exist at a time. */
uint64_t stage_memory(const struct upper_usage *size, uint64_t room, bool *ret_alone);

#endif
