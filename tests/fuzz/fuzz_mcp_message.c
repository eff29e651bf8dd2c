/* fuzz_mcp_message.c - any bytes as three headers, a line each ("-": absent), and a message: what is taken is whole, and what is
 * refused says why. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "base/cleanup.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_check_taken(const struct mcp_message *m)
{
    if ((m->kind == MCP_REQUEST) != (m->id && m->method) || (m->kind == MCP_RESPONSE && !m->id))
        abort();
    if (m->kind == MCP_REQUEST && m->era == MCP_MODERN && (!json_is_object(m->capabilities) || !m->meta))
        abort();
    if (m->params && !json_is_object(m->params))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_free_ char *text = xstrndup((const char *)data, size);
    const char *field[3] = {NULL};
    char *p = text;
    for (size_t i = 0; i < ARRAY_LEN(field); i++) {
        char *e = strchr(p, '\n');
        if (!e)
            return 0;
        *e = 0;
        field[i] = strcmp(p, "-") == 0 ? NULL : p;
        p = e + 1;
    }
    json_t *root = json_loads(p, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    const struct mcp_headers h = {.version = field[0], .method = field[1], .name = field[2]};
    struct mcp_message m;
    struct mcp_fault f;
    if (!root)
        return 0;
    if (mcp_message_read(root, &h, &m, &f) == 0)
        fuzz_check_taken(&m);
    else if (f.status != 400 || !f.code || !f.text[0])
        abort();
    json_decref(f.data);
    json_decref(root);
    return 0;
}
