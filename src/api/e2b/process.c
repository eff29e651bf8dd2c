/* process.c - RPC methods of process.Process: start, connect, list, signal and resize; input.c has stdin. */
#include <stdio.h>
#include <string.h>

#include "api/e2b/envd.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strv.h"
#include "sandboxes/events.h"
#include "snapshots/generations.h"

enum {
    SIGNAL_HUP = 1, /* beyond E2B: for a client whose terminal has closed */
    SIGNAL_KILL = 9,
    SIGNAL_TERM = 15,
    GENERATION_AGAIN_MS = 20,
    GENERATION_WAIT_MS = 30 * 1000, /* for other work on the files, mostly the generation of another command */
    DEADLINE_GRACE_MS = 500, /* init kills the command this much later, so a connected client gets our error first */
};

struct stream;
/* The end of a command that waits for its generation; s is NULL once the client left. */
struct closing {
    struct stream *s;
    struct exec_end end;
    uint64_t until;
};

/* A stream of a command's events: Start or Connect. */
struct stream {
    struct envd *e;
    struct exec *x; /* NULL once it ended */
    uint32_t pid;   /* 0 until it started */
    bool starts;    /* Start: its deadline kills the command */
    loop_id deadline, ping;
    uint64_t timeout_ms;    /* as asked for; 0: none */
    uint64_t ping_ms, sent; /* loop time of the last message */
    uint64_t begun;         /* loop time */
    bool generation;        /* Start: the command's end opens one */
    char *command;          /* for the generation; NULL */
    struct closing *closing;
};

static void process_stream_on_drop(struct envd *e)
{
    struct stream *s = e->data;
    if (s->x)
        exec_detach(s->x);
    if (s->closing)
        s->closing->s = NULL;
    free(s->command);
    loop_timer_del(e->r->loop, s->deadline);
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
    if (s->x)
        exec_resume(s->x);
}

static void process_on_started(void *arg, uint32_t pid, const char *tag)
{
    struct stream *s = arg;
    struct http_req *r = s->e->r;
    _cleanup_buf_ struct buf out = {0};
    (void)tag;
    s->pid = pid;
    r->on_writable = process_stream_on_writable;
    rpc_stream_start(r);
    buf_addf(&out, "{\"event\":{\"start\":{\"pid\":%u}}}", pid);
    (void)process_stream_send(s, &out);
    s->ping = loop_timer(r->loop, s->ping_ms, process_stream_ping, s);
}

static const char *const stream_names[] = {[EXEC_STDOUT] = "stdout", [EXEC_STDERR] = "stderr", [EXEC_PTY] = "pty"};

static bool process_on_output(void *arg, enum exec_stream which, uint64_t offset, const void *p, size_t n)
{
    _cleanup_buf_ struct buf out = {0};
    buf_addf(&out, "{\"event\":{\"data\":{\"%s\":\"", stream_names[which]);
    base64_encode(&out, p, n);
    buf_addf(&out, "\",\"offset\":%llu}}}", (unsigned long long)offset);
    return process_stream_send(arg, &out);
}

/* Signals as Go's standard library words them: the CLI compares with "signal: killed". */
static void process_signal_text(int sig, bool core, char *ret, size_t n)
{
    static const char *const names[] = {
        [1] = "hangup",
        [2] = "interrupt",
        [3] = "quit",
        [4] = "illegal instruction",
        [5] = "trace/breakpoint trap",
        [6] = "aborted",
        [7] = "bus error",
        [8] = "floating point exception",
        [9] = "killed",
        [10] = "user defined signal 1",
        [11] = "segmentation fault",
        [12] = "user defined signal 2",
        [13] = "broken pipe",
        [14] = "alarm clock",
        [15] = "terminated",
    };
    if (sig > 0 && (size_t)sig < ARRAY_LEN(names))
        (void)snprintf(ret, n, "signal: %s%s", names[sig], core ? " (core dumped)" : "");
    else
        (void)snprintf(ret, n, "signal: signal %d%s", sig, core ? " (core dumped)" : "");
}

static uint64_t process_time_ms(const struct timeval *t)
{
    return (uint64_t)t->tv_sec * 1000 + (uint64_t)t->tv_usec / 1000;
}

