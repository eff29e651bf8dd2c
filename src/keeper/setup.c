/* setup.c - before the first request: a sealed copy of ourselves, the outer user namespace, the lock, the world. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/nsfs.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "keeper/keeper-int.h"
#include "os/idmap.h"
#include "os/landlock.h"
#include "policy/run/filter.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif
#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static int exec_self(int exe, const struct keeper_config *c, struct err *err)
{
    char home[4096];
    (void)snprintf(home, sizeof home, "HOME=%s", getenv("HOME") ? getenv("HOME") : "");
    char *env[] = {home, NULL};
    (void)syscall(SYS_execveat, exe, "", c->argv, env, AT_EMPTY_PATH);
    return err_set(err, ERR_SETUP, errno, "execute keeper's sealed copy");
}

/* Runs a sealed copy of the program without a name: no sandbox can write to it, whatever it finds in /proc. */
static int run_sealed(const struct keeper_config *c, struct err *err)
{
    struct stat st;
    _cleanup_close_ int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (self < 0 || fstat(self, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open keeper's own program");
    int seals = fcntl(self, F_GET_SEALS);
    if (seals >= 0 && (seals & SEALS) == SEALS)
        return 0;
    _cleanup_close_ int copy = memfd_create("hutch-keeper", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (copy < 0 && errno == EINVAL)
        copy = memfd_create("hutch-keeper", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (copy < 0)
        return err_set(err, ERR_SETUP, errno, "make keeper's sealed copy");
    for (off_t left = st.st_size; left > 0;) {
        ssize_t n = sendfile(copy, self, NULL, (size_t)left);
        if (n <= 0)
            return err_set(err, ERR_SETUP, n < 0 ? errno : EIO, "copy keeper's own program");
        left -= n;
    }
    if (fcntl(copy, F_ADD_SEALS, SEALS) < 0)
        return err_set(err, ERR_SETUP, errno, "seal keeper's copy");
    return exec_self(copy, c, err);
}

/* Runs in a helper outside the namespace: newuidmap needs the user's own ids, which we no longer have. */
static void map_parent(int begin, const struct idmap *uids, const struct idmap *gids) __attribute__((noreturn));
static void map_parent(int begin, const struct idmap *uids, const struct idmap *gids)
{
    struct err err = {0};
    char go;
    if (read(begin, &go, 1) != 1)
        _exit(1);
    if (idmap_write_rootless(getppid(), uids, gids, &err) == 0)
        _exit(0);
    dprintf(2, "hutch keeper: %s\n", err.msg);
    _exit(1);
}

static void find_outer(void *arg, const char *name, const struct journal_record *r)
{
    int *ret = arg;
    char boot[JOURNAL_BOOT], path[64];
    (void)name;
    if (*ret >= 0 || !r || r->state == JOURNAL_DEAD)
        return;
    journal_boot_id(boot);
    _cleanup_close_ int pidfd = adopt_pidfd(r, boot);
    (void)snprintf(path, sizeof path, "/proc/%u/ns/user", r->pid);
    _cleanup_close_ int inner = pidfd < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (inner >= 0)
        *ret = ioctl(inner, NS_GET_PARENT);
}

struct outer_search {
    struct keepsake_node node;
    int *ret;
};

/* Without a journal, finds the namespace through what the inits of this node keep. */
static void find_outer_by_keepsake(void *arg, pid_t pid, int pidfd, const struct keepsake *l)
{
    const struct outer_search *s = arg;
    char path[64];
    (void)pidfd;
    if (*s->ret >= 0 || !l || l->node.dev != s->node.dev || l->node.ino != s->node.ino)
        return;
    (void)snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    _cleanup_close_ int inner = open(path, O_RDONLY | O_CLOEXEC);
    if (inner >= 0)
        *s->ret = ioctl(inner, NS_GET_PARENT);
}

/* Live sandboxes are in the previous keeper's user namespace and can be signalled only from there. Our user owns it, so
 * we may enter it. 1 if we did. */
static int rejoin_outer(struct err *err)
{
    int journal = journal_open(KEEPER_FD_RUN, err);
    _cleanup_close_ int outer = -1;
    if (journal < 0)
        return -1;
    int r = journal_each(journal, find_outer, &outer, err);
    (void)close(journal);
    if (r == 0 && outer < 0) {
        struct outer_search search = {.ret = &outer};
        keepsake_node_of(KEEPER_FD_STATE, &search.node);
        keepsake_each(find_outer_by_keepsake, &search);
    }
    if (r == 0 && outer < 0) /* the layer store runs in it even without a sandbox */
        outer = outer_of_lock(KEEPER_FD_STATE, LAYERS_LOCK);
    if (r < 0 || outer < 0)
        return r;
    return setns(outer, CLONE_NEWUSER) < 0
               ? err_set(err, ERR_SETUP, errno, "go back into the user namespace of the running sandboxes")
               : 1;
}

static int make_outer(struct err *err)
{
    struct idmap_subids sub;
    struct idmap uids = {0}, gids = {0};
    int begin[2], status;
    if (idmap_subids(geteuid(), IDRANGE_COUNT - 1, &sub, err) < 0)
        return err_wrap(err, "sandboxes need a range of user ids");
    if (!idmap_add(&uids, 0, geteuid(), 1) || !idmap_add(&uids, 1, sub.uid_base, IDRANGE_COUNT - 1) ||
        !idmap_add(&gids, 0, getegid(), 1) || !idmap_add(&gids, 1, sub.gid_base, IDRANGE_COUNT - 1))
        return err_set(err, ERR_HOST, 0, "the ranges in /etc/subuid and /etc/subgid are not usable");
    if (pipe2(begin, O_CLOEXEC) < 0)
        return err_set(err, ERR_SETUP, errno, "make a pipe");
    pid_t helper = fork();
    if (helper == 0) {
        (void)close(begin[1]);
        map_parent(begin[0], &uids, &gids);
    }
    (void)close(begin[0]);
    int r = helper < 0 ? -1 : unshare(CLONE_NEWUSER), saved = errno;
    if (r == 0 && write(begin[1], "x", 1) != 1)
        saved = errno, r = -1;
    (void)close(begin[1]);
    if (helper > 0 && (waitpid(helper, &status, 0) < 0 || (r == 0 && status != 0)))
        return err_set(err, ERR_HOST, 0, "the user namespace got no ids");
    if (r < 0)
        return err_set(err, ERR_HOST, saved, "this host refuses new user namespaces (see `hutch doctor`)");
    return 0;
}

static int enter_outer(const struct keeper_config *c, struct err *err)
{
    int r = rejoin_outer(err);
    if (r < 0 || (r == 0 && make_outer(err) < 0))
        return -1;
    _cleanup_close_ int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    return self < 0 ? err_set(err, ERR_SETUP, errno, "open keeper's own program") : exec_self(self, c, err);
}

void setup_tie(void)
{
    static pid_t parent;
    if (!parent)
        parent = getppid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
}

static int setup_check_keeper_fds(struct err *err)
{
    struct stat st;
    if (fstat(KEEPER_FD_SOCKET, &st) < 0 || !S_ISSOCK(st.st_mode) || fstat(KEEPER_FD_RUN, &st) < 0 ||
        !S_ISDIR(st.st_mode) || fstat(KEEPER_FD_STATE, &st) < 0 || !S_ISDIR(st.st_mode))
        return err_set(err, ERR_USAGE, 0,
                       "keeper is started by `hutch serve`, with descriptors %d (listening socket), %d (run directory) "
                       "and %d (state directory)",
                       KEEPER_FD_SOCKET, KEEPER_FD_RUN, KEEPER_FD_STATE);
    return 0;
}

int setup_process(const struct keeper_config *c, struct err *err)
{
    struct rlimit files;
    if (setup_check_keeper_fds(err) < 0 || run_sealed(c, err) < 0)
        return -1;
    if (geteuid() != 0)
        return enter_outer(c, err);
    setup_tie();
    (void)fd_close_range(KEEPER_FD_STATE + 1, ~0U, 0);
    for (int fd = KEEPER_FD_SOCKET; fd <= KEEPER_FD_STATE; fd++)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    (void)fcntl(KEEPER_FD_SOCKET, F_SETFL, O_RDWR | O_NONBLOCK);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)umask(022);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)prctl(PR_SET_NAME, "hutch-keeper", 0, 0, 0);
    /* For the moment of a clone keeper takes on a sandbox's uid, and keeps its capabilities (wall/sandbox.c). */
    if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0)
        return err_set(err, ERR_SETUP, errno, "set keeper's securebits");
    return outer_take_lock(KEEPER_FD_STATE, KEEPER_LOCK, "keeper", err);
}

/* Path of a directory that came as a descriptor. New string, or NULL with *err. */
static char *setup_path_of_fd(int fd, struct err *err)
{
    char link[32], path[4096];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0 || path[0] != '/') {
        (void)err_set(err, ERR_SETUP, n < 0 ? errno : EINVAL, "find the path of descriptor %d", fd);
        return NULL;
    }
    path[n] = '\0';
    return xstrdup(path);
}

