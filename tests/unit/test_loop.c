#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop/loop.h"

static struct loop *l;
static uint64_t fake_now;
static char trace[256];

static uint64_t fake_clock(void *arg)
{
    (void)arg;
    return fake_now;
}

static int set_up(void **state)
{
    struct err err;
    (void)state;
    trace[0] = '\0';
    fake_now = 1000;
    return loop_new(&l, &err);
}

static int tear_down(void **state)
{
    (void)state;
    loop_free(l);
    return 0;
}

static void step(int wait)
{
    struct err err = {0};
    if (loop_step(l, wait, &err) < 0)
        fail_msg("%s", err.msg);
}

static void mark(void *arg)
{
    size_t n = strlen(trace);
    (void)snprintf(trace + n, sizeof trace - n, "%s", (const char *)arg);
}

static void mark_fd(void *arg, int fd, unsigned events)
{
    char c;
    (void)events;
    (void)!read(fd, &c, 1);
    mark(arg);
}

static void timers_come_in_order(void **state)
{
    (void)state;
    loop_set_clock(l, fake_clock, NULL);
    (void)loop_timer(l, 30, mark, "c");
    (void)loop_timer(l, 10, mark, "a");
    loop_id b = loop_timer(l, 20, mark, "b");
    (void)loop_timer(l, 20, mark, "B");
    loop_id gone = loop_timer(l, 15, mark, "x");
    loop_timer_del(l, gone);
    loop_timer_del(l, gone);
    step(0);
    assert_string_equal(trace, "");
    fake_now += 20;
    step(0);
    assert_string_equal(trace, "abB");
    loop_timer_del(l, b); /* stale */
    fake_now += 10;
    step(0);
    assert_string_equal(trace, "abBc");
}

static void many_timers_keep_their_order(void **state)
{
    (void)state;
    enum { N = 2000 };
    static loop_id id[N];
    static unsigned order[N];
    loop_set_clock(l, fake_clock, NULL);
    srand(1);
    for (int i = 0; i < N; i++)
        id[i] = loop_timer(l, order[i] = (unsigned)(rand() % 500), mark, ".");
    unsigned left = 0;
    for (int i = 0; i < N; i += 3)
        loop_timer_del(l, id[i]);
    for (unsigned t = 0; t < 500; t++, fake_now++) {
        left = 0;
        for (int i = 0; i < N; i++)
            left += i % 3 != 0 && order[i] == t;
        trace[0] = '\0';
        step(0);
        assert_int_equal(strlen(trace), left);
    }
}

static void again_at_once(void *arg)
{
    mark(arg);
    (void)loop_timer(l, 0, again_at_once, arg);
    loop_defer(l, mark, "d");
}

static void calls_that_repeat_do_not_starve(void **state)
{
    (void)state;
    (void)loop_timer(l, 0, again_at_once, "t");
    step(0);
    assert_string_equal(trace, "td");
    step(0);
    assert_string_equal(trace, "tdtd");
}

static void defer_another(void *arg)
{
    mark(arg);
    loop_defer(l, mark, "2");
}

static void what_was_deferred_can_be_settled_without_events(void **state)
{
    (void)state;
    (void)loop_timer(l, 0, mark, "t");
    loop_defer(l, defer_another, "1");
    loop_settle(l);
    assert_string_equal(trace, "12"); /* not the timer */
    trace[0] = '\0';
    loop_settle(l);
    assert_string_equal(trace, "");
    step(0);
    assert_string_equal(trace, "t");
}

static loop_id victim[2];
static int victim_fd[2];

static void kill_the_other(void *arg, int fd, unsigned events)
{
    int me = fd == victim_fd[0] ? 0 : 1;
    (void)events;
    mark(arg);
    loop_fd_del(l, victim[0]);
    loop_fd_del(l, victim[1]);
    /* A new watch takes the slot of the removed one; the event already fetched must not reach it. */
    victim[1 - me] = loop_fd_add(l, victim_fd[1 - me], LOOP_HUP, mark_fd, "wrong");
}

