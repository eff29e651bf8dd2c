/* own.h - reads the addresses of this machine's network interfaces, IPv4 and IPv6 in one form. Changes nothing. */
#ifndef HUTCH_OS_OWN_H
#define HUTCH_OS_OWN_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

enum { OWN_MAX = 1024 };

struct own_addresses {
    struct in6_addr v[OWN_MAX];
    size_t n;
};

/* The address of either family, IPv4 mapped. false: of neither. */
bool own_address_of(const struct sockaddr *sa, struct in6_addr *ret);
/* Asks the kernel. -1 with errno; *ret is as it was then. */
int own_addresses_read(struct own_addresses *ret);

#endif
