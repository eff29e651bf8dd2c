/* proto.h - what front may ask keeper, and what keeper answers: fixed-layout messages over SEQPACKET, one struct each way,
 * no descriptors, no pointers, every string NUL-terminated inside its array. keeper accepts ids, numbers and flags only;
 * which directories, layers and device nodes they stand for is decided by keeper's own configuration.
 */
#ifndef HUTCH_KEEPER_PROTO_H
#define HUTCH_KEEPER_PROTO_H

#include <stdint.h>

enum { KEEPER_VERSION = 1, KEEPER_ID_MAX = 40, KEEPER_TEMPLATE_MAX = 72, KEEPER_TEXT_MAX = 400, KEEPER_LIST_MAX = 200 };

enum keeper_type {
    KEEPER_CREATE = 1,
    KEEPER_KILL,
    KEEPER_DEADLINE,
    KEEPER_USAGE,
    KEEPER_LIST,   /* answered by KEEPER_ITEMS, as many as needed, the last with more == 0 */
    KEEPER_FORGET, /* no answer */
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

enum { KEEPER_STRICT = 1 /* privilege strict; otherwise computer */, KEEPER_BEST_EFFORT = 2 };

struct keeper_head {
    uint32_t version, type;
    uint64_t request; /* chosen by the asker, returned in the answer */
};
struct keeper_create {
    struct keeper_head head;
    char id[KEEPER_ID_MAX];
    char template[KEEPER_TEMPLATE_MAX]; /* [a-z0-9_-]+: "host", or a directory of the template store */
    char hostname[64];
    uint32_t flags;
    uint32_t cpu_milli;
    uint64_t memory, disk, inodes; /* bytes; 0 = keeper's default */
    uint32_t pids, open_files;
    uint64_t deadline_ms; /* CLOCK_BOOTTIME; keeper kills at this time */
};
struct keeper_simple { /* KILL, USAGE, FORGET, LIST (id empty) */
    struct keeper_head head;
    char id[KEEPER_ID_MAX];
};
struct keeper_deadline {
    struct keeper_head head;
    char id[KEEPER_ID_MAX];
    uint64_t deadline_ms;
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
    char tier[16];             /* CREATE: "container", or what is really in force */
    char degraded[200];        /* CREATE: layers missing under best-effort; "" if none */
    uint32_t init_pid;         /* CREATE: as seen outside; for logs */
    struct keeper_usage usage; /* USAGE, KILL */
};
enum keeper_cause {
    KEEPER_DIED_UNKNOWN,
    KEEPER_DIED_TTL,
    KEEPER_DIED_OOM,
    KEEPER_DIED_INIT,
    KEEPER_DIED_KILLED,
    KEEPER_DIED_BOOT
};
struct keeper_item {
    char id[KEEPER_ID_MAX];
    uint32_t alive;
    uint32_t cause; /* enum keeper_cause, when not alive */
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
