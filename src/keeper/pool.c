/* pool.c - network namespaces made in advance.
 *
 * Making one takes the kernel longer than everything else about a sandbox, so a child of keeper does it. keeper asks
 * for namespaces by number; the child sends one message with three descriptors for each. Namespaces that keeper has not
 * yet taken wait in the socket, so it holds no descriptors of them. A failure is one message too: the child then drops
 * the outstanding requests, and keeper asks again when it next needs one.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "keeper/keeper-int.h"
#include "os/caps.h"

enum { POOL_WANTED = 32, POOL_RESTART_MS = 1000, POOL_FD = 3 };

struct made {               /* from the child */
    uint32_t code, dropped; /* failure: the reason, and how many namespaces are dropped, this one included */
    uint64_t cookie, tcp_cookie, udp_cookie;
    char text[KEEPER_TEXT_MAX];
};

/* --- the child ------------------------------------------------------------------------------------------------------ */

static int pool_make_one(int sock, uint32_t *want)
{
    struct netns n = NETNS_INIT;
    struct err err = {0};
    struct made m = {0};
    if (netns_make(&n, &err) < 0) {
        m.code = (uint32_t)err.code;
        m.dropped = *want;
        *want = 0;
        (void)snprintf(m.text, sizeof m.text, "%.*s", (int)sizeof m.text - 1, err.msg);
        return fd_send(sock, &m, sizeof m, NULL, 0);
    }
    const int fds[] = {n.ns, n.tcp, n.udp};
    m.cookie = n.cookie;
    m.tcp_cookie = n.tcp_cookie;
    m.udp_cookie = n.udp_cookie;
    --*want;
    int r = fd_send(sock, &m, sizeof m, fds, ARRAY_LEN(fds));
    netns_close(&n);
    return r;
}

/* Serves one socket until its other end is closed. It reads nothing but numbers. */
static void pool_main(int sock, pid_t keeper) __attribute__((noreturn));
static void pool_main(int sock, pid_t keeper)
{
    sigset_t none;
    uint32_t want = 0, more;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != keeper)
        _exit(0);
    (void)prctl(PR_SET_NAME, "hutch-netpool", 0, 0, 0);
    (void)signal(SIGTERM, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup3(sock, POOL_FD, O_CLOEXEC) < 0 || fd_close_range(POOL_FD + 1, ~0U, 0) < 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        caps_set(UINT64_C(1) << CAP_SYS_ADMIN | UINT64_C(1) << CAP_NET_ADMIN) < 0)
        _exit(1);
    for (;;) {
        ssize_t n = recv(POOL_FD, &more, sizeof more, want > 0 ? MSG_DONTWAIT : 0);
        bool ended = n != sizeof more && (n >= 0 || (errno != EAGAIN && errno != EINTR));
        if (n == sizeof more)
            want += more;
        else if (ended || (want > 0 && pool_make_one(POOL_FD, &want) < 0))
            _exit(0);
    }
}

/* --- keeper --------------------------------------------------------------------------------------------------------- */

static void ask(struct keeper *k)
{
    struct pool *p = &k->pool;
    uint32_t wanted = k->config->max_sandboxes < POOL_WANTED ? k->config->max_sandboxes : POOL_WANTED;
    uint32_t more = wanted > p->asked ? wanted - p->asked : 0;
    if (more > 0 && send(p->sock, &more, sizeof more, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof more)
        p->asked += more;
}

/* Always reports the end of the pool's process; reports new namespaces only while a create waits for one. */
void pool_watch(struct keeper *k)
{
    struct epoll_event ev = {.events = k->npending > 0 ? EPOLLIN : 0U, .data.u64 = (uint64_t)EVENT_POOL << 56};
    if (k->pool.sock >= 0 && epoll_ctl(k->epoll, EPOLL_CTL_MOD, k->pool.sock, &ev) < 0)
        (void)epoll_ctl(k->epoll, EPOLL_CTL_ADD, k->pool.sock, &ev);
}

int pool_start(struct keeper *k, struct err *err)
{
    int pair[2];
    pid_t keeper = getpid();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_set(err, ERR_SETUP, errno, "make a socket pair for the network namespaces");
    pid_t pid = fork();
    if (pid == 0)
        pool_main(pair[1], keeper);
    int saved = errno;
    (void)close(pair[1]);
    if (pid < 0 || fcntl(pair[0], F_SETFL, O_RDWR | O_NONBLOCK) < 0) {
        (void)close(pair[0]);
        return err_set(err, ERR_SETUP, saved, "start the process that makes network namespaces");
    }
    k->pool = (struct pool){.sock = pair[0], .pid = pid, .started_ms = keeper_now_ms()};
    pool_watch(k);
    ask(k);
    return 0;
}

static void stop(struct keeper *k)
{
    struct pool *p = &k->pool;
    (void)epoll_ctl(k->epoll, EPOLL_CTL_DEL, p->sock, NULL); /* a child that is being made may have a copy */
    (void)close(p->sock);
    (void)kill(p->pid, SIGKILL);
    while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    p->sock = -1;
    p->pid = -1;
}

/* A child that died at once is restarted after a delay. */
uint64_t pool_tick(struct keeper *k)
{
    struct pool *p = &k->pool;
    struct err err = {0};
    uint64_t now = keeper_now_ms();
    if (p->sock >= 0)
        return UINT64_MAX;
    if (now >= p->started_ms + POOL_RESTART_MS) {
        p->started_ms = now;
        if (pool_start(k, &err) == 0)
            return UINT64_MAX;
    }
    return p->started_ms + POOL_RESTART_MS;
}

void pool_event(struct keeper *k, uint32_t events)
{
    if (events & (EPOLLHUP | EPOLLERR)) {
        stop(k);
        uint64_t at = pool_tick(k);
        if (at != UINT64_MAX)
            keeper_wake_at(k, at);
    }
    create_resume(k);
}

int pool_take_netns(struct keeper *k, struct netns *ret, struct err *err)
{
    struct pool *p = &k->pool;
    struct made m;
    bool failed = false;
    while (p->sock >= 0) {
        int fds[3];
        size_t nfds = ARRAY_LEN(fds);
        ssize_t n = fd_recv(p->sock, &m, sizeof m, fds, &nfds);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n == sizeof m && m.code != 0 && nfds == 0) { /* may be old: a namespace may follow it */
            failed = true;
            p->asked -= m.dropped < p->asked ? m.dropped : p->asked;
            (void)err_set(err, (enum err_code)m.code, 0, "%.*s", (int)sizeof m.text - 1, m.text);
            continue;
        }
        if (n == sizeof m && m.code == 0 && nfds == ARRAY_LEN(fds)) {
            p->asked -= p->asked > 0;
            ask(k);
            *ret = (struct netns){.ns = fds[0],
                                  .tcp = fds[1],
                                  .udp = fds[2],
                                  .cookie = m.cookie,
                                  .tcp_cookie = m.tcp_cookie,
                                  .udp_cookie = m.udp_cookie};
            return 1;
        }
        for (size_t i = 0; n > 0 && i < nfds; i++)
            (void)close(fds[i]);
        break; /* its end, which the loop is told of */
    }
    if (p->sock >= 0)
        ask(k);
    return failed ? -1 : 0;
}
