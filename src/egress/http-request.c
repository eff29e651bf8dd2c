/* http-request.c - a request until it is sent: judged, counted, perhaps held for approval, given its secrets. Exactly
 * what was judged is sent: both are made once, from canonical parts. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/http-int.h"

static void exchange_judge(struct exchange *x);

/* ---- the end ---- */

struct http_req *exchange_let_go(struct exchange *x)
{
    struct http_req *r = x->r;
    x->r = NULL;
    r->user = NULL;
    r->on_data = NULL;
    r->on_end = NULL;
    r->on_trailer = NULL;
    r->on_writable = NULL;
    r->on_closed = NULL;
    return r;
}

struct netpol_flow exchange_flow(const struct exchange *x)
{
    return (struct netpol_flow){
        .host = x->key.host[0] ? x->key.host : NULL, .addr = x->key.literal, .port = x->key.port, .tls = x->key.tls};
}

struct netpol_request exchange_question(const struct exchange *x)
{
    return (struct netpol_request){
        .method = x->method, .target = &x->target, .fields = x->judged, .nfields = x->njudged, .length = x->length};
}

static void exchange_write_record(struct exchange *x)
{
    struct audit_secret secrets[ARRAY_LEN(x->injected.used)];
    _cleanup_free_ char *path = xstrndup(x->target.text, x->target.path_len);
    const char *query = x->target.text[x->target.path_len] == '?' ? x->target.text + x->target.path_len + 1 : NULL;
    /* A later policy revoked it, or its client did not wait for the approval. */
    enum netpol_reason no = x->admitted ? x->revoked : NETPOL_R_APPROVAL_PENDING;
    if (no == NETPOL_R_NONE && x->injected.violation)
        no = NETPOL_R_SECRET_VIOLATION; /* the secret asks to record violations, not to refuse them */
    for (size_t i = 0; i < x->injected.nused; i++)
        secrets[i] = (struct audit_secret){x->injected.used[i].name, x->injected.used[i].at};
    struct audit_record rec = {
        .kind = x->tunnel ? "websocket" : "http",
        .sandbox = x->sb,
        .flow = x->hf->f,
        .request_id = x->id,
        .host = x->host_text,
        .port = x->key.port,
        .tls = x->key.tls ? "intercept" : "none",
        .alpn = x->version == 20 ? "h2" : "http/1.1",
        .method = x->method,
        .path = path,
        .query = query,
        .status = x->status,
        .verdict = x->revoked      ? "deny"
                   : x->would_deny ? "would_deny"
                                   : "allow",
        .rule = x->rule ? x->rule->id : NULL,
        .reason = no != NETPOL_R_NONE ? netpol_reason_name(no) : NULL,
        .upstream = IN6_IS_ADDR_UNSPECIFIED(&x->addr) ? NULL : &x->addr,
        .upstream_port = x->key.port,
        .reused = x->reused,
        .bytes_up = x->up,
        .bytes_down = x->down,
        .policy_us = x->policy_us,
        .dial_us = x->dial_us,
        .first_byte_us = x->first_us,
        .total_us = egress_clock_us() - x->started_us,
        .secrets = secrets,
        .nsecrets = x->injected.nused,
        .redactions = x->injected.redact ? redact_count(x->injected.redact) : 0,
    };
    audit_write(x->e->g->audit, &rec);
}

struct inject_request exchange_injection(struct exchange *x, const struct netpol_flow *f)
{
    return (struct inject_request){
        .sandbox = x->sb,
        .flow = f,
        .rule = x->rule,
        .method = x->method,
        .target = &x->path,
        .fields = &x->fields,
        .storage = x->storage,
        .cap = x->cap,
        .keep = &x->keep,
        .body = x->gathered ? &x->body : NULL,
        .verified_tls = x->key.tls, /* TLS to upstreams is always verified */
        .unix_time = egress_now(),
    };
}

static void exchange_free(struct exchange *x)
{
    struct netpol_flow f = exchange_flow(x);
    struct inject_request q = exchange_injection(x, &f);
    if (x->injecting)
        inject_forget(&q); /* wipes secret values before the memory is reused */
    ws_client_free(x->ws_up);
    ws_server_free(x->ws_down);
    redactor_free(x->injected.redact);
    netpol_target_done(&x->target);
    netpol_unref(x->policy);
    strv_done(&x->keep);
    free(x->own);
    buf_done(&x->path);
    buf_done(&x->body);
    free(x->storage);
    free(x->judged);
    free(x);
}

