/* control.h - egress's connections to keeper and front (messages: proto.h). control.c moves the bytes, control-front.c
 * reads and executes front's messages. Neither ever blocks: a front that does not read loses its connection. */
#ifndef HUTCH_EGRESS_CONTROL_H
#define HUTCH_EGRESS_CONTROL_H

#include <stdbool.h>

#include "egress/core/egress.h"

enum {
    CONTROL_KEEPERS_MAX = 8,
    CONTROL_QUEUE_MAX = 16 << 20, /* bytes that wait for front; beyond that its connection is closed */
    CONTROL_USAGE_MS = 5000,
    CONTROL_STATS_MAX = EGRESS_JSON_MAX / 2, /* hosts are left out of statistics beyond that */
};

/* Both descriptors are taken over; each is listening, or (hutch run) one connection; -1: none. key_hex: 64 digits, or "". */
int control_start(struct egress *g, int keeper_fd, int front_fd, const char *key_hex, struct err *err);
void control_stop(struct egress *g);

/* 1 to EGRESS_ID_MAX - 1 letters, digits, '-', '_', '.'; reads at most EGRESS_ID_MAX bytes. */
bool control_id_is_valid(const char *id);
/* One message of front's. The connection keeps `said_hello`. -1: the connection has to end, err says why. */
int control_message(struct egress *g, const char *key_hex, bool *said_hello, const char *p, size_t n, struct err *err);
/* Whether keeper's connection with this number is still open. */
bool control_keeper_there(const struct egress *g, uint64_t connection);
/* One message of keeper's; takes over its descriptors. `connection` is the connection's number. -1: it has to end. */
int control_attach(struct egress *g, uint64_t connection, const void *p, size_t n, const int *fds, size_t nfds);

#endif
