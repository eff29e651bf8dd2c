#include "wall/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

static const char *const stage_names[STAGE_MAX] = {
    [STAGE_CLONE] = "clone",   [STAGE_IDS] = "ids",         [STAGE_PRIVATE] = "private",   [STAGE_PLAN] = "plan",
    [STAGE_CGROUP] = "cgroup", [STAGE_MOUNTS] = "mounts",   [STAGE_DEV] = "dev",           [STAGE_PROC] = "proc",
    [STAGE_NET] = "network",   [STAGE_LIMITS] = "limits",   [STAGE_LANDLOCK] = "landlock", [STAGE_SECCOMP] = "seccomp",
    [STAGE_EXEC] = "exec",     [STAGE_RUNNING] = "running", [STAGE_DONE] = "done",
};

const char *wall_stage_name(enum wall_stage s) { return s < STAGE_MAX ? stage_names[s] : "?"; }

void inside_stage(struct inside *in, enum wall_stage s)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    in->shared->at_ns[s] = (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
    in->shared->stage = (int)s;
}

int inside_fail(struct inside *in, int eno, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct err *err = &in->shared->err;
    const char *stage = wall_stage_name((enum wall_stage)in->shared->stage);
    (void)err_set(err, ERR_SETUP, eno, "set-up failed at %s: %s", stage, text);
    (void)snprintf(err->stage, sizeof err->stage, "%s", stage);
    in->shared->failed = 1;
    return -1;
}

/* Rootless without a range: the one id of the caller, mapped to itself. Allowed to every process for its own namespace. */
static int map_own_id(struct inside *in)
{
    char line[64];
    const struct plan_caller *who = &in->spec->who;
    if (fd_put(AT_FDCWD, "/proc/self/setgroups", "deny") < 0)
        return inside_fail(in, errno, "forbid setgroups");
    (void)snprintf(line, sizeof line, "%u %u 1", who->gid, who->gid);
    if (fd_put(AT_FDCWD, "/proc/self/gid_map", line) < 0)
        return inside_fail(in, errno, "map the group id");
    (void)snprintf(line, sizeof line, "%u %u 1", who->uid, who->uid);
    if (fd_put(AT_FDCWD, "/proc/self/uid_map", line) < 0)
        return inside_fail(in, errno, "map the user id");
    return 0;
}

int inside_wait(struct inside *in, const char *what)
{
    uint32_t go;
    ssize_t n = fd_recv(in->sock, &go, sizeof go, NULL, NULL);
    return n == sizeof go ? 0 : inside_fail(in, n < 0 ? errno : EPIPE, "wait for %s", what);
}

/* The caller has made the plan, and sends the mounts that only it could make. */
static int take_plan(struct inside *in)
{
    inside_stage(in, STAGE_PLAN);
    for (uint32_t more = 1; more;) {
        size_t room = INSIDE_BINDS_MAX - in->nbinds < FD_MSG_MAX ? INSIDE_BINDS_MAX - in->nbinds : FD_MSG_MAX;
        ssize_t n = fd_recv(in->sock, &more, sizeof more, in->binds + in->nbinds, &room);
        if (n != sizeof more)
            return inside_fail(in, n < 0 ? errno : EPIPE, "wait for the plan");
        in->nbinds += room;
    }
    if (in->shared->spec)
        in->spec = in->shared->spec;
    return 0;
}

