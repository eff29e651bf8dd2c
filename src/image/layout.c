/* layout.c - the archive around the layers: finds every file in it, and those that make up the image.
 *
 * The outer tar is read once, headers only; its files are then ranges of the descriptor. A compressed archive is
 * unpacked into the scratch file first.
 */
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "image/image-int.h"

#define ARCHIVE "the archive"
#define BLOBS   "blobs/sha256/"

static int layout_spool(struct stream *s, int scratch, struct err *err)
{
    const void *p;
    ssize_t n;
    while ((n = stream_next(s, &p, err)) > 0) {
        if (fd_write_all(scratch, p, (size_t)n) < 0)
            return image_fail(err, errno == ENOSPC ? IMAGE_TOO_LARGE : IMAGE_HOST,
                              "cannot unpack the archive: %s; it needs room for its uncompressed size",
                              strerror(errno));
        say_progress(s->src->done, s->src->done + s->src->left, "decompressing");
    }
    return n < 0 ? -1 : 0;
}

/* The plain archive: the descriptor itself, or scratch. */
static int layout_make_plain(struct layout *l, int fd, int scratch, uint64_t max, struct err *err)
{
    struct source src;
    struct stream s;
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return image_fail(err, IMAGE_HOST, "the archive is not a file");
    source_range(&src, fd, 0, (uint64_t)st.st_size);
    int rc = stream_open(&s, &src, max, ARCHIVE, err);
    l->fd = fd;
    if (rc == 0 && stream_compressed(&s)) {
        l->fd = scratch;
        rc = layout_spool(&s, scratch, err);
    }
    stream_close(&s);
    source_done(&src);
    return rc;
}

static int layout_add_file(struct layout *l, struct archive *a, struct archive_entry *e, struct err *err)
{
    char name[LAY_PATH_MAX];
    const char *raw = archive_entry_pathname(e), *wrong = tar_name(raw, name);
    mode_t type = archive_entry_filetype(e);
    if (wrong)
        return image_fail(err, IMAGE_BAD_DATA, "%s: the entry \"%s\" is refused: its name %s", ARCHIVE,
                          image_shown(raw), wrong);
    if (archive_entry_hardlink(e) || (type != S_IFREG && type != S_IFLNK))
        return 0;
    if (l->n >= IMAGE_FILES_MAX)
        return image_fail(err, IMAGE_TOO_LARGE, "%s has more than %d files", ARCHIVE, IMAGE_FILES_MAX);
    if (type == S_IFREG && archive_entry_sparse_count(e) > 0)
        return image_fail(err, IMAGE_BAD_DATA, "%s: the entry \"%s\" is sparse; layers and blobs are whole files",
                          ARCHIVE, image_shown(raw));
    MEM_GROW(l->v, l->n, l->cap);
    struct layout_file *f = &l->v[l->n++];
    *f = (struct layout_file){.name = xstrdup(name)};
    if (type == S_IFLNK)
        f->link = xstrdup(archive_entry_symlink(e) ? archive_entry_symlink(e) : "");
    f->size = type == S_IFREG && archive_entry_size(e) > 0 ? (uint64_t)archive_entry_size(e) : 0;
    f->at = (uint64_t)archive_filter_bytes(a, 0); /* the header was read, the content was not */
    return 0;
}

static int layout_index_tar(struct layout *l, struct err *err)
{
    struct archive_entry *e;
    struct source src;
    struct stream s;
    struct tar t = {0};
    struct stat st;
    if (fstat(l->fd, &st) < 0)
        return image_fail(err, IMAGE_HOST, "cannot look at the archive: %s", strerror(errno));
    source_range(&src, l->fd, 0, (uint64_t)st.st_size);
    int rc = stream_open(&s, &src, UINT64_MAX, ARCHIVE, err);
    s.skips = true;
    if (rc == 0)
        rc = tar_open(&t, &s, err);
    while (rc == 0 && (rc = tar_next(&t, &e, err)) > 0)
        rc = layout_add_file(l, t.a, e, err);
    tar_close(&t);
    stream_close(&s);
    source_done(&src);
    for (size_t i = 0; rc == 0 && i < l->n; i++)
        (void)map_put(&l->names, l->v[i].name, &l->v[i]); /* the last one of a name wins, as in every tar */
    return rc;
}

int layout_read(struct layout *l, int fd, int scratch, uint64_t max, struct err *err)
{
    *l = (struct layout){0};
    if (layout_make_plain(l, fd, scratch, max, err) < 0 || layout_index_tar(l, err) < 0)
        return -1;
    return 0;
}

