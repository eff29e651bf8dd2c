/* box-inside.c - the child between clone and its entry function. No allocation; failures go to the shared page. */
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
#include "wall/box-int.h"
#include "wall/inside.h"

enum { BOX_RANGE = WALL_BOX_FDS, BOX_TREE, BOX_FDS, BOX_PARK = 64 };

static int volumes[WALL_BOX_VOLUMES_MAX]; /* detached mounts that came with struct box_go */

/* Keeper's descriptors (its clients, other sandboxes) end here. What is needed moves to fixed numbers. */
static int keep_few(struct inside *in, const int fds[BOX_FDS])
{
    int high[BOX_FDS];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return inside_fail(in, errno, "open /dev/null");
    for (int i = WALL_BOX_CONTROL; i < BOX_FDS; i++) {
        high[i] = fds[i] < 0 ? -1 : fcntl(fds[i], F_DUPFD_CLOEXEC, BOX_PARK);
        if (fds[i] >= 0 && high[i] < 0)
            return inside_fail(in, errno, "keep a descriptor");
    }
    for (int i = 0; i < WALL_BOX_CONTROL; i++)
        if (null != i && dup3(null, i, O_CLOEXEC) < 0)
            return inside_fail(in, errno, "replace the standard streams");
    for (int i = WALL_BOX_CONTROL; i < BOX_FDS; i++) {
        if (high[i] >= 0 && dup3(high[i], i, O_CLOEXEC) < 0)
            return inside_fail(in, errno, "keep a descriptor");
        if (high[i] < 0)
            (void)close(i);
    }
    return fd_close_range(BOX_FDS, ~0U, 0) < 0 ? inside_fail(in, errno, "close keeper's descriptors") : 0;
}

/* What keeper sent along: the new root, what init keeps of its upper layer, the volumes. */
static int take_mounts(struct inside *in, const struct box_go *go, const int *fds, size_t n)
{
    if (go->version != BOX_GO_VERSION || go->root > 1 || go->upper > 1 || go->volumes > WALL_BOX_VOLUMES_MAX ||
        n != (size_t)go->root + go->upper + go->volumes)
        return inside_fail(in, EBADMSG, "the mounts did not come");
    if (go->root)
        in->root = *fds++;
    if (go->upper && (dup3(*fds, WALL_BOX_UPPER, O_CLOEXEC) < 0 || close(*fds++) < 0))
        return inside_fail(in, errno, "keep the upper layer");
    memcpy(volumes, fds, go->volumes * sizeof volumes[0]);
    return 0;
}

static int take_ids(struct inside *in)
{
    struct box_go go;
    int fds[BOX_GO_FDS];
    size_t nfds = BOX_GO_FDS;
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
        const struct idrange range = {.fd = BOX_RANGE};
        if (idrange_pin(&range) < 0)
            return inside_fail(in, errno, "keep the id range");
        (void)close(BOX_RANGE);
    }
    return 0;
}

static int write_file(int at, const char *name, const char *text, mode_t mode)
{
    /* In an image it may be a link, even one to where nothing is: ours takes its place. */
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
    box_own_machine_id(text[2]);
    _cleanup_close_ int vault = inside_place(in, "/sys");
    if (vault < 0)
        return inside_fail(in, errno, "find the private memory");
    for (unsigned i = 0; i < ARRAY_LEN(files); i++) {
        (void)snprintf(path, sizeof path, "/etc/%s", files[i]);
        _cleanup_close_ int at = inside_place(in, path);
        if (at < 0)
            continue; /* the host has no such file */
        _cleanup_close_ int src =
            write_file(vault, files[i], text[i], modes[i]) < 0 ? -1 : openat(vault, files[i], O_PATH | O_CLOEXEC);
        _cleanup_close_ int fd = src < 0 ? -1 : mount_clone(src, "", 0);
        if (fd < 0 || mount_attach(fd, at) < 0)
            return inside_fail(in, errno, "make %s", path);
    }
    return 0;
}

static int make_home(struct inside *in)
{
    _cleanup_close_ int home = inside_place(in, "/home");
    if (home < 0 || mkdirat(home, "user", 0755) < 0 || fchownat(home, "user", WALL_BOX_USER, WALL_BOX_USER, 0) < 0)
        return inside_fail(in, errno, "make /home/user");
    return 0;
}

