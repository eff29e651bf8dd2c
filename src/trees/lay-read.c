/* lay-read.c - reads a lay stream and checks every record completely before lay-make.c creates the entry. See lay.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "trees/lay-int.h"

enum {
    IN_BYTES = 256 << 10,
    PROGRESS_BYTES = 16 << 20, /* between two calls of progress() */
    PROGRESS_ENTRIES = 4096,
};
#define DEFAULT_BYTES   (UINT64_C(64) << 30)
#define DEFAULT_ENTRIES UINT64_C(4000000)

struct in {
    int fd;
    size_t at, n;
    unsigned char buf[IN_BYTES];
};

struct reader {
    struct in in;
    struct lay_entry e;
    struct lay_maker make;
    struct lay_limits limits;
    struct lay_done done;
    bool (*progress)(void *arg, const struct lay_done *d);
    void *arg;
    uint64_t told_bytes, told_entries;
    unsigned char block[WALK_BLOCK];
};

/* Exactly n bytes. 0, 1 at the end of the stream, -1 with errno. */
static int in_bytes(struct in *in, void *p, size_t n)
{
    unsigned char *to = p;
    while (n > 0) {
        size_t have = in->n - in->at, take = have < n ? have : n;
        memcpy(to, in->buf + in->at, take);
        in->at += take;
        to += take;
        n -= take;
        if (n == 0)
            break;
        ssize_t got = read(in->fd, in->buf, sizeof in->buf);
        if (got < 0 && errno == EINTR)
            got = 0;
        else if (got <= 0)
            return got == 0 ? 1 : -1;
        in->at = 0;
        in->n = (size_t)got;
    }
    return 0;
}

