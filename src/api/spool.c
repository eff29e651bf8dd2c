/* spool.c - writes bodies into unnamed files. A worker writes one piece at a time, and the client waits for it. */
#include "api/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/random.h"

enum { PIECE = 512 * 1024, LINE_MAX_BYTES = 64 };

struct spool {
    struct spool *next, **link; /* list of all spools */
    char owner[40];
    loop_id timer;
    struct http_req *r; /* NULL: the client left */
    struct loop *loop;
    int fd;
    const struct config *config;
    uint64_t length, n; /* length: announced by the client, or 0; n: received */
    struct buf in;      /* received, not yet written */
    struct buf out;     /* being written */
    struct buf *head;   /* NULL: there is no head, or it is complete */
    struct buf line;    /* its first line */
    size_t head_n;      /* its size; 0: the first line is incomplete */
    bool writing, ended;
    bool whole; /* complete: the callee owns it */
    int eno;    /* of a write that failed */
    void *user; /* the handler's */
    void (*closed)(struct http_req *r);
    spool_done *done;
};

static struct spool *all;
#define TOO_MUCH "the uploads under way have too many bytes together (builds.uploads_bytes); try again"

uint64_t spool_bytes(const struct spool *s) { return s->n; }

void spool_free(struct spool *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        (void)close(s->fd);
    buf_done(&s->in);
    buf_done(&s->out);
    buf_done(&s->line);
    loop_timer_del(s->loop, s->timer);
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    free(s);
}

/* Gives the request back to the handler and calls `done`. */
static void spool_finish(struct spool *s, unsigned status, const char *error)
{
    struct http_req *r = s->r;
    spool_done *done = s->done;
    bool more = !s->ended;
    int fd = -1;
    r->user = s->user;
    r->on_data = NULL;
    r->on_end = NULL;
    api_on_closed(r, s->closed);
    if (status == 0) {
        /* Opened again, read-only, so the callee cannot write to it. */
        char path[40];
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", s->fd);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && lseek(s->fd, 0, SEEK_SET) == 0)
            fd = TAKE_FD(s->fd);
        if (s->fd >= 0)
            (void)close(TAKE_FD(s->fd));
        buf_done(&s->in);
        buf_done(&s->out);
        s->whole = true;
        s->r = NULL;
    }
    if (s->writing) {
        s->r = NULL; /* the worker uses s; spool_on_written() frees it */
    } else if (!s->whole)
        spool_free(s);
    done(r, status == 0 ? s : NULL, fd, status, error, more);
}

static void spool_write_piece(void *arg)
{
    struct spool *s = arg;
    s->eno = fd_write_all(s->fd, s->out.p, s->out.n) < 0 ? errno : 0;
}

static void spool_continue(struct spool *s);

static void spool_on_written(void *arg)
{
    struct spool *s = arg;
    s->writing = false;
    s->out.n = 0;
    if (!s->r) {
        spool_free(s);
        return;
    }
    if (s->eno) {
        char text[160];
        (void)snprintf(text, sizeof text, "the node cannot keep the upload: %s", strerror(s->eno));
        spool_finish(s, s->eno == ENOSPC || s->eno == EDQUOT ? 507 : 500, text);
        return;
    }
    spool_continue(s);
}

static void spool_continue(struct spool *s)
{
    if (s->writing)
        return;
    if (s->in.n >= PIECE || (s->ended && s->in.n)) {
        struct buf free_one = s->out;
        s->out = s->in;
        s->in = free_one;
        s->in.n = 0;
        s->writing = true;
        if (!s->ended)
            http_pause(s->r);
        loop_work(s->loop, spool_write_piece, spool_on_written, s);
        return;
    }
    if (s->ended)
        spool_finish(s, s->head ? 400 : 0, s->head ? "the archive ends in the middle of its head" : "");
    else
        http_resume(s->r);
}

/* The first line gives the size of the rest of the head. 1: read, 0: incomplete, -1: not an export. */
static int spool_read_line(struct spool *s, const char **p, size_t *n)
{
    uint64_t len;
    const char *nl = memchr(*p, '\n', *n);
    size_t take = nl ? (size_t)(nl - *p) : *n;
    if (s->line.n + take > LINE_MAX_BYTES)
        return -1;
    buf_add(&s->line, *p, take);
    *p += take + (nl != NULL);
    *n -= take + (nl != NULL);
    if (!nl)
        return 0;
    if (strncmp(buf_str(&s->line), "hutch-template 1 ", 17) != 0 || !num_u64(buf_str(&s->line) + 17, &len) ||
        len == 0 || len > SPOOL_HEAD_MAX)
        return -1;
    s->head_n = (size_t)len;
    return 1;
}

