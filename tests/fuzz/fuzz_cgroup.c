/* Fuzz driver for the texts of /proc/self/mountinfo and /proc/self/cgroup, separated by a NUL. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "os/cgroup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cgroup_info info;
    char *text = calloc(1, size + 2);
    if (!text)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    cgroup_parse_hosts(text, text + strlen(text) + 1, &info);
    for (unsigned i = 0; i < info.nhier; i++)
        if (strncmp(info.hier[i].own, info.hier[i].mount, strlen(info.hier[i].mount)) != 0)
            abort(); /* a place outside the mount */
    free(text);
    return 0;
}
