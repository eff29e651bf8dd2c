/* probe-res.c - group R: using things up. These rows run only inside a sandbox with limits around it, and each has a cap of
 * its own, so that a missing limit shows as "leak" and not as a dead host. run.py gives: memory 128M, pids 64, disk 32M,
 * inodes 2000, open files 256. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum { MiB = 1 << 20 };

/* How a loop that was to be stopped ended: the errno and the count, or "leak" if nothing stopped it before the cap. */
static void ended(struct seen *s, bool stopped, unsigned long n, const char *unit)
{
    if (stopped)
        seen_text(s, "%s: after %lu %s", strerrorname_np(errno), n, unit);
    else
        seen_text(s, "leak: %lu %s and no end", n, unit);
}

static void r_fork(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    pid_t pid = 0;
    (void)a;
    for (; n < 200 && (pid = fork()) >= 0; n++)
        if (pid == 0) {
            (void)pause();
            _exit(0);
        }
    ended(s, pid < 0, n, "children");
}

static void *idle(void *unused)
{
    (void)pause();
    return unused;
}

static void r_threads(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    pthread_attr_t at;
    pthread_t t;
    int rc = 0;
    (void)a;
    (void)pthread_attr_init(&at);
    (void)pthread_attr_setstacksize(&at, 65536);
    for (; n < 200 && (rc = pthread_create(&t, &at, idle, NULL)) == 0; n++)
        ;
    errno = rc;
    ended(s, rc != 0, n, "threads");
}

static unsigned long take_memory(unsigned long cap)
{
    unsigned long n = 0;
    for (; n < cap; n++) {
        char *p = mmap(NULL, MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            break;
        memset(p, 1, MiB);
    }
    return n;
}

static void r_memory(const struct attempt *a, struct seen *s)
{
    unsigned long cap = (unsigned long)a->num, n = take_memory(cap);
    ended(s, n < cap, n, "MiB");
}

/* Writes to `path` until refused; the file is removed unless `keep`. */
static unsigned long fill_file(const char *path, unsigned long cap, bool unlinked, bool keep)
{
    static char block[MiB];
    unsigned long n = 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return 0;
    if (unlinked)
        (void)unlink(path);
    memset(block, 1, sizeof block);
    for (; n < cap; n++)
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
            break;
    int eno = errno;
    /* A short last write leaves no errno; the next one has it. */
    if (n < cap && write(fd, block, sizeof block) < 0)
        eno = errno;
    close(fd);
    if (!keep)
        (void)unlink(path);
    errno = eno;
    return n;
}

static void r_disk(const struct attempt *a, struct seen *s)
{
    unsigned long n = fill_file(a->arg, 64, a->num, false);
    ended(s, n < 64, n, "MiB");
}

static void r_disk_then_memory(const struct attempt *a, struct seen *s)
{
    (void)a;
    unsigned long n = fill_file("/tmp/rt-fill", 30, false, true), m = take_memory(60);
    (void)unlink("/tmp/rt-fill");
    seen_text(s, "survived: %lu MiB of files, then %lu MiB of memory", n, m);
}

static void r_inodes(const struct attempt *a, struct seen *s)
{
    enum { CAP = 8000 };
    char path[300], pad[201];
    unsigned long n = 0;
    int fd = 0, eno = 0;
    memset(pad, 'n', sizeof pad - 1);
    pad[a->num == 2 ? 200 : 0] = '\0';
    if (mkdir("/tmp/rt-inodes", 0700) < 0)
        eno = errno;
    for (; n < CAP; n++) {
        (void)snprintf(path, sizeof path, "/tmp/rt-inodes/%lu%s", n, pad);
        if ((fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) < 0)
            break;
        if (a->num == 1 && write(fd, "x", 1) < 0)
            break;
        close(fd);
    }
    eno = fd < 0 ? errno : eno;
    for (unsigned long i = 0; i < n; i++) {
        (void)snprintf(path, sizeof path, "/tmp/rt-inodes/%lu%s", i, pad);
        (void)unlink(path);
    }
    (void)rmdir("/tmp/rt-inodes");
    errno = eno;
    ended(s, n < CAP, n, "files");
}

static void r_sparse(const struct attempt *a, struct seen *s)
{
    (void)a;
    int fd = open("/tmp/rt-sparse", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    seen_rc(s, ftruncate(fd, 1LL << 40));
    (void)unlink("/tmp/rt-sparse");
}

static void r_xattrs(const struct attempt *a, struct seen *s)
{
    static char value[4096];
    char name[32];
    unsigned long n = 0;
    long rc = 0;
    (void)a;
    (void)probe_put("/tmp/rt-xattr", "x");
    for (; n < 16384 && rc == 0; n++) {
        (void)snprintf(name, sizeof name, "user.n%lu", n);
        rc = setxattr("/tmp/rt-xattr", name, value, sizeof value, 0);
    }
    int eno = errno;
    (void)unlink("/tmp/rt-xattr");
    errno = eno;
    ended(s, rc < 0, n, "xattrs of 4 KiB");
}

/* Storms: nothing is to be refused, the sandbox and the host must simply live on. */
static void r_storm(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    char path[128];
    void *page = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = open("rt-storm", O_RDWR | O_CREAT | O_CLOEXEC | (a->num == 2 ? O_DIRECT : 0), 0600);
    for (double end = probe_now() + 1; probe_now() < end; n++)
        switch (a->num) {
        case 0:
            (void)rename(n & 1 ? "rt-storm2" : "rt-storm", n & 1 ? "rt-storm" : "rt-storm2");
            break;
        case 1:
            (void)!pwrite(fd, "x", 1, 0);
            (void)fsync(fd);
            break;
        case 2:
            (void)!pwrite(fd, page, 65536, 0);
            break;
        case 3:
            (void)snprintf(path, sizeof path, "rt-absent-%lu", n);
            (void)access(path, F_OK);
            break;
        default: {
            struct flock fl = {.l_type = F_WRLCK, .l_start = (off_t)(2 * n), .l_len = 1};
            if (fcntl(fd, F_OFD_SETLK, &fl) < 0)
                goto out;
        }
        }
out:
    (void)unlink("rt-storm");
    (void)unlink("rt-storm2");
    seen_text(s, "survived: %lu in 1 s", n);
}

static void r_fds(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    int fd = 0;
    (void)a;
    for (; n < 5000 && (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0; n++)
        ;
    ended(s, fd < 0, n, "descriptors");
}

static void r_in_flight(const struct attempt *a, struct seen *s)
{
    int sv[2], fd = open("/dev/null", O_RDONLY | O_CLOEXEC), fds[64];
    char control[CMSG_SPACE(sizeof fds)] = {0}, byte = 'x';
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    unsigned long n = 0;
    long rc = 0;
    (void)a;
    for (size_t i = 0; i < ROWS(fds); i++)
        fds[i] = fd;
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fds)};
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0) {
        seen_rc(s, -1);
        return;
    }
    for (; n < 400 && (rc = sendmsg(sv[0], &m, 0)) >= 0; n++)
        ;
    ended(s, rc < 0, n * ROWS(fds), "descriptors in flight");
}

