/* probe-kernfs.c - group K: /proc, /sys, cgroups. */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens for writing and, for sysctls, writes back what is there: the permission is shown without a change. */
static void k_write(const struct attempt *a, struct seen *s)
{
    char now[512];
    ssize_t n = a->num ? probe_slurp(a->arg, now, sizeof now) : 0;
    int fd = open(a->arg, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || n <= 0)
        seen_rc(s, fd);
    else
        seen_rc(s, write(fd, now, (size_t)n));
}

static void k_read(const struct attempt *a, struct seen *s)
{
    char b[4096 + 1]; /* kpagecount is read in whole numbers */
    ssize_t n = probe_slurp(a->arg, b, sizeof b);
    if (n < 0)
        seen_rc(s, -1);
    else if (n == 0)
        seen_text(s, "empty");
    else
        seen_text(s, "leak: %zd bytes", n);
}

static void k_list(const struct attempt *a, struct seen *s)
{
    size_t n = 0;
    DIR *d = opendir(a->arg);
    if (!d) {
        seen_rc(s, -1);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    seen_text(s, n ? "leak: %zu entries" : "empty", n);
}

static void k_kallsyms(const struct attempt *a, struct seen *s)
{
    char b[4096];
    (void)a;
    ssize_t n = probe_slurp("/proc/kallsyms", b, sizeof b);
    if (n < 0)
        seen_rc(s, -1);
    else if (n == 0 || strncmp(b, "0000000000000000", 16) == 0)
        seen_text(s, n ? "hidden" : "empty");
    else
        seen_text(s, "leak: addresses");
}

/* The first file of this name below /sys/fs/cgroup. */
static void k_cgroup(const struct attempt *a, struct seen *s)
{
    static const char *const tops[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory",
                                       "/sys/fs/cgroup/pids", "/sys/fs/cgroup/systemd"};
    char path[256];
    errno = ENOENT;
    for (size_t i = 0; i < ROWS(tops); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", tops[i], a->arg);
        int fd = open(path, (a->num ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
        if (fd >= 0 || errno != ENOENT) {
            seen_rc(s, fd);
            return;
        }
    }
    seen_rc(s, -1);
}

static void k_host_pid(const struct attempt *a, struct seen *s)
{
    const char *pid = probe_need(s, "hostpid");
    char path[64];
    (void)a;
    if (!pid)
        return;
    (void)snprintf(path, sizeof path, "/proc/%s/stat", pid);
    seen_rc(s, open(path, O_RDONLY | O_CLOEXEC));
}

static void k_pid_count(const struct attempt *a, struct seen *s)
{
    size_t n = 0;
    DIR *d = opendir("/proc");
    (void)a;
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] >= '1' && e->d_name[0] <= '9';
    if (d)
        closedir(d);
    /* init, the probe, this child, and whatever started the probe */
    seen_text(s, n <= 5 ? "own" : "leak: %zu processes", n);
}

static void k_mountinfo(const struct attempt *a, struct seen *s)
{
    static char b[1 << 17];
    const char *needle = probe_need(s, a->arg);
    if (!needle)
        return;
    if (probe_slurp("/proc/self/mountinfo", b, sizeof b) < 0)
        seen_rc(s, -1);
    else
        seen_text(s, strstr(b, needle) ? "leak: the host's path of the root" : "hidden");
}

static void k_self_cgroup(const struct attempt *a, struct seen *s)
{
    char text[4096], *save = NULL;
    (void)a;
    if (probe_slurp("/proc/self/cgroup", text, sizeof text) < 0) {
        seen_rc(s, -1);
        return;
    }
    seen_text(s, "root");
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *path = strrchr(line, ':');
        if (path && strcmp(path, ":/") != 0)
            seen_text(s, "leak: %.120s", line);
    }
}

static void k_pagemap(const struct attempt *a, struct seen *s)
{
    static volatile char page[8192];
    uint64_t entry = 0;
    (void)a;
    page[0] = 1;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || pread(fd, &entry, 8, (off_t)((uintptr_t)page / 4096 * 8)) != 8)
        seen_rc(s, -1);
    else
        seen_text(s, entry & ((1ULL << 55) - 1) ? "leak: a frame number" : "zero");
}

static void k_map_files(const struct attempt *a, struct seen *s)
{
    (void)a;
    DIR *d = opendir("/proc/self/map_files");
    if (!d) {
        seen_rc(s, -1);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        seen_rc(s, openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC));
        return;
    }
    seen_text(s, "empty");
}

static void k_put_self(const struct attempt *a, struct seen *s)
{
    int fd = open(a->arg, O_WRONLY | O_CLOEXEC);
    seen_rc(s, fd < 0 ? -1 : write(fd, a->num ? "0x33" : "monotonic 1 0", a->num ? 4 : 13));
}

