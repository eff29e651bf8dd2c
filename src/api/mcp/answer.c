/* answer.c - the life of a call: its answer as JSON or as an event stream, what is sent before it, and its end. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/mcp/mcp.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/random.h"

#define META "io.modelcontextprotocol/"
enum {
    PING_MS = 15000,
    ASKED_PING_MS = 1000 /* one that left is noticed when something is sent to it */,
    ASKED_MS = 10 * 60 * 1000,
    SLOW_BYTES = 1 << 20
};

static struct mcp_call *calls; /* all under way; front has one loop */

static void mcp_call_free(struct mcp_call *k)
{
    if (k->next)
        k->next->at = k->at;
    *k->at = k->next;
    if (k->used[0])
        sandbox_unused(k->api->sandboxes, k->used);
    loop_timer_del(k->api->loop, k->ping);
    if (k->own_done)
        k->own_done(k->own);
    json_decref(k->root);
    buf_done(&k->data);
    free(k);
}

static void mcp_on_client_left(struct http_req *r)
{
    struct mcp_call *k = r->user;
    k->r = NULL;
    if (k->wants || k->told) /* nothing else will end it */
        mcp_call_free(k);
    else if (k->cancel)
        k->cancel(k);
}

struct mcp_call *mcp_begin(struct api_call *c, json_t *root, const struct mcp_message *m, const char *session)
{
    const char *accept = http_field(&c->req->fields, "accept");
    struct mcp_call *k = xcalloc(1, sizeof *k);
    *k = (struct mcp_call){.r = c->req, .api = c->api, .who = c->who, .root = json_incref(root), .m = *m};
    k->streams = accept && (strstr(accept, "text/event-stream") || strstr(accept, "*/*"));
    (void)snprintf(k->session, sizeof k->session, "%s", session);
    k->next = calls;
    k->at = &calls;
    if (calls)
        calls->at = &k->next;
    calls = k;
    c->req->user = k;
    api_on_closed(c->req, mcp_on_client_left);
    size_t same = 0;
    for (const struct mcp_call *o = calls; o; o = o->next)
        same += o->who.tenant == k->who.tenant;
    if (same <= MCP_CALLS_PER_TENANT_MAX)
        return k;
    mcp_refuse(k, 429, MCP_BUSY, NULL, "%d calls of this tenant are under way; repeat this one when another has ended",
               MCP_CALLS_PER_TENANT_MAX);
    return NULL;
}

json_t *mcp_text(const char *p, size_t n)
{
    _cleanup_buf_ struct buf text = {0}, quoted = {0};
    struct json j;
    buf_add(&text, p, n);
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] == '\0')
            text.p[i] = (char)0xff;
    json_start(&j, &quoted);
    json_str(&j, NULL, buf_str(&text));
    json_t *v = json_loadb(buf_str(&quoted), quoted.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    return v ? v : json_string("");
}

static void mcp_begin_stream(struct mcp_call *k)
{
    if (k->streaming)
        return;
    http_set(k->r, "content-type", "text/event-stream");
    http_set(k->r, "cache-control", "no-store");
    http_head(k->r, 200, HTTP_UNKNOWN);
    k->streaming = true;
}

void mcp_keep_alive(struct mcp_call *k)
{
    if (!k->r || !k->streams || http_queued(k->r) >= SLOW_BYTES)
        return;
    mcp_begin_stream(k);
    (void)http_write(k->r, ": \n\n", 4);
}

static void mcp_send_event(struct mcp_call *k, const json_t *message)
{
    _cleanup_free_ char *text = json_dumps(message, JSON_COMPACT);
    _cleanup_buf_ struct buf out = {0};
    mcp_begin_stream(k);
    buf_adds(&out, "event: message\ndata: ");
    buf_adds(&out, text ? text : "{}");
    buf_adds(&out, "\n\n");
    (void)http_write(k->r, out.p, out.n);
}

/* Sends the last message of a call and frees it; `message` is taken. */
static void mcp_finish(struct mcp_call *k, unsigned status, json_t *message)
{
    struct http_req *r = k->r;
    if (r) {
        api_on_closed(r, NULL);
        if (k->streaming) {
            mcp_send_event(k, message);
            mcp_call_free(k);
            http_end(r);
        } else {
            _cleanup_free_ char *text = json_dumps(message, JSON_COMPACT);
            mcp_call_free(k);
            http_reply(r, status, "application/json", text ? text : "{}", text ? strlen(text) : 2);
        }
    } else {
        mcp_call_free(k);
    }
    json_decref(message);
}

static json_t *mcp_id_of(const struct mcp_call *k) { return k->m.id ? json_incref(k->m.id) : json_null(); }

void mcp_answer(struct mcp_call *k, json_t *result)
{
    if (k->m.era == MCP_MODERN) {
        if (!json_object_get(result, "resultType"))
            (void)json_object_set_new(result, "resultType", json_string("complete"));
        json_t *meta = json_object_get(result, "_meta");
        if (!meta) {
            meta = json_object();
            (void)json_object_set_new(result, "_meta", meta);
        }
        (void)json_object_set_new(meta, META "serverInfo",
                                  json_pack("{s:s,s:s}", "name", "hutch", "version", HUTCH_VERSION));
    }
    mcp_finish(k, 200, json_pack("{s:s,s:o,s:o}", "jsonrpc", "2.0", "id", mcp_id_of(k), "result", result));
}

