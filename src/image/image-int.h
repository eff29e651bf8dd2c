/* image-int.h - the parts of the image worker. All of it blocks and runs in one thread; memory is freed with the
 * process. No part may trust its input: names, sizes, counts and digests are checked where they are read. */
#ifndef HUTCH_IMAGE_IMAGE_INT_H
#define HUTCH_IMAGE_IMAGE_INT_H

#include <archive.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/map.h"
#include "image/image.h"
#include "trees/lay.h"

enum {
    IMAGE_MANIFEST_MAX = 4 << 20, /* bytes of a manifest or an index */
    IMAGE_FILES_MAX = 16384,      /* entries of the archive around the layers */
    IMAGE_PLATFORMS_MAX = 256,    /* of an index */
    IMAGE_NEST_MAX = 4,           /* an index in an index ... */
    IMAGE_RATIO_MAX = 1000,       /* bytes out of one compressed byte, once there are IMAGE_RATIO_FREE */
    IMAGE_BLOCK = 128 << 10,
    IMAGE_NAME_SHOWN = 200, /* bytes of a foreign name in a message */
};
#define IMAGE_RATIO_FREE (UINT64_C(1) << 30)

/* --- say.c: to the job -------------------------------------------------------------------------------------------- */

/* Fills err; image_failure_of() gives the class back. Always -1. */
int image_fail(struct err *err, enum image_failure f, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
enum image_failure image_failure_of(const struct err *err);
/* A foreign name, made safe for messages; valid until the fourth call from now. */
const char *image_shown(const char *name);

int say_layer(uint32_t index, uint32_t count, const uint8_t diff_id[SHA256_BYTES], struct err *err);
int say_config(const char *text, size_t n, struct err *err);
/* Sends at most five times a second. */
void say_progress(uint64_t done, uint64_t total, const char *text);
int say_done(const struct image_message *m, struct err *err);
void say_failed(const struct err *err);

/* --- confine.c ---------------------------------------------------------------------------------------------------- */

/* Called before the first foreign byte is read. ERR_HOST if the worker cannot be confined. */
int image_confine(bool net, struct err *err);

/* --- verify.c: digests -------------------------------------------------------------------------------------------- */

struct hash {
    EVP_MD_CTX *ctx; /* owned */
};
void hash_start(struct hash *h);
void hash_add(struct hash *h, const void *p, size_t n);
void hash_end(struct hash *h, uint8_t ret[SHA256_BYTES]); /* may be started again */
void hash_done(struct hash *h);
void hash_hex(const uint8_t digest[SHA256_BYTES], char ret[SHA256_HEX]);
/* 64 lower-case digits; `text` may be longer if n says so. */
bool hash_from_hex(const char *text, size_t n, uint8_t ret[SHA256_BYTES]);
/* "sha256:<hex>". */
bool hash_from_digest(const char *text, uint8_t ret[SHA256_BYTES]);

/* --- source.c: bytes in ------------------------------------------------------------------------------------------- */

/* A range of a file, or (size UINT64_MAX) a stream to its end, read once from start to end. */
struct source {
    int fd; /* borrowed */
    bool seek;
    uint64_t at, left, done;
    struct hash hash; /* of what was read */
    unsigned char *block;
};
void source_range(struct source *s, int fd, uint64_t at, uint64_t size);
void source_stream(struct source *s, int fd);
/* Borrowed until the next call. 0 at the end; -1 with errno. A range that ends early is ENODATA. */
ssize_t source_next(struct source *s, const void **ret);
void source_done(struct source *s);

/* The bytes of a source, decompressed if necessary, with a digest of the decompressed bytes. */
struct stream {
    struct source *src;     /* borrowed */
    const char *what;       /* for messages; borrowed */
    struct archive *filter; /* NULL: plain */
    struct hash hash;
    uint64_t done, max;
    const void *first; /* read to detect compression, not handed out yet */
    size_t nfirst;
    int error;  /* errno of the source */
    bool skips; /* the digest is not needed: skipped bytes are not read */
    bool ended;
};
/* max: of decompressed bytes. */
int stream_open(struct stream *s, struct source *src, uint64_t max, const char *what, struct err *err);
bool stream_compressed(const struct stream *s);
ssize_t stream_next(struct stream *s, const void **ret, struct err *err);
/* Skips up to n bytes without reading them; returns how many, 0 if it cannot skip. */
int64_t stream_skip(struct stream *s, int64_t n);
/* Reads stream and source to their ends and returns their digests (either may be NULL). */
int stream_finish(struct stream *s, uint8_t plain[SHA256_BYTES], uint8_t packed[SHA256_BYTES], struct err *err);
void stream_close(struct stream *s);

/* --- archive.c: tar ----------------------------------------------------------------------------------------------- */

struct tar {
    struct archive *a;
    struct stream *stream; /* borrowed */
    struct err err;        /* of the stream, while libarchive is in between */
    const void *block;     /* of the entry's content, not handed out yet */
    size_t n;
    int64_t at;
    bool eof;
};
int tar_open(struct tar *t, struct stream *s, struct err *err);
/* 1 and the entry, 0 at the end. Refuses names that libarchive could not keep unchanged. */
int tar_next(struct tar *t, struct archive_entry **ret, struct err *err);
/* The content of the entry in blocks, holes filled with zeros. 0 at the end; the caller keeps *offset, 0 at first. */
ssize_t tar_data(struct tar *t, uint64_t size, uint64_t *offset, const void **ret, struct err *err);
void tar_close(struct tar *t);
/* "./a/b/" and "/a/b" -> "a/b", "./", "/" and "." -> "". NULL if the result is valid in a lay stream, else why not;
 * tar_trim does not check its parts. */
const char *tar_name(const char *raw, char ret[LAY_PATH_MAX]);
const char *tar_trim(const char *raw, char *ret, size_t room);

/* --- seen.c ------------------------------------------------------------------------------------------------------- */

/* The last entry of a path in this layer. SEEN_MARKED: a directory that the layer only removes things from. */
enum seen_kind { SEEN_NOTHING, SEEN_FILE, SEEN_DIR, SEEN_OTHER, SEEN_WHITEOUT, SEEN_MARKED };
struct seen {
    uint64_t *slot; /* sum of the path with the kind in its low bits; 0: free. Owned */
    size_t n, cap;
    uint64_t key;
};
void image_seen_start(struct seen *s);
enum seen_kind image_seen_get(const struct seen *s, const char *path, size_t n);
void image_seen_put(struct seen *s, const char *path, enum seen_kind kind);
void image_seen_done(struct seen *s);

/* Directories of the layers so far, as they were described last. A zeroed struct is empty. */
struct dir_meta {
    uint64_t sum;
    uint32_t layer;         /* that described it, from 1; 0: none */
    uint32_t gone, emptied; /* the last layer that removed it, or its contents */
    uint32_t mode, uid, gid, nsec;
    int64_t sec;
    char *xattrs; /* owned; as they stand in a record */
    size_t nxattrs;
};
struct dirs {
    struct dir_meta *slot; /* owned */
    size_t n, cap, bytes;  /* bytes: of all attributes */
    uint64_t key;
    uint32_t layer; /* that is read now, from 0 */
};
#define DIRS_XATTRS_MAX ((size_t)64 << 20)
/* false: all attributes together would exceed DIRS_XATTRS_MAX bytes. */
bool dirs_put(struct dirs *d, const char *path, const struct lay_record *r, const struct buf *xattrs);
/* This layer removes path of the layers below, or (emptied) only its contents. */
void dirs_take(struct dirs *d, const char *path, bool emptied);
/* This layer has something else than a directory at path. */
void dirs_replace(struct dirs *d, const char *path);
/* Sets mode, owner, time and *xattrs. false: the layers below have no such directory, or a layer removed it. */
bool dirs_get(const struct dirs *d, const char *path, struct lay_record *ret, struct buf *xattrs);
void dirs_done(struct dirs *d);

/* --- tar-lay.c ---------------------------------------------------------------------------------------------------- */

struct tar_lay {
    bool oci;                 /* .wh. names are whiteouts */
    bool export;              /* pack.c wrote it */
    struct lay_limits limits; /* 0: defaults */
    uint64_t total;           /* bytes of the source, for progress */
    uint64_t bytes, entries;  /* out, added up over layers */
    uint64_t devices, xattrs; /* out: left out */
    struct dirs dirs;         /* of all layers; the caller frees it */
};
/* Writes all records but LAY_END. */
int tar_to_lay(struct stream *s, struct lay_out *o, struct tar_lay *l, struct err *err);
/* A note about what was left out; "": nothing was. */
void tar_lay_note(const struct tar_lay *l, char *ret, size_t room);

/* --- manifest.c: pure --------------------------------------------------------------------------------------------- */

struct descriptor {
    uint8_t digest[SHA256_BYTES];
    uint64_t size;
    char media[128];
    char os[32], arch[32], variant[16]; /* of an index; "" if not said */
    char name[300];                     /* its ref.name annotation */
    bool index;                         /* it describes an index */
};
struct manifest {
    struct descriptor config;
    struct descriptor *layer; /* owned; bottom first */
    size_t n;
};
struct manifest_list {
    struct descriptor *v; /* owned */
    size_t n;
};
struct docker_manifest { /* of `docker save` */
    char *config;        /* owned, like all of it */
    char **layer;        /* bottom first */
    size_t n;
};
enum manifest_kind { MANIFEST_IMAGE = 1, MANIFEST_LIST };
/* Which of the two it is: by media type (may be ""), else by its fields. -1: another kind, for example schema 1. */
int manifest_kind(const char *text, size_t n, const char *media, struct err *err);
int manifest_image(const char *text, size_t n, struct manifest *ret, struct err *err);
int manifest_list(const char *text, size_t n, struct manifest_list *ret, struct err *err);
/* Chooses the image for linux/amd64, with the name `select` if that is not "". Several with different names are an
 * error that lists them. */
int manifest_choose(const struct manifest_list *l, const char *select, const struct descriptor **ret, struct err *err);
int manifest_docker(const char *text, size_t n, const char *select, struct docker_manifest *ret, struct err *err);
/* Checks that the configuration is for linux/amd64 and has exactly `n` layers; returns their diff_ids. */
int manifest_config(const char *text, size_t len, uint8_t (*ret)[SHA256_BYTES], size_t n, struct err *err);
/* Checks that an export's hutch.json has this sum and this number of layers. */
int manifest_hutch(const char *text, size_t len, const uint8_t sum[SHA256_BYTES], size_t n, struct err *err);
void manifest_done(struct manifest *m);
void manifest_list_done(struct manifest_list *l);
void docker_manifest_done(struct docker_manifest *d);

/* --- layout.c: the archive around the layers ---------------------------------------------------------------------- */

struct layout_file {
    char *name, *link; /* link: it is a symbolic link to this name */
    uint64_t at, size;
};
struct layout {
    int fd; /* borrowed: the archive, not compressed */
    struct layout_file *v;
    size_t n, cap;
    struct map names;
};
struct layout_layer {
    const struct layout_file *file;
    bool has_digest; /* the file's name contains it */
    uint8_t digest[SHA256_BYTES], diff_id[SHA256_BYTES];
    bool has_size;
    uint64_t size;
};
struct layout_plan {
    struct buf config;
    uint8_t config_digest[SHA256_BYTES];
    struct layout_layer layer[IMAGE_LAYERS_MAX]; /* bottom first */
    size_t n;
};
/* Finds the offset of every file. A compressed archive is unpacked into `scratch` first. */
int layout_read(struct layout *l, int fd, int scratch, uint64_t max, struct err *err);
int layout_plan(const struct layout *l, const char *select, bool hutch, struct layout_plan *ret, struct err *err);
void layout_done(struct layout *l);

/* --- the commands ------------------------------------------------------------------------------------------------- */

struct image_options {
    const char *image, *ref; /* "" if not given */
    bool oci, hutch, private;
    const char *infra, *registries;  /* NULL if not given */
    uint64_t max_bytes, max_entries; /* 0: defaults */
};
int image_unpack(const struct image_options *o, struct err *err);
int image_layer(const struct image_options *o, struct err *err);
int image_pack(const struct image_options *o, struct err *err);
int image_fetch(const struct image_options *o, struct err *err);
/* Before confinement: loads what fetch needs from the file system. */
int image_fetch_prepare(struct err *err);

#define IMAGE_BYTES_MAX (UINT64_C(64) << 30) /* default of limits.bytes */

#endif
