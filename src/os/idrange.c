#include "os/idrange.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/num.h"
#include "os/idmap.h"

#define RUN_DIR IDRANGE_DIR

static int open_locks(const char *dir, struct err *err)
{
    struct stat st;
    _cleanup_close_ int dirfd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dirfd < 0 || fstat(dirfd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open the run-time directory %s", dir);
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return err_set(err, ERR_SETUP, 0, "%s must belong to uid %u and be writable by no other user", dir,
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

/* 1 taken, 0 another process has it, -1 with errno. */
static int idrange_try_lock(int fd, uint32_t n)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = n, .l_len = 1};
    if (fcntl(fd, F_OFD_SETLK, &fl) == 0)
        return 1;
    return errno == EAGAIN || errno == EACCES ? 0 : -1;
}

/* Marks the ranges that this id map uses. */
static void mark_map(const char *text, unsigned char marks[IDRANGE_MAX])
{
    unsigned inside, outside, count;
    int used;
    for (; sscanf(text, " %u %u %u%n", &inside, &outside, &count, &used) == 3; text += used) {
        uint64_t first = outside, last = (uint64_t)outside + count - 1;
        const uint64_t end = IDRANGE_FIRST + (uint64_t)IDRANGE_MAX * IDRANGE_COUNT;
        /* An identity map of all ids belongs to no sandbox. */
        if (count == 0 || count > IDRANGE_COUNT || last < IDRANGE_FIRST || first >= end)
            continue;
        first = first < IDRANGE_FIRST ? 0 : (first - IDRANGE_FIRST) / IDRANGE_COUNT;
        last = last >= end ? IDRANGE_MAX - 1 : (last - IDRANGE_FIRST) / IDRANGE_COUNT;
        for (uint64_t n = first; n <= last; n++)
            marks[n] = 1;
    }
}

/* Marks the ranges that living processes use, as their id maps in /proc say. Locks in a removed lock file are still
 * held, but a new taker does not see them. */
static int idrange_mark(int fd, struct err *err)
{
    unsigned char marks[IDRANGE_MAX] = {0};
    _cleanup_closedir_ DIR *d = opendir("/proc");
    const struct dirent *e;
    if (!d)
        return err_set(err, ERR_SETUP, errno, "cannot look in /proc which uid ranges are in use");
    while ((e = readdir(d)) != NULL) {
        _cleanup_buf_ struct buf map = {0};
        char path[300];
        int pid;
        (void)snprintf(path, sizeof path, "%s/uid_map", e->d_name);
        if (num_int(e->d_name, 1, INT32_MAX, &pid) && fd_read_file(dirfd(d), path, 1 << 16, &map) == 0)
            mark_map(buf_str(&map), marks);
    }
    return pwrite(fd, marks, sizeof marks, 0) == sizeof marks
               ? 0
               : err_set(err, ERR_SETUP, errno, "cannot note which uid ranges are in use");
}

static bool idrange_is_marked(int fd, uint32_t n)
{
    unsigned char mark = 0;
    return pread(fd, &mark, 1, n) == 1 && mark;
}

/* 1 taken, 0 there is none, -1. */
static int take_free(int fd, const char *dir, const struct idmap_reserved *given, uint32_t *ret, struct err *err)
{
    uint32_t start = random_start();
    for (uint32_t i = 0; i < IDRANGE_MAX; i++) {
        uint32_t n = (start + i) % IDRANGE_MAX, base = IDRANGE_FIRST + n * IDRANGE_COUNT;
        if (idmap_reserved_overlaps(given, base, IDRANGE_COUNT) || idrange_is_marked(fd, n))
            continue;
        int got = idrange_try_lock(fd, n);
        if (got < 0)
            return err_set(err, ERR_SETUP, errno, "cannot lock a uid range in %s/ranges", dir);
        *ret = base;
        if (got)
            return 1;
    }
    return 0;
}

int idrange_take_in(const char *dir, struct idrange *ret, struct err *err)
{
    struct idmap_reserved given = {0};
    struct stat st;
    *ret = (struct idrange){.fd = -1};
    _cleanup_close_ int fd = open_locks(dir, err);
    if (fd < 0)
        return -1;
    bool fresh = fstat(fd, &st) < 0 || st.st_size < IDRANGE_MAX;
    if (fresh && idrange_mark(fd, err) < 0)
        return -1;
    idmap_reserved_load(&given);
    uint32_t base = 0;
    int got = take_free(fd, dir, &given, &base, err);
    if (got == 0 && !fresh) { /* marked ranges may be free by now */
        got = idrange_mark(fd, err);
        if (got == 0)
            got = take_free(fd, dir, &given, &base, err);
    }
    idmap_reserved_done(&given);
    if (got < 0)
        return -1;
    if (got == 0)
        return err_set(err, ERR_HOST, 0,
                       "all %d uid ranges are in use or given out in /etc/subuid; end some sandboxes first",
                       IDRANGE_MAX);
    *ret = (struct idrange){.base = base, .count = IDRANGE_COUNT, .fd = TAKE_FD(fd)};
    return 0;
}

bool idrange_lost(const struct idrange *r)
{
    struct stat st;
    return r->fd >= 0 && fstat(r->fd, &st) == 0 && st.st_nlink == 0;
}

void idrange_unmark(int fd, uint32_t base)
{
    static const unsigned char free_now = 0;
    uint32_t n = (base - IDRANGE_FIRST) / IDRANGE_COUNT;
    if (idrange_is_marked(fd, n))
        (void)!pwrite(fd, &free_now, 1, n);
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
