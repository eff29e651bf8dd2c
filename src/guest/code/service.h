/* service.h - the routes of the code interpreter. */
#ifndef HUTCH_GUEST_CODE_SERVICE_H
#define HUTCH_GUEST_CODE_SERVICE_H

#include "guest/code/context.h"

enum { SERVICE_BODY_MAX = 8 * 1024 * 1024, SERVICE_ENV_MAX = 256 };

/* Answers one request; ctx is a struct contexts. */
void service_handle(void *ctx, struct http_req *r);

#endif
