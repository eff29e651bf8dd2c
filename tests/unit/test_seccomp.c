/* The built-in filters in the kernel: each test forks a child, loads a program there and makes real calls. */
#include "os/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "policy/run/filter-int.h"

#define DIRTY 0x9b7f35a100000000UL

static const struct filter_builtin *builtin(unsigned flags)
{
    for (size_t i = 0; i < nfilter_builtins; i++)
        if (filter_builtins[i].flags == flags)
            return &filter_builtins[i];
    abort();
}

/* Runs fn in a child; its return value is the exit code. */
static int in_child(int (*fn)(const void *), const void *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        for (int sig = 1; sig < 32; sig++)
            (void)signal(sig, SIG_DFL);  /* cmocka catches some and would go on with the next test, in the child */
        (void)prctl(PR_SET_DUMPABLE, 0); /* no core files from the SIGSYS tests */
        _exit(fn(arg));
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void assert_exit_0(int status)
{
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("child: %s %d", WIFEXITED(status) ? "exit" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static int complain(const char *what, long got, long want)
{
    dprintf(2, "%s: got %ld, expected %ld\n", what, got, want);
    return 1;
}

static int enter(unsigned flags, unsigned load_flags, int *listener)
{
    struct err err = {0};
    const struct filter_builtin *b = builtin(flags);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || seccomp_load(b->insns, b->n, load_flags, listener, &err) < 0) {
        dprintf(2, "%s\n", err.msg);
        return -1;
    }
    return 0;
}

/* errno of a raw call, 0 if it succeeds. */
static int errno_of(long nr, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
    return syscall(nr, a, b, c, d, 0, 0) < 0 ? errno : 0;
}

static int load_and_use(const void *arg)
{
    const struct filter_builtin *b = arg;
    struct err err = {0};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || seccomp_load(b->insns, b->n, 0, NULL, &err) < 0)
        return complain(err.msg, b->flags, 0);
    /* Without a listener a notified call is ENOSYS: it fails closed. */
    int want = b->flags & FILTER_NOTIFY ? ENOSYS : EPERM, got = errno_of(NR_bpf, 0, 0, 0, 0);
    if (got != want)
        return complain("bpf", got, want);
    return getppid() > 0 ? 0 : 1;
}

static void the_kernel_accepts_every_built_in_program(void **state)
{
    (void)state;
    for (size_t i = 0; i < nfilter_builtins; i++)
        assert_exit_0(in_child(load_and_use, &filter_builtins[i]));
}

static int try_all_refused(const void *arg)
{
    (void)arg;
    if (enter(0, 0, NULL) < 0)
        return 1;
    int tried = 0;
    for (int nr = 0; nr <= SYSCALL_MAX + 40; nr++) {
        struct seccomp_data d = {.nr = nr};
        int want = rules_decide(&d, 0, NULL).eno;
        if (want == ANSWER_ALLOW || nr == NR_uretprobe || nr == NR_uprobe)
            continue; /* probe calls never reach a filter: outside the kernel's trampolines they are SIGILL */
        int got = errno_of(nr, 0, 0, 0, 0);
        if (got != want)
            return complain(syscall_name(nr) ? syscall_name(nr) : "unknown number", got, want);
        tried++;
    }
    return tried > 100 ? 0 : complain("refused calls tried", tried, 100);
}

static void every_refused_call_gets_its_errno_from_the_kernel(void **state)
{
    (void)state;
    assert_exit_0(in_child(try_all_refused, NULL));
}

struct dirty_case {
    const char *name;
    long nr;
    unsigned long args[4];
    int eno;
};

static const struct dirty_case dirty_cases[] = {
    {"socket(AF_VSOCK)", NR_socket, {40, SOCK_STREAM, 0, 0}, EAFNOSUPPORT},
    {"socket(AF_ALG)", NR_socket, {38, SOCK_SEQPACKET, 0, 0}, EAFNOSUPPORT},
    {"socket(NETLINK_AUDIT)", NR_socket, {AF_NETLINK, SOCK_RAW, 9, 0}, EAFNOSUPPORT},
    {"socket(MPTCP)", NR_socket, {AF_INET, SOCK_STREAM, 262, 0}, EPROTONOSUPPORT},
    {"clone(NEWUSER)", NR_clone, {CLONE_NEWUSER | SIGCHLD, 0, 0, 0}, EPERM},
    {"clone(NEWNET)", NR_clone, {CLONE_NEWNET | SIGCHLD, 0, 0, 0}, EPERM},
    {"ioctl(TIOCSTI)", NR_ioctl, {0, TIOCSTI, 0, 0}, EPERM},
    {"ioctl(FS_IOC_SETFLAGS)", NR_ioctl, {0, 0x40086602, 0, 0}, EPERM},
    {"personality(READ_IMPLIES_EXEC)", NR_personality, {READ_IMPLIES_EXEC, 0, 0, 0}, EPERM},
    {"prctl(PR_SET_MM)", NR_prctl, {PR_SET_MM, 14, 0, 0}, EPERM},
    {"seccomp(NEW_LISTENER)", NR_seccomp, {1, SECCOMP_FILTER_FLAG_NEW_LISTENER, 0, 0}, EPERM},
};

static int try_dirty(const void *arg)
{
    (void)arg;
    if (enter(0, 0, NULL) < 0)
        return 1;
    for (size_t i = 0; i < ARRAY_LEN(dirty_cases); i++) {
        const struct dirty_case *c = &dirty_cases[i];
        int clean = errno_of(c->nr, c->args[0], c->args[1], c->args[2], c->args[3]);
        int dirty = errno_of(c->nr, c->args[0] | DIRTY, c->args[1] | DIRTY, c->args[2] | DIRTY, c->args[3]);
        if (clean != c->eno || dirty != c->eno)
            return complain(c->name, clean != c->eno ? clean : dirty, c->eno);
    }
    return errno_of(NR_socket, AF_INET | DIRTY, SOCK_STREAM | DIRTY, 6 | DIRTY, 0)
               ? complain("socket(TCP), dirty", errno, 0)
               : 0;
}

/* The same calls without a filter: what would not be refused by the kernel itself shows that the filter refuses it. */
static int try_without_filter(const void *arg)
{
    (void)arg;
    int same = 0;
    for (size_t i = 0; i < ARRAY_LEN(dirty_cases); i++) {
        const struct dirty_case *c = &dirty_cases[i];
        if (c->nr != NR_clone) /* would fork us */
            same += errno_of(c->nr, c->args[0], c->args[1], c->args[2], c->args[3]) == c->eno;
    }
    return same < 4 ? 0 : complain("calls the kernel refuses alike without a filter", same, 3);
}

static void dirty_upper_halves_change_nothing_in_the_kernel(void **state)
{
    (void)state;
    assert_exit_0(in_child(try_without_filter, NULL));
    assert_exit_0(in_child(try_dirty, NULL));
}

static int call_ia32(const void *arg)
{
    if (arg && enter(0, 0, NULL) < 0)
        return 1;
    long r = 20; /* getpid */
    __asm__ volatile("int $0x80" : "+a"(r) : : "memory", "r8", "r9", "r10", "r11");
    return r > 0 ? 0 : 2;
}

static int call_x32(const void *arg)
{
    if (arg && enter(0, 0, NULL) < 0)
        return 1;
    (void)syscall(0x40000000 + NR_getpid);
    return 0;
}

static void calls_of_other_architectures_kill_the_process(void **state)
{
    (void)state;
    assert_exit_0(in_child(call_x32, NULL));
    int status = in_child(call_x32, "filtered");
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
    if (in_child(call_ia32, NULL) != 0) {
        print_message("this kernel runs no ia32 calls, so nothing is left to kill\n");
        return;
    }
    status = in_child(call_ia32, "filtered");
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
}

/* --- setuid bits -------------------------------------------------------------------------------------------------- */

static int make_setid_inodes(const void *arg)
{
    if (chdir(arg) < 0 || enter(FILTER_HOST_IDS, 0, NULL) < 0)
        return 1;
    umask(0);
    int fd = open("plain", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    if (fd < 0)
        return complain("a plain file", errno, 0);
    const unsigned long at = (unsigned long)AT_FDCWD, mode = 04755 | DIRTY;
    const struct {
        const char *name;
        int got;
    } results[] = {
        {"chmod", errno_of(NR_chmod, (unsigned long)"plain", mode, 0, 0)},
        {"fchmod", errno_of(NR_fchmod, (unsigned long)fd, mode, 0, 0)},
        {"fchmodat", errno_of(NR_fchmodat, at, (unsigned long)"plain", mode, 0)},
        {"fchmodat2", errno_of(NR_fchmodat2, at, (unsigned long)"plain", mode, 0)},
        {"creat", errno_of(NR_creat, (unsigned long)"c", mode, 0, 0)},
        {"open", errno_of(NR_open, (unsigned long)"o", O_CREAT | O_RDWR | DIRTY, mode, 0)},
        {"openat", errno_of(NR_openat, at, (unsigned long)"a", O_CREAT | O_RDWR, mode)},
        {"openat(O_TMPFILE)", errno_of(NR_openat, at, (unsigned long)".", O_TMPFILE | O_RDWR, mode)},
        {"mkdir", errno_of(NR_mkdir, (unsigned long)"d", mode, 0, 0)},
        {"mkdirat", errno_of(NR_mkdirat, at, (unsigned long)"e", mode, 0)},
        {"mknod", errno_of(NR_mknod, (unsigned long)"n", S_IFREG | mode, 0, 0)},
        {"mknodat", errno_of(NR_mknodat, at, (unsigned long)"m", S_IFREG | mode, 0)},
    };
    for (size_t i = 0; i < ARRAY_LEN(results); i++)
        if (results[i].got != EPERM)
            return complain(results[i].name, results[i].got, EPERM);
    int how = errno_of(NR_openat2, at, (unsigned long)"x", 0, 0);
    return how == ENOSYS ? 0 : complain("openat2", how, ENOSYS);
}

static void no_setuid_inode_can_be_made_where_ids_are_the_hosts(void **state)
{
    (void)state;
    char dir[] = "/tmp/hutch-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    int status = in_child(make_setid_inodes, dir);
    static const char *const names[] = {"plain", "c", "o", "a", "d", "e", "n", "m"};
    int existing = 0, setid = 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct stat st;
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (lstat(path, &st) < 0)
            continue;
        existing++;
        setid += (st.st_mode & (S_ISUID | S_ISGID)) != 0;
        (void)remove(path);
    }
    assert_int_equal(rmdir(dir), 0);
    assert_exit_0(status);
    assert_int_equal(existing, 1);
    assert_int_equal(setid, 0);
}

/* --- ordinary programs -------------------------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
    *(int *)arg = 42;
    return NULL;
}

static int live_a_normal_life(const void *arg)
{
    (void)arg;
    if (enter(FILTER_HOST_IDS, 0, NULL) < 0)
        return 1;
    pthread_t t;
    int answer = 0;
    if (pthread_create(&t, NULL, thread_main, &answer) != 0 || pthread_join(t, NULL) != 0 || answer != 42)
        return complain("a thread", answer, 42);
    int status = system("ls -l / /proc/self/ >/dev/null && echo x | cat >/dev/null");
    if (status != 0)
        return complain("a shell", status, 0);
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog nested = {1, &allow};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &nested) < 0)
        return complain("a filter of its own", errno, 0);
    return 0;
}

static void threads_shells_and_nested_filters_work_behind_it(void **state)
{
    (void)state;
    assert_exit_0(in_child(live_a_normal_life, NULL));
}

/* --- notifications ------------------------------------------------------------------------------------------------ */

struct notified {
    pid_t pid;
    int listener;
};

/* A child behind a notifying filter that sends its listener and then runs fn. */
static struct notified start_notified(unsigned flags, int (*fn)(const void *), const void *arg)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    fflush(NULL);
    struct notified n = {.pid = fork(), .listener = -1};
    assert_true(n.pid >= 0);
    if (n.pid == 0) {
        (void)close(pair[0]);
        int listener = -1;
        if (enter(flags, SECCOMP_LOAD_LISTENER, &listener) < 0 || fd_send(pair[1], "l", 1, &listener, 1) < 0)
            _exit(99);
        (void)close(listener);
        _exit(fn(arg));
    }
    (void)close(pair[1]);
    char c;
    size_t nfds = 1;
    assert_int_equal(fd_recv(pair[0], &c, 1, &n.listener, &nfds), 1);
    assert_int_equal(nfds, 1);
    (void)close(pair[0]);
    assert_true(fcntl(n.listener, F_GETFD) & FD_CLOEXEC);
    return n;
}

