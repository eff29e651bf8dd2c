#include "front/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "front/e2b/e2b.h"
#include "front/gateway-int.h"
#include "front/gateway.h"
#include "front/reply.h"
#include "front/state.h"

void api_no_box(struct api_call *c)
{
    /* The same words whether it never was, is gone or is somebody else's. */
    _cleanup_free_ char *id = strndup(c->param[0] ? c->param[0] : "", 80);
    reply_error(c->req, 404, "sandbox \"%s\" doesn't exist or you don't have access to it", id ? id : "");
}

struct box *api_box(struct api_call *c)
{
    char id[SANDBOX_ID_MAX];
    struct box *b = NULL;
    if (api_sandbox_id(c->param[0], strlen(c->param[0]), id)) {
        api_note_sandbox(c->req, id);
        b = box_of(c->front, &c->who, id);
    }
    if (!b)
        api_no_box(c);
    return b;
}

/* A page of another origin may have made a browser ask; no cookie protects or endangers us, but a name of its own that
 * resolves to this machine would get it past the network's edge. */
static bool origin_ok(const char *domain, const struct http_req *r)
{
    const char *origin = http_field(&r->fields, "origin");
    if (!origin)
        return true;
    const char *host = strstr(origin, "://");
    return host && api_own_host(domain, host + 3);
}

const char *api_scope_lacking(unsigned scopes, unsigned wanted, unsigned flags)
{
    bool granted = !wanted || (scopes & (wanted | SCOPE_ADMIN)), reader = scopes & SCOPE_READ;
    if ((wanted & SCOPE_ADMIN) && !(scopes & SCOPE_ADMIN))
        return "this needs a key with the scope admin";
    if ((flags & API_CHANGES) && reader)
        return "this API key may only read: it has the scope read";
    if (flags & API_CHANGES)
        return granted ? NULL : "this API key lacks the scope";
    if ((flags & API_CONTENTS) && !(scopes & SCOPE_FILES) && (reader || !granted))
        return "this API key reads no contents: it needs the scope files";
    if (!(flags & API_CONTENTS) && !granted && !reader)
        return "this API key lacks the scope";
    return NULL;
}

bool api_sees_contents(const struct api_call *c)
{
    return !api_scope_lacking(c->who.scopes, c->route->scope, API_CONTENTS);
}

/* False: answered. */
static bool authorised(struct api_call *c)
{
    struct http_req *r = c->req;
    if (c->route->flags & API_OPEN)
        return true;
    if (!tenants_auth(c->front, r, &c->who)) {
        http_set(r, "www-authenticate", "Bearer");
        reply_error(r, 401, "no valid API key: send X-API-KEY (or Authorization: Bearer) with a key of this node");
        return false;
    }
    (void)snprintf(c->tenant, sizeof c->tenant, "%s", c->who.tenant->id);
    unsigned wait = tenants_throttle(c->front, c->who.tenant);
    if (wait > 0) {
        reply_refuse(r, 429, NULL, wait, "too many requests for this tenant; see Retry-After");
        return false;
    }
    const char *why = api_scope_lacking(c->who.scopes, c->route->scope, c->route->flags);
    if (why)
        reply_error(r, 403, "%s %s: %s", c->route->method, c->route->pattern, why);
    return !why;
}

static void control(struct api_call *c)
{
    struct http_req *r = c->req;
    _cleanup_buf_ struct buf allow = {0};
    if (!origin_ok(c->front->config->domain, r)) {
        reply_error(r, 403, "requests from pages of other origins are refused");
        return;
    }
    switch (api_match(r->method, r->path, &c->route, c->param, &allow)) {
    case API_NO_PATH:
        reply_error(r, 404, "no such route; GET /v1/openapi.json lists them");
        return;
    case API_NO_METHOD:
        http_set(r, "allow", buf_str(&allow));
        reply_error(r, 405, "this route knows only %s", buf_str(&allow));
        return;
    case API_BAD_PATH:
        reply_error(r, 400, "the path has a bad percent escape");
        return;
    case API_MATCHED:
        break;
    }
    if (authorised(c))
        c->route->fn(c);
}

