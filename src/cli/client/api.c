#include "cli/client/api.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "http/blocking-tls.h"

enum { READ_BYTES = 64 * 1024 };

static void api_add_user(const struct api *a, struct buf *b)
{
    char plain[80];
    _cleanup_buf_ struct buf value = {0};
    (void)snprintf(plain, sizeof plain, "%s:", a->user);
    buf_adds(&value, "Basic ");
    base64_encode(&value, plain, strlen(plain));
    http1_add_field(b, "authorization", buf_str(&value));
}

static void api_add_head(const struct api *a, const struct api_request *q, struct buf *b)
{
    char host[300];
    (void)snprintf(host, sizeof host, strchr(a->host, ':') ? "[%s]:%s" : "%s:%s", a->host, a->port);
    if (a->via.host[0] && !a->tls) { /* over https the proxy only passes bytes on */
        _cleanup_free_ char *whole = xasprintf("http://%s%s", host, q->path);
        http1_add_request(b, q->method, whole, host);
        if (a->via.login)
            http1_add_field(b, "proxy-authorization", a->via.login);
    } else {
        http1_add_request(b, q->method, q->path, host);
    }
    http1_add_field(b, "user-agent", "hutch/" HUTCH_VERSION);
    if (!q->keep)
        http1_add_field(b, "connection", "close");
    if (a->key[0])
        http1_add_field(b, "x-api-key", a->key);
    if (a->sandbox[0]) {
        http1_add_field(b, "e2b-sandbox-id", a->sandbox);
        http1_add_field(b, "e2b-sandbox-port", "49983");
        if (a->token[0])
            http1_add_field(b, "x-access-token", a->token);
        if (a->user[0])
            api_add_user(a, b);
    }
    if (q->type)
        http1_add_field(b, "content-type", q->type);
    for (size_t i = 0; q->extra && q->extra[i]; i++)
        buf_addf(b, "%s\r\n", q->extra[i]);
    bool has_body = q->body || q->body_fd >= 0;
    if (has_body || strcmp(q->method, "GET") != 0)
        http1_add_framing(b, q->length == HTTP_UNKNOWN ? HTTP1_CHUNKED : HTTP1_LENGTH, has_body ? q->length : 0);
    http1_add_end(b);
}

/* Copies the body from a descriptor. The node may answer early (an error) and close: that is not our failure, its answer
 * says why. */
static int api_send_file(struct blocking *s, const struct api_request *q, struct err *err)
{
    char line[HTTP1_CHUNK_LINE];
    _cleanup_free_ char *room = xmalloc(READ_BYTES);
    uint64_t left = q->length, done = 0;
    bool chunked = q->length == HTTP_UNKNOWN;
    while (left > 0) {
        size_t want = left < READ_BYTES ? (size_t)left : READ_BYTES;
        ssize_t n = read(q->body_fd, room, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_USAGE, errno, "read what is to be sent");
        if (n == 0 && !chunked)
            return err_set(err, ERR_USAGE, 0, "the file became shorter while it was being sent");
        if (n == 0)
            break;
        if (chunked && blocking_send(s, line, http1_chunk_line(line, (size_t)n)) < 0)
            return 0;
        if (blocking_send(s, room, (size_t)n) < 0 || (chunked && blocking_send(s, "\r\n", 2) < 0))
            return 0;
        left -= chunked ? 0 : (uint64_t)n;
        done += (uint64_t)n;
        if (q->progress)
            q->progress(q->progress_what, done, q->length, false);
    }
    if (q->progress)
        q->progress(q->progress_what, done, q->length, true);
    if (chunked)
        (void)blocking_send(s, HTTP1_LAST_CHUNK, strlen(HTTP1_LAST_CHUNK));
    return 0;
}

/* In TLS 1.3 a server refuses a client's certificate after the handshake. */
static int api_fail_tls(struct err *err)
{
    const char *why = blocking_tls_reason();
    bool wanted = why && strstr(why, "certificate required"), bad = why && strstr(why, "alert");
    return err_set(err, ERR_HOST, 0, "the connection was ended: %s%s", why ? why : "it was closed",
                   wanted ? "; give a client certificate with --cert FILE --key FILE"
                   : bad  ? "; does the server take this client certificate (--cert)?"
                          : "");
}

