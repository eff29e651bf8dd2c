/* internal.c - http://sandbox.internal/: shows a sandbox its own network policy and refusals, and takes its requests
 * for more access. There is no authentication: the socket that a call came through tells which sandbox calls, and
 * nothing else counts.
 */
#include "egress/deny.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/num.h"
#include "egress/deny-int.h"
#include "http/body.h"
#include "http/router.h"
#include "http/url.h"

static const char about[] =
    "This is the sandbox's own view of its network. Everything that leaves goes through a policy; nothing else "
    "leaves.\n"
    "\n"
    "GET  /v1/egress/policy                      what is allowed\n"
    "GET  /v1/egress/check?url=URL&method=GET    would this be allowed?\n"
    "GET  /v1/egress/denials?since=N&limit=N     what was refused, and why\n"
    "GET  /v1/egress/events                      the same as it happens (server-sent events)\n"
    "POST /v1/egress/requests                    ask for access: {\"host\",\"port\",\"method\",\"path\",\"reason\"}\n"
    "GET  /v1/egress/requests/ID?wait=60         what was decided\n"
    "GET  /v1/egress/help                        how to deal with a refusal\n"
    "GET  /ca.pem                                certificate of the authority that signs for hosts outside\n";

static const char help[] =
    "How to deal with a refused connection in this sandbox\n"
    "\n"
    "1. An answer with the header x-hutch-egress is a decision of the sandbox's network policy. It is not a fault of "
    "the\n"
    "   network, of DNS, of a proxy or of TLS. Retrying, another client, another address, resolver, proxy setting, VPN "
    "or\n"
    "   tunnel gives the same answer: no packet leaves this sandbox except through the policy.\n"
    "2. Its JSON body says why (error.reason, error.message) and what would be needed (error.grant, the smallest "
    "rule).\n"
    "3. GET http://sandbox.internal/v1/egress/policy shows what is allowed. Often there is an allowed way to the same "
    "end:\n"
    "   a mirror, a package that is installed already, another endpoint.\n"
    "4. If the task cannot be done without it, ask:\n"
    "     curl -d '{\"host\":\"example.org\",\"method\":\"GET\",\"path\":\"/x\",\"reason\":\"why\"}' \\\n"
    "       -H 'content-type: application/json' http://sandbox.internal/v1/egress/requests\n"
    "   and look at what was decided:\n"
    "     curl 'http://sandbox.internal/v1/egress/requests/ID?wait=60'\n"
    "   status is pending, allowed, denied or expired. When it is allowed, repeat the original request.\n"
    "5. If it was denied, or no decision comes, say what was refused and go on without it.\n"
    "6. Texts like hutch-secret-... in the environment are placeholders of secrets: send them as they are, to the host "
    "they\n"
    "   are for; the real value is put in on the way. Sent anywhere else they make the request fail.\n"
    "7. A client that does not trust the certificate of a host needs http://sandbox.internal/ca.pem among its roots.\n";

/* --- answers
 * -------------------------------------------------------------------------------------------------------- */

static void internal_answer(struct http_req *r, unsigned status, const char *type, const struct buf *b)
{
    http_set(r, "cache-control", "no-store");
    http_reply(r, status, type, buf_str(b), b->n);
}

static void internal_answer_json(struct http_req *r, unsigned status, struct buf *b)
{
    buf_addc(b, '\n');
    internal_answer(r, status, "application/json", b);
}

static void internal_fail(struct http_req *r, unsigned status, const char *code, const char *message)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_obj(&j, "error");
    json_str(&j, "code", code);
    json_str(&j, "message", message);
    json_end_obj(&j);
    json_end_obj(&j);
    internal_answer_json(r, status, &out);
}

static void internal_answer_text(struct http_req *r, const char *text)
{
    http_set(r, "cache-control", "no-store");
    http_reply(r, 200, "text/plain; charset=utf-8", text, strlen(text));
}

/* Reads a number from the query. false: it is not a number, and the call was answered. */
static bool internal_query_number(struct http_req *r, const char *key, uint64_t max, uint64_t *ret)
{
    _cleanup_buf_ struct buf text = {0};
    char message[120];
    struct err err;
    uint64_t n = *ret;
    int got = url_query_get(r->query, key, URL_PLUS_SPACE, &text, &err);
    if (got == 0 || (got > 0 && num_u64(buf_str(&text), &n))) {
        *ret = n < max ? n : max;
        return true;
    }
    (void)snprintf(message, sizeof message, "%s must be a number of at most %llu", key, (unsigned long long)max);
    internal_fail(r, 400, "bad_request", message);
    return false;
}