/* --- the data plane ------------------------------------------------------------------------------------------------- */

/* A request that waits for its sandbox to wake. */
struct waking {
    struct api_wait wait;
    void (*then)(struct api_call *c, struct box *b);
};

static void begin_use(struct api_call *c, struct box *b)
{
    api_note_sandbox(c->req, b->id);
    if (c->in_use)
        return;
    c->in_use = true;
    box_in_use(c->front, b);
}

static void woken(void *arg, const struct state_failure *failure)
{
    void (*then)(struct api_call *, struct box *) = ((struct waking *)arg)->then;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    struct box *b = box_find(c->front, c->sandbox);
    r->user = NULL;
    http_resume(r);
    if (failure)
        gateway_refuse(r, failure->status, c->sandbox, 0, 0, failure->text, NULL);
    else if (!b || b->state != BOX_RUNNING)
        gateway_no_sandbox(r, c->sandbox);
    else {
        begin_use(c, b);
        then(c, b);
    }
}

void api_awake(struct api_call *c, struct box *b, void (*then)(struct api_call *c, struct box *b))
{
    if (b->state == BOX_RUNNING) {
        begin_use(c, b);
        then(c, b);
        return;
    }
    struct waking *w = api_wait_for(c->req, sizeof *w);
    w->then = then;
    api_note_sandbox(c->req, b->id);
    http_pause(c->req);
    box_awake(c->front, b, true, woken, w);
}

static void serve(struct api_call *c, struct box *b)
{
    struct api_target t = {.kind = API_SANDBOX, .port = c->port};
    memcpy(t.sandbox, c->sandbox, sizeof t.sandbox);
    if (c->port == API_ENVD_PORT && b)
        envd_handle(c, b);
    else
        gateway_handle(c, &t, b);
}

static bool may_wake(const struct api_call *c, const struct box *b)
{
    return (b->auto_resume || b->state == BOX_RESUMING) &&
           (c->port == API_ENVD_PORT ? envd_may_wake(c, b) : gateway_may_wake(c, b));
}

static void sandbox(struct api_call *c, const struct api_target *t)
{
    api_note_sandbox(c->req, t->sandbox);
    c->port = t->port;
    struct box *b = box_find(c->front, t->sandbox);
    if (b && (!box_is_there(b) || b->hidden || (b->state != BOX_RUNNING && !may_wake(c, b))))
        b = NULL;
    if (b)
        api_awake(c, b, serve);
    else
        serve(c, NULL);
}

void api_again(struct api_call *c)
{
    struct api_target t = {.kind = API_SANDBOX, .port = c->port};
    memcpy(t.sandbox, c->sandbox, sizeof t.sandbox);
    sandbox(c, &t);
}

void front_handle(void *ctx, struct http_req *r)
{
    static const struct front *known;
    struct front *f = ctx;
    struct api_target t;
    if (known != f) {
        boxes_on_end(f, e2b_box_ended, f);
        boxes_on_pause(f, e2b_box_pausing, f);
        known = f;
    }
    struct api_call *c = api_begin(f, r);
    api_classify(f->config->domain, r, &t);
    http_set(r, "x-request-id", r->id);
    http_set(r, "x-e2b-trace-id", r->id);
    switch (t.kind) {
    case API_CONTROL:
        control(c);
        break;
    case API_SANDBOX:
        sandbox(c, &t);
        break;
    case API_SIGNED:
        envd_handle_signed(c);
        break;
    case API_BAD_TARGET:
        reply_error(r, 400, "%s", t.text);
        break;
    case API_MISDIRECTED:
        reply_error(r, 421, "%s", t.text);
        break;
    }
}
