/* merged.c - see merged.h. */
#include "layers/merged.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/mount.h"

enum { PATH_ROOM = 32 };
#define VIEW (MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC)

/* A mount's descriptor cannot be read from; one of its root can, and keeps the mount alive too. */
static int merged_open_root(int mnt, struct err *err)
{
    int root = openat(mnt, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return root < 0 ? err_set(err, ERR_SETUP, errno, "open the root of a view of layers") : root;
}

static int mount_layers(const struct job *j, const int *fds, size_t n, struct err *err)
{
    char paths[STACK_LAYERS_MAX + 1][PATH_ROOM];
    const char *lower[STACK_LAYERS_MAX + 1];
    int mnt;
    if (n == 0) {
        mnt = mount_new_tmpfs(1 << 16, 2, 0755, VIEW);
    } else if (n == 1) {
        mnt = mount_clone(fds[0], "", 0);
        if (mnt >= 0 && mount_set(mnt, "", VIEW) < 0) {
            (void)close(mnt);
            mnt = -1;
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            (void)snprintf(paths[i], sizeof paths[i], "/proc/self/fd/%d", fds[i]);
            lower[i] = paths[i];
        }
        mnt = mount_new_overlay(lower, n, NULL, NULL, j->rootless, VIEW);
    }
    return mnt < 0 ? err_set(err, ERR_SETUP, errno, "lay %zu layers over each other", n) : mnt;
}

int merged_stack(struct job *j, const struct stack_file *f, size_t from, struct err *err)
{
    int fds[STACK_LAYERS_MAX + 1];
    size_t n = ARRAY_LEN(fds);
    if (stack_open(&j->place, f, fds, &n, err) < 0)
        return -1;
    size_t first = from < n ? from : n;
    _cleanup_close_ int mnt = mount_layers(j, fds + first, n - first, err);
    for (size_t i = 0; i < n; i++)
        (void)close(fds[i]);
    return mnt < 0 ? -1 : merged_open_root(mnt, err);
}

int merged_stack_id(struct job *j, const char *id, struct err *err)
{
    struct stack_file f;
    if (stack_read(&j->place, id, &f, err) < 0)
        return err->eno == ENOENT ? job_fail(j, LAYERS_NOT_FOUND, err, "there is no stack %s", id) : -1;
    return merged_stack(j, &f, 0, err);
}

/* --- a living one ------------------------------------------------------------------------------------------------- */

/* In a child: enters the sandbox's mount namespace, copies the mount of its root alone, and sends it back. The child
 * does nothing else there. */
static void merged_copy_root(int pidfd, int sock)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (setns(pidfd, CLONE_NEWNS) < 0)
        _exit(1);
    int fd = mount_clone(AT_FDCWD, "/", 0);
    _exit(fd < 0 || fd_send(sock, "", 1, &fd, 1) < 0 ? 1 : 0);
}

static int merged_take_root(const struct job_sandbox *b)
{
    int pair[2], fd = -1;
    char byte;
    size_t nfds = 1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        merged_copy_root(b->pidfd, pair[1]);
    (void)close(pair[1]);
    if (pid < 0 || fd_recv(pair[0], &byte, 1, &fd, &nfds) != 1 || nfds != 1)
        fd = -1;
    (void)close(pair[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return fd;
}

static bool has_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

/* If the kernel refuses the copy: opens the root through /proc. The pid could have been reused by then, so check
 * afterwards that the process still lives. */
static int merged_find_root(const struct job_sandbox *b)
{
    char path[40];
    (void)snprintf(path, sizeof path, "/proc/%u/root", b->record.pid);
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && has_ended(b->pidfd)) {
        (void)close(fd);
        errno = ESRCH;
        return -1;
    }
    return fd;
}

int merged_sandbox(struct job *j, const struct job_sandbox *b, struct err *err)
{
    struct statfs fs;
    _cleanup_close_ int mnt = merged_take_root(b);
    if (mnt < 0)
        mnt = merged_find_root(b);
    if (mnt < 0 && errno == ESRCH)
        return job_fail(j, LAYERS_NOT_FOUND, err, "the sandbox %s has ended", b->record.id);
    if (mnt < 0 || fstatfs(mnt, &fs) < 0)
        return err_set(err, ERR_SETUP, errno, "open the root of the sandbox %s", b->record.id);
    if ((uint32_t)fs.f_type != OVERLAYFS_SUPER_MAGIC)
        return job_fail(j, LAYERS_BAD_REQUEST, err, "the root of the sandbox %s is not made of layers", b->record.id);
    return merged_open_root(mnt, err);
}

const char *const merged_own_files[] = {"etc/hosts", "etc/hostname", "etc/machine-id", "etc/resolv.conf", NULL};

/* --- answers ------------------------------------------------------------------------------------------------------ */

int job_memfd(const char *name, struct err *err)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "make a file for the answer") : fd;
}

int job_memfd_seal(int fd, struct err *err)
{
    if (lseek(fd, 0, SEEK_SET) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return err_set(err, ERR_SETUP, errno, "close the file for the answer");
    return 0;
}
