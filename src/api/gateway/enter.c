/* enter.c - decides whether a request may reach a port: always if the port is public, else with the sandbox's
 * traffic token, a signed link, or the cookie that such a link set. It removes the gateway's own parameter and cookies
 * from the request before the service sees it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/gateway/gateway-int.h"
#include "api/gateway/gateway.h"
#include "api/port-link.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"

enum { COOKIES_TRIED_MAX = 8 /* cookies of our name: a parent domain can add some */ };

static const char private_hint[] =
    "Its owner can make a link that opens it, with <code>hutch url</code> or the API, or make it public.";

void gateway_entry_done(struct gateway_entry *e)
{
    free(e->target);
    free(e->token);
    free(e->cookie);
}

static bool gateway_port_is_public(const struct sandbox *b, uint32_t port)
{
    for (size_t i = 0; i < b->desc.ports.n; i++)
        if (b->desc.ports.v[i].port == port && (b->desc.ports.v[i].flags & SANDBOX_PORT_PUBLIC))
            return true;
    return b->desc.allow_public_traffic;
}

static const char *gateway_traffic_token(const struct http_req *r)
{
    const char *ours = http_field(&r->fields, "hutch-traffic-token");
    return ours ? ours : http_field(&r->fields, "e2b-traffic-access-token");
}

/* Splits the query into the first value of our parameter (token) and a target without it. */
static void gateway_split_query(const struct http_req *r, struct gateway_entry *e)
{
    _cleanup_buf_ struct buf rest = {0};
    static const char name[] = PORT_LINK_PARAM "=";
    bool first = true;
    if (!r->query || !strstr(r->query, name))
        return;
    buf_adds(&rest, r->path);
    for (const char *p = r->query; p;) {
        size_t n = strcspn(p, "&");
        if (strncmp(p, name, sizeof name - 1) == 0) {
            if (!e->token)
                e->token = xstrndup(p + sizeof name - 1, n - (sizeof name - 1));
        } else {
            buf_addc(&rest, first ? '?' : '&');
            buf_add(&rest, p, n);
            first = false;
        }
        p = p[n] ? p + n + 1 : NULL;
    }
    if (e->token)
        e->target = xstrdup(buf_str(&rest));
}

static bool gateway_cookie_is(const char *p, size_t n, const char *name)
{
    size_t len = strlen(name);
    return n > len && p[len] == '=' && memcmp(p, name, len) == 0;
}

struct jar {
    const struct api *api;
    const struct sandbox *b;
    uint32_t port;
    uint64_t now;
    unsigned tried;
    bool good, expired;
};

static void gateway_try_cookie(struct jar *j, const char *value, size_t n)
{
    _cleanup_free_ char *token = xstrndup(value, n);
    uint64_t expires;
    if (j->good || j->tried++ >= COOKIES_TRIED_MAX)
        return;
    enum port_link link = port_link_check(j->api, j->b, j->port, token, j->now, &expires);
    j->good = link == PORT_LINK_GOOD;
    j->expired |= link == PORT_LINK_EXPIRED;
}

/* Tries our cookies and collects all others in e->cookie. */
static void gateway_split_cookies(struct jar *j, const struct http_req *r, struct gateway_entry *e)
{
    _cleanup_buf_ struct buf rest = {0};
    for (size_t i = 0; i < r->fields.n; i++) {
        const char *p = r->fields.v[i].value;
        if (strcmp(r->fields.v[i].name, "cookie") != 0)
            continue;
        while (*p) {
            p += strspn(p, " \t;");
            size_t n = strcspn(p, ";");
            const char *name = gateway_cookie_is(p, n, GATEWAY_COOKIE)          ? GATEWAY_COOKIE
                               : gateway_cookie_is(p, n, GATEWAY_COOKIE_SECURE) ? GATEWAY_COOKIE_SECURE
                                                                                : NULL;
            if (name) {
                e->cookies_ours = true;
                gateway_try_cookie(j, p + strlen(name) + 1, n - strlen(name) - 1);
            } else if (n > 0) {
                buf_adds(&rest, rest.n ? "; " : "");
                buf_add(&rest, p, n);
            }
            p += n;
        }
    }
    if (e->cookies_ours && rest.n)
        e->cookie = xstrdup(buf_str(&rest));
}

/* A browser sends the cookie with requests from any page. A page of another sandbox must not act for the visitor, least of all
 * over a WebSocket, which no other browser rule guards; pages of this sandbox's own ports may. */
