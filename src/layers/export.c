/* export.c - writes a stack as an OCI image layout in one tar, with a hutch.json by which restore recognizes it.
 *
 * The job writes every layer as a lay stream to a worker, which packs it and returns a file and its digests; all JSON
 * is made here from these. A captured layer may hold renamed directories (overlay redirects, which mean nothing
 * elsewhere), so it is written as the difference that it makes. The archive is a file without a name; front gets its
 * descriptor when it is complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/mem.h"
#include "layers/digest-later.h"
#include "layers/import.h"
#include "layers/merged.h"
#include "layers/worker.h"
#include "trees/diff.h"

#define EXPORT_MAX (UINT64_C(64) << 30) /* bytes, unless the request has a limit */
enum { TAR_BLOCK = 512, COPY_BYTES = 256 << 10, DIGEST_TEXT = 7 + SHA256_HEX, ALL_MAX = STACK_LAYERS_MAX + 1 };
#define OCTAL_MAX UINT64_C(077777777777)

struct exported {
    uint8_t digest[SHA256_BYTES], diff_id[SHA256_BYTES], layer[SHA256_BYTES]; /* layer: the digest in the store */
    uint64_t size;
};
struct export
{
    struct job *job;
    int out; /* a file in tmp/ */
    uint64_t max;
    struct stack_file stack;
    struct exported layer[ALL_MAX]; /* bottom first */
    size_t n;
    uint64_t written, devices; /* devices: left out */
};

/* --- the tar
 * ------------------------------------------------------------------------------------------------------- */

static int export_put(struct export *x, const void *p, size_t n, struct err *err)
{
    if (n > x->max - x->written)
        return err_set(err, ERR_LIMIT, 0, "the archive would be larger than %" PRIu64 " bytes", x->max);
    if (fd_write_all(x->out, p, n) < 0)
        return err_set(err, ERR_SETUP, errno, "write the archive");
    x->written += n;
    return 0;
}

static int export_put_padding(struct export *x, uint64_t size, struct err *err)
{
    static const char zeros[TAR_BLOCK];
    return export_put(x, zeros, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK, err);
}

/* ustar; sizes above 8 GiB as GNU writes them. */
static int export_put_header(struct export *x, const char *name, uint64_t size, struct err *err)
{
    char h[TAR_BLOCK] = {0};
    unsigned sum = 0;
    (void)snprintf(h, 100, "%s", name);
    memcpy(h + 100, "0000644", 8);
    memcpy(h + 108, "0000000", 8);
    memcpy(h + 116, "0000000", 8);
    if (size <= OCTAL_MAX) {
        (void)snprintf(h + 124, 12, "%011" PRIo64, size);
    } else {
        h[124] = (char)0x80;
        for (unsigned i = 0; i < 8; i++)
            h[135 - i] = (char)(size >> (8 * i));
    }
    memcpy(h + 136, "00000000000", 12);
    memset(h + 148, ' ', 8);
    h[156] = '0';
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    for (size_t i = 0; i < sizeof h; i++)
        sum += (unsigned char)h[i];
    (void)snprintf(h + 148, 8, "%06o", sum & 0777777U);
    return export_put(x, h, sizeof h, err);
}

static int export_put_file(struct export *x, const char *name, const struct buf *text, struct err *err)
{
    return export_put_header(x, name, text->n, err) < 0 || export_put(x, text->p, text->n, err) < 0
               ? -1
               : export_put_padding(x, text->n, err);
}

static void blob_name(const uint8_t digest[SHA256_BYTES], char ret[13 + SHA256_HEX])
{
    memcpy(ret, "blobs/sha256/", 13);
    sha256_text(digest, ret + 13);
}
static void digest_text(const uint8_t digest[SHA256_BYTES], char ret[DIGEST_TEXT])
{
    char name[13 + SHA256_HEX];
    blob_name(digest, name);
    memcpy(ret, "sha256:", 7);
    memcpy(ret + 7, name + 13, SHA256_HEX);
}

