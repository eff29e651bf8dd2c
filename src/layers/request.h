/* request.h - checks one message of front. Pure: it touches no file and keeps no state. */
#ifndef HUTCH_LAYERS_REQUEST_H
#define HUTCH_LAYERS_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "layers/proto.h"

/* A request as the layer store works on it: what its message (proto.h) does not have is empty. */
struct layers_request {
    uint32_t version, type;
    uint64_t request, trace;
    uint32_t flags;
    char sandbox[LAYERS_SANDBOX_MAX];
    char stack[STACK_ID_MAX], other[STACK_ID_MAX];
    char volume[LAYERS_SANDBOX_MAX];
    char blob[SHA256_HEX];
    char ref[LAYERS_REF_MAX];
    char path[LAYERS_PATH_MAX];
    uint64_t bytes, entries, cancel;
};

/* Reads a message of the length that its type has, without a look at what its fields say. On failure *err says what is wrong;
 * ret->version and ret->request are the message's, if it had them (else 0), so that the answer can name them. */
int layers_request_read(const void *p, size_t n, struct layers_request *ret, struct err *err);
/* The same, and checks every field and the number of descriptors; *err names the wrong field and what would be right. Behind
 * the end of each string in *ret there are only zeros. */
int layers_request_parse(const void *p, size_t n, size_t nfds, struct layers_request *ret, struct err *err);

bool layers_volume_valid(const char *id); /* vol-[a-z0-9]{8,32} */

#endif
