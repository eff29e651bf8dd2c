/* sandbox.c - keeper's side of one sandbox: clones it, maps its ids and makes the mounts that need keeper's privilege. */
#include "wall/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/idmap.h"
#include "os/mount.h"
#include "wall/sandbox-int.h"

/* The kernel counts inotify instances, pending signals and the like per user of the namespace's *creator*: with the first id
 * of its range as effective uid, every sandbox has counts of its own. Capabilities stay (SECBIT_NO_SETUID_FIXUP). */
static int be_owner(const struct wall_sandbox_spec *s, bool on)
{
    return s->range ? (int)syscall(SYS_setresuid, -1, on ? s->range->base : 0, -1) : 0;
}

static int clone_child(const struct wall_sandbox_spec *s, struct wall_sandbox *b, int inner, int tree, struct err *err)
{
    int pidfd = -1, into = s->cgroup ? cgroup_into_fd(s->cgroup) : -1;
    struct clone_args args = {
        .flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD |
                 CLONE_CLEAR_SIGHAND | (into >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = into >= 0 ? (uint64_t)into : 0,
    };
    if (s->net && setns(s->net->ns, CLONE_NEWNET) < 0)
        return err_set(err, ERR_SETUP, errno, "set-up failed at clone: enter the sandbox's network namespace");
    int saved = be_owner(s, true) < 0 ? errno : 0;
    long pid = saved ? -1 : syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        sandbox_inside(s, b->shared, inner, tree);
    saved = saved ? saved : errno;
    /* keeper must not go on with a foreign uid or in a foreign network */
    if (be_owner(s, false) < 0 || (s->net && setns(s->world->net, CLONE_NEWNET) < 0))
        abort();
    if (pid < 0 && (saved == ENOSPC || saved == EPERM))
        return err_set(err, ERR_HOST, saved, "this host refuses new user namespaces (see `hutch doctor`)");
    if (pid < 0)
        return err_set(err, ERR_SETUP, saved, "set-up failed at clone: start the sandbox's first process");
    b->pid = (pid_t)pid;
    b->pidfd = pidfd;
    return 0;
}

/* In keeper's own user namespace id 0 is the user who started it: a sandbox over the host's tree does without that id. One
 * with a root of its own needs it, because files of the template belong to it. */
static int map_rootless(const struct wall_sandbox_spec *s, pid_t pid, struct err *err)
{
    static const char *const maps[] = {"uid_map", "gid_map"};
    unsigned skip = s->nlayers == 0;
    char path[64], line[64];
    /* An extent may not span two of the outer namespace: the user's own id is one. */
    (void)snprintf(line, sizeof line, skip ? "0 1 %u\n" : "0 0 1\n1 1 %u\n", s->world->nids - 1);
    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, maps[i]);
        if (fd_put(AT_FDCWD, path, line) < 0)
            return err_set(err, ERR_SETUP, errno, "set-up failed at ids: write %s", path);
    }
    return 0;
}

static int map_ids(const struct wall_sandbox_spec *s, pid_t pid, struct err *err)
{
    struct idmap map = {0};
    if (!s->range)
        return map_rootless(s, pid, err);
    if (!idmap_add(&map, 0, s->range->base, s->range->count))
        return err_set(err, ERR_INTERNAL, 0, "the id range is not valid");
    if (idmap_write(pid, &map, &map, false, err) < 0)
        return err_wrap(err, "set-up failed at ids");
    return idrange_lost(s->range) ? err_set(err, ERR_LIMIT, 0, IDRANGE_FILE " was removed at this moment; try again")
                                  : 0;
}

static int open_userns(const struct wall_sandbox_spec *s, pid_t pid, struct err *err)
{
    char path[64];
    if (!s->range)
        return -1;
    (void)snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        (void)err_set(err, ERR_SETUP, errno, "set-up failed at mounts: open %s", path);
    return fd;
}

