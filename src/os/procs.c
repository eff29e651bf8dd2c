#include "os/procs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"

enum { PROC_FILE_MAX = 4 << 20 };

struct pids {
    pid_t *v;
    size_t n, cap;
    bool truncated;
};

static void pids_done(struct pids *p) { free(p->v); }

static void pids_add(struct pids *p, pid_t pid)
{
    if (p->n == PROCS_LIST_MAX) {
        p->truncated = true;
        return;
    }
    MEM_GROW(p->v, p->n, p->cap);
    p->v[p->n++] = pid;
}

static int read_proc(pid_t pid, const char *file, struct buf *b)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    return fd_read_file(AT_FDCWD, path, PROC_FILE_MAX, b);
}

bool procs_parse_stat(const char *text, char ret_comm[17], pid_t *ret_ppid)
{
    /* "pid (name) S ppid ...": the name may itself hold parentheses, so it ends at the last one. */
    const char *open = strchr(text, '('), *close = strrchr(text, ')');
    char state;
    int ppid;
    if (!open || !close || close < open || sscanf(close + 1, " %c %9d", &state, &ppid) != 2 || ppid < 0)
        return false;
    size_t n = (size_t)(close - open - 1);
    if (n > 16)
        n = 16; /* kernel threads have longer names */
    memcpy(ret_comm, open + 1, n);
    ret_comm[n] = '\0';
    *ret_ppid = ppid;
    return true;
}

static bool read_memory(pid_t pid, struct procs_entry *e)
{
    _cleanup_buf_ struct buf b = {0};
    uint64_t resident, shared, page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (read_proc(pid, "statm", &b) < 0 || sscanf(buf_str(&b), "%*u %" SCNu64 " %" SCNu64, &resident, &shared) != 2)
        return false;
    e->pid = pid;
    e->rss_bytes = resident * page;
    e->anon_bytes = resident > shared ? (resident - shared) * page : 0;
    return true;
}

