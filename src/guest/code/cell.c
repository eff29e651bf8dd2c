#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/random.h"
#include "guest/code/context-int.h"

enum {
    FULL_GRACE_MS =
        200, /* a cell that wrote too much may be at its end, where an interrupt would hit the kernel's own code */
    END_GRACE_MS = 1000 /* between the two signs of the end: idle on iopub, the reply on shell */
};

struct cell {
    struct cell *next;
    struct context *context;
    struct http_req *request; /* NULL: the client has gone */
    char id[WIRE_ID + 1], *code;
    json_t *env;
    uint64_t timeout_ms;
    bool started, interrupted;
    struct lines lines;
    loop_id keepalive, timeout, grace, last, full;
};

static struct loop *cell_loop(const struct cell *x) { return x->context->all->world.loop; }

static void cell_write(struct cell *x, const struct buf *b)
{
    if (x->request && b->n > 0)
        (void)http_write(x->request, buf_str(b), b->n);
}

static void cell_stop_timers(struct cell *x)
{
    loop_timer_del(cell_loop(x), x->keepalive);
    loop_timer_del(cell_loop(x), x->timeout);
    loop_timer_del(cell_loop(x), x->grace);
    loop_timer_del(cell_loop(x), x->last);
    loop_timer_del(cell_loop(x), x->full);
}

/* Sets the variables of this call, or puts back those that the kernel was started with. */
static void cell_send_env(struct cell *x, bool back)
{
    _cleanup_buf_ struct buf code = {0};
    char id[WIRE_ID + 1];
    const char *name;
    json_t *value;
    json_object_foreach(x->env, name, value)
        language_add_variable(x->context->language, name, back ? getenv(name) : json_string_value(value), &code);
    random_hex(id, WIRE_ID / 2);
    if (code.n > 0)
        kernel_execute(x->context->kernel, id, buf_str(&code), true);
}

/* Takes the cell out of the queue and ends its answer. */
static void cell_end(struct cell *x)
{
    struct context *c = x->context;
    struct cell **at = &c->cells;
    _cleanup_buf_ struct buf b = {0};
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    c->ncells--;
    cell_stop_timers(x);
    lines_add_stop(&x->lines, NULL, &b);
    cell_write(x, &b);
    if (x->request) {
        (void)http_write(x->request, lines_end, strlen(lines_end));
        http_end(x->request);
    }
    if (x->started && c->state == CONTEXT_READY)
        cell_send_env(x, true);
    json_decref(x->env);
    free(x->code);
    free(x);
}

bool cell_end_with_error(struct context *c, bool all, const char *name, const char *why)
{
    bool told = false;
    for (struct cell *x = c->cells, *next; x; x = next) {
        _cleanup_buf_ struct buf b = {0};
        next = x->next;
        if (!all && !x->started)
            continue;
        told |= x->request != NULL;
        lines_add_stop(&x->lines, why, &b);
        lines_add_error(&x->lines, name, why, &b);
        cell_write(x, &b);
        cell_end(x);
    }
    return told;
}

static void cell_on_grace(void *arg)
{
    struct cell *x = arg;
    x->grace = 0;
    context_restart(x->context, "the cell did not react to an interrupt");
}

static void cell_interrupt(struct cell *x)
{
    if (x->interrupted)
        return;
    x->interrupted = true;
    uint64_t grace = x->lines.full ? OUTPUT_GRACE_MS : INTERRUPT_GRACE_MS;
    if (!kernel_interrupt(x->context->kernel))
        grace = 0;
    x->grace = loop_timer(cell_loop(x), grace, cell_on_grace, x);
}

static void cell_on_timeout(void *arg)
{
    struct cell *x = arg;
    char why[96];
    x->timeout = 0;
    (void)snprintf(why, sizeof why, "the cell ran longer than %.3g s and was interrupted",
                   (double)x->timeout_ms / 1000);
    lines_stop(&x->lines, "ExecutionTimeout", why);
    cell_interrupt(x);
}

static void cell_on_full(void *arg)
{
    struct cell *x = arg;
    x->full = 0;
    cell_interrupt(x);
}

static void cell_on_keepalive(void *arg)
{
    struct cell *x = arg;
    x->keepalive = loop_timer(cell_loop(x), KEEPALIVE_MS, cell_on_keepalive, x);
    if (x->request)
        (void)http_write(x->request, lines_keepalive, strlen(lines_keepalive));
}

static void cell_on_closed(struct http_req *r)
{
    struct cell *x = r->user;
    x->request = NULL;
    if (x->started)
        cell_interrupt(x);
    else
        cell_end(x);
}

void cell_start_next(struct context *c)
{
    struct cell *x = c->cells;
    if (!x || x->started || c->state != CONTEXT_READY)
        return;
    x->started = true;
    if (c->notice[0] && x->request) {
        _cleanup_buf_ struct buf b = {0};
        lines_add_text(&x->lines, "stderr", c->notice, &b);
        cell_write(x, &b);
        c->notice[0] = '\0';
    }
    random_hex(x->id, WIRE_ID / 2);
    cell_send_env(x, false);
    kernel_execute(c->kernel, x->id, x->code, false);
    if (x->timeout_ms > 0)
        x->timeout = loop_timer(cell_loop(x), x->timeout_ms, cell_on_timeout, x);
}

static void cell_on_last(void *arg)
{
    struct cell *x = arg;
    struct context *c = x->context;
    x->last = 0;
    cell_end(x);
    cell_start_next(c);
}

/* Of a cell that has written too much only the reply is awaited, which comes by another socket. */
const char *cell_wanted(const struct context *c)
{
    return c->cells && c->cells->started && !c->cells->lines.full ? c->cells->id : NULL;
}

void cell_on_message(struct context *c, const struct wire_msg *m, const char *why)
{
    struct cell *x = c->cells;
    _cleanup_buf_ struct buf b = {0};
    if (!x || !x->started || strcmp(m->parent_id, x->id) != 0)
        return;
    if (why)
        lines_stop_too_large(&x->lines, why);
    else
        lines_add_message(&x->lines, m, &b);
    cell_write(x, &b);
    loop_timer_del(cell_loop(x), x->last);
    x->last = 0;
    if (x->lines.replied && (x->lines.idle || x->lines.full))
        cell_on_last(x);
    else if (x->lines.full && !x->full)
        x->full = loop_timer(cell_loop(x), FULL_GRACE_MS, cell_on_full, x);
    else if (x->lines.idle || x->lines.replied)
        x->last = loop_timer(cell_loop(x), END_GRACE_MS, cell_on_last, x);
}

bool context_run(struct context *c, struct http_req *r, const char *code, json_t *env, uint64_t timeout_ms,
                 uint64_t output_max)
{
    if (c->ncells >= CONTEXT_CELLS_MAX)
        return false;
    struct cell *x = xcalloc(1, sizeof *x), **at = &c->cells;
    *x = (struct cell){.context = c,
                       .request = r,
                       .code = xstrdup(code),
                       .env = json_incref(env),
                       .timeout_ms = timeout_ms,
                       .lines.most = output_max};
    while (*at)
        at = &(*at)->next;
    *at = x;
    c->ncells++;
    r->user = x;
    r->on_closed = cell_on_closed;
    http_set(r, "content-type", "application/x-ndjson");
    http_head(r, 200, HTTP_UNKNOWN);
    x->keepalive = loop_timer(cell_loop(x), KEEPALIVE_MS, cell_on_keepalive, x);
    if (c->state == CONTEXT_FAILED)
        context_start_kernel(c);
    cell_start_next(c);
    return true;
}
