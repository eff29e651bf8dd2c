/* front and keeper meet (again): what the store says is compared with what lives. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/events.h"

static const char *const causes[] = {
    [KEEPER_DIED_UNKNOWN] = "unknown", [KEEPER_DIED_TTL] = "timeout",   [KEEPER_DIED_OOM] = "out_of_memory",
    [KEEPER_DIED_INIT] = "init_died",  [KEEPER_DIED_KILLED] = "killed", [KEEPER_DIED_BOOT] = "machine_restarted",
    [KEEPER_DIED_LOST] = "lost",
};

static const char *cause_of(uint32_t cause)
{
    return cause < sizeof causes / sizeof causes[0] && causes[cause] ? causes[cause] : "unknown";
}

struct meeting {
    struct front *front;
    uint64_t round;
};
struct hello {
    struct front *front;
    char id[SANDBOX_ID_MAX];
};

/* A create that the front before us did not finish: the next one with its idempotency key starts anew. */
static void discard_cut_create(struct front *f, struct box_own *o)
{
    idem_forget_box(f, o->b.id);
    box_discard(f, o);
}

/* A row that was still `creating`: only init knows whether the binding reached it. Its maker may have been answered, so until
 * then it counts as running: better a moment too long than a sandbox that its owner hears is not there. */
static void greeted(void *arg, const struct link_status *st)
{
    struct hello *h = arg;
    struct front *f = h->front;
    struct box *b = map_get(&f->boxes->by_id, h->id);
    free(h);
    if (!b || b->state != BOX_RUNNING || !box_own(b)->unsure)
        return;
    if (st->code != LINK_OK) {
        keeperc_kill(f->keeper, b->id, NULL, NULL);
        discard_cut_create(f, box_own(b));
        return;
    }
    box_own(b)->unsure = box_own(b)->unmet = false;
    box_write(f, b, NULL, NULL, NULL);
}

static void went_on(void *arg, const struct keeper_reply *r)
{
    (void)arg;
    if (r->error != KEEPER_OK)
        log_text(LOG_LEVEL_ERROR, "a sandbox is not in the state the store says: %s", r->text);
}

/* A box whose row says that it is paused. What the store says holds: the answer to whoever asked for a change is given only
 * after it was written. False: it is none. */
static bool paused_meets(struct front *f, struct box_own *o, const struct keeper_item *item)
{
    if (o->b.state == BOX_STORED) {
        o->leftover = true;
        keeperc_kill(f->keeper, o->b.id, NULL, NULL);
        return true;
    }
    if (o->b.state == BOX_FROZEN && !item->frozen) {
        log_text(LOG_LEVEL_WARN, "sandbox %s was paused, but goes on; it is paused again", o->b.id);
        keeperc_pause(f->keeper, o->b.id, went_on, NULL);
    }
    return o->b.state == BOX_FROZEN;
}

static void found_alive(struct front *f, const struct keeper_item *item)
{
    struct box_own *o = map_get(&f->boxes->by_id, item->id);
    if (!o) {
        log_text(LOG_LEVEL_WARN, "sandbox %s lives but is not in the store; it is killed", item->id);
        keeperc_kill(f->keeper, item->id, NULL, NULL);
        return;
    }
    o->seen = true;
    o->unmet = o->unsure;
    if (o->change || o->b.state == BOX_KILLING)
        return; /* what is under way is sent again and decides */
    if (paused_meets(f, o, item))
        return;
    if (item->frozen && !o->creation) {
        /* A pause that did not come to its end; nobody was told of it. */
        log_text(LOG_LEVEL_WARN, "sandbox %s stands still, but was not paused; it goes on", item->id);
        keeperc_resume(f->keeper, item->id, went_on, NULL);
    }
    if (o->b.state == BOX_RUNNING && item->deadline_ms > boxes_boot_ms() + BOX_FAR_S * 500ULL) {
        if (!o->b.auto_pause) /* the same, or a resume */
            keeperc_deadline(f->keeper, item->id, box_deadline(&o->b), went_on, NULL);
    } else if (o->b.state == BOX_RUNNING && item->deadline_ms) {
        /* keeper's deadline is the one that counts. */
        o->end_boot_ms = item->deadline_ms;
        o->b.end_unix_ms = boxes_unix_ms() + item->deadline_ms - boxes_boot_ms();
    }
    if (o->unsure) {
        struct hello *h = xcalloc(1, sizeof *h);
        h->front = f;
        memcpy(h->id, o->b.id, sizeof h->id);
        (void)link_hello(f->links, h->id, greeted, h);
    }
}

