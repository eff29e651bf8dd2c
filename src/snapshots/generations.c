#include "snapshots/generations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "peers/layersc.h"
#include "sandboxes/idseal.h"
#include "snapshots/snapshots-int.h"

/* Of one sandbox. */
struct past {
    char sandbox[SANDBOX_ID_MAX];
    struct generation *v; /* oldest first; owned */
    size_t n, cap;
    uint64_t next;
};
struct generations {
    struct map by_sandbox;
};

static struct past *past_of(struct snapshots *sn, const char *sandbox, bool make)
{
    struct past *p = map_get(&sn->generations->by_sandbox, sandbox);
    if (p || !make)
        return p;
    p = xcalloc(1, sizeof *p);
    (void)snprintf(p->sandbox, sizeof p->sandbox, "%s", sandbox);
    p->next = 1;
    (void)map_put(&sn->generations->by_sandbox, p->sandbox, p);
    return p;
}

static void past_free(struct past *p)
{
    free(p->v);
    free(p);
}

static void past_add(struct snapshots *sn, struct past *p, const struct generation *g)
{
    struct sandbox *b = sandbox_lookup(sn->sandboxes, p->sandbox);
    MEM_GROW(p->v, p->n, p->cap);
    p->v[p->n++] = *g;
    p->next = g->number >= p->next ? g->number + 1 : p->next;
    if (b && g->number > b->desc.generation)
        b->desc.generation = g->number;
}

/* Removes the oldest until the rest is within the limits; the newest always stays. */
static void past_trim(struct snapshots *sn, struct past *p)
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
        db_generation_del(sn->db, p->sandbox, p->v[i].number, NULL, NULL);
        state_drop(sn->stacks, p->v[i].stack);
    }
    memmove(p->v, p->v + (p->n - keep), keep * sizeof *p->v);
    p->n = keep;
}

static void past_forget(struct snapshots *sn, struct past *p, uint64_t number)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->v[i].number == number) {
            db_generation_del(sn->db, p->sandbox, number, NULL, NULL);
            state_drop(sn->stacks, p->v[i].stack);
            memmove(p->v + i, p->v + i + 1, (p->n - i - 1) * sizeof *p->v);
            p->n--;
            return;
        }
}

static void generations_on_sandbox_end(void *arg, struct sandbox *b, const char *cause, const struct keeper_usage *u)
{
    struct snapshots *sn = arg;
    (void)cause, (void)u;
    struct past *p = sn->generations ? map_del(&sn->generations->by_sandbox, b->id) : NULL;
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++) {
        db_generation_del(sn->db, p->sandbox, p->v[i].number, NULL, NULL);
        state_drop(sn->stacks, p->v[i].stack);
    }
    past_free(p);
}

/* --- at start ----------------------------------------------------------------------------------------------------- */

static void generation_load(void *arg, const struct db_generation *row)
{
    struct snapshots *sn = arg;
    struct generation g = {.number = row->number, .at_unix_ms = row->at_unix_ms, .bytes = row->bytes};
    if (!idseal_check(sn->ids, row->sandbox, NULL))
        return;                                       /* of a paused sandbox that waits for its lost id.key */
    if (!sandbox_find(sn->sandboxes, row->sandbox)) { /* a crash left this row of an ended sandbox */
        db_generation_del(sn->db, row->sandbox, row->number, NULL, NULL);
        return;
    }
    (void)snprintf(g.stack, sizeof g.stack, "%s", row->stack);
    (void)snprintf(g.command, sizeof g.command, "%s", row->command);
    past_add(sn, past_of(sn, row->sandbox, true), &g);
}

int generations_load(struct snapshots *sn, struct err *err)
{
    sn->generations = xcalloc(1, sizeof *sn->generations);
    sandboxes_on_end(sn->sandboxes, generations_on_sandbox_end, sn);
    return db_generations(sn->db, generation_load, sn, err);
}

void generations_free(struct snapshots *sn)
{
    size_t at = 0;
    if (!sn->generations)
        return;
    for (struct past *p; (p = map_next(&sn->generations->by_sandbox, &at));)
        past_free(p);
    map_done(&sn->generations->by_sandbox);
    free(sn->generations);
    sn->generations = NULL;
}

/* Each counts for the tenant of its sandbox. They are dropped by number, not by whether a row names them. */
void generations_each_use(void *ctx, stack_use_fn *fn, void *arg)
{
    struct snapshots *sn = ctx;
    size_t at = 0;
    for (struct past *p; sn->generations && (p = map_next(&sn->generations->by_sandbox, &at));) {
        const struct sandbox *b = sandbox_lookup(sn->sandboxes, p->sandbox);
        for (size_t i = 0; b && i < p->n; i++)
            fn(arg, &(struct stack_use){
                        .stack = p->v[i].stack, .bytes = p->v[i].bytes, .tenant = b->tenant, .counted_only = true});
    }
}

