/* netpol-reach.c - whether this machine may connect to an address. Egress and the image worker ask before they
 * connect. */
#include <string.h>

#include "policy/net/netpol.h"

/* The IPv4 address that an IPv6 address carries on to: NAT64, 6to4, Teredo, IPv4-compatible. */
static bool reach_embedded(const struct in6_addr *a, struct in6_addr *ret)
{
    static const unsigned char nat64[12] = {0, 0x64, 0xff, 0x9b}, compatible[12] = {0}, teredo[4] = {0x20, 0x01};
    unsigned char v4[4];
    if (memcmp(a->s6_addr, nat64, 12) == 0 || memcmp(a->s6_addr, compatible, 12) == 0)
        memcpy(v4, a->s6_addr + 12, 4);
    else if (a->s6_addr[0] == 0x20 && a->s6_addr[1] == 0x02)
        memcpy(v4, a->s6_addr + 2, 4);
    else if (memcmp(a->s6_addr, teredo, 4) == 0)
        for (size_t i = 0; i < 4; i++)
            v4[i] = (unsigned char)(a->s6_addr[12 + i] ^ 0xff);
    else
        return false;
    memset(ret, 0, sizeof *ret);
    ret->s6_addr[10] = ret->s6_addr[11] = 0xff;
    memcpy(ret->s6_addr + 12, v4, 4);
    return true;
}

bool netpol_cidrs_have(const struct netpol_cidr *v, size_t n, const struct in6_addr *a)
{
    for (size_t i = 0; i < n; i++)
        if (netpol_cidr_has(&v[i], a))
            return true;
    return false;
}

static bool reach_is_closed(const struct netpol_reach *r, const struct in6_addr *a)
{
    for (size_t i = 0; i < r->nown; i++)
        if (IN6_ARE_ADDR_EQUAL(&r->own[i], a))
            return true;
    return netpol_cidrs_have(r->infra, r->ninfra, a);
}

enum netpol_address netpol_reach(const struct netpol_reach *r, const struct in6_addr *a)
{
    struct in6_addr inner;
    if (netpol_cidrs_have(r->open, r->nopen, a))
        return NETPOL_PUBLIC;
    if (reach_is_closed(r, a) || (reach_embedded(a, &inner) && reach_is_closed(r, &inner)))
        return NETPOL_NEVER;
    return netpol_address_kind(a);
}
