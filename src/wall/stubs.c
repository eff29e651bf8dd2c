#include "wall/stubs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"

enum { TELL_DONE = 'd', TELL_MOUNTS = 'm' }; /* to the guard */
enum { LOCK_PATH = 80, LOCK_TRIES = 200, LOCK_PAUSE_MS = 10, GUARD_KILL_MS = 5000 };

struct stub_dir {
    char *path;
    int fd;                    /* the directory */
    int lock;                  /* our shared lock: a file that no sandbox sees, or the directory itself */
    char lock_path[LOCK_PATH]; /* "" if it is the directory */
    struct strv names;         /* stubs of ours in it */
    bool shared;               /* stubs of another run were here already */
    bool linked;               /* names.v[0] is a socket that others can be linked to */
};

struct stubs {
    size_t n;
    struct stub_dir dirs[]; /* room for all from the start: the guard may look at any moment */
};

static bool is_stub(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && plan_is_stub(&st);
}

/* The lock of a directory is a file in the host's /dev/shm, which sandboxes do not see: a lock on the directory itself
 * could be held, and the clean-up thereby stopped, by any command that can read it. */
static int open_lock(char path[LOCK_PATH])
{
    struct stat st;
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid())
        return fd;
    if (fd >= 0)
        (void)close(fd);
    path[0] = '\0'; /* the directory itself has to do */
    return -1;
}

/* 1 = locked, 0 = try again, -1 = cannot be. */
static int try_lock(struct stub_dir *d)
{
    struct stat st;
    d->lock = d->lock_path[0] ? open_lock(d->lock_path) : -1;
    int fd = d->lock >= 0 ? d->lock : d->fd;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        if (d->lock < 0)
            return 1;
        if (fstat(fd, &st) == 0 && st.st_nlink > 0) {
            (void)!write(fd, "r", 1); /* one byte a run: the last one sees whether there were others */
            return 1;
        }
    } else if (errno != EWOULDBLOCK) {
        return d->lock < 0 && (errno == ENOLCK || errno == EOPNOTSUPP) ? 1 : -1;
    }
    if (d->lock >= 0)
        (void)close(TAKE_FD(d->lock)); /* held by one that is cleaning up, or already removed by it */
    return 0;
}

static int lock_shared(struct stub_dir *d)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        int r = try_lock(d);
        if (r != 0)
            return r;
        (void)poll(NULL, 0, LOCK_PAUSE_MS);
    }
    errno = EWOULDBLOCK;
    return -1;
}

/* The entry is complete before its lock exists: whatever moment the caller dies at, the guard finds what to take away. */
static struct stub_dir *dir_for(struct stubs *s, const char *path, struct err *err)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    struct stat st;
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->dirs[i].path, path) == 0)
            return &s->dirs[i];
    struct stub_dir *d = &s->dirs[s->n];
    *d = (struct stub_dir){.fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how), .lock = -1};
    if (d->fd < 0 || fstat(d->fd, &st) < 0) {
        (void)err_set(err, ERR_SETUP, errno, "open %s to protect names in it", path);
        return NULL;
    }
    (void)snprintf(d->lock_path, LOCK_PATH, "/dev/shm/.hutch-%u-%llx-%llx", geteuid(), (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino);
    d->path = xstrdup(path);
    s->n++;
    if (lock_shared(d) < 0) {
        (void)err_set(err, ERR_SETUP, errno, "the stubs of %s are locked by another run that does not end", path);
        return NULL;
    }
    return d;
}

/* One socket node serves all names of a file system: a further link costs a tenth of a further node, and less where nodes were
 * just removed, because ext4 passes over those of the last minutes one by one. */
static int make_node(const struct stubs *s, struct stub_dir *d, const char *name)
{
    const struct stub_dir *from = d->linked ? d : &s->dirs[0];
    if (from->linked && linkat(from->fd, from->names.v[0], d->fd, name, 0) == 0) {
        d->linked = d->linked || d->names.n == 0;
        return 0;
    }
    if (from->linked && errno == EEXIST)
        return -1;
    if (mknodat(d->fd, name, S_IFSOCK | 01000, 0) == 0) {
        d->linked = d->names.n == 0;
        return 0;
    }
    if (errno != EPERM && errno != EOPNOTSUPP && errno != EINVAL)
        return -1;
    int fd = openat(d->fd, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    (void)fchmod(fd, 01000);
    (void)close(fd);
    return 0;
}

/* 1 = there, 0 = not needed, -1 = error. */
static int make_one(const struct stubs *s, struct stub_dir *d, const struct plan_op *op, struct err *err)
{
    const char *name = path_name(op->src);
    int r = make_node(s, d, name);
    if (r < 0 && errno == EEXIST && is_stub(d->fd, name)) {
        d->shared = true;
        strv_add(&d->names, name);
        if (d->names.n == 1)
            d->linked = false;
        return 1;
    }
    if (r < 0 && (errno == EACCES || errno == EROFS || errno == EPERM))
        return 0; /* not writable for the caller, so not for the command either */
    if (r < 0)
        return err_set(err, ERR_SETUP, errno, "put a stub at %s", op->src);
    strv_add(&d->names, name);
    return 1;
}

/* Those of an image are made in its private overlay. */
static bool wanted_on_host(const struct plan_op *op) { return op->kind == OP_STUB && op->src; }

int stubs_make(const struct plan *plan, struct stubs **ret, uint64_t *skipped, struct err *err)
{
    size_t wanted = 0;
    int r = 0;
    *ret = NULL;
    for (size_t i = 0; i < plan->nops; i++)
        wanted += wanted_on_host(&plan->ops[i]);
    if (wanted == 0)
        return 0;
    struct stubs *s = xcalloc(1, sizeof *s + wanted * sizeof s->dirs[0]);
    mode_t mask = umask(0);
    *ret = s;
    for (size_t i = 0; i < plan->nops && r >= 0; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (!wanted_on_host(op))
            continue;
        _cleanup_free_ char *parent = path_parent(op->src);
        struct stub_dir *d = dir_for(s, parent, err);
        r = d ? make_one(s, d, op, err) : -1;
        if (r == 0)
            skipped[i / 64] |= 1ULL << i % 64;
    }
    (void)umask(mask);
    return r < 0 ? -1 : 0; /* what was made is in *ret, and goes with it */
}

static void remove_stub(int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && plan_is_stub(&st))
        (void)unlinkat(dir, name, 0);
}

