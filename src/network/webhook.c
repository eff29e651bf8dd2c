/* webhook.c - see webhook.h.
 *
 * A call sends one question. At most WEBHOOK_RUNNING_MAX run at once; the others wait in order, with tenants taking
 * turns. A worker of the loop looks up the URL's host name, one lookup at a time; the result is used for a minute.
 */
#include "network/webhook.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/etls.h"
#include "http/client.h"
#include "network/networks-int.h"

enum { ADDRESSES = 8, LOOKUP_GOOD_MS = 60 * 1000, WARN_MS = 10 * 1000, RETRY_MS = 1000, RETRY_FACTOR = 5 };

struct call {
    struct call *next;
    struct webhook *w;
    char id[40], tenant[40];
    unsigned attempt;    /* number of the present or last attempt; 0: none yet */
    size_t tried;        /* addresses that could not be reached in this attempt */
    struct client *http; /* the request under way */
    loop_id timer;       /* its time-out, or the next attempt */
    unsigned status;
    struct buf answer;
};
struct lookup {
    struct webhook *w; /* NULL: the webhook was freed */
    char host[256], port[8];
    struct sockaddr_storage v[ADDRESSES];
    socklen_t len[ADDRESSES];
    size_t n;
    int error;
};
struct webhook {
    struct networks *networks;
    struct config_url url;
    char *secret; /* NULL: nothing is signed */
    struct etls *tls;
    struct call *calls; /* in the order they came */
    size_t running;
    char last_tenant[40];
    struct lookup *looking; /* under way */
    struct sockaddr_storage v[ADDRESSES];
    socklen_t len[ADDRESSES];
    size_t n;
    uint64_t looked_ms, warned_ms;
};

static void webhook_go_on(struct webhook *w);

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void webhook_call_end_attempt(struct call *c)
{
    loop_timer_del(c->w->networks->loop, c->timer);
    c->timer = 0;
    if (c->http) {
        client_free(c->http);
        c->http = NULL;
        c->w->running--;
    }
    buf_done(&c->answer);
}

