/* The start command of a template, tried once at the end of its build. Nothing of that run is kept: sandboxes run it anew. */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "front/builds-int.h"

struct build_starting {
    struct build_own *build;
    struct exec *start; /* NULL: there is none, or it has ended */
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
    loop_timer_del(b->front->loop, s->timer);
    if (s->start)
        exec_detach(s->start);
    free(s);
}

static void done(struct build_own *b, const char *error)
{
    build_then *then = b->starting->then;
    build_start_drop(b);
    then(b, error);
}

/* --- the command that starts -------------------------------------------------------------------------------------- */

static void started(void *arg, uint32_t pid, const char *tag)
{
    (void)arg;
    (void)pid;
    (void)tag;
}

static bool output(void *arg, enum exec_stream stream, uint64_t offset, const void *p, size_t n)
{
    struct build_starting *s = arg;
    (void)offset;
    build_log_output(&s->build->b.log, "finalize", stream == EXEC_STDERR, p, n);
    return true;
}

static void ended(void *arg, const struct exec_end *end)
{
    struct build_starting *s = arg;
    struct build_own *b = s->build;
    _cleanup_buf_ struct buf text = {0};
    s->start = NULL;
    build_log_flush(&b->b.log, "finalize");
    if (end->exited && end->code == 0)
        return; /* it left something running behind it, or had no more to do: the ready command says */
    buf_adds(&text, "the start command ended before the template was ready: ");
    build_end_text(end, 0, &text);
    build_box_drop(b); /* a ready command that is under way */
    done(b, buf_str(&text));
}

static void failed(void *arg, const struct link_status *st)
{
    struct build_starting *s = arg;
    struct build_own *b = s->build;
    char text[400];
    s->start = NULL;
    (void)snprintf(text, sizeof text, "the start command cannot be run: %s", st->text);
    build_box_drop(b);
    done(b, text);
}

static void run_start(struct build_own *b, struct build_starting *s)
{
    static const struct exec_ops ops = {started, output, ended, failed};
    const char *args[] = {"-c", build_shell, "sh", b->start, NULL};
    struct exec_spec spec = {.cmd = "/bin/sh",
                             .args = args,
                             .env = b->ctx.env.n ? (const char *const *)b->ctx.env.v : NULL,
                             .cwd = b->ctx.workdir,
                             .user = b->ctx.user};
    s->start = exec_start(b->front->links, b->box, &spec, &ops, s);
}

/* --- and the one that asks whether it has ------------------------------------------------------------------------- */

static void ask(void *arg);

static void asked(struct build_own *b, const struct exec_end *end, const struct link_status *st)
{
    struct build_starting *s = b->starting;
    char text[400];
    if (end && end->exited && end->code == 0) {
        build_log_add(&b->b.log, "finalize", BUILD_INFO, "the ready command succeeded");
        done(b, NULL);
        return;
    }
    if (st && st->code != LINK_TIMEOUT) {
        (void)snprintf(text, sizeof text, "the ready command cannot be run: %s", st->text);
        done(b, text);
        return;
    }
    if (loop_now(b->front->loop) + BUILD_READY_EVERY_MS >= s->until) {
        (void)snprintf(text, sizeof text, "the ready command did not succeed within %d minutes",
                       BUILD_READY_MS / 60000);
        done(b, text);
        return;
    }
    s->timer = loop_timer(b->front->loop, BUILD_READY_EVERY_MS, ask, s);
}

static void ask(void *arg)
{
    struct build_starting *s = arg;
    struct build_own *b = s->build;
    const char *args[] = {"-c", build_shell, "sh", b->ready, NULL};
    uint64_t now = loop_now(b->front->loop);
    struct build_command c = {.cmd = "/bin/sh",
                              .args = args,
                              .user = b->ctx.user,
                              .cwd = b->ctx.workdir,
                              .env = true,
                              .input = -1,
                              .timeout_ms = s->until > now ? s->until - now : 1};
    s->timer = 0;
    build_box_run(b, &c, asked);
}

static void lives(void *arg)
{
    struct build_starting *s = arg;
    s->timer = 0;
    done(s->build, NULL);
}

void build_try_start(struct build_own *b, build_then *then)
{
    struct build_starting *s = b->starting = xcalloc(1, sizeof *s);
    s->build = b;
    s->then = then;
    s->until = loop_now(b->front->loop) + BUILD_READY_MS;
    if (b->start) {
        build_log_add(&b->b.log, "finalize", BUILD_INFO, "[finalize] starting: %.200s", b->start);
        build_log_add(&b->b.log, "finalize", BUILD_INFO,
                      "memory is not part of a template here: every sandbox runs the start command when it is made");
        run_start(b, s);
    }
    if (b->ready)
        s->timer = loop_timer(b->front->loop, 0, ask, s);
    else
        s->timer = loop_timer(b->front->loop, BUILD_ALIVE_MS, lives, s);
}
