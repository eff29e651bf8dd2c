#include "front/generations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "front/boxes-int.h"
#include "front/idseal.h"
#include "front/transactions.h"
#include "sandbox/stockc.h"
#include "store/store.h"

/* Of one sandbox. */
struct past {
    char box[SANDBOX_ID_MAX];
    struct generation *v; /* oldest first; owned */
    size_t n, cap;
    uint64_t next;
};
struct generations {
    struct map by_box;
};

static struct past *past_of(struct front *f, const char *box, bool make)
{
    struct past *p = map_get(&f->generations->by_box, box);
    if (p || !make)
        return p;
    p = xcalloc(1, sizeof *p);
    (void)snprintf(p->box, sizeof p->box, "%s", box);
    p->next = 1;
    (void)map_put(&f->generations->by_box, p->box, p);
    return p;
}

static void past_free(struct past *p)
{
    free(p->v);
    free(p);
}

static void add(struct past *p, const struct generation *g)
{
    MEM_GROW(p->v, p->n, p->cap);
    p->v[p->n++] = *g;
    p->next = g->number >= p->next ? g->number + 1 : p->next;
}

/* The oldest go until the rest is within bounds; the newest always stays. */
static void trim(struct front *f, struct past *p)
{
    uint64_t bytes = 0;
    size_t keep = 0;
    while (keep < p->n && keep < GENERATIONS_MAX) {
        bytes += p->v[p->n - 1 - keep].bytes;
        if (keep > 0 && bytes > GENERATIONS_BYTES_MAX)
            break;
        keep++;
    }
    for (size_t i = 0; i + keep < p->n; i++) {
        store_generation_del(f->store, p->box, p->v[i].number, NULL, NULL);
        state_drop(f, p->v[i].stack);
    }
    memmove(p->v, p->v + (p->n - keep), keep * sizeof *p->v);
    p->n = keep;
}

static void forget(void *arg, struct box *b, const char *cause, const struct keeper_usage *u)
{
    struct front *f = arg;
    (void)cause, (void)u;
    struct past *p = f->generations ? map_del(&f->generations->by_box, b->id) : NULL;
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++) {
        store_generation_del(f->store, p->box, p->v[i].number, NULL, NULL);
        state_drop(f, p->v[i].stack);
    }
    past_free(p);
}

/* --- at start ------------------------------------------------------------------------------------------------------- */

static void load_one(void *arg, const struct store_generation *row)
{
    struct front *f = arg;
    struct generation g = {.number = row->number, .at_unix_ms = row->at_unix_ms, .bytes = row->bytes};
    if (!idseal_check(f->ids, row->sandbox, NULL))
        return;                       /* of a paused one that is kept until its key is back */
    if (!box_find(f, row->sandbox)) { /* its end was not written down completely */
        store_generation_del(f->store, row->sandbox, row->number, NULL, NULL);
        return;
    }
    (void)snprintf(g.stack, sizeof g.stack, "%s", row->stack);
    (void)snprintf(g.command, sizeof g.command, "%s", row->command);
    add(past_of(f, row->sandbox, true), &g);
}

int generations_load(struct front *f, struct err *err)
{
    f->generations = xcalloc(1, sizeof *f->generations);
    boxes_on_end(f, forget, f);
    return store_generations(f->store, load_one, f, err);
}

void generations_free(struct front *f)
{
    size_t at = 0;
    if (!f->generations)
        return;
    for (struct past *p; (p = map_next(&f->generations->by_box, &at));)
        past_free(p);
    map_done(&f->generations->by_box);
    free(f->generations);
    f->generations = NULL;
}

/* --- making --------------------------------------------------------------------------------------------------------- */

struct making {
    struct front *front;
    char box[SANDBOX_ID_MAX];
    struct generation g;
    generation_done *done;
    void *arg;
    struct state_failure failure;
};

static void made(struct making *m, bool ok)
{
    m->done(m->arg, ok ? &m->g : NULL, ok ? NULL : &m->failure);
    free(m);
}

static void fail_later(void *arg) { made(arg, false); }

static void stored(void *arg, const struct err *err)
{
    struct making *m = arg;
    struct front *f = m->front;
    state_release(f, m->g.stack);
    if (err) {
        state_fail_write(&m->failure, err, "the generation could not be stored");
        state_drop(f, m->g.stack);
    } else if (!box_find(f, m->box)) {
        state_fail(&m->failure, 404, "the sandbox ended meanwhile");
        store_generation_del(f->store, m->box, m->g.number, NULL, NULL);
        state_drop(f, m->g.stack);
    } else {
        struct past *p = past_of(f, m->box, true);
        add(p, &m->g);
        trim(f, p);
        made(m, true);
        return;
    }
    made(m, false);
}

static void captured(void *arg, const struct stock_reply *r)
{
    struct making *m = arg;
    struct front *f = m->front;
    box_finish(f, m->box);
    if (r->error != STOCK_OK) {
        state_stock_failure(r, "the generation", &m->failure);
        state_release(f, m->g.stack);
        state_drop(f, m->g.stack);
        made(m, false);
        return;
    }
    m->g.bytes = r->bytes2 && r->bytes2 <= r->bytes ? r->bytes - r->bytes2 : r->bytes;
    m->g.frozen_us = r->frozen_us;
    struct store_generation row = {.sandbox = m->box,
                                   .stack = m->g.stack,
                                   .command = m->g.command,
                                   .number = m->g.number,
                                   .at_unix_ms = m->g.at_unix_ms,
                                   .bytes = m->g.bytes};
    store_generation_put(f->store, &row, stored, m);
}

