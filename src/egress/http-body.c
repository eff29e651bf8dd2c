/* http-body.c - forwards a request: both bodies, each at the pace of the slower side, the answer's head, tunnels,
 * timeouts. Bytes are passed on at once, so that event streams arrive as they were sent. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/http-int.h"
#include "egress/secrets/secrets-int.h"
#include "http/http1.h"

static void exchange_start_ticking(struct exchange *x);

/* ---- the upstream, over HTTP/1 or HTTP/2 ---- */

static bool leg_write(struct exchange *x, const void *p, size_t n)
{
    return x->stream ? h2up_write(x->stream, p, n) : client_write(x->conn->h1, p, n);
}

static void leg_end(struct exchange *x)
{
    if (x->stream)
        h2up_end(x->stream);
    else if (x->conn && x->conn->h1)
        client_end(x->conn->h1);
}

static void leg_pause(struct exchange *x, bool on)
{
    if (!x->conn || x->answered)
        return;
    if (x->stream)
        (on ? h2up_pause : h2up_resume)(x->stream);
    else if (x->conn->h1)
        (on ? client_pause : client_resume)(x->conn->h1);
}

void exchange_drop_upstream(struct exchange *x, bool keep)
{
    struct upconn *c = x->conn;
    if (x->stream)
        h2up_cancel(x->stream);
    x->stream = NULL;
    x->conn = NULL;
    if (c)
        pool_release(c, keep);
}

/* ---- pace ---- */

static void exchange_pace_up(struct exchange *x)
{
    if (!x->r)
        return;
    if (x->up_full || x->up_slow)
        http_pause(x->r);
    else
        http_resume(x->r);
}

static void exchange_pace_down(struct exchange *x) { leg_pause(x, x->down_full || x->down_slow); }

static void exchange_on_up_timer(void *arg)
{
    struct exchange *x = arg;
    x->up_timer = 0;
    x->up_slow = false;
    exchange_pace_up(x);
}

static void exchange_on_down_timer(void *arg)
{
    struct exchange *x = arg;
    x->down_timer = 0;
    x->down_slow = false;
    exchange_pace_down(x);
}

/* Counts bytes of one direction. false: the exchange was refused and is gone. */
static bool exchange_count(struct exchange *x, uint64_t up, uint64_t down)
{
    struct loop *l = x->e->g->loop;
    x->moved_ms = loop_now(l);
    x->up += up;
    x->down += down;
    x->hf->f->bytes_up += up;
    x->hf->f->bytes_down += down;
    enum netpol_reason reason = limit_bytes(x->sb, x->host_text, up, down);
    if (reason != NETPOL_R_NONE) {
        exchange_refuse(x, reason, "limit", NULL);
        return false;
    }
    unsigned wait = limit_wait(x->sb, up > 0);
    if (wait > 0 && up > 0 && !x->up_slow) {
        x->up_slow = true;
        x->up_timer = loop_timer(l, wait, exchange_on_up_timer, x);
    } else if (wait > 0 && down > 0 && !x->down_slow) {
        x->down_slow = true;
        x->down_timer = loop_timer(l, wait, exchange_on_down_timer, x);
    }
    return true;
}

/* ---- from the client ---- */

static bool exchange_over_limit(const struct exchange *x) { return !x->tunnel && x->max_up && x->up > x->max_up; }

static void exchange_on_request_data(struct http_req *r, const void *p, size_t n)
{
    struct exchange *x = r->user;
    if (!exchange_count(x, n, 0))
        return;
    if (exchange_over_limit(x)) {
        exchange_refuse(x, NETPOL_R_BODY, "http", "the body is longer than the rule allows");
        return;
    }
    if (!x->tunnel && x->length != HTTP_UNKNOWN && x->up > x->length) {
        exchange_abort(x); /* cannot happen: both protocols refuse a body longer than declared */
        return;
    }
    if (!x->ws_up) {
        x->up_full |= !leg_write(x, p, n);
    } else {
        _cleanup_buf_wipe_ struct buf out = {0};
        if (!ws_client_feed(x->ws_up, p, n, &out)) {
            exchange_refuse(x, x->injected.reason, "secret", x->injected.text);
            return;
        }
        x->up_full |= out.n > 0 && !leg_write(x, out.p, out.n);
    }
    if (x->up_full || x->up_slow)
        exchange_pace_up(x);
}

/* Fields that say how a message is read, where it goes or who sends it (RFC 9110, 6.5.1). As trailers they come too
 * late for the checks on the head, yet some servers obey them. */
