/* nft.h - the one chain of packet rules in a sandbox's network namespace. Adds rules to the caller's namespace only and
 * never changes existing ones. */
#ifndef HUTCH_OS_NFT_H
#define HUTCH_OS_NFT_H

#include <stdint.h>

#include "base/err.h"

/* Addresses as on the wire, ports as numbers. */
struct nft_capture {
    unsigned char own4[4], own6[16]; /* left alone, as are 127.0.0.0/8 and ::1 */
    uint16_t tcp_port;               /* of the listener that gets every other TCP connection, whatever it was for */
    unsigned char dns4[4];           /* address of the socket that gets every IPv4 datagram for port 53, at that port */
};

/* Puts the rules in the namespace that the caller is in. ERR_HOST names the kernel option that is missing. */
int nft_capture(const struct nft_capture *c, struct err *err);

#endif
