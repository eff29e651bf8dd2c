/* denials-network.c - records refusals by network rules, which egress reports. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/run/denials-int.h"
#include "policy/run/explain.h"

/* Adds the flag that would allow it, if only a rule for the host is missing. */
static bool is_about_the_host(const char *reason)
{
    return strcmp(reason, "host_not_allowed") == 0 || strcmp(reason, "port_not_allowed") == 0;
}

void denials_network(struct denials *d, const struct denials_net *n, uint64_t count)
{
    _cleanup_free_ char *subject = n->method[0] ? xasprintf("%s %s:%u%s", n->method, n->host, n->port, n->path)
                                                : xasprintf("%s:%u", n->host, n->port);
    struct denial *x = denials_count(d, "network", "", subject, count);
    if (!x)
        return;
    _cleanup_buf_ struct buf source = {0};
    origin_add(&source, &d->policy->network_origin);
    x->rule = n->rule[0] ? xasprintf("network.rules.%s", n->rule) : xstrdup("network");
    x->source = xstrdup(buf_str(&source));
    buf_adds(&x->hint, n->reason);
    if (n->text[0])
        buf_addf(&x->hint, ": %s", n->text);
    if (!is_about_the_host(n->reason))
        return;
    bool usual = n->port == 443 || n->port == 80;
    _cleanup_free_ char *what = usual ? xstrdup(n->host) : xasprintf("%s:%u", n->host, n->port);
    policy_grant_for_host(d->policy, what, &x->grant_policy, &x->grant_flag, NULL, NULL);
}
