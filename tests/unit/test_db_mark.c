/* Whether a database is the one that was used last, or a copy of before: the number in it and in the file beside it. */
#include <sqlite3.h>

#include "base/fd.h"
#include "db-world.h"
#include "wal-syncs.h"

enum { LONG_AGO = 1000 };

static void sql(const char *text)
{
    sqlite3 *raw = NULL;
    char *why = NULL;
    assert_int_equal(sqlite3_open_v2(path, &raw, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    (void)sqlite3_busy_timeout(raw, 5000);
    if (sqlite3_exec(raw, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", text, why);
    assert_int_equal(sqlite3_close(raw), SQLITE_OK);
}

static void at(const char *name, char ret[128]) { (void)snprintf(ret, 128, "%s/%s", dir, name); }

static void put_bytes(const char *name, const char *text, size_t n)
{
    char to[128];
    at(name, to);
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && fd_write_all(fd, text, n) == 0);
    (void)close(fd);
}

static void copy_file(const char *from, const char *to)
{
    struct buf b = {0};
    assert_int_equal(fd_read_file(dir_fd, from, 1 << 20, &b), 0);
    put_bytes(to, b.p, b.n);
    buf_done(&b);
}

static void back_up(void)
{
    char name[128], text[200];
    at("copy.db", name);
    (void)snprintf(text, sizeof text, "VACUUM INTO '%s'", name);
    sql(text);
}

static void remove_beside(void)
{
    (void)unlinkat(dir_fd, "store.db-wal", 0);
    (void)unlinkat(dir_fd, "store.db-shm", 0);
}

/* As an operator does it, while nothing runs. */
static void put_copy_back(void)
{
    db_close(db);
    copy_file("copy.db", DB_FILE);
    remove_beside();
    open_it();
}

static void make_volume(const char *id)
{
    struct result r = {0};
    struct db_volume v = {.id = id, .name = id, .tenant = "t", .token = "x"};
    db_volume_put(db, &v, done, &r);
    wait_for(&r, 1);
    assert_int_equal(r.failures, 0);
}

/* It has met what is kept, and was made long ago. */
static void settle(void)
{
    (void)db_born(db, 0);
    sql("UPDATE counters SET value=1000 WHERE name='born'");
    assert_int_equal(db_born(db, 0), LONG_AGO);
}

static uint64_t mark(void)
{
    struct buf b = {0};
    assert_int_equal(fd_read_file(dir_fd, DB_MARK_FILE, 100, &b), 0);
    uint64_t n = strtoull(buf_str(&b), NULL, 10);
    buf_done(&b);
    return n;
}

static void test_a_copy_is_known_and_everything_before_is_older_than_it(void **state)
{
    (void)state;
    settle();
    back_up();
    make_volume("vol-after"); /* without a start in between */
    int64_t now = (int64_t)time(NULL);
    put_copy_back();
    assert_true(db_put_back(db));
    int64_t born = db_born(db, now + 50); /* whatever there is, and be the clock behind */
    assert_int_equal(born, now + 51);
    reopen();
    assert_false(db_put_back(db));
    assert_int_equal(db_born(db, now + 500), born);
}

static void test_a_copy_that_was_opened_by_one_who_was_killed_is_still_known(void **state)
{
    (void)state;
    settle();
    back_up();
    make_volume("vol-1");
    uint64_t before = mark();
    put_copy_back();
    db_close(db);
    /* All of the first start was lost but what the database has. */
    char text[40];
    (void)snprintf(text, sizeof text, "%020llu\n", (unsigned long long)before);
    put_bytes(DB_MARK_FILE, text, 21);
    open_it();
    assert_true(db_born(db, 0) > LONG_AGO);
}

static void test_a_copy_as_good_as_the_original_is_none(void **state)
{
    (void)state;
    settle();
    make_volume("vol-before");
    back_up();
    put_copy_back();
    assert_false(db_put_back(db));
    assert_int_equal(db_born(db, 0), LONG_AGO);
}

static void test_a_file_that_is_behind_means_nothing(void **state)
{
    char text[40];
    (void)state;
    settle();
    make_volume("vol-1");
    (void)snprintf(text, sizeof text, "%020llu\n", (unsigned long long)mark() - 1);
    db_close(db); /* killed after the commit */
    put_bytes(DB_MARK_FILE, text, 21);
    open_it();
    assert_false(db_put_back(db));
    assert_int_equal(db_born(db, 0), LONG_AGO);
}

static void test_doubt_counts_as_a_copy(void **state)
{
    static const char *const bad[] = {NULL, "", "x", "00000000000000000001", "0000000000000000000x\n"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        settle();
        db_close(db);
        if (bad[i])
            put_bytes(DB_MARK_FILE, bad[i], strlen(bad[i]));
        else
            assert_int_equal(unlinkat(dir_fd, DB_MARK_FILE, 0), 0);
        open_it();
        assert_true(db_put_back(db));
        assert_true(db_born(db, 0) > LONG_AGO);
    }
}

static void test_a_directory_that_was_put_back_as_a_whole_is_known(void **state)
{
    (void)state;
    settle();
    sql("UPDATE counters SET value=value - 3600 WHERE name='seen'"); /* an hour ago */
    back_up();
    copy_file(DB_MARK_FILE, "copy.mark");
    make_volume("vol-after");
    db_close(db);
    copy_file("copy.db", DB_FILE);
    copy_file("copy.mark", DB_MARK_FILE);
    remove_beside();
    open_it();
    assert_true(db_put_back(db));
    assert_true(db_born(db, 0) > LONG_AGO);
}

static void test_a_store_of_before_marks_is_taken_along(void **state)
{
    (void)state;
    settle();
    sql("DELETE FROM counters WHERE name IN ('mark', 'seen'); INSERT INTO counters VALUES('epoch', 5)");
    db_close(db);
    assert_int_equal(unlinkat(dir_fd, DB_MARK_FILE, 0), 0);
    open_it();
    assert_false(db_put_back(db));
    assert_int_equal(db_born(db, 0), LONG_AGO);
    reopen();
    assert_false(db_put_back(db));
    /* But put back from a copy of that time it is known. */
    sql("DELETE FROM counters WHERE name IN ('mark', 'seen')");
    reopen();
    assert_true(db_put_back(db));
}

static void test_a_new_store_is_younger_than_what_there_is(void **state)
{
    int64_t now = (int64_t)time(NULL);
    (void)state;
    assert_false(db_put_back(db));
    assert_int_equal(db_born(db, now + 1000000), now + 1000001); /* the clock is behind */
    assert_int_equal(db_born(db, now + 2000000), now + 1000001);
}

static void test_what_names_something_raises_the_mark(void **state)
{
    struct result r = {0};
    struct db_sandbox b = {.id = "i1", .tenant = "t", .template = "base", .state = DB_SANDBOX_RUNNING, .stack = "st-a"};
    struct db_step x = {.tenant = "t", .key = "ab", .stack = "st-b", .used_unix = 1};
    struct db_generation g = {.sandbox = "i1", .stack = "st-c", .command = "make", .number = 1};
    (void)state;
    uint64_t was = mark();
    db_sandbox_put(db, &b, NULL, done, &r);
    wait_for(&r, 1);
    assert_int_equal(mark(), was);
    b.state = DB_SANDBOX_STORED;
    db_sandbox_put(db, &b, NULL, done, &r);
    wait_for(&r, 2);
    assert_int_equal(mark(), was + 1);
    db_step_put(db, &x, done, &r);
    wait_for(&r, 3);
    db_generation_put(db, &g, done, &r);
    wait_for(&r, 4);
    make_volume("vol-1");
    assert_int_equal(mark(), was + 4);
    assert_int_equal(r.failures, 0);
    reopen();
    assert_int_equal(mark(), was + 5);
    assert_false(db_put_back(db));
}

/* Else a power cut may leave the file, and not what it is about: that would be taken for a copy that was put back. */
static void test_what_raises_the_mark_is_on_the_disk_when_the_file_says_so(void **state)
{
    struct result r = {0};
    struct db_sandbox b = {.id = "i1", .tenant = "t", .template = "base", .state = DB_SANDBOX_RUNNING, .stack = "st-a"};
    struct db_step x = {.tenant = "t", .key = "ab", .stack = "st-b", .used_unix = 1};
    struct db_generation g = {.sandbox = "i1", .stack = "st-c", .command = "make", .number = 1};
    struct db_transaction t = {.id = "tx-1", .sandbox = "i1", .tenant = "t", .base = "st-d", .result = "st-e"};
    (void)state;
    unsigned syncs = wal_syncs();
    uint64_t was = mark();
    db_sandbox_put(db, &b, NULL, done, &r);
    wait_for(&r, 1);
    assert_int_equal(wal_syncs(), syncs); /* a running one goes with the power */
    db_step_put(db, &x, done, &r);
    wait_for(&r, 2);
    assert_int_equal(wal_syncs(), ++syncs);
    db_generation_put(db, &g, done, &r);
    wait_for(&r, 3);
    assert_int_equal(wal_syncs(), ++syncs);
    db_transaction_put(db, &t, done, &r);
    wait_for(&r, 4);
    assert_int_equal(wal_syncs(), ++syncs);
    assert_int_equal(mark(), was + 3);
    assert_int_equal(r.failures, 0);
}

static void test_what_was_asked_for_before_is_on_the_disk_after_a_sync(void **state)
{
    struct result r = {0};
    (void)state;
    unsigned syncs = wal_syncs();
    for (int i = 0; i < 3; i++) { /* the first one has to make something, the others to change it */
        db_sandbox_del(db, "i1", done, &r);
        wait_for(&r, 2 * i + 1);
        assert_int_equal(wal_syncs(), syncs);
        db_sync(db, done, &r);
        wait_for(&r, 2 * i + 2);
        assert_int_equal(wal_syncs(), ++syncs);
    }
    assert_int_equal(r.failures, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_copy_is_known_and_everything_before_is_older_than_it),
        T(test_a_copy_that_was_opened_by_one_who_was_killed_is_still_known),
        T(test_a_copy_as_good_as_the_original_is_none),
        T(test_a_file_that_is_behind_means_nothing),
        T(test_doubt_counts_as_a_copy),
        T(test_a_directory_that_was_put_back_as_a_whole_is_known),
        T(test_a_store_of_before_marks_is_taken_along),
        T(test_a_new_store_is_younger_than_what_there_is),
        T(test_what_names_something_raises_the_mark),
        T(test_what_raises_the_mark_is_on_the_disk_when_the_file_says_so),
        T(test_what_was_asked_for_before_is_on_the_disk_after_a_sync),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
