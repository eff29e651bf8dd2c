/* pack.c - turns a lay stream into a layer for registries: tar (pax), whiteouts by name, zstd at its fastest.
 *
 * libarchive writes the tar; its bytes are hashed for the diff_id, compressed, hashed again and written.
 */
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "image/image-int.h"

enum { LEVEL = 1 };
#define HOLES_MAX \
    (UINT64_C(16) << 30) /* zeros that are written for the holes of one layer: registries know no others */
#define WH ".wh."

struct pack {
    struct archive *a;
    struct archive_entry *entry;
    ZSTD_CCtx *zstd;
    struct hash plain, packed;
    uint64_t in, out;
    uint64_t holes; /* bytes of them so far */
    char *room;     /* compressed bytes on their way */
    size_t nroom;
    char path[LAY_PATH_MAX], target[LAY_PATH_MAX];
    char *xattrs;
};

/* --- reading ------------------------------------------------------------------------------------------------------ */

static unsigned char inbuf[IMAGE_BLOCK];
static size_t inbuf_at, inbuf_n;

/* Up to n bytes where they lie; 0 at the end. */
static ssize_t pack_take(size_t n, const void **ret)
{
    if (inbuf_at == inbuf_n) {
        ssize_t got;
        do
            got = read(IMAGE_FD_IN, inbuf, sizeof inbuf);
        while (got < 0 && errno == EINTR);
        if (got <= 0)
            return got;
        inbuf_at = 0;
        inbuf_n = (size_t)got;
    }
    if (n > inbuf_n - inbuf_at)
        n = inbuf_n - inbuf_at;
    *ret = inbuf + inbuf_at;
    inbuf_at += n;
    return (ssize_t)n;
}
static int pack_take_all(void *p, size_t n, struct err *err)
{
    for (size_t got = 0; got < n;) {
        const void *from;
        ssize_t k = pack_take(n - got, &from);
        if (k <= 0)
            return image_fail(err, k < 0 ? IMAGE_HOST : IMAGE_BAD_DATA, "the stream of the layer %s",
                              k < 0 ? strerror(errno) : "is cut off");
        memcpy((char *)p + got, from, (size_t)k);
        got += (size_t)k;
    }
    return 0;
}

