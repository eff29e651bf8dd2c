/* Automatic pauses: of sandboxes at their end, or after some time without traffic. keeper's deadline of a sandbox
 * that front pauses at its end lies years away, so that keeper does not kill the sandbox if front is down at that
 * time: it lives until front is back.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandboxes/sandboxes-int.h"

enum {
    LOOK_MAX_MS = 60 * 1000, /* the longest time between two looks, in case a clock was set */
    LOOK_MIN_MS = 20,
    RETRY_MS = 5 * 1000,
    RETRY_MAX_MS = 5 * 60 * 1000, /* after a pause whose files did not fit */
};

struct automatic {
    struct sandboxes *sandboxes;
    char id[SANDBOX_ID_MAX];
    bool memory;
    bool at_end;
    bool full; /* its files cannot be kept: they exceed the tenant's quota, or no layer can hold them */
};

static void idle_pause(struct sandboxes *sb, struct sandbox *b, bool memory, bool at_end, bool full);

/* Each try whose files do not fit copies all files in vain, so the time between such tries doubles. */
static void idle_retry(struct sandboxes *sb, struct sandbox_own *o, bool full)
{
    uint64_t ms = full && o->pause_wait_ms ? o->pause_wait_ms : RETRY_MS;
    o->pause_wait_ms = !full ? 0 : 2 * ms < RETRY_MAX_MS ? 2 * ms : RETRY_MAX_MS;
    o->pause_retry_ms = loop_now(sb->loop) + ms;
    sandboxes_idle_look(sb, ms);
}

/* If the host cannot freeze, try to keep the files; if the files cannot be kept, try to keep the memory. If neither
 * works the sandbox runs on and the pause is tried again: a quota never costs a tenant its work. */
static void idle_on_paused(void *arg, const struct state_failure *failure)
{
    struct automatic *a = arg;
    struct sandboxes *sb = a->sandboxes;
    struct sandbox *b = map_get(&sb->by_id, a->id);
    bool memory = a->memory, at_end = a->at_end, full = a->full;
    free(a);
    if (!failure && b)
        sandbox_own(b)->pause_wait_ms = 0;
    if (!failure || !b || b->state != SANDBOX_RUNNING)
        return;
    bool never = failure->status == 501 || failure->status == 400;
    if (never && memory && !full) {
        idle_pause(sb, b, false, at_end, false);
    } else if (!never && failure->status != 503 && !memory) { /* 503: the files may fit in a moment */
        idle_pause(sb, b, true, at_end, true);
    } else if (never && at_end && !full) {
        log_text(LOG_LEVEL_WARN, "sandbox %s has reached its end and cannot be paused here: %s", b->id, failure->text);
        sandbox_kill(sb, b, "timeout", NULL, NULL);
    } else {
        idle_retry(sb, sandbox_own(b), full || failure->status == 429);
    }
}

static void idle_pause(struct sandboxes *sb, struct sandbox *b, bool memory, bool at_end, bool full)
{
    struct automatic *a = xcalloc(1, sizeof *a);
    /* The files did not fit before and the quota is still full: skip the copy. */
    if (!memory && sandbox_own(b)->pause_wait_ms &&
        !state_room(sb->stacks, b->tenant, 0, STATE_SOME, &(struct state_failure){0}))
        memory = full = true;
    *a = (struct automatic){.sandboxes = sb, .memory = memory, .at_end = at_end, .full = full};
    memcpy(a->id, b->id, sizeof a->id);
    sandbox_pause_anyway(sb, b, memory, idle_on_paused, a);
}

static uint64_t idle_ms_until(uint64_t at, uint64_t now) { return at > now ? at - now : 0; }

/* Milliseconds until its pause is due; UINT64_MAX: never. *at_end: due because its time is over. */
static uint64_t idle_due_in(struct sandboxes *sb, const struct sandbox *b, bool *at_end)
{
    const struct sandbox_own *o = (const struct sandbox_own *)b;
    uint64_t now = loop_now(sb->loop), due = UINT64_MAX;
    if (b->desc.life.idle_s && b->users == 0)
        due = idle_ms_until(b->used_ms + b->desc.life.idle_s * 1000ULL, now);
    if (b->desc.life.auto_pause) {
        uint64_t end = idle_ms_until(o->end_boot_ms, clock_boot_ms());
        *at_end = end <= due;
        due = end < due ? end : due;
    }
    uint64_t retry = idle_ms_until(o->pause_retry_ms, now);
    return due != UINT64_MAX && due < retry ? retry : due;
}

