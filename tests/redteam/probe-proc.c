/* probe-proc.c - group P: other processes, terminals, descriptors, limits, shared memory. */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <linux/kd.h>
#include <linux/tiocl.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static void p_ptrace(const struct attempt *a, struct seen *s)
{
    pid_t pid = probe_target();
    long rc = ptrace(a->num ? PTRACE_SEIZE : PTRACE_ATTACH, pid, NULL, NULL);
    seen_rc(s, rc);
    if (rc == 0) {
        if (!a->num)
            (void)waitpid(pid, NULL, __WALL);
        (void)ptrace(PTRACE_DETACH, pid, NULL, NULL);
    }
}

static void p_proc_file(const struct attempt *a, struct seen *s)
{
    char path[64], b[16];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)probe_target(), a->arg);
    int fd = open(path, (a->num ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd >= 0 && strcmp(a->arg, "environ") == 0 && read(fd, b, sizeof b) < 0)
        fd = -1;
    seen_rc(s, fd);
}

static void p_vm_read(const struct attempt *a, struct seen *s)
{
    char b[8];
    struct iovec local = {b, sizeof b}, remote = {(void *)0x1000, sizeof b};
    long rc = a->num ? process_vm_writev(probe_target(), &local, 1, &remote, 1, 0)
                     : process_vm_readv(probe_target(), &local, 1, &remote, 1, 0);
    SEEN_PAST(s, rc, EFAULT);
}

static void p_pidfd_getfd(const struct attempt *a, struct seen *s)
{
    (void)a;
    int pidfd = (int)syscall(SYS_pidfd_open, probe_target(), 0);
    if (pidfd < 0)
        seen_rc(s, -1);
    else
        SEEN_PAST(s, syscall(SYS_pidfd_getfd, pidfd, 0, 0), EBADF);
}

static void p_kcmp(const struct attempt *a, struct seen *s)
{
    (void)a;
    seen_rc(s, syscall(SYS_kcmp, probe_target(), getpid(), KCMP_VM, 0, 0) == -1 ? -1 : 0);
}

/* --- terminals ------------------------------------------------------------------------------------------------------------ */

/* A terminal of the sandbox's own devpts, made the controlling one of a new session. */
static int own_terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), lock = 0, n = 0;
    char path[32];
    (void)fcntl(master, F_SETFD, FD_CLOEXEC);
    if (master < 0 || ioctl(master, TIOCSPTLCK, &lock) < 0 || ioctl(master, TIOCGPTN, &n) < 0)
        return -1;
    (void)snprintf(path, sizeof path, "/dev/pts/%d", n);
    int slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return -1;
    pid_t pid = fork(); /* the caller is a group leader and may not call setsid itself */
    if (pid > 0) {
        int st;
        (void)waitpid(pid, &st, 0);
        _exit(WIFEXITED(st) ? WEXITSTATUS(st) : 1);
    }
    (void)setsid();
    (void)ioctl(slave, TIOCSCTTY, 0);
    return slave;
}

static void p_tty_ioctl(const struct attempt *a, struct seen *s)
{
    static char x = 'x';
    static int zero = 0;
    static struct {
        char op[16];
    } linux_op = {{TIOCL_GETFGCONSOLE}};
    int tty = own_terminal();
    unsigned long req = (unsigned long)a->num;
    void *arg = (uint32_t)req == TIOCSTI ? (void *)&x : (uint32_t)req == TIOCSETD ? (void *)&zero : (void *)&linux_op;
    if (tty < 0)
        seen_rc(s, -1);
    else
        seen_rc(s, syscall(SYS_ioctl, tty, req, arg));
}

static void p_ctty(const struct attempt *a, struct seen *s)
{
    int tty = a->num == 2 ? 0 : open("/dev/tty", O_RDWR | O_CLOEXEC);
    if (tty < 0 || a->num == 0)
        seen_rc(s, tty);
    else
        seen_rc(s, ioctl(tty, TIOCSTI, "!"));
}

/* --- signals and descriptors ---------------------------------------------------------------------------------------------- */

static void p_kill_host(const struct attempt *a, struct seen *s)
{
    long pid = probe_var_num("hostpid");
    (void)a;
    if (pid <= 1)
        (void)probe_need(s, "hostpid");
    else
        seen_rc(s, kill((pid_t)pid, 0));
}

static void p_kill_all(const struct attempt *a, struct seen *s)
{
    (void)a;
    /* Our own parent reports, so it must survive: it is told apart by ignoring the signal, the rest is not. */
    seen_rc(s, kill(-1, SIGTERM));
}

