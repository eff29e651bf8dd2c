/* Snapshots: captures a sandbox's files as a template row of its own. The sandbox is frozen during the copy and then
 * runs on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "keeper/place.h"
#include "sandboxes/events.h"
#include "sandboxes/session.h"
#include "snapshots/snapshots-int.h"

struct snapshot {
    struct snapshots *snapshots;
    char sandbox[SANDBOX_ID_MAX];
    char *name; /* or NULL */
    struct tenant *tenant;
    char stack[STACK_ID_MAX];
    bool held;
    struct template_config config;
    struct state_cost cost;
    struct state_failure failure;
    snapshot_done *done;
    void *arg;
};

static void snapshot_finish(struct snapshot *s, const struct template *t)
{
    struct snapshots *sn = s->snapshots;
    if (s->held) {
        state_release(sn->stacks, s->stack);
        if (!t)
            state_drop(sn->stacks, s->stack);
    }
    s->done(s->arg, t, &s->cost, t ? NULL : &s->failure);
    template_config_done(&s->config);
    free(s->name);
    free(s);
}

static void snapshot_on_refused(void *arg) { snapshot_finish(arg, NULL); }

static void snapshot_publish(struct snapshot *s, const struct template *t)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_str(&j, "snapshot", t->id);
    if (t->name[0])
        json_str(&j, "name", t->name);
    json_u64(&j, "bytes", s->cost.bytes);
    json_u64(&j, "frozen_us", s->cost.frozen_us);
    json_end_obj(&j);
    events_publish(s->snapshots->events, s->sandbox, s->tenant->id, "snapshot", buf_str(&text));
}

static void snapshot_on_row_stored(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct snapshot *s = arg;
    if (failure)
        s->failure = *failure;
    else
        snapshot_publish(s, t);
    snapshot_finish(s, t);
}

static void snapshot_record(struct snapshot *s)
{
    struct template_new n = {.name = s->name,
                             .tag = "default",
                             .stack = s->stack,
                             .source = s->sandbox,
                             .tenant = s->tenant,
                             .kind = TEMPLATE_SNAPSHOT,
                             .config = &s->config,
                             .bytes = s->cost.bytes};
    template_put(s->snapshots->templates, &n, snapshot_on_row_stored, s);
}

static void snapshot_on_captured(void *arg, const struct layers_reply *r)
{
    struct snapshot *s = arg;
    sandbox_finish(s->snapshots->sandboxes, s->sandbox);
    if (r->error != LAYERS_OK) {
        state_layers_failure(r, "the snapshot", &s->failure);
        snapshot_finish(s, NULL);
        return;
    }
    s->cost = (struct state_cost){.frozen_us = r->frozen_us, .bytes = r->bytes};
    snapshot_record(s);
}

static bool snapshot_may_start(struct snapshots *sn, struct sandbox *b, struct state_failure *why)
{
    if (strcmp(b->desc.template, TEMPLATE_HOST) == 0)
        state_fail(why, 400,
                   "a sandbox of the template '" TEMPLATE_HOST
                   "' has no files of its own: it sees this machine's, and what it writes lies in memory. Use another "
                   "template");
    else if (state_room(sn->stacks, b->tenant, 1, STATE_NOTHING, why) && b->state != SANDBOX_STORED &&
             !state_crowded(sn->stacks, b->tenant, why) && !sandbox_begin(b, "a snapshot"))
        state_fail(why, 503, "%s of the sandbox is under way; try again", b->busy ? b->busy : "a pause or resume");
    return why->status == 0;
}

void sandbox_snapshot(struct snapshots *sn, struct sandbox *b, const char *name, snapshot_done *done, void *arg)
{
    struct snapshot *s = xcalloc(1, sizeof *s);
    *s = (struct snapshot){.snapshots = sn, .tenant = b->tenant, .done = done, .arg = arg};
    memcpy(s->sandbox, b->id, sizeof s->sandbox);
    s->name = name ? xstrdup(name) : NULL;
    if (b->desc.config)
        template_config_copy(&s->config, b->desc.config);
    if (!snapshot_may_start(sn, b, &s->failure)) {
        loop_defer(sn->loop, snapshot_on_refused, s);
        return;
    }
    if (b->state == SANDBOX_STORED) { /* its files are a stack already */
        memcpy(s->stack, b->desc.stack, sizeof s->stack);
        s->cost.bytes = b->state_bytes;
        state_hold(sn->stacks, s->stack);
        s->held = true;
        snapshot_record(s);
        return;
    }
    stack_id_new(s->stack);
    s->held = true;
    state_capture(sn->stacks, b->id, b->tenant, s->stack, b->state == SANDBOX_RUNNING, snapshot_on_captured, s);
}

/* --- the room ----------------------------------------------------------------------------------------------------- */

static struct state_size snapshots_size(void *ctx, const struct tenant *t)
{
    return (struct state_size){.bytes = transactions_bytes(ctx, t)};
}

static const struct stack_owner snapshot_stacks = {.each = generations_each_use, .size = snapshots_size};

struct snapshots *snapshots_new(const struct snapshots_deps *d)
{
    struct snapshots *sn = xcalloc(1, sizeof *sn);
    sn->loop = d->loop;
    sn->db = d->db;
    sn->peers = d->peers;
    sn->stacks = d->stacks;
    sn->templates = d->templates;
    sn->sandboxes = d->sandboxes;
    sn->events = d->events;
    sn->ids = d->ids;
    stacks_add_owner(sn->stacks, &snapshot_stacks, sn);
    sandboxes_set_generations(sn->sandboxes, generation_make, sn);
    return sn;
}

int snapshots_load(struct snapshots *sn, struct err *err)
{
    return generations_load(sn, err) < 0 || transactions_load(sn, err) < 0 ? -1 : 0;
}

void snapshots_free(struct snapshots *sn)
{
    if (!sn)
        return;
    transactions_free(sn);
    generations_free(sn);
    free(sn);
}