/* A root of its own: best effort, the image decides what /etc is. Nothing outside can be meant: we stand in the new root. */
static void name_own_files(const struct inside *in)
{
    char text[256];
    _cleanup_close_ int etc = open("/etc", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (etc < 0)
        return;
    hosts_text(in->spec->hostname, text, sizeof text);
    (void)write_file(etc, "hosts", text, 0644);
    (void)snprintf(text, sizeof text, "%s\n", in->spec->hostname);
    (void)write_file(etc, "hostname", text, 0644);
    (void)write_file(etc, "resolv.conf", box_resolv_conf, 0644);
    box_own_machine_id(text);
    (void)write_file(etc, "machine-id", text, 0444);
}

/* Part of the root, so that a snapshot has it; one that is there already is as it was left. */
static int make_tmp(struct inside *in)
{
    if (mkdirat(in->root, "tmp", 01777) == 0)
        return fchmodat(in->root, "tmp", 01777, 0) < 0 ? inside_fail(in, errno, "set the mode of /tmp") : 0;
    return errno != EEXIST ? inside_fail(in, errno, "make /tmp") : 0;
}

static int attach_root(struct inside *in, bool host)
{
    _cleanup_close_ int at = open(BOX_NEW, O_PATH | O_DIRECTORY | O_CLOEXEC);
    unsigned flags = MOUNT_NODEV | (host || in->spec->privilege == PRIVILEGE_STRICT ? MOUNT_NOSUID : 0U);
    if (in->root < 0)
        return inside_fail(in, EBADMSG, "the new root did not come");
    if (at < 0 || mount_set(in->root, "", flags) < 0 || mount_attach(in->root, at) < 0)
        return inside_fail(in, errno, "attach the new root");
    in->new_root = true;
    in->new_root_at = BOX_NEW;
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
    /* A process that cannot be dumped does not own its own files there. Nobody else is in these namespaces yet. */
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    _cleanup_close_ int score = openat(proc, "self/oom_score_adj", O_RDWR | O_CLOEXEC);
    int eno = errno;
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (score < 0 || dup3(score, WALL_BOX_SCORE, O_CLOEXEC) < 0)
        return inside_fail(in, score < 0 ? eno : errno, "open oom_score_adj");
    return 0;
}

static int limit_namespaces(struct inside *in, const int fds[ARRAY_LEN(kinds)])
{
    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++)
        if (fds[i] < 0 || write(fds[i], "0", 1) != 1)
            return inside_fail(in, errno, "forbid new %s namespaces", kinds[i]);
    return 0;
}

static int build_tree(struct inside *in, const struct wall_box_spec *s)
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
    if (box_own_boot_id(in, &boot) < 0 || inside_proc(in) < 0 || box_own_cover_boot_id(in, boot) < 0 ||
        inside_pivot(in) < 0 || (!host && make_tmp(in) < 0))
        return -1;
    if (!host)
        name_own_files(in);
    inside_stage(in, STAGE_MOUNTS);
    return box_own_volumes(in, s, volumes);
}

static int build(struct inside *in, const struct wall_box_spec *s, int sync, int tree)
{
    const int fds[BOX_FDS] = {[WALL_BOX_SYNC] = sync,
                              [WALL_BOX_CONTROL] = s->control,
                              [WALL_BOX_OOM] = s->oom,
                              [WALL_BOX_SCORE] = sync, /* keeps the place until open_limits() */
                              [WALL_BOX_UPPER] = sync, /* and until take_mounts() */
                              [WALL_BOX_TCP] = s->net ? s->net->tcp : -1,
                              [WALL_BOX_UDP] = s->net ? s->net->udp : -1,
                              [BOX_RANGE] = s->range ? s->range->fd : -1,
                              [BOX_TREE] = tree};
    int limits[ARRAY_LEN(kinds)];
    inside_stage(in, STAGE_CGROUP);
    if (s->cgroup && cgroup_enter(s->cgroup) < 0)
        return inside_fail(in, errno, "enter the cgroup");
    if (keep_few(in, fds) < 0)
        return -1;
    in->sock = WALL_BOX_SYNC;
    in->root = tree >= 0 ? BOX_TREE : -1;
    if (take_ids(in) < 0)
        return -1;
    (void)umask(022);
    if (open_limits(in, limits) < 0 || inside_network_begin(in) < 0)
        return -1;
    if (setsid() < 0)
        return inside_fail(in, errno, "start a session");
    if (build_tree(in, s) < 0)
        return -1;
    inside_stage(in, STAGE_NET);
    if (inside_network(in) < 0)
        return -1;
    inside_stage(in, STAGE_LIMITS);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return inside_fail(in, errno, "make init not dumpable");
    if (limit_namespaces(in, limits) < 0 || inside_limits(in) < 0)
        return -1;
    if (s->nlayers == 0)
        (void)close(WALL_BOX_UPPER);
    /* Everything that set-up opened, too. */
    return fd_close_range(WALL_BOX_FDS, ~0U, 0) < 0 ? inside_fail(in, errno, "close what set-up opened") : 0;
}

/* What keeper's other children have in the same place would be known to each of them. No function above us returns. */
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

void box_inside(const struct wall_box_spec *s, struct wall_shared *shared, int sync, int tree)
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
    if (build(&in, s, sync, tree) < 0)
        _exit(1);
    inside_stage(&in, STAGE_RUNNING);
    (void)munmap(shared, sizeof *shared);
    s->entry(s->arg);
}