static void webhook_call_drop(struct call *c)
{
    webhook_call_end_attempt(c);
    for (struct call **at = &c->w->calls; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    free(c);
}

static void webhook_warn(struct webhook *w, const struct call *c, const char *why)
{
    uint64_t now = loop_now(w->networks->loop);
    struct log_line l;
    if (w->warned_ms && now - w->warned_ms < WARN_MS)
        return;
    w->warned_ms = now;
    if (log_start(&l, LOG_LEVEL_WARN,
                  "the webhook for approvals could not be asked; its questions wait for a decision through the API")) {
        log_str(&l, "approval", c->id);
        log_u64(&l, "attempt", c->attempt);
        log_str(&l, "why", why);
        log_end(&l);
    }
}

static void webhook_call_on_retry_timer(void *arg)
{
    struct call *c = arg;
    c->timer = 0;
    webhook_go_on(c->w);
}

static void webhook_call_fail(struct call *c, bool retry, const char *why)
{
    struct webhook *w = c->w;
    uint64_t ms = RETRY_MS;
    c->tried = 0;
    webhook_warn(w, c, why);
    webhook_call_end_attempt(c);
    if (!retry || c->attempt >= WEBHOOK_ATTEMPTS) {
        webhook_call_drop(c);
    } else {
        for (unsigned i = 1; i < c->attempt; i++)
            ms *= RETRY_FACTOR;
        c->timer = loop_timer(w->networks->loop, ms, webhook_call_on_retry_timer, c);
    }
    webhook_go_on(w);
}

static void webhook_call_on_timeout(void *arg)
{
    struct call *c = arg;
    c->timer = 0;
    webhook_call_fail(c, true, "no answer in time");
}

static void webhook_on_decided(void *arg, unsigned status, const char *text)
{
    (void)arg;
    if (status && status != 404) /* 404: it was decided through the API meanwhile */
        log_text(LOG_LEVEL_WARN, "a decision of the webhook cannot be followed: %s", text);
}

static void webhook_call_on_answer(struct call *c)
{
    struct webhook *w = c->w;
    struct webhook_decision d;
    struct err err;
    int rc = webhook_answer(buf_str(&c->answer), c->answer.n, &d, &err);
    if (rc < 0) {
        webhook_call_fail(c, false, err.msg);
        return;
    }
    char id[sizeof c->id], tenant[sizeof c->tenant];
    memcpy(id, c->id, sizeof id);
    memcpy(tenant, c->tenant, sizeof tenant);
    webhook_call_drop(c);
    if (rc > 0)
        approval_decide(w->networks, tenant, id, d.decision, d.minutes, webhook_on_decided, NULL);
    webhook_go_on(w);
}

static void webhook_call_on_head(void *arg, unsigned status, const struct http_fields *fields, uint64_t length)
{
    (void)fields;
    (void)length;
    ((struct call *)arg)->status = status;
}
static void webhook_call_on_data(void *arg, const void *p, size_t n)
{
    struct call *c = arg;
    if (c->answer.n + n > WEBHOOK_ANSWER_MAX)
        webhook_call_fail(c, false, "its answer is too long");
    else
        buf_add(&c->answer, p, n);
}
static void webhook_call_on_end(void *arg)
{
    struct call *c = arg;
    char why[40];
    if (c->status / 100 == 2) {
        webhook_call_on_answer(c);
        return;
    }
    (void)snprintf(why, sizeof why, "it answered %u", c->status);
    webhook_call_fail(c, c->status >= 500 || c->status == 408 || c->status == 429, why);
}
static void webhook_call_on_writable(void *arg) { (void)arg; }
static void webhook_call_on_error(void *arg, enum client_failure failure, const char *text)
{
    struct call *c = arg;
    struct webhook *w = c->w;
    if (failure != CLIENT_UNREACHED || ++c->tried >= w->n) {
        webhook_call_fail(c, true, text);
        return;
    }
    webhook_call_end_attempt(c); /* try the next address within the same attempt */
    c->attempt--;
    webhook_go_on(w);
}
static const struct client_events events = {webhook_call_on_head, webhook_call_on_data, webhook_call_on_end,
                                            webhook_call_on_writable, webhook_call_on_error};

static void webhook_call_send(struct call *c, const struct approval *a)
{
    struct webhook *w = c->w;
    _cleanup_buf_ struct buf body = {0};
    char signature[WEBHOOK_SIGNATURE];
    struct http_field fields[] = {{"content-type", "application/json"},
                                  {"user-agent", "hutch/" HUTCH_VERSION},
                                  {"x-hutch-event", WEBHOOK_EVENT},
                                  {"connection", "close"},
                                  {"x-hutch-signature", signature}};
    webhook_body(w->networks, a, &body);
    if (w->secret)
        webhook_sign(w->secret, (uint64_t)time(NULL), body.p, body.n, signature);
    struct client_request q = {.method = "POST",
                               .target = w->url.target,
                               .host = w->url.authority,
                               .fields = {fields, ARRAY_LEN(fields) - (w->secret ? 0 : 1)},
                               .length = body.n};
    client_start(c->http, &q, &events, c);
    (void)client_write(c->http, body.p, body.n);
    client_end(c->http);
}

/* -1: could not start. */
static int webhook_call_start(struct call *c, const struct approval *a)
{
    struct webhook *w = c->w;
    size_t i = c->tried % w->n;
    c->attempt++;
    struct in6_addr literal;
    memcpy(&literal, w->url.literal, sizeof literal);
    int fd = socket(w->v[i].ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&w->v[i], w->len[i]) < 0 && errno != EINPROGRESS)) {
        if (fd >= 0)
            (void)close(fd);
        return -1;
    }
    struct transport *t =
        w->url.tls ? etls_connect(w->tls, fd, w->url.is_literal ? NULL : w->url.host, &literal, ETLS_HTTP1, false)
                   : transport_plain(fd);
    if (!t)
        return -1;
    c->http = client_new(w->networks->loop, t);
    c->status = 0;
    w->running++;
    c->timer = loop_timer(w->networks->loop, (uint64_t)w->networks->config->webhook_timeout_s * 1000,
                          webhook_call_on_timeout, c);
    (void)snprintf(w->last_tenant, sizeof w->last_tenant, "%s", c->tenant);
    webhook_call_send(c, a);
    return 0;
}

/* --- the name ----------------------------------------------------------------------------------------------------- */

/* Runs on a worker thread. */
static void webhook_lookup_work(void *arg)
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

