/* Fuzz driver for the small /etc and /proc readers: subuid, passwd and /proc/PID/stat. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "os/idmap.h"
#include "os/procs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = calloc(1, size + 1), name[32], comm[17];
    uint32_t base, count;
    pid_t ppid;
    if (!text)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    if (idmap_parse_subids(text, 1000, "ann", 2, &base, &count) &&
        (base == 0 || count < 2 || UINT32_MAX - base < count))
        abort();
    if (idmap_parse_passwd(text, 1000, name, sizeof name) && (name[0] == '\0' || strlen(name) >= sizeof name))
        abort();
    if (procs_parse_stat(text, comm, &ppid) && (ppid < 0 || strlen(comm) > 16))
        abort();
    free(text);
    return 0;
}
