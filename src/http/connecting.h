/* connecting.h - connects to a host: looks its name up on a worker thread of the loop and tries its addresses one after the
 * other. It never blocks. */
#ifndef HUTCH_HTTP_CONNECTING_H
#define HUTCH_HTTP_CONNECTING_H

#include <stdint.h>

#include "loop/loop.h"

struct connecting;
/* fd: connected, non-blocking, the callee's; -1: `why` says why not. Once, from the loop; it is freed after it. */
typedef void connecting_done(void *arg, int fd, const char *why);
/* `host`: a name, or an address without brackets. Each address has `ms`. */
struct connecting *connecting_start(struct loop *l, const char *host, uint16_t port, uint64_t ms, connecting_done *done,
                                    void *arg);
/* Gives up; no call follows. NULL is fine. */
void connecting_free(struct connecting *d);

#endif
