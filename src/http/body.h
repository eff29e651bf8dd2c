/* body.h - collects a request's body and reads it as JSON. For hutch-node only: it needs jansson.
 *
 * While it collects, body_* owns the request's callbacks. It restores `user` and `on_closed` before it calls back; if
 * the client goes away first, it calls on_closed instead.
 *
 * The whole body must come within BODY_MS: a client that sends a byte now and then is refused with 408. Uploads, which
 * are read as they come, do not use this and have no such limit.
 */
#ifndef HUTCH_HTTP_BODY_H
#define HUTCH_HTTP_BODY_H

#include <jansson.h>

#include "base/err.h"
#include "http/http.h"

enum { BODY_MAX = 1024 * 1024, BODY_DEPTH_MAX = 64, BODY_MS = 60 * 1000 };

/* Called once, when the body was read or refused. Success: status 0; `root` is borrowed for the call (json_incref to
 * keep it), and NULL if the body was empty. Failure: the status to answer (400, 408, 413) and one line for the
 * client. */
typedef void body_done(struct http_req *r, json_t *root, unsigned status, const char *error);

/* A plain JSON body of at most `max` bytes (0: BODY_MAX). May call back before it returns. */
void body_json(struct http_req *r, size_t max, body_done *done);
/* A body of exactly one Connect envelope, the request of a server stream. */
void body_envelope(struct http_req *r, size_t max, body_done *done);

/* The parser of both: complete text, no duplicate keys, depth at most BODY_DEPTH_MAX. NULL with *err on failure. */
json_t *body_parse(const char *p, size_t n, struct err *err);

#endif
