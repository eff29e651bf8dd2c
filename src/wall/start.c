/* start.c - the caller's side: clones init, writes its id maps, makes the mounts that need the caller's privilege. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "wall/inside.h"

static uint64_t clone_flags(const struct wall_spec *s)
{
    layer_set off = s->without;
    uint64_t f = CLONE_NEWNS | CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
    f |= s->range && LAYER_OFF(off, USERNS) ? 0 : CLONE_NEWUSER;
    f |= LAYER_OFF(off, PIDNS) ? 0 : CLONE_NEWPID;
    f |= LAYER_OFF(off, IPCNS) ? 0 : CLONE_NEWIPC;
    f |= LAYER_OFF(off, UTSNS) ? 0 : CLONE_NEWUTS;
    return f;
}

/* Inside another sandbox there is no clone3 and no namespace: init is a plain child. */
static int fork_init(const struct wall_spec *spec, struct wall *w, int inner, struct err *err)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(w->sock); /* or init would never see that its caller is gone */
        inside_main(spec, w->shared, inner);
    }
    if (pid < 0)
        return err_set(err, ERR_SETUP, errno, "fork the sandbox's first process");
    w->pid = pid;
    w->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return w->pidfd < 0 ? err_set(err, ERR_SETUP, errno, "open a pidfd") : 0;
}

static int clone_init(const struct wall_spec *spec, struct wall *w, int inner, struct err *err)
{
    int pidfd = -1;
    int into = spec->cgroup && !LAYER_OFF(spec->without, CGROUP) ? cgroup_into_fd(spec->cgroup) : -1;
    struct clone_args args = {
        .flags = clone_flags(spec) | (into >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = into >= 0 ? (uint64_t)into : 0,
    };
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    w->shared->at_ns[STAGE_CLONE] = (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        (void)close(w->sock); /* or init would never see that its caller is gone */
        inside_main(spec, w->shared, inner);
    }
    if (pid < 0) {
        if (errno == ENOSPC || errno == EPERM)
            return err_set(err, ERR_HOST, errno, "this host refuses new user namespaces (see `hutch doctor`)");
        return err_set(err, ERR_SETUP, errno, "clone the sandbox's first process");
    }
    w->pid = (pid_t)pid;
    w->pidfd = pidfd;
    return 0;
}

static int send_fds(struct wall *w, const int *fds, size_t n, bool more, struct err *err)
{
    uint32_t m = more;
    if (fd_send(w->sock, &m, sizeof m, fds, n) < 0)
        return err_set(err, ERR_SETUP, errno, "hand the mounts to the sandbox");
    return 0;
}

static bool own_range(const struct wall_spec *spec)
{
    return !LAYER_OFF(spec->without, USERNS_RANGE) && !LAYER_OFF(spec->without, USERNS);
}

/* A detached, idmapped clone of one host directory, checked against what the plan saw. */
static int idmapped(const struct wall_spec *spec, const struct plan_op *op, int userns, struct err *err)
{
    struct stat st;
    unsigned recursive = MOUNT_RECURSIVE;
    _cleanup_close_ int fd = mount_clone(AT_FDCWD, op->src, recursive);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "share %s", op->src);
    if (fstatat(fd, "", &st, AT_EMPTY_PATH) < 0 || st.st_dev != op->dev || st.st_ino != op->ino)
        return err_set(err, ERR_SETUP, 0, "%s was replaced while the sandbox was being built", op->src);
    bool map = op->as_caller && op->kind != OP_DEVICE && own_range(spec);
    if (map && mount_idmap(fd, userns, recursive) < 0) {
        /* A mount below it may be of a kind that cannot be mapped: share the directory without what is mounted in it. */
        (void)close(fd);
        recursive = 0;
        fd = mount_clone(AT_FDCWD, op->src, 0);
        if (fd < 0 || mount_idmap(fd, userns, 0) < 0)
            return err_set(err, ERR_HOST, errno,
                           "the file system of %s cannot map ids, so root cannot share it with a "
                           "sandbox; run hutch as an ordinary user",
                           op->src);
    }
    unsigned flags = recursive | MOUNT_PRIVATE | (op->kind == OP_DEVICE ? 0U : MOUNT_NODEV);
    flags |= LAYER_OFF(spec->without, NOSUID) ? 0U : MOUNT_NOSUID;
    flags |= op->kind == OP_BIND_RO && !LAYER_OFF(spec->without, MOUNTS) ? MOUNT_RO : 0U;
    flags |= op->kind == OP_BIND_RW && spec->learn ? MOUNT_RO : 0U;
    if (mount_set(fd, "", flags) < 0)
        return err_set(err, ERR_SETUP, errno, "set the flags of %s", op->src);
    return TAKE_FD(fd);
}

