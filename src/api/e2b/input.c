/* input.c - RPC methods that write to the stdin or terminal of a command, and the selector of a command. */
#include <string.h>

#include "api/e2b/envd.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/body.h"

int process_selector(json_t *msg, struct exec_select *ret, struct err *err)
{
    json_t *who = NULL, *pid;
    uint64_t n = 0;
    memset(ret, 0, sizeof *ret);
    if (field_obj(msg, "process", &who, err) < 0)
        return -1;
    if (!who)
        return err_set(err, ERR_USAGE, 0, "field 'process' is required: {\"pid\": number} or {\"tag\": string}");
    pid = json_object_get(who, "pid");
    if (json_is_integer(pid) && json_integer_value(pid) > 0)
        n = (uint64_t)json_integer_value(pid);
    else if (json_is_string(pid))
        (void)num_u64(json_string_value(pid), &n);
    if (pid && !json_is_null(pid)) {
        if (n == 0 || n > UINT32_MAX)
            return err_set(err, ERR_USAGE, 0, "field 'process.pid' must be a positive number");
        ret->pid = (uint32_t)n;
        return 0;
    }
    if (field_str(who, "tag", &ret->tag, err) < 0)
        return err_wrap(err, "process");
    if (!ret->tag || !*ret->tag || strlen(ret->tag) >= EXEC_TAG_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'process' must have 'pid' or a 'tag' of 1 to %d bytes",
                       EXEC_TAG_MAX - 1);
    return 0;
}

int process_input(json_t *msg, struct buf *ret, struct err *err)
{
    json_t *input = NULL;
    const char *text = NULL;
    if (field_obj(msg, "input", &input, err) < 0)
        return -1;
    if (!input)
        return err_set(err, ERR_USAGE, 0, "field 'input' is required");
    if (field_str(input, "stdin", &text, err) < 0 || (!text && field_str(input, "pty", &text, err) < 0))
        return err_wrap(err, "input");
    if (text && !base64_decode(ret, text, strlen(text)))
        return err_set(err, ERR_USAGE, 0, "field 'input' must hold base64");
    return 0; /* no data at all is an empty write */
}

/* Clients expect the code "internal" for a stdin that is closed or of another kind. */
static void process_on_input_taken(void *arg, const struct link_status *st)
{
    struct envd *e = arg;
    if (st->code == LINK_STATE) {
        e->call = 0;
        envd_fail(e, RPC_INTERNAL, "%s", st->text);
    } else {
        envd_done(e, st);
    }
}

void process_send_input(struct envd *e, json_t *msg)
{
    struct exec_select who;
    _cleanup_buf_ struct buf bytes = {0};
    struct err err;
    if (process_selector(msg, &who, &err) < 0 || process_input(msg, &bytes, &err) < 0)
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
    else
        e->call = exec_input(e->api->peers->links, e->id, &who, buf_str(&bytes), bytes.n, process_on_input_taken, e);
}

void process_close_stdin(struct envd *e, json_t *msg)
{
    struct exec_select who;
    struct err err;
    if (process_selector(msg, &who, &err) < 0)
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
    else
        e->call = exec_close_input(e->api->peers->links, e->id, &who, envd_done, e);
}

/* StreamInput: envelopes with start{process}, data{input} and keepalive{}. The data of one read is collected in
 * `bytes` and written at once; until the command has taken it the client must wait. */
struct feed {
    struct rpc_reader reader;
    struct exec_select who;
    char *tag;
    bool started, ended, busy;
    struct buf bytes;
};

static void feed_on_drop(struct envd *e)
{
    struct feed *s = e->data;
    rpc_reader_done(&s->reader);
    buf_done(&s->bytes);
    free(s->tag);
    free(s);
}

static int feed_start(struct feed *s, json_t *start, struct err *err)
{
    if (s->started)
        return err_set(err, ERR_USAGE, 0, "the stream was started already");
    if (process_selector(start, &s->who, err) < 0)
        return -1;
    if (s->who.tag)
        s->who.tag = s->tag = xstrdup(s->who.tag);
    s->started = true;
    return 0;
}

static int feed_on_message(void *arg, unsigned flags, const char *p, size_t n, struct err *err)
{
    struct feed *s = arg;
    json_t *start = NULL, *data = NULL;
    if (flags & RPC_FLAG_END)
        return 0;
    json_t *msg = body_parse(p, n, err);
    if (!msg)
        return -1;
    int rc = json_is_object(msg) ? 0 : err_set(err, ERR_USAGE, 0, "a message must be an object");
    if (rc == 0 && (field_obj(msg, "start", &start, err) < 0 || field_obj(msg, "data", &data, err) < 0))
        rc = -1;
    if (rc == 0 && start)
        rc = feed_start(s, start, err);
    if (rc == 0 && data)
        rc = s->started ? process_input(data, &s->bytes, err)
                        : err_set(err, ERR_USAGE, 0, "the first message of the stream must be 'start'");
    json_decref(msg);
    return rc;
}

static void feed_continue(struct envd *e);

static void feed_on_taken(void *arg, const struct link_status *st)
{
    struct envd *e = arg;
    struct feed *s = e->data;
    e->call = 0;
    s->busy = false;
    if (st->code != LINK_OK)
        envd_fail_status(e, st);
    else
        feed_continue(e);
}

static void feed_continue(struct envd *e)
{
    struct feed *s = e->data;
    struct http_req *r = e->r;
    if (s->busy)
        return;
    if (s->bytes.n) {
        s->busy = true;
        http_pause(r);
        e->call = exec_input(e->api->peers->links, e->id, &s->who, s->bytes.p, s->bytes.n, feed_on_taken, e);
        buf_done(&s->bytes);
        return;
    }
    if (!s->ended) {
        http_resume(r);
        return;
    }
    envd_free(e);
    rpc_stream_start(r);
    (void)rpc_stream_send(r, "{}", 2);
    rpc_stream_end(r);
}

static void feed_on_data(struct http_req *r, const void *p, size_t n)
{
    struct envd *e = r->user;
    struct feed *s = e->data;
    struct err err;
    if (rpc_read(&s->reader, p, n, feed_on_message, s, &err) < 0)
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
    else
        feed_continue(e);
}

static void feed_on_end(struct http_req *r)
{
    struct envd *e = r->user;
    struct feed *s = e->data;
    struct err err;
    if (rpc_read_end(&s->reader, &err) < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return;
    }
    s->ended = true;
    feed_continue(e);
}

void process_stream_input(struct envd *e)
{
    struct http_req *r = e->r;
    e->data = xcalloc(1, sizeof(struct feed));
    e->drop = feed_on_drop;
    r->on_data = feed_on_data;
    r->on_end = feed_on_end;
}
