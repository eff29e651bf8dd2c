/* send-file.c - sends a file as an answer. */
#include "api/send-file.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

#include "api/api.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/url.h"

enum { CHUNK = 256 * 1024 };
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

/* A file that is being sent. A worker reads regular files one chunk at a time, so a slow disk never blocks the loop
 * and a large file costs one chunk of memory. Pipes (files that the kernel generates) are read when they become
 * readable. */
struct sending {
    struct http_req *r; /* NULL: the client left while a worker was busy */
    struct loop *loop;
    int fd;
    bool working, ended;
    loop_id watch;    /* pipes and sockets */
    uint64_t at, end; /* regular files: the range still to send */
    uint64_t skip;    /* of a socket: bytes before the range */
    bool sized;
    ssize_t got;
    char *chunk;
};

static void send_file_free(struct sending *s)
{
    if (s->watch)
        loop_fd_del(s->loop, s->watch);
    if (s->fd >= 0)
        (void)close(s->fd);
    free(s->chunk);
    free(s);
}

static void send_file_on_client_left(struct http_req *r)
{
    struct sending *s = r->user;
    s->r = NULL;
    if (!s->working)
        send_file_free(s);
}

/* Frees s; its request is to be answered or ended next. */
static struct http_req *send_file_over(struct sending *s)
{
    struct http_req *r = s->r;
    api_on_closed(r, NULL);
    r->on_writable = NULL;
    r->user = NULL;
    send_file_free(s);
    return r;
}

/* Ends the answer. If it is incomplete, only a cut connection can tell the client so. */
static void send_file_finish(struct sending *s, bool whole)
{
    struct http_req *r = send_file_over(s);
    if (whole)
        http_end(r);
    else
        http_abort(r);
}

static void send_file_read_chunk(void *arg)
{
    struct sending *s = arg;
    size_t want = s->end - s->at < CHUNK ? (size_t)(s->end - s->at) : CHUNK;
    do
        s->got = pread(s->fd, s->chunk, want, (off_t)s->at);
    while (s->got < 0 && errno == EINTR);
}

static void send_file_on_chunk_read(void *arg);

static void send_file_next(struct sending *s)
{
    if (s->at == s->end) {
        send_file_finish(s, true);
    } else {
        s->working = true;
        loop_work(s->loop, send_file_read_chunk, send_file_on_chunk_read, s);
    }
}

static void send_file_on_chunk_read(void *arg)
{
    struct sending *s = arg;
    s->working = false;
    if (!s->r) {
        send_file_free(s);
        return;
    }
    if (s->got <= 0) { /* the file was truncated or cannot be read */
        send_file_finish(s, false);
        return;
    }
    s->at += (uint64_t)s->got;
    if (http_write(s->r, s->chunk, (size_t)s->got) || s->at == s->end)
        send_file_next(s);
}

static void send_file_on_pipe(void *arg, int fd, unsigned events)
{
    struct sending *s = arg;
    (void)events;
    ssize_t n = fd_read_pipe(fd, s->chunk, CHUNK); /* the sandbox holds the pipe, too, and may change its flags */
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        send_file_finish(s, n == 0);
        return;
    }
    if (!http_write(s->r, s->chunk, (size_t)n))
        loop_fd_set(s->loop, s->watch, 0);
}

/* A file that comes over a socket. */
static void send_file_on_socket(void *arg, int fd, unsigned events)
{
    struct sending *s = arg;
    (void)events;
    ssize_t got = recv(fd, s->chunk, CHUNK, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) { /* a sized one ends where it was told to */
        send_file_finish(s, got == 0 && !s->sized);
        return;
    }
    size_t n = (size_t)got, skip = s->skip < n ? (size_t)s->skip : n;
    s->skip -= skip;
    n -= skip;
    if (s->sized && n > s->end - s->at)
        n = (size_t)(s->end - s->at);
    s->at += n;
    bool more = n == 0 || http_write(s->r, s->chunk + skip, n);
    if (s->sized && s->at == s->end)
        send_file_finish(s, true);
    else if (!more)
        loop_fd_set(s->loop, s->watch, 0);
}

static void send_file_on_writable(struct http_req *r)
{
    struct sending *s = r->user;
    if (s->watch)
        loop_fd_set(s->loop, s->watch, LOOP_IN);
    else if (!s->working)
        send_file_next(s);
}

