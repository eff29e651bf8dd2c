/* Pauses sandboxes: freezes them in memory, or stores them as files.
 *
 * front, keeper and the layer store may die at any moment; the row decides what the sandbox is. Until the row
 * `stored` is on disk the sandbox lives (at worst it is frozen, and thawed at the next comparison with keeper).
 * After that its remaining processes are killed, and then the stack that it had before is dropped.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/names.h"
#include "sandboxes/events.h"
#include "sandboxes/sandboxes-int.h"

/* --- changes ------------------------------------------------------------------------------------------------------ */

static void change_on_timeout(void *arg);

bool sandbox_is_changing(const struct sandbox *b) { return ((const struct sandbox_own *)b)->change; }

struct sandbox_change *sandbox_change_new(struct sandboxes *sb, struct sandbox_own *o, enum life_event asked)
{
    (void)sandbox_step(&o->b, asked);
    struct sandbox_change *c = xcalloc(1, sizeof *c);
    c->sandboxes = sb;
    c->sandbox = o;
    c->begun_ms = loop_now(sb->loop);
    memcpy(c->id, o->b.id, sizeof c->id);
    o->change = c;
    c->timer = loop_timer(sb->loop, SANDBOX_CHANGE_MS, change_on_timeout, c);
    return c;
}

void sandbox_change_wait(struct sandbox_change *c, struct change_waiter **list, sandbox_paused *done, void *arg)
{
    struct change_waiter *w = xcalloc(1, sizeof *w);
    *w = (struct change_waiter){.next = *list, .done = done, .arg = arg};
    *list = w;
    if (!c->timer) /* earlier waiters have timed out */
        c->timer = loop_timer(c->sandboxes->loop, SANDBOX_CHANGE_MS, change_on_timeout, c);
}

static void change_tell(struct change_waiter *list, const struct state_failure *failure)
{
    for (struct change_waiter *w = list, *next; w; w = next) {
        next = w->next;
        if (w->done)
            w->done(w->arg, failure);
        free(w);
    }
}

