/* deny-say.c - words a refusal for the client inside, mostly an agent that decides from it what to do next. The text
 * says what was refused and why, that no other way leads there, what would allow it, and how to ask for it.
 */
#include "egress/deny.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "egress/deny-int.h"
#include "http/url.h"

enum {
    ASK = 1,   /* it can be approved */
    RETRY = 2, /* the same may succeed later */
    GRANT = 4, /* there is a rule that helps, although the policy does not forbid it */
};

#define INTERNAL_REQUESTS "http://sandbox.internal/v1/egress/requests"
#define FINAL                                                                                                         \
    " This is a decision of the sandbox's network policy, not a fault of the network, of DNS, of a proxy or of TLS: " \
    "trying "                                                                                                         \
    "again, or with another client, address, resolver, proxy setting or route, gives the same answer."

static const struct {
    unsigned status, grpc, flags;
    const char *why, *fix; /* fix NULL: none but what the flags say */
} reasons[NETPOL_R_COUNT] = {
    [NETPOL_R_NONE] = {403, 7, 0, "it was refused", NULL},
    [NETPOL_R_HOST] = {403, 7, ASK, "this sandbox may not reach this host", NULL},
    [NETPOL_R_PORT] = {403, 7, ASK, "this sandbox may reach this host, but not on this port", NULL},
    [NETPOL_R_METHOD] = {403, 7, ASK, "this sandbox may reach this host, but not with this method", NULL},
    [NETPOL_R_PATH] = {403, 7, ASK, "this sandbox may reach this host, but not this path with this method", NULL},
    [NETPOL_R_HEADER] = {403, 7, 0, "a header of the request is not what the policy demands for this host", NULL},
    [NETPOL_R_BODY] = {413, 8, 0, "the body of the request is larger than the policy allows", "Send less."},
    [NETPOL_R_RESPONSE] = {502, 8, 0, "the answer is larger than the policy allows",
                           "Ask for less, for example for a range."},
    [NETPOL_R_CONTENT_TYPE] = {403, 7, 0, "the policy does not allow this content type here", NULL},
    [NETPOL_R_LITERAL] = {403, 7, ASK, "the destination is a bare address, and this sandbox may only reach names",
                          "Use the name of the host."},
    [NETPOL_R_PRIVATE] = {403, 7, 0, "the destination is not a public address", NULL},
    [NETPOL_R_RESOLVED_PRIVATE] = {403, 7, 0, "the name stands for an address that is not public", NULL},
    [NETPOL_R_NO_SNI] = {403, 7, 0, "the TLS client did not say which server name it means",
                         "Use a client that sends a server name (SNI)."},
    [NETPOL_R_SNI_MISMATCH] = {421, 7, 0, "the server name of TLS is not the host that was connected to",
                               "Use the same name for both."},
    [NETPOL_R_HOST_MISMATCH] = {421, 7, 0, "the Host of the request is not the host of the connection",
                                "Use the same name for both."},
    [NETPOL_R_ECH] = {403, 7, 0, "the TLS client hides the server name (ECH)", "Switch ECH off."},
    [NETPOL_R_PROTOCOL] = {403, 7, 0, "this is neither HTTP nor TLS, and no rule allows an opaque stream here", NULL},
    [NETPOL_R_TLS_VERSION] = {403, 7, 0, "the version of TLS is older than the policy demands", "Use TLS 1.3."},
    [NETPOL_R_UPSTREAM_CERT] = {502, 14, 0, "the certificate of the server could not be verified", NULL},
    [NETPOL_R_QUOTA] = {403, 8, 0, "this sandbox has used up the bytes it may transfer", NULL},
    [NETPOL_R_RATE] = {429, 8, RETRY, "too many requests", "Wait and send fewer."},
    [NETPOL_R_CONNECTIONS] = {429, 8, RETRY, "too many connections", "Close some, or wait."},
    [NETPOL_R_SECRET_VIOLATION] = {403, 7, 0,
                                   "the request carries the placeholder of a secret to where that secret is not for",
                                   "Send it only to the hosts and in the places the secret is bound to."},
    [NETPOL_R_SECRET_UNBOUND] = {403, 7, 0,
                                 "the rule for this host uses a secret that does not exist or is not for this host",
                                 NULL},
    [NETPOL_R_APPROVAL_PENDING] = {403, 7, RETRY, "it needs approval, and no decision has been made yet", NULL},
    [NETPOL_R_APPROVAL_DENIED] = {403, 7, 0, "it needed approval, and approval was denied", NULL},
    [NETPOL_R_EXPIRED] = {403, 7, ASK, "the permission for it has expired", NULL},
    [NETPOL_R_STALE_DNS] = {421, 14, RETRY, "the address comes from a lookup that is too old",
                            "Look the name up again."},
    [NETPOL_R_MALFORMED] = {400, 3, 0, "the request is malformed", NULL},
    [NETPOL_R_UNREACHABLE] = {502, 14, RETRY, "the policy allows it, but the server could not be reached", NULL},
    [NETPOL_R_TIMEOUT] = {504, 4, RETRY, "the policy allows it, but the server did not answer in time", NULL},
    [NETPOL_R_DENY_RULE] = {403, 7, 0, "a rule of the policy forbids it", NULL},
    [NETPOL_R_CLEARTEXT] = {403, 7, 0, "this host may only be reached over TLS", "Use https."},
    [NETPOL_R_CODED] = {502, 14, 0, "the server encoded an answer that must be searched for a secret", NULL},
    [NETPOL_R_NAMES] = {429, 8, RETRY | GRANT,
                        "only a wildcard allows this name, and too many names that were never reached before have been "
                        "asked for",
                        "Wait and use fewer names, or have this one allowed by itself (\"grant\")."},
    [NETPOL_R_AUDIT] = {503, 14, RETRY, "the audit log cannot be written, and nothing goes unrecorded here", NULL},
};

