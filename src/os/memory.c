/* memory.c - see memory.h. */
#include "os/memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "os/cgroup.h"

enum { TEXT_MAX = 1 << 20 };

static uint64_t host_room(void)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, "/proc/meminfo", TEXT_MAX, &text) < 0)
        return 0;
    const char *line = strstr(buf_str(&text), "MemAvailable:");
    return line ? strtoull(line + strlen("MemAvailable:"), NULL, 10) * 1024 : 0;
}

/* What one cgroup's limit leaves. Reclaimable caches count as used. */
static uint64_t group_room(const char *dir, bool v2)
{
    uint64_t limit, used;
    _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fd_read_u64(fd, v2 ? "memory.max" : "memory.limit_in_bytes", &limit) < 0 ||
        fd_read_u64(fd, v2 ? "memory.current" : "memory.usage_in_bytes", &used) < 0)
        return UINT64_MAX; /* no limit there */
    return limit > used ? limit - used : 0;
}

static uint64_t hier_room(const struct cgroup_hier *h)
{
    char dir[CGROUP_DIR_MAX];
    uint64_t room = UINT64_MAX;
    size_t top = strlen(h->mount);
    memcpy(dir, h->own, sizeof dir);
    for (;;) {
        uint64_t one = group_room(dir, h->v2);
        room = one < room ? one : room;
        char *slash = strrchr(dir, '/');
        if (!slash || strlen(dir) <= top)
            return room;
        *slash = '\0';
    }
}

uint64_t memory_room(void)
{
    _cleanup_buf_ struct buf mounts = {0}, own = {0};
    uint64_t room = host_room();
    if (fd_read_file(AT_FDCWD, "/proc/self/mountinfo", TEXT_MAX, &mounts) < 0 ||
        fd_read_file(AT_FDCWD, "/proc/self/cgroup", TEXT_MAX, &own) < 0)
        return 0;
    _cleanup_free_ struct cgroup_info *info = xcalloc(1, sizeof *info);
    cgroup_parse_hosts(buf_str(&mounts), buf_str(&own), info);
    for (unsigned i = 0; i < info->nhier; i++) {
        uint64_t one = hier_room(&info->hier[i]);
        room = one < room ? one : room;
    }
    return room;
}