/* The caller has written the maps. */
static int take_range(struct inside *in)
{
    if (inside_wait(in, "the ids") < 0)
        return -1;
    bool own_root = in->spec->plan && in->spec->plan->layers.n > 0;
    uid_t uid = own_root ? 0 : in->spec->who.uid;
    gid_t gid = own_root ? 0 : in->spec->who.gid;
    if (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
        return inside_fail(in, errno, "take on the ids of the sandbox");
    return 0;
}

static int take_ids(struct inside *in)
{
    if (in->spec->range || in->spec->subids ? take_range(in) < 0 : map_own_id(in) < 0)
        return -1;
    if (in->spec->range && idrange_pin(in->spec->range) < 0)
        return inside_fail(in, errno, "keep the id range");
    /* From here on init dies with its caller. Changing ids cleared the setting, so it comes now; a caller that was gone
     * before is seen on the socket. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return inside_fail(in, errno, "tie init to its caller");
    struct pollfd p = {.fd = in->sock};
    if (poll(&p, 1, 0) > 0 && (p.revents & POLLHUP))
        _exit(1);
    return 0;
}

int inside_upper(const struct wall_spec *s)
{
    uint64_t size = LAYER_OFF(s->without, DISK) ? 0 : s->disk_bytes - s->disk_bytes / 4;
    uint64_t inodes = LAYER_OFF(s->without, TMPFS_INODES) ? 0 : s->disk_inodes - s->disk_inodes / 4;
    return mount_new_tmpfs(size, inodes, 0755, MOUNT_NOSUID | MOUNT_NODEV);
}

/* The layers are named by descriptor: the option string is shown in mountinfo, and host paths do not belong there. */
static int overlay_of(const struct strv *layers)
{
    char names[INSIDE_LAYERS_MAX][32];
    const char *lower[INSIDE_LAYERS_MAX];
    if (layers->n > INSIDE_LAYERS_MAX) {
        errno = E2BIG;
        return -1;
    }
    for (size_t i = 0; i < layers->n; i++) {
        int fd =
            open(layers->v[i], O_PATH | O_DIRECTORY | O_CLOEXEC); /* closed with everything else before the command */
        if (fd < 0)
            return -1;
        (void)snprintf(names[i], sizeof names[i], "/proc/self/fd/%d", fd);
        lower[i] = names[i];
    }
    return mount_new_overlay(lower, layers->n, "/sys/u", "/sys/w", true, MOUNT_NODEV);
}

/* Container tier: the new root comes from the caller (root) or is mounted here (rootless). */
static int open_new_root(struct inside *in)
{
    const struct wall_spec *s = in->spec;
    _cleanup_close_ int root = -1;
    if (!s->subids) {
        root = in->binds[0];
        memmove(in->binds, in->binds + 1, --in->nbinds * sizeof in->binds[0]);
    } else {
        _cleanup_close_ int scratch = inside_upper(s);
        _cleanup_close_ int at = open("/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (scratch < 0 || at < 0 || mount_attach(scratch, at) < 0 || mkdirat(scratch, "u", 0755) < 0 ||
            mkdirat(scratch, "w", 0755) < 0)
            return inside_fail(in, errno, "make the private upper layer");
        root = overlay_of(&s->plan->layers);
        if (root < 0)
            return inside_fail(in, errno, "mount the overlay over %s", s->plan->layers.v[0]);
    }
    _cleanup_close_ int at = open("/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
    unsigned flags =
        MOUNT_NODEV | (s->privilege == PRIVILEGE_STRICT && !LAYER_OFF(s->without, NOSUID) ? MOUNT_NOSUID : 0U);
    if (at < 0 || mount_set(root, "", flags) < 0 || mount_attach(root, at) < 0)
        return inside_fail(in, errno, "attach the new root");
    in->root = TAKE_FD(root);
    in->new_root = true;
    in->new_root_at = "/sys";
    return 0;
}

/* A file on stdin was opened on the host's own mount: through /proc/self/fd/0 it could be opened again for writing, and
 * fchmod() works on any descriptor. So it is opened once more through the tree that is read-only now. What cannot be
 * opened that way stays as it is, guarded by Landlock and its permissions. The caller gets a copy, to move the offset of
 * the original along in the end. */
static void reopen_input(struct inside *in)
{
    struct stat before, after;
    char path[4096];
    if (fstat(0, &before) < 0 || !S_ISREG(before.st_mode) || (fcntl(0, F_GETFL) & O_ACCMODE) != O_RDONLY)
        return;
    ssize_t n = readlink("/proc/self/fd/0", path, sizeof path - 1);
    if (n <= 0)
        return;
    path[n] = '\0';
    _cleanup_close_ int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &after) < 0 || after.st_dev != before.st_dev || after.st_ino != before.st_ino)
        return;
    (void)lseek(fd, lseek(0, 0, SEEK_CUR), SEEK_SET);
    if (dup2(fd, 0) == 0)
        inside_tell(in, WALL_MSG_INPUT, 0, fd);
}

static int open_host_root(struct inside *in)
{
    const layer_set off = in->spec->without;
    if (!in->spec->range && inside_take_binds(in) < 0)
        return -1;
    if (!in->spec->range && in->spec->learn && learn_take_lowers(in) < 0)
        return -1;
    unsigned flags = MOUNT_RECURSIVE | (LAYER_OFF(off, DEV) ? 0U : MOUNT_NODEV) |
                     (LAYER_OFF(off, NOSUID) ? 0U : MOUNT_NOSUID) | (LAYER_OFF(off, MOUNTS) ? 0U : MOUNT_RO);
    /* Adding flags is allowed on every mount of a copied namespace, locked or not; the recursion is atomic. */
    if (mount_set(AT_FDCWD, "/", flags) < 0)
        return inside_fail(in, errno, "make the host's root read-only");
    if (!LAYER_OFF(off, FDS))
        reopen_input(in);
    in->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return in->root < 0 ? inside_fail(in, errno, "open the root") : 0;
}

void inside_tell(struct inside *in, enum wall_msg_type type, int value, int fd)
{
    struct wall_msg m = {.type = type, .value = value};
    (void)fd_send(in->sock, &m, sizeof m, &fd, fd >= 0 ? 1 : 0);
}

static int build_tree(struct inside *in)
{
    inside_stage(in, STAGE_MOUNTS);
    bool container = in->spec->plan->layers.n > 0;
    if (container && in->spec->subids && inside_take_binds(in) < 0)
        return -1;
    if ((container ? open_new_root(in) : open_host_root(in)) < 0 || inside_vault(in) < 0)
        return -1;
    inside_stage(in, STAGE_DEV);
    if (inside_devices(in) < 0 || (in->spec->wait_release && inside_wait(in, "the stubs") < 0) ||
        inside_mounts(in) < 0 || inside_files(in) < 0)
        return -1;
    inside_stage(in, STAGE_PROC);
    return inside_proc(in) < 0 || inside_pivot(in) < 0 ? -1 : 0;
}

/* The working directory must be a real place inside, or a process could stand outside the tree (CVE-2024-21626). */
static int enter_cwd(struct inside *in)
{
    char cwd[4096];
    const char *want = in->spec->plan->cwd;
    if (chdir(want) < 0)
        return inside_fail(in, errno,
                           "the working directory %s cannot be entered inside (give it with --rw or --ro, or "
                           "choose another with --chdir)",
                           want);
    long n = syscall(SYS_getcwd, cwd, sizeof cwd);
    if (n < 0 || cwd[0] != '/')
        return inside_fail(in, n < 0 ? errno : 0, "the working directory %s is not inside the sandbox", want);
    return 0;
}

static int build_nested(struct inside *in)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return inside_fail(in, errno, "tie init to its caller");
    in->mask = umask(022);
    if (setsid() < 0)
        return inside_fail(in, errno, "start a session");
    if (enter_cwd(in) < 0)
        return -1;
    inside_stage(in, STAGE_LIMITS);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return inside_fail(in, errno, "make init not dumpable");
    return inside_open_terminal(in) < 0 || inside_limits(in) < 0 || inside_lock(in) < 0 ? -1 : 0;
}

