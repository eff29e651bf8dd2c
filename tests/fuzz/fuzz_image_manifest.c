/* fuzz_image_manifest.c - any bytes as each of the documents around an image: what is accepted keeps to its limits. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "image/image-int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t ids[IMAGE_LAYERS_MAX][SHA256_BYTES];
    const char *text = (const char *)data;
    struct manifest m;
    struct manifest_list l;
    struct docker_manifest d;
    const struct descriptor *chosen = NULL;
    struct err err = {0};
    int kind = manifest_kind(text, size, "", &err);
    if (kind < 0 && !err.msg[0])
        abort();
    if (manifest_image(text, size, &m, &err) == 0 &&
        (m.n == 0 || m.n > IMAGE_LAYERS_MAX || m.config.size > IMAGE_CONFIG_MAX))
        abort();
    manifest_done(&m);
    if (manifest_list(text, size, &l, &err) == 0 && manifest_choose(&l, "", &chosen, &err) == 0 &&
        (chosen < l.v || chosen >= l.v + l.n))
        abort();
    manifest_list_done(&l);
    if (manifest_docker(text, size, "", &d, &err) == 0 && (d.n == 0 || d.n > IMAGE_LAYERS_MAX || !d.config))
        abort();
    docker_manifest_done(&d);
    (void)manifest_config(text, size, ids, 1, &err);
    (void)manifest_hutch(text, size, ids[0], 1, &err);
    return 0;
}
