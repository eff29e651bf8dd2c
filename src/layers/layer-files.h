/* layer-files.h - writes layers and stack files. A layer has a name and, sooner or later, a digest; its content never
 * changes once it has its name.
 *
 * A name is 32 bytes. Where the digest is known before the layer appears (images, what is restored), it is the name,
 * and a second layer with the same content is dropped. What is captured from a sandbox, also by a build, gets a random
 * name that is never used twice, and its digest later (layer_digest()): from the store itself in the background, or from
 * the job that needs it first. Layout and reading: keeper/place.h. */
#ifndef HUTCH_LAYERS_LAYER_FILES_H
#define HUTCH_LAYERS_LAYER_FILES_H

#include "keeper/place.h"
#include "trees/tree.h"

enum layer_kind { LAYER_CAPTURE = 1, LAYER_IMPORT, LAYER_FLAT };
enum layer_naming {
    LAYER_BY_DIGEST = 1, /* the version of layers of older stores, which are as they were */
    LAYER_BY_CHANCE,
};
struct layer_meta {
    char magic[8]; /* "hlayer1" */
    uint32_t naming, kind;
    uint64_t bytes, entries;
    int64_t created_unix;
    uint8_t digest[SHA256_BYTES];  /* zeros: not known yet */
    uint8_t diff_id[SHA256_BYTES]; /* LAYER_IMPORT: of the uncompressed archive; else zeros */
    uint8_t sum[SHA256_BYTES];     /* of everything before, and of the name unless that is the digest */
};

/* Writes the stack file by rename, synced. ERR_SETUP with ENOENT, and no stack, if one of its layers is missing. */
int stack_write(const struct layers_place *p, const char *id, struct stack_file *f, struct err *err);
/* Reads a layer's meta file; ERR_SETUP "is damaged" if it fails its checks. */
int layer_meta_read(const struct layers_place *p, const char *name, struct layer_meta *ret, struct err *err);
bool layer_has_digest(const struct layer_meta *m);

/* Makes tmp/NAME, with NAME/root in it, layers/<digest>: writes meta, syncs, renames. If that layer exists, removes
 * NAME. Its name is ret->digest. */
int layer_commit(const struct layers_place *p, const char *tmp_name, enum layer_kind kind, const uint8_t *diff_id,
                 unsigned tree_flags, struct layer_meta *ret, struct err *err);
/* The same under a name made now, without reading the files, which have this size. */
int layer_commit_named(const struct layers_place *p, const char *tmp_name, enum layer_kind kind, struct tree_size size,
                       uint8_t ret_name[SHA256_BYTES], struct layer_meta *ret, struct err *err);
/* Notes the digest and the size of a layer that had none: meta is replaced as a whole, by way of TMP_NAME in tmp/ or
 * beside it, so that a process that is killed meanwhile leaves a layer without a digest. */
int layer_note_digest(const struct layers_place *p, const char *name, const char *tmp_name, struct layer_meta *m,
                      struct err *err);

#endif
