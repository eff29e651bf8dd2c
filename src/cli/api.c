#include "cli/api.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/node.h"

enum { READ_BYTES = 64 * 1024 };

int api_open(struct api *a, const char *url, struct err *err)
{
    *a = (struct api){.port = "80"};
    if (!url)
        url = getenv("HUTCH_URL");
    if (!url || !*url)
        url = NODE_DEFAULT_URL;
    if (strncmp(url, "http://", 7) != 0)
        return err_set(err, ERR_USAGE, 0, "the daemon's URL must be http://HOST[:PORT], not %.200s", url);
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
        return err_set(err, ERR_USAGE, 0, "the daemon's URL must be http://HOST[:PORT], not %.200s", url);
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
static int dial(const struct api *a, struct err *err)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    int port;
    const char *host = strcmp(a->host, "localhost") == 0 ? "127.0.0.1" : a->host;
    bool six = strchr(host, ':') != NULL;
    if (!num_int(a->port, 1, 65535, &port))
        return err_set(err, ERR_USAGE, 0, "%s is not a port in %s", a->port, a->url);
    if (inet_pton(six ? AF_INET6 : AF_INET, host, six ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr) != 1)
        return err_set(err, ERR_USAGE, 0, "%s is not an address; give the daemon as http://ADDRESS:PORT", a->host);
    v4.sin_port = v6.sin6_port = htons((uint16_t)port);
    _cleanup_close_ int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, six ? (void *)&v6 : (void *)&v4, six ? sizeof v6 : sizeof v4) < 0)
        return err_set(err, ERR_HOST, errno, "no daemon at %s (start one with `hutch serve`)", a->url);
    return TAKE_FD(fd);
}

static void add_user(const struct api *a, struct buf *b)
{
    char plain[80];
    _cleanup_buf_ struct buf value = {0};
    (void)snprintf(plain, sizeof plain, "%s:", a->user);
    buf_adds(&value, "Basic ");
    base64_encode(&value, plain, strlen(plain));
    http1_add_field(b, "authorization", buf_str(&value));
}

static void add_head(const struct api *a, const struct api_request *q, struct buf *b)
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
            add_user(a, b);
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

/* Copies the body from a descriptor. The daemon may answer early (an error) and close: that is not our failure, its answer
 * says why. */
static int send_file(int fd, const struct api_request *q, struct err *err)
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
        if (chunked && fd_write_all(fd, line, http1_chunk_line(line, (size_t)n)) < 0)
            return 0;
        if (fd_write_all(fd, room, (size_t)n) < 0 || (chunked && fd_write_all(fd, "\r\n", 2) < 0))
            return 0;
        left -= chunked ? 0 : (uint64_t)n;
    }
    if (chunked)
        (void)fd_write_all(fd, HTTP1_LAST_CHUNK, strlen(HTTP1_LAST_CHUNK));
    return 0;
}

static int more(struct api_stream *s, struct err *err)
{
    char room[READ_BYTES];
    ssize_t n;
    do
        n = read(s->fd, room, sizeof room);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_set(err, ERR_HOST, errno, "read the daemon's answer");
    if (s->at == s->in.n)
        s->at = s->in.n = 0;
    buf_add(&s->in, room, (size_t)n);
    return n > 0;
}

static int read_head(struct api_stream *s, const char *method, struct err *err)
{
    size_t scan = 0;
    struct http1_bad bad;
    for (;;) {
        ssize_t n = s->in.n > s->at ? http1_head_end(s->in.p + s->at, s->in.n - s->at, &scan, &bad) : 0;
        if (n < 0)
            return err_set(err, ERR_HOST, 0, "this is no HTTP/1.1 answer: %s", bad.why);
        if (n == 0) {
            int r = more(s, err);
            if (r < 0)
                return -1;
            if (r == 0)
                return err_set(err, ERR_HOST, 0, "the daemon closed the connection without an answer");
            continue;
        }
        s->head.n = 0;
        buf_add(&s->head, s->in.p + s->at, (size_t)n);
        s->at += (size_t)n;
        scan = 0;
        free(s->fields);
        s->fields = xcalloc(http1_count_fields(s->head.p, s->head.n) + 1, sizeof *s->fields);
        if (http1_parse_response(s->head.p, s->head.n, method, s->fields, &s->answer, &bad) < 0)
            return err_set(err, ERR_HOST, 0, "this is no HTTP/1.1 answer: %s", bad.why);
        if (s->answer.status >= 200)
            break;
    }
    http1_body_start(&s->body, &s->answer);
    return 0;
}

int api_send(const struct api *a, const struct api_request *q, struct api_stream *ret, struct err *err)
{
    _cleanup_buf_ struct buf head = {0};
    *ret = (struct api_stream){.fd = -1};
    (void)signal(SIGPIPE, SIG_IGN);
    int fd = dial(a, err);
    if (fd < 0)
        return -1;
    ret->fd = fd;
    add_head(a, q, &head);
    if (q->body)
        buf_add(&head, q->body, (size_t)q->length);
    int r = fd_write_all(fd, head.p, head.n) < 0 ? err_set(err, ERR_HOST, errno, "send to %s", a->url) : 0;
    if (r == 0 && q->body_fd >= 0)
        r = send_file(fd, q, err);
    if (r == 0)
        r = read_head(ret, q->method, err);
    if (r < 0)
        api_close(ret);
    return r;
}

ssize_t api_read(struct api_stream *s, void *p, size_t n, int wait_fd, bool *ret_woken, struct err *err)
{
    for (;;) {
        const char *run = NULL;
        size_t len = 0;
        if (s->body.done)
            return 0;
        if (s->at < s->in.n) {
            size_t have = s->in.n - s->at < n ? s->in.n - s->at : n;
            ssize_t used = http1_body_next(&s->body, s->in.p + s->at, have, &run, &len);
            if (used < 0)
                return err_set(err, ERR_HOST, 0, "the daemon's answer is damaged");
            s->at += (size_t)used;
            if (len > 0) {
                memcpy(p, run, len);
                return (ssize_t)len;
            }
            if (used > 0)
                continue;
        }
        struct pollfd fds[2] = {{.fd = s->fd, .events = POLLIN}, {.fd = wait_fd, .events = POLLIN}};
        if (wait_fd >= 0 && poll(fds, 2, -1) > 0 && fds[1].revents) {
            *ret_woken = true;
            return -1;
        }
        int r = more(s, err);
        if (r < 0)
            return -1;
        if (r == 0 && s->body.framing == HTTP1_CLOSE)
            return 0;
        if (r == 0)
            return err_set(err, ERR_HOST, 0,
                           "the connection to the daemon broke (the sandbox ended, or the daemon restarted)");
    }
}

void api_close(struct api_stream *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    buf_done(&s->in);
    buf_done(&s->head);
    free(s->fields);
    *s = (struct api_stream){.fd = -1};
}