static int build(struct inside *in)
{
    inside_stage(in, STAGE_CGROUP);
    if (in->spec->cgroup && !LAYER_OFF(in->spec->without, CGROUP) && cgroup_enter(in->spec->cgroup) < 0)
        return inside_fail(in, errno, "enter the cgroup");
    inside_stage(in, STAGE_IDS);
    /* The caller may be at work on the ids. */
    if (mount_set(AT_FDCWD, "/", MOUNT_RECURSIVE | MOUNT_PRIVATE) < 0)
        return inside_fail(in, errno, "make the mounts private");
    if (inside_take_nodes(in) < 0 || take_ids(in) < 0)
        return -1;
    in->mask = umask(022);
    if (!LAYER_OFF(in->spec->without, SESSION) && setsid() < 0)
        return inside_fail(in, errno, "start a session");
    inside_stage(in, STAGE_PRIVATE);
    if (inside_private(in) < 0 || inside_network_begin(in) < 0 || take_plan(in) < 0 || build_tree(in) < 0)
        return -1;
    inside_stage(in, STAGE_NET);
    if (inside_network(in) < 0 || enter_cwd(in) < 0)
        return -1;
    inside_stage(in, STAGE_LIMITS);
    if (prctl(PR_SET_DUMPABLE, LAYER_OFF(in->spec->without, DUMPABLE) ? 1 : 0, 0, 0, 0) < 0)
        return inside_fail(in, errno, "make init not dumpable");
    return inside_open_terminal(in) < 0 || inside_limits(in) < 0 || inside_lock(in) < 0 ? -1 : 0;
}

void inside_main(const struct wall_spec *spec, struct wall_shared *shared, int sock)
{
    struct inside in = INSIDE_INIT(spec, shared, sock);
    sigset_t all;
    /* Signals are taken one by one, see init.c. Until here the kernel drops them: nothing is sent that pid 1 must get. */
    (void)sigfillset(&all);
    if (!spec->nested)
        (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)prctl(PR_SET_NAME, "hutch-init", 0, 0, 0);
    if ((spec->nested ? build_nested : build)(&in) < 0)
        _exit(1);
    inside_run(&in);
}