static bool gateway_origin_may_use_cookie(const struct api *api, const struct http_req *r, const struct sandbox *b)
{
    const char *from = http_field(&r->fields, "origin"), *site = http_field(&r->fields, "sec-fetch-site");
    const char *dest = http_field(&r->fields, "sec-fetch-dest");
    char id[SANDBOX_ID_MAX];
    if (!from && (!site || strcmp(site, "same-origin") == 0 || strcmp(site, "none") == 0 ||
                  (dest && strcmp(dest, "document") == 0)))
        return true;
    if (!from) /* scripts, images and frames send no Origin; a page can omit its Referer, but not forge it */
        from = http_field(&r->fields, "referer");
    const char *host = from ? strstr(from, "://") : NULL;
    if (!host)
        return false;
    _cleanup_free_ char *authority = xstrndup(host + 3, strcspn(host + 3, "/?#"));
    return api_host_sandbox(api->config->domain, authority, id) && strcmp(id, b->id) == 0;
}

static void gateway_entry_refuse(struct gateway_entry *e, const char *message, const char *hint)
{
    e->message = message;
    e->hint = hint;
}

static void gateway_entry_explain(const struct http_req *r, const struct jar *j, enum port_link link,
                                  struct gateway_entry *e)
{
    if (j->good)
        gateway_entry_refuse(e, "A page of another origin may not use a visitor's access to this private port", NULL);
    else if ((e->token && link == PORT_LINK_EXPIRED) || (!e->token && j->expired))
        gateway_entry_refuse(e, "The link to this private port has expired", "Ask its owner for a new one.");
    else if (e->token)
        gateway_entry_refuse(e, "The link is not valid for this port: it was changed, revoked, or made for another one",
                             "Ask its owner for a new one.");
    else if (gateway_traffic_token(r))
        gateway_entry_refuse(e, "The traffic access token is not the one of this sandbox", private_hint);
    else
        gateway_entry_refuse(
            e,
            "This port is private: open a link to it, or send the sandbox's traffic token in Hutch-Traffic-Token "
            "or E2B-Traffic-Access-Token",
            private_hint);
}

void gateway_enter(const struct api *api, const struct http_req *r, const struct sandbox *b, uint32_t port,
                   struct gateway_entry *ret)
{
    struct jar jar = {.api = api, .b = b, .port = port, .now = clock_unix_ms() / 1000};
    enum port_link link = PORT_LINK_BAD;
    const char *token = gateway_traffic_token(r);
    *ret = (struct gateway_entry){0};
    gateway_split_query(r, ret);
    gateway_split_cookies(&jar, r, ret);
    if (ret->token)
        link = port_link_check(api, b, port, ret->token, jar.now, &ret->expires);
    ret->allowed = gateway_port_is_public(b, port) ||
                   (b->traffic_token[0] && token && sha256_equal_text(token, b->traffic_token)) ||
                   link == PORT_LINK_GOOD || (jar.good && gateway_origin_may_use_cookie(api, r, b));
    /* The address of the API itself, with routing headers, is no place for cookies. */
    ret->welcome = link == PORT_LINK_GOOD && (strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0) &&
                   !http_field(&r->fields, "upgrade") && !api_own_host(api->config->domain, r->authority);
    if (!ret->allowed)
        gateway_entry_explain(r, &jar, link, ret);
}

void gateway_welcome(struct http_req *r, const struct gateway_names *n, const struct gateway_entry *e)
{
    _cleanup_buf_ struct buf cookie = {0}, where = {0};
    uint64_t now = clock_unix_ms() / 1000;
    buf_addf(&cookie, "%s=%s; Path=/; Max-Age=%llu; HttpOnly; SameSite=Lax%s",
             r->tls ? GATEWAY_COOKIE_SECURE : GATEWAY_COOKIE, e->token,
             (unsigned long long)(e->expires > now ? e->expires - now : 0), r->tls ? "; Secure" : "");
    /* Absolute, because a path that begins with two slashes would name a host. */
    buf_addf(&where, "%s%s", n->origin, e->target);
    http_set(r, "set-cookie", buf_str(&cookie));
    http_set(r, "location", buf_str(&where));
    http_set(r, "cache-control", "no-store");
    http_set(r, "referrer-policy", "no-referrer");
    reply_empty(r, 303);
}
