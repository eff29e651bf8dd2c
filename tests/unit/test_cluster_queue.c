/* The queue: order between tenants, limits, deadlines, and what the heaps must hold after anything. */
#include "cluster-world.h"

#include "cluster/queue.h"

static const struct amount thousand = {{1000, 1000000, 1000 * GIB, 0}};
static const struct amount one = {{1, 1000, GIB, 0}};

static struct queue_item *item_new(void)
{
    struct queue_item *item = test_calloc(1, sizeof *item);
    item->need = one;
    item->remaining_ms = 60000;
    return item;
}
static bool push(struct queue *q, struct queue_line *line, uint64_t now)
{
    struct queue_item *item = item_new();
    if (queue_push(q, line, item, now))
        return true;
    test_free(item);
    return false;
}
/* The line that is served next; its item is gone. */
static struct queue_line *serve(struct queue *q, struct queue_line *lines, int n, uint64_t now)
{
    size_t before[8];
    for (int i = 0; i < n; i++)
        before[i] = lines[i].n;
    bool late = false;
    struct queue_item *item = queue_next(q, now, &late);
    if (!item)
        return NULL;
    assert_false(late);
    test_free(item);
    for (int i = 0; i < n; i++)
        if (lines[i].n != before[i])
            return &lines[i];
    return NULL;
}
static void empty(struct queue *q)
{
    for (struct queue_item *item; (item = queue_overdue(q, UINT64_MAX));)
        test_free(item);
    queue_done(q);
}

static void a_tenant_with_less_is_served_first(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line lines[2] = {{.weight = 1}, {.weight = 1}};
    queue_start(&q, 1000, &thousand);
    queue_set_held(&q, &lines[0], &(struct amount){{50, 0, 0, 0}});
    for (int i = 0; i < 100; i++)
        assert_true(push(&q, &lines[0], 0));
    for (int i = 0; i < 100; i++)
        assert_true(push(&q, &lines[1], 0));
    for (int i = 0; i < 50; i++) /* until both have the same */
        assert_ptr_equal(serve(&q, lines, 2, 1), &lines[1]);
    int first = 0;
    for (int i = 0; i < 50; i++)
        first += serve(&q, lines, 2, 1) == &lines[0];
    assert_int_equal(first, 25);
    empty(&q);
}

static void weights_divide_what_is_to_be_had(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line lines[3] = {{.weight = 1}, {.weight = 2}, {.weight = 5}};
    queue_start(&q, 4000, &thousand);
    for (int i = 0; i < 3; i++)
        for (int n = 0; n < 500; n++)
            assert_true(push(&q, &lines[i], 0));
    int served[3] = {0};
    for (int i = 0; i < 400; i++)
        served[serve(&q, lines, 3, 1) - lines]++;
    assert_in_range(served[0], 49, 51);
    assert_in_range(served[1], 99, 101);
    assert_in_range(served[2], 249, 251);
    empty(&q);
}

static void the_scarcest_resource_of_each_tenant_counts(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line lines[2] = {{.weight = 1}, {.weight = 1}};
    queue_start(&q, 1000, &thousand);
    for (int i = 0; i < 100; i++) {
        struct queue_item *a = item_new(), *b = item_new();
        a->need = amount_make(1, 1000, 4 * GIB, 0); /* 0.4 % of the memory */
        b->need = amount_make(1, 2000, GIB, 0);     /* 0.2 % of the processors */
        assert_true(queue_push(&q, &lines[0], a, 0) && queue_push(&q, &lines[1], b, 0));
    }
    int first = 0;
    for (int i = 0; i < 90; i++)
        first += serve(&q, lines, 2, 1) == &lines[0];
    assert_in_range(first, 29, 31);
    empty(&q);
}

static void lines_with_the_same_share_take_turns(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line lines[3] = {{.weight = 1}, {.weight = 1}, {.weight = 1}};
    struct amount unknown = {0}; /* no node has joined: all shares are 0 */
    queue_start(&q, 100, &unknown);
    static const int came[] = {2, 0, 0, 1, 0, 2}, served[] = {2, 0, 1, 0, 2, 0};
    for (size_t i = 0; i < ARRAY_LEN(came); i++)
        assert_true(push(&q, &lines[came[i]], i));
    for (size_t i = 0; i < ARRAY_LEN(served); i++)
        assert_ptr_equal(serve(&q, lines, 3, 10), &lines[served[i]]);
    assert_null(serve(&q, lines, 3, 10));
    empty(&q);
}

static void a_flood_leaves_places_for_others(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line flood = {.weight = 1}, lines[8];
    queue_start(&q, 100, &thousand);
    int n = 0;
    while (push(&q, &flood, 0))
        n++;
    assert_int_equal(n, 50);
    for (int i = 0; i < 8; i++) {
        lines[i] = (struct queue_line){.weight = 1};
        for (int k = 0; k < 5; k++)
            assert_true(push(&q, &lines[i], 0));
    }
    assert_false(push(&q, &flood, 0));
    empty(&q);
}

