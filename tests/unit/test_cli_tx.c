/* test_cli_tx.c - what is written down about a transaction of `hutch run --tx`. */
#include <unistd.h>

#include "tests/lib/unit.h"

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/tx.h"

/* main.c has it, which is no part of the library. */
int cli_fail(const struct err *err)
{
    (void)fprintf(stderr, "hutch: %s\n", err->msg);
    return err->code;
}

/* With nothing open; tx_done() closes no descriptor. */
static void add_place(struct tx *tx, const char *src)
{
    tx->place[tx->nplaces++] = (struct tx_place){.src = xstrdup(src), .layer = -1, .host = -1};
}

static void add_change(struct tx *tx, unsigned place, const char *path, const struct tx_seen *seen)
{
    MEM_GROW(tx->changes, tx->n, tx->cap);
    tx->changes[tx->n++] = (struct tx_change){.place = place, .path = xstrdup(path), .kind = TX_CHANGED, .seen = *seen};
}

static void same_seen(const struct tx_seen *a, const struct tx_seen *b)
{
    assert_int_equal(a->there, b->there);
    assert_int_equal(a->mode, b->mode);
    assert_true(a->ino == b->ino);
    assert_int_equal(a->size, b->size);
    assert_int_equal(a->ctime.tv_sec, b->ctime.tv_sec);
    assert_int_equal(a->ctime.tv_nsec, b->ctime.tv_nsec);
}

static void any_name_and_any_inode_come_back(void **state)
{
    static const char *const paths[] = {"plain/a b.txt", "a\xff\xfez", "50%25 \\x41", "\xc3\xa4\n\"\x7f",
                                        "\xed\xa0\x80"};
    const struct tx_seen seen = {.there = true,
                                 .mode = S_IFREG | 0640,
                                 .ino = (ino_t)UINT64_MAX - 1,
                                 .size = INT64_MAX,
                                 .ctime = {.tv_sec = 1700000000, .tv_nsec = 999999999}};
    struct tx tx = {.root = true, .started_ns = 1700000000123456789, .command = xstrdup("make")}, again = {0};
    _cleanup_buf_ struct buf text = {0};
    _cleanup_strv_ struct strv places = {0};
    _cleanup_entries_ struct tx_entries got = {0};
    (void)state;
    add_place(&tx, "/home/b\xf6se");
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        add_change(&tx, 0, paths[i], &seen);
    tx_meta_write(&tx, &text);
    assert_true(tx_meta_read(text.p, text.n, &again, &places, &got));
    assert_true(again.root);
    assert_true(again.started_ns == tx.started_ns);
    assert_string_equal(again.command, "make");
    assert_int_equal(places.n, 1);
    assert_string_equal(places.v[0], "/home/b\xf6se");
    assert_int_equal(got.n, ARRAY_LEN(paths));
    for (size_t i = 0; i < got.n; i++) {
        assert_string_equal(got.v[i].path, paths[i]);
        same_seen(&got.v[i].seen, &seen);
    }
    tx_done(&tx);
    tx_done(&again);
}

static bool reads(const char *text, struct tx *tx, struct tx_entries *seen)
{
    _cleanup_strv_ struct strv places = {0};
    return tx_meta_read(text, strlen(text), tx, &places, seen);
}

static void the_first_version_is_read_too(void **state)
{
    struct tx tx = {0};
    _cleanup_entries_ struct tx_entries seen = {0};
    (void)state;
    assert_true(reads("{\"version\":1,\"started_ns\":5,\"root\":false,\"command\":\"x\",\"places\":[\"/a%20b\"],"
                      "\"seen\":[[0,\"c%20d\",true,33188,77,3,1,2]]}",
                      &tx, &seen));
    assert_int_equal(seen.n, 1);
    assert_string_equal(seen.v[0].path, "c%20d");
    assert_int_equal(seen.v[0].seen.ino, 77);
    tx_done(&tx);
}

static void what_is_damaged_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{\"version\":3,\"places\":[],\"seen\":[],\"below\":[]}",
        "{\"version\":2,\"places\":[],\"below\":[]}",
        "{\"version\":2,\"places\":[7],\"seen\":[],\"below\":[]}",
        "{\"version\":2,\"places\":[\"%zz\"],\"seen\":[],\"below\":[]}",
        "{\"version\":2,\"places\":[],\"seen\":[7],\"below\":[]}",
        "{\"version\":2,\"places\":[],\"seen\":[[0,\"a\",true,33188,77,3,1,2]],\"below\":[]}",
        "{\"version\":2,\"places\":[],\"seen\":[[0,\"%00\",true,33188,\"77\",3,1,2]],\"below\":[]}",
        "{\"version\":2,\"places\":[],\"seen\":[[-1,\"a\",true,33188,\"77\",3,1,2]],\"below\":[]}",
        "{\"version\":2,\"places\":[],\"seen\":[[96,\"a\",true,33188,\"77\",3,1,2]],\"below\":[]}",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct tx tx = {0};
        _cleanup_entries_ struct tx_entries seen = {0};
        if (reads(texts[i], &tx, &seen))
            fail_msg("taken: %s", texts[i]);
        tx_done(&tx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_name_and_any_inode_come_back),
        cmocka_unit_test(the_first_version_is_read_too),
        cmocka_unit_test(what_is_damaged_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
