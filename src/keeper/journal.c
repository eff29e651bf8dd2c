#include "keeper/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "keeper/request.h"
#include "os/cgroup.h"

_Static_assert(sizeof(struct journal_record) <= 4096, "a record is written within one page");

static const char magic[8] = "hutchJ4";

/* Older versions have the same fields up to some point, then the cgroup and the sum. Their size tells them apart. */
enum {
    TAIL = JOURNAL_CGROUP_MAX + sizeof(uint64_t),
    HEAD_2 = offsetof(struct journal_record, upper_dev),
    HEAD_3 = offsetof(struct journal_record, volume),
};
/* Inits keep copies of whole records: their size stays. */
_Static_assert(sizeof(((struct journal_record *)0)->holder) <= sizeof(struct keeper_usage), "holders take no room");
_Static_assert(offsetof(struct journal_record, cgroup) + TAIL == sizeof(struct journal_record), "no gap");
static const struct {
    char magic[8];
    size_t head;
} before[] = {{"hutchJ2", HEAD_2}, {"hutchJ3", HEAD_3}};
#define TEMP   ".new"
#define GROUPS ".groups"
enum { GROUPS_MAX = 1 << 20, BESIDE_TRIES = 10, BESIDE_WAIT_US = 2000 };

int journal_open(int run_dir, struct err *err)
{
    if (mkdirat(run_dir, "journal", 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make the journal in the run directory");
    int fd = openat(run_dir, "journal", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "open the journal in the run directory") : fd;
}

static uint64_t record_sum_of_bytes(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t record_sum(const struct journal_record *r)
{
    return record_sum_of_bytes(r, offsetof(struct journal_record, sum));
}

void journal_seal(struct journal_record *r)
{
    memcpy(r->magic, magic, sizeof magic);
    r->sum = record_sum(r);
}

static bool field_is_terminated(const char *s, size_t room) { return strnlen(s, room) < room; }

bool journal_valid(const struct journal_record *r)
{
    for (size_t i = 0; i < KEEPER_VOLUMES_MAX; i++)
        if (!field_is_terminated(r->volume[i], sizeof r->volume[i]))
            return false;
    return memcmp(r->magic, magic, sizeof magic) == 0 && r->sum == record_sum(r) && r->state >= JOURNAL_STARTING &&
           r->state <= JOURNAL_DEAD && r->tier < KEEPER_TIERS && keeper_id_valid(r->id) &&
           field_is_terminated(r->template, sizeof r->template) && field_is_terminated(r->boot, sizeof r->boot) &&
           field_is_terminated(r->cgroup, sizeof r->cgroup) && field_is_terminated(r->driver, sizeof r->driver) &&
           field_is_terminated(r->quota, sizeof r->quota);
}

/* Converts a record of an older version, so that an upgrade adopts the running sandboxes. */
static bool record_convert_old(const unsigned char *p, size_t n, struct journal_record *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(before); i++) {
        uint64_t sum;
        size_t head = before[i].head;
        if (n != head + TAIL || memcmp(p, before[i].magic, sizeof before[i].magic) != 0)
            continue;
        memcpy(&sum, p + n - sizeof sum, sizeof sum);
        if (sum != record_sum_of_bytes(p, n - sizeof sum))
            return false;
        *ret = (struct journal_record){0};
        memcpy(ret, p, head);
        memcpy(ret->cgroup, p + head, sizeof ret->cgroup);
        journal_seal(ret);
        return true;
    }
    return false;
}

static int record_write(int dir, const char *name, int flags, const struct journal_record *r)
{
    _cleanup_close_ int fd = openat(dir, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        return -1;
    /* A record of an older version is shorter: this write makes it a complete one of ours. */
    ssize_t n = pwrite(fd, r, sizeof *r, 0);
    if (n >= 0 && (size_t)n != sizeof *r)
        errno = ENOSPC;
    return n == sizeof *r ? 0 : -1;
}

int journal_write(int dir, struct journal_record *r, struct err *err)
{
    journal_seal(r);
    if (record_write(dir, TEMP, O_CREAT | O_TRUNC, r) < 0 || renameat(dir, TEMP, dir, r->id) < 0)
        return err_set(err, ERR_SETUP, errno, "write the journal record of %s", r->id);
    return 0;
}

int journal_update(int dir, struct journal_record *r, struct err *err)
{
    journal_seal(r);
    if (record_write(dir, r->id, 0, r) < 0)
        return err_set(err, ERR_SETUP, errno, "change the journal record of %s", r->id);
    return 0;
}

int journal_read(int dir, const char *id, struct journal_record *ret)
{
    _cleanup_close_ int fd = openat(dir, id, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -1;
    unsigned char bytes[sizeof *ret];
    ssize_t n = pread(fd, bytes, sizeof bytes, 0);
    if (n < 0)
        return -1;
    bool whole = n == sizeof *ret || record_convert_old(bytes, (size_t)n, ret);
    if (n == sizeof *ret)
        memcpy(ret, bytes, sizeof *ret);
    if (!whole || !journal_valid(ret) || strcmp(ret->id, id) != 0) {
        errno = EBADMSG;
        return -1;
    }
    return 0;
}

int journal_read_beside(int dir, const char *id, struct journal_record *ret)
{
    int r = journal_read(dir, id, ret);
    for (int i = 1; r < 0 && errno == EBADMSG && i < BESIDE_TRIES; i++) {
        (void)usleep(BESIDE_WAIT_US);
        r = journal_read(dir, id, ret);
    }
    return r;
}

void journal_remove(int dir, const char *id) { (void)unlinkat(dir, id, 0); }

int journal_each(int dir, void (*each)(void *arg, const char *name, const struct journal_record *r), void *arg,
                 struct err *err)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *e;
    if (!d) {
        if (copy >= 0)
            (void)close(copy);
        return err_set(err, ERR_SETUP, errno, "read the journal");
    }
    while ((e = readdir(d)) != NULL) {
        struct journal_record r;
        if (strcmp(e->d_name, TEMP) == 0)
            (void)unlinkat(dir, TEMP, 0);
        if (e->d_name[0] != '.')
            each(arg, e->d_name, journal_read(dir, e->d_name, &r) == 0 ? &r : NULL);
    }
    return 0;
}

void journal_boot_id(char ret[JOURNAL_BOOT])
{
    _cleanup_buf_ struct buf b = {0};
    (void)fd_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 256, &b);
    (void)snprintf(ret, JOURNAL_BOOT, "%.*s", (int)strcspn(buf_str(&b), "\n"), buf_str(&b));
}

int journal_groups(int dir, struct strv *ret)
{
    _cleanup_buf_ struct buf b = {0};
    if (fd_read_file(dir, GROUPS, GROUPS_MAX, &b) < 0)
        return errno == ENOENT ? 0 : -1;
    for (const char *p = buf_str(&b); *p;) {
        size_t n = strcspn(p, "\n");
        if (p[0] == '/' && n < CGROUP_DIR_MAX)
            strv_take(ret, xstrndup(p, n));
        p += n + (p[n] == '\n');
    }
    return 0;
}

int journal_put_groups(int dir, const struct strv *groups, struct err *err)
{
    _cleanup_buf_ struct buf b = {0};
    for (size_t i = 0; i < groups->n; i++)
        buf_addf(&b, "%s\n", groups->v[i]);
    _cleanup_close_ int fd = openat(dir, TEMP, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fd_write_all(fd, buf_str(&b), b.n) < 0 || renameat(dir, TEMP, dir, GROUPS) < 0)
        return err_set(err, ERR_SETUP, errno, "note the cgroups in the journal");
    return 0;
}
