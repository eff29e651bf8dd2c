/* How many nodes, which of them leave, how many sandboxes wait. */
#include "cluster-world.h"

#include "cluster/demand.h"

static const struct amount each = {{100, 16000, 64 * GIB, 100 * GIB}};

static void an_average_forgets_half_in_a_half_life(void **state)
{
    (void)state;
    struct meter m = {0};
    meter_sample(&m, 1000, 60000, 100);
    meter_sample(&m, 61000, 60000, 0);
    assert_true(m.value > 49.9 && m.value < 50.1);
    for (uint64_t now = 62000; now <= 121000; now += 1000) /* in many steps as in one */
        meter_sample(&m, now, 60000, 0);
    assert_true(m.value > 24.9 && m.value < 25.1);
    struct meter rate = {0};
    for (uint64_t now = 1000; now < 600000; now += 20)
        meter_count(&rate, now, 10000, 1);
    assert_true(meter_rate(&rate, 600000, 10000) > 49 && meter_rate(&rate, 600000, 10000) < 51);
    assert_true(meter_rate(&rate, 610000, 10000) > 24 && meter_rate(&rate, 610000, 10000) < 26);
    assert_true(meter_rate(&rate, 610000000, 10000) == 0);
}

/* Sandboxes of 2 GiB, so many in use and so many created in a second, each living for ten minutes. */
static void load(struct demand *d, uint64_t from_ms, uint64_t to_ms, uint64_t in_use, uint64_t a_second)
{
    for (uint64_t now = from_ms; now < to_ms; now += 5000) {
        struct demand_sample s = {.used = amount_make(in_use, in_use * 100, in_use * 2 * GIB, 0),
                                  .came = amount_make(5 * a_second, 500 * a_second, 10 * a_second * GIB, 0),
                                  .ended = 5 * a_second,
                                  .ended_life_s = 5 * a_second * 600};
        demand_observe(d, now, &s);
    }
}

static void what_is_used_fills_three_quarters_of_the_nodes_and_some_are_spare(void **state)
{
    (void)state;
    struct demand d;
    demand_start(&d, &DEMAND_RULES);
    load(&d, 1000, 3600000, 6000, 10); /* 12000 GiB of 64 each: 187.5 nodes, 250 at 75 %, 5 spare */
    struct demand_answer a = demand_decide(&d, 3600000, 100, &each);
    assert_int_equal(a.brief, 255);
    assert_int_equal(a.nodes, 255);
    assert_int_equal(a.tight, AMOUNT_MEMORY);
}

static void what_comes_counts_before_it_is_there(void **state)
{
    (void)state;
    struct demand d;
    demand_start(&d, &DEMAND_RULES);
    load(&d, 1000, 3600000, 600, 1);
    uint32_t before = demand_decide(&d, 3600000, 200, &each).brief;
    load(&d, 3600000, 3720000, 700, 10); /* ten times as many, for two minutes */
    uint32_t after = demand_decide(&d, 3720000, 200, &each).brief;
    assert_int_equal(before, 26);
    assert_true(after > 150); /* three quarters of 255: two half-lives */
}

static void a_pool_grows_at_once_and_shrinks_in_steps(void **state)
{
    (void)state;
    struct demand d;
    demand_start(&d, &DEMAND_RULES);
    load(&d, 1000, 3600000, 6000, 10);
    uint32_t nodes = demand_decide(&d, 3600000, 10, &each).nodes;
    assert_int_equal(nodes, 255);
    uint32_t steps = 0, most_step = 0;
    uint64_t last_ms = 3600000;
    for (uint64_t now = 3600000; now < 14 * 3600000ULL; now += 5000) {
        load(&d, now, now + 1, 600, 1);
        uint32_t want = demand_decide(&d, now, nodes, &each).nodes;
        if (want == nodes)
            continue;
        assert_true(want < nodes && now - last_ms >= 600000);
        most_step = nodes - want > most_step ? nodes - want : most_step;
        last_ms = now;
        nodes = want;
        steps++;
    }
    assert_int_equal(most_step, 12); /* 5 % of 255 */
    assert_int_equal(nodes, 26);
    assert_true(steps > 20);
}

