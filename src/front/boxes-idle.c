/* Boxes that are paused by themselves: at their end, or after some time without traffic. keeper's deadline of a box that is to
 * be paused at its end lies far away: a front that is down at that time must not cost anybody's work. Such a box lives until
 * front is back.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "front/boxes-int.h"

enum {
    LOOK_MAX_MS = 60 * 1000, /* looked again by then, whatever the clocks do */
    LOOK_MIN_MS = 20,
    RETRY_MS = 5 * 1000,
    RETRY_MAX_MS = 5 * 60 * 1000, /* of what did not fit */
};

struct automatic {
    struct front *front;
    char id[SANDBOX_ID_MAX];
    bool memory;
    bool at_end;
    bool full; /* its files could not be kept: they do not fit the tenant's quota, or no layer can hold them */
};

static void pause_it(struct front *f, struct box *b, bool memory, bool at_end, bool full);

/* What did not fit is a copy of all its files that was thrown away: rarer and rarer. */
static void retry(struct front *f, struct box_own *o, bool full)
{
    uint64_t ms = full && o->pause_wait_ms ? o->pause_wait_ms : RETRY_MS;
    o->pause_wait_ms = !full ? 0 : 2 * ms < RETRY_MAX_MS ? 2 * ms : RETRY_MAX_MS;
    o->pause_retry_ms = loop_now(f->loop) + ms;
    boxes_idle_look(f, ms);
}

/* A host that cannot freeze keeps the files at least; where the files cannot be kept, the memory stays. With neither it runs
 * on, and is tried again: what it wrote is not thrown away for a quota. */
static void automatic_over(void *arg, const struct state_failure *failure)
{
    struct automatic *a = arg;
    struct front *f = a->front;
    struct box *b = f->boxes ? map_get(&f->boxes->by_id, a->id) : NULL;
    bool memory = a->memory, at_end = a->at_end, full = a->full;
    free(a);
    if (!failure && b)
        box_own(b)->pause_wait_ms = 0;
    if (!failure || !b || b->state != BOX_RUNNING)
        return;
    bool never = failure->status == 501 || failure->status == 400;
    if (never && memory && !full) {
        pause_it(f, b, false, at_end, false);
    } else if (!never && failure->status != 503 && !memory) { /* 503: in a moment they can */
        pause_it(f, b, true, at_end, true);
    } else if (never && at_end && !full) {
        log_text(LOG_LEVEL_WARN, "sandbox %s has reached its end and cannot be paused here: %s", b->id, failure->text);
        box_kill(f, b, "timeout", NULL, NULL);
    } else {
        retry(f, box_own(b), full || failure->status == 429);
    }
}

static void pause_it(struct front *f, struct box *b, bool memory, bool at_end, bool full)
{
    struct automatic *a = xcalloc(1, sizeof *a);
    /* They did not fit before, and there is no room now: they need not be copied to know. */
    if (!memory && box_own(b)->pause_wait_ms && !state_room(f, b->tenant, 0, STATE_SOME, &(struct state_failure){0}))
        memory = full = true;
    *a = (struct automatic){.front = f, .memory = memory, .at_end = at_end, .full = full};
    memcpy(a->id, b->id, sizeof a->id);
    box_pause_anyway(f, b, memory, automatic_over, a);
}

static uint64_t left_until(uint64_t at, uint64_t now) { return at > now ? at - now : 0; }

/* Milliseconds until it is to be paused; *at_end: because its time is over. UINT64_MAX: never. */
static uint64_t due_in(struct front *f, const struct box *b, bool *at_end)
{
    const struct box_own *o = (const struct box_own *)b;
    uint64_t now = loop_now(f->loop), due = UINT64_MAX;
    if (b->idle_s && b->users == 0)
        due = left_until(b->used_ms + b->idle_s * 1000ULL, now);
    if (b->auto_pause) {
        uint64_t end = left_until(o->end_boot_ms, boxes_boot_ms());
        *at_end = end <= due;
        due = end < due ? end : due;
    }
    uint64_t retry = left_until(o->pause_retry_ms, now);
    return due != UINT64_MAX && due < retry ? retry : due;
}

