/* Forks: captures a sandbox's files once and makes sandboxes from the copy. The copy has no row of its own: the
 * children's rows name its stack, which is dropped with the last child.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "keeper/place.h"
#include "network/networks.h"
#include "snapshots/snapshots-int.h"

enum { FORK_AT_ONCE = 8 };

struct fork_job {
    struct snapshots *snapshots;
    struct principal who;
    char parent[SANDBOX_ID_MAX];
    char stack[STACK_ID_MAX];
    unsigned count, next, left; /* children in all; the next to begin; without a result yet */
    uint32_t timeout_s;
    char *name; /* owned: fork_spec.name */
    struct state_cost cost;
    struct sandbox_failure failure;
    bool held, busy; /* the stack is held; children are being begun */
    fork_child *child;
    void *arg;
};
struct fork_one {
    struct fork_job *job;
    unsigned index;
};

static void fork_begin_more(struct fork_job *j);

static void fork_job_free(struct fork_job *j)
{
    if (j->held) {
        state_release(j->snapshots->stacks, j->stack);
        state_drop(j->snapshots->stacks, j->stack); /* unless a child names it */
    }
    free(j->name);
    free(j);
}

static void fork_on_child_created(void *arg, struct sandbox *b, const struct sandbox_failure *failure)
{
    struct fork_one *one = arg;
    struct fork_job *j = one->job;
    unsigned index = one->index;
    free(one);
    j->left--;
    j->child(j->arg, index, b, &j->cost, failure);
    fork_begin_more(j);
}

/* Fails all children that are not begun, with j->failure. */
static void fork_fail_rest(struct fork_job *j)
{
    while (j->next < j->count) {
        unsigned index = j->next++;
        j->left--;
        j->child(j->arg, index, NULL, &j->cost, &j->failure);
    }
}

/* The parent's labels, but for its name: a name means one sandbox. */
static void fork_name_child(const struct fork_job *j, const struct sandbox *p, struct strv *ret)
{
    for (size_t i = 0; i + 1 < p->desc.metadata.n; i += 2)
        if (strcmp(p->desc.metadata.v[i], "name") != 0) {
            strv_add(ret, p->desc.metadata.v[i]);
            strv_add(ret, p->desc.metadata.v[i + 1]);
        }
    if (j->name[0]) {
        strv_add(ret, "name");
        strv_add(ret, j->name);
    }
}

static void fork_begin_child(struct fork_job *j, const struct sandbox *p)
{
    struct fork_one *one = xcalloc(1, sizeof *one);
    *one = (struct fork_one){.job = j, .index = j->next++};
    struct sandbox_spec spec = {.desc = p->desc, .net = p->net ? &p->net->doc : NULL}; /* borrowed for the call */
    struct sandbox_desc *d = &spec.desc;
    _cleanup_strv_ struct strv labels = {0};
    if (j->name) {
        fork_name_child(j, p, &labels);
        d->metadata = labels;
        spec.unique = j->name[0] ? "name" : NULL;
    }
    memcpy(d->stack, j->stack, sizeof d->stack);
    memcpy(d->parent, p->id, sizeof d->parent);
    d->timeout_s = j->timeout_s;
    d->no_history = !d->history;
    d->generation = 0;
    d->ports.links = 0;
    d->tier[0] = '\0';
    sandbox_create(j->snapshots->sandboxes, &j->who, &spec, fork_on_child_created, one);
}

static void fork_begin_more(struct fork_job *j)
{
    if (j->busy)
        return;
    j->busy = true;
    while (j->next < j->count && j->left - (j->count - j->next) < FORK_AT_ONCE) {
        struct sandbox *p = sandbox_lookup(j->snapshots->sandboxes, j->parent);
        if (!p) {
            j->failure = (struct sandbox_failure){.status = 404};
            (void)snprintf(j->failure.text, sizeof j->failure.text, "the sandbox ended while it was being forked");
            fork_fail_rest(j);
            break;
        }
        fork_begin_child(j, p);
    }
    j->busy = false;
    if (j->left == 0)
        fork_job_free(j);
}

static void fork_on_refused(void *arg)
{
    struct fork_job *j = arg;
    fork_fail_rest(j);
    fork_job_free(j);
}

static void fork_set_failure(struct fork_job *j, const struct state_failure *why)
{
    j->failure = (struct sandbox_failure){.status = why->status, .error_code = why->error_code};
    (void)snprintf(j->failure.text, sizeof j->failure.text, "%s", why->text);
}

static void fork_on_captured(void *arg, const struct layers_reply *r)
{
    struct fork_job *j = arg;
    struct state_failure why = {0};
    sandbox_finish(j->snapshots->sandboxes, j->parent);
    if (r->error != LAYERS_OK) {
        state_layers_failure(r, "the copy of the sandbox's files", &why);
        fork_set_failure(j, &why);
        fork_on_refused(j);
        return;
    }
    j->cost = (struct state_cost){.frozen_us = r->frozen_us, .bytes = r->bytes};
    fork_begin_more(j);
}

void sandbox_fork(struct snapshots *sn, struct sandbox *b, const struct fork_spec *spec, fork_child *child, void *arg)
{
    struct state_failure why = {0};
    struct fork_job *j = xcalloc(1, sizeof *j);
    *j = (struct fork_job){.snapshots = sn,
                           .who = {.tenant = b->tenant, .scopes = SCOPE_SANDBOXES},
                           .count = spec->count,
                           .left = spec->count,
                           .timeout_s = spec->timeout_s,
                           .name = spec->name ? xstrdup(spec->name) : NULL,
                           .child = child,
                           .arg = arg};
    memcpy(j->parent, b->id, sizeof j->parent);
    if (strcmp(b->desc.template, TEMPLATE_HOST) == 0)
        state_fail(&why, 400, "a sandbox of the template '" TEMPLATE_HOST "' has no files of its own to fork");
    else if (b->state != SANDBOX_RUNNING)
        state_fail(&why, 409, "the sandbox is paused; resume it first");
    else if (!state_crowded(sn->stacks, b->tenant, &why) && !sandbox_begin(b, "a fork"))
        state_fail(&why, 503, "%s of the sandbox is under way; try again", b->busy ? b->busy : "a pause or resume");
    if (why.status) {
        fork_set_failure(j, &why);
        loop_defer(sn->loop, fork_on_refused, j);
        return;
    }
    stack_id_new(j->stack);
    j->held = true;
    state_capture(sn->stacks, b->id, b->tenant, j->stack, true, fork_on_captured, j);
}
