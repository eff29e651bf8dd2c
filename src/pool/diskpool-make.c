/* diskpool-make.c - a new pool: its file, its file system. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/btrfs.h"
#include "pool/diskpool-int.h"

#define POOL_UNIT (UINT64_C(1) << 20)

uint64_t diskpool_default_size(int state)
{
    struct statvfs v;
    if (fstatvfs(state, &v) < 0)
        return 0;
    return (uint64_t)v.f_bavail * v.f_frsize / 2 / POOL_UNIT * POOL_UNIT;
}

int diskpool_make(int state, uint64_t size, struct diskpool *p, struct err *err)
{
    p->img = openat(state, POOL_NEW, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (p->img < 0 || ftruncate(p->img, (off_t)(size / POOL_UNIT * POOL_UNIT)) < 0)
        return err_set(err, ERR_SETUP, errno, "make %s/" POOL_NEW, diskpool_path(state));
    if (btrfs_format(p->img, err) < 0 || diskpool_open_root(state, p, err) < 0)
        return -1;
    if (fchmod(p->root, 0700) < 0 || fsync(p->img) < 0)
        return err_set(err, ERR_SETUP, errno, "make %s/" POOL_NEW, diskpool_path(state));
    return 0;
}