/* --- making ------------------------------------------------------------------------------------------------------- */

struct making {
    struct snapshots *snapshots;
    char sandbox[SANDBOX_ID_MAX];
    struct generation g;
    generation_done *done;
    void *arg;
    struct state_failure failure;
};

static void generation_finish(struct making *m, bool ok)
{
    m->done(m->arg, ok ? &m->g : NULL, ok ? NULL : &m->failure);
    free(m);
}

static void generation_on_refused(void *arg) { generation_finish(arg, false); }

static void generation_on_row_stored(void *arg, const struct err *err)
{
    struct making *m = arg;
    struct snapshots *sn = m->snapshots;
    state_release(sn->stacks, m->g.stack);
    if (err) {
        state_fail_write(&m->failure, err, "the generation could not be stored");
        state_drop(sn->stacks, m->g.stack);
    } else if (!sandbox_find(sn->sandboxes, m->sandbox)) {
        state_fail(&m->failure, 404, "the sandbox ended meanwhile");
        db_generation_del(sn->db, m->sandbox, m->g.number, NULL, NULL);
        state_drop(sn->stacks, m->g.stack);
    } else {
        struct past *p = past_of(sn, m->sandbox, true);
        past_add(sn, p, &m->g);
        past_trim(sn, p);
        generation_finish(m, true);
        return;
    }
    generation_finish(m, false);
}

static void generation_on_captured(void *arg, const struct layers_reply *r)
{
    struct making *m = arg;
    struct snapshots *sn = m->snapshots;
    sandbox_finish(sn->sandboxes, m->sandbox);
    if (r->error != LAYERS_OK) {
        state_layers_failure(r, "the generation", &m->failure);
        state_release(sn->stacks, m->g.stack);
        state_drop(sn->stacks, m->g.stack);
        generation_finish(m, false);
        return;
    }
    m->g.bytes = r->bytes2 && r->bytes2 <= r->bytes ? r->bytes - r->bytes2 : r->bytes;
    m->g.frozen_us = r->frozen_us;
    struct db_generation row = {.sandbox = m->sandbox,
                                .stack = m->g.stack,
                                .command = m->g.command,
                                .number = m->g.number,
                                .at_unix_ms = m->g.at_unix_ms,
                                .bytes = m->g.bytes};
    db_generation_put(sn->db, &row, generation_on_row_stored, m);
}

void generation_make(struct snapshots *sn, struct sandbox *b, const char *command, generation_done *done, void *arg)
{
    struct making *m = xcalloc(1, sizeof *m);
    *m = (struct making){.snapshots = sn, .done = done, .arg = arg};
    (void)snprintf(m->sandbox, sizeof m->sandbox, "%s", b->id);
    (void)snprintf(m->g.command, sizeof m->g.command, "%s", command);
    if (b->state != SANDBOX_RUNNING && b->state != SANDBOX_FROZEN) {
        state_fail(&m->failure, 409, "the sandbox is not running");
    } else if (!sn->peers->layers) {
        state_fail(&m->failure, 503, "the process that keeps files is not there");
    } else if (!sandbox_begin(b, "a generation")) {
        state_fail(&m->failure, 503, "%s of the sandbox is under way; try again",
                   b->busy ? b->busy : "a pause or resume");
    } else {
        struct past *p = past_of(sn, b->id, true);
        stack_id_new(m->g.stack);
        m->g.number = p->next++;
        m->g.at_unix_ms = clock_unix_ms();
        state_capture_after(sn->stacks, b->id, b->tenant, m->g.stack, p->n ? p->v[p->n - 1].stack : "",
                            b->state == SANDBOX_RUNNING, generation_on_captured, m);
        return;
    }
    (void)loop_defer(sn->loop, generation_on_refused, m);
}

/* --- looking ------------------------------------------------------------------------------------------------------ */

void generations_each(struct snapshots *sn, const char *sandbox, generation_each_fn *fn, void *arg)
{
    const struct past *p = past_of(sn, sandbox, false);
    for (size_t i = 0; p && i < p->n; i++)
        fn(arg, &p->v[i]);
}

const struct generation *generation_newest(struct snapshots *sn, const char *sandbox, uint64_t below)
{
    const struct past *p = past_of(sn, sandbox, false);
    for (size_t i = p ? p->n : 0; i-- > 0;)
        if (p->v[i].number <= below)
            return &p->v[i];
    return NULL;
}

