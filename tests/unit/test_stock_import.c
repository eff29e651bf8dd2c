/* Archives that come through a pipe. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stock/import.h"
#include "tests/lib/unit.h"

struct scene {
    struct stock_request ask;
    struct job job;
    int ends[2];
    char dir[40];
};

static int begin(void **state)
{
    static struct scene s;
    s = (struct scene){.dir = "/tmp/hutch-import.XXXXXX"};
    (void)signal(SIGPIPE, SIG_IGN);
    assert_non_null(mkdtemp(s.dir));
    s.job = (struct job){.ask = &s.ask, .sock = -1, .reply_fd = -1};
    s.job.place.tmp = open(s.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(pipe2(s.ends, O_CLOEXEC), 0);
    *state = &s;
    return 0;
}

static int end(void **state)
{
    const struct scene *s = *state;
    (void)close(s->ends[0]);
    (void)close(s->ends[1]);
    (void)close(s->job.place.tmp);
    return rmdir(s->dir); /* nothing is left in it */
}

static void what_came_through_a_pipe_is_a_file(void **state)
{
    struct scene *s = *state;
    struct err err = {0};
    char got[8] = "";
    assert_int_equal(write(s->ends[1], "archive", 7), 7);
    (void)close(s->ends[1]);
    s->ends[1] = -1;
    int fd = import_seekable(&s->job, s->ends[0], &err);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, got, sizeof got, 0), 7);
    assert_string_equal(got, "archive");
    (void)close(fd);
}

static void refused(struct scene *s)
{
    struct err err = {0};
    assert_int_equal(import_seekable(&s->job, s->ends[0], &err), -1);
    assert_int_equal(s->job.reply.error, STOCK_BAD_DATA);
    assert_non_null(strstr(err.msg, "does not come"));
}

static void a_pipe_into_which_nobody_writes_is_given_up(void **state)
{
    const struct import_pace usual = import_pace;
    import_pace = (struct import_pace){.silence_ms = 20, .total_ms = 600000};
    refused(*state);
    import_pace = usual;
}

static void *trickle(void *arg)
{
    while (write(*(const int *)arg, "x", 1) == 1)
        (void)usleep(2000);
    return NULL;
}

static void a_pipe_into_which_little_is_written_for_ever_is_given_up(void **state)
{
    const struct import_pace usual = import_pace;
    struct scene *s = *state;
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, trickle, &s->ends[1]), 0);
    import_pace = (struct import_pace){.silence_ms = 600000, .total_ms = 50};
    refused(s);
    (void)close(s->ends[0]);
    s->ends[0] = -1;
    assert_int_equal(pthread_join(writer, NULL), 0);
    import_pace = usual;
}

int main(void)
{
#define IN_SCENE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        IN_SCENE(what_came_through_a_pipe_is_a_file),
        IN_SCENE(a_pipe_into_which_nobody_writes_is_given_up),
        IN_SCENE(a_pipe_into_which_little_is_written_for_ever_is_given_up),
    };
    return cmocka_run_group_tests_name("stock import", tests, NULL, NULL);
}
