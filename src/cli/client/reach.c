/* reach.c - a connection to the node that a URL names: its addresses, TLS, and what went wrong in words. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/num.h"
#include "base/text.h"
#include "cli/client/api.h"
#include "http/blocking-tls.h"

enum { REACH_CONNECT_MS = 10000 /* for each address */, REACH_TLS_MS = 10000, URL_SHOWN = 200 };

/* --- URLs --------------------------------------------------------------------------------------------------------- */

static int reach_bad_url(const char *url, struct err *err)
{
    if (strchr(url, '@'))
        return err_set(err, ERR_USAGE, 0, "the node's URL must have no user or key in it; `hutch login` takes the key");
    return err_set(err, ERR_USAGE, 0, "the node's URL must be https://HOST[:PORT] or http://HOST[:PORT], not %.*s",
                   URL_SHOWN, url);
}

int api_reach(struct api *a, const char *url, struct err *err)
{
    int port;
    bool tls = strncmp(url, "https://", 8) == 0;
    const char *host = url + (tls ? 8 : 7);
    if (!tls && strncmp(url, "http://", 7) != 0)
        return reach_bad_url(url, err);
    size_t n = strcspn(host, "/");
    bool six = host[0] == '[' && memchr(host, ']', n);
    const char *end = six ? memchr(host, ']', n) : NULL;
    const char *colon = six ? (end[1] == ':' ? end + 1 : NULL) : memchr(host, ':', n);
    size_t name = six ? (size_t)(end - host) - 1 : colon ? (size_t)(colon - host) : n;
    size_t digits = colon ? n - (size_t)(colon - host) - 1 : 0;
    if (name == 0 || name >= sizeof a->host || digits >= sizeof a->port || (colon && digits == 0) ||
        strlen(host + n) > 1 || (six && !colon && (size_t)(end - host) + 1 != n))
        return reach_bad_url(url, err);
    (void)snprintf(a->host, sizeof a->host, "%.*s", (int)name, host + six);
    (void)snprintf(a->port, sizeof a->port, "%s", tls ? "443" : "80");
    if (colon)
        (void)snprintf(a->port, sizeof a->port, "%.*s", (int)digits, colon + 1);
    if (strspn(a->host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:") != strlen(a->host) ||
        !num_int(a->port, 1, 65535, &port))
        return reach_bad_url(url, err);
    a->tls = tls;
    (void)snprintf(a->url, sizeof a->url, "%s://%.*s", tls ? "https" : "http", (int)n, host);
    return 0;
}

/* localhost and all below it are this machine (RFC 6761), whatever a name server says. */
static bool reach_is_localhost(const char *host)
{
    size_t n = strlen(host);
    static const char below[] = ".localhost";
    return strcmp(host, "localhost") == 0 || (n > strlen(below) && strcmp(host + n - strlen(below), below) == 0);
}

bool api_is_here(const struct api *a)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, a->host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, a->host, &v6) == 1 ? IN6_IS_ADDR_LOOPBACK(&v6) : reach_is_localhost(a->host);
}

bool api_lead_to(struct api *a, const struct api *other)
{
    bool named = reach_is_localhost(a->host);
    if (a->tls != other->tls || strcmp(a->port, other->port) != 0 || !api_is_here(other) ||
        reach_is_localhost(other->host) || (!named && strcmp(a->host, other->host) != 0))
        return false;
    if (named)
        (void)snprintf(a->dial, sizeof a->dial, "%.63s", other->host);
    return true;
}

/* --- proxies ------------------------------------------------------------------------------------------------------ */

/* The first of two variables that is set, and its name. A server's CGI program gets a request's field `Proxy` as HTTP_PROXY. */
static const char *reach_variable(const char *lower, const char *upper, char ret_name[16])
{
    const char *value = getenv(lower);
    bool field = strcmp(upper, "HTTP_PROXY") == 0 && getenv("REQUEST_METHOD");
    (void)snprintf(ret_name, 16, "%s", value && *value ? lower : upper);
    if (value && *value)
        return value;
    value = field ? NULL : getenv(upper);
    return value && *value ? value : NULL;
}

/* Also what only the kernel takes for this machine: no proxy could know which machine is meant. */
static bool reach_is_here_in_disguise(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return v4.s_addr == 0;
    return inet_pton(AF_INET6, host, &v6) == 1 &&
           (IN6_IS_ADDR_UNSPECIFIED(&v6) ||
            (IN6_IS_ADDR_V4MAPPED(&v6) && (v6.s6_addr[12] == 127 || v6.s6_addr32[3] == 0)));
}

