/* A create with a key makes one sandbox, in whatever order things happen and fail. */
#include "once-world.h"

static const char asked[] = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

/* --- all orders ----------------------------------------------------------------------------------------------------- */

static void explore(struct world_size size, enum world_mutant mutant, struct world_result *r)
{
    world_explore(size, mutant, r);
    print_message("%u orchestrators, %u ids, %u nodes, world %d: %zu states, %zu steps: %s\n", size.actors, size.ids,
                  size.nodes, (int)mutant, r->states, r->steps, r->wrong ? r->wrong : "holds");
}

static void no_order_of_steps_answers_two_sandboxes_or_leaves_one(void **state)
{
    (void)state;
    static const struct world_size sizes[] = {{2, 2, 2}, {2, 4, 1}, {3, 3, 1}, {3, 2, 2}, {2, 3, 2}};
    const char *soak = getenv("HUTCH_SOAK");
    size_t n = soak && strcmp(soak, "1") == 0 ? 5 : 3; /* the last two have more than a million states each */
    for (size_t i = 0; i < n; i++) {
        struct world_result r;
        explore(sizes[i], WORLD_RIGHT, &r);
        if (r.wrong)
            fail_msg("%s:\n%s", r.wrong, r.trace);
        assert_true(r.answered > 100); /* it did not stop at the beginning */
    }
}

static void each_rule_that_is_left_out_is_noticed(void **state)
{
    (void)state;
    for (enum world_mutant m = WORLD_RIGHT + 1; m < WORLD_MUTANTS; m++) {
        struct world_result r;
        explore((struct world_size){2, 3, 2}, m, &r);
        assert_non_null(r.wrong);
    }
}

/* --- one order ------------------------------------------------------------------------------------------------------ */

static struct once_record record(enum once_state state, const char *id, uint32_t node, uint64_t revision)
{
    struct once_record r = {.state = state, .at.node = node, .until_ms = 5000000, .revision = revision};
    snprintf(r.at.id, sizeof r.at.id, "%s", id);
    memcpy(r.request, asked, sizeof asked);
    return r;
}

static void a_request_goes_from_the_record_to_the_answer(void **state)
{
    (void)state;
    struct once o;
    once_start(&o, asked, 1000);
    assert_int_equal(o.next, ONCE_READ);
    once_on_read(&o, ONCE_ENGINE_OK, NULL);
    assert_int_equal(o.next, ONCE_CHOOSE);
    once_on_chosen(&o, "x1", 7);
    assert_int_equal(o.next, ONCE_WRITE);
    assert_int_equal(o.write.state, ONCE_PENDING);
    assert_int_equal(o.write.revision, 0);
    assert_string_equal(o.write.request, asked);
    once_on_written(&o, ONCE_ENGINE_OK, 40);
    assert_int_equal(o.next, ONCE_MAKE);
    assert_int_equal(o.at.node, 7);
    once_on_node(&o, ONCE_SAID_NOTHING);
    assert_true(o.next == ONCE_MAKE && o.wait);
    once_on_node(&o, ONCE_SAID_YES);
    assert_int_equal(o.next, ONCE_WRITE);
    assert_int_equal(o.write.state, ONCE_DECIDED);
    assert_int_equal(o.write.revision, 40);
    once_on_written(&o, ONCE_ENGINE_OK, 41);
    assert_int_equal(o.next, ONCE_CONFIRM);
    once_on_node(&o, ONCE_SAID_YES);
    assert_int_equal(o.next, ONCE_ANSWER);
    assert_int_equal(o.answer, ONCE_MADE);
    assert_false(o.replay);
    assert_string_equal(o.at.id, "x1");
    assert_int_equal(o.until_ms, 1000 + ONCE_KEY_MS);
}

static void a_request_that_comes_again_is_told_the_same_sandbox(void **state)
{
    (void)state;
    static const struct {
        enum once_said said;
        enum once_answer answer;
    } t[] = {{ONCE_SAID_YES, ONCE_MADE},
             {ONCE_SAID_ENDED, ONCE_OVER},
             {ONCE_SAID_NEVER, ONCE_LOST},
             {ONCE_SAID_NO_LEASE, ONCE_STATE_UNKNOWN}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct once o;
        struct once_record r = record(ONCE_DECIDED, "x1", 7, 41);
        once_start(&o, asked, 1000);
        once_on_read(&o, ONCE_ENGINE_OK, &r);
        assert_int_equal(o.next, ONCE_CONFIRM);
        once_on_node(&o, t[i].said);
        assert_int_equal(o.next, ONCE_ANSWER);
        assert_int_equal(o.answer, t[i].answer);
        assert_true(o.replay);
        assert_string_equal(o.at.id, "x1");
        assert_int_equal(o.until_ms, 5000000);
    }
}

