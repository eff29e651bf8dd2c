/* term-harness.c - `term-harness CMD...` runs a command on a terminal of its own, without any wall.
 *
 * It plays the three processes of `hutch run`: the outer one with the relay (this process), pid 1 (here: the leader of
 * the session) and the command; so the terminal tests can tell a defect of the relay from one of the sandbox.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/run/term.h"
#include "os/pty.h"

enum { DRAIN_MS = 2000, HANGUP_GRACE_MS = 1000 };

struct message {
    char what; /* 't' here is the terminal, 'p' pid of the command, 's' stopped, 'x' ended */
    int value;
};

static sigset_t original_mask;

static void die(const char *what)
{
    perror(what);
    exit(125);
}

static void tell(int sock, char what, int value, const int *fds, size_t nfds)
{
    struct message m = {.what = what, .value = value};
    if (fd_send(sock, &m, sizeof m, fds, nfds) < 0)
        _exit(125);
}

/* It tells its pid itself: whoever sees what it writes can already pass signals on to it. */
static void run_command(int sock, int slave, char **argv)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    tell(sock, 'p', getpid(), NULL, 0);
    if (slave >= 0) {
        if (pty_take_foreground(slave) < 0)
            _exit(125);
        (void)dup2(slave, STDIN_FILENO);
        (void)dup2(slave, STDOUT_FILENO);
        if (isatty(STDERR_FILENO))
            (void)dup2(slave, STDERR_FILENO);
    }
    (void)sigprocmask(SIG_SETMASK, &original_mask, NULL);
    (void)execvp(argv[0], argv);
    _exit(errno == ENOENT ? 127 : 126);
}

static void run_leader(int sock, bool terminal, char **argv)
{
    int master, slave = -1, status;
    char go;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setsid();
    if (terminal) {
        int dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (dev < 0 || pty_open_at(dev, &master, &slave) < 0 || pty_make_controlling(slave) < 0)
            _exit(125);
        tell(sock, 't', 0, &master, 1);
        (void)close(master);
        if (read(sock, &go, 1) != 1)
            _exit(125);
    }
    pid_t pid = fork();
    if (pid < 0)
        _exit(125);
    if (pid == 0)
        run_command(sock, slave, argv);
    while (waitpid(pid, &status, terminal ? WUNTRACED : 0) == pid && WIFSTOPPED(status)) {
        tell(sock, 's', 0, NULL, 0);
        if (read(sock, &go, 1) != 1)
            _exit(125);
        (void)kill(-pid, SIGCONT);
    }
    tell(sock, 'x', status, NULL, 0);
    _exit(0);
}

static void on_signal(struct term *t, int sigfd, pid_t command)
{
    struct signalfd_siginfo si;
    if (read(sigfd, &si, sizeof si) != sizeof si)
        return;
    if (si.ssi_signo == SIGWINCH)
        term_resize(t);
    else if (si.ssi_signo == SIGCONT)
        term_resume(t);
    else if (si.ssi_signo == SIGHUP)
        term_hangup(t);
    if (si.ssi_signo != SIGWINCH && si.ssi_signo != SIGCONT && command > 0)
        (void)kill(command, (int)si.ssi_signo);
}

/* True when the command has ended, with its wait status. */
static bool on_message(struct term *t, int sock, pid_t *command, int *ret_status)
{
    struct message m;
    int master = -1;
    size_t nfds = 1;
    struct err err = {0};
    *ret_status = 125 << 8;
    if (fd_recv(sock, &m, sizeof m, &master, &nfds) != sizeof m)
        return true;
    if (m.what == 't') {
        if (nfds != 1 || term_start(t, STDIN_FILENO, STDOUT_FILENO, master, &err) < 0) {
            (void)fprintf(stderr, "term-harness: %s\n", err.msg);
            return true;
        }
        (void)!write(sock, "g", 1);
    } else if (m.what == 'p') {
        *command = m.value;
    } else if (m.what == 's') {
        term_suspend(t);
        (void)!write(sock, "c", 1);
    }
    *ret_status = m.value;
    return m.what == 'x';
}

static int supervise(struct term *t, int sock, int sigfd)
{
    struct pollfd fds[TERM_POLLFDS + 2];
    pid_t command = -1;
    int status = 0;
    bool killed = false;
    for (;;) {
        term_pollfds(t, fds);
        fds[TERM_POLLFDS] = (struct pollfd){.fd = sock, .events = POLLIN};
        fds[TERM_POLLFDS + 1] = (struct pollfd){.fd = sigfd, .events = POLLIN};
        int n = poll(fds, TERM_POLLFDS + 2, t->hung_up ? HANGUP_GRACE_MS : -1);
        if (n == 0 && command > 0) {
            (void)kill(-command, SIGKILL);
            killed = true;
        }
        if (n <= 0)
            continue;
        term_handle(t, fds);
        if (fds[TERM_POLLFDS + 1].revents)
            on_signal(t, sigfd, command);
        if (fds[TERM_POLLFDS].revents && on_message(t, sock, &command, &status))
            return killed ? SIGHUP : status; /* as hutch: what ended it is the hang-up, however long it took to die */
    }
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH, SIGCONT, SIGTSTP};
    struct term term = {0};
    int socks[2];
    sigset_t mask;
    if (argc < 2)
        return 120;
    (void)sigemptyset(&mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        (void)sigaddset(&mask, signals[i]);
    if (sigprocmask(SIG_BLOCK, &mask, &original_mask) < 0)
        die("sigprocmask");
    int sigfd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (sigfd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks) < 0)
        die("signalfd, socketpair");
    pid_t leader = fork();
    if (leader < 0)
        die("fork");
    if (leader == 0) {
        (void)close(socks[0]);
        run_leader(socks[1], term_wanted(STDIN_FILENO, STDOUT_FILENO), argv + 1);
    }
    (void)close(socks[1]);
    int status = supervise(&term, socks[0], sigfd);
    term_drain(&term, DRAIN_MS);
    term_stop(&term);
    (void)waitpid(leader, NULL, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
