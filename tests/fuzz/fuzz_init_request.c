/* A message of front, as init reads it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "init/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct init_request r;
    struct init_head h;
    if (size < sizeof h)
        return 0;
    memcpy(&h, data, sizeof h);
    h.version = INIT_VERSION;
    h.flags = h.zero = 0;
    h.length = (uint32_t)(size - sizeof h);
    h.request |= 1;
    if (!init_head_ok(&h, size, 0))
        abort();
    if (init_request_parse(&h, data + sizeof h, size - sizeof h, &r) < 0) {
        if (r.code == INIT_OK || r.why[0] == '\0')
            abort(); /* a refusal says why */
        return 0;
    }
    if (r.nargs > INIT_ARGS_MAX + 1 || r.nenv > INIT_ENV_MAX || r.nmeta > INIT_META_MAX || r.nbytes > INIT_INPUT_MAX)
        abort();
    for (size_t i = 0; i < r.nenv; i++)
        if (!strchr(r.env[i], '='))
            abort();
    return 0;
}
