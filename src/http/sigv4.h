/* sigv4.h - computes AWS Signature Version 4 for a request that is otherwise ready. Pure functions of their
 * arguments. */
#ifndef HUTCH_HTTP_SIGV4_H
#define HUTCH_HTTP_SIGV4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "http/http.h"

enum { SIGV4_TIME = 17 /* "20150830T123600Z" and NUL */, SIGV4_FIELDS_MAX = 64 };

struct sigv4 {
    const char *access_key_id, *region, *service;
    const char *secret; /* the secret access key; not necessarily NUL-terminated */
    size_t secret_n;
    uint64_t unix_time;

    const char *method;
    const char *target; /* path?query, percent-encoded */
    const struct http_field
        *signed_fields; /* every one of them is signed; host and x-amz-date must be there; lower case */
    size_t nfields;
    const char *payload; /* hexadecimal SHA-256 of the body, or a word like UNSIGNED-PAYLOAD */
};

void sigv4_time(uint64_t unix_time, char ret[SIGV4_TIME]);
/* The canonical query of a raw one (NULL: none): decoded, encoded canonically, sorted. A '+' is a plus. */
void sigv4_query(const char *query, struct buf *out);
/* The canonical request, as it is hashed. false: an escape in the target is broken, or there are too many fields. */
bool sigv4_canonical(const struct sigv4 *s, struct buf *out);
/* The value of the Authorization field. false as above. */
bool sigv4_authorization(const struct sigv4 *s, struct buf *out);

#endif
