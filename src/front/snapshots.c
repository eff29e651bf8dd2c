/* Snapshots: a box's files under a name of their own. It runs on; it stands still for the time of the copy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/events.h"
#include "front/state.h"
#include "front/template-build.h"

struct snapshot {
    struct front *front;
    char box[SANDBOX_ID_MAX];
    char *name; /* or NULL */
    struct tenant *tenant;
    char stack[STACK_ID_MAX];
    bool held;
    struct tmpl_config config;
    struct state_cost cost;
    struct state_failure failure;
    snapshot_done *done;
    void *arg;
};

static void over(struct snapshot *s, const struct tmpl *t)
{
    struct front *f = s->front;
    if (s->held) {
        state_release(f, s->stack);
        if (!t)
            state_drop(f, s->stack);
    }
    s->done(s->arg, t, &s->cost, t ? NULL : &s->failure);
    tmpl_config_done(&s->config);
    free(s->name);
    free(s);
}

static void refused(void *arg) { over(arg, NULL); }

static void publish(struct snapshot *s, const struct tmpl *t)
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
    events_publish(s->front, s->box, s->tenant->id, "snapshot", buf_str(&text));
}

static void recorded(void *arg, const struct tmpl *t, const struct state_failure *failure)
{
    struct snapshot *s = arg;
    if (failure)
        s->failure = *failure;
    else
        publish(s, t);
    over(s, t);
}

static void record(struct snapshot *s)
{
    struct tmpl_new n = {.name = s->name,
                         .tag = "default",
                         .stack = s->stack,
                         .source = s->box,
                         .tenant = s->tenant,
                         .kind = TMPL_SNAPSHOT,
                         .config = &s->config,
                         .bytes = s->cost.bytes};
    tmpl_put(s->front, &n, recorded, s);
}

static void captured(void *arg, const struct stock_reply *r)
{
    struct snapshot *s = arg;
    box_finish(s->front, s->box);
    if (r->error != STOCK_OK) {
        state_stock_failure(r, "the snapshot", &s->failure);
        over(s, NULL);
        return;
    }
    s->cost = (struct state_cost){.frozen_us = r->frozen_us, .bytes = r->bytes};
    record(s);
}

static bool may(struct front *f, struct box *b, struct state_failure *why)
{
    if (strcmp(b->template, TEMPLATE_HOST) == 0)
        state_fail(why, 400,
                   "a sandbox of the template '" TEMPLATE_HOST
                   "' has no files of its own: it sees this machine's, and what it writes lies in memory. Use another "
                   "template");
    else if (state_room(f, b->tenant, 1, STATE_NOTHING, why) && b->state != BOX_STORED &&
             !state_crowded(f, b->tenant, why) && !box_begin(b, "a snapshot"))
        state_fail(why, 503, "%s of the sandbox is under way; try again", b->busy ? b->busy : "a pause or resume");
    return why->status == 0;
}

void box_snapshot(struct front *f, struct box *b, const char *name, snapshot_done *done, void *arg)
{
    struct snapshot *s = xcalloc(1, sizeof *s);
    *s = (struct snapshot){.front = f, .tenant = b->tenant, .done = done, .arg = arg};
    memcpy(s->box, b->id, sizeof s->box);
    s->name = name ? xstrdup(name) : NULL;
    if (b->config)
        tmpl_config_copy(&s->config, b->config);
    if (!may(f, b, &s->failure)) {
        loop_defer(f->loop, refused, s);
        return;
    }
    if (b->state == BOX_STORED) { /* its files are a stack already */
        memcpy(s->stack, b->stack, sizeof s->stack);
        s->cost.bytes = b->state_bytes;
        state_hold(f, s->stack);
        s->held = true;
        record(s);
        return;
    }
    stack_id_new(s->stack);
    s->held = true;
    state_capture(f, b->id, s->stack, b->state == BOX_RUNNING, captured, s);
}