static void r_pipe(const struct attempt *a, struct seen *s)
{
    int p[2];
    (void)a;
    (void)pipe2(p, O_CLOEXEC);
    seen_rc(s, fcntl(p[1], F_SETPIPE_SZ, 2 * MiB));
}

static void r_inotify(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    int fd = 0;
    (void)a;
    for (; n < 5000 && (fd = inotify_init1(IN_CLOEXEC)) >= 0; n++)
        ;
    ended(s, fd < 0, n, "inotify instances");
}

static void r_timers(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    timer_t t;
    int rc = 0;
    (void)a;
    for (; n < 16384 && (rc = timer_create(CLOCK_MONOTONIC, NULL, &t)) == 0; n++)
        ;
    ended(s, rc < 0, n, "timers");
}

static void r_queues(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    char name[32];
    mqd_t q = 0;
    (void)a;
    for (; n < 300; n++) {
        (void)snprintf(name, sizeof name, "/rt-%lu", n);
        if ((q = mq_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600, NULL)) < 0)
            break;
    }
    int eno = errno;
    for (unsigned long i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "/rt-%lu", i);
        (void)mq_unlink(name);
    }
    errno = eno;
    ended(s, q < 0, n, "queues");
}

static void r_shm(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    int id = 0;
    (void)a;
    for (; n < 5000 && (id = shmget(IPC_PRIVATE, 4096, 0600)) >= 0; n++)
        ;
    ended(s, id < 0, n, "segments"); /* they go with the IPC namespace */
}

