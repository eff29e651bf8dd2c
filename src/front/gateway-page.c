/* gateway-page.c - what the gateway says itself: JSON for programs, a page for people. A page needs nothing from elsewhere. */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "front/gateway-int.h"
#include "front/gateway.h"
#include "front/reply.h"

/* A person in front of a browser gets a page. Browsers say what they are about to do only where the connection is safe, so
 * that field may be missing. */
static bool navigating(const struct http_req *r)
{
    const char *accept = http_field(&r->fields, "accept"), *mode = http_field(&r->fields, "sec-fetch-mode");
    return accept && strstr(accept, "text/html") && (!mode || strcmp(mode, "navigate") == 0);
}

static const char style[] =
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:36rem;"
    "padding:0 1rem}h1{font-size:1.4rem}code{font-size:.9em;background:#8882;border-radius:3px;padding:.1em .3em}"
    "small{opacity:.6}";

/* Nothing here comes from the client but the id, which is letters and digits, and numbers. */
static void page(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, const char *message,
                 const char *hint)
{
    _cleanup_buf_ struct buf out = {0};
    buf_addf(&out,
             "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
             "content=\"width=device-width\"><title>%s</title><style>%s</style><h1>%s</h1>",
             message, style, message);
    if (hint)
        buf_addf(&out, "<p>%s</p>", hint);
    buf_addf(&out, "<p><small>Sandbox <code>%s</code>", sandbox);
    if (port)
        buf_addf(&out, ", port <code>%u</code>", port);
    buf_addf(&out, ", status %u</small></p></html>\n", status);
    http_set(r, "content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors *");
    http_set(r, "x-content-type-options", "nosniff");
    http_reply(r, status, "text/html; charset=utf-8", buf_str(&out), out.n);
}

static void document(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, unsigned limit,
                     const char *message)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "sandboxId", sandbox);
    json_str(&j, "message", message);
    if (port)
        json_u64(&j, "port", port);
    if (limit)
        json_u64(&j, "connectionLimit", limit);
    json_u64(&j, "code", status);
    json_end_obj(&j);
    reply_json(r, status, &out);
}

void gateway_refuse(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, unsigned limit,
                    const char *message, const char *hint)
{
    http_set(r, "cache-control", "no-store");
    http_set(r, "vary", "accept, sec-fetch-mode");
    if (navigating(r))
        page(r, status, sandbox, port, message, hint);
    else
        document(r, status, sandbox, port, limit, message);
}

void gateway_error(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, const char *message)
{
    gateway_refuse(r, status, sandbox, port, 0, message, NULL);
}

void gateway_no_sandbox(struct http_req *r, const char *sandbox)
{
    gateway_refuse(r, 502, sandbox, 0, 0, "The sandbox was not found",
                   "It has ended, or there never was one of this name. What ran in it is gone; its owner can start "
                   "another one.");
}
