#include "os/idrange.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/idmap.h"

#define RUN_DIR "/run/hutch"

static int open_locks(const char *dir, struct err *err)
{
    struct stat st;
    _cleanup_close_ int dirfd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dirfd < 0 || fstat(dirfd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open the run-time directory %s", dir);
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return err_set(err, ERR_SETUP, 0, "%s must belong to uid %u and be writable by nobody else", dir,
                       (unsigned)geteuid());
    int fd = openat(dirfd, "ranges", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open %s/ranges", dir);
    return fd;
}

static uint32_t random_start(void)
{
    uint32_t r = 0;
    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != sizeof r)
        r = (uint32_t)getpid(); /* only spreads the search; the lock decides */
    return r % IDRANGE_MAX;
}

/* 1 taken, 0 someone else has it, -1 with errno. */
static int try_lock(int fd, uint32_t n)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = n, .l_len = 1};
    if (fcntl(fd, F_OFD_SETLK, &fl) == 0)
        return 1;
    return errno == EAGAIN || errno == EACCES ? 0 : -1;
}

int idrange_take_in(const char *dir, struct idrange *ret, struct err *err)
{
    struct idmap_reserved given = {0};
    *ret = (struct idrange){.fd = -1};
    _cleanup_close_ int fd = open_locks(dir, err);
    if (fd < 0)
        return -1;
    idmap_reserved_load(&given);
    uint32_t start = random_start();
    for (uint32_t i = 0; i < IDRANGE_MAX; i++) {
        uint32_t n = (start + i) % IDRANGE_MAX, base = IDRANGE_FIRST + n * IDRANGE_COUNT;
        if (idmap_reserved_overlaps(&given, base, IDRANGE_COUNT))
            continue;
        int got = try_lock(fd, n);
        if (got < 0) {
            idmap_reserved_done(&given);
            return err_set(err, ERR_SETUP, errno, "cannot lock a uid range in %s/ranges", dir);
        }
        if (got) {
            idmap_reserved_done(&given);
            *ret = (struct idrange){.base = base, .count = IDRANGE_COUNT, .fd = TAKE_FD(fd)};
            return 0;
        }
    }
    idmap_reserved_done(&given);
    return err_set(err, ERR_HOST, 0,
                   "all %d uid ranges are in use or given out in /etc/subuid; end some sandboxes first", IDRANGE_MAX);
}

int idrange_take(struct idrange *ret, struct err *err)
{
    *ret = (struct idrange){.fd = -1};
    if (mkdir(RUN_DIR, 0710) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "cannot make " RUN_DIR);
    return idrange_take_in(RUN_DIR, ret, err);
}

int idrange_pin(const struct idrange *r)
{
    return mmap(NULL, 1, PROT_NONE, MAP_SHARED, r->fd, 0) == MAP_FAILED ? -1 : 0;
}

void idrange_release(struct idrange *r)
{
    if (r->fd >= 0)
        (void)close(r->fd);
    r->fd = -1;
}
