/* Boxes are paused: frozen in memory, or put away as files.
 *
 * What is told and what is in the store decide, so that front, keeper and stock may die at any moment: until the row says
 * `stored` and is on the disk the sandbox lives (frozen, at worst, and thawed when front and keeper meet again); from then on
 * whatever still lives of it is killed. The stack it had before is dropped after that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/events.h"
#include "front/template-build.h"

/* --- changes ------------------------------------------------------------------------------------------------------- */

static void late(void *arg);

struct box_change *box_change_new(struct front *f, struct box_own *o, int kind)
{
    struct box_change *c = xcalloc(1, sizeof *c);
    c->front = f;
    c->box = o;
    c->kind = (typeof(c->kind))kind;
    c->begun_ms = loop_now(f->loop);
    memcpy(c->id, o->b.id, sizeof c->id);
    o->change = c;
    c->timer = loop_timer(f->loop, BOX_CHANGE_MS, late, c);
    return c;
}

void box_change_wait(struct box_change *c, struct change_waiter **list, box_paused *done, void *arg)
{
    struct change_waiter *w = xcalloc(1, sizeof *w);
    *w = (struct change_waiter){.next = *list, .done = done, .arg = arg};
    *list = w;
    if (!c->timer) /* those before were told already */
        c->timer = loop_timer(c->front->loop, BOX_CHANGE_MS, late, c);
}

static void tell(struct change_waiter *list, const struct state_failure *failure)
{
    for (struct change_waiter *w = list, *next; w; w = next) {
        next = w->next;
        if (w->done)
            w->done(w->arg, failure);
        free(w);
    }
}

