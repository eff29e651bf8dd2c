/* fuzz_egress_control.c - any bytes as messages of front (lines) and of keeper: refused with words or understood, never worse. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "egress/control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct egress g = {0};
    struct err err = {0};
    bool hello = false;
    log_open("fuzz", LOG_LEVEL_ERROR, 2);
    if (loop_new(&g.loop, &err) < 0)
        abort();
    (void)control_attach(&g, 1, data, size, NULL, 0);
    for (size_t at = 0; at < size;) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t n = end ? (size_t)(end - (data + at)) : size - at;
        err.msg[0] = '\0';
        if (control_message(&g, "", &hello, (const char *)data + at, n, &err) < 0 && !err.msg[0])
            abort();
        at += n + 1;
    }
    esb_drop_all(&g);
    loop_free(g.loop);
    return 0;
}