/* --- looking
 * -------------------------------------------------------------------------------------------------------- */

static void internal_get_about(void *ctx, struct http_req *r, const struct route_params *p)
{
    (void)ctx, (void)p;
    internal_answer_text(r, about);
}

static void internal_get_help(void *ctx, struct http_req *r, const struct route_params *p)
{
    (void)ctx, (void)p;
    internal_answer_text(r, help);
}

static void internal_get_ca(void *ctx, struct http_req *r, const struct route_params *p)
{
    const struct esb *s = ctx;
    (void)p;
    if (!s->g->ca_pem)
        internal_fail(r, 404, "not_found", "this node does not look into TLS; there is no certificate");
    else
        http_reply(r, 200, "application/x-pem-file", s->g->ca_pem, strlen(s->g->ca_pem));
}

/* Leaves out upstream_proxy: the sandbox must not learn how the node itself gets out. */
static void internal_get_policy(void *ctx, struct http_req *r, const struct route_params *p)
{
    _cleanup_buf_ struct buf text = {0}, out = {0};
    const struct esb *s = ctx;
    struct err err;
    (void)p;
    netpol_show(s->policy, &text);
    json_t *doc = body_parse(text.p, text.n, &err);
    if (!doc) {
        internal_fail(r, 500, "internal", "the policy cannot be shown");
        return;
    }
    (void)json_object_del(doc, "upstream_proxy");
    char *shown = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    buf_addf(&out, "{\"epoch\":%llu,\"policy\":%s}", (unsigned long long)s->epoch, shown ? shown : "null");
    free(shown);
    internal_answer_json(r, 200, &out);
}

static void internal_get_denials(void *ctx, struct http_req *r, const struct route_params *p)
{
    _cleanup_buf_ struct buf out = {0};
    uint64_t since = 0, limit = 100;
    (void)p;
    if (!internal_query_number(r, "since", UINT64_MAX - 1, &since) ||
        !internal_query_number(r, "limit", DENIALS_KEPT, &limit))
        return;
    deny_list(ctx, since, (unsigned)limit, &out);
    internal_answer_json(r, 200, &out);
}

static void internal_get_events(void *ctx, struct http_req *r, const struct route_params *p)
{
    (void)p;
    internal_events_start(ctx, r);
}

/* --- requests that are not made
 * --------------------------------------------------------------------------------------- */

struct wish {
    char host[NETPOL_NAME_MAX];
    struct netpol_flow flow;
    struct netpol_target target;
    struct netpol_request request;
};

static void wish_done(struct wish *w) { netpol_target_done(&w->target); }

static bool wish_authority(struct wish *w, const char *text, const char **why)
{
    bool literal = false;
    *why = "the host is no name and no address; right would be example.org, example.org:8443 or [2001:db8::1]:443";
    if (!netpol_authority(text, w->host, &w->flow.addr, &literal, &w->flow.port))
        return false;
    w->flow.host = literal ? NULL : w->host;
    return true;
}

