/* Access to the files of a volume without a sandbox: a hidden sandbox per volume, whose root contains only our program.
 * It runs behind the same wall as tenants' sandboxes, so hostile files in a volume can harm only that volume.
 *
 * The hidden sandbox is made on demand, shared by all operations on the volume, and ended a minute after the last one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "volumes/volumes-int.h"

/* The timeout is short and prolonged while the sandbox is kept, so that none lives for long after front has died. */
enum { SANDBOX_LIFE_S = 600, PROLONG_MS = 200 * 1000, RETRY_MS = 1000 };

struct volume_turn {
    struct volume_turn *next;
    struct volume_sandbox *sandbox;
    volume_turn_fn *fn;
    void *arg;
    bool running;
    uint64_t since; /* loop time */
    loop_id timer;  /* WAITING: no longer than that */
};
struct closer {
    struct closer *next;
    sandbox_done *done;
    void *arg;
};
struct volume_sandbox {
    struct volume_sandbox *next;
    struct volumes *volumes;
    struct tenant *tenant;
    char volume[LAYERS_SANDBOX_MAX];
    char id[SANDBOX_ID_MAX]; /* "": there is none */
    enum { HAS_NONE, OPENING, OPEN, CLOSING } state;
    bool gone;   /* its volume is gone */
    bool over;   /* starts no turns: its volume is gone, or is being resized */
    bool yields; /* starts no more turns, because another volume gets its place */
    uint64_t opened_ms;
    struct volume_turn *turns, **last;
    size_t nrunning, nwaiting;
    struct closer *closers;
    loop_id step_timer, idle_timer, life_timer, yield_timer;
};

static void volume_sandbox_step(struct volume_sandbox *b);

/* --- its life ----------------------------------------------------------------------------------------------------- */

static void volume_sandbox_on_step_timer(void *arg)
{
    struct volume_sandbox *b = arg;
    b->step_timer = 0;
    volume_sandbox_step(b);
}

/* Steps from the loop, so that callbacks never run before the caller has returned. */
static void volume_sandbox_step_soon(struct volume_sandbox *b, uint64_t ms)
{
    if (b->step_timer && ms > 0)
        return;
    loop_timer_del(b->volumes->loop, b->step_timer);
    b->step_timer = loop_timer(b->volumes->loop, ms, volume_sandbox_on_step_timer, b);
}

/* Steps the volumes that wait for a place: one may be free now. */
static void volume_sandboxes_step_waiting(struct volumes *vs)
{
    for (struct volume_sandbox *b = vs->hidden; b; b = b->next)
        if (b->state == HAS_NONE)
            volume_sandbox_step_soon(b, 0);
}

static void volume_sandbox_free(struct volume_sandbox *b)
{
    struct volume_sandbox **at = &b->volumes->hidden;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    loop_timer_del(b->volumes->loop, b->step_timer);
    loop_timer_del(b->volumes->loop, b->idle_timer);
    loop_timer_del(b->volumes->loop, b->life_timer);
    loop_timer_del(b->volumes->loop, b->yield_timer);
    free(b);
}

/* of: counts only those of this tenant; NULL: all. */
static size_t volume_sandboxes_count_open(const struct volumes *vs, const struct tenant *of)
{
    size_t n = 0;
    for (const struct volume_sandbox *b = vs->hidden; b; b = b->next)
        n += b->state != HAS_NONE && (!of || b->tenant == of);
    return n;
}

static bool volume_share_is_used(const struct volume_sandbox *b)
{
    return volume_sandboxes_count_open(b->volumes, b->tenant) >= VOLUME_SANDBOXES_PER_TENANT;
}

static void volume_sandbox_on_killed(void *arg, bool ok);

static void volume_sandbox_end(struct volume_sandbox *b)
{
    struct sandbox *sandbox = sandbox_find(b->volumes->sandboxes, b->id);
    b->state = CLOSING;
    loop_timer_del(b->volumes->loop, b->yield_timer);
    b->yield_timer = 0;
    if (sandbox)
        sandbox_kill(b->volumes->sandboxes, sandbox, "volume is idle", volume_sandbox_on_killed, b->volumes);
    else
        volume_sandbox_on_killed(b->volumes, true);
}

