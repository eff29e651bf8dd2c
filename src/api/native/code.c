/* code.c - code in the interpreter of a sandbox: cells as a stream of lines, and contexts. docs/code.md has the lines; they
 * pass as the service inside writes them.
 */
#include <stdlib.h>
#include <string.h>

#include "api/interpreter.h"
#include "api/native/native.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "http/body.h"

enum {
    CODE_BODY_MAX = INTERPRETER_BODY_MAX - 4096, /* it is written anew, with longer names */
    CODE_TIMEOUT_MAX_S = 86400,
    CODE_ENV_MAX = 256,
    CONTEXTS_BYTES_MAX = 256 * 1024
};

/* A request under way. */
struct coding {
    struct http_req *r;
    struct interpreter *x;
    void (*answer)(struct http_req *r, json_t *root); /* of a whole answer; NULL: lines pass as they come */
    struct buf text;                                  /* the whole answer */
    bool begun;
    char last; /* byte that was passed on */
};

static void native_code_free(struct coding *w)
{
    buf_done(&w->text);
    free(w);
}

static void native_code_on_client_left(struct http_req *r)
{
    struct coding *w = r->user;
    interpreter_cancel(w->x);
    native_code_free(w);
}

static void native_code_on_writable(struct http_req *r) { interpreter_resume(((struct coding *)r->user)->x); }

static void native_code_begin(struct coding *w)
{
    if (w->begun)
        return;
    w->begun = true;
    http_set(w->r, "content-type", "application/x-ndjson");
    http_set(w->r, "cache-control", "no-store");
    http_head(w->r, 200, HTTP_UNKNOWN);
}

static void native_code_on_data(void *arg, const void *p, size_t n)
{
    struct coding *w = arg;
    if (w->answer) {
        size_t room = CONTEXTS_BYTES_MAX - w->text.n;
        if (n > room)
            interpreter_refuse(w->x);
        else
            buf_add(&w->text, p, n);
        return;
    }
    native_code_begin(w);
    if (n > 0)
        w->last = ((const char *)p)[n - 1];
    if (!http_write(w->r, p, n))
        interpreter_pause(w->x);
}

/* The request to answer; frees w. */
static struct http_req *native_code_over(struct coding *w)
{
    struct http_req *r = w->r;
    api_on_closed(r, NULL);
    r->user = NULL;
    r->on_writable = NULL;
    native_code_free(w);
    return r;
}

static void native_code_on_ended(void *arg)
{
    struct coding *w = arg;
    if (!w->answer) {
        native_code_begin(w);
        http_end(native_code_over(w));
        return;
    }
    json_t *root = json_loadb(w->text.p, w->text.n, JSON_DECODE_ANY, NULL);
    void (*answer)(struct http_req *, json_t *) = w->answer;
    answer(native_code_over(w), root);
    json_decref(root);
}

/* The service ended in mid-cell. A line that is cut short can only be told by a cut connection. */
static void native_code_end_cut(struct coding *w, const struct interpreter_failure *f)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    bool whole = w->last == '\n';
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "type", "error");
    json_str(&j, "name", "InterpreterLost");
    json_str(&j, "value", f->text);
    json_str(&j, "traceback", "");
    json_end_obj(&j);
    buf_adds(&out, "\n{\"type\":\"end_of_execution\"}\n");
    struct http_req *r = native_code_over(w);
    if (!whole) {
        http_abort(r);
        return;
    }
    (void)http_write(r, out.p, out.n);
    http_end(r);
}

static void native_code_on_failed(void *arg, const struct interpreter_failure *f)
{
    struct coding *w = arg;
    if (w->begun)
        native_code_end_cut(w, f);
    else
        reply_refuse(native_code_over(w), f->status, f->code, f->status == 429 || f->status == 503 ? 1 : 0, f->text);
}