static void p_signal_init(const struct attempt *a, struct seen *s)
{
    (void)a;
    for (int sig = 1; sig <= 64; sig++)
        (void)kill(1, sig);
    (void)usleep(100000);
    seen_text(s, "survived");
}

static void p_fds(const struct attempt *a, struct seen *s)
{
    (void)a;
    if (*probe_first_fds())
        seen_text(s, "leak: descriptors %s", probe_first_fds());
    else
        seen_text(s, "none");
}

static void p_stdin_dir(const struct attempt *a, struct seen *s)
{
    int fd = a->num ? openat(0, "made-inside", O_WRONLY | O_CREAT | O_CLOEXEC, 0644)
                    : openat(0, ".ssh/id_ed25519", O_RDONLY | O_CLOEXEC);
    char b;
    if (fd >= 0 && !a->num && read(fd, &b, 1) < 1)
        fd = -1;
    seen_rc(s, fd);
    if (fd >= 0 && a->num)
        (void)unlinkat(0, "made-inside", 0);
}

static void p_stdin_up(const struct attempt *a, struct seen *s)
{
    (void)a;
    int fd = openat(0, "../../../../../../etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char link[64], target[PATH_MAX] = "";
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fd < 0)
        seen_rc(s, -1);
    else if (fchdir(0) < 0)
        seen_rc(s, -1);
    else if (syscall(SYS_getcwd, target, sizeof target) > 0 && target[0] == '/')
        seen_text(s, "inside");
    else
        seen_text(s, "leak: cwd is %s", target);
}

static void p_cwd(const struct attempt *a, struct seen *s)
{
    char cwd[PATH_MAX] = "";
    (void)a;
    long n = syscall(SYS_getcwd, cwd, sizeof cwd);
    seen_text(s, n > 0 && cwd[0] == '/' ? "absolute" : "leak: %s", cwd);
}

static size_t count_pids(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] >= '0' && e->d_name[0] <= '9';
    if (d)
        closedir(d);
    return n;
}

static void p_orphans(const struct attempt *a, struct seen *s)
{
    size_t before = count_pids(), after = before;
    (void)a;
    for (int i = 0; i < 2000; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            (void)fork();
            _exit(0);
        }
        if (pid > 0)
            (void)waitpid(pid, NULL, 0);
    }
    for (int i = 0; i < 50; i++) { /* less than an attempt may take */
        (void)usleep(100000);
        after = count_pids();
        if (after <= before + 1)
            break;
    }
    seen_text(s, after <= before + 1 ? "reaped" : "leak: %zu processes more than before", after - before);
}

static void p_comm(const struct attempt *a, struct seen *s)
{
    (void)a;
    (void)prctl(PR_SET_NAME, "\033[31mEVIL\n");
    int fd = open("/etc/\033[31mEVIL\n", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    seen_rc(s, fd);
    if (fd >= 0)
        (void)unlink("/etc/\033[31mEVIL\n");
}

/* --- prctl, scheduling, limits ---------------------------------------------------------------------------------------------- */

static void p_set_mm(const struct attempt *a, struct seen *s)
{
    (void)a;
    SEEN_PAST(s, prctl(PR_SET_MM, PR_SET_MM_START_BRK, sbrk(0), 0, 0), EINVAL);
}

static void p_nnp(const struct attempt *a, struct seen *s)
{
    if (a->num)
        seen_rc(s, prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0));
    else
        seen_text(s, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? "set" : "leak: no_new_privs is not set");
}

static void p_priority(const struct attempt *a, struct seen *s)
{
    struct sched_param fifo = {.sched_priority = 1};
    if (a->num)
        seen_rc(s, sched_setscheduler(0, SCHED_FIFO, &fifo));
    else
        seen_rc(s, setpriority(PRIO_PROCESS, 0, -20));
}

static void p_nofile(const struct attempt *a, struct seen *s)
{
    struct rlimit rl;
    (void)a;
    (void)getrlimit(RLIMIT_NOFILE, &rl);
    rl.rlim_max += 1;
    seen_rc(s, setrlimit(RLIMIT_NOFILE, &rl));
}

static void p_oom(const struct attempt *a, struct seen *s)
{
    (void)a;
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    seen_rc(s, fd < 0 ? -1 : write(fd, "-1000", 5));
}

/* --- IPC ------------------------------------------------------------------------------------------------------------------- */

