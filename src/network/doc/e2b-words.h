/* e2b-words.h - E2B's network settings as one of our documents, for documents.c. */
#ifndef HUTCH_NETWORK_DOC_E2B_WORDS_H
#define HUTCH_NETWORK_DOC_E2B_WORDS_H

#include "network/doc/documents.h"

/* The headers that the text, made by net_doc_e2b(), sets. */
int net_e2b_headers(const char *e2b, struct net_header **ret, size_t *n, struct err *err);
void net_header_done(struct net_header *h);

#endif