static void idle_look(void *arg)
{
    struct sandboxes *sb = arg;
    uint64_t next = LOOK_MAX_MS;
    struct strv due = {0};
    size_t at = 0;
    bool at_end = false, any = false;
    sb->idle_timer = 0;
    for (struct sandbox *b; (b = map_next(&sb->by_id, &at));) {
        if (b->state != SANDBOX_RUNNING || sandbox_own(b)->met == SANDBOX_UNSURE ||
            !(b->desc.life.auto_pause || b->desc.life.idle_s))
            continue;
        any = true;
        uint64_t in = idle_due_in(sb, b, &at_end);
        if (in == 0)
            strv_add(&due, b->id); /* pausing may change the map */
        else if (in < next)
            next = in;
    }
    for (size_t i = 0; i < due.n; i++) {
        struct sandbox *b = map_get(&sb->by_id, due.v[i]);
        at_end = false;
        if (b && b->state == SANDBOX_RUNNING && idle_due_in(sb, b, &at_end) == 0)
            idle_pause(sb, b, !b->desc.life.auto_pause_files, at_end, false);
    }
    strv_done(&due);
    if (any)
        sandboxes_idle_look(sb, next < LOOK_MIN_MS ? LOOK_MIN_MS : next);
}

void sandboxes_idle_look(struct sandboxes *sb, uint64_t in_ms)
{
    uint64_t at = loop_now(sb->loop) + in_ms;
    if (sb->idle_timer && sb->idle_at <= at)
        return;
    loop_timer_del(sb->loop, sb->idle_timer);
    sb->idle_at = at;
    sb->idle_timer = loop_timer(sb->loop, in_ms, idle_look, sb);
}

void sandboxes_idle_free(struct sandboxes *sb) { loop_timer_del(sb->loop, sb->idle_timer); }

void sandbox_in_use(struct sandboxes *sb, struct sandbox *b)
{
    b->users++;
    b->used_ms = loop_now(sb->loop);
}

void sandbox_unused(struct sandboxes *sb, const char *id)
{
    struct sandbox *b = map_get(&sb->by_id, id);
    if (!b)
        return;
    if (b->users)
        b->users--;
    b->used_ms = loop_now(sb->loop);
    if (b->desc.life.idle_s && b->users == 0)
        sandboxes_idle_look(sb, b->desc.life.idle_s * 1000ULL);
}

/* --- changing the settings ---------------------------------------------------------------------------------------- */

struct life_call {
    struct sandboxes *sandboxes;
    char id[SANDBOX_ID_MAX];
    sandbox_done *done;
    void *arg;
};

static void life_finish(struct life_call *l, bool ok)
{
    if (l->done)
        l->done(l->arg, ok);
    free(l);
}

static void life_on_row_stored(void *arg, const struct err *err)
{
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
    life_finish(arg, !err);
}

static void life_on_deadline_set(void *arg, const struct keeper_reply *r)
{
    struct life_call *l = arg;
    struct sandboxes *sb = l->sandboxes;
    struct sandbox *b = map_get(&sb->by_id, l->id);
    if (!b || r->error != KEEPER_OK) {
        life_finish(l, false);
        return;
    }
    sandboxes_idle_look(sb, 0);
    sandbox_write(sb, b, NULL, life_on_row_stored, l);
}

static void life_same_deadline(void *arg) { life_on_deadline_set(arg, &(struct keeper_reply){0}); }

bool sandbox_life_room(struct sandboxes *sb, const struct sandbox *b, const struct sandbox_life *life,
                       struct state_failure *ret)
{
    bool kept = life->auto_pause || life->idle_s, was = b->desc.life.auto_pause || b->desc.life.idle_s;
    return !kept || was || state_room_count(sb->stacks, b->tenant, sandbox_is_paused(b) ? 0 : 1, ret);
}

void sandbox_set_life(struct sandboxes *sb, struct sandbox *b, const struct sandbox_life *life, sandbox_done *done,
                      void *arg)
{
    struct life_call *l = xcalloc(1, sizeof *l);
    bool same = b->desc.life.auto_pause == life->auto_pause;
    *l = (struct life_call){.sandboxes = sb, .done = done, .arg = arg};
    memcpy(l->id, b->id, sizeof l->id);
    b->desc.life = *life;
    b->used_ms = loop_now(sb->loop);
    if (!same && sandbox_own(b)->change)
        sandbox_own(b)->change->life_changed = true;
    if (same || b->state != SANDBOX_RUNNING) /* a paused sandbox has a far deadline anyway; its resume sets it */
        loop_defer(sb->loop, life_same_deadline, l);
    else
        keeperc_deadline(sb->peers->keeper, b->id, sandbox_deadline(b), life_on_deadline_set, l);
}
