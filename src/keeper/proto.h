/* proto.h - what front may ask keeper, and what keeper answers: fixed-layout messages over SEQPACKET, one struct each
 * way, no descriptors, no pointers, every string NUL-terminated inside its array. keeper accepts ids, numbers and flags
 * only; keeper's own configuration decides which directories, layers and device nodes they stand for.
 */
#ifndef HUTCH_KEEPER_PROTO_H
#define HUTCH_KEEPER_PROTO_H

#include <stdint.h>

#define KEEPER_SOCKET "keeper.sock" /* in RUN */

enum {
    KEEPER_VERSION = 2,
    KEEPER_VOLUMES_MAX = 8,
    KEEPER_HOLDERS = 4, /* processes that hold one sandbox at a time */
    KEEPER_PLACE_MAX = 256,
    KEEPER_DRIVER_MAX = 16,
    KEEPER_ID_MAX = 40,
    KEEPER_TEMPLATE_MAX = 72,
    KEEPER_TEXT_MAX = 400,
    KEEPER_LIST_MAX = 200
};

enum keeper_type {
    KEEPER_CREATE = 1,
    KEEPER_KILL,
    KEEPER_DEADLINE,
    KEEPER_USAGE,
    KEEPER_LIST,   /* answered by KEEPER_ITEMS, as many as needed, the last with more == 0 */
    KEEPER_FORGET, /* no answer */
    KEEPER_PAUSE,  /* everything inside stands still when this is answered; done twice it is done */
    KEEPER_RESUME,
    KEEPER_HOLD, /* the same for the asker's own work: until KEEPER_RELEASE, or until its connection or process ends */
    KEEPER_RELEASE, /* a sandbox that is not paused runs again when this is answered */
    KEEPER_LIMIT,   /* init has what a command needs to have a limit of its own on memory when this is answered */
    KEEPER_REPLY = 100,
    KEEPER_ITEMS,
    KEEPER_DIED,
};

enum keeper_error {
    KEEPER_OK,
    KEEPER_BAD_REQUEST, /* a field is not valid; text names it */
    KEEPER_NO_TEMPLATE,
    KEEPER_NO_SANDBOX,
    KEEPER_EXISTS,   /* create: the id is alive already (a repeated request: success for the caller) */
    KEEPER_CAPACITY, /* this node has no room: ids, memory, descriptors */
    KEEPER_HOST,     /* this host cannot do it; text says what is missing */
    KEEPER_FAILED,   /* text names the stage */
};

enum {
    KEEPER_STRICT = 1 /* privilege strict; otherwise computer */,
    KEEPER_BEST_EFFORT = 2,
    KEEPER_BUILD = 4 /* our own tools at /.hutch inside */,
    KEEPER_WISH = 8 /* the limits on cpu and memory are dropped, and named, where they cannot be enforced */
};
enum { KEEPER_VOLUME_RO = 1 };
enum keeper_tier { KEEPER_TIER_CONTAINER, KEEPER_TIERS }; /* the operations of each: tier.h */

struct keeper_head {
    uint32_t version, type;
    uint64_t request; /* chosen by the asker, returned in the answer */
};
struct keeper_volume {
    char id
        [KEEPER_ID_MAX]; /* "vol-...": a volume of the database, or "host-NAME": a directory of the operator's table */
    char place
        [KEEPER_PLACE_MAX]; /* absolute, chosen by the tenant: resolved inside, by the sandbox's own first process */
    uint32_t flags;
};
struct keeper_create {
    struct keeper_head head;
    char id[KEEPER_ID_MAX];
    char template
        [KEEPER_TEMPLATE_MAX]; /* [a-z0-9_-]+: "host", a directory of the template store, or a stack ("st-...") */
    char hostname[64];
    uint32_t flags;
    uint32_t cpu_milli;
    uint64_t memory, disk, inodes; /* bytes; 0 = keeper's default */
    uint32_t pids, open_files;
    uint64_t deadline_ms;           /* CLOCK_BOOTTIME; keeper kills at this time */
    char driver[KEEPER_DRIVER_MAX]; /* of its upper, as os/upper.h names them; "": keeper's default */
    uint32_t nvolumes;
    uint32_t tier; /* enum keeper_tier */
    struct keeper_volume volume[KEEPER_VOLUMES_MAX];
};
struct keeper_simple { /* KILL, USAGE, FORGET, PAUSE, RESUME, HOLD, RELEASE, LIST (id empty) */
    struct keeper_head head;
    char id[KEEPER_ID_MAX];
};
struct keeper_deadline {
    struct keeper_head head;
    char id[KEEPER_ID_MAX];
    uint64_t deadline_ms;
};
struct keeper_limit {
    struct keeper_head head;
    char id[KEEPER_ID_MAX];
    uint64_t number; /* by which INIT_SPAWN_LIMITED names it; chosen by the asker, not 0 */
    uint64_t memory; /* bytes */
};
struct keeper_usage {
    uint64_t cpu_user_us, cpu_system_us, memory, memory_peak, memory_limit, disk_used, disk_limit, inodes_used, pids,
        pids_peak;
    uint64_t oom_kills, throttled_us;
    uint32_t cpu_milli, have; /* have: bits in the order of the fields above */
};
struct keeper_reply {
    struct keeper_head head;
    uint32_t error; /* enum keeper_error */
    char text[KEEPER_TEXT_MAX];
    char tier[16];                             /* CREATE: "container", or what is really in force */
    char degraded[200];                        /* CREATE: layers missing under best-effort; "" if none */
    uint32_t init_pid;                         /* CREATE: as seen outside; for logs */
    char driver[KEEPER_DRIVER_MAX], quota[24]; /* CREATE: of its upper, in force */
    struct keeper_usage usage;                 /* USAGE, KILL */
    uint64_t since_us; /* HOLD: CLOCK_MONOTONIC, when keeper began to freeze it; 0: it stood still already */
};
enum keeper_cause {
    KEEPER_DIED_UNKNOWN,
    KEEPER_DIED_TTL,
    KEEPER_DIED_OOM,
    KEEPER_DIED_INIT,
    KEEPER_DIED_KILLED,
    KEEPER_DIED_BOOT,
    KEEPER_DIED_LOST, /* its journal record or its socket was removed or damaged, and it could not be had again */
};
struct keeper_item {
    char id[KEEPER_ID_MAX];
    uint32_t alive;
    uint32_t cause;       /* enum keeper_cause, when not alive */
    uint32_t frozen, pad; /* paused */
    uint64_t deadline_ms;
};
struct keeper_items {
    struct keeper_head head;
    uint32_t n, more;
    struct keeper_item item[KEEPER_LIST_MAX];
};
struct keeper_death {
    struct keeper_head head;
    char id[KEEPER_ID_MAX];
    uint32_t cause;
    int32_t status; /* wait status of init, -1 if not known */
    uint64_t at_unix_ms;
    struct keeper_usage usage;
};

#endif