/* Another run may have protected other names than ours: the last one takes all of them. */
static void remove_all_stubs(int dir)
{
    char buf[4096] __attribute__((aligned(8)));
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;
    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0)
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(buf + at);
            at += e->d_reclen;
            if (e->d_type == DT_SOCK || e->d_type == DT_REG || e->d_type == DT_UNKNOWN)
                remove_stub(dir, e->d_name);
        }
    if (fd >= 0)
        (void)close(fd);
}

/* Takes away what nobody else uses; allocates and frees nothing, because the guard does it with the caller's memory. */
static void clean(const struct stubs *s)
{
    for (size_t i = s->n; i > 0; i--) {
        const struct stub_dir *d = &s->dirs[i - 1];
        struct stat st = {0};
        if (d->lock < 0 && d->lock_path[0])
            continue; /* the lock was never ours */
        if (flock(d->lock >= 0 ? d->lock : d->fd, LOCK_EX | LOCK_NB) < 0 && errno != ENOLCK && errno != EOPNOTSUPP)
            continue;
        for (size_t k = d->names.n; k > 0; k--)
            remove_stub(d->fd, d->names.v[k - 1]);
        if (d->shared || (d->lock >= 0 && fstat(d->lock, &st) == 0 && st.st_size > 1))
            remove_all_stubs(d->fd);
        if (d->lock_path[0])
            (void)unlink(d->lock_path);
    }
}

/* Lock files whose owners were killed together with their guards: nobody holds them, whatever directory they were for. A
 * run that has just made one and not locked it yet sees that it is gone and makes another. */
bool stubs_sweep(void)
{
    bool leaves = false;
    char mine[32], buf[4096] __attribute__((aligned(8)));
    size_t len = (size_t)snprintf(mine, sizeof mine, ".hutch-%u-", geteuid());
    int dir = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;
    while (dir >= 0 && (n = syscall(SYS_getdents64, dir, buf, sizeof buf)) > 0)
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(buf + at);
            at += e->d_reclen;
            if (strncmp(e->d_name, mine, len) != 0)
                continue;
            _cleanup_close_ int fd = openat(dir, e->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
            if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
                continue;
            leaves = leaves || strncmp(e->d_name + len, CGROUP_MARK, strlen(CGROUP_MARK)) == 0;
            (void)unlinkat(dir, e->d_name, 0);
        }
    if (dir >= 0)
        (void)close(dir);
    return leaves;
}

void stubs_remove(struct stubs *s)
{
    if (s)
        clean(s);
}

void stubs_free(struct stubs *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        (void)close(s->dirs[i].fd);
        if (s->dirs[i].lock >= 0)
            (void)close(s->dirs[i].lock);
        strv_done(&s->dirs[i].names);
        free(s->dirs[i].path);
    }
    free(s);
}

static int ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Closes everything but what the guard needs, so that no pipe of the caller stays open because of it. */
static void keep_only(const struct guard *g)
{
    int keep[3 + CGROUP_HIER_MAX + 3] = {g->pidfd, g->read_end};
    size_t n = 2;
    if (g->mounts >= 0)
        keep[n++] = g->mounts;
    for (unsigned i = 0; g->cgroup && i < g->cgroup->nleaf; i++)
        keep[n++] = g->cgroup->leaf[i].fd;
    for (int i = 0; i < 3; i++)
        if (g->terminals & 1U << i)
            keep[n++] = i;
    qsort(keep, n, sizeof keep[0], ascending);
    unsigned next = 0;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned)keep[i] > next)
            (void)fd_close_range(next, (unsigned)keep[i] - 1, 0);
        next = (unsigned)keep[i] + 1;
    }
    (void)fd_close_range(next, ~0U, 0);
}

