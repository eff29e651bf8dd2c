#include "http/proxy.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/strv.h"
#include "http/http1.h"

struct proxy {
    struct http_req *r;      /* NULL once we may not touch it */
    struct client *upstream; /* NULL once it is gone */
    struct loop *loop;
    loop_id timer;
    unsigned answer_ms;
    void *arg;
    const char *(*answer_field)(void *arg, const char *name, const char *value);
    bool (*unwanted)(void *arg, unsigned status, const struct http_fields *fields);
    void (*on_failure)(void *arg, struct http_req *r, unsigned status, enum client_failure failure, const char *why);
    void (*on_done)(void *arg, const struct proxy_result *result, struct client *again);
    struct proxy_result result;
    bool head;                 /* of the answer was sent */
    bool body_ended;           /* of the request */
    bool up_ended, down_ended; /* tunnel: the client's end was passed up, the upstream's down */
};

static void proxy_finish(struct proxy *p, bool whole)
{
    struct client *again = NULL;
    loop_timer_del(p->loop, p->timer);
    if (p->upstream && p->on_done && whole && client_reusable(p->upstream))
        again = p->upstream;
    else if (whole && p->result.upgraded)
        client_close(p->upstream);
    else
        client_free(p->upstream);
    p->result.whole = whole;
    if (p->on_done)
        p->on_done(p->arg, &p->result, again);
    free(p);
}

/* Gives the request back with its callbacks cleared, as a handler first sees it. */
static struct http_req *proxy_give_back(struct proxy *p)
{
    struct http_req *r = p->r;
    p->r = NULL;
    r->user = NULL;
    r->on_data = NULL;
    r->on_end = NULL;
    r->on_writable = NULL;
    r->on_closed = NULL;
    return r;
}

static void proxy_give_up(struct proxy *p, unsigned status, enum client_failure failure, const char *why)
{
    struct http_req *r = proxy_give_back(p);
    if (p->head) {
        http_abort(r);
    } else {
        p->result.status = status;
        http_resume(r);
        p->on_failure(p->arg, r, status, failure, why);
    }
    proxy_finish(p, false);
}

static void proxy_on_no_answer(void *arg)
{
    struct proxy *p = arg;
    p->timer = 0;
    proxy_give_up(p, 504, CLIENT_UNANSWERED, "no answer in time");
}

static void proxy_await_answer(struct proxy *p)
{
    if (p->answer_ms && !p->head && !p->timer)
        p->timer = loop_timer(p->loop, p->answer_ms, proxy_on_no_answer, p);
}

/* ---- from the client ---- */

static void proxy_on_request_data(struct http_req *r, const void *bytes, size_t n)
{
    struct proxy *p = r->user;
    p->result.up += n;
    if (!client_write(p->upstream, bytes, n))
        http_pause(r);
}

static void proxy_on_request_end(struct http_req *r)
{
    struct proxy *p = r->user;
    client_end(p->upstream);
    if (!p->result.upgraded) {
        p->body_ended = true;
        proxy_await_answer(p);
        return;
    }
    p->up_ended = true;
    if (p->down_ended) {
        p->r = NULL; /* that was its last callback */
        proxy_finish(p, true);
    }
}

static void proxy_on_request_writable(struct http_req *r) { client_resume(((struct proxy *)r->user)->upstream); }

static void proxy_on_request_closed(struct http_req *r)
{
    struct proxy *p = r->user;
    p->r = NULL;
    proxy_finish(p, false);
}

/* ---- from the upstream ---- */

static void proxy_copy_fields(struct proxy *p, const struct http_fields *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->v[i].name;
        if (http1_is_hop(name) || strcmp(name, "content-length") == 0 || http1_has_token(f, "connection", name))
            continue;
        const char *value = p->answer_field ? p->answer_field(p->arg, name, f->v[i].value) : f->v[i].value;
        if (value)
            http_set(p->r, name, value);
    }
}

