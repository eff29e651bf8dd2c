/* work-dial.c - a TCP connection to a port inside, made inside. */
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "init/work.h"
#include "os/caps.h"

enum { DIAL_MS = 3000, ADDRESSES_MAX = 16 };

/* Descriptor, or -1 with errno. */
static int try_address(const struct sockaddr *sa, socklen_t len)
{
    int eno = 0;
    socklen_t elen = sizeof eno;
    _cleanup_close_ int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, sa, len) == 0)
        return TAKE_FD(fd);
    if (errno != EINPROGRESS)
        return -1;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, DIAL_MS) <= 0) {
        errno = ETIMEDOUT;
        return -1;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &eno, &elen) < 0 || eno != 0) {
        errno = eno ? eno : EIO;
        return -1;
    }
    return TAKE_FD(fd);
}

/* A server may listen on another address of the sandbox only. */
static int try_interfaces(uint16_t port)
{
    struct ifreq v[ADDRESSES_MAX];
    struct ifconf c = {.ifc_len = sizeof v, .ifc_req = v};
    _cleanup_close_ int ask = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (ask < 0 || ioctl(ask, SIOCGIFCONF, &c) < 0)
        return -1;
    for (size_t i = 0; i < (size_t)c.ifc_len / sizeof v[0]; i++) {
        struct sockaddr_in sa;
        memcpy(&sa, &v[i].ifr_addr, sizeof sa);
        if (sa.sin_family != AF_INET || sa.sin_addr.s_addr == htonl(INADDR_LOOPBACK))
            continue;
        sa.sin_port = port;
        int fd = try_address((const struct sockaddr *)&sa, sizeof sa);
        if (fd >= 0)
            return fd;
    }
    errno = ECONNREFUSED;
    return -1;
}

void work_dial(struct work *w)
{
    uint16_t port = htons((uint16_t)w->r->number);
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = port, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    (void)caps_set(CAPS_NONE);
    _cleanup_close_ int fd = try_address((const struct sockaddr *)&v4, sizeof v4);
    int eno = errno;
    if (fd < 0 && eno == ECONNREFUSED)
        fd = try_address((const struct sockaddr *)&v6, sizeof v6);
    if (fd < 0 && eno == ECONNREFUSED)
        fd = try_interfaces(port);
    if (fd < 0 && eno == ETIMEDOUT)
        work_fail(w, INIT_TIMEOUT, "port %u did not accept a connection within 3 s", w->r->number);
    if (fd < 0 && eno != ECONNREFUSED)
        work_fail(w, INIT_IO, "connect to port %u: %s", w->r->number, strerror(eno));
    if (fd < 0)
        work_fail(w, INIT_NOT_FOUND, "nothing listens on port %u", w->r->number);
    work_reply_ok(w, fd);
}
