/* inject.c - makes one system call of a program fail, to see what the program does about it.
 *
 *     inject list                 PROGRAM ARG...   prints "who n name" for every call of the set-up
 *     inject WHO N ERRNO          PROGRAM ARG...   the N-th call (from 1) of WHO fails with ERRNO; exits as PROGRAM does
 *
 * WHO is "caller" (the first process) or "init" (its first child in a new pid namespace). Calls are counted until the
 * command is executed by a child of init; the guard and everything after that run untouched. A call that must fail is
 * replaced by an invalid number on entry and gets its error on exit, so it has no effect. Exit code 99: the program ended
 * before its N-th call; 98: the injector itself failed. 97: no end within DEADLINE_S; everything is killed.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_S = 120, TASKS_MAX = 64, CODE_NOT_REACHED = 99, CODE_BROKEN = 98, CODE_HANG = 97 };

enum role { ROLE_CALLER, ROLE_INIT, ROLE_OTHER };
static const char *const role_names[] = {"caller", "init", "other"};

struct task {
    pid_t pid;
    enum role role;
    bool entered; /* the next stop is an exit from a call */
    bool failing; /* the call under way was replaced */
};

static struct task tasks[TASKS_MAX];
static size_t ntasks;
static enum role want_role;
static long want_n, counts[3];
static int want_errno;
static bool listing, done, injected, hung;
static pid_t first;

static void broken(const char *what)
{
    perror(what);
    if (first > 0)
        (void)kill(first, SIGKILL);
    exit(CODE_BROKEN);
}

static struct task *task_of(pid_t pid)
{
    for (size_t i = 0; i < ntasks; i++)
        if (tasks[i].pid == pid)
            return &tasks[i];
    if (ntasks == TASKS_MAX)
        broken("too many tasks");
    tasks[ntasks] = (struct task){.pid = pid, .role = ROLE_OTHER};
    return &tasks[ntasks++];
}

/* Calls that end or start processes or only wait make no sense to fail one by one as "set-up failed". */
static bool counted(uint64_t nr) { return nr != SYS_exit && nr != SYS_exit_group && nr != SYS_rt_sigreturn; }

static void on_entry(struct task *t, struct user_regs_struct *regs)
{
    t->entered = true;
    if (done || t->role == ROLE_OTHER || !counted(regs->orig_rax))
        return;
    long n = ++counts[t->role];
    if (listing) {
        printf("%s %ld %llu\n", role_names[t->role], n, (unsigned long long)regs->orig_rax);
    } else if (t->role == want_role && n == want_n) {
        regs->orig_rax = (unsigned long long)-1;
        if (ptrace(PTRACE_SETREGS, t->pid, NULL, regs) < 0)
            broken("replace the call");
        t->failing = injected = true;
    }
}

static void on_exit_stop(struct task *t, struct user_regs_struct *regs)
{
    t->entered = false;
    if (!t->failing)
        return;
    t->failing = false;
    regs->rax = (unsigned long long)-(long long)want_errno;
    if (ptrace(PTRACE_SETREGS, t->pid, NULL, regs) < 0)
        broken("set the result");
    done = true; /* one failure per run: nobody else needs to be traced call by call */
}

static void on_syscall(struct task *t)
{
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, t->pid, NULL, &regs) < 0)
        return; /* it was killed meanwhile */
    if (t->entered)
        on_exit_stop(t, &regs);
    else
        on_entry(t, &regs);
}

/* A new process: init is the first child that the caller makes in a new pid namespace. */
static void on_child(struct task *parent)
{
    unsigned long pid = 0;
    static bool have_init;
    if (ptrace(PTRACE_GETEVENTMSG, parent->pid, NULL, &pid) < 0)
        return;
    struct task *t = task_of((pid_t)pid);
    char path[64], own[64] = "", other[64] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    (void)readlink("/proc/self/ns/pid", own, sizeof own - 1);
    ssize_t n = readlink(path, other, sizeof other - 1);
    if (!have_init && parent->role == ROLE_CALLER && n > 0 && strcmp(own, other) != 0) {
        t->role = ROLE_INIT;
        have_init = true;
    }
}

static void resume(struct task *t, int sig)
{
    bool watch = (!done && t->role != ROLE_OTHER) || t->entered;
    (void)ptrace(watch ? PTRACE_SYSCALL : PTRACE_CONT, t->pid, NULL, (void *)(intptr_t)sig);
}

static void on_stop(pid_t pid, int status)
{
    struct task *t = task_of(pid);
    int sig = WSTOPSIG(status), event = status >> 16, pass = 0;
    if (sig == (SIGTRAP | 0x80)) {
        on_syscall(t);
    } else if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_CLONE || event == PTRACE_EVENT_VFORK) {
        on_child(t);
    } else if (event == PTRACE_EVENT_EXEC) {
        if (t->role == ROLE_OTHER)
            done = true; /* the command runs: the set-up is over */
    } else if (event == PTRACE_EVENT_STOP) {
        if (sig == SIGSTOP || sig == SIGTSTP || sig == SIGTTIN || sig == SIGTTOU) {
            (void)ptrace(PTRACE_LISTEN, pid, NULL, NULL);
            return;
        }
    } else {
        pass = sig;
    }
    resume(t, pass);
}

static void on_deadline(int sig)
{
    (void)sig;
    hung = true;
    for (size_t i = 0; i < ntasks; i++)
        (void)kill(tasks[i].pid, SIGKILL);
}

static void start(char **argv)
{
    first = fork();
    if (first < 0)
        broken("fork");
    if (first == 0) {
        (void)raise(SIGSTOP); /* until it is traced */
        (void)execv(argv[0], argv);
        perror(argv[0]);
        _exit(CODE_BROKEN);
    }
    int status;
    if (waitpid(first, &status, WUNTRACED) != first)
        broken("wait");
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
                   PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, first, NULL, options) < 0)
        broken("trace");
    task_of(first)->role = ROLE_OTHER; /* until its own program runs */
    (void)kill(first, SIGCONT);
}

/* The caller's role begins with its exec; that is an EXEC event of a task that is OTHER, seen once. */
static bool begin_caller(pid_t pid, int status)
{
    static bool begun;
    if (begun || pid != first || status >> 16 != PTRACE_EVENT_EXEC)
        return false;
    begun = true;
    task_of(first)->role = ROLE_CALLER;
    resume(task_of(first), 0);
    return true;
}

static int watch(void)
{
    int status, code = CODE_BROKEN;
    for (;;) {
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            break;
        if (WIFSTOPPED(status)) {
            if (!begin_caller(pid, status))
                on_stop(pid, status);
            continue;
        }
        if (pid == first)
            code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        for (size_t i = 0; i < ntasks; i++)
            if (tasks[i].pid == pid)
                tasks[i] = tasks[--ntasks];
    }
    if (hung)
        return CODE_HANG;
    return listing || injected ? code : CODE_NOT_REACHED;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "list") == 0) {
        listing = true;
        start(argv + 2);
    } else if (argc >= 5) {
        want_role = strcmp(argv[1], "init") == 0 ? ROLE_INIT : ROLE_CALLER;
        want_n = strtol(argv[2], NULL, 10);
        want_errno = (int)strtol(argv[3], NULL, 10);
        start(argv + 4);
    } else {
        fputs("usage: inject list PROGRAM ARG... | inject caller|init N ERRNO PROGRAM ARG...\n", stderr);
        return CODE_BROKEN;
    }
    (void)signal(SIGALRM, on_deadline);
    (void)alarm(DEADLINE_S);
    return watch();
}
