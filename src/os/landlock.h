/* landlock.h - the second wall: path rights that hold even if a mount is wrong.
 *
 * One layer per call of landlock_apply(); the kernel takes 16, and programs inside may want some. The layer handles
 * every file right of the running ABI, so what no rule grants is refused. stat, chdir, chmod, chown, utime and xattrs
 * are beyond it, and so is every descriptor opened before. Nothing allocates: it may be used after clone.
 */
#ifndef HUTCH_OS_LANDLOCK_H
#define HUTCH_OS_LANDLOCK_H

#include <linux/landlock.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Newer than the headers of Debian 12 (which end with ABI 2). */
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14) /* ABI 3 */
#endif
#ifndef LANDLOCK_ACCESS_FS_IOCTL_DEV
#define LANDLOCK_ACCESS_FS_IOCTL_DEV (1ULL << 15) /* ABI 5 */
#endif
#ifndef LANDLOCK_ACCESS_FS_RESOLVE_UNIX
#define LANDLOCK_ACCESS_FS_RESOLVE_UNIX (1ULL << 16) /* ABI 9 */
#endif

enum { LANDLOCK_ABI_FLOOR = 2, LANDLOCK_ABI_KNOWN = 9 };

/* What rules are made of. Rights that the ABI lacks, or that make no sense for a file, are left out silently. */
#define LANDLOCK_READ    (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_EXECUTE)
#define LANDLOCK_CONNECT LANDLOCK_ACCESS_FS_RESOLVE_UNIX /* connect to unix sockets below */
#define LANDLOCK_DEVICE                                                                           \
    (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_TRUNCATE | \
     LANDLOCK_ACCESS_FS_IOCTL_DEV)
#define LANDLOCK_WRITE ((1ULL << 17) - 1) /* everything */

struct landlock_rule {
    int fd; /* O_PATH; borrowed */
    uint64_t rights;
};

enum landlock_flag {
    LANDLOCK_DENY_TCP = 1 << 0, /* no TCP bind and connect; ABI 4 */
    LANDLOCK_FREE_READS =
        1 << 3,            /* reading and executing are not looked at: where everything may be read anyway, each open
                                     would only pay for a walk up to the root */
    LANDLOCK_LOG = 1 << 1, /* refusals of programs started later go to the audit log; ABI 7, else ignored */
    LANDLOCK_UNSCOPED = 1 << 2, /* signals and abstract sockets stay: for commands that share a sandbox, not a layer */
};

/* The ABI of the running kernel, 0 if there is none (not built in, or not in the lsm= list). */
int landlock_abi(void);

/* Restricts the calling thread, which must have no_new_privs or CAP_SYS_ADMIN. Scopes (abstract unix sockets,
 * signals) are applied from ABI 6 on. ERR_HOST if the kernel cannot do what was asked, else ERR_SETUP. */
int landlock_apply(const struct landlock_rule *rules, size_t n, unsigned flags, struct err *err);
/* The same as if the kernel had that (lower) ABI; the tests force every fallback with it. */
int landlock_apply_abi(const struct landlock_rule *rules, size_t n, unsigned flags, int abi, struct err *err);

#endif
