/* Runs one build: finds what it starts from, runs the steps in order, writes the template's row. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "builds/builds-int.h"

static void build_advance(struct build_own *b);
static void build_begin_stage(struct build_own *b);

/* --- the end ------------------------------------------------------------------------------------------------------ */

static void build_finish(struct build_own *b, enum build_status status)
{
    struct log_line l;
    b->over = true;
    b->b.status = status;
    b->b.ended_unix_ms = clock_unix_ms();
    build_start_drop(b);
    build_sandbox_drop(b);
    build_sandbox_close(b);
    build_set_stack(b, "", false);
    build_stages_drop(b);
    build_plan_done(&b->plan);
    if (log_start(&l, LOG_LEVEL_INFO, status == BUILD_READY ? "template built" : "template build failed")) {
        log_str(&l, "tenant", b->b.tenant->id);
        log_str(&l, "template", b->b.name);
        log_str(&l, "build", b->b.id);
        log_u64(&l, "ms", b->b.ended_unix_ms - b->b.made_unix_ms);
        log_end(&l);
    }
    build_ended(b);
}

void build_fail(struct build_own *b, const char *step, const char *fmt, ...)
{
    va_list ap;
    char text[1600];
    if (b->over)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    b->b.reason = xstrdup(text);
    (void)snprintf(b->b.reason_step, sizeof b->b.reason_step, "%s", step);
    build_log_flush(&b->b.log, step);
    build_log_add(&b->b.log, step, BUILD_ERROR, "%s", text);
    build_finish(b, BUILD_FAILED);
}

void build_stop(struct build_own *b)
{
    char stack[STACK_BASE_MAX] = "";
    b->cancelled = true;
    if (b->capturing)
        return; /* build_sandbox_on_captured() calls us again */
    if (b->import)
        image_cancel(TAKE_PTR(b->import));
    if (b->proving)
        memcpy(stack, b->stack, sizeof stack);
    build_fail(b, b->step, "cancelled");
    if (stack[0])
        state_drop(b->builds->stacks, stack); /* no other build uses it */
}

static void build_on_tagged(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct build_own *b = arg;
    if (failure) {
        build_fail(b, "finalize", "the template cannot be recorded: %s", failure->text);
        return;
    }
    if (++b->tag < b->b.tags.n) {
        const struct template_tag *from = NULL;
        for (size_t i = 0; i < t->ntags; i++)
            if (strcmp(t->tags[i].build, b->b.id) == 0)
                from = &t->tags[i];
        template_tag(b->builds->templates, t, from, b->b.tags.v[b->tag], build_on_tagged, b);
        return;
    }
    build_log_add(&b->b.log, "finalize", BUILD_INFO, "template %s is ready", b->b.name);
    build_finish(b, BUILD_READY);
}

static void build_record(struct build_own *b)
{
    struct template_config config = {.user = b->ctx.user,
                                     .workdir = b->ctx.workdir,
                                     .env = b->ctx.env,
                                     .start = b->start,
                                     .ready = b->ready,
                                     .cpu_milli = b->b.cpu_milli,
                                     .memory = b->b.memory};
    struct template_new n = {.id = b->b.template,
                             .name = b->b.name,
                             .tag = b->b.tags.v[0],
                             .build = b->b.id,
                             .stack = b->stack,
                             .tenant = b->b.tenant,
                             .kind = TEMPLATE_BUILT,
                             .config = &config,
                             .bytes = b->bytes};
    b->tag = 0;
    b->recording = true;
    template_put(b->builds->templates, &n, build_on_tagged, b);
}

static void build_on_measured(void *arg, const struct layers_reply *r, int fd)
{
    struct build_own *b = arg;
    b->call = 0;
    if (fd >= 0)
        (void)close(fd);
    b->bytes = r->error == LAYERS_OK ? r->bytes : 0;
    build_record(b);
}

static void build_on_start_tried(struct build_own *b, const char *error)
{
    if (error) {
        char stack[STACK_BASE_MAX];
        memcpy(stack, b->stack, sizeof stack);
        build_fail(b, "finalize", "%s", error);
        state_drop(b->builds->stacks, stack); /* only this build uses it */
        return;
    }
    build_sandbox_close(b);
    build_usage(b, b->stack, build_on_measured);
}

static void build_on_last_captured(struct build_own *b, const char *error)
{
    if (error) {
        build_fail(b, "finalize", "%s", error);
        return;
    }
    b->proving = true;
    if (!b->start && !b->ready) {
        build_on_start_tried(b, NULL);
        return;
    }
    build_try_start(b, build_on_start_tried);
}

