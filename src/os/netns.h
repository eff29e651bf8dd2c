/* netns.h - network namespaces in which every address of the world is local and leads to one listening socket.
 *
 * Inside there is only `lo` with one address of each family, the AnyIP routes (everything is local) and one nftables chain
 * that hands each TCP connection to the listener and each DNS datagram to the resolver's socket. Both sockets are made inside
 * and owned outside: there is no link to anything, so without their owner nothing leaves. getsockname() of an accepted
 * connection is the address the client meant. All namespaces are alike, hence they can be made in advance.
 */
#ifndef HUTCH_OS_NETNS_H
#define HUTCH_OS_NETNS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* The address plan, the same in every sandbox. */
#define NETNS_OWN4  "10.255.0.2"
#define NETNS_OWN6  "fd00::2"
#define NETNS_GATE4 "10.255.0.1" /* resolver, explicit proxies, http://sandbox.internal/; assigned nowhere */
#define NETNS_GATE6 "fd00::1"
enum {
    NETNS_PORT = 61001, /* of the listener; nothing inside needs to know it */
    NETNS_HTTP_PROXY_PORT = 3128,
    NETNS_SOCKS_PORT = 1080,
};

struct netns {
    int ns;                          /* the namespace */
    int tcp;                         /* listening, IPv4 and IPv6, IP_TRANSPARENT, non-blocking */
    int udp;                         /* bound to NETNS_GATE4:53, IP_TRANSPARENT, IP_PKTINFO, non-blocking */
    uint64_t cookie;                 /* of the namespace */
    uint64_t tcp_cookie, udp_cookie; /* of the sockets (SO_COOKIE) */
};
/* clang-format off */
#define NETNS_INIT {.ns = -1, .tcp = -1, .udp = -1}
/* clang-format on */

/* Makes one. The calling thread ends up in the namespace it was in before. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN in the user
 * namespace of the caller, and CAP_SYS_ADMIN in the one that owns the caller's network (in a user namespace of its own the
 * caller unshares its network first). ERR_HOST names what the kernel lacks. ip_unprivileged_port_start inside is 0. */
int netns_make(struct netns *ret, struct err *err);
void netns_close(struct netns *n);
/* Sets the namespace that the caller is already in up, for callers that have made it themselves (clone with CLONE_NEWNET, in
 * the user namespace of their own): ret->ns stays -1. */
int netns_set_up(struct netns *ret, struct err *err);
/* A descriptor received from elsewhere is the listener (or the datagram socket) of that namespace: family, type, protocol,
 * SO_ACCEPTCONN, namespace cookie, socket cookie. */
bool netns_is_tcp(int fd, uint64_t ns_cookie, uint64_t cookie);
bool netns_is_udp(int fd, uint64_t ns_cookie, uint64_t cookie);

#endif
