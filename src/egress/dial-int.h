/* dial-int.h - what dial.c needs of dial-check.c: the list of the machine's own addresses, read at setup and refreshed
 * by a timer. dial_check() itself is in egress.h. */
#ifndef HUTCH_EGRESS_DIAL_INT_H
#define HUTCH_EGRESS_DIAL_INT_H

#include "egress/core/egress.h"
#include "egress/core/proto.h"

int dial_check_setup(struct egress *g, struct err *err);
void dial_check_teardown(struct egress *g);

#endif
