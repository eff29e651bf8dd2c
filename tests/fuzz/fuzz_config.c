/* fuzz_config.c - any bytes as a configuration of `hutch serve`: no crash, no leak, one line for what is refused, and what is
 * accepted reads back as the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config c, again;
    struct err err = {0};
    struct buf first = {0}, second = {0};
    config_start(&c);
    config_start(&again);
    if (config_text(&c, (const char *)data, size, "fuzz.yaml", &err) < 0) {
        if (err.msg[0] == '\0' || strchr(err.msg, '\n'))
            abort();
    } else {
        config_show(&c, false, &first);
        if (config_text(&again, buf_str(&first), first.n, "again.yaml", &err) < 0)
            abort();
        config_show(&again, false, &second);
        if (first.n != second.n || memcmp(buf_str(&first), buf_str(&second), first.n) != 0)
            abort();
    }
    buf_done(&first);
    buf_done(&second);
    config_done(&c);
    config_done(&again);
    return 0;
}
