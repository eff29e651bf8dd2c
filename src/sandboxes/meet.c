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
    if (!b || b->state != SANDBOX_RUNNING || !sandbox_own(b)->unsure)
        return;
    if (st->code != LINK_OK) {
        keeperc_kill(sb->peers->keeper, b->id, NULL, NULL);
        meet_discard_unfinished(sb, sandbox_own(b));
        return;
    }
    sandbox_own(b)->unsure = sandbox_own(b)->unmet = false;
    sandbox_write(sb, b, NULL, NULL, NULL);
}

static void meet_on_corrected(void *arg, const struct keeper_reply *r)
{
    (void)arg;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "a sandbox is not in the state the store says: %s", r->text);
}

/* Brings a sandbox whose row says `paused` back into that state: the row decides, because clients are answered only
 * after it was written. False: the sandbox is not paused. */
static bool meet_paused(struct sandboxes *sb, struct sandbox_own *o, const struct keeper_item *item)
{
    if (o->b.state == SANDBOX_STORED) {
        o->leftover = true;
        keeperc_kill(sb->peers->keeper, o->b.id, NULL, NULL);
        return true;
    }
    if (o->b.state == SANDBOX_FROZEN && !item->frozen) {
        log_text(LOG_LEVEL_WARN, "sandbox %s was paused, but goes on; it is paused again", o->b.id);
        keeperc_pause(sb->peers->keeper, o->b.id, meet_on_corrected, NULL);
    }
    return o->b.state == SANDBOX_FROZEN;
}

static void meet_alive(struct sandboxes *sb, const struct keeper_item *item)
{
    struct sandbox_own *o = map_get(&sb->by_id, item->id);
    if (!o) {
        log_text(LOG_LEVEL_WARN, "sandbox %s lives but is not in the store; it is killed", item->id);
        keeperc_kill(sb->peers->keeper, item->id, NULL, NULL);
        return;
    }
    o->seen = true;
    o->unmet = o->unsure;
    if (o->change || o->b.state == SANDBOX_KILLING)
        return; /* the pending call to keeper is sent again and decides */
    if (meet_paused(sb, o, item))
        return;
    if (item->frozen && !o->creation) {
        /* A pause that was not finished, and so was not reported to a client. */
        log_text(LOG_LEVEL_WARN, "sandbox %s stands still, but was not paused; it goes on", item->id);
        keeperc_resume(sb->peers->keeper, item->id, meet_on_corrected, NULL);
    }
    if (o->b.state == SANDBOX_RUNNING && item->deadline_ms > clock_boot_ms() + SANDBOX_FAR_S * 500ULL) {
        if (!o->b.desc.life.auto_pause) /* an unfinished pause or resume left keeper's far deadline */
            keeperc_deadline(sb->peers->keeper, item->id, sandbox_deadline(&o->b), meet_on_corrected, NULL);
    } else if (o->b.state == SANDBOX_RUNNING && item->deadline_ms) {
        /* keeper's deadline is the one that counts. */
        o->end_boot_ms = item->deadline_ms;
        o->b.end_unix_ms = clock_unix_ms() + item->deadline_ms - clock_boot_ms();
    }
    if (o->unsure) {
        struct hello *h = xcalloc(1, sizeof *h);
        h->sandboxes = sb;
        memcpy(h->id, o->b.id, sizeof h->id);
        (void)link_hello(sb->peers->links, h->id, meet_on_hello, h);
    }
}

/* Whether the sandbox exists as files, or is being restored from them: then the death of its processes does not end
 * it. */
static bool sandbox_is_stored_as_files(const struct sandbox_own *o)
{
    return o->row_state == DB_SANDBOX_STORED && (o->b.state == SANDBOX_STORED || o->change);
}

/* The sandbox died during its restore: the resume fails, and the sandbox stays stored. */
static void meet_restore_died(struct sandboxes *sb, struct sandbox_own *o)
{
    if (!o->change || o->change->kind != CHANGE_RESTORE)
        return;
    o->died = true;
    links_gone(sb->peers->links, o->b.id); /* its binding or its start command fails */
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
        if (o && o->creation)
            o->died = true;
        else if (o && !sandbox_is_stored_as_files(o))
            sandbox_end(sb, o, "died", death_cause_name(v[i].cause), NULL);
        else if (o && o->change &&
                 o->change->bound) /* else it was the earlier life of the sandbox, or its create is sent again */
            meet_restore_died(sb, o);
        keeperc_forget(sb->peers->keeper, v[i].id);
    }
    /* End sandboxes that keeper does not know, except those made after the list was requested. */
    for (bool again = true; again;) {
        again = false;
        at = 0;
        for (struct sandbox_own *o; !again && (o = map_next(&sb->by_id, &at));)
            if (!o->seen && !o->creation && !sandbox_is_stored_as_files(o) && o->round < round) {
                if (o->unsure)
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
    /* A sandbox that is being made fails through its create; one that is being killed ends through its kill. */
    if (o && sandbox_is_stored_as_files(o))
        meet_restore_died(sb, o);
    else if (o && !o->creation)
        sandbox_end(sb, o, o->b.state == SANDBOX_KILLING ? "killed" : "died",
                    o->b.state == SANDBOX_KILLING && o->why ? o->why : death_cause_name(d->cause), &d->usage);
    else if (o) {
        o->died = true;
        links_gone(sb->peers->links, d->id);
    }
    keeperc_forget(sb->peers->keeper, d->id);
}
