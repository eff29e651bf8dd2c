/* When front and keeper connect, front compares its rows with the sandboxes that live. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandboxes/events.h"
#include "sandboxes/sandboxes-int.h"

static const char *const causes[] = {
    [KEEPER_DIED_UNKNOWN] = "unknown", [KEEPER_DIED_TTL] = "timeout",   [KEEPER_DIED_OOM] = "out_of_memory",
    [KEEPER_DIED_INIT] = "init_died",  [KEEPER_DIED_KILLED] = "killed", [KEEPER_DIED_BOOT] = "machine_restarted",
    [KEEPER_DIED_LOST] = "lost",
};

static const char *death_cause_name(uint32_t cause)
{
    return cause < sizeof causes / sizeof causes[0] && causes[cause] ? causes[cause] : "unknown";
}

struct meeting {
    struct sandboxes *sandboxes;
    uint64_t round;
};
struct hello {
    struct sandboxes *sandboxes;
    char id[SANDBOX_ID_MAX];
};

/* Removes a create that the previous front did not finish; the next create with its idempotency key starts anew. */
static void meet_discard_unfinished(struct sandboxes *sb, struct sandbox_own *o)
{
    idem_forget_sandbox(sb, o->b.id);
    sandbox_discard(sb, o);
}

/* Of a row that was still `creating`: only init knows whether it was bound. The client may have been answered
 * already, so the sandbox counts as running until init answers: a client must not hear that its sandbox does not
 * exist. */
static void meet_on_hello(void *arg, const struct link_status *st)
{
    struct hello *h = arg;
    struct sandboxes *sb = h->sandboxes;
    struct sandbox *b = map_get(&sb->by_id, h->id);
    free(h);
    if (!b || b->state != SANDBOX_RUNNING || sandbox_own(b)->met != SANDBOX_UNSURE)
        return;
    if (st->code != LINK_OK) {
        keeperc_kill(sb->peers->keeper, b->id, NULL, NULL);
        meet_discard_unfinished(sb, sandbox_own(b));
        return;
    }
    sandbox_own(b)->met = SANDBOX_MET;
    sandbox_write(sb, b, NULL, NULL, NULL);
}

static void meet_on_corrected(void *arg, const struct keeper_reply *r)
{
    (void)arg;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "a sandbox is not in the state the store says: %s", r->text);
}

/* It runs, as the row says: keeper's deadline is the one that counts. */
static void meet_running(struct sandboxes *sb, struct sandbox_own *o, const struct keeper_item *item)
{
    if (item->deadline_ms > clock_boot_ms() + SANDBOX_FAR_S * 500ULL) {
        if (!o->b.desc.life.auto_pause) /* an unfinished pause or resume left keeper's far deadline */
            keeperc_deadline(sb->peers->keeper, item->id, sandbox_deadline(&o->b), meet_on_corrected, NULL);
    } else if (item->deadline_ms) {
        o->end_boot_ms = item->deadline_ms;
        o->b.end_unix_ms = clock_unix_ms() + item->deadline_ms - clock_boot_ms();
    }
    if (o->met == SANDBOX_UNSURE) {
        struct hello *h = xcalloc(1, sizeof *h);
        h->sandboxes = sb;
        memcpy(h->id, o->b.id, sizeof h->id);
        (void)link_hello(sb->peers->links, h->id, meet_on_hello, h);
    }
}

/* The row decides what a sandbox is, because clients are answered only after it was written. */
static void meet_alive(struct sandboxes *sb, const struct keeper_item *item)
{
    struct sandbox_own *o = map_get(&sb->by_id, item->id);
    if (!o) {
        log_text(LOG_LEVEL_WARN, "sandbox %s lives but is not in the store; it is killed", item->id);
        keeperc_kill(sb->peers->keeper, item->id, NULL, NULL);
        return;
    }
    o->seen = true;
    if (o->met == SANDBOX_UNMET)
        o->met = SANDBOX_MET;
    switch (sandbox_step(&o->b, item->frozen ? LIFE_ON_LISTED_FROZEN : LIFE_ON_LISTED_ALIVE)->action) {
    case LIFE_KILL:
        o->leftover = true;
        keeperc_kill(sb->peers->keeper, o->b.id, NULL, NULL);
        break;
    case LIFE_FREEZE:
        log_text(LOG_LEVEL_WARN, "sandbox %s was paused, but goes on; it is paused again", o->b.id);
        keeperc_pause(sb->peers->keeper, o->b.id, meet_on_corrected, NULL);
        break;
    case LIFE_THAW:
        log_text(LOG_LEVEL_WARN, "sandbox %s stands still, but was not paused; it goes on", item->id);
        keeperc_resume(sb->peers->keeper, item->id, meet_on_corrected, NULL);
        meet_running(sb, o, item);
        break;
    case LIFE_MEET:
        meet_running(sb, o, item);
        break;
    default: /* a pending call to keeper is sent again and decides */
        break;
    }
}