/* A host file comes in as stdin, open for reading only. It is world-writable, so that only the sandbox stands in between. */
static void k_reopen(const struct attempt *a, struct seen *s)
{
    (void)a;
    int fd = open("/proc/self/fd/0", O_RDWR | O_CLOEXEC);
    seen_rc(s, fd < 0 ? -1 : write(fd, "overwritten", 11));
}

static void k_dotdot(const struct attempt *a, struct seen *s)
{
    struct stat root, up;
    if (stat("/", &root) < 0 || stat(a->arg, &up) < 0)
        seen_rc(s, -1);
    else
        seen_text(s, root.st_ino == up.st_ino && root.st_dev == up.st_dev ? "inside" : "leak: another root");
}

#define SHUT   "EACCES EROFS ENOENT EPERM"
#define GLOBAL "the kernel wants host uid 0 for this file, whatever is mounted, or does not have it"
#define SYSCTL(id, path)                                                                                   \
    {                                                                                                      \
        id, "write " path, k_write, path, 1, SHUT, NULL, "proc,userns-range,landlock", CTL_ROOT, 0, GLOBAL \
    }
#define MASKED(id, path)                                                                              \
    {                                                                                                 \
        id, "read " path, k_read, path, 0, "empty ENOENT EACCES EPERM", NULL, "proc", CTL_OUTSIDE, 0, \
            "this kernel does not show it to this user"                                               \
    }
#define MASKED_DIR(id, path)                                                                    \
    {                                                                                           \
        id, "list " path, k_list, path, 0, "empty ENOENT EACCES", NULL, "proc", CTL_OUTSIDE, 0, \
            "this kernel does not have it"                                                      \
    }

