/* ws.h - what is done to the messages of a WebSocket: placeholders in the text messages of a client are replaced, secrets in
 * the messages of a server taken out. Each is a filter over the bytes of one direction, as they come; no extension may have
 * been agreed on, so that frames hold what they say.
 *
 *   client   a text message of at most SECRET_BODY_MAX bytes, in however many frames, is held until it is whole and leaves as
 *            one frame. Everything else passes as it is: other messages, longer ones, control frames. From a frame on that
 *            breaks the protocol nothing is looked at any more: the server will end it.
 *   server   a message may have any length: it leaves in pieces as it comes, each a frame, and in one if it came in one
 *            piece. A frame that breaks the protocol could hide something and ends the filter.
 */
#ifndef HUTCH_EGRESS_WS_H
#define HUTCH_EGRESS_WS_H

#include "egress/secrets.h"

struct ws_client;
/* One whole text message: appends what is to be sent. false: nothing may be sent any more. */
typedef bool ws_message_fn(void *arg, const char *p, size_t n, struct buf *out);
struct ws_client *ws_client_new(ws_message_fn *message, void *arg);
/* Appends what is to be passed on; the caller wipes it. false: the callback said so. */
bool ws_client_feed(struct ws_client *w, const void *p, size_t n, struct buf *out);
void ws_client_free(struct ws_client *w); /* NULL is fine */

struct ws_server;
struct ws_server *ws_server_new(struct redactor *r); /* borrowed */
/* Appends what is to be passed on. false: a frame that cannot be searched. */
bool ws_server_feed(struct ws_server *w, const void *p, size_t n, struct buf *out);
void ws_server_free(struct ws_server *w); /* NULL is fine */

#endif
