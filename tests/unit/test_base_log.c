#include "base/log.h"

#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

#include "tests/lib/unit.h"

static int fds[2];
static char text[1 << 20];

static int open_pipe(void **state)
{
    (void)state;
    return pipe2(fds, O_CLOEXEC | O_NONBLOCK);
}
static int close_pipe(void **state)
{
    (void)state;
    (void)close(fds[0]);
    return close(fds[1]);
}

static size_t read_out(void)
{
    ssize_t n = read(fds[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

static json_t *read_record(void)
{
    size_t n = read_out();
    assert_true(n > 0 && n <= LOG_LINE_MAX);
    assert_int_equal(text[n - 1], '\n');
    assert_ptr_equal(strchr(text, '\n'), text + n - 1);
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!j)
        fail_msg("not JSON: %s", text);
    return j;
}

static void test_fields(void **state)
{
    (void)state;
    struct log_line l;
    log_open("test", LOG_LEVEL_INFO, fds[1]);
    assert_true(log_start(&l, LOG_LEVEL_WARN, "it \"happened\"\n\x1b[31m"));
    log_request(&l, "req1");
    log_request(&l, "");
    log_str(&l, "name", "a\\b\x01\xff\xc3\xa4");
    log_str(&l, "none", NULL);
    log_u64(&l, "n", INT64_MAX);
    log_end(&l);
    json_t *j = read_record();
    assert_string_equal(json_string_value(json_object_get(j, "level")), "warn");
    assert_string_equal(json_string_value(json_object_get(j, "process")), "test");
    assert_string_equal(json_string_value(json_object_get(j, "message")), "it \"happened\"\n\x1b[31m");
    assert_string_equal(json_string_value(json_object_get(j, "request")), "req1");
    assert_string_equal(json_string_value(json_object_get(j, "name")), "a\\b\x01\xc3\xbf\xc3\xa4");
    assert_null(json_object_get(j, "none"));
    json_decref(j);
}

/* One byte more at a time across the limit: every record stays one valid line. */
static void test_long_records(void **state)
{
    (void)state;
    static char big[LOG_LINE_MAX * 2];
    struct log_line l;
    log_open("test", LOG_LEVEL_INFO, fds[1]);
    for (size_t n = LOG_LINE_MAX - 300; n < LOG_LINE_MAX + 50; n++) {
        memset(big, 'x', n);
        big[n] = '\0';
        for (int escapes = 0; escapes < 2; escapes++) {
            if (escapes)
                memset(big + n - 40, '\n', 40);
            assert_true(log_start(&l, LOG_LEVEL_ERROR, "m"));
            log_str(&l, "first", "1");
            log_str(&l, "big", big);
            log_str(&l, "last", "2");
            log_end(&l);
            json_t *j = read_record();
            assert_string_equal(json_string_value(json_object_get(j, "first")), "1");
            bool cut = json_is_true(json_object_get(j, "cut"));
            assert_true(cut || json_object_get(j, "last"));
            json_decref(j);
        }
        log_text(LOG_LEVEL_ERROR, "%s", big);
        json_decref(read_record());
    }
}

static void test_levels(void **state)
{
    (void)state;
    enum log_level level;
    struct log_line l;
    log_open("test", LOG_LEVEL_WARN, fds[1]);
    assert_false(log_start(&l, LOG_LEVEL_INFO, "no"));
    log_text(LOG_LEVEL_DEBUG, "no");
    assert_int_equal(read_out(), 0);
    assert_true(log_level_of("debug", &level));
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_false(log_level_of("loud", &level));
}

/* A flood is cut to a rate and counted; errors pass. */
static void test_flood(void **state)
{
    (void)state;
    struct log_line l;
    size_t written = 0;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    log_open("test", LOG_LEVEL_INFO, null);
    for (int i = 0; i < 4 * LOG_BURST; i++)
        if (log_start(&l, LOG_LEVEL_INFO, "again")) {
            written++;
            log_end(&l);
        }
    assert_true(written > LOG_BURST / 2 && written < 4 * LOG_BURST);
    log_open("test", LOG_LEVEL_INFO, fds[1]);
    log_text(LOG_LEVEL_ERROR, "still heard");
    json_t *j = read_record();
    assert_true(json_integer_value(json_object_get(j, "dropped_records")) > 0);
    json_decref(j);
    (void)close(null);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fields, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(test_long_records, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(test_levels, open_pipe, close_pipe),
        cmocka_unit_test_setup_teardown(test_flood, open_pipe, close_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
