/* The sandbox in which a step of a build runs: opens it, runs commands, captures its files, ends it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "builds/builds-int.h"

enum { SANDBOX_LIFE_S = (BUILD_RUN_MS + BUILD_READY_MS) / 1000 + 600 };

static void build_sandbox_tell(struct build_own *b, const char *error)
{
    build_then *then = b->then;
    b->then = NULL;
    if (then)
        then(b, error);
}

const char build_shell[] = "if [ -x /bin/bash ]; then exec /bin/bash -l -c \"$1\"; else exec /bin/sh -l -c \"$1\"; fi";

static void build_on_no_layers(void *arg)
{
    struct build_own *b = arg;
    struct layers_reply r = {.error = LAYERS_BUSY, .text = "the process that keeps files is not there"};
    if (!b->over)
        b->no_layers(b, &r, -1);
}

struct layersc *build_layers(struct build_own *b, layersc_done *done)
{
    if (!b->builds->peers->layers) {
        b->no_layers = done;
        loop_defer(b->builds->loop, build_on_no_layers, b);
    }
    return b->builds->peers->layers;
}

void build_usage(struct build_own *b, const char *stack, layersc_done *done)
{
    struct layersc *layers = build_layers(b, done);
    if (layers)
        b->call = layersc_usage(layers, &(struct layersc_to){.done = done, .arg = b}, stack);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static void build_sandbox_on_created(void *arg, struct sandbox *sandbox, const struct sandbox_failure *failure)
{
    struct build_own *b = arg;
    b->opening = false;
    if (b->over) { /* the build failed meanwhile; only we know this sandbox */
        if (sandbox)
            sandbox_kill(b->builds->sandboxes, sandbox, "build ended", NULL, NULL);
        return;
    }
    if (sandbox)
        (void)snprintf(b->sandbox, sizeof b->sandbox, "%s", sandbox->id);
    if (sandbox && (b->b.cpu_milli || b->b.memory) && strstr(sandbox->degraded, "not limited") && !b->told_limits) {
        build_log_add(&b->b.log, b->step, BUILD_WARN,
                      "this host cannot hold the commands of builds to their limits: %s", sandbox->degraded);
        b->told_limits = true;
    }
    build_sandbox_tell(b, sandbox ? NULL : failure->text);
}

static void build_sandbox_on_open(void *arg)
{
    struct build_own *b = arg;
    if (!b->over)
        build_sandbox_tell(b, NULL);
}

void build_sandbox_open(struct build_own *b, build_then *then)
{
    struct builds *bs = b->builds;
    b->then = then;
    if (b->sandbox[0]) {
        loop_defer(bs->loop, build_sandbox_on_open, b);
        return;
    }
    struct principal who = {.tenant = b->b.tenant};
    struct sandbox_spec spec = {.desc = {.timeout_s = SANDBOX_LIFE_S,
                                         .secure = true,
                                         .allow_internet = bs->have_network,
                                         .hidden = true,
                                         .cpu_milli = b->b.cpu_milli,
                                         .memory = b->b.memory,
                                         .disk = bs->config->build_disk},
                                .net = bs->have_network ? &bs->network : NULL};
    struct sandbox_desc *d = &spec.desc;
    (void)snprintf(d->template, sizeof d->template, "%s", b->read_stack ? b->read_stack : b->stack);
    /* More than the default limits counts in the tenant's quota. */
    d->counted = d->cpu_milli > bs->config->default_cpu_milli || d->memory > bs->config->default_memory;
    b->opening = true;
    sandbox_create(bs->sandboxes, &who, &spec, build_sandbox_on_created, b);
}

void build_sandbox_close(struct build_own *b)
{
    struct sandbox *sandbox = b->sandbox[0] ? sandbox_find(b->builds->sandboxes, b->sandbox) : NULL;
    b->sandbox[0] = '\0';
    if (sandbox)
        sandbox_kill(b->builds->sandboxes, sandbox, "build step ended", NULL, NULL);
}

/* --- commands ----------------------------------------------------------------------------------------------------- */

static void build_input_drop(struct build_own *b)
{
    struct build_input *in = b->in;
    b->in = NULL;
    if (!in)
        return;
    if (in->call)
        link_cancel(b->builds->peers->links, in->call);
    in->build = NULL;
    if (in->reading)
        return; /* the worker thread uses it; build_input_on_read() frees it */
    (void)close(in->fd);
    free(in);
}

static void build_exec_finish(struct build_own *b, const struct exec_end *end, const struct link_status *failed)
{
    build_ran *ran = b->ran;
    b->exec = NULL;
    b->ran = NULL;
    build_input_drop(b);
    build_log_flush(&b->b.log, b->step);
    if (ran && !b->over)
        ran(b, end, failed);
}

static void build_input_read_more(struct build_input *in);

