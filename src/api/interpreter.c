#include "api/interpreter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "peers/link.h"
#include "sandboxes/rights.h"

enum {
    DIALS_MAX = 6,
    DIAL_PAUSE_MS = 50 /* times the number of attempts: a service that was killed comes back in 0.2 s */
};

struct interpreter {
    struct interpreter *next, **at; /* list of all */
    struct api *api;
    char sandbox[SANDBOX_ID_MAX];
    char *path;
    const char *method;
    struct buf body;
    size_t sent, held; /* held: its part of all_held */
    const struct interpreter_ops *ops;
    void *arg;
    struct client *client;
    link_call call;
    loop_id timer, silence;
    unsigned dials, status;
    bool waking, used, begun, paused, heard;
    bool whole;     /* the request was sent */
    bool kept;      /* uses a kept connection, which the service may have closed meanwhile */
    bool cancelled; /* while the sandbox wakes */
    struct buf refusal;
    const char *code; /* of a refusal that the service named */
};

static struct interpreter *all; /* front has one loop */
static size_t all_held;         /* bytes of bodies */

static void interpreter_drop_body(struct interpreter *x)
{
    all_held -= x->held;
    x->held = x->sent = 0;
    buf_done(&x->body);
}

static void interpreter_free(struct interpreter *x)
{
    if (x->next)
        x->next->at = x->at;
    *x->at = x->next;
    if (x->call)
        link_cancel(x->api->peers->links, x->call);
    loop_timer_del(x->api->loop, x->timer);
    loop_timer_del(x->api->loop, x->silence);
    client_free(x->client);
    if (x->used)
        sandbox_unused(x->api->sandboxes, x->sandbox);
    interpreter_drop_body(x);
    buf_done(&x->refusal);
    free(x->path);
    free(x);
}

static void interpreter_fail(struct interpreter *x, unsigned status, const char *code, const char *text)
{
    const struct interpreter_ops *ops = x->ops;
    char copy[INTERPRETER_TEXT_MAX + 1];
    const struct interpreter_failure f = {.status = status, .code = code, .text = copy, .begun = x->begun};
    void *arg = x->arg;
    (void)snprintf(copy, sizeof copy, "%s", text);
    interpreter_free(x);
    ops->failed(arg, &f);
}

/* --- the answer ----------------------------------------------------------------------------------------------------- */

/* The refusals of the service by the name that it sends; other names, and none, are those of a broken one. */
static const struct refusal {
    const char *code;
    unsigned status;
} refusals[] = {
    {"bad_request", 400},         {"unknown_language", 400},  {"language_not_installed", 409},
    {"context_not_found", 404},   {"too_many_contexts", 429}, {"too_many_cells", 429},
    {"kernel_start_failed", 502}, {"too_large", 413},         {"rights_differ", 409},
};

static void interpreter_on_head(void *arg, unsigned status, const struct http_fields *fields, uint64_t length)
{
    struct interpreter *x = arg;
    const char *name = http_field(fields, "hutch-error");
    (void)length;
    x->status = status;
    x->heard = true;
    for (size_t i = 0; name && i < ARRAY_LEN(refusals); i++)
        if (strcmp(refusals[i].code, name) == 0)
            x->code = refusals[i].code;
    loop_timer_del(x->api->loop, x->timer);
    x->timer = 0;
    interpreter_drop_body(x);
}

static void interpreter_refused(struct interpreter *x);

static void interpreter_on_data(void *arg, const void *p, size_t n)
{
    struct interpreter *x = arg;
    x->heard = true;
    if (x->status == 200) {
        x->begun = true;
        x->ops->data(x->arg, p, n);
        return;
    }
    size_t room = INTERPRETER_TEXT_MAX - x->refusal.n;
    buf_add(&x->refusal, p, n < room ? n : room);
    if (n > room)
        interpreter_refused(x); /* no service of ours says more */
}

static void interpreter_refused(struct interpreter *x)
{
    struct buf text = x->refusal;
    unsigned status = 502;
    x->refusal = (struct buf){0};
    for (size_t i = 0; x->code && i < ARRAY_LEN(refusals); i++)
        if (strcmp(refusals[i].code, x->code) == 0)
            status = refusals[i].status;
    while (text.n > 0 && (text.p[text.n - 1] == '\n' || text.p[text.n - 1] == '\0'))
        text.n--;
    buf_addc(&text, '\0');
    if (!x->code && (x->status == 404 || x->status == 405) &&
        strncmp(x->path, INTERPRETER_RIGHTS "/", sizeof INTERPRETER_RIGHTS) == 0)
        interpreter_fail(x, 409, "rights_unknown",
                         "the code interpreter of this sandbox is older than rights of cells, so the cell did not run; "
                         "build its template again");
    else
        interpreter_fail(x, status, x->code ? x->code : "interpreter_failed",
                         x->code && text.p[0]
                             ? text.p
                             : "what answers on port 49999 of the sandbox is not hutch-code, or it failed");
    buf_done(&text);
}

