/* process.c - RPC methods of process.Process: start, connect, list, signal and resize; input.c has stdin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/e2b/envd.h"
#include "api/exec-json.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strv.h"
#include "sandboxes/rights.h"
#include "sandboxes/session.h"
#include "snapshots/generations.h"

enum { SIGNAL_HUP = 1 /* beyond E2B: for a client whose terminal has closed */, SIGNAL_KILL = 9, SIGNAL_TERM = 15 };

#define RIGHTS_VARIABLE "HUTCH_RIGHTS="

/* A stream of a command's events: Start or Connect. */
struct stream {
    struct envd *e;
    struct session *session; /* NULL once it ended */
    bool started;
    loop_id ping;
    uint64_t ping_ms, sent; /* loop time of the last message */
};

static void process_stream_on_drop(struct envd *e)
{
    struct stream *s = e->data;
    session_detach(s->session);
    loop_timer_del(e->r->loop, s->ping);
    free(s);
}

static bool process_stream_send(struct stream *s, const struct buf *json)
{
    s->sent = loop_now(s->e->r->loop);
    return rpc_stream_send(s->e->r, json->p, json->n);
}

static void process_stream_ping(void *arg)
{
    struct stream *s = arg;
    struct loop *l = s->e->r->loop;
    uint64_t silent = loop_now(l) - s->sent;
    if (silent >= s->ping_ms) {
        static const char text[] = "{\"event\":{\"keepalive\":{}}}";
        s->sent = loop_now(l);
        (void)rpc_stream_send(s->e->r, text, sizeof text - 1);
        silent = 0;
    }
    s->ping = loop_timer(l, s->ping_ms - silent, process_stream_ping, s);
}

static void process_stream_on_writable(struct http_req *r)
{
    struct stream *s = ((struct envd *)r->user)->data;
    if (s->session)
        session_resume(s->session);
}

static void process_on_started(void *arg, uint32_t pid)
{
    struct stream *s = arg;
    struct http_req *r = s->e->r;
    _cleanup_buf_ struct buf out = {0};
    s->started = true;
    r->on_writable = process_stream_on_writable;
    rpc_stream_start(r);
    buf_addf(&out, "{\"event\":{\"start\":{\"pid\":%u}}}", pid);
    (void)process_stream_send(s, &out);
    s->ping = loop_timer(r->loop, s->ping_ms, process_stream_ping, s);
}

static bool process_on_output(void *arg, enum exec_stream which, uint64_t offset, const void *p, size_t n)
{
    _cleanup_buf_ struct buf out = {0};
    buf_addf(&out, "{\"event\":{\"data\":{\"%s\":\"", api_exec_streams[which]);
    base64_encode(&out, p, n);
    buf_addf(&out, "\",\"offset\":%llu}}}", (unsigned long long)offset);
    return process_stream_send(arg, &out);
}

static void process_on_ended(void *arg, const struct session_end *end)
{
    struct stream *s = arg;
    struct http_req *r = s->e->r;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    char status[SESSION_STATUS_MAX];
    s->session = NULL;
    session_status_text(end->exec, status);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_obj(&j, "event");
    json_obj(&j, "end");
    json_i64(&j, "exitCode", end->exec->exited ? end->exec->code : -1);
    json_bool(&j, "exited", end->exec->exited);
    json_str(&j, "status", status);
    if (!end->exec->exited || end->exec->code != 0)
        json_str(&j, "error", status);
    /* The members from here on go beyond E2B: its clients ignore unknown ones. */
    api_add_exec_end(&j, end->exec);
    session_add_denials(s->e->api->sandboxes, s->e->id, end, &j);
    if (end->generation)
        json_u64(&j, "generation", end->generation->number);
    if (end->generation_error)
        json_str(&j, "generationError", end->generation_error);
    json_end_obj(&j);
    json_end_obj(&j);
    json_end_obj(&j);
    (void)process_stream_send(s, &out);
    envd_free(s->e);
    rpc_stream_end(r);
}

