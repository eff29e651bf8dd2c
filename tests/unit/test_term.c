#include "tests/lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cli/run/term.h"
#include "os/pty.h"

/* Two pairs: `user` is where a person would sit, `tty` what the shell gave us; `master` and `slave` are the command's. */
struct rig {
    int user, tty, master, slave;
    struct termios before;
    struct term term;
};

static int open_dev(void)
{
    int dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(dev >= 0);
    return dev;
}

static void open_pair(int *master, int *slave)
{
    _cleanup_close_ int dev = open_dev();
    assert_int_equal(pty_open_at(dev, master, slave), 0);
}

static void rig_open(struct rig *r)
{
    *r = (struct rig){0};
    open_pair(&r->user, &r->tty);
    open_pair(&r->master, &r->slave);
    assert_int_equal(tcgetattr(r->tty, &r->before), 0);
}

static void rig_start(struct rig *r)
{
    struct err err = {0};
    rig_open(r);
    if (term_start(&r->term, r->tty, r->tty, r->master, &err) < 0)
        fail_msg("%s", err.msg);
}

static void rig_close(struct rig *r)
{
    term_stop(&r->term);
    (void)close(r->user);
    (void)close(r->tty);
    (void)close(r->slave);
}

static bool modes_are(int fd, const struct termios *want)
{
    struct termios now;
    assert_int_equal(tcgetattr(fd, &now), 0);
    return now.c_iflag == want->c_iflag && now.c_oflag == want->c_oflag && now.c_lflag == want->c_lflag &&
           now.c_cflag == want->c_cflag && memcmp(now.c_cc, want->c_cc, sizeof now.c_cc) == 0;
}

/* Turns the loop until it has been idle twice for 30 ms: whoever stood still for long finds the first over at once. */
static void turn(struct term *t)
{
    struct pollfd fds[TERM_POLLFDS];
    int idle = 0;
    for (int i = 0; i < 1000; i++) {
        term_pollfds(t, fds);
        if (poll(fds, TERM_POLLFDS, 30) <= 0) {
            if (++idle == 2)
                return;
            continue;
        }
        idle = 0;
        term_handle(t, fds);
    }
    fail_msg("the relay does not come to rest");
}

static void put(int fd, const char *s) { assert_int_equal(write(fd, s, strlen(s)), strlen(s)); }

static void assert_reads(int fd, const char *want)
{
    char got[256] = "";
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 60000), 1);
    ssize_t n = read(fd, got, sizeof got - 1);
    assert_true(n > 0);
    got[n] = '\0';
    assert_string_equal(got, want);
}

