#include "front/gateway.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/fd.h"
#include "base/mem.h"
#include "front/e2b/e2b.h"
#include "front/gateway-int.h"
#include "http/proxy.h"
#include "http/tls.h"

/* One request on its way to a service inside. */
struct way {
    struct front *f;
    struct http_req *r; /* NULL once the proxy has it */
    char id[SANDBOX_ID_MAX];
    struct gateway_names names;
    struct gateway_entry entry;
    struct buf scratch;
    bool drop_key, drop_bearer;
    bool kept;  /* goes over a connection that was used before */
    bool again; /* which was closed meanwhile: dial */
    unsigned dials;
    link_call call;
    loop_id timer;
};

static const char closed_hint[] = "Start a service on this port inside the sandbox, then reload this page.";

static void way_free(struct way *w)
{
    struct box *b = box_find(w->f, w->id);
    if (b && b->procs && e2b_box_of(b)->connections)
        e2b_box_of(b)->connections--;
    gateway_entry_done(&w->entry);
    buf_done(&w->scratch);
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
static void fail(struct way *w, unsigned status, bool with_port, const char *message, const char *hint)
{
    struct http_req *r = w->r;
    char id[SANDBOX_ID_MAX];
    uint32_t port = with_port ? w->names.port : 0;
    memcpy(id, w->id, sizeof id);
    api_on_closed(r, NULL);
    r->user = NULL;
    way_free(w);
    http_resume(r);
    gateway_refuse(r, status, id, port, 0, message, hint);
}

/* A pause came between, before anything was sent: it is served as one that comes now, which wakes the sandbox if it may. */
static void come_again(struct way *w)
{
    struct http_req *r = w->r;
    api_on_closed(r, NULL);
    r->user = NULL;
    way_free(w);
    http_resume(r);
    api_again(api_call_of(r));
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
    bool closed = failure == CLIENT_UNREACHED;
    gateway_refuse(r, status, w->id, w->names.port, 0,
                   closed          ? "The sandbox is running but port is not open"
                   : status == 504 ? "The service in the sandbox did not answer in time"
                                   : "The service in the sandbox closed the connection without a valid answer",
                   closed ? closed_hint : NULL);
}

static void dial(void *arg);

static void done(void *arg, const struct proxy_result *result, struct client *again)
{
    struct way *w = arg;
    (void)result;
    if (again)
        gateway_keep(w->f->loop, w->id, w->names.port, w->names.tls, again);
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
        fd_close_foreign(fd);
        return NULL;
    }
    return tls_client_connect(client, fd, NULL);
}

static const char *answer_field(void *arg, const char *name, const char *value)
{
    struct way *w = arg;
    return gateway_answer_field(&w->names, name, value, &w->scratch);
}

/* What the service is told instead of what the client said. */
struct changes {
    const char *drop[8];
    struct http_field add[4];
    size_t ndrop, nadd;
    struct buf origin, referer;
};

static void make_changes(const struct way *w, struct changes *c)
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

static void join(struct way *w, struct client *upstream)
{
    struct http_req *r = w->r;
    struct changes c = {0};
    make_changes(w, &c);
    struct proxy_options o = {
        .target = w->entry.target,
        .host = w->names.host[0] ? w->names.host : NULL,
        .forwarded = true,
        .answer_ms = w->f->config->answer_timeout_s * 1000,
        .drop = c.drop,
        .add = {c.add, c.nadd},
        .arg = w,
        .answer_field = answer_field,
        .on_failure = no_answer,
        .on_done = done,
    };
    api_on_closed(r, NULL);
    r->user = NULL;
    w->r = NULL;
    proxy_start(r, upstream, &o);
    api_rewrap(r);
    buf_done(&c.origin);
    buf_done(&c.referer);
}

static void connected(struct way *w, int fd)
{
    struct transport *t = w->names.tls ? connect_tls(fd) : transport_plain(fd);
    if (t)
        join(w, client_new(w->f->loop, t));
    else
        fail(w, 502, true, "The service in the sandbox does not speak TLS", NULL);
}