static const struct attempt rows[] = {
    {"K-01", "write /proc/sysrq-trigger (open only)", k_write, "/proc/sysrq-trigger", 0, SHUT, NULL,
     "proc,userns-range,landlock", CTL_ROOT, 0, GLOBAL},
    {"K-02", "write /proc/sys/vm/drop_caches (open only)", k_write, "/proc/sys/vm/drop_caches", 0, SHUT, NULL,
     "proc,userns-range,landlock", CTL_ROOT, 0, GLOBAL},
    SYSCTL("K-03", "/proc/sys/kernel/core_pattern"),
    {"K-04a", "write net.ipv4.ip_forward of the own namespace", k_write, "/proc/sys/net/ipv4/ip_forward", 1, SHUT, NULL,
     "proc,caps,landlock", CTL_NS, 0, NULL},
    {"K-04b", "write kernel.shmmax of the own namespace", k_write, "/proc/sys/kernel/shmmax", 1, SHUT, NULL,
     "proc,caps,landlock", CTL_NS, 0, "this kernel may keep it for host root"},
    {"K-04c", "write user.max_user_namespaces", k_write, "/proc/sys/user/max_user_namespaces", 1, SHUT, NULL,
     "proc,caps,landlock", CTL_NS, 0, NULL},
    {"K-05", "write binfmt_misc/register", k_write, "/proc/sys/fs/binfmt_misc/register", 0, SHUT, NULL,
     "proc,userns-range,landlock", CTL_ROOT, 0, GLOBAL},
    SYSCTL("K-06a", "/proc/sys/kernel/modprobe"),
    SYSCTL("K-06b", "/proc/sys/kernel/hotplug"),
    SYSCTL("K-06c", "/proc/sys/kernel/poweroff_cmd"),
    SYSCTL("K-06d", "/proc/sys/kernel/hostname"),
    SYSCTL("K-06e", "/proc/sys/fs/suid_dumpable"),
    {"K-06f", "write /sys/kernel/uevent_helper", k_write, "/sys/kernel/uevent_helper", 0, SHUT, NULL,
     "sys,mounts,landlock,userns-range", CTL_ROOT, 0, GLOBAL},
    {"K-07", "list /sys", k_list, "/sys", 0, "ENOENT empty EACCES", NULL, "sys", CTL_OUTSIDE, 0, NULL},
    {"K-08a", "read a cgroup.procs", k_cgroup, "cgroup.procs", 0, "ENOENT EACCES", NULL, "sys", CTL_OUTSIDE, 0, NULL},
    {"K-08b", "write a cgroup.procs (open only)", k_cgroup, "cgroup.procs", 1, SHUT, NULL,
     "sys,mounts,landlock,userns-range", CTL_ROOT, 0, GLOBAL},
    {"K-09", "write a v1 release_agent (open only)", k_cgroup, "release_agent", 1, SHUT, NULL,
     "sys,mounts,landlock,userns-range", CTL_ROOT, 0, GLOBAL},
    {"K-10", "write the cgroup.kill of another group (open only)", k_cgroup, "init/cgroup.kill", 1, SHUT, NULL, "sys",
     CTL_KERNEL, 0, "no such group on every host; K-08a shows that none is visible"},
    {"K-11a", "read kernel addresses from kallsyms", k_kallsyms, NULL, 0, "empty hidden ENOENT EACCES EPERM", NULL,
     "proc,caps,userns-range,landlock", CTL_ROOT, 0, "kptr_restrict hides them too"},
    MASKED("K-11b", "/proc/kcore"),
    {"K-11c", "read /proc/kmsg", k_read, "/proc/kmsg", 0, "empty ENOENT EACCES EPERM", NULL, "proc,caps", CTL_OUTSIDE,
     0, "this kernel does not show it to this user"},
    MASKED("K-11d", "/proc/timer_list"),
    MASKED("K-11e", "/proc/sched_debug"),
    MASKED("K-11f", "/proc/slabinfo"),
    MASKED("K-11g", "/proc/kpagecount"),
    MASKED("K-11h", "/proc/keys"),
    MASKED("K-11i", "/proc/interrupts"),
    MASKED("K-11j", "/proc/cmdline"),
    MASKED("K-11k", "/proc/config.gz"),
    MASKED("K-11l", "/proc/partitions"),
    MASKED("K-11m", "/proc/diskstats"),
    MASKED("K-11n", "/proc/swaps"),
    MASKED("K-11o", "/proc/modules"),
    MASKED("K-11p", "/proc/key-users"),
    MASKED("K-11q", "/proc/latency_stats"),
    MASKED("K-11r", "/proc/iomem"),
    MASKED("K-11s", "/proc/vmallocinfo"),
    MASKED("K-11t", "/proc/kpageflags"),
    MASKED_DIR("K-11u", "/proc/bus"),
    MASKED_DIR("K-11v", "/proc/acpi"),
    MASKED_DIR("K-11w", "/proc/scsi"),
    MASKED_DIR("K-11x", "/proc/asound"),
    MASKED_DIR("K-11y", "/proc/irq"),
    MASKED_DIR("K-11z", "/proc/fs"),
    {"K-13a", "see a host process in /proc", k_host_pid, NULL, 0, "ENOENT", NULL, "pidns", CTL_OUTSIDE, 0, NULL},
    {"K-13b", "count processes in /proc", k_pid_count, NULL, 0, "own", NULL, "pidns", CTL_OUTSIDE, 0, NULL},
    {"K-14", "the host's path of the root in mountinfo", k_mountinfo, "rootdir", 0, "hidden", NULL, "", CTL_KERNEL,
     A_ROOTFS, "the process tier shows the host's own paths by design"},
    {"K-15", "/proc/self/cgroup shows /", k_self_cgroup, NULL, 0, "root", NULL, "cgroupns", CTL_KERNEL, 0,
     "where the caller sits in the root group there is nothing to hide"},
    {"K-16", "host-wide figures (loadavg) are readable: documented", k_read, "/proc/loadavg", 0,
     "leak empty ENOENT EACCES", NULL, "", CTL_KERNEL, 0, "a side channel that is said openly"},
    {"K-17a", "physical addresses in pagemap", k_pagemap, NULL, 0, "zero EACCES EPERM ENOENT", NULL, "caps", CTL_ROOT,
     0, "the kernel wants CAP_SYS_ADMIN of the initial user namespace"},
    {"K-17b", "open through map_files", k_map_files, NULL, 0, "EPERM EACCES ENOENT success", NULL, "", CTL_KERNEL, 0,
     "own mappings only; a denied file cannot be mapped"},
    {"K-18a", "write /proc/self/timens_offsets", k_put_self, "/proc/self/timens_offsets", 0, SHUT, NULL,
     "proc,caps,landlock", CTL_KERNEL, 0, "the kernel refuses once a process runs in the time namespace"},
    {"K-18b", "write /proc/self/coredump_filter (harmless)", k_put_self, "/proc/self/coredump_filter", 1,
     "success " SHUT, NULL, "", CTL_ALLOWED, 0, NULL},
    {"K-19", "re-open a read-only host file on stdin for writing", k_reopen, NULL, 0, "EACCES EPERM EROFS ENXIO", NULL,
     "fds,landlock", CTL_OUTSIDE, A_STDIN_FILE, NULL},
    {"K-20a", "leave through /proc/thread-self/../../..", k_dotdot, "/proc/thread-self/../../../../..", 0, "inside",
     NULL, "", CTL_KERNEL, 0, "there is one root; a property, not a layer"},
    {"K-20b", "leave through /proc/self/root/../..", k_dotdot, "/proc/self/root/../../..", 0, "inside", NULL, "",
     CTL_KERNEL, 0, "there is one root; a property, not a layer"},
};

const struct attempt_table probe_kernfs = {"/proc and /sys", rows, ROWS(rows)};
