/* web.c - one connection per request, only to addresses that web_reach allows; verifies TLS with the host's roots. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/text.h"
#include "http/blocking-tls.h"
#include "image/fetch-int.h"
#include "os/own.h"

/* A registry that sends a byte now and then would occupy one of the few workers. */
struct blocking_pace web_pace = {
    .silence_ms = 60 * 1000, .window_ms = 60 * 1000, .window_bytes = 60 * (16 << 10), .total_ms = 2 * 3600 * 1000};

static SSL_CTX *tls;
static struct own_addresses machine;

int web_prepare(struct err *err)
{
    if (blocking_tls_new(NULL, BLOCKING_TLS_NOW, &tls, err) < 0)
        return -1;
    if (own_addresses_read(&machine) < 0)
        return err_set(err, ERR_HOST, errno, "cannot read the addresses of this machine");
    return 0;
}

void web_reach_own(struct web_reach *r)
{
    r->machine.own = machine.v;
    r->machine.nown = machine.n;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

int web_url_parse(const char *text, const struct web_url *base, struct web_url *ret, struct err *err)
{
    const char *p = text;
    *ret = (struct web_url){0};
    if (base && text[0] == '/' && text[1] != '/') {
        *ret = *base;
    } else {
        ret->tls = strncmp(p, "https://", 8) == 0;
        if (!ret->tls && strncmp(p, "http://", 7) != 0)
            return image_fail(err, IMAGE_BAD_DATA, "\"%s\" is not a URL (expected http:// or https://)",
                              image_shown(text));
        p += ret->tls ? 8 : 7;
        size_t n = strcspn(p, "/?#"), host = p[0] == '[' ? strcspn(p, "]") : strcspn(p, ":/?#");
        size_t skip = p[0] == '[' ? 1 : 0, end = host + skip;
        int port = ret->tls ? 443 : 80;
        char digits[8] = "";
        if (n >= sizeof ret->authority || host <= skip || end > n || host - skip >= sizeof ret->host ||
            memchr(p, '@', n))
            return image_fail(err, IMAGE_BAD_DATA, "\"%s\" names no host", image_shown(text));
        memcpy(ret->authority, p, n);
        memcpy(ret->host, p + skip, host - skip);
        if (end < n && p[end] == ':' && n - end - 1 < sizeof digits)
            memcpy(digits, p + end + 1, n - end - 1);
        if (end < n && (p[end] != ':' || !num_int(digits, 1, 65535, &port)))
            return image_fail(err, IMAGE_BAD_DATA, "\"%s\" has a bad port", image_shown(text));
        if (strspn(ret->host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:") !=
            strlen(ret->host))
            return image_fail(err, IMAGE_BAD_DATA, "\"%s\" names no host", image_shown(text));
        ret->port = (uint16_t)port;
        p += n;
    }
    size_t n = strcspn(p, "#");
    int len = snprintf(ret->target, sizeof ret->target, "%s%.*s", *p == '/' ? "" : "/", (int)n, p);
    if (n >= sizeof ret->target || len < 0 || (size_t)len >= sizeof ret->target)
        return image_fail(err, IMAGE_BAD_DATA, "an address of %s is longer than %d bytes", image_shown(ret->host),
                          WEB_TARGET_MAX);
    for (const unsigned char *c = (const unsigned char *)ret->target; *c; c++)
        if (*c <= ' ' || *c >= 0x7f)
            return image_fail(err, IMAGE_BAD_DATA, "an address of %s has characters that must be encoded",
                              image_shown(ret->host));
    return 0;
}

static bool web_is_loopback(const struct in6_addr *a)
{
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

/* NULL if a connection for this URL may go to the address. */
static const char *web_forbidden(const struct web_url *u, const struct in6_addr *a, bool first,
                                 const struct web_reach *reach)
{
    bool reserved = netpol_address_kind(a) == NETPOL_NEVER && !web_is_loopback(a);
    if (reserved)
        return "has a reserved address (link-local, metadata or the like), which is never reached";
    if (text_listed(reach->registries, u->authority, strlen(u->authority)) ||
        (reach->listed && IN6_ARE_ADDR_EQUAL(&reach->home, a)))
        return NULL;
    switch (netpol_reach(&reach->machine, a)) {
    case NETPOL_PUBLIC:
        return NULL;
    case NETPOL_NEVER:
        return "is on this machine or in a network that egress.infra closes; a registry there must be listed in the "
               "node's configuration (images.registries)";
    case NETPOL_PRIVATE:
        break;
    }
    if (!reach->private)
        return "is in a private network; registries there are for the operator, or must be listed in the node's "
               "configuration (images.registries)";
    bool may = reach->known ? reach->inside : first;
    return may ? NULL : "is in a private network, to which a public registry may not lead";
}

/* Notes where the registry is, once it was reached. */
static void web_reached(const struct web_url *u, const struct in6_addr *a, struct web_reach *reach)
{
    reach->known = true;
    reach->inside = netpol_reach(&reach->machine, a) != NETPOL_PUBLIC;
    reach->listed = text_listed(reach->registries, u->authority, strlen(u->authority));
    reach->home = *a;
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static int web_give_up(const struct web *w, const char *why, struct err *err)
{
    return image_fail(err, IMAGE_NETWORK, "the connection to %s was given up: %s", w->where, why);
}

static int web_fail(const struct web *w, struct err *err)
{
    const struct blocking *b = &w->http;
    switch (b->failure) {
    case BLOCKING_SILENT:
        return web_give_up(w, "nothing came for a minute", err);
    case BLOCKING_SLOW:
        return web_give_up(w, "it is slower than 16 KiB a second", err);
    case BLOCKING_LATE:
        return web_give_up(w, "all of it takes too long", err);
    case BLOCKING_UNSENT:
        return image_fail(err, IMAGE_NETWORK, "%s takes no request", w->where);
    case BLOCKING_UNANSWERED:
        return image_fail(err, IMAGE_NETWORK, "%s closed the connection without an answer", w->where);
    case BLOCKING_NOT_HTTP:
        return image_fail(err, IMAGE_NETWORK, "%s does not answer in HTTP: %s", w->where, b->why);
    case BLOCKING_DAMAGED:
        return image_fail(err, IMAGE_NETWORK, "the answer of %s is damaged", w->where);
    case BLOCKING_CUT:
        return image_fail(err, IMAGE_NETWORK, "%s cut its answer off", w->where);
    default:
        return image_fail(err, IMAGE_NETWORK, "the connection to %s broke off: %s", w->where,
                          b->eno ? strerror(b->eno) : "it was closed");
    }
}

/* --- connections -------------------------------------------------------------------------------------------------- */

static int web_reach_host(struct web *w, const struct web_url *u, bool first, struct web_reach *reach, struct err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[8];
    int fd = -1, eno = 0;
    (void)snprintf(port, sizeof port, "%u", u->port);
    int rc = getaddrinfo(u->host, port, &hints, &list);
    if (rc != 0)
        return image_fail(err, IMAGE_NETWORK, "the name %s is not known: %s", image_shown(u->host), gai_strerror(rc));
    for (const struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next) {
        struct in6_addr a;
        if (!own_address_of(ai->ai_addr, &a))
            continue;
        const char *why = web_forbidden(u, &a, first, reach);
        if (why) {
            freeaddrinfo(list);
            return image_fail(err, IMAGE_DENIED, "%s %s", image_shown(u->host), why);
        }
        fd = blocking_connect(ai->ai_addr, ai->ai_addrlen, WEB_CONNECT_MS);
        eno = errno;
        if (fd >= 0 && first && !reach->known)
            web_reached(u, &a, reach);
    }
    freeaddrinfo(list);
    if (fd < 0)
        return image_fail(err, IMAGE_NETWORK, "cannot connect to %s: %s", w->where, strerror(eno));
    blocking_start(&w->http, fd, &web_pace);
    return 0;
}

static int web_shake_hands(struct web *w, const struct web_url *u, struct err *err)
{
    struct blocking_tls_trouble t;
    if (blocking_tls_start(&w->http, tls, u->host, &t) == 0)
        return 0;
    if (w->http.failure)
        return web_fail(w, err);
    if (t.verify)
        return image_fail(err, IMAGE_NETWORK, "the certificate of %s is not trusted: %s", w->where,
                          X509_verify_cert_error_string(t.verify));
    return image_fail(err, IMAGE_NETWORK, "no TLS connection to %s: %s", w->where, t.why);
}

static void web_copy_field(char *ret, size_t room, const struct http_fields *f, const char *name)
{
    const char *value = http_field(f, name);
    (void)snprintf(ret, room, "%s", value && strlen(value) < room ? value : "");
}

static int web_read_head(struct web *w, struct err *err)
{
    const struct http1_head *h = &w->http.answer;
    if (blocking_read_head(&w->http, "GET") < 0)
        return web_fail(w, err);
    w->status = h->status;
    w->length = h->framing == HTTP1_NONE ? 0 : h->length;
    web_copy_field(w->media, sizeof w->media, &h->fields, "content-type");
    web_copy_field(w->challenge, sizeof w->challenge, &h->fields, "www-authenticate");
    web_copy_field(w->location, sizeof w->location, &h->fields, "location");
    return 0;
}

static int web_open(struct web *w, const struct web_url *u, bool first, struct web_reach *reach, struct err *err)
{
    *w = (struct web)WEB_INIT;
    (void)snprintf(w->where, sizeof w->where, "%s", u->authority);
    if (web_reach_host(w, u, first, reach, err) < 0)
        return -1;
    return u->tls ? web_shake_hands(w, u, err) : 0;
}

int web_post(struct web *w, const struct web_url *u, const struct http_field *fields, size_t n, const char *body,
             struct web_reach *reach, struct err *err)
{
    _cleanup_buf_ struct buf q = {0};
    char length[24];
    if (web_open(w, u, true, reach, err) < 0)
        return -1;
    (void)snprintf(length, sizeof length, "%zu", strlen(body));
    http1_add_request(&q, "POST", u->target, u->authority);
    http1_add_field(&q, "user-agent", "hutch/" HUTCH_VERSION);
    http1_add_field(&q, "connection", "close");
    http1_add_field(&q, "content-length", length);
    for (size_t i = 0; i < n; i++)
        http1_add_field(&q, fields[i].name, fields[i].value);
    http1_add_end(&q);
    buf_adds(&q, body);
    int rc = blocking_send(&w->http, q.p, q.n);
    explicit_bzero(q.p, q.n);
    return rc < 0 ? web_fail(w, err) : web_read_head(w, err);
}

int web_get(struct web *w, const struct web_url *u, const char *accept, const char *authorization, bool first,
            struct web_reach *reach, struct err *err)
{
    _cleanup_buf_ struct buf q = {0};
    if (web_open(w, u, first, reach, err) < 0)
        return -1;
    http1_add_request(&q, "GET", u->target, u->authority);
    http1_add_field(&q, "user-agent", "hutch/" HUTCH_VERSION);
    http1_add_field(&q, "accept", accept && accept[0] ? accept : "*/*");
    http1_add_field(&q, "connection", "close");
    if (authorization && authorization[0])
        http1_add_field(&q, "authorization", authorization);
    http1_add_end(&q);
    return blocking_send(&w->http, q.p, q.n) < 0 ? web_fail(w, err) : web_read_head(w, err);
}

ssize_t web_read(struct web *w, const void **ret, struct err *err)
{
    ssize_t n = blocking_read(&w->http, SIZE_MAX, ret);
    return n < 0 ? web_fail(w, err) : n;
}

int web_read_all(struct web *w, size_t max, const char *what, struct buf *ret, struct err *err)
{
    if (blocking_read_all(&w->http, max, ret) == 0)
        return 0;
    if (w->http.failure == BLOCKING_TOO_LARGE)
        return image_fail(err, IMAGE_TOO_LARGE, "%s from %s is larger than %zu bytes", what, w->where, max);
    return web_fail(w, err);
}

void web_close(struct web *w) { blocking_close(&w->http); }
