/* journal.h - what a restarted keeper needs to know: one small file per sandbox in RUN/journal.
 *
 * A record is written before the sandbox's first process exists, and changed by single writes of less than a page, so a
 * killed keeper leaves either the old or the new one. The run directory does not survive a boot; nothing is synced.
 */
#ifndef HUTCH_KEEPER_JOURNAL_H
#define HUTCH_KEEPER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"
#include "keeper/proto.h"

enum journal_state { JOURNAL_STARTING = 1, JOURNAL_LIVE, JOURNAL_DEAD };
enum { JOURNAL_CGROUP_MAX = 2816, JOURNAL_BOOT = 40 };

struct journal_holder {
    uint64_t pid, start; /* pid 0: none */
};

struct journal_record {
    char magic[8];
    uint32_t state; /* enum journal_state */
    uint32_t flags; /* of struct keeper_create */
    char id[KEEPER_ID_MAX];
    char template[KEEPER_TEMPLATE_MAX];
    char boot[JOURNAL_BOOT]; /* boot id of the kernel */
    uint32_t pid;            /* of init; 0 until it is known */
    uint32_t range;          /* first id of its range; 0 if it has none */
    uint64_t start;          /* start time of pid, in clock ticks */
    uint64_t pidfd_ino;      /* inode of its pidfd where that names the process; else 0 */
    uint64_t deadline_ms;
    uint64_t memory, disk;
    uint32_t cpu_milli;
    /* dead */
    uint32_t cause;
    int32_t status;
    uint32_t tier; /* enum keeper_tier; versions that had one tier wrote 0 */
    uint64_t at_unix_ms;
    union {
        struct keeper_usage usage;
        struct journal_holder holder[KEEPER_HOLDERS]; /* live: processes that hold it still */
    };
    /* Of the network namespace and its two sockets, as the kernel numbers them; 0: it has no network. */
    uint64_t ns_cookie, tcp_cookie, udp_cookie;
    /* Of the private writable layer, the directory "u" in what init keeps at WALL_SANDBOX_UPPER; 0: it has none, or was made
     * by a version that did not keep it. */
    uint64_t upper_dev, upper_ino;
    char driver[KEEPER_DRIVER_MAX], quota[24]; /* as os/upper.h names them; "": there is no upper */
    uint32_t shift;                            /* what a reader of that layer subtracts from ids to have 0..65535 */
    uint32_t frozen;                           /* paused by keeper; also while it is being paused */
    /* Ids of the volumes it was given, "vol-..." and "host-...", from the front; "" none. */
    char volume[KEEPER_VOLUMES_MAX][KEEPER_ID_MAX];
    char cgroup[JOURNAL_CGROUP_MAX]; /* as cgroup_save() gives it */
    uint64_t sum;                    /* of everything before */
};

/* Opens RUN/journal, made if needed. Descriptor or -1. */
int journal_open(int run_dir, struct err *err);
/* A new record, by rename. */
int journal_write(int dir, struct journal_record *r, struct err *err);
/* Sets the magic and the sum, as journal_write() and journal_update() do. */
void journal_seal(struct journal_record *r);
/* Changes an existing record in place. */
int journal_update(int dir, struct journal_record *r, struct err *err);
/* -1 with errno: ENOENT, or EBADMSG if it is not a whole record of that name. One of a version before is converted. */
int journal_read(int dir, const char *id, struct journal_record *ret);
/* The same for other processes: keeper may be changing the record at this moment, so an incomplete one is read again a
 * few times. */
int journal_read_beside(int dir, const char *id, struct journal_record *ret);
void journal_remove(int dir, const char *id);
/* Calls `each` for every name in the journal; r is NULL if it is not a record. */
int journal_each(int dir, void (*each)(void *arg, const char *name, const struct journal_record *r), void *arg,
                 struct err *err);
/* The cgroups in which keepers of this run directory made those of sandboxes. */
int journal_groups(int dir, struct strv *ret);
int journal_put_groups(int dir, const struct strv *groups, struct err *err);
/* The running kernel's boot id; "" if it cannot be read. */
void journal_boot_id(char ret[JOURNAL_BOOT]);
/* Checks the bytes of a record: magic, sum, every string ended, the id valid. Pure. */
bool journal_valid(const struct journal_record *r);

#endif
