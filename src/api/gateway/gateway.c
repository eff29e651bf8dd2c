/* gateway.c - one request to a service inside a sandbox: dial the port, or reuse a connection, and start the proxy. */
#include "api/gateway/gateway.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/gateway/gateway-int.h"
#include "api/page.h"
#include "base/fd.h"
#include "base/mem.h"
#include "http/proxy.h"
#include "http/tls.h"

/* A request on its way to a service in a sandbox. */
struct way {
    struct api *api;
    struct http_req *r; /* NULL once the proxy has it */
    char id[SANDBOX_ID_MAX];
    struct gateway_names names;
    struct gateway_entry entry;
    struct buf scratch;
    bool drop_key, drop_bearer;
    bool kept;  /* uses a kept connection */
    bool again; /* the kept connection was closed, or the request is repeated as localhost: dial */
    bool repeatable, as_localhost;
    unsigned dials;
    link_call call;
    loop_id timer;
};

static const char closed_hint[] = "Start a service on this port inside the sandbox, then reload this page.";

static void way_free(struct way *w)
{
    gateway_count_down(w->id);
    gateway_entry_done(&w->entry);
    buf_done(&w->scratch);
    free(w);
}

static void way_on_client_left(struct http_req *r)
{
    struct way *w = r->user;
    if (w->call)
        link_cancel(w->api->peers->links, w->call);
    loop_timer_del(w->api->loop, w->timer);
    way_free(w);
}

/* Frees w and answers its request. */
static void way_fail(struct way *w, unsigned status, bool with_port, const char *message, const char *hint)
{
    struct http_req *r = w->r;
    char id[SANDBOX_ID_MAX];
    uint32_t port = with_port ? w->names.port : 0;
    memcpy(id, w->id, sizeof id);
    api_on_closed(r, NULL);
    r->user = NULL;
    way_free(w);
    http_resume(r);
    page_refuse(r, status, id, port, 0, message, hint);
}

/* The sandbox was paused before anything was sent: handle the request anew, which wakes the sandbox if it may. */
static void way_restart(struct way *w)
{
    struct http_req *r = w->r;
    api_on_closed(r, NULL);
    r->user = NULL;
    way_free(w);
    http_resume(r);
    api_again(api_call_of(r));
}

static void way_on_failure(void *arg, struct http_req *r, unsigned status, enum client_failure failure, const char *why)
{
    struct way *w = arg;
    (void)why;
    if (failure == CLIENT_UNWANTED || (w->kept && status == 502 && failure != CLIENT_BROKEN)) {
        w->again = true; /* way_on_done() follows and dials */
        w->r = r;
        r->user = w;
        api_on_closed(r, way_on_client_left);
        http_pause(r);
        return;
    }
    api_on_closed(r, NULL);
    bool closed = failure == CLIENT_UNREACHED;
    page_refuse(r, status, w->id, w->names.port, 0,
                closed          ? "The sandbox is running but port is not open"
                : status == 504 ? "The service in the sandbox did not answer in time"
                                : "The service in the sandbox closed the connection without a valid answer",
                closed ? closed_hint : NULL);
}

static void way_dial(void *arg);

static void way_on_done(void *arg, const struct proxy_result *result, struct client *again)
{
    struct way *w = arg;
    (void)result;
    if (again)
        gateway_keep(w->api->loop, w->id, w->names.port, w->names.tls, again);
    if (!w->again) {
        way_free(w);
        return;
    }
    w->again = w->kept = false;
    way_dial(w);
}

static struct transport *way_connect_tls(int fd)
{
    static struct tls_client *client; /* holds only parameters; made once */
    struct err err;
    if (!client && tls_client_new(&client, &err) < 0) {
        fd_close_foreign(fd);
        return NULL;
    }
    return tls_client_connect(client, fd, NULL);
}