/* Answers from the tables until everybody is gone. Returns how many calls came in; nrs gets the first ones. */
static size_t supervise(int listener, unsigned flags, int *nrs, size_t max)
{
    size_t n = 0;
    for (;;) {
        struct pollfd p = {listener, POLLIN, 0};
        assert_int_equal(poll(&p, 1, 60000), 1);
        if (!(p.revents & POLLIN))
            return n;
        struct seccomp_notif call;
        int r = seccomp_receive(listener, &call);
        assert_true(r >= 0);
        if (r == 0)
            continue;
        if (n < max)
            nrs[n] = call.data.nr;
        n++;
        assert_true(seccomp_id_valid(listener, call.id));
        int eno = filter_answer(flags, &call.data);
        assert_int_equal(eno ? seccomp_refuse(listener, call.id, eno) : seccomp_continue(listener, call.id), 0);
        assert_false(seccomp_id_valid(listener, call.id + 1000));
    }
}

static int make_puzzling_calls(const void *arg)
{
    const char *path = arg;
    int got = errno_of(NR_mount, 0, 0, 0, 0);
    if (got != EPERM)
        return complain("mount", got, EPERM);
    if ((got = errno_of(NR_socket, 38, SOCK_SEQPACKET, 0, 0)) != EAFNOSUPPORT)
        return complain("socket", got, EAFNOSUPPORT);
    if ((got = errno_of(NR_io_uring_setup, 0, 0, 0, 0)) != ENOSYS)
        return complain("io_uring_setup", got, ENOSYS);
    if ((got = errno_of(NR_openat, (unsigned long)AT_FDCWD, (unsigned long)path, O_WRONLY | O_CREAT, 0600)) != 0)
        return complain("openat", got, 0);
    if (access(path, F_OK) < 0)
        return complain("the file that a continued openat makes", errno, 0);
    if ((got = errno_of(NR_openat, (unsigned long)AT_FDCWD, (unsigned long)"/dev/null", O_RDONLY, 0)) != 0)
        return complain("openat for reading", got, 0);
    return (got = errno_of(NR_unlink, (unsigned long)path, 0, 0, 0)) == 0 ? 0 : complain("unlink", got, 0);
}