/* The guard's own way, with the caller dead and its locks gone: names that the caller made last may not be listed yet, so
 * it goes by their shape. */
static void clean_after(const struct stubs *s)
{
    for (size_t i = s->n; i > 0; i--) {
        const struct stub_dir *d = &s->dirs[i - 1];
        struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
        int fd = (int)syscall(SYS_openat2, AT_FDCWD, d->path, &how, sizeof how);
        int lock = d->lock_path[0] ? open(d->lock_path, O_RDWR | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (fd >= 0 &&
            (flock(lock >= 0 ? lock : fd, LOCK_EX | LOCK_NB) == 0 || errno == ENOLCK || errno == EOPNOTSUPP)) {
            remove_all_stubs(fd);
            if (lock >= 0)
                (void)unlink(d->lock_path);
        }
        if (lock >= 0)
            (void)close(lock);
        if (fd >= 0)
            (void)close(fd);
    }
}

static char guard_stack[32 * 1024] __attribute__((aligned(16)));

/* The guard lives in the caller's memory (no copy is made, and the memory outlives the caller), with descriptors of its own.
 * It reads what the caller has prepared and changes nothing but its stack. */
static int guard_main(void *arg)
{
    const struct guard *g = arg;
    sigset_t all;
    char word;
    struct err ignored = {0};
    (void)prctl(PR_SET_NAME, "hutch-guard", 0, 0, 0);
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    keep_only(g);
    ssize_t n;
    int mounts = g->mounts;
    for (;;) {
        n = read(g->read_end, &word, 1);
        if (n == 1 && word == TELL_DONE)
            _exit(0);
        if (n == 1 && mounts >= 0) {
            struct pollfd init = {.fd = g->pidfd, .events = POLLIN};
            (void)poll(&init, 1, GUARD_KILL_MS); /* or init would undo them, and the caller waits for init */
            (void)close(TAKE_FD(mounts));
        } else if (n >= 0 || errno != EINTR)
            break;
    }
    /* The pipe may be the first thing that a dying caller closes; its locks on the directories are gone when it is. */
    struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, g->caller, 0), .events = POLLIN};
    if (p.fd >= 0)
        (void)poll(&p, 1, GUARD_KILL_MS);
    p.fd = g->pidfd;
    (void)syscall(SYS_pidfd_send_signal, g->pidfd, SIGKILL, NULL, 0);
    (void)poll(&p, 1, GUARD_KILL_MS);
    if (mounts >= 0) /* before the stubs that they are on */
        (void)close(mounts);
    if (g->last)
        g->last();
    if (g->cgroup) {
        (void)cgroup_kill(g->cgroup, GUARD_KILL_MS, &ignored);
        (void)cgroup_destroy(g->cgroup);
    }
    if (g->stubs && *g->stubs)
        clean_after(*g->stubs);
    _exit(0);
}

/* As long as init is being built it can be looked at; without that nothing is lost but time. */
static int open_mounts(pid_t init)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)init);
    return openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
}

int guard_start(struct stubs *const *s, struct cgroup *cg, void (*last)(void), const struct wall *w, struct guard *ret,
                struct err *err)
{
    int pipe[2];
    *ret = (struct guard)GUARD_NONE;
    if (!s && !cg && !last)
        return 0;
    if (pipe2(pipe, O_CLOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "make a pipe for the guard");
    *ret = (struct guard){.pid = -1,
                          .caller = getpid(),
                          .pipe = pipe[1],
                          .read_end = pipe[0],
                          .pidfd = w->pidfd,
                          .mounts = open_mounts(w->pid),
                          .stubs = s,
                          .cgroup = cg,
                          .last = last};
    for (int i = 0; last && i < 3; i++) /* from here: the guard shares our errno */
        ret->terminals |= isatty(i) ? 1U << i : 0U;
    ret->pid = clone(guard_main, guard_stack + sizeof guard_stack, CLONE_VM | SIGCHLD, ret);
    int eno = errno;
    if (ret->pid > 0)
        (void)setpgid(ret->pid, ret->pid); /* from here: a signal to the caller's group must not find it there */
    (void)close(pipe[0]);
    if (ret->mounts >= 0)
        (void)close(ret->mounts); /* the guard has its own */
    if (ret->pid < 0) {
        (void)close(pipe[1]);
        *ret = (struct guard)GUARD_NONE;
        return err_set(err, ERR_SETUP, eno, "start the guard");
    }
    return 0;
}

void guard_drop_mounts(struct guard *g)
{
    char word = TELL_MOUNTS;
    if (g->pid >= 0 && g->pipe >= 0 && g->mounts >= 0)
        (void)!write(g->pipe, &word, 1);
}

void guard_tell(struct guard *g)
{
    if (g->pid < 0 || g->pipe < 0)
        return;
    char word = TELL_DONE;
    (void)!write(g->pipe, &word, 1);
    (void)close(TAKE_FD(g->pipe));
}

void guard_dismiss(struct guard *g)
{
    if (g->pid < 0)
        return;
    guard_tell(g);
    while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    *g = (struct guard)GUARD_NONE;
}
