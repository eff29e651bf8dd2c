#include "http/blocking.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"

enum { READ_SIZE = 64 * 1024 };

static int blocking_fail(struct blocking *b, enum blocking_failure failure, int eno)
{
    b->failure = failure;
    b->eno = eno;
    return -1;
}

static uint64_t blocking_now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static uint64_t blocking_earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

static int blocking_give_up(struct blocking *b, enum blocking_failure failure)
{
    (void)blocking_fail(b, failure, 0);
    return 0;
}

/* How long to wait at most, -1 for ever. 0: the peer was too slow, the failure is set. */
static int blocking_patience(struct blocking *b, uint64_t now)
{
    struct blocking_pace *p = b->pace;
    if (!p)
        return -1;
    if (!p->deadline_ms)
        p->deadline_ms = now + p->total_ms;
    if (now >= p->deadline_ms)
        return blocking_give_up(b, BLOCKING_LATE);
    if (now - b->last_ms >= p->silence_ms)
        return blocking_give_up(b, BLOCKING_SILENT);
    if (now - b->window_ms >= p->window_ms) {
        if (b->window_bytes < p->window_bytes)
            return blocking_give_up(b, BLOCKING_SLOW);
        b->window_ms = now;
        b->window_bytes = 0;
    }
    uint64_t until = blocking_earlier(b->last_ms + p->silence_ms, b->window_ms + p->window_ms);
    return (int)(blocking_earlier(until, p->deadline_ms) - now);
}

int blocking_wait(struct blocking *b, bool out)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = b->fd, .events = out ? POLLOUT : POLLIN}, {.fd = b->wake_fd, .events = POLLIN}};
        int left = blocking_patience(b, blocking_now_ms());
        if (left == 0)
            return -1;
        int n = poll(fds, 2, left);
        if (n > 0 && fds[1].revents)
            return blocking_fail(b, BLOCKING_WOKEN, 0);
        if (n > 0) {
            b->last_ms = blocking_now_ms();
            return 0;
        }
        if (n < 0 && errno != EINTR)
            return blocking_fail(b, BLOCKING_BROKEN, errno);
    }
}

/* Waits until a connection attempt has ended. 0, or -1 with errno. */
static int blocking_await_connection(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    uint64_t end = blocking_now_ms() + (timeout_ms < 0 ? 0 : (uint64_t)timeout_ms);
    int eno = 0, n;
    socklen_t size = sizeof eno;
    do {
        uint64_t now = blocking_now_ms();
        n = poll(&p, 1, timeout_ms < 0 ? -1 : now < end ? (int)(end - now) : 0);
    } while (n < 0 && errno == EINTR);
    if (n > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &eno, &size) == 0 && eno == 0)
        return 0;
    if (n == 0 || eno)
        errno = eno ? eno : ETIMEDOUT;
    return -1;
}

int blocking_connect(const struct sockaddr *a, socklen_t n, int timeout_ms)
{
    _cleanup_close_ int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0)
        return -1;
    if (connect(fd, a, n) < 0 && (errno != EINPROGRESS || blocking_await_connection(fd, timeout_ms) < 0))
        return -1;
    /* The end of a handshake and the request behind it are two small writes; the second must not wait for the answer
     * to the first. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return TAKE_FD(fd);
}

void blocking_start(struct blocking *b, int fd, struct blocking_pace *pace)
{
    *b = (struct blocking)BLOCKING_INIT;
    b->fd = fd;
    b->pace = pace;
    b->last_ms = b->window_ms = blocking_now_ms();
}

void blocking_close(struct blocking *b)
{
    if (b->layer)
        b->layer->free(b->arg);
    if (b->fd >= 0)
        (void)close(b->fd);
    buf_done(&b->in);
    buf_done(&b->head);
    free(b->fields);
    *b = (struct blocking)BLOCKING_INIT;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

/* After a failed read or write. 1: try again; 0: it failed for good; -1: waiting failed. */
static int blocking_retry(struct blocking *b, bool out)
{
    if (errno == EINTR)
        return 1;
    if (errno != EAGAIN)
        return 0;
    return blocking_wait(b, out) < 0 ? -1 : 1;
}

int blocking_send(struct blocking *b, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n > 0) {
        bool out = true;
        errno = 0;
        ssize_t k = b->layer ? b->layer->write(b->arg, p, n, &out) : send(b->fd, p, n, MSG_NOSIGNAL);
        int again = k > 0 ? 1 : blocking_retry(b, out);
        if (again < 0)
            return -1;
        if (again == 0)
            return blocking_fail(b, BLOCKING_UNSENT, errno);
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return 0;
}

