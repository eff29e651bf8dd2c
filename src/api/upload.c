#include "api/upload.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "http/multipart.h"

enum {
    PIECE = 128 * 1024,    /* bytes of decoded body that are parsed at a time */
    HELD_MAX = 256 * 1024, /* bytes of the body as received; beyond that the client must wait */
    PATHS_MAX = 4 << 20,   /* bytes of all paths that parts of their own name */
};

/* The parser turns the body into a list of steps, and the sandbox executes them one after the other. Until they are
 * done nothing more is decoded and the client must wait, so memory stays constant however large the upload is. */
struct upload_step {
    struct upload_step *next;
    enum { UPLOAD_OPEN, UPLOAD_DATA, UPLOAD_CLOSE } what;
    char *path;    /* UPLOAD_OPEN */
    size_t n, cap; /* UPLOAD_DATA */
    char bytes[];
};

struct upload {
    struct http_req *r;
    struct links *links;
    const struct upload_ops *ops;
    void *arg;
    link_call call; /* 0: none is under way */
    char *sandbox, *user, *part;
    char *path;         /* NULL: each part names its own */
    char *path_part;    /* NULL: file parts have their own names */
    struct strv places; /* "X", path, "X", path ... of parts "X" path_part */
    struct buf place;   /* the text of such a part, while it comes */
    bool in_place;
    size_t places_n;
    uint64_t file_max;
    struct multipart *multipart;
    bool in_file;            /* multipart: inside a part that is a file */
    const struct strv *meta; /* key, value, ... */
    z_stream *gzip;
    bool gzip_ended;
    struct buf in; /* the body as received */
    size_t in_at;
    bool in_ended, finished; /* finished: the whole body was parsed */
    struct upload_step *first, *tail;
    bool busy;                   /* a step is under way */
    struct upload_step *working; /* the data step under way: it owns the bytes */
    struct file_sink *sink;      /* the open file */
    uint64_t written;            /* bytes of the open file */
    struct strv done;            /* absolute paths written, to find duplicates */
};

static void upload_step_free(struct upload_step *p)
{
    if (p)
        free(p->path);
    free(p);
}

void upload_free(struct upload *u)
{
    if (!u)
        return;
    if (u->call)
        link_cancel(u->links, u->call);
    for (struct upload_step *p = u->first, *next; p; p = next) {
        next = p->next;
        upload_step_free(p);
    }
    upload_step_free(u->working);
    sink_free(u->sink);
    if (u->gzip)
        (void)inflateEnd(u->gzip);
    free(u->gzip);
    free(u->path);
    free(u->path_part);
    strv_done(&u->places);
    buf_done(&u->place);
    multipart_free(u->multipart);
    strv_done(&u->done);
    buf_done(&u->in);
    free(u->sandbox);
    free(u->user);
    free(u->part);
    free(u);
}

static void upload_add_step(struct upload *u, struct upload_step *p)
{
    p->next = NULL;
    if (u->tail)
        u->tail->next = p;
    else
        u->first = p;
    u->tail = p;
}

static void upload_add_open(struct upload *u, const char *path)
{
    struct upload_step *p = xcalloc(1, sizeof *p);
    p->what = UPLOAD_OPEN;
    p->path = xstrdup(path);
    upload_add_step(u, p);
}

static void upload_add_data(struct upload *u, const void *bytes, size_t n)
{
    struct upload_step *p = u->tail;
    if (p && p->what == UPLOAD_DATA && p->cap - p->n >= n) {
        memcpy(p->bytes + p->n, bytes, n);
        p->n += n;
        return;
    }
    /* The form's parser splits data wherever a boundary might begin: collect such pieces in one step. */
    size_t cap = u->multipart && n < PIECE ? PIECE : n;
    p = xmalloc(sizeof *p + cap);
    p->what = UPLOAD_DATA;
    p->path = NULL;
    p->n = n;
    p->cap = cap;
    memcpy(p->bytes, bytes, n);
    upload_add_step(u, p);
}

static void upload_add_close(struct upload *u)
{
    struct upload_step *p = xcalloc(1, sizeof *p);
    p->what = UPLOAD_CLOSE;
    upload_add_step(u, p);
}