static void drop_waiters(struct change_waiter **list)
{
    for (struct change_waiter *w = *list, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    *list = NULL;
}

/* Nobody waits longer than that; the change itself goes on, for the calls it consists of cannot be taken back. */
static void late(void *arg)
{
    struct box_change *c = arg;
    struct state_failure why = {0};
    struct change_waiter *waiters = c->waiters, *resumers = c->resumers;
    c->timer = 0;
    c->waiters = c->resumers = NULL;
    state_fail(&why, 503, "the sandbox is still on its way after %d s; try again", BOX_CHANGE_MS / 1000);
    tell(waiters, &why);
    tell(resumers, &why);
}

void box_change_longer(struct box_change *c, uint64_t ms)
{
    if (!c->timer)
        return;
    loop_timer_del(c->front->loop, c->timer);
    c->timer = loop_timer(c->front->loop, BOX_CHANGE_MS + ms, late, c);
}

static void maybe_free(struct box_change *c)
{
    if (c->box || c->pending)
        return;
    if (c->held)
        state_release(c->front, c->stack);
    /* A capture that came too late. */
    if (c->held && c->stack[0])
        state_drop(c->front, c->stack);
    free(c);
}

/* Takes the box away from it. */
static void part(struct box_change *c)
{
    struct box_own *o = c->box;
    loop_timer_del(c->front->loop, c->timer);
    c->timer = 0;
    start_cancel(c->start);
    c->start = NULL;
    o->change = NULL;
    c->box = NULL;
}

bool box_change_back(struct box_change *c)
{
    c->pending--;
    if (c->box)
        return true;
    maybe_free(c);
    return false;
}

static void deadline_told(void *arg, const struct keeper_reply *r)
{
    (void)arg;
    if (r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX)
        log_text(LOG_LEVEL_ERROR, "the deadline of a sandbox could not be set: %s", r->text);
}

void box_change_over(struct box_change *c, enum box_state state)
{
    struct front *f = c->front;
    struct box *b = &c->box->b;
    struct change_waiter *waiters = c->waiters, *resumers = c->resumers;
    struct state_failure failure = c->failure;
    uint64_t timeout = c->resume_timeout_s;
    c->waiters = c->resumers = NULL;
    part(c);
    b->state = state;
    b->used_ms = loop_now(f->loop);
    boxes_idle_look(f, 0);
    if (state == BOX_RUNNING && c->life_changed)
        keeperc_deadline(f->keeper, b->id, box_deadline(b), deadline_told, NULL);
    if (failure.status) {
        struct log_line l;
        if (log_start(&l, LOG_LEVEL_WARN, "sandbox not paused or resumed")) {
            log_str(&l, "sandbox", b->id);
            log_str(&l, "why", failure.text);
            log_end(&l);
        }
    }
    /* Those first, so that a resume is under way when somebody hears of the pause. */
    for (struct change_waiter *w = resumers, *next; w; w = next) {
        next = w->next;
        box_resume(f, b, timeout, w->done, w->arg);
        free(w);
    }
    maybe_free(c);
    tell(waiters, failure.status ? &failure : NULL);
}

void box_change_ended(struct box_own *o)
{
    struct box_change *c = o->change;
    struct state_failure why = {0};
    if (!c)
        return;
    struct change_waiter *waiters = c->waiters, *resumers = c->resumers;
    c->waiters = c->resumers = NULL;
    if (c->quota) { /* of a resume that did not come to its end */
        struct tenant_need need = box_need(&o->b);
        c->quota = false;
        tenant_give_back(c->front, o->b.tenant, &need, false);
        box_count_stored(c->front, &o->b, true);
        o->leftover = true;
    }
    part(c);
    maybe_free(c);
    state_fail(&why, 404, "the sandbox has ended");
    tell(waiters, &why);
    tell(resumers, &why);
}

void box_change_drop(struct box_own *o)
{
    struct box_change *c = o->change;
    if (!c)
        return;
    drop_waiters(&c->waiters);
    drop_waiters(&c->resumers);
    part(c);
    free(c);
}

struct refusal {
    struct state_failure why;
    box_paused *done;
    void *arg;
};

static void refuse_now(void *arg)
{
    struct refusal *r = arg;
    if (r->done)
        r->done(r->arg, r->why.status ? &r->why : NULL);
    free(r);
}

void box_refuse(struct front *f, const struct state_failure *why, box_paused *done, void *arg)
{
    struct refusal *r = xcalloc(1, sizeof *r);
    *r = (struct refusal){.why = *why, .done = done, .arg = arg};
    loop_defer(f->loop, refuse_now, r);
}

void box_count_stored(struct front *f, struct box *b, bool stored)
{
    struct box_own *o = box_own(b);
    if (o->stored == stored)
        return;
    o->stored = stored;
    f->boxes->nstored += stored ? 1 : (size_t)-1;
    b->tenant->stored += stored ? 1U : UINT32_MAX;
}

void box_publish(struct front *f, const struct box *b, const char *type, const struct box_change *c)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    bool files = c->kind == CHANGE_STORE || c->kind == CHANGE_UNLOAD || c->kind == CHANGE_RESTORE;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_bool(&j, "memory", !files);
    if (c->kind == CHANGE_STORE || c->kind == CHANGE_UNLOAD)
        json_u64(&j, "bytes", b->state_bytes);
    json_u64(&j, "ms", loop_now(f->loop) - c->begun_ms);
    json_end_obj(&j);
    if (!b->hidden)
        events_publish(f, b->id, b->tenant->id, type, buf_str(&text));
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "sandbox changed")) {
        log_str(&l, "sandbox", b->id);
        log_str(&l, "to", type);
        log_u64(&l, "ms", loop_now(f->loop) - c->begun_ms);
        log_end(&l);
    }
}

struct state_ability state_ability(const struct front *f) { return f->boxes->ability; }

/* --- back again ---------------------------------------------------------------------------------------------------- */

static void put_back_done(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "sandbox %s: %s", c->id, r->text);
    box_change_over(c, BOX_RUNNING);
}

static void thawed(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "sandbox %s could not be thawed: %s", c->id, r->text);
    c->pending++;
    keeperc_deadline(c->front->keeper, c->id, box_deadline(&c->box->b), put_back_done, c);
}

/* It could not be paused (c->failure says why): it runs on. One that was frozen before stays so. */
static void give_up(struct box_change *c)
{
    if (c->kind == CHANGE_UNLOAD) {
        box_change_over(c, BOX_FROZEN);
        return;
    }
    c->pending++;
    keeperc_resume(c->front->keeper, c->id, thawed, c);
}

/* --- as files ------------------------------------------------------------------------------------------------------ */

