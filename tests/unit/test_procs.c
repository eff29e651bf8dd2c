/* Finding the processes of a pid namespace from outside. */
#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/procs.h"

enum { MIB = 1 << 20, BIG = 24 * MIB };
#define BIG_NAME "big) one (x"

static pid_t init_pid;

static void hold(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; p != MAP_FAILED && i < bytes; i += 4096)
        p[i] = 1;
}

/* pid 1 of a namespace with: a child that is big, a grandchild, and an orphan whose parent has died. */
static void sandbox(int ready)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fork() == 0) {
        (void)prctl(PR_SET_NAME, BIG_NAME);
        hold(BIG + MIB); /* a kernel may report up to 64 pages a task late */
        if (fork() > 0)
            (void)!write(ready, "x", 1);
        for (;;)
            (void)pause();
    }
    pid_t parent = fork();
    if (parent == 0) {
        if (fork() == 0)
            for (;;)
                (void)pause();
        _exit(0);
    }
    (void)waitpid(parent, NULL, 0);
    (void)!write(ready, "x", 1);
    for (;;)
        (void)pause();
}

static int set_up(void **state)
{
    (void)state;
    int ready[2];
    char c;
    if (pipe2(ready, O_CLOEXEC) < 0)
        return -1;
    struct clone_args ca = {.exit_signal = SIGCHLD, .flags = CLONE_NEWPID | (geteuid() ? CLONE_NEWUSER : 0)};
    init_pid = (pid_t)syscall(SYS_clone3, &ca, sizeof ca);
    if (init_pid == 0)
        sandbox(ready[1]);
    for (int i = 0; i < 2; i++)
        if (init_pid < 0 || read(ready[0], &c, 1) != 1)
            return -1;
    (void)close(ready[0]);
    (void)close(ready[1]);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    (void)kill(init_pid, SIGKILL);
    return waitpid(init_pid, NULL, 0) == init_pid ? 0 : -1;
}

/* The grandchild of the big one inherits its memory copy-on-write, so the big name appears twice. */
static void check_list(enum procs_how how)
{
    struct procs_entry *v = NULL;
    size_t n = 0, big = 0, found_init = 0;
    bool truncated = true;
    assert_int_equal(procs_list(init_pid, how, &v, &n, &truncated), 0);
    assert_int_equal(n, 4);
    assert_false(truncated);
    for (size_t i = 0; i < n; i++) {
        found_init += v[i].pid == init_pid;
        big += strcmp(v[i].comm, BIG_NAME) == 0 && v[i].anon_bytes >= BIG;
        assert_true(v[i].rss_bytes >= v[i].anon_bytes);
        assert_int_not_equal(v[i].pid, getpid());
    }
    assert_int_equal(found_init, 1);
    assert_int_equal(big, 2);
    free(v);
}

static void the_walk_over_children_finds_exactly_the_four(void **state)
{
    (void)state;
    check_list(PROCS_CHILDREN);
}

static void the_scan_finds_the_same_four(void **state)
{
    (void)state;
    check_list(PROCS_SCAN);
}

static void usage_adds_up_and_names_the_biggest(void **state)
{
    (void)state;
    struct procs_usage u;
    assert_int_equal(procs_usage(init_pid, &u), 0);
    assert_int_equal(u.count, 4);
    assert_true(u.anon_bytes >= BIG && u.rss_bytes >= u.anon_bytes);
    assert_string_equal(u.biggest.comm, BIG_NAME);
    assert_true(u.biggest.anon_bytes >= BIG && u.biggest.anon_bytes < 2 * BIG);
}

static void a_dead_init_is_reported_as_gone(void **state)
{
    (void)state;
    struct procs_usage u;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(procs_usage(pid, &u), -1);
    assert_int_equal(errno, ESRCH);
    assert_int_equal(u.count, 0);
}

static void stat_lines_survive_hostile_names(void **state)
{
    (void)state;
    char comm[17];
    pid_t ppid;
    assert_true(procs_parse_stat("12 (a b) S 7 1 1 0", comm, &ppid) && ppid == 7);
    assert_string_equal(comm, "a b");
    assert_true(procs_parse_stat("12 () S 1) R 42 1", comm, &ppid) && ppid == 42);
    assert_string_equal(comm, ") S 1");
    assert_true(procs_parse_stat("12 (a\nb) R 3 1", comm, &ppid) && ppid == 3);
    assert_true(procs_parse_stat("12 (kworker/u8:2-events_unbound) R 2 1", comm, &ppid) && strlen(comm) == 16);
    static const char *const bad[] = {"", "12", "12 (a", "12 a) R 1", ")(", "12 (a) R", "12 (a) R x", "12 (a) R -4"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(procs_parse_stat(bad[i], comm, &ppid));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_walk_over_children_finds_exactly_the_four),
        cmocka_unit_test(the_scan_finds_the_same_four),
        cmocka_unit_test(usage_adds_up_and_names_the_biggest),
        cmocka_unit_test(a_dead_init_is_reported_as_gone),
        cmocka_unit_test(stat_lines_survive_hostile_names),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