/* Adds text under the name of its digest, which is returned. */
static int export_put_blob(struct export *x, const struct buf *text, uint8_t ret[SHA256_BYTES], struct err *err)
{
    char name[13 + SHA256_HEX];
    struct sha256 h;
    sha256_start(&h);
    sha256_add(&h, text->p, text->n);
    sha256_end(&h, ret);
    blob_name(ret, name);
    return export_put_file(x, name, text, err);
}

/* --- layers
 * -------------------------------------------------------------------------------------------------------- */

/* Adds a packed layer under the digest that the worker named. Readers of the archive check the digest; we do not. */
static int export_put_packed(struct export *x, int fd, const struct exported *y, struct err *err)
{
    char name[13 + SHA256_HEX];
    _cleanup_free_ char *block = xmalloc(COPY_BYTES);
    uint64_t at = 0;
    blob_name(y->digest, name);
    for (size_t i = 0; i < x->n; i++)
        if (memcmp(x->layer[i].digest, y->digest, SHA256_BYTES) == 0)
            return 0; /* the archive has it already */
    if (export_put_header(x, name, y->size, err) < 0)
        return -1;
    while (at < y->size) {
        size_t want = y->size - at < COPY_BYTES ? (size_t)(y->size - at) : COPY_BYTES;
        ssize_t n = pread(fd, block, want, (off_t)at);
        if (n <= 0)
            return err_set(err, ERR_SETUP, n < 0 ? errno : EIO, "read a packed layer");
        if (export_put(x, block, (size_t)n, err) < 0)
            return -1;
        at += (uint64_t)n;
        job_progress(x->job, x->written, 0, "packing");
    }
    return export_put_padding(x, y->size, err);
}

/* Writes the stream of one layer: its own tree, or the difference that it makes. */
static int export_write_stream(struct export *x, size_t index, int dir, struct lay_out *o, struct err *err)
{
    struct job *j = x->job;
    bool base = index == x->stack.n;
    bool lowest = index + 1 == x->stack.n + (x->stack.base[0] ? 1 : 0);
    struct layer_meta meta = {.kind = LAYER_FLAT};
    char name[13 + SHA256_HEX];
    if (!base) {
        blob_name(x->stack.layer[index], name);
        if (layer_meta_read(&j->place, name + 13, &meta, err) < 0)
            return -1;
    }
    if (lowest || meta.kind != LAYER_CAPTURE) {
        _cleanup_close_ int root = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (root < 0)
            return err_set(err, ERR_SETUP, errno, "open a layer");
        return tree_write(root, j->tree_flags, o, &x->devices, err); /* a sandbox has a /dev of its own */
    }
    _cleanup_close_ int below = merged_stack(j, &x->stack, index + 1, err);
    _cleanup_close_ int above = below < 0 ? -1 : merged_stack(j, &x->stack, index, err);
    if (above < 0)
        return -1;
    const struct diff d = {.a = below, .b = above, .flags = DIFF_WITH_TIMES};
    return diff_to_lay(&d, o, err);
}

static int export_pack(struct export *x, size_t index, int dir, int out, struct image_message *msg, struct err *err)
{
    static struct lay_out o;
    int ends[2];
    _cleanup_worker_ struct worker w = WORKER_INIT;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "make a pipe for an image worker");
    const struct worker_plan plan = {.args = {"pack"}, .in = ends[0], .out = out, .more = -1};
    int rc = worker_begin(x->job, &plan, &w, err);
    (void)close(ends[0]);
    lay_out_start(&o, ends[1]);
    o.waits = worker_waits;
    if (rc == 0 && (rc = export_write_stream(x, index, dir, &o, err)) < 0 && err->eno == EPIPE)
        rc = worker_blame(&w, err);
    (void)close(ends[1]);
    if (rc == 0)
        rc = worker_next(&w, msg, NULL, err);
    if (rc == 0 && msg->type != IMAGE_DONE)
        rc = job_fail(x->job, LAYERS_BAD_DATA, err, "the image worker said something out of turn");
    return rc;
}

