/* net-e2b.h - E2B's network settings as one of our documents; between net-doc.c and net-e2b.c. */
#ifndef HUTCH_FRONT_NET_E2B_H
#define HUTCH_FRONT_NET_E2B_H

#include "front/net-doc.h"

/* The headers that the text, made by net_doc_e2b(), sets. */
int net_e2b_headers(const char *e2b, struct net_header **ret, size_t *n, struct err *err);
void net_header_done(struct net_header *h);

#endif
