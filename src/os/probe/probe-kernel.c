#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/probe/probe-int.h"

/* Newer than the headers of the reference system. */
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS      SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (1UL << 0)
#endif
enum { LANDLOCK_ASK_VERSION = 1 << 0, LANDLOCK_ASK_ERRATA = 1 << 1 };

enum { FLOOR_MAJOR = 6, FLOOR_MINOR = 1, FLOOR_LANDLOCK = 2 };

void probe_version(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct utsname u;
    unsigned major = 0, minor = 0;
    if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &major, &minor) != 2)
        probe_missing(r, "boot Linux 6.1 or newer", "the version could not be read");
    else if (strcmp(u.machine, "x86_64") != 0)
        probe_missing(r, "use an x86-64 machine", "this is %.20s; only x86-64 is supported", u.machine);
    else if (major < FLOOR_MAJOR || (major == FLOOR_MAJOR && minor < FLOOR_MINOR))
        probe_missing(r, "boot Linux 6.1 or newer", "%.64s is older", u.release);
    else
        probe_ok(r, "%.64s", u.release);
}

void probe_landlock(const struct probe *p, struct probe_result *r)
{
    (void)p;
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_ASK_VERSION);
    if (abi < 0 && errno == EOPNOTSUPP) {
        probe_missing(r, "boot with lsm=landlock,... in front of the present list (/sys/kernel/security/lsm)",
                      "built into the kernel but not switched on");
        return;
    }
    if (abi < FLOOR_LANDLOCK) {
        probe_missing(r, "boot a kernel with CONFIG_SECURITY_LANDLOCK, 6.1 or newer", "%s",
                      abi < 0 ? strerror(errno) : "ABI 1 cannot govern renames");
        return;
    }
    long errata = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_ASK_ERRATA);
    if (errata < 0)
        probe_ok(r, "ABI %ld", abi);
    else
        probe_ok(r, "ABI %ld, errata 0x%lx", abi, (unsigned long)errata);
}

/* Loads a filter that allows everything; with_listener also asks for notification. Returns the listener or 0. */
static int probe_load_filter(bool with_listener, struct probe_answer *a)
{
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog prog = {.len = 1, .filter = &allow};
    unsigned flags = with_listener ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
        probe_failed_at(a, "no_new_privs");
        return -1;
    }
    int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
    if (fd < 0)
        probe_failed_at(a, "seccomp");
    return fd;
}

static void plain_filter(void *arg, struct probe_answer *a)
{
    (void)arg;
    (void)probe_load_filter(false, a);
}

static void listening_filter(void *arg, struct probe_answer *a)
{
    (void)arg;
    _cleanup_close_ int fd = probe_load_filter(true, a);
    if (fd < 0)
        return;
    a->value = ioctl(fd, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP) == 0;
}

void probe_seccomp(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(0, plain_filter, NULL, NULL);
    if (a.eno == 0)
        probe_ok(r, "loaded");
    else
        probe_missing(r, "boot a kernel with CONFIG_SECCOMP_FILTER", "%s: %s", a.stage, strerror(a.eno));
}

void probe_notify(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(0, listening_filter, NULL, NULL);
    if (a.eno == 0)
        probe_ok(r, "refusals can be explained");
    else if (a.eno == EBUSY)
        probe_missing(r, "run outside the sandbox that listens already",
                      "taken by the sandbox around us; refusals are enforced but not explained");
    else
        probe_missing(r, "boot a kernel with CONFIG_SECCOMP_FILTER", "refusals are enforced but not explained: %s",
                      strerror(a.eno));
}

void probe_sync_wakeup(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(0, listening_filter, NULL, NULL);
    if (a.eno == 0 && a.value != 0)
        probe_ok(r, "available");
    else
        probe_advice(r, "boot Linux 6.6 or newer", "not available: explaining a refusal costs a CPU switch more");
}

void probe_syscall(const struct probe *p, struct probe_result *r)
{
    const struct probe_call *c = p->arg;
    /* Arguments that no version of the call accepts: bad descriptor, null pointers, no size. */
    errno = 0;
    (void)syscall(c->nr, -1, NULL, -1, 0, 0, 0);
    int eno = errno;
    if (eno != ENOSYS)
        probe_ok(r, "%s", c->used_for);
    else if (c->fallback)
        probe_advice(r, "boot a newer kernel", "not there; %s instead", c->fallback);
    else
        probe_missing(r, "boot Linux 6.1 or newer; in a container, allow the call", "not there: %s", c->used_for);
}

void probe_into_cgroup(const struct probe *p, struct probe_result *r)
{
    (void)p;
    /* A kernel that knows the flag complains about the descriptor, one that does not about the flag or the size. */
    struct clone_args args = {.flags = CLONE_INTO_CGROUP, .exit_signal = 17, .cgroup = (uint64_t)INT32_MAX};
    long pid = syscall(SYS_clone3, &args, sizeof args);
    int eno = errno;
    if (pid == 0)
        _exit(0);
    if (pid > 0)
        (void)waitpid((pid_t)pid, NULL, 0);
    else if (eno == EBADF) {
        probe_ok(r, "limits hold from the first instruction");
        return;
    }
    probe_advice(r, "boot Linux 5.7 or newer", "not there: processes are moved after they were made");
}

static void call_32bit(void *arg, struct probe_answer *a)
{
    (void)arg;
    (void)a;
    long nr = 20; /* getpid of the 32-bit table; without emulation the instruction faults and the child dies */
    __asm__ volatile("int $0x80" : "+a"(nr) : : "memory", "r8", "r9", "r10", "r11");
    a->value = nr > 0;
}

void probe_ia32(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(0, call_32bit, NULL, NULL);
    if (a.eno == 0 && a.value != 0)
        probe_advice(r, "boot with ia32_emulation=0 if no 32-bit program is needed",
                     "on for this host; inside, every 32-bit call ends the process");
    else
        probe_ok(r, "off");
}
