#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

static void errors_carry_class_errno_and_context(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(err_set(&e, ERR_SETUP, ENOENT, "open %s", "/x"), -1);
    assert_int_equal(e.code, ERR_SETUP);
    assert_int_equal(e.eno, ENOENT);
    assert_string_equal(e.msg, "open /x: No such file or directory");
    assert_int_equal(err_wrap(&e, "layer %d", 3), -1);
    assert_string_equal(e.msg, "layer 3: open /x: No such file or directory");
    assert_int_equal(e.code, ERR_SETUP);
}

static void an_endless_message_is_cut_not_overrun(void **state)
{
    (void)state;
    struct err e = {0};
    char big[4000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    (void)err_set(&e, ERR_POLICY, EIO, "%s", big);
    (void)err_wrap(&e, "%s", big);
    assert_int_equal(strnlen(e.msg, sizeof e.msg), sizeof e.msg - 1);
}

/* Runs fn in a child and returns its exit code. */
static int exit_code_of(void (*fn)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(2);
        fn();
        _exit(0);
    }
    assert_true(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void third_allocation_fails(void)
{
    mem_fail_at(3);
    for (int i = 0; i < 3; i++) {
        void *p = i == 1 ? xcalloc(2, 8) : xmalloc(10);
        free(p);
    }
}

static void two_allocations_pass(void)
{
    mem_fail_at(3);
    free(xstrdup("a"));
    free(xasprintf("%d", 1));
}

static void overflow_of_a_product(void) { free(xreallocarray(NULL, SIZE_MAX / 2, 4)); }

static void out_of_memory_ends_the_process_with_125(void **state)
{
    (void)state;
    assert_int_equal(exit_code_of(third_allocation_fails), ERR_INTERNAL);
    assert_int_equal(exit_code_of(two_allocations_pass), 0);
    /* ASan's allocator reports such a request itself unless told to return NULL. */
    if (!getenv("HUTCH_TEST_ASAN"))
        assert_int_equal(exit_code_of(overflow_of_a_product), ERR_INTERNAL);
}

static int file_with(const char *text)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    return fd;
}

static void kernel_files_are_read_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int want;
        uint64_t value;
    } cases[] = {{"42\n", 0, 42}, {"max\n", 0, UINT64_MAX}, {"0", 0, 0}, {"-1\n", -1, 0}, {"", -1, 0}, {"4x\n", -1, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_close_ int fd = file_with(cases[i].text);
        char path[40];
        uint64_t v = 4711;
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        assert_int_equal(fd_read_u64(AT_FDCWD, path, &v), cases[i].want);
        assert_int_equal(v, cases[i].want == 0 ? cases[i].value : 4711);
    }
}

static void a_file_above_the_maximum_is_refused(void **state)
{
    (void)state;
    _cleanup_close_ int fd = file_with("0123456789");
    _cleanup_buf_ struct buf b = {0};
    char path[40];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(fd_read_file(AT_FDCWD, path, 9, &b), -1);
    assert_int_equal(errno, EFBIG);
    buf_done(&b);
    assert_int_equal(fd_read_file(AT_FDCWD, path, 10, &b), 0);
    assert_string_equal(buf_str(&b), "0123456789");
}

