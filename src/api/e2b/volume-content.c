/* volume-content.c - files of a volume over HTTP, for clients without a sandbox: each request runs our own program once
 * in the hidden sandbox of the volume (volumes.h, cli/volume-op.c). As in E2B's content API, the `code` of an error is
 * a word.
 */
#include <signal.h>
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
    OUTPUT_MAX = 16 << 20,       /* bytes of one command: 10,000 entries with the longest names fit */
    HELD_MAX = 256 * 1024,       /* bytes of an upload; beyond that the client must wait */
    COMMAND_MS = 10 * 60 * 1000, /* limit of a command; an upload has none, because its client sets the pace */
    DEPTH_MAX = 64,
    /* Slower uploads end: they occupy a turn that other requests wait for. */
    RATE_WINDOW_MS = 30 * 1000,
    RATE_MIN = 4096, /* bytes a second, averaged over the window */
};

struct content {
    struct http_req *r;
    struct api *api;
    enum { ANSWERS_JSON, ANSWERS_NOTHING, ANSWERS_FILE } answers;
    unsigned status; /* HTTP status of success */
    struct strv args;
    struct volume_turn *turn;
    char sandbox[SANDBOX_ID_MAX];
    struct exec *x;
    struct buf out;
    bool too_long;
    link_call call;
    /* uploads */
    bool upload, feeding, in_ended, closed, deaf; /* deaf: the command reads no more input */
    uint32_t pid;
    uint64_t taken, taken_before; /* taken_before: at the start of the window */
    loop_id rate_timer;
    struct buf in;
};

/* --- the end ------------------------------------------------------------------------------------------------------- */

static void content_free(struct content *c)
{
    struct exec_select who = {.pid = c->pid};
    if (c->rate_timer)
        loop_timer_del(c->api->loop, c->rate_timer);
    if (c->call)
        link_cancel(c->api->peers->links, c->call);
    if (c->x) {
        exec_detach(c->x);
        if (c->upload && c->pid) /* half a file is none */
            (void)exec_signal(c->api->peers->links, c->sandbox, &who, SIGKILL, envd_ignore, NULL);
    }
    if (c->turn)
        volume_turn_end(c->turn);
    strv_done(&c->args);
    buf_done(&c->out);
    buf_done(&c->in);
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
    bool drain = c->upload && !c->in_ended;
    content_error_body(&out, code, message);
    struct http_req *r = content_release(c);
    if (drain)
        api_drain_json(r, status, &out);
    else
        reply_json(r, status, &out);
}

static void content_fail_link(struct content *c, const struct link_status *st)
{
    bool gone = st->code == LINK_GONE || st->code == LINK_TIMEOUT;
    content_fail(c, gone ? 503 : 500, gone ? "unavailable" : "io", st->text);
}

static unsigned content_error_status(const char *word)
{
    static const struct {
        const char *word;
        unsigned status;
    } known[] = {{"not_found", 404}, {"exists", 409}, {"not_dir", 400},  {"is_dir", 400},
                 {"invalid", 400},   {"denied", 403}, {"no_space", 507}, {"limit", 413}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(known[i].word, word) == 0)
            return known[i].status;
    return 500;
}

/* --- the command --------------------------------------------------------------------------------------------------- */

static void content_on_file_opened(void *arg, const struct link_status *st, int fd, const struct file_info *info)
{
    struct content *c = arg;
    c->call = 0;
    if (st->code != LINK_OK) {
        if (st->code == LINK_NOT_FOUND)
            content_fail(c, 404, "not_found", st->text);
        else
            content_fail_link(c, st);
        return;
    }
    if (!sandbox_find(c->api->sandboxes, c->sandbox)) {
        (void)close(fd);
        content_fail(c, 503, "unavailable", "the volume was closed meanwhile; try again");
        return;
    }
    _cleanup_free_ char *name = xstrdup(info->name);
    struct http_req *r = content_release(c); /* an open file can be read without the sandbox */
    api_send_file(r, fd, name);
}

static void content_answer(struct content *c, json_t *root)
{
    const char *path = json_string_value(json_object_get(root, "path"));
    switch (c->answers) {
    case ANSWERS_FILE:
        if (path)
            c->call = files_open(c->api->peers->links, c->sandbox, "root", path, content_on_file_opened, c);
        else
            content_fail(c, 500, "io", "the volume's sandbox gave no path");
        return;
    case ANSWERS_NOTHING:
        reply_empty(content_release(c), 204);
        return;
    case ANSWERS_JSON: {
        struct buf out = c->out;
        unsigned status = c->status;
        c->out = (struct buf){0};
        reply_json(content_release(c), status, &out);
        buf_done(&out);
    }
    }
}

