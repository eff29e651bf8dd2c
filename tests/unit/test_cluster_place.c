/* The scheduler: what it must hold for any view and request, and what it prefers. */
#include "cluster-world.h"

static void choose_says(struct place *p, const struct place_request *r, const char *text)
{
    struct place_answer a = place_choose(p, r, 7);
    _cleanup_buf_ struct buf b = {0};
    place_say(&a, &b);
    assert_string_equal(buf_str(&b), text);
}

/* --- any view, any request ------------------------------------------------------------------------------------------ */

/* A second opinion on what a node lacks, written from the header and kept apart from place.c. */
static bool may_take(const struct place_seen *n, const struct place_request *r)
{
    if ((n->info.labels & r->labels) != r->labels || (n->info.features & r->features) != r->features)
        return false;
    if ((n->info.tenant && n->info.tenant != r->tenant) || (r->only != PLACE_NONE && r->only != n->info.node))
        return false;
    if (n->state != PLACE_READY || n->silent || n->report.pressure > 100)
        return false;
    for (uint32_t i = 0; i < r->n_tried; i++)
        if (r->tried[i] == n->info.node)
            return false;
    for (size_t i = 0; i < r->n_together; i++)
        if (r->together_max && r->together[i].node == n->info.node && r->together[i].n >= r->together_max)
            return false;
    static const uint64_t percent[AMOUNT_N] = {100, 400, 100, 100};
    for (int k = 0; k < AMOUNT_N; k++)
        if (n->report.used.of[k] + n->pending.of[k] + r->need.of[k] > n->info.capacity.of[k] * percent[k] / 100)
            return false;
    return true;
}

/* Most nodes can take little, so that all reasons occur and refusals are common. */
static struct place *any_cluster(struct draw *d, uint32_t starts[32])
{
    struct place *p = place_new(&PLACE_RULES);
    uint32_t n = draw_below(d, 24);
    for (uint32_t i = 0; i < n; i++) {
        struct place_info info = plain_node(1 + draw_below(d, 31));
        info.labels = draw_below(d, 4);
        info.features = draw_below(d, 4);
        info.tenant = draw_below(d, 4) ? 0 : 1 + draw_below(d, 2);
        info.start_max = 2;
        assert_true(place_join(p, &info));
        place_set_state(p, info.node, draw_below(d, 3) ? PLACE_READY : (enum place_state)draw_below(d, 4));
        place_set_silent(p, info.node, draw_below(d, 6) == 0);
        struct place_report report = {.used = amount_make(90 + draw_below(d, 11), draw_below(d, 65000),
                                                          (uint64_t)draw_below(d, 65) * GIB, draw_below(d, 100) * GIB),
                                      .starting = starts[info.node] = draw_below(d, 3),
                                      .pressure = draw_below(d, 120)};
        place_report(p, info.node, &report);
        if (draw_below(d, 2))
            place_cached(p, info.node, draw_below(d, 3), draw_below(d, 2));
    }
    return p;
}

static struct place_request any_request(struct draw *d, struct place_count together[2])
{
    struct place_request r = plain_request(draw_below(d, 3));
    r.labels = draw_below(d, 3) ? 0 : draw_below(d, 4);
    r.features = draw_below(d, 3) ? 0 : draw_below(d, 4);
    r.tenant = 1 + draw_below(d, 2);
    r.need.of[AMOUNT_MEMORY] = (1 + draw_below(d, draw_below(d, 8) ? 8 : 100)) * GIB;
    if (draw_below(d, 8) == 0)
        r.only = 1 + draw_below(d, 31);
    if (draw_below(d, 4) == 0)
        r.near = 1 + draw_below(d, 31);
    r.n_tried = draw_below(d, 3);
    for (uint32_t i = 0; i < r.n_tried; i++)
        r.tried[i] = 1 + draw_below(d, 31);
    together[0] = (struct place_count){1 + draw_below(d, 15), draw_below(d, 3)};
    together[1] = (struct place_count){16 + draw_below(d, 15), draw_below(d, 3)};
    r.together = together;
    r.n_together = draw_below(d, 3);
    r.together_max = draw_below(d, 3);
    return r;
}

static uint32_t count_that_may(const struct place *p, const struct place_request *r, const uint32_t starts[32])
{
    uint32_t n = 0;
    struct place_seen seen;
    for (size_t i = 0; place_look_at(p, i, &seen); i++)
        n += may_take(&seen, r) && starts[seen.info.node] < seen.info.start_max;
    return n;
}

