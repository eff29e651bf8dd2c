/* gateway.h - HTTP to the services inside a sandbox: every port but envd's. */
#ifndef HUTCH_FRONT_GATEWAY_H
#define HUTCH_FRONT_GATEWAY_H

#include "front/api.h"

enum { GATEWAY_CONNECTIONS_MAX = 200 /* of one sandbox at a time */, GATEWAY_DIALS = 5, GATEWAY_DIAL_PAUSE_MS = 50 };

/* b may be NULL: there is no such sandbox. */
void gateway_handle(struct api_call *c, const struct api_target *t, struct box *b);
/* Answers with the error body of the data plane: JSON, or a small page if a browser is navigating. port 0: not named. */
void gateway_error(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, const char *message);
void gateway_no_sandbox(struct http_req *r, const char *sandbox);
/* The sandbox has ended: idle connections into it are closed, for they would keep its network alive. */
void gateway_forget(const char *id);

#endif