void exchange_end(struct exchange *x)
{
    struct loop *l = x->e->g->loop;
    if (x->r)
        http_abort(exchange_let_go(x));
    if (x->prev)
        x->prev->next = x->next;
    else
        x->hf->exchanges = x->next;
    if (x->next)
        x->next->prev = x->prev;
    loop_timer_del(l, x->tick);
    loop_timer_del(l, x->up_timer);
    loop_timer_del(l, x->down_timer);
    if (x->asking)
        ask_cancel(x->sb, x->waiter);
    upstream_cancel(x->connecting);
    exchange_drop_upstream(x, false);
    if (x->limited)
        limit_request_end(x->sb, x->rule);
    if (x->entered)
        pool_leave(x->sb);
    if (x->injected.redact)
        x->sb->counts.redactions += redact_count(x->injected.redact);
    if (x->admitted && x->policy && netpol_settings(x->policy)->mode == NETPOL_LEARN) {
        struct netpol_flow f = exchange_flow(x);
        struct netpol_request q = exchange_question(x);
        learn_request(x->sb, &f, &q, x->up, x->down);
    }
    if (!x->refused)
        exchange_write_record(x);
    exchange_free(x);
}

void exchange_abort(struct exchange *x) { exchange_end(x); }

/* With `refusals: closed`, whether the refusal concerns the destination and not just this request: then the connection
 * fails, as it would without a proxy. A bad request to a host that may be reached is answered in words. */
static bool exchange_refusal_closes(const struct exchange *x, enum netpol_reason reason)
{
    struct netpol_decision d = {0};
    if (!flow_closes(x->hf->f))
        return false;
    switch (reason) {
    case NETPOL_R_UNREACHABLE:
    case NETPOL_R_TIMEOUT:
    case NETPOL_R_UPSTREAM_CERT:
    case NETPOL_R_RESOLVED_PRIVATE:
    case NETPOL_R_STALE_DNS:
    case NETPOL_R_NO_SNI:
    case NETPOL_R_SNI_MISMATCH:
    case NETPOL_R_HOST_MISMATCH:
        return true;
    case NETPOL_R_MALFORMED:
        return false;
    default: {
        struct netpol_flow f = exchange_flow(x);
        netpol_connect(x->sb->policy, &f, egress_now(), &d);
        return d.verdict == NETPOL_DENY;
    }
    }
}

static void exchange_refuse_with(struct exchange *x, struct deny *d)
{
    _cleanup_free_ char *path = x->target.text ? xstrndup(x->target.text, x->target.path_len) : NULL;
    struct http_req *r = x->r ? exchange_let_go(x) : NULL;
    bool closes = exchange_refusal_closes(x, d->reason);
    d->host = x->host_text;
    d->port = x->key.port;
    d->method = x->method;
    d->path = path;
    d->rule = x->rule ? x->rule->id : NULL;
    d->flow = x->hf->f;
    deny_record(x->sb, d);
    x->refused = true;
    if (r && (x->head || closes)) {
        r->hang_up = !x->head;
        http_abort(r);
    } else if (r) {
        r->bare = false;
        http_resume(r);
        deny_answer(x->sb, d, r);
    }
    exchange_end(x);
}

void exchange_refuse(struct exchange *x, enum netpol_reason reason, const char *layer, const char *text)
{
    struct deny d = {.reason = reason, .layer = layer, .text = text};
    exchange_refuse_with(x, &d);
}

static void exchange_on_client_gone(struct http_req *r)
{
    struct exchange *x = r->user;
    x->r = NULL;
    exchange_end(x);
}

/* ---- the beginning ---- */

static bool exchange_is_internal(const struct flow *f, const struct http_req *r)
{
    char host[NETPOL_NAME_MAX];
    struct in6_addr literal;
    bool is_literal;
    uint16_t port = 80;
    if (f->gate && !f->explicit_proxy && f->port == 80)
        return true;
    return r->authority && netpol_authority(r->authority, host, &literal, &is_literal, &port) && !is_literal &&
           strcmp(host, "sandbox.internal") == 0;
}

