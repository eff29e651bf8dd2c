/* run.c - commands that a toolbox request runs in its sandbox and answers with. */
#include <stdlib.h>
#include <string.h>

#include "api/daytona/daytona.h"
#include "base/cleanup.h"
#include "base/mem.h"

enum { GRACE_MS = 2000, TEXTS_MAX = 1 << 20 };

/* A command under way. Without a request (the client left) it only waits for the end of what it killed. */
struct running {
    struct http_req *r;
    struct sandboxes *sandboxes;
    struct loop *loop;
    struct session *session;
    char sandbox[SANDBOX_ID_MAX];
    uint32_t pid; /* 0: not started yet */
    bool late;
    loop_id timer; /* its time limit; after the client left: when it is given up */
    struct session_output out;
    daytona_ran_fn *then;
};

static void daytona_run_free(struct running *w)
{
    loop_timer_del(w->loop, w->timer);
    session_output_done(&w->out);
    free(w);
}

static void daytona_run_on_killed(void *arg, const struct session_end *end) { (void)arg, (void)end; }
static void daytona_run_on_not_killed(void *arg, const struct link_status *st) { (void)arg, (void)st; }

/* Each command leads a process group, and a signal through init reaches its leader alone. A process that left the group lives
 * on. */
void daytona_kill_group(struct sandboxes *sb, const char *sandbox, uint32_t pid)
{
    static const struct session_ops ops = {.ended = daytona_run_on_killed, .failed = daytona_run_on_not_killed};
    _cleanup_free_ char *command = xasprintf("kill -9 -%u", pid);
    const char *const args[] = {"-c", command, NULL};
    const struct session_spec spec = {.exec = {.cmd = "/bin/sh", .args = args, .timeout_ms = GRACE_MS},
                                      .deadline_ms = 2 * (uint64_t)GRACE_MS};
    if (pid)
        (void)session_start(sb, sandbox, &spec, &ops, NULL);
}

/* A killed command whose session does not end: a process that left its group holds its output. */
static void daytona_run_give_up(void *arg)
{
    struct running *w = arg;
    w->timer = 0;
    if (!w->pid) { /* it must not run on unseen */
        w->timer = loop_timer(w->loop, GRACE_MS, daytona_run_give_up, w);
        return;
    }
    session_detach(w->session);
    daytona_run_free(w);
}

static void daytona_run_on_client_left(struct http_req *r)
{
    struct running *w = r->user;
    w->r = NULL;
    w->out.max = 0;
    session_output_done(&w->out);
    loop_timer_del(w->loop, w->timer);
    w->timer = loop_timer(w->loop, GRACE_MS, daytona_run_give_up, w);
    daytona_kill_group(w->sandboxes, w->sandbox, w->pid);
}

static void daytona_run_on_late(void *arg)
{
    struct running *w = arg;
    w->timer = 0;
    w->late = true;
    daytona_kill_group(w->sandboxes, w->sandbox, w->pid);
}

static void daytona_run_on_started(void *arg, uint32_t pid)
{
    struct running *w = arg;
    w->pid = pid;
    if (!w->r || w->late)
        daytona_kill_group(w->sandboxes, w->sandbox, w->pid);
}

/* st NULL: it ran. */
static void daytona_run_answer(struct running *w, int code, const struct link_status *st)
{
    struct http_req *r = w->r;
    const struct session_output *o = &w->out;
    const struct daytona_ran ran = {.code = code,
                                    .late = w->late,
                                    .out = &o->kept[EXEC_STDOUT],
                                    .err = &o->kept[EXEC_STDERR],
                                    .omitted_out = o->omitted[EXEC_STDOUT],
                                    .omitted_err = o->omitted[EXEC_STDERR]};
    if (r) {
        r->user = NULL;
        api_on_closed(r, NULL);
    }
    if (r && st)
        daytona_link_error(r, st, NULL);
    else if (r)
        w->then(r, &ran);
    daytona_run_free(w);
}

static void daytona_run_on_ended(void *arg, const struct session_end *end)
{
    daytona_run_answer(arg, end->exec->exited ? end->exec->code : 128 + end->exec->code, NULL);
}

static void daytona_run_on_failed(void *arg, const struct link_status *st)
{
    struct running *w = arg;
    w->late |= st->code == LINK_TIMEOUT;
    daytona_run_answer(w, 124, w->late ? NULL : st);
}