static void change_drop_waiters(struct change_waiter **list)
{
    for (struct change_waiter *w = *list, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    *list = NULL;
}

/* Answers all waiters with a failure. The change itself continues, because its calls cannot be cancelled. */
static void change_on_timeout(void *arg)
{
    struct sandbox_change *c = arg;
    struct state_failure why = {0};
    struct change_waiter *waiters = c->waiters, *resumers = c->resumers;
    c->timer = 0;
    c->waiters = c->resumers = NULL;
    state_fail(&why, 503, "the sandbox is still on its way after %d s; try again", SANDBOX_CHANGE_MS / 1000);
    change_tell(waiters, &why);
    change_tell(resumers, &why);
}

void sandbox_change_longer(struct sandbox_change *c, uint64_t ms)
{
    if (!c->timer)
        return;
    loop_timer_del(c->sandboxes->loop, c->timer);
    c->timer = loop_timer(c->sandboxes->loop, SANDBOX_CHANGE_MS + ms, change_on_timeout, c);
}

static void change_maybe_free(struct sandbox_change *c)
{
    if (c->sandbox || c->pending)
        return;
    if (c->stack[0]) { /* no row names it */
        state_release(c->sandboxes->stacks, c->stack);
        state_drop(c->sandboxes->stacks, c->stack);
    }
    free(c);
}

/* Separates the change from its sandbox. */
static void change_detach(struct sandbox_change *c)
{
    struct sandbox_own *o = c->sandbox;
    loop_timer_del(c->sandboxes->loop, c->timer);
    c->timer = 0;
    start_cancel(c->start);
    c->start = NULL;
    o->change = NULL;
    c->sandbox = NULL;
}

bool sandbox_change_back(struct sandbox_change *c)
{
    c->pending--;
    if (c->sandbox)
        return true;
    change_maybe_free(c);
    return false;
}

static void change_on_deadline_set(void *arg, const struct keeper_reply *r)
{
    (void)arg;
    if (r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX)
        log_text(LOG_LEVEL_ERROR, "the deadline of a sandbox could not be set: %s", r->text);
}

void sandbox_change_over(struct sandbox_change *c, enum life_event e)
{
    struct sandboxes *sb = c->sandboxes;
    struct sandbox *b = &c->sandbox->b;
    struct change_waiter *waiters = c->waiters, *resumers = c->resumers;
    struct state_failure failure = c->failure;
    uint64_t timeout = c->resume_timeout_s;
    c->waiters = c->resumers = NULL;
    change_detach(c);
    (void)sandbox_step(b, e);
    b->used_ms = loop_now(sb->loop);
    sandboxes_idle_look(sb, 0);
    if (b->state == SANDBOX_RUNNING && c->life_changed)
        keeperc_deadline(sb->peers->keeper, b->id, sandbox_deadline(b), change_on_deadline_set, NULL);
    if (failure.status) {
        struct log_line l;
        if (log_start(&l, LOG_LEVEL_WARN, "sandbox not paused or resumed")) {
            log_str(&l, "sandbox", b->id);
            log_str(&l, "why", failure.text);
            log_end(&l);
        }
    }
    /* First, so that the resume is under way when waiters hear of the pause. */
    for (struct change_waiter *w = resumers, *next; w; w = next) {
        next = w->next;
        sandbox_resume(sb, b, timeout, w->done, w->arg);
        free(w);
    }
    change_maybe_free(c);
    change_tell(waiters, failure.status ? &failure : NULL);
}

void sandbox_change_ended(struct sandbox_own *o)
{
    struct sandbox_change *c = o->change;
    struct state_failure why = {0};
    if (!c)
        return;
    struct change_waiter *waiters = c->waiters, *resumers = c->resumers;
    c->waiters = c->resumers = NULL;
    if (o->b.state >= SANDBOX_RESTORE_CLEARING && o->b.state <= SANDBOX_RESTORE_UNDOING && !o->stored) {
        struct tenant_need need = sandbox_need(&o->b); /* taken by an unfinished restore */
        tenant_give_back(c->sandboxes->tenants, o->b.tenant, &need, false);
        sandbox_count_stored(c->sandboxes, &o->b, true);
        o->leftover = true;
    }
    change_detach(c);
    change_maybe_free(c);
    state_fail(&why, 404, "the sandbox has ended");
    change_tell(waiters, &why);
    change_tell(resumers, &why);
}

void sandbox_change_drop(struct sandbox_own *o)
{
    struct sandbox_change *c = o->change;
    if (!c)
        return;
    change_drop_waiters(&c->waiters);
    change_drop_waiters(&c->resumers);
    change_detach(c);
    free(c);
}

struct refusal {
    struct state_failure why;
    sandbox_paused *done;
    void *arg;
};

static void sandbox_refusal_deliver(void *arg)
{
    struct refusal *r = arg;
    if (r->done)
        r->done(r->arg, r->why.status ? &r->why : NULL);
    free(r);
}

void sandbox_refuse(struct sandboxes *sb, const struct state_failure *why, sandbox_paused *done, void *arg)
{
    struct refusal *r = xcalloc(1, sizeof *r);
    *r = (struct refusal){.why = *why, .done = done, .arg = arg};
    loop_defer(sb->loop, sandbox_refusal_deliver, r);
}

void sandbox_count_stored(struct sandboxes *sb, struct sandbox *b, bool stored)
{
    struct sandbox_own *o = sandbox_own(b);
    if (o->stored == stored)
        return;
    o->stored = stored;
    sb->nstored += stored ? 1 : (size_t)-1;
    b->tenant->stored += stored ? 1U : UINT32_MAX;
}

void sandbox_publish(struct sandboxes *sb, const struct sandbox *b, const char *type, const struct sandbox_change *c)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    bool stored = b->state == SANDBOX_STORE_ENDING || b->state == SANDBOX_UNLOAD_ENDING;
    bool files = stored || b->state == SANDBOX_RESTORE_WRITING;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_bool(&j, "memory", !files);
    if (stored)
        json_u64(&j, "bytes", b->state_bytes);
    json_u64(&j, "ms", loop_now(sb->loop) - c->begun_ms);
    json_end_obj(&j);
    if (!b->desc.hidden)
        events_publish(sb->events, b->id, b->tenant->id, type, buf_str(&text));
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "sandbox changed")) {
        log_str(&l, "sandbox", b->id);
        log_str(&l, "to", type);
        log_u64(&l, "ms", loop_now(sb->loop) - c->begun_ms);
        log_end(&l);
    }
}