static bool volume_sandbox_is_idle(const struct volume_sandbox *b) { return b->state == OPEN && !b->turns; }

/* Ends it with work under way, because otherwise endless work would keep its place for ever. */
static void volume_sandbox_on_yield_timeout(void *arg)
{
    struct volume_sandbox *b = arg;
    b->yield_timer = 0;
    if (b->state == OPEN && b->yields)
        volume_sandbox_end(b);
}

/* Makes room for another hidden sandbox (of: one of this tenant, whose share is used up). Ends an idle one; else the
 * one with the least work must yield. So permanent work on some volumes cannot lock out others. */
static void volume_sandboxes_evict(struct volumes *vs, const struct tenant *of)
{
    struct volume_sandbox *least = NULL;
    size_t going = 0, wanting = 0;
    uint64_t now = loop_now(vs->loop);
    for (struct volume_sandbox *b = vs->hidden; b; b = b->next) {
        if (of && b->tenant != of)
            continue;
        going += b->state == CLOSING || (b->state == OPEN && b->yields);
        wanting += b->state == HAS_NONE && b->nwaiting;
        if (volume_sandbox_is_idle(b)) {
            volume_sandbox_end(b);
            return;
        }
        if (b->state == OPEN && !b->yields && now - b->opened_ms >= RETRY_MS &&
            (!least || b->nrunning < least->nrunning))
            least = b;
    }
    if (!least || going >= wanting)
        return;
    least->yields = true;
    least->yield_timer = loop_timer(vs->loop, VOLUME_YIELD_MS, volume_sandbox_on_yield_timeout, least);
    volume_sandbox_step_soon(least, 0);
}

/* Whether it has waited longest of all volumes that wait for a place. */
static bool volume_sandbox_is_next(const struct volume_sandbox *b)
{
    for (const struct volume_sandbox *o = b->volumes->hidden; o; o = o->next)
        if (o != b && o->state == HAS_NONE && o->nwaiting && !o->over && o->turns->since < b->turns->since &&
            (o->tenant == b->tenant || !volume_share_is_used(o)))
            return false;
    return true;
}

static void volume_sandbox_on_idle_timer(void *arg)
{
    struct volume_sandbox *b = arg;
    b->idle_timer = 0;
    if (volume_sandbox_is_idle(b))
        volume_sandbox_end(b);
}

/* --- turns -------------------------------------------------------------------------------------------------------- */

static void volume_turn_unlink(struct volume_turn *t)
{
    struct volume_sandbox *b = t->sandbox;
    struct volume_turn **at = &b->turns;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    if (b->last == &t->next)
        b->last = at;
    *(t->running ? &b->nrunning : &b->nwaiting) -= 1;
    loop_timer_del(b->volumes->loop, t->timer);
}

static void volume_turn_refuse(struct volume_turn *t, const struct state_failure *why)
{
    volume_turn_fn *fn = t->fn;
    void *arg = t->arg;
    struct volume_sandbox *b = t->sandbox;
    volume_turn_unlink(t);
    free(t);
    volume_sandbox_step_soon(b, 0);
    fn(arg, NULL, why);
}

static void volume_sandbox_refuse_waiting(struct volume_sandbox *b, const struct state_failure *why)
{
    for (struct volume_turn *t = b->turns, *next; t; t = next) {
        next = t->next;
        if (!t->running)
            volume_turn_refuse(t, why);
    }
}

static void volume_turn_on_timeout(void *arg)
{
    struct volume_turn *t = arg;
    struct state_failure why = {0};
    t->timer = 0;
    state_fail(&why, 503, "the volume is busy; try again");
    volume_turn_refuse(t, &why);
}

void volume_turn_end(struct volume_turn *t)
{
    struct volume_sandbox *b = t->sandbox;
    volume_turn_unlink(t);
    free(t);
    volume_sandbox_step_soon(b, 0);
}

