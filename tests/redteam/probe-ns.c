/* probe-ns.c - group N: namespaces, capabilities, ids, clocks. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void n_unshare(const struct attempt *a, struct seen *s) { seen_rc(s, syscall(SYS_unshare, a->num)); }

static void n_clone(const struct attempt *a, struct seen *s)
{
    long rc = syscall(SYS_clone, (unsigned long)a->num | SIGCHLD, 0, 0, 0, 0);
    if (rc == 0)
        _exit(0);
    seen_rc(s, rc);
    if (rc > 0)
        (void)waitpid((pid_t)rc, NULL, 0);
}

static void n_clone3(const struct attempt *a, struct seen *s)
{
    struct clone_args args = {.flags = (uint64_t)a->num, .exit_signal = SIGCHLD};
    long rc = syscall(SYS_clone3, &args, sizeof args);
    if (rc == 0)
        _exit(0);
    seen_rc(s, rc);
    if (rc > 0)
        (void)waitpid((pid_t)rc, NULL, 0);
}

static void n_setns(const struct attempt *a, struct seen *s)
{
    int fd = open(a->arg, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        seen_rc(s, -1);
    else
        SEEN_PAST(s, syscall(SYS_setns, fd, 0), EINVAL);
}

static void n_open_init_ns(const struct attempt *a, struct seen *s)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)probe_target(), a->arg);
    seen_rc(s, open(path, O_RDONLY | O_CLOEXEC));
}

static void n_parent(const struct attempt *a, struct seen *s)
{
    (void)a;
    int fd = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
    seen_rc(s, fd < 0 ? -1 : ioctl(fd, NS_GET_PARENT));
}

static void n_map_write(const struct attempt *a, struct seen *s)
{
    int fd = open(a->arg, O_WRONLY | O_CLOEXEC);
    seen_rc(s, fd < 0 ? -1 : write(fd, a->num ? "allow" : "0 0 1", 5));
}

static void n_nested_mount(const struct attempt *a, struct seen *s)
{
    (void)mkdir("rt-mnt", 0755);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID) < 0) {
        seen_rc(s, -1);
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        const char *opt = strcmp(a->arg, "overlay") == 0 ? "lowerdir=/etc:/usr" : NULL;
        _exit(mount("none", "rt-mnt", a->arg, 0, opt) == 0 ? 0 : errno);
    }
    int st = 0;
    (void)waitpid(pid, &st, 0);
    errno = WIFEXITED(st) ? WEXITSTATUS(st) : EIO;
    SEEN_PAST(s, errno ? -1 : 0, EINVAL);
}

/* --- capabilities ------------------------------------------------------------------------------------------------------------ */

static unsigned long long cap_line(const char *status, const char *key)
{
    const char *p = strstr(status, key);
    return p ? strtoull(p + strlen(key), NULL, 16) : ~0ULL;
}

#define BIT(c) (1ULL << (c))

static void n_caps(const struct attempt *a, struct seen *s)
{
    static const char *const keys[] = {"CapInh:\t", "CapPrm:\t", "CapEff:\t", "CapBnd:\t", "CapAmb:\t"};
    const unsigned long long computer_caps =
        BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID) | BIT(CAP_SETUID) | BIT(CAP_SETGID) |
        BIT(CAP_KILL) | BIT(CAP_SETPCAP) | BIT(CAP_SYS_CHROOT) | BIT(CAP_AUDIT_WRITE) | BIT(CAP_NET_BIND_SERVICE);
    char status[4096];
    if (probe_slurp("/proc/self/status", status, sizeof status) < 0) {
        seen_rc(s, -1);
        return;
    }
    unsigned long long v = cap_line(status, keys[a->num]);
    if (probe_is_computer())
        v &= ~computer_caps;
    if (v)
        seen_text(s, "leak: %s %llx", a->arg, v);
    else
        seen_text(s, "zero");
}

static void n_capset(const struct attempt *a, struct seen *s)
{
    struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct d[2] = {{.effective = 1u << CAP_SYS_ADMIN, .permitted = 1u << CAP_SYS_ADMIN}};
    (void)a;
    seen_rc(s, syscall(SYS_capset, &h, d));
}

