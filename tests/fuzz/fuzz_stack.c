/* Fuzz driver for what lies in the database: a stack. What passes must be what was promised, and nothing else can be
 * sealed to pass. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "keeper/place.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct stack_file *f)
{
    if (f->n > STACK_LAYERS_MAX || strnlen(f->base, sizeof f->base) == sizeof f->base || strchr(f->base, '/') ||
        strchr(f->base, '.') || strcmp(f->base, "host") == 0 || (f->n == 0 && f->base[0] == '\0'))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stack_file f = {0};
    char id[64] = "";
    memcpy(&f, data, size < sizeof f ? size : sizeof f);
    if (stack_file_valid(&f)) {
        check(&f);
        f.layer[0][0] ^= 1;
        if (stack_file_valid(&f))
            abort();
    }
    /* With a sum that is right the rest is looked at. */
    memcpy(&f, data, size < sizeof f ? size : sizeof f);
    stack_file_seal(&f);
    if (stack_file_valid(&f))
        check(&f);
    memcpy(id, data, size < sizeof id - 1 ? size : sizeof id - 1);
    if (stack_id_valid(id) && (strlen(id) >= STACK_ID_MAX || strchr(id, '/') || strchr(id, '.')))
        abort();
    return 0;
}
