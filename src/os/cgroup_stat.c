/* cgroup_stat.c - counters of a leaf. A field is filled only from a file that was there and made sense. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "base/num.h"
#include "os/cgroup-int.h"

enum { STAT_MAX = 256 << 10 };

/* The number behind `key` at the start of a line of "key value" text. */
static bool stat_read_key(const char *text, const char *key, uint64_t *ret)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) != 0 || line[n] != ' ')
            continue;
        char number[24];
        size_t len = strcspn(line + n + 1, " \n");
        if (len >= sizeof number)
            return false;
        memcpy(number, line + n + 1, len);
        number[len] = '\0';
        return num_u64(number, ret);
    }
    return false;
}

static bool read_keys(const struct cgroup_leaf *l, const char *file, const char *a, uint64_t *ra, const char *b,
                      uint64_t *rb)
{
    _cleanup_buf_ struct buf text = {0};
    uint64_t va, vb = 0;
    if (fd_read_file(l->fd, file, STAT_MAX, &text) < 0 || !stat_read_key(buf_str(&text), a, &va) ||
        (b && !stat_read_key(buf_str(&text), b, &vb)))
        return false;
    *ra = va;
    if (b)
        *rb = vb;
    return true;
}

static void stat_cpu_time(const struct cgroup *cg, struct cgroup_stat *ret)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_CPUACCT);
    uint64_t user, sys;
    if (!l)
        return;
    if (l->v2) {
        if (!read_keys(l, "cpu.stat", "user_usec", &ret->user_us, "system_usec", &ret->system_us))
            return;
    } else {
        if (fd_read_u64(l->fd, "cpuacct.usage_user", &user) < 0 || fd_read_u64(l->fd, "cpuacct.usage_sys", &sys) < 0)
            return;
        ret->user_us = user / 1000;
        ret->system_us = sys / 1000;
    }
    ret->have |= CGROUP_HAVE_CPU_TIME;
}

static void stat_throttled(const struct cgroup *cg, struct cgroup_stat *ret)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_CPU);
    if (!l || !read_keys(l, "cpu.stat", "nr_throttled", &ret->nr_throttled, l->v2 ? "throttled_usec" : "throttled_time",
                         &ret->throttled_us))
        return;
    if (!l->v2)
        ret->throttled_us /= 1000; /* v1 counts nanoseconds */
    ret->have |= CGROUP_HAVE_THROTTLED;
}

static void stat_memory(const struct cgroup *cg, struct cgroup_stat *ret)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_MEMORY);
    if (!l)
        return;
    if (fd_read_u64(l->fd, l->v2 ? "memory.peak" : "memory.max_usage_in_bytes", &ret->memory_peak) == 0)
        ret->have |= CGROUP_HAVE_MEMORY_PEAK;
    if (read_keys(l, l->v2 ? "memory.events" : "memory.oom_control", "oom_kill", &ret->oom_kills, NULL, NULL))
        ret->have |= CGROUP_HAVE_OOM_KILLS;
}

static void stat_pids(const struct cgroup *cg, struct cgroup_stat *ret)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_PIDS);
    if (!l)
        return;
    if (fd_read_u64(l->fd, "pids.peak", &ret->pids_peak) == 0) /* since Linux 6.6 */
        ret->have |= CGROUP_HAVE_PIDS_PEAK;
    if (read_keys(l, "pids.events", "max", &ret->pids_max_hits, NULL, NULL))
        ret->have |= CGROUP_HAVE_PIDS_HITS;
}

/* v2: "8:0 rbytes=1 wbytes=2 ..." per device; v1: "8:0 Read 1" and "8:0 Write 2" lines. Sums over devices. */
static void add_io(const char *line, bool v2, struct cgroup_stat *ret)
{
    uint64_t r, w;
    char word[16];
    if (v2) {
        if (sscanf(line, "%*u:%*u rbytes=%" SCNu64 " wbytes=%" SCNu64, &r, &w) == 2) {
            ret->io_read_bytes += r;
            ret->io_write_bytes += w;
        }
    } else if (sscanf(line, "%*u:%*u %15s %" SCNu64, word, &r) == 2) {
        if (strcmp(word, "Read") == 0)
            ret->io_read_bytes += r;
        else if (strcmp(word, "Write") == 0)
            ret->io_write_bytes += r;
    }
}

static void stat_io(const struct cgroup *cg, struct cgroup_stat *ret)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_IO);
    _cleanup_buf_ struct buf text = {0};
    if (!l || fd_read_file(l->fd, l->v2 ? "io.stat" : "blkio.throttle.io_service_bytes", STAT_MAX, &text) < 0)
        return;
    for (const char *line = buf_str(&text); line && *line;) {
        add_io(line, l->v2, ret);
        const char *end = strchr(line, '\n');
        line = end ? end + 1 : NULL;
    }
    ret->have |= CGROUP_HAVE_IO;
}

void cgroup_stat(const struct cgroup *cg, struct cgroup_stat *ret)
{
    memset(ret, 0, sizeof *ret);
    stat_cpu_time(cg, ret);
    stat_throttled(cg, ret);
    stat_memory(cg, ret);
    stat_pids(cg, ret);
    stat_io(cg, ret);
}
