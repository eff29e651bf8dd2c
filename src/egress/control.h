/* control.h - the two channels of the process, see proto.h: control.c moves bytes, control-front.c understands
 * front's messages. */
#ifndef HUTCH_EGRESS_CONTROL_H
#define HUTCH_EGRESS_CONTROL_H

#include <stdbool.h>

#include "egress/egress.h"

enum {
    CONTROL_KEEPERS_MAX = 8,
    CONTROL_QUEUE_MAX = 16 << 20, /* bytes that front does not take; then it has to connect anew */
    CONTROL_USAGE_MS = 5000,
    CONTROL_STATS_MAX = EGRESS_JSON_MAX / 2, /* hosts are left out of statistics beyond that */
};

/* Both descriptors are taken over; each is listening, or (hutch run) one connection; -1: none. key_hex: 64 digits, or "". */
int control_start(struct egress *g, int keeper_fd, int front_fd, const char *key_hex, struct err *err);
void control_stop(struct egress *g);

/* One message of front's. `said_hello` is kept by the connection. -1: it has to end, err says why. */
int control_message(struct egress *g, const char *key_hex, bool *said_hello, const char *p, size_t n, struct err *err);
/* The connection of keeper with this number is still there. */
bool control_keeper_there(const struct egress *g, uint64_t connection);
/* One message of keeper's, with its descriptors (which it takes). `connection` is a number of it. -1: the
 * connection has to end. */
int control_attach(struct egress *g, uint64_t connection, const void *p, size_t n, const int *fds, size_t nfds);

#endif
