/* merged.h - trees as a sandbox sees them: the layers of a stack one over the other, or a living sandbox's own root.
 * Used by jobs. Every tree is a detached mount that vanishes with its last descriptor; a stack's is read-only.
 */
#ifndef HUTCH_LAYERS_MERGED_H
#define HUTCH_LAYERS_MERGED_H

#include "layers/jobs.h"

/* Mounts the layers from index `from` down to the bottom, read-only; an empty directory if there are none. Returns a
 * descriptor of the root, or -1. */
int merged_stack(struct job *j, const struct stack_file *f, size_t from, struct err *err);
/* The same of a stack by its name; LAYERS_NOT_FOUND if there is none. */
int merged_stack_id(struct job *j, const char *id, struct err *err);
/* The root of a living sandbox without the mounts in it; writable. Owners are those of the sandbox plus
 * b->record.range. */
int merged_sandbox(struct job *j, const struct job_sandbox *b, struct err *err);

/* Files that keeper writes into every sandbox, with its name and addresses; not a difference between two. For struct
 * diff.skip. */
extern const char *const merged_own_files[];

/* touched.c: selects the paths to compare between a living sandbox (opened with its upper) and stacks that were
 * captured from it (NULL-terminated). For struct diff.wanted. */
struct merged_touch {
    int fds[4 * STACK_LAYERS_MAX + 1]; /* 0 of them: everything counts */
    size_t n;
    bool userxattr;
};
int merged_touch_open(struct job *j, const struct job_sandbox *b, const struct stack_file *own,
                      const char *const *stacks, struct merged_touch *ret, struct err *err);
bool merged_touched(void *arg, const char *path);

/* A memfd for an answer; after writing, seal it against changes. */
int job_memfd(const char *name, struct err *err);
int job_memfd_seal(int fd, struct err *err);

#endif
