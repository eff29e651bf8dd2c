/* tool-run.c - commands: runs one, shows the first part of its output, and the rest on request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/exec-json.h"
#include "api/mcp/mcp.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "sandboxes/rights.h"
#include "sandboxes/session.h"

enum { RUN_S = 60, PROGRESS_MS = 1000, GRACE_MS = 5000, READ_STANDARD = 16 << 10 };

/* A command under way; it is the call's `own`. */
struct running {
    struct mcp_call *k;
    char sandbox[SANDBOX_ID_MAX];
    uint32_t pid;
    bool cancelled, late;
    uint64_t begun, limit_ms;
    struct session_output out;
    void (*then)(struct mcp_call *k, const struct session_output *o, const struct session_end *end);
};

static void mcp_running_free(void *own)
{
    struct running *w = own;
    session_output_done(&w->out);
    free(w);
}

static void mcp_running_on_killed(void *arg, const struct session_end *end) { (void)arg, (void)end; }
static void mcp_running_on_not_killed(void *arg, const struct link_status *st) { (void)arg, (void)st; }

/* Kills the command and what it started: each command leads a process group, and a signal through init reaches its leader
 * alone. A process that left the group lives on. */
static void mcp_running_kill(const struct running *w)
{
    static const struct session_ops ops = {.ended = mcp_running_on_killed, .failed = mcp_running_on_not_killed};
    _cleanup_free_ char *command = xasprintf("kill -9 -%u", w->pid);
    const char *const args[] = {"-c", command, NULL};
    const struct session_spec spec = {.exec = {.cmd = "/bin/sh", .args = args, .timeout_ms = GRACE_MS},
                                      .deadline_ms = 2 * GRACE_MS};
    if (w->pid)
        (void)session_start(w->k->api->sandboxes, w->sandbox, &spec, &ops, NULL);
}

/* The client cancelled or left: its command must not run on unseen. The session ends with it. */
static void mcp_running_cancel(struct mcp_call *k)
{
    struct running *w = k->own;
    w->cancelled = true;
    mcp_running_kill(w);
}

static void mcp_running_tell(void *arg)
{
    struct mcp_call *k = arg;
    struct running *w = k->own;
    uint64_t ms = loop_now(k->api->loop) - w->begun;
    char text[80];
    if (ms >= w->limit_ms && !w->late) {
        w->late = true;
        mcp_running_kill(w);
    }
    (void)snprintf(text, sizeof text, "running for %llu s", (unsigned long long)(ms / 1000));
    mcp_progress(k, ms / 1000, 0, text);
    mcp_keep_alive(k);
    k->ping = loop_timer(k->api->loop, PROGRESS_MS, mcp_running_tell, k);
}

static void mcp_running_on_started(void *arg, uint32_t pid)
{
    struct running *w = arg;
    w->pid = pid;
    if (w->cancelled || !w->k->r)
        mcp_running_cancel(w->k);
}

static void mcp_running_on_ended(void *arg, const struct session_end *end)
{
    struct running *w = arg;
    if (w->cancelled || !w->k->r)
        mcp_fail(w->k, "cancelled: the command was killed");
    else
        w->then(w->k, &w->out, end);
}

static void mcp_running_on_failed(void *arg, const struct link_status *st)
{
    struct running *w = arg;
    mcp_fail(w->k, "the command could not be run: %s", st->text);
}

static const struct session_ops running_ops = {
    .started = mcp_running_on_started, .ended = mcp_running_on_ended, .failed = mcp_running_on_failed};

static void mcp_running_start(struct mcp_call *k, struct sandbox *b, const struct exec_spec *exec, bool recorded,
                              void (*then)(struct mcp_call *, const struct session_output *,
                                           const struct session_end *))
{
    struct running *w = xcalloc(1, sizeof *w);
    *w = (struct running){.k = k,
                          .then = then,
                          .begun = loop_now(k->api->loop),
                          .limit_ms = exec->timeout_ms,
                          .out = {.max = MCP_KEPT_MAX}};
    memcpy(w->sandbox, b->id, sizeof w->sandbox);
    k->own = w;
    k->own_done = mcp_running_free;
    k->cancel = mcp_running_cancel;
    k->ping = loop_timer(k->api->loop, PROGRESS_MS, mcp_running_tell, k);
    struct session_spec spec = {
        .exec = *exec, .recorded = recorded, .deadline_ms = exec->timeout_ms + 2 * GRACE_MS, .collect = &w->out};
    /* init's own limit is for the case that front has ended; ours comes first and ends the whole group. */
    spec.exec.timeout_ms += GRACE_MS;
    (void)session_start(k->api->sandboxes, w->sandbox, &spec, &running_ops, w);
}

