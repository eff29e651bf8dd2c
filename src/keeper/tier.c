#include "keeper/tier.h"

#include <stddef.h>

#include "base/cleanup.h"

static const struct tier *const tiers[KEEPER_TIERS] = {[KEEPER_TIER_CONTAINER] = &tier_container};

static const char *const operations[TIER_OPERATIONS] = {
    [TIER_START] = "start",     [TIER_ADOPT] = "adopt",     [TIER_BIND] = "bind",     [TIER_DIAL_INIT] = "dial_init",
    [TIER_FREEZE] = "freeze",   [TIER_KILL] = "kill",       [TIER_USAGE] = "usage",   [TIER_NETWORK] = "network",
    [TIER_CAPTURE] = "capture", [TIER_RESTORE] = "restore", [TIER_RESIZE] = "resize", [TIER_LIMIT] = "limit",
    [TIER_SWEEP] = "sweep",
};

const struct tier *tier_of(uint32_t number) { return number < ARRAY_LEN(tiers) ? tiers[number] : NULL; }

bool tier_has(const struct tier *t, enum tier_operation op)
{
    const bool has[TIER_OPERATIONS] = {
        [TIER_START] = t->start,         [TIER_ADOPT] = t->adopt,     [TIER_BIND] = t->bind,
        [TIER_DIAL_INIT] = t->dial_init, [TIER_FREEZE] = t->freeze,   [TIER_KILL] = t->kill,
        [TIER_USAGE] = t->usage,         [TIER_NETWORK] = t->network, [TIER_CAPTURE] = t->capture,
        [TIER_RESTORE] = t->restore,     [TIER_RESIZE] = t->resize,   [TIER_LIMIT] = t->limit,
        [TIER_SWEEP] = t->sweep,
    };
    return has[op];
}

int tier_need(const struct tier *t, enum tier_operation op, struct err *err)
{
    if (tier_has(t, op))
        return 0;
    return err_set(err, ERR_HOST, 0, "the tier %s has no operation \"%s\"", t->name, operations[op]);
}