static int export_layer(struct export *x, size_t index, int dir, struct err *err)
{
    struct image_message msg;
    struct stat st;
    struct exported y = {0};
    struct layer_meta m;
    char name[LAYER_NAME];
    _cleanup_close_ int out = import_file(x->job, err);
    if (out < 0 || export_pack(x, index, dir, out, &msg, err) < 0)
        return -1;
    if (fstat(out, &st) < 0 || (uint64_t)st.st_size != msg.done)
        return job_fail(x->job, LAYERS_FAILED, err, "a packed layer is not as large as the image worker says");
    memcpy(y.digest, msg.digest, SHA256_BYTES);
    memcpy(y.diff_id, msg.diff_id, SHA256_BYTES);
    if (index < x->stack.n) {
        sha256_text(x->stack.layer[index], name);
        if (layer_digest(x->job, name, &m, err) < 0)
            return -1;
        memcpy(y.layer, m.digest, SHA256_BYTES);
    }
    y.size = msg.done;
    if (export_put_packed(x, out, &y, err) < 0)
        return -1;
    x->layer[x->n++] = y;
    return 0;
}

/* --- documents
 * ----------------------------------------------------------------------------------------------------- */

static void export_add_digest(struct json *j, const char *key, const uint8_t digest[SHA256_BYTES])
{
    char text[DIGEST_TEXT];
    digest_text(digest, text);
    json_str(j, key, text);
}

static void write_config(const struct export *x, struct buf *ret)
{
    struct json j;
    json_start(&j, ret);
    json_obj(&j, NULL);
    json_str(&j, "architecture", "amd64");
    json_str(&j, "os", "linux");
    json_obj(&j, "config");
    json_end_obj(&j);
    json_obj(&j, "rootfs");
    json_str(&j, "type", "layers");
    json_arr(&j, "diff_ids");
    for (size_t i = 0; i < x->n; i++)
        export_add_digest(&j, NULL, x->layer[i].diff_id);
    json_end_arr(&j);
    json_end_obj(&j);
    json_end_obj(&j);
}

static void export_add_descriptor(struct json *j, const char *key, const char *media,
                                  const uint8_t digest[SHA256_BYTES], uint64_t size)
{
    json_obj(j, key);
    json_str(j, "mediaType", media);
    export_add_digest(j, "digest", digest);
    json_u64(j, "size", size);
    json_end_obj(j);
}

static void write_manifest(const struct export *x, const uint8_t config[SHA256_BYTES], size_t nconfig, struct buf *ret)
{
    struct json j;
    json_start(&j, ret);
    json_obj(&j, NULL);
    json_u64(&j, "schemaVersion", 2);
    json_str(&j, "mediaType", "application/vnd.oci.image.manifest.v1+json");
    export_add_descriptor(&j, "config", "application/vnd.oci.image.config.v1+json", config, nconfig);
    json_arr(&j, "layers");
    for (size_t i = 0; i < x->n; i++)
        export_add_descriptor(&j, NULL, "application/vnd.oci.image.layer.v1.tar+zstd", x->layer[i].digest,
                              x->layer[i].size);
    json_end_arr(&j);
    json_end_obj(&j);
}

static void write_index(const uint8_t manifest[SHA256_BYTES], size_t n, struct buf *ret)
{
    struct json j;
    json_start(&j, ret);
    json_obj(&j, NULL);
    json_u64(&j, "schemaVersion", 2);
    json_str(&j, "mediaType", "application/vnd.oci.image.index.v1+json");
    json_arr(&j, "manifests");
    export_add_descriptor(&j, NULL, "application/vnd.oci.image.manifest.v1+json", manifest, n);
    json_end_arr(&j);
    json_end_obj(&j);
}