static void r_maps(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    void *p = NULL;
    (void)a;
    for (; n < 200000 && p != MAP_FAILED; n++)
        p = mmap(NULL, 4096, n & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ended(s, p == MAP_FAILED, n, "mappings");
}

static void r_epoll(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    int below = epoll_create1(EPOLL_CLOEXEC), rc = 0;
    (void)a;
    for (; n < 100 && rc == 0; n++) {
        int above = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event e = {.events = EPOLLIN};
        rc = epoll_ctl(above, EPOLL_CTL_ADD, below, &e);
        below = above;
    }
    ended(s, rc < 0, n, "levels");
}

static void r_mlock(const struct attempt *a, struct seen *s)
{
    (void)a;
    void *p = mmap(NULL, 4 * MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    seen_rc(s, mlock(p, 4 * MiB));
}

/* Memory for compiled filters is one pool of the machine. */
static void r_filter(const struct attempt *a, struct seen *s)
{
    struct sock_filter code = {BPF_RET | BPF_K, 0, 0, 0xffff};
    struct sock_fprog prog = {1, &code};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    seen_rc(s, setsockopt(fd, SOL_SOCKET, (int)a->num, &prog, sizeof prog));
    (void)close(fd);
}

static void r_aio(const struct attempt *a, struct seen *s)
{
    unsigned long context = 0;
    (void)a;
    seen_rc(s, syscall(SYS_io_setup, 1, &context));
    (void)syscall(SYS_io_destroy, context);
}

static void r_terminals(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    int fds[300], fd = 0;
    (void)a;
    for (; n < ROWS(fds) && (fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)) >= 0; n++)
        fds[n] = fd;
    int eno = errno;
    for (unsigned long i = 0; i < n; i++)
        (void)close(fds[i]);
    errno = eno;
    ended(s, fd < 0, n, "terminals");
}

/* What netlink sockets of this network namespace hold unread, in KiB. */
static unsigned long netlink_held(void)
{
    char line[256];
    unsigned long sum = 0, held;
    FILE *f = fopen("/proc/net/netlink", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%*s %*s %*s %*s %lu", &held) == 1)
            sum += held;
    if (f)
        (void)fclose(f);
    return sum / 1024;
}

/* Asks for lo again and again and reads nothing. */
static void netlink_fill(int fd)
{
    struct {
        struct nlmsghdr head;
        struct ifinfomsg link;
    } ask = {{sizeof ask, RTM_GETLINK, NLM_F_REQUEST, 1, 0}, {.ifi_index = 1}};
    int big = 8 * MiB;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
    for (int i = 0; i < 200; i++)
        (void)!send(fd, &ask, sizeof ask, MSG_DONTWAIT);
}

static void r_netlink(const struct attempt *a, struct seen *s)
{
    unsigned long n = 0;
    int fd = 0;
    (void)a;
    for (; n < 200 && netlink_held() <= 8 * 1024 && (fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0)) >= 0; n++)
        netlink_fill(fd);
    int eno = errno;
    unsigned long held = netlink_held();
    seen_text(s, "%s: %lu sockets hold %lu KiB", fd < 0 && held <= 8 * 1024 ? strerrorname_np(eno) : "leak", n, held);
}

/* Far above every limit of the suite: 256 descriptors hold 1 GiB where the host allows buffers of 8 MiB. Two callers attack at once,
 * with all layers removed, too, and the host must survive what they show. */
enum { BUFFERS_LEAK_MIB = 1536 };

static void r_buffers(const struct attempt *a, struct seen *s)
{
    static char block[65536];
    unsigned long sockets = 0, bytes = 0;
    int sv[2], big = 4 * MiB;
    (void)a;
    while (sockets < 4000 && bytes / MiB < BUFFERS_LEAK_MIB &&
           socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) == 0) {
        (void)setsockopt(sv[0], SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
        for (ssize_t w; (w = write(sv[0], block, sizeof block)) > 0;)
            bytes += (unsigned long)w;
        sockets += 2;
    }
    bool leak = sockets >= 4000 || bytes / MiB >= BUFFERS_LEAK_MIB;
    seen_text(s, "%s: %lu sockets holding %lu KiB", leak ? "leak" : strerrorname_np(errno), sockets, bytes / 1024);
}

static void r_page_tables(const struct attempt *a, struct seen *s)
{
    const size_t step = 2 * MiB, count = 60000;
    unsigned long n = 0;
    (void)a;
    char *p = mmap(NULL, step * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        seen_rc(s, -1);
        return;
    }
    (void)madvise(p, step * count, MADV_NOHUGEPAGE);
    for (; n < count; n++)
        p[n * step] = 1;
    ended(s, false, n, "page tables");
}

static void r_core(const struct attempt *a, struct seen *s)
{
    struct rlimit rl;
    (void)a;
    (void)getrlimit(RLIMIT_CORE, &rl);
    seen_text(s, rl.rlim_max == 0 ? "zero" : "leak: hard limit %lu", (unsigned long)rl.rlim_max);
}

/* While it is held, a process that opens the file to write waits. */
static void r_lease(const struct attempt *a, struct seen *s)
{
    (void)probe_put("rt-lease", "x");
    int fd = open("rt-lease", O_RDONLY | O_CLOEXEC);
    seen_rc(s, fcntl(fd, F_SETLEASE, (int)a->num));
    (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    (void)close(fd);
    (void)unlink("rt-lease");
}

static void r_dnotify(const struct attempt *a, struct seen *s)
{
    (void)a;
    int dir = open(".", O_RDONLY | O_CLOEXEC);
    (void)fcntl(dir, F_NOTIFY, DN_CREATE | DN_MULTISHOT);
    seen_text(s, "survived");
}

struct closing {
    int fd, after_us;
    volatile bool begun;
};

static void *close_soon(void *arg)
{
    struct closing *c = arg;
    for (double end = probe_now() + c->after_us / 1e6; probe_now() < end;)
        ;
    c->begun = true;
    (void)close(c->fd);
    return NULL;
}

/* A socket with something left to send, whose last close waits for an hour, or until *peer is closed. */
static int lingering_socket(int listener, const struct sockaddr_in *at, int *peer)
{
    static char block[65536];
    struct linger l = {1, 3600};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)at, sizeof *at) < 0)
        return -1;
    *peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    while (send(fd, block, sizeof block, MSG_DONTWAIT) > 0)
        ;
    return setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l) < 0 ? -1 : fd;
}

