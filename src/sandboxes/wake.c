/* Resumes paused sandboxes, on request of the owner or because of traffic. Requests that come during a resume share
 * it.
 *
 * A frozen sandbox is thawed. For a stored sandbox keeper makes a sandbox again, with the same id, from its stack,
 * and front binds it with its environment, token, network and volumes. The row says `stored` until the row `running`
 * is committed. If front dies before that, no client has been answered, and the next front kills the sandbox.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandboxes/sandboxes-int.h"

enum { TAKEN_LOOK_MS = 20 };

static void resume_set_end(struct sandbox_change *c, uint64_t timeout_s)
{
    const struct sandboxes *sb = c->sandboxes;
    const struct sandbox *b = &c->sandbox->b;
    uint64_t s = timeout_s ? timeout_s : b->desc.timeout_s ? b->desc.timeout_s : sb->config->default_timeout_s;
    if (s > sb->config->max_timeout_s)
        s = sb->config->max_timeout_s;
    if (b->tenant->quota.max_timeout_s && s > b->tenant->quota.max_timeout_s)
        s = b->tenant->quota.max_timeout_s;
    c->timeout_s = s;
    c->end_unix_ms = clock_unix_ms() + s * 1000;
    c->end_boot_ms = clock_boot_ms() + s * 1000;
}

static void resume_apply_end(struct sandbox_change *c)
{
    c->sandbox->b.end_unix_ms = c->end_unix_ms;
    c->sandbox->end_boot_ms = c->end_boot_ms;
    c->sandbox->b.desc.timeout_s = (uint32_t)c->timeout_s;
}

/* --- from memory -------------------------------------------------------------------------------------------------- */

static void thaw_on_refrozen(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "sandbox %s could not be frozen again: %s", c->id, r->text);
    sandbox_change_over(c, LIFE_ON_UNDONE);
}

static void thaw_on_row_stored(void *arg, const struct err *err)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (err) { /* the row says frozen, so freeze the sandbox again */
        c->sandbox->row_state = DB_SANDBOX_FROZEN;
        state_fail_write(&c->failure, err, "the node cannot record that the sandbox runs");
        (void)sandbox_step(&c->sandbox->b, LIFE_ON_FAILED);
        c->pending++;
        keeperc_pause(c->sandboxes->peers->keeper, c->id, thaw_on_refrozen, c);
        return;
    }
    sandbox_publish(c->sandboxes, &c->sandbox->b, "resumed", c);
    sandbox_change_over(c, LIFE_ON_FINISHED);
}

static void thaw_on_deadline_set(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "the deadline of sandbox %s could not be set: %s", c->id, r->text);
    c->pending++;
    sandbox_write_as(c->sandboxes, &c->sandbox->b, DB_SANDBOX_RUNNING, thaw_on_row_stored, c);
}

static void thaw_on_keeper_reply(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (r->error != KEEPER_OK) {
        state_fail(&c->failure, r->error == KEEPER_NO_SANDBOX ? 404 : 500, "the sandbox cannot be thawed: %s", r->text);
        sandbox_change_over(c, LIFE_ON_UNDONE);
        return;
    }
    resume_apply_end(c);
    c->pending++;
    keeperc_deadline(c->sandboxes->peers->keeper, c->id, sandbox_deadline(&c->sandbox->b), thaw_on_deadline_set, c);
}

/* --- from files --------------------------------------------------------------------------------------------------- */

static void restore_on_undone(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    struct tenant_need need = sandbox_need(&c->sandbox->b);
    c->sandbox->leftover = r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX;
    tenant_give_back(c->sandboxes->tenants, c->sandbox->b.tenant, &need, false);
    sandbox_count_stored(c->sandboxes, &c->sandbox->b, true);
    sandbox_change_over(c, LIFE_ON_UNDONE);
}

static bool restore_is_undone(const struct sandbox_change *c) { return c->sandbox->b.state == SANDBOX_RESTORE_UNDOING; }

