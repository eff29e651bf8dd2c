/* reply.c - errors in Daytona's form, and readers of what requests carry. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "http/body.h"
#include "http/url.h"

static void daytona_error_write(const struct http_req *r, unsigned status, const char *code, const char *text,
                                struct buf *out)
{
    char when[REPLY_TIME_MAX];
    struct timespec now;
    struct json j;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    reply_time((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000, when);
    json_start(&j, out);
    json_obj(&j, NULL);
    json_u64(&j, "statusCode", status);
    json_str(&j, "message", text);
    if (code) {
        json_str(&j, "code", code);
        json_str(&j, "source", "DAYTONA_DAEMON"); /* clients pick a class by the code only with this */
    }
    json_str(&j, "path", r->path);
    json_str(&j, "timestamp", when);
    json_end_obj(&j);
}

static void daytona_error_text(struct http_req *r, unsigned status, const char *code, const char *text)
{
    _cleanup_buf_ struct buf out = {0};
    daytona_error_write(r, status, code, text, &out);
    reply_json(r, status, &out);
}

void daytona_refuse(struct http_req *r, unsigned status, unsigned retry_after, const char *text)
{
    char seconds[16];
    (void)snprintf(seconds, sizeof seconds, "%u", retry_after);
    if (retry_after > 0)
        http_set(r, "retry-after", seconds);
    daytona_error_text(r, status, NULL, text);
}

void daytona_refuse_body(struct http_req *r, unsigned status, const char *text)
{
    _cleanup_buf_ struct buf out = {0};
    daytona_error_write(r, status, NULL, text, &out);
    api_drain_json(r, status, &out);
}

void daytona_error(struct http_req *r, unsigned status, const char *code, const char *fmt, ...)
{
    _cleanup_free_ char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = xstrdup("out of memory");
    va_end(ap);
    daytona_error_text(r, status, code, text);
}

void daytona_state_error(struct http_req *r, const struct state_failure *failure)
{
    daytona_error_text(r, failure->status, NULL, failure->text);
}

/* Clients look for these words: "not found", "permission denied", "is a directory", "timeout". */
void daytona_fault_of(const struct link_status *st, const char *path, struct daytona_fault *ret)
{
    static const struct {
        enum link_code link;
        unsigned status;
        const char *code, *text;
    } known[] = {
        {LINK_NOT_FOUND, 404, "FILE_NOT_FOUND", "file not found"},
        {LINK_DENIED, 403, "FILE_ACCESS_DENIED", "permission denied"},
        {LINK_IS_DIR, 400, "INVALID_FILE_PATH", "is a directory"},
        {LINK_NOT_DIR, 400, "INVALID_FILE_PATH", "is not a directory"},
        {LINK_EXISTS, 409, NULL, "exists already"},
        {LINK_TIMEOUT, 408, NULL, "timeout"},
        {LINK_GONE, 410, NULL, "the sandbox has ended"},
        {LINK_PAUSED, 409, NULL, "the sandbox is being stopped"},
        {LINK_NO_SPACE, 507, NULL, "no space left in the sandbox"},
        {LINK_LIMIT, 429, NULL, NULL}, /* NULL: the link's own words */
        {LINK_BROKEN, 502, NULL, NULL},
        {LINK_STATE, 409, NULL, NULL},
    };
    *ret = (struct daytona_fault){.status = 400};
    (void)snprintf(ret->text, sizeof ret->text, "%s", st->text);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].link == st->code) {
            ret->status = known[i].status;
            ret->code = known[i].code;
            if (known[i].text)
                (void)snprintf(ret->text, sizeof ret->text, "%s%s%.300s", known[i].text, path ? ": " : "",
                               path ? path : "");
        }
}

void daytona_link_error(struct http_req *r, const struct link_status *st, const char *path)
{
    struct daytona_fault fault;
    daytona_fault_of(st, path, &fault);
    daytona_error_text(r, fault.status, fault.code, fault.text);
}

static void daytona_script_error(struct http_req *r, const struct daytona_ran *ran)
{
    static const struct {
        const char *code;
        unsigned status;
    } known[] = {{"FILE_NOT_FOUND", 404},
                 {"PROCESS_NOT_FOUND", 404},
                 {"GIT_REPO_NOT_FOUND", 404},
                 {"FILE_ACCESS_DENIED", 403},
                 {"GIT_AUTH_FAILED", 401},
                 {"GIT_BRANCH_NOT_FOUND", 404},
                 {"GIT_BRANCH_EXISTS", 409},
                 {"GIT_PUSH_REJECTED", 409},
                 {"SESSION_ENDED", 410},
                 {"COMMAND_ALREADY_COMPLETED", 409},
                 {"CONFLICT", 409}};
    size_t most = strnlen(buf_str(ran->err), 2000);
    while (most > 0 && buf_str(ran->err)[most - 1] == '\n')
        most--;
    _cleanup_free_ char *text = xstrndup(buf_str(ran->err), most);
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (n == strlen(known[i].code) && text[n] == ' ' && strncmp(text, known[i].code, n) == 0) {
            daytona_error_text(r, known[i].status, strcmp(known[i].code, "CONFLICT") == 0 ? NULL : known[i].code,
                               text + n + 1);
            return;
        }
    if (ran->late)
        daytona_error_text(r, 408, NULL, "timeout: the operation did not end in time and was killed");
    else
        daytona_error_text(r, 400, NULL, *text ? text : "the operation failed in the sandbox without a message");
}

bool daytona_script_failed(struct http_req *r, const struct daytona_ran *ran)
{
    bool failed = ran->code != 0 || ran->late;
    if (failed)
        daytona_script_error(r, ran);
    return failed;
}

/* --- requests ------------------------------------------------------------------------------------------------------- */

struct reading {
    daytona_with_body *then;
};

static void daytona_body_on_closed(struct http_req *r) { free(r->user); }

static void daytona_on_body(struct http_req *r, json_t *root, unsigned status, const char *error)
{
    daytona_with_body *then = ((struct reading *)r->user)->then;
    free(r->user);
    r->user = NULL;
    api_on_closed(r, NULL);
    if (status || (root && !json_is_object(root))) {
        daytona_error(r, status ? status : 400, NULL, "%s", status ? error : "the body must be a JSON object");
        return;
    }
    json_t *body = root ? json_incref(root) : json_object();
    then(api_call_of(r), body);
    json_decref(body);
}

void daytona_body(struct api_call *c, daytona_with_body *then)
{
    struct reading *w = xcalloc(1, sizeof *w);
    w->then = then;
    c->req->user = w;
    api_on_closed(c->req, daytona_body_on_closed);
    body_json(c->req, 0, daytona_on_body);
}

bool daytona_query(struct api_call *c, const char *name, bool required, struct buf *ret)
{
    struct err err;
    int have = url_query_get(c->req->query, name, URL_PLUS_SPACE, ret, &err);
    if (have < 0)
        daytona_error(c->req, 400, NULL, "query parameter '%s': %s", name, err.msg);
    else if (have == 0 && required)
        daytona_error(c->req, 400, NULL, "query parameter '%s' is required", name);
    return have > 0 || (have == 0 && !required);
}

const char *daytona_text(json_t *body, const char *name) { return json_string_value(json_object_get(body, name)); }
