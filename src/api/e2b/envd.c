/* envd.c - requests to port 49983 of a sandbox: who may send them, which RPC or route answers them, and how they
 * fail. */
#include "api/e2b/envd.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/page.h"
#include "api/reply.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "http/body.h"
#include "http/url.h"

static const struct envd_rpc rpcs[] = {
    {"/process.Process/Start", process_start, true, NULL},
    {"/process.Process/Connect", process_connect, true, NULL},
    {"/process.Process/List", process_list, false, NULL},
    {"/process.Process/SendInput", process_send_input, false, NULL},
    {"/process.Process/StreamInput", NULL, true, process_stream_input},
    {"/process.Process/SendSignal", process_send_signal, false, NULL},
    {"/process.Process/CloseStdin", process_close_stdin, false, NULL},
    {"/process.Process/Update", process_update, false, NULL},
    {"/filesystem.Filesystem/Stat", fs_stat, false, NULL},
    {"/filesystem.Filesystem/MakeDir", fs_make_dir, false, NULL},
    {"/filesystem.Filesystem/Move", fs_move, false, NULL},
    {"/filesystem.Filesystem/ListDir", fs_list_dir, false, NULL},
    {"/filesystem.Filesystem/Remove", fs_remove, false, NULL},
    {"/filesystem.Filesystem/WatchDir", watch_dir, true, NULL},
    {"/filesystem.Filesystem/CreateWatcher", watch_create, false, NULL},
    {"/filesystem.Filesystem/GetWatcherEvents", watch_events, false, NULL},
    {"/filesystem.Filesystem/RemoveWatcher", watch_remove, false, NULL},
};

/* Routes of E2B's agent that only E2B's platform calls; clients get 404 for them. */
static const char *const control_paths[] = {"/init",     "/freeze", "/unfreeze", "/collapse",
                                            "/fsfreeze", "/fsthaw", "/upgrade"};

static void envd_on_client_left(struct http_req *r)
{
    struct envd *e = r->user;
    if (e->call)
        link_cancel(e->api->peers->links, e->call);
    if (e->drop)
        e->drop(e);
    free(e->user);
    free(e);
}

struct envd *envd_new(struct api_call *c, const struct sandbox *b, const char *user)
{
    struct envd *e = xcalloc(1, sizeof *e);
    e->r = c->req;
    e->api = c->api;
    memcpy(e->id, b->id, SANDBOX_ID_MAX);
    e->user = user && *user ? xstrdup(user) : NULL;
    c->req->user = e;
    api_on_closed(c->req, envd_on_client_left);
    return e;
}

void envd_free(struct envd *e)
{
    struct http_req *r = e->r;
    api_on_closed(r, NULL);
    r->on_data = NULL;
    r->on_end = NULL;
    r->on_writable = NULL;
    envd_on_client_left(r);
    r->user = NULL;
}

void envd_ok(struct envd *e, const struct buf *json)
{
    struct http_req *r = e->r;
    envd_free(e);
    rpc_reply(r, buf_str(json), json->n);
}

void envd_fail(struct envd *e, enum rpc_code code, const char *fmt, ...)
{
    struct http_req *r = e->r;
    bool stream = e->rpc && e->rpc->stream;
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    envd_free(e);
    if (stream)
        rpc_stream_refuse(r, code, text);
    else
        rpc_error(r, code, text);
}

enum rpc_code envd_code(const struct link_status *st)
{
    switch (st->code) {
    case LINK_GONE:
        return RPC_UNAVAILABLE;
    case LINK_NOT_FOUND:
        return RPC_NOT_FOUND;
    case LINK_EXISTS:
        return RPC_ALREADY_EXISTS;
    case LINK_INVALID:
    case LINK_NOT_DIR:
    case LINK_IS_DIR:
        return RPC_INVALID_ARGUMENT;
    case LINK_DENIED:
        return RPC_PERMISSION_DENIED;
    case LINK_NO_USER:
        return RPC_UNAUTHENTICATED;
    case LINK_NO_SPACE:
    case LINK_LIMIT:
        return RPC_RESOURCE_EXHAUSTED;
    case LINK_TIMEOUT:
        return RPC_DEADLINE_EXCEEDED;
    case LINK_STATE:
    case LINK_PAUSED:
        return RPC_FAILED_PRECONDITION;
    case LINK_OK:
    case LINK_IO:
    case LINK_BROKEN:
        break;
    }
    return RPC_INTERNAL;
}

