/* request.h - checks one message of front. Pure: it touches no file and keeps no state. */
#ifndef HUTCH_LAYERS_REQUEST_H
#define HUTCH_LAYERS_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "layers/proto.h"

/* Copies the message into *ret and checks every field and the number of descriptors. On failure *err names the wrong
 * field and what would be right; ret->request is the message's, if it had one (else 0), so that the answer can name
 * it. Behind the end of each string in *ret there are only zeros. */
int layers_request_parse(const void *p, size_t n, size_t nfds, struct layers_request *ret, struct err *err);

bool layers_volume_valid(const char *id); /* vol-[a-z0-9]{8,32} */

#endif
