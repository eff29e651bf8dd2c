/* Fuzz driver for records of /dev/kmsg. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "os/oom.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oom_line l;
    oom_parse_line((const char *)data, size, &l);
    if (l.kind == OOM_OTHER)
        return 0;
    /* What every reader relies on. */
    if (l.pid <= 0 || !memchr(l.comm, '\0', sizeof l.comm) || !memchr(l.memcg, '\0', sizeof l.memcg))
        abort();
    return 0;
}