static void what_finds_no_room_is_first_again_and_others_go_on(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line lines[2] = {{.weight = 1}, {.weight = 1}};
    queue_start(&q, 100, &thousand);
    assert_true(push(&q, &lines[0], 0) && push(&q, &lines[0], 1) && push(&q, &lines[1], 2));
    bool late;
    struct queue_item *big = queue_next(&q, 3, &late);
    uint64_t until = big->until_ms;
    queue_put_back(&q, &lines[0], big);
    assert_int_equal(lines[0].held.of[AMOUNT_MEMORY], 0);
    assert_ptr_equal(serve(&q, lines, 2, 3), &lines[1]);
    assert_null(queue_next(&q, 3, &late)); /* the first line was passed */
    queue_round(&q);
    struct queue_item *again = queue_next(&q, 4, &late);
    assert_ptr_equal(again, big);
    assert_int_equal(again->until_ms, until);
    test_free(again);
    assert_ptr_equal(serve(&q, lines, 2, 4), &lines[0]);
    empty(&q);
}

static void nothing_waits_longer_than_it_may(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line line = {.weight = 1};
    queue_start(&q, 100, &thousand);
    struct queue_item *patient = item_new(), *hasty = item_new();
    hasty->remaining_ms = 400; /* a quarter of it is for waiting */
    assert_true(queue_push(&q, &line, patient, 1000) && queue_push(&q, &line, hasty, 1000));
    assert_int_equal(queue_due_ms(&q), 1100);
    assert_null(queue_overdue(&q, 1099));
    assert_ptr_equal(queue_overdue(&q, 1100), hasty);
    assert_int_equal(queue_due_ms(&q), 1000 + QUEUE_WAIT_MS);
    assert_ptr_equal(queue_overdue(&q, 1000 + QUEUE_WAIT_MS), patient);
    assert_int_equal(queue_due_ms(&q), UINT64_MAX);
    test_free(patient);
    test_free(hasty);
    queue_done(&q);
}

static void a_client_that_leaves_takes_its_item_along(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line line = {.weight = 1};
    queue_start(&q, 100, &thousand);
    struct queue_item *items[3];
    for (int i = 0; i < 3; i++) {
        items[i] = item_new();
        assert_true(queue_push(&q, &line, items[i], 0));
    }
    queue_remove(&q, items[1]);
    queue_remove(&q, items[1]); /* twice is once */
    bool late;
    assert_ptr_equal(queue_next(&q, 1, &late), items[0]);
    assert_ptr_equal(queue_next(&q, 1, &late), items[2]);
    assert_null(queue_next(&q, 1, &late));
    for (int i = 0; i < 3; i++)
        test_free(items[i]);
    queue_done(&q);
}

/* One line gets more than is served, another does not: only the first gives up what has waited for long. */
static void a_slow_line_gives_up_what_is_old_and_a_quick_one_nothing(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line lines[2] = {{.weight = 1}, {.weight = 1}};
    queue_start(&q, 10000, &thousand);
    uint32_t late_of[2] = {0}, served_of[2] = {0};
    uint64_t sum_wait = 0, n_wait = 0;
    for (uint64_t now = 1; now < 20000; now++) {
        if (now % 3 == 0)
            (void)push(&q, &lines[0], now); /* 333 a second */
        if (now % 50 == 0)
            (void)push(&q, &lines[1], now); /* 20 */
        for (struct queue_item *item; (item = queue_overdue(&q, now));)
            test_free(item);
        if (now % 10 != 0) /* 100 a second are served */
            continue;
        bool late = true;
        while (late) {
            size_t before = lines[0].n;
            struct queue_item *item = queue_next(&q, now, &late);
            if (!item)
                break;
            int i = lines[0].n == before;
            late_of[i] += late;
            served_of[i] += !late;
            if (!late && i == 0 && now > 5000) {
                sum_wait += now - item->pushed_ms;
                n_wait++;
            }
            if (!late)
                queue_release(&q, &lines[i], &one);
            test_free(item);
        }
    }
    assert_true(late_of[0] > 1000 && late_of[1] == 0);
    assert_true(served_of[1] >= 395 && served_of[0] > 1000);
    assert_true(sum_wait / n_wait < QUEUE_OVERLOAD_MS); /* and not the two seconds of a full queue */
    empty(&q);
}

