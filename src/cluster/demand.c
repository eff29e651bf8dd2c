#include "cluster/demand.h"

#include <stdlib.h>

#include "base/mem.h"

void demand_start(struct demand *d, const struct demand_rules *rules) { *d = (struct demand){.rules = *rules}; }

static void demand_remember(struct demand_series *series, uint64_t now_ms, uint64_t half_life_ms, double seconds,
                            const struct demand_sample *s)
{
    for (int k = 0; k < AMOUNT_N; k++) {
        meter_sample(&series->used[k], now_ms, half_life_ms, (double)s->used.of[k]);
        meter_sample(&series->came[k], now_ms, half_life_ms, seconds > 0 ? (double)s->came.of[k] / seconds : 0);
    }
}

void demand_observe(struct demand *d, uint64_t now_ms, const struct demand_sample *s)
{
    uint64_t before = d->brief.used[0].at_ms;
    double seconds = before && now_ms > before ? (double)(now_ms - before) / 1000 : 0;
    demand_remember(&d->brief, now_ms, d->rules.short_ms, seconds, s);
    demand_remember(&d->lasting, now_ms, d->rules.long_ms, seconds, s);
    if (s->ended > 0)
        meter_sample(&d->life_s, now_ms, d->rules.long_ms, (double)s->ended_life_s / (double)s->ended);
}

/* Rounded up; an average that comes from above never quite arrives. */
static uint32_t demand_up(double x)
{
    if (x >= PLACE_NODES_MAX)
        return PLACE_NODES_MAX;
    return (uint32_t)x + ((double)(uint32_t)x < x - 1e-6);
}

/* What is used, or what will be once those that come now have lived (Little's law), whichever is more. */
static uint32_t demand_nodes(const struct demand *d, const struct demand_series *series, const struct amount *each,
                             enum amount_of *ret_tight)
{
    double most = 0;
    for (int k = 0; k < AMOUNT_N; k++) {
        if (!each->of[k])
            continue;
        double used = series->used[k].value, coming = series->came[k].value * d->life_s.value;
        double nodes = (used > coming ? used : coming) * 100 / d->rules.target_percent / (double)each->of[k];
        if (nodes > most) {
            most = nodes;
            *ret_tight = (enum amount_of)k;
        }
    }
    uint32_t n = demand_up(most), spare = demand_up(n * (double)d->rules.spare_percent / 100);
    n += spare ? spare : 1;
    return n < d->rules.nodes_min ? d->rules.nodes_min : n > d->rules.nodes_max ? d->rules.nodes_max : n;
}

struct demand_answer demand_decide(struct demand *d, uint64_t now_ms, uint32_t nodes, const struct amount *each)
{
    struct demand_answer a = {.nodes = nodes};
    enum amount_of of_lasting = AMOUNT_SANDBOXES;
    a.brief = demand_nodes(d, &d->brief, each, &a.tight);
    a.lasting = demand_nodes(d, &d->lasting, each, &of_lasting);
    if (a.brief > nodes) {
        a.nodes = a.brief;
        d->shrunk_ms = now_ms; /* what has just grown is not shrunk at once */
        return a;
    }
    uint32_t needed = a.brief > a.lasting ? a.brief : a.lasting;
    if (needed >= nodes || now_ms - d->shrunk_ms < d->rules.shrink_ms)
        return a;
    uint32_t step = nodes * d->rules.shrink_percent / 100, low = nodes - (step ? step : 1);
    a.nodes = needed > low ? needed : low;
    d->shrunk_ms = now_ms;
    return a;
}

struct leaving {
    uint32_t node, order;
    uint64_t sandboxes;
};

static int leaving_compare(const void *a, const void *b)
{
    const struct leaving *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    if (x->sandboxes != y->sandboxes)
        return x->sandboxes < y->sandboxes ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

size_t demand_leaving(const struct place *p, size_t want, uint32_t *ret)
{
    size_t n_nodes = place_count_nodes(p), n = 0;
    struct leaving *all = xcalloc(n_nodes ? n_nodes : 1, sizeof *all);
    struct place_seen seen;
    for (size_t i = 0; place_look_at(p, i, &seen); i++)
        if (seen.state != PLACE_LOST)
            all[n++] = (struct leaving){.node = seen.info.node,
                                        .order = seen.state == PLACE_DRAINING   ? 0
                                                 : seen.state == PLACE_CORDONED ? 1
                                                                                : 2,
                                        .sandboxes =
                                            seen.report.used.of[AMOUNT_SANDBOXES] + seen.pending.of[AMOUNT_SANDBOXES]};
    qsort(all, n, sizeof *all, leaving_compare);
    if (n > want)
        n = want;
    for (size_t i = 0; i < n; i++)
        ret[i] = all[i].node;
    free(all);
    return n;
}

uint32_t demand_warm(double offered, double dispersion, double miss)
{
    double a = offered * (dispersion > 1 ? dispersion : 1), blocked = 1;
    uint32_t m = 0;
    while (blocked > miss && m < DEMAND_WARM_MAX) {
        m++;
        blocked = a * blocked / (m + a * blocked);
    }
    return m;
}

uint32_t demand_refill(uint32_t wanted, uint32_t ready, uint32_t making)
{
    uint64_t there = (uint64_t)ready + making;
    return there < wanted ? (uint32_t)(wanted - there) : 0;
}
