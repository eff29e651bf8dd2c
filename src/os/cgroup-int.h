/* cgroup-int.h - names, places and events of leaves, shared by the cgroup_*.c files only. Nothing here prints. */
#ifndef HUTCH_OS_CGROUP_INT_H
#define HUTCH_OS_CGROUP_INT_H

#include "os/cgroup.h"

#define CGROUP_PREFIX "hutch-"

/* Controllers that v2 has to pass on to a leaf; everything else of v2 is there in any leaf. */
enum { CGROUP_V2_CONTROLLERS = CGROUP_CPU | CGROUP_MEMORY | CGROUP_PIDS | CGROUP_IO };

/* Finds the directory in which a v2 leaf with the controllers `need` can be made. With `commit` controllers are
 * switched on where that is needed; without, the answer is what would work. False if there is none; ret_dir is left
 * alone. */
bool cgroup_v2_place(const struct cgroup_hier *h, unsigned need, bool commit, char ret_dir[CGROUP_DIR_MAX]);
/* CGROUP_* bits of a list like "cpuset cpu io memory"; separators are spaces, commas and newlines. */
unsigned cgroup_controller_bits(const char *list);
const char *cgroup_controller_name(unsigned bit);
/* "memory, cpu". */
void cgroup_bits_text(unsigned bits, char *ret, size_t n);

/* A fresh name for a leaf of this process. */
void cgroup_make_name(char ret[CGROUP_NAME_MAX]);

/* Marks that leaves of this name exist, so that a sweep finds them. Best effort. */
void cgroup_mark(struct cgroup *cg);
/* Removes the mark if the leaves are gone; else only unlocks it, so that a later sweep finds it. */
void cgroup_unmark(struct cgroup *cg, bool gone);

/* The leaf that holds this bit, or NULL. */
const struct cgroup_leaf *cgroup_leaf_with(const struct cgroup *cg, unsigned bit);

/* CLOCK_MONOTONIC. */
uint64_t cgroup_now_ms(void);
/* Value of "key 0|1" in cgroup.events (v2) read through an open descriptor; -1 if it is not there. */
int cgroup_event_value(int fd, const char *key);
/* Waits until cgroup.events says key == value. 1 when it does, 0 at the deadline, -1 with errno. */
int cgroup_await_event(const struct cgroup_leaf *l, const char *key, int value, uint64_t deadline);

/* Writes the limit into the leaf. -1 with errno. */
int cgroup_set_memory(const struct cgroup_leaf *l, uint64_t bytes);

#endif