/* keeper says that the sandbox is dead. One that is being made fails through its calls, which the cut ends. */
static void meet_dead(struct sandboxes *sb, struct sandbox_own *o, enum life_event e, const char *type,
                      const char *cause, const struct keeper_usage *u)
{
    enum life_action action = sandbox_step(&o->b, e)->action;
    if (action == LIFE_END && !o->creation) /* else the kill of its creation ends it */
        sandbox_end(sb, o, type, cause, u);
    else if (action == LIFE_CUT)
        links_gone(sb->peers->links, o->b.id);
}

static void meet_on_list(void *arg, const struct keeper_item *v, size_t n)
{
    struct meeting *m = arg;
    struct sandboxes *sb = m->sandboxes;
    uint64_t round = m->round;
    free(m);
    if (round != sb->round)
        return; /* keeper reconnected meanwhile: the next list counts */
    size_t at = 0;
    for (struct sandbox_own *o; (o = map_next(&sb->by_id, &at));)
        o->seen = false;
    for (size_t i = 0; i < n; i++) {
        if (v[i].alive) {
            meet_alive(sb, &v[i]);
            continue;
        }
        struct sandbox_own *o = map_get(&sb->by_id, v[i].id);
        if (o)
            meet_dead(sb, o, LIFE_ON_LISTED_DEAD, "died", death_cause_name(v[i].cause), NULL);
        keeperc_forget(sb->peers->keeper, v[i].id);
    }
    /* End sandboxes that keeper does not know, except those made after the list was requested. */
    for (bool again = true; again;) {
        again = false;
        at = 0;
        for (struct sandbox_own *o; !again && (o = map_next(&sb->by_id, &at));)
            if (!o->seen && !o->creation && o->round < round &&
                life_step(o->b.state, LIFE_ON_UNLISTED)->action == LIFE_END) {
                if (o->met == SANDBOX_UNSURE)
                    meet_discard_unfinished(sb, o);
                else
                    sandbox_end(sb, o, "died", "unknown", NULL);
                again = true; /* the map has changed */
            }
    }
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "met keeper")) {
        log_u64(&l, "sandboxes", sb->by_id.n);
        log_end(&l);
    }
}

void sandboxes_keeper_up(struct sandboxes *sb)
{
    struct meeting *m = xcalloc(1, sizeof *m);
    size_t at = 0;
    sb->keeper_up = true;
    /* A keeper that was killed may not have ended all processes of a stored sandbox. */
    for (struct sandbox_own *o; (o = map_next(&sb->by_id, &at));)
        o->leftover |= o->stored;
    m->sandboxes = sb;
    m->round = ++sb->round;
    keeperc_list(sb->peers->keeper, meet_on_list, m);
}

void sandboxes_keeper_down(struct sandboxes *sb)
{
    sb->keeper_up = false;
    log_text(LOG_LEVEL_WARN, "the connection to keeper is gone; it is made again");
}

void sandboxes_keeper_died(struct sandboxes *sb, const struct keeper_death *d)
{
    struct sandbox_own *o = map_get(&sb->by_id, d->id);
    bool killed = o && o->b.state == SANDBOX_KILLING;
    if (o)
        meet_dead(sb, o, LIFE_ON_DIED, killed ? "killed" : "died",
                  killed && o->why ? o->why : death_cause_name(d->cause), &d->usage);
    keeperc_forget(sb->peers->keeper, d->id);
}
