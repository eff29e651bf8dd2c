/* stage.h - where the files of a sandbox are put while it stands still. What costs time is left for when it runs again: writing
 * them to a disk, comparing them with an earlier capture, digesting them, syncing them.
 *
 * In this order: stage_make() before it is stopped, stage_fill() while it stands still, stage_empty() when it runs again;
 * stage_close() however it went. A stage is the job's, and so is everything in it.
 */
#ifndef HUTCH_STOCK_STAGE_H
#define HUTCH_STOCK_STAGE_H

#include "os/upper.h"
#include "stock/jobs.h"

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
    char name[STOCK_TMP_NAME];
};
#define STAGE_INIT                        \
    {                                     \
        .dir = -1, .prev = -1, .turn = -1 \
    }

int stage_make(struct job *j, const struct job_box *b, struct stage *s, struct err *err);
/* `root` is that of the new layer, empty. */
int stage_fill(struct job *j, const struct job_box *b, int root, struct stage *s, struct err *err);
int stage_empty(struct job *j, const struct job_box *b, int root, struct stage *s, struct err *err);
void stage_close(struct stage *s);

/* Pure. Bytes that a tmpfs for files of that size may take, with so much memory to be had; 0: they go to the disk. *ret_alone:
 * not beside another one of which that is said. */
uint64_t stage_memory(const struct upper_usage *size, uint64_t room, bool *ret_alone);

#endif
