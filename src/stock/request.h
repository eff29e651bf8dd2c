/* request.h - one message of front, checked. Pure. */
#ifndef HUTCH_STOCK_REQUEST_H
#define HUTCH_STOCK_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "stock/proto.h"

/* Copies the message into *ret and checks it: every field, and whether as many descriptors came along as belong to its
 * type. On failure *err says which field is wrong and what would be right; ret->request is valid if the message had one
 * (else 0), so that the answer finds its asker. Behind the end of a string there are only zeros. */
int stock_request_parse(const void *p, size_t n, size_t nfds, struct stock_request *ret, struct err *err);

bool stock_volume_valid(const char *id); /* vol-[a-z0-9]{8,32} */

#endif
