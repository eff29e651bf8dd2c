/* dnsask.h - asks this machine's name servers for the addresses of one name. For explanations: whatever connects resolves the
 * name itself. */
#ifndef HUTCH_OS_DNSASK_H
#define HUTCH_OS_DNSASK_H

#include <netinet/in.h>
#include <stddef.h>

enum { DNSASK_MAX = 16, DNSASK_MS = 2000 /* for each question, of which there are two */ };

/* `servers`: "ADDRESS[:PORT],..." (IPv4), or NULL for those of /etc/resolv.conf. Returns the number of addresses, IPv4 mapped;
 * 0 if the name has none; -1 with errno if no server answered. Blocks, up to 2 * DNSASK_MS. */
int dnsask(const char *name, const char *servers, struct in6_addr ret[DNSASK_MAX]);

#endif
