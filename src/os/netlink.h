/* netlink.h - messages to the kernel, as many as needed in one send. No allocation; a batch that does not fit is a defect of
 * ours and aborts.
 */
#ifndef HUTCH_OS_NETLINK_H
#define HUTCH_OS_NETLINK_H

#include <stddef.h>
#include <stdint.h>

enum { NETLINK_BATCH = 4096 };

struct netlink {
    size_t n;     /* bytes so far */
    size_t at;    /* where the last message begins */
    uint32_t seq; /* of the last message; they count from 1 */
    _Alignas(8) unsigned char p[NETLINK_BATCH];
};

/* Begins a message with a fixed head behind the general one; its number. The flags get NLM_F_REQUEST. */
uint32_t netlink_begin(struct netlink *b, unsigned type, unsigned flags, const void *head, size_t n);
void netlink_put(struct netlink *b, unsigned type, const void *value, size_t n);
void netlink_put_u32(struct netlink *b, unsigned type, uint32_t v); /* as it is */
void netlink_put_be32(struct netlink *b, unsigned type, uint32_t v);
void netlink_put_str(struct netlink *b, unsigned type, const char *s); /* with its NUL */
/* Attributes put between the two calls are nested. */
size_t netlink_nest(struct netlink *b, unsigned type);
void netlink_unnest(struct netlink *b, size_t nest);

/* Sends all over a new socket of that family and waits for the first answer: an error of any message, or the
 * acknowledgement of the one that asked for it (NLM_F_ACK; only the last should). 0; -1 with errno, and *ret_seq is the
 * number of the message that was refused, 0 if none was. */
int netlink_ask(int protocol, const struct netlink *b, uint32_t *ret_seq);

#endif
