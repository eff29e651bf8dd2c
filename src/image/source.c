/* source.c - reads a range of a file or a stream, and decompresses it. Both keep a digest: an archive is trusted only
 * if its digests are right.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "image/image-int.h"

enum { MAGIC_MAX = 6 };

void source_range(struct source *s, int fd, uint64_t at, uint64_t size)
{
    *s = (struct source){.fd = fd, .seek = true, .at = at, .left = size, .block = xmalloc(IMAGE_BLOCK)};
    hash_start(&s->hash);
}
void source_stream(struct source *s, int fd)
{
    *s = (struct source){.fd = fd, .left = UINT64_MAX, .block = xmalloc(IMAGE_BLOCK)};
    hash_start(&s->hash);
}

ssize_t source_next(struct source *s, const void **ret)
{
    size_t want = s->left < IMAGE_BLOCK ? (size_t)s->left : IMAGE_BLOCK;
    ssize_t n = 0;
    if (want == 0)
        return 0;
    do
        n = s->seek ? pread(s->fd, s->block, want, (off_t)s->at) : read(s->fd, s->block, want);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -1;
    if (n == 0 && s->seek) {
        errno = ENODATA;
        return -1;
    }
    s->at += (uint64_t)n;
    s->left = n == 0 ? 0 : s->seek ? s->left - (uint64_t)n : s->left;
    s->done += (uint64_t)n;
    hash_add(&s->hash, s->block, (size_t)n);
    *ret = s->block;
    return n;
}

void source_done(struct source *s)
{
    hash_done(&s->hash);
    free(s->block);
    s->block = NULL;
}

/* --- decompression ------------------------------------------------------------------------------------------------ */

static ssize_t stream_on_read(struct archive *a, void *arg, const void **ret)
{
    struct stream *s = arg;
    if (s->nfirst > 0) {
        ssize_t n = (ssize_t)s->nfirst;
        *ret = s->first;
        s->nfirst = 0;
        return n;
    }
    ssize_t n = source_next(s->src, ret);
    if (n < 0) {
        s->error = errno;
        archive_set_error(a, errno, "read");
    }
    return n;
}

/* Adds only the filter for these first bytes: libarchive must not detect further compression inside. */
static int stream_add_filter(struct archive *a, const void *p, size_t n, bool *ret_plain)
{
    static const struct {
        const char *magic;
        size_t n;
        int (*add)(struct archive *);
    } kinds[] = {
        {"\x1f\x8b", 2, archive_read_support_filter_gzip},
        {"\x28\xb5\x2f\xfd", 4, archive_read_support_filter_zstd},
        {"BZh", 3, archive_read_support_filter_bzip2},
        {"\xfd\x37zXZ", 5, archive_read_support_filter_xz},
    };
    *ret_plain = false;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (n >= kinds[i].n && memcmp(p, kinds[i].magic, kinds[i].n) == 0)
            return kinds[i].add(a) < ARCHIVE_WARN ? -1 : 0;
    *ret_plain = true;
    return 0;
}

static int stream_read_error(const struct stream *s, int eno, struct err *err)
{
    if (eno == ENODATA)
        return image_fail(err, IMAGE_BAD_DATA, "%s is cut off", s->what);
    return image_fail(err, IMAGE_HOST, "cannot read %s: %s", s->what, strerror(eno));
}
static int stream_filter_error(const struct stream *s, struct err *err)
{
    if (s->error)
        return stream_read_error(s, s->error, err);
    const char *why = archive_error_string(s->filter);
    return image_fail(err, IMAGE_BAD_DATA, "%s cannot be decompressed: %s", s->what,
                      why ? image_shown(why) : "its data is damaged");
}

