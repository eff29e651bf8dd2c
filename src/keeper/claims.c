/* claims.c - id ranges of live sandboxes, held by init and by keeper.
 *
 * A range is taken with a write lock (os/idrange.h), which then becomes a shared one: init's mapping keeps that
 * description open for its life, and keeper's one description holds every range besides, until nothing of the sandbox
 * is left. A new keeper takes its shared lock next to init's. A process that wants a range asks for a write lock, which
 * conflicts with either.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "keeper/keeper-int.h"
#include "os/idrange.h"

static int claim_lock_range(int fd, uint32_t base, short type)
{
    struct flock fl = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (base - IDRANGE_FIRST) / IDRANGE_COUNT, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &fl);
}

int claims_open(struct err *err)
{
    if (mkdir(IDRANGE_DIR, 0710) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "cannot make " IDRANGE_DIR);
    int fd = open(IDRANGE_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "cannot open " IDRANGE_FILE) : fd;
}

int claims_hold(int ranges, const struct idrange *taken, uint32_t base)
{
    if (taken && claim_lock_range(taken->fd, base, F_RDLCK) < 0)
        return -1;
    return claim_lock_range(ranges, base, F_RDLCK);
}

void claims_drop(int ranges, uint32_t base)
{
    if (ranges < 0 || !base)
        return;
    idrange_unmark(ranges, base);
    (void)claim_lock_range(ranges, base, F_UNLCK);
}
