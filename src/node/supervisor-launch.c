/* Starts a child process of supervisor. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "node/procs.h"
#include "os/caps.h"

enum { HIGH_FD = 64 };

static void child_fail_fds(void)
{
    (void)dprintf(
        2, "hutch-node: cannot hand descriptors to a child: %s; is the limit on open files (ulimit -n) below %d?\n",
        strerror(errno), HIGH_FD + 16);
    _exit(ERR_SETUP);
}

/* from[i] becomes descriptor 3 + i; all others above 2 are closed. from[i] -1: 3 + i is closed. */
static void child_place_fds(int *from, int n)
{
    for (int i = 0; i < n; i++)
        if (from[i] >= 0 && (from[i] = fcntl(from[i], F_DUPFD_CLOEXEC, HIGH_FD)) < 0)
            child_fail_fds();
    (void)close_range(3, HIGH_FD - 1, 0);
    for (int i = 0; i < n; i++)
        if (from[i] >= 0 && dup2(from[i], 3 + i) < 0)
            child_fail_fds();
    (void)close_range((unsigned)(3 + n), ~0U, 0);
}

/* Drops root's privileges of front and egress before their program starts; they restrict themselves further. */
static void child_become_user(const struct node_user *u)
{
    if (caps_bound(0) < 0 || setgroups(0, NULL) < 0 || setresgid(u->gid, u->gid, u->gid) < 0 ||
        setresuid(u->uid, u->uid, u->uid) < 0) {
        static const char text[] = "hutch-node: a child cannot become an ordinary user\n";
        (void)fd_write_all(2, text, sizeof text - 1);
        _exit(ERR_SETUP);
    }
}

pid_t node_launch(const char *program, char **argv, int *fds, int nfds, const struct node_user *user)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)setpgid(0, 0); /* Ctrl-C reaches only supervisor, which stops its children in order */
    (void)unsetenv("NOTIFY_SOCKET");
    child_place_fds(fds, nfds);
    int file = open(program, O_PATH | O_CLOEXEC);
    if (user)
        child_become_user(user);
    /* After the change of user, which clears it. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    (void)execv(program, argv);
    if (errno ==
        EACCES) /* built below a directory that is closed to other users, as /root is: what we opened can be executed */
        (void)syscall(SYS_execveat, file, "", argv, environ, AT_EMPTY_PATH);
    (void)dprintf(2, "hutch-node: cannot execute %s: %s\n", program, strerror(errno));
    _exit(ERR_SETUP);
}
