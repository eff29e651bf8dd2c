/* limit.c - single commands with a limit on memory: makes a cgroup for one, below that of its sandbox, and hands init what a
 * process needs to join it. init cannot choose the limit, and what it gets moves its own processes only. */
#include "keeper/keeper-int.h"

enum { LIMITED_MAX = 64 /* commands in one sandbox */, LIMIT_SWEEP_MS = 1000 };

static int limit_make(const struct keeper *k, const struct entry *e, const struct keeper_limit *q, struct err *err)
{
    struct journal_record r;
    struct cgroup_sub s;
    if (tier_need(e->tier, TIER_LIMIT, err) < 0)
        return -1;
    if (journal_read(k->journal, e->id, &r) < 0)
        return err_set(err, ERR_SETUP, 0, "the journal record of this sandbox cannot be read");
    if (e->tier->sweep(&r) >= LIMITED_MAX)
        return err_set(err, ERR_LIMIT, 0, "%d commands with a limit on memory run in this sandbox already",
                       LIMITED_MAX);
    if (e->tier->limit(k, &r, q->number, q->memory, &s, err) < 0)
        return -1;
    int sent = control_give_group(e, q, &s, err); /* an unused group is swept like one whose command ended */
    cgroup_sub_close(&s);
    return sent;
}

void limit_command(struct keeper *k, struct entry *e, const struct keeper_limit *q, const struct waiter *w)
{
    struct keeper_reply r = {.error = KEEPER_OK};
    struct err err = {0};
    if (limit_make(k, e, q, &err) == 0) {
        asker_answer(k, w, &r);
    } else {
        asker_refuse(k, w,
                     err.code == ERR_HOST    ? KEEPER_HOST
                     : err.code == ERR_LIMIT ? KEEPER_CAPACITY
                                             : KEEPER_FAILED,
                     err.msg);
    }
    e->limited = k->limited = true; /* also after a failure: a group may have been made */
    keeper_wake_at(k, keeper_now_ms() + LIMIT_SWEEP_MS);
}

uint64_t limit_tick(struct keeper *k)
{
    bool left = false;
    uint64_t now = keeper_now_ms();
    if (!k->limited)
        return UINT64_MAX;
    if (now < k->limit_sweep_ms)
        return k->limit_sweep_ms;
    for (uint32_t i = 0; i < k->nentries; i++) {
        struct entry *e = &k->entries[i];
        struct journal_record r;
        if (e->life != LIFE_LIVE || !e->limited)
            continue;
        e->limited = journal_read(k->journal, e->id, &r) == 0 && e->tier->sweep(&r) > 0;
        left |= e->limited;
    }
    k->limited = left;
    k->limit_sweep_ms = now + LIMIT_SWEEP_MS;
    return left ? k->limit_sweep_ms : UINT64_MAX;
}
