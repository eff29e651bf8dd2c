/* gc.c - removes what orphaned sandboxes left. Normally there is nothing: keeper cleans up when it starts. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/strv.h"
#include "base/text.h"
#include "keeper/keeper-int.h"
#include "os/procs.h"
#include "os/upper.h"

#define UPPER_GONE ".gone-"
enum { ORPHAN_END_MS = 5000, ORPHAN_TRIES = 100 };

struct gc {
    const struct keeper_gc *ask;
    int run, journal;
    char boot[JOURNAL_BOOT];
    bool keeper_runs; /* then it alone handles what its journal names */
    struct strv ids, groups;
    uint32_t *ranges;
    size_t nranges, ranges_cap;
    pid_t *pids;
    size_t npids, pids_cap;
};

static void gc_tell(const struct gc *g, const char *what, const char *name, const char *why, bool removed)
{
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, name, 256);
    g->ask->found(g->ask->arg, what, buf_str(&safe), why, removed);
}

static void note_groups(struct gc *g, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        const char *slash = memrchr(text, '/', n);
        if (slash)
            strv_take(&g->groups, xstrndup(slash + 1, n - (size_t)(slash + 1 - text)));
        text += n + (text[n] == '\n');
    }
}

static void look_at_record(void *arg, const char *name, const struct journal_record *r)
{
    struct gc *g = arg;
    if (!r) {
        bool gone = g->ask->remove && !g->keeper_runs && unlinkat(g->journal, name, 0) == 0;
        gc_tell(g, "journal", name, "not a whole record", gone);
        return;
    }
    _cleanup_close_ int pidfd = r->state == JOURNAL_DEAD ? -1 : adopt_pidfd(r, g->boot);
    bool known = pidfd >= 0 || r->state == JOURNAL_DEAD || g->keeper_runs;
    if (!known) {
        bool gone = g->ask->remove && unlinkat(g->journal, name, 0) == 0;
        gc_tell(g, "journal", name, "its init is dead and no keeper runs", gone);
        return;
    }
    strv_add(&g->ids, r->id);
    note_groups(g, r->cgroup);
    if (r->range) {
        MEM_GROW(g->ranges, g->nranges, g->ranges_cap);
        g->ranges[g->nranges++] = r->range;
    }
    if (r->pid) {
        MEM_GROW(g->pids, g->npids, g->pids_cap);
        g->pids[g->npids++] = (pid_t)r->pid;
    }
}

