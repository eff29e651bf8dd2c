/* The files of a volume for whoever has no sandbox of his own: a hidden sandbox per volume, whose root holds nothing but our
 * program. What it does there happens behind the same wall as everything that tenants do, so a hostile tree in a volume meets
 * nobody but itself.
 *
 * One is made when it is needed, shared by all who work on that volume, and ended a minute after the last.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/volumes-int.h"

/* The life is short and prolonged while one is kept: whatever happens to us, none stays behind for long. */
enum { BOX_LIFE_S = 600, PROLONG_MS = 200 * 1000, RETRY_MS = 1000 };

struct volume_turn {
    struct volume_turn *next;
    struct volume_box *box;
    volume_turn_fn *fn;
    void *arg;
    bool running;
    uint64_t since; /* loop time */
    loop_id timer;  /* WAITING: no longer than that */
};
struct closer {
    struct closer *next;
    box_done *done;
    void *arg;
};
struct volume_box {
    struct volume_box *next;
    struct front *front;
    struct tenant *tenant;
    char volume[STOCK_BOX_MAX];
    char id[SANDBOX_ID_MAX]; /* "": there is none */
    enum { HAS_NONE, OPENING, OPEN, CLOSING } state;
    bool gone;   /* its volume is */
    bool over;   /* begins nothing: its volume is gone, or nobody may have it for a moment */
    bool yields; /* begins nothing more, so that others get its place */
    uint64_t opened_ms;
    struct volume_turn *turns, **last;
    size_t nrunning, nwaiting;
    struct closer *closers;
    loop_id step_timer, idle_timer, life_timer, yield_timer;
};

static void step(struct volume_box *b);

/* --- its life ------------------------------------------------------------------------------------------------------ */

static void step_now(void *arg)
{
    struct volume_box *b = arg;
    b->step_timer = 0;
    step(b);
}

/* From the loop: whoever asks is not called before his own call has returned. */
static void step_soon(struct volume_box *b, uint64_t ms)
{
    if (b->step_timer && ms > 0)
        return;
    loop_timer_del(b->front->loop, b->step_timer);
    b->step_timer = loop_timer(b->front->loop, ms, step_now, b);
}

/* There may be a place for those that wait for one. */
static void step_others(struct volumes *vs)
{
    for (struct volume_box *b = vs->boxes; b; b = b->next)
        if (b->state == HAS_NONE)
            step_soon(b, 0);
}

static void free_box(struct volume_box *b)
{
    struct volume_box **at = &b->front->volumes->boxes;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    loop_timer_del(b->front->loop, b->step_timer);
    loop_timer_del(b->front->loop, b->idle_timer);
    loop_timer_del(b->front->loop, b->life_timer);
    loop_timer_del(b->front->loop, b->yield_timer);
    free(b);
}

/* of: a tenant's; NULL all. */
static size_t count_open(const struct volumes *vs, const struct tenant *of)
{
    size_t n = 0;
    for (const struct volume_box *b = vs->boxes; b; b = b->next)
        n += b->state != HAS_NONE && (!of || b->tenant == of);
    return n;
}

static bool share_is_used(const struct volume_box *b)
{
    return count_open(b->front->volumes, b->tenant) >= VOLUME_BOXES_PER_TENANT;
}

static void closed(void *arg, bool ok);

static void close_box(struct volume_box *b)
{
    struct box *box = box_find(b->front, b->id);
    b->state = CLOSING;
    loop_timer_del(b->front->loop, b->yield_timer);
    b->yield_timer = 0;
    if (box)
        box_kill(b->front, box, "volume is idle", closed, b->front->volumes);
    else
        closed(b->front->volumes, true);
}

static bool is_idle(const struct volume_box *b) { return b->state == OPEN && !b->turns; }

/* What is still at work in it is cut off: whoever works for ever would keep the place for ever. */
static void yielded(void *arg)
{
    struct volume_box *b = arg;
    b->yield_timer = 0;
    if (b->state == OPEN && b->yields)
        close_box(b);
}

/* Makes room for another one (of: of the same tenant, whose share is used up): one that is not at work goes; else the one with
 * the least work begins nothing more. Nobody who keeps all of them busy keeps others out. */
static void evict(struct volumes *vs, const struct tenant *of)
{
    struct volume_box *least = NULL;
    size_t going = 0, wanting = 0;
    uint64_t now = loop_now(vs->front->loop);
    for (struct volume_box *b = vs->boxes; b; b = b->next) {
        if (of && b->tenant != of)
            continue;
        going += b->state == CLOSING || (b->state == OPEN && b->yields);
        wanting += b->state == HAS_NONE && b->nwaiting;
        if (is_idle(b)) {
            close_box(b);
            return;
        }
        if (b->state == OPEN && !b->yields && now - b->opened_ms >= RETRY_MS &&
            (!least || b->nrunning < least->nrunning))
            least = b;
    }
    if (!least || going >= wanting)
        return;
    least->yields = true;
    least->yield_timer = loop_timer(vs->front->loop, VOLUME_YIELD_MS, yielded, least);
    step_soon(least, 0);
}