/* layout.c of the worker computes the same sum when it reads the archive. */
static void write_hutch(const struct export *x, const uint8_t config[SHA256_BYTES], struct buf *ret)
{
    uint8_t sum[SHA256_BYTES];
    struct sha256 h;
    struct json j;
    sha256_start(&h);
    sha256_add(&h, config, SHA256_BYTES);
    for (size_t i = 0; i < x->n; i++) {
        sha256_add(&h, x->layer[i].digest, SHA256_BYTES);
        sha256_add(&h, x->layer[i].diff_id, SHA256_BYTES);
    }
    sha256_end(&h, sum);
    json_start(&j, ret);
    json_obj(&j, NULL);
    json_str(&j, "format", "hutch-export-1");
    export_add_digest(&j, "sum", sum);
    json_bool(&j, "base", x->stack.base[0] != '\0');
    json_arr(&j, "layers"); /* bottom first; "layer" is its digest in the store it comes from */
    for (size_t i = 0; i < x->n; i++) {
        json_obj(&j, NULL);
        export_add_digest(&j, "layer", x->layer[i].layer);
        export_add_digest(&j, "diffId", x->layer[i].diff_id);
        export_add_digest(&j, "digest", x->layer[i].digest);
        json_u64(&j, "size", x->layer[i].size);
        json_end_obj(&j);
    }
    json_end_arr(&j);
    json_end_obj(&j);
}

static int export_put_documents(struct export *x, struct err *err)
{
    static const char zeros[2 * TAR_BLOCK];
    _cleanup_buf_ struct buf config = {0}, manifest = {0}, index = {0}, hutch = {0}, layout = {0};
    uint8_t config_digest[SHA256_BYTES], manifest_digest[SHA256_BYTES];
    write_config(x, &config);
    if (export_put_blob(x, &config, config_digest, err) < 0)
        return -1;
    write_manifest(x, config_digest, config.n, &manifest);
    if (export_put_blob(x, &manifest, manifest_digest, err) < 0)
        return -1;
    write_index(manifest_digest, manifest.n, &index);
    write_hutch(x, config_digest, &hutch);
    buf_adds(&layout, "{\"imageLayoutVersion\":\"1.0.0\"}");
    if (export_put_file(x, "index.json", &index, err) < 0 || export_put_file(x, "oci-layout", &layout, err) < 0 ||
        export_put_file(x, "hutch.json", &hutch, err) < 0)
        return -1;
    return export_put(x, zeros, sizeof zeros, err);
}

/* The archive goes into a file, not straight to the client: a slow client must not hold up the job. The file is
 * opened once more for reading and unlinked, so it vanishes with its last descriptor. */
static int export_open_spool(struct job *j, int *ret_reader, struct err *err)
{
    char name[LAYERS_TMP_NAME];
    job_tmp_name(j, name);
    int fd = openat(j->place.tmp, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    *ret_reader = fd < 0 ? -1 : openat(j->place.tmp, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (*ret_reader < 0)
        return err_set(err, ERR_SETUP, errno, "make a file for the archive");
    (void)unlinkat(j->place.tmp, name, 0);
    return fd;
}

int job_export(struct job *j, struct err *err)
{
    static struct export x;
    int dirs[ALL_MAX];
    size_t n = ALL_MAX;
    int reader = -1;
    x = (struct export){.job = j, .out = -1, .max = j->ask->bytes ? j->ask->bytes : EXPORT_MAX};
    if (stack_read(&j->place, j->ask->stack, &x.stack, err) < 0)
        return err->eno == ENOENT ? job_fail(j, LAYERS_NOT_FOUND, err, "there is no stack %s", j->ask->stack) : -1;
    if ((x.out = export_open_spool(j, &reader, err)) < 0 || stack_open(&j->place, &x.stack, dirs, &n, err) < 0)
        return -1;
    int rc = 0;
    for (size_t i = n; i-- > 0 && rc == 0;)
        rc = export_layer(&x, i, dirs[i], err);
    for (size_t i = 0; i < n; i++)
        (void)close(dirs[i]);
    if (rc < 0 || export_put_documents(&x, err) < 0)
        return -1;
    j->reply.bytes = x.written;
    j->reply.entries = x.n;
    j->reply.bytes2 = x.devices;
    j->reply_fd = reader;
    return 0;
}