void mcp_refuse(struct mcp_call *k, unsigned status, enum mcp_code code, json_t *data, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *error = json_pack("{s:i,s:o}", "code", (int)code, "message", mcp_text(text, strlen(text)));
    if (data)
        (void)json_object_set_new(error, "data", data);
    mcp_finish(k, status, json_pack("{s:s,s:o,s:o}", "jsonrpc", "2.0", "id", mcp_id_of(k), "error", error));
}

void mcp_notify(struct mcp_call *k, const char *method, json_t *params)
{
    json_t *message = json_pack("{s:s,s:s,s:o}", "jsonrpc", "2.0", "method", method, "params", params);
    if (k->r && k->streams && http_queued(k->r) < SLOW_BYTES)
        mcp_send_event(k, message);
    json_decref(message);
}

void mcp_progress(struct mcp_call *k, uint64_t progress, uint64_t total, const char *message)
{
    json_t *token = json_object_get(k->m.meta, "progressToken");
    if (!json_is_string(token) && !json_is_integer(token))
        return;
    json_t *params = json_pack("{s:O,s:I}", "progressToken", token, "progress", (json_int_t)progress);
    if (total)
        (void)json_object_set_new(params, "total", json_integer((json_int_t)total));
    if (message)
        (void)json_object_set_new(params, "message", json_string(message));
    mcp_notify(k, "notifications/progress", params);
}

/* --- requests of ours, legacy -------------------------------------------------------------------------------------- */

static void mcp_asked_end(struct mcp_call *k, json_t *result)
{
    void (*told)(struct mcp_call *, json_t *) = k->told;
    loop_timer_del(k->api->loop, k->ping);
    k->ping = 0;
    k->told = NULL;
    k->cancel = NULL;
    told(k, result);
}

static void mcp_asked_cancel(struct mcp_call *k) { mcp_asked_end(k, NULL); }

static void mcp_asked_ping(void *arg)
{
    struct mcp_call *k = arg;
    k->ping = 0;
    if (loop_now(k->api->loop) >= k->until) {
        mcp_asked_end(k, NULL);
        return;
    }
    mcp_keep_alive(k);
    k->ping = loop_timer(k->api->loop, ASKED_PING_MS, mcp_asked_ping, k);
}

void mcp_ask(struct mcp_call *k, const char *method, json_t *params, void (*told)(struct mcp_call *k, json_t *result))
{
    random_hex(k->asked, 16);
    k->told = told;
    k->cancel = mcp_asked_cancel;
    k->until = loop_now(k->api->loop) + ASKED_MS;
    k->ping = loop_timer(k->api->loop, ASKED_PING_MS, mcp_asked_ping, k);
    json_t *message =
        json_pack("{s:s,s:s,s:s,s:o}", "jsonrpc", "2.0", "id", k->asked, "method", method, "params", params);
    if (k->r)
        mcp_send_event(k, message);
    json_decref(message);
}

bool mcp_told(const struct tenant *t, json_t *root, const struct mcp_message *m)
{
    const char *id = json_string_value(m->id);
    for (struct mcp_call *k = calls; id && k; k = k->next)
        if (k->told && k->who.tenant == t && strcmp(k->asked, id) == 0) {
            mcp_asked_end(k, json_object_get(root, "result"));
            return true;
        }
    return false;
}

void mcp_cancel(const struct tenant *t, const char *session, json_t *id)
{
    for (struct mcp_call *k = calls; id && k; k = k->next)
        if (k->who.tenant == t && strcmp(k->session, session) == 0 && k->m.id && json_equal(k->m.id, id) && k->cancel) {
            k->cancel(k);
            return;
        }
}

/* --- listeners, modern ---------------------------------------------------------------------------------------------- */

static void mcp_listener_send(struct mcp_call *k, const char *method, json_t *params)
{
    (void)json_object_set_new(params, "_meta", json_pack("{s:O}", META "subscriptionId", k->m.id));
    mcp_notify(k, method, params);
}

static void mcp_listener_ping(void *arg)
{
    struct mcp_call *k = arg;
    k->ping = 0;
    mcp_keep_alive(k);
    k->ping = loop_timer(k->api->loop, PING_MS, mcp_listener_ping, k);
}

void mcp_listen(struct mcp_call *k)
{
    json_t *wants = json_object_get(k->m.params, "notifications");
    if (!json_is_object(wants) || !k->streams) {
        mcp_refuse(k, 400, MCP_BAD_PARAMS, NULL, "%s",
                   k->streams ? "params.notifications must be an object, e.g. {\"toolsListChanged\": true}"
                              : "the header Accept must have text/event-stream");
        return;
    }
    k->wants = wants;
    mcp_listener_send(k, "notifications/subscriptions/acknowledged", json_pack("{s:O}", "notifications", wants));
    k->ping = loop_timer(k->api->loop, PING_MS, mcp_listener_ping, k);
}

void mcp_tell_listeners(const struct tenant *t, const char *filter, const char *method)
{
    for (struct mcp_call *k = calls; k; k = k->next)
        if (k->wants && k->who.tenant == t && json_is_true(json_object_get(k->wants, filter)))
            mcp_listener_send(k, method, json_object());
}