static void build_on_last_open(struct build_own *b, const char *error)
{
    if (error)
        build_fail(b, "finalize", "the sandbox of the build cannot be made: %s", error);
    else
        build_sandbox_capture(b, build_on_last_captured); /* a stack of its own, which lives as long as the template */
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static void build_set_text(char **to, const char *text)
{
    free(*to);
    *to = xstrdup(text);
}

/* Applies the step to the context of the steps after it. */
static void build_apply_step(struct build_own *b, const struct build_step *s)
{
    if (s->type == BUILD_USER)
        build_set_text(&b->ctx.user, s->args.v[0]);
    if (s->type == BUILD_WORKDIR) {
        _cleanup_free_ char *path = build_path(&b->ctx, s->args.v[0]);
        size_t n = path ? strlen(path) : 0;
        if (n > 1 && path[n - 1] == '/')
            path[n - 1] = '\0';
        build_set_text(&b->ctx.workdir, path ? path : "/");
    }
}

static void build_step_done(struct build_own *b)
{
    build_apply_step(b, &b->plan.steps[b->at]);
    memcpy(b->key, b->step_key, sizeof b->key);
    b->at++;
    build_advance(b);
}

static void build_step_on_flattened(void *arg, const struct layers_reply *r, int fd)
{
    struct build_own *b = arg;
    b->call = 0;
    if (fd >= 0)
        (void)close(fd);
    if (r->error != LAYERS_OK)
        build_fail(b, b->step, "its layers cannot be made into one: %.*s", LAYERS_TEXT_MAX - 1, r->text);
    else
        build_step_done(b);
}

static void build_step_on_captured(struct build_own *b, const char *error)
{
    if (error) {
        build_fail(b, b->step, "%s", error);
        return;
    }
    build_sandbox_close(b);
    build_cache_put(b->builds, b->b.tenant, b->step_key, b->stack);
    if (++b->layers < BUILD_FLATTEN_AFTER) {
        build_step_done(b);
        return;
    }
    b->layers = 0;
    struct layersc *layers = build_layers(b, build_step_on_flattened);
    if (layers)
        b->call = layersc_flatten(layers, &(struct layersc_to){.done = build_step_on_flattened, .arg = b}, b->stack);
}

static void build_step_fail_command(struct build_own *b, const struct build_step *s, const struct exec_end *end,
                                    const struct link_status *failed)
{
    _cleanup_buf_ struct buf how = {0};
    const char *command = s->type == BUILD_RUN ? s->args.v[0] : build_type_name(s->type);
    if (failed && failed->code == LINK_NO_USER)
        build_fail(b, b->step, "failed to run command 'whoami': command failed: unauthenticated: %s", failed->text);
    else if (failed && failed->code == LINK_GONE)
        build_fail(b, b->step, "failed to run command '%.1000s': the sandbox of the build ended", command);
    else if (failed)
        build_fail(b, b->step, "failed to run command '%.1000s': %s", command, failed->text);
    else {
        build_end_text(end, BUILD_RUN_MS, &how);
        if (s->type == BUILD_RUN)
            build_fail(b, b->step, "failed to run command '%.1000s': %s", command, buf_str(&how));
        else
            build_fail(b, b->step, "%s failed: %s; the lines before say why", command, buf_str(&how));
    }
}

static void build_step_on_ran(struct build_own *b, const struct exec_end *end, const struct link_status *failed)
{
    const struct build_step *s = &b->plan.steps[b->at];
    bool ours = s->type == BUILD_USER || s->type == BUILD_WORKDIR;
    if (end && end->exited && end->code == BUILD_UNCHANGED && ours && stack_id_valid(b->stack)) {
        build_cache_put(b->builds, b->b.tenant, b->step_key, b->stack);
        build_step_done(b); /* the sandbox is unchanged: the next step uses it */
    } else if (end && end->exited && (end->code == 0 || (ours && end->code == BUILD_UNCHANGED)))
        build_sandbox_capture(b, build_step_on_captured);
    else
        build_step_fail_command(b, s, end, failed);
}

static void build_step_run_command(struct build_own *b, const struct build_step *s)
{
    const char *args[] = {"-c", build_shell, "sh", s->args.v[0], NULL};
    struct build_command c = {.cmd = "/bin/sh",
                              .args = args,
                              .user = s->args.n > 1 && *s->args.v[1] ? s->args.v[1] : b->ctx.user,
                              .cwd = b->ctx.workdir,
                              .env = true,
                              .input = -1,
                              .timeout_ms = BUILD_RUN_MS};
    build_sandbox_run(b, &c, build_step_on_ran);
}

void build_path_fail(struct build_own *b)
{
    build_fail(b, b->step, "the path of this step, with its variables, is too long for a path");
}

static void build_step_make_workdir(struct build_own *b, const struct build_step *s)
{
    static const char script[] = "[ -d \"$1\" ] && exit 3; mkdir -p \"$1\" && chown \"$2\": \"$1\"";
    _cleanup_free_ char *path = build_path(&b->ctx, s->args.v[0]);
    if (!path) {
        build_path_fail(b);
        return;
    }
    const char *args[] = {"-c", script, "sh", path, b->ctx.user, NULL};
    struct build_command c = {
        .cmd = "/bin/sh", .args = args, .user = "root", .cwd = "/", .input = -1, .timeout_ms = BUILD_RUN_MS};
    build_sandbox_run(b, &c, build_step_on_ran);
}

static void build_step_on_copy_failed(struct build_own *b, const char *error) { build_fail(b, b->step, "%s", error); }

static void build_step_on_open(struct build_own *b, const char *error)
{
    const struct build_step *s = &b->plan.steps[b->at];
    if (error) {
        build_fail(b, b->step, "the sandbox of the build cannot be made: %s", error);
        return;
    }
    switch (s->type) {
    case BUILD_COPY:
        build_copy(b, s, build_step_on_ran, build_step_on_copy_failed);
        return;
    case BUILD_RUN:
        build_step_run_command(b, s);
        return;
    case BUILD_WORKDIR:
        build_step_make_workdir(b, s);
        return;
    case BUILD_USER:
        build_user(b, s->args.v[0], false, build_step_on_ran);
        return;
    case BUILD_ENV:
        break;
    }
    abort();
}

static void build_step_log(struct build_own *b, bool cached)
{
    _cleanup_buf_ struct buf text = {0};
    build_step_text(&b->plan.steps[b->at], &text);
    build_log_add(&b->b.log, b->step, BUILD_INFO, "%s[builder %zu/%zu] %s", cached ? "CACHED " : "", b->at + 1,
                  b->plan.nsteps, buf_str(&text));
}

static void build_step_run(struct build_own *b)
{
    const struct build_step *s = &b->plan.steps[b->at];
    b->missed = true;
    build_step_log(b, false);
    if (s->from >= 0)
        build_stage_read(b, s, build_step_on_open);
    else
        build_sandbox_open(b, build_step_on_open);
}

static void build_step_on_cache_checked(void *arg, const struct layers_reply *r, int fd)
{
    struct build_own *b = arg;
    const struct build_cached *hit = build_cache_find(b->builds, b->b.tenant, b->step_key);
    b->call = 0;
    if (fd >= 0)
        (void)close(fd);
    if (r->error == LAYERS_OK && hit) {
        build_sandbox_close(b);
        build_set_stack(b, hit->stack, false);
        build_step_log(b, true);
        build_step_done(b);
        return;
    }
    if (r->error == LAYERS_NOT_FOUND)
        build_cache_del(b->builds, b->b.tenant, b->step_key);
    build_step_run(b);
}

static void build_step_begin(struct build_own *b)
{
    struct build_step *s = &b->plan.steps[b->at];
    if (s->from >= 0) { /* the key of the stage stands for its files */
        memcpy(s->hash, b->stages[s->from].key, sizeof s->hash);
        b->missed |= b->stages[s->from].missed;
    }
    build_step_key(b->key, s, &b->ctx, b->step_key);
    b->missed |= b->plan.force || s->force;
    const struct build_cached *hit = b->missed ? NULL : build_cache_find(b->builds, b->b.tenant, b->step_key);
    if (!hit) {
        build_step_run(b);
        return;
    }
    build_usage(b, hit->stack, build_step_on_cache_checked);
}

static void build_finalize(struct build_own *b)
{
    (void)snprintf(b->step, sizeof b->step, "finalize");
    build_log_add(&b->b.log, "finalize", BUILD_INFO, "[finalize] keeping the files of the template");
    build_sandbox_open(b, build_on_last_open);
}

static void build_advance(struct build_own *b)
{
    struct err err;
    while (b->at < build_stage_now(b)->end) {
        (void)snprintf(b->step, sizeof b->step, "%u", (unsigned)(b->at + 1) % 1000);
        if (b->b.tenant->closing) {
            build_fail(b, b->step, "the tenant of this build was removed");
            return;
        }
        if (b->plan.steps[b->at].type != BUILD_ENV) {
            build_step_begin(b);
            return;
        }
        build_step_log(b, false);
        if (build_env_step(&b->ctx, &b->plan.steps[b->at], &err) < 0) {
            build_fail(b, b->step, "%s", err.msg);
            return;
        }
        b->at++;
    }
    if (b->stage == b->plan.nstages) {
        build_finalize(b);
        return;
    }
    build_stage_end(b);
    build_begin_stage(b);
}

static void build_stage_on_base(struct build_own *b, const char *error)
{
    if (error) {
        build_fail(b, "base", "%s", error);
        return;
    }
    if (b->stage == b->plan.nstages && (b->plan.start || b->plan.ready)) {
        free(b->start);
        free(b->ready);
        b->start = b->plan.start ? xstrdup(b->plan.start) : NULL;
        b->ready = b->plan.ready ? xstrdup(b->plan.ready) : NULL;
    }
    build_advance(b);
}

static void build_begin_stage(struct build_own *b)
{
    (void)snprintf(b->step, sizeof b->step, "base");
    build_stage_begin(b, build_stage_on_base);
}

void build_begin(void *arg)
{
    struct build_own *b = arg;
    if (!b->over)
        build_begin_stage(b);
}