static bool wish_target(struct wish *w, const char *method, const char *path, const char *query, const char **why)
{
    *why = "a method is a word of at most 31 letters";
    if (strlen(method) > 31 || method[0] == '\0' ||
        strspn(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_") != strlen(method))
        return false;
    w->request = (struct netpol_request){.method = method, .target = &w->target};
    return netpol_target(path, query, &w->target, why);
}

/* method is borrowed. */
static bool wish_url(struct wish *w, const char *url, const char *method, const char **why)
{
    const char *sep = strstr(url, "://"), *rest = sep ? sep + 3 : url;
    size_t scheme = sep ? (size_t)(sep - url) : 0, authority = strcspn(rest, "/?#");
    char host[300];
    *why = "url must be http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH";
    bool plain = (scheme == 4 && strncmp(url, "http", 4) == 0) || (scheme == 2 && strncmp(url, "ws", 2) == 0);
    if (!plain && sep && !(scheme == 5 && strncmp(url, "https", 5) == 0) &&
        !(scheme == 3 && strncmp(url, "wss", 3) == 0))
        return false;
    if (authority == 0 || authority >= sizeof host)
        return false;
    memcpy(host, rest, authority);
    host[authority] = '\0';
    w->flow.tls = !plain;
    w->flow.port = plain ? 80 : 443;
    if (!wish_authority(w, host, why))
        return false;
    _cleanup_buf_ struct buf path = {0}, query = {0};
    const char *at = rest + authority;
    size_t n = strcspn(at, "?#");
    if (*at != '/')
        buf_addc(&path, '/');
    buf_add(&path, at, n);
    if (at[n] == '?')
        buf_add(&query, at + n + 1, strcspn(at + n + 1, "#"));
    return wish_target(w, method, buf_str(&path), at[n] == '?' ? buf_str(&query) : NULL, why);
}

static void wish_add_decision(const struct wish *w, const struct netpol_decision *d, struct buf *out)
{
    static const char *const words[] = {[NETPOL_ALLOW] = "allow", [NETPOL_DENY] = "deny", [NETPOL_ASK] = "ask"};
    _cleanup_buf_ struct buf grant = {0};
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "verdict", words[d->verdict]);
    json_str(&j, "reason", d->verdict == NETPOL_ALLOW ? NULL : netpol_reason_name(d->reason));
    json_str(&j, "rule", d->rule ? d->rule->id : NULL);
    if (d->would_deny)
        json_bool(&j, "would_deny", true);
    if (d->verdict == NETPOL_DENY && deny_may_ask(d->reason)) {
        netpol_grant(&w->flow, &w->request, &grant);
        buf_addf(out, ",\"grant\":%s", buf_str(&grant));
    }
    json_end_obj(&j);
}

/* false: *why says what is wrong with the question. */
static bool wish_check(const struct esb *s, const char *url, const char *method, struct buf *out, const char **why)
{
    struct wish w __attribute__((cleanup(wish_done))) = {0};
    struct netpol_decision d = {.verdict = NETPOL_DENY};
    *why = "this sandbox has no network policy yet";
    if (!s->policy || !wish_url(&w, url, method ? method : "GET", why))
        return false;
    netpol_connect(s->policy, &w.flow, egress_now(), &d);
    if (d.verdict == NETPOL_ALLOW)
        netpol_request(s->policy, &w.flow, &w.request, egress_now(), &d);
    wish_add_decision(&w, &d, out);
    return true;
}

bool internal_check(const struct esb *s, const char *url, const char *method, struct buf *out)
{
    const char *why;
    struct json j;
    if (wish_check(s, url, method, out, &why))
        return true;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "wrong", why); /* not "error": the question is wrong, egress is not */
    json_end_obj(&j);
    return false;
}

static void internal_get_check(void *ctx, struct http_req *r, const struct route_params *p)
{
    _cleanup_buf_ struct buf url = {0}, method = {0}, out = {0};
    const char *why = "give url=URL, percent-encoded, and method=METHOD if it is not GET";
    struct err err;
    (void)p;
    if (url_query_get(r->query, "url", URL_PLUS_LITERAL, &url, &err) <= 0 ||
        url_query_get(r->query, "method", URL_PLUS_SPACE, &method, &err) < 0 ||
        !wish_check(ctx, buf_str(&url), method.n ? method.p : NULL, &out, &why))
        internal_fail(r, 400, "bad_request", why);
    else
        internal_answer_json(r, 200, &out);
}

/* --- asking for it
 * -------------------------------------------------------------------------------------------------- */

/* Reads a text member; *ret is NULL if it is missing. false: it is not a text, or too long. */
static bool wish_member(const json_t *o, const char *key, size_t max, const char **ret)
{
    const json_t *v = json_object_get(o, key);
    *ret = v ? json_string_value(v) : NULL;
    return !v || (*ret && strlen(*ret) == json_string_length(v) && strlen(*ret) <= max);
}

static bool wish_members_known(const json_t *o)
{
    static const char *const names[] = {"host", "port", "method", "path", "reason"};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        n += json_object_get(o, names[i]) != NULL;
    return n == json_object_size(o);
}

static bool wish_json(struct wish *w, const json_t *o, const char **ret_reason, const char **why)
{
    const char *host, *method, *path;
    const json_t *port = json_object_get(o, "port");
    *why = "send a JSON object: "
           "{\"host\":\"example.org\",\"port\":443,\"method\":\"GET\",\"path\":\"/x\",\"reason\":\"why\"}; "
           "only host is needed";
    if (!json_is_object(o) || !wish_members_known(o) || !wish_member(o, "host", 300, &host) || !host ||
        !wish_member(o, "method", 31, &method) || !wish_member(o, "path", 4096, &path) ||
        !wish_member(o, "reason", 4096, ret_reason))
        return false;
    if (port && (!json_is_integer(port) || json_integer_value(port) < 1 || json_integer_value(port) > 65535))
        return false;
    w->flow.port = 443;
    if (!wish_authority(w, host, why))
        return false;
    if (port)
        w->flow.port = (uint16_t)json_integer_value(port);
    w->flow.tls = w->flow.port != 80;
    if (!method && !path)
        return true;
    _cleanup_buf_ struct buf bare = {0};
    buf_add(&bare, path ? path : "/", path ? strcspn(path, "?#") : 1);
    return wish_target(w, method ? method : "GET", buf_str(&bare), NULL, why);
}

