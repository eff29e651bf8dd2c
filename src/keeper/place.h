/* place.h - the directories of the database and its stacks: the part that keeper reads. What is written there is in
 * stock/layers.h.
 */
#ifndef HUTCH_KEEPER_PLACE_H
#define HUTCH_KEEPER_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/sha256.h"

enum {
    STACK_ID_MAX = 40, /* "st-" and 24 of [a-z0-9], with NUL and room */
    STACK_LAYERS_MAX = 64,
    STACK_FLATTEN_AT = 12, /* layers above the bottom: more are made into one in the background */
    STACK_BASE_MAX = 72,   /* as KEEPER_TEMPLATE_MAX */
    LAYER_NAME = SHA256_HEX,
};

struct stack_file {
    char magic[8]; /* "hstack1" */
    uint32_t version, n;
    char base[STACK_BASE_MAX];                     /* directory of the templates at the bottom; "": none */
    uint8_t layer[STACK_LAYERS_MAX][SHA256_BYTES]; /* their names, uppermost first */
    uint8_t sum[SHA256_BYTES];                     /* of everything before */
};
struct layers_place {
    int root, layers, stacks, tmp, uppers, volumes, blobs,
        templates; /* O_RDONLY|O_DIRECTORY or O_PATH; -1: not opened */
};
#define LAYERS_PLACE_INIT              \
    {                                  \
        -1, -1, -1, -1, -1, -1, -1, -1 \
    }
#define LAYERS_DIR "stock" /* in STATE */
#define LAYERS_SEED \
    "seed" /* in STATE/stock on a btrfs of its own: a subvolume from which uppers start (layers/numbers.h) */
/* Of a sandbox whose root is nothing but our own tools (KEEPER_BUILD); there is no such file. */
#define STACK_EMPTY "st-00000000"

/* Opens STATE/stock, making what is missing (0700; layers 0755 so that idmapped readers get in). templates may be -1.
 */
int layers_place_open(int state, int templates, struct layers_place *ret, struct err *err);
void layers_place_close(struct layers_place *p);

bool stack_id_valid(const char *id); /* st-[a-z0-9]{8,32} */
void stack_id_new(char ret[STACK_ID_MAX]);
/* Pure: magic, sum, n, base a valid name. */
bool stack_file_valid(const struct stack_file *f);
void stack_file_seal(struct stack_file *f); /* magic, version, sum */
/* ENOENT in err->eno if there is none; ERR_SETUP "is damaged" if it is not whole. */
int stack_read(const struct layers_place *p, const char *id, struct stack_file *ret, struct err *err);
/* Directory of a layer's tree, by the layer's name, O_PATH. */
int layer_open(const struct layers_place *p, const uint8_t layer[SHA256_BYTES], struct err *err);
/* All directories of a stack, uppermost first, O_PATH, the caller's; *n in: room. */
int stack_open(const struct layers_place *p, const struct stack_file *f, int *fds, size_t *n, struct err *err);

#endif