static unsigned reason_index(enum netpol_reason r)
{
    return r < NETPOL_R_COUNT && reasons[r].status ? r : NETPOL_R_NONE;
}

unsigned deny_status(enum netpol_reason r) { return reasons[reason_index(r)].status; }
bool deny_may_ask(enum netpol_reason r) { return reasons[reason_index(r)].flags & ASK; }
bool deny_may_retry(enum netpol_reason r) { return reasons[reason_index(r)].flags & RETRY; }

/* Failures and limits get codes of their own: only a decision of the policy is "egress_denied". */
static const char *deny_code(enum netpol_reason r)
{
    switch (r) {
    case NETPOL_R_UNREACHABLE:
    case NETPOL_R_TIMEOUT:
    case NETPOL_R_UPSTREAM_CERT:
    case NETPOL_R_CODED:
    case NETPOL_R_AUDIT:
        return "egress_failed";
    case NETPOL_R_RATE:
    case NETPOL_R_CONNECTIONS:
    case NETPOL_R_QUOTA:
    case NETPOL_R_NAMES:
        return "egress_limited";
    default:
        return "egress_denied";
    }
}

/* A decision is pending, and the client can wait for it. */
static bool deny_is_pending(const struct deny *d) { return d->approval && d->reason == NETPOL_R_APPROVAL_PENDING; }