static void interpreter_on_end(void *arg)
{
    struct interpreter *x = arg;
    if (x->status != 200) {
        interpreter_refused(x);
        return;
    }
    const struct interpreter_ops *ops = x->ops;
    void *to = x->arg;
    if (client_reusable(x->client)) {
        interpreter_keep(x->api->loop, x->sandbox, x->client);
        x->client = NULL;
    }
    interpreter_free(x);
    ops->ended(to);
}

static void interpreter_dial(void *arg);

static void interpreter_on_error(void *arg, enum client_failure failure, const char *text)
{
    struct interpreter *x = arg;
    (void)text;
    if (x->kept && failure != CLIENT_BROKEN) { /* an end of the service takes its variables along: ask the next one */
        x->kept = false;
        client_free(x->client);
        x->client = NULL;
        loop_timer_del(x->api->loop, x->timer);
        loop_timer_del(x->api->loop, x->silence);
        x->silence = 0;
        x->sent = 0;
        x->whole = false;
        x->timer = loop_timer(x->api->loop, 0, interpreter_dial, x);
        return;
    }
    interpreter_fail(x, 502, "interpreter_lost",
                     "the code interpreter ended or was killed; it starts again, and its variables are lost");
}

/* --- the request ---------------------------------------------------------------------------------------------------- */

static void interpreter_on_writable(void *arg)
{
    enum { PIECE = 64 * 1024 };
    struct interpreter *x = arg;
    bool more = true;
    while (more && x->sent < x->body.n) {
        size_t n = x->body.n - x->sent < PIECE ? x->body.n - x->sent : PIECE;
        more = client_write(x->client, x->body.p + x->sent, n);
        x->sent += n;
    }
    if (x->sent == x->body.n && x->body.n > 0 && !x->whole) {
        x->whole = true;
        client_end(x->client);
    }
}

static void interpreter_on_late(void *arg)
{
    struct interpreter *x = arg;
    x->timer = 0;
    interpreter_fail(x, 504, "interpreter_silent", "the code interpreter did not answer in time");
}

/* A sandbox that is paused by hand says nothing; its cell goes on when it is resumed. */
static void interpreter_on_silence(void *arg)
{
    struct interpreter *x = arg;
    const struct sandbox *b = sandbox_find(x->api->sandboxes, x->sandbox);
    x->silence = 0;
    if ((x->begun || x->status) && !x->heard && !x->paused && b && b->state == SANDBOX_RUNNING) {
        interpreter_fail(x, 504, "interpreter_silent", "the code interpreter does not answer any more");
        return;
    }
    x->heard = false;
    x->silence = loop_timer(x->api->loop, INTERPRETER_SILENCE_MS, interpreter_on_silence, x);
}

static void interpreter_send(struct interpreter *x, struct client *client)
{
    static const struct client_events events = {.on_head = interpreter_on_head,
                                                .on_data = interpreter_on_data,
                                                .on_end = interpreter_on_end,
                                                .on_writable = interpreter_on_writable,
                                                .on_error = interpreter_on_error};
    static const struct http_field fields[] = {{"content-type", "application/json"}, {"user-agent", "hutch"}};
    const struct client_request q = {.method = x->method,
                                     .target = x->path,
                                     .host = "localhost",
                                     .fields = {fields, ARRAY_LEN(fields)},
                                     .length = x->body.n};
    x->client = client;
    x->timer = loop_timer(x->api->loop, INTERPRETER_ANSWER_MS, interpreter_on_late, x);
    x->silence = loop_timer(x->api->loop, INTERPRETER_SILENCE_MS, interpreter_on_silence, x);
    client_start(x->client, &q, &events, x);
    if (x->paused)
        client_pause(x->client);
    interpreter_on_writable(x);
}

static void interpreter_on_dialed(void *arg, const struct link_status *st, int fd)
{
    struct interpreter *x = arg;
    x->call = 0;
    if (st->code == LINK_OK)
        interpreter_send(x, client_new(x->api->loop, transport_plain(fd)));
    else if (st->code == LINK_NOT_FOUND && ++x->dials < DIALS_MAX)
        x->timer = loop_timer(x->api->loop, (uint64_t)x->dials * DIAL_PAUSE_MS, interpreter_dial, x);
    else if (st->code == LINK_NOT_FOUND)
        interpreter_fail(x, 409, "no_interpreter",
                         "no code interpreter runs in this sandbox; create it from a template that has one, such as "
                         "code-interpreter");
    else if (st->code == LINK_PAUSED)
        interpreter_fail(x, 503, "sandbox_paused", "the sandbox is being paused; try again");
    else if (st->code == LINK_GONE)
        interpreter_fail(x, 404, "sandbox_not_found", "the sandbox has ended");
    else
        interpreter_fail(x, 502, "sandbox_unreachable", st->text[0] ? st->text : "the sandbox could not be reached");
}

