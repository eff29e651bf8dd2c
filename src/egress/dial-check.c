/* dial-check.c - decides which addresses may be dialled: public ones, and private ones that the rule lists. */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "egress/dial-int.h"
#include "os/own.h"

enum { OWN_REFRESH_MS = 30000 };

struct dialer {
    struct egress *g;
    struct own_addresses own;
    loop_id timer;
};

/* A failure keeps the last list: refusing a former address of this machine is safer than dialling a current one. */
static void own_refresh(void *arg)
{
    struct dialer *v = arg;
    if (own_addresses_read(&v->own) < 0)
        log_text(LOG_LEVEL_WARN, "cannot read the addresses of this machine: %m; those read before stay refused");
    v->timer = loop_timer(v->g->loop, OWN_REFRESH_MS, own_refresh, v);
}

enum dial_failure dial_check(const struct egress *g, const struct in6_addr *a, const struct netpol_rule *rule)
{
    const struct dialer *v = g->dialer;
    const struct netpol_reach reach = {.own = v ? v->own.v : NULL,
                                       .nown = v ? v->own.n : 0,
                                       .infra = g->config.infra,
                                       .ninfra = g->config.ninfra,
                                       .open = g->config.loopback_ok,
                                       .nopen = g->config.nloopback_ok};
    switch (netpol_reach(&reach, a)) {
    case NETPOL_PUBLIC:
        return DIAL_OK;
    case NETPOL_PRIVATE:
        return rule && netpol_cidrs_have(rule->private, rule->nprivate, a) ? DIAL_OK : DIAL_PRIVATE;
    case NETPOL_NEVER:
        break;
    }
    return DIAL_NEVER;
}

int dial_check_setup(struct egress *g, struct err *err)
{
    struct dialer *v = xcalloc(1, sizeof *v);
    v->g = g;
    if (own_addresses_read(&v->own) < 0) {
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
