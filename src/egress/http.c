/* http.c - connections of sandboxes that carry HTTP, in the clear or in TLS that egress intercepts. */
#include <stdlib.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "egress/http-int.h"
#include "http/h2.h"

static bool hflow_still(struct flow *f);
static void hflow_cut(struct flow *f);
static const struct flow_ops ops = {hflow_still, hflow_cut};

static void http_on_request(void *ctx, struct http_req *r) { exchange_start(ctx, (struct hflow *)r->owner, r); }

int http_start(struct egress *g, struct err *err)
{
    struct http_limits limits = http_default_limits;
    struct http_engine *e = xcalloc(1, sizeof *e);
    limits.connections = g->config.connections ? g->config.connections : limits.connections;
    limits.head_ms = HTTP_FRONT_HEAD_MS;
    limits.idle_ms = HTTP_FRONT_IDLE_MS;
    e->g = g;
    g->http = e;
    if (etls_new(&e->tls, err) < 0 || http_server_new(g->loop, &limits, http_on_request, e, &e->server, err) < 0 ||
        (g->trust.n > 0 && etls_trust(e->tls, g->trust.p, g->trust.n, err) < 0)) {
        http_stop(g);
        return -1;
    }
    http_server_set_h2(e->server, h2_serve);
    return 0;
}

void http_stop(struct egress *g)
{
    struct http_engine *e = g->http;
    if (!e)
        return;
    http_server_free(e->server); /* ends every HTTP flow */
    etls_free(e->tls);
    free(e);
    g->http = NULL;
}

/* The server refused bytes that are not a request, or that can be read in more than one way. */
static void hflow_on_refused(struct http_owner *o, unsigned status, const char *why, struct buf *body)
{
    const struct flow *f = ((struct hflow *)o)->f;
    char address[INET6_ADDRSTRLEN];
    if (status == 408) /* a slow client is not a refusal */
        return;
    etls_address(&f->literal, address);
    struct deny d = {.reason = NETPOL_R_MALFORMED,
                     .layer = "http",
                     .host = f->host[0] ? f->host : address,
                     .port = f->port,
                     .text = why,
                     .flow = f};
    deny_record(f->sb, &d);
    deny_body(f->sb, &d, body);
}

/* Records that a client does not trust our certificates: otherwise only the client's own log would say why it
 * failed. */
static void hflow_note_distrust(const struct hflow *hf)
{
    const char *alert = etls_distrust(&hf->front);
    _cleanup_buf_ struct buf text = {0};
    if (!alert)
        return;
    buf_addf(
        &text,
        "the client refused the sandbox's certificate (alert: %s); it has to trust the root in the system's bundle, or "
        "the host needs a rule with tls: passthrough",
        alert);
    struct deny d = {.reason = NETPOL_R_PROTOCOL,
                     .layer = "tls",
                     .host = hf->front.host,
                     .port = hf->f->port,
                     .text = buf_str(&text),
                     .flow = hf->f};
    deny_record(hf->f->sb, &d);
}

/* The connection and all its requests have ended. */
static void hflow_on_gone(struct http_owner *o)
{
    struct hflow *hf = (struct hflow *)o;
    hflow_note_distrust(hf);
    flow_end(hf->f);
    free(hf);
}

void http_flow(struct flow *f)
{
    struct http_engine *e = f->sb->g->http;
    if (f->tls && !f->sb->g->mint) { /* no certificate to show */
        flow_reset(f);
        flow_end(f);
        return;
    }
    struct hflow *hf = xcalloc(1, sizeof *hf);
    hf->owner.gone = hflow_on_gone;
    hf->owner.refused = hflow_on_refused;
    hf->f = f;
    hf->fd = flow_take_fd(f);
    f->ops = &ops;
    f->driver = hf;
    struct transport *t =
        f->tls ? etls_accept(e->tls, f, hf->fd, &hf->front) : transport_plain_after(hf->fd, f->head.p, f->head.n);
    buf_done(&f->head);
    if (!t) {
        hflow_on_gone(&hf->owner);
        return;
    }
    http_server_serve_for(e->server, t, "sandbox", &hf->owner);
}

/* Ends requests that are no longer allowed. The connection stays if others share it or none is under way: later
 * requests on it are judged anew. */
static bool hflow_still(struct flow *f)
{
    struct hflow *hf = f->driver;
    size_t n = 0;
    bool all = true;
    for (struct exchange *x = hf->exchanges; x; x = x->next, n++)
        all &= exchange_still(x);
    if (!all && n == 1)
        return false;
    for (struct exchange *x = hf->exchanges, *next; x; x = next) {
        next = x->next;
        if (x->revoked != NETPOL_R_NONE)
            exchange_abort(x);
    }
    return true;
}

static void hflow_cut(struct flow *f)
{
    static const struct linger now = {.l_onoff = 1, .l_linger = 0};
    struct hflow *hf = f->driver;
    if (hf->owner.link)
        (void)setsockopt(hf->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    http_owner_cut(&hf->owner);
    while (hf->exchanges)
        exchange_end(hf->exchanges);
    flow_end(f);
    free(hf);
}

void http_policy_changed(struct esb *s) { pool_policy_changed(s); }

void http_forget(struct esb *s)
{
    for (struct flow *f = s->flows, *next; f; f = next) {
        next = f->next;
        if (f->ops == &ops)
            hflow_cut(f);
    }
    pool_free(s);
}
