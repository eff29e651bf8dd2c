/* web.c - a blocking HTTP/1.1 client: one connection per request, TLS checked against the certificates of the host. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/text.h"
#include "image/fetch-int.h"
#include "os/own.h"

enum { READ_SIZE = 64 << 10 };

/* A registry that sends a byte now and then would keep others waiting: what it holds is one of few. */
struct web_pace web_pace = {
    .silence_ms = 60 * 1000, .window_ms = 60 * 1000, .window_bytes = 60 * (16 << 10), .total_ms = 2 * 3600 * 1000};

static SSL_CTX *tls;
static struct own_addresses machine;

int web_prepare(struct err *err)
{
    static const char *const places[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    const char *own = getenv("SSL_CERT_FILE");
    tls = SSL_CTX_new(TLS_client_method());
    if (!tls || SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) != 1)
        return err_set(err, ERR_HOST, 0, "cannot set TLS up");
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    bool found = own && own[0] && SSL_CTX_load_verify_file(tls, own) == 1;
    for (size_t i = 0; !found && i < ARRAY_LEN(places); i++)
        found = SSL_CTX_load_verify_file(tls, places[i]) == 1;
    ERR_clear_error(); /* without certificates only plain registries can be reached; the handshake will say so */
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
            return image_fail(err, IMAGE_BAD_DATA, "\"%s\" is no address of the web", image_shown(text));
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

static bool is_loopback(const struct in6_addr *a)
{
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

/* NULL if a connection for this URL may go to the address. */
static const char *web_forbidden(const struct web_url *u, const struct in6_addr *a, bool first,
                                 const struct web_reach *reach)
{
    bool reserved = netpol_address_kind(a) == NETPOL_NEVER && !is_loopback(a);
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

/* What the registry is to us shows when it is reached, not before. */
static void web_reached(const struct web_url *u, const struct in6_addr *a, struct web_reach *reach)
{
    reach->known = true;
    reach->inside = netpol_reach(&reach->machine, a) != NETPOL_PUBLIC;
    reach->listed = text_listed(reach->registries, u->authority, strlen(u->authority));
    reach->home = *a;
}

/* --- pace --------------------------------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* How long may be waited; 0: no more, and *why says what was too slow. */
static uint64_t patience(struct web *w, uint64_t now, const char **why)
{
    const struct web_pace *p = &web_pace;
    if (!web_pace.deadline_ms)
        web_pace.deadline_ms = now + p->total_ms;
    *why = "all of it takes too long";
    if (now >= p->deadline_ms)
        return 0;
    uint64_t left = p->deadline_ms - now;
    *why = "nothing came for a minute";
    if (now - w->last_ms >= p->silence_ms)
        return 0;
    left = w->last_ms + p->silence_ms - now < left ? w->last_ms + p->silence_ms - now : left;
    if (now - w->window_ms >= p->window_ms) {
        *why = "it is slower than 16 KiB a second";
        if (w->window_bytes < p->window_bytes)
            return 0;
        w->window_ms = now;
        w->window_bytes = 0;
    }
    return w->window_ms + p->window_ms - now < left ? w->window_ms + p->window_ms - now : left;
}

/* Until the connection can be read or written. */
static int await(struct web *w, bool out, struct err *err)
{
    for (;;) {
        const char *why;
        struct pollfd p = {.fd = w->fd, .events = out ? POLLOUT : POLLIN};
        uint64_t left = patience(w, now_ms(), &why);
        if (left == 0)
            return image_fail(err, IMAGE_NETWORK, "the connection to %s was given up: %s", w->where, why);
        int n = poll(&p, 1, (int)left);
        if (n > 0) {
            w->last_ms = now_ms();
            return 0;
        }
        if (n < 0 && errno != EINTR)
            return image_fail(err, IMAGE_HOST, "cannot wait for %s: %s", w->where, strerror(errno));
    }
}

/* After a call that did not succeed: 1 to try once more, 0 if that is no use, -1 if it took too long. */
static int await_more(struct web *w, ssize_t rc, bool out, struct err *err)
{
    bool wait = !w->ssl && rc < 0 && (errno == EAGAIN || errno == EINTR);
    if (w->ssl) {
        int what = SSL_get_error(w->ssl, (int)rc);
        wait = what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE;
        out = what == SSL_ERROR_WANT_WRITE;
    }
    return !wait ? 0 : await(w, out, err) < 0 ? -1 : 1;
}

static int dial(const struct addrinfo *ai)
{
    int eno = 0;
    socklen_t n = sizeof eno;
    _cleanup_close_ int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0)
        return -1;
    if (connect(fd, ai->ai_addr, ai->ai_addrlen) < 0) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (errno != EINPROGRESS)
            return -1;
        if (poll(&p, 1, WEB_CONNECT_MS) <= 0) {
            errno = ETIMEDOUT;
            return -1;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &eno, &n) < 0 || eno) {
            errno = eno ? eno : errno;
            return -1;
        }
    }
    return TAKE_FD(fd);
}