static void stored_killed(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    struct front *f = c->front;
    struct box_own *o = c->box;
    struct tenant_need need = box_need(&o->b);
    if (r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX) {
        log_text(LOG_LEVEL_ERROR, "sandbox %s is stored, but what is left of it cannot be killed: %s", c->id, r->text);
        o->leftover = true;
    }
    links_gone(f->links, c->id);
    tenant_give_back(f, o->b.tenant, &need, true);
    box_count_stored(f, &o->b, true);
    state_release(f, c->stack);
    c->held = false;
    if (strcmp(c->before, o->b.stack) != 0)
        state_drop(f, c->before);
    box_publish(f, &o->b, "paused", c);
    box_change_over(c, BOX_STORED);
}

static void stored_written(void *arg, const struct err *err)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    struct box *b = &c->box->b;
    if (err) {
        memcpy(b->stack, c->before, sizeof b->stack);
        b->state_bytes = c->bytes_before;
        c->box->row_state = c->kind == CHANGE_UNLOAD ? STORE_BOX_FROZEN : STORE_BOX_RUNNING;
        state_fail_write(&c->failure, err, "the node cannot record the pause");
        give_up(c);
        return;
    }
    c->pending++;
    keeperc_kill(c->front->keeper, c->id, stored_killed, c);
}

static void captured(void *arg, const struct stock_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    struct box *b = &c->box->b;
    if (r->error != STOCK_OK) {
        state_stock_failure(r, "the copy of the sandbox's files", &c->failure);
        give_up(c);
        return;
    }
    memcpy(c->before, b->stack, sizeof c->before);
    c->bytes_before = b->state_bytes;
    memcpy(b->stack, c->stack, sizeof b->stack);
    b->state_bytes = r->bytes;
    c->pending++;
    box_write_as(c->front, b, STORE_BOX_STORED, stored_written, c);
}

static void capture(struct box_change *c)
{
    stack_id_new(c->stack);
    c->held = true;
    c->pending++;
    state_capture(c->front, c->id, c->stack, false, captured, c);
}

/* --- in memory ----------------------------------------------------------------------------------------------------- */

static void frozen_written(void *arg, const struct err *err)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (err) {
        c->box->row_state = STORE_BOX_RUNNING;
        state_fail_write(&c->failure, err, "the node cannot record the pause");
        give_up(c);
        return;
    }
    box_publish(c->front, &c->box->b, "paused", c);
    box_change_over(c, BOX_FROZEN);
}

static void frozen(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    struct front *f = c->front;
    if (r->error == KEEPER_HOST)
        f->boxes->ability.freeze = 0;
    else if (r->error == KEEPER_OK)
        f->boxes->ability.freeze = 1;
    if (r->error != KEEPER_OK) {
        state_fail(&c->failure,
                   r->error == KEEPER_HOST         ? 501
                   : r->error == KEEPER_NO_SANDBOX ? 404
                                                   : 500,
                   "the sandbox cannot be frozen: %s", r->text);
        give_up(c);
        return;
    }
    if (c->kind == CHANGE_STORE) {
        capture(c);
        return;
    }
    c->pending++;
    box_write_as(f, &c->box->b, STORE_BOX_FROZEN, frozen_written, c);
}

static void deadline_away(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (r->error != KEEPER_OK) {
        state_fail(&c->failure, r->error == KEEPER_NO_SANDBOX ? 404 : 500, "the sandbox cannot be paused: %s", r->text);
        box_change_over(c, BOX_RUNNING);
        return;
    }
    c->pending++;
    keeperc_pause(c->front->keeper, c->id, frozen, c);
}

/* asked: by somebody who can be told that there is no room. */
static bool may_pause(struct front *f, struct box *b, bool memory, bool asked, struct state_failure *why)
{
    if (b->state != BOX_RUNNING && b->state != BOX_RESUMING)
        state_fail(why, 409, "the sandbox is paused already");
    else if (b->state == BOX_RESUMING)
        state_fail(why, 503, "the sandbox is just being resumed; try again");
    else if (b->busy)
        state_fail(why, 503, "%s of the sandbox is under way; try again", b->busy);
    else if (!memory && strcmp(b->template, TEMPLATE_HOST) == 0)
        state_fail(why, 400,
                   "a sandbox of the template '" TEMPLATE_HOST
                   "' has no files of its own that could be kept; pause it with its memory");
    else if (!memory && asked && state_room(f, b->tenant, 1, STATE_NOTHING, why))
        state_crowded(f, b->tenant, why);
    return why->status == 0;
}

