/* The scheduler of src/cluster in a cluster of virtual time: what bench/sim measures for a day, for a short time, and what
 * must hold in it. */
#include "tests/lib/unit.h"

#include "sim.h"

static struct sim_result result, again;

static struct sim_spec small(void)
{
    return (struct sim_spec){.nodes = 40,
                             .orchestrators = 3,
                             .tenants = 10,
                             .templates = 100,
                             .seed = 7,
                             .length_ms = 20 * 60 * 1000,
                             .warm_up_ms = 10 * 60 * 1000,
                             .load = 0.8};
}

/* sim_run() itself looks whether more ends than began, quotas hold, and nothing is left in any account. */
static void run(const struct sim_spec *spec, struct sim_result *r)
{
    sim_run(spec, r);
    if (r->wrong)
        fail_msg("%s", r->wrong);
    assert_true(r->started > 1000);
}

static void a_cluster_with_room_refuses_nothing_and_starts_warm(void **state)
{
    (void)state;
    struct sim_spec spec = small();
    run(&spec, &result);
    assert_int_equal(result.full, 0);
    assert_int_equal(result.quota, 0);
    assert_true(result.warm * 100 >= result.started * 95);
    assert_true(result.fullest <= 1.8);
}

static void what_one_orchestrator_places_fits_even_if_nothing_else_would(void **state)
{
    (void)state;
    struct sim_spec spec = small();
    spec.orchestrators = 1; /* so what it does not know has only ended */
    spec.load = 2.5;
    run(&spec, &result);
    assert_true(result.full > 0);
    assert_int_equal(result.asked_again, 0);
}

static void the_same_seed_gives_the_same_day(void **state)
{
    (void)state;
    struct sim_spec spec = small();
    spec.length_ms /= 4;
    spec.warm_up_ms = 0;
    run(&spec, &result);
    run(&spec, &again);
    assert_memory_equal(&result, &again, sizeof result);
    spec.seed++;
    run(&spec, &again);
    assert_memory_not_equal(&result, &again, sizeof result);
}

static void a_tenant_that_floods_makes_itself_wait(void **state)
{
    (void)state;
    struct sim_spec spec = small();
    spec.load = 2.5; /* of which all others together ask for less than there is */
    spec.flood = 20;
    run(&spec, &result);
    uint64_t asked = 0, started = 0;
    for (uint32_t t = 1; t < spec.tenants; t++) {
        asked += result.tenant_asked[t];
        started += result.tenant_started[t];
    }
    print_message("others %llu of %llu, the flood %llu of %llu\n", (unsigned long long)started,
                  (unsigned long long)asked, (unsigned long long)result.tenant_started[0],
                  (unsigned long long)result.tenant_asked[0]);
    assert_true(result.full > 0);
    assert_true(started * 100 >= asked * 75);
    assert_true(result.tenant_started[0] * 100 < result.tenant_asked[0] * 75);
}

static void no_tenant_has_more_than_its_quota_at_several_orchestrators(void **state)
{
    (void)state;
    struct sim_spec spec = small();
    spec.flood = 10;
    spec.quota = 200;
    run(&spec, &result);
    assert_true(result.quota > 0);
    assert_in_range(result.tenant_most[0], 160, 200); /* and what it may have it gets */
    for (uint32_t t = 1; t < spec.tenants; t++)
        assert_int_equal(result.tenant_asked[t] > 0, 1);
}

static void a_lost_tenth_of_the_nodes_refuses_nothing(void **state)
{
    (void)state;
    struct sim_spec spec = small();
    spec.load = 0.7;
    spec.lose_ms = 12 * 60 * 1000;
    spec.lose_percent = 10;
    run(&spec, &result);
    assert_true(result.lost > 0);
    assert_true(result.asked_again > 0);
    assert_true(result.full * 100 <= result.creates);
}

static void nodes_come_and_go_with_the_load_and_nothing_is_lost(void **state)
{
    (void)state;
    struct sim_spec spec = small();
    struct demand_rules rules = DEMAND_RULES;
    rules.nodes_max = spec.nodes;
    spec.load = 0.05; /* so little that nodes that drain become empty */
    spec.scale = &rules;
    spec.length_ms *= 3;
    run(&spec, &result);
    assert_int_equal(result.lost, 0);
    assert_true(result.minute[59].nodes < spec.nodes);
    assert_true(result.full * 100 <= result.creates);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cluster_with_room_refuses_nothing_and_starts_warm),
        cmocka_unit_test(what_one_orchestrator_places_fits_even_if_nothing_else_would),
        cmocka_unit_test(the_same_seed_gives_the_same_day),
        cmocka_unit_test(a_tenant_that_floods_makes_itself_wait),
        cmocka_unit_test(no_tenant_has_more_than_its_quota_at_several_orchestrators),
        cmocka_unit_test(a_lost_tenth_of_the_nodes_refuses_nothing),
        cmocka_unit_test(nodes_come_and_go_with_the_load_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
