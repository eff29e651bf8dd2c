/* inputs.c - what a tool asks of its client: of the person in front of it, of its model, of its roots.
 *
 * Legacy: a request of ours on the call's stream, whose answer is a POST of its own (answer.c). Modern: the call ends with what
 * it needs, and the client repeats it with the answers and with a state that we sealed: for this tenant, this method, these
 * arguments and ten minutes. Nothing is kept here meanwhile. */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "api/mcp/session.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/sha256.h"

enum { STATE_MS = 10 * 60 * 1000 };

bool mcp_can(const struct mcp_call *k, const char *capability)
{
    if (k->m.era == MCP_MODERN)
        return json_is_object(json_object_get(k->m.capabilities, capability));
    return k->streams && strcmp(capability, "elicitation") == 0 && mcp_session_elicits(k->session);
}

/* The seal of "TEXT.EXPIRY" for this call; the arguments count in one order, however the client writes them. */
static void mcp_state_seal(const struct mcp_call *k, const char *text, char ret[SHA256_HEX])
{
    uint8_t mac[SHA256_BYTES];
    unsigned n = 0;
    json_t *name = json_object_get(k->m.params, "name"), *args = json_object_get(k->m.params, "arguments");
    _cleanup_free_ char *a = args ? json_dumps(args, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
    _cleanup_free_ char *what = xasprintf("mcp state %s|%s|%s|%s|%s", k->who.tenant->id, k->m.method,
                                          json_is_string(name) ? json_string_value(name) : "", a ? a : "{}", text);
    if (!HMAC(EVP_sha256(), k->api->link_key, sizeof k->api->link_key, (const uint8_t *)what, strlen(what), mac, &n) ||
        n != sizeof mac)
        abort();
    sha256_text(mac, ret);
}

void mcp_require(struct mcp_call *k, json_t *requests, const char *state)
{
    char seal[SHA256_HEX];
    _cleanup_free_ char *text = xasprintf("%s.%llu", state, (unsigned long long)clock_unix_ms() + STATE_MS);
    mcp_state_seal(k, text, seal);
    _cleanup_free_ char *whole = xasprintf("%s.%s", text, seal);
    mcp_answer(k, json_pack("{s:s,s:o,s:s}", "resultType", "input_required", "inputRequests", requests, "requestState",
                            whole));
}

bool mcp_state_read(struct mcp_call *k)
{
    json_t *given = k->m.era == MCP_MODERN ? json_object_get(k->m.params, "requestState") : NULL;
    char own[SHA256_HEX], text[MCP_STATE_MAX + 24];
    uint64_t until = 0;
    if (!given)
        return true;
    const char *s = json_is_string(given) ? json_string_value(given) : "", *seal = strrchr(s, '.');
    if (seal && (size_t)(seal - s) < sizeof text) {
        (void)snprintf(text, sizeof text, "%.*s", (int)(seal - s), s);
        mcp_state_seal(k, text, own);
        char *end = strrchr(text, '.');
        if (sha256_equal_text(own, seal + 1) && end && num_u64(end + 1, &until) && clock_unix_ms() < until &&
            (size_t)(end - text) < sizeof k->state) {
            *end = 0;
            memcpy(k->state, text, (size_t)(end - text) + 1);
            return true;
        }
    }
    mcp_refuse(k, 200, MCP_BAD_PARAMS, NULL,
               "params.requestState is not one that this node gave for this call in the last ten minutes; call again "
               "without it");
    return false;
}

json_t *mcp_input(const struct mcp_call *k, const char *key)
{
    json_t *all = k->m.era == MCP_MODERN ? json_object_get(k->m.params, "inputResponses") : NULL;
    json_t *one = json_object_get(all, key);
    return json_is_object(one) ? one : NULL;
}

json_t *mcp_form(const char *message, json_t *properties, json_t *required)
{
    return json_pack("{s:s,s:{s:s,s:o,s:o}}", "message", message, "requestedSchema", "type", "object", "properties",
                     properties, "required", required);
}

void mcp_confirm(struct mcp_call *k, const char *message, void (*told)(struct mcp_call *k, json_t *result))
{
    json_t *answer = k->m.era == MCP_MODERN ? mcp_input(k, "confirm") : NULL;
    if (answer && strcmp(k->state, "confirm") == 0) {
        told(k, answer);
        return;
    }
    json_t *form = mcp_form(message, json_object(), json_array());
    if (k->m.era == MCP_MODERN)
        mcp_require(k, json_pack("{s:{s:s,s:o}}", "confirm", "method", "elicitation/create", "params", form),
                    "confirm");
    else
        mcp_ask(k, "elicitation/create", form, told);
}
