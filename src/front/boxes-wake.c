/* Paused boxes are resumed: by whoever owns them, or by traffic. All who ask while it is under way share it.
 *
 * A frozen box is thawed. A stored one is made again by keeper, under its own id, from its stack, and bound with what it had:
 * environment, token, network, volumes. Its row says `stored` until the one that says `running` is committed; a front that
 * dies before that has told nobody, and the next one kills what it finds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/nets.h"

enum { TAKEN_LOOK_MS = 20 };

static void set_end(struct box_change *c, uint64_t timeout_s)
{
    const struct front *f = c->front;
    const struct box *b = &c->box->b;
    uint64_t s = timeout_s ? timeout_s : b->timeout_s ? b->timeout_s : f->config->default_timeout_s;
    if (s > f->config->max_timeout_s)
        s = f->config->max_timeout_s;
    if (b->tenant->quota.max_timeout_s && s > b->tenant->quota.max_timeout_s)
        s = b->tenant->quota.max_timeout_s;
    c->timeout_s = s;
    c->end_unix_ms = boxes_unix_ms() + s * 1000;
    c->end_boot_ms = boxes_boot_ms() + s * 1000;
}

static void apply_end(struct box_change *c)
{
    c->box->b.end_unix_ms = c->end_unix_ms;
    c->box->end_boot_ms = c->end_boot_ms;
    c->box->b.timeout_s = c->timeout_s;
}

/* --- from memory --------------------------------------------------------------------------------------------------- */

static void frozen_again(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "sandbox %s could not be frozen again: %s", c->id, r->text);
    box_change_over(c, BOX_FROZEN);
}

static void thaw_written(void *arg, const struct err *err)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (err) { /* the store says frozen: it must be */
        c->box->row_state = STORE_BOX_FROZEN;
        state_fail_write(&c->failure, err, "the node cannot record that the sandbox runs");
        c->pending++;
        keeperc_pause(c->front->keeper, c->id, frozen_again, c);
        return;
    }
    box_publish(c->front, &c->box->b, "resumed", c);
    box_change_over(c, BOX_RUNNING);
}

static void thaw_deadline(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "the deadline of sandbox %s could not be set: %s", c->id, r->text);
    c->pending++;
    box_write_as(c->front, &c->box->b, STORE_BOX_RUNNING, thaw_written, c);
}

static void thawed(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (r->error != KEEPER_OK) {
        state_fail(&c->failure, r->error == KEEPER_NO_SANDBOX ? 404 : 500, "the sandbox cannot be thawed: %s", r->text);
        box_change_over(c, BOX_FROZEN);
        return;
    }
    apply_end(c);
    c->pending++;
    keeperc_deadline(c->front->keeper, c->id, box_deadline(&c->box->b), thaw_deadline, c);
}

/* --- from files ---------------------------------------------------------------------------------------------------- */

static void restore_undone(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    struct tenant_need need = box_need(&c->box->b);
    c->box->leftover = r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX;
    tenant_give_back(c->front, c->box->b.tenant, &need, false);
    c->quota = false;
    box_count_stored(c->front, &c->box->b, true);
    box_change_over(c, BOX_STORED);
}

/* c->failure says why: it is stored as before. Calls that are still under way find nothing to do. */
static void restore_fails(struct box_change *c)
{
    if (c->undoing)
        return;
    c->undoing = true;
    start_cancel(c->start);
    c->start = NULL;
    links_gone(c->front->links, c->id);
    c->pending++;
    keeperc_kill(c->front->keeper, c->id, restore_undone, c);
}

static void restored_written(void *arg, const struct err *err)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (err) {
        c->box->row_state = STORE_BOX_STORED;
        state_fail_write(&c->failure, err, "the node cannot record that the sandbox runs");
        restore_fails(c);
        return;
    }
    c->quota = false; /* the box's own from now on */
    box_publish(c->front, &c->box->b, "resumed", c);
    box_change_over(c, BOX_RUNNING);
}

static void write_running(struct box_change *c)
{
    if (c->box->died) { /* after its binding: nobody else would notice */
        state_fail(&c->failure, 503, "the sandbox ended while it was being resumed");
        restore_fails(c);
        return;
    }
    c->pending++;
    box_write_as(c->front, &c->box->b, STORE_BOX_RUNNING, restored_written, c);
}