/* Never v1 without root: its trees must not be handed to users. */
static int find_cgroups(struct keeper_common *m, struct err *err)
{
    struct cgroup_info *info = &m->cgroups;
    if (cgroup_probe(info) < 0)
        return err_set(err, ERR_HOST, errno, "look for cgroups");
    unsigned kept = 0;
    for (unsigned i = 0; i < info->nhier; i++)
        if (info->hier[i].v2 || !m->world.rootless)
            info->hier[kept++] = info->hier[i];
    info->nhier = kept;
    m->cgroups_around = *info;
    (void)cgroup_group(info, KEEPER_GROUP); /* without any, replies name the missing limits */
    return 0;
}

/* Few descriptors: every one is copied for every sandbox. */
static int open_layers(struct keeper_common *m, struct err *err)
{
    struct layers_place *p = &m->layers;
    if (layers_place_open(m->world.root, -1, p, err) < 0)
        return -1;
    int *const unused[] = {&p->root, &p->tmp, &p->blobs};
    for (size_t i = 0; i < ARRAY_LEN(unused); i++)
        (void)close(TAKE_FD(*unused[i]));
    p->templates = m->world.templates;
    return 0;
}

static int make_world(const struct keeper_config *c, const struct policy *policy, struct keeper_common *m,
                      struct err *err)
{
    _cleanup_free_ char *run = setup_path_of_fd(KEEPER_FD_RUN, err),
                        *state = run ? setup_path_of_fd(KEEPER_FD_STATE, err) : NULL;
    if (!state)
        return -1;
    _cleanup_free_ char *templates = c->templates ? xstrdup(c->templates) : path_join(state, "templates");
    if (mkdir(templates, 0755) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make the directory of templates");
    if (!m->world.rootless && mkdir(IDRANGE_DIR, 0710) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make " IDRANGE_DIR);
    _cleanup_free_ char *trust = path_join(state, "trust");
    _cleanup_buf_ struct buf ca = {0};
    if (mkdirat(KEEPER_FD_STATE, "trust", 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make the directory trust in the state directory");
    if (trust_ca(&ca, err) < 0)
        return -1;
    struct layers_place layers = LAYERS_PLACE_INIT;
    _cleanup_free_ char *layers_path = path_join(state, LAYERS_DIR);
    if (layers_place_open(KEEPER_FD_STATE, -1, &layers, err) < 0) /* make the directories before the world shows them */
        return -1;
    layers_place_close(&layers);
    const char *given[KEEPER_HOST_DIRS_MAX + 1] = {NULL};
    for (size_t i = 0; i < c->nhost_dirs; i++)
        given[i] = c->host_dirs[i].path;
    const char *const hide[] = {run, state, templates, "/etc/hutch", NULL};
    const char *home = getenv("HOME");
    struct wall_sandbox_places places = {.templates = templates,
                                         .layers = layers_path,
                                         .host_dirs = given,
                                         .hide = hide,
                                         .home = home && home[0] == '/' ? home : NULL,
                                         .info = &m->cgroups,
                                         .attached = c->attached,
                                         .trust = trust,
                                         .ca = ca.n > 0 ? ca.p : NULL,
                                         .ca_n = ca.n,
                                         .ranges = m->world.rootless ? NULL : IDRANGE_DIR};
    if (wall_sandbox_world(policy, &places, &m->world, err) < 0)
        return -1;
    return open_layers(m, err);
}

static void setup_add_place(struct init_place *v, size_t *n, const char *path, uint64_t rights)
{
    if (*n < KEEPER_PLACES_MAX)
        v[(*n)++] = (struct init_place){.path = path, .rights = rights};
}

static void make_places(struct keeper_common *m)
{
    uint64_t devices = LANDLOCK_READ;
    devices |= LANDLOCK_DEVICE;
    setup_add_place(m->own_places, &m->nown_places, "/", LANDLOCK_WRITE);
    setup_add_place(m->own_places, &m->nown_places, "/dev", devices);
    setup_add_place(m->own_places, &m->nown_places, "/dev/shm", LANDLOCK_WRITE);
    setup_add_place(m->host_places, &m->nhost_places, "/", LANDLOCK_READ);
    setup_add_place(m->host_places, &m->nhost_places, "/dev", devices);
    setup_add_place(m->host_places, &m->nhost_places, "/dev/shm", LANDLOCK_WRITE);
    for (size_t i = 0; i < m->world.plan.nops; i++)
        setup_add_place(m->host_places, &m->nhost_places, m->world.plan.ops[i].path, LANDLOCK_WRITE);
}

static int make_filters(const struct policy *policy, struct keeper_common *m, struct err *err)
{
    for (int strict = 0; strict < 2; strict++) {
        struct filter f; /* for life */
        if (filter_build(policy, FILTER_KEYED | (strict ? 0U : FILTER_COMPUTER), &f, err) < 0)
            return -1;
        m->filter[strict] = f.insns;
        m->nfilter[strict] = f.n;
        m->filter_flags[strict] = f.flags;
    }
    return 0;
}

int setup_common(const struct keeper_config *c, struct keeper_common *ret, struct err *err)
{
    const char *home = getenv("HOME");
    struct policy_where where = {.cwd = "/",
                                 .home = home && home[0] == '/' ? home : NULL,
                                 .user_file = "/nonexistent",
                                 .project_file = "/nonexistent",
                                 .no_workspace = true};
    struct policy *policy = NULL;
    int abi = landlock_abi();
    if (policy_load(&where, (const char *const[]){NULL}, NULL, NULL, 0, &policy, err) < 0)
        return -1;
    policy_hide_homes(policy);
    ret->landlock = abi >= LANDLOCK_ABI_FLOOR;
    journal_boot_id(ret->boot);
    keepsake_node_of(KEEPER_FD_STATE, &ret->node);
    int r = wall_sandbox_rootless(&ret->world, err);
    if (r == 0)
        r = find_cgroups(ret, err);
    if (r == 0)
        r = make_world(c, policy, ret, err);
    if (r == 0)
        r = make_filters(policy, ret, err);
    policy_free(policy);
    if (r < 0)
        return -1;
    make_places(ret);
    return 0;
}
