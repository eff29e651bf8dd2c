/* probe-sys.c - group S, first half: system calls that a sandbox has no business making. Sockets are in probe-sock.c. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <linux/perf_event.h>
#include <linux/quota.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif
#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#ifndef SYS_open_tree_attr
#define SYS_open_tree_attr 467
#endif

static void s_i386(const struct attempt *a, struct seen *s)
{
    long rc = probe_i386(a->num, 0, 0, 0);
    errno = rc < 0 ? (int)-rc : 0;
    SEEN_PAST(s, rc < 0 ? -1 : 0, EFAULT, EINVAL, EBADF);
}

static void s_x32(const struct attempt *a, struct seen *s) { seen_rc(s, probe_x32(a->num, 0, 0, 0)); }

static void s_memfd_exec(const struct attempt *a, struct seen *s)
{
    (void)a;
    int out = memfd_create("rt", 0), in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char buf[65536];
    for (ssize_t n; (n = read(in, buf, sizeof buf)) > 0;)
        if (write(out, buf, (size_t)n) != n)
            break;
    pid_t pid = fork();
    if (pid == 0) {
        char name[] = "probe", flag[] = "--whoami";
        char *argv[] = {name, flag, NULL}, *env[] = {NULL};
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)dup2(null, 1);
        (void)syscall(SYS_execveat, out, "", argv, env, AT_EMPTY_PATH);
        _exit(errno);
    }
    int st = 0;
    (void)waitpid(pid, &st, 0);
    errno = WIFEXITED(st) ? WEXITSTATUS(st) : EIO;
    seen_rc(s, errno ? -1 : 0);
}

static void s_openat2(const struct attempt *a, struct seen *s)
{
    static const uint64_t resolve[] = {RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH,
                                       RESOLVE_IN_ROOT};
    (void)a;
    for (size_t i = 0; i < ROWS(resolve); i++) {
        struct open_how how = {.flags = O_RDONLY | O_CLOEXEC, .resolve = resolve[i]};
        long rc = syscall(SYS_openat2, AT_FDCWD, ".", &how, sizeof how);
        seen_rc(s, rc);
        if (rc < 0)
            return;
    }
}

static void on_alarm(int sig) { (void)sig; }

static void s_restart(const struct attempt *a, struct seen *s)
{
    struct timespec now, nap = {0, 100000000}, left = {0, 0};
    struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    (void)a;
    (void)sigaction(SIGALRM, &sa, NULL);
    (void)ualarm(20000, 0);
    if (clock_gettime(CLOCK_REALTIME, &now) < 0 || (nanosleep(&nap, &left) < 0 && errno != EINTR)) {
        seen_rc(s, -1);
        return;
    }
    int p[2];
    char c;
    (void)pipe2(p, O_CLOEXEC);
    pid_t pid = fork();
    if (pid == 0) {
        (void)usleep(60000);
        (void)!write(p[1], "x", 1);
        _exit(0);
    }
    (void)ualarm(20000, 0);
    seen_rc(s, read(p[0], &c, 1)); /* restarted after the alarm */
}

static void s_seccomp(const struct attempt *a, struct seen *s)
{
    struct sock_filter allow[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog prog = {1, allow};
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    seen_rc(s, syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, a->num, &prog));
}

static void s_io_uring(const struct attempt *a, struct seen *s)
{
    struct io_uring_params p = {0};
    if (a->num == SYS_io_uring_setup)
        seen_rc(s, syscall(SYS_io_uring_setup, 1, &p));
    else
        SEEN_PAST(s, syscall(a->num, -1, 0, 0, 0, 0, 0), EBADF, EINVAL);
}

static void s_userfaultfd(const struct attempt *a, struct seen *s)
{
    seen_rc(s, syscall(SYS_userfaultfd, O_CLOEXEC | (a->num ? UFFD_USER_MODE_ONLY : 0)));
}

static void s_bpf(const struct attempt *a, struct seen *s)
{
    static const struct bpf_insn ret0[] = {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0}, {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    if (a->num == BPF_MAP_CREATE) {
        attr.map_type = BPF_MAP_TYPE_ARRAY;
        attr.key_size = 4;
        attr.value_size = 4;
        attr.max_entries = 1;
    } else if (a->num == BPF_PROG_LOAD) {
        attr.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
        attr.insns = (uintptr_t)ret0;
        attr.insn_cnt = 2;
        attr.license = (uintptr_t) "GPL";
    }
    SEEN_PAST(s, syscall(SYS_bpf, a->num, &attr, sizeof attr), EINVAL, E2BIG);
}

static void s_perf(const struct attempt *a, struct seen *s)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE,
                                   .size = sizeof attr,
                                   .config = PERF_COUNT_SW_TASK_CLOCK,
                                   .exclude_kernel = 1,
                                   .exclude_hv = 1};
    if (a->num)
        attr.config = PERF_COUNT_SW_CPU_CLOCK;
    seen_rc(s, syscall(SYS_perf_event_open, &attr, a->num ? -1 : 0, a->num ? 0 : -1, -1, PERF_FLAG_FD_CLOEXEC));
}