static void interpreter_dial(void *arg)
{
    struct interpreter *x = arg;
    x->timer = 0;
    x->call = link_dial(x->api->peers->links, x->sandbox, INTERPRETER_PORT, interpreter_on_dialed, x);
}

static void interpreter_on_not_woken(void *arg)
{
    struct interpreter *x = arg;
    x->timer = 0;
    interpreter_fail(x, x->status, "sandbox_not_running", buf_str(&x->refusal));
}

static void interpreter_on_awake(void *arg, const struct state_failure *failure)
{
    struct interpreter *x = arg;
    struct sandbox *b = sandbox_find(x->api->sandboxes, x->sandbox);
    x->waking = false;
    if (x->cancelled) {
        interpreter_free(x);
    } else if (failure || !b || b->state != SANDBOX_RUNNING) {
        x->status = failure ? failure->status : 404;
        buf_adds(&x->refusal, failure ? failure->text : "the sandbox has ended");
        x->timer = loop_timer(x->api->loop, 0, interpreter_on_not_woken, x); /* not from inside interpreter_ask() */
    } else {
        x->used = true;
        sandbox_in_use(x->api->sandboxes, b);
        struct client *client = interpreter_kept(x->sandbox);
        x->kept = client != NULL;
        if (client)
            interpreter_send(x, client);
        else
            interpreter_dial(x);
    }
}

static void interpreter_on_too_much(void *arg)
{
    struct interpreter *x = arg;
    x->timer = 0;
    interpreter_fail(x, 429, "too_many_cells",
                     "64 MiB of cells wait for the code interpreters of this node, which is the limit; wait for one of "
                     "them");
}

static void interpreter_on_too_many(void *arg)
{
    struct interpreter *x = arg;
    x->timer = 0;
    interpreter_fail(x, 429, "too_many_cells",
                     "100 requests to this sandbox's code interpreter are under way, which is the limit; wait for one "
                     "of them");
}

struct interpreter *interpreter_ask(struct api *api, struct sandbox *b, const char *method, const char *path,
                                    const struct buf *body, const struct interpreter_ops *ops, void *arg)
{
    struct interpreter *x = xcalloc(1, sizeof *x);
    size_t same = 0;
    for (const struct interpreter *o = all; o; o = o->next)
        same += strcmp(o->sandbox, b->id) == 0;
    *x = (struct interpreter){
        .next = all, .at = &all, .api = api, .path = xstrdup(path), .method = method, .ops = ops, .arg = arg};
    memcpy(x->sandbox, b->id, sizeof x->sandbox);
    if (all)
        all->at = &x->next;
    all = x;
    bool fits = !body || body->n <= INTERPRETER_HELD_MAX - all_held;
    if (same >= INTERPRETER_PER_SANDBOX_MAX || !fits) {
        x->timer = loop_timer(api->loop, 0, fits ? interpreter_on_too_many : interpreter_on_too_much, x);
        return x;
    }
    if (body) {
        buf_add(&x->body, body->p, body->n);
        x->held = body->n;
        all_held += body->n;
    }
    x->waking = true;
    sandbox_awake(api->sandboxes, b, false, interpreter_on_awake, x);
    return x;
}

void interpreter_refuse(struct interpreter *x)
{
    interpreter_fail(x, 502, "interpreter_failed", "the code interpreter's answer is too long");
}

void interpreter_cancel(struct interpreter *x)
{
    if (x && x->waking)
        x->cancelled = true;
    else if (x)
        interpreter_free(x);
}

void interpreter_pause(struct interpreter *x)
{
    x->paused = true;
    if (x->client)
        client_pause(x->client);
}

void interpreter_resume(struct interpreter *x)
{
    x->paused = false;
    if (x->client)
        client_resume(x->client);
}

bool interpreter_is_context(const char *id)
{
    size_t n = strspn(id, "0123456789abcdef-");
    return n > 0 && n <= 36 && id[n] == '\0';
}

int interpreter_add_rights(json_t *rights, struct json *j, struct buf *b, struct err *err)
{
    _cleanup_rights_ struct rights read = {0};
    if (rights_read(rights, &read, err) < 0)
        return -1;
    if (!read.given)
        return 0;
    if (read.exec.own_user || read.exec.memory)
        return err_set(err, ERR_USAGE, 0, "field 'rights' of a cell cannot have '%s', only that of a command can",
                       read.exec.own_user ? "user" : "memoryMB");
    _cleanup_free_ char *text = json_dumps(rights, JSON_COMPACT);
    json_none(j, "rights");
    b->n -= strlen("null");
    buf_adds(b, text ? text : "null");
    return 1;
}