static void internal_on_ask_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct wish w __attribute__((cleanup(wish_done))) = {0};
    _cleanup_buf_ struct buf out = {0};
    struct internal_call *c = r->user;
    struct esb *s = c->s;
    const char *reason, *why = error;
    (void)internal_call_end(c);
    if (!s || !s->policy) {
        internal_fail(r, 503, "unavailable", "this sandbox has no network policy yet");
    } else if (status != 0 || !wish_json(&w, root, &reason, &why)) {
        internal_fail(r, status ? status : 400, "bad_request", why);
    } else {
        status = ask_from_inside(s, &w.flow, w.request.method ? &w.request : NULL, reason, &out);
        internal_answer_json(r, status, &out);
    }
}

static void internal_post_request(void *ctx, struct http_req *r, const struct route_params *p)
{
    (void)p;
    if (!internal_call_new(ctx, r))
        internal_fail(r, 429, "too_many", "too many calls are open; wait until they are answered");
    else
        body_json(r, INTERNAL_BODY_MAX, internal_on_ask_body);
}

static void internal_on_decision(void *arg)
{
    _cleanup_buf_ struct buf out = {0};
    struct internal_call *c = arg;
    char id[sizeof c->id];
    struct esb *s = c->s;
    memcpy(id, c->id, sizeof id);
    c->waiter = 0;
    struct http_req *r = internal_call_end(c);
    if (ask_status(s, id, &out))
        internal_answer_json(r, 200, &out);
    else
        internal_fail(r, 404, "not_found", "there is no such request any more");
}

static void internal_get_request(void *ctx, struct http_req *r, const struct route_params *p)
{
    _cleanup_buf_ struct buf out = {0};
    const char *id = route_param(p, "id");
    uint64_t wait = 0;
    struct esb *s = ctx;
    if (!internal_query_number(r, "wait", INTERNAL_WAIT_S, &wait))
        return;
    struct internal_call *c = wait > 0 ? internal_call_new(s, r) : NULL;
    if (c && ask_watch(s, id, wait * 1000, internal_on_decision, c, &c->waiter)) {
        (void)snprintf(c->id, sizeof c->id, "%s", id);
        return;
    }
    if (c)
        (void)internal_call_end(c);
    if (ask_status(s, id, &out))
        internal_answer_json(r, 200, &out);
    else
        internal_fail(r, 404, "not_found", "there is no such request");
}

/* --- the table
 * ------------------------------------------------------------------------------------------------------ */

static const struct route routes[] = {
    {"GET", "/", internal_get_about, 0},
    {"GET", "/ca.pem", internal_get_ca, 0},
    {"GET", "/v1/egress/help", internal_get_help, 0},
    {"GET", "/v1/egress/policy", internal_get_policy, 0},
    {"GET", "/v1/egress/denials", internal_get_denials, 0},
    {"GET", "/v1/egress/events", internal_get_events, 0},
    {"GET", "/v1/egress/check", internal_get_check, 0},
    {"POST", "/v1/egress/requests", internal_post_request, 0},
    {"GET", "/v1/egress/requests/{id}", internal_get_request, 0},
};

void internal_handle(struct esb *s, struct http_req *r)
{
    struct route_params params;
    struct route_match match;
    if (!deny_bucket_take(&denials_of(s)->calls, INTERNAL_RPS, loop_now(s->g->loop))) {
        http_set(r, "retry-after", "1");
        internal_fail(r, 429, "rate_limited", "at most 20 calls a second");
        return;
    }
    if (!s->policy) {
        internal_fail(r, 503, "unavailable", "this sandbox has no network policy yet");
        return;
    }
    route_find(routes, ARRAY_LEN(routes), r->method, r->path, &match, &params);
    switch (match.result) {
    case ROUTE_FOUND:
        match.route->fn(s, r, &params);
        return;
    case ROUTE_METHOD:
        http_set(r, "allow", match.allow);
        internal_fail(r, 405, "method_not_allowed", "this path has other methods; see the allow header");
        return;
    case ROUTE_BAD:
        internal_fail(r, 400, "bad_request", match.why);
        return;
    case ROUTE_NOT_FOUND:
        internal_fail(r, 404, "not_found", "there is nothing here; GET http://sandbox.internal/ lists what there is");
        return;
    }
}
