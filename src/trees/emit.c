/* emit.c - one entry of a tree as records of a lay stream. See emit.h. */
#include "trees/emit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"

static int stream_record(void *arg, struct lay_record *r, const char *path, const char *target,
                         const struct buf *xattrs)
{
    struct lay_record out = *r;
    if (r->type == LAY_FILE && r->size > LAY_PAGE) /* then the stream holds its data only, not its holes */
        out.type = LAY_SPARSE;
    return lay_out_record(arg, &out, path, target, xattrs ? xattrs->p : NULL, xattrs ? xattrs->n : 0);
}

static int stream_bytes(void *arg, const void *p, size_t n) { return lay_out_bytes(arg, p, n); }

static int stream_zeros(void *arg, uint64_t n) { return lay_out_zeros(arg, n); }

struct emit_sink emit_to_stream(struct lay_out *o)
{
    return (struct emit_sink){stream_record, stream_bytes, stream_zeros, o};
}

void emit_start(struct emit *e, struct emit_sink sink, enum xattr_view view, uid_t shift)
{
    *e = (struct emit){.sink = sink, .view = view, .shift = shift, .block = xmalloc(WALK_BLOCK)};
}

void emit_done(struct emit *e)
{
    walk_inos_done(&e->links);
    buf_done(&e->xattrs);
    free(e->block);
}

static int emit_sink_fail(const char *path, struct err *err)
{
    if (errno == EFBIG)
        return walk_fail(err, ERR_LIMIT, 0, path, "with it there is more than may be written down at once");
    return walk_fail(err, ERR_SETUP, errno, path, "cannot be written to the stream");
}

static int emit_put(struct emit *e, struct lay_record *r, const char *path, const char *target,
                    const struct buf *xattrs, struct err *err)
{
    return e->sink.record(e->sink.arg, r, path, target, xattrs) < 0 ? emit_sink_fail(path, err) : 0;
}

int emit_mark(struct emit *e, enum lay_type type, const char *path, struct err *err)
{
    return emit_put(e, &(struct lay_record){.type = type}, path, NULL, NULL, err);
}

static int emit_describe(const struct emit *e, enum lay_type type, const char *path, const struct stat *st,
                         struct lay_record *ret, struct err *err)
{
    uid_t uid = st->st_uid - e->shift, gid = st->st_gid - e->shift; /* below shift: wraps to something large */
    if (uid > LAY_ID_MAX || gid > LAY_ID_MAX)
        return walk_fail(err, ERR_SETUP, 0, path, "its owner %u:%u is outside %u..%u", st->st_uid, st->st_gid, e->shift,
                         e->shift + LAY_ID_MAX);
    *ret = (struct lay_record){.type = type,
                               .mode = type == LAY_SYMLINK ? 0777 : st->st_mode & 07777,
                               .uid = uid,
                               .gid = gid,
                               .mtime_sec = st->st_mtim.tv_sec,
                               .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec};
    return 0;
}

static void emit_count(struct emit *e, const struct stat *st)
{
    e->entries++;
    e->bytes += (uint64_t)st->st_blocks * 512;
}

int emit_dir(struct emit *e, int fd, const char *path, const struct stat *st, bool opaque, struct err *err)
{
    struct lay_record r;
    bool marked = false;
    if (emit_describe(e, path[0] ? LAY_DIR : LAY_META, path, st, &r, err) < 0 ||
        (e->whole && xattr_check(fd, e->view, path, err) < 0) ||
        xattr_collect(fd, e->view, e->shift, path, &e->xattrs, &marked, err) < 0 ||
        emit_put(e, &r, path, NULL, &e->xattrs, err) < 0)
        return -1;
    emit_count(e, st);
    return marked || opaque ? emit_mark(e, LAY_OPAQUE, path, err) : 0;
}

static int emit_content(struct emit *e, int fd, const char *path, uint64_t size, struct err *err)
{
    uint64_t at = 0;
    while (at < size) {
        uint64_t data = walk_data(fd, at, size),
                 hole = data == size ? size - at : (data - at) & ~(uint64_t)(WALK_BLOCK - 1);
        size_t n = size - at < WALK_BLOCK ? (size_t)(size - at) : WALK_BLOCK;
        int r;
        if (hole > 0) {
            r = e->sink.zeros(e->sink.arg, hole);
            at += hole;
        } else {
            if (walk_read(fd, e->block, n, at) < 0)
                return walk_fail(err, ERR_SETUP, errno, path, "cannot be read");
            r = walk_all_zero(e->block, n) ? e->sink.zeros(e->sink.arg, n) : e->sink.bytes(e->sink.arg, e->block, n);
            at += n;
        }
        if (r < 0)
            return emit_sink_fail(path, err);
    }
    return 0;
}