static void the_supervisor_sees_puzzling_calls_and_answers_from_the_tables(void **state)
{
    (void)state;
    char path[64];
    (void)snprintf(path, sizeof path, "/tmp/hutch-test-%d", (int)getpid());
    unsigned flags = rules_complete_flags(FILTER_EXPLAIN);
    struct notified n = start_notified(flags, make_puzzling_calls, path);
    assert_int_equal(seccomp_sync_wake(n.listener), 1);
    int nrs[8] = {0};
    size_t seen = supervise(n.listener, flags, nrs, ARRAY_LEN(nrs));
    int status = 0;
    assert_int_equal(waitpid(n.pid, &status, 0), n.pid);
    (void)close(n.listener);
    assert_exit_0(status);
    const int want[] = {NR_mount, NR_socket, NR_openat, NR_openat, NR_unlink}; /* reading is explained, too */
    assert_int_equal(seen, ARRAY_LEN(want));
    assert_memory_equal(nrs, want, sizeof want);
}

static int mount_once(const void *arg)
{
    (void)arg;
    int got = errno_of(NR_mount, 0, 0, 0, 0);
    return got == ENOSYS ? 0 : complain("mount", got, ENOSYS);
}

static void without_a_supervisor_notified_calls_fail_closed(void **state)
{
    (void)state;
    struct notified n = start_notified(FILTER_NOTIFY, mount_once, NULL);
    (void)close(n.listener);
    int status = 0;
    assert_int_equal(waitpid(n.pid, &status, 0), n.pid);
    assert_exit_0(status);
}

