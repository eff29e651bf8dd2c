/* dial-check.c - which addresses may be dialled: what kind they are, what the rule opens, and never one of
 * this machine's own or of
 * its infrastructure.
 */
#include <errno.h>
#include <ifaddrs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/mem.h"
#include "egress/dial-int.h"

enum { OWN_MAX = 1024, OWN_REFRESH_MS = 30000 };

struct dialer {
    struct egress *g;
    struct in6_addr own[OWN_MAX];
    size_t nown;
    loop_id timer;
};

bool dial_address(const struct sockaddr *sa, struct in6_addr *ret)
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

/* A failure keeps the list that is there: too many addresses are refused rather than too few. */
static int own_read(struct dialer *v)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) < 0)
        return -1;
    v->nown = 0;
    for (struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && v->nown < OWN_MAX && dial_address(i->ifa_addr, &v->own[v->nown]))
            v->nown++;
    freeifaddrs(list);
    return 0;
}

static void own_refresh(void *arg)
{
    struct dialer *v = arg;
    if (own_read(v) < 0)
        log_text(LOG_LEVEL_WARN, "cannot read the addresses of this machine: %m; those read before stay refused");
    v->timer = loop_timer(v->g->loop, OWN_REFRESH_MS, own_refresh, v);
}

/* The IPv4 address that an IPv6 address carries on to: NAT64, 6to4, Teredo, IPv4-compatible. */
static bool embedded(const struct in6_addr *a, struct in6_addr *ret)
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

static bool in_list(const struct netpol_cidr *v, size_t n, const struct in6_addr *a)
{
    for (size_t i = 0; i < n; i++)
        if (netpol_cidr_has(&v[i], a))
            return true;
    return false;
}

static bool is_ours(const struct egress *g, const struct in6_addr *a)
{
    const struct dialer *v = g->dialer;
    for (size_t i = 0; v && i < v->nown; i++)
        if (IN6_ARE_ADDR_EQUAL(&v->own[i], a))
            return true;
    return in_list(g->config.infra, g->config.ninfra, a);
}

enum dial_failure dial_check(const struct egress *g, const struct in6_addr *a, const struct netpol_rule *rule)
{
    struct in6_addr inner;
    if (in_list(g->config.loopback_ok, g->config.nloopback_ok, a))
        return DIAL_OK;
    if (is_ours(g, a) || (embedded(a, &inner) && is_ours(g, &inner)))
        return DIAL_NEVER;
    switch (netpol_address_kind(a)) {
    case NETPOL_PUBLIC:
        return DIAL_OK;
    case NETPOL_PRIVATE:
        return rule && in_list(rule->private, rule->nprivate, a) ? DIAL_OK : DIAL_PRIVATE;
    case NETPOL_NEVER:
        break;
    }
    return DIAL_NEVER;
}

int dial_check_setup(struct egress *g, struct err *err)
{
    struct dialer *v = xcalloc(1, sizeof *v);
    v->g = g;
    if (own_read(v) < 0) {
        free(v);
        return err_set(err, ERR_SETUP, errno, "cannot read the addresses of this machine");
    }
    v->timer = loop_timer(g->loop, OWN_REFRESH_MS, own_refresh, v);
    g->dialer = v;
    return 0;
}

void dial_check_teardown(struct egress *g)
{
    struct dialer *v = g->dialer;
    if (!v)
        return;
    loop_timer_del(g->loop, v->timer);
    free(v);
    g->dialer = NULL;
}
