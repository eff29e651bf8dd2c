/* confine.c - the last steps of set-up, each of which drops a right for good. */
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/caps.h"
#include "os/landlock.h"
#include "os/netns.h"
#include "os/rlimits.h"
#include "os/seccomp.h"
#include "wall/inside.h"

enum { LANDLOCK_RULES_MAX = 320 };

static char net_stack[16 * 1024] __attribute__((aligned(16)));

/* Runs beside init, in its memory and with its descriptors, on another CPU if there is one: a network namespace takes the
 * kernel as long as all other namespaces together, and nothing else waits for it. It touches no
 * file: following a link of /proc writes its time of access, and while it does, init cannot make /proc read-only (EBUSY). */
static int make_network(void *arg)
{
    struct inside *in = arg;
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    in->net_errno = 0;
    if (unshare(CLONE_NEWNET) == 0) {
        int sock = (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (sock >= 0 && syscall(SYS_ioctl, sock, SIOCSIFFLAGS, &ifr) == 0)
            in->net = (int)syscall(SYS_ioctl, sock, SIOCGSKNS);
        if (sock >= 0)
            (void)syscall(SYS_close, sock);
    }
    in->net_errno = in->net < 0 ? errno : 0;
    return 0;
}

int inside_network_begin(struct inside *in)
{
    if (in->spec->network == NETWORK_HOST || LAYER_OFF(in->spec->without, NETNS))
        return 0;
    in->net_task = clone(make_network, net_stack + sizeof net_stack, CLONE_VM | CLONE_FILES | SIGCHLD, in);
    return in->net_task < 0 ? inside_fail(in, errno, "start making a network namespace") : 0;
}

/* Every address leads to two sockets, which leave with this message: init keeps no way out of its own. */
static int give_network(struct inside *in)
{
    struct err err = {0};
    struct netns n = NETNS_INIT;
    struct wall_msg m = {.type = WALL_MSG_NETWORK};
    if (netns_set_up(&n, &err) < 0)
        return inside_fail(in, err.eno, "%s", err.msg);
    int fds[] = {n.tcp, n.udp};
    ssize_t sent = fd_send(in->sock, &m, sizeof m, fds, ARRAY_LEN(fds));
    int eno = errno;
    netns_close(&n);
    return sent < 0 ? inside_fail(in, eno, "hand the network's sockets to the caller") : 0;
}

static int confine_take_network(struct inside *in)
{
    int status;
    if (in->net_task <= 0)
        return 0;
    while (waitpid(in->net_task, &status, 0) < 0)
        if (errno != EINTR)
            return inside_fail(in, errno, "wait for the network namespace");
    if (in->spec->network == NETWORK_HOST) { /* the plan came later */
        if (in->net >= 0)
            (void)close(TAKE_FD(in->net));
        return 0;
    }
    if (in->net < 0)
        return inside_fail(in, in->net_errno, "make a network namespace");
    if (setns(in->net, CLONE_NEWNET) < 0)
        return inside_fail(in, errno, "enter the network namespace");
    return in->spec->network == NETWORK_RULES ? give_network(in) : 0;
}

int inside_network(struct inside *in)
{
    const struct wall_spec *s = in->spec;
    if (!LAYER_OFF(s->without, UTSNS) && sethostname(s->hostname, strlen(s->hostname)) < 0)
        return inside_fail(in, errno, "set the host name");
    if (!LAYER_OFF(s->without, CGROUPNS) && unshare(CLONE_NEWCGROUP) < 0)
        return inside_fail(in, errno, "make a cgroup namespace");
    if (!LAYER_OFF(s->without, KEYRING) && syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 &&
        errno != ENOSYS)
        return inside_fail(in, errno, "leave the host's session keyring");
    return confine_take_network(in);
}

int inside_limits(struct inside *in)
{
    const struct wall_spec *s = in->spec;
    if (LAYER_OFF(s->without, RLIMITS))
        return 0;
    struct rlimits want = {.open_files = s->open_files, .processes = s->pids};
    const char *which = "?";
    if (rlimits_apply(&want, &which) < 0)
        return inside_fail(in, errno, "set the limit on %s", which);
    return 0;
}

struct rules {
    struct landlock_rule rule[LANDLOCK_RULES_MAX];
    size_t n;
};

static int confine_add_rule(struct inside *in, struct rules *r, const char *path, uint64_t rights)
{
    if (r->n == LANDLOCK_RULES_MAX)
        return inside_fail(in, E2BIG, "more than %d places are writable", LANDLOCK_RULES_MAX);
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return inside_fail(in, errno, "open %s for Landlock", path);
    r->rule[r->n++] = (struct landlock_rule){.fd = fd, .rights = rights};
    return 0;
}

/* A redirected output file may be opened again through /dev/stdout; an input file may not be written that way. */
static void add_outputs(struct rules *r)
{
    for (int fd = 1; fd <= 2; fd++) {
        struct stat st;
        if (r->n < LANDLOCK_RULES_MAX && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
            (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
            r->rule[r->n++] = (struct landlock_rule){.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3), .rights = LANDLOCK_WRITE};
    }
}

int inside_landlock(struct inside *in)
{
    struct rules r = {.n = 0};
    const struct wall_spec *s = in->spec;
    if (LAYER_OFF(s->without, LANDLOCK) || s->skip_landlock)
        return 0;
    bool own_root = s->plan->layers.n > 0;
    if (confine_add_rule(in, &r, "/", own_root ? LANDLOCK_READ | LANDLOCK_WRITE : LANDLOCK_READ) < 0 ||
        confine_add_rule(in, &r, "/dev", LANDLOCK_READ | LANDLOCK_DEVICE) < 0 ||
        confine_add_rule(in, &r, "/dev/shm", LANDLOCK_WRITE) < 0)
        return -1;
    for (size_t i = 0; i < s->plan->nops; i++) {
        const struct plan_op *op = &s->plan->ops[i];
        if ((op->kind == OP_BIND_RW || (op->kind == OP_TMPFS && op->writable)) &&
            confine_add_rule(in, &r, op->path, LANDLOCK_READ | LANDLOCK_WRITE) < 0)
            return -1;
    }
    /* The private layers of --learn, one by one: their inodes are not the host's, "/" is. */
    for (size_t i = 0; s->learn && i < s->learn->n; i++)
        if (confine_add_rule(in, &r, s->learn->place[i].path, LANDLOCK_READ | LANDLOCK_WRITE) < 0)
            return -1;
    add_outputs(&r);
    /* On the host's root, reads are by mounts: all but what is covered. */
    if (landlock_apply(r.rule, r.n, own_root ? 0 : LANDLOCK_FREE_READS, &in->shared->err) < 0) {
        in->shared->failed = 1;
        return -1;
    }
    for (size_t i = 0; i < r.n; i++)
        (void)close(r.rule[i].fd);
    int abi = landlock_abi();
    if (abi <= 0) /* it was there a moment ago */
        return inside_fail(in, errno, "ask for the version of Landlock");
    in->shared->landlock_abi = (unsigned)abi;
    return 0;
}

static int confine_drop_capabilities(struct inside *in, uint64_t keep)
{
    const struct wall_spec *s = in->spec;
    if (s->nested)
        return 0; /* nested: no capabilities to drop */
    if (LAYER_OFF(s->without, CAPS))
        return caps_keep_all() < 0 ? inside_fail(in, errno, "keep capabilities") : 0;
    if (caps_bound(keep) < 0)
        return inside_fail(in, errno, "drop the capability bounding set");
    if (!LAYER_OFF(s->without, SECUREBITS) && caps_lock_securebits(s->privilege == PRIVILEGE_COMPUTER) < 0)
        return inside_fail(in, errno, "lock the securebits");
    return caps_set(keep) < 0 ? inside_fail(in, errno, "drop capabilities") : 0;
}

static int confine_load_filter(struct inside *in)
{
    const struct wall_spec *s = in->spec;
    unsigned flags = s->filter->flags & FILTER_NOTIFY ? SECCOMP_LOAD_LISTENER : 0U;
    if (LAYER_OFF(s->without, SECCOMP))
        return 0;
    if (seccomp_load(s->filter->insns, s->filter->n, flags, &in->listener, &in->shared->err) == 0)
        return 0;
    in->shared->failed = 1;
    return -1;
}

/* no_new_privs, Landlock, capabilities, seccomp. Without no_new_privs (`computer`, where it would break sudo) the filter
 * must load while CAP_SYS_ADMIN is still held. */
int inside_lock(struct inside *in)
{
    const struct wall_spec *s = in->spec;
    bool computer = s->privilege == PRIVILEGE_COMPUTER;
    bool nnp = !computer && !LAYER_OFF(s->without, NNP);
    uint64_t keep = computer ? caps_computer() : CAPS_NONE;
    if (nnp && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return inside_fail(in, errno, "set no_new_privs");
    inside_stage(in, STAGE_LANDLOCK);
    if (inside_landlock(in) < 0)
        return -1;
    inside_stage(in, STAGE_SECCOMP);
    if (nnp)
        return confine_drop_capabilities(in, keep) < 0 || confine_load_filter(in) < 0 ? -1 : 0;
    return confine_load_filter(in) < 0 || confine_drop_capabilities(in, keep) < 0 ? -1 : 0;
}
