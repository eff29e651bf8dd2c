/* dial-int.h - between dial.c and dial-check.c. */
#ifndef HUTCH_EGRESS_DIAL_INT_H
#define HUTCH_EGRESS_DIAL_INT_H

#include <sys/socket.h>

#include "egress/egress.h"

/* The address of either family, IPv4 mapped. false: of neither. */
bool dial_address(const struct sockaddr *sa, struct in6_addr *ret);
int dial_check_setup(struct egress *g, struct err *err);
void dial_check_teardown(struct egress *g);

#endif