/* One range of "bytes=a-b". 1: valid, 0: ignore it, -1: the file has no such bytes. */
static int send_file_parse_range(const struct http_req *r, uint64_t size, uint64_t *from, uint64_t *to)
{
    const char *field = http_field(&r->fields, "range");
    char text[64], *dash;
    uint64_t a, b;
    if (!field || http_field(&r->fields, "if-range") || strncasecmp(field, "bytes=", 6) != 0 ||
        strlen(field) >= sizeof text)
        return 0;
    memcpy(text, field + 6, strlen(field + 6) + 1);
    dash = strchr(text, '-');
    if (!dash || strchr(text, ','))
        return 0;
    *dash++ = 0;
    if (!*text) { /* the last b bytes */
        if (!num_u64(dash, &b))
            return 0;
        if (b == 0 || size == 0)
            return -1;
        *from = b < size ? size - b : 0;
        *to = size;
        return 1;
    }
    b = size;
    if (!num_u64(text, &a) || (*dash && (!num_u64(dash, &b) || b < a)))
        return 0;
    if (a >= size)
        return -1;
    *from = a;
    *to = *dash && b < size ? b + 1 : size;
    return 1;
}

static void send_file_set_name(struct http_req *r, const char *name)
{
    _cleanup_buf_ struct buf out = {0};
    buf_adds(&out, "inline; filename=\"");
    for (const char *p = name; *p; p++)
        buf_addc(&out, *p < ' ' || *p > '~' || *p == '"' || *p == '\\' ? '_' : *p);
    buf_adds(&out, "\"; filename*=UTF-8''");
    url_encode(&out, name, strlen(name), "");
    http_set(r, "content-disposition", buf_str(&out));
}

static void send_file_set_time(struct http_req *r, time_t t)
{
    char text[40];
    struct tm tm;
    if (gmtime_r(&t, &tm) && strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &tm))
        http_set(r, "last-modified", text);
}

/* Sends the head and sets the range to read. False: it has answered. */
static bool send_file_send_head(struct sending *s, const struct stat *st)
{
    struct http_req *r = s->r;
    uint64_t size = (uint64_t)st->st_size;
    char text[96];
    unsigned status = 200;
    s->end = size;
    http_set(r, "accept-ranges", "bytes");
    http_set(r, "vary", "Accept-Encoding");
    send_file_set_time(r, st->st_mtime);
    int range = send_file_parse_range(r, size, &s->at, &s->end);
    if (range < 0) {
        (void)snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)size);
        http_set(r, "content-range", text);
        (void)send_file_over(s);
        reply_error(r, 416, "the file has %llu bytes; the range begins behind them", (unsigned long long)size);
        return false;
    }
    if (range > 0) {
        status = 206;
        (void)snprintf(text, sizeof text, "bytes %llu-%llu/%llu", (unsigned long long)s->at,
                       (unsigned long long)s->end - 1, (unsigned long long)size);
        http_set(r, "content-range", text);
    }
    http_set(r, "content-type", "application/octet-stream");
    http_head(r, status, s->end - s->at);
    if (strcmp(r->method, "HEAD") == 0) {
        (void)send_file_over(s);
        http_end(r);
        return false;
    }
    return true;
}

bool api_file_is_trusted(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type != FUSE_SUPER_MAGIC;
}

/* Begins to send what comes over a socket. */
static void send_file_start_socket(struct sending *s, const struct send_file_facts *facts)
{
    s->sized = facts != NULL;
    if (facts) {
        const struct stat like = {.st_size = (off_t)facts->size, .st_mtime = facts->mtime};
        if (!send_file_send_head(s, &like))
            return;
        s->skip = s->at;
        if (s->at == s->end) {
            send_file_finish(s, true);
            return;
        }
    } else {
        http_set(s->r, "content-type", "application/octet-stream");
        http_head(s->r, 200, HTTP_UNKNOWN);
    }
    s->watch = loop_fd_add(s->loop, s->fd, LOOP_IN, send_file_on_socket, s);
    if (!s->watch)
        send_file_finish(s, false);
}

void api_send_file(struct http_req *r, int fd, const char *name, const struct send_file_facts *facts)
{
    struct stat meta;
    struct sending *s = xcalloc(1, sizeof *s);
    s->r = r;
    s->loop = r->loop;
    s->fd = fd;
    s->chunk = xmalloc(CHUNK);
    r->user = s;
    api_on_closed(r, send_file_on_client_left);
    r->on_writable = send_file_on_writable;
    if (fstat(fd, &meta) < 0 || !(S_ISREG(meta.st_mode) || S_ISFIFO(meta.st_mode) || S_ISSOCK(meta.st_mode)) ||
        (S_ISREG(meta.st_mode) && !api_file_is_trusted(fd))) {
        reply_error(send_file_over(s), 400, "the path is not a file that can be read");
        return;
    }
    send_file_set_name(r, name);
    if (S_ISREG(meta.st_mode)) {
        if (send_file_send_head(s, &meta))
            send_file_next(s);
        return;
    }
    if (S_ISSOCK(meta.st_mode)) {
        send_file_start_socket(s, facts);
        return;
    }
    http_set(r, "content-type", "application/octet-stream");
    http_head(r, 200, HTTP_UNKNOWN);
    s->watch = loop_fd_add(s->loop, fd, LOOP_IN, send_file_on_pipe, s);
    if (!s->watch)
        send_file_finish(s, false);
}
