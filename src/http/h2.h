/* h2.h - serves HTTP/2 with nghttp2: the same requests and the same handler as HTTP/1. For hutch-node only.
 *
 * At most H2_STREAMS at a time per connection. A client that resets more than H2_RESETS streams in H2_RESETS_MS is
 * disconnected: opening and dropping requests is cheap for it and expensive for us. While a handler is paused, the
 * client keeps the bytes: its window opens again only as the handler takes them.
 */
#ifndef HUTCH_HTTP_H2_H
#define HUTCH_HTTP_H2_H

#include "http/server.h"

enum {
    H2_STREAMS = 128,
    H2_RESETS = 200,
    H2_RESETS_MS = 10000,
    H2_LINGER_MS = 1000,                /* between an answer and the reset of a request that goes on */
    H2_WINDOW = 128 * 1024,             /* per stream, and so what one paused request may hold */
    H2_CONNECTION_WINDOW = 1024 * 1024, /* bytes in flight on a connection */
};

/* An http_h2_fn: http_server_set_h2(server, h2_serve). */
int h2_serve(struct http_server *s, struct transport *t, const char *peer);

#endif
