/* Runs a template's start command in the background after a sandbox is bound, and repeats its ready command until that
 * succeeds. Both are ordinary commands of the template's user in its working directory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "sandboxes/sandboxes-int.h"

enum {
    READY_FIRST_MS = 500,  /* between two checks at first, */
    READY_LATER_MS = 2000, /* and after READY_LATER_AFTER_MS */
    READY_LATER_AFTER_MS = 5000,
    READY_ONE_S = 20, /* for one check */
    TAIL_MAX = 2000,  /* bytes of output kept for the message */
    SHOWN_MAX = 300,  /* and shown in it */
};

struct start_run {
    struct sandboxes *sandboxes;
    char id[SANDBOX_ID_MAX];
    char *start, *ready;
    struct session *running, *check;
    struct buf tail; /* of the start command's output */
    loop_id again, deadline;
    uint64_t begun; /* loop time */
    bool over;
    char failure[512];
    start_done *done;
    void *arg;
};

static void start_free(struct start_run *s)
{
    loop_timer_del(s->sandboxes->loop, s->again);
    loop_timer_del(s->sandboxes->loop, s->deadline);
    session_detach(s->running); /* the command runs on */
    session_detach(s->check);
    buf_done(&s->tail);
    free(s->start);
    free(s->ready);
    free(s);
}

void start_cancel(struct start_run *s)
{
    if (s)
        start_free(s);
}

static void start_tell(void *arg)
{
    struct start_run *s = arg;
    start_done *done = s->done;
    void *to = s->arg;
    char failure[sizeof s->failure];
    memcpy(failure, s->failure, sizeof failure);
    s->again = 0;
    start_free(s);
    done(to, failure);
}

/* Answers later, because this may run inside a callback of a command that start_free() detaches. */
static void start_finish(struct start_run *s, const char *what)
{
    struct buf shown = {0};
    if (s->over)
        return;
    s->over = true;
    if (what) {
        size_t skip = s->tail.n > SHOWN_MAX ? s->tail.n - SHOWN_MAX : 0;
        text_add_safe(&shown, buf_str(&s->tail) + skip, SHOWN_MAX);
        (void)snprintf(s->failure, sizeof s->failure, "%s%s%s", what, shown.n ? "; its last output: " : "",
                       buf_str(&shown));
        buf_done(&shown);
    }
    loop_timer_del(s->sandboxes->loop, s->again);
    s->again = loop_timer(s->sandboxes->loop, 0, start_tell, s);
}

static void start_keep_tail(struct start_run *s, const void *p, size_t n)
{
    if (n > TAIL_MAX) {
        p = (const char *)p + (n - TAIL_MAX);
        n = TAIL_MAX;
    }
    buf_add(&s->tail, p, n);
    if (s->tail.n > TAIL_MAX) {
        size_t cut = s->tail.n - TAIL_MAX;
        memmove(s->tail.p, s->tail.p + cut, TAIL_MAX);
        s->tail.n = TAIL_MAX;
        s->tail.p[TAIL_MAX] = 0;
    }
}

static struct session *start_run_shell(struct start_run *s, const char *command, uint64_t timeout_ms,
                                       const struct session_ops *ops)
{
    static const char pick[] = "if [ -x /bin/bash ]; then exec /bin/bash -l -c \"$1\"; else exec /bin/sh -c \"$1\"; fi";
    const char *const args[] = {"-c", pick, "sh", command, NULL};
    struct session_spec spec = {.exec = {.cmd = "/bin/sh", .args = args, .timeout_ms = timeout_ms}};
    return session_start(s->sandboxes, s->id, &spec, ops, s);
}

/* --- the check ---------------------------------------------------------------------------------------------------- */

static void ready_check(void *arg);

static void ready_check_later(struct start_run *s)
{
    uint64_t spent = loop_now(s->sandboxes->loop) - s->begun;
    if (!s->over)
        s->again = loop_timer(s->sandboxes->loop, spent < READY_LATER_AFTER_MS ? READY_FIRST_MS : READY_LATER_MS,
                              ready_check, s);
}

static void ready_on_end(void *arg, const struct session_end *end)
{
    struct start_run *s = arg;
    s->check = NULL;
    if (end->exec->exited && end->exec->code == 0)
        start_finish(s, NULL);
    else
        ready_check_later(s);
}
static void ready_on_failure(void *arg, const struct link_status *st)
{
    struct start_run *s = arg;
    char what[300];
    s->check = NULL;
    if (st->code == LINK_TIMEOUT || st->code == LINK_LIMIT) {
        ready_check_later(s);
        return;
    }
    (void)snprintf(what, sizeof what, "the template's ready command cannot be run: %s", st->text);
    start_finish(s, what);
}
static const struct session_ops check_ops = {.ended = ready_on_end, .failed = ready_on_failure};

static void ready_check(void *arg)
{
    struct start_run *s = arg;
    s->again = 0;
    s->check = start_run_shell(s, s->ready, READY_ONE_S * 1000ULL, &check_ops);
}

/* --- the command -------------------------------------------------------------------------------------------------- */

static void start_on_start(void *arg, uint32_t pid)
{
    struct start_run *s = arg;
    (void)pid;
    if (s->over)
        return;
    if (s->ready)
        s->again = loop_timer(s->sandboxes->loop, READY_FIRST_MS, ready_check, s);
    else
        start_finish(s, NULL);
}
static bool start_on_output(void *arg, enum exec_stream which, uint64_t offset, const void *p, size_t n)
{
    (void)which, (void)offset;
    start_keep_tail(arg, p, n);
    return true;
}
static void start_on_end(void *arg, const struct session_end *told)
{
    struct start_run *s = arg;
    const struct exec_end *end = told->exec;
    char what[120];
    s->running = NULL;
    if (end->exited && end->code == 0)
        return; /* it may have gone into the background: the check decides */
    (void)snprintf(what, sizeof what, "the template's start command %s %d before it was ready",
                   end->exited ? "ended with status" : "was killed by signal", end->code);
    start_finish(s, what);
}
static void start_on_failure(void *arg, const struct link_status *st)
{
    struct start_run *s = arg;
    char what[300];
    s->running = NULL;
    (void)snprintf(what, sizeof what, "the template's start command cannot be run: %s", st->text);
    start_finish(s, what);
}
static const struct session_ops start_ops = {
    .started = start_on_start, .output = start_on_output, .ended = start_on_end, .failed = start_on_failure};

static void start_on_timeout(void *arg)
{
    struct start_run *s = arg;
    char what[120];
    s->deadline = 0;
    (void)snprintf(what, sizeof what, "the template's ready command did not succeed within %d s", START_READY_S);
    start_finish(s, what);
}

struct start_run *start_command(struct sandboxes *sb, const struct sandbox *b, start_done *done, void *arg)
{
    struct start_run *s = xcalloc(1, sizeof *s);
    s->sandboxes = sb;
    memcpy(s->id, b->id, sizeof s->id);
    s->start = b->desc.config->start ? xstrdup(b->desc.config->start) : NULL;
    s->ready = b->desc.config->ready ? xstrdup(b->desc.config->ready) : NULL;
    s->done = done;
    s->arg = arg;
    s->begun = loop_now(sb->loop);
    s->deadline = loop_timer(sb->loop, START_READY_S * 1000ULL, start_on_timeout, s);
    if (s->start)
        s->running = start_run_shell(s, s->start, 0, &start_ops);
    else
        s->again = loop_timer(sb->loop, 0, ready_check, s);
    return s;
}