static void a_key_is_not_taken_for_another_request(void **state)
{
    (void)state;
    struct once o;
    struct once_record r = record(ONCE_DECIDED, "x1", 7, 41);
    r.request[0] = '0';
    once_start(&o, asked, 1000);
    once_on_read(&o, ONCE_ENGINE_OK, &r);
    assert_int_equal(o.next, ONCE_ANSWER);
    assert_int_equal(o.answer, ONCE_REUSED);
}

static void four_nodes_are_asked_and_no_more(void **state)
{
    (void)state;
    struct once o;
    once_start(&o, NULL, 1000);
    for (uint32_t i = 0; i < PLACE_TRIED_MAX; i++) {
        assert_int_equal(o.next, ONCE_CHOOSE);
        assert_int_equal(o.n_tried, i);
        once_on_chosen(&o, "x", i + 1);
        assert_int_equal(o.next, ONCE_MAKE);
        once_on_node(&o, i % 2 ? ONCE_SAID_NO_LEASE : ONCE_SAID_REFUSED);
    }
    assert_int_equal(o.next, ONCE_ANSWER);
    assert_int_equal(o.answer, ONCE_FULL);
}

static void a_create_without_a_key_needs_no_engine(void **state)
{
    (void)state;
    struct once o;
    once_start(&o, NULL, 1000);
    once_on_chosen(&o, "x1", 7);
    once_on_node(&o, ONCE_SAID_YES);
    assert_int_equal(o.next, ONCE_CONFIRM);
    once_on_node(&o, ONCE_SAID_REAPED);
    assert_int_equal(o.next, ONCE_CHOOSE);
    once_on_chosen(&o, "x2", 7);
    once_on_node(&o, ONCE_SAID_YES);
    once_on_node(&o, ONCE_SAID_YES);
    assert_int_equal(o.answer, ONCE_MADE);
    assert_false(o.replay);
    assert_string_equal(o.at.id, "x2");
}

static void what_the_engine_cannot_do_is_said_and_never_repeated_blindly(void **state)
{
    (void)state;
    struct once o;
    once_start(&o, asked, 1000);
    once_on_read(&o, ONCE_ENGINE_DOWN, NULL);
    assert_true(o.next == ONCE_ANSWER && o.answer == ONCE_AWAY);
    once_start(&o, asked, 1000);
    once_on_read(&o, ONCE_ENGINE_UNREADABLE, NULL);
    assert_true(o.next == ONCE_ANSWER && o.answer == ONCE_UNREADABLE);
    once_start(&o, asked, 1000);
    once_on_read(&o, ONCE_ENGINE_OK, NULL);
    once_on_chosen(&o, "x1", 7);
    once_on_written(&o, ONCE_ENGINE_UNKNOWN, 0);
    assert_true(o.next == ONCE_READ && o.wait);
    once_on_read(&o, ONCE_ENGINE_OK, NULL);
    once_on_chosen(&o, "x2", 7);
    once_on_written(&o, ONCE_ENGINE_DOWN, 0);
    assert_true(o.next == ONCE_ANSWER && o.answer == ONCE_AWAY);
}

static void a_deadline_says_whether_there_may_be_a_sandbox(void **state)
{
    (void)state;
    struct once o;
    once_start(&o, asked, 1000);
    once_on_deadline(&o);
    assert_true(o.next == ONCE_ANSWER && o.answer == ONCE_LATE);
    struct once_record r = record(ONCE_DECIDED, "x1", 7, 41);
    once_start(&o, asked, 1000);
    once_on_read(&o, ONCE_ENGINE_OK, &r);
    once_on_node(&o, ONCE_SAID_NOTHING);
    assert_true(o.next == ONCE_CONFIRM && o.wait);
    once_on_deadline(&o);
    assert_true(o.next == ONCE_ANSWER && o.answer == ONCE_STATE_UNKNOWN);
}

static void a_node_makes_no_id_twice(void **state)
{
    (void)state;
    static const enum once_life after[][4] = {
        /* make, confirm, overdue, end */
        [ONCE_LIFE_NONE] = {ONCE_LIFE_TRIAL, ONCE_LIFE_NONE, ONCE_LIFE_NONE, ONCE_LIFE_NONE},
        [ONCE_LIFE_TRIAL] = {ONCE_LIFE_TRIAL, ONCE_LIFE_CONFIRMED, ONCE_LIFE_REAPED, ONCE_LIFE_REAPED},
        [ONCE_LIFE_CONFIRMED] = {ONCE_LIFE_CONFIRMED, ONCE_LIFE_CONFIRMED, ONCE_LIFE_CONFIRMED, ONCE_LIFE_ENDED},
        [ONCE_LIFE_REAPED] = {ONCE_LIFE_REAPED, ONCE_LIFE_REAPED, ONCE_LIFE_REAPED, ONCE_LIFE_REAPED},
        [ONCE_LIFE_ENDED] = {ONCE_LIFE_ENDED, ONCE_LIFE_ENDED, ONCE_LIFE_ENDED, ONCE_LIFE_ENDED},
    };
    static const enum once_said said[] = {ONCE_SAID_NEVER, ONCE_SAID_YES, ONCE_SAID_YES, ONCE_SAID_REAPED,
                                          ONCE_SAID_ENDED};
    for (enum once_life from = ONCE_LIFE_NONE; from <= ONCE_LIFE_ENDED; from++)
        for (enum once_life_event e = ONCE_LIFE_MAKE; e <= ONCE_LIFE_END; e++) {
            enum once_life life = from;
            enum once_said answer = once_life_step(&life, e);
            assert_int_equal(life, after[from][e]);
            assert_int_equal(answer, said[life]);
        }
}