/* The restore failed (c->failure says why): the sandbox stays stored. Calls that are still under way check
 * restore_is_undone(). */
static void restore_fail(struct sandbox_change *c)
{
    if (sandbox_step(&c->sandbox->b, LIFE_ON_FAILED)->action != LIFE_KILL)
        return;
    start_cancel(c->start);
    c->start = NULL;
    links_gone(c->sandboxes->peers->links, c->id);
    c->pending++;
    keeperc_kill(c->sandboxes->peers->keeper, c->id, restore_on_undone, c);
}

static void restore_on_row_stored(void *arg, const struct err *err)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (err) {
        c->sandbox->row_state = DB_SANDBOX_STORED;
        state_fail_write(&c->failure, err, "the node cannot record that the sandbox runs");
        restore_fail(c);
        return;
    }
    sandbox_publish(c->sandboxes, &c->sandbox->b, "resumed", c);
    sandbox_change_over(c, LIFE_ON_FINISHED);
}

/* Its binding, its network and its start command are there: writes the row, or fails if it died meanwhile. */
static void restore_finish(struct sandbox_change *c)
{
    if (sandbox_step(&c->sandbox->b, LIFE_ON_STARTED)->action == LIFE_FAIL) {
        state_fail(&c->failure, 503, "the sandbox ended while it was being resumed");
        restore_fail(c);
        return;
    }
    c->pending++;
    sandbox_write_as(c->sandboxes, &c->sandbox->b, DB_SANDBOX_RUNNING, restore_on_row_stored, c);
}

static void restore_on_started(void *arg, const char *failure)
{
    struct sandbox_change *c = arg;
    c->start = NULL;
    if (*failure) {
        state_fail(&c->failure, 500, "%s", failure);
        restore_fail(c);
        return;
    }
    restore_finish(c);
}

static void restore_maybe_start_command(struct sandbox_change *c)
{
    struct sandbox *b = &c->sandbox->b;
    const struct template_config *config = b->desc.config;
    if (restore_is_undone(c) || c->awaits)
        return;
    if (sandbox_step(b, LIFE_ON_READY)->action == LIFE_START && config && (config->start || config->ready)) {
        sandbox_change_longer(c, START_READY_S * 1000ULL);
        c->start = start_command(c->sandboxes, b, restore_on_started, c);
    } else
        restore_finish(c);
}

static void restore_on_net_applied(void *arg, json_t *answer, const char *error)
{
    struct sandbox_change *c = arg;
    (void)answer;
    if (!sandbox_change_back(c))
        return;
    c->awaits &= ~(unsigned)SANDBOX_AWAITS_NETWORK;
    if (error && !restore_is_undone(c)) {
        state_fail(&c->failure, 503, "the network of the sandbox could not be set up: %s", error);
        restore_fail(c);
    } else
        restore_maybe_start_command(c);
}

static void restore_on_bound(void *arg, const struct link_status *st)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c) || restore_is_undone(c))
        return;
    c->awaits &= ~(unsigned)SANDBOX_AWAITS_BINDING;
    (void)sandbox_step(&c->sandbox->b, LIFE_ON_BOUND);
    if (st->code != LINK_OK) {
        state_fail(&c->failure, 503, "the sandbox ended while it was being resumed: %s", st->text);
        restore_fail(c);
    } else
        restore_maybe_start_command(c);
}