static void look_at_sockets(struct gc *g)
{
    int copy = openat(g->run, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *f;
    while (d && (f = readdir(d)) != NULL) {
        size_t n = strlen(f->d_name);
        char id[KEEPER_ID_MAX] = "";
        if (n < 6 || n - 5 >= sizeof id || strcmp(f->d_name + n - 5, ".sock") != 0)
            continue;
        memcpy(id, f->d_name, n - 5);
        if (!keeper_id_valid(id) || strv_has(&g->ids, id))
            continue;
        bool alive = keeper_socket_alive(g->run, f->d_name);
        bool gone = g->ask->remove && !alive && unlinkat(g->run, f->d_name, 0) == 0;
        gc_tell(g, "socket", f->d_name, alive ? "something listens on it, no record names it" : "no record names it",
                gone);
    }
}

static void look_at_group(struct gc *g, const char *dir)
{
    _cleanup_closedir_ DIR *d = opendir(dir);
    struct dirent *f;
    while (d && (f = readdir(d)) != NULL) {
        char path[CGROUP_DIR_MAX + 300];
        if (!keeper_leaf_orphaned(f->d_name) || strv_has(&g->groups, f->d_name))
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        errno = 0;
        bool gone = g->ask->remove && cgroup_rmdir(path) == 0;
        bool busy = !gone && errno == EBUSY;
        gc_tell(g, "cgroup", path,
                busy ? "no record names it, and processes are in it" : "its keeper is dead and no record names it",
                gone);
    }
}

static void look_at_groups(struct gc *g)
{
    _cleanup_strv_ struct strv noted = {0};
    if (g->journal < 0 || journal_groups(g->journal, &noted) < 0)
        return;
    for (size_t i = 0; i < noted.n; i++)
        look_at_group(g, noted.v[i]);
}

/* Removes uppers on disk without a sandbox, and those that were renamed for removal. */
static void look_at_upper(struct gc *g, int dir, const char *name)
{
    char id[KEEPER_ID_MAX] = "";
    struct journal_record r;
    struct err ignored = {0};
    size_t n = strcspn(name, "."); /* images have a suffix */
    if (strncmp(name, UPPER_GONE, strlen(UPPER_GONE)) == 0) {
        bool gone = g->ask->remove && upper_sweep(dir, &ignored) == 0;
        gc_tell(g, "upper", name, "on its way out", gone);
        return;
    }
    if (n == 0 || n >= sizeof id)
        return;
    memcpy(id, name, n);
    /* A sandbox that began after we read the journal has a record by now: records are written before the upper is
     * made. */
    if (!keeper_id_valid(id) || strv_has(&g->ids, id) ||
        (g->journal >= 0 && journal_read_beside(g->journal, id, &r) == 0))
        return;
    bool gone = g->ask->remove && upper_remove(dir, id, &ignored) == 0 && upper_sweep(dir, &ignored) == 0;
    gc_tell(g, "upper", name, "no record names it", gone);
}

static void look_at_uppers(struct gc *g)
{
    _cleanup_free_ char *path = path_join(g->ask->state, "stock/uppers");
    _cleanup_strv_ struct strv names = {0}; /* copied first: the directory changes while we go through it */
    _cleanup_closedir_ DIR *d = opendir(path);
    const struct dirent *f;
    while (d && (f = readdir(d)) != NULL)
        strv_add(&names, f->d_name);
    for (size_t i = 0; i < names.n; i++)
        look_at_upper(g, dirfd(d), names.v[i]);
}

/* Only the pid 1 of a sandbox without a hutch parent: `hutch run` is the parent of its own. */
static bool is_orphan(const char *pid)
{
    _cleanup_buf_ struct buf own = {0}, above = {0};
    char path[300], comm[17];
    pid_t parent;
    (void)snprintf(path, sizeof path, "/proc/%s/stat", pid);
    if (fd_read_file(AT_FDCWD, path, 4096, &own) < 0 || !procs_parse_stat(buf_str(&own), comm, &parent) || parent == 0)
        return false;
    (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)parent);
    return fd_read_file(AT_FDCWD, path, 64, &above) < 0 || strncmp(buf_str(&above), "hutch", 5) != 0;
}

/* A node whose state directory is gone never comes back. Where we cannot judge its path, we leave its sandboxes
 * alone. */
static bool orphan_of_gone_node(const struct keepsake *l)
{
    struct stat st, here;
    return !keepsake_kept(l) && l->node.state[0] && stat("/proc/self/ns/mnt", &here) == 0 &&
           here.st_ino == l->node.mounts &&
           (lstat(l->node.state, &st) < 0 ? errno == ENOENT || errno == ENOTDIR
                                          : st.st_dev != l->node.dev || st.st_ino != l->node.ino);
}

static bool orphan_end(pid_t pid, int pidfd, const struct keepsake *l)
{
    struct cgroup cg = CGROUP_INIT;
    struct err err = {0};
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    bool groups = journal_valid(&l->record) && recover_groups_are_true(pid, l->record.cgroup);
    (void)tier_container.kill(pidfd, groups ? &l->record : NULL, false);
    if (poll(&p, 1, ORPHAN_END_MS) != 1)
        return false;
    if (!groups || cgroup_load(l->record.cgroup, &cg, &err) < 0)
        return true;
    for (int tries = 0; tries < ORPHAN_TRIES; tries++) { /* its other processes end a moment later */
        unsigned left = 0;
        for (unsigned i = 0; i < cg.nleaf; i++)
            left += cgroup_rmdir(cg.leaf[i].dir) < 0 && errno == EBUSY;
        if (left == 0)
            break;
        (void)usleep(10000);
    }
    cgroup_close(&cg);
    return true;
}

