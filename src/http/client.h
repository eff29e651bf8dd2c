/* client.h - sends HTTP/1.1 requests over one connection. It never blocks.
 *
 * A client holds one connected (or connecting) transport and does one exchange at a time. Nothing is buffered beyond
 * the high-water mark: client_write() says when to stop, on_writable when to go on; client_pause() stops reading the
 * answer. Callbacks come only from the loop, never from inside a client_*() call; client_free() may be called anywhere,
 * also in a callback.
 *
 * An exchange ends with exactly one of on_end and on_error; afterwards the client may be started again if
 * client_reusable(), else it can only be freed. If the answer ends before the request's body (a refusal), the rest of
 * the body is ignored, and the connection is not used again.
 *
 * An answer 101 to a request with `upgrade` set makes a tunnel: after on_head(101), on_data and client_write carry raw
 * bytes, on_end is the peer's half-close and client_end() ours. Only then do both directions have their own end; a
 * tunnel is over when its owner frees it. Time-outs are the caller's.
 */
#ifndef HUTCH_HTTP_CLIENT_H
#define HUTCH_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/http.h"
#include "http/transport.h"

struct client;

enum client_failure {
    CLIENT_UNREACHED,  /* the connection or its handshake failed: nothing was sent */
    CLIENT_UNANSWERED, /* it ended before the first byte of an answer, as kept ones may: try another connection */
    CLIENT_BROKEN,     /* the answer is not HTTP, or was cut */
    CLIENT_UNWANTED,   /* the caller did not want the answer (proxy.h) */
};

struct client_events {
    /* The final head (1xx before it are dropped). `fields` are as they came, for this call only. length: of the
     * body; 0 if there is none; HTTP_UNKNOWN if only its end will tell. For HEAD: what a body would have had. */
    void (*on_head)(void *arg, unsigned status, const struct http_fields *fields, uint64_t length);
    void (*on_data)(void *arg, const void *p, size_t n);
    void (*on_end)(void *arg);
    void (*on_writable)(void *arg);
    void (*on_error)(void *arg, enum client_failure failure, const char *text);
};

struct client_request {
    const char *method;
    const char *target; /* origin-form: "/path?query" */
    const char *host;
    const char *host_as, *length_as; /* how to spell "host" and "content-length"; NULL: in lower case */
    /* Sent as they are, without host, content-length and transfer-encoding, which are made from the members here. The
     * caller leaves out fields of another connection (http1_is_hop). */
    struct http_fields fields;
    uint64_t length; /* of the body: 0 none, HTTP_UNKNOWN chunked */
    bool upgrade;    /* accept a 101, which `fields` asks for */
    bool secret;     /* a field holds a secret: keep it out of HTTP/2's header tables (HTTP/1 has none) */
};

/* Takes the transport over. */
struct client *client_new(struct loop *l, struct transport *t);
/* Closes the connection. No callback follows. NULL is fine. */
void client_free(struct client *c);
/* The same, but sends what is queued first (for up to half a minute). */
void client_close(struct client *c);

/* Everything in `q` is copied; `events` is borrowed for the exchange. Only for a new client or a reusable one. */
void client_start(struct client *c, const struct client_request *q, const struct client_events *events, void *arg);
/* After client_start(), for this exchange: calls fn for each trailer of the answer before on_end, names in lower
 * case. More than HTTP1_TRAILERS_MAX bytes break the answer. Without this, trailers are dropped. */
void client_want_trailers(struct client *c, void (*fn)(void *arg, const char *name, const char *value));
/* Body bytes (at most `length` in all) or tunnel bytes. False: above high water; stop until on_writable. */
bool client_write(struct client *c, const void *p, size_t n);
/* A field behind the body, before client_end(); name and value valid as in a head. Dropped unless the body is
 * chunked. */
void client_trailer(struct client *c, const char *name, const char *value);
/* The end of the body, needed if it was announced with a length other than 0; in a tunnel, the end of our direction. */
void client_end(struct client *c);
void client_pause(struct client *c);
void client_resume(struct client *c);
/* The exchange is over, both sides agreed to keep the connection, and it has not been closed since. */
bool client_reusable(const struct client *c);
/* For tests: bytes not yet taken by the kernel. */
size_t client_queued(const struct client *c);

#endif
