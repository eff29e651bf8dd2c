#include "front/gateway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "front/e2b/e2b.h"
#include "front/e2b/envd.h"
#include "front/gateway-int.h"
#include "front/reply.h"
#include "http/proxy.h"
#include "http/tls.h"

/* One request on its way to a service inside. */
struct way {
    struct front *f;
    struct http_req *r; /* NULL once the proxy has it */
    char id[SANDBOX_ID_MAX];
    char mask_host[300];
    uint32_t port;
    bool tls, drop_key, drop_bearer;
    bool kept;  /* goes over a connection that was used before */
    bool again; /* which was closed meanwhile: dial */
    unsigned dials;
    link_call call;
    loop_id timer;
};

/* Only a person in front of a browser gets a page. */
static bool navigating(const struct http_req *r)
{
    const char *accept = http_field(&r->fields, "accept"), *mode = http_field(&r->fields, "sec-fetch-mode");
    return accept && mode && strstr(accept, "text/html") && strcmp(mode, "navigate") == 0;
}

static void error_page(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, const char *message)
{
    _cleanup_buf_ struct buf out = {0};
    /* Nothing here comes from the client but the id, which is letters and digits, and numbers. */
    buf_addf(
        &out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width\"><title>%u</title><style>body{font:16px/1.5 system-ui,sans-serif;margin:15vh "
        "auto;max-width:32rem;padding:0 1rem}code{font-size:.9em}</style><h1>%s</h1><p>Sandbox <code>%s</code>",
        status, message, sandbox);
    if (port)
        buf_addf(&out, ", port <code>%u</code></p><p>Start a service on this port inside the sandbox, then reload.",
                 port);
    buf_adds(&out, "</p></html>\n");
    http_set(r, "content-security-policy", "default-src 'none'; style-src 'unsafe-inline'");
    http_reply(r, status, "text/html; charset=utf-8", buf_str(&out), out.n);
}

