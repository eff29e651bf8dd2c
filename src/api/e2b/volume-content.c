/* volume-content.c - files of a volume over HTTP, for clients without a sandbox: each request is one of init's file
 * requests in the hidden sandbox of the volume (volumes.h), with the volume as its root. As in E2B's content API, the
 * `code` of an error is a word.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/e2b/envd.h"
#include "api/reply.h"
#include "api/send-file.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/sha256.h"
#include "http/body.h"
#include "http/url.h"
#include "volumes/volumes.h"

enum {
    ENTRIES_MAX = 10000,   /* of one list */
    LIST_MAX = 15 << 20,   /* bytes of one list */
    HELD_MAX = 256 * 1024, /* bytes of an upload; beyond that the client must wait */
    DEPTH_MAX = 64,
    /* Slower uploads end: they occupy a turn that other requests wait for. */
    RATE_WINDOW_MS = 30 * 1000,
    RATE_MIN = 4096, /* bytes a second, averaged over the window */
};

enum content_op { CONTENT_STAT, CONTENT_LIST, CONTENT_OPEN, CONTENT_REMOVE, CONTENT_MKDIR, CONTENT_SET, CONTENT_WRITE };

struct content {
    struct http_req *r;
    struct api *api;
    enum content_op op;
    unsigned status; /* HTTP status of success */
    char *path;      /* clean and absolute, as seen in the volume */
    struct files_root root;
    uint64_t depth;
    struct volume_turn *turn;
    char sandbox[SANDBOX_ID_MAX];
    link_call call;
    /* uploads */
    struct file_sink *sink;
    char *real; /* the path of the file, behind all links */
    bool writing, in_ended, finishing;
    uint64_t taken, taken_before; /* taken_before: at the start of the window */
    loop_id rate_timer;
    struct buf in, sent; /* what has come, and what the sink is taking */
};

/* --- the end ------------------------------------------------------------------------------------------------------- */

static void content_free(struct content *c)
{
    if (c->rate_timer)
        loop_timer_del(c->api->loop, c->rate_timer);
    if (c->call)
        link_cancel(c->api->peers->links, c->call);
    sink_free(c->sink); /* half a file is none */
    if (c->turn)
        volume_turn_end(c->turn);
    free(c->path);
    free(c->real);
    buf_done(&c->in);
    buf_done(&c->sent);
    free(c);
}

static void content_on_client_left(struct http_req *r) { content_free(r->user); }

/* Frees c and returns its request, which the caller answers. */
static struct http_req *content_release(struct content *c)
{
    struct http_req *r = c->r;
    r->user = NULL;
    r->on_data = NULL;
    r->on_end = NULL;
    api_on_closed(r, NULL);
    content_free(c);
    return r;
}

static void content_error_body(struct buf *out, const char *code, const char *message)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "code", code);
    json_str(&j, "message", message);
    json_end_obj(&j);
}

static void content_refuse(struct http_req *r, unsigned status, const char *code, const char *message)
{
    _cleanup_buf_ struct buf out = {0};
    content_error_body(&out, code, message);
    reply_json(r, status, &out);
}

static void content_fail(struct content *c, unsigned status, const char *code, const char *message)
{
    _cleanup_buf_ struct buf out = {0};
    bool drain = c->op == CONTENT_WRITE && !c->in_ended;
    content_error_body(&out, code, message);
    struct http_req *r = content_release(c);
    if (drain)
        api_drain_json(r, status, &out);
    else
        reply_json(r, status, &out);
}

static void content_fail_link(struct content *c, const struct link_status *st)
{
    static const struct {
        enum link_code code;
        unsigned status;
        const char *word;
    } known[] = {{LINK_NOT_FOUND, 404, "not_found"}, {LINK_EXISTS, 409, "exists"},   {LINK_NOT_DIR, 400, "not_dir"},
                 {LINK_IS_DIR, 400, "is_dir"},       {LINK_INVALID, 400, "invalid"}, {LINK_DENIED, 403, "denied"},
                 {LINK_NO_SPACE, 507, "no_space"},   {LINK_LIMIT, 413, "limit"},     {LINK_GONE, 503, "unavailable"},
                 {LINK_TIMEOUT, 503, "unavailable"}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].code == st->code) {
            content_fail(c, known[i].status, known[i].word, st->text);
            return;
        }
    content_fail(c, 500, "io", st->text);
}

