/* sandbox-inside.c - the child between clone and its entry function. No allocation; failures go to the shared page. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "wall/inside.h"
#include "wall/sandbox-int.h"

enum { SANDBOX_RANGE = WALL_SANDBOX_FDS, SANDBOX_TREE, SANDBOX_FDS, SANDBOX_PARK = 64 };

static int volumes[WALL_SANDBOX_VOLUMES_MAX]; /* detached mounts that came with struct sandbox_go */

/* Keeper's descriptors (its clients, other sandboxes) end here. What is needed moves to fixed numbers. */
static int keep_few(struct inside *in, const int fds[SANDBOX_FDS])
{
    int high[SANDBOX_FDS];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return inside_fail(in, errno, "open /dev/null");
    for (int i = WALL_SANDBOX_CONTROL; i < SANDBOX_FDS; i++) {
        high[i] = fds[i] < 0 ? -1 : fcntl(fds[i], F_DUPFD_CLOEXEC, SANDBOX_PARK);
        if (fds[i] >= 0 && high[i] < 0)
            return inside_fail(in, errno, "keep a descriptor");
    }
    for (int i = 0; i < WALL_SANDBOX_CONTROL; i++)
        if (null != i && dup3(null, i, O_CLOEXEC) < 0)
            return inside_fail(in, errno, "replace the standard streams");
    for (int i = WALL_SANDBOX_CONTROL; i < SANDBOX_FDS; i++) {
        if (high[i] >= 0 && dup3(high[i], i, O_CLOEXEC) < 0)
            return inside_fail(in, errno, "keep a descriptor");
        if (high[i] < 0)
            (void)close(i);
    }
    return fd_close_range(SANDBOX_FDS, ~0U, 0) < 0 ? inside_fail(in, errno, "close keeper's descriptors") : 0;
}

/* What keeper sent along: the new root, what init keeps of its upper layer, the volumes. */
static int take_mounts(struct inside *in, const struct sandbox_go *go, const int *fds, size_t n)
{
    if (go->version != SANDBOX_GO_VERSION || go->root > 1 || go->upper > 1 || go->volumes > WALL_SANDBOX_VOLUMES_MAX ||
        n != (size_t)go->root + go->upper + go->volumes)
        return inside_fail(in, EBADMSG, "the mounts did not come");
    if (go->root)
        in->root = *fds++;
    if (go->upper && (dup3(*fds, WALL_SANDBOX_UPPER, O_CLOEXEC) < 0 || close(*fds++) < 0))
        return inside_fail(in, errno, "keep the upper layer");
    memcpy(volumes, fds, go->volumes * sizeof volumes[0]);
    return 0;
}

static int sandbox_take_ids(struct inside *in)
{
    struct sandbox_go go;
    int fds[SANDBOX_GO_FDS];
    size_t nfds = SANDBOX_GO_FDS;
    inside_stage(in, STAGE_IDS);
    ssize_t n = fd_recv(in->sock, &go, sizeof go, fds, &nfds);
    if (n <= 0)
        _exit(1); /* keeper gave up, or died */
    if (n != sizeof go)
        return inside_fail(in, EBADMSG, "wait for the ids");
    if (take_mounts(in, &go, fds, nfds) < 0)
        return -1;
    if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return inside_fail(in, errno, "take on the ids of the sandbox");
    if (in->spec->range) {
        const struct idrange range = {.fd = SANDBOX_RANGE};
        if (idrange_pin(&range) < 0)
            return inside_fail(in, errno, "keep the id range");
        (void)close(SANDBOX_RANGE);
    }
    return 0;
}

