/* wal-syncs.h - how often the log of the database was put on the disk: what is in it by then survives a power cut. */
#ifndef HUTCH_TESTS_UNIT_WAL_SYNCS_H
#define HUTCH_TESTS_UNIT_WAL_SYNCS_H

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned wal_syncs_;

static inline void wal_synced(int fd)
{
    static const char log[] = "store.db-wal";
    char link[40], to[256];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, to, sizeof to);
    if (n >= (ssize_t)strlen(log) && memcmp(to + n - strlen(log), log, strlen(log)) == 0)
        (void)__atomic_fetch_add(&wal_syncs_, 1, __ATOMIC_SEQ_CST);
}

static inline unsigned wal_syncs(void) { return __atomic_load_n(&wal_syncs_, __ATOMIC_SEQ_CST); }

/* In place of the C library's, for the library of the database too. */
__attribute__((visibility("default"))) int fsync(int fd)
{
    wal_synced(fd);
    return (int)syscall(SYS_fsync, fd);
}
__attribute__((visibility("default"))) int fdatasync(int fd)
{
    wal_synced(fd);
    return (int)syscall(SYS_fdatasync, fd);
}

#endif