static void proxy_on_answer_head(void *arg, unsigned status, const struct http_fields *f, uint64_t length)
{
    struct proxy *p = arg;
    loop_timer_del(p->loop, p->timer);
    p->timer = 0;
    if (p->unwanted && p->unwanted(p->arg, status, f)) {
        proxy_give_up(p, status, CLIENT_UNWANTED, "the answer is not passed on");
        return;
    }
    proxy_copy_fields(p, f);
    p->result.status = status;
    if (status == 101) {
        const char *protocol = http_field(f, "upgrade");
        if (protocol)
            http_set(p->r, "upgrade", protocol);
        p->head = http_upgrade(p->r);
        p->result.upgraded = p->head;
        if (!p->head)
            proxy_give_up(p, 502, CLIENT_BROKEN, "the upgrade came at a moment when it cannot be passed on");
        return;
    }
    p->head = true;
    http_head(p->r, status, length);
}

static void proxy_on_answer_data(void *arg, const void *bytes, size_t n)
{
    struct proxy *p = arg;
    p->result.down += n;
    if (!http_write(p->r, bytes, n))
        client_pause(p->upstream);
}

static void proxy_on_answer_end(void *arg)
{
    struct proxy *p = arg;
    if (p->result.upgraded) {
        p->down_ended = true;
        http_end(p->r);
        if (p->up_ended) {
            p->r = NULL;
            proxy_finish(p, true);
        }
        return;
    }
    http_end(proxy_give_back(p));
    proxy_finish(p, p->body_ended);
}

static void proxy_on_upstream_writable(void *arg) { http_resume(((struct proxy *)arg)->r); }

static void proxy_on_upstream_failed(void *arg, enum client_failure failure, const char *why)
{
    struct proxy *p = arg;
    if (p->result.upgraded && p->down_ended && p->up_ended)
        return;
    if (p->down_ended) { /* our direction is closed: the request can only be cut */
        http_abort(proxy_give_back(p));
        proxy_finish(p, false);
        return;
    }
    proxy_give_up(p, 502, failure, why);
}

/* ---- the request's head ---- */

struct field_list {
    struct http_field *v;
    size_t n, cap;
};

static void proxy_add_field(struct field_list *l, const char *name, const char *value)
{
    MEM_GROW(l->v, l->n, l->cap);
    l->v[l->n++] = (struct http_field){name, value};
}

static bool proxy_drops_field(const struct proxy_options *o, const struct http_fields *f, const char *name)
{
    if (http1_is_hop(name) || http1_has_token(f, "connection", name) || strcmp(name, "expect") == 0 ||
        http_field(&o->add, name))
        return true;
    if (o->forwarded && (strncmp(name, "x-forwarded-", 12) == 0 || strcmp(name, "forwarded") == 0))
        return true;
    for (const char *const *d = o->drop; d && *d; d++)
        if (strcmp(*d, name) == 0)
            return true;
    return false;
}

static bool proxy_wants_upgrade(const struct http_req *r, const struct proxy_options *o)
{
    return !o->no_upgrade && r->version == 11 && r->length == 0 && http_field(&r->fields, "upgrade") &&
           http1_has_token(&r->fields, "connection", "upgrade");
}

/* The port that the client named, or the scheme's default. */
static const char *proxy_client_port(const struct http_req *r)
{
    const char *host = r->authority ? r->authority : "", *end = strrchr(host, ']');
    const char *colon = strchr(end ? end : host, ':');
    bool number = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
    return number ? colon + 1 : r->tls ? "443" : "80";
}

/* The Forwarded field (RFC 7239). Values that are no tokens are quoted; a host that would break out of the quotes is
 * left out. */
static char *proxy_forwarded_value(const struct http_req *r)
{
    bool v6 = strchr(r->peer, ':'), named = r->authority && !strpbrk(r->authority, "\"\\");
    _cleanup_free_ char *host = named ? xasprintf("host=\"%s\";", r->authority) : xstrdup("");
    return xasprintf("for=%s%s%s;%sproto=%s", v6 ? "\"[" : "", r->peer, v6 ? "]\"" : "", host,
                     r->tls ? "https" : "http");
}

