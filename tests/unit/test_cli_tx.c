/* test_cli_tx.c - what is written down about a transaction of `hutch run --tx`. */
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/unit.h"

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/run/tx.h"
#include "trees/tree.h"

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
    MEM_GROW(tx.below.v, tx.below.n, tx.below.cap);
    tx.below.v[tx.below.n++] = (struct tx_entry){.path = xstrdup(paths[1]), .seen = seen};
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
    assert_int_equal(again.below.n, 1);
    assert_false(again.below_cut);
    assert_string_equal(again.below.v[0].path, paths[1]);
    same_seen(&again.below.v[0].seen, &seen);
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
    assert_true(tx.below_cut); /* it did not write down what is below */
    tx_done(&tx);
}

static void the_second_version_is_read_too(void **state)
{
    struct tx tx = {0};
    _cleanup_entries_ struct tx_entries seen = {0};
    (void)state;
    assert_true(reads("{\"version\":2,\"started_ns\":5,\"root\":false,\"command\":\"x\",\"places\":[\"/a%20b\"],"
                      "\"seen\":[[0,\"c%20d\",true,33188,\"77\",3,1,2]],\"below_cut\":false,"
                      "\"below\":[[0,\"e\",true,33188,\"78\",3,1,2]],\"modes\":[]}\n",
                      &tx, &seen));
    assert_int_equal(seen.n, 1);
    assert_string_equal(seen.v[0].path, "c d");
    assert_int_equal(tx.below.n, 1);
    assert_false(tx.below_cut);
    tx_done(&tx);
}

static void what_is_damaged_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{\"version\":4,\"places\":[],\"entries\":0}\n",
        "{\"version\":3,\"places\":[],\"seen\":[],\"below\":[]}",
        "{\"version\":3,\"places\":[],\"entries\":1}\n",
        "{\"version\":3,\"places\":[],\"entries\":1}\n[\"seen\",0,\"a\",true,33188,\"77\",3,1,2]",
        "{\"version\":3,\"places\":[],\"entries\":1}\n[\"what\",0,\"a\",true,33188,\"77\",3,1,2]\n",
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

/* A directory with five files and one that holds a sixth, which a transaction removes. */
struct doomed {
    char top[32];
    int host;
    struct tx tx;
};

static void wait_a_tick(void) /* of the clock that stamps files */
{
    const struct timespec pause = {.tv_nsec = 50000000};
    (void)nanosleep(&pause, NULL);
}

static void put(int host, const char *path)
{
    _cleanup_close_ int fd = openat(host, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
}

static void doom(struct doomed *d, size_t max)
{
    struct timespec now;
    struct stat st;
    *d = (struct doomed){.top = "/tmp/hutch-tx.XXXXXX"};
    assert_non_null(mkdtemp(d->top));
    d->host = open(d->top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(d->host >= 0);
    assert_int_equal(mkdirat(d->host, "d", 0755), 0);
    assert_int_equal(mkdirat(d->host, "d/sub", 0755), 0);
    for (int i = 0; i < 6; i++) {
        char path[16];
        (void)snprintf(path, sizeof path, i < 5 ? "d/%d" : "d/sub/%d", i);
        put(d->host, path);
    }
    wait_a_tick();
    assert_int_equal(clock_gettime(CLOCK_REALTIME, &now), 0);
    d->tx.started_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    wait_a_tick();
    d->tx.place[d->tx.nplaces++] = (struct tx_place){.src = xstrdup(d->top), .layer = -1, .host = dup(d->host)};
    assert_int_equal(fstatat(d->host, "d", &st, 0), 0);
    const struct tx_seen seen = tx_seen_of(&st);
    add_change(&d->tx, 0, "d", &seen);
    d->tx.changes[0].kind = TX_REMOVED;
    tx_survey(&d->tx, max);
}

static void spare(struct doomed *d)
{
    struct err err = {0};
    tx_done(&d->tx);
    (void)close(d->host);
    assert_int_equal(tree_remove(AT_FDCWD, d->top, &err), 0);
}

static void of_what_is_too_much_the_time_is_looked_at(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++)
        for (size_t max = 0; max <= 7; max++) {
            struct doomed d;
            struct err err = {0};
            doom(&d, max);
            assert_int_equal(d.tx.below.n, max);
            assert_int_equal(d.tx.below_cut, max < 7);
            if (late)
                put(d.host, "d/sub/late");
            if (tx_apply(&d.tx, false, &err) != -late)
                fail_msg("late %d, max %zu: %s", late, max, err.msg);
            assert_int_equal(faccessat(d.host, "d/sub", F_OK, 0), late ? 0 : -1);
            assert_true(!late || strstr(err.msg, max < 7 ? ": d/sub" : ": d/sub/late; nothing was applied"));
            spare(&d);
        }
}

static void what_lies_too_deep_is_not_taken_unasked(void **state)
{
    struct doomed d;
    struct err err = {0};
    (void)state;
    doom(&d, TX_BELOW_MAX);
    _cleanup_close_ int at = openat(d.host, "d/sub", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < TX_DEPTH_MAX; i++) {
        assert_int_equal(mkdirat(at, "x", 0755), 0);
        int next = openat(at, "x", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        (void)close(at);
        at = next;
    }
    tx_entries_done(&d.tx.below);
    d.tx.started_ns = INT64_MAX;
    tx_survey(&d.tx, TX_BELOW_MAX);
    assert_int_equal(tx_apply(&d.tx, false, &err), -1);
    assert_int_equal(err.code, ERR_POLICY);
    assert_int_equal(tx_apply(&d.tx, true, &err), 0);
    assert_int_equal(faccessat(d.host, "d", F_OK, 0), -1);
    spare(&d);
}

static void there_may_be_any_number_of_changes(void **state)
{
    enum { MANY = 200001 };
    struct tx tx = {0};
    struct err err = {0};
    char top[] = "/dev/shm/hutch-tx.XXXXXX", name[16];
    (void)state;
    if (!mkdtemp(top))
        skip();
    int layer = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    put(layer, "0");
    for (int i = 1; i < MANY; i++) {
        (void)snprintf(name, sizeof name, "%d", i);
        assert_int_equal(linkat(layer, "0", layer, name, 0), 0);
    }
    tx.place[tx.nplaces++] = (struct tx_place){.src = xstrdup("/x"), .layer = layer, .host = -1};
    if (tx_compare(&tx, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(tx.n, MANY);
    tx_done(&tx);
    assert_int_equal(tree_remove(AT_FDCWD, top, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_name_and_any_inode_come_back),
        cmocka_unit_test(the_first_version_is_read_too),
        cmocka_unit_test(the_second_version_is_read_too),
        cmocka_unit_test(what_is_damaged_is_refused),
        cmocka_unit_test(of_what_is_too_much_the_time_is_looked_at),
        cmocka_unit_test(what_lies_too_deep_is_not_taken_unasked),
        cmocka_unit_test(there_may_be_any_number_of_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
