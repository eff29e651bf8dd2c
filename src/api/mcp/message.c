/* message.c - reads one JSON-RPC message and decides which era it belongs to. Pure: it knows no node and no tool. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/text.h"

#define META "io.modelcontextprotocol/"

static const char *const legacy_versions[] = {MCP_LEGACY_VERSION, "2025-06-18", "2025-03-26", "2024-11-05", NULL};

bool mcp_version_is_legacy(const char *version)
{
    for (size_t i = 0; legacy_versions[i]; i++)
        if (strcmp(version, legacy_versions[i]) == 0)
            return true;
    return false;
}

static int mcp_message_fault(struct mcp_fault *f, unsigned status, enum mcp_code code, const char *text)
{
    f->status = status;
    f->code = code;
    (void)snprintf(f->text, sizeof f->text, "%s", text);
    return -1;
}

/* A header's value without the white space around it; "=?base64?...?=" is decoded, as clients write what is not ASCII. */
static bool mcp_header_is(const char *header, const char *wanted)
{
    static const char open[] = "=?base64?", close[] = "?=";
    _cleanup_buf_ struct buf plain = {0};
    if (!header)
        return false;
    header += strspn(header, " \t");
    size_t n = strlen(header), o = sizeof open - 1, c = sizeof close - 1;
    while (n > 0 && (header[n - 1] == ' ' || header[n - 1] == '\t'))
        n--;
    if (n >= o + c && memcmp(header, open, o) == 0 && memcmp(header + n - c, close, c) == 0) {
        if (!base64_decode(&plain, header + o, n - o - c))
            return false;
        header = buf_str(&plain);
        n = plain.n;
    }
    return strlen(wanted) == n && memcmp(header, wanted, n) == 0;
}

/* What Mcp-Name must repeat; NULL: the method has no name. */
static const char *mcp_message_name(const struct mcp_message *m)
{
    bool named = strcmp(m->method, "tools/call") == 0 || strcmp(m->method, "prompts/get") == 0;
    if (named || strcmp(m->method, "resources/read") == 0)
        return json_string_value(json_object_get(m->params, named ? "name" : "uri"));
    return NULL;
}

static int mcp_message_read_modern(struct mcp_message *m, const struct mcp_headers *h, struct mcp_fault *f)
{
    const char *version = json_string_value(json_object_get(m->meta, META "protocolVersion"));
    if (m->kind != MCP_REQUEST)
        return 0;
    if (!version)
        return mcp_message_fault(f, 400, MCP_BAD_PARAMS,
                                 "params._meta must have the string " META "protocolVersion, e.g. \"" MCP_MODERN_VERSION
                                 "\"");
    if (!mcp_header_is(h->version, version))
        return mcp_message_fault(f, 400, MCP_BAD_HEADER,
                                 "the header MCP-Protocol-Version must repeat the version in _meta");
    if (strcmp(version, MCP_MODERN_VERSION) != 0) {
        f->data = json_pack("{s:[s],s:s}", "supported", MCP_MODERN_VERSION, "requested", version);
        return mcp_message_fault(f, 400, MCP_BAD_VERSION,
                                 "this server speaks " MCP_MODERN_VERSION ", and older versions after an initialize");
    }
    m->capabilities = json_object_get(m->meta, META "clientCapabilities");
    if (!json_is_object(m->capabilities))
        return mcp_message_fault(f, 400, MCP_BAD_PARAMS,
                                 "params._meta must have the object " META "clientCapabilities, perhaps {}");
    if (!mcp_header_is(h->method, m->method))
        return mcp_message_fault(f, 400, MCP_BAD_HEADER, "the header Mcp-Method must repeat the member 'method'");
    const char *name = mcp_message_name(m);
    if (name && !mcp_header_is(h->name, name))
        return mcp_message_fault(f, 400, MCP_BAD_HEADER, "the header Mcp-Name must repeat the name or uri in params");
    return 0;
}

int mcp_message_read(json_t *root, const struct mcp_headers *h, struct mcp_message *ret, struct mcp_fault *f)
{
    memset(ret, 0, sizeof *ret);
    memset(f, 0, sizeof *f);
    const char *version = json_string_value(json_object_get(root, "jsonrpc"));
    json_t *id = json_object_get(root, "id"), *method = json_object_get(root, "method"),
           *params = json_object_get(root, "params");
    if (!json_is_object(root))
        return mcp_message_fault(f, 400, MCP_NO_REQUEST, "a message is one JSON object; there are no batches");
    ret->id = json_is_string(id) || json_is_integer(id) ? id : NULL;
    ret->params = json_is_object(params) ? params : NULL;
    ret->meta = json_object_get(ret->params, "_meta");
    bool meta = json_object_get(ret->meta, META "protocolVersion");
    ret->era = meta || (h->version && !mcp_version_is_legacy(h->version)) ? MCP_MODERN : MCP_LEGACY;
    if (!version || strcmp(version, "2.0") != 0)
        return mcp_message_fault(f, 400, MCP_NO_REQUEST, "the member 'jsonrpc' must be \"2.0\"");
    if (id && !ret->id)
        return mcp_message_fault(f, 400, MCP_NO_REQUEST, "the member 'id' must be a string or a whole number");
    if (params && !ret->params)
        return mcp_message_fault(f, 400, MCP_BAD_PARAMS, "the member 'params' must be an object");
    if (!method && ret->id && (json_object_get(root, "result") || json_object_get(root, "error"))) {
        ret->kind = MCP_RESPONSE;
        return 0;
    }
    ret->method = json_string_value(method);
    if (!ret->method || strlen(ret->method) != json_string_length(method))
        return mcp_message_fault(f, 400, MCP_NO_REQUEST, "the member 'method' must be a string");
    ret->kind = ret->id ? MCP_REQUEST : MCP_NOTIFICATION;
    return ret->era == MCP_MODERN ? mcp_message_read_modern(ret, h, f) : 0;
}
