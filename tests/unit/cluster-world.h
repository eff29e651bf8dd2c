/* A cluster of numbers: nodes of one size or of random sizes, and requests, for tests of src/cluster. */
#ifndef HUTCH_TESTS_CLUSTER_WORLD_H
#define HUTCH_TESTS_CLUSTER_WORLD_H

#include "tests/lib/unit.h"

#include "cluster/draw.h"
#include "cluster/place.h"

#define GIB (1ULL << 30)

/* 16 processors, 64 GiB, 100 GiB of disk, 100 sandboxes, 8 starts at a time, 24 templates. */
static inline struct place_info plain_node(uint32_t node)
{
    return (struct place_info){.node = node,
                               .protocol = 1,
                               .capacity = amount_make(100, 16000, 64 * GIB, 100 * GIB),
                               .start_max = 8,
                               .cache_slots = 24};
}
static inline struct place *plain_cluster(uint32_t nodes)
{
    struct place *p = place_new(&PLACE_RULES);
    for (uint32_t i = 1; i <= nodes; i++) {
        struct place_info info = plain_node(i);
        assert_true(place_join(p, &info));
    }
    return p;
}
/* One processor, 1 GiB of memory and of disk. */
static inline struct place_request plain_request(uint32_t template)
{
    return (struct place_request){.template = template,
                                  .tenant = 1,
                                  .need = amount_make(1, 1000, GIB, GIB),
                                  .only = PLACE_NONE,
                                  .near = PLACE_NONE};
}
static inline void report_used(struct place *p, uint32_t node, uint64_t sandboxes, uint64_t memory)
{
    struct place_report report = {.used = amount_make(sandboxes, 0, memory, 0)};
    place_report(p, node, &report);
}

#endif
