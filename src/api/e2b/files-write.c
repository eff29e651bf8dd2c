/* files-write.c - POST /files: writes uploaded files into a sandbox; POST /files/compose joins files there. */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#include "api/e2b/envd.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strv.h"
#include "http/body.h"
#include "http/multipart.h"

enum {
    PIECE = 128 * 1024,    /* bytes of decoded body that are parsed at a time */
    HELD_MAX = 256 * 1024, /* bytes of the body as received; beyond that the client must wait */
    NAME_MAX_META = 246,
    META_TOTAL_MAX = 4096,
};

/* The parser turns the body into a list of steps, and the sandbox executes them one after the other. Until they are
 * done nothing more is decoded and the client must wait, so memory stays constant however large the upload is. */
struct step {
    struct step *next;
    enum { STEP_OPEN, STEP_DATA, STEP_CLOSE } what;
    char *path;    /* STEP_OPEN */
    size_t n, cap; /* STEP_DATA */
    char bytes[];
};

struct writing {
    struct envd *e;
    char *path; /* from the query; NULL: each part names its own */
    struct multipart *multipart;
    bool in_file;     /* multipart: inside a part that is a file */
    struct strv meta; /* key, value, ... */
    z_stream *gzip;
    bool gzip_ended;
    struct buf in; /* the body as received */
    size_t in_at;
    bool in_ended, finished; /* finished: the whole body was parsed */
    struct step *first, *tail;
    bool busy;              /* a step is under way */
    struct step *working;   /* the data step under way: it owns the bytes */
    struct file_sink *sink; /* the open file */
    uint64_t written;       /* bytes of the open file */
    struct strv done;       /* absolute paths written, to find duplicates */
    struct buf out;
    struct json j;
};

static void step_free(struct step *p)
{
    if (p)
        free(p->path);
    free(p);
}

static void writing_free(struct writing *w)
{
    for (struct step *p = w->first, *next; p; p = next) {
        next = p->next;
        step_free(p);
    }
    step_free(w->working);
    sink_free(w->sink);
    if (w->gzip)
        (void)inflateEnd(w->gzip);
    free(w->gzip);
    free(w->path);
    multipart_free(w->multipart);
    strv_done(&w->meta);
    strv_done(&w->done);
    buf_done(&w->in);
    buf_done(&w->out);
    free(w);
}

static void writing_on_drop(struct envd *e) { writing_free(e->data); }

/* Ends the request with an error and frees w. */
static void writing_fail(struct writing *w, unsigned status, const char *text)
{
    struct http_req *r = w->e->r;
    bool ended = w->in_ended;
    _cleanup_free_ char *copy = xstrdup(text);
    envd_free(w->e);
    if (ended)
        reply_error(r, status, "%s", copy);
    else
        api_refuse_body(r, status, copy);
}

static void writing_add_step(struct writing *w, struct step *p)
{
    p->next = NULL;
    if (w->tail)
        w->tail->next = p;
    else
        w->first = p;
    w->tail = p;
}

static void writing_add_open(struct writing *w, const char *path)
{
    struct step *p = xcalloc(1, sizeof *p);
    p->what = STEP_OPEN;
    p->path = xstrdup(path);
    writing_add_step(w, p);
}

static void writing_add_data(struct writing *w, const void *bytes, size_t n)
{
    struct step *p = w->tail;
    if (p && p->what == STEP_DATA && p->cap - p->n >= n) {
        memcpy(p->bytes + p->n, bytes, n);
        p->n += n;
        return;
    }
    /* The form's parser splits data wherever a boundary might begin: collect such pieces in one step. */
    size_t cap = w->multipart && n < PIECE ? PIECE : n;
    p = xmalloc(sizeof *p + cap);
    p->what = STEP_DATA;
    p->path = NULL;
    p->n = n;
    p->cap = cap;
    memcpy(p->bytes, bytes, n);
    writing_add_step(w, p);
}

static void writing_add_close(struct writing *w)
{
    struct step *p = xcalloc(1, sizeof *p);
    p->what = STEP_CLOSE;
    writing_add_step(w, p);
}