static bool is_forbidden_trailer(const char *name)
{
    static const char *const exact[] = {"host",
                                        "authorization",
                                        "cookie",
                                        "set-cookie",
                                        "expect",
                                        "range",
                                        "te",
                                        "cache-control",
                                        "age",
                                        "max-forwards",
                                        "pragma",
                                        "origin",
                                        "vary",
                                        "date",
                                        "expires",
                                        "location",
                                        "retry-after",
                                        "alt-svc",
                                        "authentication-info",
                                        "strict-transport-security",
                                        "transfer-encoding",
                                        "forwarded",
                                        "x-http-method",
                                        "x-http-method-override",
                                        "x-method-override",
                                        "http2-settings"};
    static const char *const prefixes[] = {"content-",     "proxy-",          "if-", "sec-",
                                           "x-forwarded-", "access-control-", "www-"};
    for (size_t i = 0; i < ARRAY_LEN(exact); i++)
        if (strcmp(name, exact[i]) == 0)
            return true;
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return http1_is_hop(name);
}

static bool has_placeholder(const struct esb *s, const char *value)
{
    for (size_t i = 0; i < s->placeholders.cap; i++)
        if (s->placeholders.slots[i].key && strstr(value, s->placeholders.slots[i].key))
            return true;
    return false;
}

/* Judges the request again with one more field. */
static enum netpol_reason exchange_judge_trailer(struct exchange *x, const char *name, const char *value)
{
    struct netpol_flow f = exchange_flow(x);
    struct netpol_request q = exchange_question(x);
    struct netpol_decision d = {0};
    struct netpol_field *fields = xcalloc(x->njudged + 1, sizeof *fields);
    if (x->njudged > 0)
        memcpy(fields, x->judged, x->njudged * sizeof *fields);
    fields[x->njudged] = (struct netpol_field){name, value};
    q.fields = fields;
    q.nfields = x->njudged + 1;
    netpol_request(x->policy, &f, &q, egress_now(), &d);
    free(fields);
    return d.verdict == NETPOL_DENY ? d.reason : NETPOL_R_NONE;
}

static void exchange_on_request_trailer(struct http_req *r, const char *name, const char *value)
{
    struct exchange *x = r->user;
    if (x->tunnel || x->gathered || !exchange_count(x, strlen(name) + strlen(value), 0))
        return;
    if (is_forbidden_trailer(name)) {
        exchange_refuse(x, NETPOL_R_MALFORMED, "http",
                        "a field stands behind the body that may only stand in the head");
        return;
    }
    if (has_placeholder(x->sb, value)) {
        x->sb->counts.violations++;
        exchange_refuse(x, NETPOL_R_SECRET_VIOLATION, "secret", "no secret goes into a field behind the body");
        return;
    }
    enum netpol_reason no = exchange_judge_trailer(x, name, value);
    if (no != NETPOL_R_NONE) {
        exchange_refuse(x, no, "http", "because of a field behind the body");
        return;
    }
    if (x->stream)
        h2up_trailer(x->stream, name, value);
    else if (x->conn && x->conn->h1)
        client_trailer(x->conn->h1, name, value);
}

static void tunnel_finish(struct exchange *x)
{
    x->r = NULL; /* that was its last callback */
    client_close(TAKE_PTR(x->conn->h1));
    exchange_end(x);
}

static void exchange_on_request_end(struct http_req *r)
{
    struct exchange *x = r->user;
    if (!x->tunnel) {
        x->body_ended = x->body_told = true;
        x->moved_ms = loop_now(x->e->g->loop);
        leg_end(x);
        return;
    }
    leg_end(x);
    x->up_ended = true;
    if (x->down_ended)
        tunnel_finish(x);
}

static void exchange_on_client_writable(struct http_req *r)
{
    struct exchange *x = r->user;
    x->down_full = false;
    exchange_pace_down(x);
}

/* ---- from the upstream ---- */

/* The body is compressed or encoded: redaction would not find a secret in it. */
static bool is_coded(const struct http_fields *f)
{
    const char *coding = http_field(f, "content-encoding"), *inside = http_field(f, "grpc-encoding");
    return (coding && strcasecmp(coding, "identity") != 0) || (inside && strcasecmp(inside, "identity") != 0);
}

static void exchange_set_field(struct exchange *x, const char *name, const char *value, bool trailer)
{
    _cleanup_free_ char *hidden = NULL;
    if (x->injected.redact && redact_value(x->injected.redact, value, &hidden))
        value = hidden;
    if (trailer)
        http_trailer(x->r, name, value);
    else
        http_set(x->r, name, value);
}

