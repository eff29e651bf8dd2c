/* jwks-fetch.c - one GET at a time of the issuer's keys: a worker of the loop looks up the name, each of its addresses is
 * tried, and one time limit holds for all of it. Redirects are not followed.
 */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/etls.h"
#include "http/client.h"
#include "oauth/oauth.h"

enum { ADDRESSES = 8 };

/* A lookup under way; it outlives a fetch that is freed meanwhile. */
struct lookup {
    struct fetch *f; /* NULL: freed, or its time was over */
    char host[256], port[8];
    struct sockaddr_storage v[ADDRESSES];
    socklen_t len[ADDRESSES];
    size_t n;
    int error;
};
struct fetch {
    struct loop *loop;
    struct config_url url;
    struct etls *tls;
    struct lookup *looking;
    struct sockaddr_storage v[ADDRESSES];
    socklen_t len[ADDRESSES];
    size_t n, tried;
    struct client *http;
    loop_id timer;
    unsigned status;
    struct buf answer;
    fetch_done *done; /* NULL: none is under way */
    void *arg;
};

int fetch_new(struct loop *l, const char *url, const struct buf *trust, struct fetch **ret, struct err *err)
{
    struct fetch *f = xcalloc(1, sizeof *f);
    f->loop = l;
    if (!config_url(url, &f->url)) {
        free(f);
        return err_set(err, ERR_SETUP, 0, "%.200s is not an http or https URL", url);
    }
    if (f->url.tls && (etls_new(&f->tls, err) < 0 || etls_trust(f->tls, trust->p, trust->n, err) < 0)) {
        fetch_free(f);
        return -1;
    }
    *ret = f;
    return 0;
}

static void fetch_clear(struct fetch *f)
{
    loop_timer_del(f->loop, f->timer);
    f->timer = 0;
    client_free(f->http);
    f->http = NULL;
    if (f->looking)
        f->looking->f = NULL;
    f->looking = NULL;
}

void fetch_free(struct fetch *f)
{
    if (!f)
        return;
    fetch_clear(f);
    buf_done(&f->answer);
    etls_free(f->tls);
    free(f);
}

/* Ends it; the caller may start another one from within. */
static void fetch_end(struct fetch *f, const char *why)
{
    fetch_done *done = f->done;
    _cleanup_buf_ struct buf text = f->answer;
    f->answer = (struct buf){0};
    f->done = NULL;
    fetch_clear(f);
    done(f->arg, why ? NULL : buf_str(&text), text.n, why);
}

static void fetch_on_timeout(void *arg)
{
    struct fetch *f = arg;
    f->timer = 0;
    fetch_end(f, "no answer in time");
}

static void fetch_on_head(void *arg, unsigned status, const struct http_fields *fields, uint64_t length)
{
    (void)fields, (void)length;
    ((struct fetch *)arg)->status = status;
}

static void fetch_on_data(void *arg, const void *p, size_t n)
{
    struct fetch *f = arg;
    if (f->answer.n + n > OAUTH_JWKS_MAX)
        fetch_end(f, "its answer is too long");
    else
        buf_add(&f->answer, p, n);
}

static void fetch_on_end(void *arg)
{
    struct fetch *f = arg;
    char why[40];
    (void)snprintf(why, sizeof why, "it answered %u", f->status);
    fetch_end(f, f->status == 200 ? NULL : why);
}

static void fetch_on_writable(void *arg) { (void)arg; }

static void fetch_try(struct fetch *f);
static void fetch_on_error(void *arg, enum client_failure failure, const char *text)
{
    struct fetch *f = arg;
    if (failure != CLIENT_UNREACHED || f->tried >= f->n) {
        fetch_end(f, text);
        return;
    }
    client_free(f->http);
    f->http = NULL;
    fetch_try(f);
}

static const struct client_events events = {fetch_on_head, fetch_on_data, fetch_on_end, fetch_on_writable,
                                            fetch_on_error};

/* The next address to which a connection can be begun. */
static void fetch_try(struct fetch *f)
{
    struct transport *t = NULL;
    while (!t && f->tried < f->n) {
        const struct sockaddr_storage *a = &f->v[f->tried];
        int fd = socket(a->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        bool begun =
            fd >= 0 && (connect(fd, (const struct sockaddr *)a, f->len[f->tried]) == 0 || errno == EINPROGRESS);
        struct in6_addr literal;
        memcpy(&literal, f->url.literal, sizeof literal);
        f->tried++;
        if (begun)
            t = f->url.tls
                    ? etls_connect(f->tls, fd, f->url.is_literal ? NULL : f->url.host, &literal, ETLS_HTTP1, false)
                    : transport_plain(fd);
        else if (fd >= 0)
            (void)close(fd);
    }
    if (!t) {
        fetch_end(f, "cannot connect");
        return;
    }
    struct http_field fields[] = {
        {"accept", "application/json"}, {"user-agent", "hutch/" HUTCH_VERSION}, {"connection", "close"}};
    const struct client_request q = {
        .method = "GET", .target = f->url.target, .host = f->url.authority, .fields = {fields, ARRAY_LEN(fields)}};
    f->http = client_new(f->loop, t);
    f->status = 0;
    client_start(f->http, &q, &events, f);
}

/* --- the name --------------------------------------------------------------------------------------------------------- */

/* Runs on a worker thread. */
static void fetch_lookup_work(void *arg)
{
    struct lookup *k = arg;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    k->error = getaddrinfo(k->host, k->port, &hints, &list);
    for (const struct addrinfo *a = list; a && k->n < ADDRESSES; a = a->ai_next)
        if (a->ai_addrlen <= sizeof k->v[0]) {
            memcpy(&k->v[k->n], a->ai_addr, a->ai_addrlen);
            k->len[k->n++] = a->ai_addrlen;
        }
    if (list)
        freeaddrinfo(list);
}

static void fetch_on_lookup(void *arg)
{
    struct lookup *k = arg;
    struct fetch *f = k->f;
    if (f) {
        f->looking = NULL;
        f->n = k->n;
        f->tried = 0;
        memcpy(f->v, k->v, sizeof f->v);
        memcpy(f->len, k->len, sizeof f->len);
        if (k->error)
            fetch_end(f, gai_strerror(k->error));
        else
            fetch_try(f);
    }
    free(k);
}

void fetch_start(struct fetch *f, fetch_done *done, void *arg)
{
    struct lookup *k = xcalloc(1, sizeof *k);
    f->done = done;
    f->arg = arg;
    f->looking = k;
    k->f = f;
    (void)snprintf(k->host, sizeof k->host, "%s", f->url.host);
    (void)snprintf(k->port, sizeof k->port, "%u", f->url.port);
    f->timer = loop_timer(f->loop, OAUTH_FETCH_MS, fetch_on_timeout, f);
    loop_work(f->loop, fetch_lookup_work, fetch_on_lookup, k);
}
