#include "os/rtnl.h"

#include <errno.h>
#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "os/netlink.h"

enum { LOOPBACK = 1 /* the index of lo in every namespace */ };

static uint32_t add_up(struct netlink *b, unsigned flags)
{
    struct ifinfomsg m = {.ifi_family = AF_UNSPEC, .ifi_index = LOOPBACK, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    return netlink_begin(b, RTM_NEWLINK, flags, &m, sizeof m);
}

static uint32_t rtnl_add_address(struct netlink *b, unsigned char family, const void *address, size_t n)
{
    struct ifaddrmsg m = {.ifa_family = family,
                          .ifa_prefixlen = (unsigned char)(n * 8),
                          .ifa_flags = family == AF_INET6 ? IFA_F_NODAD : 0,
                          .ifa_index = LOOPBACK};
    uint32_t seq = netlink_begin(b, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &m, sizeof m);
    netlink_put(b, IFA_LOCAL, address, n);
    netlink_put(b, IFA_ADDRESS, address, n);
    return seq;
}

/* In the table of local addresses: from there the kernel takes any of them as the source of an answer. Without a preferred
 * source IPv4 would take the destination for it. */
static uint32_t add_route(struct netlink *b, unsigned char family, unsigned flags, const void *source, size_t n)
{
    struct rtmsg m = {.rtm_family = family,
                      .rtm_table = RT_TABLE_LOCAL,
                      .rtm_protocol = RTPROT_STATIC,
                      .rtm_scope = family == AF_INET ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE,
                      .rtm_type = RTN_LOCAL};
    uint32_t seq = netlink_begin(b, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL | flags, &m, sizeof m);
    netlink_put_u32(b, RTA_OIF, LOOPBACK);
    if (source)
        netlink_put(b, RTA_PREFSRC, source, n);
    return seq;
}

int rtnl_all_local(const void *own4, const void *own6, struct err *err)
{
    struct netlink b = {0};
    uint32_t refused;
    (void)add_up(&b, 0);
    (void)rtnl_add_address(&b, AF_INET, own4, 4);
    (void)add_route(&b, AF_INET, 0, own4, 4);
    uint32_t six = rtnl_add_address(&b, AF_INET6, own6, 16);
    (void)add_route(&b, AF_INET6, NLM_F_ACK, NULL, 0);
    if (netlink_ask(NETLINK_ROUTE, &b, &refused) == 0)
        return 0;
    if (refused >= six)
        return err_set(err, ERR_HOST, errno,
                       "IPv6 is switched off in new network namespaces; boot a kernel with CONFIG_IPV6, without "
                       "ipv6.disable=1 and ipv6.disable_ipv6=1");
    return err_set(err, ERR_HOST, errno, "set the addresses and routes of a new network namespace");
}