static int reach_host(struct web *w, const struct web_url *u, bool first, struct web_reach *reach, struct err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[8];
    int eno = 0;
    (void)snprintf(port, sizeof port, "%u", u->port);
    int rc = getaddrinfo(u->host, port, &hints, &list);
    if (rc != 0)
        return image_fail(err, IMAGE_NETWORK, "the name %s is not known: %s", image_shown(u->host), gai_strerror(rc));
    for (const struct addrinfo *ai = list; ai && w->fd < 0; ai = ai->ai_next) {
        struct in6_addr a;
        if (!own_address_of(ai->ai_addr, &a))
            continue;
        const char *why = web_forbidden(u, &a, first, reach);
        if (why) {
            freeaddrinfo(list);
            return image_fail(err, IMAGE_DENIED, "%s %s", image_shown(u->host), why);
        }
        w->fd = dial(ai);
        eno = errno;
        if (w->fd >= 0 && first && !reach->known)
            web_reached(u, &a, reach);
    }
    freeaddrinfo(list);
    return w->fd < 0 ? image_fail(err, IMAGE_NETWORK, "cannot connect to %s: %s", w->where, strerror(eno)) : 0;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static int shake_hands(struct web *w, const struct web_url *u, struct err *err)
{
    struct in6_addr a;
    w->ssl = SSL_new(tls);
    bool literal = inet_pton(AF_INET, u->host, &a) == 1 || inet_pton(AF_INET6, u->host, &a) == 1;
    if (!w->ssl || SSL_set_fd(w->ssl, w->fd) != 1 ||
        (literal ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(w->ssl), u->host)
                 : SSL_set_tlsext_host_name(w->ssl, u->host) == 1 && SSL_set1_host(w->ssl, u->host)) != 1)
        return image_fail(err, IMAGE_HOST, "cannot set TLS up");
    int rc, again = 1;
    while (again == 1 && (rc = SSL_connect(w->ssl)) != 1)
        again = await_more(w, rc, false, err);
    if (again == 1)
        return 0;
    if (again < 0)
        return -1;
    long verify = SSL_get_verify_result(w->ssl);
    if (verify != X509_V_OK)
        return image_fail(err, IMAGE_NETWORK, "the certificate of %s is not trusted: %s", w->where,
                          X509_verify_cert_error_string(verify));
    const char *why = ERR_reason_error_string(ERR_get_error());
    return image_fail(err, IMAGE_NETWORK, "no TLS connection to %s: %s", w->where, why ? why : "it was closed");
}

