/* demand.h - how many nodes a pool needs, which of them go first, and how many sandboxes of a template should wait.
 *
 * What is needed is measured twice, with a short memory and a long one. Growing listens to the short one and happens at
 * once; shrinking needs both, goes in small steps and takes nodes that are drained, then those with the fewest sandboxes.
 */
#ifndef HUTCH_CLUSTER_DEMAND_H
#define HUTCH_CLUSTER_DEMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cluster/amount.h"
#include "cluster/meter.h"
#include "cluster/place.h"

struct demand_rules {
    uint32_t short_ms, long_ms; /* half-lives */
    uint32_t target_percent;    /* of its capacity a node should have in use */
    uint32_t spare_percent;     /* of all nodes, one at least: what may be lost at once */
    uint32_t shrink_percent;    /* of all nodes, one at least, in one step */
    uint32_t shrink_ms;         /* between two steps */
    uint32_t nodes_min, nodes_max;
};
#define DEMAND_RULES                             \
    ((struct demand_rules){.short_ms = 60000,    \
                           .long_ms = 600000,    \
                           .target_percent = 75, \
                           .spare_percent = 2,   \
                           .shrink_percent = 5,  \
                           .shrink_ms = 600000,  \
                           .nodes_min = 1,       \
                           .nodes_max = PLACE_NODES_MAX})
enum { DEMAND_WARM_MAX = 1024 };

struct demand_series {
    struct meter used[AMOUNT_N]; /* what runs and what waits */
    struct meter came[AMOUNT_N]; /* what was asked for, in a second */
};
struct demand {
    struct demand_rules rules;
    struct demand_series brief, lasting;
    struct meter life_s; /* of sandboxes that ended */
    uint64_t shrunk_ms;
};
/* What happened in the pool since the last sample. */
struct demand_sample {
    struct amount used;    /* promised to sandboxes now, and asked for by creates that wait */
    struct amount came;    /* needs of all creates that arrived, refused ones included */
    uint64_t ended;        /* sandboxes */
    uint64_t ended_life_s; /* seconds that these lived, together */
};
struct demand_answer {
    uint32_t nodes;          /* desired */
    uint32_t brief, lasting; /* what the two memories ask for */
    enum amount_of tight;    /* what decides */
};

void demand_start(struct demand *d, const struct demand_rules *rules);
void demand_observe(struct demand *d, uint64_t now_ms, const struct demand_sample *s);
/* `nodes`: those of the pool now; `each`: what one of them has. */
struct demand_answer demand_decide(struct demand *d, uint64_t now_ms, uint32_t nodes, const struct amount *each);
/* Those that should leave, best first: ret has room for `want`. How many. Lost nodes are not among them. */
size_t demand_leaving(const struct place *p, size_t want, uint32_t *ret);

/* How many sandboxes should wait so that a create finds none with probability `miss` only (Erlang's loss formula).
 * `offered`: creates a second times the seconds until one is replaced; `dispersion`: variance of arrivals divided by their
 * mean, 1 if they are independent. */
uint32_t demand_warm(double offered, double dispersion, double miss);
/* How many to make now; what is being made counts. */
uint32_t demand_refill(uint32_t wanted, uint32_t ready, uint32_t making);

#endif