static void s_keys(const struct attempt *a, struct seen *s)
{
    long rc;
    switch (a->num) {
    case 0:
        rc = syscall(SYS_add_key, "user", "hutch-probe", "x", 1, KEY_SPEC_PROCESS_KEYRING);
        break;
    case 1:
        rc = syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 0);
        break;
    case 2:
        SEEN_PAST(s, syscall(SYS_request_key, "user", "hutch-probe", NULL, 0), ENOKEY);
        return;
    default:
        rc = syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0);
        break;
    }
    seen_rc(s, rc == -1 ? -1 : 0);
}

/* Calls with arguments that stay without effect even if they are let through. */
static void s_harmless(const struct attempt *a, struct seen *s)
{
    long rc;
    switch (a->num) {
    case SYS_kexec_load:
        rc = syscall(a->num, 0, 0, NULL, 0xffff0000UL);
        break;
    case SYS_kexec_file_load:
        rc = syscall(a->num, -1, -1, 0, NULL, 0);
        break;
    case SYS_init_module:
        rc = syscall(a->num, NULL, 0, "");
        break;
    case SYS_finit_module:
        rc = syscall(a->num, -1, "", 0);
        break;
    case SYS_delete_module:
        rc = syscall(a->num, "hutch_no_such_module", O_NONBLOCK);
        break;
    case SYS_swapon:
        rc = syscall(a->num, "/nonexistent", 0);
        break;
    case SYS_swapoff:
        rc = syscall(a->num, "/nonexistent");
        break;
    case SYS_reboot:
        rc = syscall(a->num, 0, 0, 0, NULL);
        break; /* wrong magic */
    case SYS_acct:
        rc = syscall(a->num, "/nonexistent/hutch");
        break;
    case SYS_quotactl:
        rc = syscall(a->num, QCMD(Q_SYNC, 0), NULL, 0, NULL);
        break;
    case SYS_quotactl_fd:
        rc = syscall(a->num, -1, QCMD(Q_GETFMT, 0), 0, NULL);
        break;
    case SYS_iopl:
        rc = syscall(a->num, 0);
        break;
    case SYS_ioperm:
        rc = syscall(a->num, 0x80, 1, 0);
        break;
    case SYS_syslog:
        rc = syscall(a->num, 10, NULL, 0);
        break; /* size of the log */
    case SYS_modify_ldt:
        rc = syscall(a->num, 0, NULL, 0);
        break;
    case SYS_move_pages:
        rc = syscall(a->num, 0, 0, NULL, NULL, NULL, 0);
        break;
    case SYS_migrate_pages:
        rc = syscall(a->num, 0, 0, NULL, NULL);
        break;
    case SYS_mbind:
        rc = syscall(a->num, 0, 0, 0, NULL, 0, 0);
        break;
    case SYS_set_mempolicy:
        rc = syscall(a->num, 0, NULL, 0);
        break;
    case SYS_vmsplice:
        rc = syscall(a->num, -1, NULL, 0, 0);
        break;
    case SYS_memfd_secret:
        rc = syscall(a->num, 0);
        break;
    case SYS_open_tree_attr:
        rc = syscall(a->num, -1, "", 0, NULL, 0);
        break;
    case SYS_process_madvise:
        rc = syscall(a->num, -1, NULL, 0, 0, 0);
        break;
    default:
        rc = syscall(a->num, 0, 0, 0, 0, 0, 0);
        break;
    }
    SEEN_PAST(s, rc, EINVAL, EBADF, EFAULT, ENOENT, ENOEXEC, EADDRNOTAVAIL, ENODEV, ENOTDIR, ESRCH, EBUSY);
}

static void s_fanotify(const struct attempt *a, struct seen *s)
{
    (void)a;
    seen_rc(s, fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_CLOEXEC, O_RDONLY));
}

static void s_personality(const struct attempt *a, struct seen *s)
{
    seen_rc(s, syscall(SYS_personality, (unsigned long)a->num));
}

