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

/* Files of a stage on their way. It may outlive the build: a worker thread may be writing the last piece. */
struct build_reading {
    struct build_own *build; /* NULL: nobody wants it any more */
    build_then *then;
    int fd;
    uint64_t n;     /* bytes that came */
    struct buf out; /* those that are not written */
    bool writing;   /* the worker has `out` */
    bool broken;    /* it cannot be written */
    bool over;      /* too much came */
    bool ended;     /* the command has */
    struct buf why; /* not by success */
};

static void reading_free(struct build_reading *r)
{
    if (r->fd >= 0)
        (void)close(r->fd);
    buf_done(&r->out);
    buf_done(&r->why);
    free(r);
}

static void drop_read(struct build_own *b)
{
    struct build_reading *r = b->reading;
    b->reading = NULL;
    if (r) {
        r->build = NULL;
        if (!r->writing)
            reading_free(r);
    }
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
    drop_read(b);
}

/* --- COPY from one ------------------------------------------------------------------------------------------------ */

/* All that will come is written, or nothing more is wanted. */
static void read_over(struct build_reading *r)
{
    struct build_own *b = r->build;
    if (r->over) {
        r->why.n = 0;
        buf_addf(&r->why, "the files have more than %llu bytes (builds.upload_max)",
                 (unsigned long long)b->front->config->build_upload_max);
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
    reading_free(r);
    build_box_close(b);
    build_box_open(b, then);
}

static void write_piece(void *arg)
{
    struct build_reading *r = arg;
    r->broken = fd_write_all(r->fd, r->out.p, r->out.n) < 0;
}

static void wrote_piece(void *arg);

/* What came is written on a worker thread, a piece at a time; meanwhile the command is held back. */
static void write_on(struct build_reading *r)
{
    if (r->over || r->broken)
        r->out.n = 0; /* the command ends by itself */
    if (r->out.n >= BUILD_INPUT_PIECE || (r->ended && r->out.n)) {
        r->writing = true;
        loop_work(r->build->front->loop, write_piece, wrote_piece, r);
    } else if (r->ended)
        read_over(r);
}

static void wrote_piece(void *arg)
{
    struct build_reading *r = arg;
    r->writing = false;
    r->out.n = 0;
    if (!r->build) {
        reading_free(r);
        return;
    }
    if (!r->ended)
        exec_resume(r->build->exec);
    write_on(r);
}

bool build_stage_output(struct build_own *b, const void *p, size_t n)
{
    struct build_reading *r = b->reading;
    r->n += n;
    r->over |= r->n > b->front->config->build_upload_max;
    if (!r->over && !r->broken)
        buf_add(&r->out, p, n);
    write_on(r);
    return !r->writing;
}

static void read_ran(struct build_own *b, const struct exec_end *end, const struct link_status *failed)
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
        write_on(r);
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
    int fd = openat(b->front->own_dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        build_fail(b, b->step, "the node cannot make a file for what is copied (errno %d)", errno);
        return;
    }
    build_box_close(b); /* the step before may have left one that is as it was */
    drop_read(b);
    b->reading = xcalloc(1, sizeof *b->reading);
    *b->reading = (struct build_reading){.build = b, .then = then, .fd = fd};
    b->read_stack = b->stages[s->from].stack;
    build_box_open(b, read_open);
}