static void start_over(void *arg, const char *failure)
{
    struct box_change *c = arg;
    c->start = NULL;
    if (*failure) {
        state_fail(&c->failure, 500, "%s", failure);
        restore_fails(c);
        return;
    }
    write_running(c);
}

static void maybe_restored(struct box_change *c)
{
    const struct box *b = &c->box->b;
    if (c->undoing || !c->bound || !c->net_done)
        return;
    if (b->config && (b->config->start || b->config->ready)) {
        box_change_longer(c, START_READY_S * 1000ULL);
        c->start = start_command(c->front, b, start_over, c);
    } else
        write_running(c);
}

static void net_applied(void *arg, json_t *answer, const char *error)
{
    struct box_change *c = arg;
    (void)answer;
    if (!box_change_back(c))
        return;
    c->net_done = true;
    if (error && !c->undoing) {
        state_fail(&c->failure, 503, "the network of the sandbox could not be set up: %s", error);
        restore_fails(c);
    } else
        maybe_restored(c);
}

static void bound(void *arg, const struct link_status *st)
{
    struct box_change *c = arg;
    if (!box_change_back(c) || c->undoing)
        return;
    c->bound = true;
    if (st->code != LINK_OK) {
        state_fail(&c->failure, 503, "the sandbox ended while it was being resumed: %s", st->text);
        restore_fails(c);
    } else
        maybe_restored(c);
}

static void made(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    struct front *f = c->front;
    bool ok = r->error == KEEPER_OK || r->error == KEEPER_EXISTS;
    if (ok && (!c->box || c->undoing)) /* nobody wants it any more */
        keeperc_kill(f->keeper, c->id, NULL, NULL);
    if (!box_change_back(c) || c->undoing)
        return;
    if (!ok) {
        bool again = r->error == KEEPER_CAPACITY || c->box->round != f->boxes->round; /* keeper died over it */
        state_fail(&c->failure, again ? 503 : 500, "the sandbox cannot be resumed: %s", r->text);
        restore_fails(c);
        return;
    }
    _cleanup_strv_ struct strv env = {0};
    struct link_bind bind;
    box_kept(f, &c->box->b, r);
    box_binding(f, &c->box->b, &env, &bind);
    c->pending++;
    (void)link_bind(f->links, c->id, &bind, bound, c);
}

static void ask_keeper(struct box_change *c)
{
    struct keeper_create k;
    struct front *f = c->front;
    apply_end(c);
    box_keeper_request(f, &c->box->b, &k);
    c->box->round = f->boxes->round;
    c->box->died = false;
    c->net_done = !nets_on(f);
    if (!c->net_done) {
        c->pending++;
        net_tell(f, &c->box->b, net_applied, c);
    }
    c->pending++;
    keeperc_create(f->keeper, &k, made, c);
}

static void leftover_gone(void *arg, const struct keeper_reply *r)
{
    struct box_change *c = arg;
    if (!box_change_back(c))
        return;
    if (r->error != KEEPER_OK && r->error != KEEPER_NO_SANDBOX) {
        state_fail(&c->failure, 503, "what is left of the sandbox's earlier life cannot be removed: %s", r->text);
        restore_fails(c);
        return;
    }
    c->box->leftover = false;
    ask_keeper(c);
}

/* Quotas and the node's room, as for a new one. */
static bool admit(struct front *f, struct box *b, struct state_failure *why)
{
    struct tenant_need need = box_need(b);
    char text[200];
    if (boxes_count(f) >= f->config->max_sandboxes) {
        state_fail(why, 503, "this node runs its %u sandboxes", f->config->max_sandboxes);
        why->error_code = "sandbox_capacity_unavailable";
        return false;
    }
    if (!tenant_take(f, b->tenant, &need, text))
        return true;
    state_fail(why, 429, "%s", text);
    why->error_code = "quota_exceeded";
    return false;
}

