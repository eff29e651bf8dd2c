/* pty-connect.c - a terminal over a WebSocket: what the client sends is its input, what comes is its output; messages of
 * control are texts {"type":"control",...}. A client that leaves leaves the terminal running, and another one may come. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/daytona/pty.h"
#include "api/reply.h"
#include "base/base64.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/url.h"
#include "http/ws-serve.h"

enum { MESSAGE_MAX = 256 * 1024 };
#define EXIT_CONTROL "X-Daytona-Pty-Exit-Control"
#define ENVS         "X-Daytona-Pty-Envs~"

/* The shell writes its pid before it becomes one that can be interactive; $1: the directory of the terminal. */
static const char script_shell[] = "echo $$ >\"$1/pid\"; sh=$(command -v bash || echo /bin/sh); exec \"$sh\"";

struct terminal {
    struct ws *ws; /* NULL: the client left */
    struct sandboxes *sandboxes;
    struct links *links;
    struct session *session;
    char sandbox[SANDBOX_ID_MAX];
    uint32_t pid;      /* 0: not started yet */
    bool tells_exit;   /* the client wants to hear of the end in a message */
    bool stuck;        /* the session waits for the client */
    struct buf input;  /* not sent yet */
    link_call sending; /* 0: none */
};

static void terminal_free(struct terminal *t)
{
    link_cancel(t->links, t->sending);
    buf_done(&t->input);
    free(t);
}

/* exit_code NULL: the message has none. */
static void terminal_control(struct terminal *t, const char *status, const int *exit_code, const char *error)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "type", "control");
    json_str(&j, "status", status);
    if (exit_code)
        json_i64(&j, "exitCode", *exit_code);
    if (error)
        json_str(&j, "error", error);
    json_end_obj(&j);
    (void)ws_send(t->ws, true, out.p, out.n);
}

/* --- input ---------------------------------------------------------------------------------------------------------- */

static void terminal_send_input(struct terminal *t);

static void terminal_on_input_taken(void *arg, const struct link_status *st)
{
    struct terminal *t = arg;
    t->sending = 0;
    if (st->code != LINK_OK) /* it has ended, and the session will say so */
        t->input.n = 0;
    terminal_send_input(t);
}

/* One message at a time; the client waits meanwhile. */
static void terminal_send_input(struct terminal *t)
{
    const struct exec_select who = {.pid = t->pid};
    if (t->sending || !t->pid || !t->ws)
        return;
    if (t->input.n > 0)
        t->sending = exec_input(t->links, t->sandbox, &who, t->input.p, t->input.n, terminal_on_input_taken, t);
    t->input.n = 0;
    ws_pause(t->ws, t->sending != 0);
}

static void terminal_on_message(void *arg, bool text, const void *p, size_t n)
{
    struct terminal *t = arg;
    (void)text;
    buf_add(&t->input, p, n);
    if (!t->pid)
        ws_pause(t->ws, true);
    terminal_send_input(t);
}

/* --- output --------------------------------------------------------------------------------------------------------- */

static void terminal_on_writable(void *arg)
{
    struct terminal *t = arg;
    if (t->stuck)
        session_resume(t->session);
    t->stuck = false;
}

static bool terminal_on_output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    struct terminal *t = arg;
    (void)offset, (void)s;
    if (!t->ws)
        return true;
    t->stuck = !ws_send(t->ws, false, p, n);
    return !t->stuck;
}

static void terminal_on_started(void *arg, uint32_t pid)
{
    struct terminal *t = arg;
    t->pid = pid;
    if (!t->ws) { /* its client did not wait; the terminal is there */
        session_detach(t->session);
        terminal_free(t);
        return;
    }
    terminal_control(t, "connected", NULL, NULL);
    terminal_send_input(t);
}

static void terminal_on_client_left(void *arg)
{
    struct terminal *t = arg;
    t->ws = NULL;
    if (!t->pid)
        return; /* once it has started */
    session_detach(t->session);
    terminal_free(t);
}

static void terminal_on_ended(void *arg, const struct session_end *end)
{
    struct terminal *t = arg;
    char reason[32];
    int code = end->exec->exited ? end->exec->code : 128 + end->exec->code;
    (void)snprintf(reason, sizeof reason, "{\"exitCode\":%d}", code);
    if (t->ws && t->tells_exit)
        terminal_control(t, "exited", &code, NULL);
    if (t->ws)
        ws_hang_up(t->ws, WS_NORMAL, reason);
    terminal_free(t);
}

static void terminal_on_failed(void *arg, const struct link_status *st)
{
    struct terminal *t = arg;
    struct daytona_fault fault;
    daytona_fault_of(st, NULL, &fault);
    if (t->ws) {
        terminal_control(t, "error", NULL, fault.text);
        ws_hang_up(t->ws, WS_FAILED, fault.text);
    }
    terminal_free(t);
}

static const struct session_ops terminal_ops = {.started = terminal_on_started,
                                                .output = terminal_on_output,
                                                .ended = terminal_on_ended,
                                                .failed = terminal_on_failed};