static void stale_events_go_nowhere(void **state)
{
    int a[2], b[2];
    (void)state;
    assert_int_equal(pipe2(a, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(pipe2(b, O_CLOEXEC | O_NONBLOCK), 0);
    victim_fd[0] = a[0];
    victim_fd[1] = b[0];
    victim[0] = loop_fd_add(l, a[0], LOOP_IN, kill_the_other, "1");
    victim[1] = loop_fd_add(l, b[0], LOOP_IN, kill_the_other, "1");
    assert_int_equal(write(a[1], "x", 1), 1);
    assert_int_equal(write(b[1], "x", 1), 1);
    step(100);
    assert_string_equal(trace, "1");
    for (int i = 0; i < 2; i++) {
        (void)close(a[i]);
        (void)close(b[i]);
    }
}

static void nothing_asked_nothing_told(void **state)
{
    int p[2];
    (void)state;
    assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    loop_id id = loop_fd_add(l, p[0], LOOP_IN, mark_fd, "x");
    loop_fd_set(l, id, 0);
    (void)close(p[1]);
    step(0);
    assert_string_equal(trace, "");
    loop_fd_set(l, id, LOOP_HUP);
    step(100);
    assert_string_equal(trace, "x");
    loop_fd_del(l, id);
    step(0);
    assert_string_equal(trace, "x");
    errno = 0;
    (void)close(p[0]);
    assert_int_equal(loop_fd_add(l, p[0], LOOP_IN, mark_fd, "x"), 0);
    assert_int_equal(errno, EBADF);
}

static void *post_from_thread(void *arg)
{
    for (int i = 0; i < 3; i++)
        loop_post(arg, mark, "p");
    return NULL;
}

static void other_threads_may_post(void **state)
{
    pthread_t t;
    (void)state;
    assert_int_equal(pthread_create(&t, NULL, post_from_thread, l), 0);
    while (strlen(trace) < 3)
        step(1000);
    (void)pthread_join(t, NULL);
    assert_string_equal(trace, "ppp");
}

struct job {
    pthread_t where;
    bool worked;
};

static void job_work(void *arg)
{
    struct job *job = arg;
    job->where = pthread_self();
    job->worked = true;
}

static void job_done(void *arg)
{
    struct job *job = arg;
    assert_true(job->worked);
    assert_false(pthread_equal(job->where, pthread_self()));
    mark("w");
}

static void work_runs_elsewhere_and_ends_here(void **state)
{
    struct job jobs[50] = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(jobs); i++)
        loop_work(l, job_work, job_done, &jobs[i]);
    while (strlen(trace) < ARRAY_LEN(jobs))
        step(1000);
    /* Some more that the loop never hears of again: nothing may leak or hang. */
    for (size_t i = 0; i < ARRAY_LEN(jobs); i++)
        loop_work(l, job_work, job_done, &jobs[i]);
    loop_free(l);
    l = NULL;
}

static void on_signal(void *arg, int signo)
{
    mark(arg);
    if (signo == SIGUSR2)
        loop_stop(l);
}

static void signals_are_events(void **state)
{
    struct err err = {0};
    (void)state;
    assert_int_equal(loop_signal(l, SIGUSR1, on_signal, "1", &err), 0);
    assert_int_equal(loop_signal(l, SIGUSR2, on_signal, "2", &err), 0);
    (void)kill(getpid(), SIGUSR1);
    step(1000);
    (void)kill(getpid(), SIGUSR2);
    assert_int_equal(loop_run(l, &err), 0);
    assert_string_equal(trace, "12");
    assert_int_equal(loop_signal(l, SIGRTMAX + 1, on_signal, "", &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(timers_come_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_timers_keep_their_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(calls_that_repeat_do_not_starve, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_deferred_can_be_settled_without_events, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stale_events_go_nowhere, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_asked_nothing_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_threads_may_post, set_up, tear_down),
        cmocka_unit_test_setup_teardown(work_runs_elsewhere_and_ends_here, set_up, tear_down),
        cmocka_unit_test_setup_teardown(signals_are_events, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