static void pause_box(struct front *f, struct box *b, bool memory, bool asked, box_paused *done, void *arg)
{
    struct state_failure why = {0};
    if (!may_pause(f, b, memory, asked, &why)) {
        box_refuse(f, &why, done, arg);
        return;
    }
    struct box_change *c = box_change_new(f, box_own(b), memory ? CHANGE_FREEZE : CHANGE_STORE);
    box_change_wait(c, &c->waiters, done, arg);
    b->state = BOX_PAUSING;
    box_own(b)->row_state = STORE_BOX_RUNNING;
    for (size_t i = 0; i < f->boxes->npauses; i++)
        f->boxes->pauses[i].fn(f->boxes->pauses[i].arg, b);
    /* A connection to an init that stands still would only hang. */
    links_paused(f->links, b->id);
    /* First, so that keeper does not end it meanwhile. */
    c->pending++;
    keeperc_deadline(f->keeper, b->id, boxes_boot_ms() + BOX_FAR_S * 1000ULL, deadline_away, c);
}

void box_pause(struct front *f, struct box *b, bool memory, box_paused *done, void *arg)
{
    pause_box(f, b, memory, true, done, arg);
}

void box_pause_anyway(struct front *f, struct box *b, bool memory, box_paused *done, void *arg)
{
    pause_box(f, b, memory, false, done, arg);
}

void box_unload(struct front *f, struct box *b, box_paused *done, void *arg)
{
    struct state_failure why = {0};
    if (b->state == BOX_STORED) {
        box_refuse(f, &why, done, arg); /* done already */
        return;
    }
    if (b->state != BOX_FROZEN)
        state_fail(&why, 409, "the sandbox is not paused in memory");
    else if (b->busy)
        state_fail(&why, 503, "%s of the sandbox is under way; try again", b->busy);
    else if (strcmp(b->template, TEMPLATE_HOST) == 0)
        state_fail(&why, 400, "a sandbox of the template '" TEMPLATE_HOST "' has no files of its own");
    else
        (void)state_room(f, b->tenant, 0, STATE_SOME, &why); /* it counts already; its bytes do not yet */
    if (why.status) {
        box_refuse(f, &why, done, arg);
        return;
    }
    struct box_change *c = box_change_new(f, box_own(b), CHANGE_UNLOAD);
    box_change_wait(c, &c->waiters, done, arg);
    b->state = BOX_PAUSING;
    box_own(b)->row_state = STORE_BOX_FROZEN;
    capture(c);
}

static void still_thawed(void *arg, const struct keeper_reply *r)
{
    (void)arg;
    if (r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX)
        log_text(LOG_LEVEL_WARN, "a sandbox that could not be killed cannot be thawed: %s", r->text);
}

enum box_state box_not_killed(struct front *f, struct box_own *o, enum box_state before)
{
    if (!o->stored && o->row_state == STORE_BOX_STORED) { /* a pause was written, but not at its end yet */
        struct tenant_need need = box_need(&o->b);
        tenant_give_back(f, o->b.tenant, &need, true);
        box_count_stored(f, &o->b, true);
        o->leftover = true;
    }
    if (o->stored)
        return BOX_STORED;
    if (o->row_state == STORE_BOX_FROZEN)
        return BOX_FROZEN;
    if (before == BOX_PAUSING)
        keeperc_resume(f->keeper, o->b.id, still_thawed, NULL);
    return BOX_RUNNING;
}

/* --- one at a time ------------------------------------------------------------------------------------------------- */

bool box_begin(struct box *b, const char *what)
{
    if (b->busy || box_own(b)->change || !box_is_there(b))
        return false;
    b->busy = what;
    return true;
}

void box_finish(struct front *f, const char *id)
{
    struct box *b = map_get(&f->boxes->by_id, id);
    if (!b)
        return;
    b->busy = NULL;
    b->busy_waits = false;
}