static int hand_over(const struct wall_sandbox_spec *s, struct wall_sandbox *b, struct err *err)
{
    struct sandbox_go go = {.version = SANDBOX_GO_VERSION};
    int fds[SANDBOX_GO_FDS], upper = -1;
    size_t n = 0;
    if (map_ids(s, b->pid, err) < 0)
        return -1;
    _cleanup_close_ int userns = open_userns(s, b->pid, err);
    if (s->range && userns < 0)
        return -1;
    if (s->nlayers > 0) {
        int root = sandbox_root_make(s, userns, b, &upper, err);
        if (root < 0)
            return -1;
        fds[n++] = root;
        fds[n++] = upper;
        go.root = go.upper = 1;
    }
    int r = sandbox_root_volumes(s, userns, fds + n, err);
    if (r == 0) {
        n += s->nvolumes;
        go.volumes = (uint32_t)s->nvolumes;
        if (fd_send(b->sync, &go, sizeof go, fds, n) < 0)
            r = err_set(err, ERR_SETUP, errno, "set-up failed at mounts: hand them to the sandbox");
    }
    while (n > 0)
        (void)close(fds[--n]);
    return r;
}

/* Ends a failed start. Only our own code runs in it so far, up to a socket: SIGKILL ends it at once. */
static void sandbox_undo(struct wall_sandbox *b, struct err *err)
{
    if (b->pid > 0) {
        (void)syscall(SYS_pidfd_send_signal, b->pidfd, SIGKILL, NULL, 0);
        while (waitpid(b->pid, NULL, 0) < 0 && errno == EINTR) {
        }
        if (b->shared->failed) /* the child's own error is closer to the cause than a broken socket */
            *err = b->shared->err;
        (void)close(b->pidfd);
    }
    wall_sandbox_settle(b);
    *b = WALL_SANDBOX_INIT;
}

int wall_sandbox_start(const struct wall_sandbox_spec *spec, struct wall_sandbox *ret, struct err *err)
{
    int pair[2], tree = -1;
    struct wall_sandbox b = WALL_SANDBOX_INIT;
    const struct wall_sandbox_world *w = spec->world;
    if (spec->nlayers == 0) {
        if (sandbox_host_refresh(w, err) < 0)
            return -1;
        tree = w->host >= 0 ? mount_clone(w->host, "", MOUNT_RECURSIVE)
                            : mount_clone(AT_FDCWD, SANDBOX_HOST, MOUNT_RECURSIVE);
        if (tree < 0)
            return err_set(err, ERR_SETUP, errno, "set-up failed at mounts: copy the host's tree");
    }
    b.shared = mmap(NULL, sizeof *b.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.shared == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        (void)err_set(err, ERR_SETUP, errno, "set-up failed at clone: make a socket pair");
        if (b.shared != MAP_FAILED)
            (void)munmap(b.shared, sizeof *b.shared);
        if (tree >= 0)
            (void)close(tree);
        return -1;
    }
    b.sync = pair[0];
    int r = clone_child(spec, &b, pair[1], tree, err);
    (void)close(pair[1]);
    if (tree >= 0)
        (void)close(tree);
    /* Sandboxes that are cloned while this one is being built get no copy of the page. */
    if (r == 0 && madvise(b.shared, sizeof *b.shared, MADV_DONTFORK) < 0)
        r = err_set(err, ERR_SETUP, errno, "set-up failed at clone: keep the shared page to two processes");
    if (r == 0)
        r = hand_over(spec, &b, err);
    if (r < 0) {
        sandbox_undo(&b, err);
        return -1;
    }
    *ret = b;
    return 0;
}

int wall_sandbox_why(const struct wall_sandbox *b, struct err *err)
{
    if (b->shared && b->shared->failed) {
        *err = b->shared->err;
        return -1;
    }
    const char *stage = b->shared ? wall_stage_name((enum wall_stage)b->shared->stage) : "?";
    (void)err_set(err, ERR_SETUP, 0, "set-up failed at %s: the sandbox's first process ended", stage);
    (void)snprintf(err->stage, sizeof err->stage, "%s", stage);
    return -1;
}

void wall_sandbox_settle(struct wall_sandbox *b)
{
    if (b->sync >= 0)
        (void)close(b->sync);
    if (b->shared)
        (void)munmap(b->shared, sizeof *b->shared);
    b->sync = -1;
    b->shared = NULL;
}
