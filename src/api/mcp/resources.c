/* resources.c - what clients can read by address: files, kept output, and the events of a sandbox. */
#include <stdio.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "http/url.h"
#include "sandboxes/events.h"

#define SCHEME "hutch://sandboxes/"
enum { LISTED_MAX = 200 };

/* --- the list ------------------------------------------------------------------------------------------------------- */

struct listing {
    const struct mcp_call *k;
    json_t *list;
};

static void mcp_resources_add(json_t *list, const char *sandbox, const char *rest, const char *name,
                              const char *description)
{
    _cleanup_free_ char *uri = xasprintf(SCHEME "%s/%s", sandbox, rest);
    (void)json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:s}", "uri", uri, "name", name, "description",
                                                description, "mimeType", "text/plain"));
}

static void mcp_resources_add_log(void *arg, struct sandbox *b)
{
    const struct listing *l = arg;
    if (b->tenant == l->k->who.tenant && !b->desc.hidden && sandbox_is_there(b) &&
        json_array_size(l->list) < LISTED_MAX)
        mcp_resources_add(l->list, b->id, "log", "log", "events of the sandbox, one JSON object per line");
}

static void mcp_resources_add_output(void *arg, const char *sandbox, const char *handle, size_t n)
{
    const struct listing *l = arg;
    _cleanup_free_ char *rest = xasprintf("output/%s", handle);
    char text[80];
    (void)snprintf(text, sizeof text, "output of a command, %zu bytes", n);
    mcp_resources_add(l->list, sandbox, rest, handle, text);
}

void mcp_resources_list(struct mcp_call *k)
{
    struct listing l = {.k = k, .list = mcp_entries("resources")};
    if (!api_scope_lacking(k->who.scopes, SCOPE_SANDBOXES, API_CONTENTS)) {
        k->api->domain->sandboxes.each(k->api->sandboxes, mcp_resources_add_log, &l);
        mcp_outputs_each(k, mcp_resources_add_output, &l);
    }
    mcp_answer(k, json_pack("{s:o,s:i,s:s}", "resources", l.list, "ttlMs", 0, "cacheScope", "private"));
}

/* --- reading -------------------------------------------------------------------------------------------------------- */

static const char *mcp_resource_uri(const struct mcp_call *k)
{
    return json_string_value(json_object_get(k->m.params, "uri"));
}

static void mcp_resource_answer(struct mcp_call *k, const struct buf *bytes)
{
    bool text = !memchr(buf_str(bytes), 0, bytes->n) && json_may_hold(buf_str(bytes));
    _cleanup_buf_ struct buf coded = {0};
    if (!text)
        base64_encode(&coded, bytes->p, bytes->n);
    json_t *one = json_pack("{s:s,s:s,s:o}", "uri", mcp_resource_uri(k), "mimeType",
                            text ? "text/plain" : "application/octet-stream", text ? "text" : "blob",
                            text ? mcp_text(buf_str(bytes), bytes->n) : json_string(buf_str(&coded)));
    mcp_answer(k, json_pack("{s:[o],s:i,s:s}", "contents", one, "ttlMs", 0, "cacheScope", "private"));
}

static void mcp_resource_on_bytes(struct mcp_call *k, const struct buf *bytes, bool whole)
{
    if (whole)
        mcp_resource_answer(k, bytes);
    else
        mcp_refuse(k, 200, MCP_BAD_PARAMS, json_pack("{s:s}", "uri", mcp_resource_uri(k)),
                   "the file is larger than %d bytes; the tool read_file reads parts of it", MCP_FILE_MAX);
}

static void mcp_resource_missing(struct mcp_call *k)
{
    mcp_refuse(k, 200, k->m.era == MCP_MODERN ? MCP_BAD_PARAMS : MCP_NO_RESOURCE,
               json_pack("{s:s}", "uri", mcp_resource_uri(k) ? mcp_resource_uri(k) : ""),
               "there is no such resource; resources/list and resources/templates/list show what there is");
}

static void mcp_resource_read_file(struct mcp_call *k, struct sandbox *b)
{
    _cleanup_buf_ struct buf path = {0};
    struct err err;
    const char *rest = strstr(mcp_resource_uri(k), "/files/");
    if (!rest || url_decode(rest + strlen("/files"), strlen(rest) - strlen("/files"), 0, &path, &err) < 0 ||
        strlen(buf_str(&path)) != path.n)
        mcp_resource_missing(k);
    else
        mcp_slurp(k, b, buf_str(&path), mcp_resource_on_bytes);
}

static void mcp_resource_add_event(void *arg, const struct event *e)
{
    if (e)
        buf_addf(arg, "{\"seq\":%llu,\"type\":\"%s\",\"data\":%s}\n", (unsigned long long)e->seq, e->type, e->json);
}

static void mcp_resource_read_own(struct mcp_call *k, const char *uri)
{
    char id[SANDBOX_ID_MAX];
    const char *rest = uri + strlen(SCHEME), *slash = strchr(rest, '/');
    struct sandbox *b = slash && api_sandbox_id(rest, (size_t)(slash - rest), id) ? mcp_sandbox_of(k, id) : NULL;
    const char *why = api_scope_lacking(k->who.scopes, SCOPE_SANDBOXES, API_CONTENTS);
    _cleanup_buf_ struct buf text = {0};
    if (why) {
        mcp_refuse(k, 200, MCP_BAD_PARAMS, NULL, "%s", why);
    } else if (slash && strncmp(slash, "/output/", 8) == 0 && mcp_output_find(k, slash + 8)) {
        mcp_resource_answer(k, mcp_output_find(k, slash + 8));
    } else if (b && strcmp(slash, "/log") == 0) {
        const struct event_log *log = events_find(k->api->events, k->who.tenant->id, b->id);
        if (log)
            events_replay(log, 0, mcp_resource_add_event, &text);
        mcp_resource_answer(k, &text);
    } else if (b && strncmp(slash, "/files/", 7) == 0) {
        mcp_awake(k, b, mcp_resource_read_file);
    } else {
        mcp_resource_missing(k);
    }
}

void mcp_resources_read(struct mcp_call *k)
{
    const char *uri = mcp_resource_uri(k);
    if (uri && strncmp(uri, SCHEME, strlen(SCHEME)) == 0)
        mcp_resource_read_own(k, uri);
    else if (!uri || !mcp_more.read || !mcp_more.read(k, uri))
        mcp_resource_missing(k);
}