static void error_json(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, unsigned limit,
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

void gateway_error(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, const char *message)
{
    http_set(r, "cache-control", "no-store");
    if (navigating(r))
        error_page(r, status, sandbox, port, message);
    else
        error_json(r, status, sandbox, port, 0, message);
}

void gateway_no_sandbox(struct http_req *r, const char *sandbox)
{
    gateway_error(r, 502, sandbox, 0, "The sandbox was not found");
}

static void way_free(struct way *w)
{
    struct box *b = box_find(w->f, w->id);
    if (b && b->procs && e2b_box_of(b)->connections)
        e2b_box_of(b)->connections--;
    free(w);
}

static void client_left(struct http_req *r)
{
    struct way *w = r->user;
    if (w->call)
        link_cancel(w->f->links, w->call);
    loop_timer_del(w->f->loop, w->timer);
    way_free(w);
}

/* Takes the request away from w, which is freed. */
static void fail(struct way *w, unsigned status, bool with_port, const char *message)
{
    struct http_req *r = w->r;
    char id[SANDBOX_ID_MAX];
    uint32_t port = with_port ? w->port : 0;
    memcpy(id, w->id, sizeof id);
    api_on_closed(r, NULL);
    r->user = NULL;
    way_free(w);
    http_resume(r);
    gateway_error(r, status, id, port, message);
}

static void no_answer(void *arg, struct http_req *r, unsigned status, enum client_failure failure, const char *why)
{
    struct way *w = arg;
    (void)why;
    if (w->kept && status == 502 && failure != CLIENT_BROKEN) {
        w->again = true; /* once done() has been told */
        w->r = r;
        r->user = w;
        api_on_closed(r, client_left);
        http_pause(r);
        return;
    }
    api_on_closed(r, NULL);
    gateway_error(r, status, w->id, w->port,
                  failure == CLIENT_UNREACHED ? "The sandbox is running but port is not open"
                  : status == 504             ? "The service in the sandbox did not answer in time"
                                  : "The service in the sandbox closed the connection without a valid answer");
}

static void dial(void *arg);

static void done(void *arg, const struct proxy_result *result, struct client *again)
{
    struct way *w = arg;
    (void)result;
    if (again)
        gateway_keep(w->f->loop, w->id, w->port, w->tls, again);
    if (!w->again) {
        way_free(w);
        return;
    }
    w->again = w->kept = false;
    dial(w);
}

static struct transport *connect_tls(int fd)
{
    static struct tls_client *client; /* parameters only; made once */
    struct err err;
    if (!client && tls_client_new(&client, &err) < 0) {
        (void)close(fd);
        return NULL;
    }
    return tls_client_connect(client, fd, NULL);
}

static void join(struct way *w, struct client *upstream)
{
    const char *drop[] = {"e2b-traffic-access-token", NULL, NULL, NULL};
    size_t n = 1;
    struct http_req *r = w->r;
    if (w->drop_key)
        drop[n++] = "x-api-key";
    if (w->drop_bearer)
        drop[n++] = "authorization";
    struct proxy_options o = {
        .host = w->mask_host[0] ? w->mask_host : NULL,
        .forwarded = true,
        .drop = drop,
        .arg = w,
        .on_failure = no_answer,
        .on_done = done,
    };
    api_on_closed(r, NULL);
    r->user = NULL;
    w->r = NULL;
    proxy_start(r, upstream, &o);
    api_rewrap(r);
}

static void connected(struct way *w, int fd)
{
    struct transport *t = w->tls ? connect_tls(fd) : transport_plain(fd);
    if (t)
        join(w, client_new(w->f->loop, t));
    else
        fail(w, 502, true, "The service in the sandbox does not speak TLS");
}

static void dialed(void *arg, const struct link_status *st, int fd)
{
    struct way *w = arg;
    w->call = 0;
    if (st->code == LINK_OK)
        connected(w, fd);
    else if (st->code == LINK_GONE)
        fail(w, 502, false, "The sandbox was not found");
    else if (st->code == LINK_NOT_FOUND && ++w->dials < GATEWAY_DIALS)
        /* A server that was started a moment ago may not listen yet. */
        w->timer = loop_timer(w->f->loop, (uint64_t)w->dials * GATEWAY_DIAL_PAUSE_MS, dial, w);
    else if (st->code == LINK_NOT_FOUND)
        fail(w, 502, true, "The sandbox is running but port is not open");
    else
        fail(w, 502, true, "The sandbox could not be reached");
}

static void dial(void *arg)
{
    struct way *w = arg;
    w->timer = 0;
    w->call = link_dial(w->f->links, w->id, (uint16_t)w->port, dialed, w);
}

static void expand_mask(const char *mask, uint32_t port, char *ret, size_t n)
{
    const char *at = strstr(mask, "${PORT}");
    if (at)
        (void)snprintf(ret, n, "%.*s%u%s", (int)(at - mask), mask, port, at + 7);
    else
        (void)snprintf(ret, n, "%s", mask);
}

static bool is_our_key(const char *s) { return s && strncmp(s, "e2b_", 4) == 0; }

/* "Bearer <a key of ours>" */
static bool is_our_bearer(const char *s)
{
    return s && strncasecmp(s, "Bearer ", 7) == 0 && is_our_key(s + 7 + strspn(s + 7, " "));
}

static bool may_enter(const struct http_req *r, const struct box *b)
{
    const char *token = http_field(&r->fields, "e2b-traffic-access-token");
    return b->allow_public_traffic || (b->traffic_token[0] && token && sign_equal(token, b->traffic_token));
}

/* Whether it may be sent a second time if the first went nowhere. */
static bool repeatable(const struct http_req *r)
{
    return r->length == 0 && !http_field(&r->fields, "upgrade") &&
           (strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0 || strcmp(r->method, "OPTIONS") == 0);
}

void gateway_handle(struct api_call *c, const struct api_target *t, struct box *b)
{
    struct http_req *r = c->req;
    if (!b) {
        gateway_no_sandbox(r, t->sandbox);
        return;
    }
    if (!may_enter(r, b)) {
        gateway_error(r, 403, b->id, 0,
                      http_field(&r->fields, "e2b-traffic-access-token")
                          ? "The traffic access token is not the one of this sandbox"
                          : "This sandbox is private: send its traffic access token in E2B-Traffic-Access-Token");
        return;
    }
    struct e2b_box *own = e2b_box_of(b);
    if (own->connections >= GATEWAY_CONNECTIONS_MAX) {
        error_json(r, 429, b->id, 0, GATEWAY_CONNECTIONS_MAX, "Too many connections to this sandbox at once");
        return;
    }
    own->connections++;
    struct way *w = xcalloc(1, sizeof *w);
    w->f = c->front;
    w->r = r;
    w->port = t->port;
    /* Keys of ours that strayed. */
    w->drop_key = is_our_key(http_field(&r->fields, "x-api-key"));
    w->drop_bearer = is_our_bearer(http_field(&r->fields, "authorization"));
    memcpy(w->id, b->id, SANDBOX_ID_MAX);
    expand_mask(b->mask_host, t->port, w->mask_host, sizeof w->mask_host);
    for (size_t i = 0; i < b->nhttps_ports; i++)
        w->tls |= b->https_ports[i] == t->port;
    struct client *kept = repeatable(r) ? gateway_kept(w->id, w->port, w->tls) : NULL;
    if (kept) {
        w->kept = true;
        join(w, kept);
        return;
    }
    r->user = w;
    api_on_closed(r, client_left);
    http_pause(r);
    dial(w);
}