static void native_code_ask(struct api_call *c, struct sandbox *b, const char *method, const char *path,
                            const struct buf *body, void (*answer)(struct http_req *r, json_t *root))
{
    static const struct interpreter_ops ops = {native_code_on_data, native_code_on_ended, native_code_on_failed};
    struct coding *w = xcalloc(1, sizeof *w);
    *w = (struct coding){.r = c->req, .answer = answer};
    c->req->user = w;
    c->req->on_writable = native_code_on_writable;
    api_on_closed(c->req, native_code_on_client_left);
    api_note_sandbox(c->req, b->id);
    w->x = interpreter_ask(c->api, b, method, path, body, &ops, w);
}

/* --- cells ---------------------------------------------------------------------------------------------------------- */

static int native_code_add_env(json_t *root, struct json *j, struct err *err)
{
    json_t *env = NULL, *value;
    const char *name;
    int have = field_obj(root, "env", &env, err);
    if (have <= 0)
        return have;
    if (json_object_size(env) > CODE_ENV_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'env' must have at most %d variables", CODE_ENV_MAX);
    json_obj(j, "env_vars");
    json_object_foreach(env, name, value)
    {
        if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
            return err_set(err, ERR_USAGE, 0, "field 'env': values must be strings without NUL");
        json_str(j, name, json_string_value(value));
    }
    json_end_obj(j);
    return 0;
}

/* 1: with rights. */
static int native_code_read(json_t *root, struct buf *ret, struct err *err)
{
    static const char *const known[] = {"code", "language", "contextID", "env", "timeout", "rights", NULL};
    const char *code = NULL, *language = NULL, *context = NULL;
    const json_t *timeout = json_object_get(root, "timeout");
    struct json j;
    if (fields_check_known(root, "this route", known, err) < 0 || field_str(root, "code", &code, err) < 0 ||
        field_str(root, "language", &language, err) < 0 || field_str(root, "contextID", &context, err) < 0)
        return -1;
    if (!code)
        return err_set(err, ERR_USAGE, 0, "field 'code' is missing: {\"code\": \"1 + 1\"}");
    if (language && context)
        return err_set(err, ERR_USAGE, 0, "give 'language' or 'contextID', not both: a context has its language");
    double seconds = json_number_value(timeout);
    if (timeout && !json_is_null(timeout) &&
        !(json_is_number(timeout) && seconds >= 0 && seconds <= CODE_TIMEOUT_MAX_S))
        return err_set(err, ERR_USAGE, 0, "field 'timeout' must be a number of seconds from 0 (none) to %d",
                       CODE_TIMEOUT_MAX_S);
    json_start(&j, ret);
    json_obj(&j, NULL);
    json_str(&j, "code", code);
    if (language)
        json_str(&j, "language", language);
    if (context)
        json_str(&j, "context_id", context);
    if (seconds > 0)
        json_fixed(&j, "timeout", (uint64_t)(seconds * 1000), 3);
    int given = native_code_add_env(root, &j, err) < 0
                    ? -1
                    : interpreter_add_rights(json_object_get(root, "rights"), &j, ret, err);
    json_end_obj(&j);
    return given;
}

static void native_code_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    _cleanup_buf_ struct buf body = {0};
    struct err err;
    json_t *tmp = NULL;
    if (status) {
        reply_refuse(r, status, status == 413 ? "too_large" : NULL, 0, error);
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    json_t *o = fields_root(root, &tmp, &err);
    int given = o ? native_code_read(o, &body, &err) : -1;
    if (given < 0)
        reply_refuse(r, 400, "bad_request", 0, err.msg);
    else
        native_code_ask(c, b, "POST", given ? INTERPRETER_RIGHTS "/execute" : "/execute", &body, NULL);
    json_decref(tmp);
}

void native_code(struct api_call *c) { body_json(c->req, CODE_BODY_MAX, native_code_on_body); }

/* --- contexts ------------------------------------------------------------------------------------------------------- */

/* The two that a context can have; what else the service says is left out. */
static void native_context_add_rights(struct json *j, const json_t *rights)
{
    const json_t *write = json_object_get(rights, "write");
    if (!json_is_object(rights))
        return;
    json_obj(j, "rights");
    if (json_is_string(json_object_get(rights, "network")))
        json_str(j, "network", field_text(rights, "network"));
    if (json_is_string(write))
        json_str(j, "write", json_string_value(write));
    if (json_is_array(write))
        json_arr(j, "write");
    for (size_t i = 0; i < json_array_size(write); i++)
        if (json_is_string(json_array_get(write, i)))
            json_str(j, NULL, json_string_value(json_array_get(write, i)));
    if (json_is_array(write))
        json_end_arr(j);
    json_end_obj(j);
}

/* Adds what the service says of one context; false: it is none. */
static bool native_context_add(struct json *j, const json_t *o)
{
    const char *id = field_text(o, "id");
    if (!interpreter_is_context(id))
        return false;
    json_obj(j, NULL);
    json_str(j, "contextID", id);
    json_str(j, "language", field_text(o, "language"));
    json_str(j, "cwd", field_text(o, "cwd"));
    native_context_add_rights(j, json_object_get(o, "rights"));
    json_end_obj(j);
    return true;
}

static void native_context_reply(struct http_req *r, unsigned status, bool good, const struct buf *out)
{
    if (good)
        reply_json(r, status, out);
    else
        reply_refuse(r, 502, "interpreter_failed", 0, "the code interpreter's answer cannot be read");
}

static void native_contexts_answer(struct http_req *r, json_t *root)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_t *o;
    size_t i;
    bool good = json_is_array(root);
    json_start(&j, &out);
    json_arr(&j, NULL);
    json_array_foreach(root, i, o) good = good && native_context_add(&j, o);
    json_end_arr(&j);
    native_context_reply(r, 200, good, &out);
}