static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void passed_descriptors_arrive_cloexec_and_never_leak(void **state)
{
    (void)state;
    int pair[2], got[2] = {-1, -1};
    char msg[8];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    int before = open_descriptors();
    int send[3] = {0, 1, 2};
    size_t n = 2;
    assert_int_equal(fd_send(pair[0], "hi", 2, send, 2), 0);
    assert_int_equal(fd_recv(pair[1], msg, sizeof msg, got, &n), 2);
    assert_int_equal(n, 2);
    assert_int_equal(fcntl(got[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    (void)close(got[0]);
    (void)close(got[1]);

    n = 2; /* more than there is room for */
    assert_int_equal(fd_send(pair[0], "hi", 2, send, 3), 0);
    assert_int_equal(fd_recv(pair[1], msg, sizeof msg, got, &n), -1);
    assert_int_equal(errno, EBADMSG);
    n = 2; /* a message longer than the buffer */
    assert_int_equal(fd_send(pair[0], "0123456789", 10, send, 1), 0);
    assert_int_equal(fd_recv(pair[1], msg, sizeof msg, got, &n), -1);
    assert_int_equal(errno, EBADMSG);
    assert_int_equal(open_descriptors(), before);

    (void)close(pair[0]);
    n = 2;
    assert_int_equal(fd_recv(pair[1], msg, sizeof msg, got, &n), 0);
    (void)close(pair[1]);
}

/* Calls that would wait are cut: the whole program ends. */
static int with_alarm(void **state)
{
    (void)state;
    (void)alarm(20);
    return 0;
}
static int without_alarm(void **state)
{
    (void)state;
    (void)alarm(0);
    return 0;
}

static void read_all_that_is_there(int from, int to)
{
    char got[16];
    int theirs = dup(from); /* the same open file */
    assert_int_equal(fcntl(from, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(fcntl(theirs, F_SETFL, 0), 0);
    assert_int_equal(fd_read_pipe(from, got, sizeof got), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(write(to, "hello", 5), 5);
    assert_int_equal(write(to, "you", 3), 3);
    assert_int_equal(fd_read_pipe(from, got, 3), 3);
    assert_int_equal(fd_read_pipe(from, got + 3, sizeof got - 3), 5);
    assert_memory_equal(got, "helloyou", 8);
    assert_int_equal(fd_read_pipe(from, got, sizeof got), -1);
    assert_int_equal(errno, EAGAIN);
    (void)close(to);
    assert_int_equal(fd_read_pipe(from, got, sizeof got), 0);
    (void)close(theirs);
    (void)close(from);
}

static void a_pipe_that_somebody_made_blocking_is_read_without_waiting(void **state)
{
    char dir[] = "/tmp/hutch-fifo-XXXXXX", path[64];
    int ends[2];
    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    read_all_that_is_there(ends[0], ends[1]);
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    ends[0] = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ends[1] = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(ends[0] >= 0 && ends[1] >= 0);
    read_all_that_is_there(ends[0], ends[1]);
    (void)unlink(path);
    (void)rmdir(dir);
}

static void a_socket_that_would_linger_is_closed_at_once(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct linger hour = {.l_onoff = 1, .l_linger = 3600};
    static const char bytes[1 << 16];
    socklen_t n = sizeof a;
    (void)state;
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    int peer = accept4(l, NULL, NULL, SOCK_CLOEXEC); /* which never reads */
    while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hour, sizeof hour), 0);
    fd_close_foreign(fd);
    (void)close(peer);
    (void)close(l);
}

/* The kernel says EAGAIN to whoever follows ".." below a root while anything is renamed anywhere. */
static void renames_elsewhere_do_not_keep_a_path_from_being_followed(void **state)
{
    (void)state;
    char dir[] = "/tmp/hutch-fd.XXXXXX", one[64], two[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(one, sizeof one, "%s/one", dir);
    (void)snprintf(two, sizeof two, "%s/two", dir);
    assert_int_equal(mkdir(one, 0700), 0);
    pid_t pid = fork();
    if (pid == 0)
        for (;;) {
            (void)rename(one, two);
            (void)rename(two, one);
        }
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), failed = 0;
    for (int i = 0; i < 20000; i++) {
        int fd = fd_open_in_root(root, "usr/../usr/../etc/../etc", O_PATH | O_DIRECTORY, 0);
        failed += fd < 0;
        if (fd >= 0)
            (void)close(fd);
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)close(root);
    (void)rmdir(one);
    (void)rmdir(two);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(failed, 0);
    assert_int_equal(fd_open_in_root(AT_FDCWD, "no/such/thing", O_PATH, 0), -1);
    assert_int_equal(errno, ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_carry_class_errno_and_context),
        cmocka_unit_test(an_endless_message_is_cut_not_overrun),
        cmocka_unit_test(out_of_memory_ends_the_process_with_125),
        cmocka_unit_test(kernel_files_are_read_strictly),
        cmocka_unit_test(a_file_above_the_maximum_is_refused),
        cmocka_unit_test(passed_descriptors_arrive_cloexec_and_never_leak),
        cmocka_unit_test_setup_teardown(a_pipe_that_somebody_made_blocking_is_read_without_waiting, with_alarm,
                                        without_alarm),
        cmocka_unit_test(renames_elsewhere_do_not_keep_a_path_from_being_followed),
        cmocka_unit_test_setup_teardown(a_socket_that_would_linger_is_closed_at_once, with_alarm, without_alarm),
    };
    return cmocka_run_group_tests_name("base/fd", tests, NULL, NULL);
}