void layout_done(struct layout *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->v[i].name);
        free(l->v[i].link);
    }
    free(l->v);
    map_done(&l->names);
    *l = (struct layout){0};
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Old versions of `docker save` write a repeated layer as a link "../<id>/layer.tar"; one such link is followed. */
static const struct layout_file *layout_find(const struct layout *l, const char *name)
{
    char clean[LAY_PATH_MAX], target[LAY_PATH_MAX];
    if (tar_name(name, clean))
        return NULL;
    const struct layout_file *f = map_get(&l->names, clean);
    if (!f || !f->link)
        return f;
    const char *link = f->link, *slash = strrchr(clean, '/');
    int n = 0;
    if (strncmp(link, "../", 3) == 0 && slash && strchr(clean, '/') == slash)
        n = snprintf(target, sizeof target, "%s", link + 3);
    else
        n = snprintf(target, sizeof target, "%.*s%s", slash ? (int)(slash - clean + 1) : 0, clean, link);
    if (n < 0 || (size_t)n >= sizeof target || tar_name(target, clean))
        return NULL;
    f = map_get(&l->names, clean);
    return f && !f->link ? f : NULL;
}

static int layout_read_text(const struct layout *l, const struct layout_file *f, size_t max, struct buf *ret,
                            struct err *err)
{
    struct source s;
    const void *p;
    ssize_t n;
    ret->n = 0;
    if (f->size > max)
        return image_fail(err, IMAGE_TOO_LARGE, "%s has %llu bytes; at most %zu are taken", image_shown(f->name),
                          (unsigned long long)f->size, max);
    source_range(&s, l->fd, f->at, f->size);
    while ((n = source_next(&s, &p)) > 0)
        buf_add(ret, p, (size_t)n);
    source_done(&s);
    if (n < 0)
        return image_fail(err, errno == ENODATA ? IMAGE_BAD_DATA : IMAGE_HOST, "cannot read %s: %s",
                          image_shown(f->name), errno == ENODATA ? "the archive is cut off" : strerror(errno));
    return 0;
}

/* Reads blobs/sha256/<hex> and checks its digest. */
static int layout_read_blob(const struct layout *l, const uint8_t digest[SHA256_BYTES], size_t max, struct buf *ret,
                            struct err *err)
{
    char name[sizeof BLOBS + SHA256_HEX] = BLOBS, real[SHA256_HEX];
    hash_hex(digest, name + sizeof BLOBS - 1);
    const struct layout_file *f = layout_find(l, name);
    if (!f)
        return image_fail(err, IMAGE_BAD_DATA, "the archive lacks %s", name);
    if (layout_read_text(l, f, max, ret, err) < 0)
        return -1;
    sha256_hex(ret->p, ret->n, real);
    if (strcmp(real, name + sizeof BLOBS - 1) != 0)
        return image_fail(err, IMAGE_BAD_DATA, "%s is not what its name says: its digest is %s", name, real);
    return 0;
}

/* --- the image ---------------------------------------------------------------------------------------------------- */

static int layout_read_config(struct layout_plan *ret, struct err *err)
{
    uint8_t ids[IMAGE_LAYERS_MAX][SHA256_BYTES];
    struct hash h = {0};
    hash_start(&h);
    hash_add(&h, ret->config.p, ret->config.n);
    hash_end(&h, ret->config_digest);
    hash_done(&h);
    if (manifest_config(buf_str(&ret->config), ret->config.n, ids, ret->n, err) < 0)
        return -1;
    for (size_t i = 0; i < ret->n; i++)
        memcpy(ret->layer[i].diff_id, ids[i], SHA256_BYTES);
    return 0;
}

static int layout_plan_manifest(const struct layout *l, const struct buf *text, struct layout_plan *ret,
                                struct err *err)
{
    char name[sizeof BLOBS + SHA256_HEX] = BLOBS;
    struct manifest m = {0};
    int rc = manifest_image(buf_str(text), text->n, &m, err);
    if (rc == 0)
        rc = layout_read_blob(l, m.config.digest, IMAGE_CONFIG_MAX, &ret->config, err);
    for (size_t i = 0; rc == 0 && i < m.n; i++) {
        struct layout_layer *y = &ret->layer[ret->n++];
        hash_hex(m.layer[i].digest, name + sizeof BLOBS - 1);
        *y = (struct layout_layer){
            .file = layout_find(l, name), .has_digest = true, .has_size = true, .size = m.layer[i].size};
        memcpy(y->digest, m.layer[i].digest, SHA256_BYTES);
        if (!y->file)
            rc = image_fail(err, IMAGE_BAD_DATA, "the archive lacks layer %zu of %zu (%s)", i + 1, m.n, name);
        else if (y->file->size != y->size)
            rc = image_fail(err, IMAGE_BAD_DATA, "layer %zu of %zu (%s) has %llu bytes, the manifest says %llu", i + 1,
                            m.n, name, (unsigned long long)y->file->size, (unsigned long long)y->size);
    }
    manifest_done(&m);
    return rc < 0 ? -1 : layout_read_config(ret, err);
}