/* Reports a sandbox by what its init keeps. False: nothing more to report. */
static bool look_at_keepsake(struct gc *g, const char *name, pid_t pid, int pidfd)
{
    struct keepsake l;
    struct stat st;
    char why[KEEPSAKE_STATE_MAX + 128];
    if (keepsake_get(pidfd, &l) < 0)
        return true;
    if (stat(g->ask->state, &st) == 0 && st.st_dev == l.node.dev && st.st_ino == l.node.ino)
        gc_tell(
            g, "process", name,
            "the first process of a sandbox of this node that no record names; keeper looks after it when it starts",
            false);
    else if (orphan_of_gone_node(&l)) {
        (void)snprintf(why, sizeof why, "the first process of sandbox %.*s, whose node (%s) is gone", KEEPER_ID_MAX,
                       l.record.id, l.node.state);
        gc_tell(g, "process", name, why, g->ask->remove && orphan_end(pid, pidfd, &l));
    }
    return false;
}

static void look_at_processes(struct gc *g)
{
    _cleanup_closedir_ DIR *d = opendir("/proc");
    struct dirent *f;
    while (d && (f = readdir(d)) != NULL) {
        int pid;
        bool known = false;
        if (!num_int(f->d_name, 2, INT32_MAX, &pid))
            continue;
        _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (pidfd < 0 || !keepsake_is_init(dirfd(d), f->d_name) || !is_orphan(f->d_name))
            continue;
        for (size_t i = 0; i < g->npids; i++)
            known |= g->pids[i] == pid;
        if (known || !look_at_keepsake(g, f->d_name, pid, pidfd))
            continue;
        /* It may belong to a node with another run directory, so only report it. */
        gc_tell(g, "process", f->d_name,
                "the first process of a sandbox that no record here names; if no other node runs on this host, kill it",
                false);
    }
}

/* The kernel frees a range with its last holder; a held range without a record is only reported. */
static void look_at_ranges(struct gc *g)
{
    _cleanup_close_ int fd = open(IDRANGE_FILE, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    for (uint32_t n = 0; fd >= 0 && n < IDRANGE_MAX; n++) {
        struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = n, .l_len = 1};
        char name[32];
        bool known = false;
        uint32_t base = IDRANGE_FIRST + n * IDRANGE_COUNT;
        if (fcntl(fd, F_OFD_GETLK, &fl) < 0 || fl.l_type == F_UNLCK)
            continue;
        for (size_t i = 0; i < g->nranges; i++)
            known |= g->ranges[i] == base;
        (void)snprintf(name, sizeof name, "%u-%u", base, base + IDRANGE_COUNT - 1);
        if (!known)
            gc_tell(g, "ids", name, "held by a process that no record names (a `hutch run`, or another run directory)",
                    false);
    }
}

static bool keeper_runs(const char *state)
{
    _cleanup_close_ int dir = open(state, O_PATH | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int fd = dir < 0 ? -1 : openat(dir, "keeper.lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fd >= 0 && fcntl(fd, F_GETLK, &fl) == 0 && fl.l_type != F_UNLCK;
}

int keeper_gc(const struct keeper_gc *ask, struct err *err)
{
    struct gc g = {.ask = ask, .keeper_runs = keeper_runs(ask->state), .journal = -1};
    journal_boot_id(g.boot);
    g.run = open(ask->run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (g.run < 0)
        return err_set(err, ERR_USAGE, errno, "cannot open the run directory %s", ask->run);
    g.journal = openat(g.run, "journal", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = g.journal < 0 ? 0 : journal_each(g.journal, look_at_record, &g, err);
    if (r == 0) {
        look_at_sockets(&g);
        look_at_groups(&g);
        look_at_uppers(&g);
        look_at_processes(&g);
        look_at_ranges(&g);
    }
    if (g.journal >= 0)
        (void)close(g.journal);
    (void)close(g.run);
    strv_done(&g.ids);
    strv_done(&g.groups);
    free(g.ranges);
    free(g.pids);
    return r;
}