static void p_ipc(const struct attempt *a, struct seen *s)
{
    const char *name = probe_need(s, a->arg);
    if (!name)
        return;
    if (a->num == 0) {
        seen_rc(s, shmget((key_t)probe_var_num(a->arg), 0, 0));
    } else if (a->num == 1) {
        mqd_t q = mq_open(name, O_RDONLY | O_CLOEXEC);
        seen_rc(s, q);
    } else {
        seen_rc(s, open(name, O_RDONLY | O_CLOEXEC));
    }
}

#define HANDS_OFF "EPERM EACCES"
#define BOTH      "dumpable,landlock"

static const struct attempt rows[] = {
    {"P-01a", "ptrace attach to init", p_ptrace, NULL, 0, HANDS_OFF, NULL, "seccomp," BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-01b", "ptrace seize init", p_ptrace, NULL, 1, HANDS_OFF, NULL, "seccomp," BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-02a", "open the memory of init", p_proc_file, "mem", 1, HANDS_OFF " EROFS", NULL, BOTH ",proc", CTL_OUTSIDE, 0,
     NULL},
    {"P-02b", "read the environment of init", p_proc_file, "environ", 0, HANDS_OFF, NULL, BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-02c", "open the root of init", p_proc_file, "root", 0, HANDS_OFF, NULL, BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-02d", "list the descriptors of init", p_proc_file, "fd", 0, HANDS_OFF, NULL, BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-02e", "open the maps of init", p_proc_file, "maps", 0, HANDS_OFF, NULL, BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-03a", "process_vm_readv of init", p_vm_read, NULL, 0, HANDS_OFF, NULL, "seccomp," BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-03b", "process_vm_writev of init", p_vm_read, NULL, 1, HANDS_OFF, NULL, "seccomp," BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-04a", "pidfd_getfd of init", p_pidfd_getfd, NULL, 0, HANDS_OFF " ENOSYS", NULL, "seccomp," BOTH, CTL_OUTSIDE, 0,
     NULL},
    {"P-04b", "kcmp with init", p_kcmp, NULL, 0, HANDS_OFF " ENOSYS", NULL, "seccomp," BOTH, CTL_OUTSIDE, 0, NULL},
    {"P-05a", "TIOCSTI on an own terminal", p_tty_ioctl, NULL, TIOCSTI, "EPERM", NULL, "seccomp", CTL_OUTSIDE, 0,
     "needs dev.tty.legacy_tiocsti=1 to be shown"},
    {"P-05b", "open the caller's terminal as /dev/tty", p_ctty, NULL, 0, "ENXIO ENOENT EACCES success", NULL, "",
     CTL_OUTSIDE, A_TTY, "a run on a terminal keeps one; P-05c and P-05d show that nothing can be typed into it"},
    {"P-05c", "type into the caller's terminal through /dev/tty", p_ctty, NULL, 1, "EPERM ENXIO ENOENT EACCES EIO",
     NULL, "seccomp", CTL_OUTSIDE, A_TTY, "needs dev.tty.legacy_tiocsti=1 to be shown"},
    {"P-05d", "type into the caller's terminal through stdin", p_ctty, NULL, 2, "EPERM ENOTTY EIO", NULL, "seccomp",
     CTL_OUTSIDE, A_TTY, "needs dev.tty.legacy_tiocsti=1 to be shown"},
    {"P-06a", "TIOCSTI with the upper register half set", p_tty_ioctl, NULL, 0x100000000L | TIOCSTI, "EPERM", NULL,
     "seccomp", CTL_OUTSIDE, 0, "needs dev.tty.legacy_tiocsti=1 to be shown"},
    {"P-06b", "TIOCLINUX", p_tty_ioctl, NULL, TIOCLINUX, "EPERM ENOTTY", NULL, "seccomp", CTL_KERNEL, 0,
     "only virtual consoles answer it, a pseudo-terminal says ENOTTY"},
    {"P-06c", "TIOCSETD", p_tty_ioctl, NULL, TIOCSETD, "EPERM", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"P-06d", "KDSKBENT", p_tty_ioctl, NULL, KDSKBENT, "EPERM ENOTTY", NULL, "", CTL_KERNEL, 0,
     "only virtual consoles answer it, a pseudo-terminal says ENOTTY"},
    {"P-07a", "signal a host process by its number", p_kill_host, NULL, 0, "ESRCH EPERM", NULL,
     "pidns,landlock,userns-range", CTL_OUTSIDE, 0,
     "for a root caller the uids differ as well, so the kernel answers EPERM"},
    {"P-07b", "kill(-1) from inside", p_kill_all, NULL, 0, "success signal", NULL, "pidns", CTL_NONE,
     A_ALONE | A_INSIDE,
     "outside, or without the pid namespace, it would end the caller's own processes; a sentinel outside shows the "
     "effect"},
    {"P-07c", "every signal 1-64 to init", p_signal_init, NULL, 0, "survived signal", NULL, "", CTL_NONE,
     A_ALONE | A_INSIDE, "only means something against an init of ours"},
    {"P-08a", "descriptors above 2 at the first instruction", p_fds, NULL, 0, "none", NULL, "fds", CTL_OUTSIDE, 0,
     NULL},
    {"P-08b", "create a file through a host directory on stdin", p_stdin_dir, NULL, 1,
     "EACCES EPERM EROFS ENOTDIR EBADF not-started", NULL, "fds,landlock", CTL_OUTSIDE, A_STDIN_DIR, NULL},
    {"P-08c", "read a denied key through the home directory on stdin", p_stdin_dir, NULL, 0,
     "EACCES EPERM ENOTDIR EBADF not-started", NULL, "fds,landlock", CTL_OUTSIDE, A_STDIN_DIR, NULL},
    {"P-08d", "make a host directory on stdin the working directory", p_stdin_up, NULL, 0,
     "inside EACCES ENOTDIR EBADF not-started", NULL, "fds,landlock", CTL_KERNEL, A_STDIN_DIR,
     "outside every directory is inside the one tree; see P-08b and P-08c for the effect"},
    {"P-09", "working directory is an absolute path inside", p_cwd, NULL, 0, "absolute", NULL, "", CTL_KERNEL, 0,
     "a property of the start, not an attempt"},
    {"P-10", "2000 orphans are reaped", p_orphans, NULL, 0, "reaped", NULL, "", CTL_NONE, A_ALONE | A_INSIDE,
     "a duty of init, not a layer"},
    {"P-13", "control characters in comm and in a refused path reach no log raw", p_comm, NULL, 0, "EROFS EACCES EPERM",
     "EROFS EACCES EPERM success", "mounts,landlock,userns-range", CTL_ROOT, 0,
     "the foreign uid stops the write as well"},
    {"P-14", "PR_SET_MM", p_set_mm, NULL, 0, "EPERM", NULL, "seccomp,caps", CTL_ROOT, 0,
     "the kernel wants CAP_SYS_RESOURCE of the initial user namespace"},
    {"P-15a", "no_new_privs is set", p_nnp, NULL, 0, "set", "set leak", "nnp,caps", CTL_OUTSIDE, 0, NULL},
    {"P-15b", "clear no_new_privs", p_nnp, NULL, 1, "EINVAL EPERM", NULL, "", CTL_KERNEL, 0,
     "the kernel has no way back"},
    {"P-17a", "raise the own priority", p_priority, NULL, 0, "EACCES EPERM", NULL, "caps", CTL_ROOT, 0,
     "the kernel wants CAP_SYS_NICE of the initial user namespace"},
    {"P-17b", "SCHED_FIFO", p_priority, NULL, 1, "EPERM", NULL, "caps", CTL_ROOT, 0,
     "the kernel wants CAP_SYS_NICE of the initial user namespace"},
    {"P-18", "raise the hard limit of open files", p_nofile, NULL, 0, "EPERM", NULL, "caps", CTL_ROOT, 0,
     "the kernel wants CAP_SYS_RESOURCE of the initial user namespace"},
    {"P-19", "oom_score_adj -1000", p_oom, NULL, 0, "EACCES EROFS EPERM", NULL, "proc,caps,landlock", CTL_ROOT, 0,
     "the kernel wants CAP_SYS_RESOURCE of the initial user namespace"},
    {"P-20a", "attach a SysV segment of the host", p_ipc, "shmkey", 0, "ENOENT", NULL, "ipcns", CTL_OUTSIDE, 0, NULL},
    {"P-20b", "open a POSIX queue of the host", p_ipc, "mqname", 1, "ENOENT EACCES", NULL, "ipcns,landlock",
     CTL_OUTSIDE, 0, NULL},
    {"P-20c", "open a file in the host's /dev/shm", p_ipc, "shmfile", 2, "ENOENT", NULL, "dev", CTL_OUTSIDE, 0, NULL},
    {"P-20d", "open a file in the host's /tmp", p_ipc, "tmpfile", 2, "ENOENT", NULL, "tmp", CTL_OUTSIDE, 0, NULL},
    {"P-20e", "open a file in the host's /run", p_ipc, "runfile", 2, "ENOENT EACCES", NULL, "run", CTL_OUTSIDE, 0,
     NULL},
};

const struct attempt_table probe_proc = {"processes", rows, ROWS(rows)};
