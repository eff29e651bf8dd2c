#include "os/probe/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "os/probe/probe-int.h"

enum { CHILD_DEADLINE_MS = 5000 };

/* Ids that only probes use: far above the ranges that sandboxes get, so the two can never meet. */
static const char probe_range[] = "0 3221225472 65536\n";

static void probe_fill_result(struct probe_result *r, enum probe_state state, const char *remedy, const char *fmt,
                              va_list ap)
{
    r->state = state;
    (void)snprintf(r->remedy, sizeof r->remedy, "%s", remedy);
    (void)vsnprintf(r->detail, sizeof r->detail, fmt, ap);
}

void probe_ok(struct probe_result *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    probe_fill_result(r, PROBE_OK, "", fmt, ap);
    va_end(ap);
}

void probe_advice(struct probe_result *r, const char *remedy, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    probe_fill_result(r, PROBE_ADVICE, remedy, fmt, ap);
    va_end(ap);
}

void probe_missing(struct probe_result *r, const char *remedy, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    probe_fill_result(r, PROBE_MISSING, remedy, fmt, ap);
    va_end(ap);
}

void probe_failed_at(struct probe_answer *a, const char *stage)
{
    a->eno = errno;
    (void)snprintf(a->stage, sizeof a->stage, "%s", stage);
}

/* --- children ------------------------------------------------------------------------------------------------------- */

struct child {
    unsigned flags;
    void (*fn)(void *arg, struct probe_answer *a);
    void *arg;
    int sock;
    bool root;
};

static __attribute__((noreturn)) void child_answer(const struct child *c, const struct probe_answer *a)
{
    (void)fd_send(c->sock, a, sizeof *a, NULL, 0);
    _exit(0);
}

/* Waits until the parent has written the maps of our namespaces. */
static void child_enter(const struct child *c, struct probe_answer *a)
{
    int ns = (c->flags & PROBE_NEWUSER ? CLONE_NEWUSER : 0) | (c->flags & PROBE_NEWNS ? CLONE_NEWNS : 0) |
             (c->flags & PROBE_NEWPID ? CLONE_NEWPID : 0);
    char go = 0;
    if (ns != 0 && unshare(ns) < 0) {
        probe_failed_at(a, "unshare");
        child_answer(c, a);
    }
    a->eno = -1; /* "namespaces are there" */
    if (fd_send(c->sock, a, sizeof *a, NULL, 0) < 0 || recv(c->sock, &go, 1, 0) != 1)
        _exit(1);
    a->eno = 0;
    /* Root's child has a range without its old uid: become uid 0 of the range. An ordinary user's child keeps its
     * uid. */
    if ((c->flags & PROBE_NEWUSER) && c->root && (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)) {
        probe_failed_at(a, "setresuid");
        child_answer(c, a);
    }
    if ((c->flags & PROBE_NEWNS) && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        probe_failed_at(a, "make mounts private");
        child_answer(c, a);
    }
}

static __attribute__((noreturn)) void child_main(const struct child *c)
{
    struct probe_answer a = {0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    child_enter(c, &a);
    if (c->flags & PROBE_NEWPID) {
        pid_t pid = fork();
        if (pid < 0) {
            probe_failed_at(&a, "fork");
            child_answer(c, &a);
        }
        if (pid > 0) {
            (void)waitpid(pid, NULL, 0);
            _exit(0);
        }
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    c->fn(c->arg, &a);
    child_answer(c, &a);
}

static int write_maps(pid_t pid)
{
    char path[64], map[64];
    static const char *const files[] = {"gid_map", "uid_map"};
    bool root = geteuid() == 0;
    (void)snprintf(path, sizeof path, "/proc/%d/setgroups", pid);
    if (fd_put(AT_FDCWD, path, "deny") < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        unsigned id = i == 0 ? getegid() : geteuid();
        (void)snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i]);
        (void)snprintf(map, sizeof map, "%u %u 1\n", id, id);
        if (fd_put(AT_FDCWD, path, root ? probe_range : map) < 0)
            return -1;
    }
    return 0;
}

static bool wait_answer(int sock, struct probe_answer *a)
{
    struct pollfd pfd = {.fd = sock, .events = POLLIN};
    int n;
    do
        n = poll(&pfd, 1, CHILD_DEADLINE_MS);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        *a = (struct probe_answer){.eno = ETIMEDOUT, .stage = "wait"};
        return false;
    }
    if (recv(sock, a, sizeof *a, 0) != sizeof *a) {
        *a = (struct probe_answer){.eno = ECHILD, .stage = "wait"};
        return false;
    }
    return true;
}

