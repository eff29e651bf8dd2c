/* usage.c - what a sandbox has used, from its cgroups and its file systems. */
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>

#include "base/fd.h"
#include "keeper/keeper-int.h"

/* Bits of keeper_usage.have, in the order of its fields. */
enum have {
    HAVE_CPU_USER = 1 << 0,
    HAVE_CPU_SYSTEM = 1 << 1,
    HAVE_MEMORY = 1 << 2,
    HAVE_MEMORY_PEAK = 1 << 3,
    HAVE_MEMORY_LIMIT = 1 << 4,
    HAVE_DISK_USED = 1 << 5,
    HAVE_DISK_LIMIT = 1 << 6,
    HAVE_INODES_USED = 1 << 7,
    HAVE_PIDS = 1 << 8,
    HAVE_PIDS_PEAK = 1 << 9,
    HAVE_OOM_KILLS = 1 << 10,
    HAVE_THROTTLED = 1 << 11,
    HAVE_CPU_MILLI = 1 << 12,
};

static void from_counters(const struct cgroup *cg, struct keeper_usage *u)
{
    struct cgroup_stat s = {0};
    cgroup_stat(cg, &s);
    u->cpu_user_us = s.user_us;
    u->cpu_system_us = s.system_us;
    u->memory_peak = s.memory_peak;
    u->pids_peak = s.pids_peak;
    u->oom_kills = s.oom_kills;
    u->throttled_us = s.throttled_us;
    u->have |= (s.have & CGROUP_HAVE_CPU_TIME ? HAVE_CPU_USER | HAVE_CPU_SYSTEM : 0U) |
               (s.have & CGROUP_HAVE_MEMORY_PEAK ? HAVE_MEMORY_PEAK : 0U) |
               (s.have & CGROUP_HAVE_PIDS_PEAK ? HAVE_PIDS_PEAK : 0U) |
               (s.have & CGROUP_HAVE_OOM_KILLS ? HAVE_OOM_KILLS : 0U) |
               (s.have & CGROUP_HAVE_THROTTLED ? HAVE_THROTTLED : 0U);
}

static void from_now(const struct cgroup *cg, struct keeper_usage *u)
{
    for (unsigned i = 0; i < cg->nleaf; i++) {
        const struct cgroup_leaf *l = &cg->leaf[i];
        if ((l->has & CGROUP_MEMORY) &&
            fd_read_u64(l->fd, l->v2 ? "memory.current" : "memory.usage_in_bytes", &u->memory) == 0)
            u->have |= HAVE_MEMORY;
        if ((l->has & CGROUP_PIDS) && fd_read_u64(l->fd, "pids.current", &u->pids) == 0)
            u->have |= HAVE_PIDS;
    }
}

/* Whether the file system of the upper layer is the sandbox's alone. Before there were drivers it was. */
static bool whole(const struct journal_record *r)
{
    return !r->driver[0] || strcmp(r->driver, upper_kind_name(UPPER_TMPFS)) == 0 ||
           strcmp(r->driver, upper_kind_name(UPPER_IMAGE)) == 0;
}

/* Both places are ours: the root of an overlay tells of its upper layer, /dev is read-only and made by the wall. */
static void from_disk(const struct keeper *k, const struct journal_record *r, struct keeper_usage *u)
{
    char path[64];
    struct statfs fs;
    struct upper_usage used;
    bool host = strcmp(r->template, "host") == 0;
    if (!host && !whole(r)) {
        if (uppers_usage(k->common, r, &used)) {
            u->disk_used = used.used;
            u->inodes_used = used.inodes;
            u->have |= HAVE_DISK_USED | (used.inodes ? HAVE_INODES_USED : 0U);
        }
        return;
    }
    (void)snprintf(path, sizeof path, "/proc/%u/root%s", r->pid, host ? "/dev/shm" : "");
    if (r->pid == 0 || statfs(path, &fs) < 0)
        return;
    u->disk_used = (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
    u->inodes_used = fs.f_files - fs.f_ffree;
    u->have |= HAVE_DISK_USED | HAVE_INODES_USED;
}

void usage_read(const struct keeper *k, const struct journal_record *r, bool alive, struct keeper_usage *ret)
{
    struct cgroup cg = CGROUP_INIT;
    struct err err = {0};
    *ret = (struct keeper_usage){.memory_limit = r->memory, .disk_limit = r->disk, .cpu_milli = r->cpu_milli};
    ret->have |=
        (r->memory ? HAVE_MEMORY_LIMIT : 0U) | (r->cpu_milli ? HAVE_CPU_MILLI : 0U) | (r->disk ? HAVE_DISK_LIMIT : 0U);
    if (r->cgroup[0] && cgroup_load(r->cgroup, &cg, &err) == 0) {
        from_counters(&cg, ret);
        if (alive)
            from_now(&cg, ret);
        cgroup_close(&cg);
    }
    if (alive)
        from_disk(k, r, ret);
}