static void s_mmap_zero(const struct attempt *a, struct seen *s)
{
    (void)a;
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    seen_rc(s, p == MAP_FAILED ? -1 : 0);
}

/* --- S-28: the path changes while a refused open is being looked at -------------------------------------------------------- */

static char shared_path[512];
static const char *two_paths[2];
static volatile int stop_flipping;

static void *flip(void *unused)
{
    for (unsigned i = 0; !stop_flipping; i++)
        memcpy(shared_path, two_paths[i & 1], strlen(two_paths[i & 1]) + 1);
    return unused;
}

static void s_flip_path(const struct attempt *a, struct seen *s)
{
    struct stat want, got;
    pthread_t t;
    unsigned long n = 0;
    const char *victim = probe_need(s, "rofile");
    (void)a;
    if (!victim)
        return;
    (void)probe_put("rt-flip", "x");
    two_paths[0] = "rt-flip";
    two_paths[1] = victim;
    if (strlen(victim) >= sizeof shared_path || stat("rt-flip", &want) < 0 ||
        pthread_create(&t, NULL, flip, NULL) != 0) {
        seen_text(s, "skipped: set-up");
        return;
    }
    bool through = false;
    for (double end = probe_now() + 1; probe_now() < end && !through; n++) {
        int fd = open(shared_path, O_WRONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        through =
            fstat(fd, &got) == 0 && stat(victim, &want) == 0 && got.st_ino == want.st_ino && got.st_dev == want.st_dev;
        close(fd);
    }
    stop_flipping = 1;
    (void)pthread_join(t, NULL);
    (void)unlink("rt-flip");
    seen_text(s, through ? "success: after %lu opens" : "refused: %lu opens in 1 s", n);
}

#define INIT_NS "the kernel wants the capability in the initial user namespace"
#define CALL(id, what, nr, want, layers, ctl, why)                      \
    {                                                                   \
        id, what, s_harmless, NULL, nr, want, NULL, layers, ctl, 0, why \
    }

static const struct attempt rows[] = {
    {"S-05a", "socketcall through int 0x80", s_i386, NULL, 102, "signal", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"S-05b", "getpid through int 0x80", s_i386, NULL, 20, "signal", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"S-05c", "getpid with the x32 bit", s_x32, NULL, 39, "signal", NULL, "seccomp", CTL_OUTSIDE, 0,
     "this kernel has no x32"},
    {"S-06", "execveat of a memfd (allowed)", s_memfd_exec, NULL, 0, "success EACCES EPERM", NULL, "", CTL_ALLOWED, 0,
     NULL},
    {"S-07", "openat2 with every RESOLVE flag, or ENOSYS", s_openat2, NULL, 0, "success ENOSYS", NULL, "", CTL_ALLOWED,
     0, NULL},
    {"S-08", "vDSO clock and restarted calls", s_restart, NULL, 0, "success", NULL, "", CTL_ALLOWED, 0, NULL},
    {"S-09a", "a filter with a listener", s_seccomp, NULL, SECCOMP_FILTER_FLAG_NEW_LISTENER, "EPERM EBUSY EACCES", NULL,
     "seccomp", CTL_OUTSIDE, 0, NULL},
    {"S-09b", "a plain nested filter", s_seccomp, NULL, 0, "success", NULL, "", CTL_ALLOWED, 0, NULL},
    {"S-10a", "io_uring_setup", s_io_uring, NULL, SYS_io_uring_setup, "ENOSYS EPERM", NULL, "seccomp", CTL_OUTSIDE, 0,
     NULL},
    {"S-10b", "io_uring_enter", s_io_uring, NULL, SYS_io_uring_enter, "ENOSYS EPERM", NULL, "seccomp", CTL_OUTSIDE, 0,
     NULL},
    {"S-10c", "io_uring_register", s_io_uring, NULL, SYS_io_uring_register, "ENOSYS EPERM", NULL, "seccomp",
     CTL_OUTSIDE, 0, NULL},
    {"S-12a", "userfaultfd", s_userfaultfd, NULL, 0, "ENOSYS EPERM", NULL, "seccomp,caps", CTL_ROOT, 0,
     "vm.unprivileged_userfaultfd=0 refuses too"},
    {"S-12b", "userfaultfd, user mode only", s_userfaultfd, NULL, 1, "ENOSYS EPERM", NULL, "seccomp", CTL_OUTSIDE, 0,
     NULL},
    {"S-13a", "load a BPF program", s_bpf, NULL, BPF_PROG_LOAD, "EPERM ENOSYS", NULL, "seccomp,caps", CTL_ROOT, 0,
     "kernel.unprivileged_bpf_disabled refuses too"},
    {"S-13b", "create a BPF map", s_bpf, NULL, BPF_MAP_CREATE, "EPERM ENOSYS", NULL, "seccomp,caps", CTL_ROOT, 0,
     "kernel.unprivileged_bpf_disabled refuses too"},
    {"S-13c", "load BTF", s_bpf, NULL, BPF_BTF_LOAD, "EPERM ENOSYS", NULL, "seccomp,caps", CTL_ROOT, 0,
     "kernel.unprivileged_bpf_disabled refuses too"},
    {"S-14a", "perf counter on the own task", s_perf, NULL, 0, "EPERM EACCES ENOSYS", NULL, "seccomp", CTL_OUTSIDE, 0,
     NULL},
    {"S-14b", "perf counter on a whole CPU", s_perf, NULL, 1, "EPERM EACCES ENOSYS", NULL, "seccomp,caps", CTL_ROOT, 0,
     INIT_NS},
    {"S-15a", "add_key", s_keys, NULL, 0, "EPERM ENOSYS", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"S-15b", "keyctl on the user keyring", s_keys, NULL, 1, "EPERM ENOSYS", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"S-15c", "request_key", s_keys, NULL, 2, "EPERM ENOSYS", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"S-15d", "keyctl on the caller's session keyring", s_keys, NULL, 3, "EPERM ENOSYS", NULL, "seccomp", CTL_OUTSIDE,
     0, NULL},
    CALL("S-16a", "kexec_load", SYS_kexec_load, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16b", "kexec_file_load", SYS_kexec_file_load, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16c", "init_module", SYS_init_module, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16d", "finit_module", SYS_finit_module, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16e", "delete_module", SYS_delete_module, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16f", "swapon", SYS_swapon, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16g", "swapoff", SYS_swapoff, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16h", "reboot", SYS_reboot, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT,
         "ends in a signal to init inside a pid namespace"),
    CALL("S-16i", "acct", SYS_acct, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16j", "quotactl", SYS_quotactl, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    CALL("S-16k", "quotactl_fd", SYS_quotactl_fd, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    CALL("S-16l", "iopl", SYS_iopl, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, "this kernel may be built without it"),
    CALL("S-16m", "ioperm", SYS_ioperm, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, "this kernel may be built without it"),
    CALL("S-16n", "syslog", SYS_syslog, "EPERM ENOSYS", "seccomp,caps", CTL_ROOT, INIT_NS),
    CALL("S-16o", "move_pages", SYS_move_pages, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    CALL("S-16p", "migrate_pages", SYS_migrate_pages, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    CALL("S-16q", "mbind", SYS_mbind, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    CALL("S-16r", "set_mempolicy", SYS_set_mempolicy, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    CALL("S-16s", "vmsplice", SYS_vmsplice, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    CALL("S-16t", "memfd_secret", SYS_memfd_secret, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE,
         "this kernel has it switched off"),
    CALL("S-16u", "open_tree_attr", SYS_open_tree_attr, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE,
         "this kernel may be too old for it"),
    CALL("S-16v", "process_madvise", SYS_process_madvise, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    {"S-17", "fanotify_init without privilege", s_fanotify, NULL, 0, "EPERM ENOSYS", NULL, "seccomp", CTL_OUTSIDE, 0,
     NULL},
    {"S-18a", "personality READ_IMPLIES_EXEC", s_personality, NULL, READ_IMPLIES_EXEC, "EPERM", NULL, "seccomp",
     CTL_OUTSIDE, 0, NULL},
    {"S-18b", "personality ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC", s_personality, NULL,
     READ_IMPLIES_EXEC | ADDR_NO_RANDOMIZE, "EPERM", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"S-04a", "personality with the upper half set", s_personality, NULL, 0x100000000L | READ_IMPLIES_EXEC, "EPERM",
     NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    CALL("S-19a", "modify_ldt", SYS_modify_ldt, "EPERM ENOSYS", "seccomp", CTL_OUTSIDE, NULL),
    {"S-19b", "map page 0", s_mmap_zero, NULL, 0, "EPERM EACCES", NULL, "caps", CTL_ROOT, 0, INIT_NS},
    {"S-28", "change the path of an open from another thread, 1 s", s_flip_path, NULL, 0, "refused", NULL,
     "mounts,landlock", CTL_OUTSIDE, 0, NULL},
};

const struct attempt_table probe_sys = {"system calls", rows, ROWS(rows)};