static void guide_child(pid_t pid, int sock, unsigned flags, int *userns_fd, struct probe_answer *a)
{
    char path[64];
    if (!wait_answer(sock, a) || a->eno != -1)
        return;
    if ((flags & PROBE_NEWUSER) && write_maps(pid) < 0) {
        probe_failed_at(a, "write id maps");
        return;
    }
    if (userns_fd) {
        (void)snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
        *userns_fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (send(sock, "", 1, MSG_NOSIGNAL) != 1) {
        probe_failed_at(a, "send");
        return;
    }
    (void)wait_answer(sock, a);
}

struct probe_answer probe_in_child(unsigned flags, void (*fn)(void *arg, struct probe_answer *a), void *arg,
                                   int *userns_fd)
{
    struct probe_answer a = {0};
    int pair[2];
    if (userns_fd)
        *userns_fd = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        probe_failed_at(&a, "socketpair");
        return a;
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(pair[0]);
        child_main(&(struct child){flags, fn, arg, pair[1], geteuid() == 0});
    }
    (void)close(pair[1]);
    if (pid < 0)
        probe_failed_at(&a, "fork");
    else
        guide_child(pid, pair[0], flags, userns_fd, &a);
    (void)close(pair[0]);
    if (pid > 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    return a;
}

/* --- the table ------------------------------------------------------------------------------------------------------ */

#define SETTING(name, ...) static const struct probe_setting setting_##name = {.path = __VA_ARGS__}

SETTING(io_uring, "/proc/sys/kernel/io_uring_disabled", .min = 2, .max = 2, .absent_ok = false,
        .risk = "other programs on this host may use io_uring; inside, the filter refuses it",
        .remedy = "sysctl -w kernel.io_uring_disabled=2");
SETTING(userfaultfd, "/proc/sys/vm/unprivileged_userfaultfd", .min = 0, .max = 0, .absent_ok = true,
        .risk = "userfaultfd makes kernel races easy to win", .remedy = "sysctl -w vm.unprivileged_userfaultfd=0");
SETTING(bpf, "/proc/sys/kernel/unprivileged_bpf_disabled", .min = 1, .max = 2, .absent_ok = true,
        .risk = "ordinary users may load BPF programs", .remedy = "sysctl -w kernel.unprivileged_bpf_disabled=2");
SETTING(perf, "/proc/sys/kernel/perf_event_paranoid", .min = 2, .max = 9, .absent_ok = true,
        .risk = "ordinary users may measure the kernel", .remedy = "sysctl -w kernel.perf_event_paranoid=2");
SETTING(tiocsti, "/proc/sys/dev/tty/legacy_tiocsti", .min = 0, .max = 0, .absent_ok = true,
        .risk = "a program may type into the terminal it shares; inside, the filter and a new session refuse it",
        .remedy = "sysctl -w dev.tty.legacy_tiocsti=0");
SETTING(yama, "/proc/sys/kernel/yama/ptrace_scope", .min = 1, .max = 3, .absent_ok = false,
        .risk = "any process may trace others of its user", .remedy = "sysctl -w kernel.yama.ptrace_scope=1");
SETTING(kptr, "/proc/sys/kernel/kptr_restrict", .min = 1, .max = 2, .absent_ok = true,
        .risk = "kernel addresses are shown to everyone", .remedy = "sysctl -w kernel.kptr_restrict=2");
SETTING(dmesg, "/proc/sys/kernel/dmesg_restrict", .min = 1, .max = 1, .absent_ok = true,
        .risk = "the kernel log is readable by everyone", .remedy = "sysctl -w kernel.dmesg_restrict=1");
SETTING(symlinks, "/proc/sys/fs/protected_symlinks", .min = 1, .max = 1, .absent_ok = true,
        .risk = "links planted in shared directories are followed", .remedy = "sysctl -w fs.protected_symlinks=1");
SETTING(hardlinks, "/proc/sys/fs/protected_hardlinks", .min = 1, .max = 1, .absent_ok = true,
        .risk = "files of others can be hard-linked", .remedy = "sysctl -w fs.protected_hardlinks=1");
SETTING(fifos, "/proc/sys/fs/protected_fifos", .min = 1, .max = 2, .absent_ok = true,
        .risk = "FIFOs planted in shared directories are opened", .remedy = "sysctl -w fs.protected_fifos=2");
SETTING(regular, "/proc/sys/fs/protected_regular", .min = 1, .max = 2, .absent_ok = true,
        .risk = "files planted in shared directories are opened", .remedy = "sysctl -w fs.protected_regular=2");
SETTING(suid_dumpable, "/proc/sys/fs/suid_dumpable", .min = 0, .max = 0, .absent_ok = true,
        .risk = "privileged programs leave memory images", .remedy = "sysctl -w fs.suid_dumpable=0");
SETTING(ksm, "/sys/kernel/mm/ksm/run", .min = 0, .max = 0, .absent_ok = true,
        .risk = "equal pages are merged, which can be timed", .remedy = "echo 0 >/sys/kernel/mm/ksm/run");
SETTING(smt, "/sys/devices/system/cpu/smt/active", .min = 0, .max = 0, .absent_ok = true,
        .risk = "two programs share one core, which can be timed",
        .remedy = "echo off >/sys/devices/system/cpu/smt/control");

static const struct probe_call call_pidfd = {SYS_pidfd_open, "processes are held by descriptor, never by number", NULL};
static const struct probe_call call_close_range = {SYS_close_range,
                                                   "no descriptor of the host survives into the sandbox", NULL};
static const struct probe_call call_openat2 = {SYS_openat2, "paths are resolved beneath a directory", NULL};
static const struct probe_call call_statmount = {457, "mounts are verified one by one", "/proc/self/mountinfo is read"};

static const struct probe table[] = {
    {"kernel.version", "kernel", "version 6.1 or newer", "uname", NEED_RUN, probe_version, NULL},
    {"ns.user", "namespaces", "user namespaces", "made one in a child", NEED_RUN, probe_userns, NULL},
    {"ns.other", "namespaces", "mount, pid, ipc, uts, net, cgroup", "made them in a child", NEED_RUN, probe_otherns,
     NULL},
    {"ns.procfs", "namespaces", "own procfs in a user namespace", "mounted one in a child", NEED_RUN, probe_procfs,
     NULL},
    {"fs.mount-api", "file systems", "mounts by descriptor", "open_tree and mount_setattr in a child", NEED_RUN,
     probe_mount_api, NULL},
    {"fs.idmap", "file systems", "idmapped mounts", "tried on the current directory and a tmpfs", NEED_CONTAINER,
     probe_idmap, NULL},
    {"fs.overlay", "file systems", "overlay", "mounted one in a child", NEED_CONTAINER, probe_overlay, NULL},
    {"fs.overlay-remove", "file systems", "overlay on tmpfs, unprivileged", "removed a directory in one", NEED_FEATURE,
     probe_overlay_remove, NULL},
    {"net.rules", "network", "network by rules", "connected to a foreign address in a namespace where all are local",
     NEED_FEATURE, probe_network, NULL},
    {"landlock.abi", "filters", "Landlock ABI 2 or newer", "asked the kernel", NEED_RUN, probe_landlock, NULL},
    {"seccomp.filter", "filters", "seccomp filters", "loaded one in a child", NEED_RUN, probe_seccomp, NULL},
    {"seccomp.notify", "filters", "seccomp notification", "loaded a listener in a child", NEED_FEATURE, probe_notify,
     NULL},
    {"seccomp.wakeup", "filters", "notification on the same CPU", "set the flag on a listener", NEED_FEATURE,
     probe_sync_wakeup, NULL},
    {"cgroup.limits", "limits", "cgroups", "looked for a writable hierarchy", NEED_FEATURE, probe_cgroup, NULL},
    {"cgroup.clone", "limits", "clone into a cgroup", "clone3 with an invalid cgroup", NEED_FEATURE, probe_into_cgroup,
     NULL},
    {"limits.disk", "limits", "files of sandboxes", "looked at the store's directory", NEED_FEATURE, probe_uppers,
     NULL},
    {"limits.capacity", "limits", "sandboxes this host carries", "read the sizes of the kernel's tables", NEED_FEATURE,
     probe_capacity, NULL},
    {"ids.newuidmap", "ids", "subordinate uid range", "read the map files, looked for newuidmap", NEED_CONTAINER,
     probe_newuidmap, NULL},
    {"call.pidfd", "system calls", "pidfd_open", "called it", NEED_RUN, probe_syscall, &call_pidfd},
    {"call.close_range", "system calls", "close_range", "called it", NEED_RUN, probe_syscall, &call_close_range},
    {"call.openat2", "system calls", "openat2", "called it", NEED_RUN, probe_syscall, &call_openat2},
    {"call.statmount", "system calls", "statmount", "called it", NEED_FEATURE, probe_syscall, &call_statmount},
    {"host.io_uring", "hardening", "io_uring off", "read it", NEED_HARDENING, probe_sysctl, &setting_io_uring},
    {"host.userfaultfd", "hardening", "userfaultfd off", "read it", NEED_HARDENING, probe_sysctl, &setting_userfaultfd},
    {"host.bpf", "hardening", "unprivileged BPF off", "read it", NEED_HARDENING, probe_sysctl, &setting_bpf},
    {"host.perf", "hardening", "perf restricted", "read it", NEED_HARDENING, probe_sysctl, &setting_perf},
    {"host.tiocsti", "hardening", "TIOCSTI off", "read it", NEED_HARDENING, probe_sysctl, &setting_tiocsti},
    {"host.yama", "hardening", "ptrace restricted", "read it", NEED_HARDENING, probe_sysctl, &setting_yama},
    {"host.kptr", "hardening", "kernel addresses hidden", "read it", NEED_HARDENING, probe_sysctl, &setting_kptr},
    {"host.dmesg", "hardening", "kernel log restricted", "read it", NEED_HARDENING, probe_sysctl, &setting_dmesg},
    {"host.symlinks", "hardening", "protected symlinks", "read it", NEED_HARDENING, probe_sysctl, &setting_symlinks},
    {"host.hardlinks", "hardening", "protected hard links", "read it", NEED_HARDENING, probe_sysctl,
     &setting_hardlinks},
    {"host.fifos", "hardening", "protected FIFOs", "read it", NEED_HARDENING, probe_sysctl, &setting_fifos},
    {"host.regular", "hardening", "protected files", "read it", NEED_HARDENING, probe_sysctl, &setting_regular},
    {"host.suid_dumpable", "hardening", "no set-uid core dumps", "read it", NEED_HARDENING, probe_sysctl,
     &setting_suid_dumpable},
    {"host.core_pattern", "hardening", "core dumps to a file", "read it", NEED_HARDENING, probe_core_pattern, NULL},
    {"host.swap", "hardening", "no swap", "read /proc/swaps", NEED_HARDENING, probe_swap, NULL},
    {"host.ksm", "hardening", "page merging off", "read it", NEED_HARDENING, probe_sysctl, &setting_ksm},
    {"host.smt", "hardening", "SMT off", "read it", NEED_HARDENING, probe_sysctl, &setting_smt},
    {"host.ia32", "hardening", "32-bit system calls off", "tried one in a child", NEED_HARDENING, probe_ia32, NULL},
};

static bool probe_need_is_met(const struct probe_report *r, enum probe_need need)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->probes[i].need == need && r->results[i].state == PROBE_MISSING)
            return false;
    return true;
}

