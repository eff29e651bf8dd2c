/* gateway-head.c - the names in heads: a service that was told it is localhost:PORT, or believes so, speaks of itself by that
 * name, and its visitors know it by another.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/num.h"
#include "front/gateway-int.h"
#include "front/gateway.h"

static void expand_mask(const char *mask, uint32_t port, char *ret, size_t n)
{
    const char *at = strstr(mask, "${PORT}");
    if (at)
        (void)snprintf(ret, n, "%.*s%u%s", (int)(at - mask), mask, port, at + 7);
    else
        (void)snprintf(ret, n, "%s", mask);
}

void gateway_names(const struct http_req *r, const struct box *b, uint32_t port, struct gateway_names *ret)
{
    /* HTTP/2 lets odd bytes into the authority; of a name with such no origin is made. */
    const char *authority = r->authority ? r->authority : "";
    bool plain =
        strspn(authority, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:[]_") == strlen(authority);
    *ret = (struct gateway_names){.port = port};
    if (plain && *authority)
        (void)snprintf(ret->origin, sizeof ret->origin, "%s://%s", r->tls ? "https" : "http", authority);
    expand_mask(b->mask_host, port, ret->host, sizeof ret->host);
    for (size_t i = 0; i < b->nhttps_ports; i++)
        ret->tls |= b->https_ports[i] == port;
    for (size_t i = 0; i < b->ports.n; i++)
        if (b->ports.v[i].port == port && (b->ports.v[i].flags & BOX_PORT_LOCALHOST))
            (void)snprintf(ret->host, sizeof ret->host, "localhost:%u", port);
}

/* What follows the origin in a URL, or NULL: it is another one. */
static const char *behind(const char *origin, const char *url)
{
    size_t n = strlen(origin);
    return n && strncasecmp(url, origin, n) == 0 && (!url[n] || strchr("/?#", url[n])) ? url + n : NULL;
}

bool gateway_own_origin(const struct gateway_names *n, const char *value, struct buf *out)
{
    const char *rest = n->host[0] ? behind(n->origin, value) : NULL;
    if (!rest)
        return false;
    buf_addf(out, "%s://%s%s", n->tls ? "https" : "http", n->host, rest);
    return true;
}

/* Whether "host[:port]" is the service itself, as one names it who stands beside it. */
static bool is_service(const struct gateway_names *n, const char *authority, size_t len, bool https)
{
    static const char *const local[] = {"localhost", "127.0.0.1", "[::1]", "0.0.0.0"};
    char text[300];
    if (len >= sizeof text)
        return false;
    memcpy(text, authority, len);
    text[len] = 0;
    if (n->host[0] && strcasecmp(text, n->host) == 0)
        return true;
    char *bracket = strrchr(text, ']'), *colon = strchr(bracket ? bracket : text, ':');
    int port = https ? 443 : 80;
    if (colon && !num_int(colon + 1, 1, 65535, &port))
        return false;
    if (colon)
        *colon = 0;
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (strcasecmp(text, local[i]) == 0)
            return (uint32_t)port == n->port;
    return false;
}

/* A redirection to the service's own name leads back to the name the visitor used. */
static const char *location(const struct gateway_names *n, const char *value, struct buf *scratch)
{
    bool https = strncasecmp(value, "https://", 8) == 0;
    if (!n->origin[0] || (!https && strncasecmp(value, "http://", 7) != 0))
        return value;
    const char *authority = value + (https ? 8 : 7);
    size_t len = strcspn(authority, "/?#");
    if (!is_service(n, authority, len, https))
        return value;
    buf_done(scratch);
    buf_addf(scratch, "%s%s", n->origin, authority + len);
    return buf_str(scratch);
}

/* A cookie is for the host that set it and for no other: with a Domain it would reach the services of other sandboxes. Ours
 * cannot be set from inside. */
static const char *set_cookie(const char *value, struct buf *scratch)
{
    size_t name = strcspn(value, "=; \t");
    if ((name == strlen(GATEWAY_COOKIE) && memcmp(value, GATEWAY_COOKIE, name) == 0) ||
        (name == strlen(GATEWAY_COOKIE_SECURE) && memcmp(value, GATEWAY_COOKIE_SECURE, name) == 0))
        return NULL;
    bool changed = false;
    buf_done(scratch);
    for (const char *p = value; *p;) {
        size_t n = strcspn(p, ";"), space = strspn(p, " \t");
        size_t word = n > space ? strcspn(p + space, "=; \t") : 0;
        bool domain = p != value && word == 6 && strncasecmp(p + space, "domain", 6) == 0;
        changed |= domain;
        if (!domain) {
            buf_adds(scratch, p == value ? "" : ";");
            buf_add(scratch, p, n);
        }
        p += n + (p[n] == ';');
    }
    return changed ? buf_str(scratch) : value;
}

const char *gateway_answer_field(const struct gateway_names *n, const char *name, const char *value,
                                 struct buf *scratch)
{
    if (strcmp(name, "location") == 0)
        return location(n, value, scratch);
    if (strcmp(name, "set-cookie") == 0)
        return set_cookie(value, scratch);
    return value;
}
