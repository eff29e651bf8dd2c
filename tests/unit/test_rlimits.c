/* Each case runs in a child, because limits cannot be taken back. */
#include "tests/lib/unit.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/rlimits.h"

static int in_child(int (*fn)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(fn());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool is(int resource, rlim_t want)
{
    struct rlimit l;
    return getrlimit((__rlimit_resource_t)resource, &l) == 0 && l.rlim_cur == want && l.rlim_max == want;
}

static int apply_all(void)
{
    const struct rlimits r = {.open_files = 40, .processes = 33, .file_size = 8192, .data = 1 << 30, .cpu_s = 100};
    if (rlimits_apply(&r, NULL) < 0)
        return 1;
    if (!is(RLIMIT_NOFILE, 40) || !is(RLIMIT_NPROC, 33) || !is(RLIMIT_FSIZE, 8192) || !is(RLIMIT_DATA, 1 << 30) ||
        !is(RLIMIT_CPU, 100))
        return 2;
    if (!is(RLIMIT_CORE, 0) || !is(RLIMIT_MEMLOCK, 64 << 10) || !is(RLIMIT_RTPRIO, 0) || !is(RLIMIT_NICE, 0))
        return 3;
    for (int i = 0; i < 40; i++)
        if (open("/dev/null", O_RDONLY | O_CLOEXEC) < 0)
            return 0; /* refused before forty more were open */
    return 4;
}

static void all_limits_are_set_soft_and_hard_and_bite(void **state)
{
    (void)state;
    assert_int_equal(in_child(apply_all), 0);
}

static int leave_alone(void)
{
    struct rlimit before, after;
    (void)getrlimit(RLIMIT_NOFILE, &before);
    if (rlimits_apply(&(struct rlimits){0}, NULL) < 0 || getrlimit(RLIMIT_NOFILE, &after) < 0)
        return 1;
    return before.rlim_cur != after.rlim_cur || before.rlim_max != after.rlim_max;
}

static void what_was_not_asked_for_stays(void **state)
{
    (void)state;
    assert_int_equal(in_child(leave_alone), 0);
}

static int raise_without_privilege(void)
{
    if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}) < 0 ||
        (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0))
        return 1;
    if (rlimits_apply(&(struct rlimits){.open_files = 1000}, NULL) < 0)
        return 2;
    return is(RLIMIT_NOFILE, 64) ? 0 : 3;
}

static void a_limit_that_cannot_be_raised_stays_at_the_hard_limit(void **state)
{
    (void)state;
    assert_int_equal(in_child(raise_without_privilege), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_limits_are_set_soft_and_hard_and_bite),
        cmocka_unit_test(what_was_not_asked_for_stays),
        cmocka_unit_test(a_limit_that_cannot_be_raised_stays_at_the_hard_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