static int layout_plan_oci(const struct layout *l, const struct layout_file *index, const char *select,
                           struct layout_plan *ret, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (layout_read_text(l, index, IMAGE_MANIFEST_MAX, &text, err) < 0)
        return -1;
    for (unsigned depth = 0; depth < IMAGE_NEST_MAX; depth++) {
        struct manifest_list list = {0};
        const struct descriptor *d = NULL;
        uint8_t digest[SHA256_BYTES];
        char media[sizeof d->media];
        int rc = manifest_list(buf_str(&text), text.n, &list, err);
        if (rc == 0)
            rc = manifest_choose(&list, depth == 0 ? select : "", &d, err);
        if (rc == 0) {
            memcpy(digest, d->digest, sizeof digest);
            memcpy(media, d->media, sizeof media);
        }
        manifest_list_done(&list);
        if (rc < 0 || layout_read_blob(l, digest, IMAGE_MANIFEST_MAX, &text, err) < 0)
            return -1;
        int kind = manifest_kind(buf_str(&text), text.n, media, err);
        if (kind < 0)
            return -1;
        if (kind == MANIFEST_IMAGE)
            return layout_plan_manifest(l, &text, ret, err);
    }
    return image_fail(err, IMAGE_BAD_DATA, "the index holds an index %d times over", IMAGE_NEST_MAX);
}

/* Checks the digest in the name: "<hex>.json" in old archives, "blobs/sha256/<hex>" in new ones. Other names have
 * none. */
static int layout_check_config_name(const char *name, const struct buf *config, struct err *err)
{
    const char *slash = strrchr(name, '/'), *hex = slash ? slash + 1 : name;
    uint8_t digest[SHA256_BYTES];
    char real[SHA256_HEX];
    size_t n = strspn(hex, "0123456789abcdef");
    if (!hash_from_hex(hex, n, digest) || (hex[n] != '\0' && strcmp(hex + n, ".json") != 0))
        return 0;
    sha256_hex(buf_str(config), config->n, real);
    if (strncmp(real, hex, n) != 0)
        return image_fail(err, IMAGE_BAD_DATA, "the configuration %s is not what its name says: its digest is %s",
                          image_shown(name), real);
    return 0;
}

static int layout_plan_docker(const struct layout *l, const struct layout_file *file, const char *select,
                              struct layout_plan *ret, struct err *err)
{
    struct docker_manifest d = {0};
    _cleanup_buf_ struct buf text = {0};
    int rc = layout_read_text(l, file, IMAGE_MANIFEST_MAX, &text, err);
    if (rc == 0)
        rc = manifest_docker(buf_str(&text), text.n, select, &d, err);
    const struct layout_file *config = rc == 0 ? layout_find(l, d.config) : NULL;
    if (rc == 0)
        rc = config ? layout_read_text(l, config, IMAGE_CONFIG_MAX, &ret->config, err)
                    : image_fail(err, IMAGE_BAD_DATA, "the archive lacks the configuration %s", image_shown(d.config));
    if (rc == 0)
        rc = layout_check_config_name(d.config, &ret->config, err);
    for (size_t i = 0; rc == 0 && i < d.n; i++) {
        struct layout_layer *y = &ret->layer[ret->n++];
        const char *hex = strncmp(d.layer[i], BLOBS, sizeof BLOBS - 1) == 0 ? d.layer[i] + sizeof BLOBS - 1 : "";
        *y = (struct layout_layer){.file = layout_find(l, d.layer[i])};
        y->has_digest = hash_from_hex(hex, strlen(hex), y->digest);
        if (!y->file)
            rc = image_fail(err, IMAGE_BAD_DATA, "the archive lacks layer %zu of %zu (%s)", i + 1, d.n,
                            image_shown(d.layer[i]));
    }
    docker_manifest_done(&d);
    return rc < 0 ? -1 : layout_read_config(ret, err);
}

/* Checks the sum in an export: over the digest of its configuration and the digest and diff_id of each layer. */
static int layout_check_export(const struct layout *l, const struct layout_plan *p, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    const struct layout_file *f = layout_find(l, "hutch.json");
    struct hash h = {0};
    uint8_t sum[SHA256_BYTES];
    if (!f)
        return image_fail(err, IMAGE_BAD_DATA, "this is not an export of a snapshot: there is no hutch.json in it");
    if (layout_read_text(l, f, IMAGE_MANIFEST_MAX, &text, err) < 0)
        return -1;
    hash_start(&h);
    hash_add(&h, p->config_digest, SHA256_BYTES);
    for (size_t i = 0; i < p->n; i++) {
        hash_add(&h, p->layer[i].digest, SHA256_BYTES);
        hash_add(&h, p->layer[i].diff_id, SHA256_BYTES);
    }
    hash_end(&h, sum);
    hash_done(&h);
    return manifest_hutch(buf_str(&text), text.n, sum, p->n, err);
}

int layout_plan(const struct layout *l, const char *select, bool hutch, struct layout_plan *ret, struct err *err)
{
    const struct layout_file *index = layout_find(l, "index.json"), *docker = layout_find(l, "manifest.json");
    *ret = (struct layout_plan){0};
    int rc;
    /* `docker save` today writes both; only manifest.json has the full tags. */
    if (docker && !hutch)
        rc = layout_plan_docker(l, docker, select, ret, err);
    else if (index && layout_find(l, "oci-layout"))
        rc = layout_plan_oci(l, index, select, ret, err);
    else
        rc = image_fail(err, IMAGE_BAD_DATA,
                        "%s holds no image: neither a manifest.json (docker save) nor an oci-layout with index.json",
                        ARCHIVE);
    return rc == 0 && hutch ? layout_check_export(l, ret, err) : rc;
}