static void content_on_ended(void *arg, const struct exec_end *end)
{
    struct content *c = arg;
    struct err err;
    c->x = NULL;
    json_t *root = c->too_long ? NULL : body_parse(buf_str(&c->out), c->out.n, &err);
    const char *word = json_string_value(json_object_get(root, "error"));
    if (root && end->exited && end->code == 0)
        content_answer(c, root);
    else if (word)
        content_fail(c, content_error_status(word), word, json_string_value(json_object_get(root, "message")));
    else if (end->oom)
        content_fail(c, 507, "no_space", "the memory of the volume's sandbox is used up; try again");
    else
        content_fail(c, 500, "io", "the operation was cut off");
    json_decref(root);
}

static void content_on_failed(void *arg, const struct link_status *st)
{
    struct content *c = arg;
    c->x = NULL;
    content_fail_link(c, st);
}

static bool content_on_output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    struct content *c = arg;
    (void)offset;
    if (c->out.n + n > OUTPUT_MAX)
        c->too_long = true;
    else if (s == EXEC_STDOUT)
        buf_add(&c->out, p, n);
    return true;
}

/* --- uploads ------------------------------------------------------------------------------------------------------- */

static void content_pump(struct content *c);

static void content_on_fed(void *arg, const struct link_status *st)
{
    struct content *c = arg;
    c->call = 0;
    c->feeding = false;
    c->deaf = st->code != LINK_OK; /* the command has ended; its output says why */
    content_pump(c);
}

static void content_pump(struct content *c)
{
    struct exec_select who = {.pid = c->pid};
    if (c->feeding || !c->pid || c->closed)
        return;
    if (c->deaf)
        c->in.n = 0;
    if (c->in.n) {
        c->feeding = true;
        c->call = exec_input(c->api->peers->links, c->sandbox, &who, c->in.p, c->in.n, content_on_fed, c);
        c->in.n = 0;
    } else if (c->in_ended && !c->deaf) {
        c->closed = c->feeding = true;
        c->call = exec_close_input(c->api->peers->links, c->sandbox, &who, content_on_fed, c);
    } else
        http_resume(c->r);
}

/* Ends an upload whose client is too slow. While the command still reads, the client has to wait and is not blamed. */
static void content_check_rate(void *arg)
{
    struct content *c = arg;
    c->rate_timer = 0;
    if (c->in_ended)
        return;
    if (!c->feeding && c->taken - c->taken_before < (uint64_t)RATE_MIN * RATE_WINDOW_MS / 1000) {
        c->in_ended = true; /* answer at once instead of draining the rest */
        content_fail(c, 408, "timeout", "the upload is too slow: less than 4 KiB a second came within 30 s");
        return;
    }
    c->taken_before = c->taken;
    c->rate_timer = loop_timer(c->api->loop, RATE_WINDOW_MS, content_check_rate, c);
}

static void content_on_started(void *arg, uint32_t pid, const char *tag)
{
    struct content *c = arg;
    (void)tag;
    c->pid = pid;
    if (!c->upload)
        return;
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
    if (c->feeding || !c->pid || c->in.n > HELD_MAX)
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
    static const struct exec_ops ops = {content_on_started, content_on_output, content_on_ended, content_on_failed};
    struct content *c = arg;
    if (!sandbox) {
        c->turn = NULL;
        content_fail(c, failure->status, failure->status == 404 ? "volume_not_found" : "unavailable", failure->text);
        return;
    }
    (void)snprintf(c->sandbox, sizeof c->sandbox, "%s", sandbox);
    struct exec_spec spec = {.cmd = VOLUME_PROGRAM,
                             .args = (const char *const *)c->args.v,
                             .cwd = "/",
                             .user = "root",
                             .stdin_open = c->upload,
                             .timeout_ms = c->upload ? 0 : COMMAND_MS,
                             .keep_output = true};
    c->x = exec_start(c->api->peers->links, c->sandbox, &spec, &ops, c);
}

