/* transfer.c - POST /files/bulk-upload and /files/bulk-download: many files in one request. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "api/send-file.h"
#include "api/upload.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/random.h"
#include "http/url.h"
#include "peers/files.h"

enum { PATHS_MAX = 1000, BOUNDARY_BYTES = 16, PIECE = 64 * 1024, UPLOAD_PATHS_MAX = 4 << 20 };

/* --- upload --------------------------------------------------------------------------------------------------------- */

/* The parts `files[i].path` and `files[i].file` come in any order, as long as the path comes first. */
struct uploading {
    struct http_req *r;
    struct upload *upload;
    struct strv meta;
};

static void daytona_upload_free(struct uploading *w)
{
    upload_free(w->upload);
    strv_done(&w->meta);
    free(w);
}

static void daytona_upload_on_client_left(struct http_req *r) { daytona_upload_free(r->user); }

static struct http_req *daytona_upload_over(void *arg)
{
    struct uploading *w = arg;
    struct http_req *r = w->r;
    api_on_closed(r, NULL);
    r->on_data = NULL;
    r->on_end = NULL;
    r->user = NULL;
    daytona_upload_free(w);
    return r;
}

static void daytona_upload_on_opened(void *arg, const struct file_info *info) { (void)arg, (void)info; }

static void daytona_upload_on_done(void *arg) { reply_empty(daytona_upload_over(arg), 200); }

static void daytona_upload_on_failed(void *arg, unsigned status, const char *text, bool more)
{
    _cleanup_free_ char *copy = xstrdup(text);
    struct http_req *r = daytona_upload_over(arg);
    if (more)
        daytona_refuse_body(r, status, copy);
    else
        daytona_error(r, status, NULL, "%s", copy);
}

static void daytona_upload_on_sandbox_failed(void *arg, const struct link_status *st, bool more)
{
    struct daytona_fault fault;
    daytona_fault_of(st, NULL, &fault);
    daytona_upload_on_failed(arg, fault.status, fault.text, more);
}

static void daytona_upload_on_data(struct http_req *r, const void *p, size_t n)
{
    upload_feed(((struct uploading *)r->user)->upload, p, n);
}
static void daytona_upload_on_end(struct http_req *r) { upload_end(((struct uploading *)r->user)->upload); }

static void daytona_upload_in(struct api_call *c, struct sandbox *b)
{
    static const struct upload_ops ops = {daytona_upload_on_opened, daytona_upload_on_done, daytona_upload_on_failed,
                                          daytona_upload_on_sandbox_failed};
    struct uploading *w = xcalloc(1, sizeof *w);
    const struct upload_spec spec = {.links = c->api->peers->links,
                                     .sandbox = b->id,
                                     .part = ".file",
                                     .path_part = ".path",
                                     .meta = &w->meta,
                                     .file_max = c->api->config->max_upload};
    struct err err;
    w->r = c->req;
    c->req->user = w;
    api_on_closed(c->req, daytona_upload_on_client_left);
    w->upload = upload_new(c->req, &spec, &ops, w, &err);
    if (!w->upload) {
        daytona_upload_on_failed(w, 400, err.msg, true);
        return;
    }
    c->req->on_data = daytona_upload_on_data;
    c->req->on_end = daytona_upload_on_end;
}

void daytona_upload(struct api_call *c) { daytona_toolbox(c, daytona_upload_in); }

/* --- download ------------------------------------------------------------------------------------------------------- */

/* Sends one file after the other; the client's reading sets the pace. */
struct downloading {
    struct http_req *r; /* NULL: the client left */
    struct api_call *call;
    char sandbox[SANDBOX_ID_MAX], boundary[2 * BOUNDARY_BYTES + 1];
    struct strv paths;
    size_t at;
    int fd; /* of paths.v[at], or -1 */
    uint64_t offset, end;
    bool waiting; /* for a file to be opened */
    bool working; /* a worker reads a piece */
    ssize_t got;
    char *piece;
};

static void daytona_download_next(struct downloading *w);

static void daytona_download_free(struct downloading *w)
{
    if (w->fd >= 0)
        (void)close(w->fd);
    strv_done(&w->paths);
    free(w->piece);
    free(w);
}

static void daytona_download_on_client_left(struct http_req *r)
{
    struct downloading *w = r->user;
    w->r = NULL;
    if (!w->waiting && !w->working)
        daytona_download_free(w);
}

/* Clients take the name from `filename` as Latin-1 or from `filename*`, whichever they know. */
static void daytona_download_add_head(const struct downloading *w, const char *part, const char *type, struct buf *out)
{
    const char *path = w->paths.v[w->at];
    buf_addf(out, "%s--%s\r\nContent-Disposition: form-data; name=\"%s\"; filename=\"", w->at ? "\r\n" : "",
             w->boundary, part);
    for (const char *p = path; *p; p++)
        buf_addc(out, *p < ' ' || *p > '~' || *p == '"' || *p == '\\' ? '_' : *p);
    buf_adds(out, "\"; filename*=UTF-8''");
    url_encode(out, path, strlen(path), ""); /* a slash is no character of such a value */
    buf_addf(out, "\r\nContent-Type: %s\r\n\r\n", type);
}

