#include "http/body.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "http/rpc.h"

struct body {
    body_done *done;
    size_t max;
    bool envelope;
    struct buf bytes;
    loop_id deadline;
    void *user; /* the handler's, to be put back */
    void (*on_closed)(struct http_req *r);
};

/* jansson's own limit is compiled in and far too high: nesting costs stack in the parser and in all later walks. */
static int body_check_depth(const char *p, size_t n, struct err *err)
{
    size_t depth = 0;
    bool string = false;
    for (size_t i = 0; i < n; i++) {
        if (string) {
            if (p[i] == '\\')
                i++;
            else if (p[i] == '"')
                string = false;
        } else if (p[i] == '"') {
            string = true;
        } else if (p[i] == '{' || p[i] == '[') {
            if (++depth > BODY_DEPTH_MAX)
                return err_set(err, ERR_USAGE, 0, "JSON nested deeper than %d levels at byte %zu", BODY_DEPTH_MAX, i);
        } else if ((p[i] == '}' || p[i] == ']') && depth > 0) {
            depth--;
        }
    }
    return 0;
}

json_t *body_parse(const char *p, size_t n, struct err *err)
{
    json_error_t at;
    if (body_check_depth(p, n, err) < 0)
        return NULL;
    json_t *root = json_loadb(p, n, JSON_REJECT_DUPLICATES, &at);
    if (!root) {
        _cleanup_buf_ struct buf shown = {0};
        text_add_safe(&shown, at.text, 160);
        (void)err_set(err, ERR_USAGE, 0, "not valid JSON, line %d column %d: %s", at.line, at.column, buf_str(&shown));
    }
    return root;
}

/* Restores the handler's callbacks and frees the body. */
static void body_give_back(struct http_req *r)
{
    struct body *b = r->user;
    loop_timer_del(r->loop, b->deadline);
    r->user = b->user;
    r->on_closed = b->on_closed;
    r->on_data = NULL;
    r->on_end = NULL;
    if (b->bytes.p) /* it may hold a secret */
        explicit_bzero(b->bytes.p, b->bytes.cap);
    buf_done(&b->bytes);
    free(b);
}

static void body_refuse(struct http_req *r, unsigned status, const char *error)
{
    body_done *done = ((struct body *)r->user)->done;
    body_give_back(r);
    done(r, NULL, status, error);
}

static void body_on_deadline(void *arg)
{
    struct http_req *r = arg;
    char text[120];
    (void)snprintf(text, sizeof text, "the body did not come whole within %d s: %zu bytes came", BODY_MS / 1000,
                   ((struct body *)r->user)->bytes.n);
    body_refuse(r, 408, text);
}

static void body_on_closed(struct http_req *r)
{
    body_give_back(r);
    if (r->on_closed)
        r->on_closed(r);
}

static bool body_is_too_long(struct http_req *r, uint64_t size)
{
    struct body *b = r->user;
    char text[80];
    if (size <= b->max + (b->envelope ? RPC_HEAD : 0))
        return false;
    (void)snprintf(text, sizeof text, "the body is longer than %zu bytes", b->max);
    body_refuse(r, 413, text);
    return true;
}

static void body_on_data(struct http_req *r, const void *p, size_t n)
{
    struct body *b = r->user;
    if (!body_is_too_long(r, b->bytes.n + n))
        buf_add(&b->bytes, p, n);
}

struct only {
    json_t *root;
    bool seen;
};

static int body_on_message(void *arg, unsigned flags, const char *p, size_t n, struct err *err)
{
    struct only *only = arg;
    if (flags & RPC_FLAG_END) /* some clients end their half of a stream with it */
        return 0;
    if (only->seen)
        return err_set(err, ERR_USAGE, 0, "expected exactly one message, got another");
    only->seen = true;
    only->root = body_parse(p, n, err);
    return only->root ? 0 : -1;
}

static int body_read_envelope(const struct buf *bytes, json_t **ret, struct err *err)
{
    struct rpc_reader reader = {0};
    struct only only = {0};
    int status = rpc_read(&reader, buf_str(bytes), bytes->n, body_on_message, &only, err);
    if (status == 0)
        status = rpc_read_end(&reader, err);
    rpc_reader_done(&reader);
    if (status == 0 && !only.seen)
        status = err_set(err, ERR_USAGE, 0, "expected one message in an envelope, got an empty body");
    if (status < 0)
        json_decref(only.root);
    else
        *ret = only.root;
    return status;
}

static void body_on_end(struct http_req *r)
{
    struct body *b = r->user;
    struct err err;
    json_t *root = NULL;
    int status = 0;
    body_done *done = b->done;
    if (b->envelope)
        status = body_read_envelope(&b->bytes, &root, &err);
    else if (b->bytes.n > 0)
        status = (root = body_parse(b->bytes.p, b->bytes.n, &err)) ? 0 : -1;
    body_give_back(r);
    done(r, root, status < 0 ? 400 : 0, status < 0 ? err.msg : NULL);
    json_decref(root);
}

static void body_start(struct http_req *r, size_t max, bool envelope, body_done *done)
{
    struct body *b = xcalloc(1, sizeof *b);
    *b = (struct body){
        .done = done, .max = max ? max : BODY_MAX, .envelope = envelope, .user = r->user, .on_closed = r->on_closed};
    r->user = b;
    r->on_data = body_on_data;
    r->on_end = body_on_end;
    r->on_closed = body_on_closed;
    b->deadline = loop_timer(r->loop, BODY_MS, body_on_deadline, r);
    if (r->length != HTTP_UNKNOWN)
        (void)body_is_too_long(r, r->length);
}

void body_json(struct http_req *r, size_t max, body_done *done) { body_start(r, max, false, done); }
void body_envelope(struct http_req *r, size_t max, body_done *done) { body_start(r, max, true, done); }
