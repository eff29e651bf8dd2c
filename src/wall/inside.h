/* inside.h - what runs in init between clone and the command. Shared by the files of wall/ only.
 *
 * Every function here runs after clone: no allocation, no stdio streams, no locks. Failures fill in->shared->err and
 * return -1; the caller of wall_start() reads it there.
 */
#ifndef HUTCH_WALL_INSIDE_H
#define HUTCH_WALL_INSIDE_H

#include "os/mount.h"
#include "wall/wall.h"

/* Room for the spec that wall_start() gives to an init that wall_begin() cloned. Memory that is not used costs nothing. */
enum { SPEC_ROOM = 16 << 20 };
/* NULL if it does not fit, or is of a kind that must be known before init is cloned. */
const struct wall_spec *spec_copy(const struct wall_spec *s, void *at, size_t size);

enum { INSIDE_BINDS_MAX = 512, INSIDE_NODES = 6, INSIDE_LAYERS_MAX = 64 };

struct inside {
    const struct wall_spec *spec;
    struct wall_shared *shared;
    int sock;                    /* to the caller */
    int root;                    /* the tree being built: "/" itself, or the new root of the container tier */
    bool new_root;               /* container tier: pivot into root at the end */
    const char *new_root_at;     /* where it is until then; "" for the host's own root */
    int binds[INSIDE_BINDS_MAX]; /* detached mounts for the bind ops, in order of the plan */
    size_t nbinds;
    int nodes[INSIDE_NODES]; /* detached clones of the host's device nodes */
    /* Read-only mounts in the vault; clones of them cover what is denied (mode 0000) and the stubs (an empty socket). */
    int cover_file, cover_dir, cover_stub;
    int stub_dir; /* the directory of the last stub, -1; its path is the first bytes of that op's */
    const char *stub_dir_path;
    size_t stub_dir_len;
    int tmpfs, pts;     /* made by inside_private(); detached, -1 */
    int proc;           /* the new procfs, detached or attached, kept until the end of set-up */
    pid_t net_task;     /* makes the network namespace meanwhile */
    int net, net_errno; /* net: kept until it goes to the caller with the listener */
    mode_t mask;        /* the caller's umask, for the command */
    int listener, pty_master, pty_slave;
    int vault; /* --learn: the private layers, for the caller */
};

/* clang-format off */
#define INSIDE_INIT(the_spec, the_shared, the_sock) \
    {.spec = (the_spec), .shared = (the_shared), .sock = (the_sock), .root = -1, .new_root_at = "", .proc = -1, \
     .cover_file = -1, .cover_dir = -1, .cover_stub = -1, .stub_dir = -1, .tmpfs = -1, .pts = -1, .net = -1, \
     .listener = -1, .pty_master = -1, .pty_slave = -1, .vault = -1}
/* clang-format on */

/* Builds init's errors: ERR_SETUP, with the stage. Returns -1. */
int inside_fail(struct inside *in, int eno, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void inside_stage(struct inside *in, enum wall_stage s);

/* One message to the caller, with a descriptor if fd >= 0. */
void inside_tell(struct inside *in, enum wall_msg_type type, int value, int fd);
/* Blocks until the caller says wall_release(). */
int inside_wait(struct inside *in, const char *what);
/* Never returns: builds, starts the command, reaps. */
void inside_main(const struct wall_spec *spec, struct wall_shared *shared, int sock) __attribute__((noreturn));

/* mounts.c: invariants 1-4 of plan.h become mounts. */
int inside_take_binds(
    struct inside *in); /* rootless: clone from our own namespace, before anything becomes read-only */
int inside_mounts(struct inside *in);
int inside_pivot(struct inside *in);
/* The tmpfs of the upper layer of a container, detached: three quarters of the disk limit; the vault has the rest. */
int inside_upper(const struct wall_spec *spec);
/* kernfs.c: the private /dev, /proc, /sys. */
int inside_private(
    struct inside *in); /* makes the file systems that the next three attach, as far as no plan is needed */
int inside_vault(struct inside *in);
int inside_take_nodes(struct inside *in); /* before the host's /dev loses its devices */
int inside_devices(struct inside *in);
int inside_proc(struct inside *in);
/* files.c: spec->files. */
int inside_files(struct inside *in);
/* confine.c: irreversible steps. */
int inside_network_begin(struct inside *in);
int inside_network(struct inside *in);
int inside_limits(struct inside *in);
int inside_landlock(struct inside *in);
int inside_lock(struct inside *in);
/* Opens the sandbox's terminal, if it is to have one. Call it before inside_lock(): with --explain the filter asks the
 * caller about each open for writing, and the caller gets the listener only after the terminal. */
int inside_open_terminal(struct inside *in);
/* init.c: the command and its end. */
void inside_run(struct inside *in) __attribute__((noreturn));

/* Mounts one of the covers at the place `at`. */
int inside_cover(struct inside *in, int at, int cover, const char *what);
/* A place in the tree being built; never resolves outside it. -1 with errno. */
int inside_place(const struct inside *in, const char *path);
/* The same, but makes missing directories (0755) and the last component as asked, as long as that is in our own memory. */
int inside_make_place(const struct inside *in, const char *path, bool dir);

#endif