static int emit_file(struct emit *e, int dir, const char *name, const char *path, const struct stat *st,
                     struct err *err)
{
    struct lay_record r;
    struct stat now;
    bool marked = false;
    const struct walk_ino *first = st->st_nlink > 1 ? walk_inos_get(&e->links, st->st_dev, st->st_ino) : NULL;
    if (first) {
        e->entries++;
        /* The first name's record describes the file; repeat it here, because other tools read it from the link. */
        return emit_describe(e, LAY_HARDLINK, path, st, &r, err) < 0 ? -1
                                                                     : emit_put(e, &r, path, first->text, NULL, err);
    }
    _cleanup_close_ int fd = walk_open_file(dir, name);
    if (fd < 0 || fstat(fd, &now) < 0)
        return walk_fail(err, ERR_SETUP, errno, path, "cannot be opened");
    if (!S_ISREG(now.st_mode))
        return walk_fail(err, ERR_SETUP, ESTALE, path, "is another file than before");
    if (emit_describe(e, LAY_FILE, path, st, &r, err) < 0 || (e->whole && xattr_check(fd, e->view, path, err) < 0) ||
        xattr_collect(fd, e->view, e->shift, path, &e->xattrs, &marked, err) < 0)
        return -1;
    r.size = (uint64_t)st->st_size;
    if (r.size > LAY_SPARSE_MAX)
        return walk_fail(err, ERR_LIMIT, 0, path,
                         "%" PRIu64 " bytes, holes included; no layer holds more than %" PRIu64, r.size,
                         LAY_SPARSE_MAX);
    if (emit_put(e, &r, path, NULL, &e->xattrs, err) < 0 || emit_content(e, fd, path, r.size, err) < 0)
        return -1;
    if (st->st_nlink > 1 && !walk_inos_put(&e->links, st->st_dev, st->st_ino, path))
        return walk_fail(err, ERR_LIMIT, 0, path, "too many files with several names in one tree");
    emit_count(e, st);
    return 0;
}

static int emit_symlink(struct emit *e, int dir, const char *name, const char *path, const struct stat *st,
                        struct err *err)
{
    struct lay_record r;
    char target[LAY_PATH_MAX];
    ssize_t n = readlinkat(dir, name, target, sizeof target);
    if (n <= 0 || (size_t)n >= sizeof target)
        return walk_fail(err, ERR_SETUP, n < 0 ? errno : ENAMETOOLONG, path, "the link cannot be read");
    target[n] = '\0';
    if (emit_describe(e, LAY_SYMLINK, path, st, &r, err) < 0 || emit_put(e, &r, path, target, NULL, err) < 0)
        return -1;
    emit_count(e, st);
    return 0;
}

int emit_other(struct emit *e, int dir, const char *name, const char *path, const struct stat *st, struct err *err)
{
    struct lay_record r;
    if (S_ISREG(st->st_mode))
        return emit_file(e, dir, name, path, st, err);
    if (S_ISLNK(st->st_mode))
        return emit_symlink(e, dir, name, path, st, err);
    if (S_ISSOCK(st->st_mode) && !e->whole)
        return 0;
    if (e->view != XATTR_MERGED && walk_is_whiteout(st)) {
        e->entries++;
        return emit_mark(e, LAY_WHITEOUT, path, err);
    }
    bool socket = S_ISSOCK(st->st_mode);
    if (!socket && !S_ISFIFO(st->st_mode) && e->leave_devices) {
        e->devices++;
        return 0;
    }
    if (!socket && !S_ISFIFO(st->st_mode))
        return walk_fail(err, ERR_SETUP, 0, path, "is a device, which no layer holds");
    if (emit_describe(e, socket ? (enum lay_type)EMIT_SOCKET : LAY_FIFO, path, st, &r, err) < 0 ||
        emit_put(e, &r, path, NULL, NULL, err) < 0)
        return -1;
    emit_count(e, st);
    return 0;
}
