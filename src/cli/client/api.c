#include "cli/client/api.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/client/node.h"

enum { READ_BYTES = 64 * 1024 };

int api_reach(struct api *a, const char *url, struct err *err)
{
    *a = (struct api){.port = "80"};
    if (!url)
        url = getenv("HUTCH_URL");
    if (!url || !*url)
        url = NODE_DEFAULT_URL;
    if (strncmp(url, "http://", 7) != 0)
        return err_set(err, ERR_USAGE, 0, "the node's URL must be http://HOST[:PORT], not %.200s", url);
    const char *host = url + 7;
    size_t n = strcspn(host, "/");
    const char *colon = memchr(host, ':', n);
    if (host[0] == '[' && memchr(host, ']', n)) {
        const char *end = memchr(host, ']', n);
        colon = end[1] == ':' ? end + 1 : NULL;
    }
    size_t name = colon ? (size_t)(colon - host) : n;
    size_t port = colon ? n - name - 1 : 2;
    if (name == 0 || name >= sizeof a->host || port == 0 || port >= sizeof a->port || strlen(host + n) > 1)
        return err_set(err, ERR_USAGE, 0, "the node's URL must be http://HOST[:PORT], not %.200s", url);
    if (host[0] == '[' && name > 2)
        (void)snprintf(a->host, sizeof a->host, "%.*s", (int)name - 2, host + 1);
    else
        (void)snprintf(a->host, sizeof a->host, "%.*s", (int)name, host);
    if (colon)
        (void)snprintf(a->port, sizeof a->port, "%.*s", (int)port, colon + 1);
    (void)snprintf(a->url, sizeof a->url, "http://%.*s", (int)n, host);
    node_find_key(a->key, sizeof a->key);
    return 0;
}

/* Addresses only: a static program has no business with the resolver's plug-ins. */
static int api_dial(const struct api *a, struct err *err)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    int port;
    const char *host = strcmp(a->host, "localhost") == 0 ? "127.0.0.1" : a->host;
    bool six = strchr(host, ':') != NULL;
    if (!num_int(a->port, 1, 65535, &port))
        return err_set(err, ERR_USAGE, 0, "%s is not a port in %s", a->port, a->url);
    if (inet_pton(six ? AF_INET6 : AF_INET, host, six ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr) != 1)
        return err_set(err, ERR_USAGE, 0, "%s is not an address; give the node as http://ADDRESS:PORT", a->host);
    v4.sin_port = v6.sin6_port = htons((uint16_t)port);
    int fd = blocking_connect(six ? (void *)&v6 : (void *)&v4, six ? sizeof v6 : sizeof v4, -1);
    if (fd < 0)
        return err_set(err, ERR_HOST, errno, "no node answers at %s (start one with `hutch serve`)", a->url);
    return fd;
}

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
    http1_add_request(b, q->method, q->path, host);
    http1_add_field(b, "user-agent", "hutch/" HUTCH_VERSION);
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
    uint64_t left = q->length;
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
    }
    if (chunked)
        (void)blocking_send(s, HTTP1_LAST_CHUNK, strlen(HTTP1_LAST_CHUNK));
    return 0;
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
        return err_set(err, ERR_HOST, s->eno, "read the node's answer");
    }
}

int api_send(const struct api *a, const struct api_request *q, struct blocking *ret, struct err *err)
{
    _cleanup_buf_ struct buf head = {0};
    *ret = (struct blocking)BLOCKING_INIT;
    (void)signal(SIGPIPE, SIG_IGN);
    int fd = api_dial(a, err);
    if (fd < 0)
        return -1;
    blocking_start(ret, fd, NULL);
    api_add_head(a, q, &head);
    if (q->body)
        buf_add(&head, q->body, (size_t)q->length);
    int r = blocking_send(ret, head.p, head.n) < 0 ? err_set(err, ERR_HOST, ret->eno, "send to %s", a->url) : 0;
    if (r == 0 && q->body_fd >= 0)
        r = api_send_file(ret, q, err);
    if (r == 0 && blocking_read_head(ret, q->method) < 0)
        r = api_fail(ret, err);
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
