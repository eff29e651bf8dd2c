/* rtnl.h - link, addresses and routes of the network namespace that the caller is in. ERR_HOST on failure. */
#ifndef HUTCH_OS_RTNL_H
#define HUTCH_OS_RTNL_H

#include "base/err.h"

/* Only lo, up. */
int rtnl_loopback(struct err *err);
/* lo up with the two addresses (4 and 16 bytes, as on the wire), and every other address in the world local on it: what is
 * sent anywhere arrives here. */
int rtnl_all_local(const void *own4, const void *own6, struct err *err);

#endif
