/* keeper.h - the privileged process that makes sandboxes, ends them, and finds them again after it was killed.
 *
 * Single-threaded and small, because every sandbox's init is a copy of it. It parses fixed-layout messages only (proto.h),
 * resolves no path that a tenant chose, holds no secret. It keeps one descriptor per sandbox, the pidfd.
 */
#ifndef HUTCH_KEEPER_KEEPER_H
#define HUTCH_KEEPER_KEEPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* Descriptors that the supervisor hands over. */
enum { KEEPER_FD_SOCKET = 3, KEEPER_FD_RUN = 4, KEEPER_FD_STATE = 5 };
enum {
    KEEPER_SANDBOXES_MAX = 4096, /* as many as there are id ranges */
    KEEPER_HOST_DIRS_MAX = 16,
    KEEPER_HOST_DIR_NAME = 32,
    KEEPER_GRACE_MS = 300000,
};

struct keeper_host_dir { /* a directory of the host that sandboxes may be given as volume "host-NAME" */
    char name[KEEPER_HOST_DIR_NAME];
    const char *path;
    bool ro;
};

struct keeper_config {
    gid_t front_gid; /* may connect to the sockets of sandboxes; (gid_t)-1: the owner only */
    uint32_t max_sandboxes;
    uint32_t cpu_milli, pids, open_files; /* defaults */
    uint64_t memory, disk, inodes;
    uint64_t grace_ms;     /* a sandbox that no keeper has ended so long after its deadline ends itself */
    bool attached;         /* do as kernels before 6.15 must: the host's tree stays mounted in keeper's namespace */
    const char *templates; /* directory; NULL: STATE/templates */
    const char *driver;    /* of uppers, as os/upper.h names them; NULL: tmpfs */
    struct keeper_host_dir host_dirs[KEEPER_HOST_DIRS_MAX];
    size_t nhost_dirs;
    char **argv; /* as main() got them: executed again */
    size_t argc;
};

/* Runs until killed or until the supervisor closes the socket. Returns only with an error. */
int keeper_run(const struct keeper_config *c, struct err *err);

/* Reports what orphaned sandboxes left, item by item, and removes it if asked. Never touches live sandboxes. */
struct keeper_gc {
    const char *run, *state;
    bool remove;
    void (*found)(void *arg, const char *what, const char *name, const char *why, bool removed);
    void *arg;
};
int keeper_gc(const struct keeper_gc *g, struct err *err);

#endif