static void restore_on_keeper_reply(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    struct sandboxes *sb = c->sandboxes;
    bool ok = r->error == KEEPER_OK || r->error == KEEPER_EXISTS;
    if (ok && (!c->sandbox || restore_is_undone(c))) /* the restore was given up meanwhile */
        keeperc_kill(sb->peers->keeper, c->id, NULL, NULL);
    if (!sandbox_change_back(c) || restore_is_undone(c))
        return;
    if (!ok) {
        bool again = r->error == KEEPER_CAPACITY || c->sandbox->round != sb->round; /* keeper was restarted */
        state_fail(&c->failure, again ? 503 : 500, "the sandbox cannot be resumed: %s", r->text);
        restore_fail(c);
        return;
    }
    _cleanup_strv_ struct strv env = {0};
    struct link_bind bind;
    (void)sandbox_step(&c->sandbox->b, LIFE_ON_PARKED);
    sandbox_kept(sb, &c->sandbox->b, r);
    sandbox_binding(sb, &c->sandbox->b, &env, &bind);
    c->pending++;
    (void)link_bind(sb->peers->links, c->id, &bind, restore_on_bound, c);
}

static void restore_ask_keeper(struct sandbox_change *c)
{
    struct keeper_create k;
    struct sandboxes *sb = c->sandboxes;
    (void)sandbox_step(&c->sandbox->b, LIFE_ON_CLEARED);
    resume_apply_end(c);
    sandbox_keeper_request(sb, &c->sandbox->b, &k);
    c->sandbox->round = sb->round;
    c->awaits = SANDBOX_AWAITS_BINDING;
    if (sb->network->is_on(sb->networks)) {
        c->awaits |= SANDBOX_AWAITS_NETWORK;
        c->pending++;
        sb->network->tell(sb->networks, &c->sandbox->b, restore_on_net_applied, c);
    }
    c->pending++;
    keeperc_create(sb->peers->keeper, &k, restore_on_keeper_reply, c);
}

static void restore_on_leftover_killed(void *arg, const struct keeper_reply *r)
{
    struct sandbox_change *c = arg;
    if (!sandbox_change_back(c))
        return;
    if (r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX) {
        state_fail(&c->failure, 503, "what is left of the sandbox's earlier life cannot be removed: %s", r->text);
        restore_fail(c);
        return;
    }
    c->sandbox->leftover = false;
    restore_ask_keeper(c);
}

/* Checks quotas and the node's limits, as for a new sandbox. */
static bool restore_admit(struct sandboxes *sb, struct sandbox *b, struct state_failure *why)
{
    struct tenant_need need = sandbox_need(b);
    char text[200];
    if (sandboxes_count(sb) >= sb->config->max_sandboxes) {
        state_fail(why, 503, "this node is full: %zu of %u sandboxes are running", sandboxes_count(sb),
                   sb->config->max_sandboxes);
        why->error_code = "sandbox_capacity_unavailable";
        return false;
    }
    if (!tenant_take(sb->tenants, b->tenant, &need, text))
        return true;
    state_fail(why, 429, "%s", text);
    why->error_code = "quota_exceeded";
    return false;
}

static void restore_start(struct sandboxes *sb, struct sandbox *b, uint64_t timeout_s, sandbox_paused *done, void *arg)
{
    struct state_failure why = {0};
    if (!restore_admit(sb, b, &why)) {
        sandbox_refuse(sb, &why, done, arg);
        return;
    }
    struct sandbox_change *c = sandbox_change_new(sb, sandbox_own(b), LIFE_ASK_RESUME);
    sandbox_change_wait(c, &c->waiters, done, arg);
    sandbox_count_stored(sb, b, false);
    resume_set_end(c, timeout_s);
    sandbox_own(b)->row_state = DB_SANDBOX_STORED;
    if (!sandbox_own(b)->leftover) {
        restore_ask_keeper(c);
        return;
    }
    c->pending++;
    keeperc_kill(sb->peers->keeper, b->id, restore_on_leftover_killed, c);
}

static void thaw_start(struct sandboxes *sb, struct sandbox *b, uint64_t timeout_s, sandbox_paused *done, void *arg)
{
    struct sandbox_change *c = sandbox_change_new(sb, sandbox_own(b), LIFE_ASK_RESUME);
    sandbox_change_wait(c, &c->waiters, done, arg);
    resume_set_end(c, timeout_s);
    sandbox_own(b)->row_state = DB_SANDBOX_FROZEN;
    c->pending++;
    keeperc_resume(sb->peers->keeper, b->id, thaw_on_keeper_reply, c);
}