static void a_killed_caller_invalidates_its_notification(void **state)
{
    (void)state;
    struct notified n = start_notified(FILTER_NOTIFY, mount_once, NULL);
    struct seccomp_notif call;
    assert_int_equal(seccomp_receive(n.listener, &call), 1);
    assert_int_equal(call.data.nr, NR_mount);
    assert_true(seccomp_id_valid(n.listener, call.id));
    assert_int_equal(kill(n.pid, SIGKILL), 0);
    int status = 0;
    assert_int_equal(waitpid(n.pid, &status, 0), n.pid);
    assert_false(seccomp_id_valid(n.listener, call.id));
    assert_int_equal(seccomp_refuse(n.listener, call.id, EPERM), 0);
    struct pollfd p = {n.listener, POLLIN, 0};
    assert_int_equal(poll(&p, 1, 60000), 1);
    assert_true(p.revents & POLLHUP);
    (void)close(n.listener);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static int load_without_wait_killable(const void *arg)
{
    (void)arg;
    /* An older kernel: seccomp() with the newer flag is EINVAL. */
    struct sock_filter old[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, NR_seccomp},
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args) + 8},
        {BPF_JMP | BPF_JSET | BPF_K, 0, 1, 1 << 5},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EINVAL},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    struct err err = {0};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || seccomp_load(old, ARRAY_LEN(old), 0, NULL, &err) < 0)
        return complain(err.msg, -1, 0);
    if (seccomp_probe().wait_killable || !seccomp_probe().user_notif)
        return complain("probe of the pretended kernel", 1, 0);
    int listener = -1;
    if (enter(FILTER_NOTIFY, SECCOMP_LOAD_LISTENER, &listener) < 0)
        return 1;
    return listener >= 0 ? 0 : complain("listener", listener, 3);
}