/* Checks the other descriptor first, even if the connection has bytes to read; bytes that a layer holds are not
 * waited for. */
static int blocking_look_aside(struct blocking *b)
{
    struct pollfd p = {.fd = b->wake_fd, .events = POLLIN};
    if (!b->layer || !b->layer->pending || !b->layer->pending(b->arg))
        return blocking_wait(b, false);
    return poll(&p, 1, 0) > 0 ? blocking_fail(b, BLOCKING_WOKEN, 0) : 0;
}

/* Reads more bytes into b->in. 0: the connection has ended. */
static ssize_t blocking_fill(struct blocking *b)
{
    if (b->at == b->in.n)
        b->at = b->in.n = 0;
    buf_reserve(&b->in, READ_SIZE);
    if (b->wake_fd >= 0 && blocking_look_aside(b) < 0)
        return -1;
    for (;;) {
        bool out = false;
        char *room = b->in.p + b->in.n;
        errno = 0;
        ssize_t n = b->layer ? b->layer->read(b->arg, room, READ_SIZE, &out) : recv(b->fd, room, READ_SIZE, 0);
        if (n >= 0) {
            b->in.n += (size_t)n;
            b->in.p[b->in.n] = '\0';
            b->window_bytes += (uint64_t)n;
            return n;
        }
        int again = blocking_retry(b, out);
        if (again <= 0)
            return again < 0 ? -1 : blocking_fail(b, BLOCKING_BROKEN, errno);
    }
}

static int blocking_refuse_head(struct blocking *b, const char *why)
{
    b->why = why;
    return blocking_fail(b, BLOCKING_NOT_HTTP, 0);
}

/* Reads one head, of an interim answer or the final one. */
static int blocking_next_head(struct blocking *b, const char *method)
{
    struct http1_bad bad = {0};
    size_t scan = 0;
    ssize_t n = 0;
    while (b->at == b->in.n || (n = http1_head_end(b->in.p + b->at, b->in.n - b->at, &scan, &bad)) == 0) {
        ssize_t got = blocking_fill(b);
        if (got <= 0)
            return got < 0 ? -1 : blocking_fail(b, BLOCKING_UNANSWERED, 0);
    }
    if (n < 0)
        return blocking_refuse_head(b, bad.why);
    b->head.n = 0;
    buf_add(&b->head, b->in.p + b->at, (size_t)n);
    b->at += (size_t)n;
    free(b->fields);
    b->fields = xcalloc(http1_count_fields(b->head.p, b->head.n) + 1, sizeof *b->fields);
    if (http1_parse_response(b->head.p, b->head.n, method, b->fields, &b->answer, &bad) < 0)
        return blocking_refuse_head(b, bad.why);
    return 0;
}

int blocking_read_head(struct blocking *b, const char *method)
{
    for (unsigned answers = 0; answers < BLOCKING_INTERIM_MAX; answers++) {
        if (blocking_next_head(b, method) < 0)
            return -1;
        if (b->answer.status >= 200) {
            http1_body_start(&b->body, &b->answer);
            return 0;
        }
    }
    return blocking_refuse_head(b, "it does not come to an answer");
}

ssize_t blocking_read(struct blocking *b, size_t max, const void **ret)
{
    while (!b->body.done) {
        const char *run = NULL;
        size_t n = 0, have = b->in.n - b->at < max ? b->in.n - b->at : max;
        ssize_t used = have > 0 ? http1_body_next(&b->body, b->in.p + b->at, have, &run, &n) : 0;
        if (used < 0)
            return blocking_fail(b, BLOCKING_DAMAGED, 0);
        b->at += (size_t)used;
        if (n > 0) {
            *ret = run;
            return (ssize_t)n;
        }
        if (b->body.done || used > 0)
            continue;
        ssize_t got = blocking_fill(b);
        if (got < 0)
            return -1;
        if (got == 0)
            return b->body.framing == HTTP1_CLOSE ? 0 : blocking_fail(b, BLOCKING_CUT, 0);
    }
    return 0;
}

int blocking_read_all(struct blocking *b, size_t max, struct buf *ret)
{
    const void *p;
    ssize_t n;
    ret->n = 0;
    while ((n = blocking_read(b, READ_SIZE, &p)) > 0) {
        if ((size_t)n > max - ret->n)
            return blocking_fail(b, BLOCKING_TOO_LARGE, 0);
        buf_add(ret, p, (size_t)n);
    }
    return n < 0 ? -1 : 0;
}
