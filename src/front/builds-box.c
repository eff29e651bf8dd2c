/* The sandbox in which a step of a build runs: made, used, captured, ended. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "front/builds-int.h"
#include "front/nets.h"

enum { BOX_LIFE_S = (BUILD_RUN_MS + BUILD_READY_MS) / 1000 + 600 };

static void tell(struct build_own *b, const char *error)
{
    build_then *then = b->then;
    b->then = NULL;
    if (then)
        then(b, error);
}

const char build_shell[] = "if [ -x /bin/bash ]; then exec /bin/bash -l -c \"$1\"; else exec /bin/sh -l -c \"$1\"; fi";

static void no_stock(void *arg)
{
    struct build_own *b = arg;
    struct stock_reply r = {.error = STOCK_BUSY, .text = "the process that keeps files is not there"};
    if (!b->over)
        b->no_stock(b, &r, -1);
}

void build_stock(struct build_own *b, const struct stock_request *q, stockc_done *done)
{
    if (b->front->stock) {
        b->call = stockc_ask(b->front->stock, q, NULL, 0, NULL, done, b);
        return;
    }
    b->no_stock = done;
    loop_defer(b->front->loop, no_stock, b);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static void boxed(void *arg, struct box *box, const struct box_failure *failure)
{
    struct build_own *b = arg;
    b->opening = false;
    if (b->over) { /* it failed meanwhile; nobody else knows this box */
        if (box)
            box_kill(b->front, box, "build ended", NULL, NULL);
        return;
    }
    if (box)
        (void)snprintf(b->box, sizeof b->box, "%s", box->id);
    if (box && (b->b.cpu_milli || b->b.memory) && strstr(box->degraded, "not limited") && !b->told_limits) {
        build_log_add(&b->b.log, b->step, BUILD_WARN,
                      "this host cannot hold the commands of builds to their limits: %s", box->degraded);
        b->told_limits = true;
    }
    tell(b, box ? NULL : failure->text);
}

static void is_open(void *arg)
{
    struct build_own *b = arg;
    if (!b->over)
        tell(b, NULL);
}

void build_box_open(struct build_own *b, build_then *then)
{
    struct front *f = b->front;
    b->then = then;
    if (b->box[0]) {
        loop_defer(f->loop, is_open, b);
        return;
    }
    struct principal who = {.tenant = b->b.tenant};
    struct box_spec spec = {.template = b->read_stack ? b->read_stack : b->stack,
                            .timeout_s = BOX_LIFE_S,
                            .secure = true,
                            .allow_internet = f->builds->have_network,
                            .net = f->builds->have_network ? &f->builds->network : NULL,
                            .build = true,
                            .cpu_milli = b->b.cpu_milli,
                            .memory = b->b.memory};
    /* More than a sandbox that nobody asked anything for has is the tenant's to have, or not. */
    spec.counted = spec.cpu_milli > f->config->default_cpu_milli || spec.memory > f->config->default_memory;
    b->opening = true;
    box_create(f, &who, &spec, boxed, b);
}

void build_box_close(struct build_own *b)
{
    struct box *box = b->box[0] ? box_find(b->front, b->box) : NULL;
    b->box[0] = '\0';
    if (box)
        box_kill(b->front, box, "build step ended", NULL, NULL);
}

/* --- commands ----------------------------------------------------------------------------------------------------- */

static void input_done(struct build_own *b)
{
    struct build_input *in = b->in;
    b->in = NULL;
    if (!in)
        return;
    if (in->call)
        link_cancel(b->front->links, in->call);
    in->build = NULL;
    if (in->reading)
        return; /* the worker thread has it; read_done() frees it */
    (void)close(in->fd);
    free(in);
}

static void finish(struct build_own *b, const struct exec_end *end, const struct link_status *failed)
{
    build_ran *ran = b->ran;
    b->exec = NULL;
    b->ran = NULL;
    input_done(b);
    build_log_flush(&b->b.log, b->step);
    if (ran && !b->over)
        ran(b, end, failed);
}

static void read_more(struct build_input *in);

static void fed(void *arg, const struct link_status *st)
{
    struct build_input *in = arg;
    in->call = 0;
    if (st->code == LINK_OK && in->n > 0)
        read_more(in); /* otherwise the command has closed its input or ended: its exit says which */
}

static void read_piece(void *arg)
{
    struct build_input *in = arg;
    do
        in->n = read(in->fd, in->bytes, sizeof in->bytes);
    while (in->n < 0 && errno == EINTR);
}

