/* walk.c - sorted names, bounded paths, sets of inodes. See walk.h. */
#include "trees/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "os/statx.h"

enum { WALK_EXTENTS = 256 }; /* of a file that are looked at together */

struct entry64 { /* as getdents64(2) fills it */
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};

int walk_by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* false: there are more than `max`. */
static bool walk_take_names(const char *buf, size_t n, size_t max, struct walk_names *ret)
{
    for (size_t at = 0; at < n;) {
        struct entry64 head;
        memcpy(&head, buf + at, offsetof(struct entry64, name));
        const char *name = buf + at + offsetof(struct entry64, name);
        at += head.reclen;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (ret->n == max || ret->bytes.n > WALK_NAME_BYTES_MAX)
            return false;
        buf_add(&ret->bytes, name, strlen(name) + 1);
        ret->n++;
    }
    return true;
}

int walk_names_some(int dir, size_t max, const char *path, struct walk_names *ret, struct err *err)
{
    enum { ROOM = 32 << 10 };
    _cleanup_free_ char *buf = xmalloc(ROOM);
    long n;
    *ret = (struct walk_names){0};
    if (lseek(dir, 0, SEEK_SET) < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be listed");
    while ((n = syscall(SYS_getdents64, dir, buf, ROOM)) > 0)
        if (!walk_take_names(buf, (size_t)n, max, ret)) {
            ret->more = true;
            break;
        }
    if (n < 0) {
        walk_names_done(ret);
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be listed");
    }
    ret->v = xcalloc(ret->n + 1, sizeof *ret->v);
    char *p = ret->bytes.p;
    for (size_t i = 0; i < ret->n; i++, p += strlen(p) + 1)
        ret->v[i] = p;
    qsort(ret->v, ret->n, sizeof *ret->v, walk_by_bytes);
    return 0;
}

int walk_names_read(int dir, const char *path, struct walk_names *ret, struct err *err)
{
    if (walk_names_some(dir, WALK_NAMES_MAX, path, ret, err) < 0)
        return -1;
    if (!ret->more)
        return 0;
    walk_names_done(ret);
    return walk_fail(err, ERR_LIMIT, 0, path, "more than %d names in one directory", WALK_NAMES_MAX);
}

void walk_names_done(struct walk_names *n)
{
    free(n->v);
    buf_done(&n->bytes);
    *n = (struct walk_names){0};
}

int walk_push(struct walk_path *p, const char *name, size_t *old, struct err *err)
{
    size_t len = strlen(name), slash = p->n ? 1 : 0;
    unsigned max = p->max ? p->max : LAY_DEPTH_MAX;
    if (p->depth == max)
        return walk_fail(err, ERR_LIMIT, 0, p->text, "what is in it lies deeper than %u directories", max);
    if (p->n + slash + len >= sizeof p->text)
        return walk_fail(err, ERR_LIMIT, 0, p->text, "what is in it has a path longer than %d bytes", LAY_PATH_MAX - 1);
    *old = p->n;
    if (slash)
        p->text[p->n++] = '/';
    memcpy(p->text + p->n, name, len + 1);
    p->n += len;
    p->depth++;
    return 0;
}

void walk_pop(struct walk_path *p, size_t old)
{
    p->n = old;
    p->text[old] = '\0';
    p->depth--;
}

int walk_fail(struct err *err, enum err_code code, int eno, const char *path, const char *fmt, ...)
{
    _cleanup_buf_ struct buf safe = {0};
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text_add_safe(&safe, path, 400);
    if (path[0])
        return err_set(err, code, eno, "'%s': %s", buf_str(&safe), text);
    return err_set(err, code, eno, "the root: %s", text);
}

int walk_stat(int dir, const char *name, struct stat *ret, bool *mounted)
{
    struct statx x;
    if (statx(dir, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &x) < 0)
        return -1;
    *mounted = x.stx_attributes & STATX_ATTR_MOUNT_ROOT;
    *ret = (struct stat){
        .st_dev = makedev(x.stx_dev_major, x.stx_dev_minor),
        .st_ino = x.stx_ino,
        .st_mode = x.stx_mode,
        .st_nlink = x.stx_nlink,
        .st_uid = x.stx_uid,
        .st_gid = x.stx_gid,
        .st_rdev = makedev(x.stx_rdev_major, x.stx_rdev_minor),
        .st_size = (off_t)x.stx_size,
        .st_blksize = (blksize_t)x.stx_blksize,
        .st_blocks = (blkcnt_t)x.stx_blocks,
        .st_atim = {x.stx_atime.tv_sec, x.stx_atime.tv_nsec},
        .st_mtim = {x.stx_mtime.tv_sec, x.stx_mtime.tv_nsec},
        .st_ctim = {x.stx_ctime.tv_sec, x.stx_ctime.tv_nsec},
    };
    return 0;
}

int walk_open_file(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

int walk_open_dir(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool walk_is_whiteout(const struct stat *st) { return S_ISCHR(st->st_mode) && st->st_rdev == makedev(0, 0); }

int walk_read(int fd, void *p, size_t want, uint64_t at)
{
    for (size_t have = 0; have < want;) {
        ssize_t n = pread(fd, (char *)p + have, want - have, (off_t)(at + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ESTALE;
        if (n <= 0)
            return -1;
        have += (size_t)n;
    }
    return 0;
}

uint64_t walk_data(int fd, uint64_t at, uint64_t size)
{
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);
    if (data < 0)
        return errno == ENXIO ? size : at; /* ENXIO: a hole to the end. Else the file system cannot tell */
    return (uint64_t)data < size ? (uint64_t)data : size;
}

int walk_same_content(int a, int b, uint64_t size, unsigned char buf[2 * WALK_COMPARE])
{
    uint64_t at = 0;
    while (at < size) {
        uint64_t da = walk_data(a, at, size), db = walk_data(b, at, size);
        at = da < db ? da : db; /* both have a hole up to there */
        size_t n = size - at < WALK_COMPARE ? (size_t)(size - at) : WALK_COMPARE;
        if (walk_read(a, buf, n, at) < 0 || walk_read(b, buf + WALK_COMPARE, n, at) < 0)
            return -1;
        if (memcmp(buf, buf + WALK_COMPARE, n) != 0)
            return 0;
        at += n;
    }
    return 1;
}

/* The next extents from `at`. False: they cannot be told, or do not lie in blocks of their own. */
static bool walk_extents(int fd, uint64_t at, struct fiemap *ret)
{
    const uint32_t vague = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED |
                           FIEMAP_EXTENT_NOT_ALIGNED | FIEMAP_EXTENT_DATA_INLINE;
    *ret = (struct fiemap){.fm_start = at,
                           .fm_length = FIEMAP_MAX_OFFSET - at,
                           .fm_flags = FIEMAP_FLAG_SYNC,
                           .fm_extent_count = WALK_EXTENTS};
    if (ioctl(fd, FS_IOC_FIEMAP, ret) < 0)
        return false;
    for (uint32_t i = 0; i < ret->fm_mapped_extents; i++)
        if (ret->fm_extents[i].fe_flags & vague)
            return false;
    return true;
}

bool walk_same_extents(int a, int b)
{
    static union {
        struct fiemap map;
        char room[sizeof(struct fiemap) + WALK_EXTENTS * sizeof(struct fiemap_extent)];
    } x, y;
    for (uint64_t at = 0;;) {
        if (!walk_extents(a, at, &x.map) || !walk_extents(b, at, &y.map) ||
            x.map.fm_mapped_extents != y.map.fm_mapped_extents)
            return false;
        if (x.map.fm_mapped_extents == 0)
            return at > 0;
        const struct fiemap_extent *p = NULL;
        for (uint32_t i = 0; i < x.map.fm_mapped_extents; i++) {
            p = &x.map.fm_extents[i];
            const struct fiemap_extent *q = &y.map.fm_extents[i];
            if (p->fe_logical != q->fe_logical || p->fe_physical != q->fe_physical || p->fe_length != q->fe_length)
                return false;
        }
        if (p->fe_flags & FIEMAP_EXTENT_LAST)
            return true;
        at = p->fe_logical + p->fe_length;
    }
}

bool walk_all_zero(const unsigned char *p, size_t n) { return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0); }

static size_t ino_slot(const struct walk_inos *m, uint64_t dev, uint64_t ino)
{
    uint64_t h = (ino ^ dev << 40) * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (size_t)(h >> 20) & (m->cap - 1);
    while (m->slots[i].used && (m->slots[i].ino != ino || m->slots[i].dev != dev))
        i = (i + 1) & (m->cap - 1);
    return i;
}

const struct walk_ino *walk_inos_get(const struct walk_inos *m, uint64_t dev, uint64_t ino)
{
    if (m->cap == 0)
        return NULL;
    const struct walk_ino *s = &m->slots[ino_slot(m, dev, ino)];
    return s->used ? s : NULL;
}

bool walk_inos_put(struct walk_inos *m, uint64_t dev, uint64_t ino, const char *text)
{
    if (m->n >= WALK_INOS_MAX || m->bytes > WALK_INO_BYTES_MAX)
        return false;
    if ((m->n + 1) * 2 > m->cap) {
        struct walk_inos old = *m;
        m->cap = old.cap ? old.cap * 2 : 64;
        m->slots = xcalloc(m->cap, sizeof *m->slots);
        for (size_t i = 0; i < old.cap; i++)
            if (old.slots[i].used)
                m->slots[ino_slot(m, old.slots[i].dev, old.slots[i].ino)] = old.slots[i];
        free(old.slots);
    }
    m->slots[ino_slot(m, dev, ino)] = (struct walk_ino){dev, ino, text ? xstrdup(text) : NULL, true};
    m->n++;
    m->bytes += text ? strlen(text) : 0;
    return true;
}

void walk_inos_done(struct walk_inos *m)
{
    for (size_t i = 0; i < m->cap; i++)
        free(m->slots[i].text);
    free(m->slots);
    *m = (struct walk_inos){0};
}
