/* Fuzz driver for messages of front to the layer store. The first byte says how many descriptors came along. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "layers/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *s, size_t room)
{
    size_t n = strnlen(s, room);
    if (n == room)
        abort();
    for (size_t i = n; i < room; i++)
        if (s[i])
            abort();
}

/* Names become file names. */
static void check_name(const char *s, size_t room)
{
    check_text(s, room);
    if (strchr(s, '/') || strchr(s, '.') || strchr(s, '\n'))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct layers_request q;
    struct err err = {0};
    if (size < 1)
        return 0;
    if (layers_request_parse(data + 1, size - 1, data[0], &q, &err) < 0) {
        if (err.msg[0] == '\0')
            abort();
        return 0;
    }
    if (q.version != LAYERS_VERSION || q.request == 0 || q.type < LAYERS_CAPTURE || q.type > LAYERS_DIGEST ||
        data[0] > 1)
        abort();
    check_name(q.sandbox, sizeof q.sandbox);
    check_name(q.stack, sizeof q.stack);
    check_name(q.other, sizeof q.other);
    check_name(q.volume, sizeof q.volume);
    check_name(q.blob, sizeof q.blob);
    check_text(q.ref, sizeof q.ref);
    check_text(q.path, sizeof q.path);
    return 0;
}