static void look(void *arg)
{
    struct front *f = arg;
    uint64_t next = LOOK_MAX_MS;
    struct strv due = {0};
    size_t at = 0;
    bool at_end = false, any = false;
    f->boxes->idle_timer = 0;
    for (struct box *b; (b = map_next(&f->boxes->by_id, &at));) {
        if (b->state != BOX_RUNNING || box_own(b)->unsure || !(b->auto_pause || b->idle_s))
            continue;
        any = true;
        uint64_t in = due_in(f, b, &at_end);
        if (in == 0)
            strv_add(&due, b->id); /* pausing may change the map */
        else if (in < next)
            next = in;
    }
    for (size_t i = 0; i < due.n; i++) {
        struct box *b = map_get(&f->boxes->by_id, due.v[i]);
        at_end = false;
        if (b && b->state == BOX_RUNNING && due_in(f, b, &at_end) == 0)
            pause_it(f, b, !b->auto_pause_files, at_end, false);
    }
    strv_done(&due);
    if (any)
        boxes_idle_look(f, next < LOOK_MIN_MS ? LOOK_MIN_MS : next);
}

void boxes_idle_look(struct front *f, uint64_t in_ms)
{
    struct boxes *bs = f->boxes;
    uint64_t at = loop_now(f->loop) + in_ms;
    if (bs->idle_timer && bs->idle_at <= at)
        return;
    loop_timer_del(f->loop, bs->idle_timer);
    bs->idle_at = at;
    bs->idle_timer = loop_timer(f->loop, in_ms, look, f);
}

void boxes_idle_free(struct front *f) { loop_timer_del(f->loop, f->boxes->idle_timer); }

void box_in_use(struct front *f, struct box *b)
{
    b->users++;
    b->used_ms = loop_now(f->loop);
}

void box_unused(struct front *f, const char *id)
{
    struct box *b = map_get(&f->boxes->by_id, id);
    if (!b)
        return;
    if (b->users)
        b->users--;
    b->used_ms = loop_now(f->loop);
    if (b->idle_s && b->users == 0)
        boxes_idle_look(f, b->idle_s * 1000ULL);
}

/* --- changing it --------------------------------------------------------------------------------------------------- */

struct life_call {
    struct front *front;
    char id[SANDBOX_ID_MAX];
    box_done *done;
    void *arg;
};

static void life_over(struct life_call *l, bool ok)
{
    if (l->done)
        l->done(l->arg, ok);
    free(l);
}

static void life_written(void *arg, const struct err *err)
{
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
    life_over(arg, !err);
}

static void life_deadline(void *arg, const struct keeper_reply *r)
{
    struct life_call *l = arg;
    struct front *f = l->front;
    struct box *b = f->boxes ? map_get(&f->boxes->by_id, l->id) : NULL;
    if (!b || r->error != KEEPER_OK) {
        life_over(l, false);
        return;
    }
    boxes_idle_look(f, 0);
    box_write(f, b, NULL, life_written, l);
}

static void life_same_deadline(void *arg) { life_deadline(arg, &(struct keeper_reply){0}); }

struct box_life box_life(const struct box *b)
{
    return (struct box_life){.auto_pause = b->auto_pause,
                             .auto_pause_files = b->auto_pause_files,
                             .auto_resume = b->auto_resume,
                             .idle_s = b->idle_s};
}

bool box_life_room(struct front *f, const struct box *b, const struct box_life *life, struct state_failure *ret)
{
    bool kept = life->auto_pause || life->idle_s, was = b->auto_pause || b->idle_s;
    return !kept || was || state_room_count(f, b->tenant, box_is_paused(b) ? 0 : 1, ret);
}

void box_set_life(struct front *f, struct box *b, const struct box_life *life, box_done *done, void *arg)
{
    struct life_call *l = xcalloc(1, sizeof *l);
    bool same = b->auto_pause == life->auto_pause;
    *l = (struct life_call){.front = f, .done = done, .arg = arg};
    memcpy(l->id, b->id, sizeof l->id);
    b->auto_pause = life->auto_pause;
    b->auto_pause_files = life->auto_pause_files;
    b->auto_resume = life->auto_resume;
    b->idle_s = life->idle_s;
    b->used_ms = loop_now(f->loop);
    if (!same && box_own(b)->change)
        box_own(b)->change->life_changed = true;
    if (same || b->state != BOX_RUNNING) /* a paused one's is far away whatever it says; a resume sets it, at its end */
        loop_defer(f->loop, life_same_deadline, l);
    else
        keeperc_deadline(f->keeper, b->id, box_deadline(b), life_deadline, l);
}
