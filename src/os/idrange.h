/* idrange.h - ranges of 65,536 user and group ids for sandboxes that root starts.
 *
 * Range n covers the ids 2^29 + n * 65536 and up, for users and groups alike. A taken range is a write lock on byte n
 * of one lock file, held by the *open file description* (F_OFD_SETLK): it survives fork, clone and exec of the process
 * that holds the descriptor, and the kernel drops it when the last holder is gone, however it died. So nothing has to
 * be cleaned up, and there is no list to go stale.
 *
 * The range must outlive the process that took it for as long as the sandbox lives: pid 1 inside calls idrange_pin()
 * and then closes the descriptor. A mapping keeps the description open just as well, and unlike a descriptor it cannot
 * be used to unlock the range or leak to the command. The kernel lets go of pid 1's mapping a moment before it has
 * killed the last process of the namespace; an observer outside (which waits for pid 1's pidfd) should keep its copy
 * until then.
 *
 * The lock file may be removed while ranges are in use. The next taker makes a new one, in which nothing is locked. So
 * the file also has one byte for each range: a taker that finds it without them looks in /proc which ranges the living
 * processes use, and marks these. A marked range is not taken; marks are made anew when no other range is free. A process
 * that was between taking its range and mapping it when the file was removed finds out with idrange_lost().
 */
#ifndef HUTCH_OS_IDRANGE_H
#define HUTCH_OS_IDRANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { IDRANGE_COUNT = 65536, IDRANGE_MAX = 4096 };
#define IDRANGE_FIRST UINT32_C(0x20000000)
#define IDRANGE_DIR   "/run/hutch"
#define IDRANGE_FILE  IDRANGE_DIR "/ranges"

struct idrange {
    uint32_t base, count; /* host ids base .. base + count - 1 */
    int fd;               /* holds the lock; CLOEXEC; -1 if there is none */
};

/* Takes a free range, starting at a random one. Ranges that overlap /etc/subuid or /etc/subgid are passed over. Needs
 * root. Does not block. Errors: ERR_SETUP (directory unusable), ERR_HOST (all ranges taken). */
int idrange_take(struct idrange *ret, struct err *err);
/* The same with the lock file in another directory (absolute, existing, owned and writable by the caller only). */
int idrange_take_in(const char *dir, struct idrange *ret, struct err *err);
/* Whether the lock file was removed since the range was taken. Call it once the ids are mapped: a later taker has then
 * seen the map, an earlier one the lock. If it is lost, another sandbox may have the same range. */
bool idrange_lost(const struct idrange *r);
/* Clears the mark of a range whose sandbox is gone completely. fd: of the lock file. */
void idrange_unmark(int fd, uint32_t base);
/* Keeps the range taken for as long as the calling process lives and does not exec, without the descriptor. No
 * allocation. 0, or -1 with errno. */
int idrange_pin(const struct idrange *r);
/* Closes this process's descriptor; the range is free once no other process holds it. */
void idrange_release(struct idrange *r);

#endif
