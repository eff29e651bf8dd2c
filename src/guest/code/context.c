#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "guest/code/context-int.h"

struct waiter {
    struct waiter *next;
    struct context *context;
    struct http_req *request;
    bool with_body;
};

void context_add_json(const struct context *c, struct buf *b)
{
    struct json j;
    json_start(&j, b);
    json_obj(&j, NULL);
    json_str(&j, "id", c->id);
    json_str(&j, "language", c->language->name);
    json_str(&j, "cwd", c->cwd);
    if (c->rights.said) {
        _cleanup_free_ char *said = json_dumps(c->rights.said, JSON_COMPACT | JSON_SORT_KEYS);
        json_none(&j, "rights");
        b->n -= strlen("null");
        buf_adds(b, said ? said : "null");
    }
    json_end_obj(&j);
}

/* Answers everything that waits for the kernel. */
static void context_tell_waiters(struct context *c, unsigned status, const char *why)
{
    while (c->waiters) {
        struct waiter *w = c->waiters;
        _cleanup_buf_ struct buf b = {0};
        c->waiters = w->next;
        if (status != 200)
            buf_addf(&b, "%s\n", why), http_set(w->request, "hutch-error", "kernel_start_failed");
        else if (w->with_body)
            context_add_json(c, &b);
        else
            buf_adds(&b, "null");
        http_reply(w->request, status, status == 200 ? "application/json" : "text/plain", buf_str(&b), b.n);
        free(w);
    }
}

static void context_on_ready(void *arg)
{
    struct context *c = arg;
    c->state = CONTEXT_READY;
    context_tell_waiters(c, 200, NULL);
    cell_start_next(c);
}

static void context_on_message(void *arg, const struct wire_msg *m, const char *why) { cell_on_message(arg, m, why); }

static const char *context_wanted(void *arg) { return cell_wanted(arg); }

static void context_fail(struct context *c, const char *why)
{
    log_text(LOG_LEVEL_WARN, "context %s: %s", c->id, why);
    c->state = CONTEXT_FAILED;
    (void)snprintf(c->why, sizeof c->why, "%s", why);
    context_tell_waiters(c, 500, c->why);
    (void)cell_end_with_error(c, true, "KernelStartFailed", c->why);
}

static void context_on_gone(void *arg, bool was_ready, const char *why)
{
    struct context *c = arg;
    if (was_ready) {
        log_text(LOG_LEVEL_WARN, "context %s: %s", c->id, why);
        context_restart(c, why);
        return;
    }
    kernel_free(c->kernel);
    c->kernel = NULL;
    context_fail(c, why);
}

void context_start_kernel(struct context *c)
{
    static const struct kernel_events events = {context_on_ready, context_wanted, context_on_message, context_on_gone};
    struct err err;
    c->state = CONTEXT_STARTING;
    if (kernel_start(&c->all->world, c->language, c->cwd, &c->rights, &events, c, &c->kernel, &err) < 0)
        context_fail(c, err.msg);
}

void context_restart(struct context *c, const char *why)
{
    char text[KERNEL_WHY];
    (void)snprintf(text, sizeof text, "Context was restarted: %.400s; its variables are lost", why);
    kernel_free(c->kernel);
    c->kernel = NULL;
    c->state = CONTEXT_STARTING;
    if (!cell_end_with_error(c, false, "ContextRestarting", text))
        (void)snprintf(c->notice, sizeof c->notice, "%s\n", text);
    context_start_kernel(c);
}

struct context *context_find(struct contexts *all, const char *id)
{
    struct context *c = all->first;
    while (c && strcmp(c->id, id) != 0)
        c = c->next;
    return c;
}

int context_new(struct contexts *all, const struct language *l, const char *cwd, const struct kernel_rights *rights,
                struct context **ret, struct err *err)
{
    struct stat st;
    char hex[33];
    if (all->n >= CONTEXTS_MAX)
        return err_set(err, ERR_LIMIT, 0, "%d contexts exist, which is the limit; delete one first", CONTEXTS_MAX);
    json_t *spec = language_spec(l, all->world.path, err);
    if (!spec)
        return -1;
    json_decref(spec);
    if (!cwd)
        cwd = all->cwd;
    if (stat(cwd, &st) < 0 || !S_ISDIR(st.st_mode) || access(cwd, X_OK) < 0)
        return err_set(err, ERR_USAGE, 0, "cwd is not a directory that can be entered; make it first");
    if (kernel_may_have(l, rights, err) < 0 || kernel_rights_check(rights, cwd, err) < 0)
        return -1;
    struct context *c = xcalloc(1, sizeof *c);
    *c = (struct context){
        .next = all->first, .all = all, .language = l, .cwd = xstrdup(cwd), .rights = kernel_rights_copy(rights)};
    random_hex(hex, 16);
    (void)snprintf(c->id, sizeof c->id, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
    all->first = c;
    all->n++;
    context_start_kernel(c);
    *ret = c;
    return 0;
}

int context_default(struct contexts *all, const struct language *l, const struct kernel_rights *rights,
                    struct context **ret, struct err *err)
{
    for (struct context *c = all->first; c; c = c->next)
        if (c->is_default && c->language == l && kernel_rights_equal(&c->rights, rights)) {
            *ret = c;
            return 0;
        }
    if (context_new(all, l, NULL, rights, ret, err) < 0)
        return -1;
    (*ret)->is_default = true;
    return 0;
}

void context_free(struct context *c)
{
    struct context **at = &c->all->first;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->all->n--;
    kernel_free(c->kernel);
    c->kernel = NULL;
    c->state = CONTEXT_STARTING;
    context_tell_waiters(c, 500, "the context was deleted");
    (void)cell_end_with_error(c, true, "ContextDeleted", "the context was deleted");
    free(c->cwd);
    kernel_rights_done(&c->rights);
    free(c);
}

static void context_on_waiter_closed(struct http_req *r)
{
    struct waiter *w = r->user, **at = &w->context->waiters;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    free(w);
}

void context_reply_when_ready(struct context *c, struct http_req *r, bool with_body)
{
    struct waiter *w = xcalloc(1, sizeof *w);
    *w = (struct waiter){.next = c->waiters, .context = c, .request = r, .with_body = with_body};
    c->waiters = w;
    r->user = w;
    r->on_closed = context_on_waiter_closed;
    if (c->state == CONTEXT_READY)
        context_tell_waiters(c, 200, NULL);
    else if (c->state == CONTEXT_FAILED)
        context_tell_waiters(c, 500, c->why);
}
