/* fuzz_http_router.c - any bytes as a path: parameters are whole segments, decoded, and never hold NUL. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/router.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct route table[] = {
        {"GET", "/", NULL, 0},
        {"GET", "/a/b", NULL, 0},
        {"POST", "/a/{id}", NULL, 0},
        {"GET", "/a/{id}/{b}/c", NULL, 0},
        {"GET", "/{1}/{2}/{3}/{4}/{5}/{6}/{7}/{8}", NULL, 0},
    };
    _cleanup_free_ char *path = xstrndup((const char *)data, size);
    struct route_params params;
    struct route_match m;
    route_find(table, ARRAY_LEN(table), "GET", path, &m, &params);
    size_t slashes = 0, room = strlen(path);
    for (const char *p = path; *p; p++)
        slashes += *p == '/';
    if ((m.result == ROUTE_FOUND) != (m.route != NULL) || (m.result == ROUTE_BAD) != (m.why != NULL) ||
        (m.result == ROUTE_METHOD) != (m.allow[0] != '\0' && !m.route) || params.n > slashes)
        abort();
    for (size_t i = 0; i < params.n; i++)
        if (params.value[i][0] == '\0' || strlen(params.value[i]) > room)
            abort();
    return 0;
}
