/* Forks: one copy of a box's files, and boxes made from it. The copy has no row of its own: its children name it, and with the
 * last of them it goes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/nets.h"
#include "front/template-build.h"

enum { FORK_AT_ONCE = 8 };

struct fork_job {
    struct front *front;
    struct principal who;
    char parent[SANDBOX_ID_MAX];
    char stack[STACK_ID_MAX];
    unsigned count, next, left; /* asked for; to be begun next; not told yet */
    uint32_t timeout_s;
    struct state_cost cost;
    struct box_failure failure;
    bool held, busy; /* the stack is held; children are being begun */
    fork_child *child;
    void *arg;
};
struct fork_one {
    struct fork_job *job;
    unsigned index;
};

static void more(struct fork_job *j);

static void job_free(struct fork_job *j)
{
    if (j->held) {
        state_release(j->front, j->stack);
        state_drop(j->front, j->stack); /* unless a child names it */
    }
    free(j);
}

static void made(void *arg, struct box *b, const struct box_failure *failure)
{
    struct fork_one *one = arg;
    struct fork_job *j = one->job;
    unsigned index = one->index;
    free(one);
    j->left--;
    j->child(j->arg, index, b, &j->cost, failure);
    more(j);
}

/* All that are not begun yet fail for the same reason. */
static void fail_rest(struct fork_job *j)
{
    while (j->next < j->count) {
        unsigned index = j->next++;
        j->left--;
        j->child(j->arg, index, NULL, &j->cost, &j->failure);
    }
}

static void begin_child(struct fork_job *j, const struct box *p)
{
    struct fork_one *one = xcalloc(1, sizeof *one);
    *one = (struct fork_one){.job = j, .index = j->next++};
    struct box_spec spec = {.template = p->template,
                            .timeout_s = j->timeout_s,
                            .metadata = p->metadata,
                            .env = p->env,
                            .secure = p->token[0],
                            .allow_public_traffic = p->allow_public_traffic,
                            .allow_internet = p->allow_internet,
                            .mask_host = p->mask_host[0] ? p->mask_host : NULL,
                            .https_ports = p->https_ports,
                            .nhttps_ports = p->nhttps_ports,
                            .ports = p->ports,
                            .net = p->net ? &p->net->doc : NULL,
                            .auto_pause = p->auto_pause,
                            .auto_pause_files = p->auto_pause_files,
                            .auto_resume = p->auto_resume,
                            .history = p->history,
                            .no_history = !p->history,
                            .idle_s = p->idle_s,
                            .mounts = p->mounts,
                            .nmounts = p->nmounts,
                            .parent = p,
                            .stack = j->stack};
    spec.ports.links = 0;
    box_create(j->front, &j->who, &spec, made, one);
}

static void more(struct fork_job *j)
{
    if (j->busy)
        return;
    j->busy = true;
    while (j->next < j->count && j->left - (j->count - j->next) < FORK_AT_ONCE) {
        struct box *p = map_get(&j->front->boxes->by_id, j->parent);
        if (!p) {
            j->failure = (struct box_failure){.status = 404};
            (void)snprintf(j->failure.text, sizeof j->failure.text, "the sandbox ended while it was being forked");
            fail_rest(j);
            break;
        }
        begin_child(j, p);
    }
    j->busy = false;
    if (j->left == 0)
        job_free(j);
}

static void refused(void *arg)
{
    struct fork_job *j = arg;
    fail_rest(j);
    job_free(j);
}

static void set_failure(struct fork_job *j, const struct state_failure *why)
{
    j->failure = (struct box_failure){.status = why->status, .error_code = why->error_code};
    (void)snprintf(j->failure.text, sizeof j->failure.text, "%s", why->text);
}

static void captured(void *arg, const struct stock_reply *r)
{
    struct fork_job *j = arg;
    struct state_failure why = {0};
    box_finish(j->front, j->parent);
    if (r->error != STOCK_OK) {
        state_stock_failure(r, "the copy of the sandbox's files", &why);
        set_failure(j, &why);
        refused(j);
        return;
    }
    j->cost = (struct state_cost){.frozen_us = r->frozen_us, .bytes = r->bytes};
    more(j);
}

void box_fork(struct front *f, struct box *b, unsigned count, uint32_t timeout_s, fork_child *child, void *arg)
{
    struct state_failure why = {0};
    struct fork_job *j = xcalloc(1, sizeof *j);
    *j = (struct fork_job){.front = f,
                           .who = {.tenant = b->tenant, .scopes = SCOPE_SANDBOXES},
                           .count = count,
                           .left = count,
                           .timeout_s = timeout_s,
                           .child = child,
                           .arg = arg};
    memcpy(j->parent, b->id, sizeof j->parent);
    if (strcmp(b->template, TEMPLATE_HOST) == 0)
        state_fail(&why, 400, "a sandbox of the template '" TEMPLATE_HOST "' has no files of its own to fork");
    else if (b->state != BOX_RUNNING)
        state_fail(&why, 409, "the sandbox is paused; resume it first");
    else if (!state_crowded(f, b->tenant, &why) && !box_begin(b, "a fork"))
        state_fail(&why, 503, "%s of the sandbox is under way; try again", b->busy ? b->busy : "a pause or resume");
    if (why.status) {
        set_failure(j, &why);
        loop_defer(f->loop, refused, j);
        return;
    }
    stack_id_new(j->stack);
    j->held = true;
    state_capture(f, b->id, j->stack, true, captured, j);
}