/* False: it answered. Longer texts fail in the sandbox with "Argument list too long". */
static bool daytona_run_texts_fit(struct api_call *c, const struct daytona_run *what)
{
    const char *const *const lists[] = {what->argv, what->env};
    size_t total = 0, longest = 0;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (const char *const *v = lists[i]; v && *v; v++) {
            size_t n = strlen(*v);
            total += n + 1;
            longest = n > longest ? n : longest;
        }
    if (longest <= DAYTONA_TEXT_MAX && total <= TEXTS_MAX)
        return true;
    daytona_error(
        c->req, 400, NULL,
        "the texts of the request have %zu bytes, the longest %zu; at most %d are allowed, and %d in one text", total,
        longest, TEXTS_MAX, DAYTONA_TEXT_MAX);
    return false;
}

void daytona_run(struct api_call *c, struct sandbox *b, const struct daytona_run *what, daytona_ran_fn *then)
{
    static const struct session_ops ops = {
        .started = daytona_run_on_started, .ended = daytona_run_on_ended, .failed = daytona_run_on_failed};
    if (!daytona_run_texts_fit(c, what))
        return;
    struct running *w = xcalloc(1, sizeof *w);
    *w = (struct running){.r = c->req,
                          .sandboxes = c->api->sandboxes,
                          .loop = c->api->loop,
                          .then = then,
                          .out = {.max = DAYTONA_OUTPUT_MAX}};
    memcpy(w->sandbox, b->id, sizeof w->sandbox);
    c->req->user = w;
    api_on_closed(c->req, daytona_run_on_client_left);
    c->req->fin_leaves = true;
    if (what->timeout_ms)
        w->timer = loop_timer(w->loop, what->timeout_ms, daytona_run_on_late, w);
    const struct session_spec spec = {
        .exec = {.cmd = what->argv[0], .args = what->argv + 1, .env = what->env, .cwd = what->cwd},
        .recorded = what->recorded,
        .deadline_ms = what->timeout_ms ? what->timeout_ms + GRACE_MS : 0, /* the limit itself is ours */
        .collect = &w->out};
    w->session = session_start(w->sandboxes, w->sandbox, &spec, &ops, w);
}

const char *daytona_next_text(const struct buf *b, size_t *at)
{
    const char *p = buf_str(b) + *at, *end = *at < b->n ? memchr(p, 0, b->n - *at) : NULL;
    if (!end)
        return NULL;
    *at += (size_t)(end - p) + 1;
    return p;
}

void daytona_add_omitted(struct buf *out, uint64_t omitted)
{
    if (omitted)
        buf_addf(out, "\n[hutch: %llu more bytes of output were dropped]\n", (unsigned long long)omitted);
}

void daytona_script(struct api_call *c, struct sandbox *b, const char *script, const char *const *args,
                    daytona_ran_fn *then)
{
    const char *argv[16] = {"/bin/sh", "-c", script, "hutch"};
    size_t n = 4;
    for (size_t i = 0; args && args[i] && n < ARRAY_LEN(argv) - 1; i++)
        argv[n++] = args[i];
    const struct daytona_run what = {.argv = argv, .timeout_ms = (uint64_t)DAYTONA_SCRIPT_S * 1000};
    daytona_run(c, b, &what, then);
}

/* --- the sandbox ---------------------------------------------------------------------------------------------------- */

struct waking {
    struct api_wait wait;
    void (*then)(struct api_call *c, struct sandbox *b);
    char id[SANDBOX_ID_MAX];
};

static void daytona_on_awake(void *arg, const struct state_failure *failure)
{
    struct waking w = *(struct waking *)arg;
    struct http_req *r = api_wait_over(arg);
    if (!r)
        return;
    struct api_call *c = api_call_of(r);
    struct sandbox *b = failure ? NULL : sandbox_of(c->api->sandboxes, &c->who, w.id);
    r->user = NULL;
    http_resume(r);
    if (failure)
        daytona_state_error(r, failure);
    else if (!b)
        daytona_error(r, 404, NULL, "sandbox %s not found", w.id);
    else {
        if (!c->in_use) {
            c->in_use = true;
            sandbox_in_use(c->api->sandboxes, b);
        }
        w.then(c, b);
    }
}

void daytona_toolbox(struct api_call *c, void (*then)(struct api_call *c, struct sandbox *b))
{
    struct sandbox *b = daytona_sandbox(c);
    if (!b)
        return;
    if (b->state != SANDBOX_RUNNING && c->who.scopes & SCOPE_READ) {
        daytona_error(c->req, 409, NULL, "sandbox %s does not run, and a key that only reads cannot start it", b->id);
        return;
    }
    if (b->state == SANDBOX_STORED) {
        daytona_error(c->req, 400, NULL, "sandbox %s is stopped; start it first", c->param[0]);
        return;
    }
    struct waking *w = api_wait_for(c->req, sizeof *w);
    w->then = then;
    memcpy(w->id, b->id, sizeof w->id);
    http_pause(c->req);
    sandbox_awake(c->api->sandboxes, b, false, daytona_on_awake, w);
}
