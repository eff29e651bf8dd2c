/* lay-write.c - writes lay streams, and checks paths for them. See lay.h. */
#include <errno.h>
#include <string.h>

#include "base/fd.h"
#include "trees/lay.h"
#include "trees/walk.h"

void lay_out_start(struct lay_out *o, int fd)
{
    o->fd = fd;
    o->records = o->written = o->max = o->at = o->size = 0;
    o->sparse = false;
    o->waits = NULL;
    o->n = 0;
}

static int lay_out_write(const struct lay_out *o, const void *p, size_t n)
{
    if (o->waits)
        o->waits(true);
    int r = fd_write_all(o->fd, p, n);
    if (o->waits)
        o->waits(false);
    return r;
}

static int lay_out_flush(struct lay_out *o)
{
    size_t n = o->n;
    o->n = 0;
    return n > 0 ? lay_out_write(o, o->buf, n) : 0;
}

static int lay_out_put(struct lay_out *o, const void *p, size_t n)
{
    o->written += n;
    if (o->max && o->written > o->max) {
        errno = EFBIG;
        return -1;
    }
    if (n > sizeof o->buf - o->n && lay_out_flush(o) < 0)
        return -1;
    if (n >= sizeof o->buf)
        return lay_out_write(o, p, n);
    if (n > 0)
        memcpy(o->buf + o->n, p, n);
    o->n += n;
    return 0;
}

static size_t page_at(size_t at, size_t n) { return n - at < LAY_PAGE ? n - at : LAY_PAGE; }

/* Writes the runs of pages that are not all zeros. */
static int lay_out_put_segments(struct lay_out *o, const unsigned char *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t from = at;
        while (at < n && !walk_all_zero(p + at, page_at(at, n)))
            at += page_at(at, n);
        struct lay_segment s = {o->at + from, at - from};
        if (s.n > 0 && (lay_out_put(o, &s, sizeof s) < 0 || lay_out_put(o, p + from, at - from) < 0))
            return -1;
        if (at < n)
            at += page_at(at, n);
    }
    return 0;
}

/* Moves on in the sparse file; at its end, writes the last segment. */
static int lay_out_advance(struct lay_out *o, uint64_t n)
{
    struct lay_segment end = {o->size, 0};
    if (n > o->size - o->at) {
        errno = EINVAL;
        return -1;
    }
    o->at += n;
    if (o->at < o->size)
        return 0;
    o->sparse = false;
    return lay_out_put(o, &end, sizeof end);
}

int lay_out_bytes(struct lay_out *o, const void *p, size_t n)
{
    if (!o->sparse)
        return lay_out_put(o, p, n);
    return lay_out_put_segments(o, p, n) < 0 ? -1 : lay_out_advance(o, n);
}

int lay_out_zeros(struct lay_out *o, uint64_t n)
{
    static const unsigned char zeros[64 << 10];
    if (o->sparse)
        return lay_out_advance(o, n);
    while (n > 0) {
        size_t now = n < sizeof zeros ? (size_t)n : sizeof zeros;
        if (lay_out_put(o, zeros, now) < 0)
            return -1;
        n -= now;
    }
    return 0;
}

int lay_out_record(struct lay_out *o, struct lay_record *r, const char *path, const char *target, const void *xattrs,
                   size_t nxattrs)
{
    size_t np = path ? strlen(path) : 0, nt = target ? strlen(target) : 0;
    if (np >= LAY_PATH_MAX || nt >= LAY_PATH_MAX || nxattrs > LAY_XATTRS_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    r->magic = LAY_MAGIC;
    r->path_len = (uint32_t)np;
    r->target_len = (uint32_t)nt;
    r->xattrs_len = (uint32_t)nxattrs;
    r->zero = 0;
    if (lay_out_put(o, r, sizeof *r) < 0 || lay_out_put(o, path, np) < 0 || lay_out_put(o, target, nt) < 0 ||
        lay_out_put(o, xattrs, nxattrs) < 0)
        return -1;
    o->records++;
    o->sparse = r->type == LAY_SPARSE;
    o->at = 0;
    o->size = r->size;
    return o->sparse && o->size == 0 ? lay_out_advance(o, 0) : 0;
}

int lay_out_end(struct lay_out *o)
{
    struct lay_record end = {.type = LAY_END, .size = o->records};
    return lay_out_record(o, &end, NULL, NULL, NULL, 0) < 0 || lay_out_flush(o) < 0 ? -1 : 0;
}

const char *lay_path_wrong(const char *path, size_t n)
{
    size_t depth = 0;
    if (n == 0)
        return "is empty";
    if (n >= LAY_PATH_MAX)
        return "is longer than 4095 bytes";
    if (memchr(path, '\0', n))
        return "has a NUL in it";
    if (path[0] == '/')
        return "is absolute";
    for (size_t at = 0; at <= n;) {
        const char *slash = memchr(path + at, '/', n - at);
        size_t len = slash ? (size_t)(slash - path) - at : n - at;
        if (len == 0)
            return "has an empty part";
        if (len <= 2 && memcmp(path + at, "..", len) == 0)
            return len == 1 ? "has a part \".\"" : "has a part \"..\"";
        if (len > LAY_NAME_MAX)
            return "has a part longer than 255 bytes";
        if (++depth > LAY_DEPTH_MAX)
            return "has more than 128 parts";
        at += len + 1;
    }
    return NULL;
}
