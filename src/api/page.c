/* page.c - errors of the data plane: JSON for programs, a self-contained page for people. */
#include "api/page.h"

#include <string.h>

#include "api/reply.h"
#include "base/cleanup.h"
#include "base/json.h"

/* Whether a browser is loading a page. Browsers send Sec-Fetch-Mode only over secure connections, so it may be
 * missing. */
static bool page_is_wanted(const struct http_req *r)
{
    const char *accept = http_field(&r->fields, "accept"), *mode = http_field(&r->fields, "sec-fetch-mode");
    return accept && strstr(accept, "text/html") && (!mode || strcmp(mode, "navigate") == 0);
}

static const char style[] =
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:36rem;"
    "padding:0 1rem}h1{font-size:1.4rem}code{font-size:.9em;background:#8882;border-radius:3px;padding:.1em .3em}"
    "small{opacity:.6}";

/* Needs no escaping: only the id (letters and digits) and numbers come from the client. */
static void page_reply_html(struct http_req *r, unsigned status, const char *sandbox, uint32_t port,
                            const char *message, const char *hint)
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

static void page_reply_json(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, unsigned limit,
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

void page_refuse(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, unsigned limit,
                 const char *message, const char *hint)
{
    http_set(r, "cache-control", "no-store");
    http_set(r, "vary", "accept, sec-fetch-mode");
    if (page_is_wanted(r))
        page_reply_html(r, status, sandbox, port, message, hint);
    else
        page_reply_json(r, status, sandbox, port, limit, message);
}

void page_no_sandbox(struct http_req *r, const char *sandbox)
{
    page_refuse(r, 502, sandbox, 0, 0, "The sandbox was not found",
                "It has ended, or there never was one of this name. What ran in it is gone; its owner can start "
                "another one.");
}