/* --- answers ------------------------------------------------------------------------------------------------------- */

static void content_add_time(struct json *j, const char *key, const struct timespec *t)
{
    char text[40] = "1970-01-01T00:00:00";
    struct tm tm;
    if (gmtime_r(&t->tv_sec, &tm))
        (void)strftime(text, sizeof text - 8, "%Y-%m-%dT%H:%M:%S", &tm);
    size_t n = strlen(text);
    (void)snprintf(text + n, sizeof text - n, ".%03ldZ", t->tv_nsec / 1000000);
    json_str(j, key, text);
}

static void content_add_entry(struct json *j, const struct file_info *i, const char *path)
{
    json_obj(j, NULL);
    json_str(j, "name", *path_name(path) ? path_name(path) : "/");
    json_str(j, "type",
             i->type == FILE_REGULAR     ? "file"
             : i->type == FILE_DIRECTORY ? "directory"
             : i->type == FILE_SYMLINK   ? "symlink"
                                         : "unknown");
    json_str(j, "path", path);
    json_u64(j, "size", i->size);
    json_u64(j, "mode", i->mode & 07777);
    json_u64(j, "uid", i->uid);
    json_u64(j, "gid", i->gid);
    content_add_time(j, "atime", &i->atime);
    content_add_time(j, "mtime", &i->mtime);
    content_add_time(j, "ctime", &i->ctime);
    if (i->type == FILE_SYMLINK)
        json_str(j, "target", i->target ? i->target : "");
    json_end_obj(j);
}

static void content_on_info(void *arg, const struct link_status *st, const struct file_info *info)
{
    struct content *c = arg;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    unsigned status = c->status;
    c->call = 0;
    if (st->code != LINK_OK) {
        content_fail_link(c, st);
        return;
    }
    json_start(&j, &out);
    content_add_entry(&j, info, c->path);
    reply_json(content_release(c), status, &out);
}

static void content_on_listed(void *arg, const struct link_status *st, const struct file_info *v, size_t n)
{
    struct content *c = arg;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    c->call = 0;
    if (st->code != LINK_OK) {
        content_fail_link(c, st);
        return;
    }
    if (n > ENTRIES_MAX) {
        content_fail(c, 413, "limit", "there are more than 10000 entries; list parts of it");
        return;
    }
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (size_t i = 0; i < n && out.n <= LIST_MAX; i++)
        content_add_entry(&j, &v[i], v[i].path);
    json_end_arr(&j);
    if (out.n > LIST_MAX)
        content_fail(c, 413, "limit", "the paths are too long for one list; list parts of it");
    else
        reply_json(content_release(c), 200, &out);
}

static void content_on_removed(void *arg, const struct link_status *st)
{
    struct content *c = arg;
    c->call = 0;
    if (st->code != LINK_OK)
        content_fail_link(c, st);
    else
        reply_empty(content_release(c), 204);
}

static void content_on_opened(void *arg, const struct link_status *st, int fd, const struct file_info *info)
{
    struct content *c = arg;
    c->call = 0;
    if (st->code != LINK_OK) {
        content_fail_link(c, st);
        return;
    }
    if (!sandbox_find(c->api->sandboxes, c->sandbox)) {
        (void)close(fd);
        content_fail(c, 503, "unavailable", "the volume was closed meanwhile; try again");
        return;
    }
    _cleanup_free_ char *name = xstrdup(info->name);
    const struct send_file_facts facts = {.size = info->size, .mtime = info->mtime.tv_sec};
    bool sized = info->sized;
    struct http_req *r = content_release(c); /* an open file can be read without the sandbox */
    api_send_file(r, fd, name, sized ? &facts : NULL);
}

/* --- uploads ------------------------------------------------------------------------------------------------------- */

static void content_pump(struct content *c);

static void content_on_written(void *arg, const struct link_status *st)
{
    struct content *c = arg;
    c->writing = false;
    if (st->code != LINK_OK)
        content_fail_link(c, st);
    else
        content_pump(c);
}

static void content_on_finished(void *arg, const struct link_status *st)
{
    struct content *c = arg;
    if (st->code != LINK_OK)
        content_fail_link(c, st);
    else
        c->call = files_stat_below(c->api->peers->links, c->sandbox, &c->root, c->real, content_on_info, c);
}

