/* http-identify.c - finds the host, method, target and fields of a request in canonical form. The host must be the one
 * that the connection was made to. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/http-int.h"
#include "http/http1.h"

enum { FIELDS_TO_ADD = 24 /* by secrets, and by us */ };

static bool identify_drops_field(const struct http_fields *f, const char *name)
{
    static const char *const ours[] = {"host",           "content-length",      "expect",
                                       "http2-settings", "proxy-authorization", "proxy-authenticate"};
    if (http1_is_hop(name) || http1_has_token(f, "connection", name))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        if (strcmp(name, ours[i]) == 0)
            return true;
    return false;
}

static const char *identify_copy_text(char **to, const char *text)
{
    size_t n = strlen(text) + 1;
    char *p = memcpy(*to, text, n);
    *to += n;
    return p;
}

/* Copies the fields that are judged and sent: the audit line is written even if the client is gone by then. */
static void identify_take_fields(struct exchange *x, const struct http_req *r)
{
    size_t n = 0, bytes = 1;
    for (size_t i = 0; i < r->fields.n; i++)
        bytes += strlen(r->fields.v[i].name) + strlen(r->fields.v[i].value) + 2;
    char *to = x->own = xmalloc(bytes);
    x->cap = r->fields.n + FIELDS_TO_ADD;
    x->storage = xcalloc(x->cap, sizeof *x->storage);
    x->judged = xcalloc(r->fields.n + 1, sizeof *x->judged);
    for (size_t i = 0; i < r->fields.n; i++) {
        if (identify_drops_field(&r->fields, r->fields.v[i].name))
            continue;
        x->storage[n] = (struct http_field){identify_copy_text(&to, r->fields.v[i].name),
                                            identify_copy_text(&to, r->fields.v[i].value)};
        x->judged[n] = (struct netpol_field){x->storage[n].name, x->storage[n].value};
        n++;
    }
    x->fields = (struct http_fields){x->storage, n};
    x->njudged = n;
}

static void identify_note_kind(struct exchange *x, const struct http_req *r)
{
    const char *type = http_field(&r->fields, "content-type"), *upgrade = http_field(&r->fields, "upgrade");
    /* "application/grpc", "application/grpc+proto"; grpc-web is made for HTTP/1. */
    x->grpc = type && strncasecmp(type, "application/grpc", 16) == 0 && strncasecmp(type + 16, "-web", 4) != 0;
    x->te_trailers = http1_has_token(&r->fields, "te", "trailers");
    x->websocket = r->version == 11 && r->length == 0 && strcmp(r->method, "GET") == 0 && upgrade &&
                   strcasecmp(upgrade, "websocket") == 0 && http1_has_token(&r->fields, "connection", "upgrade") &&
                   http_field(&r->fields, "sec-websocket-key");
    x->key.need = x->websocket ? ETLS_HTTP1 : x->grpc && x->key.tls ? ETLS_H2 : ETLS_ANY;
}

static void identify_set_host(struct exchange *x, const char *host, const struct in6_addr *literal, uint16_t port,
                              bool tls)
{
    x->key.tls = tls;
    x->key.port = port;
    (void)snprintf(x->key.host, sizeof x->key.host, "%s", host ? host : "");
    if (host) {
        (void)snprintf(x->host_text, sizeof x->host_text, "%s", host);
    } else {
        x->key.literal = *literal;
        etls_address(literal, x->host_text);
    }
    bool v6 = strchr(x->host_text, ':') != NULL;
    (void)snprintf(x->authority, sizeof x->authority, "%s%s%s", v6 ? "[" : "", x->host_text, v6 ? "]" : "");
    if (port != (tls ? 443 : 80)) {
        size_t n = strlen(x->authority);
        (void)snprintf(x->authority + n, sizeof x->authority - n, ":%u", port);
    }
}

static void identify_malformed(struct exchange *x, const char *why)
{
    exchange_refuse(x, NETPOL_R_MALFORMED, "http", why);
}

/* The client connected to the proxy's own address: the target names the destination. */
static bool identify_proxied(struct exchange *x, const struct http_req *r)
{
    char host[NETPOL_NAME_MAX];
    struct in6_addr literal;
    bool is_literal;
    uint16_t port = 80;
    if (!r->scheme || strcmp(r->scheme, "http") != 0) {
        identify_malformed(x, r->scheme
                                  ? "https through a proxy goes by CONNECT"
                                  : "this is a proxy: the target must be absolute (http://host/path), or use CONNECT");
        return false;
    }
    if (!r->authority || !netpol_authority(r->authority, host, &literal, &is_literal, &port)) {
        identify_malformed(x, "the host of the target is neither a name nor an address in its usual form");
        return false;
    }
    identify_set_host(x, is_literal ? NULL : host, &literal, port, false);
    return true;
}

/* The destination was known before the first byte of the request; the request must name the same one. */
static bool identify_direct(struct exchange *x, const struct http_req *r)
{
    const struct flow *f = x->hf->f;
    const struct netpol_settings *set = netpol_settings(x->sb->policy);
    struct netpol_flow meant = flow_target(f);
    char host[NETPOL_NAME_MAX];
    struct in6_addr literal;
    bool is_literal;
    uint16_t port = meant.port;
    identify_set_host(x, meant.host, &meant.addr, meant.port, f->tls);
    if (f->stale) {
        exchange_refuse(x, NETPOL_R_STALE_DNS, "tcp", "the address is no longer known; look the name up again");
        return false;
    }
    if (f->tls && f->sni[0] && f->host[0] && strcmp(f->sni, f->host) != 0) {
        exchange_refuse(x, NETPOL_R_SNI_MISMATCH, "tls",
                        "the name in the TLS handshake is not the name that was connected to");
        return false;
    }
    if (f->tls && !f->sni[0] && meant.host && set->require_sni) {
        exchange_refuse(x, NETPOL_R_NO_SNI, "tls", "the TLS handshake names no host");
        return false;
    }
    if (r->authority && !netpol_authority(r->authority, host, &literal, &is_literal, &port)) {
        identify_malformed(x, "the host of the request is neither a name nor an address in its usual form");
        return false;
    }
    bool same = !r->authority ||
                (port == meant.port && is_literal == !meant.host &&
                 (is_literal ? memcmp(&literal, &meant.addr, sizeof literal) == 0 : strcmp(host, meant.host) == 0));
    if (!same)
        exchange_refuse(x, NETPOL_R_HOST_MISMATCH, "http",
                        "the host of the request is not the host that the connection was made to");
    return same;
}

static bool identify_is_token(const char *s)
{
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", *p))
            return false;
    return *s != '\0';
}

bool exchange_identify(struct exchange *x)
{
    const struct http_req *r = x->r;
    const struct flow *f = x->hf->f;
    const char *why = NULL;
    bool found = f->gate && !f->explicit_proxy && !f->tls ? identify_proxied(x, r) : identify_direct(x, r);
    if (!found)
        return false;
    identify_note_kind(x, r);
    identify_take_fields(x, r);
    if (!identify_is_token(r->method)) {
        identify_malformed(x, "the method is not a token");
        return false;
    }
    if (!netpol_target(r->path, r->query, &x->target, &why)) {
        x->target = (struct netpol_target){0};
        identify_malformed(x, why);
        return false;
    }
    buf_adds(&x->path, x->target.text);
    return true;
}