static void a_node_is_found_exactly_if_one_lacks_nothing(void **state)
{
    (void)state;
    struct draw d = {1};
    uint32_t found = 0, refused = 0, never = 0;
    for (int round = 0; round < 4000; round++) {
        uint32_t starts[32] = {0};
        struct place_count together[2];
        struct place *p = any_cluster(&d, starts);
        struct place_request r = any_request(&d, together);
        struct place_answer a = place_choose(p, &r, draw_next(&d));
        struct place_seen seen;
        if (a.code == PLACE_FOUND) {
            found++;
            assert_true(place_look(p, a.node, &seen) && may_take(&seen, &r));
        } else {
            uint32_t sum = 0;
            for (int lack = 1; lack < PLACE_LACKS_N; lack++)
                sum += a.lacks[lack];
            assert_int_equal(sum, a.nodes);
            assert_int_equal(count_that_may(p, &r, starts), 0);
            refused += a.code == PLACE_FULL;
            never += a.code == PLACE_NEVER;
        }
        place_free(p);
    }
    assert_true(found > 500 && refused > 500 && never > 50);
}

static void the_same_view_request_and_word_give_the_same_node(void **state)
{
    (void)state;
    struct place *one = plain_cluster(50), *other = place_new(&PLACE_RULES);
    for (uint32_t i = 50; i >= 1; i--) { /* joined the other way round */
        struct place_info info = plain_node(i);
        assert_true(place_join(other, &info));
    }
    struct draw d = {2};
    for (int i = 0; i < 1000; i++) {
        struct place_request r = plain_request(draw_below(&d, 10));
        uint64_t word = draw_next(&d);
        uint32_t node = place_choose(one, &r, word).node;
        assert_int_equal(node, place_choose(one, &r, word).node);
        assert_int_equal(node, place_choose(other, &r, word).node);
    }
    place_free(one);
    place_free(other);
}

static void a_decision_looks_at_few_nodes_while_they_have_room(void **state)
{
    (void)state;
    struct place *p = plain_cluster(2000);
    struct draw d = {3};
    for (uint32_t i = 1; i <= 2000; i++) /* half of them are full */
        if (draw_below(&d, 2))
            report_used(p, i, 100, 64 * GIB);
    uint64_t sum = 0;
    for (int i = 0; i < 2000; i++) {
        struct place_request r = plain_request(draw_below(&d, 100));
        struct place_answer a = place_choose(p, &r, draw_next(&d));
        assert_true(a.code == PLACE_FOUND && a.examined <= PLACE_HOMES_MAX + PLACE_DRAWS + 1);
        sum += a.examined;
    }
    assert_true(sum < 2000 * 20);
    place_free(p);
}

/* --- home sets ------------------------------------------------------------------------------------------------------ */

static size_t homes_that_differ(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b)
{
    size_t differ = 0;
    for (size_t i = 0; i < n_a; i++) {
        bool there = false;
        for (size_t j = 0; j < n_b; j++)
            there |= a[i] == b[j];
        differ += !there;
    }
    return differ;
}

static void a_node_that_joins_or_leaves_moves_one_home_of_few_templates(void **state)
{
    (void)state;
    enum { NODES = 200, TEMPLATES = 300 };
    struct place *p = plain_cluster(NODES);
    place_set_templates(p, TEMPLATES);
    uint32_t before[TEMPLATES][PLACE_HOMES_MAX], n = place_home_count(p), moved = 0;
    assert_int_equal(n, 24 * NODES / TEMPLATES);
    for (uint32_t t = 0; t < TEMPLATES; t++) {
        struct place_request r = plain_request(t);
        assert_int_equal(place_homes(p, &r, before[t]), n);
    }
    struct place_info info = plain_node(NODES + 1);
    assert_true(place_join(p, &info));
    for (uint32_t t = 0; t < TEMPLATES; t++) {
        uint32_t now[PLACE_HOMES_MAX];
        struct place_request r = plain_request(t);
        size_t differ = homes_that_differ(before[t], n, now, place_homes(p, &r, now));
        assert_true(differ <= 1);
        moved += (uint32_t)differ;
    }
    /* Its share of all homes, give or take. */
    assert_true(moved > n * TEMPLATES / NODES / 3 && moved < n * TEMPLATES / NODES * 3);
    place_leave(p, NODES + 1);
    for (uint32_t t = 0; t < TEMPLATES; t++) {
        uint32_t now[PLACE_HOMES_MAX];
        struct place_request r = plain_request(t);
        assert_int_equal(place_homes(p, &r, now), n);
        assert_memory_equal(now, before[t], n * sizeof *now);
    }
    place_free(p);
}