static void content_pump(struct content *c)
{
    if (!c->sink || c->writing || c->finishing)
        return;
    if (c->in.n) {
        struct buf empty = c->sent;
        c->sent = c->in;
        c->in = empty;
        c->in.n = 0;
        c->writing = true;
        sink_write(c->sink, c->sent.p, c->sent.n, content_on_written, c);
    } else if (c->in_ended) {
        c->finishing = true;
        sink_finish(c->sink, content_on_finished, c);
    } else
        http_resume(c->r);
}

/* Ends an upload whose client is too slow. While the sandbox still takes bytes, the client has to wait and is not
 * blamed. */
static void content_check_rate(void *arg)
{
    struct content *c = arg;
    c->rate_timer = 0;
    if (c->in_ended)
        return;
    if (!c->writing && c->taken - c->taken_before < (uint64_t)RATE_MIN * RATE_WINDOW_MS / 1000) {
        c->in_ended = true; /* answer at once instead of draining the rest */
        content_fail(c, 408, "timeout", "the upload is too slow: less than 4 KiB a second came within 30 s");
        return;
    }
    c->taken_before = c->taken;
    c->rate_timer = loop_timer(c->api->loop, RATE_WINDOW_MS, content_check_rate, c);
}

static void content_on_created(void *arg, const struct link_status *st, struct file_sink *sink,
                               const struct file_info *info)
{
    struct content *c = arg;
    c->call = 0;
    if (st->code != LINK_OK) {
        content_fail_link(c, st);
        return;
    }
    c->sink = sink;
    c->real = xstrdup(info->path);
    c->rate_timer = loop_timer(c->api->loop, RATE_WINDOW_MS, content_check_rate, c);
    content_pump(c);
}

static void content_on_data(struct http_req *r, const void *p, size_t n)
{
    struct content *c = r->user;
    uint64_t max = c->api->config->max_upload;
    c->taken += n;
    if (max && c->taken > max) {
        content_fail(c, 413, "limit", "the file is larger than this node takes (http.max_upload)");
        return;
    }
    buf_add(&c->in, p, n);
    if (c->writing || !c->sink || c->in.n > HELD_MAX)
        http_pause(r);
    content_pump(c);
}

static void content_on_end(struct http_req *r)
{
    struct content *c = r->user;
    c->in_ended = true;
    content_pump(c);
}

/* --- a turn -------------------------------------------------------------------------------------------------------- */

static void content_on_turn(void *arg, const char *sandbox, const struct state_failure *failure)
{
    struct content *c = arg;
    struct links *ls = c->api->peers->links;
    if (!sandbox) {
        c->turn = NULL;
        content_fail(c, failure->status, failure->status == 404 ? "volume_not_found" : "unavailable", failure->text);
        return;
    }
    (void)snprintf(c->sandbox, sizeof c->sandbox, "%s", sandbox);
    switch (c->op) {
    case CONTENT_STAT:
        c->call = files_stat_below(ls, sandbox, &c->root, c->path, content_on_info, c);
        break;
    case CONTENT_LIST:
        c->call = files_list_below(ls, sandbox, &c->root, c->path, (unsigned)c->depth, content_on_listed, c);
        break;
    case CONTENT_OPEN:
        c->call = files_open_below(ls, sandbox, &c->root, c->path, content_on_opened, c);
        break;
    case CONTENT_REMOVE:
        c->call = files_remove_below(ls, sandbox, &c->root, c->path, content_on_removed, c);
        break;
    case CONTENT_MKDIR:
        c->call = files_mkdir_below(ls, sandbox, &c->root, c->path, content_on_info, c);
        break;
    case CONTENT_SET:
        c->call = files_set_below(ls, sandbox, &c->root, c->path, content_on_info, c);
        break;
    case CONTENT_WRITE:
        c->call = files_create_below(ls, sandbox, &c->root, c->path, content_on_created, c);
        break;
    }
}

static void content_run(struct http_req *r, const struct volume *v, struct content *c)
{
    c->r = r;
    c->api = api_call_of(r)->api;
    r->user = c;
    api_on_closed(r, content_on_client_left);
    if (c->op == CONTENT_WRITE) {
        r->on_data = content_on_data;
        r->on_end = content_on_end;
        http_pause(r);
    }
    c->turn = volume_turn(c->api->volumes, v, content_on_turn, c);
}

/* --- who may ------------------------------------------------------------------------------------------------------- */

/* True for the token of the volume, which allows everything in it, or a key of its owner; `lacking` then says what
 * scope the key lacks, or is NULL. */
