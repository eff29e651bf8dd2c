/* probe-modes.c - the modes that are not single attempts: verdict tables, races, random calls, floods. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAST_NR = 600 };

/* What one call did. Written by the child to shared memory, because a call such as close_range may take its pipe away. */
struct verdict {
    volatile int begun, done;
    volatile long rc;
    volatile int eno;
};

static void call_one(const char *abi, long nr, long fill, struct verdict *v)
{
    long rc;
    v->begun = 1;
    if (abi[0] == 'i') {
        rc = probe_i386(nr, fill, fill, fill);
        v->eno = rc < 0 ? (int)-rc : 0;
    } else {
        errno = 0;
        rc = syscall(abi[0] == 'x' ? nr | 0x40000000 : nr, fill, fill, fill, fill, fill, fill);
        v->eno = rc == -1 ? errno : 0;
    }
    v->rc = rc;
    v->done = 1;
    _exit(0);
}

/* The class that a filter's verdict shows: what the kernel says after the filter let the call pass is not recorded,
 * since it depends on the kernel's version and on the caller. */
static const char *verdict_class(const struct verdict *v, int st, bool timed_out)
{
    if (!timed_out && WIFSIGNALED(st) && WTERMSIG(st) == SIGSYS)
        return "SIGSYS";
    if (v->done && v->eno == ENOSYS)
        return "ENOSYS";
    if (v->done && v->eno == EPERM)
        return "EPERM";
    return "through";
}

/* `v`: what it writes, or NULL. One that is not at its call yet, or waits for a processor, is waited for longer. */
static int wait_child(pid_t pid, int ms, const struct verdict *v, bool *timed_out)
{
    int st = 0;
    double start = probe_now(), begun = start;
    *timed_out = false;
    for (int i = 0;; i++) {
        if (waitpid(pid, &st, WNOHANG) == pid)
            return st;
        (void)usleep(250);
        if (v && !v->begun && probe_now() - start < 60) {
            begun = probe_now();
            i = 0;
        }
        if (i >= ms * 4 && (!v || probe_now() - begun > 2 || !probe_runnable(pid)))
            break;
    }
    *timed_out = true;
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, &st, 0);
    return st;
}

int mode_syscalls(const char *abi, long fill)
{
    if (strcmp(abi, "native") != 0 && strcmp(abi, "i386") != 0 && strcmp(abi, "x32") != 0)
        return 120;
    struct verdict *v = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (v == MAP_FAILED)
        return 125;
    (void)signal(SIGTTOU, SIG_IGN);
    for (long nr = 0; nr <= LAST_NR; nr++) {
        bool timed_out;
        memset((void *)v, 0, sizeof *v);
        pid_t pid = fork();
        if (pid == 0) {
            (void)setpgid(0, 0);
            call_one(abi, nr, fill, v);
        }
        int st = wait_child(pid, 60, v, &timed_out);
        (void)kill(-pid, SIGKILL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        printf("%ld %s\n", nr, verdict_class(v, st, timed_out));
    }
    return 0;
}

int mode_swap(const char *a, const char *b, double seconds)
{
    double end = probe_now() + seconds;
    unsigned long n = 0;
    while (probe_now() < end)
        for (int i = 0; i < 64; i++)
            n += syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */) == 0;
    printf("%lu\n", n);
    return 0;
}

/* Calls that would end or stop the run itself, not the sandbox around it. */
static bool fuzz_skips(long nr)
{
    static const long skip[] = {SYS_exit,
                                SYS_exit_group,
                                SYS_kill,
                                SYS_tkill,
                                SYS_tgkill,
                                SYS_pause,
                                SYS_rt_sigreturn,
                                SYS_rt_sigqueueinfo,
                                SYS_rt_tgsigqueueinfo,
                                SYS_fork,
                                SYS_vfork,
                                SYS_clone,
                                SYS_pidfd_send_signal};
    for (size_t i = 0; i < ROWS(skip); i++)
        if (skip[i] == nr)
            return true;
    return false;
}

static long fuzz_word(void *area)
{
    switch (rand() % 8) {
    case 0:
        return 0;
    case 1:
        return -1;
    case 2:
        return rand() % 16;
    case 3:
        return (long)area + rand() % 4096;
    case 4:
        return 1L << (rand() % 63);
    case 5:
        return -100; /* AT_FDCWD */
    case 6:
        return rand();
    default:
        return ((long)rand() << 32) | rand();
    }
}

static void fuzz_child(unsigned seed)
{
    char *area = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct rlimit small = {64 << 20, 64 << 20};
    srand(seed);
    (void)setrlimit(RLIMIT_AS, &small);
    (void)alarm(1);
    for (int i = 0; i < 4096; i++)
        area[i] = (char)rand();
    memcpy(area, "x\0", 2);
    for (int i = 0; i < 400; i++) {
        long nr = rand() % 470;
        if (!fuzz_skips(nr))
            (void)syscall(nr, fuzz_word(area), fuzz_word(area), fuzz_word(area), fuzz_word(area), fuzz_word(area),
                          fuzz_word(area));
    }
    _exit(0);
}

int mode_fuzz(double seconds, unsigned seed)
{
    double end = probe_now() + seconds;
    unsigned long rounds = 0;
    while (probe_now() < end) {
        bool timed_out;
        pid_t pid = fork();
        if (pid == 0) {
            int null = open("/dev/null", O_RDWR | O_CLOEXEC);
            (void)setpgid(0, 0);
            for (int fd = 0; fd < 3; fd++)
                (void)dup2(null, fd);
            fuzz_child(seed + (unsigned)rounds);
        }
        if (pid < 0)
            break;
        (void)wait_child(pid, 1200, NULL, &timed_out);
        (void)kill(-pid, SIGKILL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        rounds++;
    }
    printf("%lu rounds of 400 calls\n", rounds);
    return 0;
}

int mode_flood(double seconds, int procs)
{
    volatile unsigned long *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double end = probe_now() + seconds;
    for (int i = 0; i < procs; i++)
        if (fork() == 0) {
            unsigned long n = 0;
            while (probe_now() < end) {
                (void)mount("none", "/", "tmpfs", 0, NULL);
                (void)!open("/etc/hutch-probe-flood", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
                n += 2;
            }
            __atomic_fetch_add(count, n, __ATOMIC_SEQ_CST);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    printf("%lu refused calls from %d processes\n", *count, procs);
    return 0;
}

int mode_whoami(void)
{
    char status[4096], *eff;
    if (probe_slurp("/proc/self/status", status, sizeof status) < 0)
        return 1;
    eff = strstr(status, "CapEff:\t");
    printf("ruid=%d euid=%d rgid=%d egid=%d eff=%.16s\n", (int)getuid(), (int)geteuid(), (int)getgid(), (int)getegid(),
           eff ? eff + 8 : "?");
    return 0;
}