/* --learn: behind the binds come the lower layers, one for each place. */
static int send_lowers(const struct wall_spec *spec, struct wall *w, int userns, struct err *err)
{
    for (size_t i = 0; spec->learn && i < spec->learn->n; i++) {
        _cleanup_close_ int fd = learn_clone_lower(spec->learn, i, userns, err);
        if (fd < 0 || send_fds(w, &fd, 1, true, err) < 0)
            return -1;
    }
    return 0;
}

static int send_binds(const struct wall_spec *spec, struct wall *w, int userns, struct err *err)
{
    int batch[FD_MSG_MAX];
    size_t n = 0;
    int r = 0;
    for (size_t i = 0; i < spec->plan->nops && r == 0; i++) {
        const struct plan_op *op = &spec->plan->ops[i];
        if (op->kind != OP_BIND_RW && op->kind != OP_BIND_RO && op->kind != OP_DEVICE)
            continue;
        int fd = idmapped(spec, op, userns, err);
        if (fd < 0) {
            r = -1;
            break;
        }
        batch[n++] = fd;
        if (n == FD_MSG_MAX) {
            r = send_fds(w, batch, n, true, err);
            while (n > 0)
                (void)close(batch[--n]);
        }
    }
    if (r == 0)
        r = send_fds(w, batch, n, spec->learn != NULL, err);
    while (n > 0)
        (void)close(batch[--n]);
    if (r == 0 && spec->learn && (send_lowers(spec, w, userns, err) < 0 || send_fds(w, NULL, 0, false, err) < 0))
        r = -1;
    return r;
}

/* Container tier of a root caller: the overlay belongs to the initial user namespace, so that renames of directories work
 * as on any other file system; its layers are idmapped, so that the files on disk keep ids 0..65535. */
