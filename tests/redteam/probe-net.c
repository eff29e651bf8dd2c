/* probe-net.c - group W: the network, and host services behind sockets. */
#include "probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

union any_addr {
    struct sockaddr sa;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un un;
};

static socklen_t parse(const char *text, int port, union any_addr *ret)
{
    memset(ret, 0, sizeof *ret);
    if (inet_pton(AF_INET, text, &ret->v4.sin_addr) == 1) {
        ret->v4.sin_family = AF_INET;
        ret->v4.sin_port = htons((uint16_t)port);
        return sizeof ret->v4;
    }
    (void)inet_pton(AF_INET6, text, &ret->v6.sin6_addr);
    ret->v6.sin6_family = AF_INET6;
    ret->v6.sin6_port = htons((uint16_t)port);
    if (IN6_IS_ADDR_LINKLOCAL(&ret->v6.sin6_addr))
        ret->v6.sin6_scope_id = 1;
    return sizeof ret->v6;
}

/* A connect under way counts as through: packets have left. */
static void w_connect(const struct attempt *a, struct seen *s)
{
    union any_addr to;
    socklen_t n = parse(a->arg, (int)a->num, &to);
    int fd = socket(to.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        seen_rc(s, -1);
    else
        SEEN_PAST(s, connect(fd, &to.sa, n), EINPROGRESS);
}

static void w_udp(const struct attempt *a, struct seen *s)
{
    union any_addr to;
    socklen_t n = parse(a->arg, (int)a->num, &to);
    int fd = socket(to.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    seen_rc(s, fd < 0 ? -1 : sendto(fd, "x", 1, 0, &to.sa, n));
}

static void w_loopback(const struct attempt *a, struct seen *s)
{
    long port = probe_var_num(a->arg);
    union any_addr to;
    if (!probe_need(s, a->arg))
        return;
    socklen_t n = parse(a->num ? "::ffff:127.0.0.1" : "127.0.0.1", (int)port, &to);
    int fd = socket(to.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    long rc = fd < 0 ? -1 : connect(fd, &to.sa, n);
    if (rc == 0)
        (void)!write(fd, "inside\n", 7);
    seen_rc(s, rc);
}

static socklen_t unix_addr(const char *name, bool abstract, union any_addr *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->un.sun_family = AF_UNIX;
    size_t n = strlen(name);
    if (n > sizeof ret->un.sun_path - 2)
        n = sizeof ret->un.sun_path - 2;
    memcpy(ret->un.sun_path + abstract, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + abstract + n + !abstract);
}

static void w_unix(const struct attempt *a, struct seen *s)
{
    union any_addr to;
    const char *name = probe_need(s, a->arg);
    if (!name)
        return;
    socklen_t n = unix_addr(name, a->num, &to);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    long rc = fd < 0 ? -1 : connect(fd, &to.sa, n);
    if (rc == 0)
        (void)!write(fd, "inside\n", 7);
    seen_rc(s, rc);
}

/* A datagram pair, disconnected and aimed at a host socket. */
static void w_socketpair(const struct attempt *a, struct seen *s)
{
    union any_addr to;
    int sv[2];
    const char *name = probe_need(s, "dgramsock");
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    (void)a;
    if (!name)
        return;
    socklen_t n = unix_addr(name, false, &to);
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, sv) < 0 || connect(sv[0], &none, sizeof none) < 0) {
        seen_rc(s, -1);
        return;
    }
    seen_rc(s, sendto(sv[0], "inside\n", 7, 0, &to.sa, n));
}

static void w_add_addr(const struct attempt *a, struct seen *s)
{
    struct {
        struct nlmsghdr h;
        struct ifaddrmsg m;
        struct rtattr at;
        struct in_addr ip;
    } req = {.h = {sizeof req, RTM_NEWADDR, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, 1, 0},
             .m = {AF_INET, 32, 0, 0, 1},
             .at = {sizeof(struct rtattr) + 4, IFA_LOCAL}};
    struct {
        struct nlmsghdr h;
        struct nlmsgerr e;
        char rest[512];
    } ack;
    (void)a;
    (void)inet_pton(AF_INET, "192.0.2.77", &req.ip);
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0 || send(fd, &req, sizeof req, 0) < 0 || recv(fd, &ack, sizeof ack, 0) < (ssize_t)sizeof ack.h) {
        seen_rc(s, -1);
        return;
    }
    errno = -ack.e.error;
    seen_rc(s, ack.e.error ? -1 : 0);
}

