/* head.c - maps names in header fields: a service may call itself localhost:PORT while its visitors reach it
 * under another name.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/gateway/gateway-int.h"
#include "api/gateway/gateway.h"
#include "base/num.h"

static void gateway_expand_mask(const char *mask, uint32_t port, char *ret, size_t n)
{
    const char *at = strstr(mask, "${PORT}");
    if (at)
        (void)snprintf(ret, n, "%.*s%u%s", (int)(at - mask), mask, port, at + 7);
    else
        (void)snprintf(ret, n, "%s", mask);
}

void gateway_name_localhost(struct gateway_names *n)
{
    (void)snprintf(n->host, sizeof n->host, "localhost:%u", n->port);
}

void gateway_names(const struct http_req *r, const struct sandbox *b, uint32_t port, struct gateway_names *ret)
{
    /* HTTP/2 allows odd bytes in the authority; such a name gets no origin. */
    const char *authority = r->authority ? r->authority : "";
    bool plain =
        strspn(authority, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:[]_") == strlen(authority);
    *ret = (struct gateway_names){.port = port};
    if (plain && *authority)
        (void)snprintf(ret->origin, sizeof ret->origin, "%s://%s", r->tls ? "https" : "http", authority);
    gateway_expand_mask(b->desc.mask_host, port, ret->host, sizeof ret->host);
    for (size_t i = 0; i < b->desc.nhttps_ports; i++)
        ret->tls |= b->desc.https_ports[i] == port;
    for (size_t i = 0; i < b->desc.ports.n; i++)
        if (b->desc.ports.v[i].port == port) {
            ret->fixed |= (b->desc.ports.v[i].flags & SANDBOX_PORT_PRESERVE) != 0;
            if (b->desc.ports.v[i].flags & SANDBOX_PORT_LOCALHOST)
                gateway_name_localhost(ret);
        }
    ret->fixed |= ret->host[0] != '\0';
    if (!ret->fixed && gateway_learned(b->id, port))
        gateway_name_localhost(ret);
}

/* The part of a URL after the origin; NULL if the URL has another origin. */
static const char *gateway_strip_origin(const char *origin, const char *url)
{
    size_t n = strlen(origin);
    return n && strncasecmp(url, origin, n) == 0 && (!url[n] || strchr("/?#", url[n])) ? url + n : NULL;
}

bool gateway_own_origin(const struct gateway_names *n, const char *value, struct buf *out)
{
    const char *rest = n->host[0] ? gateway_strip_origin(n->origin, value) : NULL;
    if (!rest)
        return false;
    buf_addf(out, "%s://%s%s", n->tls ? "https" : "http", n->host, rest);
    return true;
}

/* Whether "host[:port]" is a name that the service itself may use for its own port. */
static bool gateway_is_service(const struct gateway_names *n, const char *authority, size_t len, bool https)
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

/* Turns a redirection to the service's own name into one to the name that the visitor used. */
static const char *gateway_map_location(const struct gateway_names *n, const char *value, struct buf *scratch)
{
    bool https = strncasecmp(value, "https://", 8) == 0;
    if (!n->origin[0] || (!https && strncasecmp(value, "http://", 7) != 0))
        return value;
    const char *authority = value + (https ? 8 : 7);
    size_t len = strcspn(authority, "/?#");
    if (!gateway_is_service(n, authority, len, https))
        return value;
    buf_done(scratch);
    buf_addf(scratch, "%s%s", n->origin, authority + len);
    return buf_str(scratch);
}

/* Removes Domain from a cookie: with it the browser would send the cookie to services of other sandboxes, too. NULL:
 * drop the field, because a service must not set the gateway's own cookies. */
static const char *gateway_map_set_cookie(const char *value, struct buf *scratch)
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
        return gateway_map_location(n, value, scratch);
    if (strcmp(name, "set-cookie") == 0)
        return gateway_map_set_cookie(value, scratch);
    return value;
}