/* What keeper says about its life does not end it: it exists as files, or is just being made from them. */
static bool is_elsewhere(const struct box_own *o)
{
    return o->row_state == STORE_BOX_STORED && (o->b.state == BOX_STORED || o->change);
}

/* Made from its files, and dead before its row said so: that resume fails, and it is stored as before. */
static void restore_died(struct front *f, struct box_own *o)
{
    if (!o->change || o->change->kind != CHANGE_RESTORE)
        return;
    o->died = true;
    links_gone(f->links, o->b.id); /* its binding or its start command fails */
}

static void listed(void *arg, const struct keeper_item *v, size_t n)
{
    struct meeting *m = arg;
    struct front *f = m->front;
    uint64_t round = m->round;
    free(m);
    if (!f->boxes || round != f->boxes->round)
        return; /* keeper went away and came back meanwhile: the next answer counts */
    size_t at = 0;
    for (struct box_own *o; (o = map_next(&f->boxes->by_id, &at));)
        o->seen = false;
    for (size_t i = 0; i < n; i++) {
        if (v[i].alive) {
            found_alive(f, &v[i]);
            continue;
        }
        struct box_own *o = map_get(&f->boxes->by_id, v[i].id);
        if (o && o->creation)
            o->died = true;
        else if (o && !is_elsewhere(o))
            box_end(f, o, "died", cause_of(v[i].cause), NULL);
        else if (o && o->change && o->change->bound) /* else it is the life before, or its create is sent again */
            restore_died(f, o);
        keeperc_forget(f->keeper, v[i].id);
    }
    /* Those keeper does not know. Ones made after the question was asked cannot be in the answer. */
    for (bool again = true; again;) {
        again = false;
        at = 0;
        for (struct box_own *o; !again && (o = map_next(&f->boxes->by_id, &at));)
            if (!o->seen && !o->creation && !is_elsewhere(o) && o->round < round) {
                if (o->unsure)
                    discard_cut_create(f, o);
                else
                    box_end(f, o, "died", "unknown", NULL);
                again = true; /* the map has changed */
            }
    }
    struct log_line l;
    if (log_start(&l, LOG_LEVEL_INFO, "met keeper")) {
        log_u64(&l, "sandboxes", f->boxes->by_id.n);
        log_end(&l);
    }
}

void boxes_keeper_up(struct front *f)
{
    struct meeting *m = xcalloc(1, sizeof *m);
    size_t at = 0;
    f->boxes->keeper_up = true;
    /* A keeper that was cut short may still be at the end of one. */
    for (struct box_own *o; (o = map_next(&f->boxes->by_id, &at));)
        o->leftover |= o->stored;
    m->front = f;
    m->round = ++f->boxes->round;
    keeperc_list(f->keeper, listed, m);
}

void boxes_keeper_down(struct front *f)
{
    f->boxes->keeper_up = false;
    log_text(LOG_LEVEL_WARN, "the connection to keeper is gone; it is made again");
}

void boxes_keeper_died(struct front *f, const struct keeper_death *d)
{
    struct box_own *o = map_get(&f->boxes->by_id, d->id);
    /* One that is being made fails through its create; one that is being killed through its kill. */
    if (o && is_elsewhere(o))
        restore_died(f, o);
    else if (o && !o->creation)
        box_end(f, o, o->b.state == BOX_KILLING ? "killed" : "died",
                o->b.state == BOX_KILLING && o->why ? o->why : cause_of(d->cause), &d->usage);
    else if (o) {
        o->died = true;
        links_gone(f->links, d->id);
    }
    keeperc_forget(f->keeper, d->id);
}
