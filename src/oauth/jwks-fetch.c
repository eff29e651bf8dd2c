/* jwks-fetch.c - one GET at a time of the issuer's keys; one time limit holds for all of it. Redirects are not followed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "egress/etls.h"
#include "http/client.h"
#include "http/connecting.h"
#include "oauth/oauth.h"

struct fetch {
    struct loop *loop;
    struct config_url url;
    struct etls *tls;
    struct connecting *connecting; /* NULL: not now */
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
    connecting_free(f->connecting);
    f->connecting = NULL;
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

static void fetch_on_error(void *arg, enum client_failure failure, const char *text)
{
    (void)failure;
    fetch_end(arg, text);
}

static const struct client_events events = {fetch_on_head, fetch_on_data, fetch_on_end, fetch_on_writable,
                                            fetch_on_error};

static void fetch_on_connected(void *arg, int fd, const char *why)
{
    struct fetch *f = arg;
    struct transport *t = NULL;
    struct in6_addr literal;
    memcpy(&literal, f->url.literal, sizeof literal);
    f->connecting = NULL;
    if (fd >= 0)
        t = f->url.tls ? etls_connect(f->tls, fd, f->url.is_literal ? NULL : f->url.host, &literal, ETLS_HTTP1, false)
                       : transport_plain(fd);
    if (!t) {
        fetch_end(f, why ? why : "cannot connect");
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

void fetch_start(struct fetch *f, fetch_done *done, void *arg)
{
    f->done = done;
    f->arg = arg;
    f->timer = loop_timer(f->loop, OAUTH_FETCH_MS, fetch_on_timeout, f);
    f->connecting = connecting_start(f->loop, f->url.host, f->url.port, OAUTH_FETCH_MS / 2, fetch_on_connected, f);
}
