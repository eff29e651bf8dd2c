/* test_facts.c - the suite of all engines over SQLite, and what is SQLite's alone: its file. */
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "facts-suite.h"

static char dir[64];
static int dir_fd;

void facts_world_open(void)
{
    struct err err = {0};
    if (facts_sqlite_open(loop, dir_fd, dir, &facts, &err) < 0)
        fail_msg("%s", err.msg);
}

static void reopen(void)
{
    facts_close(facts);
    facts_world_open();
}

static int remove_one(const char *p, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(p);
}

static int set_up(void **state)
{
    struct err err;
    (void)state;
    (void)snprintf(dir, sizeof dir, FAST_DIR "/hutch-facts-XXXXXX");
    if (!mkdtemp(dir) || loop_new(&loop, &err) < 0)
        return -1;
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    facts_world_open();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    facts_close(facts);
    loop_free(loop);
    (void)close(dir_fd);
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void facts_outlive_the_process(void **state)
{
    (void)state;
    new_keys();
    uint64_t revision = put_ok(key_of("k"), "kept");
    _cleanup_reply_ struct reply r = {0};
    facts_lease(facts, FACTS_TTL_MIN, reply_done, &r);
    reply_wait(&r);
    uint64_t lease = r.lease;
    reply_start(&r);
    facts_change(facts, NULL, 0, &(struct facts_write){key_of("leased"), "1", 1, lease}, 1, reply_done, &r);
    facts_close(facts); /* writes what waits, and answers nothing */
    facts_world_open();
    assert_string_equal(get(key_of("k")), "kept");
    assert_true(revision_of(key_of("k")) == revision);
    assert_string_equal(get(key_of("leased")), "1");
    assert_int_equal(r.calls, 0);
    WAIT_UNTIL(strcmp(get(key_of("leased")), "") == 0); /* its lease began anew, and is not renewed */
    assert_true(put_ok(key_of("k"), "2") > revision);
}

static void history_is_forgotten_by_itself(void **state)
{
    (void)state;
    new_keys();
    _cleanup_reply_ struct reply r = {0};
    uint64_t first = put_ok(key_of("k"), "first"), last = 0;
    put_ok(key_of("gone"), "1");
    remove_ok(key_of("gone"));
    for (int i = 0; i < 2100; i++)
        last = put_ok(key_of("k"), "x");
    _cleanup_free_ char *prefix = xstrdup(key_of(""));
    struct facts_page p = {.prefix = prefix, .limit = 10, .revision = first};
    facts_range(facts, &p, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_COMPACTED);
    reply_start(&r);
    p.revision = last - 900;
    facts_range(facts, &p, reply_done, &r);
    reply_wait(&r);
    assert_int_equal(r.result, FACTS_OK);
    assert_int_equal(r.rows.n, 1);
    assert_string_equal(get(key_of("gone")), "");
}

static void assert_not_opened(int fd, const char *why)
{
    struct err err = {0};
    struct facts *other = NULL;
    assert_int_equal(facts_sqlite_open(loop, fd, "DIR", &other, &err), -1);
    if (!strstr(err.msg, why))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, why);
}

static void the_file_has_one_process_at_a_time(void **state)
{
    (void)state;
    new_keys();
    put_ok(key_of("k"), "1");
    assert_not_opened(dir_fd,
                      "SQLite in DIR: cannot be used: database is locked; another process has these facts open");
    reopen();
    assert_string_equal(get(key_of("k")), "1");
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void a_file_that_is_not_ours_is_left_alone(void **state)
{
    (void)state;
    char path[96], other[80];
    sqlite3 *db = NULL;
    (void)snprintf(other, sizeof other, "%s/other", dir);
    assert_int_equal(mkdir(other, 0700), 0);
    _cleanup_close_ int fd = open(other, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)snprintf(path, sizeof path, "%s/" FACTS_FILE, other);
    write_file(path, "this text is longer than a header of SQLite, and is none: it must be left as it is, of course, "
                     "whatever happens");
    assert_not_opened(fd, "file is not a database; move the file away to begin without facts");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_not_opened(fd, "it is not a regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE t(x)", NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
    assert_not_opened(fd, "the file is a database of something else");
    assert_int_equal(unlink(path), 0);
    struct facts *f;
    struct err err;
    assert_int_equal(facts_sqlite_open(loop, fd, "DIR", &f, &err), 0);
    assert_string_equal(facts_engine(f), "SQLite in DIR");
    facts_close(f);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=2", NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
    assert_not_opened(fd, "written by a newer Hutch (schema 2; this one knows 1); use that one");
}

static void a_write_that_fails_half_way_loses_nothing(void **state)
{
    (void)state;
    new_keys();
    struct rlimit was, small;
    _cleanup_free_ char *big = xcalloc(1, FACTS_VALUE_MAX);
    memset(big, 'x', FACTS_VALUE_MAX - 1);
    put_ok(key_of("k"), "1");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = was.rlim_max};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old;
    (void)sigaction(SIGXFSZ, &ignore, &old);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum facts_result result = FACTS_OK;
    for (int i = 0; i < 200 && result == FACTS_OK; i++)
        result = put(key_of("big"), big);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    (void)sigaction(SIGXFSZ, &old, NULL);
    assert_int_equal(result, FACTS_UNKNOWN); /* an error of the disk: FACTS_FULL needs a disk that says so */
    assert_string_equal(get(key_of("k")), "1");
    assert_int_equal(put(key_of("big"), "small"), FACTS_OK);
    reopen();
    assert_string_equal(get(key_of("k")), "1");
    assert_string_equal(get(key_of("big")), "small");
}

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test(facts_outlive_the_process),
        cmocka_unit_test(history_is_forgotten_by_itself),
        cmocka_unit_test(the_file_has_one_process_at_a_time),
        cmocka_unit_test(a_file_that_is_not_ours_is_left_alone),
        cmocka_unit_test(a_write_that_fails_half_way_loses_nothing),
    };
    int failed = _cmocka_run_group_tests("facts in SQLite", facts_suite, facts_suite_n, set_up, tear_down);
    return failed + cmocka_run_group_tests_name("the file of SQLite", own, set_up, tear_down);
}