static int make_overlay(const struct wall_spec *spec, int scratch, int userns, int *ret, struct err *err)
{
    char names[INSIDE_LAYERS_MAX][16];
    const char *lower[INSIDE_LAYERS_MAX];
    const struct strv *layers = &spec->plan->layers;
    uid_t base = own_range(spec) ? spec->range->base : 0;
    if (mkdirat(scratch, "u", 0755) < 0 || mkdirat(scratch, "w", 0755) < 0 || fchownat(scratch, "u", base, base, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "make the private upper layer");
    for (size_t i = 0; i < layers->n; i++) {
        (void)snprintf(names[i], sizeof names[i], "/sys/l%zu", i);
        lower[i] = names[i];
        _cleanup_close_ int fd = mount_clone(AT_FDCWD, layers->v[i], 0);
        if (fd < 0 || mkdirat(scratch, names[i] + 5, 0755) < 0)
            return err_set(err, ERR_SETUP, errno, "take layer %s", layers->v[i]);
        if (own_range(spec) && mount_idmap(fd, userns, 0) < 0)
            return err_set(err, ERR_HOST, errno, "the file system of layer %s cannot map ids", layers->v[i]);
        _cleanup_close_ int place = openat(scratch, names[i] + 5, O_PATH | O_CLOEXEC);
        if (place < 0 || mount_set(fd, "", MOUNT_RO) < 0 || mount_attach(fd, place) < 0)
            return err_set(err, ERR_SETUP, errno, "attach layer %s", layers->v[i]);
    }
    *ret = mount_new_overlay(lower, layers->n, "/sys/u", "/sys/w", false, MOUNT_NODEV);
    return *ret < 0 ? err_set(err, ERR_SETUP, errno, "mount the overlay over %s", layers->v[0]) : 0;
}

static int send_overlay(const struct wall_spec *spec, struct wall *w, int userns, struct err *err)
{
    _cleanup_close_ int overlay = -1;
    if (spec->plan->layers.n > INSIDE_LAYERS_MAX)
        return err_set(err, ERR_USAGE, 0, "--root: at most %d layers", INSIDE_LAYERS_MAX);
    if (unshare(CLONE_NEWNS) < 0 || mount_set(AT_FDCWD, "/", MOUNT_RECURSIVE | MOUNT_PRIVATE) < 0)
        return err_set(err, ERR_SETUP, errno, "make a mount namespace for the layers");
    _cleanup_close_ int scratch = inside_upper(spec);
    _cleanup_close_ int at = open("/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (scratch < 0 || at < 0 || mount_attach(scratch, at) < 0)
        return err_set(err, ERR_SETUP, errno, "make the private upper layer");
    int r = make_overlay(spec, scratch, userns, &overlay, err);
    /* The overlay keeps what it needs; the caller needs the cgroups behind that place to take them away in the end. */
    if (umount2("/sys", MNT_DETACH) < 0 && r == 0)
        r = err_set(err, ERR_SETUP, errno, "uncover /sys");
    return r < 0 ? -1 : send_fds(w, &overlay, 1, true, err);
}

/* Root: one range, all of it. The host's uid 0 is never among the mapped ids. */
static int map_range(const struct wall_spec *spec, const struct wall *w, struct err *err)
{
    struct idmap map = {0};
    char path[64];
    if (LAYER_OFF(spec->without, USERNS)) {
        /* It runs with the host's ids in the host's user namespace. */
    } else if (LAYER_OFF(spec->without, USERNS_RANGE)) {
        (void)snprintf(path, sizeof path, "/proc/%d/uid_map", w->pid);
        if (fd_put(AT_FDCWD, path, "0 0 65536") < 0)
            return err_set(err, ERR_SETUP, errno, "write %s", path);
        (void)snprintf(path, sizeof path, "/proc/%d/gid_map", w->pid);
        if (fd_put(AT_FDCWD, path, "0 0 65536") < 0)
            return err_set(err, ERR_SETUP, errno, "write %s", path);
    } else if (!idmap_add(&map, 0, spec->range->base, spec->range->count) ||
               idmap_write(w->pid, &map, &map, false, err) < 0) {
        return err->code ? -1 : err_set(err, ERR_INTERNAL, 0, "the id range is not valid");
    }
    if (idrange_lost(spec->range))
        return err_set(err, ERR_SETUP, 0, IDRANGE_FILE " was removed at this moment; try again");
    return 0;
}

/* An ordinary user with subordinate ids: inside 0 is the user, the rest comes from /etc/subuid. */
static int map_subids(const struct wall_spec *spec, const struct wall *w, struct err *err)
{
    const struct idmap_subids *s = spec->subids;
    struct idmap uids = {0}, gids = {0};
    if (!idmap_add(&uids, 0, spec->who.uid, 1) || !idmap_add(&uids, 1, s->uid_base, s->uid_count) ||
        !idmap_add(&gids, 0, spec->who.gid, 1) || !idmap_add(&gids, 1, s->gid_base, s->gid_count))
        return err_set(err, ERR_HOST, 0, "the ranges in /etc/subuid and /etc/subgid are not usable");
    return idmap_write_rootless(w->pid, &uids, &gids, err);
}

/* Init goes on when its ids are there; without a range it maps the caller's own by itself. */
static int give_ids(const struct wall_spec *spec, struct wall *w, struct err *err)
{
    if (!spec->range && !spec->subids)
        return 0;
    if ((spec->range ? map_range : map_subids)(spec, w, err) < 0)
        return -1;
    return send_fds(w, NULL, 0, false, err);
}

/* What only the caller can make comes with the word that the spec is complete. */
static int give_mounts(const struct wall_spec *spec, struct wall *w, struct err *err)
{
    char path[64];
    if (!spec->range)
        return send_fds(w, NULL, 0, false, err);
    (void)snprintf(path, sizeof path, "/proc/%d/ns/user", w->pid);
    _cleanup_close_ int userns = open(path, O_RDONLY | O_CLOEXEC);
    if (userns < 0)
        return err_set(err, ERR_SETUP, errno, "open the new user namespace");
    if (spec->plan->layers.n > 0 && send_overlay(spec, w, userns, err) < 0)
        return -1;
    return send_binds(spec, w, userns, err);
}

/* init's own words are closer to the cause than a broken socket. */
static void start_failed(struct wall *w, struct err *err)
{
    bool inside_failed = w->shared->failed;
    if (inside_failed)
        *err = w->shared->err;
    wall_drop(w);
}

static int clone_and_map(const struct wall_spec *spec, struct wall *ret, size_t room, struct err *err)
{
    int pair[2];
    struct wall w = WALL_NONE;
    *ret = w;
    w.room = room;
    w.shared =
        mmap(NULL, sizeof *w.shared + room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (w.shared == MAP_FAILED)
        return err_set(err, ERR_SETUP, errno, "map the shared memory");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        (void)munmap(w.shared, sizeof *w.shared + room);
        return err_set(err, ERR_SETUP, errno, "make a socket pair");
    }
    w.sock = pair[0];
    int r = (spec->nested ? fork_init : clone_init)(spec, &w, pair[1], err);
    (void)close(pair[1]);
    if (r < 0 && w.pid < 0) {
        (void)close(w.sock);
        (void)munmap(w.shared, sizeof *w.shared + room);
        return -1;
    }
    *ret = w;
    if (r == 0 && (spec->nested || give_ids(spec, ret, err) == 0))
        return 0;
    start_failed(ret, err);
    return -1;
}

int wall_begin(const struct wall_spec *spec, struct wall *ret, struct err *err)
{
    return clone_and_map(spec, ret, SPEC_ROOM, err);
}

int wall_start(const struct wall_spec *spec, struct wall *w, struct err *err)
{
    struct timespec t;
    if (w->pid > 0) {
        w->shared->spec = spec_copy(spec, w->shared + 1, w->room);
        if (!w->shared->spec)
            wall_drop(w);
    }
    if (w->pid < 0 && clone_and_map(spec, w, 0, err) < 0)
        return -1;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    w->shared->given_ns = (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
    if (spec->nested || give_mounts(spec, w, err) == 0)
        return 0;
    start_failed(w, err);
    return -1;
}

void wall_drop(struct wall *w)
{
    struct err ignored;
    if (w->pid < 0)
        return;
    wall_kill(w);
    (void)wall_finish(w, &ignored);
}

int wall_receive(struct wall *w, struct wall_msg *ret, int ret_fds[WALL_MSG_FDS])
{
    size_t nfds = WALL_MSG_FDS;
    ssize_t n = fd_recv(w->sock, ret, sizeof *ret, ret_fds, &nfds);
    if (n <= 0)
        nfds = 0;
    for (size_t i = nfds; i < WALL_MSG_FDS; i++)
        ret_fds[i] = -1;
    if (n <= 0 || n == sizeof *ret)
        return n < 0 ? -1 : n > 0;
    for (size_t i = 0; i < nfds; i++)
        (void)close(TAKE_FD(ret_fds[i]));
    errno = EBADMSG;
    return -1;
}

int wall_release(const struct wall *w)
{
    uint32_t go = 1;
    return fd_send(w->sock, &go, sizeof go, NULL, 0);
}

int wall_signal(const struct wall *w, int sig, bool group)
{
    siginfo_t info = {0};
    info.si_signo = sig;
    info.si_code = SI_QUEUE;
    info.si_value.sival_int = WALL_SIGNAL_GROUP;
    return (int)syscall(SYS_pidfd_send_signal, w->pidfd, sig, group ? &info : NULL, 0);
}

bool wall_only_nested(void)
{
    /* clone3 with a bad size is EINVAL wherever it exists; sandboxes answer ENOSYS. */
    return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2 && syscall(SYS_clone3, NULL, 0) < 0 && errno == ENOSYS;
}

void wall_kill(const struct wall *w) { (void)syscall(SYS_pidfd_send_signal, w->pidfd, SIGKILL, NULL, 0); }

int wall_finish(struct wall *w, struct err *err)
{
    int status, r = 0;
    while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (w->shared->failed) {
        *err = w->shared->err;
        r = -1;
    }
    (void)close(w->pidfd);
    (void)close(w->sock);
    (void)munmap(w->shared, sizeof *w->shared + w->room);
    *w = (struct wall)WALL_NONE;
    return r;
}