int api_choose_via(struct api *a, struct err *err)
{
    char ignored[16];
    const char *list = reach_variable("no_proxy", "NO_PROXY", ignored);
    const char *value = a->tls ? reach_variable("https_proxy", "HTTPS_PROXY", a->via_from)
                               : reach_variable("http_proxy", "HTTP_PROXY", a->via_from);
    if (!value || api_is_here(a) || reach_is_here_in_disguise(a->host) || (list && blocking_via_excepts(list, a->host)))
        return 0;
    return blocking_via_read(a->via_from, value, &a->via, err);
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

static int reach_look_up(const struct api *a, struct addrinfo **ret, struct err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const char *name = a->dial[0] ? a->dial : reach_is_localhost(a->host) ? "localhost" : a->host;
    bool via = a->via.host[0];
    int rc = getaddrinfo(via ? a->via.host : name, via ? a->via.port : a->port, &hints, ret);
    if (rc == 0)
        return 0;
    if (via)
        return err_set(err, ERR_HOST, 0, "no such host: %s, the proxy of %s", a->via.host, a->via_from);
    if (rc == EAI_NONAME || rc == EAI_NODATA)
        return err_set(err, ERR_HOST, 0, "no such host: %s (from %s); the name has no address", a->host, a->url);
    return err_set(err, ERR_HOST, 0, "the name %s could not be looked up: %s", a->host,
                   rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
}

static int reach_no_answer(const struct api *a, int eno, struct err *err)
{
    if (a->via.host[0])
        return err_set(err, ERR_HOST, eno == ETIMEDOUT ? 0 : eno, "the proxy %s:%s of %s does not answer", a->via.host,
                       a->via.port, a->via_from);
    const char *hint = api_is_here(a) ? " (start one with `hutch serve`)" : "";
    if (eno == ETIMEDOUT)
        return err_set(err, ERR_HOST, 0, "no node answers at %s within %d s%s", a->url, REACH_CONNECT_MS / 1000, hint);
    return err_set(err, ERR_HOST, eno, "no node answers at %s%s", a->url, hint);
}

/* Tries each address of the name. */
static int reach_dial(const struct api *a, struct err *err)
{
    struct addrinfo *list = NULL;
    int fd = -1, eno = EHOSTUNREACH, refused = 0;
    if (reach_look_up(a, &list, err) < 0)
        return -1;
    for (const struct addrinfo *i = list; i && fd < 0; i = i->ai_next) {
        fd = blocking_connect(i->ai_addr, i->ai_addrlen, REACH_CONNECT_MS);
        eno = errno;
        if (fd < 0 && eno == ECONNREFUSED)
            refused = eno; /* says more than an address family that this machine lacks */
    }
    freeaddrinfo(list);
    return fd < 0 ? reach_no_answer(a, refused ? refused : eno, err) : fd;
}

/* --- TLS ---------------------------------------------------------------------------------------------------------- */

static bool reach_is_unknown(long verify)
{
    switch (verify) {
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE: /* another authority of the same name */
        return true;
    default:
        return false;
    }
}

static int reach_refuse(const struct api *a, const struct blocking_tls_trouble *t, struct err *err)
{
    _cleanup_buf_ struct buf about = {0};
    text_add_safe(&about, t->about, sizeof t->about);
    const char *at = a->url + strlen("https://"), *what = buf_str(&about);
    switch (t->verify) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return err_set(err, ERR_HOST, 0, "the certificate of %s has expired on %s; its operator must renew it", at,
                       what);
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return err_set(err, ERR_HOST, 0,
                       "the certificate of %s is valid from %s on; is the clock of this machine right?", at, what);
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return err_set(err, ERR_HOST, 0, "the certificate of %s is for %s, not for %s; use a URL with one of its names",
                       at, what, a->host);
    default:
        break;
    }
    if (!reach_is_unknown(t->verify))
        return err_set(err, ERR_HOST, 0, "the certificate of %s is not accepted: %s", at,
                       X509_verify_cert_error_string(t->verify));
    if (a->ca)
        return err_set(err, ERR_HOST, 0, "the certificate of %s is not signed by the authority in %s, but by %s", at,
                       a->ca_from, what);
    return err_set(err, ERR_HOST, 0,
                   "the certificate of %s is signed by an unknown authority (%s); if that is the node's "
                   "own, give its certificate with --ca FILE (on the node: STATE/tls/ca.crt)",
                   at, what);
}

/* What is trusted. The system's authorities are read as they are asked for, which is fast; a bundle that has more
 * than the directory of hashed ones is read whole before a certificate is refused. */
static struct {
    SSL_CTX *ctx;
    const char *ca, *cert;
    enum blocking_tls_when when;
} reach_tls;

static int reach_trust(const struct api *a, enum blocking_tls_when when, struct err *err)
{
    if (reach_tls.ctx && reach_tls.ca == a->ca && reach_tls.cert == a->cert &&
        (reach_tls.when == when || reach_tls.when == BLOCKING_TLS_NOW))
        return 0;
    SSL_CTX_free(reach_tls.ctx);
    reach_tls.ctx = NULL;
    if (blocking_tls_new(a->ca, when, &reach_tls.ctx, err) < 0)
        return a->ca ? err_wrap(err, "the authority in %s", a->ca_from) : -1;
    if (a->cert && blocking_tls_identify(reach_tls.ctx, a->cert, a->cert_key, err) < 0) {
        SSL_CTX_free(reach_tls.ctx);
        reach_tls.ctx = NULL;
        return err_wrap(err, "%s", a->cert_from);
    }
    reach_tls.ca = a->ca;
    reach_tls.cert = a->cert;
    reach_tls.when = when;
    return 0;
}

static int reach_no_tls(const struct api *a, const struct blocking *b, const struct blocking_tls_trouble *t,
                        struct err *err)
{
    if (b->failure == BLOCKING_BROKEN)
        return err_set(err, ERR_HOST, b->eno, "no TLS connection to %s", a->url);
    if (b->failure)
        return err_set(err, ERR_HOST, 0, "%s is silent: no TLS connection within %d s", a->url, REACH_TLS_MS / 1000);
    if (t->verify)
        return reach_refuse(a, t, err);
    if (strstr(t->why, "wrong version number") || strstr(t->why, "packet length too long"))
        return err_set(err, ERR_HOST, 0, "%s does not speak TLS; is it http://%s?", a->url,
                       a->url + strlen("https://"));
    return err_set(err, ERR_HOST, 0, "no TLS connection to %s: %s", a->url, t->why);
}

/* Makes the proxy at the other end pass bytes on to the node. */
static int reach_through(const struct api *a, struct blocking *b, struct err *err)
{
    char target[300];
    (void)snprintf(target, sizeof target, strchr(a->host, ':') ? "[%s]:%s" : "%s:%s", a->host, a->port);
    if (blocking_via_connect(b, &a->via, target) == 0)
        return 0;
    const char *host = a->via.host, *port = a->via.port;
    if (!b->failure &&
        (b->answer.status == 407 || b->answer.status == 401)) /* tinyproxy has 401 for a wrong password */
        return err_set(err, ERR_HOST, 0, "the proxy %s:%s %s; %s=http://USER:PASSWORD@HOST:PORT", host, port,
                       a->via.login ? "does not take this user and password" : "asks for a user and a password",
                       a->via_from);
    if (!b->failure)
        return err_set(err, ERR_HOST, 0, "the proxy %s:%s of %s refused a connection to %s: status %u", host, port,
                       a->via_from, target, b->answer.status);
    if (b->failure == BLOCKING_BROKEN || b->failure == BLOCKING_UNSENT)
        return err_set(err, ERR_HOST, b->eno, "the proxy %s:%s of %s ended the connection", host, port, a->via_from);
    if (b->failure == BLOCKING_NOT_HTTP)
        return err_set(err, ERR_HOST, 0, "what answers at %s:%s (%s) is no HTTP proxy: %s", host, port, a->via_from,
                       b->why);
    return err_set(err, ERR_HOST, 0, "the proxy %s:%s of %s made no connection to %s within %d s", host, port,
                   a->via_from, target, REACH_TLS_MS / 1000);
}

int api_connect(const struct api *a, struct blocking *ret, struct err *err)
{
    struct blocking_pace pace = {.silence_ms = REACH_TLS_MS, .window_ms = REACH_TLS_MS, .total_ms = REACH_TLS_MS};
    struct blocking_tls_trouble t;
    for (bool whole = a->ca != NULL;; whole = true) {
        int fd = reach_dial(a, err);
        if (fd < 0)
            return -1;
        blocking_start(ret, fd, a->tls ? &pace : NULL);
        if (!a->tls)
            return 0;
        if (a->via.host[0] && reach_through(a, ret, err) < 0)
            return -1;
        if (reach_trust(a, whole ? BLOCKING_TLS_NOW : BLOCKING_TLS_ON_DEMAND, err) < 0)
            return -1;
        int rc = blocking_tls_start(ret, reach_tls.ctx, a->host, &t);
        ret->pace = NULL;
        if (rc == 0)
            return 0;
        if (whole || !reach_is_unknown(t.verify))
            return reach_no_tls(a, ret, &t, err);
        blocking_close(ret);
        pace.deadline_ms = 0;
    }
}