static bool daytona_download_write_fault(struct downloading *w, const struct link_status *st)
{
    _cleanup_buf_ struct buf out = {0};
    struct daytona_fault fault;
    struct json j;
    daytona_fault_of(st, w->paths.v[w->at], &fault);
    daytona_download_add_head(w, "error", "application/json", &out);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "message", fault.text);
    json_u64(&j, "statusCode", fault.status);
    json_str(&j, "code", fault.code ? fault.code : "FILE_READ_FAILED");
    json_str(&j, "source", "DAYTONA_DAEMON");
    json_end_obj(&j);
    w->at++;
    return http_write(w->r, out.p, out.n);
}

/* Frees w; its request is to be ended next. */
static struct http_req *daytona_download_over(struct downloading *w)
{
    struct http_req *r = w->r;
    r->on_writable = NULL;
    r->user = NULL;
    api_on_closed(r, NULL);
    daytona_download_free(w);
    return r;
}

static void daytona_download_end(struct downloading *w)
{
    _cleanup_buf_ struct buf out = {0};
    buf_addf(&out, "%s--%s--\r\n", w->at ? "\r\n" : "", w->boundary);
    struct http_req *r = daytona_download_over(w);
    (void)http_write(r, out.p, out.n);
    http_end(r);
}

/* A worker reads one piece, so that a slow disk never blocks the loop and the loop sees a client that leaves. */
static void daytona_download_read_piece(void *arg)
{
    struct downloading *w = arg;
    size_t want = w->end - w->offset < PIECE ? (size_t)(w->end - w->offset) : PIECE;
    do
        w->got = pread(w->fd, w->piece, want, (off_t)w->offset);
    while (w->got < 0 && errno == EINTR);
}

/* A file that shrinks ends where it ends now; of one that cannot be read on only a cut connection tells. */
static void daytona_download_on_piece(void *arg)
{
    struct downloading *w = arg;
    w->working = false;
    if (!w->r) {
        daytona_download_free(w);
        return;
    }
    if (w->got < 0) {
        http_abort(daytona_download_over(w));
        return;
    }
    w->offset = w->got ? w->offset + (uint64_t)w->got : w->end;
    if (w->got == 0 || http_write(w->r, w->piece, (size_t)w->got))
        daytona_download_next(w);
}

static void daytona_download_on_opened(void *arg, const struct link_status *st, int got, const struct file_info *info)
{
    struct downloading *w = arg;
    _cleanup_close_ int fd = got;
    struct link_status odd = {.code = LINK_INVALID};
    struct stat s;
    (void)info;
    w->waiting = false;
    if (!w->r) {
        daytona_download_free(w);
        return;
    }
    if (st->code == LINK_OK && (fstat(fd, &s) < 0 || !S_ISREG(s.st_mode) || !api_file_is_trusted(fd))) {
        (void)snprintf(odd.text, sizeof odd.text, "not a regular file: it cannot be downloaded");
        st = &odd;
    }
    if (st->code != LINK_OK) {
        if (daytona_download_write_fault(w, st))
            daytona_download_next(w);
        return;
    }
    _cleanup_buf_ struct buf head = {0};
    daytona_download_add_head(w, "file", "application/octet-stream", &head);
    w->fd = TAKE_FD(fd);
    w->offset = 0;
    w->end = (uint64_t)s.st_size;
    if (http_write(w->r, head.p, head.n))
        daytona_download_next(w);
}

static void daytona_download_next(struct downloading *w)
{
    if (w->fd >= 0 && w->offset < w->end) {
        w->working = true;
        loop_work(w->r->loop, daytona_download_read_piece, daytona_download_on_piece, w);
        return;
    }
    if (w->fd >= 0) {
        (void)close(w->fd);
        w->fd = -1;
        w->at++;
    }
    if (w->at == w->paths.n) {
        daytona_download_end(w);
        return;
    }
    w->waiting = true;
    (void)files_open(w->call->api->peers->links, w->sandbox, NULL, w->paths.v[w->at], daytona_download_on_opened, w);
}

static void daytona_download_on_writable(struct http_req *r)
{
    struct downloading *w = r->user;
    if (!w->waiting && !w->working)
        daytona_download_next(w);
}

static void daytona_download_on_body(struct api_call *c, json_t *body)
{
    json_t *paths = json_object_get(body, "paths"), *v;
    size_t i;
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    bool good = json_array_size(paths) > 0 && json_array_size(paths) <= PATHS_MAX;
    json_array_foreach(paths, i, v) good =
        good && json_is_string(v) && *json_string_value(v) && strlen(json_string_value(v)) < FILES_PATH_MAX;
    if (!good) {
        daytona_error(c->req, 400, NULL, "field 'paths' must have 1 to %d paths", PATHS_MAX);
        return;
    }
    struct downloading *w = xcalloc(1, sizeof *w);
    _cleanup_buf_ struct buf type = {0};
    w->r = c->req;
    w->call = c;
    w->fd = -1;
    w->piece = xmalloc(PIECE);
    memcpy(w->sandbox, b->id, sizeof w->sandbox);
    random_hex(w->boundary, BOUNDARY_BYTES);
    json_array_foreach(paths, i, v) strv_add(&w->paths, json_string_value(v));
    buf_addf(&type, "multipart/form-data; boundary=%s", w->boundary);
    c->req->user = w;
    c->req->on_writable = daytona_download_on_writable;
    api_on_closed(c->req, daytona_download_on_client_left);
    http_set(c->req, "content-type", buf_str(&type));
    http_head(c->req, 200, HTTP_UNKNOWN);
    daytona_download_next(w);
}

static void daytona_download_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    daytona_body(c, daytona_download_on_body);
}
void daytona_download(struct api_call *c) { daytona_toolbox(c, daytona_download_in); }