/* Parts of a form. Only parts named "file" are files; all others are skipped. */
static int writing_on_part_begin(void *arg, const struct multipart_part *part, struct err *err)
{
    struct writing *w = arg;
    const char *path = w->path ? w->path : part->filename;
    if (strcmp(part->name, "file") != 0)
        return 0;
    if (!path || !*path)
        return err_set(err, ERR_USAGE, 0, "a file part has no filename, and there is no query parameter 'path'");
    if (strlen(path) >= FILES_PATH_MAX)
        return err_set(err, ERR_USAGE, 0, "a path must be shorter than %d bytes", FILES_PATH_MAX);
    writing_add_open(w, path);
    w->in_file = true;
    return 0;
}
static int writing_on_part_data(void *arg, const void *p, size_t n, struct err *err)
{
    struct writing *w = arg;
    (void)err;
    if (w->in_file)
        writing_add_data(w, p, n);
    return 0;
}
static int writing_on_part_end(void *arg, struct err *err)
{
    struct writing *w = arg;
    (void)err;
    if (w->in_file)
        writing_add_close(w);
    w->in_file = false;
    return 0;
}
static const struct multipart_events part_events = {
    .part_begin = writing_on_part_begin, .part_data = writing_on_part_data, .part_end = writing_on_part_end};

static int writing_parse(struct writing *w, const void *p, size_t n, struct err *err)
{
    if (w->multipart)
        return multipart_feed(w->multipart, p, n, err);
    writing_add_data(w, p, n);
    return 0;
}

/* Decodes at most one piece of the received bytes. */
static int writing_inflate_piece(struct writing *w, struct err *err)
{
    _cleanup_free_ char *piece = xmalloc(PIECE);
    if (w->gzip_ended) { /* another member may follow the first */
        if (inflateReset(w->gzip) != Z_OK)
            return err_set(err, ERR_USAGE, 0, "the body is not valid gzip");
        w->gzip_ended = false;
    }
    w->gzip->next_in = (Bytef *)w->in.p + w->in_at;
    w->gzip->avail_in = (uInt)(w->in.n - w->in_at);
    w->gzip->next_out = (Bytef *)piece;
    w->gzip->avail_out = PIECE;
    int rc = inflate(w->gzip, Z_NO_FLUSH);
    w->in_at = w->in.n - w->gzip->avail_in;
    if (rc == Z_STREAM_END)
        w->gzip_ended = true;
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
        return err_set(err, ERR_USAGE, 0, "the body is not valid gzip");
    size_t n = PIECE - w->gzip->avail_out;
    return n ? writing_parse(w, piece, n, err) : 0;
}

static bool writing_gzip_holds_output(const struct writing *w)
{
    /* When zlib filled a piece completely it may hold more output, even with no input left. */
    return w->gzip && !w->gzip_ended && w->gzip->avail_out == 0;
}

/* Parses the next piece of the body. 1: it did something, 0: nothing to parse now, -1 with err. */
static int writing_decode(struct writing *w, struct err *err)
{
    if (w->in_at < w->in.n || writing_gzip_holds_output(w)) {
        if (w->gzip) {
            if (writing_inflate_piece(w, err) < 0)
                return -1;
        } else {
            size_t n = w->in.n - w->in_at < PIECE ? w->in.n - w->in_at : PIECE;
            if (writing_parse(w, w->in.p + w->in_at, n, err) < 0)
                return -1;
            w->in_at += n;
        }
        if (w->in_at == w->in.n)
            w->in.n = w->in_at = 0;
        return 1;
    }
    if (!w->in_ended || w->finished)
        return 0;
    w->finished = true;
    if (w->gzip && !w->gzip_ended)
        return err_set(err, ERR_USAGE, 0, "the gzip body is cut off");
    if (w->multipart)
        return multipart_finish(w->multipart, err) < 0 ? -1 : 1;
    writing_add_close(w);
    return 1;
}

static void writing_pump(struct writing *w);

static void writing_fail_status(struct writing *w, const struct link_status *st)
{
    if (st->code == LINK_GONE) {
        envd_http_fail(w->e, st);
        return;
    }
    if (st->code == LINK_PAUSED)
        http_set(w->e->r, "retry-after", "1");
    writing_fail(w, envd_http_status(st), st->text);
}

static void writing_on_created(void *arg, const struct link_status *st, struct file_sink *sink,
                               const struct file_info *info)
{
    struct writing *w = ((struct envd *)arg)->data;
    w->e->call = 0;
    if (st->code != LINK_OK) {
        writing_fail_status(w, st);
        return;
    }
    w->sink = sink;
    w->written = 0;
    if (strv_has(&w->done, info->path)) {
        writing_fail(w, 400, "two parts of the upload have the same path");
        return;
    }
    strv_add(&w->done, info->path);
    json_obj(&w->j, NULL);
    json_str(&w->j, "name", info->name);
    json_str(&w->j, "path", info->path);
    json_str(&w->j, "type", "file");
    if (w->meta.n) {
        json_obj(&w->j, "metadata");
        for (size_t i = 0; i + 1 < w->meta.n; i += 2)
            json_str(&w->j, w->meta.v[i], w->meta.v[i + 1]);
        json_end_obj(&w->j);
    }
    json_end_obj(&w->j);
    w->busy = false;
    writing_pump(w);
}

