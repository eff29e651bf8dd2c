/* store-reserve.c - reserves room on the disk for the database.
 *
 * On a full disk clients must still be able to remove things, and front must still start. SQLite needs room for that,
 * even to open a store (its shared memory is a file, and writes go to a log first). So a file beside the database holds
 * blocks that nothing else can take. They are released when the database needs them and taken back when there is room;
 * until all of them are back, only removals are written.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "db/db-int.h"

enum { BLOCK = 4096, PART_OF_DISK = 8, ROOM_TO_OPEN = 1 << 20 };

static uint64_t reserve_wanted(int dir)
{
    struct statvfs fs;
    if (fstatvfs(dir, &fs) < 0)
        return DB_RESERVE_MAX;
    uint64_t part = (uint64_t)fs.f_blocks * fs.f_frsize / PART_OF_DISK;
    return part == 0 || part > DB_RESERVE_MAX ? DB_RESERVE_MAX : part / BLOCK * BLOCK;
}

/* Writes zeros on a file system without fallocate(). */
static int reserve_fill(int fd, uint64_t size)
{
    static const char zeros[BLOCK];
    if (fallocate(fd, 0, 0, (off_t)size) == 0)
        return 0;
    if (errno != EOPNOTSUPP)
        return -1;
    for (uint64_t at = 0; at < size; at += sizeof zeros)
        if (pwrite(fd, zeros, sizeof zeros, (off_t)at) != (ssize_t)sizeof zeros)
            return -1;
    return 0;
}

void db_reserve_take(struct db *s)
{
    uint64_t wanted = reserve_wanted(s->dir), size = wanted;
    _cleanup_close_ int fd = openat(s->dir, DB_RESERVE_FILE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    /* Takes as much as there is: other programs would use up the rest. */
    while (fd >= 0 && size >= BLOCK && reserve_fill(fd, size) < 0) {
        (void)ftruncate(fd, 0);
        size /= 2;
    }
    s->reserve_whole = fd >= 0 && size == wanted;
    (void)sqlite3_wal_autocheckpoint(s->write, s->reserve_whole ? DB_CHECKPOINT_PAGES : 1);
    if (s->reserve_whole && s->told_full)
        log_text(LOG_LEVEL_INFO, "store %s: there is room on the disk again", s->path);
    s->told_full &= !s->reserve_whole;
}

void db_reserve_release(struct db *s)
{
    _cleanup_close_ int fd = openat(s->dir, DB_RESERVE_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0)
        (void)ftruncate(fd, 0);
    s->reserve_whole = false;
    if (!s->told_full)
        log_text(LOG_LEVEL_ERROR,
                 "store %s: the disk is full; until there is room only what removes something is recorded", s->path);
    s->told_full = true;
}

bool db_reserve_may_help(const struct db *s)
{
    struct statvfs fs;
    return faccessat(s->dir, DB_RESERVE_FILE, F_OK, 0) == 0 && fstatvfs(s->dir, &fs) == 0 &&
           (uint64_t)fs.f_bavail * fs.f_frsize < ROOM_TO_OPEN;
}

bool db_op_grows(const struct db_op *op)
{
    switch (op->sql) {
    case SQL_TENANT_DEL:
    case SQL_SECRET_DEL:
    case SQL_TEMPLATE_DEL:
    case SQL_VOLUME_DEL:
    case SQL_KEY_DEL:
    case SQL_KEY_USED:
    case SQL_SANDBOX_END:
    case SQL_SANDBOX_DEL:
    case SQL_GENERATION_DEL:
    case SQL_TRANSACTION_DEL:
    case SQL_STEP_DEL:
    case SQL_NET_SWEEP:
    case SQL_USAGE_SWEEP:
    case SQL_IDEM_DEL:
    case SQL_IDEM_EXPIRE:
    case SQL_BARRIER:
    case SQL_SYNC:
        return false;
    default:
        return true;
    }
}
