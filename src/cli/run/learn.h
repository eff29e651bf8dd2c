/* learn.h - `hutch run --learn FILE`: turns what a command did into the smallest policy that allows it.
 *
 * Writes are read from the upper layers after the run (learn-layers.c), so none is missed; reads and system calls come
 * from the listener. learn_document() is a pure function of what was seen, of the policy and of the
 * host's file system, which it asks through struct learn_host.
 */
#ifndef HUTCH_CLI_RUN_LEARN_H
#define HUTCH_CLI_RUN_LEARN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/strv.h"
#include "cli/run/denials.h"
#include "cli/run/supervise.h"
#include "policy/run/plan.h"
#include "policy/run/policy.h"
#include "wall/learn.h"

enum {
    LEARN_CHANGES_MAX = 20000, /* changes looked at; a note says so if there were more */
    LEARN_READS_MAX = 1000,    /* different hidden files read */
    LEARN_MOVED_MAX = 2000,
    LEARN_WALK_DEPTH = 64,
    LEARN_GRANTS_MAX = 500, /* lines of one kind in the document */
};

/* One change in an upper layer. */
struct learn_change {
    char *path; /* on the host; owned */
    bool name;  /* the name was made, removed or replaced: its directory must be writable; else the file was changed */
};

struct learn_seen {
    struct learn_change *changes;
    size_t n, cap;
    struct strv moved;   /* targets of moves; at most LEARN_MOVED_MAX */
    struct strv reads;   /* hidden files that the command opened */
    struct strv calls;   /* names of refused calls that a policy can grant */
    struct strv refused; /* refused calls that no policy can grant */
    struct strv hosts;   /* HOST or HOST:PORT that it reached or tried to reach */
    struct strv missing; /* those of them that no rule allowed */
    struct strv notes;
    bool truncated;
};
void learn_seen_done(struct learn_seen *seen); /* for tests: a run keeps what it has seen until it ends */

/* Questions about the host. */
struct learn_host {
    void *ctx;
    enum plan_type (*type)(void *ctx, const char *path); /* without following a link */
    bool (*open_to_all)(void *ctx, const char *path);    /* any user could read it */
};

struct learn_in {
    const struct learn_seen *seen;
    struct policy *policy; /* of the run; grants are merged into it as they are found */
    struct policy_where where;
    const struct learn_host *host;
    bool root;         /* the caller is root: what no rule shows, the command reads as an unprivileged user */
    const char *guard; /* a path that no grant may open, even if the command changed it; NULL: none */
};

/* Writes the sections `files`, `syscalls` and `network`, and comments about what cannot be granted. The text is a document,
 * possibly one without any key. ERR_INTERNAL if a line that was made cannot be read back. */
int learn_document(const struct learn_in *in, struct buf *out, struct err *err);

/* Collects the changes of one upper layer, `dir` (borrowed), over `top` of the host. Follows no links: the command chose the
 * names. */
void learn_read_layer(int dir, const char *top, const struct learn_host *host, struct learn_seen *seen);

/* --- around a run --------------------------------------------------------------------------------------------------- */

struct learn;
/* Checks that FILE may be written: absent, empty or written by --learn before. ERR_USAGE. Borrows everything. */
int learn_begin(const char *file, const struct wall_learn *places, const struct plan *plan,
                const struct plan_caller *who, struct learn **ret, struct err *err);
void learn_watch(struct learn *l, struct denials *d);
/* Takes the lists. */
void learn_hosts(struct learn *l, struct strv *hosts, struct strv *missing);
/* Learns nothing about this path, the run's audit log; borrowed, may be NULL. */
void learn_leave_out(struct learn *l, const char *path);
/* Reads the layers below `vault` (-1: the command never ran), and writes FILE in one step. `policy` is merged with what
 * was learnt and `summary` gets the lines for people. */
int learn_end(struct learn *l, int vault, struct policy *policy, const struct policy_where *where,
              const struct outcome *outcome, char *const *argv, struct buf *summary, struct err *err);

#endif