/* The supervisor holds a copy of a socket while it sets its buffer. If that is the last one, closing it must not hold the
 * supervisor up: the next call that it has to answer would hang. */
static bool try_linger(int listener, const struct sockaddr_in *at, int after_us)
{
    int peer = -1, size = 100000;
    struct closing c = {lingering_socket(listener, at, &peer), after_us, false};
    pthread_t t;
    if (c.fd < 0 || pthread_create(&t, NULL, close_soon, &c) != 0)
        return false;
    (void)setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    while (!c.begun)
        ;
    (void)usleep(300);
    (void)syscall(SYS_mount, NULL, NULL, NULL, 0, NULL);
    (void)close(peer);
    return pthread_join(t, NULL) == 0;
}

static void r_linger(const struct attempt *a, struct seen *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int i = 0, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)a;
    (void)bind(listener, (struct sockaddr *)&at, sizeof at);
    (void)listen(listener, 16);
    (void)getsockname(listener, (struct sockaddr *)&at, &n);
    while (i < 1200 && try_linger(listener, &at, i * 7 % 400))
        i++;
    seen_text(s, i == 1200 ? "survived: %d tries" : "ended: after %d tries", i);
}

#define LIM(id, what, fn, arg, num, want, layers, why)                      \
    {                                                                       \
        id, what, fn, arg, num, want, NULL, layers, CTL_NONE, A_LIMITS, why \
    }
#define BY_KERNEL "a limit of the kernel per user or per namespace, not one of ours"