int stream_open(struct stream *s, struct source *src, uint64_t max, const char *what, struct err *err)
{
    struct archive_entry *entry;
    bool plain;
    *s = (struct stream){.src = src, .what = what, .max = max};
    hash_start(&s->hash);
    ssize_t n = source_next(src, &s->first);
    if (n < 0)
        return stream_read_error(s, errno, err);
    s->nfirst = (size_t)n;
    s->filter = archive_read_new();
    if (!s->filter)
        return image_fail(err, IMAGE_HOST, "out of memory");
    if (stream_add_filter(s->filter, s->first, s->nfirst, &plain) < 0)
        return image_fail(err, IMAGE_HOST, "%s is compressed in a way that the libarchive of this host does not know",
                          what);
    if (plain) {
        (void)archive_read_free(s->filter);
        s->filter = NULL;
        return 0;
    }
    (void)archive_read_support_format_raw(s->filter);
    (void)archive_read_support_format_empty(s->filter);
    if (archive_read_open(s->filter, s, NULL, stream_on_read, NULL) != ARCHIVE_OK)
        return stream_filter_error(s, err);
    int rc = archive_read_next_header(s->filter, &entry);
    if (rc == ARCHIVE_EOF)
        s->ended = true;
    return rc != ARCHIVE_OK && rc != ARCHIVE_EOF ? stream_filter_error(s, err) : 0;
}

bool stream_compressed(const struct stream *s) { return s->filter != NULL; }

static ssize_t stream_next_plain(struct stream *s, const void **ret, struct err *err)
{
    ssize_t n = (ssize_t)s->nfirst;
    *ret = s->first;
    s->nfirst = 0;
    if (n == 0)
        n = source_next(s->src, ret);
    return n < 0 ? stream_read_error(s, errno, err) : n;
}
static ssize_t stream_next_filtered(struct stream *s, const void **ret, struct err *err)
{
    size_t n = 0;
    int64_t offset;
    int rc;
    do
        rc = archive_read_data_block(s->filter, ret, &n, &offset);
    while (rc == ARCHIVE_OK && n == 0);
    if (rc == ARCHIVE_EOF)
        return 0;
    return rc != ARCHIVE_OK ? stream_filter_error(s, err) : (ssize_t)n;
}

ssize_t stream_next(struct stream *s, const void **ret, struct err *err)
{
    if (s->ended)
        return 0;
    ssize_t n = s->filter ? stream_next_filtered(s, ret, err) : stream_next_plain(s, ret, err);
    if (n <= 0) {
        s->ended = n == 0;
        return n;
    }
    s->done += (uint64_t)n;
    if (s->done > s->max)
        return image_fail(err, IMAGE_TOO_LARGE, "%s is larger than %llu bytes", s->what, (unsigned long long)s->max);
    if (s->filter && s->done > IMAGE_RATIO_FREE && s->done / IMAGE_RATIO_MAX > s->src->done)
        return image_fail(err, IMAGE_TOO_LARGE, "%s grows to more than %d times its size: it is made to fill a disk",
                          s->what, IMAGE_RATIO_MAX);
    hash_add(&s->hash, *ret, (size_t)n);
    return n;
}

int64_t stream_skip(struct stream *s, int64_t n)
{
    struct source *src = s->src;
    if (!s->skips || s->filter || s->nfirst || !src->seek || n <= 0)
        return 0;
    uint64_t take = (uint64_t)n < src->left ? (uint64_t)n : src->left;
    src->at += take;
    src->left -= take;
    src->done += take;
    return (int64_t)take;
}

int stream_finish(struct stream *s, uint8_t plain[SHA256_BYTES], uint8_t packed[SHA256_BYTES], struct err *err)
{
    uint8_t unused[SHA256_BYTES];
    const void *p;
    ssize_t n;
    while ((n = stream_next(s, &p, err)) > 0)
        say_progress(s->src->done, s->src->done + (s->src->seek ? s->src->left : 0), "reading");
    if (n < 0)
        return -1;
    s->nfirst = 0;
    while ((n = source_next(s->src, &p)) > 0)
        ;
    if (n < 0)
        return stream_read_error(s, errno, err);
    hash_end(&s->hash, plain ? plain : unused);
    hash_end(&s->src->hash, packed ? packed : unused);
    return 0;
}

void stream_close(struct stream *s)
{
    if (s->filter)
        (void)archive_read_free(s->filter);
    hash_done(&s->hash);
    s->filter = NULL;
}
