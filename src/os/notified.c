#include "os/notified.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/num.h"
#include "os/caps.h"
#include "os/seccomp.h"

enum { PIDFD_THREAD = O_EXCL /* Linux 6.9 */, PROTOCOLS_ROOM = 16 << 10 };

static const char protocols[] = "/proc/thread-self/net/protocols";

/* An int argument with a word of the key in its high half, which the kernel ignores and the filter checks. */
static long keyed_arg(const struct notified *g, int word, int value)
{
    uint64_t high = g->key ? (uint64_t)g->key[word] << 32 : 0;
    return (long)(high | (uint32_t)value);
}

/* --- netlink sockets ---------------------------------------------------------------------------------------------- */

/* The number that comes after n others behind `label`; -1: there is none. Columns are separated by blanks. */
static int number_behind(const char *text, const char *label, int n)
{
    const char *p = strstr(text, label);
    char digits[16];
    int v = -1;
    for (p = p ? p + strlen(label) : NULL; p && n >= 0; n--) {
        p += strspn(p, " \t");
        size_t len = strcspn(p, " \t\n");
        (void)snprintf(digits, sizeof digits, "%.*s", (int)(len < sizeof digits ? len : sizeof digits), p);
        p += len;
    }
    return p && num_int(digits, 0, INT32_MAX, &v) ? v : -1;
}

/* "NETLINK   1096      7  ...": name, size of one, how many live in this network namespace. */
static int count_netlink(void)
{
    static char text[PROTOCOLS_ROOM];
    _cleanup_close_ int fd = open(protocols, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t r = fd < 0 ? -1 : 1;
    while (r > 0 && n < sizeof text - 1) {
        r = read(fd, text + n, sizeof text - 1 - n);
        n += r > 0 ? (size_t)r : 0;
    }
    if (r < 0)
        return -1;
    text[n] = '\0';
    return number_behind(text, "\nNETLINK ", 1);
}

int notified_make_netlink(struct notified *g, const struct seccomp_data *call)
{
    int count = count_netlink(), size = NOTIFIED_NETLINK_BUFFER;
    if (g->others < 0)
        g->others = count;
    if (count < 0 || count - g->others >= NOTIFIED_NETLINK_MAX) {
        errno = ENOBUFS;
        return -1;
    }
    _cleanup_close_ int fd = (int)syscall(SYS_socket, keyed_arg(g, 0, AF_NETLINK),
                                          keyed_arg(g, 1, (int)call->args[1] | SOCK_CLOEXEC), NETLINK_ROUTE);
    if (fd < 0 ||
        syscall(SYS_setsockopt, keyed_arg(g, 0, fd), keyed_arg(g, 1, SOL_SOCKET), SO_RCVBUF, &size, sizeof size) < 0)
        return -1;
    return TAKE_FD(fd);
}

struct netlink_task {
    struct notified *g;
    const struct seccomp_data *call;
    int netns, userns;
    int fd, eno;
};

/* Runs in our memory and with our descriptors, so the socket is ours. Enters the owning user namespace first, which
 * gives an unprivileged caller the right to enter the network namespace; EINVAL means that it is our own. */
static int netlink_task_run(void *arg)
{
    struct netlink_task *t = arg;
    bool in = t->netns < 0 ||
              ((setns(t->userns, CLONE_NEWUSER) == 0 || errno == EINVAL) && setns(t->netns, CLONE_NEWNET) == 0);
    if (in && caps_set(CAPS_NONE) == 0)
        t->fd = notified_make_netlink(t->g, t->call);
    t->eno = errno;
    _exit(0);
}

int notified_make_netlink_in(struct notified *g, int netns, const struct seccomp_data *call)
{
    static char stack[16 << 10] __attribute__((aligned(16)));
    _cleanup_close_ int userns = netns < 0 ? -1 : ioctl(netns, NS_GET_USERNS);
    struct netlink_task t = {.g = g, .call = call, .netns = netns, .userns = userns, .fd = -1};
    if (netns >= 0 && userns < 0)
        return -1;
    pid_t pid = clone(netlink_task_run, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_VFORK, &t);
    if (pid < 0)
        return -1;
    while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR) {
    }
    errno = t.eno;
    return t.fd;
}