/* Of those that wait for a place it is the one that waits longest. */
static bool is_next(const struct volume_box *b)
{
    for (const struct volume_box *o = b->front->volumes->boxes; o; o = o->next)
        if (o != b && o->state == HAS_NONE && o->nwaiting && !o->over && o->turns->since < b->turns->since &&
            (o->tenant == b->tenant || !share_is_used(o)))
            return false;
    return true;
}

static void idle(void *arg)
{
    struct volume_box *b = arg;
    b->idle_timer = 0;
    if (is_idle(b))
        close_box(b);
}

/* --- turns --------------------------------------------------------------------------------------------------------- */

static void unlink_turn(struct volume_turn *t)
{
    struct volume_box *b = t->box;
    struct volume_turn **at = &b->turns;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    if (b->last == &t->next)
        b->last = at;
    *(t->running ? &b->nrunning : &b->nwaiting) -= 1;
    loop_timer_del(b->front->loop, t->timer);
}

static void refuse(struct volume_turn *t, const struct state_failure *why)
{
    volume_turn_fn *fn = t->fn;
    void *arg = t->arg;
    struct volume_box *b = t->box;
    unlink_turn(t);
    free(t);
    step_soon(b, 0);
    fn(arg, NULL, why);
}

static void refuse_waiting(struct volume_box *b, const struct state_failure *why)
{
    for (struct volume_turn *t = b->turns, *next; t; t = next) {
        next = t->next;
        if (!t->running)
            refuse(t, why);
    }
}

static void waited(void *arg)
{
    struct volume_turn *t = arg;
    struct state_failure why = {0};
    t->timer = 0;
    state_fail(&why, 503, "the volume is busy; try again");
    refuse(t, &why);
}

void volume_turn_end(struct volume_turn *t)
{
    struct volume_box *b = t->box;
    unlink_turn(t);
    free(t);
    step_soon(b, 0);
}

struct volume_turn *volume_turn(struct front *f, const struct volume *v, volume_turn_fn *fn, void *arg)
{
    struct volumes *vs = f->volumes;
    struct volume_box *b = vs->boxes;
    while (b && strcmp(b->volume, v->id) != 0)
        b = b->next;
    if (!b) {
        b = xcalloc(1, sizeof *b);
        b->front = f;
        b->tenant = v->tenant;
        b->last = &b->turns;
        (void)snprintf(b->volume, sizeof b->volume, "%s", v->id);
        b->next = vs->boxes;
        vs->boxes = b;
    }
    loop_timer_del(f->loop, b->idle_timer);
    b->idle_timer = 0;
    struct volume_turn *t = xcalloc(1, sizeof *t);
    *t = (struct volume_turn){.box = b, .fn = fn, .arg = arg, .since = loop_now(f->loop)};
    *b->last = t;
    b->last = &t->next;
    b->nwaiting++;
    t->timer = loop_timer(f->loop, b->nwaiting > VOLUME_WAITING_MAX ? 0 : VOLUME_WAIT_MS, waited, t);
    step_soon(b, 0);
    return t;
}

/* --- opening and closing ------------------------------------------------------------------------------------------- */

void volume_box_ended(void *arg, struct box *box, const char *cause, const struct keeper_usage *u)
{
    struct volumes *vs = ((struct front *)arg)->volumes;
    (void)cause, (void)u;
    for (struct volume_box *b = vs && box->hidden ? vs->boxes : NULL; b; b = b->next)
        if (strcmp(b->id, box->id) == 0) {
            b->id[0] = '\0';
            b->state = HAS_NONE;
        }
    if (vs && box->hidden)
        step_others(vs);
}

/* The sandbox is gone, which volume_box_ended() has noted; or it cannot be ended now, which keeper will do in its time. */
static void closed(void *arg, bool ok)
{
    struct volumes *vs = arg;
    (void)ok;
    for (struct volume_box *b = vs->boxes; b; b = b->next)
        if (b->state == CLOSING && !box_find(b->front, b->id)) {
            b->id[0] = '\0';
            b->state = HAS_NONE;
        }
    step_others(vs);
}

static void prolonged(void *arg, const struct keeper_reply *r) { (void)arg, (void)r; }

static void prolong(void *arg)
{
    struct volume_box *b = arg;
    b->life_timer = 0;
    if (b->state != OPEN)
        return;
    keeperc_deadline(b->front->keeper, b->id, boxes_boot_ms() + BOX_LIFE_S * 1000ULL, prolonged, NULL);
    b->life_timer = loop_timer(b->front->loop, PROLONG_MS, prolong, b);
}

