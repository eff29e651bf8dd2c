/* sandbox.h - long-lived sandboxes: the same wall as wall.h, without a command. keeper makes them, init (pid 1) lives in them.
 *
 * A *world* is made once per keeper: a mount namespace of its own with next to nothing in it (what a clone has to copy),
 * one procfs that nothing covers, the host's tree with everything denied already covered, and the directory of templates.
 * After that a sandbox costs one clone and a handful of mounts, and no path of the host is looked up again.
 *
 * wall_sandbox_start() never waits for the sandbox: it clones, writes the id maps, makes the mounts that need keeper's
 * privilege, hands them over and returns. The child builds the rest and calls its entry function, which tells over the
 * sync socket that it is ready. The holder of the other end decides: if it closes the socket before it has sent
 * something, the child exits.
 */
#ifndef HUTCH_WALL_SANDBOX_H
#define HUTCH_WALL_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "os/cgroup.h"
#include "os/idrange.h"
#include "os/netns.h"
#include "policy/run/plan.h"
#include "wall/wall.h"

/* Descriptors of the child when its entry function is called; 0 to 2 are /dev/null, nothing else is open. */
enum {
    WALL_SANDBOX_CONTROL = 3,
    WALL_SANDBOX_SYNC,
    WALL_SANDBOX_OOM,
    WALL_SANDBOX_SCORE, /* own oom_score_adj */
    WALL_SANDBOX_TCP,   /* of spec->net */
    WALL_SANDBOX_UDP,
    WALL_SANDBOX_UPPER, /* O_PATH, read-only, of a mount of its own: the directory that holds the upper layer "u" and its "w" */
    WALL_SANDBOX_FDS
};
enum {
    WALL_SANDBOX_USER = 1000,     /* `user` of the host template */
    WALL_SANDBOX_LAYERS_MAX = 66, /* as many as a stack has, its base, and our own tools */
    WALL_SANDBOX_VOLUMES_MAX = 8,
    WALL_SANDBOX_HOST_DIRS_MAX = 16,
};

struct wall_sandbox_world {
    bool rootless; /* in a user namespace made for this user's sandboxes; idmapped mounts cannot be had */
    uint32_t nids; /* rootless: ids 0 .. nids - 1 exist */
    int templates; /* O_PATH, in our own mount namespace */
    int root; /* of that namespace; "the layer store" in it is places->the layer store, read-only but for uppers and volumes */
    int host_dirs[WALL_SANDBOX_HOST_DIRS_MAX]; /* O_PATH, of places->host_dirs */
    int host;          /* the host's tree, detached; -1: it hangs at /host (kernels before 6.15) */
    int trust;         /* O_PATH, of places->trust; -1: none */
    int net;           /* our own network namespace, in which nothing is */
    int sockets;       /* the kernel's list of sockets in the network namespace that we came from */
    struct plan plan;  /* private directories of a sandbox with the host's tree */
    struct plan plain; /* of a sandbox with a root of its own: empty */
    unsigned nmasked;
};

struct wall_sandbox_places {
    const char *templates;          /* absolute path */
    const char *layers;             /* absolute path of the database */
    const char *const *host_dirs;   /* absolute paths of directories that sandboxes may be given; NULL-terminated */
    const char *const *hide;        /* more directories that the host template does not show; NULL-terminated */
    const char *home;               /* of this user; NULL if there is none */
    const struct cgroup_info *info; /* hierarchies that are needed later */
    bool attached;                  /* keep the host's tree mounted, as kernels before 6.15 need it */
    const char *trust;              /* directory with layers of ours over templates; NULL: none */
    const void *ca;                 /* root certificate that the host template trusts too, PEM; NULL: none */
    size_t ca_n;
    const char *ranges; /* directory of the lock file of id ranges, shown at the same path; NULL: none */
};

/* Fills `rootless` and `nids` alone. */
int wall_sandbox_rootless(struct wall_sandbox_world *w, struct err *err);
/* Moves this process into a mount namespace and a network namespace of its own and prepares everything. Descriptors
 * opened before stay usable for files, not for mounts. ERR_HOST or ERR_SETUP: then the process can only report it and
 * exit. */
int wall_sandbox_world(const struct policy *policy, const struct wall_sandbox_places *p, struct wall_sandbox_world *ret,
                       struct err *err);

struct wall_sandbox_volume {
    int dir;           /* O_PATH of a directory in our own mount namespace, or a detached mount (`mounted`) */
    const char *place; /* absolute; resolved inside the new root, by the child */
    bool mounted, ro;
    bool host_ids; /* its ids are the host's: they are not shifted */
};

struct wall_sandbox_spec {
    const struct wall_sandbox_world *world;
    const int *layers;  /* directories, O_PATH, uppermost first, of which the root is made */
    size_t nlayers;     /* 0: the host's tree */
    int trust;          /* a directory of world->trust, over the layers, O_PATH; -1: none */
    int upper;          /* with layers: place of the private writable layer, empty */
    bool upper_mounted; /* it is a detached mount, not a directory */
    bool upper_shifted; /* it holds ids 0..65535 and is used through an idmapped mount */
    const struct wall_sandbox_volume *volumes;
    size_t nvolumes;
    const struct netns *net;     /* owned by our user namespace; NULL: made inside, nothing but loopback */
    int control;                 /* listening socket of init */
    int oom;                     /* the cgroup's file with counts of OOM kills, or -1 */
    const struct idrange *range; /* root: its own ids; init keeps them taken. NULL: rootless */
    const struct cgroup *cgroup; /* may be NULL */
    bool strict;                 /* nothing set-uid works */
    uint64_t disk, inodes;       /* of the private writable parts in memory; not 0 */
    uint64_t open_files, pids;   /* rlimits; 0 = leave */
    const char *hostname;
    /* Called in the child at the end; does not return. */
    void (*entry)(const void *arg) __attribute__((noreturn));
    const void *arg;
};

struct wall_sandbox {
    pid_t pid;
    int pidfd, sync;
    struct wall_shared *shared;    /* the child's stage and error until it is ready */
    uint64_t upper_dev, upper_ino; /* of "u"; 0: there is none */
};
#define WALL_SANDBOX_INIT \
    (struct wall_sandbox) { .pid = -1, .pidfd = -1, .sync = -1, .shared = NULL }

/* Single-threaded callers only: this process is in spec->net for the moment of the clone.
 * On failure the child is gone and reaped and *err names the stage. */
int wall_sandbox_start(const struct wall_sandbox_spec *spec, struct wall_sandbox *ret, struct err *err);
/* Says why the child failed or ended before it was ready. Always -1. */
int wall_sandbox_why(const struct wall_sandbox *b, struct err *err);
/* Closes sync and the shared page after set-up. pidfd and the child stay. */
void wall_sandbox_settle(struct wall_sandbox *b);

#endif