static int pack_next_record(struct pack *p, struct lay_record *r, struct err *err)
{
    if (pack_take_all(r, sizeof *r, err) < 0)
        return -1;
    if (r->magic != LAY_MAGIC || r->path_len >= LAY_PATH_MAX || r->target_len >= LAY_PATH_MAX ||
        r->xattrs_len > LAY_XATTRS_MAX)
        return image_fail(err, IMAGE_BAD_DATA, "the stream of the layer holds something that is no record");
    if (pack_take_all(p->path, r->path_len, err) < 0 || pack_take_all(p->target, r->target_len, err) < 0 ||
        pack_take_all(p->xattrs, r->xattrs_len, err) < 0)
        return -1;
    p->path[r->path_len] = p->target[r->target_len] = '\0';
    const char *wrong = r->path_len ? lay_path_wrong(p->path, r->path_len) : NULL;
    return wrong ? image_fail(err, IMAGE_BAD_DATA, "the entry \"%s\" of the layer: %s", image_shown(p->path), wrong)
                 : 0;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static int pack_compress(struct pack *p, const void *bytes, size_t n, ZSTD_EndDirective end)
{
    ZSTD_inBuffer in = {bytes, n, 0};
    size_t left;
    do {
        ZSTD_outBuffer out = {p->room, p->nroom, 0};
        left = ZSTD_compressStream2(p->zstd, &out, &in, end);
        if (ZSTD_isError(left)) {
            errno = ENOMEM;
            return -1;
        }
        hash_add(&p->packed, p->room, out.pos);
        p->out += out.pos;
        if (fd_write_all(IMAGE_FD_OUT, p->room, out.pos) < 0)
            return -1;
    } while (end == ZSTD_e_end ? left > 0 : in.pos < in.size);
    return 0;
}

static ssize_t pack_on_write(struct archive *a, void *arg, const void *bytes, size_t n)
{
    struct pack *p = arg;
    hash_add(&p->plain, bytes, n);
    p->in += n;
    if (pack_compress(p, bytes, n, ZSTD_e_continue) == 0)
        return (ssize_t)n;
    archive_set_error(a, errno, "cannot write: %s", strerror(errno));
    return -1;
}

static int pack_write_error(struct pack *p, const char *what, struct err *err)
{
    const char *why = archive_error_string(p->a);
    return image_fail(err, archive_errno(p->a) == ENOSPC ? IMAGE_TOO_LARGE : IMAGE_HOST, "cannot pack %s: %s",
                      image_shown(what), why ? image_shown(why) : "?");
}

static int pack_add_xattrs(struct pack *p, const struct lay_record *r, struct err *err)
{
    for (size_t at = 0; at < r->xattrs_len;) {
        uint16_t head[2];
        uint32_t value;
        char name[LAY_NAME_MAX + 1];
        if (r->xattrs_len - at < 8)
            return image_fail(err, IMAGE_BAD_DATA, "the attributes of \"%s\" are damaged", image_shown(p->path));
        memcpy(head, p->xattrs + at, 4);
        memcpy(&value, p->xattrs + at + 4, 4);
        at += 8;
        if (head[0] == 0 || head[0] > LAY_NAME_MAX || r->xattrs_len - at < head[0] ||
            r->xattrs_len - at - head[0] < value)
            return image_fail(err, IMAGE_BAD_DATA, "the attributes of \"%s\" are damaged", image_shown(p->path));
        memcpy(name, p->xattrs + at, head[0]);
        name[head[0]] = '\0';
        /* Overlay's marks of renamed directories are meaningless in other layers. */
        if (strncmp(name, "user.overlay.", 13) != 0 && strncmp(name, "trusted.overlay.", 16) != 0)
            archive_entry_xattr_add_entry(p->entry, name, p->xattrs + at + head[0], value);
        at += (size_t)head[0] + value;
    }
    return 0;
}

static int pack_put_content(struct pack *p, uint64_t size, struct err *err)
{
    while (size > 0) {
        const void *from;
        ssize_t n = pack_take(size < IMAGE_BLOCK ? (size_t)size : IMAGE_BLOCK, &from);
        if (n <= 0)
            return image_fail(err, IMAGE_BAD_DATA, "the stream of the layer is cut off in \"%s\"",
                              image_shown(p->path));
        if (archive_write_data(p->a, from, (size_t)n) != n)
            return pack_write_error(p, p->path, err);
        size -= (uint64_t)n;
        say_progress(p->in, 0, "packing");
    }
    return 0;
}

static int pack_put_zeros(struct pack *p, uint64_t n, struct err *err)
{
    static const char zeros[IMAGE_BLOCK];
    if (n > HOLES_MAX - p->holes)
        return image_fail(
            err, IMAGE_TOO_LARGE,
            "\"%s\" has holes: with them the layer has more than 16 GiB that are nothing but zeros, which "
            "image archives have to write out",
            image_shown(p->path));
    p->holes += n;
    while (n > 0) {
        size_t now = n < sizeof zeros ? (size_t)n : sizeof zeros;
        if (archive_write_data(p->a, zeros, now) != (ssize_t)now)
            return pack_write_error(p, p->path, err);
        n -= now;
        say_progress(p->in, 0, "packing");
    }
    return 0;
}

static int pack_put_segments(struct pack *p, uint64_t size, struct err *err)
{
    for (uint64_t at = 0;;) {
        struct lay_segment s;
        if (pack_take_all(&s, sizeof s, err) < 0)
            return -1;
        if (s.at < at || s.at > size || s.n > size - s.at || (s.n == 0 && s.at != size))
            return image_fail(err, IMAGE_BAD_DATA, "the stream of the layer has data out of order in \"%s\"",
                              image_shown(p->path));
        if (pack_put_zeros(p, s.at - at, err) < 0 || pack_put_content(p, s.n, err) < 0)
            return -1;
        if (s.n == 0)
            return 0;
        at = s.at + s.n;
    }
}

/* Writes a whiteout of parent/name as parent/.wh.name, and an opaque directory as a file .wh..wh..opq in it. */
static int pack_put_mark(struct pack *p, const struct lay_record *r, struct err *err)
{
    char name[LAY_PATH_MAX + 16];
    const char *slash = strrchr(p->path, '/'), *last = slash ? slash + 1 : p->path;
    if (r->type == LAY_OPAQUE)
        (void)snprintf(name, sizeof name, "%s%s" WH WH ".opq", p->path, p->path[0] ? "/" : "");
    else
        (void)snprintf(name, sizeof name, "%.*s" WH "%s", (int)(last - p->path), p->path, last);
    archive_entry_copy_pathname(p->entry, name);
    archive_entry_set_filetype(p->entry, AE_IFREG);
    archive_entry_set_perm(p->entry, 0644);
    archive_entry_set_size(p->entry, 0);
    archive_entry_set_mtime(p->entry, 0, 0);
    return archive_write_header(p->a, p->entry) < ARCHIVE_WARN ? pack_write_error(p, name, err) : 0;
}

static int pack_put_record(struct pack *p, const struct lay_record *r, struct err *err)
{
    static const unsigned types[] = {
        [LAY_DIR] = AE_IFDIR,  [LAY_FILE] = AE_IFREG,     [LAY_SYMLINK] = AE_IFLNK, [LAY_FIFO] = AE_IFIFO,
        [LAY_META] = AE_IFDIR, [LAY_HARDLINK] = AE_IFREG, [LAY_SPARSE] = AE_IFREG};
    const char *slash = strrchr(p->path, '/'), *last = slash ? slash + 1 : p->path;
    bool file = r->type == LAY_FILE || r->type == LAY_SPARSE;
    (void)archive_entry_clear(p->entry);
    if (r->type == LAY_WHITEOUT || r->type == LAY_OPAQUE)
        return pack_put_mark(p, r, err);
    if (strncmp(last, WH, sizeof WH - 1) == 0)
        return image_fail(
            err, IMAGE_BAD_DATA,
            "\"%s\" cannot be exported: in image archives names that begin with .wh. stand for removed files",
            image_shown(p->path));
    archive_entry_copy_pathname(p->entry, p->path[0] ? p->path : "./");
    archive_entry_set_filetype(p->entry, types[r->type]);
    archive_entry_set_perm(p->entry, (mode_t)(r->mode & 07777));
    archive_entry_set_uid(p->entry, r->uid);
    archive_entry_set_gid(p->entry, r->gid);
    archive_entry_set_mtime(p->entry, r->mtime_sec, (long)r->mtime_nsec);
    archive_entry_set_size(p->entry, file ? (int64_t)r->size : 0);
    if (r->type == LAY_SYMLINK)
        archive_entry_copy_symlink(p->entry, p->target);
    if (r->type == LAY_HARDLINK)
        archive_entry_copy_hardlink(p->entry, p->target);
    if (pack_add_xattrs(p, r, err) < 0)
        return -1;
    if (archive_write_header(p->a, p->entry) < ARCHIVE_WARN)
        return pack_write_error(p, p->path, err);
    if (r->type == LAY_SPARSE)
        return pack_put_segments(p, r->size, err);
    return file ? pack_put_content(p, r->size, err) : 0;
}

static int pack_open(struct pack *p, struct err *err)
{
    *p = (struct pack){.a = archive_write_new(), .entry = archive_entry_new(), .zstd = ZSTD_createCCtx()};
    p->nroom = ZSTD_CStreamOutSize();
    p->room = xmalloc(p->nroom);
    p->xattrs = xmalloc(LAY_XATTRS_MAX);
    hash_start(&p->plain);
    hash_start(&p->packed);
    if (!p->a || !p->entry || !p->zstd || ZSTD_isError(ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_compressionLevel, LEVEL)))
        return image_fail(err, IMAGE_HOST, "out of memory");
    (void)archive_write_set_format_pax(p->a);
    (void)archive_write_set_format_option(p->a, "pax", "xattrheader", "SCHILY");
    (void)archive_write_set_bytes_per_block(p->a, IMAGE_BLOCK);
    (void)archive_write_set_bytes_in_last_block(p->a, 1);
    return archive_write_open(p->a, p, NULL, pack_on_write, NULL) != ARCHIVE_OK ? pack_write_error(p, "the layer", err)
                                                                                : 0;
}

