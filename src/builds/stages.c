/* Stages of a build. Each leaves a stack, a key and a context; later stages start from it or copy its files. For a COPY
 * our own program packs the files in a sandbox of the source stage and unpacks them in that of the step; the two never
 * meet.
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
#include "builds/builds-int.h"

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

/* Files of a stage that are being copied. It may outlive the build: a worker thread may be writing the last piece. */
struct build_reading {
    struct build_own *build; /* NULL: the build is over; the worker's callback frees this */
    build_then *then;
    int fd;
    uint64_t n;     /* bytes received */
    struct buf out; /* received and not written yet */
    bool writing;   /* the worker uses `out` */
    bool broken;    /* a write failed */
    bool over;      /* more bytes than builds.upload_max */
    bool ended;     /* the command has ended */
    struct buf why; /* why it failed; empty: it did not */
};

static void stage_reading_free(struct build_reading *r)
{
    if (r->fd >= 0)
        (void)close(r->fd);
    buf_done(&r->out);
    buf_done(&r->why);
    free(r);
}

static void stage_reading_drop(struct build_own *b)
{
    struct build_reading *r = b->reading;
    b->reading = NULL;
    if (r) {
        r->build = NULL;
        if (!r->writing)
            stage_reading_free(r);
    }
    if (b->read_fd >= 0)
        (void)close(b->read_fd);
    b->read_fd = -1;
}

/* --- from one to the next ----------------------------------------------------------------------------------------- */

static void build_context_copy(struct build_context *to, const struct build_context *from)
{
    to->user = from->user ? xstrdup(from->user) : NULL;
    to->workdir = from->workdir ? xstrdup(from->workdir) : NULL;
    for (size_t i = 0; i < from->env.n; i++)
        strv_add(&to->env, from->env.v[i]);
}

static void build_from_stage(struct build_own *b, const struct build_made *m)
{
    build_set_stack(b, m->stack, false);
    memcpy(b->key, m->key, sizeof b->key);
    build_context_copy(&b->ctx, &m->ctx);
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
        build_from_stage(b, &b->stages[s->from_stage]);
        then(b, NULL);
        return;
    }
    build_log_add(&b->b.log, "base", BUILD_INFO, "[base] FROM %s", s->from_template ? s->from_template : s->from_image);
    build_base(b, then);
}

void build_stage_end(struct build_own *b)
{
    struct build_made *m = &b->stages[b->stage++];
    build_sandbox_close(b);
    if (stack_id_valid(b->stack))
        state_hold(b->builds->stacks, b->stack);
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
            state_release(b->builds->stacks, m->stack);
        build_context_done(&m->ctx);
        free(m->start);
        free(m->ready);
    }
    free(b->stages);
    b->stages = NULL;
    b->read_stack = NULL;
    stage_reading_drop(b);
}

/* --- COPY from one ------------------------------------------------------------------------------------------------ */

/* All output is written, or the copy has failed. */
static void stage_reading_finish(struct build_reading *r)
{
    struct build_own *b = r->build;
    if (r->over) {
        r->why.n = 0;
        buf_addf(&r->why, "the files have more than %llu bytes (builds.upload_max)",
                 (unsigned long long)b->builds->config->build_upload_max);
    } else if (r->broken || (!r->why.n && lseek(r->fd, 0, SEEK_SET) < 0)) {
        r->why.n = 0;
        buf_adds(&r->why, "the node cannot keep the files that are copied; is its disk full?");
    }
    if (r->why.n) {
        build_fail(b, b->step, "COPY from another stage failed: %s", buf_str(&r->why)); /* r is gone */
        return;
    }
    build_then *then = r->then;
    b->read_fd = TAKE_FD(r->fd);
    b->reading = NULL;
    stage_reading_free(r);
    build_sandbox_close(b);
    build_sandbox_open(b, then);
}

static void stage_write_piece(void *arg)
{
    struct build_reading *r = arg;
    r->broken = fd_write_all(r->fd, r->out.p, r->out.n) < 0;
}

static void stage_on_piece_written(void *arg);

/* A worker thread writes the output, one piece at a time; meanwhile the command is stopped by back-pressure. */
static void stage_write_more(struct build_reading *r)
{
    if (r->over || r->broken)
        r->out.n = 0; /* discard; wait for the command to end */
    if (r->out.n >= BUILD_INPUT_PIECE || (r->ended && r->out.n)) {
        r->writing = true;
        loop_work(r->build->builds->loop, stage_write_piece, stage_on_piece_written, r);
    } else if (r->ended)
        stage_reading_finish(r);
}

static void stage_on_piece_written(void *arg)
{
    struct build_reading *r = arg;
    r->writing = false;
    r->out.n = 0;
    if (!r->build) {
        stage_reading_free(r);
        return;
    }
    if (!r->ended)
        session_resume(r->build->exec);
    stage_write_more(r);
}

bool build_stage_output(struct build_own *b, const void *p, size_t n)
{
    struct build_reading *r = b->reading;
    r->n += n;
    r->over |= r->n > b->builds->config->build_upload_max;
    if (!r->over && !r->broken)
        buf_add(&r->out, p, n);
    stage_write_more(r);
    return !r->writing;
}

static void stage_on_read_ran(struct build_own *b, const struct exec_end *end, const struct link_status *failed)
{
    struct build_reading *r = b->reading;
    b->read_stack = NULL;
    r->ended = true;
    if (end && !(end->exited && end->code == 0)) {
        build_end_text(end, BUILD_RUN_MS, &r->why);
        buf_adds(&r->why, "; the lines before say why");
    } else if (failed)
        buf_adds(&r->why, failed->text);
    if (!r->writing)
        stage_write_more(r);
}

static void stage_on_read_open(struct build_own *b, const char *error)
{
    if (error) {
        build_fail(b, b->step, "the sandbox of the stage cannot be made: %s", error);
        return;
    }
    const char *args[] = {"lay", "--pack", b->plan.steps[b->at].args.v[0], NULL};
    struct build_command c = {
        .cmd = build_tool, .args = args, .user = "root", .cwd = "/", .input = -1, .timeout_ms = BUILD_RUN_MS};
    build_sandbox_run(b, &c, stage_on_read_ran);
}

void build_stage_read(struct build_own *b, const struct build_step *s, build_then *then)
{
    int fd = openat(b->builds->own_dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        build_fail(b, b->step, "the node cannot make a file for what is copied (errno %d)", errno);
        return;
    }
    build_sandbox_close(b); /* the step before may have left an unchanged sandbox open */
    stage_reading_drop(b);
    b->reading = xcalloc(1, sizeof *b->reading);
    *b->reading = (struct build_reading){.build = b, .then = then, .fd = fd};
    b->read_stack = b->stages[s->from].stack;
    build_sandbox_open(b, stage_on_read_open);
}
