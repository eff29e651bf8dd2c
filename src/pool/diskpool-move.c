/* diskpool-move.c - takes a store that was made before the pool into it. Nothing is removed: the old store stays as
 * STATE/stock.before-pool. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/outer.h"
#include "keeper/place.h"
#include "os/btrfs.h"
#include "os/upper.h"
#include "pool/diskpool-int.h"

enum { COPY_FROM = 3, COPY_TO = 4, NO_PROGRAM = 127 };

static bool diskpool_dir_used(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            return true;
    return false;
}

bool diskpool_store_used(int state)
{
    static const char *const dirs[] = {"layers", "stacks", "volumes", "uppers", "blobs"};
    _cleanup_close_ int stock = openat(state, LAYERS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (size_t i = 0; stock >= 0 && i < ARRAY_LEN(dirs); i++)
        if (diskpool_dir_used(stock, dirs[i]))
            return true;
    return false;
}

/* The host's cp keeps owners, times, modes, attributes, hard links, holes and device nodes. Its exit status. */
static int diskpool_copy_tree(int from, int to)
{
    static const char *const argv[] = {"/bin/cp",          "-a", "--sparse=always", "/proc/self/fd/3/.",
                                       "/proc/self/fd/4/", NULL};
    static const char *const env[] = {"PATH=/usr/bin:/bin", "LC_ALL=C", NULL};
    pid_t parent = getpid(), pid = fork();
    int status;
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* the next start begins with a new pool */
        if (getppid() != parent)
            _exit(NO_PROGRAM);
        int a = fcntl(from, F_DUPFD, COPY_TO + 1), b = fcntl(to, F_DUPFD, COPY_TO + 1);
        if (dup2(a, COPY_FROM) < 0 || dup2(b, COPY_TO) < 0 || fd_close_range(COPY_TO + 1, ~0U, 0) < 0)
            _exit(NO_PROGRAM);
        (void)execve(argv[0], (char *const *)argv, (char *const *)env);
        _exit(NO_PROGRAM);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return pid < 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* A volume that is a directory becomes a subvolume with the limit that it had, before cp fills it. */
static int diskpool_move_volume(const struct upper_info *from, const struct upper_info *to, int old, int new,
                                const char *name, struct err *err)
{
    struct upper_usage usage = {0};
    struct err ignored = {0};
    struct stat st;
    _cleanup_(upper_close) struct upper u = UPPER_INIT;
    if (name[0] == '.' || fstatat(old, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
        return 0;
    if (from->quota == UPPER_QUOTA_PROJECT && upper_stat(from, old, name, NULL, &usage, &ignored) < 0)
        usage.limit = 0;
    return upper_open(to, new, name, usage.limit, 0, &u, err);
}

static int diskpool_move_volumes(int stock, int root, struct err *err)
{
    struct upper_info from, to;
    struct err ignored = {0};
    _cleanup_close_ int old = openat(stock, "volumes", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (old < 0)
        return 0;
    if (mkdirat(root, "volumes", 0700) < 0)
        return err_set(err, ERR_SETUP, errno, "make the directory of volumes in the pool");
    _cleanup_close_ int new = openat(root, "volumes", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (new < 0 || upper_probe(new, "btrfs", true, &to, err) < 0)
        return -1;
    if (upper_probe(old, "layers", true, &from, &ignored) < 0)
        from = (struct upper_info){.kind = UPPER_LAYERS};
    int copy = fcntl(old, F_DUPFD_CLOEXEC, 3);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *e;
    while (d && (e = readdir(d)))
        if (diskpool_move_volume(&from, &to, old, new, e->d_name, err) < 0)
            return err_wrap(err, "take the volume %s along", e->d_name);
    return 0;
}

static void diskpool_on_record(void *arg, const char *name, const struct journal_record *r)
{
    bool *lives = arg;
    char boot[JOURNAL_BOOT];
    (void)name;
    if (!r || r->state == JOURNAL_DEAD)
        return;
    journal_boot_id(boot);
    _cleanup_close_ int pidfd = adopt_pidfd(r, boot);
    *lives |= pidfd >= 0;
}

/* Living sandboxes use directories of the old store. */
static int diskpool_check_unused(int run, struct err *err)
{
    bool lives = false;
    _cleanup_close_ int journal = journal_open(run, err);
    if (journal < 0 || journal_each(journal, diskpool_on_record, &lives, err) < 0)
        return -1;
    if (lives)
        return err_set(
            err, ERR_SETUP, 0,
            "the store cannot be taken along while sandboxes live: start with the configuration as it was, end them "
            "(`hutch stop --all`), and start again");
    return 0;
}

int diskpool_move_in(int state, int run, const struct diskpool *p, struct err *err)
{
    if (diskpool_check_unused(run, err) < 0)
        return -1;
    _cleanup_close_ int stock = openat(state, LAYERS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int root = p->root;
    if (stock < 0)
        return err_set(err, ERR_SETUP, errno, "open %s/" LAYERS_DIR, diskpool_path(state));
    /* Quotas first: data that is there before them is not counted. */
    if (btrfs_quota_enable(root, true) < 0 && btrfs_quota_enable(root, false) < 0)
        return err_set(err, ERR_HOST, errno, "switch quotas of the pool on");
    if (diskpool_move_volumes(stock, root, err) < 0)
        return -1;
    int r = diskpool_copy_tree(stock, root);
    if (r != 0 || syncfs(root) < 0)
        return err_set(err, ERR_SETUP, 0,
                       "copy %s/" LAYERS_DIR " into the pool: cp ended with status %d (its message is above); nothing "
                       "was changed",
                       diskpool_path(state), r);
    return 0;
}