/* 0, or -1 if the body is not an export. */
static int spool_take_head(struct spool *s, const char **p, size_t *n)
{
    if (s->head && s->head_n == 0 && spool_read_line(s, p, n) < 0)
        return -1;
    if (s->head && s->head_n) {
        size_t want = s->head_n - s->head->n, take = *n < want ? *n : want;
        buf_add(s->head, *p, take);
        *p += take;
        *n -= take;
        if (s->head->n == s->head_n)
            s->head = NULL;
    }
    return 0;
}

/* Whether so many more bytes fit into the limits, beside all bodies that exist or are being received. */
static bool spool_bytes_fit(const struct config *config, const char *owner, uint64_t more)
{
    uint64_t most = config_uploads_bytes(config), own = more, sum = more;
    if (most < config->build_upload_max)
        most = config->build_upload_max;
    for (const struct spool *o = all; o; o = o->next) {
        uint64_t n = o->n > o->length || o->whole ? o->n : o->length;
        sum += n;
        own += strcmp(o->owner, owner) == 0 ? n : 0;
    }
    return own <= most && sum <= SPOOL_OWNERS * most;
}

/* Disconnects a client that sends nothing: it occupies a place that others need. */
static void spool_on_idle(void *arg)
{
    struct spool *s = arg;
    s->timer = 0;
    if (s->r)
        http_abort(s->r);
}

static void spool_wait_more(struct spool *s)
{
    loop_timer_del(s->loop, s->timer);
    s->timer = loop_timer(s->loop, SPOOL_IDLE_MS, spool_on_idle, s);
}

static void spool_on_data(struct http_req *r, const void *p, size_t n)
{
    struct spool *s = r->user;
    spool_wait_more(s);
    const char *at = p;
    if (spool_take_head(s, &at, &n) < 0) {
        spool_finish(s, 400, "the body is not an export of a template: make one with `hutch template export`");
        return;
    }
    s->n += n;
    if (s->n > s->config->build_upload_max) {
        char text[120];
        (void)snprintf(text, sizeof text, "the upload is larger than %llu bytes (builds.upload_max)",
                       (unsigned long long)s->config->build_upload_max);
        spool_finish(s, 413, text);
        return;
    }
    if (s->n > s->length && !spool_bytes_fit(s->config, s->owner, 0)) {
        spool_finish(s, 503, TOO_MUCH);
        return;
    }
    buf_add(&s->in, at, n);
    spool_continue(s);
}

static void spool_on_end(struct http_req *r)
{
    struct spool *s = r->user;
    loop_timer_del(s->loop, s->timer);
    s->timer = 0;
    s->ended = true;
    spool_continue(s);
}

static void spool_on_closed(struct http_req *r)
{
    struct spool *s = r->user;
    void (*closed)(struct http_req *) = s->closed;
    r->user = s->user;
    s->r = NULL;
    if (!s->writing)
        spool_free(s);
    if (closed)
        closed(r);
}

static int spool_open_file(int dir)
{
    char name[40] = ".upload-";
    int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    random_hex(name + 8, 12); /* the file system does not support O_TMPFILE */
    fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)unlinkat(dir, name, 0);
    return fd;
}

void spool_body(struct http_req *r, const char *owner, struct buf *head, spool_done *done)
{
    struct api *api = api_call_of(r)->api;
    uint64_t max = api->config->build_upload_max, length = r->length != HTTP_UNKNOWN ? r->length : 0;
    char text[160];
    size_t n = 0, of_owner = 0;
    for (const struct spool *o = all; o; o = o->next) {
        n += !o->whole;
        of_owner += !o->whole && strcmp(o->owner, owner) == 0;
    }
    if (length > max) {
        (void)snprintf(text, sizeof text, "the upload has %llu bytes; at most %llu are allowed (builds.upload_max)",
                       (unsigned long long)length, (unsigned long long)max);
        done(r, NULL, -1, 413, text, true);
        return;
    }
    if (n >= SPOOL_AT_ONCE || of_owner >= SPOOL_OF_OWNER) {
        done(r, NULL, -1, 503, "too many uploads at the same time; try again", true);
        return;
    }
    if (!spool_bytes_fit(api->config, owner, length)) {
        done(r, NULL, -1, 503, TOO_MUCH, true);
        return;
    }
    int fd = spool_open_file(api->own_dir);
    if (fd < 0) {
        (void)snprintf(text, sizeof text, "the node cannot keep an upload: %s", strerror(errno));
        done(r, NULL, -1, 500, text, true);
        return;
    }
    struct spool *s = xcalloc(1, sizeof *s);
    *s = (struct spool){.r = r,
                        .loop = r->loop,
                        .fd = fd,
                        .config = api->config,
                        .length = length,
                        .head = head,
                        .user = r->user,
                        .closed = api_call_of(r)->closed,
                        .done = done};
    (void)snprintf(s->owner, sizeof s->owner, "%s", owner);
    s->link = &all;
    s->next = all;
    if (all)
        all->link = &s->next;
    all = s;
    spool_wait_more(s);
    r->user = s;
    r->on_data = spool_on_data;
    r->on_end = spool_on_end;
    api_on_closed(r, spool_on_closed);
}
