/* preview.c - addresses: of the toolbox, and of ports of a sandbox. */
#include <time.h>

#include "api/daytona/daytona.h"
#include "api/port-link.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/num.h"

enum { SIGNED_S = 3600, SIGNED_MAX_S = 7 * 24 * 3600, PORT_MAX = 65535 };

void daytona_toolbox_url(struct api_call *c)
{
    _cleanup_buf_ struct buf out = {0}, url = {0};
    struct json j;
    if (!daytona_sandbox(c))
        return;
    daytona_base_url(c, &url);
    buf_adds(&url, "/daytona/toolbox");
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "url", buf_str(&url));
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

static void daytona_preview_answer(struct api_call *c, uint64_t expires_s, bool in_url)
{
    _cleanup_buf_ struct buf out = {0}, url = {0}, token = {0};
    struct json j;
    uint64_t port;
    if (!num_u64(c->param[1], &port) || port < 1 || port > PORT_MAX) {
        daytona_error(c->req, 400, NULL, "the port must be a number from 1 to %d", PORT_MAX);
        return;
    }
    struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    port_link_make(c->api, b, (uint32_t)port, (uint64_t)time(NULL) + expires_s, &token);
    port_link_url(c->api, b->id, (uint32_t)port, &url);
    if (in_url)
        buf_addf(&url, "/?" PORT_LINK_PARAM "=%s", buf_str(&token));
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "sandboxId", b->id);
    json_u64(&j, "port", port);
    json_str(&j, "url", buf_str(&url));
    json_str(&j, "token", in_url ? buf_str(&token) : b->traffic_token[0] ? b->traffic_token : "");
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

void daytona_preview(struct api_call *c) { daytona_preview_answer(c, SIGNED_S, false); }

void daytona_preview_signed(struct api_call *c)
{
    _cleanup_buf_ struct buf text = {0};
    uint64_t seconds = SIGNED_S;
    if (!daytona_query(c, "expiresInSeconds", false, &text))
        return;
    if (text.n && (!num_u64(buf_str(&text), &seconds) || seconds < 1 || seconds > SIGNED_MAX_S)) {
        daytona_error(c->req, 400, NULL, "query parameter 'expiresInSeconds' must be a number from 1 to %d",
                      SIGNED_MAX_S);
        return;
    }
    daytona_preview_answer(c, seconds, true);
}