static void n_ambient(const struct attempt *a, struct seen *s)
{
    struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct d[2];
    (void)a;
    if (syscall(SYS_capget, &h, d) == 0) {
        d[0].inheritable |= d[0].permitted;
        (void)syscall(SYS_capset, &h, d);
    }
    seen_rc(s, prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0));
}

static void n_securebits(const struct attempt *a, struct seen *s)
{
    if (a->num) {
        seen_rc(s, prctl(PR_SET_SECUREBITS, 0));
        return;
    }
    const int want = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED;
    int bits = prctl(PR_GET_SECUREBITS);
    if (bits < 0)
        seen_rc(s, -1);
    else
        seen_text(s, (bits & want) == want ? "locked" : "leak: securebits %x", bits);
}

/* --- ids ----------------------------------------------------------------------------------------------------------------------- */

static void n_setuid(const struct attempt *a, struct seen *s)
{
    if (a->num == 0 && getuid() == 0) {
        /* Inside-root of a root caller. What counts is that it is nobody on the host: F-01 and K-03 repeat as this uid. */
        seen_text(s, "already: uid 0 inside");
        return;
    }
    seen_rc(s, syscall(SYS_setuid, (uid_t)a->num));
}

static void n_setgroups(const struct attempt *a, struct seen *s)
{
    gid_t g = getgid();
    (void)a;
    seen_rc(s, syscall(SYS_setgroups, 1, &g));
}

static void n_uid_map(const struct attempt *a, struct seen *s)
{
    char map[4096];
    unsigned inside, host, count;
    if (probe_slurp(a->arg, map, sizeof map) < 0) {
        seen_rc(s, -1);
        return;
    }
    seen_text(s, "no-host-0");
    for (char *line = map; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char *end;
        inside = (unsigned)strtoul(line, &end, 10);
        host = (unsigned)strtoul(end, &end, 10);
        count = (unsigned)strtoul(end, &end, 10);
        if (count && host == 0)
            seen_text(s, "leak: %u inside is 0 on the host", inside);
    }
}

/* --- clocks and names ------------------------------------------------------------------------------------------------------------ */

static void n_clock(const struct attempt *a, struct seen *s)
{
    struct timex tx = {.modes = ADJ_TICK, .tick = 1}; /* out of range: refused after the permission check */
    struct timex rd = {.modes = 0};
    switch (a->num) {
    case 0:
        seen_rc(s, syscall(SYS_settimeofday, NULL, NULL));
        break;
    case 1:
        SEEN_PAST(s, syscall(SYS_clock_adjtime, CLOCK_REALTIME, &tx), EINVAL);
        break;
    case 2:
        SEEN_PAST(s, syscall(SYS_adjtimex, &tx), EINVAL);
        break;
    case 3:
        seen_rc(s, syscall(SYS_clock_adjtime, CLOCK_REALTIME, &rd));
        break;
    default: {
        struct timespec bad = {.tv_sec = 0, .tv_nsec = 0};
        /* CLOCK_MONOTONIC cannot be set by anyone; a filter answers before the kernel says so. */
        SEEN_PAST(s, syscall(SYS_clock_settime, CLOCK_MONOTONIC, &bad), EINVAL);
    }
    }
}

static void n_hostname(const struct attempt *a, struct seen *s)
{
    struct utsname u;
    (void)uname(&u);
    if (a->num == 0) {
        seen_rc(s, syscall(SYS_sethostname, u.nodename, strlen(u.nodename)));
    } else if (a->num == 1) {
        seen_rc(s, syscall(SYS_setdomainname, u.domainname, strlen(u.domainname)));
    } else {
        const char *host = probe_need(s, "hostname");
        if (host)
            seen_text(s, strcmp(host, u.nodename) == 0 ? "leak: the host's name" : "private");
    }
}

#define NSW "seccomp,caps,userns-limit"

