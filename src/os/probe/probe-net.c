/* probe-net.c - probe of the network that sandboxes get: see os/netns.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "os/netns.h"
#include "os/probe/probe-int.h"

#define REMEDY                                                                                      \
    "modprobe -a nft_tproxy nft_reject_inet; or boot a kernel with CONFIG_IPV6, CONFIG_NF_TABLES, " \
    "CONFIG_NF_TABLES_INET, "                                                                       \
    "CONFIG_NFT_TPROXY and CONFIG_NFT_REJECT_INET"

/* The connection must arrive at the listener with its original destination. */
static void connect_through(const struct netns *n, struct probe_answer *a)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(443)};
    struct sockaddr_in6 seen = {0};
    socklen_t len = sizeof seen;
    (void)inet_pton(AF_INET, "192.0.2.1", &to.sin_addr);
    _cleanup_close_ int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client < 0 || connect(client, (const struct sockaddr *)&to, sizeof to) < 0) {
        probe_failed_at(a, "connect to a foreign address");
        return;
    }
    _cleanup_close_ int fd = accept4(n->tcp, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&seen, &len) < 0)
        probe_failed_at(a, "accept the connection");
    else if (memcmp(&seen.sin6_addr.s6_addr[12], &to.sin_addr, 4) != 0 || seen.sin6_port != to.sin_port)
        *a = (struct probe_answer){.eno = EADDRNOTAVAIL, .stage = "see the destination"};
}

static void try_network(void *arg, struct probe_answer *a)
{
    struct netns n = NETNS_INIT;
    struct err err = {0};
    (void)arg;
    if (unshare(CLONE_NEWNET) < 0) {
        probe_failed_at(a, "unshare net");
        return;
    }
    if (netns_set_up(&n, &err) < 0) {
        *a = (struct probe_answer){.eno = err.eno ? err.eno : EIO, .stage = "set up"};
        (void)snprintf(a->text, sizeof a->text, "%.*s", (int)sizeof a->text - 1, err.msg);
        return;
    }
    connect_through(&n, a);
    netns_close(&n);
}

void probe_network(const struct probe *p, struct probe_result *r)
{
    (void)p;
    struct probe_answer a = probe_in_child(geteuid() == 0 ? 0 : PROBE_NEWUSER, try_network, NULL, NULL);
    if (a.eno == 0)
        probe_ok(r, "every connection of a sandbox can be caught and judged");
    else if (strcmp(a.stage, "unshare") == 0)
        probe_missing(r, "fix user namespaces first", "no user namespace");
    else if (a.text[0])
        probe_missing(r, REMEDY, "%s", a.text);
    else
        probe_missing(r, REMEDY, "%s: %s", a.stage, strerror(a.eno));
}