static int api_fail(const struct blocking *s, struct err *err)
{
    switch (s->failure) {
    case BLOCKING_UNANSWERED:
        return err_set(err, ERR_HOST, 0, "the node closed the connection without an answer");
    case BLOCKING_NOT_HTTP:
        return err_set(err, ERR_HOST, 0, "this is no HTTP/1.1 answer: %s", s->why);
    case BLOCKING_DAMAGED:
        return err_set(err, ERR_HOST, 0, "the node's answer is damaged");
    case BLOCKING_CUT:
        return err_set(err, ERR_HOST, 0, "the connection to the node broke (the sandbox ended, or the node restarted)");
    case BLOCKING_TOO_LARGE:
        return err_set(err, ERR_HOST, 0, "the node's answer is longer than %d MiB", API_BODY_MAX >> 20);
    default:
        return s->layer && !s->eno ? api_fail_tls(err) : err_set(err, ERR_HOST, s->eno, "read the node's answer");
    }
}

/* A server that refuses our certificate has closed by now; its alert says why. */
static int api_unsent(const struct api *a, const struct api_request *q, struct blocking *s, struct err *err)
{
    int eno = s->eno;
    bool refused = s->layer && blocking_read_head(s, q->method) < 0 && s->failure == BLOCKING_BROKEN && !s->eno;
    s->failure = BLOCKING_UNSENT;
    return refused ? api_fail_tls(err) : err_set(err, ERR_HOST, eno, "send to %s", a->url);
}

/* One attempt on a connection. */
static int api_exchange(const struct api *a, const struct api_request *q, struct blocking *s, struct err *err)
{
    _cleanup_buf_ struct buf head = {0};
    api_add_head(a, q, &head);
    if (q->body)
        buf_add(&head, q->body, (size_t)q->length);
    if (blocking_send(s, head.p, head.n) < 0)
        return api_unsent(a, q, s, err);
    if (q->body_fd >= 0 && api_send_file(s, q, err) < 0)
        return -1;
    if (blocking_read_head(s, q->method) == 0)
        return 0;
    (void)api_fail(s, err);
    size_t n = strlen(err->msg);
    if (!a->tls && (s->failure == BLOCKING_NOT_HTTP || s->eno == ECONNRESET))
        (void)snprintf(err->msg + n, sizeof err->msg - n, "; is it https://%.200s?", a->url + strlen("http://"));
    return -1;
}

int api_send(const struct api *a, const struct api_request *q, struct blocking *ret, struct err *err)
{
    *ret = (struct blocking)BLOCKING_INIT;
    (void)signal(SIGPIPE, SIG_IGN);
    if (q->body_fd < 0 && api_take_kept(a, ret)) {
        if (api_exchange(a, q, ret, err) == 0)
            return 0;
        /* The node may have closed it at this moment. What it may have done already is not asked for twice. */
        bool again = ret->failure == BLOCKING_UNSENT || strcmp(q->method, "GET") == 0;
        blocking_close(ret);
        if (!again)
            return -1;
    }
    int r = api_connect(a, ret, err);
    if (r == 0)
        r = api_exchange(a, q, ret, err);
    if (r < 0)
        blocking_close(ret);
    return r;
}

ssize_t api_read(struct blocking *s, void *p, size_t n, int wait_fd, bool *ret_woken, struct err *err)
{
    const void *run;
    s->wake_fd = wait_fd;
    ssize_t got = blocking_read(s, n, &run);
    if (got > 0)
        memcpy(p, run, (size_t)got);
    if (got >= 0)
        return got;
    if (s->failure != BLOCKING_WOKEN)
        return api_fail(s, err);
    *ret_woken = true;
    return -1;
}

int api_read_all(struct blocking *s, struct buf *ret, struct err *err)
{
    s->wake_fd = -1;
    return blocking_read_all(s, API_BODY_MAX, ret) < 0 ? api_fail(s, err) : 0;
}