struct state_ability state_ability(const struct sandboxes *sb) { return sb->ability; }

/* --- back again --------------------------------------------------------------------------------------------------- */

static void pause_on_deadline_restored(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "sandbox %s: %s", c->id, r->text);
    sandbox_change_over(c, LIFE_ON_UNDONE);
}

static void pause_on_thawed(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "sandbox %s could not be thawed: %s", c->id, r->text);
    c->pending++;
    keeperc_deadline(c->sandboxes->peers->keeper, c->id, sandbox_deadline(&c->sandbox->b), pause_on_deadline_restored,
                     c);
}

/* The pause failed (c->failure says why): the sandbox runs on, or stays frozen if it was before. */
static void pause_give_up(struct sandbox_change *c)
{
    if (life_step(c->sandbox->b.state, LIFE_ON_FAILED)->action == LIFE_FINISH) {
        sandbox_change_over(c, LIFE_ON_FAILED);
        return;
    }
    (void)sandbox_step(&c->sandbox->b, LIFE_ON_FAILED);
    c->pending++;
    keeperc_resume(c->sandboxes->peers->keeper, c->id, pause_on_thawed, c);
}

/* --- as files ----------------------------------------------------------------------------------------------------- */

static void pause_on_killed(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    struct sandboxes *sb = c->sandboxes;
    struct sandbox_own *o = c->sandbox;
    struct tenant_need need = sandbox_need(&o->b);
    if (r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX) {
        log_text(LOG_LEVEL_ERROR, "sandbox %s is stored, but what is left of it cannot be killed: %s", c->id, r->text);
        o->leftover = true;
    }
    links_gone(sb->peers->links, c->id);
    tenant_give_back(sb->tenants, o->b.tenant, &need, true);
    sandbox_count_stored(sb, &o->b, true);
    state_release(sb->stacks, c->stack);
    c->stack[0] = '\0';
    if (strcmp(c->before, o->b.desc.stack) != 0)
        state_drop(sb->stacks, c->before);
    sandbox_publish(sb, &o->b, "paused", c);
    sandbox_change_over(c, LIFE_ON_FINISHED);
}

static void pause_on_stored_row(void *arg, const struct err *err)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    struct sandbox *b = &c->sandbox->b;
    if (err) {
        memcpy(b->desc.stack, c->before, sizeof b->desc.stack);
        b->state_bytes = c->bytes_before;
        c->sandbox->row_state = b->state == SANDBOX_UNLOAD_ENDING ? DB_SANDBOX_FROZEN : DB_SANDBOX_RUNNING;
        state_fail_write(&c->failure, err, "the node cannot record the pause");
        pause_give_up(c);
        return;
    }
    c->pending++;
    keeperc_kill(c->sandboxes->peers->keeper, c->id, pause_on_killed, c);
}