static void homes_are_spread_over_the_nodes(void **state)
{
    (void)state;
    enum { NODES = 100, TEMPLATES = 1000 };
    struct place *p = plain_cluster(NODES);
    place_set_templates(p, 240); /* ten homes each */
    uint32_t homes_of[NODES + 1] = {0};
    for (uint32_t t = 0; t < TEMPLATES; t++) {
        uint32_t homes[PLACE_HOMES_MAX];
        struct place_request r = plain_request(t);
        size_t n = place_homes(p, &r, homes);
        assert_int_equal(n, 10);
        for (size_t i = 0; i < n; i++)
            homes_of[homes[i]]++;
    }
    for (uint32_t i = 1; i <= NODES; i++) /* 100 expected, deviation 10 */
        assert_true(homes_of[i] > 50 && homes_of[i] < 150);
    place_free(p);
}

static void more_templates_than_sets_are_remembered_right(void **state)
{
    (void)state;
    struct place *p = plain_cluster(20);
    uint32_t first[PLACE_HOMES_MAX], again[PLACE_HOMES_MAX];
    struct place_request r = plain_request(0);
    size_t n = place_homes(p, &r, first);
    for (uint32_t t = 0; t < 20000; t++) {
        struct place_request other = plain_request(t);
        assert_true(place_homes(p, &other, again) == n);
    }
    assert_int_equal(place_homes(p, &r, again), n);
    assert_memory_equal(first, again, n * sizeof *first);
    place_free(p);
}

static void a_burst_of_one_template_spreads_over_all_its_homes(void **state)
{
    (void)state;
    struct place *p = plain_cluster(100);
    place_set_templates(p, 150); /* 16 homes */
    struct place_request r = plain_request(5);
    uint32_t homes[PLACE_HOMES_MAX], count[101] = {0}, at_homes = 0;
    size_t n = place_homes(p, &r, homes);
    assert_int_equal(n, 16);
    for (size_t i = 0; i < n; i++)
        place_cached(p, homes[i], 5, 0);
    struct draw d = {4};
    for (int i = 0; i < 64; i++) { /* half of their start slots */
        struct place_answer a = place_choose(p, &r, draw_next(&d));
        place_sent(p, a.node, &r.need);
        count[a.node]++;
        at_homes += a.cached;
    }
    assert_int_equal(at_homes, 64);
    for (size_t i = 0; i < n; i++)
        assert_true(count[homes[i]] >= 2 && count[homes[i]] <= 7);
    place_free(p);
}

/* --- preferences ---------------------------------------------------------------------------------------------------- */

static void a_node_with_a_waiting_sandbox_is_better_than_one_with_the_template(void **state)
{
    (void)state;
    struct place *p = plain_cluster(2);
    place_cached(p, 1, 9, 0);
    place_cached(p, 2, 9, 1);
    struct place_request r = plain_request(9);
    for (uint64_t word = 0; word < 50; word++) {
        struct place_answer a = place_choose(p, &r, word);
        assert_true(a.node == 2 && a.cached && a.warm);
    }
    place_uncached(p, 2, 9);
    for (uint64_t word = 0; word < 50; word++) {
        struct place_answer a = place_choose(p, &r, word);
        assert_true(a.node == 1 && a.cached && !a.warm);
    }
    place_free(p);
}

static void an_emptier_node_is_better_and_packing_wants_the_fuller(void **state)
{
    (void)state;
    for (int pack = 0; pack < 2; pack++) {
        struct place_rules rules = PLACE_RULES;
        rules.pack = pack;
        struct place *p = place_new(&rules);
        for (uint32_t i = 1; i <= 3; i++) {
            struct place_info info = plain_node(i);
            assert_true(place_join(p, &info));
            place_cached(p, i, 0, 0);
            report_used(p, i, 10,
                        (uint64_t)(i == 3 ? 60 : i * 16) * GIB); /* the third is too full to be packed further */
        }
        struct place_request r = plain_request(0);
        for (uint64_t word = 0; word < 50; word++)
            assert_int_equal(place_choose(p, &r, word).node, pack ? 2 : 1);
        place_free(p);
    }
}