/* A service that refuses the visitor's name is asked once more, as localhost. If it likes that, the port is remembered. */
static bool way_is_unwanted(void *arg, unsigned status, const struct http_fields *f)
{
    struct way *w = arg;
    bool refused = gateway_refuses_host(status, f);
    if (w->as_localhost && !refused)
        gateway_learn(w->id, w->names.port);
    if (!refused || !w->repeatable || w->names.host[0] || w->names.fixed)
        return false;
    gateway_name_localhost(&w->names);
    w->as_localhost = true;
    return true;
}

static const char *way_map_answer_field(void *arg, const char *name, const char *value)
{
    struct way *w = arg;
    return gateway_answer_field(&w->names, name, value, &w->scratch);
}

/* Header fields that the service gets instead of those of the client. */
struct changes {
    const char *drop[8];
    struct http_field add[4];
    size_t ndrop, nadd;
    struct buf origin, referer;
};

static void way_make_changes(const struct way *w, struct changes *c)
{
    const struct http_fields *f = &w->r->fields;
    const char *origin = http_field(f, "origin"), *referer = http_field(f, "referer");
    c->drop[c->ndrop++] = "e2b-traffic-access-token";
    c->drop[c->ndrop++] = "hutch-traffic-token";
    if (w->drop_key)
        c->drop[c->ndrop++] = "x-api-key";
    if (w->drop_bearer)
        c->drop[c->ndrop++] = "authorization";
    if (w->entry.cookies_ours && !w->entry.cookie)
        c->drop[c->ndrop++] = "cookie";
    if (w->entry.cookie)
        c->add[c->nadd++] = (struct http_field){"cookie", w->entry.cookie};
    if (origin && gateway_own_origin(&w->names, origin, &c->origin))
        c->add[c->nadd++] = (struct http_field){"origin", buf_str(&c->origin)};
    if (referer && gateway_own_origin(&w->names, referer, &c->referer))
        c->add[c->nadd++] = (struct http_field){"referer", buf_str(&c->referer)};
}

static void way_start_proxy(struct way *w, struct client *upstream)
{
    struct http_req *r = w->r;
    struct changes c = {0};
    way_make_changes(w, &c);
    struct proxy_options o = {
        .target = w->entry.target,
        .host = w->names.host[0] ? w->names.host : NULL,
        .forwarded = true,
        .answer_ms = w->api->config->answer_timeout_s * 1000,
        .drop = c.drop,
        .add = {c.add, c.nadd},
        .arg = w,
        .answer_field = way_map_answer_field,
        .unwanted = way_is_unwanted,
        .on_failure = way_on_failure,
        .on_done = way_on_done,
    };
    api_on_closed(r, NULL);
    r->user = NULL;
    w->r = NULL;
    proxy_start(r, upstream, &o);
    api_rewrap(r);
    buf_done(&c.origin);
    buf_done(&c.referer);
}

static void way_on_connected(struct way *w, int fd)
{
    struct transport *t = w->names.tls ? way_connect_tls(fd) : transport_plain(fd);
    if (t)
        way_start_proxy(w, client_new(w->api->loop, t));
    else
        way_fail(w, 502, true, "The service in the sandbox does not speak TLS", NULL);
}

static void way_on_dialed(void *arg, const struct link_status *st, int fd)
{
    struct way *w = arg;
    w->call = 0;
    if (st->code == LINK_OK)
        way_on_connected(w, fd);
    else if (st->code == LINK_GONE)
        way_fail(w, 502, false, "The sandbox was not found", NULL);
    else if (st->code == LINK_PAUSED)
        way_restart(w);
    else if (st->code == LINK_NOT_FOUND && ++w->dials < GATEWAY_DIALS)
        /* A server that was started a moment ago may not listen yet. */
        w->timer = loop_timer(w->api->loop, (uint64_t)w->dials * GATEWAY_DIAL_PAUSE_MS, way_dial, w);
    else if (st->code == LINK_NOT_FOUND)
        way_fail(w, 502, true, "The sandbox is running but port is not open", closed_hint);
    else
        way_fail(w, 502, true, "The sandbox could not be reached", NULL);
}