static bool content_known(struct api_call *c, const struct volume *v, const char **lacking)
{
    const char *field = http_field(&c->req->fields, "authorization");
    *lacking = NULL;
    if (field && strncasecmp(field, "Bearer ", 7) == 0 && sha256_equal_text(field + 7, v->token))
        return true;
    if (!c->api->domain->tenants.authenticate(c->api->tenants, c->req, &c->who) || c->who.tenant != v->tenant)
        return false;
    *lacking = api_scope_lacking(c->who.scopes, c->route->scope, c->route->flags);
    return true;
}

static void content_slow_down(struct api_call *c, unsigned seconds)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%u", seconds);
    http_set(c->req, "retry-after", text);
    content_refuse(c->req, 429, "too_many_requests", "too many requests for this tenant; see Retry-After");
}

/* The volume of the request, if it carries the volume's token or a key of its owner. NULL: it has answered. */
static const struct volume *content_open_volume(struct api_call *c)
{
    const struct volume *v = volume_by_id(c->api->volumes, c->param[0]);
    if (!http_field(&c->req->fields, "authorization") && !http_field(&c->req->fields, "x-api-key")) {
        http_set(c->req, "www-authenticate", "Bearer");
        content_refuse(c->req, 401, "unauthenticated", "send Authorization: Bearer with the token of the volume");
        return NULL;
    }
    const char *lacking = NULL;
    if (!v || !content_known(c, v, &lacking)) {
        /* The same message for an unknown volume, another tenant's volume and a wrong token reveals nothing. */
        content_refuse(c->req, 404, "volume_not_found", "there is no such volume for this token");
        return NULL;
    }
    (void)snprintf(c->tenant, sizeof c->tenant, "%s", v->tenant->id);
    unsigned wait = c->api->domain->tenants.throttle(c->api->tenants, v->tenant);
    if (wait > 0)
        content_slow_down(c, wait);
    else if (lacking)
        content_refuse(c->req, 403, "forbidden", lacking);
    return wait > 0 || lacking ? NULL : v;
}

/* --- what is asked ------------------------------------------------------------------------------------------------- */

static int content_param(const struct http_req *r, const char *name, struct buf *out, struct err *err)
{
    return url_query_get(r->query, name, URL_PLUS_SPACE, out, err);
}

static int content_read_path(const struct http_req *r, struct content *c, struct err *err)
{
    _cleanup_buf_ struct buf path = {0};
    int have = content_param(r, "path", &path, err);
    if (have < 0)
        return -1;
    if (have == 0 || path.n == 0 || path.n >= FILES_PATH_MAX)
        return err_set(err, ERR_USAGE, 0,
                       "query parameter 'path' is required: a path in the volume of at most %d bytes",
                       FILES_PATH_MAX - 1);
    c->path = path_clean("/", buf_str(&path));
    return 0;
}

/* 1: *ret is set; 0: there is none. */
static int content_read_number(const struct http_req *r, const char *name, uint64_t min, uint64_t max, uint64_t *ret,
                               struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    int have = content_param(r, name, &text, err);
    if (have > 0 && (!num_u64(buf_str(&text), ret) || *ret < min || *ret > max))
        return err_set(err, ERR_USAGE, 0, "query parameter '%s' must be a number from %llu to %llu", name,
                       (unsigned long long)min, (unsigned long long)max);
    return have;
}

static int content_read_force(const struct http_req *r, struct content *c, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    int have = content_param(r, "force", &text, err);
    if (have <= 0)
        return have;
    c->root.force = strcmp(buf_str(&text), "true") == 0;
    if (!c->root.force && strcmp(buf_str(&text), "false") != 0)
        return err_set(err, ERR_USAGE, 0, "query parameter 'force' must be true or false");
    return 0;
}

static int content_read_owner(const struct http_req *r, struct content *c, struct err *err)
{
    static const char *const names[] = {"uid", "gid", "mode"};
    uint32_t *to[] = {&c->root.uid, &c->root.gid, &c->root.mode};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        uint64_t n = 0;
        int have = content_read_number(r, names[i], 0, i == 2 ? 07777 : UINT16_MAX, &n, err);
        if (have < 0)
            return -1;
        if (have)
            *to[i] = (uint32_t)n;
    }
    return 0;
}