static void a_kernel_without_killable_waits_still_gets_a_listener(void **state)
{
    (void)state;
    assert_exit_0(in_child(load_without_wait_killable, NULL));
}

static int load_unprivileged(const void *arg)
{
    (void)arg;
    struct err err = {0};
    if (setresuid(65534, 65534, 65534) < 0)
        return 77;
    const struct filter_builtin *b = builtin(0);
    if (seccomp_load(b->insns, b->n, 0, NULL, &err) != -1 || err.code != ERR_SETUP || err.eno != EACCES)
        return complain("load without no_new_privs", err.eno, EACCES);
    if (seccomp_load(b->insns, 0, 0, NULL, &err) != -1 || err.code != ERR_INTERNAL)
        return complain("load of nothing", err.code, ERR_INTERNAL);
    return 0;
}

static void loading_errors_have_a_class_and_an_errno(void **state)
{
    (void)state;
    int status = in_child(load_unprivileged, NULL);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_exit_0(status);
}

static void the_probe_finds_what_this_kernel_has(void **state)
{
    (void)state;
    struct seccomp_support s = seccomp_probe();
    assert_true(s.filter);
    assert_true(s.kill_process);
    assert_true(s.user_notif);
    assert_int_equal(prctl(PR_GET_SECCOMP, 0, 0, 0, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_accepts_every_built_in_program),
        cmocka_unit_test(every_refused_call_gets_its_errno_from_the_kernel),
        cmocka_unit_test(dirty_upper_halves_change_nothing_in_the_kernel),
        cmocka_unit_test(calls_of_other_architectures_kill_the_process),
        cmocka_unit_test(no_setuid_inode_can_be_made_where_ids_are_the_hosts),
        cmocka_unit_test(threads_shells_and_nested_filters_work_behind_it),
        cmocka_unit_test(the_supervisor_sees_puzzling_calls_and_answers_from_the_tables),
        cmocka_unit_test(without_a_supervisor_notified_calls_fail_closed),
        cmocka_unit_test(a_killed_caller_invalidates_its_notification),
        cmocka_unit_test(a_kernel_without_killable_waits_still_gets_a_listener),
        cmocka_unit_test(loading_errors_have_a_class_and_an_errno),
        cmocka_unit_test(the_probe_finds_what_this_kernel_has),
    };
    return cmocka_run_group_tests_name("seccomp", tests, NULL, NULL);
}