static void process_on_failed(void *arg, const struct link_status *st)
{
    struct stream *s = arg;
    struct http_req *r = s->e->r;
    s->session = NULL;
    if (!s->started) {
        envd_fail_status(s->e, st);
        return;
    }
    envd_free(s->e);
    /* Clients check whether the sandbox still exists only after a cut connection. */
    if (st->code == LINK_GONE)
        http_abort(r);
    else
        rpc_stream_error(r, envd_code(st), st->text);
}

static const struct session_ops stream_ops = {
    .started = process_on_started, .output = process_on_output, .ended = process_on_ended, .failed = process_on_failed};

/* Makes the stream and reads its deadline (0: none). NULL: it answered with an error and freed e. */
static struct stream *process_stream_new(struct envd *e, uint64_t *deadline_ms)
{
    uint64_t ms = 0;
    struct err err;
    int have = rpc_timeout(&e->r->fields, &ms, &err);
    if (have < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return NULL;
    }
    struct stream *s = xcalloc(1, sizeof *s);
    s->e = e;
    s->ping_ms = rpc_keepalive_ms(&e->r->fields);
    s->sent = loop_now(e->r->loop);
    *deadline_ms = have && ms == 0 ? 1 : ms;
    e->data = s;
    e->drop = process_stream_on_drop;
    return s;
}

static int process_read_args(json_t *process, struct strv *args, struct err *err)
{
    json_t *list;
    int have = field_arr(process, "args", &list, err);
    if (have <= 0)
        return have;
    if (json_array_size(list) > EXEC_ARGS_MAX)
        return err_set(err, ERR_USAGE, 0, "process.args has more than %d entries", EXEC_ARGS_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *a = json_array_get(list, i);
        if (!json_is_string(a) || strlen(json_string_value(a)) != json_string_length(a))
            return err_set(err, ERR_USAGE, 0, "process.args[%zu] must be a string without NUL", i);
        strv_add(args, json_string_value(a));
    }
    return 0;
}

static int process_read_envs(json_t *process, struct strv *env, struct err *err)
{
    json_t *map, *v;
    const char *name;
    int have = field_obj(process, "envs", &map, err);
    if (have <= 0)
        return have;
    json_object_foreach(map, name, v)
    {
        if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
            return err_set(err, ERR_USAGE, 0, "process.envs: every value must be a string without NUL");
        if (!*name || strchr(name, '='))
            return err_set(err, ERR_USAGE, 0, "process.envs: a name must not be empty or contain '='");
        strv_take(env, xasprintf("%s=%s", name, json_string_value(v)));
    }
    return 0;
}

static int process_read_pty_size(json_t *pty, uint16_t *cols, uint16_t *rows, struct err *err)
{
    json_t *size = NULL;
    int64_t c = 80, r = 24;
    if (field_obj(pty, "size", &size, err) < 0)
        return -1;
    if (size &&
        (field_int(size, "cols", 0, UINT16_MAX, &c, err) < 0 || field_int(size, "rows", 0, UINT16_MAX, &r, err) < 0))
        return err_wrap(err, "pty.size");
    *cols = (uint16_t)c;
    *rows = (uint16_t)r;
    return 0;
}

