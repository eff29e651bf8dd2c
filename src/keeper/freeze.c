/* freeze.c - sandboxes stand still and go on. Nothing here waits: what has not stopped at once is looked at again by timer.
 *
 * The journal says "frozen" before the first process is stopped and until the last one runs again, so whatever keeper was
 * doing when it was killed, the next one finishes the pause; who asked for it, or for its end, asks again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "keeper/keeper-int.h"

/* Most stand still within some tenths of a millisecond, so it is looked often at first. */
enum { LOOK_MS = 2, LOOK_OFTEN_MS = 3, LOOK_OFTEN_US = 100 };

static int note(const struct keeper *k, const struct entry *e, bool frozen, struct err *err)
{
    struct journal_record r;
    if (journal_read(k->journal, e->id, &r) < 0)
        return err_set(err, ERR_SETUP, 0, "the journal record of this sandbox cannot be read");
    if ((r.frozen != 0) == frozen)
        return 0;
    r.frozen = frozen;
    if (journal_update(k->journal, &r, err) < 0)
        return -1;
    struct err ignored = {0};
    (void)keepsake_put(k, e, &r, &ignored); /* the time has not changed; the next change brings the rest */
    return 0;
}

static int open_group(const struct keeper *k, const struct entry *e, struct cgroup *ret, struct err *err)
{
    struct journal_record r;
    *ret = (struct cgroup)CGROUP_INIT;
    if (journal_read(k->journal, e->id, &r) < 0)
        return err_set(err, ERR_SETUP, 0, "the journal record of this sandbox cannot be read");
    if (!r.cgroup[0])
        return err_set(err, ERR_HOST, 0, "sandboxes cannot be paused here: they have no cgroup with a freezer%s%s",
                       k->common->cgroups.why[0] ? "; " : "", k->common->cgroups.why);
    return cgroup_load(r.cgroup, ret, err);
}

static int ask(const struct keeper *k, const struct entry *e, bool on, struct err *err)
{
    struct cgroup cg;
    if (open_group(k, e, &cg, err) < 0)
        return -1;
    int r = cgroup_freeze_ask(&cg, on, err);
    cgroup_close(&cg);
    return r;
}

static void answer(struct keeper *k, const struct waiter *w, const struct err *err)
{
    struct keeper_reply r = {.error = !err ? KEEPER_OK : err->code == ERR_HOST ? KEEPER_HOST : KEEPER_FAILED};
    if (err)
        (void)snprintf(r.text, sizeof r.text, "%.*s", (int)sizeof r.text - 1, err->msg);
    asker_answer(k, w, &r);
}

static void answer_all(struct keeper *k, struct entry *e, const struct err *err)
{
    for (unsigned i = 0; i < KEEPER_WAITERS; i++) {
        answer(k, &e->pausers[i], err);
        e->pausers[i] = (struct waiter){0};
    }
}

static void give_up(struct keeper *k, struct entry *e, const struct err *why)
{
    struct err ignored = {0};
    e->freezing = false;
    (void)ask(k, e, false, &ignored);
    (void)note(k, e, false, &ignored);
    answer_all(k, e, why);
}

static void look(struct keeper *k, struct entry *e)
{
    struct cgroup cg;
    struct err err = {0};
    int r = open_group(k, e, &cg, &err);
    if (r == 0) {
        r = cgroup_frozen(&cg);
        cgroup_close(&cg);
    }
    if (r == 1) {
        e->freezing = false;
        e->frozen = true;
        answer_all(k, e, NULL);
        return;
    }
    uint64_t now = keeper_now_ms();
    if (r == 0 && now < e->freeze_ms + CGROUP_FREEZE_MS) {
        if (now < e->freeze_ms + LOOK_OFTEN_MS)
            keeper_wake_in_us(k, LOOK_OFTEN_US);
        else
            keeper_wake_at(k, now + LOOK_MS);
        return;
    }
    if (!err.code && r < 0)
        (void)err_set(&err, ERR_INTERNAL, errno, "the state of the freezer cannot be read");
    else if (!err.code)
        (void)err_set(&err, ERR_INTERNAL, 0,
                      "the sandbox did not stand still within %d ms: a process waits in the kernel",
                      (int)CGROUP_FREEZE_MS);
    give_up(k, e, &err);
}

void freeze_pause(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct err err = {0};
    unsigned i = 0;
    if (e->frozen) {
        answer(k, w, NULL);
        return;
    }
    while (i < KEEPER_WAITERS && e->pausers[i].conn && k->conns[e->pausers[i].conn - 1].gen == e->pausers[i].conn_gen)
        i++;
    if (i == KEEPER_WAITERS) {
        (void)err_set(&err, ERR_LIMIT, 0, "too many requests wait for the pause of this sandbox");
        answer(k, w, &err);
        return;
    }
    if (!e->freezing) {
        if (note(k, e, true, &err) < 0 || ask(k, e, true, &err) < 0) {
            struct err ignored = {0};
            (void)note(k, e, false, &ignored);
            answer(k, w, &err);
            return;
        }
        e->freezing = true;
        e->freeze_ms = keeper_now_ms();
    }
    e->pausers[i] = *w;
    look(k, e);
}

void freeze_resume(struct keeper *k, struct entry *e, const struct waiter *w)
{
    struct err err = {0}, meanwhile = {0};
    if (!e->frozen && !e->freezing) {
        answer(k, w, NULL);
        return;
    }
    if (ask(k, e, false, &err) < 0 || note(k, e, false, &err) < 0) {
        answer(k, w, &err);
        return;
    }
    e->frozen = false;
    if (e->freezing) {
        e->freezing = false;
        (void)err_set(&meanwhile, ERR_INTERNAL, 0, "the sandbox was resumed meanwhile");
        answer_all(k, e, &meanwhile);
    }
    answer(k, w, NULL);
}

/* In case keeper was killed between the word in the journal and the deed. */
void freeze_adopt(struct keeper *k, struct entry *e)
{
    struct err ignored = {0};
    if (ask(k, e, true, &ignored) < 0)
        return;
    e->freezing = true;
    e->freeze_ms = keeper_now_ms();
    look(k, e);
}

void freeze_forget(struct keeper *k, struct entry *e)
{
    struct err ended = {0};
    if (!e->freezing)
        return;
    e->freezing = false;
    (void)err_set(&ended, ERR_INTERNAL, 0, "the sandbox ended meanwhile");
    answer_all(k, e, &ended);
}

uint64_t freeze_tick(struct keeper *k)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < k->nentries; i++) {
        struct entry *e = &k->entries[i];
        if (e->life != LIFE_LIVE || !e->freezing)
            continue;
        look(k, e);
        if (e->freezing)
            next = keeper_now_ms() + LOOK_MS;
    }
    return next;
}