static struct content *content_new(enum content_op op, unsigned status)
{
    struct content *c = xcalloc(1, sizeof *c);
    c->op = op;
    c->status = status;
    c->depth = 1;
    c->root = (struct files_root){
        .path = VOLUME_PLACE, .uid = FILES_UNCHANGED, .gid = FILES_UNCHANGED, .mode = FILES_UNCHANGED};
    return c;
}

static void content_start(struct api_call *call, const struct volume *v, struct content *c, int rc,
                          const struct err *err)
{
    if (rc == 0) {
        content_run(call->req, v, c);
        return;
    }
    bool upload = c->op == CONTENT_WRITE;
    _cleanup_buf_ struct buf out = {0};
    content_free(c);
    content_error_body(&out, "invalid", err->msg);
    if (upload)
        api_drain_json(call->req, 400, &out);
    else
        reply_json(call->req, 400, &out);
}

static void content_handle(struct api_call *call, enum content_op op)
{
    const struct volume *v = content_open_volume(call);
    struct err err;
    if (!v)
        return;
    struct content *c = content_new(op, 200);
    int rc = content_read_path(call->req, c, &err);
    if (rc == 0 && op == CONTENT_LIST && content_read_number(call->req, "depth", 1, DEPTH_MAX, &c->depth, &err) < 0)
        rc = -1;
    if (rc == 0 && op == CONTENT_REMOVE && strcmp(c->path, "/") == 0)
        rc = err_set(&err, ERR_USAGE, 0, "the root of a volume cannot be removed; remove the volume");
    content_start(call, v, c, rc, &err);
}

void e2b_content_stat(struct api_call *c) { content_handle(c, CONTENT_STAT); }
void e2b_content_list(struct api_call *c) { content_handle(c, CONTENT_LIST); }
void e2b_content_remove(struct api_call *c) { content_handle(c, CONTENT_REMOVE); }
void e2b_content_read(struct api_call *c) { content_handle(c, CONTENT_OPEN); }

/* An existing file is replaced unless force is false, as E2B's clients expect; a directory only if force is true. */
static void content_handle_make(struct api_call *call, enum content_op op)
{
    const struct volume *v = content_open_volume(call);
    struct err err;
    if (!v)
        return;
    const char *encoding = http_field(&call->req->fields, "content-encoding");
    struct content *c = content_new(op, 201);
    c->root.force = op == CONTENT_WRITE;
    int rc = content_read_path(call->req, c, &err) < 0 || content_read_owner(call->req, c, &err) < 0 ||
                     content_read_force(call->req, c, &err) < 0
                 ? -1
                 : 0;
    if (rc == 0 && op == CONTENT_WRITE && encoding && strcasecmp(encoding, "identity") != 0)
        rc = err_set(&err, ERR_USAGE, 0, "the body must not have a content encoding");
    content_start(call, v, c, rc, &err);
}

void e2b_content_mkdir(struct api_call *c) { content_handle_make(c, CONTENT_MKDIR); }
void e2b_content_write(struct api_call *c) { content_handle_make(c, CONTENT_WRITE); }

static int content_read_field(json_t *root, const char *name, int64_t max, uint32_t *to, struct err *err)
{
    int64_t n = 0;
    int have = field_int(root, name, 0, max, &n, err);
    if (have > 0)
        *to = (uint32_t)n;
    return have;
}

static void content_on_set_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *call = api_call_of(r);
    const struct volume *v =
        volume_by_id(call->api->volumes, call->param[0]); /* it was checked before the body was read */
    struct err err;
    if (status || !v) {
        content_refuse(r, status ? status : 404,
                       status == 408 ? "timeout"
                       : status      ? "invalid"
                                     : "volume_not_found",
                       status ? error : "the volume was removed");
        return;
    }
    json_t *tmp = NULL, *o = fields_root(root, &tmp, &err);
    struct content *c = content_new(CONTENT_SET, 200);
    int rc = !o || content_read_path(r, c, &err) < 0 ||
                     content_read_field(o, "uid", UINT16_MAX, &c->root.uid, &err) < 0 ||
                     content_read_field(o, "gid", UINT16_MAX, &c->root.gid, &err) < 0 ||
                     content_read_field(o, "mode", 07777, &c->root.mode, &err) < 0
                 ? -1
                 : 0;
    json_decref(tmp);
    content_start(call, v, c, rc, &err);
}

void e2b_content_set(struct api_call *c)
{
    if (content_open_volume(c))
        body_json(c->req, 0, content_on_set_body);
}
