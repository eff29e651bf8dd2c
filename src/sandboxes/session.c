#include "sandboxes/session.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "sandboxes/sandboxes-int.h"

enum {
    COMMAND_SHOWN_MAX = 200, /* of its text, for the generation */
    GENERATION_AGAIN_MS = 20,
    GENERATION_WAIT_MS = 30 * 1000, /* for other work on the files, mostly the generation of another command */
    DEADLINE_GRACE_MS = 500, /* init kills the command this much later, so that the caller gets our error first */
};

struct session {
    struct sandboxes *sandboxes;
    char id[SANDBOX_ID_MAX];
    const struct session_ops *ops; /* NULL: detached; the generation that is being made frees the session */
    void *arg;
    struct limited_start *limited; /* until its cgroup is there; then NULL */
    struct exec *x;                /* NULL before that, and once the command ended */
    uint32_t pid;                  /* 0 until it started */
    bool starts, recorded, has_rights;
    struct exec_rights rights; /* without its paths */
    char *command;             /* its end opens a generation with this text; NULL: none */
    struct session_output *collect;
    uint64_t begun; /* loop time */
    loop_id deadline;
    /* while a generation is made */
    struct exec_end end;
    loop_id again;
    uint64_t until;
};

void sandboxes_set_generations(struct sandboxes *sb, session_generation_fn *make, struct snapshots *sn)
{
    sb->make_generation = make;
    sb->snapshots = sn;
}

void session_output_done(struct session_output *o)
{
    buf_done(&o->kept[EXEC_STDOUT]);
    buf_done(&o->kept[EXEC_STDERR]);
}

static void session_free(struct session *s)
{
    loop_timer_del(s->sandboxes->loop, s->deadline);
    loop_timer_del(s->sandboxes->loop, s->again);
    if (s->limited)
        limited_drop(s->limited);
    free(s->command);
    free(s);
}

/* --- its end ------------------------------------------------------------------------------------------------------ */

void session_status_text(const struct exec_end *end, char ret[SESSION_STATUS_MAX])
{
    static const char *const names[] = {
        [SIGHUP] = "hangup",
        [SIGINT] = "interrupt",
        [SIGQUIT] = "quit",
        [SIGILL] = "illegal instruction",
        [SIGTRAP] = "trace/breakpoint trap",
        [SIGABRT] = "aborted",
        [SIGBUS] = "bus error",
        [SIGFPE] = "floating point exception",
        [SIGKILL] = "killed",
        [SIGUSR1] = "user defined signal 1",
        [SIGSEGV] = "segmentation fault",
        [SIGUSR2] = "user defined signal 2",
        [SIGPIPE] = "broken pipe",
        [SIGALRM] = "alarm clock",
        [SIGTERM] = "terminated",
    };
    const char *core = end->core ? " (core dumped)" : "";
    if (end->exited)
        (void)snprintf(ret, SESSION_STATUS_MAX, "exit status %d", end->code);
    else if (end->code > 0 && (size_t)end->code < ARRAY_LEN(names))
        (void)snprintf(ret, SESSION_STATUS_MAX, "signal: %s%s", names[end->code], core);
    else
        (void)snprintf(ret, SESSION_STATUS_MAX, "signal: signal %d%s", end->code, core);
}

/* An event for every normal end would bury those of commands that were killed. */
static void session_publish_death(const struct session *s, const struct sandbox *b, const struct exec_end *end)
{
    _cleanup_buf_ struct buf out = {0};
    char status[SESSION_STATUS_MAX];
    struct json j;
    session_status_text(end, status);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_u64(&j, "pid", s->pid);
    json_str(&j, "status", status);
    json_bool(&j, "oom", end->oom);
    json_u64(&j, "wallMs", end->wall_ms);
    json_end_obj(&j);
    events_publish(s->sandboxes->events, b->id, b->tenant->id, "exec_ended", buf_str(&out));
}

