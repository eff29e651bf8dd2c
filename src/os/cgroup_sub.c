/* cgroup_sub.c - groups below a leaf: of single commands whose memory is limited, and in v2 one for all other processes,
 * because a v2 cgroup with processes passes no controllers on. Their names say when they were made. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/cgroup-int.h"

enum { SUB_NAME_MAX = 64, SUB_NEW_MS = 15000 /* until then its process may still be on its way */ };

static bool sub_parse_name(const char *name, uint64_t *ret_number, uint64_t *ret_made_ms)
{
    int used = 0;
    return sscanf(name, CGROUP_SUB_PREFIX "%16" SCNx64 "-%16" SCNx64 "%n", ret_number, ret_made_ms, &used) == 2 &&
           name[used] == '\0';
}

/* Whether a process was in it at some time. Kernels before 5.19 do not say so in v2: then its age decides. */
static bool sub_was_used(int leaf, const char *name, bool v2)
{
    char file[SUB_NAME_MAX + 40];
    uint64_t peak = 0;
    (void)snprintf(file, sizeof file, "%.*s/%s", SUB_NAME_MAX, name, v2 ? "memory.peak" : "memory.max_usage_in_bytes");
    return fd_read_u64(leaf, file, &peak) == 0 && peak > 0;
}

unsigned cgroup_sub_sweep(const struct cgroup *cg)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_MEMORY);
    unsigned left = 0;
    int copy = l ? openat(l->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) {
        uint64_t number, made, now = cgroup_now_ms();
        if (!sub_parse_name(e->d_name, &number, &made))
            continue;
        bool is_new = now >= made && now - made < SUB_NEW_MS && !sub_was_used(l->fd, e->d_name, l->v2);
        /* The kernel refuses while a process is inside. */
        if (is_new || (unlinkat(l->fd, e->d_name, AT_REMOVEDIR) < 0 && errno != ENOENT))
            left++;
    }
    return left;
}

int cgroup_rmdir(const char *dir)
{
    if (rmdir(dir) == 0 || errno == ENOENT)
        return 0;
    if (errno != EBUSY)
        return -1;
    _cleanup_closedir_ DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) {
        uint64_t number, made;
        if (strcmp(e->d_name, CGROUP_MAIN) == 0 || sub_parse_name(e->d_name, &number, &made))
            (void)unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    }
    return rmdir(dir) == 0 || errno == ENOENT ? 0 : -1;
}

void cgroup_sub_close(struct cgroup_sub *s)
{
    int *const fds[] = {&s->enter, &s->events, &s->peak};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        if (*fds[i] >= 0)
            (void)close(*fds[i]);
        *fds[i] = -1;
    }
}

static int sub_fill(const struct cgroup_leaf *l, const char *name, uint64_t memory, struct cgroup_sub *ret,
                    struct err *err)
{
    struct cgroup_leaf sub = {.v2 = l->v2, .has = CGROUP_MEMORY};
    _cleanup_close_ int fd = openat(l->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    sub.fd = fd;
    if (fd < 0 || cgroup_set_memory(&sub, memory) < 0 || (l->v2 && fd_put(fd, "memory.oom.group", "1") < 0))
        return err_set(err, ERR_SETUP, errno, "limit the memory of the cgroup %s/%s", l->dir, name);
    /* Keeper's right to move a process goes with the open file: the process inside needs none of its own. */
    ret->enter = openat(fd, l->v2 ? "cgroup.procs" : "tasks", O_WRONLY | O_CLOEXEC);
    ret->events = openat(fd, l->v2 ? "memory.events" : "memory.oom_control", O_RDONLY | O_CLOEXEC);
    ret->peak = openat(fd, l->v2 ? "memory.events" : "memory.max_usage_in_bytes", O_RDONLY | O_CLOEXEC);
    if (ret->enter < 0 || ret->events < 0 || ret->peak < 0)
        return err_set(err, ERR_SETUP, errno, "open the cgroup %s/%s", l->dir, name);
    return 0;
}

int cgroup_sub_make(const struct cgroup *cg, uint64_t number, uint64_t memory, struct cgroup_sub *ret, struct err *err)
{
    char name[SUB_NAME_MAX];
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_MEMORY);
    *ret = (struct cgroup_sub){-1, -1, -1};
    if (!l)
        return err_set(err, ERR_HOST, 0, "the sandbox has no cgroup with the controller memory");
    if (l->v2 && fd_put(l->fd, "cgroup.subtree_control", "+memory") < 0)
        return err_set(err, ERR_HOST, errno, "the cgroup %s cannot pass on the controller memory%s", l->dir,
                       errno == EBUSY ? ": an earlier version made the sandbox" : "");
    (void)snprintf(name, sizeof name, CGROUP_SUB_PREFIX "%016" PRIx64 "-%" PRIx64, number, cgroup_now_ms());
    if (mkdirat(l->fd, name, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "make the cgroup %s/%s", l->dir, name);
    if (sub_fill(l, name, memory, ret, err) == 0)
        return 0;
    cgroup_sub_close(ret);
    (void)unlinkat(l->fd, name, AT_REMOVEDIR);
    return -1;
}
