/* Tries the start command of a template once, at the end of its build. That run leaves nothing: each sandbox runs it
 * again. */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "builds/builds-int.h"

struct build_starting {
    struct build_own *build;
    struct session *start; /* NULL: there is none, or it has ended */
    build_then *then;
    loop_id timer;
    uint64_t until; /* loop time */
};

void build_start_drop(struct build_own *b)
{
    struct build_starting *s = b->starting;
    if (!s)
        return;
    b->starting = NULL;
    loop_timer_del(b->builds->loop, s->timer);
    session_detach(s->start);
    free(s);
}

static void start_try_finish(struct build_own *b, const char *error)
{
    build_then *then = b->starting->then;
    build_start_drop(b);
    then(b, error);
}

/* --- the start command -------------------------------------------------------------------------------------------- */

static bool start_try_on_output(void *arg, enum exec_stream stream, uint64_t offset, const void *p, size_t n)
{
    struct build_starting *s = arg;
    (void)offset;
    build_log_output(&s->build->b.log, "finalize", stream == EXEC_STDERR, p, n);
    return true;
}

static void start_try_on_end(void *arg, const struct session_end *told)
{
    const struct exec_end *end = told->exec;
    struct build_starting *s = arg;
    struct build_own *b = s->build;
    _cleanup_buf_ struct buf text = {0};
    s->start = NULL;
    build_log_flush(&b->b.log, "finalize");
    if (end->exited && end->code == 0)
        return; /* it may have left processes in the background: the ready command decides */
    buf_adds(&text, "the start command ended before the template was ready: ");
    build_end_text(end, 0, &text);
    build_sandbox_drop(b); /* cancels a ready command that is under way */
    start_try_finish(b, buf_str(&text));
}

static void start_try_on_failure(void *arg, const struct link_status *st)
{
    struct build_starting *s = arg;
    struct build_own *b = s->build;
    char text[400];
    s->start = NULL;
    (void)snprintf(text, sizeof text, "the start command cannot be run: %s", st->text);
    build_sandbox_drop(b);
    start_try_finish(b, text);
}

static void start_try_run(struct build_own *b, struct build_starting *s)
{
    static const struct session_ops ops = {
        .output = start_try_on_output, .ended = start_try_on_end, .failed = start_try_on_failure};
    const char *args[] = {"-c", build_shell, "sh", b->start, NULL};
    struct session_spec spec = {.exec = {.cmd = "/bin/sh",
                                         .args = args,
                                         .env = b->ctx.env.n ? (const char *const *)b->ctx.env.v : NULL,
                                         .cwd = b->ctx.workdir,
                                         .user = b->ctx.user}};
    s->start = session_start(b->builds->sandboxes, b->sandbox, &spec, &ops, s);
}

/* --- the ready command -------------------------------------------------------------------------------------------- */

static void ready_run(void *arg);

static void ready_on_ran(struct build_own *b, const struct exec_end *end, const struct link_status *st)
{
    struct build_starting *s = b->starting;
    char text[400];
    if (end && end->exited && end->code == 0) {
        build_log_add(&b->b.log, "finalize", BUILD_INFO, "the ready command succeeded");
        start_try_finish(b, NULL);
        return;
    }
    if (st && st->code != LINK_TIMEOUT) {
        (void)snprintf(text, sizeof text, "the ready command cannot be run: %s", st->text);
        start_try_finish(b, text);
        return;
    }
    if (loop_now(b->builds->loop) + BUILD_READY_EVERY_MS >= s->until) {
        (void)snprintf(text, sizeof text, "the ready command did not succeed within %d minutes",
                       BUILD_READY_MS / 60000);
        start_try_finish(b, text);
        return;
    }
    s->timer = loop_timer(b->builds->loop, BUILD_READY_EVERY_MS, ready_run, s);
}

static void ready_run(void *arg)
{
    struct build_starting *s = arg;
    struct build_own *b = s->build;
    const char *args[] = {"-c", build_shell, "sh", b->ready, NULL};
    uint64_t now = loop_now(b->builds->loop);
    struct build_command c = {.cmd = "/bin/sh",
                              .args = args,
                              .user = b->ctx.user,
                              .cwd = b->ctx.workdir,
                              .env = true,
                              .input = -1,
                              .timeout_ms = s->until > now ? s->until - now : 1};
    s->timer = 0;
    build_sandbox_run(b, &c, ready_on_ran);
}

static void start_try_on_alive(void *arg)
{
    struct build_starting *s = arg;
    s->timer = 0;
    start_try_finish(s->build, NULL);
}

void build_try_start(struct build_own *b, build_then *then)
{
    struct build_starting *s = b->starting = xcalloc(1, sizeof *s);
    s->build = b;
    s->then = then;
    s->until = loop_now(b->builds->loop) + BUILD_READY_MS;
    if (b->start) {
        build_log_add(&b->b.log, "finalize", BUILD_INFO, "[finalize] starting: %.200s", b->start);
        build_log_add(&b->b.log, "finalize", BUILD_INFO,
                      "memory is not part of a template here: every sandbox runs the start command when it is made");
        start_try_run(b, s);
    }
    if (b->ready)
        s->timer = loop_timer(b->builds->loop, 0, ready_run, s);
    else
        s->timer = loop_timer(b->builds->loop, BUILD_ALIVE_MS, start_try_on_alive, s);
}