/* These members go beyond E2B: its clients ignore unknown ones. */
static void process_add_usage(struct json *j, const struct exec_end *end)
{
    json_obj(j, "usage");
    json_u64(j, "wallMs", end->wall_ms);
    json_u64(j, "userMs", process_time_ms(&end->usage.ru_utime));
    json_u64(j, "systemMs", process_time_ms(&end->usage.ru_stime));
    json_u64(j, "maxRssKb", (uint64_t)end->usage.ru_maxrss);
    for (enum exec_stream s = EXEC_STDOUT; s <= EXEC_PTY; s++)
        if (end->omitted[s]) {
            char name[24];
            (void)snprintf(name, sizeof name, "%sOmitted", stream_names[s]);
            json_u64(j, name, end->omitted[s]);
        }
    json_end_obj(j);
    if (end->exited && !end->oom)
        return;
    json_obj(j, "death");
    json_str(j, "cause", end->oom ? "oom" : "signal");
    if (!end->exited)
        json_i64(j, "signal", end->code);
    json_bool(j, "core", end->core);
    json_end_obj(j);
}

/* Publishes an event if a command was killed; events for every normal end would bury those. */
static void process_publish_death(const struct stream *s, const struct exec_end *end, const char *status)
{
    const struct envd *e = s->e;
    const struct sandbox *b = sandbox_find(e->api->sandboxes, e->id);
    if (!s->starts || !b || (end->exited && !end->oom))
        return;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_u64(&j, "pid", s->pid);
    json_str(&j, "status", status);
    json_bool(&j, "oom", end->oom);
    json_u64(&j, "wallMs", end->wall_ms);
    json_end_obj(&j);
    events_publish(e->api->events, b->id, b->tenant->id, "exec_ended", buf_str(&out));
}

/* Sends the end of a command, with the generation it opened or the reason why it opened none. */
static void process_tell_end(struct stream *s, const struct exec_end *end, const struct generation *g,
                             const char *trouble)
{
    struct http_req *r = s->e->r;
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    char status[80];
    if (end->exited)
        (void)snprintf(status, sizeof status, "exit status %d", end->code);
    else
        process_signal_text(end->code, end->core, status, sizeof status);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_obj(&j, "event");
    json_obj(&j, "end");
    json_i64(&j, "exitCode", end->exited ? end->code : -1);
    json_bool(&j, "exited", end->exited);
    json_str(&j, "status", status);
    if (!end->exited || end->code != 0)
        json_str(&j, "error", status);
    process_add_usage(&j, end);
    denials_add(&j, s->e->api, s->e->id, s->begun, end);
    if (g)
        json_u64(&j, "generation", g->number);
    if (trouble)
        json_str(&j, "generationError", trouble);
    json_end_obj(&j);
    json_end_obj(&j);
    json_end_obj(&j);
    (void)process_stream_send(s, &out);
    process_publish_death(s, end, status);
    if (s->starts)
        denials_publish(s->e->api, s->e->id, s->pid, end);
    envd_free(s->e);
    rpc_stream_end(r);
}

static void process_make_generation(void *arg);

static void process_on_generation_made(void *arg, const struct generation *g, const struct state_failure *failure)
{
    struct closing *c = arg;
    struct loop *l = c->s ? c->s->e->r->loop : NULL;
    if (l && failure && failure->status == 503 && loop_now(l) < c->until) {
        (void)loop_timer(l, GENERATION_AGAIN_MS, process_make_generation, c);
        return;
    }
    if (c->s) {
        c->s->closing = NULL;
        process_tell_end(c->s, &c->end, g, failure ? failure->text : NULL);
    }
    free(c);
}

static void process_make_generation(void *arg)
{
    struct closing *c = arg;
    struct stream *s = c->s;
    struct sandbox *b = s ? sandbox_find(s->e->api->sandboxes, s->e->id) : NULL;
    if (b)
        generation_make(s->e->api->snapshots, b, s->command ? s->command : "", process_on_generation_made, c);
    else
        process_on_generation_made(c, NULL, NULL);
}