static void opened(void *arg, struct box *box, const struct box_failure *failure)
{
    struct volume_box *b = arg;
    struct state_failure why = {0};
    if (box) {
        (void)snprintf(b->id, sizeof b->id, "%s", box->id);
        b->state = OPEN;
        b->yields = false;
        loop_timer_del(b->front->loop, b->yield_timer);
        b->yield_timer = 0;
        b->opened_ms = loop_now(b->front->loop);
        loop_timer_del(b->front->loop, b->life_timer);
        b->life_timer = loop_timer(b->front->loop, PROLONG_MS, prolong, b);
        step(b);
        return;
    }
    b->state = HAS_NONE;
    state_fail(&why, failure->status >= 500 ? failure->status : 503, "the volume cannot be opened: %s", failure->text);
    refuse_waiting(b, &why);
    step_others(b->front->volumes);
}

static void open_box(struct volume_box *b)
{
    struct front *f = b->front;
    struct box_mount m = {.name = "volume", .place = VOLUME_PLACE};
    memcpy(m.volume, b->volume, sizeof m.volume);
    struct principal who = {.tenant = b->tenant};
    struct box_spec spec = {
        .template = STACK_EMPTY, .timeout_s = BOX_LIFE_S, .secure = true, .build = true, .mounts = &m, .nmounts = 1};
    b->state = OPENING;
    box_create(f, &who, &spec, opened, b);
}

static void end_closers(struct volume_box *b)
{
    struct closer *c = b->closers;
    b->closers = NULL;
    for (struct closer *next; c; c = next) {
        next = c->next;
        c->done(c->arg, true);
        free(c);
    }
}

static void run_turns(struct volume_box *b)
{
    for (struct volume_turn *t = b->turns; t && b->nrunning < VOLUME_TURNS_MAX; t = t->next) {
        if (t->running)
            continue;
        t->running = true;
        b->nwaiting--;
        b->nrunning++;
        loop_timer_del(b->front->loop, t->timer);
        t->timer = 0;
        step_soon(b, 0); /* the list may be another one after the call: one at a time */
        t->fn(t->arg, b->id, NULL);
        return;
    }
}

static void step(struct volume_box *b)
{
    struct volumes *vs = b->front->volumes;
    switch (b->state) {
    case OPENING:
    case CLOSING:
        return;
    case OPEN:
        if (b->over || (b->yields && b->nrunning == 0))
            close_box(b);
        else if (b->turns && !b->yields)
            run_turns(b);
        else if (!b->turns && !b->idle_timer) {
            b->idle_timer = loop_timer(b->front->loop, VOLUME_BOX_IDLE_MS, idle, b);
            step_others(vs);
        }
        return;
    case HAS_NONE:
        end_closers(b);
        b->over = b->gone; /* who came meanwhile has his turn in a new one */
        if (b->nwaiting && !b->over && count_open(vs, NULL) < VOLUME_BOXES_MAX && !share_is_used(b) && is_next(b))
            open_box(b);
        else if (b->nwaiting && !b->over) {
            if (share_is_used(b))
                evict(vs, b->tenant);
            else if (count_open(vs, NULL) >= VOLUME_BOXES_MAX)
                evict(vs, NULL);
            step_soon(b, RETRY_MS);
        } else if (!b->turns)
            free_box(b);
        return;
    }
}

void volume_box_close(struct front *f, const char *volume, bool gone, box_done *done, void *arg)
{
    struct state_failure why = {0};
    struct volume_box *b = f->volumes ? f->volumes->boxes : NULL;
    while (b && strcmp(b->volume, volume) != 0)
        b = b->next;
    if (!b) {
        done(arg, true);
        return;
    }
    struct closer *c = xcalloc(1, sizeof *c);
    *c = (struct closer){.next = b->closers, .done = done, .arg = arg};
    b->closers = c;
    b->over = true;
    b->gone |= gone;
    if (gone)
        state_fail(&why, 404, "the volume was removed");
    else
        state_fail(&why, 503, "the size of the volume is being changed; try again");
    refuse_waiting(b, &why);
    step_soon(b, 0);
}

void volume_boxes_free(struct front *f)
{
    while (f->volumes->boxes) {
        struct volume_box *b = f->volumes->boxes;
        for (struct volume_turn *t = b->turns, *next; t; t = next) {
            next = t->next;
            loop_timer_del(f->loop, t->timer);
            free(t);
        }
        for (struct closer *c = b->closers, *next; c; c = next) {
            next = c->next;
            free(c);
        }
        free_box(b);
    }
}