/* The field's name as the client spelt it, if the client sent the field, owned by `kept`; else `name`. */
static const char *proxy_as_spelt(const struct http_req *r, const char *name, struct strv *kept)
{
    for (size_t i = 0; i < r->fields.n; i++)
        if (strcmp(r->fields.v[i].name, name) == 0) {
            strv_take(kept, xstrndup(http_spelling(r, r->fields.v[i].name), strlen(name)));
            return kept->v[kept->n - 1];
        }
    return name;
}

/* Adds the client's fields and their replacements, spelt as by the client: some servers distinguish "X-Name" and
 * "x-name". */
static void proxy_add_asked(struct field_list *l, const struct http_req *r, const struct proxy_options *o,
                            struct strv *kept)
{
    for (size_t i = 0; i < r->fields.n; i++) {
        const struct http_field *f = &r->fields.v[i];
        if (proxy_drops_field(o, &r->fields, f->name))
            continue;
        strv_take(kept, xstrndup(http_spelling(r, f->name), strlen(f->name)));
        proxy_add_field(l, kept->v[kept->n - 1], f->value);
    }
    for (size_t i = 0; i < o->add.n; i++)
        proxy_add_field(l, proxy_as_spelt(r, o->add.v[i].name, kept), o->add.v[i].value);
}

static void proxy_start_upstream(struct proxy *p, const struct proxy_options *o)
{
    static const struct client_events events = {proxy_on_answer_head, proxy_on_answer_data, proxy_on_answer_end,
                                                proxy_on_upstream_writable, proxy_on_upstream_failed};
    struct http_req *r = p->r;
    struct field_list fields = {0};
    const char *host = o->host ? o->host : r->authority ? r->authority : "";
    _cleanup_free_ char *whole = r->query ? xasprintf("%s?%s", r->path, r->query) : NULL;
    _cleanup_free_ char *where = o->forwarded ? proxy_forwarded_value(r) : NULL;
    _cleanup_strv_ struct strv kept = {0};
    bool upgrade = proxy_wants_upgrade(r, o);
    proxy_add_asked(&fields, r, o, &kept);
    if (o->forwarded) {
        proxy_add_field(&fields, "x-forwarded-for", r->peer);
        proxy_add_field(&fields, "x-forwarded-proto", r->tls ? "https" : "http");
        proxy_add_field(&fields, "x-forwarded-host", r->authority ? r->authority : "");
        proxy_add_field(&fields, "x-forwarded-port", proxy_client_port(r));
        proxy_add_field(&fields, "forwarded", where);
    }
    if (upgrade) {
        proxy_add_field(&fields, proxy_as_spelt(r, "connection", &kept), "upgrade");
        proxy_add_field(&fields, proxy_as_spelt(r, "upgrade", &kept), http_field(&r->fields, "upgrade"));
    }
    struct client_request q = {
        .method = r->method,
        .target = o->target ? o->target
                  : whole   ? whole
                            : r->path,
        .host = host,
        .host_as = o->host || r->version == 20 ? "Host" : proxy_as_spelt(r, "host", &kept),
        .length_as = proxy_as_spelt(r, "content-length", &kept),
        .fields = {fields.v, fields.n},
        .length = r->length,
        .upgrade = upgrade,
    };
    client_start(p->upstream, &q, &events, p);
    free(fields.v);
}

void proxy_start(struct http_req *r, struct client *upstream, const struct proxy_options *o)
{
    struct proxy *p = xcalloc(1, sizeof *p);
    *p = (struct proxy){
        .r = r,
        .upstream = upstream,
        .loop = r->loop,
        .answer_ms = o->answer_ms,
        .arg = o->arg,
        .answer_field = o->answer_field,
        .unwanted = o->unwanted,
        .on_failure = o->on_failure,
        .on_done = o->on_done,
    };
    r->user = p;
    r->on_data = proxy_on_request_data;
    r->on_end = proxy_on_request_end;
    r->on_writable = proxy_on_request_writable;
    r->on_closed = proxy_on_request_closed;
    proxy_start_upstream(p, o);
    if (r->length == 0) { /* there is no body; on a second try its on_end has come before */
        p->body_ended = true;
        proxy_await_answer(p);
    }
    http_resume(r);
}
