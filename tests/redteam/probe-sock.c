/* probe-sock.c - group S, second half: socket families and protocols. */
#include "probe.h"

#include <errno.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

/* num packs family, type and protocol: family in bits 0-15, type 16-23, protocol 24-39; bit 62 dirties the upper half. */
#define SOCK3(f, t, p) ((long)(f) | (long)(t) << 16 | (long)(p) << 24)
#define DIRTY          (1L << 62)

static void s_socket(const struct attempt *a, struct seen *s)
{
    long family = a->num & 0xffff, type = a->num >> 16 & 0xff, proto = a->num >> 24 & 0xffff;
    long high = a->num & DIRTY ? 0x100000000L : 0;
    seen_rc(s, syscall(SYS_socket, family | high, type | high, proto | high));
}

#define CLOSED "EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT EPERM EACCES"
#define ABSENT "this kernel does not offer the family"
#define FAMILY(id, what, f, t, p)                                                                              \
    {                                                                                                          \
        id, what, s_socket, NULL, SOCK3(f, t, p), "EAFNOSUPPORT", NULL, "seccomp,caps", CTL_OUTSIDE, 0, ABSENT \
    }

static const struct attempt rows[] = {
    FAMILY("S-20", "AF_ALG", AF_ALG, SOCK_SEQPACKET, 0),
    FAMILY("S-21a", "AF_VSOCK", AF_VSOCK, SOCK_STREAM, 0),
    {"S-21b", "AF_VSOCK with the upper half set", s_socket, NULL, SOCK3(AF_VSOCK, SOCK_STREAM, 0) | DIRTY,
     "EAFNOSUPPORT", NULL, "seccomp", CTL_OUTSIDE, 0, ABSENT},
    {"S-22a", "AF_PACKET", s_socket, NULL, SOCK3(AF_PACKET, SOCK_RAW, 0x300), CLOSED, NULL, "seccomp,caps", CTL_ROOT, 0,
     ABSENT},
    {"S-22b", "AF_PACKET with the upper half set", s_socket, NULL, SOCK3(AF_PACKET, SOCK_RAW, 0x300) | DIRTY, CLOSED,
     NULL, "seccomp,caps", CTL_ROOT, 0, ABSENT},
    {"S-22c", "raw ICMP", s_socket, NULL, SOCK3(AF_INET, SOCK_RAW, IPPROTO_ICMP), CLOSED, NULL, "seccomp,caps", CTL_NS,
     0, NULL},
    {"S-22d", "raw IPv6", s_socket, NULL, SOCK3(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6), CLOSED, NULL, "seccomp,caps",
     CTL_NS, 0, ABSENT},
    {"S-23a", "netlink route (allowed)", s_socket, NULL, SOCK3(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), "success", NULL,
     "", CTL_ALLOWED, 0, NULL},
    FAMILY("S-23b", "netlink netfilter", AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER),
    FAMILY("S-23c", "netlink audit", AF_NETLINK, SOCK_RAW, NETLINK_AUDIT),
    FAMILY("S-23d", "netlink uevent", AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT),
    FAMILY("S-23e", "netlink xfrm", AF_NETLINK, SOCK_RAW, NETLINK_XFRM),
    FAMILY("S-23f", "netlink generic", AF_NETLINK, SOCK_RAW, NETLINK_GENERIC),
    FAMILY("S-23g", "netlink sock_diag", AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG),
    FAMILY("S-23h", "netlink crypto", AF_NETLINK, SOCK_RAW, NETLINK_CRYPTO),
    {"S-23i", "netlink netfilter with the upper half set", s_socket, NULL,
     SOCK3(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER) | DIRTY, "EAFNOSUPPORT", NULL, "seccomp", CTL_OUTSIDE, 0, ABSENT},
    {"N-07", "reach nftables over netlink", s_socket, NULL, SOCK3(AF_NETLINK, SOCK_DGRAM, NETLINK_NETFILTER),
     "EAFNOSUPPORT", NULL, "seccomp", CTL_OUTSIDE, 0, ABSENT},
    FAMILY("S-24a", "AF_XDP", AF_XDP, SOCK_RAW, 0),
    FAMILY("S-24b", "AF_BLUETOOTH", AF_BLUETOOTH, SOCK_RAW, 1),
    FAMILY("S-24c", "AF_KEY", AF_KEY, SOCK_RAW, 2),
    FAMILY("S-24d", "AF_TIPC", AF_TIPC, SOCK_RDM, 0),
    FAMILY("S-24e", "AF_RDS", AF_RDS, SOCK_SEQPACKET, 0),
    FAMILY("S-24f", "AF_CAN", AF_CAN, SOCK_RAW, 1),
    FAMILY("S-24g", "AF_NFC", AF_NFC, SOCK_SEQPACKET, 0),
    FAMILY("S-24h", "AF_SMC", AF_SMC, SOCK_STREAM, 0),
    FAMILY("S-24i", "AF_IB", AF_IB, SOCK_RAW, 0),
    FAMILY("S-24j", "AF_RXRPC", AF_RXRPC, SOCK_DGRAM, 2),
    FAMILY("S-24k", "AF_QIPCRTR", AF_QIPCRTR, SOCK_DGRAM, 0),
    FAMILY("S-24l", "AF_PHONET", AF_PHONET, SOCK_DGRAM, 0),
    {"S-24m", "MPTCP", s_socket, NULL, SOCK3(AF_INET, SOCK_STREAM, IPPROTO_MPTCP), "EAFNOSUPPORT EPROTONOSUPPORT EPERM",
     NULL, "seccomp", CTL_OUTSIDE, 0, ABSENT},
    {"S-24n", "TCP and UDP (allowed)", s_socket, NULL, SOCK3(AF_INET, SOCK_STREAM, 0), "success", NULL, "", CTL_ALLOWED,
     0, NULL},
    {"W-05a", "SCTP", s_socket, NULL, SOCK3(AF_INET, SOCK_STREAM, IPPROTO_SCTP), CLOSED, NULL, "seccomp", CTL_OUTSIDE,
     0, ABSENT},
    {"W-05b", "DCCP", s_socket, NULL, SOCK3(AF_INET, 6, IPPROTO_DCCP), CLOSED, NULL, "seccomp", CTL_OUTSIDE, 0, ABSENT},
    {"W-05c", "ICMP over a datagram socket", s_socket, NULL, SOCK3(AF_INET, SOCK_DGRAM, IPPROTO_ICMP),
     CLOSED " success", NULL, "", CTL_KERNEL, 0,
     "decided by net.ipv4.ping_group_range; without a network there is nobody to ping"},
    {"W-05d", "UDP-Lite", s_socket, NULL, SOCK3(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE), CLOSED " success", NULL, "",
     CTL_KERNEL, 0, "an ordinary datagram; without a network it reaches nobody"},
};

const struct attempt_table probe_sock = {"sockets", rows, ROWS(rows)};
