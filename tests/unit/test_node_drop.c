/* What front and egress can still do after they have given everything up: each attempt in a child of its own. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "egress/core/egress.h"
#include "node/procs.h"
#include "os/landlock.h"
#include "tests/lib/unit.h"

/* Runs fn behind a filter; the wait status. */
static int behind_of(bool egress, int (*fn)(const void *arg), const void *arg)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct err err = {0};
        log_open("test", LOG_LEVEL_ERROR, 2);
        if ((egress ? egress_drop(-1, &err) : front_drop(&err)) < 0) {
            (void)fprintf(stderr, "%s\n", err.msg);
            _exit(99);
        }
        _exit(fn(arg));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int behind(int (*fn)(const void *arg), const void *arg) { return behind_of(false, fn, arg); }

static int make_call(const void *arg)
{
    (void)syscall(*(const long *)arg, 0, 0, 0, 0, 0, 0);
    return 0;
}

static void test_forbidden_calls(void **state)
{
    (void)state;
    static const long calls[] = {SYS_execve,
                                 SYS_execveat,
                                 SYS_setns,
                                 SYS_unshare,
                                 SYS_mount,
                                 SYS_ptrace,
                                 SYS_bpf,
                                 SYS_setuid,
                                 SYS_chroot,
                                 SYS_io_uring_setup,
                                 SYS_process_vm_readv,
                                 SYS_move_mount,
                                 SYS_open_by_handle_at,
                                 SYS_init_module,
                                 SYS_keyctl,
                                 SYS_userfaultfd,
                                 SYS_perf_event_open,
                                 SYS_capset,
                                 SYS_getpid | 0x40000000 /* x32 */};
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        int status = behind(make_call, &calls[i]);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
            fail_msg("call %ld: status %x", calls[i], status);
    }
    static const long allowed[] = {SYS_getpid, SYS_sched_yield, SYS_getuid};
    for (size_t i = 0; i < ARRAY_LEN(allowed); i++)
        assert_int_equal(behind(make_call, &allowed[i]), 0);
}

static int clone_namespace(const void *arg)
{
    (void)arg;
    (void)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    return 0;
}
static int clone3_is_missing(const void *arg)
{
    (void)arg;
    struct clone_args a = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    return syscall(SYS_clone3, &a, sizeof a) == -1 && errno == ENOSYS ? 0 : 1;
}
static void *thread(void *arg) { return arg; }
static int threads_work(const void *arg)
{
    pthread_t t;
    void *ret = NULL;
    if (pthread_create(&t, NULL, thread, (void *)arg) != 0 || pthread_join(t, &ret) != 0 || ret != arg)
        return 1;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd < 0;
}

static void test_clone(void **state)
{
    (void)state;
    int status = behind(clone_namespace, NULL);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    assert_int_equal(behind(clone3_is_missing, NULL), 0);
    assert_int_equal(behind(threads_work, "x"), 0);
}

/* Root without capabilities owns files but may not pass where the mode says no. */
static int is_powerless(const void *arg)
{
    int fd = open(arg, O_RDONLY | O_CLOEXEC);
    return fd < 0 && errno == EACCES ? 0 : 1;
}

static void test_no_capabilities(void **state)
{
    (void)state;
    char path[] = "/tmp/hutch-drop-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, 0), 0);
    (void)close(fd);
    int status = behind(is_powerless, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(status, 0);
}

static int families_work(const void *arg)
{
    static const int open[] = {AF_INET, AF_INET6, AF_UNIX}, shut[] = {AF_PACKET, AF_VSOCK, AF_ALG, AF_BLUETOOTH};
    (void)arg;
    for (size_t i = 0; i < ARRAY_LEN(open); i++)
        if (socket(open[i], SOCK_STREAM | SOCK_CLOEXEC, 0) < 0)
            return 1;
    for (size_t i = 0; i < ARRAY_LEN(shut); i++)
        if (socket(shut[i], SOCK_RAW | SOCK_CLOEXEC, 0) >= 0 || errno != EAFNOSUPPORT)
            return 2;
    return 0;
}
static int no_file_opens(const void *arg) { return open(arg, O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES ? 0 : 1; }

static void test_egress(void **state)
{
    static const long calls[] = {SYS_execve, SYS_listen, SYS_fork, SYS_ptrace, SYS_getpid | 0x40000000};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        int status = behind_of(true, make_call, &calls[i]);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
            fail_msg("call %ld: status %x", calls[i], status);
    }
    int status = behind_of(true, clone_namespace, NULL);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    assert_int_equal(behind_of(true, families_work, NULL), 0);
    if (landlock_abi() >= LANDLOCK_ABI_FLOOR)
        assert_int_equal(behind_of(true, no_file_opens, "/etc/hostname"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forbidden_calls),
        cmocka_unit_test(test_clone),
        cmocka_unit_test(test_no_capabilities),
        cmocka_unit_test(test_egress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
