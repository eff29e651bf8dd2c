/* server-int.h - what a server provides to its connections, HTTP/1 and HTTP/2 alike. Private to this folder. */
#ifndef HUTCH_HTTP_SERVER_INT_H
#define HUTCH_HTTP_SERVER_INT_H

#include "http/server.h"

enum { HTTP_READ_BUFFER = 64 * 1024, HTTP_READ_BUDGET = 4 /* buffers per wake-up */ };

/* Embedded in every connection. `peer` is set by http_server_attach(). */
struct http_link {
    struct http_link *prev, *next;
    struct http_server *server;
    struct http_owner *owner;
    char peer[64];
    /* Finish what is under way, take no more, close. The link may be detached from inside. */
    void (*drain)(struct http_link *link);
    /* Close now: on_closed of open requests is called before this returns, and the link is detached. */
    void (*kill)(struct http_link *link);
};

/* Counts the connection (also per peer). Never refuses: limits are checked when a connection is accepted. */
void http_server_attach(struct http_server *s, struct http_link *link, const char *peer);
void http_server_detach(struct http_link *link);
/* Calls the owner's `gone`. Must be the last call for a connection, after on_closed of its requests. */
void http_server_gone(struct http_link *link);
/* Gives a transport with its owner (may be NULL) to `h2`. */
void http_server_hand_over(struct http_server *s, http_h2_fn *h2, struct transport *t, const char *peer,
                           struct http_owner *owner);

http_h2_fn *http_server_h2(const struct http_server *s); /* NULL: none set */
struct loop *http_server_loop(const struct http_server *s);
const struct http_limits *http_server_limits(const struct http_server *s);
bool http_server_draining(const struct http_server *s);
/* Gives the request its id and loop and calls the handler. The carrier has filled in the rest. */
void http_server_dispatch(struct http_server *s, struct http_req *r);
/* HTTP_READ_BUFFER bytes, for the length of one read callback. */
void *http_server_buffer(struct http_server *s);
/* An empty buffer to build a head in, for the length of one call. */
struct buf *http_server_scratch(struct http_server *s);
/* The value of the date field, good for this second. */
const char *http_server_date(struct http_server *s);

#endif