static void envd_fail_no_sandbox(struct envd *e)
{
    struct http_req *r = e->r;
    char id[SANDBOX_ID_MAX];
    memcpy(id, e->id, sizeof id);
    envd_free(e);
    page_no_sandbox(r, id);
}

void envd_fail_status(struct envd *e, const struct link_status *st)
{
    if (st->code == LINK_GONE)
        envd_fail_no_sandbox(e);
    else
        envd_fail(e, envd_code(st), "%s", st->text);
}

unsigned envd_http_status(const struct link_status *st)
{
    /* The sandbox was paused meanwhile; a repeated request wakes it. */
    return st->code == LINK_NO_SPACE ? 507 : st->code == LINK_PAUSED ? 503 : rpc_code_status(envd_code(st));
}

void envd_http_fail(struct envd *e, const struct link_status *st)
{
    unsigned status = envd_http_status(st);
    struct http_req *r = e->r;
    if (st->code == LINK_GONE) {
        envd_fail_no_sandbox(e);
        return;
    }
    envd_free(e);
    reply_refuse(r, status, NULL, st->code == LINK_PAUSED ? 1 : 0, st->text);
}

void envd_done(void *arg, const struct link_status *st)
{
    struct envd *e = arg;
    e->call = 0;
    if (st->code != LINK_OK) {
        envd_fail_status(e, st);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    buf_adds(&out, "{}");
    envd_ok(e, &out);
}

/* The user of "Authorization: Basic <base64 of user:>"; *ret is NULL if there is none. False: malformed. */
static bool envd_read_basic_user(const struct http_req *r, char **ret)
{
    const char *field = http_field(&r->fields, "authorization");
    *ret = NULL;
    if (!field || strncasecmp(field, "Basic ", 6) != 0)
        return true;
    field += 6 + strspn(field + 6, " ");
    _cleanup_buf_ struct buf text = {0};
    if (strlen(field) > 512 || !base64_decode(&text, field, strlen(field)) || strlen(buf_str(&text)) != text.n)
        return false;
    *ret = xstrndup(buf_str(&text), strcspn(buf_str(&text), ":"));
    return true;
}

static void envd_on_message(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct envd *e = r->user;
    json_t *tmp = NULL;
    struct err err;
    if (status) {
        envd_fail(e,
                  status == 413   ? RPC_RESOURCE_EXHAUSTED
                  : status == 408 ? RPC_DEADLINE_EXCEEDED
                                  : RPC_INVALID_ARGUMENT,
                  "%s", error);
        return;
    }
    json_t *msg = fields_root(root, &tmp, &err);
    if (msg)
        e->rpc->fn(e, msg);
    else
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
    json_decref(tmp);
}

static bool envd_is_content_type(const char *field, const char *type)
{
    size_t n = strlen(type);
    return field && strncasecmp(field, type, n) == 0 && (field[n] == 0 || field[n] == ';' || field[n] == ' ');
}

static void envd_call_rpc(struct api_call *c, const struct sandbox *b, const struct envd_rpc *rpc)
{
    struct http_req *r = c->req;
    _cleanup_free_ char *user = NULL;
    const char *type = http_field(&r->fields, "content-type");
    if (strcmp(r->method, "POST") != 0) {
        http_set(r, "allow", "POST");
        reply_error(r, 405, "RPC methods are called with POST");
        return;
    }
    if (!envd_is_content_type(type, rpc->stream ? "application/connect+json" : "application/json")) {
        http_set(r, "accept-post", rpc->stream ? "application/connect+json" : "application/json");
        reply_error(r, 415, "this method takes %s", rpc->stream ? "application/connect+json" : "application/json");
        return;
    }
    bool readable = envd_read_basic_user(r, &user);
    struct envd *e = envd_new(c, b, user);
    e->rpc = rpc;
    if (!readable)
        envd_fail(e, RPC_UNAUTHENTICATED, "the Authorization header must be Basic with base64 of '<user>:'");
    else if (rpc->raw)
        rpc->raw(e);
    else if (rpc->stream)
        body_envelope(r, RPC_MESSAGE_MAX, envd_on_message);
    else
        body_json(r, RPC_MESSAGE_MAX, envd_on_message);
}

static void envd_set_cors(struct http_req *r)
{
    http_set(r, "access-control-allow-origin", "*");
    http_set(r, "access-control-expose-headers", "*");
}

static void envd_answer_preflight(struct http_req *r)
{
    const char *headers = http_field(&r->fields, "access-control-request-headers");
    http_set(r, "access-control-allow-methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    /* A wildcard does not cover Authorization, so the answer names the headers that were asked for. */
    reply_set_safe(r, "access-control-allow-headers", headers && strlen(headers) < 2000 ? headers : "*");
    http_set(r, "access-control-max-age", "7200");
    http_set(r, "vary", "Access-Control-Request-Headers");
    reply_empty(r, 204);
}

static bool envd_token_is_valid(const struct http_req *r, const struct sandbox *b)
{
    const char *given = http_field(&r->fields, "x-access-token");
    return b->token[0] == 0 || (given && sha256_equal_text(given, b->token));
}

static void envd_answer_envs(struct api_call *c, const struct sandbox *b)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    for (size_t i = 0; i < b->desc.env.n; i++) {
        const char *eq = strchr(b->desc.env.v[i], '=');
        if (!eq)
            continue;
        _cleanup_free_ char *name = xstrndup(b->desc.env.v[i], (size_t)(eq - b->desc.env.v[i]));
        json_str(&j, name, eq + 1);
    }
    json_end_obj(&j);
    reply_json(c->req, 200, &out);
}

/* GET and POST /files: needs a valid token header or a valid signature in q. */
static void envd_serve_files(struct api_call *c, const struct sandbox *b, const struct sign_query *q)
{
    struct http_req *r = c->req;
    bool write = strcmp(r->method, "POST") == 0;
    if (!write && strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0) {
        http_set(r, "allow", "GET, HEAD, POST");
        reply_error(r, 405, "/files knows GET and POST");
        return;
    }
    if (b->token[0]) {
        const char *why = http_field(&r->fields, "x-access-token")
                              ? (envd_token_is_valid(r, b) ? NULL : "the access token is not the one of this sandbox")
                              : sign_check(q, write ? "write" : "read", b->token, clock_unix_ms() / 1000);
        if (why) {
            api_refuse_body(r, 401, why);
            return;
        }
    }
    struct envd *e = envd_new(c, b, buf_str(&q->user));
    if (write)
        files_write(e, q->has_path && q->path.n ? buf_str(&q->path) : NULL);
    else
        files_read(e, buf_str(&q->path));
}

static void envd_handle_files(struct api_call *c, struct sandbox *b)
{
    struct sign_query q;
    struct err err;
    if (sign_query_read(c->req->query, &q, &err) < 0)
        reply_error(c->req, 400, "%s", err.msg);
    else
        envd_serve_files(c, b, &q);
    sign_query_done(&q);
}

static void envd_handle_plain(struct api_call *c, struct sandbox *b)
{
    struct http_req *r = c->req;
    bool get = strcmp(r->method, "GET") == 0;
    if (strcmp(r->path, "/metrics") == 0 && get)
        usage_route(c, b);
    else if (strcmp(r->path, "/envs") == 0 && get)
        envd_answer_envs(c, b);
    else if (strcmp(r->path, "/files/compose") == 0 && strcmp(r->method, "POST") == 0)
        files_compose_route(envd_new(c, b, NULL));
    else
        reply_error(r, 404, "no such route of the sandbox's agent: %s", r->path);
}

static void envd_on_hello(void *arg, const struct link_status *st)
{
    struct envd *e = arg;
    struct http_req *r = e->r;
    e->call = 0;
    if (st->code == LINK_GONE) {
        envd_fail_no_sandbox(e);
        return;
    }
    envd_free(e);
    reply_empty(r, 204);
}

void envd_handle(struct api_call *c, struct sandbox *b)
{
    struct http_req *r = c->req;
    envd_set_cors(r);
    if (strcmp(r->method, "OPTIONS") == 0) {
        envd_answer_preflight(r);
        return;
    }
    if (strcmp(r->path, "/health") == 0) {
        struct envd *e = envd_new(c, b, NULL);
        e->call = link_hello(c->api->peers->links, b->id, envd_on_hello, e);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(control_paths); i++)
        if (strcmp(r->path, control_paths[i]) == 0) {
            _cleanup_buf_ struct buf out = {0};
            buf_addf(&out, "{\"message\":\"this path is not available from outside\",\"path\":\"%s\",\"code\":404}",
                     control_paths[i]);
            reply_json(r, 404, &out);
            return;
        }
    if (strcmp(r->path, "/files") == 0) {
        envd_handle_files(c, b);
        return;
    }
    if (!envd_token_is_valid(r, b)) {
        reply_error(r, 401, "unauthorized access: send the sandbox's access token in X-Access-Token");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(rpcs); i++)
        if (strcmp(r->path, rpcs[i].path) == 0) {
            envd_call_rpc(c, b, &rpcs[i]);
            return;
        }
    envd_handle_plain(c, b);
}

bool envd_may_wake(const struct api_call *c, const struct sandbox *b)
{
    const struct http_req *r = c->req;
    struct sign_query q;
    struct err err;
    /* Clients ask /health whether the sandbox runs; that must not wake it. */
    if (strcmp(r->method, "OPTIONS") == 0 || strcmp(r->path, "/health") == 0)
        return false;
    if (envd_token_is_valid(r, b))
        return true;
    if (strcmp(r->path, "/files") != 0)
        return false;
    bool good = sign_query_read(r->query, &q, &err) == 0 &&
                !sign_check(&q, strcmp(r->method, "POST") == 0 ? "write" : "read", b->token, clock_unix_ms() / 1000);
    sign_query_done(&q);
    return good;
}

struct signer {
    const struct sign_query *q;
    const char *operation;
    uint64_t now;
    struct sandbox *found;
    const char *why;
};

/* Tries the tokens of all sandboxes, so the time of the answer does not reveal which sandboxes exist. */
static void envd_try_signature(void *arg, struct sandbox *b)
{
    struct signer *s = arg;
    if (!b->token[0] || b->desc.hidden ||
        (b->state != SANDBOX_RUNNING && !(sandbox_is_paused(b) && b->desc.life.auto_resume)))
        return;
    const char *why = sign_check(s->q, s->operation, b->token, s->now);
    if (why && strcmp(why, "invalid signature") == 0)
        return;
    s->found = b;
    s->why = why;
}

void envd_handle_signed(struct api_call *c)
{
    struct http_req *r = c->req;
    struct sign_query q;
    struct err err;
    envd_set_cors(r);
    if (strcmp(r->method, "OPTIONS") == 0) {
        envd_answer_preflight(r);
        return;
    }
    if (sign_query_read(r->query, &q, &err) < 0) {
        reply_error(r, 400, "%s", err.msg);
        sign_query_done(&q);
        return;
    }
    struct signer s = {.q = &q,
                       .operation = strcmp(r->method, "POST") == 0 ? "write" : "read",
                       .now = clock_unix_ms() / 1000,
                       .why = "invalid signature"};
    sandboxes_each(c->api->sandboxes, envd_try_signature, &s);
    if (!s.found || s.why) {
        api_refuse_body(r, 401, s.why);
    } else {
        api_awake(c, s.found, envd_handle_files);
    }
    sign_query_done(&q);
}