static int process_read_start(json_t *msg, struct exec_spec *spec, struct strv *args, struct strv *env, struct err *err)
{
    json_t *process = NULL, *pty = NULL;
    int have = field_obj(msg, "process", &process, err);
    if (have < 0)
        return -1;
    if (have == 0)
        return err_set(err, ERR_USAGE, 0, "field 'process' is required");
    spec->stdin_open = true;
    if (field_str(process, "cmd", &spec->cmd, err) < 0 || field_str(process, "cwd", &spec->cwd, err) < 0)
        return err_wrap(err, "process");
    if (!spec->cmd || !*spec->cmd)
        return err_set(err, ERR_USAGE, 0, "field 'process.cmd' is required");
    if (spec->cwd && !*spec->cwd)
        spec->cwd = NULL;
    if (process_read_args(process, args, err) < 0 || process_read_envs(process, env, err) < 0 ||
        field_str(msg, "tag", &spec->tag, err) < 0 || field_bool(msg, "stdin", &spec->stdin_open, err) < 0 ||
        field_obj(msg, "pty", &pty, err) < 0)
        return -1;
    if (spec->tag && strlen(spec->tag) >= EXEC_TAG_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'tag' must be shorter than %d bytes", EXEC_TAG_MAX);
    if (pty && process_read_pty_size(pty, &spec->cols, &spec->rows, err) < 0)
        return -1;
    spec->pty = pty != NULL;
    return 0;
}

/* What the command may less than others: JSON in the header Hutch-Rights, or in the variable HUTCH_RIGHTS, for clients that
 * can send only variables. The command does not see it. */
static int process_read_rights(const struct http_req *r, struct strv *env, struct rights *ret, struct err *err)
{
    const char *header = http_field(&r->fields, "hutch-rights");
    _cleanup_free_ char *variable = NULL;
    size_t n = 0;
    for (size_t i = 0; i < env->n; i++) {
        if (strncmp(env->v[i], RIGHTS_VARIABLE, sizeof RIGHTS_VARIABLE - 1) != 0) {
            env->v[n++] = env->v[i];
            continue;
        }
        free(variable);
        variable = env->v[i];
    }
    env->n = n;
    if (env->v)
        env->v[n] = NULL;
    if (header && variable)
        return err_set(err, ERR_USAGE, 0,
                       "rights: give the header Hutch-Rights or the variable HUTCH_RIGHTS, not both");
    if (header)
        return rights_read_text("header Hutch-Rights", header, ret, err);
    return variable ? rights_read_text("variable HUTCH_RIGHTS", variable + sizeof RIGHTS_VARIABLE - 1, ret, err) : 0;
}

void process_start(struct envd *e, json_t *msg)
{
    _cleanup_rights_ struct rights rights = {0};
    struct session_spec spec = {.recorded = true};
    _cleanup_strv_ struct strv args = {0}, env = {0};
    const char *generation = http_field(&e->r->fields, "hutch-generation");
    struct err err;
    if (process_read_start(msg, &spec.exec, &args, &env, &err) < 0 ||
        process_read_rights(e->r, &env, &rights, &err) < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return;
    }
    spec.exec.args = args.n ? (const char *const *)args.v : NULL;
    spec.exec.env = env.n ? (const char *const *)env.v : NULL;
    spec.exec.user = e->user;
    spec.exec.rights = rights_of(&rights);
    spec.generation = generation && (strcmp(generation, "true") == 0 || strcmp(generation, "1") == 0);
    struct stream *s = process_stream_new(e, &spec.deadline_ms);
    if (s)
        s->session = session_start(e->api->sandboxes, e->id, &spec, &stream_ops, s);
}

/* Where output starts: at the present, as E2B does, unless `offsets` names byte offsets per stream. */
static int process_read_offsets(json_t *msg, uint64_t from[4], struct err *err)
{
    json_t *o = NULL;
    from[0] = from[EXEC_STDOUT] = from[EXEC_STDERR] = from[EXEC_PTY] = UINT64_MAX;
    if (field_obj(msg, "offsets", &o, err) < 0)
        return -1;
    for (enum exec_stream s = EXEC_STDOUT; o && s <= EXEC_PTY; s++) {
        int64_t at = 0;
        int have = field_int(o, api_exec_streams[s], 0, INT64_MAX, &at, err);
        if (have < 0)
            return err_wrap(err, "offsets");
        if (have)
            from[s] = (uint64_t)at;
    }
    return 0;
}

void process_connect(struct envd *e, json_t *msg)
{
    struct exec_select who = {0};
    uint64_t from[4];
    struct err err;
    if (process_selector(msg, &who, &err) < 0 || process_read_offsets(msg, from, &err) < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return;
    }
    uint64_t deadline_ms;
    struct stream *s = process_stream_new(e, &deadline_ms);
    if (s)
        s->session = session_attach(e->api->sandboxes, e->id, &who, from, deadline_ms, &stream_ops, s);
}

static void process_add_info(struct json *j, const struct exec_info *p)
{
    json_obj(j, NULL);
    json_obj(j, "config");
    json_str(j, "cmd", p->cmd);
    json_arr(j, "args");
    for (size_t i = 0; p->args && p->args[i]; i++)
        json_str(j, NULL, p->args[i]);
    json_end_arr(j);
    json_obj(j, "envs");
    for (size_t i = 0; p->env && p->env[i]; i++) {
        const char *eq = strchr(p->env[i], '=');
        if (!eq)
            continue;
        _cleanup_free_ char *name = xstrndup(p->env[i], (size_t)(eq - p->env[i]));
        json_str(j, name, eq + 1);
    }
    json_end_obj(j);
    if (p->cwd)
        json_str(j, "cwd", p->cwd);
    json_end_obj(j);
    json_u64(j, "pid", p->pid);
    if (p->tag)
        json_str(j, "tag", p->tag);
    json_end_obj(j);
}

static void process_on_listed(void *arg, const struct link_status *st, const struct exec_info *v, size_t n)
{
    struct envd *e = arg;
    e->call = 0;
    if (st->code != LINK_OK) {
        envd_fail_status(e, st);
        return;
    }
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "processes");
    for (size_t i = 0; i < n; i++)
        process_add_info(&j, &v[i]);
    json_end_arr(&j);
    json_end_obj(&j);
    envd_ok(e, &out);
}

