/* init.c - pid 1: starts the command, reaps, passes signals on, reports the end. */
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "os/pty.h"
#include "os/title.h"
#include "wall/inside.h"

static char command_stack[64 * 1024] __attribute__((aligned(16)));

/* Runs in the memory of init until exec (CLONE_VM | CLONE_VFORK), so it changes nothing but its own process. */
static int be_command(void *arg)
{
    struct inside *in = arg;
    const struct wall_spec *s = in->spec;
    if (in->pty_slave >= 0) {
        if (pty_take_foreground(in->pty_slave) < 0)
            goto failed;
        (void)dup2(in->pty_slave, 0);
        (void)dup2(in->pty_slave, 1);
        if (s->tty_stderr)
            (void)dup2(in->pty_slave, 2);
    } else {
        (void)setpgid(0, 0);
    }
    if (!LAYER_OFF(s->without, FDS)) {
        int next = 3;
        for (size_t i = 0; i < s->nkeep; i++) { /* kept ascending */
            if (s->keep_fds[i] > next)
                (void)fd_close_range((unsigned)next, (unsigned)s->keep_fds[i] - 1, CLOSE_RANGE_CLOEXEC);
            (void)fcntl(s->keep_fds[i], F_SETFD, 0);
            next = s->keep_fds[i] + 1;
        }
        (void)fd_close_range((unsigned)next, ~0U, CLOSE_RANGE_CLOEXEC);
    }
    (void)umask(in->mask);
    if (!s->ignore_sigpipe)
        (void)signal(SIGPIPE, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &s->sigmask, NULL);
    int eno = ENOENT;
    for (const char *const *p = s->exec_paths; *p; p++) {
        (void)execve(*p, s->argv, s->env);
        /* As in a shell, an unsearchable directory of PATH counts as empty. */
        if (errno == EACCES)
            eno = access(*p, F_OK) == 0 ? EACCES : eno;
        else if (errno != ENOENT && errno != ENOTDIR) {
            eno = errno;
            break;
        }
    }
    errno = eno;
failed:
    in->shared->exec_errno = errno ? errno : EIO;
    _exit(127);
}

int inside_open_terminal(struct inside *in)
{
    if (!in->spec->tty)
        return 0;
    int dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dev < 0 || pty_open_at(dev, &in->pty_master, &in->pty_slave) < 0)
        return inside_fail(in, errno, "open a terminal in the sandbox");
    (void)close(dev);
    return 0;
}

static int start_terminal(struct inside *in)
{
    inside_tell(in, WALL_MSG_TTY, 0, in->pty_master);
    (void)close(in->pty_master);
    if (inside_wait(in, "the terminal") < 0)
        return -1;
    if (pty_make_controlling(in->pty_slave) < 0)
        return inside_fail(in, errno, "make the terminal the controlling one");
    return 0;
}

static void init_finish(struct inside *in, int status) __attribute__((noreturn));
static void init_finish(struct inside *in, int status)
{
    struct statfs fs;
    (void)getrusage(RUSAGE_CHILDREN, &in->shared->usage);
    if (statfs(in->spec->plan->layers.n > 0 ? "/" : "/dev/shm", &fs) == 0) {
        in->shared->disk_full = fs.f_blocks > 0 && fs.f_bavail == 0;
        in->shared->inodes_full = fs.f_files > 0 && fs.f_ffree == 0;
    }
    in->shared->status = status;
    /* Every process of a pid namespace descends from its init: without children it is empty. */
    pid_t left;
    do
        left = waitpid(-1, NULL, WNOHANG);
    while (left > 0);
    in->shared->alone = left < 0 && errno == ECHILD && !in->spec->nested && !LAYER_OFF(in->spec->without, PIDNS);
    in->shared->finished = 1;
    /* Without a pid namespace the kernel does not kill what is left. Landlock's signal scope (ABI 6) keeps this to our
     * own domain. */
    if (in->spec->nested && in->shared->landlock_abi >= 6)
        (void)kill(-1, SIGKILL);
    else if (in->spec->nested && in->shared->command > 0)
        (void)kill(-in->shared->command, SIGKILL);
    inside_stage(in, STAGE_DONE);
    (void)close(in->sock); /* wakes the caller before the kernel tears this process down */
    _exit(0);
}

static void reap(struct inside *in, pid_t command)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
        if (pid != command)
            continue;
        if (WIFSTOPPED(status)) {
            if (in->spec->tty)
                inside_tell(in, WALL_MSG_STOPPED, WSTOPSIG(status), -1);
            continue;
        }
        init_finish(in, status);
    }
}

static void init_pass_signal(const siginfo_t *info, pid_t command)
{
    if (info->si_code == SI_QUEUE && info->si_value.sival_int == WALL_SIGNAL_GROUP)
        (void)kill(-command, info->si_signo);
    else if (info->si_pid == 0) /* sent from outside this pid namespace */
        (void)kill(command, info->si_signo);
}

/* Closes all but the socket and, while the command lives, one end of its terminal (or the terminal would hang up between
 * two programs that open it). */
static void keep_two(int a, int b)
{
    unsigned low = (unsigned)(b >= 0 && b < a ? b : a), high = (unsigned)(b > a ? b : a);
    if (low > 0)
        (void)fd_close_range(0, low - 1, 0);
    if (high > low + 1)
        (void)fd_close_range(low + 1, high - 1, 0);
    (void)fd_close_range(high + 1, ~0U, 0);
}

void inside_run(struct inside *in)
{
    sigset_t all;
    inside_stage(in, STAGE_EXEC);
    /* The caller searches beside all of the set-up; there is no command before it is done. */
    if (in->spec->who.search_later && inside_wait(in, "the search for repositories") < 0)
        _exit(1);
    if (in->spec->tty && start_terminal(in) < 0)
        _exit(1);
    if (in->vault >= 0) {
        inside_tell(in, WALL_MSG_VAULT, 0, in->vault);
        (void)close(in->vault);
    }
    if (in->cover_file >= 0) {
        const struct wall_msg m = {.type = WALL_MSG_COVERS};
        (void)fd_send(in->sock, &m, sizeof m, (const int[]){in->cover_file, in->cover_dir}, WALL_MSG_FDS);
    }
    if (in->listener >= 0) {
        const struct wall_msg m = {.type = WALL_MSG_LISTENER};
        (void)fd_send(in->sock, &m, sizeof m, (const int[]){in->listener, in->net}, in->net >= 0 ? 2 : 1);
        (void)close(in->listener);
    }
    if (in->net >= 0)
        (void)close(in->net);
    /* Clear it before the command exists, which could read /proc/1 at once. */
    if (!LAYER_OFF(in->spec->without, FORGET))
        title_forget("hutch-init");
    pid_t command = clone(be_command, command_stack + sizeof command_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, in);
    if (command < 0) {
        (void)inside_fail(in, errno, "start the command");
        _exit(1);
    }
    in->shared->command = command;
    if (in->shared->exec_errno)
        init_finish(in, 127 << 8);
    inside_stage(in, STAGE_RUNNING);
    /* Standard streams belong to the command alone: a reader must see their end when it closes them. And init holds no
     * descriptor of the host but its socket. */
    keep_two(in->sock, in->pty_slave);
    (void)sigfillset(&all);
    for (;;) {
        siginfo_t info = {0};
        if (sigwaitinfo(&all, &info) < 0)
            continue;
        if (info.si_signo == SIGCHLD)
            reap(in, command);
        else
            init_pass_signal(&info, command);
    }
}
