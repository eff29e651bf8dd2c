/* methods.c - the methods of both eras, but for what tools and resources answer themselves. */
#include <string.h>

#include "api/mcp/mcp.h"
#include "api/mcp/session.h"
#include "base/cleanup.h"

enum { LIST_TTL_MS = 60000 };

static const struct mcp_set *const sets[] = {&mcp_own, &mcp_more};

/* The entries of a set, read once: each call of a tool looks up its schema. */
static json_t *mcp_set_root(size_t i)
{
    static json_t *roots[ARRAY_LEN(sets)];
    if (!roots[i])
        roots[i] = sets[i]->json ? json_loadb(sets[i]->json, *sets[i]->json_size, 0, NULL) : json_object();
    return roots[i];
}

json_t *mcp_entries(const char *key)
{
    json_t *all = json_array();
    for (size_t i = 0; i < ARRAY_LEN(sets); i++)
        (void)json_array_extend(all, json_object_get(mcp_set_root(i), key));
    return all;
}

static const char instructions[] = "Hutch runs commands and code in isolated sandboxes. Start with create_sandbox; "
                                   "pass its id as `sandbox` to the other "
                                   "tools. A sandbox ends after its timeout; kill_sandbox ends it early. Sandboxes "
                                   "have no network unless create_sandbox "
                                   "names one. What was refused is in `denials` of a result, with the smallest rule "
                                   "that would allow it; request_grant "
                                   "asks a person.";

/* The instructions, and which tools are not listed here. */
static json_t *mcp_instructions(const struct mcp_call *k)
{
    _cleanup_buf_ struct buf text = {0};
    json_t *all = mcp_entries("tools"), *one;
    size_t i;
    buf_adds(&text, instructions);
    json_array_foreach(all, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name")), *why = mcp_tool_lacking(k, name);
        if (why)
            buf_addf(&text, " There is no tool %s here: %s.", name, why);
    }
    json_decref(all);
    return json_string(buf_str(&text));
}

static json_t *mcp_capabilities(enum mcp_era era)
{
    json_t *caps = json_pack("{s:{},s:{},s:{},s:{}}", "tools", "resources", "prompts", "completions");
    if (mcp_more.prompt) { /* the product's lists never change */
        (void)json_object_set_new(caps, "prompts", json_pack("{s:b}", "listChanged", 1));
        (void)json_object_set_new(caps, "tools", json_pack("{s:b}", "listChanged", 1));
    }
    for (size_t i = 0; mcp_more.capabilities && mcp_more.capabilities[i] && era == MCP_LEGACY; i++)
        (void)json_object_set_new(caps, mcp_more.capabilities[i], json_object());
    return caps;
}

static void mcp_initialize(struct mcp_call *k)
{
    const char *wished = json_string_value(json_object_get(k->m.params, "protocolVersion"));
    char session[MCP_SESSION_MAX];
    if (!wished) {
        mcp_refuse(k, 200, MCP_BAD_PARAMS, NULL,
                   "params.protocolVersion must be a string, e.g. \"" MCP_LEGACY_VERSION "\"");
        return;
    }
    json_t *can = json_object_get(k->m.params, "capabilities");
    mcp_session_make(k->api, k->who.tenant, json_is_object(json_object_get(can, "elicitation")), session);
    http_set(k->r, "mcp-session-id", session);
    mcp_answer(k, json_pack("{s:s,s:o,s:{s:s,s:s},s:o}", "protocolVersion",
                            mcp_version_is_legacy(wished) ? wished : MCP_LEGACY_VERSION, "capabilities",
                            mcp_capabilities(MCP_LEGACY), "serverInfo", "name", "hutch", "version", HUTCH_VERSION,
                            "instructions", mcp_instructions(k)));
}

static void mcp_discover(struct mcp_call *k)
{
    mcp_answer(k, json_pack("{s:[s],s:o,s:o,s:i,s:s}", "supportedVersions", MCP_MODERN_VERSION, "capabilities",
                            mcp_capabilities(MCP_MODERN), "instructions", mcp_instructions(k), "ttlMs", LIST_TTL_MS,
                            "cacheScope", "public"));
}

static void mcp_empty(struct mcp_call *k) { mcp_answer(k, json_object()); }

static void mcp_answer_list(struct mcp_call *k, const char *key)
{
    mcp_answer(k, json_pack("{s:o,s:i,s:s}", key, mcp_entries(key), "ttlMs", LIST_TTL_MS, "cacheScope", "public"));
}
static void mcp_tools_list(struct mcp_call *k)
{
    json_t *all = mcp_entries("tools");
    for (size_t i = json_array_size(all); i-- > 0;)
        if (mcp_tool_lacking(k, json_string_value(json_object_get(json_array_get(all, i), "name"))))
            (void)json_array_remove(all, i);
    mcp_answer(k, json_pack("{s:o,s:i,s:s}", "tools", all, "ttlMs", LIST_TTL_MS, "cacheScope", "public"));
}
static void mcp_templates_list(struct mcp_call *k) { mcp_answer_list(k, "resourceTemplates"); }
static void mcp_prompts_list(struct mcp_call *k) { mcp_answer_list(k, "prompts"); }

static void mcp_prompts_get(struct mcp_call *k)
{
    const char *name = json_string_value(json_object_get(k->m.params, "name"));
    json_t *args = json_object_get(k->m.params, "arguments");
    for (size_t i = 0; name && i < ARRAY_LEN(sets); i++)
        if (sets[i]->prompt && sets[i]->prompt(k, name, args))
            return;
    mcp_refuse(k, 200, MCP_BAD_PARAMS, NULL, "there is no such prompt; prompts/list shows those there are");
}

enum { LEGACY = 1, MODERN = 2 };
static const struct {
    const char *name;
    void (*fn)(struct mcp_call *k);
    unsigned eras;
} methods[] = {
    {"initialize", mcp_initialize, LEGACY},
    {"ping", mcp_empty, LEGACY},
    {"server/discover", mcp_discover, MODERN},
    {"subscriptions/listen", mcp_listen, MODERN},
    {"tools/list", mcp_tools_list, LEGACY | MODERN},
    {"tools/call", mcp_tools_call, LEGACY | MODERN},
    {"resources/list", mcp_resources_list, LEGACY | MODERN},
    {"resources/templates/list", mcp_templates_list, LEGACY | MODERN},
    {"resources/read", mcp_resources_read, LEGACY | MODERN},
    {"prompts/list", mcp_prompts_list, LEGACY | MODERN},
    {"prompts/get", mcp_prompts_get, LEGACY | MODERN},
    {"completion/complete", mcp_complete, LEGACY | MODERN},
};

void mcp_dispatch(struct mcp_call *k)
{
    unsigned era = k->m.era == MCP_MODERN ? MODERN : LEGACY;
    if (!mcp_state_read(k))
        return;
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if ((methods[i].eras & era) && strcmp(methods[i].name, k->m.method) == 0) {
            methods[i].fn(k);
            return;
        }
    for (size_t i = 0; mcp_more.methods && mcp_more.methods[i] && era == LEGACY; i++)
        if (strcmp(mcp_more.methods[i], k->m.method) == 0) {
            mcp_empty(k);
            return;
        }
    mcp_refuse(k, era == MODERN ? 404 : 200, MCP_NO_METHOD, NULL,
               "there is no method '%.64s' in this era of the protocol", k->m.method);
}