static void way_dial(void *arg)
{
    struct way *w = arg;
    const struct sandbox *b = sandbox_find(w->api->sandboxes, w->id);
    w->timer = 0;
    if (b && b->state != SANDBOX_RUNNING)
        way_restart(w);
    else
        w->call = link_dial(w->api->peers->links, w->id, (uint16_t)w->names.port, way_on_dialed, w);
}

static bool gateway_is_own_key(const char *s) { return s && strncmp(s, "e2b_", 4) == 0; }

/* "Bearer <a key of ours>" */
static bool gateway_is_own_bearer(const char *s)
{
    return s && strncasecmp(s, "Bearer ", 7) == 0 && gateway_is_own_key(s + 7 + strspn(s + 7, " "));
}

/* Whether the request may be sent a second time if a kept connection turns out to be closed. */
static bool gateway_is_repeatable(const struct http_req *r)
{
    return r->length == 0 && !http_field(&r->fields, "upgrade") &&
           (strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0 || strcmp(r->method, "OPTIONS") == 0);
}

/* Starts the request's way to the service; takes over the strings of e. */
static void way_start(struct api_call *c, struct sandbox *b, const struct gateway_names *names, struct gateway_entry *e)
{
    struct http_req *r = c->req;
    struct way *w = xcalloc(1, sizeof *w);
    gateway_count_up(b->id);
    *w = (struct way){.api = c->api, .r = r, .names = *names, .entry = *e};
    *e = (struct gateway_entry){0};
    /* A client may send its API key by mistake: the service must not see it. */
    w->drop_key = gateway_is_own_key(http_field(&r->fields, "x-api-key"));
    w->drop_bearer = gateway_is_own_bearer(http_field(&r->fields, "authorization"));
    memcpy(w->id, b->id, SANDBOX_ID_MAX);
    w->repeatable = gateway_is_repeatable(r);
    struct client *kept = w->repeatable ? gateway_kept(w->id, names->port, names->tls) : NULL;
    if (kept) {
        w->kept = true;
        way_start_proxy(w, kept);
        return;
    }
    r->user = w;
    api_on_closed(r, way_on_client_left);
    http_pause(r);
    way_dial(w);
}

static void gateway_handle(struct api_call *c, struct sandbox *b)
{
    struct http_req *r = c->req;
    struct gateway_names names;
    struct gateway_entry e;
    http_set(r, "x-robots-tag", "noindex");
    if (!b) {
        page_no_sandbox(r, c->sandbox);
        return;
    }
    gateway_names(r, b, c->port, &names);
    gateway_enter(c->api, r, b, c->port, &e);
    if (e.welcome && names.origin[0])
        gateway_welcome(r, &names, &e);
    else if (!e.allowed)
        page_refuse(r, 403, b->id, 0, 0, e.message, e.hint);
    else if (gateway_count(b->id) >= GATEWAY_CONNECTIONS_MAX)
        page_refuse(r, 429, b->id, 0, GATEWAY_CONNECTIONS_MAX, "Too many connections to this sandbox at once", NULL);
    else
        way_start(c, b, &names, &e);
    gateway_entry_done(&e);
}

/* Only requests that the gateway would let in wake a sandbox. */
static bool gateway_may_wake(const struct api_call *c, const struct sandbox *b)
{
    struct gateway_entry e;
    gateway_enter(c->api, c->req, b, c->port, &e);
    bool yes = e.allowed;
    gateway_entry_done(&e);
    return yes;
}

/* Idle connections would keep the network of an ended sandbox alive. */
static void gateway_on_sandbox_ended(struct api *api, struct sandbox *b)
{
    (void)api;
    gateway_forget(b->id);
    gateway_unlearn(b->id);
}

/* Idle connections would be stale after the sandbox resumes. */
static void gateway_on_sandbox_pausing(struct api *api, struct sandbox *b)
{
    (void)api;
    gateway_forget(b->id);
}

const struct api_dialect gateway_dialect = {
    .plane = {.port = API_OTHER_PORTS, .handle = gateway_handle, .may_wake = gateway_may_wake},
    .sandbox_ended = gateway_on_sandbox_ended,
    .sandbox_pausing = gateway_on_sandbox_pausing,
};