void exchange_copy_fields(struct exchange *x, const struct http_fields *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->v[i].name;
        /* alt-svc would send the client to another port or protocol, which egress does not serve. */
        if (!http1_is_hop(name) && strcmp(name, "content-length") != 0 && strcmp(name, "alt-svc") != 0 &&
            strcmp(name, "proxy-authenticate") != 0 && !http1_has_token(f, "connection", name))
            exchange_set_field(x, name, f->v[i].value, false);
    }
}

static void exchange_on_answer_head(void *arg, unsigned status, const struct http_fields *f, uint64_t length)
{
    struct exchange *x = arg;
    uint64_t max = x->rule ? x->rule->max_response_bytes : 0;
    bool empty = strcmp(x->method, "HEAD") == 0 || status == 204 || status == 304;
    x->first_us = egress_clock_us() - x->started_us;
    x->moved_ms = loop_now(x->e->g->loop);
    x->status = status;
    x->r->bare = true;
    if (status == 101) {
        tunnel_open(x, f);
        return;
    }
    if (max && length != HTTP_UNKNOWN && length > max && !empty) {
        exchange_refuse(x, NETPOL_R_RESPONSE, "http", "the answer is longer than the rule allows");
        return;
    }
    x->redact_body = x->injected.redact && !empty;
    if (x->redact_body && is_coded(f)) {
        exchange_refuse(x, NETPOL_R_CODED, "secret", NULL);
        return;
    }
    exchange_copy_fields(x, f);
    x->head = true;
    http_head(x->r, status, x->redact_body ? HTTP_UNKNOWN : length);
}

static void exchange_on_answer_data(void *arg, const void *p, size_t n)
{
    struct exchange *x = arg;
    uint64_t max = x->rule ? x->rule->max_response_bytes : 0;
    if (!exchange_count(x, 0, n))
        return;
    if (max && !x->tunnel && x->down > max) {
        exchange_refuse(x, NETPOL_R_RESPONSE, "http", "the answer is longer than the rule allows");
        return;
    }
    if (x->redact_body || x->ws_down) {
        _cleanup_buf_ struct buf out = {0};
        if (!x->ws_down) {
            redact_feed(x->injected.redact, p, n, &out);
        } else if (!ws_server_feed(x->ws_down, p, n, &out)) {
            exchange_refuse(x, NETPOL_R_CODED, "secret", "a frame of the WebSocket is not what it should be");
            return;
        }
        x->down_full |= out.n > 0 && !http_write(x->r, out.p, out.n);
    } else {
        x->down_full |= !http_write(x->r, p, n);
    }
    if (x->down_full || x->down_slow)
        exchange_pace_down(x);
}

static void exchange_on_answer_trailer(void *arg, const char *name, const char *value)
{
    struct exchange *x = arg;
    if (!is_forbidden_trailer(name))
        exchange_set_field(x, name, value, true);
}

static void exchange_on_answer_end(void *arg)
{
    struct exchange *x = arg;
    if (x->tunnel) {
        x->down_ended = true;
        http_end(x->r);
        if (x->up_ended)
            tunnel_finish(x);
        return;
    }
    x->answered = true;
    x->stream = NULL;
    if (x->redact_body) {
        _cleanup_buf_ struct buf rest = {0};
        redact_end(x->injected.redact, &rest);
        if (rest.n > 0)
            (void)http_write(x->r, rest.p, rest.n);
    }
    http_end(exchange_let_go(x));
    exchange_drop_upstream(x, x->body_ended);
    exchange_end(x);
}

static void exchange_on_upstream_writable(void *arg)
{
    struct exchange *x = arg;
    x->up_full = false;
    exchange_pace_up(x);
}

/* A reused connection may have died before the server read the request; then the request may be sent again. */
static bool exchange_may_retry(const struct exchange *x, enum client_failure failure)
{
    return x->reused && !x->retried && !x->head && failure != CLIENT_BROKEN && (x->length == 0 || x->gathered);
}

static void exchange_on_upstream_failed(void *arg, enum client_failure failure, const char *text)
{
    struct exchange *x = arg;
    bool again = exchange_may_retry(x, failure);
    x->answered = true;
    x->stream = NULL;
    exchange_drop_upstream(x, false);
    if (again) {
        x->retried = true;
        x->answered = x->body_ended = false;
        http_pause(x->r);
        exchange_connect(x);
    } else if (x->head) {
        exchange_abort(x);
    } else {
        exchange_refuse(x, NETPOL_R_UNREACHABLE, "http", text);
    }
}