static void pause_on_captured(void *arg, const struct layers_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    struct sandbox *b = &c->sandbox->b;
    if (r->error != LAYERS_OK) {
        state_layers_failure(r, "the copy of the sandbox's files", &c->failure);
        pause_give_up(c);
        return;
    }
    memcpy(c->before, b->desc.stack, sizeof c->before);
    c->bytes_before = b->state_bytes;
    memcpy(b->desc.stack, c->stack, sizeof b->desc.stack);
    b->state_bytes = r->bytes;
    (void)sandbox_step(b, LIFE_ON_CAPTURED);
    c->pending++;
    sandbox_write_as(c->sandboxes, b, DB_SANDBOX_STORED, pause_on_stored_row, c);
}

static void pause_capture(struct sandbox_change *c)
{
    stack_id_new(c->stack);
    c->pending++;
    state_capture(c->sandboxes->stacks, c->id, c->sandbox ? c->sandbox->b.tenant : NULL, c->stack, false,
                  pause_on_captured, c);
}

/* --- in memory ---------------------------------------------------------------------------------------------------- */

static void pause_on_frozen_row(void *arg, const struct err *err)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (err) {
        c->sandbox->row_state = DB_SANDBOX_RUNNING;
        state_fail_write(&c->failure, err, "the node cannot record the pause");
        pause_give_up(c);
        return;
    }
    sandbox_publish(c->sandboxes, &c->sandbox->b, "paused", c);
    sandbox_change_over(c, LIFE_ON_FINISHED);
}

static void pause_on_frozen(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    struct sandboxes *sb = c->sandboxes;
    if (r->error == KEEPER_HOST)
        sb->ability.freeze = 0;
    else if (r->error == KEEPER_OK)
        sb->ability.freeze = 1;
    if (r->error != KEEPER_OK) {
        state_fail(&c->failure,
                   r->error == KEEPER_HOST         ? 501
                   : r->error == KEEPER_NO_SANDBOX ? 404
                                                   : 500,
                   "the sandbox cannot be frozen: %s", r->text);
        pause_give_up(c);
        return;
    }
    if (c->sandbox->b.state == SANDBOX_STORING) {
        pause_capture(c);
        return;
    }
    c->pending++;
    sandbox_write_as(sb, &c->sandbox->b, DB_SANDBOX_FROZEN, pause_on_frozen_row, c);
}

static void pause_on_deadline_moved(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (r->error != KEEPER_OK) {
        state_fail(&c->failure, r->error == KEEPER_NO_SANDBOX ? 404 : 500, "the sandbox cannot be paused: %s", r->text);
        sandbox_change_over(c, LIFE_ON_UNDONE);
        return;
    }
    c->pending++;
    keeperc_pause(c->sandboxes->peers->keeper, c->id, pause_on_frozen, c);
}

/* asked: a client requested it, so a full quota refuses it. */
static bool pause_may_start(struct sandboxes *sb, struct sandbox *b, bool memory, bool asked, struct state_failure *why)
{
    if (!sandbox_may_ask(b, memory ? LIFE_ASK_FREEZE : LIFE_ASK_STORE, why))
        return false;
    if (b->busy)
        state_fail(why, 503, "%s of the sandbox is under way; try again", b->busy);
    else if (!memory && strcmp(b->desc.template, TEMPLATE_HOST) == 0)
        state_fail(why, 400,
                   "a sandbox of the template '" TEMPLATE_HOST
                   "' has no files of its own that could be kept; pause it with its memory");
    else if (!memory && asked && state_room(sb->stacks, b->tenant, 1, STATE_NOTHING, why))
        state_crowded(sb->stacks, b->tenant, why);
    return why->status == 0;
}

static void pause_start(struct sandboxes *sb, struct sandbox *b, bool memory, bool asked, sandbox_paused *done,
                        void *arg)
{
    struct state_failure why = {0};
    if (!pause_may_start(sb, b, memory, asked, &why)) {
        sandbox_refuse(sb, &why, done, arg);
        return;
    }
    struct sandbox_change *c = sandbox_change_new(sb, sandbox_own(b), memory ? LIFE_ASK_FREEZE : LIFE_ASK_STORE);
    sandbox_change_wait(c, &c->waiters, done, arg);
    sandbox_own(b)->row_state = DB_SANDBOX_RUNNING;
    for (size_t i = 0; i < sb->npauses; i++)
        sb->pauses[i].fn(sb->pauses[i].arg, b);
    /* Close the connection to init: a frozen init does not answer. */
    links_paused(sb->peers->links, b->id);
    /* First, so that keeper does not end it meanwhile. */
    c->pending++;
    keeperc_deadline(sb->peers->keeper, b->id, clock_boot_ms() + SANDBOX_FAR_S * 1000ULL, pause_on_deadline_moved, c);
}