void native_contexts(struct api_call *c)
{
    struct sandbox *b = api_sandbox_of(c);
    if (b)
        native_code_ask(c, b, "GET", "/contexts", NULL, native_contexts_answer);
}

static void native_context_new_answer(struct http_req *r, json_t *root)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    bool good = native_context_add(&j, root);
    native_context_reply(r, 201, good, &out);
}

static int native_context_read(json_t *root, struct buf *ret, struct err *err)
{
    static const char *const known[] = {"language", "cwd", "rights", NULL};
    const char *language = NULL, *cwd = NULL;
    struct json j;
    if (fields_check_known(root, "this route", known, err) < 0 || field_str(root, "language", &language, err) < 0 ||
        field_str(root, "cwd", &cwd, err) < 0)
        return -1;
    json_start(&j, ret);
    json_obj(&j, NULL);
    if (language)
        json_str(&j, "language", language);
    if (cwd)
        json_str(&j, "cwd", cwd);
    int given = interpreter_add_rights(json_object_get(root, "rights"), &j, ret, err);
    json_end_obj(&j);
    return given;
}

static void native_context_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    struct api_call *c = api_call_of(r);
    _cleanup_buf_ struct buf body = {0};
    struct err err;
    json_t *tmp = NULL;
    if (status) {
        reply_error(r, status, "%s", error);
        return;
    }
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    json_t *o = fields_root(root, &tmp, &err);
    int given = o ? native_context_read(o, &body, &err) : -1;
    if (given < 0)
        reply_refuse(r, 400, "bad_request", 0, err.msg);
    else
        native_code_ask(c, b, "POST", given ? INTERPRETER_RIGHTS "/contexts" : "/contexts", &body,
                        native_context_new_answer);
    json_decref(tmp);
}

void native_context_new(struct api_call *c) { body_json(c->req, 0, native_context_on_body); }

static void native_context_empty_answer(struct http_req *r, json_t *root)
{
    (void)root;
    reply_empty(r, 204);
}

static void native_context_change(struct api_call *c, const char *method, const char *what)
{
    struct sandbox *b = api_sandbox_of(c);
    if (!b)
        return;
    if (!interpreter_is_context(c->param[1])) {
        reply_refuse(c->req, 404, "context_not_found", 0, "the context is not known");
        return;
    }
    _cleanup_free_ char *path = xasprintf("/contexts/%s%s", c->param[1], what);
    native_code_ask(c, b, method, path, NULL, native_context_empty_answer);
}

void native_context_restart(struct api_call *c) { native_context_change(c, "POST", "/restart"); }
void native_context_remove(struct api_call *c) { native_context_change(c, "DELETE", ""); }
