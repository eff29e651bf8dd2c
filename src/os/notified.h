/* notified.h - system calls that the listener of a filter performs in their caller's place.
 *
 * No limit counts what waits unread in a netlink socket. So a sandbox does not make one itself: the listener makes it, with
 * a small buffer, hands it in, and lets only a few live at a time. The kernel counts them for each network namespace
 * (/proc/net/protocols), bound or not and wherever their descriptors are. The call that sets the size of a receive buffer
 * does not say what kind of socket it means, so the listener performs that call too, and ignores it for netlink sockets.
 *
 * Nothing allocates, and nothing is left to the kernel after a look at the caller: both calls act on descriptors that the
 * listener, or a child of it, holds. Nothing waits for the sandbox: what it could make wait is done by the child.
 */
#ifndef HUTCH_OS_NOTIFIED_H
#define HUTCH_OS_NOTIFIED_H

#include <linux/seccomp.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    NOTIFIED_NETLINK_MAX = 32,
    NOTIFIED_NETLINK_BUFFER = 32 << 10, /* as SO_RCVBUF takes it; the kernel doubles it */
    NOTIFIED_CHILDREN_MAX = 8,
};

struct notified {
    const uint32_t *key; /* of the filter if the listener stands behind it itself (filter_set_key()), else NULL */
    int others;          /* netlink sockets of the namespace that are not the sandbox's; -1: not counted yet */
    struct {
        pid_t pid;   /* 0: none */
        uint64_t id; /* of the call that it performs */
    } child[NOTIFIED_CHILDREN_MAX];
};
#define NOTIFIED_INIT \
    (struct notified) { .key = NULL, .others = -1 }

/* Makes the socket of a notified socket(AF_NETLINK, type, NETLINK_ROUTE) in the network namespace of the calling thread. A
 * descriptor, CLOEXEC; -1 with errno: ENOBUFS if NOTIFIED_NETLINK_MAX are alive or cannot be counted. The first call must
 * come before the sandbox has any. */
int notified_make_netlink(struct notified *g, const struct seccomp_data *call);
/* The same in another network namespace; netns -1: in our own. A short-lived child without capabilities makes it. For
 * single-threaded callers. */
int notified_make_netlink_in(struct notified *g, int netns, const struct seccomp_data *call);
/* Answers the call with the socket `fd`, which stays the listener's, or with the errno `eno` if fd is -1. */
void notified_give(int listener, const struct seccomp_notif *n, int fd, int eno);
/* Lets a child perform and answer a notified setsockopt(SOL_SOCKET, SO_RCVBUF). Needs the right to ptrace the
 * caller. If the socket cannot be taken, or no child can be made, the size stays and the call succeeds. The children
 * end by themselves and with this process; they send no SIGCHLD, and only wait() with __WCLONE finds them. */
void notified_set_buffer(struct notified *g, int listener, const struct seccomp_notif *n);

#endif
