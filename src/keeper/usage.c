/* usage.c - what a sandbox may use and has used. */
#include "keeper/keeper-int.h"

void usage_read(const struct keeper *k, const struct journal_record *r, bool alive, struct keeper_usage *ret)
{
    const struct tier *t = tier_of(r->tier);
    *ret = (struct keeper_usage){.memory_limit = r->memory, .disk_limit = r->disk, .cpu_milli = r->cpu_milli};
    ret->have |=
        (r->memory ? HAVE_MEMORY_LIMIT : 0U) | (r->cpu_milli ? HAVE_CPU_MILLI : 0U) | (r->disk ? HAVE_DISK_LIMIT : 0U);
    if (t && t->usage)
        t->usage(k, r, alive, ret);
}

void usage_answer(struct keeper *k, const struct entry *e, const struct waiter *w)
{
    struct keeper_reply r = {.error = KEEPER_OK, .usage = e->usage};
    struct journal_record rec;
    struct err err = {0};
    if (tier_need(e->tier, TIER_USAGE, &err) < 0) {
        asker_refuse(k, w, KEEPER_HOST, err.msg);
        return;
    }
    if (e->life != LIFE_DEAD && journal_read(k->journal, e->id, &rec) == 0)
        usage_read(k, &rec, true, &r.usage);
    r.init_pid = e->life == LIFE_LIVE ? (uint32_t)e->pid : 0;
    asker_answer(k, w, &r);
}