static void build_input_on_sent(void *arg, const struct link_status *st)
{
    struct build_input *in = arg;
    in->call = 0;
    if (st->code == LINK_OK && in->n > 0)
        build_input_read_more(in); /* otherwise the command has closed its input or ended: its exit says which */
}

static void build_input_read(void *arg)
{
    struct build_input *in = arg;
    do
        in->n = read(in->fd, in->bytes, sizeof in->bytes);
    while (in->n < 0 && errno == EINTR);
}

static void build_input_on_read(void *arg)
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
    in->call = in->n > 0 ? exec_input(b->builds->peers->links, b->sandbox, &who, in->bytes, (size_t)in->n,
                                      build_input_on_sent, in)
                         : exec_close_input(b->builds->peers->links, b->sandbox, &who, build_input_on_sent, in);
}

static void build_input_read_more(struct build_input *in)
{
    in->reading = true;
    loop_work(in->loop, build_input_read, build_input_on_read, in);
}

static void build_exec_on_start(void *arg, uint32_t pid)
{
    struct build_own *b = arg;
    if (!b->in)
        return;
    b->in->pid = pid;
    build_input_read_more(b->in);
}

static bool build_exec_on_output(void *arg, enum exec_stream s, uint64_t offset, const void *p, size_t n)
{
    struct build_own *b = arg;
    (void)offset;
    if (b->read_stack && s == EXEC_STDOUT)
        return build_stage_output(b, p, n);
    if (!b->quiet)
        build_log_output(&b->b.log, b->step, s == EXEC_STDERR, p, n);
    return true;
}

static void build_exec_on_end(void *arg, const struct session_end *end) { build_exec_finish(arg, end->exec, NULL); }
static void build_exec_on_failure(void *arg, const struct link_status *st) { build_exec_finish(arg, NULL, st); }

void build_sandbox_run(struct build_own *b, const struct build_command *c, build_ran *ran)
{
    static const struct session_ops ops = {build_exec_on_start, build_exec_on_output, build_exec_on_end,
                                           build_exec_on_failure};
    struct session_spec spec = {.exec = {.cmd = c->cmd,
                                         .args = c->args,
                                         .env = c->env && b->ctx.env.n ? (const char *const *)b->ctx.env.v : NULL,
                                         .cwd = c->cwd,
                                         .user = c->user,
                                         .stdin_open = c->input >= 0,
                                         .timeout_ms = c->timeout_ms,
                                         .keep_output = true}};
    if (c->input >= 0) {
        b->in = xcalloc(1, sizeof *b->in);
        b->in->build = b;
        b->in->loop = b->builds->loop;
        b->in->fd = c->input;
    }
    b->ran = ran;
    b->quiet = c->quiet;
    b->exec = session_start(b->builds->sandboxes, b->sandbox, &spec, &ops, b);
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
        state_hold(b->builds->stacks, stack);
    (void)snprintf(b->stack, sizeof b->stack, "%s", stack);
    if (stack_id_valid(before))
        state_release(b->builds->stacks, before);
}

static void build_sandbox_on_captured(void *arg, const struct layers_reply *r)
{
    struct build_own *b = arg;
    struct sandbox *sandbox = b->sandbox[0] ? sandbox_find(b->builds->sandboxes, b->sandbox) : NULL;
    char text[LAYERS_TEXT_MAX + 80];
    b->capturing = false;
    if (sandbox)
        sandbox_finish(b->builds->sandboxes, sandbox->id);
    if (b->cancelled)
        build_stop(b);
    if (b->over || r->error != LAYERS_OK) {
        state_release(b->builds->stacks, b->made);
        if (r->error == LAYERS_OK)
            state_drop(b->builds->stacks, b->made);
        (void)snprintf(text, sizeof text, "the files of the step cannot be kept: %.*s", LAYERS_TEXT_MAX - 1, r->text);
        build_sandbox_tell(b, text);
        return;
    }
    build_set_stack(b, b->made, true);
    build_sandbox_tell(b, NULL);
}

void build_sandbox_capture(struct build_own *b, build_then *then)
{
    struct sandbox *sandbox = sandbox_find(b->builds->sandboxes, b->sandbox);
    b->then = then;
    if (!sandbox || !sandbox_begin(sandbox, "a step of a build is kept")) {
        build_sandbox_tell(b, "the sandbox of the build ended");
        return;
    }
    stack_id_new(b->made);
    b->capturing = true;
    state_capture(b->builds->stacks, b->sandbox, sandbox->tenant, b->made, true, build_sandbox_on_captured, b);
}

void build_sandbox_drop(struct build_own *b)
{
    if (b->call)
        layersc_cancel(b->builds->peers->layers, b->call);
    b->call = 0;
    session_detach(b->exec);
    b->exec = NULL;
    b->ran = NULL;
    b->then = NULL;
    build_input_drop(b);
}