void exchange_start(struct http_engine *e, struct hflow *hf, struct http_req *r)
{
    struct esb *s = hf->f->sb;
    if (exchange_is_internal(hf->f, r)) {
        internal_handle(s, r);
        return;
    }
    struct exchange *x = xcalloc(1, sizeof *x);
    *x = (struct exchange){.e = e, .hf = hf, .sb = s, .r = r, .started_us = egress_clock_us()};
    x->next = hf->exchanges;
    if (x->next)
        x->next->prev = x;
    hf->exchanges = x;
    x->length = r->length;
    x->version = r->version;
    (void)snprintf(x->id, sizeof x->id, "%s", r->id);
    (void)snprintf(x->method, sizeof x->method, "%s", r->method);
    r->user = x;
    r->on_closed = exchange_on_client_gone;
    http_pause(r);
    s->counts.requests++;
    if (!s->policy) {
        x->refused = true; /* the sandbox is being dropped: no audit line */
        exchange_end(x);
        return;
    }
    x->entered = pool_enter(s);
    if (!exchange_identify(x))
        return;
    if (x->entered)
        exchange_judge(x);
    else
        exchange_refuse(x, NETPOL_R_CONNECTIONS, "limit", "too many requests are under way");
}

/* ---- decisions ---- */

static void exchange_give_secrets(struct exchange *x);

static void exchange_admit(struct exchange *x)
{
    unsigned retry = 0;
    if (audit_blocked(x->e->g->audit)) {
        exchange_refuse(x, NETPOL_R_AUDIT, "limit", NULL);
        return;
    }
    enum netpol_reason reason = x->wildcard && !limit_new_name(x->sb, x->key.host, &retry)
                                    ? NETPOL_R_NAMES
                                    : limit_request(x->sb, x->rule, &retry);
    if (reason != NETPOL_R_NONE) {
        struct deny d = {.reason = reason, .layer = "limit", .retry_s = retry};
        exchange_refuse_with(x, &d);
        return;
    }
    x->limited = x->admitted = true;
    x->epoch = x->sb->epoch;
    esb_host(x->sb, x->host_text)->requests++;
    if (x->max_up && x->length != HTTP_UNKNOWN && x->length > x->max_up) {
        exchange_refuse(x, NETPOL_R_BODY, "http", "the body is longer than the rule allows");
        return;
    }
    exchange_give_secrets(x);
}

static void exchange_on_decision(void *arg, enum netpol_reason reason, const char *id)
{
    struct exchange *x = arg;
    x->asking = false;
    if (reason == NETPOL_R_NONE) {
        exchange_judge(x);
        return;
    }
    struct deny d = {.reason = reason, .layer = "http", .approval = id};
    if (reason == NETPOL_R_RATE) {
        d.approval = NULL;
        d.text = "too many questions of this tenant wait for approval";
    }
    exchange_refuse_with(x, &d);
}

static void exchange_ask(struct exchange *x)
{
    struct netpol_flow f = exchange_flow(x);
    struct netpol_request q = exchange_question(x);
    x->asking = ++x->asked <= HTTP_ASKS &&
                ask_start(x->sb, &f, &q, x->rule ? x->rule->id : NULL, exchange_on_decision, x, &x->waiter) != NULL;
    if (!x->asking)
        exchange_refuse(x, NETPOL_R_APPROVAL_PENDING, "http", "too many requests wait for a decision");
}

static void exchange_judge(struct exchange *x)
{
    struct netpol_flow f = exchange_flow(x);
    struct netpol_request q = exchange_question(x);
    struct netpol_decision d = {0};
    uint64_t from = egress_clock_us();
    if (!x->sb->policy) {
        exchange_abort(x);
        return;
    }
    struct netpol *before = x->policy;
    x->policy = netpol_ref(x->sb->policy);
    netpol_unref(before);
    netpol_request(x->policy, &f, &q, egress_now(), &d);
    x->policy_us += egress_clock_us() - from;
    x->rule = d.rule;
    x->max_up = d.max_request_bytes;
    if (d.rule && d.rule->max_request_bytes && (!x->max_up || d.rule->max_request_bytes < x->max_up))
        x->max_up = d.rule->max_request_bytes;
    x->would_deny = d.would_deny;
    x->wildcard = d.wildcard;
    if (d.verdict == NETPOL_ALLOW)
        exchange_admit(x);
    else if (d.verdict == NETPOL_ASK)
        exchange_ask(x);
    else
        exchange_refuse(x, d.reason, "http", NULL);
}

