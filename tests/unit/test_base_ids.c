#include "base/ids.h"
#include "base/map.h"
#include "base/random.h"
#include "tests/lib/unit.h"

static void test_round_trip(void **state)
{
    (void)state;
    struct id_fields in = {.version = ID_VERSION,
                           .provider = 200,
                           .node = 0xfffff,
                           .epoch = 65535,
                           .seq = 0xffffffffffULL,
                           .random = 0xabcdef},
                     out;
    uint8_t block[ID_BYTES], again[ID_BYTES];
    char text[ID_TEXT + 1];
    id_pack(&in, block);
    id_spell(block, text);
    assert_int_equal(strlen(text), ID_TEXT);
    assert_true(id_read(text, again));
    assert_memory_equal(block, again, ID_BYTES);
    assert_true(id_unpack(again, &out));
    assert_int_equal(out.provider, in.provider);
    assert_int_equal(out.node, in.node);
    assert_int_equal(out.epoch, in.epoch);
    assert_true(out.seq == in.seq);
    assert_int_equal(out.random, in.random);
}

static void test_random_blocks(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint8_t block[ID_BYTES], again[ID_BYTES];
        char text[ID_TEXT + 1];
        random_bytes(block, sizeof block);
        id_spell(block, text);
        assert_int_equal(strspn(text, "0123456789abcdefghijklmnopqrstuv"), ID_TEXT);
        assert_true(id_read(text, again));
        assert_memory_equal(block, again, ID_BYTES);
    }
}

/* One id has one spelling, and nothing else is one. */
static void test_bad_spellings(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "0",
        "0000000000000000000000000",
        "000000000000000000000000000",
        "0000000000000000000000000A",
        "0000000000000000000000000w",
        "00000000000000000000000001",
        "00000000000000000000000002",
        "00000000000000000000000003",
        "../../../../etc/passwd0000",
        "0000000000000/000000000000",
        "0000000000000 000000000000",
        "000000000000\xffzzzzzzzzzzzzz",
    };
    uint8_t block[ID_BYTES];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (id_read(bad[i], block))
            fail_msg("accepted %s", bad[i]);
    assert_true(id_read("00000000000000000000000004", block));
}

static void test_wrong_magic(void **state)
{
    (void)state;
    uint8_t block[ID_BYTES] = {0};
    struct id_fields f = {.version = ID_VERSION + 1};
    assert_false(id_unpack(block, &f));
    f.version = ID_VERSION + 1;
    id_pack(&f, block);
    assert_false(id_unpack(block, &f));
}

/* The map against an array that is searched: puts, replacements, removals and walks in random order. */
static void test_map_against_array(void **state)
{
    (void)state;
    enum { KEYS = 500, STEPS = 50000 };
    static char names[KEYS][24];
    static long values[KEYS];
    struct map m = {0};
    unsigned seed = 7;
    size_t expected = 0;
    memset(values, 0, sizeof values);
    for (int i = 0; i < KEYS; i++)
        (void)snprintf(names[i], sizeof names[i], "key-%d-%x", i, (unsigned)(i * 2654435761U));
    assert_null(map_get(&m, "nothing"));
    assert_null(map_del(&m, "nothing"));
    for (long step = 1; step <= STEPS; step++) {
        int k = rand_r(&seed) % KEYS;
        if (rand_r(&seed) % 3) {
            assert_ptr_equal(map_put(&m, names[k], (void *)step), (void *)values[k]);
            expected += values[k] == 0;
            values[k] = step;
        } else {
            assert_ptr_equal(map_del(&m, names[k]), (void *)values[k]);
            expected -= values[k] != 0;
            values[k] = 0;
        }
        int probe = rand_r(&seed) % KEYS;
        assert_ptr_equal(map_get(&m, names[probe]), (void *)values[probe]);
        assert_int_equal(m.n, expected);
    }
    size_t at = 0, seen = 0;
    while (map_next(&m, &at))
        seen++;
    assert_int_equal(seen, expected);
    map_done(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),        cmocka_unit_test(test_random_blocks),
        cmocka_unit_test(test_bad_spellings),     cmocka_unit_test(test_wrong_magic),
        cmocka_unit_test(test_map_against_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
