/* plan.h - policy -> plan: the isolation as data, before anything is done.
 *
 * plan_make() is a pure function of the policy and of what the host's file system looks like, which it asks through
 * struct plan_facts; tests answer from a table. The wall executes a plan and decides nothing itself; records and
 * `explain` look refusals up in it.
 *
 * Invariants (checked by plan_check, cited in wall/):
 *  1. ops are in execution order: an op's path is never below a path that a later op covers, except pins and masks that
 *     are meant to sit inside.
 *  2. every writable path inside is below an OP_BIND_RW or OP_TMPFS.
 *  3. every protected path in a writable host tree or in an image has an OP_PROTECT or OP_STUB, and each directory between
 *     it and the writable root an OP_PIN.
 *  4. host paths carry the device and inode that the plan saw; the wall refuses if they changed. What is in an image only
 *     has no src.
 */
#ifndef HUTCH_POLICY_RUN_PLAN_H
#define HUTCH_POLICY_RUN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/strv.h"
#include "policy/run/policy.h"

enum plan_op_kind {
    OP_TMPFS,    /* empty private tmpfs at path */
    OP_SKELETON, /* directory 0755 in a tmpfs made earlier, so that something can be mounted below */
    OP_BIND_RO,  /* host src, read-only, at path */
    OP_BIND_RW,  /* host src, writable, at path (root caller: idmapped) */
    OP_PROTECT,  /* path, inside a writable tree, bound read-only on itself */
    OP_PIN,      /* path bound on itself, so that it cannot be renamed or removed */
    OP_MASK,     /* path covered by an inode of mode 0000 of the same kind */
    OP_STUB,     /* path does not exist: an empty stub is made on the host for the duration and pinned */
    OP_DEVICE,   /* host device src shown at path in the private /dev */
};

enum plan_type { TYPE_NONE, TYPE_DIR, TYPE_FILE, TYPE_SYMLINK, TYPE_SOCKET, TYPE_OTHER };

struct plan_op {
    enum plan_op_kind kind;
    enum plan_type type; /* of the thing at src */
    char *path;          /* inside; owned */
    char *src;           /* on the host, symlinks resolved; owned, NULL if none */
    dev_t dev;           /* identity of src when the plan was made */
    ino_t ino;
    bool as_caller;              /* root caller: idmap it so that the caller's files are readable */
    bool writable;               /* OP_TMPFS: the command may write here; otherwise it only carries mount points */
    bool hidden;                 /* OP_STUB: what comes into being here may not be read either */
    mode_t mode;                 /* OP_TMPFS: of its root directory */
    const char *rule;            /* id of the rule behind it; borrowed from the policy */
    const struct origin *origin; /* borrowed from the policy */
};

/* The type behind st_mode. */
enum plan_type plan_type_of(mode_t mode);

/* What is at a host path. */
struct plan_fact {
    enum plan_type type; /* TYPE_NONE: does not exist */
    dev_t dev;
    ino_t ino;
    mode_t mode;
    uid_t uid;
    nlink_t nlink;
    char *
        target; /* TYPE_SYMLINK: where it leads, resolved and absolute; NULL if it dangles or loops. Owned by caller. */
};