static double now_s(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* --- os/pty -------------------------------------------------------------------------------------------------------- */

static void a_pair_is_connected_and_close_on_exec(void **state)
{
    (void)state;
    int master, slave;
    unsigned number;
    open_pair(&master, &slave);
    put(master, "in\n");
    assert_reads(slave, "in\n");
    assert_true(fcntl(master, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(slave, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(pty_number(master, &number), 0);
    char name[32];
    (void)snprintf(name, sizeof name, "/dev/pts/%u", number);
    assert_string_equal(ttyname(slave), name);
    assert_true(tcgetsid(slave) < 0);
    (void)close(master);
    (void)close(slave);
}

static void a_directory_without_a_real_ptmx_is_refused(void **state)
{
    (void)state;
    char dir[] = "/tmp/hutch-pty.XXXXXX";
    int master = -1, slave = -1;
    assert_non_null(mkdtemp(dir));
    int dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(pty_open_at(dirfd, &master, &slave), -1);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(symlinkat("/dev/null", dirfd, "ptmx"), 0);
    assert_int_equal(pty_open_at(dirfd, &master, &slave), -1);
    assert_int_equal(errno, ENOTTY);
    assert_true(master == -1 && slave == -1);
    assert_int_equal(unlinkat(dirfd, "ptmx", 0), 0);
    (void)close(dirfd);
    assert_int_equal(rmdir(dir), 0);
}

static void only_a_master_has_a_number(void **state)
{
    (void)state;
    int master, slave, pipes[2];
    unsigned number = 77;
    open_pair(&master, &slave);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    const int others[] = {slave, pipes[0]};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        assert_int_equal(pty_number(others[i], &number), -1);
        assert_int_equal(errno, ENOTTY);
    }
    assert_int_equal(pty_number(-1, &number), -1);
    assert_int_equal(errno, EBADF);
    assert_int_equal(number, 77);
    for (int i = 0; i < 2; i++)
        (void)close(pipes[i]);
    (void)close(master);
    (void)close(slave);
}

static void size_set_on_one_end_is_read_on_the_other(void **state)
{
    (void)state;
    int master, slave;
    struct winsize size = {.ws_row = 33, .ws_col = 99}, got = {0};
    open_pair(&master, &slave);
    assert_int_equal(pty_set_size(master, &size), 0);
    assert_int_equal(pty_get_size(slave, &got), 0);
    assert_int_equal(got.ws_row, 33);
    assert_int_equal(got.ws_col, 99);
    (void)close(master);
    (void)close(slave);
}

static void a_given_terminal_belongs_to_the_user(void **state)
{
    (void)state;
    int master, slave;
    struct stat st;
    uid_t uid = geteuid() == 0 ? 12345 : getuid();
    open_pair(&master, &slave);
    assert_int_equal(pty_give(slave, uid, getgid()), 0);
    assert_int_equal(stat(ttyname(slave), &st), 0);
    assert_int_equal(st.st_uid, uid);
    assert_int_equal(st.st_mode & 07777, 0620);
    (void)close(master);
    (void)close(slave);
}

static int lead_a_session(int slave)
{
    int status;
    if (setsid() < 0 || pty_make_controlling(slave) < 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(pty_take_foreground(slave) == 0 && tcgetpgrp(slave) == getpid() && getpgrp() == getpid() &&
                      tcgetsid(slave) == getppid()
                  ? 0
                  : 2);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

static void the_command_leads_the_foreground_of_pid_1s_session(void **state)
{
    (void)state;
    int master, slave, status;
    open_pair(&master, &slave);
    pid_t pid = fork();
    if (pid == 0)
        _exit(lead_a_session(slave));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    (void)close(master);
    (void)close(slave);
}

static int use_private_devpts(const char *dir)
{
    int master, slave;
    unsigned number;
    struct stat st;
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", dir, "tmpfs", 0, NULL) < 0 || chdir(dir) < 0 || mkdir("pts", 0755) < 0 ||
        mount("devpts", "pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620") < 0 ||
        symlink("pts/ptmx", "ptmx") < 0)
        return 1;
    if (pty_open_at(AT_FDCWD, &master, &slave) < 0 || pty_number(master, &number) < 0 || number != 0)
        return 2;
    return stat("pts/0", &st) == 0 && S_ISCHR(st.st_mode) ? 0 : 3;
}

/* By a child that may mount what it likes on a directory of its own. */
static void in_a_child(int (*use)(const char *dir))
{
    char dir[] = "/tmp/hutch-term.XXXXXX";
    int status;
    if (geteuid() != 0)
        skip();
    assert_non_null(mkdtemp(dir));
    pid_t pid = fork();
    if (pid == 0)
        _exit(use(dir));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(status, 0);
}

static void the_first_pair_of_a_private_devpts_is_number_0(void **state)
{
    (void)state;
    in_a_child(use_private_devpts);
}

/* --- cli/term ------------------------------------------------------------------------------------------------------ */

static void bytes_go_both_ways_unmodified(void **state)
{
    (void)state;
    struct rig r;
    rig_start(&r);
    assert_false(modes_are(r.tty, &r.before));
    put(r.slave, "\033[1mout\n");
    turn(&r.term);
    assert_reads(r.user, "\033[1mout\r\n");
    put(r.user, "key\r");
    turn(&r.term);
    assert_reads(r.slave, "key\n");
    assert_reads(r.user, "key\r\n");
    term_stop(&r.term);
    assert_true(modes_are(r.tty, &r.before));
    rig_close(&r);
}

static void the_inner_terminal_is_dressed_like_the_outer(void **state)
{
    (void)state;
    struct rig r;
    struct err err = {0};
    struct winsize size = {.ws_row = 12, .ws_col = 34}, got;
    rig_open(&r);
    r.before.c_cc[VINTR] = 7;
    r.before.c_iflag ^= IXON;
    assert_int_equal(tcsetattr(r.tty, TCSANOW, &r.before), 0);
    assert_int_equal(pty_set_size(r.tty, &size), 0);
    assert_int_equal(term_start(&r.term, r.tty, r.tty, r.master, &err), 0);
    assert_true(modes_are(r.slave, &r.before));
    assert_int_equal(pty_get_size(r.slave, &got), 0);
    assert_memory_equal(&got, &size, sizeof got);
    size.ws_col = 35;
    assert_int_equal(pty_set_size(r.tty, &size), 0);
    term_resize(&r.term);
    assert_int_equal(pty_get_size(r.slave, &got), 0);
    assert_int_equal(got.ws_col, 35);
    rig_close(&r);
}

static void a_descriptor_that_is_no_master_is_refused_and_closed(void **state)
{
    (void)state;
    struct rig r;
    struct err err = {0};
    int pipes[2];
    rig_open(&r);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    const int wrong[] = {r.slave, pipes[0]};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        assert_int_equal(term_start(&r.term, r.tty, r.tty, wrong[i], &err), -1);
        assert_int_equal(err.code, ERR_SETUP);
        assert_int_equal(fcntl(wrong[i], F_GETFD), -1);
    }
    assert_true(modes_are(r.tty, &r.before));
    (void)close(pipes[1]);
    (void)close(r.master);
    r.slave = -1;
    rig_close(&r);
}

static void a_relay_that_never_started_can_be_stopped_and_driven(void **state)
{
    (void)state;
    struct term t = {0};
    struct pollfd fds[TERM_POLLFDS];
    term_pollfds(&t, fds);
    for (size_t i = 0; i < TERM_POLLFDS; i++)
        assert_int_equal(fds[i].fd, -1);
    term_handle(&t, fds);
    term_resume(&t);
    term_hangup(&t);
    term_suspend(&t);
    term_drain(&t, 10000);
    term_stop(&t);
    term_stop(&t);
    term_restore();
    assert_int_equal(t.owner, 0);
}

static void a_screen_that_is_not_read_stops_the_command_and_loses_nothing(void **state)
{
    (void)state;
    struct rig r;
    char block[4096], got[65536];
    size_t sent = 0, received = 0;
    rig_start(&r);
    memset(block, 'x', sizeof block);
    assert_int_equal(fcntl(r.slave, F_SETFL, fcntl(r.slave, F_GETFL) | O_NONBLOCK), 0);
    for (int idle = 0; idle < 5;) {
        ssize_t n = write(r.slave, block, sizeof block);
        sent += n > 0 ? (size_t)n : 0;
        idle = n > 0 ? 0 : idle + 1;
        turn(&r.term);
        assert_true(sent < 16 * TERM_BUF_BYTES);
    }
    struct pollfd fds[TERM_POLLFDS];
    term_pollfds(&r.term, fds);
    for (size_t i = 0; i < TERM_POLLFDS; i++)
        assert_false(fds[i].fd == r.master && (fds[i].events & POLLIN));
    assert_int_equal(fcntl(r.user, F_SETFL, O_RDWR | O_NONBLOCK), 0);
    for (int idle = 0; idle < 3;) {
        ssize_t n = read(r.user, got, sizeof got);
        received += n > 0 ? (size_t)n : 0;
        idle = n > 0 ? 0 : idle + 1;
        turn(&r.term);
    }
    assert_int_equal(received, sent);
    rig_close(&r);
}

static void drain_writes_out_what_is_left_and_ends_at_once(void **state)
{
    (void)state;
    struct rig r;
    rig_start(&r);
    put(r.slave, "last words");
    (void)close(r.slave);
    r.slave = -1;
    double begin = now_s();
    term_drain(&r.term, 5000);
    assert_true(now_s() - begin < 2);
    assert_reads(r.user, "last words");
    rig_close(&r);
}

static void drain_gives_up_on_a_blocked_screen(void **state)
{
    (void)state;
    struct rig r;
    char block[4096];
    rig_start(&r);
    memset(block, 'x', sizeof block);
    assert_int_equal(fcntl(r.slave, F_SETFL, fcntl(r.slave, F_GETFL) | O_NONBLOCK), 0);
    for (int idle = 0; idle < 3; turn(&r.term))
        idle = write(r.slave, block, sizeof block) > 0 ? 0 : idle + 1;
    double begin = now_s();
    term_drain(&r.term, 300);
    double took = now_s() - begin;
    assert_true(took > 0.25 && took < 2);
    term_stop(&r.term);
    assert_true(modes_are(r.tty, &r.before));
    rig_close(&r);
}

static void loss_of_the_outer_terminal_hangs_the_inner_one_up(void **state)
{
    (void)state;
    struct rig r;
    char c;
    rig_start(&r);
    (void)close(r.user);
    r.user = -1;
    turn(&r.term);
    assert_true(r.term.hung_up);
    assert_int_equal(r.term.master, -1);
    assert_int_equal(read(r.slave, &c, 1), 0);
    rig_close(&r);
}

static void an_inner_terminal_that_is_opened_again_is_relayed_again(void **state)
{
    (void)state;
    struct rig r;
    rig_start(&r);
    char name[64];
    assert_int_equal(ttyname_r(r.slave, name, sizeof name), 0);
    (void)close(r.slave);
    struct pollfd fds[TERM_POLLFDS];
    int wakeups = 0;
    for (double end = now_s() + 0.5; now_s() < end; wakeups++) {
        term_pollfds(&r.term, fds);
        (void)poll(fds, TERM_POLLFDS, 100);
        term_handle(&r.term, fds);
    }
    assert_true(wakeups < 30);
    r.slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(r.slave >= 0);
    put(r.slave, "again");
    struct pollfd screen = {.fd = r.user, .events = POLLIN};
    for (double end = now_s() + 60; now_s() < end && poll(&screen, 1, 0) == 0;) {
        term_pollfds(&r.term, fds);
        (void)poll(fds, TERM_POLLFDS, 100);
        term_handle(&r.term, fds);
    }
    assert_reads(r.user, "again");
    rig_close(&r);
}

static void on_abort(int number)
{
    term_restore();
    _exit(number);
}

enum way_out { BY_EXIT, BY_HANDLER, BY_FORK };

/* Leaves a started relay in some way, in a child; says whether the modes were restored. */
static bool restored_after(enum way_out way)
{
    struct rig r;
    int status;
    rig_open(&r);
    pid_t pid = fork();
    if (pid == 0) {
        struct err err = {0};
        if (term_start(&r.term, r.tty, r.tty, r.master, &err) < 0 || modes_are(r.tty, &r.before))
            _exit(99);
        if (way == BY_HANDLER && signal(SIGABRT, on_abort) != SIG_ERR)
            abort();
        if (way == BY_FORK && (pid = fork()) != 0) {
            (void)waitpid(pid, NULL, 0);
            _exit(0);
        }
        exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 99);
    bool restored = modes_are(r.tty, &r.before);
    (void)close(r.master);
    rig_close(&r);
    return restored;
}

static void exit_and_fatal_signals_restore_the_modes(void **state)
{
    (void)state;
    assert_true(restored_after(BY_EXIT));
    assert_true(restored_after(BY_HANDLER));
}

static void a_fork_of_the_relay_restores_nothing(void **state)
{
    (void)state;
    assert_false(restored_after(BY_FORK));
}

/* Without /proc and /dev no description of our own can be had: the shell's is used, and given back as it was. */
static int use_shared_descriptions(const char *empty)
{
    struct rig r;
    rig_open(&r);
    if (chroot(empty) < 0 || chdir("/") < 0)
        return 1;
    struct err err = {0};
    if (term_start(&r.term, r.tty, r.tty, r.master, &err) < 0)
        return 2;
    if (r.term.in != r.tty || !(fcntl(r.tty, F_GETFL) & O_NONBLOCK))
        return 3;
    put(r.slave, "out");
    turn(&r.term);
    assert_reads(r.user, "out");
    term_stop(&r.term);
    return fcntl(r.tty, F_GETFD) < 0 || (fcntl(r.tty, F_GETFL) & O_NONBLOCK) || !modes_are(r.tty, &r.before) ? 4 : 0;
}

static void shared_descriptions_are_given_back_blocking(void **state)
{
    (void)state;
    in_a_child(use_shared_descriptions);
}

static void our_own_description_leaves_the_shells_blocking(void **state)
{
    (void)state;
    struct rig r;
    rig_start(&r);
    assert_int_not_equal(r.term.in, r.tty);
    assert_false(fcntl(r.tty, F_GETFL) & O_NONBLOCK);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_is_connected_and_close_on_exec),
        cmocka_unit_test(a_directory_without_a_real_ptmx_is_refused),
        cmocka_unit_test(only_a_master_has_a_number),
        cmocka_unit_test(size_set_on_one_end_is_read_on_the_other),
        cmocka_unit_test(a_given_terminal_belongs_to_the_user),
        cmocka_unit_test(the_command_leads_the_foreground_of_pid_1s_session),
        cmocka_unit_test(the_first_pair_of_a_private_devpts_is_number_0),
        cmocka_unit_test(bytes_go_both_ways_unmodified),
        cmocka_unit_test(the_inner_terminal_is_dressed_like_the_outer),
        cmocka_unit_test(a_descriptor_that_is_no_master_is_refused_and_closed),
        cmocka_unit_test(a_relay_that_never_started_can_be_stopped_and_driven),
        cmocka_unit_test(a_screen_that_is_not_read_stops_the_command_and_loses_nothing),
        cmocka_unit_test(drain_writes_out_what_is_left_and_ends_at_once),
        cmocka_unit_test(drain_gives_up_on_a_blocked_screen),
        cmocka_unit_test(loss_of_the_outer_terminal_hangs_the_inner_one_up),
        cmocka_unit_test(an_inner_terminal_that_is_opened_again_is_relayed_again),
        cmocka_unit_test(exit_and_fatal_signals_restore_the_modes),
        cmocka_unit_test(a_fork_of_the_relay_restores_nothing),
        cmocka_unit_test(shared_descriptions_are_given_back_blocking),
        cmocka_unit_test(our_own_description_leaves_the_shells_blocking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
