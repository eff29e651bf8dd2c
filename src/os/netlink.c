#include "os/netlink.h"

#include <endian.h>
#include <errno.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

static void *netlink_grow(struct netlink *b, size_t n)
{
    size_t room = NLMSG_ALIGN(n);
    if (n > NETLINK_BATCH || room > NETLINK_BATCH - b->n)
        abort();
    void *at = b->p + b->n;
    memset(at, 0, room);
    b->n += room;
    struct nlmsghdr *h = (struct nlmsghdr *)(void *)(b->p + b->at);
    h->nlmsg_len = (uint32_t)(b->n - b->at);
    return at;
}

uint32_t netlink_begin(struct netlink *b, unsigned type, unsigned flags, const void *head, size_t n)
{
    b->at = b->n;
    struct nlmsghdr *h = netlink_grow(b, sizeof *h);
    h->nlmsg_type = (uint16_t)type;
    h->nlmsg_flags = (uint16_t)(flags | NLM_F_REQUEST);
    h->nlmsg_seq = ++b->seq;
    memcpy(netlink_grow(b, n), head, n);
    return b->seq;
}

void netlink_put(struct netlink *b, unsigned type, const void *value, size_t n)
{
    struct nlattr *a = netlink_grow(b, NLA_HDRLEN + n);
    a->nla_type = (uint16_t)type;
    a->nla_len = (uint16_t)(NLA_HDRLEN + n);
    if (n > 0)
        memcpy((unsigned char *)a + NLA_HDRLEN, value, n);
}

void netlink_put_u32(struct netlink *b, unsigned type, uint32_t v) { netlink_put(b, type, &v, sizeof v); }
void netlink_put_be32(struct netlink *b, unsigned type, uint32_t v) { netlink_put_u32(b, type, htobe32(v)); }
void netlink_put_str(struct netlink *b, unsigned type, const char *s) { netlink_put(b, type, s, strlen(s) + 1); }

size_t netlink_nest(struct netlink *b, unsigned type)
{
    size_t at = b->n;
    netlink_put(b, type | NLA_F_NESTED, NULL, 0);
    return at;
}

void netlink_unnest(struct netlink *b, size_t nest)
{
    struct nlattr *a = (struct nlattr *)(void *)(b->p + nest);
    a->nla_len = (uint16_t)(b->n - nest);
}

int netlink_ask(int protocol, const struct netlink *b, uint32_t *ret_seq)
{
    union {
        struct nlmsghdr head;
        unsigned char bytes[NETLINK_BATCH + 256]; /* an error brings the refused message back */
    } answer;
    struct nlmsgerr e;
    *ret_seq = 0;
    _cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (fd < 0)
        return -1;
    ssize_t n = send(fd, b->p, b->n, 0);
    if (n >= 0) {
        do
            n = recv(fd, &answer, sizeof answer, 0);
        while (n < 0 && errno == EINTR);
    }
    if (n < 0)
        return -1;
    if ((size_t)n < NLMSG_HDRLEN + sizeof e || answer.head.nlmsg_type != NLMSG_ERROR) {
        errno = EBADMSG;
        return -1;
    }
    memcpy(&e, NLMSG_DATA(&answer.head), sizeof e);
    if (e.error == 0)
        return 0;
    *ret_seq = answer.head.nlmsg_seq;
    errno = -e.error;
    return -1;
}