static const struct attempt rows[] = {
    {"N-01", "unshare a user namespace", n_unshare, NULL, CLONE_NEWUSER, "EPERM", NULL, "seccomp,userns-limit",
     CTL_OUTSIDE, 0, NULL},
    {"N-02a", "clone a user namespace", n_clone, NULL, CLONE_NEWUSER, "EPERM", NULL, "seccomp,userns-limit",
     CTL_OUTSIDE, 0, NULL},
    {"N-02b", "clone a mount namespace", n_clone, NULL, CLONE_NEWNS, "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-02c", "clone a pid namespace", n_clone, NULL, CLONE_NEWPID, "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-02d", "clone a network namespace", n_clone, NULL, CLONE_NEWNET, "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-02e", "clone an IPC namespace", n_clone, NULL, CLONE_NEWIPC, "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-02f", "clone a UTS namespace", n_clone, NULL, CLONE_NEWUTS, "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-02g", "clone a cgroup namespace", n_clone, NULL, CLONE_NEWCGROUP, "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-02h", "unshare a time namespace", n_unshare, NULL, CLONE_NEWTIME, "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-02i", "unshare a mount namespace", n_unshare, NULL, CLONE_NEWNS, "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-03a", "clone3 without flags", n_clone3, NULL, 0, "ENOSYS", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"N-03b", "clone3 of a user namespace", n_clone3, NULL, CLONE_NEWUSER, "ENOSYS EPERM", NULL, "seccomp,userns-limit",
     CTL_OUTSIDE, 0, NULL},
    {"N-04a", "clone a user namespace with the upper half set", n_clone, NULL, 0x100000000L | CLONE_NEWUSER, "EPERM",
     NULL, "seccomp,userns-limit", CTL_OUTSIDE, 0, NULL},
    {"N-04b", "clone a network namespace with the upper half set", n_clone, NULL, 0x7fffffff00000000L | CLONE_NEWNET,
     "EPERM", NULL, NSW, CTL_NS, 0, NULL},
    {"N-05a", "open init's network namespace", n_open_init_ns, "net", 0, "EACCES EPERM", NULL, "dumpable,landlock",
     CTL_OUTSIDE, 0, NULL},
    {"N-05b", "open init's user namespace", n_open_init_ns, "user", 0, "EACCES EPERM", NULL, "dumpable,landlock",
     CTL_OUTSIDE, 0, NULL},
    {"N-05c", "open init's mount namespace", n_open_init_ns, "mnt", 0, "EACCES EPERM", NULL, "dumpable,landlock",
     CTL_OUTSIDE, 0, NULL},
    {"N-05d", "setns to the own network namespace", n_setns, "/proc/self/ns/net", 0, "EPERM", NULL, "seccomp,caps",
     CTL_NS, 0, NULL},
    {"N-05e", "setns to the own user namespace", n_setns, "/proc/self/ns/user", 0, "EPERM", NULL, "seccomp",
     CTL_OUTSIDE, 0, NULL},
    {"N-05f", "setns to the own mount namespace", n_setns, "/proc/self/ns/mnt", 0, "EPERM", NULL, "seccomp,caps",
     CTL_NS, 0, "wants CAP_SYS_CHROOT as well, and no other holder of the file system state"},
    {"N-06", "ask for the parent of the own user namespace", n_parent, NULL, 0, "EPERM EACCES ENOTTY", NULL, "",
     CTL_KERNEL, 0, "the kernel never hands out a namespace above the caller's own"},
    {"N-08a", "write /proc/self/uid_map", n_map_write, "/proc/self/uid_map", 0, "EPERM EACCES EROFS", NULL, "",
     CTL_KERNEL, 0, "a map can be written once, and it is written"},
    {"N-08b", "write /proc/self/gid_map", n_map_write, "/proc/self/gid_map", 0, "EPERM EACCES EROFS", NULL, "",
     CTL_KERNEL, 0, "a map can be written once, and it is written"},
    {"N-08c", "write allow to /proc/self/setgroups", n_map_write, "/proc/self/setgroups", 1, "EPERM EACCES EROFS", NULL,
     "", CTL_KERNEL, 0, "cannot change once the gid map is written"},
    {"N-09a", "mount procfs in a nested namespace", n_nested_mount, "proc", 0, "EPERM", NULL,
     "seccomp,userns-limit,landlock,proc", CTL_OUTSIDE, 0,
     "a masked procfs above makes the kernel refuse a fresh one below"},
    {"N-09b", "mount an overlay in a nested namespace", n_nested_mount, "overlay", 0, "EPERM", NULL,
     "seccomp,userns-limit,landlock", CTL_OUTSIDE, 0, NULL},
    {"N-09c", "mount a tmpfs in a nested namespace", n_nested_mount, "tmpfs", 0, "EPERM", NULL,
     "seccomp,userns-limit,landlock", CTL_OUTSIDE, 0, NULL},
    {"N-10a", "inheritable capabilities", n_caps, "inheritable", 0, "zero", NULL, "caps", CTL_NS, 0, NULL},
    {"N-10b", "permitted capabilities", n_caps, "permitted", 1, "zero", NULL, "caps", CTL_NS, 0, NULL},
    {"N-10c", "effective capabilities", n_caps, "effective", 2, "zero", NULL, "caps", CTL_NS, 0, NULL},
    {"N-10d", "bounding set", n_caps, "bounding", 3, "zero", NULL, "caps", CTL_OUTSIDE, 0, NULL},
    {"N-10e", "ambient capabilities", n_caps, "ambient", 4, "zero", NULL, "caps", CTL_NS, 0, NULL},
    {"N-11", "raise CAP_SYS_ADMIN with capset", n_capset, NULL, 0, "EPERM", NULL, "caps", CTL_NS, 0, NULL},
    {"N-13", "raise an ambient capability", n_ambient, NULL, 0, "EPERM", NULL, "caps,securebits", CTL_NS, 0, NULL},
    {"N-14a", "securebits are locked", n_securebits, NULL, 0, "locked", "locked leak", "securebits", CTL_OUTSIDE, 0,
     NULL},
    {"N-14b", "clear the securebits", n_securebits, NULL, 1, "EPERM", NULL, "caps,securebits", CTL_NS, 0, NULL},
    {"N-15a", "setuid(0)", n_setuid, NULL, 0, "EINVAL EPERM already", NULL, "caps", CTL_ROOT, 0,
     "0 is not in a one-uid map, and a root caller is 0 inside already"},
    {"N-15b", "setuid(1)", n_setuid, NULL, 1, "EINVAL EPERM", "EINVAL EPERM success", "caps", CTL_ROOT, 0,
     "1 is not in a one-uid map"},
    {"N-16", "setgroups", n_setgroups, NULL, 0, "EPERM", "EPERM success", "caps,seccomp", CTL_ROOT, 0,
     "setgroups is denied in a one-uid map"},
    {"N-18a", "host 0 in the uid map", n_uid_map, "/proc/self/uid_map", 0, "no-host-0", NULL, "userns-range",
     CTL_OUTSIDE, 0, "an ordinary user has no host 0 to map"},
    {"N-18b", "host 0 in the gid map", n_uid_map, "/proc/self/gid_map", 0, "no-host-0", NULL, "userns-range",
     CTL_OUTSIDE, 0, "an ordinary user has no host 0 to map"},
    {"N-19a", "settimeofday", n_clock, NULL, 0, "EPERM", NULL, "seccomp,caps", CTL_ROOT, 0,
     "the kernel wants CAP_SYS_TIME of the initial user namespace"},
    {"N-19b", "clock_adjtime, set", n_clock, NULL, 1, "EPERM", NULL, "seccomp,caps", CTL_ROOT, 0,
     "the kernel wants CAP_SYS_TIME of the initial user namespace"},
    {"N-19c", "adjtimex, set", n_clock, NULL, 2, "EPERM", NULL, "seccomp,caps", CTL_ROOT, 0,
     "the kernel wants CAP_SYS_TIME of the initial user namespace"},
    {"N-19d", "clock_adjtime, read", n_clock, NULL, 3, "success EPERM", NULL, "", CTL_ALLOWED, 0, NULL},
    {"N-19e", "clock_settime", n_clock, NULL, 4, "EPERM", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"N-20a", "sethostname", n_hostname, NULL, 0, "EPERM", NULL, "seccomp,caps", CTL_NS, 0, NULL},
    {"N-20b", "setdomainname", n_hostname, NULL, 1, "EPERM", NULL, "seccomp,caps", CTL_NS, 0, NULL},
    {"N-20c", "the host's name in uname", n_hostname, NULL, 2, "private", NULL, "utsns", CTL_OUTSIDE, 0, NULL},
};

const struct attempt_table probe_ns = {"namespaces and privilege", rows, ROWS(rows)};