/* ---- time ---- */

static void exchange_on_tick(void *arg)
{
    struct exchange *x = arg;
    uint64_t silent = loop_now(x->e->g->loop) - x->moved_ms;
    x->tick = 0;
    bool owes = !x->tunnel && !x->body_ended && !x->gathered && !x->up_full && !x->up_slow && x->length != 0;
    if (x->head ? silent >= HTTP_STREAM_MS : owes && silent >= HTTP_BODY_MS)
        exchange_abort(x);
    else if (!x->head && silent >= HTTP_ANSWER_MS)
        exchange_refuse(x, NETPOL_R_TIMEOUT, "http", "no answer came in time");
    else
        exchange_start_ticking(x);
}

static void exchange_start_ticking(struct exchange *x)
{
    loop_timer_del(x->e->g->loop, x->tick);
    x->tick = loop_timer(x->e->g->loop, HTTP_TICK_MS, exchange_on_tick, x);
}

/* ---- the start ---- */

static void exchange_add_field(struct exchange *x, const char *name, const char *value)
{
    if (x->fields.n < x->cap)
        x->storage[x->fields.n++] = (struct http_field){name, value};
}

static void exchange_send_head(struct exchange *x)
{
    static const struct h2up_events events = {{exchange_on_answer_head, exchange_on_answer_data, exchange_on_answer_end,
                                               exchange_on_upstream_writable, exchange_on_upstream_failed},
                                              exchange_on_answer_trailer};
    size_t before = x->fields.n;
    if (x->websocket) {
        exchange_add_field(x, "connection", "upgrade");
        exchange_add_field(x, "upgrade", "websocket");
    } else if (x->te_trailers) {
        exchange_add_field(x, "te", "trailers");
        if (!x->conn->h2) /* in HTTP/1 `te` is hop-by-hop and must be named here */
            exchange_add_field(x, "connection", "te");
    }
    struct client_request q = {
        .method = x->method,
        .target = buf_str(&x->path),
        .host = x->authority,
        .fields = x->fields,
        .length = x->gathered ? x->body.n : x->length,
        .upgrade = x->websocket,
        .secret = x->injected.nused > 0,
    };
    if (x->conn->h2) {
        x->stream = h2up_start(x->conn->h2, &q, x->key.tls ? "https" : "http", &events, x);
    } else {
        client_start(x->conn->h1, &q, &events.answer, x);
        client_want_trailers(x->conn->h1, exchange_on_answer_trailer);
    }
    x->fields.n = before; /* a second try may speak another protocol */
}

void exchange_forward(struct exchange *x)
{
    struct http_req *r = x->r;
    x->moved_ms = loop_now(x->e->g->loop);
    exchange_start_ticking(x);
    exchange_send_head(x);
    r->on_data = exchange_on_request_data;
    r->on_end = exchange_on_request_end;
    r->on_trailer = exchange_on_request_trailer;
    r->on_writable = exchange_on_client_writable;
    if (x->gathered) {
        x->body_ended = true;
        if (x->body.n > 0)
            (void)leg_write(x, x->body.p, x->body.n);
        leg_end(x);
    } else if (x->body_told) {
        x->body_ended = true; /* a retry: there is no body, and the client ended it before the first try */
    }
    http_resume(r);
}

/* ---- a body that is looked into ---- */

static void exchange_on_gather_data(struct http_req *r, const void *p, size_t n)
{
    struct exchange *x = r->user;
    if (!exchange_count(x, n, 0))
        return;
    if (exchange_over_limit(x) || x->body.n + n > SECRET_BODY_MAX) {
        exchange_refuse(x, NETPOL_R_BODY, "secret",
                        exchange_over_limit(x) ? "the body is longer than the rule allows"
                                               : "a secret goes into the body, which may then have at most 256 KiB");
        return;
    }
    buf_add(&x->body, p, n);
    if (x->up_slow)
        exchange_pace_up(x);
}

static void exchange_on_gather_end(struct http_req *r)
{
    struct exchange *x = r->user;
    x->gathering = false;
    http_pause(r);
    exchange_gathered(x);
}

void exchange_gather(struct exchange *x)
{
    x->gathering = true;
    x->moved_ms = loop_now(x->e->g->loop);
    exchange_start_ticking(x);
    x->r->on_data = exchange_on_gather_data;
    x->r->on_end = exchange_on_gather_end;
    http_resume(x->r);
}
