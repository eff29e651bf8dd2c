/* api.c - takes every request: checks the key and calls the route, or wakes the sandbox and passes the request on. */
#include "api/api.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/interpreter.h"
#include "api/page.h"
#include "api/reply.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "snapshots/snapshots.h"

/* "12 s", "5 min", "3 h": one unit, rounded down. */
static void api_add_span(struct buf *out, uint64_t ms)
{
    uint64_t s = ms / 1000;
    if (s < 120)
        buf_addf(out, "%llu s", (unsigned long long)s);
    else if (s < 7200)
        buf_addf(out, "%llu min", (unsigned long long)s / 60);
    else
        buf_addf(out, "%llu h", (unsigned long long)s / 3600);
}

static void api_add_cause(struct buf *out, const char *cause, uint64_t alive_ms)
{
    static const struct {
        const char *cause, *text;
    } known[] = {{"out_of_memory", "it ran out of memory"},        {"init_died", "its first process died"},
                 {"api", "it was killed through the API"},         {"killed", "it was killed from outside"},
                 {"stop-all", "the operator ended all sandboxes"}, {"machine_restarted", "the machine was restarted"}};
    if (strcmp(cause, "timeout") == 0) {
        buf_adds(out, "its time was over after ");
        api_add_span(out, alive_ms + 500);
        buf_adds(out, "; `hutch timeout ID 1h` extends one that runs, `hutch create --timeout 1h` makes one that "
                      "lives longer");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(cause, known[i].cause) == 0) {
            buf_adds(out, known[i].text);
            return;
        }
    buf_adds(out, "the node does not know why");
}

static void api_take_end(void *arg, const struct event *e)
{
    struct buf *out = arg;
    if (strcmp(e->type, "died") != 0 && strcmp(e->type, "killed") != 0)
        return;
    json_t *j = json_loads(e->json, 0, NULL);
    const char *cause = json_string_value(json_object_get(j, "cause"));
    uint64_t now = clock_unix_ms();
    out->n = 0;
    api_add_span(out, now > e->at_unix_ms ? now - e->at_unix_ms : 0);
    buf_adds(out, " ago: ");
    api_add_cause(out, cause ? cause : "", (uint64_t)json_integer_value(json_object_get(j, "alive_ms")));
    json_decref(j);
}

void api_no_sandbox(struct api_call *c)
{
    char id[SANDBOX_ID_MAX];
    _cleanup_buf_ struct buf why = {0};
    const char *given = c->param[0] ? c->param[0] : "";
    struct event_log *log = c->who.tenant && api_sandbox_id(given, strlen(given), id)
                                ? events_find(c->api->events, c->who.tenant->id, id)
                                : NULL;
    if (log && events_ended(log))
        events_replay(log, 0, api_take_end, &why);
    if (why.n)
        reply_error(c->req, 404, "sandbox %s ended %s", id, buf_str(&why));
    else /* the same message whether it never existed or belongs to another tenant */
        reply_error(c->req, 404, "sandbox \"%.80s\" doesn't exist or you don't have access to it", given);
}

struct sandbox *api_sandbox_of(struct api_call *c)
{
    char id[SANDBOX_ID_MAX];
    struct sandbox *b = NULL;
    if (api_sandbox_id(c->param[0], strlen(c->param[0]), id)) {
        api_note_sandbox(c->req, id);
        b = sandbox_of(c->api->sandboxes, &c->who, id);
    }
    if (!b)
        api_no_sandbox(c);
    return b;
}

/* Refuses requests that a page of another origin made a browser send. The API uses no cookies, but with a host name
 * that resolves to this machine such a page could reach the API from within the local network. */
static bool api_origin_is_own(const char *domain, const struct http_req *r)
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

/* Refuses a request before its handler, in the form of its dialect. */
__attribute__((format(printf, 4, 5))) static void api_refuse(struct api_call *c, unsigned status, unsigned retry_after,
                                                             const char *fmt, ...)
{
    _cleanup_free_ char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = xstrdup("out of memory");
    va_end(ap);
    for (size_t i = 0; i < c->api->ndialects; i++) {
        const struct api_dialect *d = c->api->dialects[i];
        size_t n = d->prefix ? strlen(d->prefix) : 0;
        if (n && strncmp(c->req->path, d->prefix, n) == 0 && (!c->req->path[n] || c->req->path[n] == '/')) {
            d->refuse(c->req, status, retry_after, text);
            return;
        }
    }
    reply_refuse(c->req, status, NULL, retry_after, text);
}

