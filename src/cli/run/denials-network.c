/* denials-network.c - records refusals by network rules, which egress reports. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/run/denials-int.h"
#include "egress/core/proto.h"
#include "policy/run/explain.h"

/* Adds the flag that would allow it, if only a rule for the host is missing. */
static bool is_about_the_host(const char *reason)
{
    return strcmp(reason, "host_not_allowed") == 0 || strcmp(reason, "port_not_allowed") == 0;
}

/* The rules allow it, and it went wrong behind them. */
static bool network_has_failed(const char *reason)
{
    static const char *const words[] = {"upstream_unreachable", "upstream_timeout", "upstream_cert"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(reason, words[i]) == 0)
            return true;
    return false;
}

/* "the name is ADDRESS, which ...": a rule may open that address. */
static void network_grant_private(const struct denials *d, const struct denials_net *n, struct denial *x)
{
    const char *is = strstr(n->text, " is "), *end = strstr(n->text, ", " EGRESS_PRIVATE);
    if (!is || !end || end < is + 4 || strcmp(n->reason, "resolved_private") != 0)
        return;
    _cleanup_free_ char *address = xstrndup(is + 4, (size_t)(end - is - 4));
    policy_grant_for_private(d->policy, n->host, n->port, address, &x->grant_policy, &x->grant_flag);
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
    if (network_has_failed(n->reason))
        x->category = "failed";
    network_grant_private(d, n, x);
    if (!is_about_the_host(n->reason))
        return;
    bool usual = n->port == 443 || n->port == 80;
    _cleanup_free_ char *what = usual ? xstrdup(n->host) : xasprintf("%s:%u", n->host, n->port);
    policy_grant_for_host(d->policy, what, &x->grant_policy, &x->grant_flag, NULL, NULL);
}