void generation_make(struct front *f, struct box *b, const char *command, generation_done *done, void *arg)
{
    struct making *m = xcalloc(1, sizeof *m);
    *m = (struct making){.front = f, .done = done, .arg = arg};
    (void)snprintf(m->box, sizeof m->box, "%s", b->id);
    (void)snprintf(m->g.command, sizeof m->g.command, "%s", command);
    if (b->state != BOX_RUNNING && b->state != BOX_FROZEN) {
        state_fail(&m->failure, 409, "the sandbox is not running");
    } else if (!f->stock) {
        state_fail(&m->failure, 503, "the process that keeps files is not there");
    } else if (!box_begin(b, "a generation")) {
        state_fail(&m->failure, 503, "%s of the sandbox is under way; try again",
                   b->busy ? b->busy : "a pause or resume");
    } else {
        struct past *p = past_of(f, b->id, true);
        stack_id_new(m->g.stack);
        m->g.number = p->next++;
        m->g.at_unix_ms = boxes_unix_ms();
        state_capture_after(f, b->id, m->g.stack, p->n ? p->v[p->n - 1].stack : "", b->state == BOX_RUNNING, captured,
                            m);
        return;
    }
    (void)loop_defer(f->loop, fail_later, m);
}

/* --- looking -------------------------------------------------------------------------------------------------------- */

void generations_each(struct front *f, const char *box, generation_each_fn *fn, void *arg)
{
    const struct past *p = past_of(f, box, false);
    for (size_t i = 0; p && i < p->n; i++)
        fn(arg, &p->v[i]);
}

const struct generation *generation_newest(struct front *f, const char *box, uint64_t below)
{
    const struct past *p = past_of(f, box, false);
    for (size_t i = p ? p->n : 0; i-- > 0;)
        if (p->v[i].number <= below)
            return &p->v[i];
    return NULL;
}

const struct generation *generation_find(struct front *f, const char *box, uint64_t number)
{
    const struct generation *g = generation_newest(f, box, number);
    return g && g->number == number ? g : NULL;
}

/* --- undoing -------------------------------------------------------------------------------------------------------- */

struct undoing {
    struct front *front;
    char box[SANDBOX_ID_MAX];
    char stack[STACK_ID_MAX];
    uint64_t number;
    struct generation back; /* what it is now: the files of `number` once more */
    struct stock_reply reply;
    generation_undone *done;
    void *arg;
};

static void undo_over(struct undoing *u, const struct stock_reply *r, const struct state_failure *failure)
{
    if (u->stack[0])
        state_release(u->front, u->stack);
    state_drop(u->front, u->stack); /* it may have been the oldest */
    u->done(u->arg, r, failure);
    free(u);
}

static void back_stored(void *arg, const struct err *err)
{
    struct undoing *u = arg;
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
    else if (!box_find(u->front, u->box))
        store_generation_del(u->front->store, u->box, u->back.number, NULL, NULL);
    else {
        struct past *p = past_of(u->front, u->box, true);
        add(p, &u->back);
        trim(u->front, p);
    }
    undo_over(u, &u->reply, NULL);
}

/* What the next command begins with is the newest generation: who takes that one back must not come to what there was before
 * this undo. */
static void undone(void *arg, const struct stock_reply *r, const struct state_failure *failure, int fd)
{
    struct undoing *u = arg;
    struct front *f = u->front;
    if (fd >= 0)
        (void)close(fd);
    if (failure || !box_find(f, u->box)) {
        undo_over(u, r, failure);
        return;
    }
    u->reply = *r;
    u->back = (struct generation){.number = past_of(f, u->box, true)->next++, .at_unix_ms = boxes_unix_ms()};
    memcpy(u->back.stack, u->stack, sizeof u->back.stack);
    (void)snprintf(u->back.command, sizeof u->back.command, "back to %llu", (unsigned long long)u->number);
    struct store_generation row = {.sandbox = u->box,
                                   .stack = u->back.stack,
                                   .command = u->back.command,
                                   .number = u->back.number,
                                   .at_unix_ms = u->back.at_unix_ms};
    store_generation_put(f->store, &row, back_stored, u);
}

/* What there was is kept; now the files go back. */
static void kept(void *arg, const struct generation *g, const struct state_failure *failure)
{
    struct undoing *u = arg;
    struct box *b = box_find(u->front, u->box);
    struct state_failure gone = {0};
    if (!failure && !b)
        state_fail(&gone, 409, "the sandbox does not run any more");
    if (failure || gone.status)
        undone(u, NULL, failure ? failure : &gone, -1);
    else
        transaction_undo(u->front, b, g->stack, u->stack, undone, u);
}

void generation_undo(struct front *f, struct box *b, uint64_t number, generation_undone *done, void *arg)
{
    const struct generation *to = generation_find(f, b->id, number);
    struct undoing *u = xcalloc(1, sizeof *u);
    *u = (struct undoing){.front = f, .number = number, .done = done, .arg = arg};
    (void)snprintf(u->box, sizeof u->box, "%s", b->id);
    if (to) { /* making one more may push this one out of the history: it is held */
        (void)snprintf(u->stack, sizeof u->stack, "%s", to->stack);
        state_hold(f, u->stack);
    }
    char text[64];
    (void)snprintf(text, sizeof text, "before going back to %llu", (unsigned long long)number);
    generation_make(f, b, text, kept, u);
}