void process_list(struct envd *e, json_t *msg)
{
    (void)msg;
    e->call = exec_list(e->api->peers->links, e->id, process_on_listed, e);
}

void process_send_signal(struct envd *e, json_t *msg)
{
    struct exec_select who = {0};
    struct err err;
    const json_t *v = json_object_get(msg, "signal");
    int sig = 0;
    if (process_selector(msg, &who, &err) < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return;
    }
    if (json_is_string(v))
        sig = strcmp(json_string_value(v), "SIGNAL_SIGKILL") == 0   ? SIGNAL_KILL
              : strcmp(json_string_value(v), "SIGNAL_SIGTERM") == 0 ? SIGNAL_TERM
              : strcmp(json_string_value(v), "SIGNAL_SIGHUP") == 0  ? SIGNAL_HUP
                                                                    : 0;
    else if (json_is_integer(v))
        sig = json_integer_value(v) == SIGNAL_KILL   ? SIGNAL_KILL
              : json_integer_value(v) == SIGNAL_TERM ? SIGNAL_TERM
              : json_integer_value(v) == SIGNAL_HUP  ? SIGNAL_HUP
                                                     : 0;
    if (!sig)
        envd_fail(e, RPC_INVALID_ARGUMENT, "field 'signal' must be SIGNAL_SIGTERM, SIGNAL_SIGKILL or SIGNAL_SIGHUP");
    else
        e->call = exec_signal(e->api->peers->links, e->id, &who, sig, envd_done, e);
}

void process_update(struct envd *e, json_t *msg)
{
    struct exec_select who = {0};
    struct err err;
    json_t *pty = NULL;
    uint16_t cols = 0, rows = 0;
    if (process_selector(msg, &who, &err) < 0 || field_obj(msg, "pty", &pty, &err) < 0 ||
        (pty && process_read_pty_size(pty, &cols, &rows, &err) < 0))
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
    else if (!pty)
        envd_fail(e, RPC_INVALID_ARGUMENT, "field 'pty' is required");
    else
        e->call = exec_resize(e->api->peers->links, e->id, &who, cols, rows, envd_done, e);
}
