/* server.h - accepts connections and speaks HTTP on them.
 *
 * One server serves any number of listening sockets with one handler. Limits are per server. The head and idle timers
 * cut slow clients. While a body or an answer is under way there is no minimum rate (streams may be silent for ever),
 * but the number of connections per peer address is limited.
 */
#ifndef HUTCH_HTTP_SERVER_H
#define HUTCH_HTTP_SERVER_H

#include "base/err.h"
#include "http/http.h"
#include "http/transport.h"

struct http_server;

struct http_limits {
    unsigned connections;          /* in all; further ones are closed at once */
    unsigned connections_per_peer; /* 0 = no limit */
    unsigned head_ms;              /* time for a complete head */
    unsigned idle_ms;              /* keep-alive between requests */
    uint64_t requests;             /* per connection, then it is closed; 0 = no limit */
};
extern const struct http_limits http_default_limits;

/* Makes the transport of an accepted descriptor (TLS). NULL: transport_plain. Takes fd over, also on failure (NULL). */
typedef struct transport *http_accept_fn(void *ctx, int fd);

int http_server_new(struct loop *l, const struct http_limits *limits, http_handler *handler, void *ctx,
                    struct http_server **ret, struct err *err);
/* listen_fd is borrowed, listening and non-blocking. */
int http_server_listen(struct http_server *s, int listen_fd, http_accept_fn *accept, void *accept_ctx, struct err *err);
/* Serves one connected transport, taken over. */
void http_server_serve(struct http_server *s, struct transport *t, const char *peer);
/* The owner of a connection, known to its requests (http_req.owner); learns when the connection ends. */
struct http_owner {
    struct http_link *link; /* the server's; NULL once the connection has ended */
    void (*gone)(struct http_owner *o);
    /* A request was refused before a handler saw it, with status and reason. The callee may add a JSON answer to
     * `body`; else the client gets a line of text. May be NULL. */
    void (*refused)(struct http_owner *o, unsigned status, const char *why, struct buf *body);
};
/* The same with an owner. `gone` is called once: when the connection has ended, after on_closed of its requests, or
 * from inside this call if it cannot be served. */
void http_server_serve_for(struct http_server *s, struct transport *t, const char *peer, struct http_owner *o);
/* Closes the connection at once: calls on_closed of its requests before it returns, but not `gone`. Must not be called
 * inside a callback of one of its requests. */
void http_owner_cut(struct http_owner *o);
/* Stops accepting; connections finish their request and close. http_server_connections() tells when none is
 * left. */
void http_server_drain(struct http_server *s);
size_t http_server_connections(const struct http_server *s);
/* Cuts every connection; on_closed of open requests is called before this returns. */
void http_server_free(struct http_server *s);

/* Serves a transport whose handshake chose "h2"; takes it over. 0, or -1 (the transport is freed then, too). Without
 * one, such a connection is closed. */
typedef int http_h2_fn(struct http_server *s, struct transport *t, const char *peer);
void http_server_set_h2(struct http_server *s, http_h2_fn *fn);

#endif
