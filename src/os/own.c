#include "os/own.h"

#include <ifaddrs.h>
#include <string.h>

bool own_address_of(const struct sockaddr *sa, struct in6_addr *ret)
{
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in sin;
        memcpy(&sin, sa, sizeof sin);
        memset(ret, 0, sizeof *ret);
        ret->s6_addr[10] = ret->s6_addr[11] = 0xff;
        memcpy(ret->s6_addr + 12, &sin.sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 sin6;
        memcpy(&sin6, sa, sizeof sin6);
        *ret = sin6.sin6_addr;
    } else {
        return false;
    }
    return true;
}

int own_addresses_read(struct own_addresses *ret)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) < 0)
        return -1;
    ret->n = 0;
    for (struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && ret->n < OWN_MAX && own_address_of(i->ifa_addr, &ret->v[ret->n]))
            ret->n++;
    freeifaddrs(list);
    return 0;
}
