/* cgroup.c - life of a leaf: made with its limits, entered, saved, removed. */
#include "os/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/num.h"
#include "os/cgroup-int.h"

enum { LIMIT_BITS = CGROUP_CPU | CGROUP_MEMORY | CGROUP_PIDS, RMDIR_RETRY_MS = 200 };

const struct cgroup_leaf *cgroup_leaf_with(const struct cgroup *cg, unsigned bit)
{
    for (unsigned i = 0; i < cg->nleaf; i++)
        if (cg->leaf[i].has & bit)
            return &cg->leaf[i];
    return NULL;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

bool cgroup_start_time(pid_t pid, uint64_t *ret)
{
    char path[32], text[1024];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return false;
    text[n] = '\0';
    /* The name may hold spaces and parentheses; behind the last one come fields 3 and up, the start time is field 22.
     */
    const char *p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (!p)
        return false;
    char number[24];
    size_t len = strcspn(p + 1, " \n");
    if (len >= sizeof number)
        return false;
    memcpy(number, p + 1, len);
    number[len] = '\0';
    return num_u64(number, ret);
}

static uint64_t pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

void cgroup_make_name(char ret[CGROUP_NAME_MAX])
{
    uint64_t start = 0;
    uint32_t salt = 0;
    (void)cgroup_start_time(getpid(), &start);
    if (getrandom(&salt, sizeof salt, GRND_NONBLOCK) != sizeof salt) {
        struct timespec ts;
        (void)clock_gettime(CLOCK_MONOTONIC, &ts);
        salt = (uint32_t)ts.tv_nsec; /* only has to differ between leaves of one process; mkdir refuses a clash */
    }
    (void)snprintf(ret, CGROUP_NAME_MAX, CGROUP_PREFIX "%" PRIx64 "-%d-%" PRIu64 "-%08x", pid_namespace(),
                   (int)getpid(), start, salt);
}

bool cgroup_parse_name(const char *name, uint64_t *ret_pidns, pid_t *ret_pid, uint64_t *ret_start)
{
    unsigned salt;
    int pid, used = 0;
    if (strlen(name) >= CGROUP_NAME_MAX || sscanf(name, CGROUP_PREFIX "%16" SCNx64 "-%9d-%20" SCNu64 "-%8x%n",
                                                  ret_pidns, &pid, ret_start, &salt, &used) != 4)
        return false;
    *ret_pid = pid;
    return name[used] == '\0' && pid > 0;
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

static int put_u64(int dirfd, const char *file, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    return fd_put(dirfd, file, text);
}

/* v1 counts TCP buffers apart from memory, and only with a limit of their own. Give them a quarter of the memory limit,
 * but no more than fast connections need. Kernels without these files charge nothing to v1 groups. */
static int set_tcp(const struct cgroup_leaf *l, uint64_t memory)
{
    enum { TCP_MIN = 4 << 20, TCP_MAX = 64 << 20 };
    uint64_t bytes = memory / 4 < TCP_MIN ? TCP_MIN : memory / 4 > TCP_MAX ? TCP_MAX : memory / 4;
    return put_u64(l->fd, "memory.kmem.tcp.limit_in_bytes", bytes) < 0 && errno != ENOENT && errno != EOPNOTSUPP ? -1
                                                                                                                 : 0;
}

int cgroup_set_memory(const struct cgroup_leaf *l, uint64_t bytes)
{
    const char *swap = l->v2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes";
    if (put_u64(l->fd, l->v2 ? "memory.max" : "memory.limit_in_bytes", bytes) < 0)
        return -1;
    /* v1 limits memory and swap together, v2 swap alone. Where swap is not accounted the file is missing or dead. */
    if (put_u64(l->fd, swap, l->v2 ? 0 : bytes) < 0 && errno != ENOENT && errno != EOPNOTSUPP)
        return -1;
    return l->v2 ? 0 : set_tcp(l, bytes);
}

/* v1 refuses a quota above that of the surrounding cgroup. The outer quota then holds, which is enough.
 */
static bool outer_quota_is_tighter(const struct cgroup_leaf *l, uint64_t milli)
{
    char path[CGROUP_DIR_MAX + 32];
    uint64_t quota, period;
    const char *slash = strrchr(l->dir, '/');
    int n = (int)(slash - l->dir);
    (void)snprintf(path, sizeof path, "%.*s/cpu.cfs_quota_us", n, l->dir);
    if (fd_read_u64(AT_FDCWD, path, &quota) < 0)
        return false;
    (void)snprintf(path, sizeof path, "%.*s/cpu.cfs_period_us", n, l->dir);
    if (fd_read_u64(AT_FDCWD, path, &period) < 0 || period == 0)
        return false;
    return quota * 1000 / period <= milli;
}

static int set_cpu(const struct cgroup_leaf *l, uint64_t milli)
{
    /* The kernel takes no quota under 1 ms, so tiny shares get the longest period there is. */
    uint64_t period = milli < 10 ? 1000000 : 100000, quota = milli * (period / 1000);
    if (l->v2) {
        char text[48];
        (void)snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64, quota, period);
        return fd_put(l->fd, "cpu.max", text);
    }
    if (period != 100000 && put_u64(l->fd, "cpu.cfs_period_us", period) < 0)
        return -1;
    if (put_u64(l->fd, "cpu.cfs_quota_us", quota) == 0)
        return 0;
    int saved = errno;
    if (saved == EINVAL && outer_quota_is_tighter(l, milli))
        return 0;
    errno = saved;
    return -1;
}

static int write_limits(const struct cgroup_leaf *l, const struct cgroup_limits *lim, unsigned want, struct err *err)
{
    if ((l->has & CGROUP_MEMORY) && lim->memory && cgroup_set_memory(l, lim->memory) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot set the memory limit %" PRIu64 " in %s", lim->memory, l->dir);
    if ((l->has & CGROUP_CPU) && lim->cpu_milli && set_cpu(l, lim->cpu_milli) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot set the CPU quota of %" PRIu64 "/1000 CPU in %s", lim->cpu_milli,
                       l->dir);
    if ((l->has & CGROUP_PIDS) && lim->pids && put_u64(l->fd, "pids.max", lim->pids) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot set the process limit %" PRIu64 " in %s", lim->pids, l->dir);
    if (l->v2 && (want & CGROUP_OOM_GROUP) && (l->has & CGROUP_MEMORY) && fd_put(l->fd, "memory.oom.group", "1") < 0)
        return err_set(err, ERR_SETUP, errno, "cannot set memory.oom.group in %s", l->dir);
    return 0;
}

/* --- create ------------------------------------------------------------------------------------------------------- */

/* The group for all processes that no command's own group is for. */
static int make_main(struct cgroup_leaf *l, struct err *err)
{
    if (mkdirat(l->fd, CGROUP_MAIN, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make the cgroup %s/" CGROUP_MAIN, l->dir);
    l->enter_fd = openat(l->fd, CGROUP_MAIN, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return l->enter_fd < 0 ? err_set(err, ERR_SETUP, errno, "cannot open the cgroup %s/" CGROUP_MAIN, l->dir) : 0;
}

static int cgroup_make_leaf(struct cgroup *cg, const char *parent, bool v2, unsigned has, unsigned want,
                            struct err *err)
{
    struct cgroup_leaf *l = &cg->leaf[cg->nleaf];
    char dir[CGROUP_DIR_MAX];
    int n = snprintf(dir, sizeof dir, "%s/%s", parent, cg->name);
    if (n < 0 || (size_t)n >= sizeof dir)
        return err_set(err, ERR_HOST, 0, "the cgroup path %s is longer than %d bytes", parent, CGROUP_DIR_MAX);
    if (mkdir(dir, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make the cgroup %s", dir);
    memcpy(l->dir, dir, sizeof dir);
    l->v2 = v2;
    l->has = has;
    l->fd = open(l->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    l->enter_fd = -1;
    cg->nleaf++; /* from here cgroup_destroy() knows of it */
    if (l->fd < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open the cgroup %s", l->dir);
    if (!v2) {
        l->enter_fd = openat(l->fd, "tasks", O_WRONLY | O_CLOEXEC);
        if (l->enter_fd < 0)
            return err_set(err, ERR_SETUP, errno, "cannot open %s/tasks", l->dir);
    }
    return v2 && (want & CGROUP_INNER) ? make_main(l, err) : 0;
}

/* Which of the wanted bits each hierarchy serves. v2 goes first: one v2 leaf gives freezer and CPU time at no extra
 * cost. */
static unsigned cgroup_assign_bits(const struct cgroup_info *info, unsigned bits, unsigned ret_serves[CGROUP_HIER_MAX])
{
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned i = 0; i < info->nhier; i++) {
            if (info->hier[i].v2 != (pass == 0))
                continue;
            ret_serves[i] = info->hier[i].has & bits;
            bits &= ~ret_serves[i];
        }
    }
    return bits;
}

static int make_in(const struct cgroup_hier *h, unsigned serves, unsigned must, unsigned want, struct cgroup *cg,
                   struct err *err)
{
    char dir[CGROUP_DIR_MAX], names[64];
    if (!h->v2)
        return cgroup_make_leaf(cg, h->own, false, serves, want, err);
    unsigned always = CGROUP_CORE | CGROUP_CPUACCT | CGROUP_FREEZER;
    if (cgroup_v2_place(h, serves, true, dir))
        return cgroup_make_leaf(cg, dir, true, serves | always, want, err);
    if (cgroup_v2_place(h, serves & must, true, dir))
        return cgroup_make_leaf(cg, dir, true, (serves & must) | always, want, err);
    cgroup_bits_text(serves & must, names, sizeof names);
    return err_set(err, ERR_HOST, 0,
                   "no cgroup from %s upwards can pass on the controllers %s; start in a cgroup of its own: "
                   "systemd-run %s--scope -p Delegate=yes -- hutch ...",
                   h->own, names, geteuid() == 0 ? "" : "--user ");
}

int cgroup_create(const struct cgroup_info *info, const struct cgroup_limits *limits, unsigned want, struct cgroup *ret,
                  struct err *err)
{
    unsigned must = (limits->cpu_milli ? CGROUP_CPU : 0u) | (limits->memory ? CGROUP_MEMORY : 0u) |
                    (limits->pids ? CGROUP_PIDS : 0u);
    unsigned bits = must | (want & (LIMIT_BITS | CGROUP_CPUACCT | CGROUP_IO | CGROUP_FREEZER | CGROUP_CORE));
    unsigned serves[CGROUP_HIER_MAX] = {0};
    memset(ret, 0, sizeof *ret);
    unsigned lacks = cgroup_assign_bits(info, bits, serves) & must;
    if (lacks) {
        char names[64];
        cgroup_bits_text(lacks, names, sizeof names);
        return err_set(err, ERR_HOST, 0, "cannot limit %s here: %s", names,
                       info->why[0] ? info->why : "no such controller");
    }
    if (limits->cpu_milli > UINT64_C(1000000000))
        return err_set(err, ERR_POLICY, 0, "a CPU limit of %" PRIu64 "/1000 is above 1000000 CPUs", limits->cpu_milli);
    cgroup_make_name(ret->name);
    if (!(want & CGROUP_JOURNALLED))
        cgroup_mark(ret);
    for (unsigned i = 0; i < info->nhier; i++) {
        if (!serves[i])
            continue;
        if (make_in(&info->hier[i], serves[i], must, want, ret, err) < 0 ||
            write_limits(&ret->leaf[ret->nleaf - 1], limits, want, err) < 0) {
            (void)cgroup_destroy(ret);
            return -1;
        }
    }
    if (ret->nleaf == 0)
        cgroup_unmark(ret, true);
    return 0;
}

/* --- enter -------------------------------------------------------------------------------------------------------- */

int cgroup_into_fd(const struct cgroup *cg)
{
    const struct cgroup_leaf *core = cgroup_leaf_with(cg, CGROUP_CORE);
    return !core ? -1 : core->enter_fd >= 0 ? core->enter_fd : core->fd;
}

int cgroup_enter(const struct cgroup *cg)
{
    for (unsigned i = 0; i < cg->nleaf; i++) {
        /* "0" in `tasks` moves the calling thread alone: the one form for which the kernel skips its global lock. */
        if (!cg->leaf[i].v2 && write(cg->leaf[i].enter_fd, "0", 1) != 1)
            return -1;
    }
    return 0;
}

int cgroup_enter_memory(const struct cgroup *cg)
{
    const struct cgroup_leaf *l = cgroup_leaf_with(cg, CGROUP_MEMORY);
    if (!l || l->v2 || (l->has & CGROUP_FREEZER))
        return 1;
    return write(l->enter_fd, "0", 1) == 1 ? 0 : -1;
}

int cgroup_attach(const struct cgroup *cg, pid_t pid, bool cloned_into, struct err *err)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", (int)pid);
    for (unsigned i = 0; i < cg->nleaf; i++) {
        const struct cgroup_leaf *l = &cg->leaf[i];
        if (l->v2 && cloned_into)
            continue;
        if (fd_put(l->v2 && l->enter_fd >= 0 ? l->enter_fd : l->fd, "cgroup.procs", text) < 0)
            return err_set(err, ERR_SETUP, errno, "cannot move process %d into %s", (int)pid, l->dir);
    }
    return 0;
}

/* --- end ---------------------------------------------------------------------------------------------------------- */

void cgroup_close(struct cgroup *cg)
{
    for (unsigned i = 0; i < cg->nleaf; i++) {
        if (cg->leaf[i].fd >= 0)
            (void)close(cg->leaf[i].fd);
        if (cg->leaf[i].enter_fd >= 0)
            (void)close(cg->leaf[i].enter_fd);
    }
    cg->nleaf = 0;
    cgroup_unmark(cg, false);
}

/* A process that was just killed stays counted until the kernel is done with it, hence the retry. */
static int remove_leaf(const char *dir)
{
    for (int waited = 0;; waited++) {
        if (cgroup_rmdir(dir) == 0)
            return 0;
        if (errno != EBUSY || waited >= RMDIR_RETRY_MS)
            return -1;
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

int cgroup_destroy(struct cgroup *cg)
{
    int failed = 0;
    for (unsigned i = cg->nleaf; i-- > 0;)
        if (remove_leaf(cg->leaf[i].dir) < 0)
            failed = errno;
    cgroup_unmark(cg, !failed);
    cgroup_close(cg);
    errno = failed;
    return failed ? -1 : 0;
}

void cgroup_save(const struct cgroup *cg, struct buf *out)
{
    for (unsigned i = 0; i < cg->nleaf; i++)
        buf_addf(out, "%x %s\n", cg->leaf[i].has, cg->leaf[i].dir);
}

static int load_leaf(const char *dir, unsigned has, struct cgroup *cg, struct err *err)
{
    uint64_t pidns, start;
    pid_t pid;
    const char *slash = strrchr(dir, '/');
    struct statfs fs;
    if (dir[0] != '/' || !cgroup_parse_name(slash + 1, &pidns, &pid, &start))
        return err_set(err, ERR_INTERNAL, 0, "a saved cgroup must be an absolute path ending in " CGROUP_PREFIX "...");
    if (cg->nleaf == CGROUP_HIER_MAX || strlen(dir) >= CGROUP_DIR_MAX)
        return err_set(err, ERR_INTERNAL, 0, "a saved cgroup has too many or too long paths");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0)
        return err_set(err, ERR_INTERNAL, errno, "cannot open the saved cgroup %s", dir);
    bool ok = fstatfs(fd, &fs) == 0;
    bool v2 = ok && (unsigned long)fs.f_type == CGROUP2_SUPER_MAGIC;
    if (!v2 && (!ok || (unsigned long)fs.f_type != CGROUP_SUPER_MAGIC)) {
        (void)close(fd);
        return err_set(err, ERR_INTERNAL, 0, "the saved path %s is not on a cgroup file system", dir);
    }
    struct cgroup_leaf *l = &cg->leaf[cg->nleaf++];
    *l = (struct cgroup_leaf){
        .v2 = v2, .has = has, .fd = fd, .enter_fd = v2 ? -1 : openat(fd, "tasks", O_WRONLY | O_CLOEXEC)};
    memcpy(l->dir, dir, strlen(dir) + 1);
    (void)snprintf(cg->name, sizeof cg->name, "%s", slash + 1);
    return 0;
}

int cgroup_load(const char *text, struct cgroup *ret, struct err *err)
{
    memset(ret, 0, sizeof *ret);
    while (*text) {
        char dir[CGROUP_DIR_MAX];
        unsigned has;
        int used = 0;
        size_t len = strcspn(text, "\n");
        if (sscanf(text, "%8x %n", &has, &used) != 1 || (size_t)used >= len || len - (size_t)used >= sizeof dir) {
            cgroup_close(ret);
            return err_set(err, ERR_INTERNAL, 0, "a saved cgroup must have lines of the form \"bits /path\"");
        }
        memcpy(dir, text + used, len - (size_t)used);
        dir[len - (size_t)used] = '\0';
        if (load_leaf(dir, has, ret, err) < 0) {
            cgroup_close(ret);
            return -1;
        }
        text += len + (text[len] == '\n');
    }
    return 0;
}