void sandbox_pause(struct sandboxes *sb, struct sandbox *b, bool memory, sandbox_paused *done, void *arg)
{
    pause_start(sb, b, memory, true, done, arg);
}

void sandbox_pause_anyway(struct sandboxes *sb, struct sandbox *b, bool memory, sandbox_paused *done, void *arg)
{
    pause_start(sb, b, memory, false, done, arg);
}

void sandbox_unload(struct sandboxes *sb, struct sandbox *b, sandbox_paused *done, void *arg)
{
    struct state_failure why = {0};
    if (!sandbox_may_ask(b, LIFE_ASK_UNLOAD, &why) || b->state == SANDBOX_STORED) { /* done already */
        sandbox_refuse(sb, &why, done, arg);
        return;
    }
    if (b->busy)
        state_fail(&why, 503, "%s of the sandbox is under way; try again", b->busy);
    else if (strcmp(b->desc.template, TEMPLATE_HOST) == 0)
        state_fail(&why, 400, "a sandbox of the template '" TEMPLATE_HOST "' has no files of its own");
    else
        (void)state_room(sb->stacks, b->tenant, 0, STATE_SOME,
                         &why); /* its number counts already, its bytes do not yet */
    if (why.status) {
        sandbox_refuse(sb, &why, done, arg);
        return;
    }
    struct sandbox_change *c = sandbox_change_new(sb, sandbox_own(b), LIFE_ASK_UNLOAD);
    sandbox_change_wait(c, &c->waiters, done, arg);
    sandbox_own(b)->row_state = DB_SANDBOX_FROZEN;
    pause_capture(c);
}

static void pause_on_undone(void *arg, const struct keeper_reply *r)
{
    (void)arg;
    if (r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX)
        log_text(LOG_LEVEL_WARN, "a sandbox that could not be killed cannot be thawed: %s", r->text);
}

void sandbox_not_killed(struct sandboxes *sb, struct sandbox_own *o, bool was_pausing)
{
    if (!o->stored && o->row_state == DB_SANDBOX_STORED) { /* the pause is in the row, but was not finished */
        struct tenant_need need = sandbox_need(&o->b);
        tenant_give_back(sb->tenants, o->b.tenant, &need, true);
        sandbox_count_stored(sb, &o->b, true);
        o->leftover = true;
    }
    const struct life_cell *c = sandbox_step(&o->b, o->creation                         ? LIFE_ROW_CREATING
                                                    : o->stored                         ? LIFE_ROW_STORED
                                                    : o->row_state == DB_SANDBOX_FROZEN ? LIFE_ROW_FROZEN
                                                                                        : LIFE_ROW_RUNNING);
    if (c->action == LIFE_THAW && was_pausing)
        keeperc_resume(sb->peers->keeper, o->b.id, pause_on_undone, NULL);
}

/* --- one at a time ------------------------------------------------------------------------------------------------ */

bool sandbox_begin(struct sandbox *b, const char *what)
{
    if (b->busy || life_step(b->state, LIFE_ASK_CAPTURE)->action != LIFE_BEGIN)
        return false;
    b->busy = what;
    return true;
}

void sandbox_finish(struct sandboxes *sb, const char *id)
{
    struct sandbox *b = map_get(&sb->by_id, id);
    if (!b)
        return;
    b->busy = NULL;
    b->busy_waits = false;
}