/* Whether a name ends so; *ret_n: the bytes before. */
static bool upload_name_ends(const char *name, const char *end, size_t *ret_n)
{
    size_t n = strlen(name), e = strlen(end);
    *ret_n = n - e;
    return n >= e && strcmp(name + n - e, end) == 0;
}

/* Begins a part of a form whose paths are parts of their own. 1: it is a file, of *ret_path. */
static int upload_begin_placed(struct upload *u, const char *name, const char **ret_path, struct err *err)
{
    size_t n;
    if (upload_name_ends(name, u->path_part, &n)) {
        if ((u->places_n += n + 2 * sizeof(char *)) > PATHS_MAX)
            return err_set(err, ERR_USAGE, 0, "the names and paths of an upload must be shorter than %d bytes together",
                           PATHS_MAX);
        strv_take(&u->places, xstrndup(name, n));
        u->in_place = true;
        u->place.n = 0;
        return 0;
    }
    if (!upload_name_ends(name, u->part, &n))
        return 0;
    for (size_t i = 0; i + 1 < u->places.n; i += 2)
        if (strlen(u->places.v[i]) == n && strncmp(u->places.v[i], name, n) == 0) {
            *ret_path = u->places.v[i + 1];
            return 1;
        }
    return err_set(err, ERR_USAGE, 0, "the part '%.80s' has no part '%.*s%s' with its path before it", name,
                   (int)(n > 60 ? 60 : n), name, u->path_part);
}

static int upload_on_part_begin(void *arg, const struct multipart_part *part, struct err *err)
{
    struct upload *u = arg;
    const char *path = u->path ? u->path : part->filename;
    int is_file = u->path_part ? upload_begin_placed(u, part->name, &path, err) : strcmp(part->name, u->part) == 0;
    if (is_file <= 0)
        return is_file;
    if (!path || !*path)
        return err_set(err, ERR_USAGE, 0, "a file part has no filename, and there is no query parameter 'path'");
    if (strlen(path) >= FILES_PATH_MAX)
        return err_set(err, ERR_USAGE, 0, "a path must be shorter than %d bytes", FILES_PATH_MAX);
    upload_add_open(u, path);
    u->in_file = true;
    return 0;
}
static int upload_on_part_data(void *arg, const void *p, size_t n, struct err *err)
{
    struct upload *u = arg;
    if (u->in_file)
        upload_add_data(u, p, n);
    if (!u->in_place)
        return 0;
    if (u->place.n + n >= FILES_PATH_MAX || (u->places_n += n) > PATHS_MAX)
        return err_set(err, ERR_USAGE, 0, "a path must be shorter than %d bytes, and all together than %d",
                       FILES_PATH_MAX, PATHS_MAX);
    buf_add(&u->place, p, n);
    return 0;
}
static int upload_on_part_end(void *arg, struct err *err)
{
    struct upload *u = arg;
    (void)err;
    if (u->in_file)
        upload_add_close(u);
    if (u->in_place)
        strv_add(&u->places, buf_str(&u->place));
    u->in_file = u->in_place = false;
    return 0;
}
static const struct multipart_events part_events = {
    .part_begin = upload_on_part_begin, .part_data = upload_on_part_data, .part_end = upload_on_part_end};

static int upload_parse(struct upload *u, const void *p, size_t n, struct err *err)
{
    if (u->multipart)
        return multipart_feed(u->multipart, p, n, err);
    upload_add_data(u, p, n);
    return 0;
}

/* Decodes at most one piece of the received bytes. */
static int upload_inflate_piece(struct upload *u, struct err *err)
{
    _cleanup_free_ char *piece = xmalloc(PIECE);
    if (u->gzip_ended) { /* another member may follow the first */
        if (inflateReset(u->gzip) != Z_OK)
            return err_set(err, ERR_USAGE, 0, "the body is not valid gzip");
        u->gzip_ended = false;
    }
    u->gzip->next_in = (Bytef *)u->in.p + u->in_at;
    u->gzip->avail_in = (uInt)(u->in.n - u->in_at);
    u->gzip->next_out = (Bytef *)piece;
    u->gzip->avail_out = PIECE;
    int rc = inflate(u->gzip, Z_NO_FLUSH);
    u->in_at = u->in.n - u->gzip->avail_in;
    if (rc == Z_STREAM_END)
        u->gzip_ended = true;
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
        return err_set(err, ERR_USAGE, 0, "the body is not valid gzip");
    size_t n = PIECE - u->gzip->avail_out;
    return n ? upload_parse(u, piece, n, err) : 0;
}

