/* logs.c - GET .../logs?follow=true by WebSocket: what a command of a session has written and writes, until it ends.
 *
 * A script in the sandbox reads both files as they grow and puts a mark before the bytes of each, as the clients expect. It is
 * ended when its client leaves.
 */
#include <stdlib.h>
#include <string.h>

#include "api/daytona/shell.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "http/ws-serve.h"

enum { MESSAGE_MAX = 4096 /* clients have nothing to say */, MARK_BYTES = 3 };

/* What was there when the end was seen is still read. */
static const char script_follow[] = DAYTONA_FIND_COMMAND DAYTONA_ALIVE
    "o=0; e=0\n"
    "more() { n=$(stat -c %s \"$1\") && [ \"$n\" -gt \"$2\" ] || return 1; printf \"$3\"; "
    "tail -c +$(($2 + 1)) \"$1\" | head -c $((n - $2)); }\n"
    "while :; do\n"
    "z=; [ -d \"$c\" ] && [ ! -e \"$c/exit\" ] && alive || z=1\n"
    "if more \"$c/stdout\" $o '\\1\\1\\1'; then o=$n; fi\n"
    "if more \"$c/stderr\" $e '\\2\\2\\2'; then e=$n; fi\n"
    "[ -z \"$z\" ] || exit 0\n"
    "sleep 0.1\n"
    "done\n";

struct follow {
    struct ws *ws; /* NULL: the client left */
    struct sandboxes *sandboxes;
    struct session *session;
    char sandbox[SANDBOX_ID_MAX];
    uint32_t pid;    /* 0: not started yet */
    bool stuck;      /* the session waits for the client */
    struct buf held; /* the end of what came, while it may be a mark */
};

static void follow_free(struct follow *f)
{
    buf_done(&f->held);
    free(f);
}

static void follow_stop(struct follow *f)
{
    daytona_kill_group(f->sandboxes, f->sandbox, f->pid);
    session_detach(f->session);
    follow_free(f);
}

static void follow_on_client_left(void *arg)
{
    struct follow *f = arg;
    f->ws = NULL;
    if (f->pid)
        follow_stop(f); /* else once it has started */
}

static void follow_on_message(void *arg, bool text, const void *p, size_t n)
{
    (void)arg, (void)text, (void)p, (void)n;
}

static void follow_on_writable(void *arg)
{
    struct follow *f = arg;
    if (f->stuck)
        session_resume(f->session);
    f->stuck = false;
}

static void follow_on_started(void *arg, uint32_t pid)
{
    struct follow *f = arg;
    f->pid = pid;
    if (!f->ws)
        follow_stop(f);
}

static bool follow_on_output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    struct follow *f = arg;
    (void)offset;
    if (!f->ws || s != EXEC_STDOUT)
        return true;
    /* Clients of 0.143 do not see a mark that ends a message. */
    buf_add(&f->held, p, n);
    size_t end = f->held.n;
    while (end > 0 && f->held.n - end < MARK_BYTES && (f->held.p[end - 1] == 1 || f->held.p[end - 1] == 2))
        end--;
    f->stuck = end > 0 && !ws_send(f->ws, false, f->held.p, end);
    if (end > 0)
        memmove(f->held.p, f->held.p + end, f->held.n - end);
    f->held.n -= end;
    return !f->stuck;
}

static void follow_on_ended(void *arg, const struct session_end *end)
{
    struct follow *f = arg;
    bool right = end->exec->exited && end->exec->code == 0;
    if (f->ws && f->held.n > 0)
        (void)ws_send(f->ws, false, f->held.p, f->held.n);
    if (f->ws)
        ws_hang_up(f->ws, right ? WS_NORMAL : WS_FAILED, right ? NULL : "the logs cannot be read any more");
    follow_free(f);
}

static void follow_on_failed(void *arg, const struct link_status *st)
{
    struct follow *f = arg;
    struct daytona_fault fault;
    daytona_fault_of(st, NULL, &fault);
    if (f->ws)
        ws_hang_up(f->ws, WS_FAILED, fault.text);
    follow_free(f);
}

/* The command is there. */
static void follow_begin(struct http_req *r, const struct daytona_ran *ran)
{
    static const struct ws_events events = {follow_on_message, follow_on_writable, follow_on_client_left};
    static const struct session_ops ops = {
        .started = follow_on_started, .output = follow_on_output, .ended = follow_on_ended, .failed = follow_on_failed};
    struct api_call *c = api_call_of(r);
    const char *why;
    if (daytona_script_failed(r, ran))
        return;
    struct follow *f = xcalloc(1, sizeof *f);
    f->ws = ws_serve(r, NULL, MESSAGE_MAX, &events, f, &why);
    if (!f->ws) {
        free(f);
        daytona_error(r, 400, NULL, "%s", why);
        return;
    }
    api_rewrap(r);
    f->sandboxes = c->api->sandboxes;
    memcpy(f->sandbox, c->sandbox, sizeof f->sandbox);
    const char *const args[] = {"-c", script_follow, "hutch", c->param[1], c->param[2], NULL};
    const struct session_spec spec = {.exec = {.cmd = "/bin/sh", .args = args, .keep_output = true}};
    f->session = session_start(f->sandboxes, f->sandbox, &spec, &ops, f);
}

void daytona_follow(struct api_call *c, struct sandbox *b) { daytona_find_command(c, b, follow_begin); }