/* Checks key, rate and scope. False: it has answered. */
static bool api_authorise(struct api_call *c)
{
    struct http_req *r = c->req;
    if (c->route->flags & API_OPEN)
        return true;
    bool known = c->api->domain->tenants.authenticate(c->api->tenants, r, &c->who);
    if (!known && c->api->oauth && (c->route->flags & API_TOKENS)) {
        if (!api_take_token(c))
            return false;
    } else if (!known) {
        http_set(r, "www-authenticate", "Bearer");
        api_refuse(c, 401, 0, "no valid API key: send X-API-KEY (or Authorization: Bearer) with a key of this node");
        return false;
    }
    (void)snprintf(c->tenant, sizeof c->tenant, "%s", c->who.tenant->id);
    unsigned wait = c->api->domain->tenants.throttle(c->api->tenants, c->who.tenant);
    if (wait > 0) {
        api_refuse(c, 429, wait, "too many requests for this tenant; see Retry-After");
        return false;
    }
    const char *why = api_scope_lacking(c->who.scopes, c->route->scope, c->route->flags);
    if (why)
        api_refuse(c, 403, 0, "%s %s: %s", c->route->method, c->route->pattern, why);
    return !why;
}

/* Passes a request that names a sandbox on to where the sandbox is. False: it is here, or nowhere. */
static bool api_forward(struct api_call *c, const char *named)
{
    char id[SANDBOX_ID_MAX];
    if (!c->api->domain->forward || !api_sandbox_id(named, strlen(named), id))
        return false;
    api_note_sandbox(c->req, id);
    return c->api->domain->forward(c, id);
}

void api_go_on(struct api_call *c)
{
    if (api_authorise(c) && !(strstr(c->route->pattern, "/sandboxes/{") && api_forward(c, c->param[0])))
        c->route->fn(c);
}

static void api_handle_control(struct api_call *c)
{
    struct http_req *r = c->req;
    _cleanup_buf_ struct buf allow = {0};
    if (!api_origin_is_own(c->api->config->domain, r)) {
        api_refuse(c, 403, 0, "requests from pages of other origins are refused");
        return;
    }
    switch (api_match(c->api, r->method, r->path, &c->route, c->param, &allow)) {
    case API_NO_PATH:
        api_refuse(c, 404, 0, "no such route; GET /v1/openapi.json lists them");
        return;
    case API_NO_METHOD:
        http_set(r, "allow", buf_str(&allow));
        api_refuse(c, 405, 0, "this route knows only %s", buf_str(&allow));
        return;
    case API_BAD_PATH:
        api_refuse(c, 400, 0, "the path has a bad percent escape");
        return;
    case API_MATCHED:
        break;
    }
    api_go_on(c);
}

/* --- the data plane ------------------------------------------------------------------------------------------------- */

/* A request that waits for its sandbox to wake. */
struct waking {
    struct api_wait wait;
    void (*then)(struct api_call *c, struct sandbox *b);
};

static void api_begin_use(struct api_call *c, struct sandbox *b)
{
    api_note_sandbox(c->req, b->id);
    if (c->in_use)
        return;
    c->in_use = true;
    sandbox_in_use(c->api->sandboxes, b);
}

static void api_on_woken(void *arg, const struct state_failure *failure)
{
    void (*then)(struct api_call *, struct sandbox *) = ((struct waking *)arg)->then;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    struct sandbox *b = sandbox_find(c->api->sandboxes, c->sandbox);
    r->user = NULL;
    http_resume(r);
    if (failure)
        page_refuse(r, failure->status, c->sandbox, 0, 0, failure->text, NULL);
    else if (!b || b->state != SANDBOX_RUNNING)
        page_no_sandbox(r, c->sandbox);
    else {
        api_begin_use(c, b);
        then(c, b);
    }
}

void api_awake(struct api_call *c, struct sandbox *b, void (*then)(struct api_call *c, struct sandbox *b))
{
    if (b->state == SANDBOX_RUNNING) {
        api_begin_use(c, b);
        then(c, b);
        return;
    }
    struct waking *w = api_wait_for(c->req, sizeof *w);
    w->then = then;
    api_note_sandbox(c->req, b->id);
    http_pause(c->req);
    sandbox_awake(c->api->sandboxes, b, true, api_on_woken, w);
}

