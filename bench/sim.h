/* sim.h - a cluster in virtual time around the real scheduler of src/cluster: placement, admission with escrow, queues,
 * demand. Nodes, creates and lives are numbers; the same spec and seed give the same result, times of decisions excepted. */
#ifndef HUTCH_BENCH_SIM_H
#define HUTCH_BENCH_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster/demand.h"

enum { SIM_TENANTS_MAX = 64, SIM_STEPS = 2000, SIM_MINUTES_MAX = 24 * 60 };

struct sim_spec {
    uint32_t nodes, orchestrators, tenants, templates;
    uint64_t seed, length_ms, warm_up_ms; /* what happens before the warm-up is over is not counted */
    double load;                          /* of all memory, by sandboxes that live */
    double swing;                         /* 0.5: the load is half as much in the night and half more at noon */
    double flood;                         /* tenant 0 asks for so many times what others ask for */
    uint32_t quota;                       /* sandboxes of one tenant; 0: none */
    uint64_t lose_ms;                     /* when nodes are lost; 0: never */
    uint32_t lose_percent;
    const struct demand_rules *scale; /* NULL: all nodes are there all the time */
    uint64_t (*clock_ns)(void);       /* NULL: decisions are not timed */
};
/* Shares of a logarithmic scale: each step is 1 % more than the one before. */
struct sim_scale {
    uint64_t n, at[SIM_STEPS];
};
struct sim_minute {
    uint32_t live, nodes, started, warm, refused;
};
struct sim_result {
    const char *wrong; /* NULL: all invariants hold */
    uint64_t creates, started, warm, quota, full, asked_again, lost, events, node_ms;
    uint32_t live_max;
    double fullest; /* node, of the mean, by memory, at the end of the arrivals */
    struct sim_scale start_us, place_ns, wait_us;
    uint64_t tenant_asked[SIM_TENANTS_MAX], tenant_live_ms[SIM_TENANTS_MAX], tenant_started[SIM_TENANTS_MAX];
    uint32_t tenant_most[SIM_TENANTS_MAX];
    struct sim_minute minute[SIM_MINUTES_MAX];
};
void sim_run(const struct sim_spec *spec, struct sim_result *ret);
double sim_percentile(const struct sim_scale *s, double share);

#endif
