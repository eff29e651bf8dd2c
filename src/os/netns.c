#include "os/netns.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "os/nft.h"
#include "os/rtnl.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

enum { BACKLOG = 4096, DNS_PORT = 53 };

/* Every user inside may bind low ports: root of a sandbox has no capability over its network. TCP buffers are small: no
 * peer in the namespace is far away, so large ones would only hold memory. */
static const struct {
    const char *path, *value;
} settings[] = {
    {"/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"},
    {"/proc/sys/net/ipv4/tcp_rmem", "4096 131072 2097152"},
    {"/proc/sys/net/ipv4/tcp_wmem", "4096 16384 2097152"},
};
static const char own_namespace[] = "/proc/thread-self/ns/net";

static int set_on(int fd, int level, int option)
{
    int on = 1;
    return setsockopt(fd, level, option, &on, sizeof on);
}

static int make_tcp(int *ret, struct err *err)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT, .sin6_port = htons(NETNS_PORT)};
    int off = 0;
    _cleanup_close_ int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) < 0 ||
        set_on(fd, SOL_SOCKET, SO_REUSEADDR) < 0)
        return err_set(err, ERR_HOST, errno, "make the listener of a network namespace");
    if (set_on(fd, IPPROTO_IP, IP_TRANSPARENT) < 0)
        return err_set(err, ERR_HOST, errno, "make the listener of a network namespace transparent");
    if (bind(fd, (const struct sockaddr *)&any, sizeof any) < 0 || listen(fd, BACKLOG) < 0)
        return err_set(err, ERR_HOST, errno, "listen on port %d of a network namespace", NETNS_PORT);
    *ret = TAKE_FD(fd);
    return 0;
}

/* Answers leave from the port the question came to, so the socket itself is at 53; at one address, so that a sandbox may
 * have a resolver of its own on 127.0.0.1. */
static int make_udp(int *ret, struct err *err)
{
    struct sockaddr_in gate = {.sin_family = AF_INET, .sin_port = htons(DNS_PORT)};
    (void)inet_pton(AF_INET, NETNS_GATE4, &gate.sin_addr);
    _cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
    if (fd < 0 || set_on(fd, IPPROTO_IP, IP_TRANSPARENT) < 0 || set_on(fd, IPPROTO_IP, IP_PKTINFO) < 0)
        return err_set(err, ERR_HOST, errno, "make the resolver's socket of a network namespace");
    if (bind(fd, (const struct sockaddr *)&gate, sizeof gate) < 0)
        return err_set(err, ERR_HOST, errno, "bind the resolver's socket to %s in a network namespace", NETNS_GATE4);
    *ret = TAKE_FD(fd);
    return 0;
}

static bool get_u64(int fd, int option, uint64_t *ret)
{
    socklen_t n = sizeof *ret;
    return getsockopt(fd, SOL_SOCKET, option, ret, &n) == 0 && n == sizeof *ret;
}

static int read_cookies(struct netns *n, struct err *err)
{
    if (!get_u64(n->tcp, SO_NETNS_COOKIE, &n->cookie))
        return err_set(err, ERR_HOST, errno, "this kernel does not tell network namespaces apart (Linux 5.14 does)");
    if (!get_u64(n->tcp, SO_COOKIE, &n->tcp_cookie) || !get_u64(n->udp, SO_COOKIE, &n->udp_cookie))
        return err_set(err, ERR_HOST, errno, "read the cookies of a network namespace's sockets");
    return 0;
}

/* In a read-only /proc (`hutch run`) nothing can be set: low ports stay closed, as they are without rules. */
static int apply_settings(struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        if (fd_put(AT_FDCWD, settings[i].path, settings[i].value) < 0)
            return errno == EROFS
                       ? 0
                       : err_set(err, ERR_HOST, errno, "%s of a network namespace cannot be set", settings[i].path);
    return 0;
}

int netns_set_up(struct netns *ret, struct err *err)
{
    struct netns n = NETNS_INIT;
    struct nft_capture rules = {.tcp_port = NETNS_PORT};
    (void)inet_pton(AF_INET, NETNS_OWN4, rules.own4);
    (void)inet_pton(AF_INET6, NETNS_OWN6, rules.own6);
    (void)inet_pton(AF_INET, NETNS_GATE4, rules.dns4);
    if (rtnl_all_local(rules.own4, rules.own6, err) < 0 || nft_capture(&rules, err) < 0)
        return -1;
    if (apply_settings(err) < 0)
        return -1;
    if (make_tcp(&n.tcp, err) < 0 || make_udp(&n.udp, err) < 0 || read_cookies(&n, err) < 0) {
        netns_close(&n);
        return -1;
    }
    *ret = n;
    return 0;
}

int netns_make(struct netns *ret, struct err *err)
{
    struct netns n = NETNS_INIT;
    _cleanup_close_ int home = open(own_namespace, O_RDONLY | O_CLOEXEC);
    if (home < 0)
        return err_set(err, ERR_HOST, errno, "open %s", own_namespace);
    if (setns(home, CLONE_NEWNET) < 0) /* before it is too late */
        return err_set(err, ERR_HOST, errno, "cannot return to the present network namespace");
    if (unshare(CLONE_NEWNET) < 0)
        return err_set(err, ERR_HOST, errno,
                       errno == ENOSPC ? "no more network namespaces (user.max_net_namespaces)"
                                       : "make a network namespace");
    _cleanup_close_ int ns = open(own_namespace, O_RDONLY | O_CLOEXEC);
    int r = ns < 0 ? err_set(err, ERR_HOST, errno, "open %s", own_namespace) : netns_set_up(&n, err);
    if (setns(home, CLONE_NEWNET) < 0)
        abort(); /* the callers must not go on in a foreign namespace */
    if (r < 0)
        return -1;
    n.ns = TAKE_FD(ns);
    *ret = n;
    return 0;
}

void netns_close(struct netns *n)
{
    const int fds[] = {n->tcp, n->udp, n->ns};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    *n = (struct netns)NETNS_INIT;
}

static bool is_number(int fd, int option, int want)
{
    int v = 0;
    socklen_t n = sizeof v;
    return getsockopt(fd, SOL_SOCKET, option, &v, &n) == 0 && v == want;
}

static bool is_of(int fd, uint64_t ns_cookie, uint64_t cookie)
{
    uint64_t ns, own;
    return get_u64(fd, SO_NETNS_COOKIE, &ns) && get_u64(fd, SO_COOKIE, &own) && ns == ns_cookie && own == cookie;
}

bool netns_is_tcp(int fd, uint64_t ns_cookie, uint64_t cookie)
{
    return is_number(fd, SO_DOMAIN, AF_INET6) && is_number(fd, SO_TYPE, SOCK_STREAM) &&
           is_number(fd, SO_PROTOCOL, IPPROTO_TCP) && is_number(fd, SO_ACCEPTCONN, 1) && is_of(fd, ns_cookie, cookie);
}

bool netns_is_udp(int fd, uint64_t ns_cookie, uint64_t cookie)
{
    return is_number(fd, SO_DOMAIN, AF_INET) && is_number(fd, SO_TYPE, SOCK_DGRAM) &&
           is_number(fd, SO_PROTOCOL, IPPROTO_UDP) && is_of(fd, ns_cookie, cookie);
}
