/* route.c - POST /mcp: reads the message, names sessions, and hands requests on. */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "api/mcp/session.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/random.h"
#include "base/sha256.h"
#include "http/body.h"

/* A session is a number and its signature for this tenant: no table, and a restart of the node forgets none. */
enum { NUMBER_HEX = 32 };

static void mcp_session_sign(const struct api *api, const struct tenant *t, char id[MCP_SESSION_MAX])
{
    uint8_t mac[SHA256_BYTES];
    char text[SHA256_HEX];
    unsigned n = 0;
    _cleanup_free_ char *what = NULL;
    if (asprintf(&what, "mcp session %.*s of %s", NUMBER_HEX, id, t->id) < 0 ||
        !HMAC(EVP_sha256(), api->link_key, sizeof api->link_key, (const uint8_t *)what, strlen(what), mac, &n) ||
        n != sizeof mac)
        abort();
    sha256_text(mac, text);
    (void)snprintf(id + NUMBER_HEX, MCP_SESSION_MAX - NUMBER_HEX, "-%s", text);
}

void mcp_session_make(const struct api *api, const struct tenant *t, bool elicits, char ret[MCP_SESSION_MAX])
{
    random_hex(ret, NUMBER_HEX / 2);
    ret[0] = elicits ? 'e' : '0';
    mcp_session_sign(api, t, ret);
}

bool mcp_session_elicits(const char *name) { return name[0] == 'e'; }

static bool mcp_session_is_ours(const struct api *api, const struct tenant *t, const char *id)
{
    char own[MCP_SESSION_MAX];
    if (strlen(id) != sizeof own - 1)
        return false;
    memcpy(own, id, sizeof own);
    mcp_session_sign(api, t, own);
    return sha256_equal_text(own, id);
}

static void mcp_reply_fault(struct http_req *r, unsigned status, enum mcp_code code, const char *text, json_t *id,
                            json_t *data)
{
    json_t *error = json_pack("{s:i,s:o}", "code", (int)code, "message", mcp_text(text, strlen(text)));
    if (data)
        (void)json_object_set(error, "data", data);
    json_t *message =
        json_pack("{s:s,s:o,s:o}", "jsonrpc", "2.0", "id", id ? json_incref(id) : json_null(), "error", error);
    _cleanup_free_ char *out = json_dumps(message, JSON_COMPACT);
    json_decref(message);
    http_reply(r, status, "application/json", out ? out : "{}", out ? strlen(out) : 2);
}

static void mcp_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    const struct mcp_headers h = {.version = http_field(&r->fields, "mcp-protocol-version"),
                                  .method = http_field(&r->fields, "mcp-method"),
                                  .name = http_field(&r->fields, "mcp-name")};
    const char *session = http_field(&r->fields, "mcp-session-id");
    struct mcp_message m;
    struct mcp_fault fault;
    if (status) {
        mcp_reply_fault(r, status, status == 400 ? MCP_NOT_JSON : MCP_NO_REQUEST, error, NULL, NULL);
        return;
    }
    if (mcp_message_read(root, &h, &m, &fault) < 0) {
        mcp_reply_fault(r, fault.status, fault.code, fault.text, m.id, fault.data);
        json_decref(fault.data);
        return;
    }
    if (session && m.era == MCP_LEGACY && !mcp_session_is_ours(c->api, c->who.tenant, session)) {
        mcp_reply_fault(r, 404, MCP_NO_REQUEST, "there is no such session; begin one with initialize", m.id, NULL);
        return;
    }
    char name[MCP_SESSION_NAME_MAX] = "";
    if (session && m.era == MCP_LEGACY)
        (void)snprintf(name, sizeof name, "%s", session);
    if (m.kind == MCP_REQUEST) {
        struct mcp_call *k = mcp_begin(c, root, &m, name);
        if (k)
            mcp_dispatch(k);
        return;
    }
    if (m.kind == MCP_RESPONSE)
        (void)mcp_told(c->who.tenant, root, &m);
    else if (strcmp(m.method, "notifications/cancelled") == 0)
        mcp_cancel(c->who.tenant, name, json_object_get(m.params, "requestId"));
    reply_empty(r, 202);
}

static void mcp_post(struct api_call *c) { body_json(c->req, MCP_BODY_MAX, mcp_on_body); }

/* RFC 9728: whose tokens are good here. */
static void mcp_metadata(struct api_call *c)
{
    const struct config *config = c->api->config;
    if (!c->api->oauth) {
        reply_error(c->req, 404, "this node takes its own API keys only: the operator has set no oauth.issuer");
        return;
    }
    json_t *root =
        json_pack("{s:s,s:[s],s:[s,s,s],s:[s],s:s}", "resource", config->oauth_audience, "authorization_servers",
                  config->oauth_issuer, "scopes_supported", "hutch:sandboxes", "hutch:read", "hutch:files",
                  "bearer_methods_supported", "header", "resource_name", "Hutch sandboxes");
    _cleanup_free_ char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    http_set(c->req, "cache-control", "max-age=300");
    http_reply(c->req, 200, "application/json", text, strlen(text));
}

/* Each tool checks the scope that it needs, so every key may ask. */
static const struct api_route routes[] = {
    {"POST", "/mcp", mcp_post, 0, API_TOKENS},
    {"GET", "/.well-known/oauth-protected-resource", mcp_metadata, 0, API_OPEN},
    {"GET", "/.well-known/oauth-protected-resource/mcp", mcp_metadata, 0, API_OPEN},
};

const struct api_dialect mcp_dialect = {.routes = routes, .nroutes = sizeof routes / sizeof *routes};