static int in_need(struct reader *rd, void *p, size_t n, struct err *err)
{
    int r = in_bytes(&rd->in, p, n);
    if (r == 0)
        return 0;
    if (r < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read the stream");
    if (rd->done.entries == 0)
        return err_set(err, ERR_USAGE, 0, "the stream ends before its first entry");
    return walk_fail(err, ERR_USAGE, 0, rd->e.path, "the stream ends early, at or after this entry");
}

static const char *lay_type_name(uint32_t type)
{
    static const char *const names[] = {NULL,       "directory", "file",       "link", "hard link",      "fifo",
                                        "whiteout", "opaque",    "attributes", "end",  "file with holes"};
    return type < ARRAY_LEN(names) ? names[type] : NULL;
}

/* Checks the fixed part of a record, with the lengths of what follows. */
static int lay_check_head(struct reader *rd, struct err *err)
{
    const struct lay_record *r = &rd->e.r;
    const char *wrong = NULL;
    bool target = r->type == LAY_SYMLINK || r->type == LAY_HARDLINK;
    bool file = r->type == LAY_FILE || r->type == LAY_SPARSE;
    bool xattrs = r->type == LAY_DIR || file || r->type == LAY_META;
    if (r->magic != LAY_MAGIC)
        wrong = "does not begin with the mark of a record";
    else if (!lay_type_name(r->type))
        wrong = "has an unknown type";
    else if (r->path_len >= LAY_PATH_MAX || r->target_len >= LAY_PATH_MAX)
        wrong = "has a path of more than 4095 bytes";
    else if (r->xattrs_len > LAY_XATTRS_MAX)
        wrong = "has more than 64 KiB of attributes";
    else if (r->zero != 0 || r->mode > 07777 || r->mtime_nsec >= 1000000000)
        wrong = "has a mode or time out of range";
    else if (target != (r->target_len > 0))
        wrong = target ? "is a link without a target" : "has a target and is no link";
    else if (r->xattrs_len > 0 && !xattrs)
        wrong = "has attributes and is neither file nor directory";
    else if (r->size > 0 && !file && r->type != LAY_END)
        wrong = "has content and is no file";
    else if (r->type == LAY_END && r->path_len > 0)
        wrong = "is the end and has a path";
    if (!wrong)
        return 0;
    return err_set(err, ERR_USAGE, 0, "record %" PRIu64 " of the stream %s", rd->done.entries + 1, wrong);
}

static int lay_check_names(struct reader *rd, struct err *err)
{
    struct lay_entry *e = &rd->e;
    bool of_root = e->r.path_len == 0 && (e->r.type == LAY_META || e->r.type == LAY_OPAQUE);
    const char *wrong = of_root ? NULL : lay_path_wrong(e->path, e->r.path_len);
    if (wrong)
        return walk_fail(err, ERR_USAGE, 0, e->path, "its path %s", wrong);
    if (e->r.type == LAY_HARDLINK && (wrong = lay_path_wrong(e->target, e->r.target_len)))
        return walk_fail(err, ERR_USAGE, 0, e->path, "the path it is a hard link to %s", wrong);
    if (e->r.type == LAY_SYMLINK && memchr(e->target, '\0', e->r.target_len))
        return walk_fail(err, ERR_USAGE, 0, e->path, "the target of the link has a NUL in it");
    struct xattr_item x;
    int more;
    for (size_t at = 0; (more = xattr_next(e->xattrs, e->r.xattrs_len, &at, &x)) != 0;)
        if (more < 0)
            return walk_fail(err, ERR_USAGE, 0, e->path, "its block of attributes is not right");
    return 0;
}

static int lay_check_limits(struct reader *rd, struct err *err)
{
    const struct lay_limits *l = &rd->limits;
    uint64_t size = rd->e.r.size;
    if (rd->done.entries >= l->entries)
        return walk_fail(err, ERR_LIMIT, 0, rd->e.path, "more than %" PRIu64 " entries, the limit", l->entries);
    if (rd->e.r.type == LAY_SPARSE) {
        if (size <= l->sparse)
            return 0;
        return walk_fail(err, ERR_LIMIT, 0, rd->e.path,
                         "%" PRIu64 " bytes, holes included; the limit for a file is %" PRIu64, size, l->sparse);
    }
    if (size > l->file)
        return walk_fail(err, ERR_LIMIT, 0, rd->e.path, "%" PRIu64 " bytes; the limit for a file is %" PRIu64, size,
                         l->file);
    if (size > l->bytes - rd->done.bytes)
        return walk_fail(err, ERR_LIMIT, 0, rd->e.path,
                         "with its %" PRIu64 " bytes there are more than %" PRIu64 ", the limit", size, l->bytes);
    return 0;
}

/* Replaces owners that no layer can hold by the user nobody. */
static void lay_check_ids(struct reader *rd)
{
    enum { NOBODY = 65534 };
    struct lay_record *r = &rd->e.r;
    if (r->uid <= LAY_ID_MAX && r->gid <= LAY_ID_MAX)
        return;
    struct err told = {0};
    (void)walk_fail(&told, ERR_USAGE, 0, rd->e.path, "owner %u:%u is above %d and becomes nobody", r->uid, r->gid,
                    LAY_ID_MAX);
    if (rd->done.dropped++ == 0)
        memcpy(rd->done.note, told.msg, strnlen(told.msg, sizeof rd->done.note - 1));
    r->uid = r->uid <= LAY_ID_MAX ? r->uid : NOBODY;
    r->gid = r->gid <= LAY_ID_MAX ? r->gid : NOBODY;
}

static int lay_next_record(struct reader *rd, struct err *err)
{
    struct lay_entry *e = &rd->e;
    if (in_need(rd, &e->r, sizeof e->r, err) < 0 || lay_check_head(rd, err) < 0)
        return -1;
    if (e->r.type == LAY_END)
        return 0;
    memset(e->path, 0, e->r.path_len + 1);
    if (in_need(rd, e->path, e->r.path_len, err) < 0 || in_need(rd, e->target, e->r.target_len, err) < 0 ||
        in_need(rd, e->xattrs, e->r.xattrs_len, err) < 0)
        return -1;
    e->target[e->r.target_len] = '\0';
    if (lay_check_names(rd, err) < 0 || lay_check_limits(rd, err) < 0)
        return -1;
    lay_check_ids(rd);
    rd->done.entries++;
    return 0;
}

static int lay_tell_progress(struct reader *rd, struct err *err)
{
    if (!rd->progress ||
        (rd->done.bytes - rd->told_bytes < PROGRESS_BYTES && rd->done.entries - rd->told_entries < PROGRESS_ENTRIES))
        return 0;
    rd->told_bytes = rd->done.bytes;
    rd->told_entries = rd->done.entries;
    return rd->progress(rd->arg, &rd->done) ? 0 : err_set(err, ERR_SETUP, ECANCELED, "the stream was not read further");
}

static int lay_write_at(int fd, const unsigned char *p, size_t n, uint64_t at)
{
    while (n > 0) {
        ssize_t done = pwrite(fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        p += done;
        n -= (size_t)done;
        at += (size_t)done;
    }
    return 0;
}

/* Blocks of zeros are not written: they become holes. */
static int lay_read_content(struct reader *rd, int fd, struct err *err)
{
    uint64_t size = rd->e.r.size;
    bool hole = false;
    for (uint64_t at = 0; at < size; at += sizeof rd->block) {
        size_t n = size - at < sizeof rd->block ? (size_t)(size - at) : sizeof rd->block;
        if (in_need(rd, rd->block, n, err) < 0)
            return -1;
        hole = walk_all_zero(rd->block, n);
        if (!hole && lay_write_at(fd, rd->block, n, at) < 0)
            return walk_fail(err, ERR_SETUP, errno, rd->e.path, "cannot be written");
        rd->done.bytes += n;
        if (lay_tell_progress(rd, err) < 0)
            return -1;
    }
    if (hole && ftruncate(fd, (off_t)size) < 0)
        return walk_fail(err, ERR_SETUP, errno, rd->e.path, "cannot be made %" PRIu64 " bytes long", size);
    return 0;
}

static int lay_check_segment(const struct reader *rd, const struct lay_segment *s, uint64_t at, uint64_t data,
                             struct err *err)
{
    const struct lay_limits *l = &rd->limits;
    uint64_t size = rd->e.r.size;
    if (s->at < at || s->at > size || s->n > size - s->at || (s->n == 0 && s->at != size))
        return walk_fail(err, ERR_USAGE, 0, rd->e.path, "its data is out of order or behind its end");
    if (s->n > l->file - data)
        return walk_fail(err, ERR_LIMIT, 0, rd->e.path, "has more than %" PRIu64 " bytes, the limit for a file",
                         l->file);
    if (s->n > l->bytes - rd->done.bytes)
        return walk_fail(err, ERR_LIMIT, 0, rd->e.path, "with it there are more than %" PRIu64 " bytes, the limit",
                         l->bytes);
    return 0;
}

static int lay_read_segments(struct reader *rd, int fd, struct err *err)
{
    uint64_t at = 0, data = 0;
    for (;;) {
        struct lay_segment s;
        if (in_need(rd, &s, sizeof s, err) < 0 || lay_check_segment(rd, &s, at, data, err) < 0)
            return -1;
        if (s.n == 0)
            break;
        for (at = s.at, data += s.n; s.n > 0;) {
            size_t n = s.n < sizeof rd->block ? (size_t)s.n : sizeof rd->block;
            if (in_need(rd, rd->block, n, err) < 0)
                return -1;
            if (lay_write_at(fd, rd->block, n, at) < 0)
                return walk_fail(err, ERR_SETUP, errno, rd->e.path, "cannot be written");
            at += n;
            s.n -= n;
            rd->done.bytes += n;
            if (lay_tell_progress(rd, err) < 0)
                return -1;
        }
    }
    if (at < rd->e.r.size && ftruncate(fd, (off_t)rd->e.r.size) < 0)
        return walk_fail(err, ERR_SETUP, errno, rd->e.path, "cannot be made %" PRIu64 " bytes long", rd->e.r.size);
    return 0;
}

static int lay_read_file(struct reader *rd, struct err *err)
{
    _cleanup_close_ int fd = -1;
    if (lay_make_file(&rd->make, &rd->e, &fd, err) < 0 ||
        (rd->e.r.type == LAY_SPARSE ? lay_read_segments(rd, fd, err) : lay_read_content(rd, fd, err)) < 0 ||
        lay_make_file_done(&rd->make, &rd->e, fd, err) < 0)
        return -1;
    rd->done.files++;
    return 0;
}

static int lay_read_records(struct reader *rd, struct err *err)
{
    for (;;) {
        if (lay_next_record(rd, err) < 0)
            return -1;
        if (rd->e.r.type == LAY_END)
            break;
        bool file = rd->e.r.type == LAY_FILE || rd->e.r.type == LAY_SPARSE;
        int r = file ? lay_read_file(rd, err) : lay_make_entry(&rd->make, &rd->e, err);
        if (r < 0 || lay_tell_progress(rd, err) < 0)
            return -1;
    }
    if (rd->e.r.size != rd->done.entries)
        return err_set(err, ERR_USAGE, 0, "the stream says it has %" PRIu64 " records and has %" PRIu64, rd->e.r.size,
                       rd->done.entries);
    return lay_make_end(&rd->make, err);
}

int lay_read(int fd, int root, unsigned flags, const struct lay_limits *limits,
             bool (*progress)(void *arg, const struct lay_done *d), void *arg, struct lay_done *ret, struct err *err)
{
    _cleanup_free_ struct reader *rd = xcalloc(1, sizeof *rd);
    rd->in.fd = fd;
    rd->progress = progress;
    rd->arg = arg;
    if (limits)
        rd->limits = *limits;
    if (rd->limits.bytes == 0)
        rd->limits.bytes = DEFAULT_BYTES;
    if (rd->limits.entries == 0)
        rd->limits.entries = DEFAULT_ENTRIES;
    if (rd->limits.file == 0)
        rd->limits.file = rd->limits.bytes;
    if (rd->limits.sparse == 0 || rd->limits.sparse > LAY_SPARSE_MAX)
        rd->limits.sparse = LAY_SPARSE_MAX;
    int r = lay_make_start(&rd->make, root, flags, &rd->done, err);
    if (r == 0)
        r = lay_read_records(rd, err);
    lay_make_done(&rd->make);
    if (ret)
        *ret = rd->done;
    return r;
}
