/* archive.c - reads tar with libarchive: only the format, from a stream that is decompressed already. */
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "image/image-int.h"

static const unsigned char zeros[32 << 10];

static ssize_t tar_on_read(struct archive *a, void *arg, const void **ret)
{
    struct tar *t = arg;
    ssize_t n = stream_next(t->stream, ret, &t->err);
    if (n < 0)
        archive_set_error(a, EIO, "read");
    return n;
}

static int64_t tar_on_skip(struct archive *a, void *arg, int64_t n)
{
    (void)a;
    return stream_skip(((struct tar *)arg)->stream, n);
}

/* Reports the stream's own error if there is one: it is more exact than libarchive's. */
static int tar_fail(struct tar *t, struct err *err)
{
    const char *why = archive_error_string(t->a);
    if (t->err.code) {
        *err = t->err;
        return -1;
    }
    return image_fail(err, IMAGE_BAD_DATA, "%s is not a whole tar archive: %s", t->stream->what,
                      why ? image_shown(why) : "?");
}

int tar_open(struct tar *t, struct stream *s, struct err *err)
{
    *t = (struct tar){.a = archive_read_new(), .stream = s};
    if (!t->a)
        return image_fail(err, IMAGE_HOST, "out of memory");
    (void)archive_read_support_format_tar(t->a);
    (void)archive_read_support_format_empty(t->a);
    if (archive_read_open2(t->a, t, NULL, tar_on_read, tar_on_skip, NULL) != ARCHIVE_OK)
        return tar_fail(t, err);
    return 0;
}

/* libarchive warns about many things. Only a name that it could not keep unchanged matters here. */
static bool tar_names_intact(struct tar *t, struct archive_entry *e)
{
    const char *why = archive_error_string(t->a);
    if (!archive_entry_pathname(e) || !why)
        return archive_entry_pathname(e) != NULL;
    return !strstr(why, "Pathname") && !strstr(why, "Linkname") && !strstr(why, "xattr");
}

int tar_next(struct tar *t, struct archive_entry **ret, struct err *err)
{
    int rc = archive_read_next_header(t->a, ret);
    if (rc == ARCHIVE_EOF)
        return 0;
    if (rc < ARCHIVE_WARN)
        return tar_fail(t, err);
    if (rc == ARCHIVE_WARN && !tar_names_intact(t, *ret))
        return image_fail(
            err, IMAGE_BAD_DATA, "%s: an entry after %lld bytes (%s) has a name that is not UTF-8 or is damaged",
            t->stream->what, (long long)archive_read_header_position(t->a), image_shown(archive_entry_pathname(*ret)));
    if (!archive_entry_pathname(*ret))
        return image_fail(err, IMAGE_BAD_DATA, "%s: an entry after %lld bytes has no name", t->stream->what,
                          (long long)archive_read_header_position(t->a));
    return 1;
}

/* Reads the next block and its offset; the bytes between two blocks are a hole. */
static int tar_next_block(struct tar *t, uint64_t size, uint64_t offset, struct err *err)
{
    int rc;
    do
        rc = t->eof ? ARCHIVE_EOF : archive_read_data_block(t->a, &t->block, &t->n, &t->at);
    while (rc == ARCHIVE_OK && t->n == 0 && t->at >= 0 && (uint64_t)t->at <= offset);
    if (rc == ARCHIVE_EOF) {
        t->eof = true;
        t->n = 0;
        t->at = (int64_t)size; /* the rest is a hole */
        return 0;
    }
    if (rc != ARCHIVE_OK)
        return tar_fail(t, err);
    if (t->at < 0 || (uint64_t)t->at < offset || t->n > size || (uint64_t)t->at > size - t->n)
        return image_fail(err, IMAGE_BAD_DATA, "%s: a sparse entry has its parts in a wrong order", t->stream->what);
    return 0;
}

ssize_t tar_data(struct tar *t, uint64_t size, uint64_t *offset, const void **ret, struct err *err)
{
    if (*offset == 0) {
        t->n = 0;
        t->eof = false;
    }
    if (*offset >= size)
        return 0;
    if (t->n == 0 && tar_next_block(t, size, *offset, err) < 0)
        return -1;
    size_t take = t->n;
    *ret = t->block;
    if ((uint64_t)t->at > *offset) {
        uint64_t hole = (uint64_t)t->at - *offset;
        take = hole < sizeof zeros ? (size_t)hole : sizeof zeros;
        *ret = zeros;
    } else {
        t->n = 0;
    }
    *offset += take;
    return (ssize_t)take;
}

void tar_close(struct tar *t)
{
    if (t->a)
        (void)archive_read_free(t->a);
    t->a = NULL;
}

const char *tar_trim(const char *raw, char *ret, size_t room)
{
    const char *p = raw;
    if (p[0] == '\0')
        return "is empty";
    /* A leading '/' is dropped: images made by nix have it, and every tool reads them so. */
    while (p[0] == '/' || (p[0] == '.' && p[1] == '/'))
        p++;
    size_t n = strlen(p);
    while (n > 0 && p[n - 1] == '/')
        n--;
    if (n >= room)
        return "is longer than 4095 bytes";
    if (n == 1 && p[0] == '.')
        n = 0;
    memcpy(ret, p, n);
    ret[n] = '\0';
    return NULL;
}

const char *tar_name(const char *raw, char ret[LAY_PATH_MAX])
{
    const char *wrong = tar_trim(raw, ret, LAY_PATH_MAX);
    return wrong || !ret[0] ? wrong : lay_path_wrong(ret, strlen(ret));
}