/* Sends the end only after the generation was made: a client that waits for it may start its next command at once. */
static void process_on_ended(void *arg, const struct exec_end *end)
{
    struct stream *s = arg;
    struct sandbox *b = sandbox_find(s->e->api->sandboxes, s->e->id);
    s->x = NULL;
    if (!s->generation || !b) {
        process_tell_end(s, end, NULL, NULL);
        return;
    }
    loop_timer_del(s->e->r->loop, s->deadline);
    s->deadline = 0;
    s->closing = xcalloc(1, sizeof *s->closing);
    *s->closing = (struct closing){.s = s, .end = *end, .until = loop_now(s->e->r->loop) + GENERATION_WAIT_MS};
    process_make_generation(s->closing);
}

static void process_on_failed(void *arg, const struct link_status *st)
{
    struct stream *s = arg;
    struct http_req *r = s->e->r;
    s->x = NULL;
    if (s->pid == 0) {
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

static void process_on_deadline(void *arg)
{
    struct stream *s = arg;
    struct envd *e = s->e;
    struct http_req *r = e->r;
    s->deadline = 0;
    if (s->starts && s->pid) { /* init has its own timer for the case that no client is connected */
        struct exec_select who = {.pid = s->pid};
        (void)exec_signal(e->api->peers->links, e->id, &who, SIGNAL_KILL, envd_ignore, NULL);
    }
    if (s->pid == 0) {
        envd_fail(e, RPC_DEADLINE_EXCEEDED, "the deadline of the request passed before the command started");
        return;
    }
    envd_free(e);
    rpc_stream_error(r, RPC_DEADLINE_EXCEEDED, "the deadline of the request has passed");
}

static const struct exec_ops stream_ops = {
    .started = process_on_started, .output = process_on_output, .ended = process_on_ended, .failed = process_on_failed};

/* Makes the stream and its timers. NULL: it answered with an error and freed e. */
static struct stream *process_stream_new(struct envd *e, bool starts)
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
    s->starts = starts;
    s->ping_ms = rpc_keepalive_ms(&e->r->fields);
    s->sent = s->begun = loop_now(e->r->loop);
    s->timeout_ms = have ? ms : 0;
    if (have)
        s->deadline = loop_timer(e->r->loop, ms, process_on_deadline, s);
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

/* In a sandbox with history every command opens a generation; in others only a command that asks for it. */
static void process_want_generation(struct stream *s, const struct exec_spec *spec)
{
    const struct sandbox *b = sandbox_find(s->e->api->sandboxes, s->e->id);
    const char *field = http_field(&s->e->r->fields, "hutch-generation");
    _cleanup_buf_ struct buf text = {0};
    s->generation = (b && b->desc.history) || (field && (strcmp(field, "true") == 0 || strcmp(field, "1") == 0));
    if (!s->generation)
        return;
    buf_adds(&text, spec->cmd);
    for (size_t i = 0; spec->args[i] && text.n < GENERATION_COMMAND_MAX; i++)
        buf_addf(&text, " %s", spec->args[i]);
    s->command = xstrdup(buf_str(&text));
}

void process_start(struct envd *e, json_t *msg)
{
    static const char *const none[] = {NULL};
    struct exec_spec spec = {0};
    _cleanup_strv_ struct strv args = {0}, env = {0};
    struct err err;
    if (process_read_start(msg, &spec, &args, &env, &err) < 0) {
        envd_fail(e, RPC_INVALID_ARGUMENT, "%s", err.msg);
        return;
    }
    spec.args = args.n ? (const char *const *)args.v : none;
    spec.env = env.n ? (const char *const *)env.v : none;
    spec.user = e->user;
    struct stream *s = process_stream_new(e, true);
    if (!s)
        return;
    spec.timeout_ms = s->timeout_ms ? s->timeout_ms + DEADLINE_GRACE_MS : 0;
    process_want_generation(s, &spec);
    s->x = exec_start(e->api->peers->links, e->id, &spec, &stream_ops, s);
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
        int have = field_int(o, stream_names[s], 0, INT64_MAX, &at, err);
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
    struct stream *s = process_stream_new(e, false);
    if (s)
        s->x = exec_attach(e->api->peers->links, e->id, &who, from, &stream_ops, s);
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
