/* cgroup_group.c - one group around all leaves of a long-lived owner. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "os/cgroup-int.h"

enum { LIMITS = CGROUP_CPU | CGROUP_MEMORY | CGROUP_PIDS };

/* The group must pass the controllers on that leaves need, or the leaves would be made beside it. */
static unsigned group_pass_on(const char *dir, unsigned bits)
{
    char path[CGROUP_DIR_MAX + 32], word[32];
    unsigned passed = 0;
    (void)snprintf(path, sizeof path, "%s/cgroup.subtree_control", dir);
    for (unsigned bit = 1; bit <= CGROUP_IO; bit <<= 1) {
        if (!(bits & bit & CGROUP_V2_CONTROLLERS))
            continue;
        (void)snprintf(word, sizeof word, "+%s", cgroup_controller_name(bit));
        if (fd_put(AT_FDCWD, path, word) == 0)
            passed |= bit;
    }
    return passed;
}

static bool enter_group(struct cgroup_hier *h, const char *name)
{
    char dir[CGROUP_DIR_MAX], place[CGROUP_DIR_MAX];
    (void)snprintf(place, sizeof place, "%s", h->own);
    if (h->v2 && !cgroup_v2_place(h, h->has & CGROUP_V2_CONTROLLERS, true, place) &&
        !cgroup_v2_place(h, h->has & LIMITS, true, place) && !cgroup_v2_place(h, 0, true, place))
        return false;
    int n = snprintf(dir, sizeof dir, "%s/%s", place, name);
    if (n < 0 || (size_t)n >= sizeof dir || (mkdir(dir, 0755) < 0 && errno != EEXIST))
        return false;
    if (h->v2)
        h->has = (h->has & ~(unsigned)CGROUP_V2_CONTROLLERS) | group_pass_on(dir, h->has);
    memcpy(h->own, dir, sizeof dir);
    return true;
}

int cgroup_group(struct cgroup_info *info, const char *name)
{
    unsigned kept = 0, has = 0;
    for (unsigned i = 0; i < info->nhier; i++) {
        if (!enter_group(&info->hier[i], name))
            continue;
        has |= info->hier[i].has;
        if (kept != i)
            info->hier[kept] = info->hier[i];
        kept++;
    }
    info->nhier = kept;
    info->can_cpu = info->can_cpu && (has & CGROUP_CPU);
    info->can_memory = info->can_memory && (has & CGROUP_MEMORY);
    info->can_pids = info->can_pids && (has & CGROUP_PIDS);
    if (kept > 0)
        return 0;
    info->backend = CGROUP_NONE;
    info->can_kill = info->can_freeze = info->can_cpuacct = false;
    if (!info->why[0])
        (void)snprintf(info->why, sizeof info->why, "no cgroup could be made: %s", strerror(errno));
    return -1;
}

void cgroup_group_leave(const struct cgroup_info *info)
{
    for (unsigned i = 0; i < info->nhier; i++)
        (void)rmdir(info->hier[i].own);
}