const struct generation *generation_find(struct snapshots *sn, const char *sandbox, uint64_t number)
{
    const struct generation *g = generation_newest(sn, sandbox, number);
    return g && g->number == number ? g : NULL;
}

/* --- undoing ------------------------------------------------------------------------------------------------------ */

struct undoing {
    struct snapshots *snapshots;
    char sandbox[SANDBOX_ID_MAX];
    char stack[STACK_ID_MAX];
    uint64_t number, present; /* to which it goes, and that of the files before it; 0: not made */
    struct generation back;   /* the new generation: the files of `number` once more */
    struct layers_reply reply;
    generation_undone *done;
    void *arg;
};

/* The undo changed nothing, so its generation of the files before it is of no use, and would keep on the disk what the sandbox
 * removes to make room for the next try. While the sandbox is busy the undo still needs it. */
static void undo_forget_present(const struct undoing *u)
{
    const struct sandbox *b = sandbox_find(u->snapshots->sandboxes, u->sandbox);
    struct past *p = past_of(u->snapshots, u->sandbox, false);
    if (u->present && p && b && !b->busy)
        past_forget(u->snapshots, p, u->present);
}

static void undo_finish(struct undoing *u, const struct layers_reply *r, const struct state_failure *failure)
{
    if (failure)
        undo_forget_present(u);
    if (u->stack[0])
        state_release(u->snapshots->stacks, u->stack);
    state_drop(u->snapshots->stacks, u->stack); /* in case the history dropped it meanwhile */
    u->done(u->arg, r, failure);
    free(u);
}

static void undo_on_row_stored(void *arg, const struct err *err)
{
    struct undoing *u = arg;
    if (err)
        log_text(LOG_LEVEL_ERROR, "%s", err->msg);
    else if (!sandbox_find(u->snapshots->sandboxes, u->sandbox))
        db_generation_del(u->snapshots->db, u->sandbox, u->back.number, NULL, NULL);
    else {
        struct past *p = past_of(u->snapshots, u->sandbox, true);
        past_add(u->snapshots, p, &u->back);
        past_trim(u->snapshots, p);
    }
    undo_finish(u, &u->reply, NULL);
}

/* Records the restored files as the newest generation. Undoing the next command then returns to them, not to the
 * files from before this undo. */
static void undo_on_applied(void *arg, const struct layers_reply *r, const struct state_failure *failure, int fd)
{
    struct undoing *u = arg;
    struct snapshots *sn = u->snapshots;
    if (fd >= 0)
        (void)close(fd);
    if (failure || !sandbox_find(sn->sandboxes, u->sandbox)) {
        undo_finish(u, r, failure);
        return;
    }
    u->reply = *r;
    u->back = (struct generation){.number = past_of(sn, u->sandbox, true)->next++, .at_unix_ms = clock_unix_ms()};
    memcpy(u->back.stack, u->stack, sizeof u->back.stack);
    (void)snprintf(u->back.command, sizeof u->back.command, "back to %llu", (unsigned long long)u->number);
    struct db_generation row = {.sandbox = u->sandbox,
                                .stack = u->back.stack,
                                .command = u->back.command,
                                .number = u->back.number,
                                .at_unix_ms = u->back.at_unix_ms};
    db_generation_put(sn->db, &row, undo_on_row_stored, u);
}

/* The present files are kept as a generation; now restore those of u->number. */
static void undo_on_present_kept(void *arg, const struct generation *g, const struct state_failure *failure)
{
    struct undoing *u = arg;
    struct sandbox *b = sandbox_find(u->snapshots->sandboxes, u->sandbox);
    struct state_failure gone = {0};
    if (!failure && !b)
        state_fail(&gone, 409, "the sandbox does not run any more");
    if (g)
        u->present = g->number;
    if (failure || gone.status)
        undo_on_applied(u, NULL, failure ? failure : &gone, -1);
    else
        transaction_undo(u->snapshots, b, g->stack, u->stack, undo_on_applied, u);
}

void generation_undo(struct snapshots *sn, struct sandbox *b, uint64_t number, generation_undone *done, void *arg)
{
    const struct generation *to = generation_find(sn, b->id, number);
    struct undoing *u = xcalloc(1, sizeof *u);
    *u = (struct undoing){.snapshots = sn, .number = number, .done = done, .arg = arg};
    (void)snprintf(u->sandbox, sizeof u->sandbox, "%s", b->id);
    if (to) { /* hold it, because one more generation may push it out of the history */
        (void)snprintf(u->stack, sizeof u->stack, "%s", to->stack);
        state_hold(sn->stacks, u->stack);
    }
    char text[64];
    (void)snprintf(text, sizeof text, "before going back to %llu", (unsigned long long)number);
    generation_make(sn, b, text, undo_on_present_kept, u);
}
