/* rtnl.h - sets up link, addresses and routes of the caller's network namespace. Never use it in the host's. ERR_HOST
 * on failure. */
#ifndef HUTCH_OS_RTNL_H
#define HUTCH_OS_RTNL_H

#include "base/err.h"

/* Sets lo up with the two addresses (4 and 16 bytes, as on the wire) and makes every other address local on it: a
 * packet to any address arrives here. */
int rtnl_all_local(const void *own4, const void *own6, struct err *err);

#endif