/* --- the record ----------------------------------------------------------------------------------------------------- */

static void a_record_is_read_as_it_was_written(void **state)
{
    (void)state;
    for (enum once_state s = ONCE_PENDING; s <= ONCE_DECIDED; s++) {
        struct once_record r = record(s, "0123456789abcdefghijklmnop", UINT32_MAX, 0), back;
        struct err err = {0};
        _cleanup_buf_ struct buf b = {0};
        once_record_write(&r, &b);
        assert_true(b.n < ONCE_VALUE_MAX);
        assert_int_equal(once_record_read(b.p, b.n, &back, &err), 0);
        assert_memory_equal(&back, &r, sizeof r);
    }
    _cleanup_buf_ struct buf key = {0};
    once_key("t1", "a key with / and \0", 18, &key);
    assert_int_equal(key.n, 5 + 32);
    assert_memory_equal(key.p, "i/t1/", 5);
    /* A record lives ONCE_KEY_MS at least, and its lease no longer than that and a bucket. */
    assert_int_equal(once_bucket(ONCE_BUCKET_MS - 1) + 1, once_bucket(ONCE_BUCKET_MS));
    assert_true(ONCE_LEASE_S * 1000 >= ONCE_KEY_MS + ONCE_BUCKET_MS);
    assert_true(ONCE_REMEMBER_S > ONCE_LEASE_S);
}

static void what_is_no_record_is_refused(void **state)
{
    (void)state;
    struct once_record r = record(ONCE_PENDING, "x1", 7, 0), back;
    _cleanup_buf_ struct buf good = {0}, long_one = {0};
    once_record_write(&r, &good);
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "null",
        "{\"v\":1}",
        "{\"v\":2,\"state\":\"pending\"}",
        "{\"v\":1,\"v\":1}",
        "{\"v\":1,\"state\":\"pending\",\"id\":\"../x\",\"node\":7,\"until\":1}",
        "{\"v\":1,\"state\":\"pending\",\"id\":\"x1\",\"node\":-1,\"until\":1}",
        "{\"v\":1,\"state\":\"pending\",\"id\":\"x1\",\"node\":4294967296,\"until\":1}",
        "{\"v\":1,\"state\":\"deciding\",\"id\":\"x1\",\"node\":7,\"request\":\"00\",\"until\":1}",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    };
    struct err err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(once_record_read(bad[i], strlen(bad[i]), &back, &err), -1);
        assert_true(err.msg[0] != 0);
    }
    /* Each text that is cut off, and one that is too long. */
    for (size_t n = 0; n < good.n; n++) {
        char *copy = malloc(n + 1);
        assert_non_null(copy);
        memcpy(copy, good.p, n);
        assert_int_equal(once_record_read(copy, n, &back, &err), -1);
        free(copy);
    }
    buf_adds(&long_one, buf_str(&good));
    while (long_one.n <= ONCE_VALUE_MAX)
        buf_addc(&long_one, ' ');
    assert_int_equal(once_record_read(long_one.p, long_one.n, &back, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_of_steps_answers_two_sandboxes_or_leaves_one),
        cmocka_unit_test(each_rule_that_is_left_out_is_noticed),
        cmocka_unit_test(a_request_goes_from_the_record_to_the_answer),
        cmocka_unit_test(a_request_that_comes_again_is_told_the_same_sandbox),
        cmocka_unit_test(a_key_is_not_taken_for_another_request),
        cmocka_unit_test(four_nodes_are_asked_and_no_more),
        cmocka_unit_test(a_create_without_a_key_needs_no_engine),
        cmocka_unit_test(what_the_engine_cannot_do_is_said_and_never_repeated_blindly),
        cmocka_unit_test(a_deadline_says_whether_there_may_be_a_sandbox),
        cmocka_unit_test(a_node_makes_no_id_twice),
        cmocka_unit_test(a_record_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_record_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