static void a_short_lull_does_not_shrink_a_pool(void **state)
{
    (void)state;
    struct demand d;
    demand_start(&d, &DEMAND_RULES);
    load(&d, 1000, 3600000, 6000, 10);
    (void)demand_decide(&d, 1000, 300, &each);
    load(&d, 3600000, 3720000, 0, 0);
    struct demand_answer a = demand_decide(&d, 3720000, 255, &each);
    assert_true(a.brief < 80 && a.lasting > 200);
    assert_true(a.nodes >= 255 - 12 && a.nodes >= a.lasting);
}

static void a_pool_has_its_bounds(void **state)
{
    (void)state;
    struct demand d;
    struct demand_rules rules = DEMAND_RULES;
    rules.nodes_min = 3;
    rules.nodes_max = 50;
    demand_start(&d, &rules);
    assert_int_equal(demand_decide(&d, 1000, 1, &each).nodes, 3);
    load(&d, 1000, 3600000, 6000, 10);
    assert_int_equal(demand_decide(&d, 3600000, 10, &each).nodes, 50);
    assert_int_equal(demand_decide(&d, 3600000, 10, &(struct amount){0}).brief, 3); /* nothing is known of a node */
}

static void drained_nodes_leave_first_and_then_the_emptiest(void **state)
{
    (void)state;
    struct place *p = plain_cluster(6);
    for (uint32_t i = 1; i <= 6; i++)
        report_used(p, i, 10 * i, 0);
    place_set_state(p, 1, PLACE_LOST);
    place_set_state(p, 4, PLACE_CORDONED);
    place_set_state(p, 5, PLACE_DRAINING);
    uint32_t ret[10];
    assert_int_equal(demand_leaving(p, 3, ret), 3);
    assert_true(ret[0] == 5 && ret[1] == 4 && ret[2] == 2);
    assert_int_equal(demand_leaving(p, 10, ret), 5);
    assert_true(ret[3] == 3 && ret[4] == 6);
    place_free(p);
}

/* Erlang's table: offered load across, misses of 5 %, 1 % and 0.1 % down. */
static void so_many_sandboxes_wait_that_few_creates_find_none(void **state)
{
    (void)state;
    static const double offered[] = {0.1, 0.5, 1, 2, 5, 10, 20, 50, 100}, miss[] = {0.05, 0.01, 0.001};
    static const uint32_t wait[3][9] = {
        {2, 3, 4, 5, 9, 15, 26, 56, 105}, {2, 4, 5, 7, 11, 18, 30, 64, 117}, {3, 5, 6, 8, 14, 21, 35, 71, 128}};
    for (int m = 0; m < 3; m++)
        for (int a = 0; a < 9; a++)
            assert_int_equal(demand_warm(offered[a], 1, miss[m]), wait[m][a]);
    assert_int_equal(demand_warm(5, 2, 0.05), 15); /* bursts count double */
    assert_int_equal(demand_warm(0, 1, 0.05), 1);
    assert_int_equal(demand_warm(1e9, 1, 0.05), DEMAND_WARM_MAX);
    assert_int_equal(demand_refill(10, 4, 3), 3);
    assert_int_equal(demand_refill(10, 4, 7), 0);
    assert_int_equal(demand_refill(10, UINT32_MAX, UINT32_MAX), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_average_forgets_half_in_a_half_life),
        cmocka_unit_test(what_is_used_fills_three_quarters_of_the_nodes_and_some_are_spare),
        cmocka_unit_test(what_comes_counts_before_it_is_there),
        cmocka_unit_test(a_pool_grows_at_once_and_shrinks_in_steps),
        cmocka_unit_test(a_short_lull_does_not_shrink_a_pool),
        cmocka_unit_test(a_pool_has_its_bounds),
        cmocka_unit_test(drained_nodes_leave_first_and_then_the_emptiest),
        cmocka_unit_test(so_many_sandboxes_wait_that_few_creates_find_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