/* Paused, and an operation on all its files is under way. */
static bool sandbox_is_taken(const struct sandbox *b)
{
    return b->busy && !b->busy_waits && b->state != SANDBOX_RUNNING;
}

void sandbox_resume(struct sandboxes *sb, struct sandbox *b, uint64_t timeout_s, sandbox_paused *done, void *arg)
{
    struct state_failure why = {0};
    struct sandbox_change *c = sandbox_own(b)->change;
    const struct life_cell *cell = life_step(b->state, LIFE_ASK_RESUME);
    if (cell->action == LIFE_JOIN) {
        sandbox_change_wait(c, &c->waiters, done, arg);
        return;
    }
    if (cell->action == LIFE_QUEUE) { /* a pause is under way: resume after it */
        sandbox_change_wait(c, &c->resumers, done, arg);
        if (timeout_s > c->resume_timeout_s)
            c->resume_timeout_s = timeout_s;
        return;
    }
    if (sandbox_may_ask(b, LIFE_ASK_RESUME, &why) && sandbox_is_taken(b))
        state_fail(&why, 503, "%s of the sandbox is under way; try again", b->busy);
    if (why.status || cell->action == LIFE_AGREE)
        sandbox_refuse(sb, &why, done, arg);
    else if (cell->next == SANDBOX_RESTORE_CLEARING)
        restore_start(sb, b, timeout_s, done, arg);
    else
        thaw_start(sb, b, timeout_s, done, arg);
}

/* A visitor's request for a sandbox of which a snapshot is being made: it waits, because a visitor cannot be asked to
 * retry. */
struct visitor {
    struct sandboxes *sandboxes;
    char id[SANDBOX_ID_MAX];
    uint64_t until;
    sandbox_paused *done;
    void *arg;
};

static void visitor_look(void *arg)
{
    struct visitor *v = arg;
    struct sandboxes *sb = v->sandboxes;
    struct state_failure why = {0};
    struct sandbox *b = map_get(&sb->by_id, v->id);
    if (b && sandbox_is_taken(b) && loop_now(sb->loop) < v->until) {
        (void)loop_timer(sb->loop, TAKEN_LOOK_MS, visitor_look, v);
        return;
    }
    if (!b) {
        state_fail(&why, 404, "the sandbox has ended");
        v->done(v->arg, &why);
    } else if (sandbox_is_taken(b))
        sandbox_resume(sb, b, 0, v->done, v->arg); /* it takes too long: refused */
    else
        sandbox_awake(sb, b, true, v->done, v->arg);
    free(v);
}

static void visitor_wait(struct sandboxes *sb, const struct sandbox *b, sandbox_paused *done, void *arg)
{
    struct visitor *v = xcalloc(1, sizeof *v);
    *v = (struct visitor){.sandboxes = sb, .until = loop_now(sb->loop) + SANDBOX_CHANGE_MS, .done = done, .arg = arg};
    memcpy(v->id, b->id, sizeof v->id);
    (void)loop_timer(sb->loop, TAKEN_LOOK_MS, visitor_look, v);
}

void sandbox_awake(struct sandboxes *sb, struct sandbox *b, bool traffic, sandbox_paused *done, void *arg)
{
    struct state_failure why = {0};
    if (b->state == SANDBOX_RUNNING) {
        done(arg, NULL);
        return;
    }
    if (traffic && !b->desc.life.auto_resume && !sandbox_is_resuming(b)) {
        state_fail(&why, 502, "the sandbox is paused and is not woken by traffic");
        sandbox_refuse(sb, &why, done, arg);
        return;
    }
    if (traffic && sandbox_is_taken(b))
        visitor_wait(sb, b, done, arg);
    else
        sandbox_resume(sb, b, 0, done, arg);
}