static bool upload_gzip_holds_output(const struct upload *u)
{
    /* When zlib filled a piece completely it may hold more output, even with no input left. */
    return u->gzip && !u->gzip_ended && u->gzip->avail_out == 0;
}

/* Parses the next piece of the body. 1: it did something, 0: nothing to parse now, -1 with err. */
static int upload_decode(struct upload *u, struct err *err)
{
    if (u->in_at < u->in.n || upload_gzip_holds_output(u)) {
        if (u->gzip) {
            if (upload_inflate_piece(u, err) < 0)
                return -1;
        } else {
            size_t n = u->in.n - u->in_at < PIECE ? u->in.n - u->in_at : PIECE;
            if (upload_parse(u, u->in.p + u->in_at, n, err) < 0)
                return -1;
            u->in_at += n;
        }
        if (u->in_at == u->in.n)
            u->in.n = u->in_at = 0;
        return 1;
    }
    if (!u->in_ended || u->finished)
        return 0;
    u->finished = true;
    if (u->gzip && !u->gzip_ended)
        return err_set(err, ERR_USAGE, 0, "the gzip body is cut off");
    if (u->multipart)
        return multipart_finish(u->multipart, err) < 0 ? -1 : 1;
    upload_add_close(u);
    return 1;
}

static void upload_pump(struct upload *u);

static void upload_fail(struct upload *u, unsigned status, const char *text)
{
    u->busy = true; /* the owner frees it; until then no step begins */
    u->ops->failed(u->arg, status, text, !u->in_ended);
}

static void upload_fail_status(struct upload *u, const struct link_status *st)
{
    u->busy = true;
    u->ops->sandbox_failed(u->arg, st, !u->in_ended);
}

static void upload_on_created(void *arg, const struct link_status *st, struct file_sink *sink,
                              const struct file_info *info)
{
    struct upload *u = arg;
    u->call = 0;
    if (st->code != LINK_OK) {
        upload_fail_status(u, st);
        return;
    }
    u->sink = sink;
    u->written = 0;
    if (strv_has(&u->done, info->path)) {
        upload_fail(u, 400, "two parts of the upload have the same path");
        return;
    }
    strv_add(&u->done, info->path);
    u->ops->opened(u->arg, info);
    u->busy = false;
    upload_pump(u);
}

static void upload_open_file(struct upload *u, const char *path)
{
    struct file_meta meta[FILES_META_MAX];
    size_t n = 0;
    for (size_t i = 0; i + 1 < u->meta->n && n < FILES_META_MAX; i += 2)
        meta[n++] = (struct file_meta){.key = u->meta->v[i], .value = u->meta->v[i + 1]};
    u->call = files_create(u->links, u->sandbox, u->user, path, meta, n, upload_on_created, u);
}

static void upload_on_written(void *arg, const struct link_status *st)
{
    struct upload *u = arg;
    upload_step_free(u->working);
    u->working = NULL;
    u->busy = false;
    if (st->code != LINK_OK)
        upload_fail_status(u, st);
    else
        upload_pump(u);
}

static void upload_on_closed(void *arg, const struct link_status *st)
{
    struct upload *u = arg;
    sink_free(u->sink);
    u->sink = NULL;
    upload_on_written(u, st);
}

static void upload_run_step(struct upload *u)
{
    struct upload_step *p = u->first;
    u->first = p->next;
    if (!u->first)
        u->tail = NULL;
    u->busy = true;
    if (p->what == UPLOAD_OPEN) {
        upload_open_file(u, p->path);
        upload_step_free(p);
        return;
    }
    if (p->what == UPLOAD_CLOSE) {
        upload_step_free(p);
        sink_finish(u->sink, upload_on_closed, u);
        return;
    }
    u->working = p;
    u->written += p->n;
    if (u->file_max && u->written > u->file_max) {
        _cleanup_free_ char *text = xasprintf("a file of the upload is larger than %llu bytes, the limit of this node",
                                              (unsigned long long)u->file_max);
        upload_fail(u, 413, text);
        return;
    }
    sink_write(u->sink, p->bytes, p->n, upload_on_written, u);
}

