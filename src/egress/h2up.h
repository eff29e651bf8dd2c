/* h2up.h - HTTP/2 to an upstream: one connection, many requests, each with its own flow control. The peer is not
 * trusted: heads, interim answers and streams have limits, and a paused request costs at most one window of memory.
 *
 * As in client.h, callbacks never come from inside a call by the owner, and a request ends with exactly one of on_end
 * and on_error, unless it was cancelled.
 */
#ifndef HUTCH_EGRESS_H2UP_H
#define HUTCH_EGRESS_H2UP_H

#include "http/client.h"

enum {
    H2UP_STREAMS = 100,                   /* at a time, if the peer allows more */
    H2UP_WINDOW = 128 * 1024,             /* per stream: what one paused request may hold */
    H2UP_CONNECTION_WINDOW = 1024 * 1024, /* bytes in flight on the connection */
    H2UP_INTERIM_MAX = 32,                /* 1xx answers before the final one */
    H2UP_FIELDS_MAX = 256,                /* in a head or in trailers */
};

struct h2up;
struct h2up_stream;

struct h2up_events {
    struct client_events answer;
    /* One trailer, before on_end. */
    void (*on_trailer)(void *arg, const char *name, const char *value);
};

/* Takes over a transport whose handshake is done. `gone` is called once, from the loop, when the connection has ended
 * and all its requests were told; the caller must free it then. NULL: the connection cannot be watched, t is freed. */
struct h2up *h2up_new(struct loop *l, struct transport *t, void (*gone)(void *arg), void *arg);
/* Closes; requests that are open get no callback any more and must not be touched. NULL is fine. */
void h2up_free(struct h2up *u);
/* Whether another request may be started now. */
bool h2up_usable(const struct h2up *u);
size_t h2up_streams(const struct h2up *u); /* for tests: that are open */

/* Everything in `q` is copied; `upgrade` is not possible. */
struct h2up_stream *h2up_start(struct h2up *u, const struct client_request *q, const char *scheme,
                               const struct h2up_events *events, void *arg);
bool h2up_write(struct h2up_stream *s, const void *p, size_t n); /* false: above high water; stop until on_writable */
/* Adds a trailer; before h2up_end(), and only if there is a body. */
void h2up_trailer(struct h2up_stream *s, const char *name, const char *value);
void h2up_end(struct h2up_stream *s);
void h2up_pause(struct h2up_stream *s);
void h2up_resume(struct h2up_stream *s);
/* Resets the stream if it is not over. No callback follows; s is gone. */
void h2up_cancel(struct h2up_stream *s);

#endif
