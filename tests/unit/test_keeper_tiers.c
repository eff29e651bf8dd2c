/* The table of tiers: every operation of every tier is a function, or is answered as absent. */
#include "keeper/keeper-int.h"
#include "tests/lib/unit.h"

static void test_every_operation_is_there_or_answered_as_absent(void **state)
{
    (void)state;
    assert_null(tier_of(KEEPER_TIERS));
    assert_null(tier_of(UINT32_MAX));
    for (uint32_t n = 0; n < KEEPER_TIERS; n++) {
        const struct tier *t = tier_of(n);
        assert_non_null(t);
        assert_true(strlen(t->name) < sizeof((struct keeper_reply){0}).tier);
        for (enum tier_operation op = 0; op < TIER_OPERATIONS; op++) {
            struct err err = {0};
            assert_int_equal(tier_need(t, op, &err), tier_has(t, op) ? 0 : -1);
            if (tier_has(t, op))
                continue;
            assert_int_equal(err.code, ERR_HOST); /* KEEPER_HOST, which front answers with 501 */
            assert_non_null(strstr(err.msg, t->name));
            assert_non_null(strchr(err.msg, '"'));
        }
        assert_true(tier_has(t, TIER_START) && tier_has(t, TIER_ADOPT) && tier_has(t, TIER_KILL));
    }
}

static void test_absent_operations_have_their_own_names(void **state)
{
    static const struct tier none = {.name = "none"};
    char said[TIER_OPERATIONS][sizeof((struct err){0}).msg];
    (void)state;
    for (enum tier_operation op = 0; op < TIER_OPERATIONS; op++) {
        struct err err = {0};
        assert_false(tier_has(&none, op));
        assert_int_equal(tier_need(&none, op, &err), -1);
        memcpy(said[op], err.msg, sizeof said[op]);
        for (enum tier_operation before = 0; before < op; before++)
            assert_string_not_equal(said[before], said[op]);
    }
    assert_string_equal(said[TIER_RESIZE], "the tier none has no operation \"resize\"");
}

static void test_what_keeper_does_itself_in_a_container(void **state)
{
    static const enum tier_operation does[] = {TIER_START, TIER_ADOPT,   TIER_FREEZE, TIER_KILL,
                                               TIER_USAGE, TIER_NETWORK, TIER_LIMIT,  TIER_SWEEP};
    unsigned n = 0;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(does); i++)
        assert_true(tier_has(&tier_container, does[i]));
    for (enum tier_operation op = 0; op < TIER_OPERATIONS; op++)
        n += tier_has(&tier_container, op);
    assert_int_equal(n, ARRAY_LEN(does));
}

/* A record of a tier that this version does not know is none it could adopt. */
static void test_a_record_of_another_tier_is_not_valid(void **state)
{
    struct journal_record r = {.state = JOURNAL_LIVE, .id = "one", .template = "base"};
    (void)state;
    journal_seal(&r);
    assert_true(journal_valid(&r));
    r.tier = KEEPER_TIERS;
    journal_seal(&r);
    assert_false(journal_valid(&r));
}

static void test_a_create_of_another_tier_is_refused(void **state)
{
    struct keeper_create c = {
        .head = {.version = KEEPER_VERSION, .type = KEEPER_CREATE}, .id = "one", .template = "host", .deadline_ms = 1};
    union keeper_request q;
    struct err err = {0};
    (void)state;
    assert_int_equal(keeper_request_parse(&c, sizeof c, &q, &err), 0);
    c.tier = KEEPER_TIERS;
    assert_int_equal(keeper_request_parse(&c, sizeof c, &q, &err), -1);
    assert_non_null(strstr(err.msg, "tier:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_is_there_or_answered_as_absent),
        cmocka_unit_test(test_absent_operations_have_their_own_names),
        cmocka_unit_test(test_what_keeper_does_itself_in_a_container),
        cmocka_unit_test(test_a_record_of_another_tier_is_not_valid),
        cmocka_unit_test(test_a_create_of_another_tier_is_refused),
    };
    return cmocka_run_group_tests_name("keeper tiers", tests, NULL, NULL);
}