struct volume_turn *volume_turn(struct volumes *vs, const struct volume *v, volume_turn_fn *fn, void *arg)
{
    struct volume_sandbox *b = vs->hidden;
    while (b && strcmp(b->volume, v->id) != 0)
        b = b->next;
    if (!b) {
        b = xcalloc(1, sizeof *b);
        b->volumes = vs;
        b->tenant = v->tenant;
        b->last = &b->turns;
        (void)snprintf(b->volume, sizeof b->volume, "%s", v->id);
        b->next = vs->hidden;
        vs->hidden = b;
    }
    loop_timer_del(vs->loop, b->idle_timer);
    b->idle_timer = 0;
    struct volume_turn *t = xcalloc(1, sizeof *t);
    *t = (struct volume_turn){.sandbox = b, .fn = fn, .arg = arg, .since = loop_now(vs->loop)};
    *b->last = t;
    b->last = &t->next;
    b->nwaiting++;
    t->timer = loop_timer(vs->loop, b->nwaiting > VOLUME_WAITING_MAX ? 0 : VOLUME_WAIT_MS, volume_turn_on_timeout, t);
    volume_sandbox_step_soon(b, 0);
    return t;
}

/* --- opening and closing ------------------------------------------------------------------------------------------ */

void volume_sandbox_ended(void *arg, struct sandbox *sandbox, const char *cause, const struct keeper_usage *u)
{
    struct volumes *vs = arg;
    (void)cause, (void)u;
    for (struct volume_sandbox *b = sandbox->desc.hidden ? vs->hidden : NULL; b; b = b->next)
        if (strcmp(b->id, sandbox->id) == 0) {
            b->id[0] = '\0';
            b->state = HAS_NONE;
        }
    if (sandbox->desc.hidden)
        volume_sandboxes_step_waiting(vs);
}

/* The sandbox has ended (volume_sandbox_ended() has noted it), or the kill failed and keeper ends it at its
 * deadline. */
static void volume_sandbox_on_killed(void *arg, bool ok)
{
    struct volumes *vs = arg;
    (void)ok;
    for (struct volume_sandbox *b = vs->hidden; b; b = b->next)
        if (b->state == CLOSING && !sandbox_find(b->volumes->sandboxes, b->id)) {
            b->id[0] = '\0';
            b->state = HAS_NONE;
        }
    volume_sandboxes_step_waiting(vs);
}

static void volume_sandbox_on_prolonged(void *arg, const struct keeper_reply *r) { (void)arg, (void)r; }

static void volume_sandbox_prolong(void *arg)
{
    struct volume_sandbox *b = arg;
    b->life_timer = 0;
    if (b->state != OPEN)
        return;
    keeperc_deadline(b->volumes->peers->keeper, b->id, clock_boot_ms() + SANDBOX_LIFE_S * 1000ULL,
                     volume_sandbox_on_prolonged, NULL);
    b->life_timer = loop_timer(b->volumes->loop, PROLONG_MS, volume_sandbox_prolong, b);
}

static void volume_sandbox_on_created(void *arg, struct sandbox *sandbox, const struct sandbox_failure *failure)
{
    struct volume_sandbox *b = arg;
    struct state_failure why = {0};
    if (sandbox) {
        (void)snprintf(b->id, sizeof b->id, "%s", sandbox->id);
        b->state = OPEN;
        b->yields = false;
        loop_timer_del(b->volumes->loop, b->yield_timer);
        b->yield_timer = 0;
        b->opened_ms = loop_now(b->volumes->loop);
        loop_timer_del(b->volumes->loop, b->life_timer);
        b->life_timer = loop_timer(b->volumes->loop, PROLONG_MS, volume_sandbox_prolong, b);
        volume_sandbox_step(b);
        return;
    }
    b->state = HAS_NONE;
    state_fail(&why, failure->status >= 500 ? failure->status : 503, "the volume cannot be opened: %s", failure->text);
    volume_sandbox_refuse_waiting(b, &why);
    volume_sandboxes_step_waiting(b->volumes);
}

