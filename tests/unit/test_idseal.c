#include "sandboxes/idseal.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/map.h"
#include "base/random.h"
#include "tests/lib/unit.h"

static const uint8_t key[IDSEAL_KEY] = {1, 2, 3}, other_key[IDSEAL_KEY] = {3, 2, 1};

static void test_ids(void **state)
{
    (void)state;
    enum { N = 20000 };
    static char ids[N][ID_TEXT + 1];
    struct idseal *a, *b;
    struct err err;
    struct id_fields f;
    struct map seen = {0};
    int passed = 0;
    assert_int_equal(idseal_new(key, 77, 5, &a, &err), 0);
    assert_int_equal(idseal_new(other_key, 77, 5, &b, &err), 0);
    for (int i = 0; i < N; i++) {
        idseal_make(a, ids[i]);
        assert_null(map_put(&seen, ids[i], ids[i]));
        assert_true(idseal_check(a, ids[i], &f));
        assert_int_equal(f.node, 77);
        assert_int_equal(f.epoch, 5);
        assert_int_equal(f.seq, i + 1);
        passed += idseal_check(b, ids[i], NULL);
    }
    assert_in_range(passed, 0, 3); /* each passes once in a million times, by chance */
    map_done(&seen);
    idseal_free(a);
    idseal_free(b);
}

/* Twenty bits of magic and version: a made-up id passes about once in a million times; then it is in no table. */
static void test_forged(void **state)
{
    (void)state;
    struct idseal *s;
    struct err err;
    int passed = 0;
    assert_int_equal(idseal_new(key, 0, 1, &s, &err), 0);
    for (int i = 0; i < 200000; i++) {
        uint8_t block[ID_BYTES];
        char text[ID_TEXT + 1];
        random_bytes(block, sizeof block);
        id_spell(block, text);
        passed += idseal_check(s, text, NULL);
    }
    assert_in_range(passed, 0, 6);
    char good[ID_TEXT + 1], bad[ID_TEXT + 1];
    idseal_make(s, good);
    for (int i = 0; i < ID_TEXT; i++) {
        memcpy(bad, good, sizeof bad);
        bad[i] = bad[i] == '0' ? '4' : '0';
        if (strcmp(good, bad) != 0 && idseal_check(s, bad, NULL))
            passed++;
    }
    assert_in_range(passed, 0, 7);
    assert_false(idseal_check(s, "", NULL));
    assert_false(idseal_check(s, "../../x", NULL));
    idseal_free(s);
}

static void test_key_file(void **state)
{
    (void)state;
    char dir[] = "/tmp/hutch-idseal-XXXXXX", id[ID_TEXT + 1];
    struct idseal *s;
    struct err err = {0};
    assert_non_null(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(idseal_open(fd, 0, 1, &s, &err), 0);
    idseal_make(s, id);
    idseal_free(s);
    assert_int_equal(idseal_open(fd, 0, 2, &s, &err), 0);
    assert_true(idseal_check(s, id, NULL));
    idseal_free(s);
    int key_fd = openat(fd, "id.key", O_WRONLY | O_TRUNC);
    assert_int_equal(write(key_fd, "short", 5), 5);
    (void)close(key_fd);
    assert_int_equal(idseal_open(fd, 0, 3, &s, &err), -1);
    assert_non_null(strstr(err.msg, "16 bytes, it has 5"));
    assert_int_equal(unlinkat(fd, "id.key", 0), 0);
    (void)close(fd);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_key_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