static void a_burst_counts_what_is_on_its_way(void **state)
{
    (void)state;
    struct place *p = plain_cluster(10);
    struct place_request r = plain_request(0);
    struct draw d = {5};
    uint32_t sent[11] = {0};
    for (int i = 0; i < 80; i++) {
        struct place_answer a = place_choose(p, &r, draw_next(&d));
        assert_int_equal(a.code, PLACE_FOUND);
        place_sent(p, a.node, &r.need);
        sent[a.node]++;
    }
    for (uint32_t i = 1; i <= 10; i++)
        assert_int_equal(sent[i], 8); /* all start slots, none twice */
    choose_says(p, &r, "no node has room: of 10 nodes 10 have no start slot free");
    place_settled(p, 3, &r.need);
    place_settled(p, 3, &r.need);
    assert_int_equal(place_choose(p, &r, 1).node, 3);
    for (int i = 0; i < 20; i++) /* answers of which nothing is known take nothing away from others */
        place_settled(p, 3, &r.need);
    struct place_seen seen;
    assert_true(place_look(p, 3, &seen));
    assert_int_equal(seen.pending.of[AMOUNT_MEMORY], 0);
    assert_int_equal(place_choose(p, &r, 1).code, PLACE_FOUND);
    place_free(p);
}

static void a_fork_goes_where_its_parent_is_and_elsewhere_if_that_is_full(void **state)
{
    (void)state;
    struct place *p = plain_cluster(30);
    struct place_request r = plain_request(0);
    r.near = 17;
    for (uint64_t word = 0; word < 20; word++)
        assert_int_equal(place_choose(p, &r, word).node, 17);
    report_used(p, 17, 100, 0);
    for (uint64_t word = 0; word < 20; word++) {
        struct place_answer a = place_choose(p, &r, word);
        assert_true(a.code == PLACE_FOUND && a.node != 17);
    }
    place_free(p);
}

static void a_volume_binds_to_its_node(void **state)
{
    (void)state;
    struct place *p = plain_cluster(12);
    struct place_request r = plain_request(0);
    r.only = 4;
    assert_int_equal(place_choose(p, &r, 1).node, 4);
    place_set_state(p, 4, PLACE_DRAINING);
    choose_says(p, &r, "no node has room: of 12 nodes 11 do not hold the volume, 1 is draining");
    place_leave(p, 4);
    assert_int_equal(place_choose(p, &r, 1).code, PLACE_FULL); /* the node may come back */
    place_free(p);
}