void mcp_exec(struct mcp_call *k, struct sandbox *b, const char *const *argv, uint64_t timeout_s,
              void (*then)(struct mcp_call *k, const struct session_output *o, const struct session_end *end))
{
    const struct exec_spec exec = {.cmd = argv[0], .args = argv + 1, .timeout_ms = timeout_s * 1000};
    mcp_running_start(k, b, &exec, false, then);
}

/* --- run ------------------------------------------------------------------------------------------------------------ */

/* Adds a stream to the structured result, shortened, with a handle if it does not fit. */
static void mcp_run_add_stream(struct mcp_call *k, const char *name, const struct buf *kept, uint64_t omitted,
                               struct buf *shown)
{
    struct json *j = mcp_data(k);
    const struct running *w = k->own;
    char handle[MCP_HANDLE_MAX] = "", key[32];
    _cleanup_buf_ struct buf text = {0};
    buf_add(&text, kept->p, kept->n);
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] == '\0')
            text.p[i] = (char)0xff; /* becomes U+FFFD */
    if (text.n > MCP_TEXT_MAX)
        mcp_output_keep(k, w->sandbox, &text, handle);
    size_t before = shown->n;
    mcp_output_shorten(&text, handle, shown);
    json_str(j, name, buf_str(shown) + before);
    if (handle[0]) {
        (void)snprintf(key, sizeof key, "%s_handle", name);
        json_str(j, key, handle);
    }
    if (omitted) {
        (void)snprintf(key, sizeof key, "%s_dropped", name);
        json_u64(j, key, omitted);
    }
}

static void mcp_run_on_ended(struct mcp_call *k, const struct session_output *o, const struct session_end *end)
{
    const struct running *w = k->own;
    struct json *j = mcp_data(k);
    _cleanup_buf_ struct buf text = {0};
    char status[SESSION_STATUS_MAX];
    session_status_text(end->exec, status);
    json_str(j, "sandbox", w->sandbox);
    json_i64(j, end->exec->exited ? "exit_code" : "signal", end->exec->code);
    json_bool(j, "timed_out", w->late);
    mcp_run_add_stream(k, "stdout", &o->kept[EXEC_STDOUT], o->omitted[EXEC_STDOUT], &text);
    if (text.n && text.p[text.n - 1] != '\n' && o->kept[EXEC_STDERR].n)
        buf_addc(&text, '\n');
    mcp_run_add_stream(k, "stderr", &o->kept[EXEC_STDERR], o->omitted[EXEC_STDERR], &text);
    api_add_exec_end(j, end->exec);
    session_add_denials(k->api->sandboxes, w->sandbox, end, j);
    if (w->late)
        buf_addf(&text, "\n[killed after timeout_s = %llu]", (unsigned long long)(w->limit_ms / 1000));
    else if (!end->exec->exited || end->exec->code != 0 || !text.n)
        buf_addf(&text, "%s[%s]", text.n ? "\n" : "", status);
    mcp_done(k, buf_str(&text));
}

static void mcp_run_in(struct mcp_call *k, struct sandbox *b)
{
    const char *const args[] = {"-c", mcp_arg(k, "command"), NULL};
    _cleanup_rights_ struct rights rights = {0};
    struct err err;
    if (rights_read(json_object_get(k->args, "rights"), &rights, &err) < 0) {
        mcp_fail(k, "%s", err.msg);
        return;
    }
    const struct exec_spec exec = {.cmd = "/bin/sh",
                                   .args = args,
                                   .cwd = mcp_arg(k, "cwd"),
                                   .rights = rights_of(&rights),
                                   .timeout_ms = (uint64_t)mcp_arg_int(k, "timeout_s", RUN_S) * 1000};
    mcp_running_start(k, b, &exec, true, mcp_run_on_ended);
}

void mcp_run(struct mcp_call *k)
{
    struct sandbox *b = mcp_sandbox(k);
    if (b)
        mcp_awake(k, b, mcp_run_in);
}

void mcp_read_output(struct mcp_call *k)
{
    const struct buf *text = mcp_output_find(k, mcp_arg(k, "handle"));
    size_t from = (size_t)mcp_arg_int(k, "offset", 0), n = (size_t)mcp_arg_int(k, "limit", READ_STANDARD);
    struct json *j = mcp_data(k);
    if (!text) {
        mcp_fail(k,
                 "there is no output '%.24s' any more: only the newest of each tenant are kept; run the command again",
                 mcp_arg(k, "handle"));
        return;
    }
    from = from < text->n ? from : text->n;
    n = n < text->n - from ? n : text->n - from;
    _cleanup_buf_ struct buf part = {0};
    buf_add(&part, text->p + from, n);
    json_u64(j, "offset", from);
    json_u64(j, "bytes", n);
    json_u64(j, "total", text->n);
    json_bool(j, "truncated", from + n < text->n);
    mcp_done(k, buf_str(&part));
}