static void writing_open_file(struct writing *w, const char *path)
{
    struct file_meta meta[FILES_META_MAX];
    size_t n = 0;
    for (size_t i = 0; i + 1 < w->meta.n; i += 2)
        meta[n++] = (struct file_meta){.key = w->meta.v[i], .value = w->meta.v[i + 1]};
    w->e->call = files_create(w->e->api->peers->links, w->e->id, w->e->user, path, meta, n, writing_on_created, w->e);
}

static void writing_on_written(void *arg, const struct link_status *st)
{
    struct writing *w = arg;
    step_free(w->working);
    w->working = NULL;
    w->busy = false;
    if (st->code != LINK_OK)
        writing_fail_status(w, st);
    else
        writing_pump(w);
}

static void writing_on_closed(void *arg, const struct link_status *st)
{
    struct writing *w = arg;
    sink_free(w->sink);
    w->sink = NULL;
    writing_on_written(w, st);
}

static void writing_run_step(struct writing *w)
{
    struct step *p = w->first;
    uint64_t max = w->e->api->config->max_upload;
    w->first = p->next;
    if (!w->first)
        w->tail = NULL;
    w->busy = true;
    if (p->what == STEP_OPEN) {
        writing_open_file(w, p->path);
        step_free(p);
        return;
    }
    if (p->what == STEP_CLOSE) {
        step_free(p);
        sink_finish(w->sink, writing_on_closed, w);
        return;
    }
    w->working = p;
    w->written += p->n;
    if (max && w->written > max) {
        _cleanup_free_ char *text = xasprintf("a file of the upload is larger than %llu bytes, the limit of this node",
                                              (unsigned long long)max);
        writing_fail(w, 413, text);
        return;
    }
    sink_write(w->sink, p->bytes, p->n, writing_on_written, w);
}

static void writing_answer(struct writing *w)
{
    struct http_req *r = w->e->r;
    json_end_arr(&w->j);
    struct buf out = w->out;
    w->out = (struct buf){0};
    envd_free(w->e);
    reply_json(r, 200, &out);
    buf_done(&out);
}

static void writing_on_settled(void *arg, const struct link_status *st)
{
    struct writing *w = ((struct envd *)arg)->data;
    (void)st; /* the files are written whether or not the events settled */
    w->e->call = 0;
    writing_answer(w);
}

static void writing_finish(struct writing *w)
{
    struct envd *e = w->e;
    if (w->done.n == 0) {
        writing_fail(w, 400, "the upload has no file: parts must be named 'file'");
    } else if (files_are_watched(e->api->peers->links,
                                 e->id)) { /* who reads the answer may ask for the events at once */
        w->busy = true;
        e->call = files_settle(e->api->peers->links, e->id, writing_on_settled, e);
    } else {
        writing_answer(w);
    }
}

static void writing_pump(struct writing *w)
{
    struct err err;
    while (!w->busy) {
        if (w->first) {
            writing_run_step(w); /* frees w if it fails at once */
            return;
        }
        int rc = writing_decode(w, &err);
        if (rc < 0) {
            writing_fail(w, 400, err.msg);
            return;
        }
        if (rc == 0) {
            if (w->finished)
                writing_finish(w);
            else
                http_resume(w->e->r);
            return;
        }
    }
}

static void writing_on_data(struct http_req *r, const void *p, size_t n)
{
    struct writing *w = ((struct envd *)r->user)->data;
    buf_add(&w->in, p, n);
    if (w->in.n - w->in_at > HELD_MAX || w->busy)
        http_pause(r);
    writing_pump(w);
}

static void writing_on_end(struct http_req *r)
{
    struct writing *w = ((struct envd *)r->user)->data;
    w->in_ended = true;
    writing_pump(w);
}

/* X-Metadata-<k>: <v> becomes the attribute user.e2b.<k>. */
static int writing_read_metadata(const struct http_req *r, struct strv *ret, struct err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < r->fields.n; i++) {
        const char *key = r->fields.v[i].name, *value = r->fields.v[i].value;
        if (strncmp(key, "x-metadata-", 11) != 0)
            continue;
        key += 11;
        if (!*key || strlen(key) > NAME_MAX_META)
            return err_set(err, ERR_USAGE, 0, "a metadata key must have 1 to %d bytes", NAME_MAX_META);
        for (const char *c = value; *c; c++)
            if (*c < ' ' || *c > '~')
                return err_set(err, ERR_USAGE, 0, "the metadata value of '%s' must be printable ASCII", key);
        if ((total += strlen(key) + strlen(value)) > META_TOTAL_MAX || ret->n >= 2 * FILES_META_MAX)
            return err_set(err, ERR_USAGE, 0, "metadata must be at most %d bytes and %d keys", META_TOTAL_MAX,
                           FILES_META_MAX);
        strv_add(ret, key);
        strv_add(ret, value);
    }
    return 0;
}

