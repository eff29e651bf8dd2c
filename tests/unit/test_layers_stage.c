/* Which captures go through memory, and how much of it they may take. */
#include "layers/stage.h"
#include "tests/lib/unit.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

struct answer {
    uint64_t most;
    bool alone;
};
static struct answer ask(uint64_t used, uint64_t inodes, uint64_t room)
{
    struct answer a;
    a.most = stage_memory(&(struct upper_usage){.used = used, .inodes = inodes}, room, &a.alone);
    return a;
}

static void small_ones_go_beside_each_other_while_there_is_memory_for_all_jobs(void **state)
{
    (void)state;
    struct answer a = ask(60 * MIB, 10, 16 * GIB);
    assert_true(a.most >= 60 * MIB && !a.alone);
    /* As many as there are jobs would take more than there is. */
    a = ask(60 * MIB, 10000, 2 * GIB);
    assert_true(a.most >= 60 * MIB && a.alone);
    assert_int_equal(ask(60 * MIB, 10, 2 * GIB).most, 0); /* and large files gain nothing */
    assert_int_equal(ask(60 * MIB, 10000, 200 * MIB).most, 0);
    assert_int_equal(ask(4096, 2, 0).most, 0);
    a = ask(MIB, 100, GIB);
    assert_true(a.most >= MIB && !a.alone);
    for (uint64_t room = MIB; room < 64 * GIB; room *= 2)
        for (uint64_t used = 4096; used < GIB; used *= 2) {
            a = ask(used, 1, room);
            assert_true(a.most == 0 || a.alone || used * LAYERS_JOBS_MAX <= room / 2);
        }
}

static void large_ones_go_alone_if_they_are_many_files(void **state)
{
    (void)state;
    struct answer a = ask(500 * MIB, 50000, 16 * GIB);
    assert_true(a.most >= 500 * MIB && a.alone);
    assert_int_equal(ask(500 * MIB, 100, 16 * GIB).most, 0);
    assert_int_equal(ask(500 * MIB, 50000, GIB).most, 0);
}

/* Whoever grows between the look and the freezer gets not much more than was allowed, be it files without anything in them
 * that are filled then. */
static void what_grows_after_the_look_gets_no_more_than_twice_of_it(void **state)
{
    (void)state;
    assert_true(ask(0, 60000, 16 * GIB).most <= 160 * MIB);
    for (uint64_t inodes = 1; inodes < 8 << 20; inodes *= 2) {
        struct answer a = ask(0, inodes, 8 * GIB);
        assert_true(a.most <= 4 * GIB + 16 * MIB && (a.alone || a.most <= 144 * MIB));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_ones_go_beside_each_other_while_there_is_memory_for_all_jobs),
        cmocka_unit_test(large_ones_go_alone_if_they_are_many_files),
        cmocka_unit_test(what_grows_after_the_look_gets_no_more_than_twice_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