/* The dialect that serves a port; there is one for API_OTHER_PORTS. */
static const struct api_plane *api_plane_of(const struct api *api, uint32_t port)
{
    const struct api_plane *others = NULL;
    for (size_t i = 0; i < api->ndialects; i++) {
        const struct api_plane *p = &api->dialects[i]->plane;
        if (p->handle && p->port == port)
            return p;
        if (p->handle && p->port == API_OTHER_PORTS)
            others = p;
    }
    return others;
}

static void api_serve_sandbox(struct api_call *c, struct sandbox *b)
{
    api_plane_of(c->api, b ? c->port : API_OTHER_PORTS)->handle(c, b);
}

static bool api_may_wake(const struct api_call *c, const struct sandbox *b)
{
    return (b->desc.life.auto_resume || sandbox_is_resuming(b)) && api_plane_of(c->api, c->port)->may_wake(c, b);
}

static void api_handle_sandbox(struct api_call *c, const struct api_target *t)
{
    api_note_sandbox(c->req, t->sandbox);
    c->port = t->port;
    if (api_forward(c, t->sandbox))
        return;
    struct sandbox *b = sandbox_find(c->api->sandboxes, t->sandbox);
    if (b && (!sandbox_is_there(b) || b->desc.hidden || (b->state != SANDBOX_RUNNING && !api_may_wake(c, b))))
        b = NULL;
    if (b)
        api_awake(c, b, api_serve_sandbox);
    else
        api_serve_sandbox(c, NULL);
}

void api_again(struct api_call *c)
{
    struct api_target t = {.kind = API_SANDBOX, .port = c->port};
    memcpy(t.sandbox, c->sandbox, sizeof t.sandbox);
    api_handle_sandbox(c, &t);
}

static void api_handle_signed(struct api_call *c)
{
    for (size_t i = 0; i < c->api->ndialects; i++)
        if (c->api->dialects[i]->plane.handle_signed) {
            c->api->dialects[i]->plane.handle_signed(c);
            return;
        }
}

void api_handle(void *ctx, struct http_req *r)
{
    struct api *api = ctx;
    struct api_target t;
    struct api_call *c = api_begin(api, r);
    api_classify(api->config->domain, r, &t);
    http_set(r, "x-request-id", r->id);
    http_set(r, "x-e2b-trace-id", r->id);
    switch (t.kind) {
    case API_CONTROL:
        api_handle_control(c);
        break;
    case API_SANDBOX:
        api_handle_sandbox(c, &t);
        break;
    case API_SIGNED:
        api_handle_signed(c);
        break;
    case API_BAD_TARGET:
        reply_error(r, 400, "%s", t.text);
        break;
    case API_MISDIRECTED:
        reply_error(r, 421, "%s", t.text);
        break;
    }
}

/* --- the dialects --------------------------------------------------------------------------------------------------- */

static void api_on_sandbox_ended(void *arg, struct sandbox *b, const char *cause, const struct keeper_usage *u)
{
    struct api *api = arg;
    (void)cause, (void)u;
    interpreter_forget(b->id);
    for (size_t i = 0; i < api->ndialects; i++)
        if (api->dialects[i]->sandbox_ended)
            api->dialects[i]->sandbox_ended(api, b);
}

static void api_on_sandbox_pausing(void *arg, struct sandbox *b)
{
    struct api *api = arg;
    interpreter_forget(b->id);
    for (size_t i = 0; i < api->ndialects; i++)
        if (api->dialects[i]->sandbox_pausing)
            api->dialects[i]->sandbox_pausing(api, b);
}

static void api_on_sandbox_changed(void *arg, const struct sandbox *b, enum sandbox_state was)
{
    struct api *api = arg;
    for (size_t i = 0; i < api->ndialects; i++)
        if (api->dialects[i]->sandbox_changed)
            api->dialects[i]->sandbox_changed(api, b, was);
}

void api_open(struct api *api, const struct api_dialect *const *dialects, size_t n)
{
    api->dialects = dialects;
    api->ndialects = n;
    api_routes_join(api);
    sandboxes_on_end(api->sandboxes, api_on_sandbox_ended, api);
    sandboxes_on_pause(api->sandboxes, api_on_sandbox_pausing, api);
    sandboxes_on_change(api->sandboxes, api_on_sandbox_changed, api);
}

void api_close(struct api *api)
{
    free(api->routes);
    free(api->patterns);
    api->routes = NULL;
    api->patterns = NULL;
    api->nroutes = api->ndialects = 0;
}