static void dialed(void *arg, const struct link_status *st, int fd)
{
    struct way *w = arg;
    w->call = 0;
    if (st->code == LINK_OK)
        connected(w, fd);
    else if (st->code == LINK_GONE)
        fail(w, 502, false, "The sandbox was not found", NULL);
    else if (st->code == LINK_PAUSED)
        come_again(w);
    else if (st->code == LINK_NOT_FOUND && ++w->dials < GATEWAY_DIALS)
        /* A server that was started a moment ago may not listen yet. */
        w->timer = loop_timer(w->f->loop, (uint64_t)w->dials * GATEWAY_DIAL_PAUSE_MS, dial, w);
    else if (st->code == LINK_NOT_FOUND)
        fail(w, 502, true, "The sandbox is running but port is not open", closed_hint);
    else
        fail(w, 502, true, "The sandbox could not be reached", NULL);
}

static void dial(void *arg)
{
    struct way *w = arg;
    const struct box *b = box_find(w->f, w->id);
    w->timer = 0;
    if (b && b->state != BOX_RUNNING)
        come_again(w);
    else
        w->call = link_dial(w->f->links, w->id, (uint16_t)w->names.port, dialed, w);
}

static bool is_our_key(const char *s) { return s && strncmp(s, "e2b_", 4) == 0; }

/* "Bearer <a key of ours>" */
static bool is_our_bearer(const char *s)
{
    return s && strncasecmp(s, "Bearer ", 7) == 0 && is_our_key(s + 7 + strspn(s + 7, " "));
}

/* Whether it may be sent a second time if the first went nowhere. */
static bool repeatable(const struct http_req *r)
{
    return r->length == 0 && !http_field(&r->fields, "upgrade") &&
           (strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0 || strcmp(r->method, "OPTIONS") == 0);
}

/* Off towards the service; e's strings are taken over. */
static void set_out(struct api_call *c, struct box *b, const struct gateway_names *names, struct gateway_entry *e)
{
    struct http_req *r = c->req;
    struct way *w = xcalloc(1, sizeof *w);
    e2b_box_of(b)->connections++;
    *w = (struct way){.f = c->front, .r = r, .names = *names, .entry = *e};
    *e = (struct gateway_entry){0};
    /* Keys of ours that strayed. */
    w->drop_key = is_our_key(http_field(&r->fields, "x-api-key"));
    w->drop_bearer = is_our_bearer(http_field(&r->fields, "authorization"));
    memcpy(w->id, b->id, SANDBOX_ID_MAX);
    struct client *kept = repeatable(r) ? gateway_kept(w->id, names->port, names->tls) : NULL;
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

void gateway_handle(struct api_call *c, const struct api_target *t, struct box *b)
{
    struct http_req *r = c->req;
    struct gateway_names names;
    struct gateway_entry e;
    http_set(r, "x-robots-tag", "noindex");
    if (!b) {
        gateway_no_sandbox(r, t->sandbox);
        return;
    }
    gateway_names(r, b, t->port, &names);
    gateway_enter(c->front, r, b, t->port, &e);
    if (e.welcome && names.origin[0])
        gateway_welcome(r, &names, &e);
    else if (!e.allowed)
        gateway_refuse(r, 403, b->id, 0, 0, e.message, e.hint);
    else if (e2b_box_of(b)->connections >= GATEWAY_CONNECTIONS_MAX)
        gateway_refuse(r, 429, b->id, 0, GATEWAY_CONNECTIONS_MAX, "Too many connections to this sandbox at once", NULL);
    else
        set_out(c, b, &names, &e);
    gateway_entry_done(&e);
}

bool gateway_may_wake(const struct api_call *c, const struct box *b)
{
    struct gateway_entry e;
    gateway_enter(c->front, c->req, b, c->port, &e);
    bool yes = e.allowed;
    gateway_entry_done(&e);
    return yes;
}