/* --- beginning ------------------------------------------------------------------------------------------------------ */

static void terminal_add_environment(const struct daytona_pty *p, const char *dir, struct strv *env)
{
    const char *name;
    json_t *v;
    strv_take(env, xasprintf("HUTCH_S=%s/", dir));
    if (!json_object_get(p->envs, "TERM"))
        strv_add(env, "TERM=xterm-256color");
    json_object_foreach(p->envs, name, v) strv_take(env, xasprintf("%s=%s", name, json_string_value(v)));
}

/* Starts the shell of a terminal whose directory is there. */
static struct session *terminal_start(struct sandboxes *sb, const char *sandbox, const struct daytona_pty *p,
                                      const struct session_ops *ops, void *arg)
{
    _cleanup_free_ char *dir = xasprintf(DAYTONA_SESSIONS "/p-%s", p->name);
    _cleanup_strv_ struct strv env = {0};
    terminal_add_environment(p, dir, &env);
    const char *const args[] = {"-c", script_shell, "hutch", dir, NULL};
    const struct session_spec spec = {.exec = {.cmd = "/bin/sh",
                                               .args = args,
                                               .env = (const char *const *)env.v,
                                               .cwd = p->cwd[0] ? p->cwd : NULL,
                                               .pty = true,
                                               .cols = p->cols,
                                               .rows = p->rows,
                                               .stdin_open = true},
                                      .recorded = true};
    return session_start(sb, sandbox, &spec, ops, arg);
}

/* Makes the request the client of a terminal: of a shell that runs, or of one that is started for it. */
static void terminal_join(struct http_req *r, const struct daytona_pty *p)
{
    static const struct ws_events events = {terminal_on_message, terminal_on_writable, terminal_on_client_left};
    static const uint64_t all[4] = {0}; /* what it wrote before and the sandbox still has comes first */
    struct api_call *c = api_call_of(r);
    _cleanup_buf_ struct buf rest = {0};
    const char *why;
    bool tells = ws_offer(r, EXIT_CONTROL, &rest) && rest.n == 0;
    struct terminal *t = xcalloc(1, sizeof *t);
    t->ws = ws_serve(r, tells ? EXIT_CONTROL : NULL, MESSAGE_MAX, &events, t, &why);
    if (!t->ws) {
        free(t);
        daytona_error(r, 400, NULL, "%s", why);
        return;
    }
    api_rewrap(r);
    t->tells_exit = tells;
    t->sandboxes = c->api->sandboxes;
    t->links = c->api->peers->links;
    memcpy(t->sandbox, c->sandbox, sizeof t->sandbox);
    const struct exec_select who = {.pid = p->pid};
    t->session = p->pid ? session_attach(t->sandboxes, t->sandbox, &who, all, 0, &terminal_ops, t)
                        : terminal_start(t->sandboxes, t->sandbox, p, &terminal_ops, t);
}

/* --- GET .../connect ------------------------------------------------------------------------------------------------ */

/* False: the request is no WebSocket, and that is answered. */
static bool terminal_is_wanted(struct api_call *c)
{
    const char *why = ws_fault(c->req);
    if (why)
        daytona_error(c->req, 400, NULL, "%s", why);
    return !why;
}

static void terminal_on_found(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_daytona_pty_ struct daytona_pty p = {0};
    if (daytona_pty_take(r, ran, &p))
        terminal_join(r, &p);
}

static void daytona_pty_connect_in(struct api_call *c, struct sandbox *b)
{
    if (terminal_is_wanted(c))
        daytona_pty_find(c, b, terminal_on_found);
}
void daytona_pty_connect(struct api_call *c) { daytona_toolbox(c, daytona_pty_connect_in); }

/* --- GET .../create-connect: the newer clients' one request ---------------------------------------------------------- */

/* A number of the query; 0 if there is none. */
static int terminal_query_size(struct api_call *c, const char *name, int64_t *ret, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    uint64_t n = 0;
    if (url_query_get(c->req->query, name, URL_PLUS_SPACE, &text, err) < 0)
        return -1;
    if (text.n && (!num_u64(buf_str(&text), &n) || n > DAYTONA_PTY_SIZE_MAX))
        return err_set(err, ERR_USAGE, 0, "query parameter '%s' is from 1 to %d", name, DAYTONA_PTY_SIZE_MAX);
    *ret = (int64_t)n;
    return 0;
}

static int terminal_read_envs(const struct http_req *r, struct daytona_pty *p, struct err *err)
{
    _cleanup_buf_ struct buf coded = {0}, text = {0};
    json_t *envs = NULL;
    if (ws_offer(r, ENVS, &coded)) {
        envs = base64_decode(&text, buf_str(&coded), coded.n) ? json_loadb(buf_str(&text), text.n, 0, NULL) : NULL;
        if (!envs)
            return err_set(err, ERR_USAGE, 0, "sub-protocol " ENVS "... must be a JSON object in base64url");
    }
    bool right = daytona_pty_set_envs(p, envs, err);
    json_decref(envs);
    return right ? 0 : -1;
}

