#include "keeper/keepsake.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/num.h"
#include "keeper/keeper-int.h"

#define KEEPSAKE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

void keepsake_node_of(int state, struct keepsake_node *ret)
{
    struct stat st;
    char link[32];
    *ret = (struct keepsake_node){0};
    if (fstat(state, &st) == 0) {
        ret->dev = st.st_dev;
        ret->ino = st.st_ino;
    }
    if (stat("/proc/self/ns/mnt", &st) == 0)
        ret->mounts = st.st_ino;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", state);
    ssize_t n = readlink(link, ret->state, sizeof ret->state - 1);
    ret->state[n > 0 && ret->state[0] == '/' && (size_t)n < sizeof ret->state - 1 ? n : 0] = '\0';
}

static void keepsake_fill(const struct keeper *k, const struct journal_record *r, struct keepsake *ret)
{
    uint64_t end = r->deadline_ms + k->config->grace_ms, start = 0;
    if (end < r->deadline_ms)
        end = UINT64_MAX - 1;
    (void)cgroup_start_time(getpid(), &start);
    *ret = (struct keepsake){.head = {.magic = INIT_LIFE_MAGIC, .end_ms = end, .check = ~end},
                             .node = k->common->node,
                             .keeper = (uint64_t)getpid(),
                             .keeper_start = start,
                             .record = *r};
    journal_seal(&ret->record);
}

/* Opens the same file with other rights: init must not be able to write it. */
static int keepsake_reopen(int fd, int flags)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

int keepsake_make(const struct keeper *k, const struct journal_record *r, struct err *err)
{
    struct keepsake l;
    keepsake_fill(k, r, &l);
    _cleanup_close_ int fd = memfd_create("hutch-keepsake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || fchmod(fd, 0600) < 0 || pwrite(fd, &l, sizeof l, 0) != sizeof l ||
        fcntl(fd, F_ADD_SEALS, KEEPSAKE_SEALS) < 0)
        return err_set(err, ERR_SETUP, errno, "make the file in memory that init keeps");
    int ro = keepsake_reopen(fd, O_RDONLY);
    return ro < 0 ? err_set(err, ERR_SETUP, errno, "open the file in memory that init keeps") : ro;
}

/* An init of another version may have a different file at that number. */
static int keepsake_fetch(int pidfd)
{
    struct init_life head;
    struct stat st;
    _cleanup_close_ int fd = (int)syscall(SYS_pidfd_getfd, pidfd, INIT_FD_LIFE, 0);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size != sizeof(struct keepsake) ||
        (fcntl(fd, F_GET_SEALS) & KEEPSAKE_SEALS) != KEEPSAKE_SEALS ||
        pread(fd, &head, sizeof head, 0) != sizeof head || head.magic != INIT_LIFE_MAGIC) {
        errno = ENOENT;
        return -1;
    }
    return TAKE_FD(fd);
}

int keepsake_put(const struct keeper *k, const struct entry *e, const struct journal_record *r, struct err *err)
{
    struct keepsake l;
    _cleanup_close_ int fd = keepsake_fetch(e->pidfd);
    if (fd < 0 && (errno == ENOENT || errno == EBADF || errno == ESRCH))
        return 0; /* it has none, or is dying */
    _cleanup_close_ int rw = fd < 0 ? -1 : keepsake_reopen(fd, O_RDWR);
    keepsake_fill(k, r, &l);
    if (rw < 0 || pwrite(rw, &l, sizeof l, 0) != sizeof l)
        return err_set(err, ERR_SETUP, errno, "tell init when it ends itself");
    return 0;
}

int keepsake_get(int pidfd, struct keepsake *ret)
{
    _cleanup_close_ int fd = keepsake_fetch(pidfd);
    if (fd < 0 || pread(fd, ret, sizeof *ret, 0) != sizeof *ret)
        return -1;
    ret->node.state[sizeof ret->node.state - 1] = '\0';
    return 0;
}

bool keepsake_kept(const struct keepsake *l)
{
    uint64_t start;
    return l->keeper > 0 && l->keeper <= INT32_MAX && cgroup_start_time((pid_t)l->keeper, &start) &&
           start == l->keeper_start;
}

/* "NSpid:\t4711\t1": its number in each pid namespace, ours first. */
static bool keepsake_is_first(const char *status)
{
    static const char label[] = "\nNSpid:";
    const char *line = strstr(status, label);
    line = line ? line + strlen(label) : "";
    size_t n = strcspn(line, "\n");
    return n > 2 && memcmp(line + n - 2, "\t1", 2) == 0;
}

bool keepsake_is_init(int proc, const char *pid)
{
    _cleanup_buf_ struct buf comm = {0}, status = {0};
    char path[300];
    (void)snprintf(path, sizeof path, "%s/comm", pid);
    if (fd_read_file(proc, path, 64, &comm) < 0 || strcmp(buf_str(&comm), "hutch-init\n") != 0)
        return false;
    (void)snprintf(path, sizeof path, "%s/status", pid);
    return fd_read_file(proc, path, 1 << 16, &status) == 0 && keepsake_is_first(buf_str(&status));
}

void keepsake_each(void (*found)(void *arg, pid_t pid, int pidfd, const struct keepsake *l), void *arg)
{
    static struct keepsake l;
    _cleanup_closedir_ DIR *d = opendir("/proc");
    const struct dirent *f;
    while (d && (f = readdir(d)) != NULL) {
        int pid;
        if (!num_int(f->d_name, 2, INT32_MAX, &pid) || !keepsake_is_init(dirfd(d), f->d_name))
            continue;
        _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (pidfd >= 0 && keepsake_is_init(dirfd(d), f->d_name)) /* still the same process */
            found(arg, pid, pidfd, keepsake_get(pidfd, &l) == 0 ? &l : NULL);
    }
}
