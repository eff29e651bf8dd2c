/* layer-files.h - writes layers and stack files. A layer's name is its digest, and its content never changes afterwards.
 * Layout and reading: keeper/place.h. */
#ifndef HUTCH_LAYERS_LAYER_FILES_H
#define HUTCH_LAYERS_LAYER_FILES_H

#include "keeper/place.h"

enum layer_kind { LAYER_CAPTURE = 1, LAYER_IMPORT, LAYER_FLAT };
struct layer_meta {
    char magic[8]; /* "hlayer1" */
    uint32_t version, kind;
    uint64_t bytes, entries;
    int64_t created_unix;
    uint8_t digest[SHA256_BYTES];  /* its name */
    uint8_t diff_id[SHA256_BYTES]; /* LAYER_IMPORT: of the uncompressed archive; else zeros */
    uint8_t sum[SHA256_BYTES];
};

/* Writes the stack file by rename, synced. ERR_SETUP with ENOENT, and no stack, if one of its layers is missing. */
int stack_write(const struct layers_place *p, const char *id, struct stack_file *f, struct err *err);
/* Reads a layer's meta file; ERR_SETUP "is damaged" if it fails its checks. */
int layer_meta_read(const struct layers_place *p, const char *name, struct layer_meta *ret, struct err *err);
/* Makes tmp/NAME, with NAME/root in it, layers/<digest>: writes meta, syncs, renames. If that layer exists, removes
 * NAME. */
int layer_commit(const struct layers_place *p, const char *tmp_name, enum layer_kind kind, const uint8_t *diff_id,
                 unsigned tree_flags, struct layer_meta *ret, struct err *err);

#endif
