/* token.c - callers that show a token of the configured issuer instead of a key of this node. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "oauth/oauth.h"

#define METADATA "/.well-known/oauth-protected-resource"

/* RFC 9728: the well-known part stands between the audience's host and its path. */
bool api_token_metadata(const struct api *api, struct buf *out)
{
    const char *url = api->config->oauth_audience, *host = url ? strstr(url, "://") : NULL;
    if (!host)
        return false;
    host += 3;
    const char *path = host + strcspn(host, "/");
    buf_add(out, url, (size_t)(path - url));
    buf_adds(out, METADATA);
    buf_adds(out, strcmp(path, "/mcp") == 0 ? path : "");
    return true;
}

static void api_token_refuse(struct api_call *c, unsigned status, const char *error, const char *why)
{
    _cleanup_buf_ struct buf challenge = {0};
    buf_adds(&challenge, "Bearer resource_metadata=\"");
    (void)api_token_metadata(c->api, &challenge);
    buf_addf(&challenge, "\", scope=\"hutch:sandboxes\"%s%s%s", error ? ", error=\"" : "", error ? error : "",
             error ? "\"" : "");
    http_set(c->req, "www-authenticate", buf_str(&challenge));
    reply_error(c->req, status, "%s", why);
}

static void api_token_on_keys(void *arg)
{
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    r->user = NULL;
    api_call_of(r)->waited_keys = true;
    http_resume(r);
    api_go_on(api_call_of(r));
}

bool api_take_token(struct api_call *c)
{
    struct err err = {0};
    switch (oauth_check(c->api->oauth, c->req, c->waited_keys, &c->who, &err)) {
    case OAUTH_TAKEN:
        return true;
    case OAUTH_LATER: {
        struct api_wait *w = api_wait_for(c->req, sizeof *w);
        if (oauth_await(c->api->oauth, api_token_on_keys, w)) {
            http_pause(c->req);
            return false;
        }
        (void)api_wait_over(w);
        reply_refuse(c->req, 503, NULL, 1, "too many calls wait for the issuer's keys");
        return false;
    }
    case OAUTH_NO_KEYS:
        reply_refuse(c->req, 503, NULL, OAUTH_AGAIN_MS / 1000, err.msg);
        return false;
    case OAUTH_SCOPELESS:
        api_token_refuse(c, 403, "insufficient_scope", err.msg);
        return false;
    case OAUTH_REFUSED:
        api_token_refuse(c, 401, "invalid_token", err.msg);
        return false;
    case OAUTH_NONE:
        break;
    }
    api_token_refuse(
        c, 401, NULL,
        "no valid API key or token: send Authorization: Bearer with a key of this node or a token of its issuer");
    return false;
}