/* The request itself is still allowed. Checks whether the secrets it used and the address it reached still are. */
static enum netpol_reason exchange_revoked_under(const struct exchange *x, const struct netpol_flow *f,
                                                 const struct netpol_rule *now)
{
    for (size_t i = 0; x->rule && i < x->rule->nsecrets; i++) {
        bool kept = false;
        for (size_t k = 0; now && k < now->nsecrets; k++)
            kept = kept || strcmp(x->rule->secrets[i], now->secrets[k]) == 0;
        if (!kept)
            return NETPOL_R_SECRET_UNBOUND;
    }
    if (IN6_IS_ADDR_UNSPECIFIED(&x->addr)) /* still dialling, with the old rule's private list */
        return x->rule && x->rule->nprivate > 0 && x->policy != x->sb->policy ? NETPOL_R_RESOLVED_PRIVATE
                                                                              : NETPOL_R_NONE;
    if (dial_check(x->e->g, &x->addr, now) != DIAL_OK || !netpol_resolved(x->sb->policy, f, &x->addr, egress_now()))
        return NETPOL_R_RESOLVED_PRIVATE;
    return NETPOL_R_NONE;
}

bool exchange_still(struct exchange *x)
{
    struct netpol_flow f = exchange_flow(x);
    struct netpol_request q = exchange_question(x);
    struct netpol_decision d = {0};
    if (!x->sb->policy)
        return false;
    if (!x->admitted) /* it waits for approval: ask.c calls back */
        return true;
    netpol_request(x->sb->policy, &f, &q, egress_now(), &d);
    x->revoked = d.verdict == NETPOL_ALLOW ? exchange_revoked_under(x, &f, d.rule) : d.reason;
    if (esb_grant_holds(x->sb, x->rule, x->epoch, &d))
        x->revoked = NETPOL_R_NONE;
    return x->revoked == NETPOL_R_NONE;
}

/* ---- secrets, and a connection ---- */

static void exchange_give_secrets(struct exchange *x)
{
    struct netpol_flow f = exchange_flow(x);
    struct inject_request q = exchange_injection(x, &f);
    if (!x->e->g->vault) {
        exchange_connect(x);
        return;
    }
    redactor_free(x->injected.redact);
    x->injected = (struct inject_result){0};
    x->injecting = true;
    inject_secrets(x->e->g->vault, &q, &x->injected);
    if (x->injected.reason != NETPOL_R_NONE) {
        exchange_refuse(x, x->injected.reason, "secret", x->injected.text);
    } else if (!x->injected.need_body || x->gathered) {
        tunnel_prepare(x);
        exchange_connect(x);
    } else if (x->length == 0) {
        x->gathered = true;
        exchange_give_secrets(x);
    } else {
        exchange_gather(x);
    }
}

void exchange_gathered(struct exchange *x)
{
    x->gathered = true;
    exchange_give_secrets(x);
}

static void exchange_on_connected(void *arg, const struct connected *c)
{
    struct exchange *x = arg;
    x->connecting = NULL;
    x->dial_us = c->dial_us;
    x->addr = c->addr;
    if (c->reason != NETPOL_R_NONE) {
        bool certificate = c->reason == NETPOL_R_UPSTREAM_CERT;
        exchange_refuse(x, c->reason, certificate ? "tls" : "tcp", c->text && c->text[0] ? c->text : NULL);
        return;
    }
    x->conn = c->conn;
    x->reused |= c->shared;
    struct netpol_flow f = exchange_flow(x);
    if (x->sb->policy && !netpol_resolved(x->sb->policy, &f, &x->addr, egress_now())) {
        exchange_refuse(x, NETPOL_R_RESOLVED_PRIVATE, "tcp", "the policy has changed since the address was checked");
        return;
    }
    exchange_forward(x);
}

void exchange_connect(struct exchange *x)
{
    x->conn = x->retried ? NULL : pool_take_conn(x->sb, &x->key, x->rule);
    x->reused = x->conn != NULL;
    if (x->conn) {
        x->addr = x->conn->addr;
        exchange_forward(x);
    } else if (!pool_room(x->sb)) {
        exchange_refuse(x, NETPOL_R_CONNECTIONS, "limit", "too many connections to upstreams are open");
    } else {
        x->connecting = upstream_connect(x->e, x->sb, &x->key, x->policy, x->rule, exchange_on_connected, x);
    }
}
