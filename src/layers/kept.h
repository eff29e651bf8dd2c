/* kept.h - a snapshot of an upper that is kept as a layer: nothing is copied, however much the sandbox wrote.
 *
 * The snapshot is a subvolume in tmp/ that becomes the layer's directory: the upper's tree is renamed to root, its work
 * directory removed, meta written. What a killed process leaves in tmp/ is swept. Only where quotas are simple: full
 * ones charge a sandbox for what the layer below it holds. Such a layer has a name of its own, never that of another
 * with the same files: a stack whose inode numbers have nothing to do with the layer's (numbers.h) cannot get it.
 */
#ifndef HUTCH_LAYERS_KEPT_H
#define HUTCH_LAYERS_KEPT_H

#include "layers/jobs.h"

struct kept {
    uint64_t bytes; /* charged to the sandbox when the snapshot was taken */
};

/* 1, 0: the files are to be copied, or -1. */
int kept_possible(const struct job *j, const struct job_sandbox *b, const struct stack_file *f, struct err *err);
/* Writes to the disk what is not there yet, as long as the sandbox runs: a snapshot waits for that. */
void kept_write_out(const struct job_sandbox *b);
/* While the sandbox stands still: makes tmp/NAME. */
int kept_take(const struct job *j, const struct job_sandbox *b, const char *name, struct kept *ret, struct err *err);
/* Whether the layer was taken from this upper as well; when, and what the two have in common at most. */
bool kept_is_related(const struct job *j, const struct job_sandbox *b, const uint8_t layer[SHA256_BYTES],
                     struct timespec *ret_at, uint64_t *ret_shared);
/* Makes tmp/NAME what layer_commit_named() wants. Sockets go, as in a copy. Returns the tree. */
int kept_finish(const struct job *j, const struct job_sandbox *b, const char *name, const struct kept *k,
                struct tree_size *ret, struct err *err);
/* In the background: what the layer below held is removed from this one (os/upper.h); only its highest number stays. */
int kept_trim(const struct job *j, const char *name, struct err *err);

#endif