static void read_comm(struct procs_entry *e)
{
    _cleanup_buf_ struct buf b = {0};
    pid_t ppid;
    if (read_proc(e->pid, "stat", &b) < 0 || !procs_parse_stat(buf_str(&b), e->comm, &ppid))
        e->comm[0] = '\0';
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

static void add_numbers(const char *text, struct pids *p)
{
    while (*text) {
        char number[16];
        int pid;
        size_t n = strcspn(text, " \n");
        if (n > 0 && n < sizeof number) {
            memcpy(number, text, n);
            number[n] = '\0';
            if (num_int(number, 1, INT32_MAX, &pid))
                pids_add(p, pid);
        }
        text += n;
        text += strspn(text, " \n");
    }
}

/* Each thread has its own list of children. -1 with errno if the process is gone or the kernel has no such lists. */
static int add_children(pid_t pid, struct pids *p)
{
    char path[64];
    int lists = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    _cleanup_closedir_ DIR *d = opendir(path);
    struct dirent *e;
    if (!d)
        return -1;
    while ((e = readdir(d)) != NULL) {
        _cleanup_buf_ struct buf b = {0};
        int n = snprintf(path, sizeof path, "%.20s/children", e->d_name);
        if (e->d_name[0] == '.' || n < 0 || fd_read_file(dirfd(d), path, PROC_FILE_MAX, &b) < 0)
            continue;
        lists++;
        add_numbers(buf_str(&b), p);
    }
    if (lists == 0)
        errno = ENOTSUP;
    return lists > 0 ? 0 : -1;
}

static int walk_children(pid_t init, struct pids *found)
{
    pids_add(found, init);
    if (add_children(init, found) < 0)
        return -1;
    for (size_t i = 1; i < found->n; i++)
        (void)add_children(found->v[i], found); /* gone meanwhile: its children are with pid 1 and seen next time */
    return 0;
}

struct parent {
    pid_t pid, ppid;
};

static int by_parent(const void *a, const void *b)
{
    pid_t x = ((const struct parent *)a)->ppid, y = ((const struct parent *)b)->ppid;
    return (x > y) - (x < y);
}

/* Index of the first entry of the sorted list whose parent is not below `ppid`. */
static size_t first_child(const struct parent *all, size_t n, pid_t ppid)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (all[mid].ppid < ppid)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void pick_descendants(struct parent *all, size_t n, struct pids *found)
{
    if (n > 0)
        qsort(all, n, sizeof *all, by_parent);
    for (size_t i = 0; i < found->n && !found->truncated; i++)
        for (size_t k = first_child(all, n, found->v[i]); k < n && all[k].ppid == found->v[i]; k++)
            pids_add(found, all[k].pid);
}

static int scan_all(pid_t init, struct pids *found)
{
    _cleanup_free_ struct parent *all = NULL;
    size_t n = 0, cap = 0;
    _cleanup_closedir_ DIR *d = opendir("/proc");
    struct dirent *e;
    if (!d)
        return -1;
    pids_add(found, init);
    while ((e = readdir(d)) != NULL) {
        _cleanup_buf_ struct buf b = {0};
        struct parent p;
        char comm[17];
        if (!num_int(e->d_name, 1, INT32_MAX, &p.pid) || p.pid == init || read_proc(p.pid, "stat", &b) < 0 ||
            !procs_parse_stat(buf_str(&b), comm, &p.ppid) || p.ppid == 0)
            continue;
        MEM_GROW(all, n, cap);
        all[n++] = p;
    }
    pick_descendants(all, n, found);
    return 0;
}

static int procs_find(pid_t init, enum procs_how how, struct pids *found)
{
    if (how != PROCS_SCAN && walk_children(init, found) == 0)
        return 0;
    if (how == PROCS_CHILDREN || (how == PROCS_AUTO && errno != ENOTSUP)) {
        errno = errno == ENOENT ? ESRCH : errno;
        return -1;
    }
    found->n = 0;
    return scan_all(init, found);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

int procs_list(pid_t init, enum procs_how how, struct procs_entry **ret, size_t *ret_n, bool *ret_truncated)
{
    _cleanup_(pids_done) struct pids found = {0};
    struct procs_entry *v = NULL;
    size_t n = 0, cap = 0;
    if (procs_find(init, how, &found) < 0)
        return -1;
    for (size_t i = 0; i < found.n; i++) {
        struct procs_entry e = {0};
        if (!read_memory(found.v[i], &e))
            continue;
        read_comm(&e);
        MEM_GROW(v, n, cap);
        v[n++] = e;
    }
    *ret = v;
    *ret_n = n;
    if (ret_truncated)
        *ret_truncated = found.truncated;
    return 0;
}

/* Shared memory that a process has mapped (shm, memfd, tmpfs); statm counts it among the pages of files. */
static uint64_t read_shmem(pid_t pid)
{
    _cleanup_buf_ struct buf b = {0};
    uint64_t kb = 0;
    const char *line = read_proc(pid, "status", &b) < 0 ? NULL : strstr(buf_str(&b), "\nRssShmem:");
    return line && sscanf(line, "\nRssShmem: %" SCNu64, &kb) == 1 && kb < UINT64_MAX / 1024 ? kb * 1024 : 0;
}

int procs_usage(pid_t init, struct procs_usage *ret)
{
    _cleanup_(pids_done) struct pids found = {0};
    memset(ret, 0, sizeof *ret);
    if (procs_find(init, PROCS_AUTO, &found) < 0)
        return -1;
    for (size_t i = 0; i < found.n; i++) {
        struct procs_entry e = {0};
        if (!read_memory(found.v[i], &e))
            continue;
        ret->count++;
        ret->rss_bytes += e.rss_bytes;
        ret->anon_bytes += e.anon_bytes;
        uint64_t shmem = read_shmem(found.v[i]);
        ret->shmem_bytes = shmem > ret->shmem_bytes ? shmem : ret->shmem_bytes;
        if (ret->biggest.pid == 0 || e.anon_bytes > ret->biggest.anon_bytes)
            ret->biggest = e;
    }
    if (ret->biggest.pid)
        read_comm(&ret->biggest);
    ret->truncated = found.truncated;
    if (ret->count == 0) {
        errno = ESRCH;
        return -1;
    }
    return 0;
}