static void what_belongs_together_is_spread(void **state)
{
    (void)state;
    struct place *p = plain_cluster(4);
    struct place_count together[4] = {{1, 0}, {2, 0}, {3, 0}, {4, 0}};
    struct place_request r = plain_request(0);
    r.together = together;
    r.n_together = 4;
    r.together_max = 3;
    struct draw d = {6};
    for (int i = 0; i < 12; i++) {
        uint32_t node = place_choose(p, &r, draw_next(&d)).node;
        together[node - 1].n++;
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(together[i].n, 3);
    choose_says(p, &r, "no node has room: of 4 nodes 4 have enough of the group");
    place_free(p);
}

/* --- refusals ------------------------------------------------------------------------------------------------------- */

static void a_refusal_counts_what_lacked_on_how_many_nodes(void **state)
{
    (void)state;
    struct place *p = plain_cluster(12);
    for (uint32_t i = 1; i <= 7; i++)
        report_used(p, i, 3, 64 * GIB);
    for (uint32_t i = 8; i <= 10; i++)
        place_set_state(p, i, PLACE_DRAINING);
    place_set_silent(p, 11, true);
    report_used(p, 12, 100, 0);
    struct place_request r = plain_request(0);
    choose_says(p, &r,
                "no node has room: of 12 nodes 1 does not answer, 3 are draining, 1 runs as many sandboxes as it may, "
                "7 lack memory");
    place_free(p);
}

static void what_no_node_can_ever_take_is_told_from_what_must_wait(void **state)
{
    (void)state;
    struct place *p = plain_cluster(3);
    struct place_request r = plain_request(0);
    r.need.of[AMOUNT_MEMORY] = 65 * GIB;
    assert_int_equal(place_choose(p, &r, 1).code, PLACE_NEVER);
    choose_says(p, &r, "no node can ever take it: of 3 nodes 3 are too small");
    struct place_info big = plain_node(9);
    big.capacity.of[AMOUNT_MEMORY] = 128 * GIB;
    assert_true(place_join(p, &big));
    assert_int_equal(place_choose(p, &r, 1).node, 9);
    place_set_state(p, 9, PLACE_LOST);
    assert_int_equal(place_choose(p, &r, 1).code, PLACE_FULL);
    struct place *empty = place_new(&PLACE_RULES);
    assert_int_equal(place_choose(empty, &r, 1).code, PLACE_FULL);
    choose_says(empty, &r, "no node has joined the cluster");
    place_free(empty);
    place_free(p);
}

static void a_node_that_refused_is_not_asked_again(void **state)
{
    (void)state;
    struct place *p = plain_cluster(4);
    struct place_request r = plain_request(0);
    for (uint32_t i = 0; i < PLACE_TRIED_MAX; i++) {
        struct place_answer a = place_choose(p, &r, i);
        assert_int_equal(a.code, PLACE_FOUND);
        r.tried[r.n_tried++] = a.node;
    }
    choose_says(p, &r, "no node has room: of 4 nodes 4 have refused");
    place_free(p);
}

static void absurd_numbers_of_a_node_wrap_nothing_around(void **state)
{
    (void)state;
    struct place *p = place_new(&PLACE_RULES);
    struct place_info info = plain_node(1);
    info.capacity = amount_make(UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX);
    info.cache_slots = UINT32_MAX;
    assert_true(place_join(p, &info));
    struct place_request r = plain_request(0);
    assert_int_equal(place_choose(p, &r, 1).code, PLACE_FOUND);
    struct place_report report = {.used = info.capacity, .starting = UINT32_MAX, .pressure = UINT32_MAX};
    place_report(p, 1, &report);
    place_sent(p, 1, &info.capacity);
    place_sent(p, 1, &info.capacity);
    assert_int_equal(place_choose(p, &r, 1).code, PLACE_FULL);
    assert_int_equal(place_home_count(p), PLACE_HOMES_MAX);
    for (uint32_t t = 0; t < PLACE_CACHED_MAX + 10; t++)
        place_cached(p, 1, t, 0);
    struct place_seen seen;
    assert_true(place_look(p, 1, &seen));
    assert_int_equal(seen.n_cached, PLACE_CACHED_MAX);
    place_free(p);
}

static void a_view_has_room_for_so_many_nodes(void **state)
{
    (void)state;
    struct place *p = plain_cluster(PLACE_NODES_MAX);
    struct place_info more = plain_node(PLACE_NODES_MAX + 1);
    assert_false(place_join(p, &more));
    more.node = 5; /* says again what it is */
    assert_true(place_join(p, &more));
    assert_int_equal(place_count_nodes(p), PLACE_NODES_MAX);
    place_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_found_exactly_if_one_lacks_nothing),
        cmocka_unit_test(the_same_view_request_and_word_give_the_same_node),
        cmocka_unit_test(a_decision_looks_at_few_nodes_while_they_have_room),
        cmocka_unit_test(a_node_that_joins_or_leaves_moves_one_home_of_few_templates),
        cmocka_unit_test(homes_are_spread_over_the_nodes),
        cmocka_unit_test(more_templates_than_sets_are_remembered_right),
        cmocka_unit_test(a_burst_of_one_template_spreads_over_all_its_homes),
        cmocka_unit_test(a_node_with_a_waiting_sandbox_is_better_than_one_with_the_template),
        cmocka_unit_test(an_emptier_node_is_better_and_packing_wants_the_fuller),
        cmocka_unit_test(a_burst_counts_what_is_on_its_way),
        cmocka_unit_test(a_fork_goes_where_its_parent_is_and_elsewhere_if_that_is_full),
        cmocka_unit_test(a_volume_binds_to_its_node),
        cmocka_unit_test(what_belongs_together_is_spread),
        cmocka_unit_test(a_refusal_counts_what_lacked_on_how_many_nodes),
        cmocka_unit_test(what_no_node_can_ever_take_is_told_from_what_must_wait),
        cmocka_unit_test(a_node_that_refused_is_not_asked_again),
        cmocka_unit_test(absurd_numbers_of_a_node_wrap_nothing_around),
        cmocka_unit_test(a_view_has_room_for_so_many_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