static void deny_add_message(const struct esb *s, const struct deny *d, struct buf *m)
{
    unsigned r = reason_index(d->reason);
    const struct netpol_settings *set = s->policy ? netpol_settings(s->policy) : NULL;
    if (d->method)
        buf_addf(m, "%.32s ", d->method);
    buf_addf(m, "%s:%u", d->host ? d->host : "(no host)", d->port);
    if (d->path)
        buf_addf(m, "%.*s", (int)strnlen(d->path, DENY_PATH_KEPT), d->path);
    buf_addf(m, strcmp(deny_code(d->reason), "egress_failed") == 0 ? " failed: %s" : " was refused: %s",
             reasons[r].why);
    if (d->text && *d->text)
        buf_addf(m, " (%s)", d->text);
    buf_addc(m, '.');
    if (reasons[r].fix)
        buf_addf(m, " %s", reasons[r].fix);
    if (strcmp(deny_code(d->reason), "egress_denied") == 0 && !(reasons[r].flags & RETRY))
        buf_adds(m, FINAL);
    if (d->approval)
        buf_addf(m,
                 " GET " INTERNAL_REQUESTS "/%s?wait=60 says what was decided; repeat the request once it is allowed.",
                 d->approval);
    else if (reasons[r].flags & ASK)
        buf_adds(m, " If the task needs it, ask for it: POST \"ask.body\" as JSON to \"ask.url\", with a \"reason\"; "
                    "otherwise do "
                    "without. \"grant\" is the smallest rule that would allow it.");
    if (set && set->deny_message[0])
        buf_addf(m, " %s", set->deny_message);
}

/* Adds the smallest rule that would allow it. false: there is none for such a refusal. */
static bool deny_add_grant(const struct deny *d, bool tls, struct buf *out)
{
    char name[NETPOL_NAME_MAX];
    struct netpol_flow f = {.port = d->port, .tls = tls};
    struct netpol_target target = {0};
    struct netpol_request q = {.method = d->method, .target = &target};
    const char *why;
    if (!d->host || strlen(d->host) >= NETPOL_NAME_MAX)
        return false;
    if (netpol_name(d->host, strlen(d->host), name))
        f.host = name;
    else if (!netpol_literal(d->host, strlen(d->host), &f.addr))
        return false;
    if (!d->method || !d->path) {
        netpol_grant(&f, NULL, out);
        return true;
    }
    if (strnlen(d->path, DENY_PATH_KEPT) == DENY_PATH_KEPT || !netpol_target(d->path, NULL, &target, &why))
        return false;
    netpol_grant(&f, &q, out);
    netpol_target_done(&target);
    return true;
}

static bool deny_has_grant(enum netpol_reason r) { return reasons[reason_index(r)].flags & (ASK | GRANT); }

bool deny_over_tls(const struct deny *d) { return d->flow ? d->flow->tls : d->port == 443; }

bool denial_grant(const struct denial *e, struct buf *out)
{
    uint16_t port = e->port ? e->port : 443; /* a DNS lookup has no port; a rule without `ports` allows 80 and 443 */
    const struct deny d = {.host = e->host, .port = port, .method = e->method, .path = e->path};
    return deny_has_grant(e->reason) && deny_add_grant(&d, e->tls, out);
}

static void deny_add_ask(struct json *j, const struct deny *d)
{
    json_obj(j, "ask");
    if (deny_is_pending(d)) {
        char url[160];
        (void)snprintf(url, sizeof url, INTERNAL_REQUESTS "/%.64s?wait=60", d->approval);
        json_str(j, "id", d->approval);
        json_str(j, "status_url", url);
    } else {
        json_str(j, "url", INTERNAL_REQUESTS);
        json_obj(j, "body");
        json_str(j, "host", d->host);
        json_u64(j, "port", d->port);
        if (d->method)
            json_str(j, "method", d->method);
        if (d->path)
            json_str(j, "path", d->path);
        json_end_obj(j);
    }
    json_end_obj(j);
}