static void restore(struct front *f, struct box *b, uint64_t timeout_s, box_paused *done, void *arg)
{
    struct state_failure why = {0};
    if (!admit(f, b, &why)) {
        box_refuse(f, &why, done, arg);
        return;
    }
    struct box_change *c = box_change_new(f, box_own(b), CHANGE_RESTORE);
    box_change_wait(c, &c->waiters, done, arg);
    c->quota = true;
    box_count_stored(f, b, false);
    set_end(c, timeout_s);
    b->state = BOX_RESUMING;
    box_own(b)->row_state = STORE_BOX_STORED;
    if (!box_own(b)->leftover) {
        ask_keeper(c);
        return;
    }
    c->pending++;
    keeperc_kill(f->keeper, b->id, leftover_gone, c);
}

static void thaw(struct front *f, struct box *b, uint64_t timeout_s, box_paused *done, void *arg)
{
    struct box_change *c = box_change_new(f, box_own(b), CHANGE_THAW);
    box_change_wait(c, &c->waiters, done, arg);
    set_end(c, timeout_s);
    b->state = BOX_RESUMING;
    box_own(b)->row_state = STORE_BOX_FROZEN;
    c->pending++;
    keeperc_resume(f->keeper, b->id, thawed, c);
}

/* Paused, and its files are being read or changed as a whole. */
static bool is_taken(const struct box *b) { return b->busy && !b->busy_waits && b->state != BOX_RUNNING; }

void box_resume(struct front *f, struct box *b, uint64_t timeout_s, box_paused *done, void *arg)
{
    struct state_failure why = {0};
    struct box_change *c = box_own(b)->change;
    if (c && b->state == BOX_RESUMING) {
        box_change_wait(c, &c->waiters, done, arg);
        return;
    }
    if (c) { /* being paused: right after that */
        box_change_wait(c, &c->resumers, done, arg);
        if (timeout_s > c->resume_timeout_s)
            c->resume_timeout_s = timeout_s;
        return;
    }
    if (is_taken(b))
        state_fail(&why, 503, "%s of the sandbox is under way; try again", b->busy);
    else if (!box_is_there(b))
        state_fail(&why, 404, "the sandbox has ended");
    if (why.status || b->state == BOX_RUNNING)
        box_refuse(f, &why, done, arg);
    else if (b->state == BOX_STORED)
        restore(f, b, timeout_s, done, arg);
    else
        thaw(f, b, timeout_s, done, arg);
}

/* Traffic for one of which a snapshot is made: who has a key can ask again, a visitor cannot be told to. */
struct visitor {
    struct front *front;
    char id[SANDBOX_ID_MAX];
    uint64_t until;
    box_paused *done;
    void *arg;
};

static void look_again(void *arg)
{
    struct visitor *v = arg;
    struct front *f = v->front;
    struct state_failure why = {0};
    struct box *b = map_get(&f->boxes->by_id, v->id);
    if (b && is_taken(b) && loop_now(f->loop) < v->until) {
        (void)loop_timer(f->loop, TAKEN_LOOK_MS, look_again, v);
        return;
    }
    if (!b) {
        state_fail(&why, 404, "the sandbox has ended");
        v->done(v->arg, &why);
    } else if (is_taken(b))
        box_resume(f, b, 0, v->done, v->arg); /* it takes too long: refused */
    else
        box_awake(f, b, true, v->done, v->arg);
    free(v);
}

static void wait_until_free(struct front *f, const struct box *b, box_paused *done, void *arg)
{
    struct visitor *v = xcalloc(1, sizeof *v);
    *v = (struct visitor){.front = f, .until = loop_now(f->loop) + BOX_CHANGE_MS, .done = done, .arg = arg};
    memcpy(v->id, b->id, sizeof v->id);
    (void)loop_timer(f->loop, TAKEN_LOOK_MS, look_again, v);
}

void box_awake(struct front *f, struct box *b, bool traffic, box_paused *done, void *arg)
{
    struct state_failure why = {0};
    if (b->state == BOX_RUNNING) {
        done(arg, NULL);
        return;
    }
    if (traffic && !b->auto_resume && b->state != BOX_RESUMING) {
        state_fail(&why, 502, "the sandbox is paused and is not woken by traffic");
        box_refuse(f, &why, done, arg);
        return;
    }
    if (traffic && is_taken(b))
        wait_until_free(f, b, done, arg);
    else
        box_resume(f, b, 0, done, arg);
}