static void session_publish_denials(const struct session *s, const struct sandbox *b, const struct exec_end *end)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_u64(&j, "pid", s->pid);
    session_add_denied_calls(s->sandboxes, end, &j);
    json_end_obj(&j);
    events_publish(s->sandboxes->events, b->id, b->tenant->id, "denial", buf_str(&out));
}

static void session_finish(struct session *s, const struct exec_end *end, const struct generation *g, const char *error)
{
    const struct sandbox *b = s->recorded ? sandbox_lookup(s->sandboxes, s->id) : NULL;
    struct session_end told = {.exec = end,
                               .rights = s->has_rights ? &s->rights : NULL,
                               .begun_ms = s->begun,
                               .generation = g,
                               .generation_error = error};
    if (b && session_was_killed(end))
        session_publish_death(s, b, end);
    if (b && end->ndenied)
        session_publish_denials(s, b, end);
    s->ops->ended(s->arg, &told);
    session_free(s);
}

/* --- its generation ----------------------------------------------------------------------------------------------- */

static void session_make_generation(void *arg);

static void session_on_generation(void *arg, const struct generation *g, const struct state_failure *failure)
{
    struct session *s = arg;
    struct loop *l = s->sandboxes->loop;
    if (!s->ops)
        session_free(s);
    else if (failure && failure->status == 503 && loop_now(l) < s->until)
        s->again = loop_timer(l, GENERATION_AGAIN_MS, session_make_generation, s);
    else
        session_finish(s, &s->end, g, failure ? failure->text : NULL);
}

static void session_make_generation(void *arg)
{
    struct session *s = arg;
    struct sandboxes *sb = s->sandboxes;
    struct sandbox *b = sandbox_lookup(sb, s->id);
    s->again = 0;
    if (b)
        sb->make_generation(sb->snapshots, b, s->command, session_on_generation, s);
    else
        session_finish(s, &s->end, NULL, NULL);
}

/* Tells the end only after the generation was made: a client that waits for it may start its next command at once. */
static void session_on_ended(void *arg, const struct exec_end *end)
{
    struct session *s = arg;
    struct loop *l = s->sandboxes->loop;
    s->x = NULL;
    loop_timer_del(l, s->deadline);
    s->deadline = 0;
    if (!s->command) {
        session_finish(s, end, NULL, NULL);
        return;
    }
    s->end = *end;
    s->until = loop_now(l) + GENERATION_WAIT_MS;
    session_make_generation(s);
}

/* In a sandbox with history every recorded command opens a generation; in others only one that asks for it. */
static char *session_command_text(const struct session *s, const struct session_spec *spec)
{
    const struct sandbox *b = spec->recorded ? sandbox_lookup(s->sandboxes, s->id) : NULL;
    if (!b || !(b->desc.history || spec->generation) || !s->sandboxes->make_generation)
        return NULL;
    _cleanup_buf_ struct buf text = {0};
    buf_adds(&text, spec->exec.cmd);
    for (size_t i = 0; spec->exec.args && spec->exec.args[i] && text.n < COMMAND_SHOWN_MAX; i++)
        buf_addf(&text, " %s", spec->exec.args[i]);
    return xstrdup(buf_str(&text));
}

/* --- its course --------------------------------------------------------------------------------------------------- */

static void session_on_started(void *arg, uint32_t pid, const char *tag)
{
    struct session *s = arg;
    (void)tag;
    s->pid = pid;
    if (s->ops->started)
        s->ops->started(s->arg, pid);
}

static bool session_on_output(void *arg, enum exec_stream which, uint64_t offset, const void *p, size_t n)
{
    struct session *s = arg;
    struct session_output *o = s->collect;
    if (o) {
        int at = which == EXEC_STDERR ? EXEC_STDERR : EXEC_STDOUT;
        size_t room = o->max - o->kept[at].n, take = n < room ? n : room;
        buf_add(&o->kept[at], p, take);
        o->omitted[at] += n - take;
    }
    return s->ops->output ? s->ops->output(s->arg, which, offset, p, n) : true;
}