void deny_body(const struct esb *s, const struct deny *d, struct buf *out)
{
    _cleanup_buf_ struct buf message = {0}, grant = {0};
    bool ask = deny_may_ask(d->reason);
    struct json j;
    deny_add_message(s, d, &message);
    json_start(&j, out);
    json_obj(&j, NULL);
    json_obj(&j, "error");
    json_str(&j, "code", deny_code(d->reason));
    json_str(&j, "reason", netpol_reason_name(d->reason));
    json_str(&j, "layer", d->layer);
    json_str(&j, "host", d->host);
    json_u64(&j, "port", d->port);
    json_str(&j, "method", d->method);
    json_str(&j, "path", d->path);
    json_str(&j, "rule", d->rule);
    json_obj(&j, "policy");
    json_str(&j, "id", s->policy ? netpol_settings(s->policy)->id : NULL);
    json_u64(&j, "epoch", s->epoch);
    json_end_obj(&j);
    json_str(&j, "request_id", d->id);
    json_bool(&j, "retryable", deny_may_retry(d->reason));
    if (d->retry_s)
        json_u64(&j, "retry_after_s", d->retry_s);
    json_str(&j, "message", buf_str(&message));
    if (deny_has_grant(d->reason) && deny_add_grant(d, deny_over_tls(d), &grant))
        buf_addf(out, ",\"grant\":%s", grant.p); /* JSON already */
    if (ask || deny_is_pending(d))
        deny_add_ask(&j, d);
    json_end_obj(&j);
    json_end_obj(&j);
}

static void deny_header_value(const struct deny *d, char ret[160])
{
    (void)snprintf(ret, 160, "denied; reason=%s; id=%s", netpol_reason_name(d->reason), d->id);
}

/* gRPC clients read only these fields, in an answer of their own content type (application/grpc, +proto, -web ...). */
static void deny_answer_grpc(const struct esb *s, const struct deny *d, struct http_req *r, const char *type)
{
    _cleanup_buf_ struct buf text = {0}, safe = {0};
    char number[12];
    buf_addf(&text, "%s: ", netpol_reason_name(d->reason));
    deny_add_message(s, d, &text);
    url_encode(&safe, text.p, text.n < 1024 ? text.n : 1024, " :/,;.\"'()=?");
    (void)snprintf(number, sizeof number, "%u", reasons[reason_index(d->reason)].grpc);
    http_set(r, "grpc-status", number);
    http_set(r, "grpc-message", buf_str(&safe));
    http_reply(r, 200, type, NULL, 0);
}

void deny_answer(const struct esb *s, const struct deny *d, struct http_req *r)
{
    _cleanup_buf_ struct buf body = {0};
    const char *type = http_field(&r->fields, "content-type");
    char text[160];
    deny_header_value(d, text);
    http_set(r, "x-hutch-egress", text);
    http_set(r, "cache-control", "no-store");
    if (d->retry_s) {
        (void)snprintf(text, sizeof text, "%u", d->retry_s);
        http_set(r, "retry-after", text);
    }
    if (type && strncmp(type, "application/grpc", 16) == 0) {
        deny_answer_grpc(s, d, r, type);
        return;
    }
    deny_body(s, d, &body);
    buf_addc(&body, '\n');
    http_reply(r, deny_status(d->reason), "application/json", body.p,
               body.n); /* of HEAD the server sends the head only */
}

static const char *deny_status_phrase(unsigned status)
{
    switch (status) {
    case 400:
        return "Bad Request";
    case 413:
        return "Content Too Large";
    case 421:
        return "Misdirected Request";
    case 429:
        return "Too Many Requests";
    case 502:
        return "Bad Gateway";
    case 504:
        return "Gateway Timeout";
    default:
        return "Forbidden";
    }
}

void deny_raw(const struct esb *s, const struct deny *d, struct buf *out)
{
    _cleanup_buf_ struct buf body = {0};
    unsigned status = deny_status(d->reason);
    char text[160];
    deny_header_value(d, text);
    deny_body(s, d, &body);
    buf_addc(&body, '\n');
    buf_addf(out, "HTTP/1.1 %u %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n", status,
             deny_status_phrase(status), body.n);
    buf_addf(out, "cache-control: no-store\r\nx-hutch-egress: %s\r\n", text);
    if (d->retry_s)
        buf_addf(out, "retry-after: %u\r\n", d->retry_s);
    buf_adds(out, "connection: close\r\n\r\n");
    buf_add(out, body.p, body.n);
}