static int sandbox_write_file(int at, const char *name, const char *text, mode_t mode)
{
    /* In an image the name may be a link, even a dangling one: replace it. */
    (void)unlinkat(at, name, 0);
    _cleanup_close_ int fd = openat(at, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
    return fd < 0 ? -1 : fd_write_all(fd, text, strlen(text));
}

static void hosts_text(const char *hostname, char *ret, size_t n)
{
    (void)snprintf(ret, n,
                   "127.0.0.1\tlocalhost %s\n::1\tlocalhost ip6-localhost ip6-loopback\n" NETNS_GATE4
                   "\tsandbox.internal\n",
                   hostname);
}

/* The host's tree is read-only: the files with the sandbox's name and id are in its private memory and mounted over. */
static int name_files(struct inside *in)
{
    static const char *const files[] = {"hosts", "hostname", "machine-id"};
    static const mode_t modes[] = {0644, 0644, 0444};
    char text[3][256], path[32];
    hosts_text(in->spec->hostname, text[0], sizeof text[0]);
    (void)snprintf(text[1], sizeof text[1], "%s\n", in->spec->hostname);
    sandbox_own_machine_id(text[2]);
    _cleanup_close_ int vault = inside_place(in, "/sys");
    if (vault < 0)
        return inside_fail(in, errno, "find the private memory");
    for (unsigned i = 0; i < ARRAY_LEN(files); i++) {
        (void)snprintf(path, sizeof path, "/etc/%s", files[i]);
        _cleanup_close_ int at = inside_place(in, path);
        if (at < 0)
            continue; /* the host has no such file */
        _cleanup_close_ int src = sandbox_write_file(vault, files[i], text[i], modes[i]) < 0
                                      ? -1
                                      : openat(vault, files[i], O_PATH | O_CLOEXEC);
        _cleanup_close_ int fd = src < 0 ? -1 : mount_clone(src, "", 0);
        if (fd < 0 || mount_attach(fd, at) < 0)
            return inside_fail(in, errno, "make %s", path);
    }
    return 0;
}

static int make_home(struct inside *in)
{
    _cleanup_close_ int home = inside_place(in, "/home");
    if (home < 0 || mkdirat(home, "user", 0755) < 0 ||
        fchownat(home, "user", WALL_SANDBOX_USER, WALL_SANDBOX_USER, 0) < 0)
        return inside_fail(in, errno, "make /home/user");
    return 0;
}

/* For a root of its own: best effort, because the image decides what /etc is. No path leads outside: we stand in the
 * new root. */
static void name_own_files(const struct inside *in)
{
    char text[256];
    _cleanup_close_ int etc = open("/etc", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (etc < 0)
        return;
    hosts_text(in->spec->hostname, text, sizeof text);
    (void)sandbox_write_file(etc, "hosts", text, 0644);
    (void)snprintf(text, sizeof text, "%s\n", in->spec->hostname);
    (void)sandbox_write_file(etc, "hostname", text, 0644);
    (void)sandbox_write_file(etc, "resolv.conf", sandbox_resolv_conf, 0644);
    sandbox_own_machine_id(text);
    (void)sandbox_write_file(etc, "machine-id", text, 0444);
}

/* Makes /tmp as part of the root, so that a snapshot contains it; an existing one stays as it is. */
static int make_tmp(struct inside *in)
{
    if (mkdirat(in->root, "tmp", 01777) == 0)
        return fchmodat(in->root, "tmp", 01777, 0) < 0 ? inside_fail(in, errno, "set the mode of /tmp") : 0;
    return errno != EEXIST ? inside_fail(in, errno, "make /tmp") : 0;
}

static int attach_root(struct inside *in, bool host)
{
    _cleanup_close_ int at = open(SANDBOX_NEW, O_PATH | O_DIRECTORY | O_CLOEXEC);
    unsigned flags = MOUNT_NODEV | (host || in->spec->privilege == PRIVILEGE_STRICT ? MOUNT_NOSUID : 0U);
    if (in->root < 0)
        return inside_fail(in, EBADMSG, "the new root did not come");
    if (at < 0 || mount_set(in->root, "", flags) < 0 || mount_attach(in->root, at) < 0)
        return inside_fail(in, errno, "attach the new root");
    in->new_root = true;
    in->new_root_at = SANDBOX_NEW;
    return 0;
}

static const char *const kinds[] = {"mnt", "pid", "ipc", "uts", "time", "net", "cgroup"};

/* Opened while /proc is writable, written when set-up needs no namespace any more (a detached mount is in one). Not through
 * keeper's procfs: there each sandbox would leave a name behind that all later ones have to pass by. */
static int open_limits(struct inside *in, int ret[ARRAY_LEN(kinds)])
{
    char path[64];
    _cleanup_close_ int proc = mount_new_proc(MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC);
    if (proc < 0)
        return inside_fail(in, errno, "mount a procfs");
    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++) {
        (void)snprintf(path, sizeof path, "sys/user/max_%s_namespaces", kinds[i]);
        ret[i] = openat(proc, path, O_WRONLY | O_CLOEXEC);
    }
    /* A process that cannot be dumped does not own its own files there. No other process is in these namespaces yet. */
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    _cleanup_close_ int score = openat(proc, "self/oom_score_adj", O_RDWR | O_CLOEXEC);
    int eno = errno;
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (score < 0 || dup3(score, WALL_SANDBOX_SCORE, O_CLOEXEC) < 0)
        return inside_fail(in, score < 0 ? eno : errno, "open oom_score_adj");
    return 0;
}

static int sandbox_limit_namespaces(struct inside *in, const int fds[ARRAY_LEN(kinds)])
{
    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++)
        if (fds[i] < 0 || write(fds[i], "0", 1) != 1)
            return inside_fail(in, errno, "forbid new %s namespaces", kinds[i]);
    return 0;
}