static void session_on_failed(void *arg, const struct link_status *st)
{
    struct session *s = arg;
    s->x = NULL;
    s->ops->failed(s->arg, st);
    session_free(s);
}

static const struct exec_ops exec_ops = {
    .started = session_on_started, .output = session_on_output, .ended = session_on_ended, .failed = session_on_failed};

static void session_on_signalled(void *arg, const struct link_status *st) { (void)arg, (void)st; }

static void session_on_deadline(void *arg)
{
    struct session *s = arg;
    struct link_status st = {.code = LINK_TIMEOUT};
    (void)snprintf(st.text, sizeof st.text, "the deadline of the request %s",
                   s->pid ? "has passed" : "passed before the command started");
    s->deadline = 0;
    if (s->starts && s->pid) /* init has its own timer for the case that front has ended */
        (void)exec_signal(s->sandboxes->peers->links, s->id, &(struct exec_select){.pid = s->pid}, SIGKILL,
                          session_on_signalled, NULL);
    if (s->x)
        exec_detach(s->x);
    session_on_failed(s, &st);
}

static struct session *session_new(struct sandboxes *sb, const char *id, uint64_t deadline_ms,
                                   const struct session_ops *ops, void *arg)
{
    struct session *s = xcalloc(1, sizeof *s);
    *s = (struct session){.sandboxes = sb, .ops = ops, .arg = arg, .begun = loop_now(sb->loop)};
    (void)snprintf(s->id, sizeof s->id, "%s", id);
    if (deadline_ms)
        s->deadline = loop_timer(sb->loop, deadline_ms, session_on_deadline, s);
    return s;
}

static void session_on_limited(void *arg, const struct exec_spec *spec, const struct link_status *failed)
{
    struct session *s = arg;
    s->limited = NULL;
    if (failed)
        session_on_failed(s, failed);
    else
        s->x = exec_start(s->sandboxes->peers->links, s->id, spec, &exec_ops, s);
}

struct session *session_start(struct sandboxes *sb, const char *id, const struct session_spec *spec,
                              const struct session_ops *ops, void *arg)
{
    static const char *const none[] = {NULL};
    struct session *s = session_new(sb, id, spec->deadline_ms, ops, arg);
    struct exec_spec exec = spec->exec;
    exec.args = exec.args ? exec.args : none;
    exec.env = exec.env ? exec.env : none;
    if (spec->deadline_ms)
        exec.timeout_ms = spec->deadline_ms + DEADLINE_GRACE_MS;
    s->starts = true;
    if (exec.rights) {
        s->has_rights = true;
        s->rights = *exec.rights;
        s->rights.write = NULL;
    }
    s->recorded = spec->recorded;
    s->collect = spec->collect;
    s->command = session_command_text(s, spec);
    if (exec.rights && exec.rights->memory)
        s->limited = limited_start(sb, s->id, &exec, session_on_limited, s);
    else
        s->x = exec_start(sb->peers->links, s->id, &exec, &exec_ops, s);
    return s;
}

struct session *session_attach(struct sandboxes *sb, const char *id, const struct exec_select *who,
                               const uint64_t from[4], uint64_t deadline_ms, const struct session_ops *ops, void *arg)
{
    struct session *s = session_new(sb, id, deadline_ms, ops, arg);
    s->x = exec_attach(sb->peers->links, s->id, who, from, &exec_ops, s);
    return s;
}

void session_resume(struct session *s)
{
    if (s->x)
        exec_resume(s->x);
}

void session_detach(struct session *s)
{
    if (!s)
        return;
    if (s->x)
        exec_detach(s->x);
    s->ops = NULL;
    if (s->x || s->again || s->limited) /* a command that waits for its cgroup is not started any more */
        session_free(s);
}