static int writing_read_encoding(struct writing *w, const struct http_req *r, struct err *err)
{
    const char *encoding = http_field(&r->fields, "content-encoding");
    if (!encoding || strcasecmp(encoding, "identity") == 0)
        return 0;
    if (strcasecmp(encoding, "gzip") != 0)
        return err_set(err, ERR_USAGE, 0, "the content encoding must be gzip or none");
    w->gzip = xcalloc(1, sizeof *w->gzip);
    if (inflateInit2(w->gzip, 15 + 16) != Z_OK)
        return err_set(err, ERR_INTERNAL, 0, "no memory to decode gzip");
    w->gzip->avail_out = 1;
    return 0;
}

static int writing_read_type(struct writing *w, const struct http_req *r, struct err *err)
{
    const char *type = http_field(&r->fields, "content-type");
    if (type && strncasecmp(type, "multipart/form-data", 19) == 0)
        return multipart_new(type, &part_events, w, &w->multipart, err);
    if (!type || strncasecmp(type, "application/octet-stream", 24) != 0)
        return err_set(err, ERR_USAGE, 0, "the content type must be multipart/form-data or application/octet-stream");
    if (!w->path)
        return err_set(err, ERR_USAGE, 0, "query parameter 'path' is required for an application/octet-stream upload");
    if (strlen(w->path) >= FILES_PATH_MAX)
        return err_set(err, ERR_USAGE, 0, "query parameter 'path' must be shorter than %d bytes", FILES_PATH_MAX);
    writing_add_open(w, w->path);
    return 0;
}

void files_write(struct envd *e, const char *path)
{
    struct http_req *r = e->r;
    struct err err;
    struct writing *w = xcalloc(1, sizeof *w);
    w->e = e;
    w->path = path ? xstrdup(path) : NULL;
    json_start(&w->j, &w->out);
    json_arr(&w->j, NULL);
    e->data = w;
    e->drop = writing_on_drop;
    if (writing_read_metadata(r, &w->meta, &err) < 0 || writing_read_encoding(w, r, &err) < 0 ||
        writing_read_type(w, r, &err) < 0) {
        writing_fail(w, 400, err.msg);
        return;
    }
    r->on_data = writing_on_data;
    r->on_end = writing_on_end;
}

/* POST /files/compose */
static void compose_on_done(void *arg, const struct link_status *st, const struct file_info *info)
{
    struct envd *e = arg;
    struct http_req *r = e->r;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    e->call = 0;
    if (st->code != LINK_OK) {
        envd_http_fail(e, st);
        return;
    }
    json_start(&j, &out);
    fs_add_entry(&j, NULL, info);
    envd_free(e);
    reply_json(r, 200, &out);
}

static int compose_read(json_t *root, struct strv *from, const char **to, const char **user, struct err *err)
{
    json_t *list = NULL;
    if (!json_is_object(root))
        return err_set(err, ERR_USAGE, 0, "the body must be an object");
    if (field_arr(root, "source_paths", &list, err) < 0 || field_str(root, "destination", to, err) < 0 ||
        field_str(root, "username", user, err) < 0)
        return -1;
    if (!list || json_array_size(list) == 0 || json_array_size(list) > 256)
        return err_set(err, ERR_USAGE, 0, "field 'source_paths' must have 1 to 256 paths");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *path = json_string_value(json_array_get(list, i));
        if (!path || !*path || strlen(path) >= FILES_PATH_MAX)
            return err_set(err, ERR_USAGE, 0, "field 'source_paths[%zu]' must be a path", i);
        strv_add(from, path);
    }
    if (!*to || !**to || strlen(*to) >= FILES_PATH_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'destination' is required: a path");
    return 0;
}

static void compose_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct envd *e = r->user;
    _cleanup_strv_ struct strv from = {0};
    const char *to = NULL, *user = NULL;
    struct err err;
    if (status) {
        envd_free(e);
        reply_error(r, status, "%s", error);
    } else if (compose_read(root, &from, &to, &user, &err) < 0) {
        envd_free(e);
        reply_error(r, 400, "%s", err.msg);
    } else {
        e->call = files_compose(e->api->peers->links, e->id, user, (const char *const *)from.v, from.n, to,
                                compose_on_done, e);
    }
}

void files_compose_route(struct envd *e) { body_json(e->r, 0, compose_on_body); }