static void the_wait_that_is_named_is_that_of_the_queue(void **state)
{
    (void)state;
    struct queue q;
    struct queue_line line = {.weight = 1};
    queue_start(&q, 10000, &thousand);
    assert_in_range(queue_retry_after(&q, 0, 1), 24, 36); /* nothing is known: half a minute */
    uint64_t now = 1;
    for (int i = 0; i < 3000; i++, now += 20) { /* 50 a second */
        struct queue_line *lines = &line;
        assert_true(push(&q, &line, now));
        assert_non_null(serve(&q, lines, 1, now));
        queue_release(&q, &line, &one);
    }
    for (int i = 0; i < 500; i++)
        assert_true(push(&q, &line, now));
    unsigned least = 100, most = 0;
    for (uint64_t word = 0; word < 200; word++) {
        unsigned s = queue_retry_after(&q, now, word);
        least = s < least ? s : least;
        most = s > most ? s : most;
    }
    assert_int_equal(least, 8);
    assert_int_equal(most, 12);
    empty(&q);
}

/* Whatever is done in whatever order: each item is handed back once, lines are first come first served, counts add up. */
static void any_order_of_calls_keeps_the_queue_whole(void **state)
{
    (void)state;
    struct draw d = {7};
    for (int round = 0; round < 30; round++) {
        struct queue q;
        struct queue_line lines[5] = {{0}};
        size_t there = 0, back = 0, limit = 1 + draw_below(&d, 60);
        struct queue_item *loose[16] = {0}; /* handed out, to be put back */
        struct queue_line *loose_line[16];
        uint64_t now = 1;
        queue_start(&q, limit, &thousand);
        for (int i = 0; i < 5; i++)
            lines[i].weight = 1 + draw_below(&d, 3);
        for (int i = 0; i < 3000; i++) {
            struct queue_line *line = &lines[draw_below(&d, 5)];
            now += draw_below(&d, 40);
            uint32_t slot = draw_below(&d, 16);
            bool late = false;
            switch (draw_below(&d, 8)) {
            case 0:
            case 1:
            case 2:
                there += push(&q, line, now);
                break;
            case 3:
                for (struct queue_item *item; (item = queue_overdue(&q, now)); back++)
                    test_free(item);
                break;
            case 4:
                queue_round(&q);
                break;
            case 5:
                if (loose[slot] && loose_line[slot]->n == 0) { /* put back before its line went on */
                    queue_put_back(&q, loose_line[slot], loose[slot]);
                    loose[slot] = NULL;
                }
                break;
            case 6:
                queue_set_held(&q, line, &(struct amount){{draw_below(&d, 500), 0, draw_below(&d, 900) * GIB, 0}});
                if (line->n > 1 && draw_below(&d, 4) == 0) {
                    struct queue_item *middle = line->first->after;
                    queue_remove(&q, middle);
                    test_free(middle);
                    back++;
                }
                break;
            default:
                if (!loose[slot]) {
                    struct queue_line *top = q.n_lines ? q.lines[0] : NULL;
                    struct queue_item *item = queue_next(&q, now, &late);
                    if (item) {
                        loose[slot] = item;
                        loose_line[slot] = top;
                    }
                }
            }
            size_t sum = 0, items_out = 0;
            for (int k = 0; k < 5; k++) {
                size_t n = 0;
                for (struct queue_item *item = lines[k].first; item; item = item->after, n++)
                    assert_true(item->line == &lines[k] && q.items[item->at] == item &&
                                (!item->after || item->after->before == item));
                assert_int_equal(n, lines[k].n);
                sum += n;
                if (n)
                    assert_ptr_equal(q.lines[lines[k].at], &lines[k]);
            }
            for (int k = 0; k < 16; k++)
                items_out += loose[k] != NULL;
            assert_true(sum == q.n_items && sum <= limit + 16 && sum + back + items_out == there);
            for (size_t k = 1; k < q.n_items; k++)
                assert_true(q.items[(k - 1) / 2]->until_ms <= q.items[k]->until_ms);
            for (size_t k = 1; k < q.n_lines; k++) {
                struct queue_line *up = q.lines[(k - 1) / 2], *down = q.lines[k];
                assert_true(up->passed == down->passed ? up->share <= down->share : down->passed);
            }
        }
        for (int k = 0; k < 16; k++)
            test_free(loose[k]);
        empty(&q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tenant_with_less_is_served_first),
        cmocka_unit_test(weights_divide_what_is_to_be_had),
        cmocka_unit_test(the_scarcest_resource_of_each_tenant_counts),
        cmocka_unit_test(lines_with_the_same_share_take_turns),
        cmocka_unit_test(a_flood_leaves_places_for_others),
        cmocka_unit_test(what_finds_no_room_is_first_again_and_others_go_on),
        cmocka_unit_test(nothing_waits_longer_than_it_may),
        cmocka_unit_test(a_client_that_leaves_takes_its_item_along),
        cmocka_unit_test(a_slow_line_gives_up_what_is_old_and_a_quick_one_nothing),
        cmocka_unit_test(the_wait_that_is_named_is_that_of_the_queue),
        cmocka_unit_test(any_order_of_calls_keeps_the_queue_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
