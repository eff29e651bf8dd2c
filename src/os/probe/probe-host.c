#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "os/btrfs.h"
#include "os/cgroup.h"
#include "os/probe/probe-int.h"
#include "os/upper.h"

void probe_cgroup(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct cgroup_info info;
    if (cgroup_probe(&info) < 0) {
        probe_missing(r, "mount /proc", "could not be looked for: %s", strerror(errno));
        return;
    }
    const char *name = cgroup_backend_name(info.backend);
    if (info.can_memory && info.can_cpu && info.can_pids && info.can_kill)
        probe_ok(r, "%s: memory, cpu, pids, kill", name);
    else if (!info.can_memory && !info.can_cpu && !info.can_pids && geteuid() != 0 && cgroup_systemd_run_available())
        probe_advice(r, "nothing to do: with limits, hutch run gets a delegated scope from your systemd by itself",
                     "%s: none delegated to this process", name);
    else
        probe_missing(r, info.why, "%s%s%s%s%s%s; other limits are held by rlimits and a watcher, as far as they can",
                      name, info.can_memory || info.can_cpu || info.can_pids || info.can_kill ? ":" : "",
                      info.can_memory ? " memory" : "", info.can_cpu ? " cpu" : "", info.can_pids ? " pids" : "",
                      info.can_kill ? " kill" : "");
}

void probe_sysctl(const struct probe *p, struct probe_result *r)
{
    const struct probe_setting *s = p->arg;
    const char *name = strrchr(s->path, '/') + 1;
    uint64_t v;
    if (fd_read_u64(AT_FDCWD, s->path, &v) == 0) {
        if (v >= s->min && v <= s->max)
            probe_ok(r, "%s = %llu", name, (unsigned long long)v);
        else
            probe_advice(r, s->remedy, "%s = %llu: %s", name, (unsigned long long)v, s->risk);
    } else if (errno == EINVAL) {
        /* Negative or not a number: treat it as too low. */
        probe_advice(r, s->remedy, "%s is below %llu: %s", name, (unsigned long long)s->min, s->risk);
    } else if (errno == ENOENT && s->absent_ok) {
        probe_ok(r, "%s: this kernel does not have it", name);
    } else if (errno == ENOENT) {
        probe_advice(r, "boot a kernel that has the setting", "%s: this kernel has no such switch; %s", name, s->risk);
    } else {
        probe_advice(r, "run `hutch doctor` as root to see it", "%s: %s", name, strerror(errno));
    }
}

void probe_core_pattern(const struct probe *p, struct probe_result *r)
{
    (void)p;
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, "/proc/sys/kernel/core_pattern", 4096, &text) < 0)
        probe_advice(r, "run `hutch doctor` as root to see it", "core_pattern: %s", strerror(errno));
    else if (buf_str(&text)[0] == '|')
        probe_advice(r, "sysctl -w kernel.core_pattern=core",
                     "a crash starts a program of the host as root; inside, core dumps are switched off");
    else
        probe_ok(r, "not a pipe");
}

void probe_swap(const struct probe *p, struct probe_result *r)
{
    (void)p;
    _cleanup_buf_ struct buf text = {0};
    /* The first line is a heading; every further line is a swap area. */
    if (fd_read_file(AT_FDCWD, "/proc/swaps", 1 << 16, &text) < 0 && errno != ENOENT) {
        probe_advice(r, "run `hutch doctor` as root to see it", "/proc/swaps: %s", strerror(errno));
        return;
    }
    const char *second = strchr(buf_str(&text), '\n');
    if (second && second[1] != '\0')
        probe_advice(r, "swapoff -a, or encrypt the swap area", "in use: memory of a sandbox may reach the disk");
    else
        probe_ok(r, "none in use");
}

/* Looks where the node of this user keeps its files, and changes nothing: quotas of btrfs, which a node would switch
 * on, may be off. */
void probe_uppers(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct upper_info i;
    struct err err = {0};
    const char *home = getenv("HOME"), *missing = btrfs_file_missing();
    _cleanup_free_ char *state =
        geteuid() == 0 || !home ? xstrdup("/var/lib/hutch") : xasprintf("%s/.local/state/hutch", home);
    _cleanup_free_ char *path = xasprintf("%s/stock/uppers", state), *pool = xasprintf("%s/pool.img", state);
    if (access(pool, F_OK) == 0) {
        if (missing)
            probe_missing(r, "see docs/store.md", "%s is the node's pool, and cannot be used: %.150s", pool, missing);
        else
            probe_ok(r, "on disk in the node's pool, with a limit; or in memory");
        return;
    }
    _cleanup_close_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || upper_probe(dir, "auto", false, &i, &err) < 0) {
        if (missing)
            probe_advice(r, "see docs/store.md", "in memory, with a limit; on disk not: %.150s", missing);
        else
            probe_ok(r, "in memory, or on disk in a pool (a btrfs in a file of the node's own), with a limit");
        return;
    }
    if (i.quota != UPPER_QUOTA_NONE)
        probe_ok(r, "in memory, or on disk by %s with %s", upper_kind_name(i.kind), upper_quota_text(&i));
    else if (!missing)
        probe_ok(r, "in memory, or on disk in a pool (`files: pool`), with a limit; %.100s", i.why);
    else
        probe_advice(r, "see docs/store.md: a pool, btrfs or prjquota",
                     "in memory with a limit; on disk by %s without one: %.100s", upper_kind_name(i.kind), i.why);
}
