/* cgroup_kill.c - kills everything in a leaf, and sweeps leaves whose owner is dead. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/cgroup-int.h"

enum { CHUNK = 4096 };

static void cgroup_kill_nap(void) { (void)nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL); }

/* --- v2 events ---------------------------------------------------------------------------------------------------- */

int cgroup_event_value(int fd, const char *key)
{
    char text[256];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return -1;
    text[n] = '\0';
    const char *p = strstr(text, key);
    return p ? p[strlen(key) + 1] == '1' : -1;
}

int cgroup_await_event(const struct cgroup_leaf *l, const char *key, int value, uint64_t deadline)
{
    _cleanup_close_ int fd = openat(l->fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    for (;;) {
        int v = cgroup_event_value(fd, key);
        if (v < 0) {
            errno = ENODATA;
            return -1;
        }
        uint64_t now = cgroup_now_ms();
        if (v == value || now >= deadline)
            return v == value;
        struct pollfd p = {.fd = fd, .events = POLLPRI};
        if (poll(&p, 1, (int)(deadline - now)) < 0 && errno != EINTR)
            return -1;
    }
}

/* --- process lists ------------------------------------------------------------------------------------------------ */

/* Calls `each` for every process in cgroup.procs that this pid namespace can see. Number of processes, -1 with errno.
 * Allocates nothing: the guard (wall/stubs.c) does this in the memory of a process that died at any moment. */
static int each_process(const struct cgroup_leaf *l, void (*each)(pid_t pid, const char *name), const char *name)
{
    _cleanup_close_ int fd = openat(l->fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    char text[CHUNK];
    int count = 0;
    uint64_t pid = 0;
    ssize_t n = -1;
    while (fd >= 0 && (n = read(fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9' && pid <= INT32_MAX) {
                pid = pid * 10 + (uint64_t)(text[i] - '0');
                continue;
            }
            count++;
            if (each && pid > 0 && pid <= INT32_MAX) /* 0: of another pid namespace */
                each((pid_t)pid, name);
            pid = 0;
        }
    return n < 0 ? -1 : count;
}

/* Whether one line of /proc/PID/cgroup ends in "/name". Allocates nothing. */
static bool in_leaf(pid_t pid, const char *name)
{
    char path[32], text[CHUNK];
    size_t len = strlen(name), kept = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    while (fd >= 0 && (n = read(fd, text + kept, sizeof text - kept)) > 0) {
        size_t have = kept + (size_t)n;
        for (size_t i = len + 1; i < have; i++)
            if (text[i] == '\n' && text[i - len - 1] == '/' && memcmp(text + i - len, name, len) == 0)
                return true;
        kept = have < len + 1 ? have : len + 1; /* what the next line end may complete */
        memmove(text, text + have - kept, kept);
    }
    return false;
}

/* The number may have been reused since the list was read: the pidfd pins a process, then its membership is checked. */
static void kill_member(pid_t pid, const char *name)
{
    _cleanup_close_ int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd >= 0 && in_leaf(pid, name))
        (void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
}

int cgroup_populated(const struct cgroup *cg)
{
    int any = 0;
    if (cg->nleaf == 0) {
        errno = ENOENT;
        return -1;
    }
    for (unsigned i = 0; i < cg->nleaf; i++) {
        int n = each_process(&cg->leaf[i], NULL, NULL);
        if (n < 0)
            return -1;
        any |= n > 0;
    }
    return any;
}

/* --- kill --------------------------------------------------------------------------------------------------------- */

/* One round over a v1 leaf: hold everything still so that no fork escapes the list, signal, let go so that they die. */
static int kill_round(const struct cgroup_leaf *l, const struct cgroup_leaf *freezer, const char *name)
{
    if (freezer)
        (void)fd_put(freezer->fd, "freezer.state", "FROZEN");
    int n = each_process(l, kill_member, name);
    if (freezer)
        (void)fd_put(freezer->fd, "freezer.state", "THAWED");
    return n;
}

static int kill_by_list(const struct cgroup *cg, const struct cgroup_leaf *l, uint64_t deadline, struct err *err)
{
    const struct cgroup_leaf *freezer = cgroup_leaf_with(cg, CGROUP_FREEZER);
    if (freezer && freezer->v2)
        freezer = NULL;
    for (;;) {
        int n = each_process(l, NULL, NULL);
        if (n == 0)
            return 0;
        if (n > 0)
            n = kill_round(l, freezer, cg->name);
        if (n < 0)
            return err_set(err, ERR_INTERNAL, errno, "cannot list the processes of %s", l->dir);
        if (cgroup_now_ms() >= deadline)
            return err_set(err, ERR_INTERNAL, ETIMEDOUT, "%d processes are still alive in %s", n, l->dir);
        cgroup_kill_nap();
    }
}

/* Dying takes CPU time: under a tiny quota a killed process could need many periods to get it. */
static void lift_cpu_quota(const struct cgroup *cg)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_CPU);
    if (l)
        (void)fd_put(l->fd, l->v2 ? "cpu.max" : "cpu.cfs_quota_us", l->v2 ? "max" : "-1");
}

int cgroup_kill(const struct cgroup *cg, unsigned deadline_ms, struct err *err)
{
    uint64_t deadline = cgroup_now_ms() + deadline_ms;
    lift_cpu_quota(cg);
    const struct cgroup_leaf *core = cgroup_leaf_with(cg, CGROUP_CORE);
    if (core && fd_put(core->fd, "cgroup.kill", "1") == 0) {
        int r = cgroup_await_event(core, "populated", 0, deadline);
        if (r < 0)
            return err_set(err, ERR_INTERNAL, errno, "cannot read %s/cgroup.events", core->dir);
        if (r == 0)
            return err_set(err, ERR_INTERNAL, ETIMEDOUT, "%d processes are still alive in %s",
                           each_process(core, NULL, NULL), core->dir);
    }
    /* A process that joined only some leaves (killed half-way through entering) is still found in the others. */
    for (unsigned i = 0; i < cg->nleaf; i++)
        if (kill_by_list(cg, &cg->leaf[i], deadline, err) < 0)
            return -1;
    return 0;
}

/* --- sweep -------------------------------------------------------------------------------------------------------- */

static bool owner_is_dead(const char *name, uint64_t my_pidns)
{
    uint64_t pidns, start, live;
    pid_t pid;
    if (!cgroup_parse_name(name, &pidns, &pid, &start) || pidns != my_pidns)
        return false;
    return !cgroup_start_time(pid, &live) || live != start;
}

static unsigned sweep_dir(const char *dir, uint64_t my_pidns)
{
    unsigned gone = 0;
    _cleanup_closedir_ DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) {
        struct stat st;
        if (strncmp(e->d_name, CGROUP_PREFIX, strlen(CGROUP_PREFIX)) != 0 || !owner_is_dead(e->d_name, my_pidns))
            continue;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_uid != geteuid())
            continue;
        char path[CGROUP_DIR_MAX + 300];
        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        gone += cgroup_rmdir(path) == 0; /* the kernel refuses while a process is inside */
    }
    return gone;
}

unsigned cgroup_sweep(const struct cgroup_info *info)
{
    struct stat ns;
    unsigned gone = 0;
    if (stat("/proc/self/ns/pid", &ns) < 0)
        return 0;
    for (unsigned i = 0; i < info->nhier; i++) {
        const struct cgroup_hier *h = &info->hier[i];
        char dir[CGROUP_DIR_MAX] = "", bare[CGROUP_DIR_MAX];
        gone += sweep_dir(h->own, ns.st_ino);
        if (!h->v2)
            continue;
        /* A v2 leaf may also be higher up, depending on the controllers it needed. */
        if (cgroup_v2_place(h, h->has, false, dir) && strcmp(dir, h->own) != 0)
            gone += sweep_dir(dir, ns.st_ino);
        if (cgroup_v2_place(h, h->has & (CGROUP_CPU | CGROUP_MEMORY | CGROUP_PIDS), false, bare) &&
            strcmp(bare, h->own) != 0 && strcmp(bare, dir) != 0)
            gone += sweep_dir(bare, ns.st_ino);
    }
    return gone;
}