void notified_give(int listener, const struct seccomp_notif *n, int fd, int eno)
{
    bool cloexec = n->data.args[1] & SOCK_CLOEXEC;
    if (fd >= 0 && seccomp_give(listener, n->id, fd, cloexec) < 0) {
        eno = errno;
        fd = -1;
    }
    if (fd < 0)
        (void)seccomp_refuse(listener, n->id, eno > 0 ? eno : ENOBUFS);
}

/* --- receive buffers ---------------------------------------------------------------------------------------------- */

/* "Tgid:\t123": the process that a thread belongs to. */
static pid_t notified_process_of(pid_t tid)
{
    char path[48], text[512];
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)tid);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    return number_behind(text, "\nTgid:", 0);
}

static int pidfd_of(pid_t tid)
{
    int fd = (int)syscall(SYS_pidfd_open, tid, PIDFD_THREAD);
    return fd >= 0 || errno != EINVAL ? fd : (int)syscall(SYS_pidfd_open, notified_process_of(tid), 0);
}

static int take_socket(const struct notified *g, pid_t tid, int fd)
{
    _cleanup_close_ int pidfd = pidfd_of(tid);
    if (pidfd < 0) {
        errno = EPERM; /* not an errno of the call that is asked about */
        return -1;
    }
    return (int)syscall(SYS_pidfd_getfd, keyed_arg(g, 0, pidfd), keyed_arg(g, 1, fd), 0);
}

static bool notified_read_size(pid_t tid, uint64_t addr, int *ret)
{
    char path[48];
    (void)snprintf(path, sizeof path, "/proc/%d/mem", (int)tid);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && addr <= INT64_MAX && pread(fd, ret, sizeof *ret, (off_t)addr) == (ssize_t)sizeof *ret;
}

/* The errno of the call, 0 if it succeeds. The descriptor stays open: see buffer_task_run(). */
static int set_buffer(const struct notified *g, int listener, const struct seccomp_notif *n)
{
    int size = 0, domain = 0;
    socklen_t len = sizeof domain;
    int fd = take_socket(g, (pid_t)n->pid, (int)n->data.args[0]);
    if (fd < 0)
        return errno == EBADF ? EBADF : 0;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0)
        return errno;
    if ((int)n->data.args[4] < (int)sizeof size)
        return EINVAL;
    if (!notified_read_size((pid_t)n->pid, n->data.args[3], &size))
        return EFAULT;
    if (domain == AF_NETLINK ||
        !seccomp_id_valid(listener, n->id)) /* gone: its number may be another thread's by now */
        return 0;
    long r = syscall(SYS_setsockopt, keyed_arg(g, 0, fd), keyed_arg(g, 1, SOL_SOCKET), SO_RCVBUF, &size, sizeof size);
    return r < 0 ? errno : 0;
}

struct buffer_task {
    const struct notified *g;
    const struct seccomp_notif *n;
    int listener;
};

/* A child sets the buffer, because it may block: closing the last copy of a socket waits as long as SO_LINGER says (not
 * in a process that ends), and reading the caller's memory and locking its socket may take long. */
static int buffer_task_run(void *arg)
{
    const struct buffer_task *t = arg;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)fd_close_range((unsigned)t->listener + 1, ~0U, 0);
    if (t->listener > 0)
        (void)fd_close_range(0, (unsigned)t->listener - 1, 0);
    (void)seccomp_refuse(t->listener, t->n->id, set_buffer(t->g, t->listener, t->n));
    _exit(0);
}

/* Finds a place for one more child; -1: all are taken. Answers the calls of children that were killed. */
static int free_place(struct notified *g, int listener)
{
    int place = -1;
    for (int i = 0; i < NOTIFIED_CHILDREN_MAX; i++) {
        if (g->child[i].pid > 0 && waitpid(g->child[i].pid, NULL, WNOHANG | __WCLONE) != 0) {
            (void)seccomp_refuse(listener, g->child[i].id, 0);
            g->child[i].pid = 0;
        }
        if (g->child[i].pid == 0)
            place = i;
    }
    return place;
}

void notified_set_buffer(struct notified *g, int listener, const struct seccomp_notif *n)
{
    static char stack[16 << 10] __attribute__((aligned(16)));
    struct buffer_task t = {.g = g, .n = n, .listener = listener};
    int place = free_place(g, listener);
    pid_t pid = place < 0 ? -1 : clone(buffer_task_run, stack + sizeof stack, 0, &t);
    if (pid < 0) {
        (void)seccomp_refuse(listener, n->id, 0);
        return;
    }
    g->child[place].pid = pid;
    g->child[place].id = n->id;
}
