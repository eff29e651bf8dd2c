/* digest.c - a tree as one canonical stream: written out, or as its SHA-256. See tree.h.
 *
 * The digest covers the records of the stream with their paths, targets and attributes. Content is hashed as blocks of
 * 64 KiB, each after its length; runs of blocks of zeros as a length of 0 and the number of bytes. So a file has the
 * same digest with holes and without, and an empty terabyte takes no time.
 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "trees/emit.h"
#include "trees/tree.h"

struct digest {
    struct sha256 sha;
    uint64_t zeros, records;
};

static void digest_end_zeros(struct digest *d)
{
    uint32_t mark = 0;
    if (d->zeros == 0)
        return;
    sha256_add(&d->sha, &mark, sizeof mark);
    sha256_add(&d->sha, &d->zeros, sizeof d->zeros);
    d->zeros = 0;
}

static int digest_record(void *arg, struct lay_record *r, const char *path, const char *target,
                         const struct buf *xattrs)
{
    struct digest *d = arg;
    digest_end_zeros(d);
    if (r->type == LAY_HARDLINK) /* its attributes are in the record of its first name */
        *r = (struct lay_record){.type = LAY_HARDLINK};
    r->magic = LAY_MAGIC;
    r->path_len = (uint32_t)strlen(path);
    r->target_len = target ? (uint32_t)strlen(target) : 0;
    r->xattrs_len = xattrs ? (uint32_t)xattrs->n : 0;
    sha256_add(&d->sha, r, sizeof *r);
    sha256_add(&d->sha, path, r->path_len);
    sha256_add(&d->sha, target, r->target_len);
    sha256_add(&d->sha, xattrs ? xattrs->p : NULL, r->xattrs_len);
    d->records++;
    return 0;
}

static int digest_bytes(void *arg, const void *p, size_t n)
{
    struct digest *d = arg;
    uint32_t mark = (uint32_t)n;
    digest_end_zeros(d);
    sha256_add(&d->sha, &mark, sizeof mark);
    sha256_add(&d->sha, p, n);
    return 0;
}

static int digest_zeros(void *arg, uint64_t n)
{
    ((struct digest *)arg)->zeros += n;
    return 0;
}

static int tree_emit_dir(struct emit *e, int dir, struct walk_path *path, struct err *err)
{
    _cleanup_names_ struct walk_names names = {0};
    if (walk_names_read(dir, path->text, &names, err) < 0)
        return -1;
    for (size_t i = 0; i < names.n; i++) {
        struct stat st;
        bool mounted = false;
        size_t old;
        if (walk_push(path, names.v[i], &old, err) < 0)
            return -1;
        if (walk_stat(dir, names.v[i], &st, &mounted) < 0)
            return walk_fail(err, ERR_SETUP, errno, path->text, "cannot be looked at");
        if (!mounted && S_ISDIR(st.st_mode)) {
            _cleanup_close_ int fd = walk_open_dir(dir, names.v[i]);
            if (fd < 0)
                return walk_fail(err, ERR_SETUP, errno, path->text, "cannot be opened");
            if (emit_dir(e, fd, path->text, &st, false, err) < 0 || tree_emit_dir(e, fd, path, err) < 0)
                return -1;
        } else if (!mounted && emit_other(e, dir, names.v[i], path->text, &st, err) < 0) {
            return -1;
        }
        walk_pop(path, old);
    }
    return 0;
}

static int tree_emit(struct emit *e, int root, struct err *err)
{
    struct walk_path path = {0};
    struct stat st;
    _cleanup_close_ int fd = walk_open_dir(root, "."); /* the caller's may be O_PATH */
    if (fd < 0 || fstat(fd, &st) < 0)
        return walk_fail(err, ERR_SETUP, errno, "", "cannot be opened");
    return emit_dir(e, fd, "", &st, false, err) < 0 || tree_emit_dir(e, fd, &path, err) < 0 ? -1 : 0;
}

static enum xattr_view tree_xattr_view(unsigned flags) { return flags & TREE_USERXATTR ? XATTR_USER : XATTR_TRUSTED; }

int tree_digest(int root, unsigned flags, uint8_t ret[SHA256_BYTES], struct tree_size *size, struct err *err)
{
    struct digest d = {0};
    struct emit e;
    sha256_start(&d.sha);
    emit_start(&e, (struct emit_sink){digest_record, digest_bytes, digest_zeros, &d}, tree_xattr_view(flags), 0);
    e.whole = true;
    int r = tree_emit(&e, root, err);
    if (r == 0) {
        (void)digest_record(&d, &(struct lay_record){.type = LAY_END, .size = d.records}, "", NULL, NULL);
        sha256_end(&d.sha, ret);
        if (size)
            *size = (struct tree_size){e.bytes, e.entries};
    }
    emit_done(&e);
    return r;
}

int tree_write(int root, unsigned flags, struct lay_out *o, uint64_t *ret_devices, struct err *err)
{
    struct emit e;
    emit_start(&e, emit_to_stream(o), tree_xattr_view(flags), 0);
    e.leave_devices = ret_devices != NULL;
    int r = tree_emit(&e, root, err);
    if (ret_devices)
        *ret_devices += e.devices;
    emit_done(&e);
    if (r == 0 && lay_out_end(o) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write the end of the stream");
    return r;
}