static void content_run(struct http_req *r, const struct volume *v, struct content *c)
{
    c->r = r;
    c->api = api_call_of(r)->api;
    r->user = c;
    api_on_closed(r, content_on_client_left);
    if (c->upload) {
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
    if (!tenants_auth(c->api->tenants, c->req, &c->who) || c->who.tenant != v->tenant)
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
    unsigned wait = tenants_throttle(c->api->tenants, v->tenant);
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

static int content_add_path(const struct http_req *r, struct strv *args, struct err *err)
{
    _cleanup_buf_ struct buf path = {0};
    int have = content_param(r, "path", &path, err);
    if (have < 0)
        return -1;
    if (have == 0 || path.n == 0 || path.n >= FILES_PATH_MAX)
        return err_set(err, ERR_USAGE, 0,
                       "query parameter 'path' is required: a path in the volume of at most %d bytes",
                       FILES_PATH_MAX - 1);
    strv_take(args, path_clean("/", buf_str(&path)));
    return 0;
}

static int content_add_number(const struct http_req *r, const char *name, uint64_t min, uint64_t max, struct strv *args,
                              struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    uint64_t v = 0;
    int have = content_param(r, name, &text, err);
    if (have > 0 && (!num_u64(buf_str(&text), &v) || v < min || v > max))
        return err_set(err, ERR_USAGE, 0, "query parameter '%s' must be a number from %llu to %llu", name,
                       (unsigned long long)min, (unsigned long long)max);
    if (have < 0)
        return -1;
    if (have)
        strv_take(args, xasprintf("%llu", (unsigned long long)v));
    else
        strv_add(args, "-");
    return 0;
}

static int content_add_force(const struct http_req *r, bool otherwise, struct strv *args, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    int have = content_param(r, "force", &text, err);
    bool yes = have > 0 ? strcmp(buf_str(&text), "true") == 0 : otherwise;
    if (have > 0 && !yes && strcmp(buf_str(&text), "false") != 0)
        return err_set(err, ERR_USAGE, 0, "query parameter 'force' must be true or false");
    if (have < 0)
        return -1;
    strv_add(args, yes ? "1" : "0");
    return 0;
}

static int content_add_owner(const struct http_req *r, struct strv *args, struct err *err)
{
    return content_add_number(r, "uid", 0, UINT16_MAX, args, err) < 0 ||
                   content_add_number(r, "gid", 0, UINT16_MAX, args, err) < 0 ||
                   content_add_number(r, "mode", 0, 07777, args, err) < 0
               ? -1
               : 0;
}

static struct content *content_new(const char *op)
{
    struct content *c = xcalloc(1, sizeof *c);
    c->status = 200;
    strv_add(&c->args, "volume-op");
    strv_add(&c->args, op);
    return c;
}

static void content_start(struct api_call *call, const struct volume *v, struct content *c, int rc,
                          const struct err *err)
{
    if (rc == 0) {
        content_run(call->req, v, c);
        return;
    }
    bool upload = c->upload;
    _cleanup_buf_ struct buf out = {0};
    content_free(c);
    content_error_body(&out, "invalid", err->msg);
    if (upload)
        api_drain_json(call->req, 400, &out);
    else
        reply_json(call->req, 400, &out);
}

static void content_handle(struct api_call *call, const char *op, int answers)
{
    const struct volume *v = content_open_volume(call);
    struct err err;
    if (!v)
        return;
    struct content *c = content_new(op);
    c->answers = answers;
    int rc = content_add_path(call->req, &c->args, &err);
    if (rc == 0 && strcmp(op, "list") == 0)
        rc = content_add_number(call->req, "depth", 1, DEPTH_MAX, &c->args, &err);
    content_start(call, v, c, rc, &err);
}

void e2b_content_stat(struct api_call *c) { content_handle(c, "stat", ANSWERS_JSON); }
void e2b_content_list(struct api_call *c) { content_handle(c, "list", ANSWERS_JSON); }
void e2b_content_remove(struct api_call *c) { content_handle(c, "rm", ANSWERS_NOTHING); }
void e2b_content_read(struct api_call *c) { content_handle(c, "open", ANSWERS_FILE); }

void e2b_content_mkdir(struct api_call *call)
{
    const struct volume *v = content_open_volume(call);
    struct err err;
    if (!v)
        return;
    struct content *c = content_new("mkdir");
    c->status = 201;
    int rc = content_add_path(call->req, &c->args, &err) < 0 || content_add_owner(call->req, &c->args, &err) < 0 ||
                     content_add_force(call->req, false, &c->args, &err) < 0
                 ? -1
                 : 0;
    content_start(call, v, c, rc, &err);
}

/* An existing file is replaced unless force is false, as E2B's clients expect. */
void e2b_content_write(struct api_call *call)
{
    const struct volume *v = content_open_volume(call);
    struct err err;
    if (!v)
        return;
    const char *encoding = http_field(&call->req->fields, "content-encoding");
    struct content *c = content_new("write");
    c->status = 201;
    c->upload = true;
    int rc = content_add_path(call->req, &c->args, &err) < 0 || content_add_owner(call->req, &c->args, &err) < 0 ||
                     content_add_force(call->req, true, &c->args, &err) < 0
                 ? -1
                 : 0;
    if (rc == 0 && encoding && strcasecmp(encoding, "identity") != 0)
        rc = err_set(&err, ERR_USAGE, 0, "the body must not have a content encoding");
    content_start(call, v, c, rc, &err);
}

static int content_add_field(json_t *root, const char *name, int64_t max, struct strv *args, struct err *err)
{
    int64_t n = 0;
    int have = field_int(root, name, 0, max, &n, err);
    if (have < 0)
        return -1;
    if (have)
        strv_take(args, xasprintf("%lld", (long long)n));
    else
        strv_add(args, "-");
    return 0;
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
    struct content *c = content_new("set");
    int rc = !o || content_add_path(r, &c->args, &err) < 0 ||
                     content_add_field(o, "uid", UINT16_MAX, &c->args, &err) < 0 ||
                     content_add_field(o, "gid", UINT16_MAX, &c->args, &err) < 0 ||
                     content_add_field(o, "mode", 07777, &c->args, &err) < 0
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