static int sandbox_build_tree(struct inside *in, const struct wall_sandbox_spec *s)
{
    bool host = s->nlayers == 0;
    int boot = -1;
    inside_stage(in, STAGE_MOUNTS);
    if (mount_set(AT_FDCWD, "/", MOUNT_RECURSIVE | MOUNT_PRIVATE) < 0)
        return inside_fail(in, errno, "make the mounts private");
    if (inside_take_nodes(in) < 0 || attach_root(in, host) < 0 || inside_vault(in) < 0)
        return -1;
    inside_stage(in, STAGE_DEV);
    if (inside_devices(in) < 0 || inside_mounts(in) < 0 || (host && (make_home(in) < 0 || name_files(in) < 0)))
        return -1;
    inside_stage(in, STAGE_PROC);
    if (sandbox_own_boot_id(in, &boot) < 0 || inside_proc(in) < 0 || sandbox_own_cover_boot_id(in, boot) < 0 ||
        inside_pivot(in) < 0 || (!host && make_tmp(in) < 0))
        return -1;
    if (!host)
        name_own_files(in);
    inside_stage(in, STAGE_MOUNTS);
    return sandbox_own_volumes(in, s, volumes);
}

static int sandbox_build(struct inside *in, const struct wall_sandbox_spec *s, int sync, int tree)
{
    const int fds[SANDBOX_FDS] = {[WALL_SANDBOX_SYNC] = sync,
                                  [WALL_SANDBOX_CONTROL] = s->control,
                                  [WALL_SANDBOX_OOM] = s->oom,
                                  [WALL_SANDBOX_SCORE] = sync, /* keeps the place until open_limits() */
                                  [WALL_SANDBOX_UPPER] = sync, /* and until take_mounts() */
                                  [WALL_SANDBOX_TCP] = s->net ? s->net->tcp : -1,
                                  [WALL_SANDBOX_UDP] = s->net ? s->net->udp : -1,
                                  [SANDBOX_RANGE] = s->range ? s->range->fd : -1,
                                  [SANDBOX_TREE] = tree};
    int limits[ARRAY_LEN(kinds)];
    inside_stage(in, STAGE_CGROUP);
    if (s->cgroup && cgroup_enter(s->cgroup) < 0)
        return inside_fail(in, errno, "enter the cgroup");
    if (keep_few(in, fds) < 0)
        return -1;
    in->sock = WALL_SANDBOX_SYNC;
    in->root = tree >= 0 ? SANDBOX_TREE : -1;
    if (sandbox_take_ids(in) < 0)
        return -1;
    (void)umask(022);
    if (open_limits(in, limits) < 0 || inside_network_begin(in) < 0)
        return -1;
    if (setsid() < 0)
        return inside_fail(in, errno, "start a session");
    if (sandbox_build_tree(in, s) < 0)
        return -1;
    inside_stage(in, STAGE_NET);
    if (inside_network(in) < 0)
        return -1;
    inside_stage(in, STAGE_LIMITS);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return inside_fail(in, errno, "make init not dumpable");
    if (sandbox_limit_namespaces(in, limits) < 0 || inside_limits(in) < 0)
        return -1;
    if (s->nlayers == 0)
        (void)close(WALL_SANDBOX_UPPER);
    /* Everything that set-up opened, too. */
    return fd_close_range(WALL_SANDBOX_FDS, ~0U, 0) < 0 ? inside_fail(in, errno, "close what set-up opened") : 0;
}

/* Changes the stack canary, which all children of keeper would share otherwise. No function above us returns. */
static inline __attribute__((always_inline)) void new_canary(void)
{
#if defined(__x86_64__)
    uint64_t value = 0;
    if (syscall(SYS_getrandom, &value, sizeof value, GRND_NONBLOCK) == sizeof value) {
        value &= ~UINT64_C(0xff);
        __asm__ volatile("movq %0, %%fs:0x28" : : "r"(value) : "memory");
    }
#endif
}

void sandbox_inside(const struct wall_sandbox_spec *s, struct wall_shared *shared, int sync, int tree)
{
    static struct wall_spec spec;
    static struct inside in;
    bool host = s->nlayers == 0;
    spec = (struct wall_spec){
        .plan = host ? &s->world->plan : &s->world->plain,
        .range = s->range,
        .privilege = s->strict ? PRIVILEGE_STRICT : PRIVILEGE_COMPUTER,
        .network = s->net ? NETWORK_HOST /* in it already, and no capability over it */ : NETWORK_OFF,
        /* inside_vault() takes a quarter: of a root of its own for /dev/shm, of the host's tree for all there is. */
        .disk_bytes = host ? s->disk * 4 : s->disk,
        .disk_inodes = host ? s->inodes * 4 : s->inodes,
        .open_files = s->open_files,
        .pids = s->pids,
        .hostname = s->hostname,
    };
    in = (struct inside)INSIDE_INIT(&spec, shared, sync);
    new_canary();
    (void)prctl(PR_SET_NAME, "hutch-init", 0, 0, 0);
    if (sandbox_build(&in, s, sync, tree) < 0)
        _exit(1);
    inside_stage(&in, STAGE_RUNNING);
    (void)munmap(shared, sizeof *shared);
    s->entry(s->arg);
}