static const struct attempt rows[] = {
    LIM("R-01", "fork bomb against 64 pids", r_fork, NULL, 0, "EAGAIN", "cgroup,rlimits", NULL),
    LIM("R-02", "thread bomb against 64 pids", r_threads, NULL, 0, "EAGAIN", "cgroup,rlimits", NULL),
    LIM("R-03", "300 MiB of memory against 128M", r_memory, NULL, 300, "signal ENOMEM", "cgroup,rlimits", NULL),
    LIM("R-04", "fill /tmp, then allocate", r_disk_then_memory, NULL, 0, "survived signal", "",
        "documents what happens; both ends are right"),
    LIM("R-05", "empty files in /tmp", r_inodes, NULL, 0, "ENOSPC EDQUOT", "tmpfs-inodes", NULL),
    LIM("R-06", "64 MiB into /tmp against 32M", r_disk, "/tmp/rt-fill", 0, "ENOSPC EDQUOT", "disk", NULL),
    LIM("R-07", "files of one byte in /tmp", r_inodes, NULL, 1, "ENOSPC EDQUOT", "tmpfs-inodes", NULL),
    LIM("R-08", "a sparse file of 1 TiB (holds no blocks)", r_sparse, NULL, 0, "EFBIG success ENOSPC", "",
        "a hole uses nothing; R-06 bounds the blocks"),
    LIM("R-09", "64 MiB into a deleted file in /tmp", r_disk, "/tmp/rt-fill", 1, "ENOSPC EDQUOT", "disk", NULL),
    LIM("R-10", "64 MiB of xattrs in /tmp", r_xattrs, NULL, 0, "ENOSPC EDQUOT EOPNOTSUPP ENOMEM E2BIG signal",
        "disk,tmpfs-inodes,cgroup", "the kernel bounds the xattrs of a tmpfs by its inodes"),
    LIM("R-11", "files with long names in /tmp", r_inodes, NULL, 2, "ENOSPC EDQUOT", "tmpfs-inodes", NULL),
    LIM("R-12", "rename storm, 1 s", r_storm, NULL, 0, "survived", "", "nothing to refuse; the run must end cleanly"),
    LIM("R-13", "descriptors against 256", r_fds, NULL, 0, "EMFILE", "rlimits", NULL),
    LIM("R-14", "descriptors in flight", r_in_flight, NULL, 0, "ETOOMANYREFS EAGAIN", "", BY_KERNEL),
    LIM("R-15", "a pipe of 2 MiB", r_pipe, NULL, 0, "EPERM ENOMEM", "", BY_KERNEL),
    LIM("R-16", "inotify instances", r_inotify, NULL, 0, "EMFILE", "", BY_KERNEL),
    LIM("R-17", "POSIX timers", r_timers, NULL, 0, "EAGAIN", "rlimits", NULL),
    LIM("R-18", "message queues", r_queues, NULL, 0, "EMFILE ENOSPC ENOSYS EPERM EACCES", "", BY_KERNEL),
    LIM("R-19", "SysV segments", r_shm, NULL, 0, "ENOSPC", "", BY_KERNEL),
    LIM("R-20", "mappings", r_maps, NULL, 0, "ENOMEM", "", BY_KERNEL),
    LIM("R-21", "nested epoll", r_epoll, NULL, 0, "ELOOP EINVAL EMFILE", "", BY_KERNEL),
    LIM("R-22", "mlock of 4 MiB", r_mlock, NULL, 0, "ENOMEM EPERM EAGAIN", "rlimits",
        "the limit of the caller may be low already"),
    LIM("R-25", "file locks, 1 s", r_storm, NULL, 4, "survived signal", "", "charged to memory; nothing to refuse"),
    {"R-26a", "take a read lease", r_lease, NULL, F_RDLCK, "EACCES", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"R-26b", "take a write lease", r_lease, NULL, F_WRLCK, "EACCES", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    LIM("R-26c", "dnotify", r_dnotify, NULL, 0, "survived", "", "nothing to refuse"),
    {"R-27a", "attach a socket filter", r_filter, NULL, SO_ATTACH_FILTER, "EPERM", NULL, "seccomp", CTL_OUTSIDE, 0,
     NULL},
    {"R-27b", "attach a reuseport filter", r_filter, NULL, SO_ATTACH_REUSEPORT_CBPF, "EPERM", NULL, "seccomp",
     CTL_OUTSIDE, 0, NULL},
    LIM("R-28", "full socket buffers", r_buffers, NULL, 0, "EMFILE ENOMEM ENOBUFS ENFILE signal", "rlimits,cgroup",
        NULL),
    LIM("R-29", "page tables against 128M", r_page_tables, NULL, 0, "signal ENOMEM", "cgroup,rlimits", NULL),
    LIM("R-30", "absent names, 1 s", r_storm, NULL, 3, "survived", "", "charged to memory; nothing to refuse"),
    LIM("R-33", "fsync storm, 1 s", r_storm, NULL, 1, "survived", "", "nothing to refuse"),
    LIM("R-34", "O_DIRECT storm, 1 s", r_storm, NULL, 2, "survived", "", "nothing to refuse"),
    {"R-35", "core dumps are off", r_core, NULL, 0, "zero", NULL, "rlimits", CTL_OUTSIDE, 0,
     "the caller's own limit may be zero already"},
    {"R-43", "make an AIO context", r_aio, NULL, 0, "ENOSYS", NULL, "seccomp", CTL_OUTSIDE, 0, NULL},
    {"R-44", "300 terminals", r_terminals, NULL, 0, "ENOSPC", NULL, "dev", CTL_OUTSIDE, A_ALONE, NULL},
    LIM("R-45", "unread netlink answers, 8 MiB", r_netlink, NULL, 0, "ENOBUFS", "seccomp", NULL),
    {"R-46", "hold the supervisor up with SO_LINGER", r_linger, NULL, 0, "survived", NULL, "", CTL_NONE, A_ALONE,
     "nothing to refuse; every call gets its answer"},
    LIM("D-05", "64 MiB into /dev/shm", r_disk, "/dev/shm/rt-fill", 0, "ENOSPC EDQUOT signal", "disk", NULL),
};

const struct attempt_table probe_res = {"resources", rows, ROWS(rows)};
