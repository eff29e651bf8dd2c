/* Stages of a build: each leaves a stack, a key and a context, from which others start and whose files they copy. What a COPY
 * reads is read by our own program in a sandbox of that stage, and laid down by it in that of the step: neither sees the other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "front/builds-int.h"

const struct build_stage *build_stage_now(const struct build_own *b)
{
    return b->stage < b->plan.nstages ? &b->plan.stages[b->stage] : &b->plan.last;
}

bool build_stage_bare(const struct build_own *b)
{
    const struct build_plan *p = &b->plan;
    if (b->stage == p->nstages || p->stages[b->stage].end > b->at || p->last.from_stage == (int)b->stage)
        return false;
    for (size_t i = 0; i < p->nstages; i++)
        if (p->stages[i].from_stage == (int)b->stage)
            return false;
    return true;
}

static void close_read(struct build_own *b)
{
    if (b->read_fd >= 0)
        (void)close(b->read_fd);
    b->read_fd = -1;
}

/* --- from one to the next ----------------------------------------------------------------------------------------- */

static void copy_context(struct build_context *to, const struct build_context *from)
{
    to->user = from->user ? xstrdup(from->user) : NULL;
    to->workdir = from->workdir ? xstrdup(from->workdir) : NULL;
    for (size_t i = 0; i < from->env.n; i++)
        strv_add(&to->env, from->env.v[i]);
}

static void from_stage(struct build_own *b, const struct build_made *m)
{
    build_set_stack(b, m->stack, false);
    memcpy(b->key, m->key, sizeof b->key);
    copy_context(&b->ctx, &m->ctx);
    b->start = m->start ? xstrdup(m->start) : NULL;
    b->ready = m->ready ? xstrdup(m->ready) : NULL;
    b->missed = m->missed;
}

void build_stage_begin(struct build_own *b, build_then *then)
{
    const struct build_stage *s = build_stage_now(b);
    b->layers = 0;
    b->missed = false;
    if (!b->stages)
        b->stages = xcalloc(b->plan.nstages + 1, sizeof *b->stages);
    if (s->from_stage >= 0) {
        build_log_add(&b->b.log, "base", BUILD_INFO, "[base] FROM stage %d", s->from_stage);
        from_stage(b, &b->stages[s->from_stage]);
        then(b, NULL);
        return;
    }
    build_log_add(&b->b.log, "base", BUILD_INFO, "[base] FROM %s", s->from_template ? s->from_template : s->from_image);
    build_base(b, then);
}

void build_stage_end(struct build_own *b)
{
    struct build_made *m = &b->stages[b->stage++];
    build_box_close(b);
    if (stack_id_valid(b->stack))
        state_hold(b->front, b->stack);
    memcpy(m->stack, b->stack, sizeof m->stack);
    memcpy(m->key, b->key, sizeof m->key);
    m->ctx = b->ctx;
    m->start = TAKE_PTR(b->start);
    m->ready = TAKE_PTR(b->ready);
    m->missed = b->missed;
    b->ctx = (struct build_context){0};
    build_set_stack(b, "", false);
}

void build_stages_drop(struct build_own *b)
{
    for (size_t i = 0; b->stages && i < b->plan.nstages; i++) {
        struct build_made *m = &b->stages[i];
        if (stack_id_valid(m->stack))
            state_release(b->front, m->stack);
        build_context_done(&m->ctx);
        free(m->start);
        free(m->ready);
    }
    free(b->stages);
    b->stages = NULL;
    b->read_stack = NULL;
    close_read(b);
}

/* --- COPY from one ------------------------------------------------------------------------------------------------ */

enum { READ_OVER = 1, READ_BROKEN };

void build_stage_output(struct build_own *b, const void *p, size_t n)
{
    if (b->read_fd < 0)
        return; /* it failed; the command ends by itself */
    b->read_bytes += n;
    if (b->read_bytes > b->front->config->build_upload_max)
        b->read_error = READ_OVER;
    else if (fd_write_all(b->read_fd, p, n) < 0)
        b->read_error = READ_BROKEN;
    if (b->read_error)
        close_read(b);
}

static void read_ran(struct build_own *b, const struct exec_end *end, const struct link_status *failed)
{
    _cleanup_buf_ struct buf how = {0};
    b->read_stack = NULL;
    if (b->read_error == READ_OVER)
        buf_addf(&how, "the files have more than %llu bytes (builds.upload_max)",
                 (unsigned long long)b->front->config->build_upload_max);
    else if (b->read_error || (end && end->exited && end->code == 0 && lseek(b->read_fd, 0, SEEK_SET) < 0))
        buf_adds(&how, "the node cannot keep the files that are copied; is its disk full?");
    else if (end && !(end->exited && end->code == 0)) {
        build_end_text(end, BUILD_RUN_MS, &how);
        buf_adds(&how, "; the lines before say why");
    } else if (failed)
        buf_adds(&how, failed->text);
    if (how.n) {
        build_fail(b, b->step, "COPY from another stage failed: %s", buf_str(&how));
        return;
    }
    build_box_close(b);
    build_box_open(b, b->read_then);
}

static void read_open(struct build_own *b, const char *error)
{
    if (error) {
        build_fail(b, b->step, "the sandbox of the stage cannot be made: %s", error);
        return;
    }
    const char *args[] = {"lay", "--pack", b->plan.steps[b->at].args.v[0], NULL};
    struct build_command c = {
        .cmd = build_tool, .args = args, .user = "root", .cwd = "/", .input = -1, .timeout_ms = BUILD_RUN_MS};
    build_box_run(b, &c, read_ran);
}

void build_stage_read(struct build_own *b, const struct build_step *s, build_then *then)
{
    b->read_fd = openat(b->front->own_dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (b->read_fd < 0) {
        build_fail(b, b->step, "the node cannot make a file for what is copied (errno %d)", errno);
        return;
    }
    build_box_close(b); /* the step before may have left one that is as it was */
    b->read_bytes = 0;
    b->read_error = 0;
    b->read_then = then;
    b->read_stack = b->stages[s->from].stack;
    build_box_open(b, read_open);
}