static void volume_sandbox_open(struct volume_sandbox *b)
{
    struct volumes *vs = b->volumes;
    struct sandbox_mount m = {.name = "volume", .place = VOLUME_PLACE};
    memcpy(m.volume, b->volume, sizeof m.volume);
    struct principal who = {.tenant = b->tenant};
    struct sandbox_spec spec = {.desc = {.template = STACK_EMPTY,
                                         .timeout_s = SANDBOX_LIFE_S,
                                         .secure = true,
                                         .hidden = true,
                                         .mounts = &m,
                                         .nmounts = 1}};
    b->state = OPENING;
    sandbox_create(vs->sandboxes, &who, &spec, volume_sandbox_on_created, b);
}

static void volume_sandbox_tell_closers(struct volume_sandbox *b)
{
    struct closer *c = b->closers;
    b->closers = NULL;
    for (struct closer *next; c; c = next) {
        next = c->next;
        c->done(c->arg, true);
        free(c);
    }
}

static void volume_sandbox_run_turns(struct volume_sandbox *b)
{
    for (struct volume_turn *t = b->turns; t && b->nrunning < VOLUME_TURNS_MAX; t = t->next) {
        if (t->running)
            continue;
        t->running = true;
        b->nwaiting--;
        b->nrunning++;
        loop_timer_del(b->volumes->loop, t->timer);
        t->timer = 0;
        volume_sandbox_step_soon(b, 0); /* one turn per step, because the call may change the list */
        t->fn(t->arg, b->id, NULL);
        return;
    }
}

static void volume_sandbox_step(struct volume_sandbox *b)
{
    struct volumes *vs = b->volumes;
    switch (b->state) {
    case OPENING:
    case CLOSING:
        return;
    case OPEN:
        if (b->over || (b->yields && b->nrunning == 0))
            volume_sandbox_end(b);
        else if (b->turns && !b->yields)
            volume_sandbox_run_turns(b);
        else if (!b->turns && !b->idle_timer) {
            b->idle_timer = loop_timer(b->volumes->loop, VOLUME_SANDBOX_IDLE_MS, volume_sandbox_on_idle_timer, b);
            volume_sandboxes_step_waiting(vs);
        }
        return;
    case HAS_NONE:
        volume_sandbox_tell_closers(b);
        b->over = b->gone; /* turns that came meanwhile get a new sandbox */
        if (b->nwaiting && !b->over && volume_sandboxes_count_open(vs, NULL) < VOLUME_SANDBOXES_MAX &&
            !volume_share_is_used(b) && volume_sandbox_is_next(b))
            volume_sandbox_open(b);
        else if (b->nwaiting && !b->over) {
            if (volume_share_is_used(b))
                volume_sandboxes_evict(vs, b->tenant);
            else if (volume_sandboxes_count_open(vs, NULL) >= VOLUME_SANDBOXES_MAX)
                volume_sandboxes_evict(vs, NULL);
            volume_sandbox_step_soon(b, RETRY_MS);
        } else if (!b->turns)
            volume_sandbox_free(b);
        return;
    }
}

void volume_sandbox_close(struct volumes *vs, const char *volume, bool gone, sandbox_done *done, void *arg)
{
    struct state_failure why = {0};
    struct volume_sandbox *b = vs->hidden;
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
    volume_sandbox_refuse_waiting(b, &why);
    volume_sandbox_step_soon(b, 0);
}

void volume_sandboxes_free(struct volumes *vs)
{
    while (vs->hidden) {
        struct volume_sandbox *b = vs->hidden;
        for (struct volume_turn *t = b->turns, *next; t; t = next) {
            next = t->next;
            loop_timer_del(vs->loop, t->timer);
            free(t);
        }
        for (struct closer *c = b->closers, *next; c; c = next) {
            next = c->next;
            free(c);
        }
        volume_sandbox_free(b);
    }
}