static void read_done(void *arg)
{
    struct build_input *in = arg;
    struct build_own *b = in->build;
    struct exec_select who = {.pid = in->pid};
    in->reading = false;
    if (!b) {
        (void)close(in->fd);
        free(in);
        return;
    }
    in->call = in->n > 0 ? exec_input(b->front->links, b->box, &who, in->bytes, (size_t)in->n, fed, in)
                         : exec_close_input(b->front->links, b->box, &who, fed, in);
}

static void read_more(struct build_input *in)
{
    in->reading = true;
    loop_work(in->loop, read_piece, read_done, in);
}

static void started(void *arg, uint32_t pid, const char *tag)
{
    struct build_own *b = arg;
    (void)tag;
    if (!b->in)
        return;
    b->in->pid = pid;
    read_more(b->in);
}

static bool output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    struct build_own *b = arg;
    (void)offset;
    if (b->read_stack && s == EXEC_STDOUT)
        return build_stage_output(b, p, n);
    if (!b->quiet)
        build_log_output(&b->b.log, b->step, s == EXEC_STDERR, p, n);
    return true;
}

static void ended(void *arg, const struct exec_end *end) { finish(arg, end, NULL); }
static void failed(void *arg, const struct link_status *st) { finish(arg, NULL, st); }

void build_box_run(struct build_own *b, const struct build_command *c, build_ran *ran)
{
    static const struct exec_ops ops = {started, output, ended, failed};
    struct exec_spec spec = {.cmd = c->cmd,
                             .args = c->args,
                             .env = c->env && b->ctx.env.n ? (const char *const *)b->ctx.env.v : NULL,
                             .cwd = c->cwd,
                             .user = c->user,
                             .stdin_open = c->input >= 0,
                             .timeout_ms = c->timeout_ms,
                             .keep_output = true};
    if (c->input >= 0) {
        b->in = xcalloc(1, sizeof *b->in);
        b->in->build = b;
        b->in->loop = b->front->loop;
        b->in->fd = c->input;
    }
    b->ran = ran;
    b->quiet = c->quiet;
    b->exec = exec_start(b->front->links, b->box, &spec, &ops, b);
}

void build_end_text(const struct exec_end *end, uint64_t timeout_ms, struct buf *out)
{
    if (end->exited)
        buf_addf(out, "exit status %d", end->code);
    else if (timeout_ms && end->code == SIGKILL && end->wall_ms >= timeout_ms)
        buf_addf(out, "it took longer than %llu minutes", (unsigned long long)timeout_ms / 60000);
    else {
        const char *name = text_signal(end->code);
        buf_addf(out, "signal: %s", end->code == SIGKILL ? "killed" : name ? name : "unknown");
    }
    if (end->oom)
        buf_adds(out, " (the memory of the build was used up)");
}

/* --- capture ------------------------------------------------------------------------------------------------------ */

void build_set_stack(struct build_own *b, const char *stack, bool held)
{
    char before[STACK_BASE_MAX];
    memcpy(before, b->stack, sizeof before);
    if (stack_id_valid(stack) && !held)
        state_hold(b->front, stack);
    (void)snprintf(b->stack, sizeof b->stack, "%s", stack);
    if (stack_id_valid(before))
        state_release(b->front, before);
}

static void captured(void *arg, const struct stock_reply *r)
{
    struct build_own *b = arg;
    struct box *box = b->box[0] ? box_find(b->front, b->box) : NULL;
    char text[STOCK_TEXT_MAX + 80];
    b->capturing = false;
    if (box)
        box_finish(b->front, box->id);
    if (b->cancelled)
        build_stop(b);
    if (b->over || r->error != STOCK_OK) {
        state_release(b->front, b->made);
        if (r->error == STOCK_OK)
            state_drop(b->front, b->made);
        (void)snprintf(text, sizeof text, "the files of the step cannot be kept: %.*s", STOCK_TEXT_MAX - 1, r->text);
        tell(b, text);
        return;
    }
    build_set_stack(b, b->made, true);
    tell(b, NULL);
}

void build_box_capture(struct build_own *b, build_then *then)
{
    struct box *box = box_find(b->front, b->box);
    b->then = then;
    if (!box || !box_begin(box, "a step of a build is kept")) {
        tell(b, "the sandbox of the build ended");
        return;
    }
    stack_id_new(b->made);
    b->capturing = true;
    state_capture(b->front, b->box, b->made, true, captured, b);
}

void build_box_drop(struct build_own *b)
{
    if (b->call)
        stockc_cancel(b->front->stock, b->call);
    b->call = 0;
    if (b->exec)
        exec_detach(b->exec);
    b->exec = NULL;
    b->ran = NULL;
    b->then = NULL;
    input_done(b);
}
