/* sim SCENARIO [MINUTES [NODES [SEED]]] - prints one JSON object about a simulated day of a cluster; bench/sim calls it. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/num.h"

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* An argument that may be left out. */
static uint64_t number(int argc, char **argv, int i, uint64_t otherwise)
{
    uint64_t n = otherwise;
    if (i < argc && (!num_u64(argv[i], &n) || n == 0)) {
        fprintf(stderr, "sim: %s is not a positive number\n", argv[i]);
        exit(120);
    }
    return n;
}

int main(int argc, char **argv)
{
    static struct sim_result r;
    const char *scenario = argc > 1 ? argv[1] : "steady";
    double hours = (double)number(argc, argv, 2, 24 * 60) / 60;
    struct sim_spec spec = {.nodes = (uint32_t)number(argc, argv, 3, 1000),
                            .orchestrators = 3,
                            .tenants = 20,
                            .templates = 400,
                            .seed = number(argc, argv, 4, 1),
                            .length_ms = (uint64_t)(hours * 3600e3),
                            .warm_up_ms = hours >= 2 ? 3600000 : (uint64_t)(hours * 1800e3),
                            .load = 0.8,
                            .clock_ns = now_ns};
    struct demand_rules rules = DEMAND_RULES;
    if (strcmp(scenario, "loss") == 0) {
        spec.lose_ms = spec.length_ms * 3 / 4;
        spec.lose_percent = 10;
    } else if (strcmp(scenario, "flood") == 0) {
        spec.flood = 10;
        spec.load = 1.3;
    } else if (strcmp(scenario, "quota") == 0) {
        spec.flood = 10;
        spec.quota = spec.nodes * 128 / spec.tenants;
    } else if (strncmp(scenario, "scale", 5) == 0 || strcmp(scenario, "day") == 0) {
        spec.load = 0.5;
        spec.swing = 0.6;
        rules.nodes_max = spec.nodes;
        char *percent[] = {strlen(scenario) > 5 ? argv[1] + 5 : "75"};
        rules.target_percent = (uint32_t)number(1, percent, 0, 75);
        spec.scale = *scenario == 's' ? &rules : NULL;
    } else if (strcmp(scenario, "steady") != 0) {
        fprintf(stderr, "sim: %s is not steady, loss, flood, quota, day, scale or scalePERCENT\n", scenario);
        return 120;
    }
    uint64_t began = now_ns();
    sim_run(&spec, &r);
    double wall = (double)(now_ns() - began) / 1e9;
    printf(
        "{\"scenario\":\"%s\",\"hours\":%g,\"nodes\":%u,\"wrong\":\"%s\",\"creates\":%llu,\"started\":%llu,\"warm\":%"
        "llu,"
        "\"quota\":%llu,\"full\":%llu,\"again\":%llu,\"lost\":%llu,\"events\":%llu,\"node_hours\":%.1f,\"live_max\":%u,"
        "\"fullest\":%.3f,\"wall_s\":%.1f",
        scenario, hours, spec.nodes, r.wrong ? r.wrong : "", (unsigned long long)r.creates,
        (unsigned long long)r.started, (unsigned long long)r.warm, (unsigned long long)r.quota,
        (unsigned long long)r.full, (unsigned long long)r.asked_again, (unsigned long long)r.lost,
        (unsigned long long)r.events, (double)r.node_ms / 3600e3, r.live_max, r.fullest, wall);
    static const double shares[] = {0.5, 0.99, 0.999};
    const struct sim_scale *scales[] = {&r.start_us, &r.place_ns, &r.wait_us};
    static const char *const names[] = {"start_us", "place_ns", "wait_us"};
    for (int i = 0; i < 3; i++) {
        printf(",\"%s\":[", names[i]);
        for (int k = 0; k < 3; k++)
            printf("%s%.0f", k ? "," : "", scales[i]->n ? sim_percentile(scales[i], shares[k]) : 0);
        printf("]");
    }
    printf(",\"tenants\":[");
    for (uint32_t t = 0; t < spec.tenants; t++)
        printf("%s[%llu,%llu,%llu,%u]", t ? "," : "", (unsigned long long)r.tenant_asked[t],
               (unsigned long long)r.tenant_started[t], (unsigned long long)r.tenant_live_ms[t], r.tenant_most[t]);
    printf("],\"minutes\":[");
    for (uint64_t m = 0; m < SIM_MINUTES_MAX && m < spec.length_ms / 60000; m++)
        printf("%s[%u,%u,%u,%u,%u]", m ? "," : "", r.minute[m].live, r.minute[m].nodes, r.minute[m].started,
               r.minute[m].warm, r.minute[m].refused);
    printf("]}\n");
    return r.wrong ? 1 : 0;
}