static int send_all(struct web *w, const char *p, size_t n, struct err *err)
{
    while (n > 0) {
        ssize_t k = w->ssl ? SSL_write(w->ssl, p, (int)n) : send(w->fd, p, n, MSG_NOSIGNAL);
        int again = k > 0 ? 0 : await_more(w, k, true, err);
        if (again > 0)
            continue;
        if (again < 0)
            return -1;
        if (k <= 0)
            return image_fail(err, IMAGE_NETWORK, "%s takes no request", w->where);
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* More bytes behind those that are there. 0 at the end of the connection. */
static ssize_t fill(struct web *w, struct err *err)
{
    static char bytes[READ_SIZE];
    if (w->at == w->in.n)
        w->at = w->in.n = 0;
    ssize_t n;
    for (;;) {
        errno = 0;
        n = w->ssl ? SSL_read(w->ssl, bytes, sizeof bytes) : recv(w->fd, bytes, sizeof bytes, 0);
        int again = n > 0 ? 0 : await_more(w, n, false, err);
        if (again < 0)
            return -1;
        if (again == 0)
            break;
    }
    if (w->ssl && n <= 0 && SSL_get_error(w->ssl, (int)n) == SSL_ERROR_ZERO_RETURN)
        return 0;
    if (n < 0 || (w->ssl && n == 0))
        return image_fail(err, IMAGE_NETWORK, "the connection to %s broke off: %s", w->where,
                          errno ? strerror(errno) : "it was closed");
    w->window_bytes += (uint64_t)n;
    buf_add(&w->in, bytes, (size_t)n);
    return n;
}

static void keep(char *ret, size_t room, const struct http_fields *f, const char *name)
{
    const char *value = http_field(f, name);
    (void)snprintf(ret, room, "%s", value && strlen(value) < room ? value : "");
}

static int read_head(struct web *w, struct err *err)
{
    struct http1_head h;
    struct http1_bad bad = {0};
    for (unsigned answers = 0; answers < 8; answers++) {
        size_t scan = 0;
        ssize_t n = 0;
        while (w->at == w->in.n || (n = http1_head_end(w->in.p + w->at, w->in.n - w->at, &scan, &bad)) == 0) {
            ssize_t got = fill(w, err);
            if (got < 0)
                return -1;
            if (got == 0)
                return image_fail(err, IMAGE_NETWORK, "%s closed the connection without an answer", w->where);
        }
        struct http_field *fields = NULL;
        if (n > 0) {
            fields = xcalloc(http1_count_fields(w->in.p + w->at, (size_t)n) + 1, sizeof *fields);
            if (http1_parse_response(w->in.p + w->at, (size_t)n, "GET", fields, &h, &bad) < 0)
                n = -1;
        }
        if (n < 0) {
            free(fields);
            return image_fail(err, IMAGE_NETWORK, "%s does not answer in HTTP: %s", w->where, bad.why ? bad.why : "?");
        }
        w->at += (size_t)n;
        w->status = h.status;
        w->length = h.framing == HTTP1_NONE ? 0 : h.length;
        keep(w->media, sizeof w->media, &h.fields, "content-type");
        keep(w->challenge, sizeof w->challenge, &h.fields, "www-authenticate");
        keep(w->location, sizeof w->location, &h.fields, "location");
        http1_body_start(&w->body, &h);
        free(fields);
        if (w->status >= 200)
            return 0;
    }
    return image_fail(err, IMAGE_NETWORK, "%s does not come to an answer", w->where);
}

static int open_web(struct web *w, const struct web_url *u, bool first, struct web_reach *reach, struct err *err)
{
    *w = (struct web)WEB_INIT;
    (void)snprintf(w->where, sizeof w->where, "%s", u->authority);
    if (reach_host(w, u, first, reach, err) < 0)
        return -1;
    w->last_ms = w->window_ms = now_ms();
    return u->tls ? shake_hands(w, u, err) : 0;
}

int web_post(struct web *w, const struct web_url *u, const struct http_field *fields, size_t n, const char *body,
             struct web_reach *reach, struct err *err)
{
    _cleanup_buf_ struct buf q = {0};
    char length[24];
    if (open_web(w, u, true, reach, err) < 0)
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
    int rc = send_all(w, q.p, q.n, err);
    explicit_bzero(q.p, q.n);
    return rc < 0 ? -1 : read_head(w, err);
}

int web_get(struct web *w, const struct web_url *u, const char *accept, const char *authorization, bool first,
            struct web_reach *reach, struct err *err)
{
    _cleanup_buf_ struct buf q = {0};
    if (open_web(w, u, first, reach, err) < 0)
        return -1;
    http1_add_request(&q, "GET", u->target, u->authority);
    http1_add_field(&q, "user-agent", "hutch/" HUTCH_VERSION);
    http1_add_field(&q, "accept", accept && accept[0] ? accept : "*/*");
    http1_add_field(&q, "connection", "close");
    if (authorization && authorization[0])
        http1_add_field(&q, "authorization", authorization);
    http1_add_end(&q);
    if (send_all(w, q.p, q.n, err) < 0)
        return -1;
    return read_head(w, err);
}

ssize_t web_read(struct web *w, const void **ret, struct err *err)
{
    const char *p;
    size_t n = 0;
    bool until_close = w->body.framing == HTTP1_CLOSE;
    while (!w->body.done && w->body.framing != HTTP1_NONE) {
        ssize_t taken = 0;
        if (w->at < w->in.n)
            taken = http1_body_next(&w->body, w->in.p + w->at, w->in.n - w->at, &p, &n);
        if (taken < 0)
            return image_fail(err, IMAGE_NETWORK, "the answer of %s is damaged", w->where);
        w->at += (size_t)taken;
        if (n > 0) {
            *ret = p;
            return (ssize_t)n;
        }
        if (w->body.done || taken > 0)
            continue;
        ssize_t got = fill(w, err);
        if (got < 0)
            return -1;
        if (got == 0)
            return until_close ? 0 : image_fail(err, IMAGE_NETWORK, "%s cut its answer off", w->where);
    }
    return 0;
}

int web_read_all(struct web *w, size_t max, const char *what, struct buf *ret, struct err *err)
{
    const void *p;
    ssize_t n;
    ret->n = 0;
    while ((n = web_read(w, &p, err)) > 0) {
        if ((size_t)n > max - ret->n)
            return image_fail(err, IMAGE_TOO_LARGE, "%s from %s is larger than %zu bytes", what, w->where, max);
        buf_add(ret, p, (size_t)n);
    }
    return n < 0 ? -1 : 0;
}

void web_close(struct web *w)
{
    SSL_free(w->ssl);
    if (w->fd >= 0)
        (void)close(w->fd);
    buf_done(&w->in);
    w->ssl = NULL;
    w->fd = -1;
}