static void upload_on_settled(void *arg, const struct link_status *st)
{
    struct upload *u = arg;
    (void)st; /* the files are written whether or not the events settled */
    u->call = 0;
    u->ops->done(u->arg);
}

static void upload_finish(struct upload *u)
{
    _cleanup_free_ char *none = xasprintf("the upload has no file: parts must be named '%s'", u->part);
    u->busy = true;
    if (u->done.n == 0)
        upload_fail(u, 400, none);
    else if (files_are_watched(u->links, u->sandbox)) /* who reads the answer may ask for the events at once */
        u->call = files_settle(u->links, u->sandbox, upload_on_settled, u);
    else
        u->ops->done(u->arg);
}

static void upload_pump(struct upload *u)
{
    struct err err;
    while (!u->busy) {
        if (u->first) {
            upload_run_step(u); /* the owner may have freed u, if it failed at once */
            return;
        }
        int rc = upload_decode(u, &err);
        if (rc < 0) {
            upload_fail(u, 400, err.msg);
            return;
        }
        if (rc == 0) {
            if (u->finished)
                upload_finish(u);
            else
                http_resume(u->r);
            return;
        }
    }
}

void upload_feed(struct upload *u, const void *p, size_t n)
{
    buf_add(&u->in, p, n);
    if (u->in.n - u->in_at > HELD_MAX || u->busy)
        http_pause(u->r);
    upload_pump(u);
}

void upload_end(struct upload *u)
{
    u->in_ended = true;
    upload_pump(u);
}

static int upload_read_encoding(struct upload *u, const struct http_req *r, struct err *err)
{
    const char *encoding = http_field(&r->fields, "content-encoding");
    if (!encoding || strcasecmp(encoding, "identity") == 0)
        return 0;
    if (strcasecmp(encoding, "gzip") != 0)
        return err_set(err, ERR_USAGE, 0, "the content encoding must be gzip or none");
    u->gzip = xcalloc(1, sizeof *u->gzip);
    if (inflateInit2(u->gzip, 15 + 16) != Z_OK)
        return err_set(err, ERR_INTERNAL, 0, "no memory to decode gzip");
    u->gzip->avail_out = 1;
    return 0;
}

static int upload_read_type(struct upload *u, const struct http_req *r, struct err *err)
{
    const char *type = http_field(&r->fields, "content-type");
    if (type && strncasecmp(type, "multipart/form-data", 19) == 0)
        return multipart_new(type, &part_events, u, &u->multipart, err);
    if (!type || strncasecmp(type, "application/octet-stream", 24) != 0)
        return err_set(err, ERR_USAGE, 0, "the content type must be multipart/form-data or application/octet-stream");
    if (!u->path)
        return err_set(err, ERR_USAGE, 0, "query parameter 'path' is required for an application/octet-stream upload");
    if (strlen(u->path) >= FILES_PATH_MAX)
        return err_set(err, ERR_USAGE, 0, "query parameter 'path' must be shorter than %d bytes", FILES_PATH_MAX);
    upload_add_open(u, u->path);
    return 0;
}

struct upload *upload_new(struct http_req *r, const struct upload_spec *spec, const struct upload_ops *ops, void *arg,
                          struct err *err)
{
    struct upload *u = xcalloc(1, sizeof *u);
    *u = (struct upload){
        .r = r, .links = spec->links, .ops = ops, .arg = arg, .meta = spec->meta, .file_max = spec->file_max};
    u->sandbox = xstrdup(spec->sandbox);
    u->user = spec->user ? xstrdup(spec->user) : NULL;
    u->part = xstrdup(spec->part);
    u->path = spec->path ? xstrdup(spec->path) : NULL;
    u->path_part = spec->path_part ? xstrdup(spec->path_part) : NULL;
    if (upload_read_encoding(u, r, err) == 0 && upload_read_type(u, r, err) == 0)
        return u;
    upload_free(u);
    return NULL;
}