static int terminal_read_query(struct api_call *c, struct daytona_pty *p, struct err *err)
{
    _cleanup_buf_ struct buf name = {0}, cwd = {0};
    int64_t cols = 0, rows = 0;
    if (url_query_get(c->req->query, "id", URL_PLUS_SPACE, &name, err) < 0 ||
        url_query_get(c->req->query, "cwd", URL_PLUS_SPACE, &cwd, err) < 0 ||
        terminal_query_size(c, "cols", &cols, err) < 0 || terminal_query_size(c, "rows", &rows, err) < 0 ||
        !daytona_pty_set_size(p, cols, rows, err))
        return -1;
    p->name = xstrdup(buf_str(&name));
    p->cwd = xstrdup(buf_str(&cwd));
    p->made_unix_ms = clock_unix_ms();
    return terminal_read_envs(c->req, p, err);
}

static void daytona_pty_create_connect_in(struct api_call *c, struct sandbox *b)
{
    _cleanup_daytona_pty_ struct daytona_pty p = {0};
    struct err err;
    if (!terminal_is_wanted(c))
        return;
    if (terminal_read_query(c, &p, &err) < 0)
        daytona_error(c->req, 400, NULL, "%s", err.msg);
    else
        daytona_pty_make(c, b, &p, terminal_on_found);
}
void daytona_pty_create_connect(struct api_call *c) { daytona_toolbox(c, daytona_pty_create_connect_in); }

/* --- POST /process/pty ---------------------------------------------------------------------------------------------- */

struct starting {
    struct api_wait wait;
    struct session *session;
    char *name;
};

/* st NULL: the shell runs, or waits for its first client. */
static void terminal_answer_made(struct http_req *r, const char *name, const struct link_status *st)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (st) {
        daytona_link_error(r, st, NULL);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "sessionId", name);
    json_end_obj(&j);
    reply_json(r, 201, &out);
}

static void starting_over(struct starting *s, const struct link_status *st)
{
    _cleanup_free_ char *name = s->name;
    struct http_req *r = api_wait_over(s);
    if (r)
        terminal_answer_made(r, name, st);
}

static void starting_on_started(void *arg, uint32_t pid)
{
    struct starting *s = arg;
    (void)pid;
    session_detach(s->session);
    starting_over(s, NULL);
}
static void starting_on_ended(void *arg, const struct session_end *end)
{
    (void)end;
    starting_over(arg, NULL);
}
static void starting_on_failed(void *arg, const struct link_status *st) { starting_over(arg, st); }

static void terminal_on_made(struct http_req *r, const struct daytona_ran *ran)
{
    static const struct session_ops ops = {
        .started = starting_on_started, .ended = starting_on_ended, .failed = starting_on_failed};
    _cleanup_daytona_pty_ struct daytona_pty p = {0};
    struct api_call *c = api_call_of(r);
    if (!daytona_pty_take(r, ran, &p))
        return;
    if (p.lazy) {
        terminal_answer_made(r, p.name, NULL);
        return;
    }
    struct starting *s = api_wait_for(r, sizeof *s);
    s->name = xstrdup(p.name);
    s->session = terminal_start(c->api->sandboxes, c->sandbox, &p, &ops, s);
}

static int terminal_read_body(json_t *body, struct daytona_pty *p, struct err *err)
{
    const char *name = NULL, *cwd = NULL;
    int64_t cols = 0, rows = 0;
    json_t *envs = NULL;
    if (field_str(body, "id", &name, err) < 0 || field_str(body, "cwd", &cwd, err) < 0 ||
        field_int(body, "cols", 0, DAYTONA_PTY_SIZE_MAX, &cols, err) < 0 ||
        field_int(body, "rows", 0, DAYTONA_PTY_SIZE_MAX, &rows, err) < 0 ||
        field_bool(body, "lazyStart", &p->lazy, err) < 0 || field_obj(body, "envs", &envs, err) < 0 ||
        !daytona_pty_set_size(p, cols, rows, err))
        return -1;
    p->name = xstrdup(name ? name : "");
    p->cwd = xstrdup(cwd ? cwd : "");
    p->made_unix_ms = clock_unix_ms();
    return daytona_pty_set_envs(p, envs, err) ? 0 : -1;
}

static void daytona_pty_create_on_body(struct api_call *c, json_t *body)
{
    _cleanup_daytona_pty_ struct daytona_pty p = {0};
    struct err err;
    struct sandbox *b = daytona_same_sandbox(c);
    if (!b)
        return;
    if (terminal_read_body(body, &p, &err) < 0)
        daytona_error(c->req, 400, NULL, "%s", err.msg);
    else
        daytona_pty_make(c, b, &p, terminal_on_made);
}
static void daytona_pty_create_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    daytona_body(c, daytona_pty_create_on_body);
}
void daytona_pty_create(struct api_call *c) { daytona_toolbox(c, daytona_pty_create_in); }