struct plan_facts {
    void *ctx; /* of plan_host_facts: NULL, or struct seen for what find_repos reads */
    /* Looks at a clean absolute path without following a final symlink. -1 with errno for anything but absence. */
    int (*look)(void *ctx, const char *path, struct plan_fact *ret);
    /* Resolves every symlink; new string, NULL with errno. */
    char *(*real)(void *ctx, const char *path);
    /* Calls `each` for the names in a directory, without "." and "..". 1 if there are more than `max`, -1 with errno if it
     * cannot be read. May be NULL: then each name is looked at. */
    int (*list)(void *ctx, const char *dir, unsigned max, void (*each)(void *arg, const char *name), void *arg);
    /* Calls `each` for every directory below `root` (at most `depth` levels, not into node_modules) that holds an entry
     * named ".git", ".hg" or ".jj", into which it does not look, shallow ones first. Stops and returns 1 when `max` entries
     * were looked at; returns 1 if a directory of the caller's own is closed to it. */
    int (*find_repos)(void *ctx, const char *root, unsigned depth, unsigned max,
                      void (*each)(void *arg, const char *dir), void *arg);
    /* Calls `each` for every existing path that a glob matches. */
    int (*expand)(void *ctx, const char *glob, void (*each)(void *arg, const char *path), void *arg);
    /* Calls `each` for every path at which a unix socket of this host is bound now. */
    int (*sockets)(void *ctx, void (*each)(void *arg, const char *path), void *arg);
    /* Where a dangling link leads: its text, made absolute and clean, nothing resolved. New string, NULL with errno. */
    char *(*link_text)(void *ctx, const char *path);
    /* The directory that a file of git's, or a link to one, names (".git" with "gitdir: DIR", "commondir" with "DIR"),
     * resolved. New string; NULL if it is no such file or there is no such directory. */
    char *(*git_link)(void *ctx, const char *path);
    /* Calls `each` for every git directory inside another one: of submodules and theirs (PLAN_MODULE_DEPTH levels of
     * directories) and of worktrees. Returns 1 when there were more than `max` of them. */
    int (*git_dirs)(void *ctx, const char *git, unsigned max, void (*each)(void *arg, const char *dir), void *arg);
};

struct plan_caller {
    uid_t uid;
    gid_t gid;
    bool root;           /* euid 0: uid ranges, idmapped mounts */
    const char *cwd;     /* real */
    const char *home;    /* may be NULL */
    const char *chdir;   /* --chdir, or NULL */
    const char *rootdir; /* --root: colon-separated layers, uppermost first, or NULL for the host's root */
    bool search_later;   /* repositories below writable roots are left to plan_has_repos() */
};

/* Limits of the search that plan_make does; see docs/policy.md. */
enum {
    PLAN_REPO_DEPTH = 3, /* default of files.search_depth: levels below a writable root searched for repositories */
    PLAN_REPO_ENTRIES = 20000, /* directory entries looked at per writable root */
    PLAN_REPOS = 256,          /* repositories protected below one writable root */
    PLAN_REPO_OPS = 2048,      /* no further repository is protected once a plan has this many mounts */
    PLAN_MODULES = 64,         /* submodules and worktrees protected per repository */
    PLAN_MODULE_DEPTH = 12,    /* levels of directories below .git/modules */
    PLAN_OPS_MAX = 4096,       /* mounts of one plan */
};

struct plan {
    struct plan_op *ops;
    size_t nops, ops_cap;
    char *cwd;            /* where the command starts, inside */
    struct strv layers;   /* --root; empty for the process tier */
    bool repos_truncated; /* not every repository was found or is protected: a limit was hit, a directory is closed */
    struct strv notes;    /* what a reader of the record should know */
};

/* Errors: ERR_POLICY for rules that contradict each other or cannot be enforced, naming rule and origin. */
int plan_make(const struct policy *p, const struct plan_caller *who, const struct plan_facts *facts, struct plan **ret,
              struct err *err);
/* For a plan that was made with search_later: whether there are repositories below its writable roots, or may be because a
 * limit was met. Then the plan must be made once more, with the search. */
bool plan_has_repos(const struct plan *plan, const struct policy *p, const struct plan_facts *facts);
void plan_free(struct plan *plan);
/* For tests: verifies invariants 1-3. */
int plan_check(const struct plan *plan, struct err *err);
/* The op that decides about writing (or reading) `path` inside, or NULL. */
const struct plan_op *plan_op_for(const struct plan *plan, const char *path);

/* Whether this is a stub that a run put on the host (see wall/stubs.h): for a plan such a name does not exist. */
struct stat;
bool plan_is_stub(const struct stat *st);

/* The host itself. */
extern const struct plan_facts plan_host_facts;

#endif