static enum probe_tier judge_tier(const struct probe_report *r)
{
    if (r->can_run)
        return probe_need_is_met(r, NEED_CONTAINER) ? TIER_CONTAINER : TIER_PROCESS;
    bool filters = probe_find(r, "landlock.abi")->state != PROBE_MISSING &&
                   probe_find(r, "seccomp.filter")->state != PROBE_MISSING;
    return filters ? TIER_NESTED : TIER_NONE;
}

void probe_run_all(struct probe_report *ret)
{
    *ret = (struct probe_report){.probes = table, .n = ARRAY_LEN(table)};
    ret->results = xcalloc(ret->n, sizeof *ret->results);
    for (size_t i = 0; i < ret->n; i++)
        table[i].run(&table[i], &ret->results[i]);
    ret->can_run = probe_need_is_met(ret, NEED_RUN);
    ret->tier = judge_tier(ret);
}

void probe_report_done(struct probe_report *r)
{
    free(r->results);
    *r = (struct probe_report){0};
}

const char *probe_tier_name(enum probe_tier tier)
{
    static const char *const names[] = {"none", "nested", "process", "container"};
    return names[tier];
}

const struct probe_result *probe_find(const struct probe_report *r, const char *id)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->probes[i].id, id) == 0)
            return &r->results[i];
    return NULL;
}
