/* ws.h - reads the frames of a WebSocket (RFC 6455) and writes them anew, so that a caller can change the messages on
 * their way. Each filter works on the bytes of one direction as they come. No extension may have been negotiated: frames
 * must not be compressed or encoded.
 *
 *   client   a text message of at most `max` bytes, in any number of frames, is held until it is complete and given to
 *            the caller. Other messages, longer ones and control frames pass unchanged. After a frame that breaks the
 *            protocol all bytes pass unchanged: the server will close the connection.
 *   server   a message may have any length: it leaves in pieces as it comes, each a frame, and in one if it came in one
 *            piece. A frame that breaks the protocol ends the filter: it could hide from the caller what it carries.
 */
#ifndef HUTCH_HTTP_WS_H
#define HUTCH_HTTP_WS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum { WS_MORE = 0, WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10 };

/* Appends what a server answers in sec-websocket-accept to this sec-websocket-key. False: no memory for the digest. */
bool ws_accept_key(const char *key, struct buf *out);

/* Appends a text message in one frame, as a client sends it. */
void ws_add_text(struct buf *out, const void *p, size_t n);

struct ws_client;
/* Gets one complete text message and appends what to send in its place (ws_add_text). false: the filter ends. */
typedef bool ws_text_fn(void *arg, const char *p, size_t n, struct buf *out);
struct ws_client *ws_client_new(size_t max, ws_text_fn *on_text, void *arg);
/* Appends the bytes to pass on. false: the callback returned false. */
bool ws_client_feed(struct ws_client *w, const void *p, size_t n, struct buf *out);
void ws_client_free(struct ws_client *w); /* NULL is fine */

struct ws_server;
struct ws_server_events {
    /* The next bytes of a message; the last of it if `last`. Appends the bytes to pass on, which may be none so far. */
    void (*on_data)(void *arg, const void *p, size_t n, bool last, struct buf *out);
    /* A control frame with this payload. Returns how many of its bytes may pass. */
    size_t (*on_control)(void *arg, uint8_t opcode, const void *p, size_t n);
};
struct ws_server *ws_server_new(const struct ws_server_events *events, void *arg); /* both borrowed */
/* Appends the bytes to pass on. false: a frame breaks the protocol. */
bool ws_server_feed(struct ws_server *w, const void *p, size_t n, struct buf *out);
void ws_server_free(struct ws_server *w); /* NULL is fine */

#endif
