#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "front/e2b/envd.h"
#include "front/reply.h"
#include "http/url.h"

enum { CHUNK = 256 * 1024 };
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

/* A file on its way out. Regular files are read by a worker, one chunk at a time, so a slow disk never stops the loop and
 * a large file costs one chunk of memory; pipes (files the kernel makes up) are read when they have something. */
struct reading {
    struct envd *e; /* NULL: the client left while a worker was busy */
    struct loop *loop;
    int fd;
    bool working, ended;
    loop_id watch;    /* pipes */
    uint64_t at, end; /* regular files: what is left */
    ssize_t got;
    char *chunk;
};

static void reading_free(struct reading *s)
{
    if (s->watch)
        loop_fd_del(s->loop, s->watch);
    if (s->fd >= 0)
        (void)close(s->fd);
    free(s->chunk);
    free(s);
}

static void drop(struct envd *e)
{
    struct reading *s = e->data;
    s->e = NULL;
    if (!s->working)
        reading_free(s);
}

/* The answer is whole, or cannot become it: then only a cut tells the client. */
static void finish(struct reading *s, bool whole)
{
    struct http_req *r = s->e->r;
    envd_free(s->e);
    if (whole)
        http_end(r);
    else
        http_abort(r);
}

static void work(void *arg)
{
    struct reading *s = arg;
    size_t want = s->end - s->at < CHUNK ? (size_t)(s->end - s->at) : CHUNK;
    do
        s->got = pread(s->fd, s->chunk, want, (off_t)s->at);
    while (s->got < 0 && errno == EINTR);
}

static void worked(void *arg);

static void next(struct reading *s)
{
    if (s->at == s->end) {
        finish(s, true);
    } else {
        s->working = true;
        loop_work(s->loop, work, worked, s);
    }
}

static void worked(void *arg)
{
    struct reading *s = arg;
    s->working = false;
    if (!s->e) {
        reading_free(s);
        return;
    }
    if (s->got <= 0) { /* it became shorter, or cannot be read */
        finish(s, false);
        return;
    }
    s->at += (uint64_t)s->got;
    if (http_write(s->e->r, s->chunk, (size_t)s->got) || s->at == s->end)
        next(s);
}

static void from_pipe(void *arg, int fd, unsigned events)
{
    struct reading *s = arg;
    (void)events;
    ssize_t n = fd_read_pipe(fd, s->chunk, CHUNK); /* the sandbox holds it too */
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        finish(s, n == 0);
        return;
    }
    if (!http_write(s->e->r, s->chunk, (size_t)n))
        loop_fd_set(s->loop, s->watch, 0);
}

static void on_writable(struct http_req *r)
{
    struct reading *s = ((struct envd *)r->user)->data;
    if (s->watch)
        loop_fd_set(s->loop, s->watch, LOOP_IN);
    else if (!s->working)
        next(s);
}

/* One range of "bytes=a-b". 1 good, 0 to be ignored, -1 cannot be satisfied. */
static int read_range(const struct http_req *r, uint64_t size, uint64_t *from, uint64_t *to)
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

static void set_name(struct http_req *r, const char *name)
{
    _cleanup_buf_ struct buf out = {0};
    buf_adds(&out, "inline; filename=\"");
    for (const char *p = name; *p; p++)
        buf_addc(&out, *p < ' ' || *p > '~' || *p == '"' || *p == '\\' ? '_' : *p);
    buf_adds(&out, "\"; filename*=UTF-8''");
    url_encode(&out, name, strlen(name), "");
    http_set(r, "content-disposition", buf_str(&out));
}

static void set_time(struct http_req *r, time_t t)
{
    char text[40];
    struct tm tm;
    if (gmtime_r(&t, &tm) && strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &tm))
        http_set(r, "last-modified", text);
}

/* Sends the head and sets what is to be read. False: answered. */
static bool head(struct reading *s, const struct stat *st)
{
    struct http_req *r = s->e->r;
    uint64_t size = (uint64_t)st->st_size;
    char text[96];
    unsigned status = 200;
    s->end = size;
    http_set(r, "accept-ranges", "bytes");
    http_set(r, "vary", "Accept-Encoding");
    set_time(r, st->st_mtime);
    int range = read_range(r, size, &s->at, &s->end);
    if (range < 0) {
        (void)snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)size);
        http_set(r, "content-range", text);
        envd_free(s->e);
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
        envd_free(s->e);
        http_end(r);
        return false;
    }
    return true;
}

/* A file system that the sandbox serves itself could keep a worker waiting for ever. */
static bool trusted_fs(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type != FUSE_SUPER_MAGIC;
}

void files_send(struct envd *e, int fd, const char *name)
{
    struct http_req *r = e->r;
    struct stat meta;
    struct reading *s = xcalloc(1, sizeof *s);
    s->e = e;
    s->loop = r->loop;
    s->fd = fd;
    s->chunk = xmalloc(CHUNK);
    e->data = s;
    e->drop = drop;
    r->on_writable = on_writable;
    if (fstat(fd, &meta) < 0 || !(S_ISREG(meta.st_mode) || S_ISFIFO(meta.st_mode)) ||
        (S_ISREG(meta.st_mode) && !trusted_fs(fd))) {
        envd_free(e);
        reply_error(r, 400, "the path is not a file that can be read");
        return;
    }
    set_name(r, name);
    if (S_ISREG(meta.st_mode)) {
        if (head(s, &meta))
            next(s);
        return;
    }
    http_set(r, "content-type", "application/octet-stream");
    http_head(r, 200, HTTP_UNKNOWN);
    s->watch = loop_fd_add(s->loop, fd, LOOP_IN, from_pipe, s);
    if (!s->watch)
        finish(s, false);
}

static void opened(void *arg, const struct link_status *st, int fd, const struct file_info *info)
{
    struct envd *e = arg;
    e->call = 0;
    if (st->code != LINK_OK)
        envd_http_fail(e, st);
    else
        files_send(e, fd, info->name);
}

void files_read(struct envd *e, const char *path)
{
    if (strlen(path) >= FILES_PATH_MAX) {
        struct http_req *r = e->r;
        envd_free(e);
        reply_error(r, 400, "query parameter 'path' must be shorter than %d bytes", FILES_PATH_MAX);
        return;
    }
    e->call = files_open(e->f->links, e->id, e->user, path, opened, e);
}
