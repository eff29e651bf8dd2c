/* ws-serve.h - a request that becomes a WebSocket which we serve ourselves (RFC 6455), without extensions.
 *
 * The caller sends and gets whole messages; pings are answered here. A client that breaks the protocol, sends a message
 * above the limit or a text that is not UTF-8 is told so with the code of the RFC, and the socket closes.
 */
#ifndef HUTCH_HTTP_WS_SERVE_H
#define HUTCH_HTTP_WS_SERVE_H

#include "http/http.h"

struct ws;
struct ws_events {
    /* A complete message, text or bytes, borrowed for the call. It may call ws_hang_up(). */
    void (*on_message)(void *arg, bool text, const void *p, size_t n);
    /* Optional: ws_send() returned false before, and there is room again. */
    void (*on_writable)(void *arg);
    /* The client left or was sent away. Once, and the last call; the socket is gone after it. It does not come after
     * ws_hang_up(). */
    void (*on_closed)(void *arg);
};

/* Whether the request asks for a WebSocket at all. */
bool ws_is_wanted(const struct http_req *r);
/* Why it cannot become one; NULL: it can. */
const char *ws_fault(const struct http_req *r);
/* A sub-protocol among those that the client offers, in the order of its list: appends the rest of the first one that begins
 * with `prefix`. */
bool ws_offer(const struct http_req *r, const char *prefix, struct buf *ret);
/* Takes the request over and answers 101. `protocol` NULL: no sub-protocol is chosen. NULL: the request cannot become a
 * WebSocket, nothing was answered, and `why` says what is wrong. A request with a body must have been read. Of a call of api's,
 * api_rewrap() must follow. `events` and arg are borrowed. */
struct ws *ws_serve(struct http_req *r, const char *protocol, size_t max, const struct ws_events *events, void *arg,
                    const char **why);
/* Sends a message in one frame. False: above the high-water mark; stop until on_writable. */
bool ws_send(struct ws *w, bool text, const void *p, size_t n);
/* Stops and goes on with reading. */
void ws_pause(struct ws *w, bool on);
/* Bytes that the kernel has not taken yet. */
size_t ws_queued(const struct ws *w);
/* Closes: sends this code and reason (cut at 123 bytes) and waits a moment for the client's. No callback follows. */
void ws_hang_up(struct ws *w, uint16_t code, const char *reason);

enum {
    WS_NORMAL = 1000,
    WS_GOING_AWAY = 1001,
    WS_PROTOCOL = 1002,
    WS_NO_TEXT = 1007,
    WS_POLICY = 1008,
    WS_TOO_LONG = 1009
};
enum { WS_FAILED = 1011 /* of ours */ };

#endif
