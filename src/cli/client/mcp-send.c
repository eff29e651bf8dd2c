/* mcp-send.c - one message of an agent as a POST to /mcp, and its answer, JSON or an event stream, as lines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/client/mcp.h"

#define META "io.modelcontextprotocol/"
enum { HEADER_MAX = 4096, INTERNAL = -32603 };

/* What is being sent, and whether its answer has come. */
struct sending {
    json_t *id; /* borrowed; NULL: it wants no answer */
    int out;
    bool answered;
};

void mcp_add_error(struct buf *b, json_t *id, int code, const char *text)
{
    struct json j;
    _cleanup_free_ char *name = id ? json_dumps(id, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    buf_addf(b, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":", name ? name : "null");
    json_start(&j, b);
    json_obj(&j, NULL);
    json_i64(&j, "code", code);
    json_str(&j, "message", text);
    json_end_obj(&j);
    buf_addc(b, '}');
}

static void mcp_send_record(const struct sending *s, char kind, const char *text, size_t n)
{
    _cleanup_buf_ struct buf b = {0};
    buf_addc(&b, kind);
    buf_add(&b, text, n);
    buf_addc(&b, '\n');
    (void)fd_write_all(s->out, b.p, b.n); /* the bridge that reads it may have gone */
}

static void mcp_send_error(struct sending *s, const char *text)
{
    _cleanup_buf_ struct buf b = {0};
    if (!s->id || s->answered)
        return;
    mcp_add_error(&b, s->id, INTERNAL, text);
    mcp_send_record(s, 'M', b.p, b.n);
    s->answered = true;
}

/* Passes a message on. It is written anew, because a line of ours must not have a newline inside. */
static bool mcp_send_message(struct sending *s, const char *text, size_t n)
{
    _cleanup_json_ json_t *root = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    json_t *id = json_object_get(root, "id");
    if (!json_object_get(root, "jsonrpc"))
        return false;
    if (!json_object_get(root, "method") && (!s->id || json_equal(id, s->id) || json_is_null(id)))
        s->answered = true;
    _cleanup_free_ char *line = json_dumps(root, JSON_COMPACT);
    if (line)
        mcp_send_record(s, 'M', line, strlen(line));
    return line;
}

/* --- the request ---------------------------------------------------------------------------------------------------- */

/* A header whose value a client wrote: what is not visible ASCII is encoded, as the protocol says. */
static void mcp_send_add_header(struct strv *v, const char *name, json_t *value)
{
    const char *text = json_string_value(value);
    size_t n = json_string_length(value);
    _cleanup_buf_ struct buf line = {0};
    bool plain = true;
    if (!text || n == 0 || n > HEADER_MAX)
        return; /* the node says what is missing */
    for (size_t i = 0; i < n; i++)
        plain = plain && text[i] > ' ' && text[i] < 0x7f;
    buf_addf(&line, "%s: %s", name, plain ? text : "=?base64?");
    if (!plain) {
        base64_encode(&line, text, n);
        buf_adds(&line, "?=");
    }
    strv_add(v, buf_str(&line));
}

/* The modern era repeats in headers what the message says; the legacy one names its session. */
static void mcp_send_add_headers(struct strv *v, json_t *root, const char *session)
{
    json_t *params = json_object_get(root, "params"), *method = json_object_get(root, "method");
    json_t *version = json_object_get(json_object_get(params, "_meta"), META "protocolVersion");
    const char *what = json_string_value(method);
    strv_add(v, "accept: application/json, text/event-stream");
    if (version) {
        bool read = what && strcmp(what, "resources/read") == 0;
        mcp_send_add_header(v, "mcp-protocol-version", version);
        mcp_send_add_header(v, "mcp-method", method);
        mcp_send_add_header(v, "mcp-name", json_object_get(params, read ? "uri" : "name"));
    } else if (session[0] && !(what && strcmp(what, "initialize") == 0)) {
        _cleanup_free_ char *line = xasprintf("mcp-session-id: %s", session);
        strv_add(v, line);
    }
}

/* --- the answer ----------------------------------------------------------------------------------------------------- */

static int mcp_send_read_events(struct sending *s, struct blocking *b, struct err *err)
{
    static const char mark[] = "data: ";
    _cleanup_buf_ struct buf in = {0};
    char room[32 * 1024];
    for (;;) {
        ssize_t n = api_read(b, room, sizeof room, -1, NULL, err);
        if (n <= 0)
            return (int)n;
        buf_add(&in, room, (size_t)n);
        size_t used = 0;
        for (char *e; (e = memchr(in.p + used, '\n', in.n - used)); used = (size_t)(e - in.p) + 1) {
            size_t len = (size_t)(e - in.p) - used;
            if (len > sizeof mark - 1 && memcmp(in.p + used, mark, sizeof mark - 1) == 0)
                (void)mcp_send_message(s, in.p + used + sizeof mark - 1, len - (sizeof mark - 1));
        }
        in.n -= used;
        memmove(in.p, in.p + used, in.n);
        if (in.n > API_BODY_MAX)
            return err_set(err, ERR_HOST, 0, "the node's event is longer than %d MiB", API_BODY_MAX >> 20);
    }
}

static int mcp_send_read_answer(struct sending *s, struct blocking *b, struct err *err)
{
    const char *type = http_field(&b->answer.fields, "content-type"),
               *session = http_field(&b->answer.fields, "mcp-session-id");
    _cleanup_buf_ struct buf body = {0};
    if (session && strlen(session) < MCP_SESSION_ROOM)
        mcp_send_record(s, 'S', session, strlen(session));
    if (type && strncmp(type, "text/event-stream", strlen("text/event-stream")) == 0)
        return mcp_send_read_events(s, b, err);
    if (api_read_all(b, &body, err) < 0)
        return -1;
    if (body.n == 0 || mcp_send_message(s, body.p, body.n))
        return 0;
    /* Refused before MCP: no key, a wrong one, too many requests. */
    _cleanup_json_ json_t *root = json_loadb(body.p, body.n, 0, NULL);
    const char *why = json_string_value(json_object_get(root, "message"));
    return err_set(err, ERR_HOST, 0, "the node answered %u: %s", b->answer.status, why ? why : "no message of MCP");
}

void mcp_send(const struct api *a, const char *session, const char *line, size_t n, json_t *root, int out)
{
    json_t *method = json_object_get(root, "method");
    struct sending s = {.id = method ? json_object_get(root, "id") : NULL, .out = out};
    struct strv headers = {0};
    struct blocking b = BLOCKING_INIT;
    struct err err = {0};
    mcp_send_add_headers(&headers, root, session);
    const struct api_request q = {.method = "POST",
                                  .path = "/mcp",
                                  .type = "application/json",
                                  .extra = (const char *const *)headers.v,
                                  .body = line,
                                  .length = n,
                                  .body_fd = -1};
    if (api_send(a, &q, &b, &err) < 0 || mcp_send_read_answer(&s, &b, &err) < 0)
        mcp_send_error(&s, err.msg);
    else
        mcp_send_error(&s, "the node ended the call without an answer; repeat it");
    blocking_close(&b);
    strv_done(&headers);
}
