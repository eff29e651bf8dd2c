/* init.h - pid 1 of a long-lived sandbox.
 *
 * A clone of keeper that never execs. The wall calls init_main() in the child once the file tree, the namespaces and the
 * cgroup are in place. From then on init talks to front over connections to its control listener (proto.h) and to keeper
 * over the sync socket, until keeper commits. It has one thread, no heap (fixed tables in memory mapped by itself, so that
 * they are charged to the sandbox), and it trusts nothing that a process inside can change.
 *
 * Parked: no tenant code has run, CAP_SYS_ADMIN is held, only `hello` and `bind` are answered. `bind` comes once, takes the
 * capabilities away and puts the filters in force; then init is Bound and everything else is answered.
 *
 * Sync socket (SEQPACKET, one byte per message): init sends INIT_SYNC_READY when it can be connected to; keeper answers
 * INIT_SYNC_COMMIT once the sandbox stands in its journal. The end of the socket before that makes init exit.
 *
 * With the commit come two descriptors, which init keeps for keepers to come: a file in memory that begins with struct
 * init_life, and keeper's own end of the sync socket. A keeper that needs them fetches copies. Through the file it says when
 * init ends itself if no keeper has done so before; over the socket it may send INIT_SYNC_LISTENER with a new control
 * listener, because the name of the old one is gone, or INIT_SYNC_GROUP. Without the two (tests), neither is kept.
 */
#ifndef HUTCH_INIT_INIT_H
#define HUTCH_INIT_INIT_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum init_flag {
    INIT_STRICT = 1 << 0,     /* privilege "strict": commands get no_new_privs, no capability; otherwise "computer" */
    INIT_ONE_ID = 1 << 1,     /* rootless without a range: uid and gid below are the only ids that exist inside */
    INIT_FREE_READS = 1 << 2, /* Landlock looks at writes only (the root is the host's, covered by mounts) */
};
enum { INIT_SYNC_READY = 'R', INIT_SYNC_COMMIT = 'C', INIT_SYNC_LISTENER = 'L', INIT_SYNC_GROUP = 'G' };
/* The message INIT_SYNC_GROUP: a cgroup for one command. Its descriptors: one in which a process writes "0" to join, the
 * file with a line "oom_kill N", and one with the most bytes that it ever had (v1) or a line "oom N" (v2). */
enum { INIT_GROUP_FDS = 3 };
struct init_group {
    unsigned char word[8]; /* INIT_SYNC_GROUP, zeros */
    uint64_t number;       /* INIT_SPAWN_LIMITED names it by this */
    uint64_t memory;       /* its limit, in bytes */
};
/* Descriptors of init while it runs; everything else is closed. */
enum {
    INIT_FD_LISTENER = 3,
    INIT_FD_SYNC = 4,
    INIT_FD_OOM = 5,
    INIT_FD_SCORE = 6,
    /* The two sockets of the sandbox's network. init does nothing with them: keeper fetches copies for egress, also after
     * either was restarted. No command gets them. */
    INIT_FD_TCP = 7,
    INIT_FD_UDP = 8,
    /* O_PATH, read-only: the directory with the sandbox's private writable layer. init does nothing with it: the
     * process that makes a snapshot fetches a copy. No command gets it. */
    INIT_FD_UPPER = 9,
    INIT_FD_LIFE,   /* read-only */
    INIT_FD_KEEPER, /* the other end of INIT_FD_SYNC */
    INIT_FD_NEXT,
};

/* The beginning of the file at INIT_FD_LIFE. */
#define INIT_LIFE_MAGIC UINT64_C(0x314546494c485548)
struct init_life {
    uint64_t magic;
    uint64_t end_ms; /* CLOCK_BOOTTIME: when init ends everything inside by itself */
    uint64_t check;  /* ~end_ms: what was read while it was written is read again */
};

/* A place that commands may use, for Landlock; paths as seen inside. */
struct init_place {
    const char *path;
    uint64_t rights; /* LANDLOCK_READ, LANDLOCK_WRITE, ... of os/landlock.h */
};

/* All pointers must stay valid for the life of init. */
struct init_args {
    int listener; /* SEQPACKET or a byte stream, listening, bound outside */
    int sync;     /* -1: committed from the start (tests) */
    int oom;      /* the cgroup's memory.events (v2) or memory.oom_control (v1), read-only; -1 if none */
    int score; /* init's own /proc/self/oom_score_adj for reading and writing, opened before /proc became read-only; -1 if
                     none: commands are then as likely to be killed as init */
    const int *network; /* what becomes INIT_FD_TCP and INIT_FD_UDP; NULL: the sandbox has no way out */
    const int *upper;   /* what becomes INIT_FD_UPPER; NULL: there is none */
    unsigned flags;
    uid_t uid; /* INIT_ONE_ID */
    gid_t gid;
    const struct sock_filter *filter; /* for commands; init stands behind it too */
    unsigned filter_flags;            /* of it; with FILTER_KEYED init is its listener */
    size_t nfilter;                   /* 0: none (a test of other layers) */
    const struct init_place *places;  /* Landlock's rules, most general first */
    size_t nplaces;                   /* 0: no Landlock (best effort) */
    uint64_t open_files;              /* RLIMIT_NOFILE of commands; 0: as it is */
    uint64_t processes;               /* RLIMIT_NPROC of commands; 0: as it is */
    uint32_t ring_size;               /* bytes per output stream, a power of two; 0: INIT_RING_DEFAULT */
};

void init_main(const struct init_args *args) __attribute__((noreturn));

#endif
