/* keepsake.h - what each init keeps for later keepers: a file in memory with the time at which it ends itself, the node
 * that it belongs to, and its journal record.
 *
 * The journal decides. The copy is used when the journal was removed or damaged: keeper finds init's process in /proc
 * and believes the copy as far as the kernel confirms it (start time, id range, cgroup). init can only read the file;
 * keeper writes it, and fetches it from init by pidfd_getfd() each time, even from a paused one. An init of an older
 * version has none: it has no deadline of its own, and cannot be adopted without its record.
 */
#ifndef HUTCH_KEEPER_KEEPSAKE_H
#define HUTCH_KEEPER_KEEPSAKE_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "init/init.h"
#include "keeper/journal.h"

enum { KEEPSAKE_STATE_MAX = 512 };

/* A node is its state directory. */
struct keepsake_node {
    uint64_t dev, ino;              /* of the state directory */
    uint64_t mounts;                /* inode of the mount namespace in which `state` leads to it */
    char state[KEEPSAKE_STATE_MAX]; /* its path; "" if that is too long */
};
struct keepsake {
    struct init_life head;
    struct keepsake_node node;
    uint64_t keeper, keeper_start; /* pid and start time of the keeper that wrote this last */
    struct journal_record record;
};

/* The node whose state directory this is. To be asked before the mount namespace changes. */
void keepsake_node_of(int state, struct keepsake_node *ret);
/* What the process behind a pidfd keeps. -1 if it keeps nothing. */
int keepsake_get(int pidfd, struct keepsake *ret);
/* Whether the keeper that wrote it last still runs. */
bool keepsake_kept(const struct keepsake *l);
/* Whether this process of `proc`, a directory of that kind, is the first one of a sandbox. Every process can have init's name
 * and offer a file like init's; inside, where namespaces are refused, none can be the first of its pid namespace. */
bool keepsake_is_init(int proc, const char *pid);
/* Calls `found` for every first process of a sandbox, of any node; l is NULL if it keeps nothing. The pidfd is borrowed. */
void keepsake_each(void (*found)(void *arg, pid_t pid, int pidfd, const struct keepsake *l), void *arg);

#endif
