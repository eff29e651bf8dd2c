/* dial-int.h - between dial.c and dial-check.c. */
#ifndef HUTCH_EGRESS_DIAL_INT_H
#define HUTCH_EGRESS_DIAL_INT_H

#include "egress/egress.h"

int dial_check_setup(struct egress *g, struct err *err);
void dial_check_teardown(struct egress *g);

#endif