static void w_mark(const struct attempt *a, struct seen *s)
{
    int one = 1, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (a->num)
        seen_rc(s, setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    else
        seen_rc(s, setsockopt(fd, SOL_SOCKET, SO_MARK, &one, sizeof one));
}

static void w_bind(const struct attempt *a, struct seen *s)
{
    union any_addr at;
    socklen_t n = parse("0.0.0.0", (int)a->num, &at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    seen_rc(s, fd < 0 ? -1 : bind(fd, &at.sa, n));
}

static void w_interfaces(const struct attempt *a, struct seen *s)
{
    struct if_nameindex *list = if_nameindex();
    size_t other = 0;
    (void)a;
    for (size_t i = 0; list && list[i].if_index; i++)
        other += strcmp(list[i].if_name, "lo") != 0;
    seen_text(s, other ? "leak: %zu interfaces besides lo" : "only-lo", other);
    if (list)
        if_freenameindex(list);
}

#define NOWHERE "ENETUNREACH EHOSTUNREACH EADDRNOTAVAIL EAFNOSUPPORT"
#define NOROUTE "this host has no route there either"
#define TO(id, what, addr, port)                                                         \
    {                                                                                    \
        id, what, w_connect, addr, port, NOWHERE, NULL, "netns", CTL_OUTSIDE, 0, NOROUTE \
    }

static const struct attempt rows[] = {
    TO("W-01a", "connect to a public IPv4 address", "1.1.1.1", 443),
    TO("W-01b", "connect to a public IPv6 address", "2606:4700:4700::1111", 443),
    TO("W-02a", "connect to the metadata address", "169.254.169.254", 80),
    TO("W-02b", "connect to its IPv6 form", "fd00:ec2::254", 80),
    TO("W-02c", "connect to its mapped form", "::ffff:169.254.169.254", 80),
    {"W-03", "connect to a link-local address with a scope", w_connect, "fe80::1", 80, NOWHERE " EINVAL", NULL, "netns",
     CTL_KERNEL, 0, NOROUTE},
    {"W-04a", "UDP to port 53", w_udp, "1.1.1.1", 53, NOWHERE, NULL, "netns", CTL_OUTSIDE, 0, NOROUTE},
    {"W-04b", "UDP to port 443", w_udp, "1.1.1.1", 443, NOWHERE, NULL, "netns", CTL_OUTSIDE, 0, NOROUTE},
    {"W-06a", "connect to a service on the host's loopback", w_loopback, "tcpport", 0,
     "ECONNREFUSED ENETUNREACH EACCES EADDRNOTAVAIL", NULL, "netns", CTL_OUTSIDE, 0, NULL},
    {"W-06b", "the same by the mapped IPv6 form", w_loopback, "tcpport", 1,
     "ECONNREFUSED ENETUNREACH EACCES EADDRNOTAVAIL EAFNOSUPPORT", NULL, "netns", CTL_OUTSIDE, 0,
     "this host has no IPv6"},
    {"W-06c", "only the loopback interface exists", w_interfaces, NULL, 0, "only-lo", NULL, "netns", CTL_OUTSIDE, 0,
     "this host has no other interface"},
    {"W-08", "add an address by netlink", w_add_addr, NULL, 0, "EPERM", NULL, "caps,seccomp", CTL_NS, A_INSIDE, NULL},
    {"W-09a", "SO_MARK", w_mark, NULL, 0, "EPERM", NULL, "caps", CTL_NS, 0, NULL},
    {"W-09b", "SO_BINDTODEVICE lo (harmless)", w_mark, NULL, 1, "success EPERM ENODEV", NULL, "", CTL_ALLOWED, 0, NULL},
    {"W-10a", "bind port 80", w_bind, NULL, 80, "EACCES", "EACCES success", "caps", CTL_NS, 0, NULL},
    {"W-10b", "bind port 18080 of the own namespace (allowed)", w_bind, NULL, 18080, "success", NULL, "", CTL_ALLOWED,
     0, NULL},
    {"W-12a", "connect to an abstract socket of the host", w_unix, "abstract", 1, "ECONNREFUSED EPERM EACCES", NULL,
     "netns,landlock", CTL_OUTSIDE, 0, NULL},
    {"W-12b", "connect to a path socket of the host", w_unix, "unixsock", 0, "EACCES EPERM ENOENT ECONNREFUSED", NULL,
     "landlock,masks,seccomp,mounts", CTL_OUTSIDE, 0, NULL},
    {"W-12c", "connect to a path socket in the host's /run", w_unix, "runsock", 0, "EACCES EPERM ENOENT ECONNREFUSED",
     NULL, "run,landlock,masks,seccomp", CTL_OUTSIDE, 0, NULL},
    {"W-12d", "connect to a path socket in the host's /tmp", w_unix, "tmpsock", 0, "EACCES EPERM ENOENT ECONNREFUSED",
     NULL, "tmp,landlock,masks,seccomp", CTL_OUTSIDE, 0, NULL},
    {"W-12e", "aim a datagram pair at a path socket of the host", w_socketpair, NULL, 0,
     "EACCES EPERM ENOENT ECONNREFUSED EOPNOTSUPP ENOTCONN", NULL, "landlock,masks,seccomp,mounts", CTL_OUTSIDE, 0,
     NULL},
    {"C-03a", "ask a metadata-like service on the host's loopback", w_loopback, "metaport", 0,
     "ECONNREFUSED ENETUNREACH EACCES EADDRNOTAVAIL", NULL, "netns", CTL_OUTSIDE, 0, NULL},
};

const struct attempt_table probe_net = {"network", rows, ROWS(rows)};