static void webhook_on_lookup(void *arg)
{
    struct lookup *k = arg;
    struct webhook *w = k->w;
    if (w) {
        w->looking = NULL;
        w->n = k->n;
        memcpy(w->v, k->v, sizeof w->v);
        memcpy(w->len, k->len, sizeof w->len);
        w->looked_ms = loop_now(w->networks->loop);
        struct call *first = w->calls;
        if (w->n > 0) {
            webhook_go_on(w);
        } else if (first) { /* the other calls cause a new lookup */
            first->attempt++;
            webhook_call_fail(first, true, k->error ? gai_strerror(k->error) : "its name has no address");
        }
    }
    free(k);
}

static bool webhook_has_address(struct webhook *w)
{
    if (w->n > 0 && loop_now(w->networks->loop) - w->looked_ms < LOOKUP_GOOD_MS)
        return true;
    if (!w->looking) {
        w->looking = xcalloc(1, sizeof *w->looking);
        w->looking->w = w;
        (void)snprintf(w->looking->host, sizeof w->looking->host, "%s", w->url.host);
        (void)snprintf(w->looking->port, sizeof w->looking->port, "%u", w->url.port);
        loop_work(w->networks->loop, webhook_lookup_work, webhook_on_lookup, w->looking);
    }
    return false;
}

/* --- the queue ---------------------------------------------------------------------------------------------------- */

static bool webhook_call_is_waiting(const struct call *c) { return !c->http && !c->timer; }

static struct call *webhook_next_call(struct webhook *w)
{
    struct call *first = NULL;
    for (struct call *c = w->calls; c; c = c->next)
        if (webhook_call_is_waiting(c)) {
            if (strcmp(c->tenant, w->last_tenant) != 0)
                return c;
            first = first ? first : c;
        }
    return first;
}

static void webhook_go_on(struct webhook *w)
{
    struct call *c;
    while (w->running < WEBHOOK_RUNNING_MAX && (c = webhook_next_call(w))) {
        const struct approval *a = approval_find(w->networks, c->tenant, c->id);
        if (!a) { /* decided meanwhile, or its sandbox has ended */
            webhook_call_drop(c);
            continue;
        }
        if (!webhook_has_address(w))
            return;
        if (webhook_call_start(c, a) < 0) {
            webhook_call_fail(c, true, "cannot connect"); /* calls us again */
            return;
        }
    }
}

void webhook_ask(struct networks *nw, const struct approval *a)
{
    struct webhook *w = nw->webhook;
    if (!w)
        return;
    struct call *c = xcalloc(1, sizeof *c), **end = &w->calls;
    c->w = w;
    memcpy(c->id, a->id, sizeof c->id);
    memcpy(c->tenant, a->tenant, sizeof c->tenant);
    while (*end)
        end = &(*end)->next;
    *end = c;
    webhook_go_on(w);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

int webhook_open(struct networks *nw, const char *secret, const struct buf *trust, struct err *err)
{
    if (!nw->config->webhook)
        return 0;
    struct webhook *w = nw->webhook = xcalloc(1, sizeof *w);
    w->networks = nw;
    if (!config_url(nw->config->webhook, &w->url))
        return err_set(err, ERR_SETUP, 0, "approvals.webhook is not an http or https URL");
    if (secret && (strlen(secret) < WEBHOOK_SECRET_MIN || strlen(secret) > WEBHOOK_SECRET_MAX))
        return err_set(err, ERR_SETUP, 0, "approvals.secret_file must hold one line of %d to %d bytes",
                       WEBHOOK_SECRET_MIN, WEBHOOK_SECRET_MAX);
    w->secret = secret ? xstrdup(secret) : NULL;
    if (w->url.tls && (etls_new(&w->tls, err) < 0 || etls_trust(w->tls, trust->p, trust->n, err) < 0))
        return err_wrap(err, "approvals.webhook");
    return 0;
}

void webhook_free(struct networks *nw)
{
    struct webhook *w = nw->webhook;
    if (!w)
        return;
    while (w->calls)
        webhook_call_drop(w->calls);
    if (w->looking)
        w->looking->w = NULL;
    etls_free(w->tls);
    if (w->secret)
        explicit_bzero(w->secret, strlen(w->secret));
    free(w->secret);
    free(w);
    nw->webhook = NULL;
}