static void pack_close(struct pack *p)
{
    if (p->a)
        (void)archive_write_free(p->a);
    archive_entry_free(p->entry);
    (void)ZSTD_freeCCtx(p->zstd);
    hash_done(&p->plain);
    hash_done(&p->packed);
    free(p->room);
    free(p->xattrs);
}

static int pack_all(struct pack *p, struct image_message *done, struct err *err)
{
    struct lay_record r;
    uint64_t n = 0;
    for (; pack_next_record(p, &r, err) == 0; n++) {
        if (r.type == LAY_END) {
            if (r.size != n)
                return image_fail(err, IMAGE_BAD_DATA, "the stream of the layer lacks records");
            if (archive_write_close(p->a) != ARCHIVE_OK)
                return pack_write_error(p, "the layer", err);
            if (pack_compress(p, NULL, 0, ZSTD_e_end) < 0)
                return image_fail(err, IMAGE_HOST, "cannot write the packed layer: %s", strerror(errno));
            hash_end(&p->plain, done->diff_id);
            hash_end(&p->packed, done->digest);
            done->done = p->out;
            done->total = p->in;
            return 0;
        }
        if (r.type < LAY_DIR || r.type > LAY_SPARSE || (r.type == LAY_SPARSE && r.size > LAY_SPARSE_MAX))
            return image_fail(err, IMAGE_BAD_DATA, "the stream of the layer holds a record of an unknown type");
        if (pack_put_record(p, &r, err) < 0)
            return -1;
    }
    return -1;
}

int image_pack(const struct image_options *o, struct err *err)
{
    struct image_message done = {0};
    struct pack p;
    (void)o;
    int rc = pack_open(&p, err);
    if (rc == 0)
        rc = pack_all(&p, &done, err);
    /* archive_write_fail() before pack_close(), which would otherwise write the rest of a broken archive. */
    if (rc == 0)
        rc = say_done(&done, err);
    else
        (void)archive_write_fail(p.a);
    pack_close(&p);
    return rc;
}
